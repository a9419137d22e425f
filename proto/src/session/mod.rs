//! The rules of a session, for both roles, without I/O and without a clock: `spec/protocol/session.md` in code.
//!
//! A session is a set of *slots*. Each slot carries one request at a time, with the next sequence number; the server
//! remembers the last request of each slot and, where executing it twice would do harm, its reply. A broken
//! connection therefore costs nothing: the client connects again, resumes the session and sends every unanswered
//! request again; the server executes what it never saw, answers from the cache what it did, and lets run what is
//! running.
//!
//! - [`ClientHandshake`] and [`ServerHandshake`] agree on version, features, key and session: messages in, messages out.
//! - [`ClientSession`] hands out slots within the credits and matches replies to them.
//! - [`ServerSession`] admits requests, caches replies, tracks chains and grants credits.
//!
//! The drivers move what comes out to a provider and what arrives in here; time is an argument.

mod chain;
mod client;
mod credit;
mod error;
mod handshake;
mod host;
mod key_file;
mod server;
mod time;

pub use chain::{ChainLink, ChainStep};
pub use client::{ClientSession, Sent};
pub use credit::{ClientCredits, ServerCredits, fair_target};
pub use error::{HandshakeError, SessionFault};
pub use handshake::{
    ClientHandshake, ClientIntroduction, Key, KeySource, Proven, ServerHandshake, ServerRefusal, ServerTerms,
};
pub use host::host_client_id;
pub use key_file::{
    KEY_NAME_SIZE_MAX, KeyLine, KeyLineError, KeyLineProblem, SECRET_SIZE_MAX, SECRET_SIZE_MIN,
    format_key_line, is_key_name, parse_key_file,
};
pub use server::{Admission, Effect, KeptReply, PartEffect, REPLY_CACHE_PAYLOAD_MAX, ServerSession};
pub use time::{KEEP_ALIVE_MAX_MS, KeepAlive, Moment};
