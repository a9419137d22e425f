//! Operations in flight: what each waits for, and what is to be looked at because something has come. Goes on with none of them itself.
//! Imports `flight`, the words of sessions and connections, and the trait of operations that move data.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::session::{Effect, Moment};
use dafs_proto::transport::{Head, OpToken};
use dafs_proto::wire::{FileHandle, Header, LockRequest, Method, Status, Verifier};
use slab::Slab;

use crate::shared::Subject;
use crate::shared::handed::Recalling;
use crate::shared::locks::WaiterId;
use crate::storage::{FsResult, LockKey, Storage};
use crate::worker::buffers::{Buffer, Owner};
use crate::worker::connections::rdma::RdmaStep;
use crate::worker::flight::after::After;
use crate::worker::flight::batch::{Batch, BatchPlace, Hints};
use crate::worker::flight::eager::EagerFrame;
use crate::worker::flight::fencing::Fencing;
use crate::worker::flight::lock::AfterKept;
use crate::worker::flight::meeting::{Meetings, Members};
use crate::worker::flight::{Call, INDEX_MASK, Wakeup, token};
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::requests::work::Work;
use crate::worker::sessions::Session;

/// An operation that waits.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) call: Call,
    pub(crate) state: WaitsFor,
    /// Tells apart operations that had the same place.
    pub(crate) generation: u32,
    /// RDMA operations posted and not completed.
    pub(crate) rdma_pending: u32,
    /// Which of its connection's steps of RDMA was its last.
    pub(crate) rdma_step: RdmaStep,
    /// Nobody waits for it any more; it stays until storage and RDMA have let go of its memory.
    pub(crate) forgotten: bool,
    /// Whose it was, where its session has ended: a fence may be about that client.
    pub(crate) former: Option<Arc<Former>>,
    /// The head of its reply that was taken back.
    pub(crate) taken_back: Option<Box<Head>>,
}

/// A client whose session has ended, as fences know it.
#[derive(Debug)]
pub(crate) struct Former {
    client_id: [u8; 16],
    key_name: Option<String>,
    address: Option<SocketAddr>,
}

impl Former {
    /// Whose session this is.
    pub(crate) fn of(session: &Session) -> Self {
        let key_name = session.client.known_as.key_name.clone();
        Self { client_id: session.client.id, key_name, address: session.client.peer }
    }

    /// Who it is to fences.
    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject { client_id: &self.client_id, key_name: self.key_name.as_deref(), address: self.address }
    }
}

impl Operation {
    /// Works on a read again whose reply was taken back; false where none was.
    pub(crate) fn take_back(&mut self) -> bool {
        match std::mem::replace(&mut self.state, WaitsFor::Taken) {
            WaitsFor::Told(work, head) if self.call.is_amended => {
                self.state = WaitsFor::Work(work);
                self.taken_back = Some(Box::new(head));
                true
            }
            other => {
                self.state = other;
                false
            }
        }
    }
}

/// What it waits for.
#[derive(Debug)]
pub(crate) enum WaitsFor {
    /// Its turn in a chain; the body and the payload are kept.
    Chain { body: Vec<u8>, payload: Vec<u8> },
    /// Storage; then the reply is made.
    Storage(After),
    /// Room for a frame.
    EagerFrame(EagerFrame),
    /// It moves data, and waits for its next step.
    Work(Box<dyn Work>),
    /// Its operations, which are operations of their own here.
    Batch(Box<Batch>),
    /// Waits until no operation of a fenced client is in flight: here, and with as many others as have not said so yet; and until the list
    /// is kept, of which this came.
    FenceDrain { export: usize, others: usize, kept: Option<Status> },
    /// A lock that others hold, under this number in the table of locks.
    Lock { file: LockKey, waiter: WaiterId, request: LockRequest },
    /// Files that clients have descriptors of; then it begins. `until` then, and else it is refused.
    Recall { recalling: Recalling, body: Vec<u8>, payload: Vec<u8>, until: Moment, refused: Status },
    /// The store; then this is done.
    LocksKept(AfterKept),
    /// The cluster's store, to lock this: it was asked, or is to be asked again.
    ClusterLock { file: LockKey, request: LockRequest, is_asked: bool },
    /// The cluster's store, for its answer.
    Cluster,
    /// The store, which writes crossovers that it publishes.
    CrossoversKept,
    /// Answered; RDMA still holds its buffers.
    Draining(Vec<Buffer>),
    /// Answered with this head, which leaves only if the data before it was there.
    Told(Box<dyn Work>, Head),
    /// It is being worked on.
    Taken,
}

