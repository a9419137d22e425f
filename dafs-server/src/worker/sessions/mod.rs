//! Sessions outlive connections: this is where they wait for their client to come back, with what they have open, and with what they leave
//! behind when they end. Requests are not executed here. Imports `access`, `shared`'s words, `flight`'s and `sched`'s.

pub mod handles;
pub(crate) mod turns;
pub(crate) mod views;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use dafs_proto::budget::Charge;
use dafs_proto::session::{ChainStep, Effect, Moment, PartEffect, ServerSession, fair_target};
use dafs_proto::transport::OpToken;
use dafs_proto::wire::{
    BatchOperation, CHAIN_HANDLE, ClientStatistics, Features, LockRequest, LockTurn, SessionId, Status,
};
use slab::Slab;

use crate::access::ClientIdentity;
use crate::shared::Subject;
use crate::storage::{ExportId, LockKey, NodeId};
use crate::worker::flight::Call;
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::sched::CONTENDED_STORAGE_SIZE;
use crate::worker::sched::plans::Plans;
use crate::worker::sessions::handles::HandleTable;
use crate::worker::sessions::turns::LockTurns;
use crate::worker::sessions::views::Views;

/// How long a session gets copies after a file was truncated under a read.
const DISTRUST_TIME: Duration = Duration::from_secs(10);

/// Whether a session is in the file of those who have locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockRecord {
    None,
    /// It may be by now.
    Asked,
    Written,
}

/// A session and what belongs to it.
#[derive(Debug)]
pub struct Session {
    /// Its name on the wire.
    pub id: SessionId,
    /// Proves that a resuming client is the one.
    pub secret: [u8; 16],
    /// What holds on its connection: both sides have named it.
    pub features: Features,
    /// Slots, credits, replies.
    pub core: ServerSession,
    /// What it has open.
    pub handles: HandleTable,
    /// What it has described of files.
    pub views: Views,
    /// Exports that it has mounted. One that has none ends with its connection.
    pub mounts: Vec<ExportId>,
    /// Its place among all sessions.
    pub place: Charge,
    /// Descriptors that its open files take.
    pub descriptors: Charge,
    /// What it did.
    pub ledger: Ledger,
    /// Whose it is.
    pub client: Client,
    /// Whether its client is there.
    pub presence: Presence,
    /// What it knows of its locks.
    pub locks: LockStanding,
    /// What it has under way.
    pub load: Load,
}

/// Whose a session is.
#[derive(Clone, Debug)]
pub struct Client {
    /// Who the client has proven to be.
    pub known_as: ClientIdentity,
    /// The client's own id, for fencing.
    pub id: [u8; 16],
    /// For people.
    pub name: String,
    /// Where it came from last; `None` for this host.
    pub peer: Option<SocketAddr>,
}

/// Whether the client of a session is there, and listens.
#[derive(Debug)]
pub struct Presence {
    /// When the session began.
    pub opened: Moment,
    /// The connection it is on now.
    pub connection: Option<ConnectionKey>,
    /// Why it has none, where it has none.
    pub lost: Option<Box<str>>,
    /// When its client last said something.
    pub last_heard: Moment,
    /// When it could last speak, or was told that its server is there.
    pub(crate) assured: Moment,
    /// It counts toward the fair shares until this time.
    pub active_until: Moment,
    /// Its credits were raised by a callback, and it has sent nothing since.
    pub raised: bool,
    /// Notices of batches and of locks since it was last heard.
    pub notices: u8,
    /// Some were not told because it did not listen.
    pub owes_notices: bool,
}

impl Presence {
    /// A session begins now.
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            opened: now,
            connection: None,
            lost: None,
            last_heard: now,
            assured: now,
            active_until: now,
            raised: false,
            notices: 0,
            owes_notices: false,
        }
    }

    /// Its client has sent a request; whether it is owed notices, which it listens to now.
    #[inline]
    pub(crate) fn on_request(&mut self, now: Moment) -> bool {
        self.last_heard = now;
        self.active_until = now.after(ACTIVE_FOR);
        self.notices = 0;
        self.raised = false;
        std::mem::take(&mut self.owes_notices)
    }

    /// It is on this connection from now on.
    pub(crate) fn on_attached(&mut self, connection: ConnectionKey, now: Moment) {
        self.connection = Some(connection);
        self.lost = None;
        (self.last_heard, self.assured) = (now, now);
        self.raised = false;
    }
}

