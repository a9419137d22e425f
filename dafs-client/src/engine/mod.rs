//! The session's operations under one lock: what is sent when, what an answer means, what becomes of it all when the connection breaks.
//! Never waits. Imports `op` and the rooms below it.

pub(crate) mod choice;
pub(crate) mod core;
pub(crate) mod ending;
pub(crate) mod give_up;
pub(crate) mod lanes;
pub(crate) mod outlet;
pub(crate) mod uncontended;
