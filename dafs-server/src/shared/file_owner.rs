//! The files in which something outlives the server: who may change them, and that they are found again.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether others than root and the server's user may change a file of the server, or have made it.
pub(super) fn is_of_others(found: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    found.mode() & 0o022 != 0 || !(found.uid() == own || found.uid() == 0)
}

/// Makes the name of such a file durable: what is in it is lost without. Blocks.
pub(super) fn sync_name(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
