//! Handles and views that are to be given back.
//!
//! Who drops a node may hold any lock. So the node only puts its handle here, and the session's next call sends the closes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use dafs_proto::transport::util::Home;
use dafs_proto::wire::FileHandle;

/// What is to be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Closing {
    /// A handle.
    Handle { index: Option<usize>, epoch: u64, handle: FileHandle },
    /// The view of this number.
    View(u32),
}

impl Closing {
    /// This handle is given back.
    pub(crate) fn is_of(&self, of: FileHandle) -> bool {
        matches!(self, Self::Handle { handle, .. } if *handle == of)
    }
}

/// Those of a session.
pub(crate) struct Closings {
    waiting: Mutex<Vec<Closing>>,
    any: AtomicBool,
    hasten: OnceLock<Box<dyn Fn(bool) + Send + Sync>>,
    home: Home,
}

impl Default for Closings {
    fn default() -> Self {
        let waiting = Mutex::default();
        Self { waiting, any: AtomicBool::default(), hasten: OnceLock::new(), home: Home::here() }
    }
}

impl Closings {
    /// What is to be called when a node has put its handle here, so that an idle session sends the close too: `true` where
    /// others may wait for it. It must not block.
    pub(crate) fn set_hasten(&self, hasten: impl Fn(bool) + Send + Sync + 'static) {
        // Set once, where the session is made.
        let _ = self.hasten.set(Box::new(hasten));
    }

    /// Calls what was set.
    pub(crate) fn hasten(&self, is_awaited: bool) {
        if let Some(hasten) = self.hasten.get() {
            hasten(is_awaited);
        }
    }

    /// Never blocks, and takes no lock that is held while nodes are dropped. In a child of fork() it does nothing: what is open is the
    /// parent's.
    pub(crate) fn put(&self, closing: Closing) {
        if !self.home.is_here() {
            return;
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(closing);
        self.any.store(true, Ordering::Release);
    }

    /// Some wait.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes all of them.
    pub(crate) fn take(&self) -> Vec<Closing> {
        match self.any() && self.any.swap(false, Ordering::AcqRel) {
            true => std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner)),
            false => Vec::new(),
        }
    }
}
