//! How operations come to wait, and how they end without going on: what that changes of their sessions, of buffers and of turns.

use std::sync::Arc;

use dafs_proto::session::Effect;
use dafs_proto::transport::{Head, OpToken};

use crate::worker::Worker;
use crate::worker::buffers::{Buffer, NOBODY};
use crate::worker::flight::batch::BatchPlace;
use crate::worker::flight::{Call, Wakeup};
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::operations::{Former, Operation, WaitsFor};
use crate::worker::sessions::Session;

impl Worker {
    /// Adds an operation; its token names it to storage and providers.
    pub(crate) fn park(&mut self, call: Call, state: WaitsFor) -> OpToken {
        if let Some(session) = self.sessions.find_mut(call.session) {
            session.load.waiting += 1;
            if session.load.waiting == 1 {
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
            session.load.waiting = session.load.waiting.saturating_sub(1);
            if session.load.waiting == 0 {
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
    pub(super) fn retire(&mut self, index: usize) {
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
    pub(super) fn await_departure(&mut self, index: usize, head: Head) {
        self.buffers.stop_waiting(self.operations.owner_of(index));
        let state = &mut self.operations[index].state;
        if let WaitsFor::Work(work) = std::mem::replace(state, WaitsFor::Taken) {
            *state = WaitsFor::Told(work, head);
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

    /// An operation of a batch ended without an answer: its connection is gone.
    fn abandon_part(&mut self, place: BatchPlace, written: Option<Effect>) {
        let Some(index) = self.operations.index_of(place.batch) else { return };
        self.leave_batch(index);
        let now = self.now;
        let Some(batch) = self.operations.batch_mut(index) else { return };
        batch.running = batch.running.saturating_sub(1);
        batch.end_in_part(place, written, now);
        self.operations.wake(Wakeup::Batch(place.batch));
    }

    /// Without a connection a batch waits until nobody has its hands on anything of it, and may then come again.
    pub(crate) fn rest_batch(&mut self, index: usize) {
        if self.operations.batch_mut(index).is_some_and(|batch| batch.rests()) {
            let operation = self.unpark(index);
            self.abandon(operation);
        }
    }

    /// A connection is gone. What needed it cannot go on; the client asks again on its next connection.
    pub(crate) fn on_disconnected(&mut self, session: SessionKey, key: ConnectionKey) {
        if let Some(session) = self.sessions.find_mut(session)
            && session.presence.connection == Some(key)
        {
            session.presence.connection = None;
            session.presence.last_heard = self.now;
        }
        for index in self.operations.places_of(|operation| operation.call.connection == key) {
            // The endpoint is gone and with it all that was posted on it.
            self.operations[index].rdma_pending = 0;
            let state = &mut self.operations[index].state;
            let lets_go = state.lets_go();
            match state {
                WaitsFor::Work(work) if !lets_go => work.on_disconnected(),
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

    /// A session ended: its operations are nobody's. Those whose memory is in use stay until it is not.
    pub(crate) fn forget_operations(&mut self, session: SessionKey, ended: &Session) {
        let mut former = None;
        for index in self.operations.places_of(|operation| operation.call.session == session) {
            let operation = &mut self.operations[index];
            operation.forgotten = true;
            if operation.state.lets_go() {
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
}
