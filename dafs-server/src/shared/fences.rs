//! Client ids that are fenced off, by export.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Clients fenced off one export at most.
pub(crate) const FENCES_MAX: usize = 1024;

type ClientId = [u8; 16];

/// The fences of all exports.
pub(crate) struct Fences {
    by_export: Vec<Fence>,
}

#[derive(Default)]
struct Fence {
    /// Nearly always nobody is: then no lock is taken.
    is_up: AtomicBool,
    clients: RwLock<Vec<ClientId>>,
}

impl Fences {
    pub(super) fn new(exports: usize) -> Self {
        Self { by_export: std::iter::repeat_with(Fence::default).take(exports).collect() }
    }

    /// The client is fenced off the export.
    #[inline]
    pub(crate) fn holds_off(&self, export: usize, client: &ClientId) -> bool {
        let fence = &self.by_export[export];
        fence.is_up.load(Ordering::Acquire) && fence.clients().contains(client)
    }

    /// Those that are fenced off an export.
    pub(crate) fn of(&self, export: usize) -> Vec<ClientId> {
        self.by_export[export].clients().clone()
    }

    /// Replaces an export's list.
    pub(crate) fn set(&self, export: usize, clients: Vec<ClientId>) {
        let fence = &self.by_export[export];
        let mut current = fence.clients.write().unwrap_or_else(PoisonError::into_inner);
        fence.is_up.store(!clients.is_empty(), Ordering::Release);
        *current = clients;
    }
}

impl Fence {
    fn clients(&self) -> RwLockReadGuard<'_, Vec<ClientId>> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner)
    }
}
