//! Acting as a client's user: the calling thread's file-system user, group and groups.
//!
//! Linux keeps these per thread; the C library's `setgroups` would change all threads, so the system call itself is
//! made. User 0 drops the capabilities that override file permissions with it, and gets them back with user 0. No other user does, which is
//! why none may have them ([`overrides_permissions`]).
//!
//! Threads that serve drop two capabilities ([`hold_back`]), since they write data without the client's identity.
#![allow(unsafe_code, reason = "per-thread credentials have no safe wrapper")]

use std::cell::{Cell, RefCell};

use dafs_proto::wire::Status;
use rustix::fs::{Gid, Mode};
use rustix::process::{getegid, geteuid, getgroups, umask as set_umask};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, UnshareFlags, capabilities, capabilities_secure_bits,
    set_capabilities, unshare_unsafe,
};
use tracing::error;

use super::Identity;

/// With it, the kernel leaves set-user-id and set-group-id bits on a file that is written, and lets any group's be set.
const CAP_FSETID: CapabilitySet = CapabilitySet::FSETID;
/// With it, the kernel writes beyond quotas, and into what a file system holds in reserve.
const CAP_SYS_RESOURCE: CapabilitySet = CapabilitySet::SYS_RESOURCE;
const HELD_BACK: CapabilitySet = CAP_FSETID.union(CAP_SYS_RESOURCE);

/// What the kernel takes out of effect when the file-system user is no longer 0 (CAP_FS_SET): with these a thread goes beyond what its
/// user may do.
const OVERRIDES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::MAC_OVERRIDE);

/// What the process was started as.
pub(super) struct Identities {
    /// The process may take other identities.
    privileged: bool,
    own: Identity,
}

/// Restores the process's own identity, and the umask, on this thread when dropped.
pub(super) struct Acting<'a> {
    identities: Option<&'a Identities>,
    umask: Option<Mode>,
}

/// The calling thread may set any file's set-group-id bit, until this is dropped.
pub(super) struct SettingIds;

thread_local! {
    /// What this thread acts as; `None` for the process's own identity.
    static CURRENT: RefCell<Option<Identity>> = const { RefCell::new(None) };
    /// Whether this thread has a umask of its own; `None` before it has tried to get one.
    static OWN_UMASK: Cell<Option<bool>> = const { Cell::new(None) };
    /// That umask, where it is known: nobody else changes it.
    static UMASK: Cell<Option<Mode>> = const { Cell::new(None) };
}

impl Identities {
    /// Reads what the process may do.
    pub(super) fn of_process() -> Self {
        Self { privileged: may_change_identity(), own: own_identity() }
    }

