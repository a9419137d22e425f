use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dafs_proto::wire::{FileHandle, FileIdentity, OpenFlags, Status, Verifier};

use crate::error::StaleCause;
use crate::handle::closings::{Closing, Closings};
use crate::handle::locks::Locks;
use crate::handle::unstable::Unstable;

/// How a node is opened again in a new session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reopen {
    /// The root of its export.
    Mount,
    /// By lookup of its path.
    Lookup {
        /// A symbolic link at the end is followed.
        follow: bool,
    },
    /// By opening its path.
    Open {
        /// Without those that make or cut a file.
        flags: OpenFlags,
    },
}

/// Flags by which an open makes or cuts a file.
pub(crate) const MAKING: OpenFlags = OpenFlags::CREATE.union(OpenFlags::EXCLUSIVE).union(OpenFlags::TRUNCATE);

impl Reopen {
    /// How a file is opened again that was opened by these flags: without those that make or cut a file.
    pub(crate) fn open(flags: OpenFlags) -> Self {
        Self::Open { flags: flags - MAKING }
    }
}

/// Something that this session has open on the server. Outlives sessions: after a restart of the server it has another handle.
pub(crate) struct Node {
    /// Name of the export.
    pub(crate) export: String,
    /// Path below the export by which it was opened.
    pub(crate) path: Vec<u8>,
    pub(crate) reopen: Reopen,
    pub(crate) identity: FileIdentity,
    /// Its path since this session renamed it.
    moved: Mutex<Option<Vec<u8>>>,
    pub(crate) unstable: Mutex<Unstable>,
    locks: Mutex<Locks>,
    // Both change only under the lock of the session's core.
    handle: AtomicU64,
    epoch: AtomicU64,
    stale: OnceLock<StaleCause>,
    /// The server wants its descriptor back.
    recalled: AtomicBool,
    /// The program has a descriptor from the server.
    handed_over: AtomicBool,
    // Place in the core's list.
    index: usize,
    closings: Arc<Closings>,
}

/// What a new node is made of.
pub(crate) struct NodeParts {
    pub(crate) export: String,
    pub(crate) path: Vec<u8>,
    pub(crate) reopen: Reopen,
    pub(crate) identity: FileIdentity,
    pub(crate) handle: FileHandle,
    /// The session that gave the handle.
    pub(crate) epoch: u64,
}

impl Node {
    pub(crate) fn new(parts: NodeParts, index: usize, closings: Arc<Closings>) -> Self {
        Self {
            export: parts.export,
            path: parts.path,
            reopen: parts.reopen,
            identity: parts.identity,
            moved: Mutex::default(),
            unstable: Mutex::default(),
            locks: Mutex::default(),
            handle: AtomicU64::new(parts.handle.0),
            epoch: AtomicU64::new(parts.epoch),
            stale: OnceLock::new(),
            recalled: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            index,
            closings,
        }
    }

    #[inline]
    pub(crate) fn handle(&self) -> FileHandle {
        FileHandle(self.handle.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.get().is_some()
    }

    /// The server wants the descriptor back that it has handed over of this.
    pub(crate) fn recall(&self) {
        self.recalled.store(true, Ordering::Relaxed);
    }

    /// The program has got a descriptor.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }

    /// Another session was asked for it again. One that refuses wants it back.
    pub(crate) fn handed_over_again(&self, is_known: bool) {
        self.recalled.store(!is_known, Ordering::Relaxed);
    }

    pub(crate) fn is_recalled(&self) -> bool {
        self.recalled.load(Ordering::Relaxed)
    }

    /// Its handle is one of this session: it has it open, even where its file is of no use any more.
    pub(crate) fn is_open_in(&self, epoch: u64) -> bool {
        self.epoch.load(Ordering::Relaxed) == epoch
    }

    /// What is locked by it.
    pub(crate) fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its number among all that are open in its session; another's when it is closed.
    pub(crate) fn number(&self) -> u64 {
        self.index as u64
    }

    /// Why it is not open any more.
    pub(crate) fn stale_cause(&self) -> Option<StaleCause> {
        self.stale.get().copied()
    }

    /// It was opened again in session number `epoch`, or is not open any more.
    pub(crate) fn renew(&self, epoch: u64, handle: Result<FileHandle, StaleCause>) {
        match handle {
            Ok(handle) => {
                self.epoch.store(epoch, Ordering::Relaxed);
                self.handle.store(handle.0, Ordering::Relaxed);
                self.locks().forget_given_up();
            }
            // The first cause stays. Its handle is that of a session that is gone: given back in the new one, it would close another file.
            Err(cause) => drop(self.stale.set(cause)),
        }
    }

    /// The server has not all of what was locked by it. What it has is to be given back.
    pub(crate) fn lose_locks(&self, status: Status) {
        // The first cause stays.
        let _ = self.stale.set(StaleCause::Locks(status));
    }

    /// Where it is now, as far as this session knows.
    pub(crate) fn present_path(&self) -> Vec<u8> {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        moved.clone().unwrap_or_else(|| self.path.clone())
    }

    /// What was `from` is `to` now, and what was below it is below that; with `exchanges` also the other way.
    pub(crate) fn on_renamed(&self, from: &[u8], to: &[u8], exchanges: bool) {
        let present = self.present_path();
        let behind = |name: &[u8]| {
            let rest = present.strip_prefix(name)?;
            (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
        };
        let moved = match (behind(from), behind(to)) {
            (Some(rest), _) => [to, rest].concat(),
            (None, Some(rest)) if exchanges => [from, rest].concat(),
            _ => return,
        };
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Some(moved);
    }

    /// So many bytes were written, which the server loses when it restarts: that is when its verifier changes.
    pub(crate) fn wrote(&self, verifier: Verifier, offset: u64, count: usize) {
        self.unstable().add(verifier, offset..offset.saturating_add(count as u64));
    }

    pub(crate) fn unstable(&self) -> MutexGuard<'_, Unstable> {
        self.unstable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.closings.put(Closing::Handle {
            index: Some(self.index),
            epoch: self.epoch.load(Ordering::Relaxed),
            handle: self.handle(),
        });
        let has_locks = !self.locks().is_empty();
        self.closings.hasten(has_locks);
    }
}

/// Joins a path below a node to that node's own path.
pub(crate) fn join(base: &[u8], path: &[u8]) -> Vec<u8> {
    match (base.is_empty(), path.is_empty()) {
        (true, _) => path.to_vec(),
        (_, true) => base.to_vec(),
        _ => [base, b"/", path].concat(),
    }
}
