//! Sessions of the client library through a real server: credits, time, broken connections, restarts, many threads.
#![allow(clippy::cast_possible_truncation, reason = "sizes and patterns that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

mod by_hand;
mod chains;
mod completions;
mod cuts;
mod drain;
mod ending;
mod features;
mod handed;
mod life;
mod load;
mod nonblocking;
mod published;
mod replayed_names;
mod replays;
mod restart;
mod shares;
mod threadless;
mod tokens;
mod tokens_by_hand;
mod tokens_logged;
mod tokens_lost;
mod waits;
mod workers;