    /// Makes this thread act as `identity` until the guard goes; as the process itself where it is not privileged. What it makes with a
    /// `mode` gets that.
    pub(super) fn act_as(&self, identity: &Identity, mode: Option<u32>) -> Result<Acting<'_>, Status> {
        let umask = mode.and_then(|mode| take_umask(Mode::from_raw_mode(mode)));
        if !self.would_change(identity) {
            self.restore();
            return Ok(Acting { identities: None, umask });
        }
        if CURRENT.with(|current| current.borrow().as_ref() == Some(identity)) {
            return Ok(Acting { identities: Some(self), umask });
        }
        // From user 0, so that capabilities are the process's own while changing.
        self.restore();
        let mut acting = Acting { identities: None, umask };
        // Where the first step is refused nothing has changed, and there is nothing to return from.
        if !set_groups(identity) {
            return Err(Status::PERMISSION);
        }
        // Recorded before the others: whatever was changed before a failure is then undone.
        CURRENT.with(|current| *current.borrow_mut() = Some(identity.clone()));
        acting.identities = Some(self);
        if set_ids(identity) { Ok(acting) } else { Err(Status::PERMISSION) }
    }

    /// Makes this thread act as the process itself again.
    pub(super) fn act_as_itself(&self) -> Result<(), Status> {
        self.restore();
        CURRENT.with(|current| if current.borrow().is_none() { Ok(()) } else { Err(Status::PERMISSION) })
    }

    /// Whether acting as `identity` changes the thread's credentials.
    pub(super) fn would_change(&self, identity: &Identity) -> bool {
        // Root's groups decide nothing.
        let is_root = identity.uid == 0 && identity.gid == 0 && self.own.uid == 0 && self.own.gid == 0;
        self.privileged && !is_root
    }

    /// Lets the calling thread set any file's set-group-id bit, where it acts as user 0.
    pub(super) fn set_ids(&self) -> Option<SettingIds> {
        (self.acting_uid() == 0).then(Self::keep_ids).flatten()
    }

    /// Lets the calling thread keep any file's set-group-id bit, whoever it acts as.
    pub(super) fn keep_ids() -> Option<SettingIds> {
        set_effective(CAP_FSETID, CapabilitySet::empty()).is_ok().then_some(SettingIds)
    }

    /// The user that this thread acts as.
    fn acting_uid(&self) -> u32 {
        CURRENT.with(|current| current.borrow().as_ref().map_or(self.own.uid, |acting| acting.uid))
    }

    /// This thread may take names out of a sticky directory that belong to one of these users.
    pub(super) fn may_remove_of(&self, owners: &[u32]) -> bool {
        let uid = self.acting_uid();
        owners.contains(&uid)
            || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FOWNER))
    }

    fn restore(&self) {
        if CURRENT.with(|current| current.borrow().is_none()) {
            return;
        }
        // With user 0, the kernel puts CAP_FSETID into effect again.
        if set_groups(&self.own) && set_ids(&self.own) && hold_back().is_ok() {
            CURRENT.with(|current| *current.borrow_mut() = None);
        } else {
            // Whatever this thread did next, it would do as a client's user, and say that it was done.
            error!("cannot return to the server's own user and groups; the server ends");
            std::process::abort();
        }
    }
}

impl Acting<'_> {
    /// Leaves the identity on the thread: for pool threads, whose next operation often has the same one.
    pub(super) fn keep(mut self) {
        self.identities = None;
        if self.umask.take().is_some() {
            UMASK.set(Some(Mode::empty()));
        }
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        if let Some(umask) = self.umask {
            set_umask(umask);
        }
        if let Some(identities) = self.identities {
            identities.restore();
        }
    }
}

impl Drop for SettingIds {
    fn drop(&mut self) {
        if hold_back().is_err() {
            error!(
                "cannot give up CAP_FSETID again; files that this thread writes keep their set-user-id bits"
            );
        }
    }
}

/// Takes out of effect, on the calling thread and those it starts, what would let clients write as only user 0 may: set-user-id bits of
/// what they change stay off, and quotas hold. To be called before anything starts threads or opens what holds on to credentials, as RDMA
/// devices and rings do. Once that is so, nothing is changed.
///
/// # Errors
/// The system refuses it.
pub fn hold_back() -> std::io::Result<()> {
    Ok(set_effective(CapabilitySet::empty(), HELD_BACK)?)
}

/// Whether the calling thread would keep capabilities in effect that override permissions while it acts as a client's user.
///
/// # Errors
/// The system does not tell.
pub(super) fn overrides_permissions() -> std::io::Result<bool> {
    let keeps = match geteuid().is_root() {
        true => capabilities_secure_bits()?.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP),
        false => true,
    };
    Ok(keeps && may_change_identity() && capabilities(None)?.effective.intersects(OVERRIDES))
}

/// Puts capabilities into effect on the calling thread, as far as it may have them, and takes others out of it.
fn set_effective(add: CapabilitySet, remove: CapabilitySet) -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    let before = sets.effective;
    sets.effective = (before | add & sets.permitted).difference(remove);
    if sets.effective == before { Ok(()) } else { set_capabilities(None, sets) }
}