/// A lock that a session waits for, without a request in flight, as other servers have it.
#[derive(Clone, Debug)]
pub struct ClusterWait {
    pub(crate) file: LockKey,
    pub(crate) turn: LockTurn,
    pub(crate) request: LockRequest,
    /// The store was asked, and has not answered yet.
    pub(crate) is_asked: bool,
}

/// What a session knows of its locks.
#[derive(Debug)]
pub struct LockStanding {
    /// Those whose turn has come, of those that it waits for.
    pub(crate) turns: LockTurns,
    /// Those that it waits for in the cluster's store.
    pub(crate) cluster_waits: Vec<ClusterWait>,
    /// Its session before a restart of the server, which had locks; of a cluster, that of a server that is gone.
    pub(crate) before: Option<SessionId>,
    /// Of a cluster: it opens files and takes locks again that it had in the session before.
    pub(crate) takes_again: bool,
    /// Whether it is in the file of those who have locks.
    pub(crate) record: LockRecord,
    /// Since when it has none although it is there.
    pub(crate) lockless_since: Option<Moment>,
}

impl LockStanding {
    /// Of one without locks, with this one before it.
    pub(crate) fn behind(before: Option<SessionId>) -> Self {
        Self {
            turns: LockTurns::default(),
            cluster_waits: Vec::new(),
            before,
            takes_again: false,
            record: LockRecord::None,
            lockless_since: None,
        }
    }
}

/// What a session has under way.
#[derive(Debug, Default)]
pub struct Load {
    /// Operations in flight that wait for something.
    pub waiting: usize,
    /// Operations of its batches under way.
    pub batched: u32,
    /// Bytes of chunks that storage has.
    pub storage_size: usize,
    /// Transfers whose next chunk waits for others to come back from storage.
    pub storage_waiters: VecDeque<OpToken>,
    /// What it has planned, of views.
    pub plans: Plans,
    /// Until then nothing is sent to it from mapped files: one was truncated under a read.
    pub copies_until: Moment,
}

/// How long a session counts as active after a request.
const ACTIVE_FOR: Duration = Duration::from_secs(1);

impl Session {
    /// It has a share of the server: a request of it is in progress, or was a little while ago.
    pub fn is_active(&self, now: Moment) -> bool {
        self.presence.active_until > now || self.core.credits().executing() > 0
    }

    /// Who it is to fences.
    pub(crate) fn subject(&self) -> Subject<'_> {
        let (client_id, key_name) = (&self.client.id, self.client.known_as.key_name.as_deref());
        Subject { client_id, key_name, address: self.client.peer }
    }

    /// Its name, for the log.
    pub(crate) fn shown_id(&self) -> String {
        format!("{:016x}", self.id.0)
    }

    /// What its client calls itself, for the log, which quotes it: a space in it begins no field of the line.
    pub(crate) fn shown_client(&self) -> String {
        self.client.name.chars().take(CLIENT_NAME_SHOWN).flat_map(char::escape_debug).collect()
    }

    /// Whose it is, for whoever may fence that client off.
    pub(crate) fn shown(&self) -> ClientStatistics {
        ClientStatistics {
            client_id: self.client.id,
            name: self.shown_client(),
            address: self.client.peer.map_or_else(String::new, |address| address.ip().to_string()),
            key: self.client.known_as.key_name.clone().unwrap_or_default().to_string(),
            sessions: 0,
        }
    }

    /// Where its client is, for the log.
    pub(crate) fn shown_peer(&self) -> String {
        self.client.peer.map_or_else(|| "this host".to_owned(), |address| address.to_string())
    }
}

/// Characters of a client's name that the log shows.
const CLIENT_NAME_SHOWN: usize = 64;

/// What a session did, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Requests answered, each once.
    pub requests: u64,
    /// Bytes.
    pub bytes_read: u64,
    /// Bytes.
    pub bytes_written: u64,
}

