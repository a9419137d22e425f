//! The protocol of dafs: everything that a server and a client must agree on, and nothing that only one of them needs.
//!
//! - [`wire`] is the bytes: headers, bodies, status codes. No I/O, no state.
//! - [`session`] is the rules: slots, credits, replay, handshake, for both roles. No I/O, no clock.
//! - [`transport`] is the provider contract, a small Direct Access Transport, and the providers: `tcp`, `shm`, and `sim` for tests.
//! - [`extent`] is arithmetic with lists of file extents. Pure.
//! - [`view`] is where the data of a datatype lies in a file. Pure.
//! - [`back_off`] is for what may be in vain. Pure.
//! - [`bandit`] is for what is tried to learn which way is the quickest. Pure.
//! - [`budget`] is for what many share and none may take all of: it counts.
//! - [`address`] names servers, exports and files.
//! - [`small_file`] reads settings and keys, whatever their path names.
//!
//! `view` knows only `extent`, `wire` only these two, `session` knows only `wire`, and `transport` knows neither: a server or client
//! driver joins them.
#![deny(unsafe_code)]

pub mod address;
pub mod back_off;
pub mod bandit;
pub mod budget;
pub mod extent;
pub mod session;
pub mod small_file;
pub mod transport;
pub mod view;
pub mod wire;
