//! The client library against the real server where it matters which request is lost, answered falsely, or met by a crash: on virtual time,
//! with a script between the two.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a test: small numbers, and what is wrong fails it"
)]

mod sim;
