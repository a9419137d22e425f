//! Views: what a datatype shows of a file, against the list that it expands to.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes, patterns and positions that the tests choose"
)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

mod definition;
mod groups;
mod hostile;
mod locked;
mod oracle;
mod overlaps;
mod sessions;
mod unions;
mod work;