impl WaitsFor {
    /// The buffers that it holds.
    pub(crate) fn into_buffers(self) -> Vec<Buffer> {
        match self {
            Self::Work(work) | Self::Told(work, _) => work.into_buffers(),
            Self::Draining(buffers) => buffers,
            _ => Vec::new(),
        }
    }

    /// What it has written, for the case that it is asked for again.
    pub(crate) fn effect(&self) -> Option<Effect> {
        match self {
            Self::Work(work) => work.effect(),
            Self::Batch(batch) => batch.effect(),
            _ => None,
        }
    }

    /// It was answered, and only holds memory.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Self::Draining(_) | Self::Told(..))
    }

    /// Storage has its hands on its memory.
    pub(crate) fn in_storage(&self) -> bool {
        match self {
            Self::Storage(_) => true,
            Self::Work(work) => work.in_storage(),
            _ => false,
        }
    }

    /// Its client has gone. Whether nobody has its hands on its memory, and nobody will.
    pub(crate) fn lets_go(&self) -> bool {
        match self {
            Self::Work(work) => work.lets_go(),
            other => !other.in_storage(),
        }
    }
}

/// The operations in flight of a worker.
#[derive(Default)]
pub(crate) struct Operations {
    waiting: Slab<Operation>,
    /// Counts them: see [`Operation::generation`].
    count: u32,
    /// The links among them that wait for their turn: by chain, and there by place in it.
    links: HashMap<(SessionKey, u64), BTreeMap<u16, usize>>,
    /// What is to be looked at before the turn ends.
    wakeups: VecDeque<Wakeup>,
    /// Room for what storage tells next.
    finished: Vec<(OpToken, FsResult)>,
    /// What storage has finished, the next to go on with first.
    results: VecDeque<(OpToken, FsResult)>,
    fencing: Fencing,
    /// Transfers of all workers that wait for others of their group.
    meetings: Arc<Meetings>,
    /// Those of this worker, and those that another moves.
    members: Members,
    /// When the first of the windows ends in which a batch gathers ends.
    window_end: Option<Moment>,
}

impl Operations {
    /// None yet, of a worker that shares these with others.
    pub(crate) fn new(meetings: Arc<Meetings>) -> Self {
        Self { meetings, ..Self::default() }
    }

    /// Adds one; its token names it to storage and providers.
    pub(crate) fn insert(&mut self, call: Call, state: WaitsFor) -> OpToken {
        self.count = self.count.wrapping_add(1);
        let generation = self.count;
        let link = call.link.filter(|_| matches!(state, WaitsFor::Chain { .. }));
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
        let index = self.waiting.insert(operation);
        if let Some(link) = link {
            self.links.entry((call.session, link.chain)).or_default().insert(link.position, index);
        }
        token(index, generation)
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, index: usize) -> Operation {
        let operation = self.waiting.remove(index);
        if let (WaitsFor::Chain { .. }, Some(link)) = (&operation.state, operation.call.link)
            && let Entry::Occupied(mut links) = self.links.entry((operation.call.session, link.chain))
        {
            links.get_mut().remove(&link.position);
            if links.get().is_empty() {
                links.remove();
            }
        }
        operation
    }

    /// The place of one that is there.
    pub(crate) fn index_of(&self, token: OpToken) -> Option<usize> {
        index_in(&self.waiting, token)
    }

