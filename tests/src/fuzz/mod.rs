//! Entry points for fuzzing: one function for each target, fed with any bytes. None may panic, hang, or allocate what the bytes ask for.
//!
//! The targets in `tests/fuzz` are one line each around these; `tests/tests/fuzz_corpus.rs` runs the same functions
//! over the committed corpus and over generated inputs in a plain test.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers are cut to fit: any value is as good as another"
)]

mod client;
mod decoders;
mod generate;
mod input;
mod server;
mod stage;
mod storage;

pub use client::client_session;
#[cfg(feature = "verbs")]
pub use decoders::verbs_messages;
pub use decoders::{
    BODIES, address, batches, bodies, config, dir_entries, export_flag, header, key_file, lists,
    message_pack, names, segments, shm_handshake, tcp_frames, views,
};
pub use generate::Generator;
pub use server::server_session;

/// A target's name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("header", header),
    ("bodies", bodies),
    ("names", names),
    ("dir_entries", dir_entries),
    ("message_pack", message_pack),
    ("segments", segments),
    ("lists", lists),
    ("batches", batches),
    ("views", views),
    ("tcp_frames", tcp_frames),
    ("shm_handshake", shm_handshake),
    #[cfg(feature = "verbs")]
    ("verbs_messages", verbs_messages),
    ("address", address),
    ("key_file", key_file),
    ("config", config),
    ("export_flag", export_flag),
    ("server_session", server_session),
    ("client_session", client_session),
];