/// All sessions of a worker, and what is left of those that have ended.
#[derive(Debug)]
pub struct Sessions {
    sessions: Slab<Session>,
    by_id: HashMap<SessionId, SessionKey>,
    /// Those that have a share of the server, of all workers, as of the last tick.
    active: u32,
    /// No more are taken.
    draining: bool,
    /// What sessions that ended had open, and is still to be closed, with the descriptors that it takes.
    closing: Vec<(NodeId, Charge)>,
    /// They have ended and may still have locks.
    unlocking: Vec<SessionId>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            sessions: Slab::new(),
            by_id: HashMap::new(),
            active: 1,
            draining: false,
            closing: Vec::new(),
            unlocking: Vec::new(),
        }
    }
}

impl Sessions {
    /// Adds a session; its id must be new.
    pub fn insert(&mut self, session: Session) -> SessionKey {
        let id = session.id;
        let key = SessionKey(self.sessions.insert(session));
        self.by_id.insert(id, key);
        key
    }

    /// The session of this name, if the secret is its own.
    pub fn resume(&self, id: SessionId, secret: &[u8; 16]) -> Option<SessionKey> {
        let key = *self.by_id.get(&id)?;
        let session = self.sessions.get(key.0)?;
        let difference = session.secret.iter().zip(secret).fold(0, |sum, (a, b)| sum | (a ^ b));
        (difference == 0).then_some(key)
    }

    /// Where the session of this name is.
    pub(crate) fn key_of(&self, id: SessionId) -> Option<SessionKey> {
        self.by_id.get(&id).copied()
    }

    /// A session that is there.
    #[inline]
    pub fn find(&self, key: SessionKey) -> Option<&Session> {
        self.sessions.get(key.0)
    }

    /// A session that is there.
    #[inline]
    pub fn find_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.sessions.get_mut(key.0)
    }

    /// Takes a session out.
    pub fn remove(&mut self, key: SessionKey) -> Option<Session> {
        let session = self.sessions.try_remove(key.0)?;
        self.by_id.remove(&session.id);
        Some(session)
    }

    /// Sessions silent for longer than `lease`.
    pub fn expired(&self, now: Moment, lease: Duration) -> Vec<SessionKey> {
        let silent =
            self.sessions.iter().filter(|(_, session)| now >= session.presence.last_heard.after(lease));
        silent.map(|(key, _)| SessionKey(key)).collect()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.sessions.iter().map(|(key, session)| (SessionKey(key), session))
    }

    /// All of them, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SessionKey, &mut Session)> {
        self.sessions.iter_mut().map(|(key, session)| (SessionKey(key), session))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// None.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// So many of all workers have a share of the server now.
    pub(crate) fn set_active(&mut self, active: u32) {
        self.active = active;
    }

    /// How many have, at least 1.
    #[inline]
    pub(crate) fn active(&self) -> u32 {
        self.active
    }

    /// The target that the next reply of a session grants, which has so many slots, where all have so many operations.
    #[inline]
    pub(crate) fn credit_target(&self, wanted: u16, slots: u16, operations_max: u32) -> u16 {
        fair_target(wanted, slots, operations_max, self.active)
    }

    /// A file was truncated after it was mapped to be sent: it may be again, so the session gets copies for a while.
    #[cold]
    pub(crate) fn distrust_mapped_files(&mut self, session: SessionKey, now: Moment) {
        if let Some(session) = self.find_mut(session) {
            session.load.copies_until = now.after(DISTRUST_TIME);
        }
    }

    /// Reads of the session may be sent from mapped files.
    pub(crate) fn trusts_mapped_files(&self, session: SessionKey, now: Moment) -> bool {
        self.find(session).is_none_or(|session| session.load.copies_until <= now)
    }

    /// No more are taken from now on.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    /// None is taken any more.
    pub(crate) fn are_draining(&self) -> bool {
        self.draining
    }

    /// What a session had open that has ended is to be closed.
    pub(crate) fn close_later(&mut self, node: NodeId, descriptors: Charge) {
        self.closing.push((node, descriptors));
    }

    /// Takes at most `count` of that, and whether there is more.
    pub(crate) fn take_closing(&mut self, count: usize) -> (impl Iterator<Item = (NodeId, Charge)>, bool) {
        let keep = self.closing.len().saturating_sub(count);
        (self.closing.drain(keep..), keep > 0)
    }

    /// A session has ended that may have locks.
    pub(crate) fn unlock_later(&mut self, session: SessionId) {
        self.unlocking.push(session);
    }

    /// One that has ended and may still have some.
    pub(crate) fn unlocking(&self) -> Option<SessionId> {
        self.unlocking.last().copied()
    }

    /// That one has none any more.
    pub(crate) fn unlocked(&mut self) {
        self.unlocking.pop();
    }
}

