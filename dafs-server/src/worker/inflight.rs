//! Operations in flight: those that could not be answered at once and wait for storage, RDMA, a buffer or their turn in a chain.

use dafs_proto::transport::{OpToken, TransportError};
use dafs_proto::wire::{Header, Status};

use crate::storage::FsResult;
use crate::worker::Worker;
use crate::worker::buffers::{NOBODY, Owner};
use crate::worker::flight::{Call, INDEX_MASK, Operation, State, Wakeup, slot_of, token};
use crate::worker::ids::{ConnectionKey, SessionKey};

impl Worker {
    /// Adds an operation; its token names it to storage and providers.
    pub(crate) fn park(&mut self, call: Call, state: State) -> OpToken {
        if let Some(session) = self.sessions.find_mut(call.session) {
            session.waiting += 1;
            if session.waiting == 1 {
                self.turns.session_waits();
            }
        }
        self.park_count = self.park_count.wrapping_add(1);
        let generation = self.park_count;
        let operation = Operation { call, state, generation, rdma_pending: 0, forgotten: false };
        let index = self.operations.insert(operation);
        token(index, generation)
    }

    /// The place of a live operation.
    pub(crate) fn operation_index(&self, token: OpToken) -> Option<usize> {
        let (index, generation) = ((token.0 & INDEX_MASK) as usize, (token.0 >> 32) as u32);
        self.operations.get(index).filter(|operation| operation.generation == generation).map(|_| index)
    }

    /// Takes an operation out.
    pub(crate) fn unpark(&mut self, index: usize) -> Operation {
        if self.buffers.has_waiters() {
            let owner =
                Owner { session: self.operations[index].call.session, operation: self.token_of(index) };
            self.buffers.stop_waiting(owner);
        }
        let operation = self.operations.remove(index);
        if let Some(session) = self.sessions.find_mut(operation.call.session) {
            session.waiting = session.waiting.saturating_sub(1);
            if session.waiting == 0 {
                self.turns.session_waits_no_more();
            }
        }
        if self.fencing.is_awaited() {
            self.wakeups.push_back(Wakeup::Drain);
        }
        operation
    }

    /// Storage has finished an operation's step.
    pub(crate) fn on_storage(&mut self, token: OpToken, result: FsResult) {
        let Some(index) = self.operation_index(token) else { return };
        let operation = &mut self.operations[index];
        let call = operation.call;
        self.mark_dirty(call.connection);
        if self.operations[index].forgotten {
            let is_free = match self.operations[index].state {
                State::Transfer(_) => self.forgotten_transfer_on_storage(index, slot_of(token)),
                State::List(_) => self.forgotten_list_on_storage(index, slot_of(token)),
                _ => true,
            };
            if !is_free {
                return;
            }
            let operation = self.unpark(index);
            return self.discard(operation, result);
        }
        match self.operations[index].state {
            State::Transfer(_) => self.transfer_on_storage(index, slot_of(token), result),
            State::List(_) => self.list_on_storage(index, slot_of(token), result),
            State::Storage(_) | State::InlineRead { .. } | State::LaneRead(_) => {
                let operation = self.unpark(index);
                match operation.state {
                    State::Storage(after) => self.finish(&call, after, result),
                    State::InlineRead { memory, export } => {
                        self.finish_inline_read(&call, &memory, export, result)
                    }
                    State::LaneRead(read) => self.finish_lane_read(&call, &read, result),
                    _ => {}
                }
            }
            State::Chain { .. }
            | State::FenceDrain { .. }
            | State::Draining(_)
            | State::LaneFrame(_)
            | State::Batch(_)
            | State::Taken => {}
        }
    }

    /// The provider has finished an RDMA operation.
    pub(crate) fn on_rdma(&mut self, token: OpToken, result: Result<(), TransportError>) {
        let Some(index) = self.operation_index(token) else { return };
        let operation = &mut self.operations[index];
        operation.rdma_pending = operation.rdma_pending.saturating_sub(1);
        match operation.state {
            State::Transfer(_) if !operation.forgotten => {
                self.transfer_on_rdma(index, slot_of(token), result)
            }
            State::List(_) if !operation.forgotten => self.list_on_rdma(index, slot_of(token), result),
            _ if operation.rdma_pending == 0 => {
                let operation = self.unpark(index);
                self.release_buffers(operation.state.into_buffers());
            }
            _ => {}
        }
    }

