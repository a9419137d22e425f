//! Settings of the host's kernel that affect directories, so that memory exports behave the same.

use rustix::process::{getegid, getgroups};

/// Settings of the kernel (proc(5), `/proc/sys/fs/`), and the groups of this process, which writes clients' data.
pub(super) struct Host {
    /// Nobody links a file to a further name who is not its owner and may not write it.
    pub(super) guards_hardlinks: bool,
    /// Nobody follows another's link at the end of a path in a sticky directory that everybody may write.
    pub(super) guards_symlinks: bool,
    groups: Vec<u32>,
}

impl Host {
    /// This one. Not blocking.
    pub(super) fn of_process() -> Self {
        // Where the kernel does not tell, it is as distributions set it.
        let is_set = |name: &str| {
            std::fs::read_to_string(format!("/proc/sys/fs/{name}")).map_or(true, |text| text.trim() != "0")
        };
        let own = std::iter::once(getegid()).chain(getgroups().unwrap_or_default());
        Self {
            guards_hardlinks: is_set("protected_hardlinks"),
            guards_symlinks: is_set("protected_symlinks"),
            groups: own.map(rustix::fs::Gid::as_raw).collect(),
        }
    }

    /// One with the usual settings, whose server runs as root.
    pub(super) fn simulated() -> Self {
        Self { guards_hardlinks: true, guards_symlinks: true, groups: vec![0] }
    }

    pub(super) fn is_in_group(&self, gid: u32) -> bool {
        self.groups.contains(&gid)
    }
}