/// The first step of acting as an identity: it takes effect, or changes nothing.
fn set_groups(identity: &Identity) -> bool {
    let count = identity.groups.len();
    // SAFETY: the list is as long as said.
    unsafe { libc::syscall(libc::SYS_setgroups, count, identity.groups.as_ptr()) == 0 }
}

/// The other steps: whether all of them took effect.
fn set_ids(identity: &Identity) -> bool {
    set_fs_id(libc::SYS_setfsgid, identity.gid) && set_fs_id(libc::SYS_setfsuid, identity.uid)
}

/// These calls return the former id and never an error, so ask again.
fn set_fs_id(call: libc::c_long, id: u32) -> bool {
    // SAFETY: no memory is passed.
    unsafe {
        libc::syscall(call, libc::c_ulong::from(id));
        libc::syscall(call, libc::c_ulong::from(u32::MAX)) == libc::c_long::from(id)
    }
}

/// Modes are used as given: this thread's umask becomes 0, without touching other threads' where the kernel allows
/// that, and not where it takes nothing from `mode`. Returns what it was, to be restored. Where it is every thread's it stays 0, for
/// another may be making a file.
fn take_umask(mode: Mode) -> Option<Mode> {
    if UMASK.get().is_some_and(|known| !known.intersects(mode)) {
        return None;
    }
    let is_own = OWN_UMASK.get().unwrap_or_else(|| {
        // SAFETY: what is no longer shared is the working directory and the umask; nothing here relies on sharing them.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.is_ok()
    });
    OWN_UMASK.set(Some(is_own));
    let before = set_umask(Mode::empty());
    UMASK.set(is_own.then_some(before));
    UMASK.get()
}

/// Whether the calling thread, which acts as the process itself, may act as others: CAP_SETUID and CAP_SETGID are in effect, and the kernel
/// lets them be used. In a user namespace, or behind a filter of system calls, it may not.
pub(crate) fn may_change_identity() -> bool {
    // On a thread of its own: the kernel takes RDMA calls only from threads that have never changed who they are, to the same either.
    std::thread::spawn(try_to_change).join().unwrap_or(false)
}

fn try_to_change() -> bool {
    let both = CapabilitySet::SETGID | CapabilitySet::SETUID;
    let own = own_identity();
    // To become what it is changes nothing.
    capabilities(None).is_ok_and(|sets| sets.effective.contains(both)) && set_groups(&own) && set_ids(&own)
}

