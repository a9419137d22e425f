//! Operations whose repetition would do harm: what each is about to do is written down before it begins, and what came of it afterwards, so
//! that whoever takes over can tell. While one is under way no other server changes the same thing.
//!
//! Whether something has changed since a server looked at it is told by the store's revisions: an operation leaves the revision of its end
//! at the thing that it changed, and an intent is written only if there is no later one than the server had heard of when it looked.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_proto::transport::MemoryRef;
use dafs_proto::transport::util::lock;
use dafs_proto::wire::Status;
use sha2::{Digest, Sha256};

use super::coordination::{self, Change, Compare, CoordinationError, Transaction};
use super::core::{Core, STORE_RETRY, Tell, status_of};
use super::host::Join;
use super::opens::state::Runner;
use super::queue::{Found, Queue};
use super::records::{Intent, NameAt, Object, OpenAt, Reply, SlotRecord, encode, hex};
use crate::storage::{FileName, RequestName, SharedFile};

/// Threads that look at files and ask the store.
const THREADS: usize = 8;
/// Changes of one transaction at most: etcd takes 128.
const CHANGES_MAX: usize = 100;
/// How long an operation waits that another server is in the way of, at first and at most.
const WAIT_MIN: Duration = Duration::from_millis(2);
const WAIT_MAX: Duration = Duration::from_millis(50);
/// A thread without work looks again after this.
const IDLE_MAX: Duration = Duration::from_secs(3600);

type Job = Box<dyn FnOnce() + Send>;

/// Something open and a path below it.
pub(super) struct Named {
    pub(super) node: SharedFile,
    pub(super) path: Vec<u8>,
}

/// What an operation will change.
pub(super) enum What {
    /// The end of a file; the data.
    Append(Named, Vec<MemoryRef>),
    /// A name is made.
    Make(Named),
    /// A name is removed; of a directory.
    Remove(Named, bool),
    /// A name is moved.
    Rename(Named, Named),
    /// A file gets another name; that may have been another's.
    Link(Named, Named, bool),
    /// Two names change places.
    Exchange(Named, Named),
    /// Nothing that could be looked at.
    Other,
}

/// An operation that wants to begin.
pub(super) struct Wish {
    pub(super) request: RequestName,
    /// Its export, by its place.
    pub(super) export: usize,
    pub(super) what: What,
    pub(super) tell: Tell<Result<Ticket, Status>>,
    /// How long it waited last.
    pub(super) waited: Duration,
}

/// An operation may be carried out. To be given to [`Intents::end`] then.
#[derive(Debug)]
pub(super) struct Ticket {
    key: String,
    record: SlotRecord,
    objects: Vec<Object>,
    /// Where an append begins.
    pub(super) offset: u64,
    /// Bytes that it has.
    pub(super) len: u64,
}

fn kept_by(key: &str, objects: &[Object]) -> Vec<Kept> {
    let objects = objects.iter().cloned().map(Kept::Object);
    objects.chain([Kept::Slot(key.to_owned())]).collect()
}

impl Ticket {
    fn kept(&self) -> Vec<Kept> {
        kept_by(&self.key, &self.objects)
    }

    /// As the store names it where something is kept from others.
    fn owner(&self) -> String {
        format!("{}#{}", self.key, self.record.sequence)
    }
}

#[cfg(test)]
impl Ticket {
    /// It is of a session of this server.
    pub(super) fn is_of(&self, core: &Core) -> bool {
        self.key.starts_with(&core.keys.server_slots(core.number))
    }
}

enum Ending {
    Ticket(Ticket, Option<Reply>),
    Changes(Vec<Change>),
    /// At this time of the host.
    Later(Duration, Wish),
    Stop,
}

/// What operations of this server keep from each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kept {
    /// Also from those of other servers.
    Object(Object),
    /// The key of a slot's record: there is one record, and what came of an operation is written after its client was told.
    Slot(String),
}

/// Those of operations that are under way, with operations that wait for them.
#[derive(Default)]
struct Busy(HashMap<Kept, VecDeque<Wish>>);

