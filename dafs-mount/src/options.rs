//! What a mount is to be like.

use std::time::Duration;

/// What the kernel may keep of what it has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Nothing: each read asks the server.
    None,
    /// Data until the file is opened again after somebody changed it, names and attributes for a time. What another client has closed is
    /// seen at the next open.
    #[default]
    CloseToOpen,
    /// All of it, for an hour: for data that nobody changes.
    Lasting,
}

/// How an export is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the kernel may keep.
    pub cache: Cache,
    /// With [`Cache::CloseToOpen`], how long names are believed.
    pub name_time: Duration,
    /// With [`Cache::CloseToOpen`], how long attributes are believed.
    pub attribute_time: Duration,
    /// Nothing can be changed.
    pub read_only: bool,
    /// No file can be executed.
    pub no_exec: bool,
    /// Other users may use the mount, each with a session of his own. Needs root.
    pub allow_other: bool,
    /// The kernel gathers writes and sends them later.
    pub writeback: bool,
    /// The kernel reads and writes files itself that a server on this host hands over. Needs root.
    pub local: bool,
}

impl Default for Options {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self {
            cache: Cache::default(),
            name_time: second,
            attribute_time: second,
            read_only: false,
            no_exec: false,
            allow_other: false,
            writeback: false,
            local: true,
        }
    }
}
