//! What programs call: checks of arguments, documents, and an operation for each call. Imports all other rooms, and none imports it.

pub(crate) mod batch;
pub(crate) mod chain;
pub(crate) mod completions;
pub(crate) mod dir;
#[cfg(feature = "tokio")]
pub(crate) mod drive;
pub(crate) mod file;
pub(crate) mod key_file;
pub(crate) mod lock;
pub(crate) mod options;
pub(crate) mod pin;
pub(crate) mod read_dir;
pub(crate) mod replace;
pub(crate) mod reply;
pub(crate) mod session;
pub(crate) mod striped;
pub(crate) mod token;
pub(crate) mod verify;
pub(crate) mod view;