    /// The place of one that somebody waits for.
    pub(crate) fn live_index_of(&self, token: OpToken) -> Option<usize> {
        live_in(&self.waiting, token)
    }

    /// What is in a place.
    pub(crate) fn get(&self, index: usize) -> Option<&Operation> {
        self.waiting.get(index)
    }

    /// What is in a place.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Operation> {
        self.waiting.get_mut(index)
    }

    /// The batch in a place.
    pub(crate) fn batch_mut(&mut self, index: usize) -> Option<&mut Batch> {
        match self.waiting.get_mut(index).map(|operation| &mut operation.state) {
            Some(WaitsFor::Batch(batch)) => Some(batch),
            _ => None,
        }
    }

    /// All of them, each with its place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Operation)> {
        self.waiting.iter()
    }

    /// The places of these.
    pub(crate) fn places_of(&self, which: impl Fn(&Operation) -> bool) -> Vec<usize> {
        self.waiting.iter().filter(|(_, operation)| which(operation)).map(|(index, _)| index).collect()
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// None.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of the last that was added.
    pub(crate) fn last_number(&self) -> u32 {
        self.count
    }

    /// To whom buffers are lent for one.
    pub(crate) fn owner_of(&self, index: usize) -> Owner {
        let operation = &self.waiting[index];
        Owner { session: operation.call.session, operation: token(index, operation.generation) }
    }

    /// Something is to be looked at before the turn ends.
    pub(crate) fn wake(&mut self, wakeup: Wakeup) {
        self.wakeups.push_back(wakeup);
    }

    /// Takes the next of that.
    pub(crate) fn next_wakeup(&mut self) -> Option<Wakeup> {
        self.wakeups.pop_front()
    }

    /// Nothing is to be looked at.
    #[inline]
    pub(crate) fn are_settled(&self) -> bool {
        self.wakeups.is_empty()
    }

    /// Collects what storage has finished.
    pub(crate) fn collect(&mut self, storage: &mut dyn Storage) {
        storage.poll(&mut self.finished);
        self.results.extend(self.finished.drain(..));
    }

    /// Takes the next of that.
    pub(crate) fn next_result(&mut self) -> Option<(OpToken, FsResult)> {
        self.results.pop_front()
    }

    /// Storage has finished what no turn has gone on with yet.
    pub(crate) fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    /// The first link of a chain that waits: its position, and its place here.
    pub(crate) fn first_link(&self, session: SessionKey, chain: u64) -> Option<(u16, usize)> {
        let (position, index) = self.links.get(&(session, chain))?.first_key_value()?;
        Some((*position, *index))
    }

    /// Transfers of all workers that wait for others of their group.
    pub(crate) fn meetings(&self) -> &Meetings {
        &self.meetings
    }

    /// Those of this worker.
    pub(crate) fn members(&mut self) -> &mut Members {
        &mut self.members
    }

    /// One of them waits until its session has less with storage.
    pub(crate) fn awaits_room(&self, token: OpToken) -> bool {
        let state = self.live_index_of(token).map(|index| &self.waiting[index].state);
        matches!(state, Some(WaitsFor::Work(work)) if work.waits_for_storage())
    }
}

/// Batches, and when they tell what they have gathered.
impl Operations {
    /// When a batch's next window ends, or somebody has waited long enough for others of a group.
    pub(crate) fn window_end(&self) -> Option<Moment> {
        let meeting = if self.members.is_empty() { None } else { self.meetings.due() };
        [self.window_end, meeting].into_iter().flatten().min()
    }

    /// Somebody is to look when what has ended has waited long enough. What has already is told of when its batch goes on, or when its
    /// session listens.
    pub(crate) fn note_window(&mut self, end: Option<Moment>, now: Moment) {
        if let Some(end) = end.filter(|end| *end > now) {
            self.window_end = Some(self.window_end.map_or(end, |soonest| soonest.min(end)));
        }
    }

