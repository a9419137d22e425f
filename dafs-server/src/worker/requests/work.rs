//! How operations that move data go on: one is taken out of its place to be worked on, is lent a [`Context`] with what it may touch, and is
//! put back unless it is over. What each of them does is `ops`'.

use std::fmt::Debug;

use dafs_proto::session::Effect;
use dafs_proto::transport::{Access, Head, MemoryRef, OpToken, RemoteRange, SendSlot, TransportError};
use dafs_proto::wire::{AccessPattern, FileHandle, HEAD_SIZE_MAX, Status};

use crate::storage::{FsOp, FsResult, NodeId, Submitted};
use crate::worker::Worker;
use crate::worker::buffers::{Buffer, Owner};
use crate::worker::connections::connection::Connection;
use crate::worker::flight::{Call, READ_AHEAD, token};
use crate::worker::ids::SessionKey;
use crate::worker::operations::WaitsFor;

/// An operation that moves data in steps.
pub(crate) trait Work: Debug + Send {
    /// Goes on until it has to wait or ends.
    fn advance(&mut self, at: &mut Context<'_>) -> Fate;

    /// Its reply was taken back, and nothing of it is under way: a read is made again.
    fn begin_again(&mut self, at: &mut Context<'_>) -> Fate;

    /// Its connection has its next turn.
    fn on_turn(&mut self, at: &mut Context<'_>) -> Fate {
        self.advance(at)
    }

    /// Storage has finished a step.
    fn on_storage(&mut self, at: &mut Context<'_>, slot: u8, result: FsResult) -> Fate;

    /// Storage has finished a step that its own client waits for no more.
    fn on_forgotten_step(&mut self, slot: u8, result: &FsResult);

    /// RDMA has finished something.
    fn on_rdma(&mut self, at: &mut Context<'_>, slot: u8, result: Result<(), TransportError>) -> Fate;

    /// There are the buffers that it waited for; `expired`: its deadline has passed.
    fn on_buffers(&mut self, at: &mut Context<'_>, buffers: Vec<Buffer>, expired: bool) -> Fate;

    /// The provider has room again for a post that found none.
    fn on_post_room(&mut self, at: &mut Context<'_>) -> Fate;

    /// It waits until its session has less with storage.
    fn waits_for_storage(&self) -> bool;

    /// That is so.
    fn on_storage_room(&mut self, at: &mut Context<'_>) -> Fate;

    /// Storage has its hands on its memory.
    fn in_storage(&self) -> bool;

    /// Its connection is gone, and with it what was posted there, while storage has its memory.
    fn on_disconnected(&mut self);

    /// What it has written, while storage has nothing of it.
    fn effect(&self) -> Option<Effect>;

    /// The buffers that it holds.
    fn into_buffers(self: Box<Self>) -> Vec<Buffer>;
}

/// What becomes of an operation that was worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It waits for something that was begun, or for its turn.
    Waits,
    /// It was answered: it stays only while RDMA holds its memory.
    Answered,
    /// It was answered by [`Context::tell`].
    Told,
    /// Its client asks again, and it goes on from what it has written.
    Abandoned,
}

/// What an operation is lent when it goes on: the worker, and its own place there.
pub(crate) struct Context<'w> {
    pub(crate) worker: &'w mut Worker,
    pub(crate) index: usize,
    pub(crate) token: OpToken,
    pub(crate) call: Call,
    told: Option<Head>,
}

impl Context<'_> {
    /// Whose buffers it takes.
    pub(crate) fn owner(&self) -> Owner {
        Owner { session: self.call.session, operation: self.token }
    }

    /// Hands a step to storage; `None` where that has to be waited for.
    pub(crate) fn submit(&mut self, token: OpToken, op: FsOp) -> Option<FsResult> {
        let identity = match self.worker.identity(&self.call) {
            Ok(identity) => identity,
            Err(status) => return Some(Err(status)),
        };
        self.worker.storage_works_for(self.call.session);
        match self.worker.storage.submit(token, &identity, op) {
            Submitted::Done(result) => Some(result),
            Submitted::Pending => None,
        }
    }

    /// Has the kernel begin to read a range of a file, on a thread: asking for it may wait for the disk, and nobody waits for that.
    pub(crate) fn read_ahead(&mut self, node: NodeId, offset: u64, len: u64) {
        if self.worker.sched.may_read_ahead() {
            let op = FsOp::Hint { node, offset, len, pattern: Some(AccessPattern::WillNeed) };
            if self.submit(READ_AHEAD, op).is_none() {
                self.worker.sched.read_ahead_begun();
            }
        }
    }

    /// A buffer for so many bytes, perhaps a smaller one: what was granted, or another. Without one the operation is queued.
    pub(crate) fn buffer(&mut self, granted: Option<Buffer>, len: usize) -> Option<Buffer> {
        let owner = self.owner();
        let buffer = granted.or_else(|| self.worker.buffers.acquire(owner, len));
        if buffer.is_none() {
            self.worker.buffers.wait(owner, len);
        }
        buffer
    }

    /// The client's own memory, where the provider maps it.
    pub(crate) fn remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
    ) -> Result<Option<MemoryRef>, Status> {
        self.worker.remote_memory(&self.call, remote, access).map_err(|_| Status::REMOTE_ACCESS)
    }

    /// RDMA operations posted for it and not completed.
    pub(crate) fn rdma_pending(&self) -> u32 {
        self.worker.operations[self.index].rdma_pending
    }

    /// RDMA operations were posted for it and wait for their completion.
    pub(crate) fn on_posted(&mut self, pending: u32) {
        if pending == 0 {
            return;
        }
        let Some(connection) = self.connection() else { return };
        let step = connection.rdma.on_posted(pending);
        let operation = &mut self.worker.operations[self.index];
        if operation.rdma_pending == 0 {
            operation.rdma_step = step;
        }
        operation.rdma_pending += pending;
    }

    /// A post found no room: it goes on when there is some.
    pub(crate) fn wait_for_post_room(&mut self) {
        let index = self.index;
        if let Some(connection) = self.connection() {
            connection.rdma.wait_for_room(index);
        }
    }

    /// The connection that it works for.
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        self.worker.connections.find_mut(self.call.connection)
    }

    /// Room for a reply that may be taken back, where writes that were posted may still find their memory gone. `None` where the reply has
    /// to wait for them: a link behind this one would not.
    pub(crate) fn room_to_tell(&mut self) -> Option<SendSlot> {
        if self.call.link.is_some() || self.call.batch.is_some() || self.call.is_amended {
            return None;
        }
        let connection = self.connection().filter(|connection| connection.sends_at_once())?;
        connection.endpoint.reserve(0).ok()
    }

    /// Answers a read before its data has left; should some of that be gone, it begins again.
    pub(crate) fn tell(&mut self, slot: SendSlot, body: &[u8]) -> Fate {
        let mut head = [0; HEAD_SIZE_MAX];
        let len = self.worker.seal(&self.call, Status::OK, FileHandle(0), body, 0, &mut head);
        let token = self.token;
        if let Some(connection) = self.connection() {
            connection.dirty = true;
            // Of a connection that is closed the next receive tells.
            let sent = connection.endpoint.send_if_whole(token, slot, &head[..len], 0);
            self.on_posted(u32::from(sent.is_ok()));
        }
        self.told = Head::copy_of(&head[..len]);
        Fate::Told
    }

    /// A file was truncated after it was mapped to be sent: its session gets copies for a while.
    #[cold]
    pub(crate) fn distrust_mapped_files(&mut self) {
        self.worker.sessions.distrust_mapped_files(self.call.session, self.worker.now);
    }

    /// Reads of its session may be sent from mapped files.
    pub(crate) fn trusts_mapped_files(&self) -> bool {
        self.worker.sessions.trusts_mapped_files(self.call.session, self.worker.now)
    }

    /// Answers with a status alone.
    pub(crate) fn refuse(&mut self, status: Status) -> Fate {
        self.worker.reply_status(&self.call, status);
        Fate::Answered
    }
}

impl Worker {
    /// What storage is given next is this session's. By its name, which no later session gets: threads may work for one that has ended.
    pub(crate) fn storage_works_for(&mut self, session: SessionKey) {
        let client = self.sessions.find(session).map_or(u64::MAX, |session| session.id.0);
        self.storage.for_client(client);
    }

    /// Works on an operation: takes it out of its place, and puts it back unless it is over. Nothing happens where none is that moves data.
    pub(crate) fn work_on(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut dyn Work, &mut Context<'_>) -> Fate,
    ) {
        let Some(operation) = self.operations.get_mut(index) else { return };
        let (call, generation) = (operation.call, operation.generation);
        let mut own = match std::mem::replace(&mut operation.state, WaitsFor::Taken) {
            WaitsFor::Work(own) => own,
            other => return operation.state = other,
        };
        let token = token(index, generation);
        let mut context = Context { worker: self, index, token, call, told: None };
        let fate = work(&mut *own, &mut context);
        let told = context.told;
        match self.operations.get_mut(index).filter(|operation| operation.generation == generation) {
            Some(operation) => operation.state = WaitsFor::Work(own),
            None => return self.release_buffers(own.into_buffers()),
        }
        match fate {
            Fate::Waits => {}
            Fate::Answered => self.retire(index),
            Fate::Told => self.await_departure(index, told.unwrap_or(Head::EMPTY)),
            Fate::Abandoned => {
                let operation = self.unpark(index);
                self.abandon(operation);
            }
        }
    }

    /// The same, of one that may be gone, or nobody's.
    pub(crate) fn work_on_live(
        &mut self,
        token: OpToken,
        work: impl FnOnce(&mut dyn Work, &mut Context<'_>) -> Fate,
    ) {
        if let Some(index) = self.operations.live_index_of(token) {
            self.work_on(index, work);
        }
    }
}
