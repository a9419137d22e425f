//! Who this process is.

use rustix::process::{getegid, geteuid, getgroups};

use crate::config::Identity;

/// Effective user and groups of this process.
pub(crate) fn identity() -> Identity {
    let groups = getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect();
    Identity { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups }
}
