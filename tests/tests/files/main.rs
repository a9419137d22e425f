//! Every operation of the client library on files and names, through a real server, on every provider, in a directory and in memory.
#![allow(clippy::cast_possible_truncation, reason = "sizes and patterns that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

mod changes;
mod copies;
mod data;
mod listing;
mod model;
mod names;
mod policy;
mod ranges;
mod registration;
mod replaces;
mod unreadable;