struct Shared {
    core: Arc<Core>,
    jobs: Arc<Queue<Job>>,
    endings: Queue<Ending>,
    busy: Mutex<Busy>,
    /// Files about whose locks the store is asked, with what is to be asked next.
    turns: Mutex<HashMap<FileName, VecDeque<Job>>>,
    pending: AtomicUsize,
}

/// See the module.
pub(super) struct Intents {
    shared: Arc<Shared>,
    /// The thread that writes what came of operations.
    last: Mutex<Option<Join>>,
}

impl Intents {
    /// Starts the threads.
    pub(super) fn start(core: &Arc<Core>) -> Self {
        let host = Arc::clone(&core.host);
        let (jobs, endings) = (Arc::new(Queue::<Job>::new(&*host)), Queue::new(&*host));
        for _ in 0..THREADS {
            let jobs = Arc::clone(&jobs);
            let work = move || {
                loop {
                    match jobs.pop(IDLE_MAX) {
                        Found::Item(job) => job(),
                        Found::Nothing => {}
                        Found::Closed => return,
                    }
                }
            };
            // Without a single one nothing is answered that needs the store; the others do.
            drop(host.spawn("dafs-intents", Box::new(work)));
        }
        let (core, pending) = (Arc::clone(core), AtomicUsize::new(0));
        let shared = Arc::new(Shared {
            core,
            jobs,
            endings,
            busy: Mutex::default(),
            turns: Mutex::default(),
            pending,
        });
        let own = Arc::clone(&shared);
        let last = host.spawn("dafs-endings", Box::new(move || end_all(&own))).ok();
        Self { shared, last: Mutex::new(last) }
    }

    /// Has a thread do this.
    pub(super) fn run(&self, job: Job) {
        self.shared.jobs.push(job);
    }

    /// The same, once all is done that was to be done about the locks of this file.
    pub(super) fn run_in_turn(&self, file: FileName, job: Job) {
        Shared::run_in_turn(&self.shared, file, job);
    }

    /// Has the threads do things, as long as there are any.
    pub(super) fn runner(&self) -> Runner {
        let (once, turn) = (Arc::downgrade(&self.shared), Arc::downgrade(&self.shared));
        Runner {
            at_once: Box::new(move |job| {
                if let Some(own) = once.upgrade() {
                    own.jobs.push(job);
                }
            }),
            in_turn: Box::new(move |file, job| {
                if let Some(own) = turn.upgrade() {
                    Shared::run_in_turn(&own, file, job);
                }
            }),
        }
    }

    /// Has an operation's intent written; its teller hears when it may begin. Does not block.
    pub(super) fn begin(&self, wish: Wish) {
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        Shared::try_later(&self.shared, wish);
    }

    /// An operation has ended, with this reply; `None`: it has had no effect. Does not block.
    pub(super) fn end(&self, ticket: Ticket, reply: Option<Reply>) {
        self.shared.endings.push(Ending::Ticket(ticket, reply));
    }

    /// Has these changes written, as soon as that is possible.
    pub(super) fn write(&self, changes: Vec<Change>) {
        self.shared.endings.push(Ending::Changes(changes));
    }

    /// Operations that have begun, or want to.
    pub(super) fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::Relaxed)
    }

    /// Writes what has ended. Nothing begins afterwards. Blocks.
    pub(super) fn finish(&self) {
        self.shared.endings.push(Ending::Stop);
        if let Some(join) = lock(&self.last).take() {
            join();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.jobs.close();
    }
}

impl Shared {
    fn run_in_turn(this: &Arc<Self>, file: FileName, job: Job) {
        match lock(&this.turns).entry(file) {
            Entry::Occupied(mut turn) => return turn.get_mut().push_back(job),
            Entry::Vacant(turn) => drop(turn.insert(VecDeque::new())),
        }
        Self::take_turn(this, file, job);
    }

