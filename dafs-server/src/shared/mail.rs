//! What workers send each other.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock};

use dafs_proto::session::Key;
use dafs_proto::transport::{Endpoint, OpToken};
use dafs_proto::wire::{Header, Hello, LockRequest, LockTurn, SessionId, Status};

use super::lock;
use super::locks::Told;
use crate::cluster::{Before, LockInWay};
use crate::worker::ids::ConnectionKey;

/// Something for a worker to do.
pub enum Mail {
    /// A connection to serve, accepted by a listener of this place.
    Accepted {
        /// The listener.
        listener: usize,
        /// The connection.
        endpoint: Box<dyn Endpoint>,
    },
    /// A connection whose client asks for a session that lives there.
    Resume(Box<Resume>),
    /// The user database was asked about the client of this connection.
    Known {
        /// The connection.
        connection: ConnectionKey,
        /// It has answered.
        is_known: bool,
    },
    /// It is known what became of the session that the client of this connection asks for.
    SessionBefore {
        /// The connection.
        connection: ConnectionKey,
        /// What.
        before: Before,
    },
    /// The cluster's store has changed a lock, or has not.
    ClusterLocked {
        /// Who asked.
        told: ClusterLocked,
        /// How that went.
        status: Status,
    },
    /// The cluster's store was asked what is in the way of a lock.
    ClusterLockTested {
        /// What waits for it.
        waiter: OpToken,
        /// What.
        found: Result<Option<LockInWay>, Status>,
    },
    /// An export's fence was replaced.
    Drain {
        /// The export.
        export: usize,
        /// Called when no operation of a client behind it is in flight.
        then: Box<dyn FnOnce() + Send>,
    },
    /// A fence list was written to the store, or not.
    FencesKept {
        /// What waits for it.
        waiter: OpToken,
        /// How that went.
        status: Status,
    },
    /// The answer.
    Drained {
        /// What waited for it.
        waiter: OpToken,
    },
    /// What lasts of locks was written to the store, or not.
    LocksKept {
        /// What waits for it.
        waiter: OpToken,
        /// How that went.
        status: Status,
    },
    /// Published crossovers were written to the store, or not.
    CrossoversKept {
        /// What waits for it.
        waiter: OpToken,
        /// How that went.
        status: Status,
    },
    /// Members of a group that another worker moved, or waited for with this one, go on by themselves.
    Parted,
    /// Somebody has the lock that he waited for, or is refused.
    LockWaited {
        /// Who.
        told: Told,
        /// Whether he has it.
        status: Status,
    },
}

/// Who asked the cluster's store about a lock.
#[derive(Clone, Copy, Debug)]
pub enum ClusterLocked {
    /// A request for a lock.
    Operation(OpToken),
    /// A session that waits for its turn, without a request in flight.
    Session(SessionId, LockTurn, LockRequest),
    /// A request that is answered what it says.
    Told(OpToken),
}

/// A handshake that has proven who the client is, and is to be ended by another worker.
pub struct Resume {
    pub(crate) listener: usize,
    pub(crate) endpoint: Box<dyn Endpoint>,
    pub(crate) introduction: Introduction,
}

/// What a client has said and proven of itself when it wants a session.
pub struct Introduction {
    /// The request that asks for it.
    pub(crate) request: Header,
    pub(crate) hello: Hello,
    pub(crate) proven: Option<Key>,
    /// What proves the server.
    pub(crate) proof: Vec<u8>,
    /// What became of the session that it asks for, once the cluster was asked.
    pub(crate) before: Option<Before>,
}

type Wake = Box<dyn Fn() + Send + Sync>;

/// The mail of a worker. Bounded by what there is to send: connections, and fences that are being replaced.
#[derive(Default)]
pub struct Inbox {
    mail: Mutex<VecDeque<Mail>>,
    wake: OnceLock<Wake>,
}

impl Inbox {
    /// What wakes the worker; only the first counts.
    pub fn on_mail(&self, wake: impl Fn() + Send + Sync + 'static) {
        // A worker has one loop.
        let _ = self.wake.set(Box::new(wake));
    }

    /// There is mail.
    pub fn is_empty(&self) -> bool {
        lock(&self.mail).is_empty()
    }

    pub(super) fn put(&self, mail: Mail) {
        lock(&self.mail).push_back(mail);
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    pub(crate) fn take(&self) -> Option<Mail> {
        lock(&self.mail).pop_front()
    }
}
