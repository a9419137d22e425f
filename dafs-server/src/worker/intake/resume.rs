//! What operations in flight waited for has come: storage, RDMA, a buffer, their turn, or room with storage. Each goes on. A session that
//! is alone may keep a disk busy. Beside others it has one call there, so that newcomers find no long queue.

use dafs_proto::session::{ChainLink, ChainStep};
use dafs_proto::transport::{OpToken, Span, TransportError};
use dafs_proto::wire::Status;

use crate::storage::{FsReply, FsResult};
use crate::worker::Worker;
use crate::worker::buffers::Grant;
use crate::worker::connections::rdma::RdmaStep;
use crate::worker::flight::answer::Payload;
use crate::worker::flight::{READ_AHEAD, Wakeup, slot_of};
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::operations::WaitsFor;

impl Worker {
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

    /// Not all of the data was there that its reply stands for, which has not left: the read begins again.
    #[cold]
    fn begin_again(&mut self, index: usize) {
        self.sessions.distrust_mapped_files(self.operations[index].call.session, self.now);
        self.work_on(index, |work, at| work.begin_again(at));
    }

    /// Looks at what became possible during this turn.
    pub(crate) fn run_wakeups(&mut self) {
        if self.operations.members().have_news() {
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

    /// What a session has with storage leaves room: who waits for it goes on, in turn, until it is filled. One that needs no storage now
    /// leaves it to the next: with nothing there, nobody else would wake them.
    pub(crate) fn resume_storage_waiters_of(&mut self, session: SessionKey) {
        for _ in 0..self.sessions.waiters_for_room(session) {
            let size_max = self.sched.storage_size_max(self.now);
            let Some(token) = self.sessions.take_waiter_for_room(session, size_max) else { return };
            if let Some(index) = self.operations.live_index_of(token)
                && self.operations.awaits_room(token)
            {
                self.connections.mark_dirty(self.operations[index].call.connection);
                self.work_on(index, |work, at| work.on_storage_room(at));
            }
        }
    }

    /// Where nobody else sends any more, there is room for more.
    pub(crate) fn resume_storage_waiters(&mut self) {
        let waiting: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| !session.load.storage_waiters.is_empty())
            .map(|(key, _)| key)
            .collect();
        for key in waiting {
            self.resume_storage_waiters_of(key);
        }
    }

    /// Whether everybody who waits for room with storage will be woken: by what their session has there.
    pub(crate) fn storage_waiters_will_wake(&self) -> bool {
        self.sessions.iter().all(|(_, session)| {
            session.load.storage_size > 0
                || !session.load.storage_waiters.iter().any(|token| self.operations.awaits_room(*token))
        })
    }
}
