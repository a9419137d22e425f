//! Byte-range locks where several servers have the same files. The cluster's store has all locks, and decides; the table of this server has
//! those of its own sessions. A lock that conflicts is asked for again several times a second: nobody tells this server of locks that
//! others give back.

use std::ops::Range;
use std::sync::Arc;

use dafs_proto::transport::OpToken;
use dafs_proto::wire::{LockFlags, LockRequest, LockTestReply, LockTurn, SessionId, Status, UnlockRequest};

use super::super::Worker;
use super::turns::{is_notified, turn_of};
use crate::cluster::{Cluster, LockInWay, LockWish, Whose};
use crate::shared::locks::{Claim, Held, Lasting, Owner};
use crate::shared::mail::{ClusterLocked, Mail};
use crate::storage::{FileName, LockKey};
use crate::worker::flight::Call;
use crate::worker::flight::answer::{Problem, Served};
use crate::worker::flight::token;
use crate::worker::ids::SessionKey;
use crate::worker::operations::{Operation, WaitsFor};
use crate::worker::sessions::ClusterWait;

fn name_of(file: LockKey) -> FileName {
    FileName { file: file.file, generation: file.generation }
}

impl Worker {
    fn cluster(&self) -> Option<Arc<Cluster>> {
        self.shared.cluster.clone()
    }

    /// Locks by the cluster's store; the reply comes later.
    pub(super) fn lock_in_cluster(&mut self, call: &Call, request: &LockRequest) -> Served {
        let file = self.storage.lock_key(self.handle(call)?.node)?;
        if request.flags.intersects(LockFlags::MANDATORY | LockFlags::PERSISTENT) {
            let why = "servers of a cluster keep no mandatory and no persistent locks";
            return Err(Problem::refused(Status::NOT_SUPPORTED)(why));
        }
        let (held, _) = self.held_of(call, request, Lasting::No)?;
        if request.flags.contains(LockFlags::CANCEL) {
            let turn = turn_of(call, request);
            if let Some(session) = self.sessions.find_mut(call.session) {
                session.locks.cluster_waits.retain(|wait| wait.turn != turn);
            }
            self.claim_lock_turn(call, request);
            self.reply_status(call, Status::OK);
            return Ok(());
        }
        if request.range().is_empty() {
            self.reply_status(call, Status::OK);
            return Ok(());
        }
        let token = self.park(*call, WaitsFor::ClusterLock { file, request: *request, is_asked: true });
        self.ask_cluster_for_lock(call.session, file, request, &held, ClusterLocked::Operation(token));
        Ok(())
    }

    fn ask_cluster_for_lock(
        &self,
        session: SessionKey,
        file: LockKey,
        request: &LockRequest,
        held: &Held,
        told: ClusterLocked,
    ) {
        let Some(cluster) = self.cluster() else { return };
        let reclaims = request.flags.contains(LockFlags::RECLAIM);
        let before = self.sessions.find(session).and_then(|session| session.locks.before);
        let wish = LockWish { before, reclaims, ..wish_of(file, request.range(), held) };
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        cluster
            .lock_range(wish, Box::new(move |status| shared.send(id, Mail::ClusterLocked { told, status })));
    }

    /// The store has granted a lock, or has not.
    pub(crate) fn on_cluster_locked(&mut self, told: ClusterLocked, status: Status) {
        match told {
            ClusterLocked::Operation(token) => self.on_operation_locked(token, status),
            ClusterLocked::Session(session, turn, request) => {
                self.on_session_locked(session, turn, &request, status);
            }
            ClusterLocked::Told(token) => {
                if let Some(index) = self.operations.index_of(token) {
                    let call = self.unpark(index).call;
                    self.connections.mark_dirty(call.connection);
                    self.reply_status(&call, status);
                }
                self.ask_cluster_again();
            }
        }
    }

    fn on_operation_locked(&mut self, token: OpToken, status: Status) {
        let Some(index) = self.operations.index_of(token) else { return };
        let operation = &mut self.operations[index];
        let (call, forgotten) = (operation.call, operation.forgotten);
        let WaitsFor::ClusterLock { file, request, is_asked } = &mut operation.state else { return };
        let (file, request) = (*file, *request);
        let is_over = forgotten || call.has_expired(self.now);
        if status == Status::LOCKED && !is_over {
            if is_notified(&call, &request) {
                self.unpark(index);
                self.connections.mark_dirty(call.connection);
                let turn = turn_of(&call, &request);
                if let Some(session) = self.sessions.find_mut(call.session) {
                    session.locks.turns.wait(turn, request.kind);
                    session.locks.cluster_waits.retain(|wait| wait.turn != turn);
                    session.locks.cluster_waits.push(ClusterWait { file, turn, request, is_asked: false });
                }
                return self.reply_status(&call, Status::WAITING);
            }
            if request.flags.contains(LockFlags::WAIT) {
                *is_asked = false;
                return;
            }
        }
        let held = self.held_of(&call, &request, Lasting::No);
        let here = match &held {
            Ok((held, _)) if status == Status::OK && !is_over => self.hold_here(file, &request, *held),
            _ => Ok(()),
        };
        if let (Ok((held, _)), Err(_)) = (&held, here) {
            self.give_back_to_cluster(file, request.range(), held);
            if here == Err(Status::LOCKED) && request.flags.contains(LockFlags::WAIT) {
                // A session that has ended has it here for a moment longer than in the store.
                if let WaitsFor::ClusterLock { is_asked, .. } = &mut self.operations[index].state {
                    *is_asked = false;
                }
                return;
            }
        }
        self.unpark(index);
        self.connections.mark_dirty(call.connection);
        let status = match (status, here, is_over) {
            (Status::LOCKED, ..) if call.has_expired(self.now) => Status::TIMED_OUT,
            (Status::OK, _, true) => {
                held.iter().for_each(|(held, _)| self.give_back_to_cluster(file, request.range(), held));
                Status::TIMED_OUT
            }
            (Status::OK, Err(status), _) => status,
            (status, ..) => status,
        };
        if status == Status::OK && held.is_ok_and(|(_, awaits)| awaits) {
            self.claim_lock_turn(&call, &request);
        }
        self.reply_status(&call, status);
    }

