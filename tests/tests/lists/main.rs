//! Lists: many extents of a file and many pieces of memory in one operation, against plain reads and writes of each.
#![allow(clippy::cast_possible_truncation, reason = "sizes, patterns and tables that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

mod batch_ends;
mod batch_inline;
mod batch_memory;
mod batch_requests;
mod batches;
mod counts;
mod edges;
mod gaps;
mod hostile;
mod oracle;
mod renewed;
mod scattered;
mod sieve;