    /// A connection is gone. What needed it cannot go on; the client asks again on its next connection.
    pub(crate) fn on_disconnected(&mut self, session: SessionKey, key: ConnectionKey) {
        if let Some(session) = self.sessions.find_mut(session)
            && session.connection == Some(key)
        {
            session.connection = None;
            session.last_heard = self.now;
        }
        let touched: Vec<usize> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.call.connection == key)
            .map(|(index, _)| index)
            .collect();
        for index in touched {
            // The endpoint is gone and with it all that was posted on it.
            self.operations[index].rdma_pending = 0;
            let state = &mut self.operations[index].state;
            if state.in_storage() {
                match state {
                    State::Transfer(transfer) => transfer.on_disconnected(),
                    State::List(list) => list.on_disconnected(),
                    _ => {}
                }
                continue;
            }
            match state {
                State::Transfer(_) | State::List(_) | State::Chain { .. } => {
                    let operation = self.unpark(index);
                    self.abandon(operation);
                }
                State::Draining(_) => {
                    let operation = self.unpark(index);
                    self.release_buffers(operation.state.into_buffers());
                }
                // It was answered; the client asks again.
                State::LaneFrame(_) => drop(self.unpark(index)),
                _ => {}
            }
        }
        self.rest_batches(key);
    }

    /// Batches of a connection that is gone, whose operations have been dealt with.
    fn rest_batches(&mut self, key: ConnectionKey) {
        let batches =
            self.operations.iter_mut().filter_map(|(index, operation)| match &mut operation.state {
                State::Batch(batch) if operation.call.connection == key => {
                    batch.on_disconnected();
                    Some(index)
                }
                _ => None,
            });
        let batches: Vec<usize> = batches.collect();
        for index in batches {
            self.rest_batch(index);
        }
    }

    /// The client sent a request again that is being executed: its reply goes to the new connection.
    pub(crate) fn readdress(&mut self, session: SessionKey, header: &Header, connection: ConnectionKey) {
        // A batch, and what is left of its operations.
        let found = self.operations.iter_mut().filter(|(_, operation)| {
            operation.call.session == session
                && operation.call.header.slot == header.slot
                && !operation.forgotten
                && !matches!(operation.state, State::Draining(_))
        });
        let mut batch = None;
        for (index, operation) in found {
            operation.call.connection = connection;
            if let State::Batch(_) = operation.state {
                batch = Some(token(index, operation.generation));
            }
        }
        self.wakeups.extend(batch.map(Wakeup::Batch));
    }

    /// An operation had no effect and never will: its slot may be used again for the same request.
    pub(crate) fn abandon(&mut self, operation: Operation) {
        if let Some(place) = operation.call.batch {
            if !operation.forgotten {
                self.abandon_part(place);
            }
        } else if let Some(session) = self.sessions.find_mut(operation.call.session)
            && !operation.forgotten
        {
            session.core.on_abandoned(operation.call.header.slot);
        }
        self.release_buffers(operation.state.into_buffers());
    }

    /// A session ended: its operations are nobody's. Those whose memory is in use stay until it is not.
    pub(crate) fn forget_operations(&mut self, session: SessionKey) {
        let own: Vec<usize> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.call.session == session)
            .map(|(index, _)| index)
            .collect();
        for index in own {
            let operation = &mut self.operations[index];
            operation.forgotten = true;
            if !operation.state.in_storage() {
                let operation = self.unpark(index);
                if let State::FenceDrain { .. } = operation.state {
                    self.fencing.end_wait();
                }
                self.release_buffers(operation.state.into_buffers());
            } else {
                // Whoever gets the session's place next is somebody else.
                self.operations[index].call.session = NOBODY;
            }
        }
    }

    /// What a forgotten operation brought back.
    fn discard(&mut self, operation: Operation, result: FsResult) {
        if let Ok(crate::storage::FsReply::Node(node, _)) = result {
            self.storage.close(node);
        }
        if let State::Storage(after) = &operation.state {
            self.release_held(after);
        }
        self.release_buffers(operation.state.into_buffers());
    }

    /// Looks at what became possible during this turn.
    pub(crate) fn run_wakeups(&mut self) {
        while let Some(wakeup) = self.wakeups.pop_front() {
            match wakeup {
                Wakeup::Chain(session, chain) => self.resume_chain(session, chain),
                Wakeup::Batch(batch) => self.go_on_with_batch(batch),
                Wakeup::Buffer => self.serve_buffer_waiters(),
                Wakeup::Drain => self.resume_fence_drains(),
            }
        }
    }

    /// The deadline passed before the operation began.
    pub(crate) fn expired(&self, call: &Call) -> bool {
        call.expires.is_some_and(|expires| self.now >= expires)
    }

    fn resume_chain(&mut self, session: SessionKey, chain: u64) {
        let next = self.operations.iter().find(|(_, operation)| {
            matches!(operation.state, State::Chain { .. })
                && operation.call.session == session
                && operation.call.link.is_some_and(|link| {
                    link.chain == chain
                        && self
                            .sessions
                            .find(session)
                            .is_some_and(|s| s.core.chain_step(link) != dafs_proto::session::ChainStep::Wait)
                })
        });
        let Some((index, _)) = next else { return };
        let operation = self.unpark(index);
        let State::Chain { body, payload } = operation.state else { return };
        self.mark_dirty(operation.call.connection);
        if self.expired(&operation.call) {
            return self.reply_status(&operation.call, Status::TIMED_OUT);
        }
        self.begin(operation.call, &body, crate::worker::flight::answer::Payload::Kept(&payload));
    }
}