    /// The table of this server has what the store has granted.
    fn hold_here(&self, file: LockKey, request: &LockRequest, held: Held) -> Result<(), Status> {
        let granted =
            self.shared.locks.with(|table| table.lock(file, request.range(), held, Claim::New, None));
        granted.map(drop)
    }

    fn give_back_to_cluster(&self, file: LockKey, range: Range<u64>, held: &Held) {
        if let Some(cluster) = self.cluster() {
            let whose = Whose::Owner(held.owner.session, held.owner.id);
            cluster.unlock_range(name_of(file), range, whose, Box::new(|_| {}));
        }
    }

    /// A lock that a session waits for without a request in flight.
    fn on_session_locked(
        &mut self,
        session: SessionId,
        turn: LockTurn,
        request: &LockRequest,
        status: Status,
    ) {
        let Some(key) = self.sessions.key_of(session) else { return };
        let client = self.sessions.find(key).map(|session| session.client.id).unwrap_or_default();
        let Some(waits) = self.sessions.find_mut(key).map(|session| &mut session.locks.cluster_waits) else {
            return;
        };
        let Some(place) = waits.iter().position(|wait| wait.turn == turn) else {
            if status == Status::OK {
                let owner = Owner { session, id: turn.owner };
                self.give_back_if_unclaimed(key, owner, &turn, request);
            }
            return;
        };
        if status == Status::LOCKED {
            waits[place].is_asked = false;
            return;
        }
        let wait = waits.remove(place);
        let held = Held {
            owner: Owner { session, id: turn.owner },
            client,
            handle: turn.handle,
            kind: request.kind,
            is_mandatory: false,
            lasting: Lasting::No,
        };
        let status = match status {
            Status::OK => self.hold_here(wait.file, request, held).err().map_or(Status::OK, |status| {
                self.give_back_to_cluster(wait.file, request.range(), &held);
                status
            }),
            status => status,
        };
        self.on_lock_turn(session, turn, request.kind, status);
    }

    /// The wait was cancelled while the store granted the lock: unless its client has it otherwise, it is given back.
    fn give_back_if_unclaimed(&self, key: SessionKey, owner: Owner, turn: &LockTurn, request: &LockRequest) {
        let node = self.sessions.find(key).and_then(|session| {
            session.handles.find(dafs_proto::wire::FileHandle(turn.handle)).ok().map(|open| open.node)
        });
        let Some(file) = node.and_then(|node| self.storage.lock_key(node).ok()) else { return };
        let holds = self.shared.locks.with(|table| table.has_any_of(file, &request.range(), owner));
        if !holds && let Some(cluster) = self.cluster() {
            let whose = Whose::Owner(owner.session, owner.id);
            cluster.unlock_range(name_of(file), request.range(), whose, Box::new(|_| {}));
        }
    }

    /// Asks again for what others had when it was asked for last.
    pub(crate) fn ask_cluster_again(&mut self) {
        if self.shared.cluster.is_none() || !self.shared.locks.is_used() {
            return;
        }
        let is_unasked =
            |operation: &Operation| matches!(operation.state, WaitsFor::ClusterLock { is_asked: false, .. });
        for index in self.operations.places_of(is_unasked) {
            let operation = &mut self.operations[index];
            let (call, token) = (operation.call, token(index, operation.generation));
            let WaitsFor::ClusterLock { file, request, is_asked } = &mut operation.state else { continue };
            *is_asked = true;
            let (file, request) = (*file, *request);
            if let Ok((held, _)) = self.held_of(&call, &request, Lasting::No) {
                self.ask_cluster_for_lock(
                    call.session,
                    file,
                    &request,
                    &held,
                    ClusterLocked::Operation(token),
                );
            }
        }
        let mut waits = Vec::new();
        for (key, session) in self.sessions.iter_mut() {
            let (id, client) = (session.id, session.client.id);
            for wait in session.locks.cluster_waits.iter_mut().filter(|wait| !wait.is_asked) {
                wait.is_asked = true;
                waits.push((key, id, client, wait.clone()));
            }
        }
        for (key, session, client, wait) in waits {
            let held = Held {
                owner: Owner { session, id: wait.turn.owner },
                client,
                handle: wait.turn.handle,
                kind: wait.request.kind,
                is_mandatory: false,
                lasting: Lasting::No,
            };
            let told = ClusterLocked::Session(session, wait.turn, wait.request);
            self.ask_cluster_for_lock(key, wait.file, &wait.request, &held, told);
        }
    }

