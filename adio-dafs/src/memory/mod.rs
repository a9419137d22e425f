//! The memory modes, and the choice between them where nobody made it: by measuring. Imports `hint`.

mod trials;

pub use trials::{Cell, Timed, Trials};
