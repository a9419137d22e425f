//! How data travels: the one decision, what goes into it, and its reasons. Does nothing. Imports `memory`'s policies.

pub mod io_path;
pub(crate) mod learned;
pub(crate) mod noncontiguous;
pub(crate) mod refined;
