//! Files that a server hands over to clients on its host: see `spec/protocol/local.md`.

use super::body::body;

body! {
    /// Body of a callback, 8 bytes: the descriptor of an open file is to be given back.
    pub struct Recall("recall") {
        /// The open file.
        pub handle: u64 = "handle",
    }
}
