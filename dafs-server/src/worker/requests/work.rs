//! How operations that move data go on: one is taken out of its place to be worked on, is lent a [`Context`] with what it may touch, and is
//! put back unless it is over. What each of them does is `ops`'.

use std::fmt::Debug;
use std::ops::Range;

use dafs_proto::extent::Extent;
use dafs_proto::session::{Effect, Moment};
use dafs_proto::transport::{Access, Head, MemoryRef, OpToken, RemoteRange, SendSlot, Span, TransportError};
use dafs_proto::wire::{AccessPattern, BatchResult, FileHandle, HEAD_SIZE_MAX, Method, Statistics, Status};

use crate::shared::locks::Locks;
use crate::shared::settings::Pipelining;
use crate::storage::{ExportId, FsOp, FsResult, NodeId, RequestName, Storage, Submitted};
use crate::worker::Worker;
use crate::worker::buffers::{Buffer, Owner};
use crate::worker::connections::connection::Connection;
use crate::worker::flight::after::Writing;
use crate::worker::flight::answer::Answer;
use crate::worker::flight::batch::BatchPlace;
use crate::worker::flight::{Call, READ_AHEAD, token};
use crate::worker::ids::SessionKey;
use crate::worker::operations::WaitsFor;
use crate::worker::sched::Turns;
use crate::worker::sched::costs::SieveCosts;
use crate::worker::sched::plans::PlanRoom;

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

    /// Its client has gone. Whether nobody has its hands on its memory, and nobody will.
    fn lets_go(&self) -> bool {
        !self.in_storage()
    }

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