    fn take_turn(this: &Arc<Self>, file: FileName, job: Job) {
        let own = Arc::clone(this);
        this.jobs.push(Box::new(move || {
            job();
            let next = {
                let mut turns = lock(&own.turns);
                let next = turns.get_mut(&file).and_then(VecDeque::pop_front);
                if next.is_none() {
                    turns.remove(&file);
                }
                next
            };
            if let Some(next) = next {
                Self::take_turn(&own, file, next);
            }
        }));
    }

    fn try_later(this: &Arc<Self>, wish: Wish) {
        let own = Arc::clone(this);
        this.jobs.push(Box::new(move || Self::attempt(&own, wish)));
    }

    /// Writes an intent, if nothing is in the way.
    fn attempt(this: &Arc<Self>, wish: Wish) {
        let core = &this.core;
        // Heard of before the files are looked at.
        let revision = core.revision.load(Ordering::Acquire);
        let (intent, offset, len) = match this.intent_of(&wish) {
            Ok(intent) => intent,
            Err(status) => return this.refuse(wish, status),
        };
        let objects = intent.objects();
        let key = core.keys.slot(wish.request.session, wish.request.slot);
        let Some(wish) = this.occupy(&kept_by(&key, &objects), wish) else { return };
        let ticket = Ticket {
            key,
            record: SlotRecord { sequence: wish.request.sequence, intent, reply: None },
            objects,
            offset,
            len,
        };
        match this.write_intent(&wish, &ticket, revision) {
            Ok(None) => (wish.tell)(Ok(ticket)),
            Ok(Some(wait)) => {
                Self::vacate(this, &ticket.kept());
                let waited = if wait.is_zero() {
                    Duration::ZERO
                } else {
                    (2 * wish.waited).clamp(wait, WAIT_MAX.max(wait))
                };
                let wish = Wish { waited, ..wish };
                match waited.is_zero() {
                    true => Self::try_later(this, wish),
                    false => this.endings.push(Ending::Later(this.core.host.now() + waited, wish)),
                }
            }
            Err(error) => {
                this.take_back(&ticket);
                Self::vacate(this, &ticket.kept());
                tracing::warn!(%error, "cannot write down what an operation is about to do");
                this.refuse(wish, status_of(&error));
            }
        }
    }

    /// An operation is refused. An attempt before, which was not answered, may keep things from others: they get them back.
    fn take_back(&self, ticket: &Ticket) {
        let (core, owner) = (&self.core, ticket.owner());
        for object in &ticket.objects {
            let key = core.keys.pending(object);
            let Ok((found, _)) = core.store.read(&key) else { return };
            let is_own = |entry: &&coordination::Entry| entry.key == key && entry.value == owner.as_bytes();
            let Some(own) = found.iter().find(is_own) else { continue };
            let compares = vec![Compare::At(key.clone(), own.revision)];
            // Where it fails, somebody else has it, or nobody.
            let _ =
                core.commit(&Transaction { compares, changes: vec![Change::Delete(key)], reads: Vec::new() });
        }
    }

