//! Operations in flight: those that could not be answered at once and wait for storage, RDMA, a buffer or their turn in a chain.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use dafs_proto::session::{ChainLink, ChainStep};
use dafs_proto::transport::{Head, OpToken, Span, TransportError};
use dafs_proto::wire::{Header, Status};

use crate::storage::{FsReply, FsResult};
use crate::worker::Worker;
use crate::worker::buffers::{Buffer, Grant, NOBODY, Owner};
use crate::worker::connection::RdmaStep;
use crate::worker::flight::answer::Payload;
use crate::worker::flight::{Call, INDEX_MASK, READ_AHEAD, Wakeup, slot_of, token};
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::requests::work::{Former, Operation, WaitsFor};
use crate::worker::session::Session;

impl Worker {
    /// Adds an operation; its token names it to storage and providers.
    pub(crate) fn park(&mut self, call: Call, state: WaitsFor) -> OpToken {
        if let Some(session) = self.sessions.find_mut(call.session) {
            session.waiting += 1;
            if session.waiting == 1 {
                self.turns.session_waits();
            }
        }
        self.park_count = self.park_count.wrapping_add(1);
        let generation = self.park_count;
        let operation = Operation {
            call,
            state,
            generation,
            rdma_pending: 0,
            rdma_step: RdmaStep::default(),
            forgotten: false,
            former: None,
            taken_back: None,
        };
        self.look_at_fences();
        let index = self.operations.insert(operation);
        if let Operation {
            call: Call { session, link: Some(link), .. }, state: WaitsFor::Chain { .. }, ..
        } = &self.operations[index]
        {
            self.links.entry((*session, link.chain)).or_default().insert(link.position, index);
        }
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
            self.buffers.stop_waiting(self.owner_of(index));
        }
        let operation = self.operations.remove(index);
        if let (WaitsFor::Chain { .. }, Some(link)) = (&operation.state, operation.call.link) {
            self.forget_link((operation.call.session, link.chain), link.position);
        }
        if let Some(session) = self.sessions.find_mut(operation.call.session) {
            session.waiting = session.waiting.saturating_sub(1);
            if session.waiting == 0 {
                self.turns.session_waits_no_more();
            }
            // A batch may have used many.
            let is_batch = matches!(operation.state, WaitsFor::Batch(_));
            let handle = (!is_batch).then_some(operation.call.header.handle);
            if session.handles.has_leaving(handle) {
                self.wakeups.push_back(Wakeup::Closed(operation.call.session, handle));
            }
        }
        self.look_at_fences();
        operation
    }

    /// Storage has finished an operation's step.
    pub(crate) fn on_storage(&mut self, token: OpToken, result: FsResult) {
        if token == READ_AHEAD {
            self.read_aheads = self.read_aheads.saturating_sub(1);
            return;
        }
        let Some(index) = self.operation_index(token) else { return };
        let operation = &mut self.operations[index];
        let (call, forgotten) = (operation.call, operation.forgotten);
        let mut is_over = matches!(operation.state, WaitsFor::Storage(_));
        if let (WaitsFor::Work(work), true) = (&mut operation.state, forgotten) {
            work.on_forgotten_step(slot_of(token), &result);
            is_over = !work.in_storage();
        }
        self.mark_dirty(call.connection);
        if !is_over && !forgotten {
            self.work_on(index, |work, at| work.on_storage(at, slot_of(token), result));
            self.look_at_fences();
            self.resume_storage_waiters_of(call.session);
        } else if is_over {
            match self.unpark(index).state {
                WaitsFor::Storage(after) if forgotten => {
                    if let Ok(FsReply::Node(node, _)) = result {
                        self.storage.close(node);
                    }
                    self.release_held(&after);
                }
                WaitsFor::Storage(after) => self.finish(&call, after, result),
                state => self.release_buffers(state.into_buffers()),
            }
        }
    }

    /// The provider has finished an RDMA operation, as this step of its connection.
    pub(crate) fn on_rdma(&mut self, token: OpToken, result: Result<(), TransportError>, step: RdmaStep) {
        let Some(index) = self.operation_index(token) else { return };
        let operation = &mut self.operations[index];
        operation.rdma_pending = operation.rdma_pending.saturating_sub(1);
        operation.rdma_step = step;
        if matches!(operation.state, WaitsFor::Work(_)) && !operation.forgotten {
            return self.work_on(index, |work, at| work.on_rdma(at, slot_of(token), result));
        }
        if matches!(operation.state, WaitsFor::Told(..)) {
            operation.call.is_amended |= result.is_err_and(|error| error.is_local_fault());
        }
        if operation.rdma_pending > 0 {
            return;
        }
        if operation.take_back() {
            return self.begin_again(index);
        }
        let operation = self.unpark(index);
        self.release_buffers(operation.state.into_buffers());
    }

    /// The turn of its connection has come.
    pub(crate) fn resume_in_turn(&mut self, token: OpToken) {
        let Some(index) = self.live_operation(token) else { return };
        match self.operations[index].state {
            WaitsFor::Batch(_) => self.go_on_with_batch(token),
            _ => self.work_on(index, |work, at| work.on_turn(at)),
        }
    }

    /// The provider has room again for a post that found none.
    pub(crate) fn resume_post(&mut self, index: usize, key: ConnectionKey) {
        let operation = self.operations.get(index).filter(|operation| operation.call.connection == key);
        match operation.map(|operation| &operation.state) {
            Some(WaitsFor::EagerFrame(_)) => self.resume_eager_frame(index),
            Some(_) => self.work_on(index, |work, at| work.on_post_room(at)),
            None => {}
        }
    }

    /// Buffers came back: those who wait are served in turn.
    pub(crate) fn serve_buffer_waiters(&mut self) {
        while let Some(Grant { owner, buffers }) = self.buffers.serve() {
            let Some(index) = self.live_operation(owner.operation) else {
                self.release_buffers(buffers);
                continue;
            };
            let call = self.operations[index].call;
            self.mark_dirty(call.connection);
            let expired = self.expired(&call);
            let mut buffers = Some(buffers);
            self.work_on(index, |work, at| work.on_buffers(at, buffers.take().unwrap_or_default(), expired));
            self.release_buffers(buffers.unwrap_or_default());
        }
    }

    /// Gives back all buffers of an operation that is over.
    pub(crate) fn release_buffers(&mut self, buffers: Vec<Buffer>) {
        for buffer in buffers {
            self.release_buffer(buffer);
        }
    }

    pub(crate) fn release_buffer(&mut self, buffer: Buffer) {
        self.buffers.release(buffer);
        if self.buffers.has_waiters() {
            self.wakeups.push_back(Wakeup::Buffer);
        }
    }

    /// Answered: it stays only while RDMA holds its memory.
    pub(crate) fn retire(&mut self, index: usize) {
        if self.operations[index].rdma_pending == 0 {
            let operation = self.unpark(index);
            return self.release_buffers(operation.state.into_buffers());
        }
        self.buffers.stop_waiting(self.owner_of(index));
        let state = &mut self.operations[index].state;
        let buffers = std::mem::replace(state, WaitsFor::Taken).into_buffers();
        self.operations[index].state = WaitsFor::Draining(buffers);
    }

    /// Answered by [`Context::tell`](super::work::Context::tell): it stays until that has left.
    pub(crate) fn await_departure(&mut self, index: usize, head: Head) {
        self.buffers.stop_waiting(self.owner_of(index));
        let state = &mut self.operations[index].state;
        if let WaitsFor::Work(work) = std::mem::replace(state, WaitsFor::Taken) {
            *state = WaitsFor::Told(work, head);
        }
    }

    /// Not all of the data was there that its reply stands for, which has not left: the read begins again.
    #[cold]
    fn begin_again(&mut self, index: usize) {
        self.distrust_mapped_files(self.operations[index].call.session);
        self.work_on(index, |work, at| work.begin_again(at));
    }

    /// Makes the reply that was taken back again, with what its session granted in it then.
    #[cold]
    pub(crate) fn amend(&mut self, call: &Call, status: Status, body: &[u8]) {
        let is_its_own = |other: &Call| {
            other.is_amended
                && (other.session, other.connection, other.header.slot)
                    == (call.session, call.connection, call.header.slot)
        };
        let mut operations = self.operations.iter_mut().map(|(_, operation)| operation);
        let head =
            operations.find(|operation| is_its_own(&operation.call)).and_then(|it| it.taken_back.take());
        let header = head.and_then(|head| Some(Header::decode(head.as_bytes(), 0).ok()?.0));
        if let Some(header) = header
            && let Some(connection) = self.connection(call.connection)
        {
            connection.send_parts(Header { status, ..header }, body, &[]);
        }
    }

    fn owner_of(&self, index: usize) -> Owner {
        let operation = &self.operations[index];
        Owner { session: operation.call.session, operation: token(index, operation.generation) }
    }

    /// A connection is gone. What needed it cannot go on; the client asks again on its next connection.
    pub(crate) fn on_disconnected(&mut self, session: SessionKey, key: ConnectionKey) {
        if let Some(session) = self.sessions.find_mut(session)
            && session.connection == Some(key)
        {
            session.connection = None;
            session.last_heard = self.now;
        }
        for index in self.places_of(|operation| operation.call.connection == key) {
            // The endpoint is gone and with it all that was posted on it.
            self.operations[index].rdma_pending = 0;
            let state = &mut self.operations[index].state;
            let in_storage = state.in_storage();
            match state {
                WaitsFor::Work(work) if in_storage => work.on_disconnected(),
                WaitsFor::Work(_) | WaitsFor::Chain { .. } => {
                    let operation = self.unpark(index);
                    self.abandon(operation);
                }
                WaitsFor::Draining(_) | WaitsFor::Told(..) => {
                    let operation = self.unpark(index);
                    self.release_buffers(operation.state.into_buffers());
                }
                // It was answered; the client asks again.
                WaitsFor::EagerFrame(_) => drop(self.unpark(index)),
                _ => {}
            }
        }
        // Behind them batches, whose operations have been dealt with.
        for index in self.places_of(|operation| operation.call.connection == key) {
            if let WaitsFor::Batch(batch) = &mut self.operations[index].state {
                batch.on_disconnected();
                self.rest_batch(index);
            }
        }
    }

    /// The places of these operations.
    pub(crate) fn places_of(&self, which: impl Fn(&Operation) -> bool) -> Vec<usize> {
        self.operations.iter().filter(|(_, operation)| which(operation)).map(|(index, _)| index).collect()
    }

    /// The client sent a request again that is being executed: its reply goes to the new connection.
    pub(crate) fn readdress(&mut self, session: SessionKey, header: &Header, connection: ConnectionKey) {
        // A batch, and what is left of its operations.
        let found = self.operations.iter_mut().filter(|(_, operation)| {
            operation.call.session == session
                && operation.call.header.slot == header.slot
                && !operation.forgotten
                && !operation.state.is_answered()
                && !operation.call.is_amended
        });
        let mut batch = None;
        for (index, operation) in found {
            operation.call.connection = connection;
            if let WaitsFor::Batch(_) = operation.state {
                batch = Some(token(index, operation.generation));
            }
        }
        self.wakeups.extend(batch.map(Wakeup::Batch));
    }

    /// An operation goes no further without its connection: its slot may be used again for the same request, which goes on from what this
    /// has written.
    pub(crate) fn abandon(&mut self, operation: Operation) {
        let effect = operation.state.effect();
        if let Some(place) = operation.call.batch {
            if !operation.forgotten {
                self.abandon_part(place, effect);
            }
        } else if let Some(session) = self.sessions.find_mut(operation.call.session)
            && !(operation.forgotten || operation.call.is_amended)
        {
            session.core.on_abandoned(operation.call.header.slot, effect);
        }
        self.release_buffers(operation.state.into_buffers());
    }

    /// A session ended: its operations are nobody's. Those whose memory is in use stay until it is not.
    pub(crate) fn forget_operations(&mut self, session: SessionKey, ended: &Session) {
        let mut former = None;
        for index in self.places_of(|operation| operation.call.session == session) {
            let operation = &mut self.operations[index];
            operation.forgotten = true;
            if !operation.state.in_storage() {
                let operation = self.unpark(index);
                if let WaitsFor::FenceDrain { .. } = operation.state {
                    self.fencing.end_wait();
                }
                self.release_buffers(operation.state.into_buffers());
            } else {
                // Whoever gets the session's place next is somebody else.
                operation.call.session = NOBODY;
                let former = former.get_or_insert_with(|| Arc::new(Former::of(ended)));
                operation.former = Some(Arc::clone(former));
            }
        }
    }

    /// An operation is in flight that ends by itself. A lock that others hold is asked for again in the next session, with the rest of its
    /// chain.
    pub(crate) fn has_unfinished(&self) -> bool {
        let chain_of = |call: &Call| call.link.map(|link| (call.session, link.chain));
        let locks = self.operations.iter().filter(|(_, other)| matches!(other.state, WaitsFor::Lock { .. }));
        let waiting: HashSet<_> = locks.filter_map(|(_, lock)| chain_of(&lock.call)).collect();
        self.operations.iter().any(|(_, operation)| match operation.state {
            WaitsFor::Lock { .. } => false,
            WaitsFor::Chain { .. } => chain_of(&operation.call).is_none_or(|chain| !waiting.contains(&chain)),
            _ => true,
        })
    }

    /// Looks at what became possible during this turn.
    pub(crate) fn run_wakeups(&mut self) {
        if !self.meetings.is_empty() {
            self.wake_parted();
        }
        while let Some(wakeup) = self.wakeups.pop_front() {
            match wakeup {
                Wakeup::Chain(session, chain) => self.resume_chain(session, chain),
                Wakeup::Batch(batch) => self.go_on_with_batch(batch),
                Wakeup::Buffer => self.serve_buffer_waiters(),
                Wakeup::Drain => self.drain_fenced(),
                Wakeup::Closed(session, handle) => self.close_left(session, handle),
            }
        }
    }

    /// The deadline passed before the operation began.
    pub(crate) fn expired(&self, call: &Call) -> bool {
        call.expires.is_some_and(|expires| self.now >= expires)
    }

    fn forget_link(&mut self, chain: (SessionKey, u64), position: u16) {
        if let Entry::Occupied(mut links) = self.links.entry(chain) {
            links.get_mut().remove(&position);
            if links.get().is_empty() {
                links.remove();
            }
        }
    }

    fn resume_chain(&mut self, session: SessionKey, chain: u64) {
        let Some(core) = self.sessions.find(session).map(|session| &session.core) else { return };
        let links = self.links.get(&(session, chain));
        let Some((&position, &index)) = links.and_then(BTreeMap::first_key_value) else { return };
        if core.chain_step(ChainLink { chain, position }) == ChainStep::Wait {
            return;
        }
        let operation = self.unpark(index);
        let WaitsFor::Chain { body, mut payload } = operation.state else { return };
        self.mark_dirty(operation.call.connection);
        if self.expired(&operation.call) {
            return self.reply_status(&operation.call, Status::TIMED_OUT);
        }
        self.begin(operation.call, &body, Payload::Kept(Span::from_mut(&mut payload)));
    }
}
