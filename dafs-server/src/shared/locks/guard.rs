//! The table of locks as all workers share it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use dafs_proto::wire::SessionId;

use super::LockTable;

type ClientId = [u8; 16];

/// The table, and what is asked of it so often that nobody should wait for its lock.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    table: Mutex<LockTable>,
    /// Somebody has asked for a lock since the server began.
    used: AtomicBool,
    mandatory: AtomicBool,
    clients: RwLock<HashMap<SessionId, ClientId>>,
}

impl Locks {
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut LockTable) -> T) -> T {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = act(&mut table);
        self.mandatory.store(table.has_mandatory(), Ordering::Release);
        outcome
    }

    /// Somebody has asked for a lock since the server began.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// There are mandatory locks.
    #[inline]
    pub(crate) fn are_mandatory(&self) -> bool {
        self.mandatory.load(Ordering::Acquire)
    }

    /// A session asks for locks.
    pub(crate) fn introduce(&self, session: SessionId, client: ClientId) {
        if self.clients.read().unwrap_or_else(PoisonError::into_inner).contains_key(&session) {
            return;
        }
        self.used.store(true, Ordering::Release);
        self.clients.write().unwrap_or_else(PoisonError::into_inner).insert(session, client);
    }

    /// Who has a session that asked for locks.
    pub(crate) fn client_of(&self, session: SessionId) -> ClientId {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).get(&session).copied().unwrap_or_default()
    }

    /// A session has ended.
    pub(crate) fn forget(&self, session: SessionId) {
        self.clients.write().unwrap_or_else(PoisonError::into_inner).remove(&session);
    }
}