    fn refuse(&self, wish: Wish, status: Status) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
        (wish.tell)(Err(status));
    }

    /// Looks at what an operation will change. Blocks.
    fn intent_of(&self, wish: &Wish) -> Result<(Intent, u64, u64), Status> {
        let export = self.core.exports.get(wish.export).ok_or(Status::NO_EXPORT)?;
        let (root, export) = (&export.root, export.name.clone());
        let name = |named: &Named, directory: bool| -> Result<NameAt, Status> {
            Ok(NameAt::from(&root.place(&named.node, &named.path, directory)?))
        };
        let intent = match &wish.what {
            What::Append(named, data) => {
                let place = root.open_place(&named.node, &named.path)?;
                let len = data.iter().map(|part| part.len() as u64).sum();
                let intent = Intent::Append { export, file: OpenAt::from(&place), len, sum: sum_of(data) };
                return Ok((intent, place.size, len));
            }
            What::Make(at) => Intent::Make { export, at: name(at, true)? },
            What::Remove(at, directory) => Intent::Remove { export, at: name(at, *directory)? },
            What::Rename(from, to) => Intent::Rename { export, from: name(from, true)?, to: name(to, true)? },
            What::Exchange(from, to) => {
                Intent::Exchange { export, from: name(from, true)?, to: name(to, true)? }
            }
            What::Link(file, to, replaces) => {
                let file = root.open_place(&file.node, &file.path)?.file.into();
                Intent::Link { export, file, to: name(to, false)?, replaces: *replaces }
            }
            What::Other => Intent::Other,
        };
        Ok((intent, 0, 0))
    }

    /// Keeps objects for an operation, or has it wait for another of this server.
    fn occupy(&self, kept: &[Kept], wish: Wish) -> Option<Wish> {
        let mut busy = lock(&self.busy);
        if let Some(in_way) = kept.iter().find(|kept| busy.0.contains_key(kept)) {
            busy.0.entry(in_way.clone()).or_default().push_back(wish);
            return None;
        }
        for kept in kept {
            busy.0.insert(kept.clone(), VecDeque::new());
        }
        Some(wish)
    }

    /// An operation lets go of these.
    fn vacate(this: &Arc<Self>, kept: &[Kept]) {
        let mut waiting = Vec::new();
        {
            let mut busy = lock(&this.busy);
            kept.iter().for_each(|kept| waiting.extend(busy.0.remove(kept).into_iter().flatten()));
        }
        waiting.into_iter().for_each(|wish| Self::try_later(this, wish));
    }

    /// Writes an intent. `Some`: how long to wait before it is tried again.
    fn write_intent(
        &self,
        wish: &Wish,
        ticket: &Ticket,
        revision: u64,
    ) -> Result<Option<Duration>, CoordinationError> {
        let core = &self.core;
        if core.is_stopping() || core.is_lost.load(Ordering::Acquire) {
            return Err(CoordinationError::NoLease);
        }
        let keys = &core.keys;
        let owner = ticket.owner();
        let live = keys.live_server(core.number);
        // An attempt that the store writes later than it is waited for must not undo what came after it.
        let is_first = Compare::NotAfter(ticket.key.clone(), revision);
        let mut compares = vec![Compare::Present(live.clone()), is_first];
        let mut changes = vec![Change::Put(ticket.key.clone(), encode(&ticket.record), None)];
        let mut reads = vec![live.clone()];
        for object in &ticket.objects {
            let pending = keys.pending(object);
            compares.push(Compare::Absent(pending.clone()));
            compares.push(Compare::NotAfter(keys.seen(object), revision));
            changes.push(Change::Put(pending.clone(), owner.clone().into_bytes(), None));
            reads.push(pending);
        }
        let unwritten = lock(&core.sessions).get(&wish.request.session).cloned();
        if let Some((proof, false)) = &unwritten {
            changes.push(Change::Put(keys.session(wish.request.session), proof.clone().into_bytes(), None));
        }
        let committed = match core.commit(&Transaction { compares, changes, reads }) {
            Ok(committed) => committed,
            Err(CoordinationError::Unreachable(_)) => return Ok(Some(STORE_RETRY)),
            Err(error) => return Err(error),
        };
        if committed.succeeded {
            if let Some(known) = lock(&core.sessions).get_mut(&wish.request.session) {
                known.1 = true;
            }
            return Ok(None);
        }
        let is = |entry: &&coordination::Entry, key: &str| entry.key == key;
        if !committed.found.iter().any(|entry| is(&entry, &live)) {
            return Ok(Some(STORE_RETRY));
        }
        let pending = committed.found.iter().filter(|entry| !is(entry, &live));
        let (own, others): (Vec<_>, Vec<_>) = pending.partition(|entry| entry.value == owner.as_bytes());
        Ok(match (own.is_empty(), others.is_empty()) {
            // An attempt that was not answered has written it.
            (false, true) => None,
            // Something ended that was not known of when the files were looked at.
            (true, true) => Some(Duration::ZERO),
            _ => Some(WAIT_MIN),
        })
    }
}

fn sum_of(data: &[MemoryRef]) -> String {
    let mut hasher = Sha256::new();
    data.iter().for_each(|part| hasher.update(part.span().to_vec()));
    hex(&hasher.finalize())
}