    /// Ends those that wait whose deadline has passed.
    pub(super) fn end_overdue_cluster_waits(&mut self) {
        let now = self.now;
        let is_overdue = |operation: &Operation| {
            operation.call.has_expired(now)
                && matches!(operation.state, WaitsFor::ClusterLock { is_asked: false, .. })
        };
        for index in self.operations.places_of(is_overdue) {
            let call = self.unpark(index).call;
            self.connections.mark_dirty(call.connection);
            self.reply_status(&call, Status::TIMED_OUT);
        }
    }

    /// A client has opened its files again after it lost its server, and has taken its locks again: it begins to work. What is left of its
    /// locks of before nobody knows of.
    #[cold]
    pub(crate) fn end_locks_before(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.find_mut(key) else { return };
        session.locks.takes_again = false;
        if let (Some(before), Some(cluster)) = (session.locks.before, &self.shared.cluster) {
            cluster.end_locks_before(before);
        }
    }

    /// Gives a range back, here and in the store.
    pub(super) fn unlock_in_cluster(&mut self, call: &Call, request: &UnlockRequest) -> Served {
        let file = self.storage.lock_key(self.handle(call)?.node)?;
        let (owner, session) = self.lock_owner(call, request.owner)?;
        let range = request.range();
        if !session.locks.turns.is_empty() {
            self.claim_unlocked_turns(call, file, &range, request.owner);
        }
        let granted = self.shared.locks.with(|table| table.give_back(file, &range, owner))?;
        self.tell_of_locks(granted);
        let Some(cluster) = self.cluster() else { return Err(Status::IO.into()) };
        let tell = self.teller_of_cluster(call);
        cluster.unlock_range(name_of(file), range, Whose::Owner(owner.session, owner.id), tell);
        Ok(())
    }

    /// A request waits for the cluster's store, and is answered what that says.
    pub(in crate::ops) fn teller_of_cluster(&mut self, call: &Call) -> Box<dyn FnOnce(Status) + Send> {
        let told = ClusterLocked::Told(self.park(*call, WaitsFor::Cluster));
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        Box::new(move |status| shared.send(id, Mail::ClusterLocked { told, status }))
    }

    /// A handle is closed, by which something may have been locked.
    pub(super) fn free_cluster_locks_of_handle(&self, file: LockKey, session: SessionId, handle: u64) {
        if let Some(cluster) = self.cluster() {
            cluster.unlock_range(
                name_of(file),
                0..u64::MAX,
                Whose::Handle(session, handle),
                Box::new(|_| {}),
            );
        }
    }

    pub(super) fn test_lock_in_cluster(&mut self, call: &Call, request: &LockRequest) -> Served {
        let file = self.storage.lock_key(self.handle(call)?.node)?;
        let (held, _) = self.held_of(call, request, Lasting::No)?;
        let Some(cluster) = self.cluster() else { return Err(Status::IO.into()) };
        let token = self.park(*call, WaitsFor::Cluster);
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        let tell = Box::new(move |found| shared.send(id, Mail::ClusterLockTested { waiter: token, found }));
        cluster.test_lock(wish_of(file, request.range(), &held), tell);
        Ok(())
    }

    /// The store has said what is in the way.
    pub(crate) fn on_cluster_lock_tested(
        &mut self,
        waiter: OpToken,
        found: Result<Option<LockInWay>, Status>,
    ) {
        let Some(index) = self.operations.index_of(waiter) else { return };
        let call = self.unpark(index).call;
        self.connections.mark_dirty(call.connection);
        let reply = match found {
            Err(status) => return self.reply_status(&call, status),
            Ok(None) => {
                LockTestReply { conflicts: false, kind: 0, offset: 0, len: 0, owner: 0, client_id: [0; 16] }
            }
            Ok(Some(LockInWay { range, kind, owner, client })) => LockTestReply {
                conflicts: true,
                kind: kind as u32,
                offset: range.start,
                len: if range.end == u64::MAX { 0 } else { range.end - range.start },
                owner,
                client_id: client,
            },
        };
        self.reply_body(&call, &reply.bytes());
    }
}

fn wish_of(file: LockKey, range: Range<u64>, held: &Held) -> LockWish {
    LockWish {
        file: name_of(file),
        range,
        kind: held.kind,
        session: held.owner.session,
        owner: held.owner.id,
        handle: held.handle,
        client: held.client,
        before: None,
        reclaims: false,
    }
}