    /// The batches whose window is over.
    pub(crate) fn due_batches(&mut self, now: Moment) -> Vec<usize> {
        let ends = self.waiting.iter().filter_map(|(_, operation)| match &operation.state {
            WaitsFor::Batch(batch) => batch.window_end().filter(|end| *end > now),
            _ => None,
        });
        self.window_end = ends.min();
        self.places_of(|operation| matches!(&operation.state, WaitsFor::Batch(batch) if batch.is_due(now)))
    }

    /// Bytes of an operation of a batch that are in its file, because it was executed before.
    pub(crate) fn part_written_before(&mut self, place: BatchPlace, verifier: Verifier) -> u64 {
        let index = self.index_of(place.batch);
        index.and_then(|index| self.batch_mut(index)).map_or(0, |batch| batch.take_written(place, verifier))
    }

    /// Nothing of a session's batches is gathered any more.
    pub(crate) fn expedite_batches(&mut self, session: SessionKey) {
        for (_, operation) in self.waiting.iter_mut().filter(|(_, o)| o.call.session == session) {
            if let WaitsFor::Batch(batch) = &mut operation.state
                && let Some(hints) = &mut batch.hints
            {
                *hints = Hints { completions: 1, window: Duration::ZERO };
            }
        }
    }
}

/// What is asked for again, and what ends.
impl Operations {
    /// The client sent a request again that is being executed: its reply goes to the new connection.
    pub(crate) fn readdress(&mut self, session: SessionKey, header: &Header, connection: ConnectionKey) {
        // A batch, and what is left of its operations.
        let found = self.waiting.iter_mut().filter(|(_, operation)| {
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

    /// The head of a reply that was taken back, to be made again.
    #[cold]
    pub(crate) fn take_taken_back(&mut self, call: &Call) -> Option<Box<Head>> {
        let is_its_own = |other: &Call| {
            other.is_amended
                && (other.session, other.connection, other.header.slot)
                    == (call.session, call.connection, call.header.slot)
        };
        let mut operations = self.waiting.iter_mut().map(|(_, operation)| operation);
        operations.find(|operation| is_its_own(&operation.call)).and_then(|it| it.taken_back.take())
    }

    /// A read into an eager buffer of another connection than this is nobody's any more; false where none is under way in that slot.
    pub(crate) fn forget_eager_read(
        &mut self,
        session: SessionKey,
        connection: ConnectionKey,
        header: &Header,
    ) -> bool {
        let found = self.waiting.iter_mut().find(|(_, operation)| {
            operation.call.session == session
                && operation.call.header.slot == header.slot
                && !operation.forgotten
                && matches!(&operation.state, WaitsFor::Storage(After::Read(read))
                    if read.method != Method::Inline && read.eager_buffer.0 != connection)
        });
        let Some((_, operation)) = found else { return false };
        operation.forgotten = true;
        true
    }

    /// One works on what the handle names. A link that waits for its turn has not begun.
    pub(crate) fn use_handle(&self, session: SessionKey, handle: FileHandle) -> bool {
        self.waiting.iter().any(|(_, operation)| {
            operation.call.session == session
                && match &operation.state {
                    WaitsFor::Chain { .. } => false,
                    WaitsFor::Batch(batch) => {
                        batch.handles(operation.call.header.handle).any(|used| used == handle)
                    }
                    _ => operation.call.header.handle == handle,
                }
        })
    }

    /// What those of a session name.
    pub(crate) fn handles_in_use(&self, session: SessionKey) -> HashSet<FileHandle> {
        let mut used = HashSet::new();
        let own = self.waiting.iter().filter(|(_, operation)| operation.call.session == session);
        for (_, operation) in own {
            let handle = operation.call.header.handle;
            match &operation.state {
                WaitsFor::Chain { .. } => {}
                WaitsFor::Batch(batch) => used.extend(batch.handles(handle)),
                _ => drop(used.insert(handle)),
            }
        }
        used
    }

    /// Sessions of which something is in flight that ends by itself.
    pub(crate) fn sessions_with_unfinished(&self) -> HashSet<SessionKey> {
        let unfinished = self.waiting.iter().filter(|(_, operation)| {
            !matches!(
                operation.state,
                WaitsFor::Lock { .. }
                    | WaitsFor::ClusterLock { is_asked: false, .. }
                    | WaitsFor::Recall { .. }
                    | WaitsFor::Chain { .. }
            )
        });
        unfinished.map(|(_, operation)| operation.call.session).collect()
    }

    /// One is in flight that ends by itself. A lock that others hold is asked for again in the next session, with the rest of its chain.
    pub(crate) fn have_unfinished(&self) -> bool {
        let chain_of = |call: &Call| call.link.map(|link| (call.session, link.chain));
        let locks = self.waiting.iter().filter(|(_, other)| matches!(other.state, WaitsFor::Lock { .. }));
        let waiting: HashSet<_> = locks.filter_map(|(_, lock)| chain_of(&lock.call)).collect();
        self.waiting.iter().any(|(_, operation)| match operation.state {
            WaitsFor::Lock { .. }
            | WaitsFor::ClusterLock { is_asked: false, .. }
            | WaitsFor::Recall { .. } => false,
            WaitsFor::Chain { .. } => chain_of(&operation.call).is_none_or(|chain| !waiting.contains(&chain)),
            _ => true,
        })
    }
}

/// Who waits for operations of clients that were fenced off.
impl Operations {
    /// Who that is.
    pub(crate) fn fencing(&mut self) -> &mut Fencing {
        &mut self.fencing
    }

    /// What is in flight changed: whoever waits for operations of fenced clients is looked at, once this turn's work is done.
    #[inline]
    pub(crate) fn look_at_fences(&mut self) {
        if self.fencing.is_awaited() && !matches!(self.wakeups.back(), Some(Wakeup::Drain)) {
            self.wakeups.push_back(Wakeup::Drain);
        }
    }

    /// The exports of which somebody waits for the operations of fenced clients.
    pub(crate) fn fenced_exports(&self) -> HashSet<usize> {
        let own = self.waiting.iter().filter_map(|(_, operation)| match operation.state {
            WaitsFor::FenceDrain { export, .. } => Some(export),
            _ => None,
        });
        self.fencing.foreign().chain(own).collect()
    }

    /// Whose operations wait for their client, of those of whom storage has nothing.
    pub(crate) fn waiting_for_clients(&self) -> HashSet<(SessionKey, ConnectionKey)> {
        let (mut waiting, mut busy) = (HashSet::new(), HashSet::new());
        for (_, operation) in &self.waiting {
            match &operation.state {
                WaitsFor::Work(work) if work.in_storage() => drop(busy.insert(operation.call.connection)),
                WaitsFor::Work(_) | WaitsFor::EagerFrame(_) => {
                    waiting.insert((operation.call.session, operation.call.connection));
                }
                _ => {}
            }
        }
        waiting.retain(|(_, connection)| !busy.contains(connection));
        waiting
    }
}

fn index_in(waiting: &Slab<Operation>, token: OpToken) -> Option<usize> {
    let (index, generation) = ((token.0 & INDEX_MASK) as usize, (token.0 >> 32) as u32);
    waiting.get(index).filter(|operation| operation.generation == generation).map(|_| index)
}

fn live_in(waiting: &Slab<Operation>, token: OpToken) -> Option<usize> {
    index_in(waiting, token).filter(|index| !waiting[*index].forgotten)
}

/// One that is known to be there.
impl Index<usize> for Operations {
    type Output = Operation;

    fn index(&self, index: usize) -> &Operation {
        &self.waiting[index]
    }
}

impl IndexMut<usize> for Operations {
    fn index_mut(&mut self, index: usize) -> &mut Operation {
        &mut self.waiting[index]
    }
}
