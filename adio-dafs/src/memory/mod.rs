//! The memory modes, and the choice between them by measuring, if the program has made none. Imports `hint`.

mod trials;

pub use trials::{Cell, Timed, Trials};
