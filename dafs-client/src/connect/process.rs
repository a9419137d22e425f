//! Who this process is.

use std::io;

use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::config::Identity;

/// Effective user and groups of this process.
pub(crate) fn identity() -> Identity {
    let groups = getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect();
    Identity { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups }
}

/// Does something with the effective user and groups of `who`, on a thread of its own, so that nobody else of this process has them
/// meanwhile. Needs root. Blocks.
pub(crate) fn acting_as<T: Send>(who: &Identity, act: impl FnOnce() -> T + Send) -> io::Result<T> {
    let thread = || {
        let groups: Vec<Gid> = who.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        set_thread_groups(&groups)?;
        set_thread_res_gid(None, Gid::from_raw(who.gid), None)?;
        // Last: whoever is not root may not change groups.
        set_thread_res_uid(None, Uid::from_raw(who.uid), None)?;
        Ok(act())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("dafs-connect".into()).spawn_scoped(scope, thread)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
