//! The session's operations under one lock: what is sent when, what an answer means, what becomes of it all when the connection breaks.
//! Never waits, and has no connection: its driver hands it what arrived, and room for what is to be sent. Imports `op` and the rooms below
//! it.

pub(crate) mod choice;
pub(crate) mod core;
pub(crate) mod eager;
pub(crate) mod ended;
pub(crate) mod ending;
pub(crate) mod locks;
pub(crate) mod outcomes;
pub(crate) mod recovery;
pub(crate) mod signs;