/// What an operation is lent when it goes on: its own place, and of the worker what the methods here give.
pub(crate) struct Context<'w> {
    worker: &'w mut Worker,
    index: usize,
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
        self.worker.storage_works_for_call(&self.call);
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

    /// Storage, for what it has at hand.
    #[inline]
    pub(crate) fn storage(&mut self) -> &mut dyn Storage {
        &mut *self.worker.storage
    }

    /// The turn of its connection that is under way.
    #[inline]
    pub(crate) fn turn(&mut self) -> &mut Turns {
        self.worker.sched.turn()
    }

    /// Storage, and the bytes that the turn may still move.
    #[inline]
    pub(crate) fn storage_in_turn(&mut self) -> (&mut dyn Storage, usize) {
        (&mut *self.worker.storage, self.worker.sched.turn().left())
    }

    /// Enough for this turn.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.worker.sched.is_over()
    }

    /// It goes on in its connection's next turn.
    pub(crate) fn yield_turn(&mut self) {
        self.worker.connections.yield_turn(self.call.connection, self.token);
    }

    /// Several clients want the worker's time.
    #[inline]
    pub(crate) fn is_contended(&self) -> bool {
        self.worker.is_contended()
    }

    /// How much of so many bytes that are at hand is moved in one step.
    #[inline]
    pub(crate) fn at_once(&self, len: usize) -> usize {
        self.worker.sched.at_once(len, self.worker.now)
    }

    /// The time.
    pub(crate) fn now(&self) -> Moment {
        self.worker.now
    }

    /// What lists of reads, or of writes, have cost.
    #[inline]
    pub(crate) fn costs(&mut self, writes: bool) -> &mut SieveCosts {
        self.worker.sched.costs(writes)
    }

    /// What is counted.
    #[inline]
    pub(crate) fn counted(&mut self) -> &mut Statistics {
        &mut self.worker.stats.counted
    }

    /// The locks of all files.
    pub(crate) fn locks(&self) -> &Locks {
        &self.worker.shared.locks
    }

    /// A mandatory lock of another session keeps it from these bytes.
    #[inline]
    pub(crate) fn check_locks(&self, node: NodeId, range: Range<u64>, writes: bool) -> Result<(), Status> {
        self.worker.check_locks(&self.call, node, range, writes)
    }

    /// The same for a list of extents.
    #[inline]
    pub(crate) fn check_locks_of(
        &self,
        node: NodeId,
        extents: impl Iterator<Item = Extent>,
        writes: bool,
    ) -> Result<(), Status> {
        self.worker.check_locks_of(&self.call, node, extents, writes)
    }

    /// Room for a plan that may wait with it.
    pub(crate) fn plan_room(&self) -> Option<PlanRoom> {
        self.worker.sched.plan_room(&self.worker.sessions.find(self.call.session)?.load.plans)
    }

    /// How a transfer of `len` bytes on its connection is cut; `None` when that is gone.
    pub(crate) fn pipelining(&self, len: u64) -> Option<Pipelining> {
        self.worker.pipelining(&self.call, len)
    }

    /// Its session may have one more call with storage.
    pub(crate) fn has_storage_room(&self) -> bool {
        let size_max = self.worker.sched.storage_size_max(self.worker.now);
        self.worker.sessions.has_room(self.call.session, size_max)
    }

    /// Its session has as much with storage as it may: then it goes on when some of that is back.
    pub(crate) fn waits_for_storage_room(&mut self) -> bool {
        let size_max = self.worker.sched.storage_size_max(self.worker.now);
        self.worker.sessions.waits_for_room(self.call.session, size_max, self.token)
    }

    /// Storage has a call of its, of so many bytes.
    pub(crate) fn enters_storage(&mut self, len: u64) {
        self.worker.sessions.enters_storage(self.call.session, len);
    }

    /// Storage has it no longer.
    pub(crate) fn leaves_storage(&mut self, len: u64) {
        self.worker.sessions.leaves_storage(self.call.session, len);
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

    /// A buffer for so many bytes, perhaps a smaller one, where there is one now.
    pub(crate) fn spare_buffer(&mut self, len: usize) -> Option<Buffer> {
        let owner = self.owner();
        self.worker.buffers.acquire(owner, len)
    }

    /// Buffers of these sizes, all at once. Without them the operation is queued.
    pub(crate) fn all_buffers(&mut self, sizes: &[usize]) -> Option<Vec<Buffer>> {
        let owner = self.owner();
        let buffers = self.worker.buffers.acquire_all(owner, sizes);
        if buffers.is_none() {
            self.worker.buffers.wait_for_all(owner, sizes.to_vec());
        }
        buffers
    }

    /// It waits for buffers no more.
    pub(crate) fn stop_waiting_for_buffers(&mut self) {
        let owner = self.owner();
        self.worker.buffers.stop_waiting(owner);
    }

    /// Bytes of the largest buffer.
    pub(crate) fn largest_buffer(&self) -> usize {
        self.worker.buffers.largest()
    }

    /// Gives a buffer back.
    pub(crate) fn release_buffer(&mut self, buffer: Buffer) {
        self.worker.release_buffer(buffer);
    }

    /// Gives buffers back.
    pub(crate) fn release_buffers(&mut self, buffers: Vec<Buffer>) {
        self.worker.release_buffers(buffers);
    }

    /// The client's own memory, where the provider maps it.
    pub(crate) fn remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
    ) -> Result<Option<MemoryRef>, Status> {
        self.worker.connections.remote_memory(&self.call, remote, access).map_err(|_| Status::REMOTE_ACCESS)
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

    /// Data was read or written for it.
    #[inline]
    pub(crate) fn count_moved(&mut self, writes: bool, export: ExportId, method: Method, bytes: usize) {
        self.worker.count_moved(&self.call, writes, export, method, bytes);
    }

    /// Answers.
    pub(crate) fn reply(&mut self, answer: Answer<'_>) -> Fate {
        self.worker.reply(&self.call, Status::OK, answer);
        Fate::Answered
    }

    /// Answers with data that lies in memory of the server.
    pub(crate) fn reply_span(&mut self, body: &[u8], data: Span<'_>) -> Fate {
        self.worker.reply_span(&self.call, body, &[], data);
        Fate::Answered
    }

    /// Answers a plain read into the client's memory.
    pub(crate) fn reply_read(&mut self, export: ExportId, count: usize, len: u32) -> Fate {
        self.worker.reply_read(&self.call, export, count, len);
        Fate::Answered
    }

    /// Answers a write.
    pub(crate) fn reply_written(&mut self, write: &Writing, count: usize, payload: &[u8]) -> Fate {
        self.count_moved(true, write.target.node.export, write.method, count);
        self.worker.reply_written(&self.call, write, u32::try_from(count).unwrap_or(u32::MAX), payload);
        Fate::Answered
    }

    /// Answers into the batch that it is of.
    pub(crate) fn end_part(&mut self, place: BatchPlace, result: BatchResult) -> Fate {
        self.worker.end_part(place, result);
        Fate::Answered
    }

    /// The largest payload of its reply, bytes.
    pub(crate) fn reply_payload_max(&self) -> usize {
        self.worker.connections.send_payload_max(self.call.connection)
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

    /// The same, of this request.
    pub(crate) fn storage_works_for_call(&mut self, call: &Call) {
        self.storage_works_for(call.session);
        if self.shared.cluster.is_some()
            && let Some(session) = self.sessions.find(call.session)
        {
            let (session, slot, sequence) = (session.id, call.header.slot.0, call.header.sequence);
            self.storage.for_request(RequestName { session, slot, sequence });
        }
    }

    /// This server ends, and its clients go on at others of its cluster.
    pub(crate) fn hands_over(&self) -> bool {
        self.shared.cluster.is_some() && self.sessions.are_draining()
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
