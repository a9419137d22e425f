//! Operations in flight: those that could not be answered at once and wait for storage, RDMA, a buffer or their turn in a chain.

use std::sync::Arc;

use dafs_proto::session::{ChainLink, ChainStep};
use dafs_proto::transport::{Head, OpToken, Span, TransportError};
use dafs_proto::wire::{Header, Status};

use crate::storage::{FsReply, FsResult};
use crate::worker::Worker;
use crate::worker::buffers::{Buffer, Grant, NOBODY};
use crate::worker::connections::rdma::RdmaStep;
use crate::worker::flight::answer::Payload;
use crate::worker::flight::{Call, READ_AHEAD, Wakeup, slot_of};
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::operations::{Former, Operation, WaitsFor};
use crate::worker::sessions::Session;

impl Worker {
    /// Adds an operation; its token names it to storage and providers.
    pub(crate) fn park(&mut self, call: Call, state: WaitsFor) -> OpToken {
        if let Some(session) = self.sessions.find_mut(call.session) {
            session.waiting += 1;
            if session.waiting == 1 {
                self.sched.turn().session_waits();
            }
        }
        self.operations.insert(call, state)
    }

    /// Takes an operation out.
    pub(crate) fn unpark(&mut self, index: usize) -> Operation {
        if self.buffers.has_waiters() {
            self.buffers.stop_waiting(self.operations.owner_of(index));
        }
        let operation = self.operations.remove(index);
        if let Some(session) = self.sessions.find_mut(operation.call.session) {
            session.waiting = session.waiting.saturating_sub(1);
            if session.waiting == 0 {
                self.sched.turn().session_waits_no_more();
            }
            // A batch may have used many.
            let is_batch = matches!(operation.state, WaitsFor::Batch(_));
            let handle = (!is_batch).then_some(operation.call.header.handle);
            if session.handles.has_leaving(handle) {
                self.operations.wake(Wakeup::Closed(operation.call.session, handle));
            }
        }
        self.operations.look_at_fences();
        operation
    }

    /// Storage has finished an operation's step.
    pub(crate) fn on_storage(&mut self, token: OpToken, result: FsResult) {
        if token == READ_AHEAD {
            self.sched.read_ahead_ended();
            return;
        }
        let Some(index) = self.operations.index_of(token) else { return };
        let operation = &mut self.operations[index];
        let (call, forgotten) = (operation.call, operation.forgotten);
        let mut is_over = matches!(operation.state, WaitsFor::Storage(_));
        if let (WaitsFor::Work(work), true) = (&mut operation.state, forgotten) {
            work.on_forgotten_step(slot_of(token), &result);
            is_over = !work.in_storage();
        }
        self.connections.mark_dirty(call.connection);
        if !is_over && !forgotten {
            self.work_on(index, |work, at| work.on_storage(at, slot_of(token), result));
            self.operations.look_at_fences();
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
        let Some(index) = self.operations.index_of(token) else { return };
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
        let Some(index) = self.operations.live_index_of(token) else { return };
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
            let Some(index) = self.operations.live_index_of(owner.operation) else {
                self.release_buffers(buffers);
                continue;
            };
            let call = self.operations[index].call;
            self.connections.mark_dirty(call.connection);
            let expired = call.has_expired(self.now);
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
            self.operations.wake(Wakeup::Buffer);
        }
    }

    /// Answered: it stays only while RDMA holds its memory.
    pub(crate) fn retire(&mut self, index: usize) {
        if self.operations[index].rdma_pending == 0 {
            let operation = self.unpark(index);
            return self.release_buffers(operation.state.into_buffers());
        }
        self.buffers.stop_waiting(self.operations.owner_of(index));
        let state = &mut self.operations[index].state;
        let buffers = std::mem::replace(state, WaitsFor::Taken).into_buffers();
        self.operations[index].state = WaitsFor::Draining(buffers);
    }

    /// Answered by [`Context::tell`](super::work::Context::tell): it stays until that has left.
    pub(crate) fn await_departure(&mut self, index: usize, head: Head) {
        self.buffers.stop_waiting(self.operations.owner_of(index));
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
        let head = self.operations.take_taken_back(call);
        let header = head.and_then(|head| Some(Header::decode(head.as_bytes(), 0).ok()?.0));
        if let Some(header) = header
            && let Some(connection) = self.connections.find_mut(call.connection)
        {
            connection.send_parts(Header { status, ..header }, body, &[]);
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
        for index in self.operations.places_of(|operation| operation.call.connection == key) {
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
        for index in self.operations.places_of(|operation| operation.call.connection == key) {
            if let WaitsFor::Batch(batch) = &mut self.operations[index].state {
                batch.on_disconnected();
                self.rest_batch(index);
            }
        }
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
        for index in self.operations.places_of(|operation| operation.call.session == session) {
            let operation = &mut self.operations[index];
            operation.forgotten = true;
            if !operation.state.in_storage() {
                let operation = self.unpark(index);
                if let WaitsFor::FenceDrain { .. } = operation.state {
                    self.operations.fencing().end_wait();
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

    /// Looks at what became possible during this turn.
    pub(crate) fn run_wakeups(&mut self) {
        if !self.operations.meetings().is_empty() {
            self.wake_parted();
        }
        while let Some(wakeup) = self.operations.next_wakeup() {
            match wakeup {
                Wakeup::Chain(session, chain) => self.resume_chain(session, chain),
                Wakeup::Batch(batch) => self.go_on_with_batch(batch),
                Wakeup::Buffer => self.serve_buffer_waiters(),
                Wakeup::Drain => self.drain_fenced(),
                Wakeup::Closed(session, handle) => self.close_left(session, handle),
            }
        }
    }

    fn resume_chain(&mut self, session: SessionKey, chain: u64) {
        let Some(core) = self.sessions.find(session).map(|session| &session.core) else { return };
        let Some((position, index)) = self.operations.first_link(session, chain) else { return };
        if core.chain_step(ChainLink { chain, position }) == ChainStep::Wait {
            return;
        }
        let operation = self.unpark(index);
        let WaitsFor::Chain { body, mut payload } = operation.state else { return };
        self.connections.mark_dirty(operation.call.connection);
        if operation.call.has_expired(self.now) {
            return self.reply_status(&operation.call, Status::TIMED_OUT);
        }
        self.begin(operation.call, &body, Payload::Kept(Span::from_mut(&mut payload)));
    }
}
