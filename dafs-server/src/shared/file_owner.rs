//! Who may change the files in which something outlives the server.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Whether others than root and the server's user may change a file of the server, or have made it.
pub(super) fn is_of_others(found: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    found.mode() & 0o022 != 0 || !(found.uid() == own || found.uid() == 0)
}
