//! The Wireshark dissector, run by tshark: on the golden messages, on those that are refused, and on what a real client and server say.
//!
//! Captures are files that the tests write, with made-up headers of TCP/IP: nothing is captured from a network.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]
#![allow(clippy::cast_possible_truncation, reason = "sizes that the tests choose")]

mod capture;
mod operations;
mod recorder;
mod segments;
mod session;
mod tshark;
mod vectors;
