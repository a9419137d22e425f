//! What holds for the process, whatever loops it has.

pub mod settings;