fn own_identity() -> Identity {
    let groups = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
    Identity { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [ACC-146]
    #[test]
    #[ignore = "needs root"]
    fn thread_with_override_capabilities_is_detected() {
        use rustix::thread::{set_capabilities_secure_bits, set_keep_capabilities, set_thread_res_uid};
        use std::thread::spawn;

        let others = CapabilitySet::SETGID | CapabilitySet::SETUID;
        let with = move |more: CapabilitySet| {
            let mut sets = capabilities(None).unwrap();
            sets.effective = (others | more) & sets.permitted;
            set_capabilities(None, sets).unwrap();
            overrides_permissions().unwrap()
        };
        // User and capabilities are each thread's own.
        let as_root = spawn(|| {
            let before = overrides_permissions().unwrap();
            let bits = capabilities_secure_bits().unwrap() | CapabilitiesSecureBits::NO_SETUID_FIXUP;
            set_capabilities_secure_bits(bits).unwrap();
            (before, overrides_permissions().unwrap())
        });
        assert_eq!(as_root.join().unwrap(), (false, true));
        let as_user = spawn(move || {
            set_keep_capabilities(true).unwrap();
            let user = rustix::process::Uid::from_raw(4444);
            set_thread_res_uid(user, user, user).unwrap();
            assert!(!with(CapabilitySet::IPC_LOCK | CapabilitySet::SYS_RESOURCE));
            for single in
                OVERRIDES.iter().filter(|single| capabilities(None).unwrap().permitted.contains(*single))
            {
                assert!(with(single), "{single:?}");
            }
            assert!(with(CapabilitySet::DAC_OVERRIDE));
            // As itself it goes only as far as it may anyway.
            let mut sets = capabilities(None).unwrap();
            sets.effective = CapabilitySet::DAC_OVERRIDE | CapabilitySet::SETUID;
            set_capabilities(None, sets).unwrap();
            assert!(!overrides_permissions().unwrap());
        });
        as_user.join().unwrap();
    }

    // [ACC-37] Nobody has left who would have to return.
    #[test]
    #[ignore = "needs root"]
    fn client_with_groups_refused_by_the_kernel_is_refused() {
        let refused = std::thread::spawn(|| {
            let identities = Identities::of_process();
            assert!(identities.privileged);
            let mut sets = capabilities(None).unwrap();
            sets.effective = sets.effective.difference(CapabilitySet::SETGID);
            set_capabilities(None, sets).unwrap();
            let client = Identity { uid: 4444, gid: 5555, groups: [5555].into() };
            let refused = identities.act_as(&client, None).err();
            assert_eq!(identities.act_as_itself(), Ok(()));
            refused
        });
        assert_eq!(refused.join().unwrap(), Some(Status::PERMISSION));
    }

    /// Set in the process whose umask is changed.
    const SHARED: &str = "DAFS_TEST_SHARED_UMASK";

    // [STOR-7]
    #[test]
    fn umask_is_restored_only_where_no_other_thread_has_it() {
        if std::env::var_os(SHARED).is_none() {
            let name = "storage::credentials::tests::umask_is_restored_only_where_no_other_thread_has_it";
            let own = std::process::Command::new(std::env::current_exe().unwrap());
            return assert_passes({ own }.args(["--exact", name]).env(SHARED, "1"));
        }
        set_umask(Mode::WGRP);
        let after_acting = |is_own: Option<bool>| {
            OWN_UMASK.set(is_own);
            let identities = Identities::of_process();
            drop(identities.act_as(&identities.own, Some(0o777)).unwrap());
            (OWN_UMASK.get(), set_umask(Mode::empty()))
        };
        let (is_own, umask) = std::thread::spawn(move || after_acting(None)).join().unwrap();
        assert_eq!(umask, if is_own == Some(true) { Mode::WGRP } else { Mode::empty() });
        // As if unshare(2) were refused.
        assert_eq!(std::thread::spawn(move || after_acting(Some(false))).join().unwrap().1, Mode::empty());
    }

    fn assert_passes(test: &mut std::process::Command) {
        let output = test.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    }

    /// Set in the process that is to end.
    const DOOMED: &str = "DAFS_TEST_CANNOT_RETURN";

    // [ACC-37]
    #[test]
    #[ignore = "needs root"]
    fn process_that_cannot_return_to_its_own_user_ends() {
        if std::env::var_os(DOOMED).is_some() {
            let identities = Identities::of_process();
            let client = Identity { uid: 4444, gid: 5555, groups: [5555].into() };
            let acting = identities.act_as(&client, None).unwrap();
            let mut sets = capabilities(None).unwrap();
            sets.effective = sets.effective.difference(CapabilitySet::SETGID);
            sets.permitted = sets.permitted.difference(CapabilitySet::SETGID);
            set_capabilities(None, sets).unwrap();
            drop(acting);
            let _ = identities.act_as(&Identity { uid: 0, gid: 0, groups: [].into() }, None);
            return;
        }
        let name = "storage::credentials::tests::process_that_cannot_return_to_its_own_user_ends";
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--include-ignored"])
            .env(DOOMED, "1")
            .output()
            .unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&ended.status);
        assert_eq!(signal, Some(libc::SIGABRT), "{}", String::from_utf8_lossy(&ended.stdout));
    }
}