/// What a session knows of a request.
impl Sessions {
    /// A request was executed before, in part.
    pub(crate) fn has_written_before(&self, call: &Call) -> bool {
        self.find(call.session).is_some_and(|session| session.core.has_effect(call.header.slot))
    }

    /// What was carried out of writes before their connection broke.
    pub(crate) fn done_before(
        &mut self,
        call: &Call,
        operations: &[BatchOperation],
    ) -> Option<Vec<Option<PartEffect>>> {
        let session = self.find_mut(call.session)?;
        match session.core.take_effect(call.header.slot)? {
            Effect::Batch(effects) if effects.len() == operations.len() => {
                let own = effects.into_iter().zip(operations);
                Some(own.map(|(effect, operation)| effect.filter(|_| operation.write)).collect())
            }
            _ => None,
        }
    }

    /// Puts the chain's saved handle in place of its stand-in; a chain that failed is aborted.
    #[inline]
    pub(crate) fn chain_handle(&self, call: &mut Call) -> Result<(), Status> {
        let Some(link) = call.link else {
            return if call.header.handle == CHAIN_HANDLE { Err(Status::BAD_HANDLE) } else { Ok(()) };
        };
        let step = self.find(call.session).map(|session| session.core.chain_step(link));
        match step {
            Some(ChainStep::Execute(saved)) => {
                if call.header.handle == CHAIN_HANDLE {
                    call.header.handle = saved.ok_or(Status::BAD_HANDLE)?;
                }
                Ok(())
            }
            _ => Err(Status::CHAIN_ABORTED),
        }
    }
}

/// How much of each session storage has at once.
impl Sessions {
    /// A session may have one more call with storage, where each may have so many bytes.
    pub(crate) fn has_room(&self, session: SessionKey, size_max: usize) -> bool {
        self.find(session).is_none_or(|session| session.load.storage_size < size_max)
    }

    /// Storage has a call of a session, of so many bytes.
    pub(crate) fn enters_storage(&mut self, session: SessionKey, len: u64) {
        if let Some(session) = self.find_mut(session) {
            session.load.storage_size += storage_cost(len);
        }
    }

    /// Storage has it no longer.
    pub(crate) fn leaves_storage(&mut self, session: SessionKey, len: u64) {
        if let Some(session) = self.find_mut(session) {
            session.load.storage_size = session.load.storage_size.saturating_sub(storage_cost(len));
        }
    }

    /// A session has as much with storage as it may: then `waiter`, a transfer or a list, goes on when some of that is back.
    pub(crate) fn waits_for_room(&mut self, session: SessionKey, size_max: usize, waiter: OpToken) -> bool {
        if self.has_room(session, size_max) {
            return false;
        }
        if let Some(session) = self.find_mut(session) {
            session.load.storage_waiters.push_back(waiter);
        }
        true
    }

    /// How many wait so.
    pub(crate) fn waiters_for_room(&self, session: SessionKey) -> usize {
        self.find(session).map_or(0, |session| session.load.storage_waiters.len())
    }

    /// Takes the next of them, where there is room.
    pub(crate) fn take_waiter_for_room(&mut self, session: SessionKey, size_max: usize) -> Option<OpToken> {
        let session = self.find_mut(session).filter(|session| session.load.storage_size < size_max)?;
        session.load.storage_waiters.pop_front()
    }
}

/// What a call of so many bytes counts as: a disk is kept as long by a small one as by one of this size, nearly.
fn storage_cost(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX).max(CONTENDED_STORAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use dafs_proto::budget::{Budget, Owner};

    use super::*;

    #[test]
    fn there_is_more_to_close_until_the_last_is_taken() {
        let budget = Budget::unlimited();
        let mut sessions = Sessions::default();
        for index in 0..5 {
            let node = NodeId { export: ExportId(0), index, generation: 0 };
            sessions.close_later(node, budget.count(&Owner::Unknown, 1));
        }
        for (taken, more) in [(2, true), (2, true), (1, false), (0, false)] {
            let (closing, has_more) = sessions.take_closing(2);
            assert_eq!((closing.count(), has_more), (taken, more));
        }
        assert_eq!(budget.used(), 0);
    }
}