/// The thread that writes what came of operations, and lets those try again that waited.
fn end_all(shared: &Arc<Shared>) {
    let ended = &shared.endings;
    let mut later: BTreeMap<(Duration, u64), Wish> = BTreeMap::new();
    let mut number = 0;
    let mut is_last = false;
    while !is_last {
        let now = shared.core.host.now();
        while let Some(entry) = later.first_entry().filter(|entry| entry.key().0 <= now) {
            Shared::try_later(shared, entry.remove());
        }
        let rest = later.first_key_value().map_or(IDLE_MAX, |((at, _), _)| *at - now);
        let first = match ended.pop(rest) {
            Found::Item(first) => first,
            Found::Nothing => continue,
            Found::Closed => return,
        };
        let (mut changes, mut freed, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(ending) = next.take() {
            match ending {
                Ending::Stop => is_last = true,
                Ending::Later(at, wish) => {
                    number += 1;
                    later.insert((at, number), wish);
                }
                Ending::Changes(more) => alone.push(more),
                Ending::Ticket(ticket, reply) => {
                    changes.extend(changes_of(shared, &ticket, reply));
                    freed.extend(ticket.kept());
                    shared.pending.fetch_sub(1, Ordering::Relaxed);
                }
            }
            // Of what comes later some may be about the same keys.
            if changes.len() < CHANGES_MAX && alone.is_empty() {
                next = ended.try_pop();
            }
        }
        write_all(&shared.core, changes);
        alone.into_iter().for_each(|changes| write_all(&shared.core, changes));
        Shared::vacate(shared, &freed);
    }
    ended.close();
}

fn changes_of(shared: &Shared, ticket: &Ticket, reply: Option<Reply>) -> Vec<Change> {
    let keys = &shared.core.keys;
    let mut changes = Vec::new();
    changes.push(match reply {
        Some(reply) => {
            let record = SlotRecord { reply: Some(reply), ..ticket.record.clone() };
            Change::Put(ticket.key.clone(), encode(&record), None)
        }
        None => Change::Delete(ticket.key.clone()),
    });
    for object in &ticket.objects {
        changes.push(Change::Delete(keys.pending(object)));
        changes.push(Change::Put(keys.seen(object), Vec::new(), shared.core.recent_lease()));
    }
    changes
}

/// Writes changes, of each key the last; waits for the store as long as this server is of the cluster.
fn write_all(core: &Core, changes: Vec<Change>) {
    let name = |change: &Change| match change {
        Change::Put(key, ..) | Change::Delete(key) | Change::DeleteAll(key) => key.clone(),
    };
    let mut later = std::collections::HashSet::new();
    let mut last: Vec<Change> =
        changes.into_iter().rev().filter(|change| later.insert(name(change))).collect();
    last.reverse();
    for part in last.chunks(CHANGES_MAX) {
        while let Err(error) = write_once(core, part) {
            if core.is_stopping() || core.is_lost.load(Ordering::Acquire) {
                tracing::warn!(%error, "cannot write down what came of operations");
                break;
            }
            tracing::warn!(%error, "cannot write down yet what came of operations");
            core.rest(STORE_RETRY);
        }
    }
}

/// Writes changes, unless an attempt that was not answered has. A server's writes follow each other by revisions of a key, so none is made
/// later, over what came after it.
fn write_once(core: &Core, changes: &[Change]) -> Result<(), CoordinationError> {
    let (member, last) = (core.keys.member(core.number), core.keys.endings(core.number));
    let known = core.endings.load(Ordering::Acquire);
    let put = Change::Put(last.clone(), Vec::new(), None);
    let committed = core.commit(&Transaction {
        compares: vec![Compare::Present(member), Compare::At(last.clone(), known)],
        changes: [changes, &[put]].concat(),
        reads: vec![last],
    })?;
    // Where this server is not of the cluster any more nobody asks for it.
    let found = committed.found.first().map_or(known, |entry| entry.revision);
    let revision = if committed.succeeded { committed.revision } else { found };
    core.endings.store(revision, Ordering::Release);
    Ok(())
}
