//! Who this process is.
#![allow(unsafe_code, reason = "getuid and its kin")]

use crate::config::Identity;

/// Effective user and groups of this process.
pub(crate) fn identity() -> Identity {
    // SAFETY: these calls have no preconditions and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: a size of 0 asks for the number of groups only.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the vector holds as many groups as the call is told.
    let count = unsafe { libc::getgroups(count.max(0), groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    Identity { uid, gid, groups }
}
