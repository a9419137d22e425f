//! Storage that fails on demand, in front of the real one: errors, short writes, operations that hang until they are let go.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_proto::transport::{LocalSegments, MemoryRef, OpToken, Span};
use dafs_proto::wire::{Attributes, FileKind, Status, decode_dir_entries, encode_dir_entry};
use dafs_server::storage::{
    Entries, ExportId, FsOp, FsReply, FsResult, Identity, LOSS, LocalLocks, LockKey, NodeId, NowError,
    SharedFile, Storage, Submitted,
};

/// A wait for less than this is no failure.
const LONGEST: Duration = Duration::from_secs(60);

/// What an operation is, for rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reading data.
    Read,
    /// Writing data.
    Write,
    /// Writing a window at once, in place of its parts.
    Window,
    /// Appending.
    Append,
    /// Making data durable.
    Commit,
    /// Listing a directory.
    Readdir,
    /// Making a directory.
    Mkdir,
    /// Opening.
    Open,
    /// Advice about the page cache.
    Hint,
    /// Anything else.
    Other,
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this status and has no effect. A commit that fails so has lost what it covered: the verifier changes.
    Fail(Status),
    /// It waits until [`Faults::release`], and fails then.
    FailLate(Status),
    /// A write stops after half of its bytes.
    Short,
    /// It waits until [`Faults::release`].
    Hold,
    /// It is carried out, and its result waits until then, with those of all others that do.
    Late,
    /// It is carried out after the loop's thread has stood still for so long, as in a system call that waits.
    Stall(Duration),
    /// None: it goes to storage as if it could wait there, and the faults after this one are for those behind it.
    Pass,
}

/// The rules of a faulty storage; clones are the same.
#[derive(Clone)]
pub struct Faults {
    inside: Arc<(Mutex<Inside>, Condvar)>,
}

struct Inside {
    /// Each holds for so many operations of its kind.
    rules: Vec<(Kind, Fault, usize)>,
    released: bool,
    lost: u64,
    /// The size that files with content are said to have.
    claimed_size: Option<u64>,
    /// No file is said to have a generation.
    nameless: bool,
    /// Nothing of any file is said to be in the page cache.
    absent: bool,
    /// Bytes of every file that cannot be read.
    damaged: Range<u64>,
    /// What was submitted since somebody began to look.
    submitted: Option<Vec<Kind>>,
    /// Directories have entries without end: so many were made up by now.
    endless: Option<u64>,
    /// How many [`Opened`] there are.
    opens: Arc<AtomicUsize>,
    /// Nodes that were opened, by worker, and not closed.
    nodes: HashMap<(usize, NodeId), Arc<Opened>>,
    /// Nodes that were closed and had not been open.
    strays: Vec<NodeId>,
    /// Clients that were named before operations of theirs, and operations before which nobody was.
    clients: HashSet<u64>,
    nobodys: usize,
    workers: Vec<OfWorker>,
}

/// What the rules know of one worker's storage.
struct OfWorker {
    held: usize,
    wake: UnixStream,
    /// Closed since the last [`Storage::tidy`], and the most ever.
    closed: usize,
    closed_max: usize,
    /// Whose the operations are that are submitted now.
    client: Option<u64>,
}

/// What an operation has opened, until the last node and the last shared file of it is gone.
struct Opened(Arc<AtomicUsize>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A shared file, and what of it stays open.
struct SharedOpened {
    file: SharedFile,
    opened: Arc<Opened>,
}

/// The storage.
pub struct FaultyStorage {
    storage: Box<dyn Storage>,
    faults: Faults,
    worker: usize,
    held: Vec<(OpToken, Identity, FsOp)>,
    /// Operations whose results wait, and those that are there.
    late: HashSet<OpToken>,
    late_results: Vec<(OpToken, FsResult)>,
    woken: UnixStream,
}

impl Faults {
    /// Rules without any fault yet, and the function that puts them before the storage of each worker.
    pub fn new() -> (Self, impl Fn(Box<dyn Storage>) -> Box<dyn Storage> + Send + 'static) {
        let inside = Inside {
            rules: Vec::new(),
            released: true,
            lost: 0,
            claimed_size: None,
            nameless: false,
            absent: false,
            damaged: 0..0,
            submitted: None,
            endless: None,
            opens: Arc::default(),
            nodes: HashMap::new(),
            strays: Vec::new(),
            clients: HashSet::new(),
            nobodys: 0,
            workers: Vec::new(),
        };
        let faults = Self { inside: Arc::new((Mutex::new(inside), Condvar::new())) };
        let shared = faults.clone();
        let wrap = move |storage| -> Box<dyn Storage> {
            let (wake, woken) = UnixStream::pair().expect("a pair of sockets");
            wake.set_nonblocking(true).expect("a flag");
            woken.set_nonblocking(true).expect("a flag");
            let mut inside = shared.lock();
            let (closed, closed_max) = (0, 0);
            inside.workers.push(OfWorker { held: 0, wake, closed, closed_max, client: None });
            let worker = inside.workers.len() - 1;
            drop(inside);
            let (faults, held) = (shared.clone(), Vec::new());
            let (late, late_results) = (HashSet::new(), Vec::new());
            Box::new(FaultyStorage { storage, faults, worker, held, late, late_results, woken })
        };
        (faults, wrap)
    }

    /// The next `count` operations of this kind meet the fault.
    pub fn next(&self, kind: Kind, fault: Fault, count: usize) {
        let mut inside = self.lock();
        inside.released &= !matches!(fault, Fault::Hold | Fault::Late | Fault::FailLate(_));
        inside.rules.push((kind, fault, count));
    }

    /// No more faults; what is held goes on.
    pub fn release(&self) {
        let mut inside = self.lock();
        inside.rules.clear();
        inside.released = true;
        for worker in &mut inside.workers {
            // A full pipe wakes as well.
            let _ = worker.wake.write(&[1]);
        }
    }

    /// From now on every file that has content is said to be of this size, all of it allocated.
    pub fn claim_size(&self, size: u64) {
        self.lock().claimed_size = Some(size);
    }

    /// From now on no file has a generation, as on a file system that does not tell apart files of one number.
    pub fn claim_no_generation(&self) {
        self.lock().nameless = true;
    }

    /// From now on nothing of any file is said to be in the page cache.
    pub fn claim_absent(&self) {
        self.lock().absent = true;
    }

    /// From now on no read succeeds that touches these bytes, of any file. Before were others, or none.
    pub fn damage(&self, bytes: Range<u64>) {
        self.lock().damaged = bytes;
    }

    /// What was submitted since this was asked last.
    pub fn submitted(&self) -> Vec<Kind> {
        self.lock().submitted.replace(Vec::new()).unwrap_or_default()
    }

    fn is_damaged(&self, offset: u64, len: usize) -> bool {
        let damaged = self.lock().damaged.clone();
        damaged.start < offset.saturating_add(len as u64) && offset < damaged.end
    }

    /// From now on no listing of a directory that has entries ends, and no two entries have one name.
    pub fn list_without_end(&self) {
        self.lock().endless = Some(0);
    }

    /// Entries that were made up since [`Faults::list_without_end`].
    pub fn listed(&self) -> u64 {
        self.lock().endless.unwrap_or(0)
    }

    /// What a client is told of a result.
    fn told(&self, result: FsResult) -> FsResult {
        let mut inside = self.lock();
        let (size, nameless) = (inside.claimed_size, inside.nameless);
        match (result, &mut inside.endless) {
            (Ok(FsReply::Node(node, attributes)), _) => {
                Ok(FsReply::Node(node, claimed(attributes, size, nameless)))
            }
            (Ok(FsReply::Attributes(attributes)), _) => {
                Ok(FsReply::Attributes(claimed(attributes, size, nameless)))
            }
            (Ok(FsReply::Entries(found)), Some(count)) => {
                let mut endless = Entries { bytes: Vec::new(), end: false, ..found };
                for mut entry in decode_dir_entries(&found.bytes).unwrap() {
                    *count += 1;
                    entry.cookie = *count;
                    // As long as it was: room was counted by that.
                    let width = entry.name.len();
                    entry.name = format!("{count:0width$}").into_bytes();
                    encode_dir_entry(&entry, &mut endless.bytes);
                    endless.cookie = Some(entry.cookie);
                }
                Ok(FsReply::Entries(endless))
            }
            (result, ..) => result,
        }
    }

    /// Waits until so many operations are held.
    pub fn wait_for_held(&self, count: usize) {
        let mut inside = self.lock();
        while inside.held() < count {
            let (next, waited) =
                self.inside.1.wait_timeout(inside, LONGEST).unwrap_or_else(PoisonError::into_inner);
            inside = next;
            assert!(!waited.timed_out(), "{} operations are held, not {count}", inside.held());
        }
    }

    /// Operations that are still to meet a fault.
    pub fn left(&self) -> usize {
        self.lock().rules.iter().map(|(_, _, left)| left).sum()
    }

    /// Operations that are held now.
    pub fn held(&self) -> usize {
        self.lock().held()
    }

    /// What the server has opened and not closed: files, directories, paths. What was shared and adopted counts once. Nothing was closed
    /// twice.
    pub fn open_nodes(&self) -> usize {
        let inside = self.lock();
        assert!(inside.strays.is_empty(), "closed without being open: {:?}", inside.strays);
        inside.opens.load(Ordering::Acquire)
    }

    /// The most nodes that one worker has closed without tidying up in between.
    pub fn closed_at_once_max(&self) -> usize {
        self.lock().workers.iter().map(|worker| worker.closed_max).max().unwrap_or(0)
    }

    /// How many clients were named as those whose operations follow, and how many operations came before any was.
    pub fn clients(&self) -> (usize, usize) {
        let inside = self.lock();
        (inside.clients.len(), inside.nobodys)
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault of an operation that begins now.
    fn take(&self, kind: Kind) -> Option<Fault> {
        let mut inside = self.lock();
        let place = inside.rules.iter().position(|(of, _, left)| *of == kind && *left > 0)?;
        inside.rules[place].2 -= 1;
        Some(inside.rules[place].1)
    }

    fn expects(&self, kind: Kind) -> bool {
        self.lock().rules.iter().any(|(of, _, left)| *of == kind && *left > 0)
    }
}

impl Inside {
    fn held(&self) -> usize {
        self.workers.iter().map(|worker| worker.held).sum()
    }
}

impl FaultyStorage {
    fn note_opened(&self, result: &FsResult) {
        if let Ok(FsReply::Node(node, _)) = result {
            let mut inside = self.faults.lock();
            let opened = Opened(Arc::clone(&inside.opens));
            opened.0.fetch_add(1, Ordering::AcqRel);
            inside.nodes.insert((self.worker, *node), Arc::new(opened));
        }
    }

    fn held_changed(&self) {
        self.faults.lock().workers[self.worker].held = self.held.len() + self.late_results.len();
        self.faults.inside.1.notify_all();
    }
}

impl Storage for FaultyStorage {
    fn export(&self, name: &str) -> Option<ExportId> {
        self.storage.export(name)
    }

    fn root(&self, export: ExportId) -> NodeId {
        self.storage.root(export)
    }

    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
        match self.faults.expects(Kind::Read) {
            // Its fault is met by the operation that follows.
            true => Err(NowError::WouldBlock),
            false if self.faults.is_damaged(offset, into.iter().map(Span::len).sum()) => {
                Err(NowError::Failed(Status::IO))
            }
            false => self.storage.read_now(node, offset, into),
        }
    }

    fn is_absent(&self, _: NodeId, _: u64, _: u64) -> bool {
        self.faults.lock().absent
    }

    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError> {
        match self.faults.expects(Kind::Write) {
            true => Err(NowError::WouldBlock),
            false => self.storage.write_now(node, offset, from),
        }
    }

    fn sieve_now(
        &mut self,
        node: NodeId,
        offset: u64,
        window: Span<'_>,
        change: &mut dyn FnMut(),
    ) -> Result<Option<usize>, NowError> {
        if let Some(Fault::Fail(status)) = self.faults.take(Kind::Window) {
            return Err(NowError::Failed(status));
        }
        match self.faults.expects(Kind::Write) {
            true => Err(NowError::WouldBlock),
            false => self.storage.sieve_now(node, offset, window, change),
        }
    }

    fn map(&mut self, node: NodeId, offset: u64, len: usize, parts_max: usize) -> LocalSegments {
        match self.faults.expects(Kind::Read) {
            true => LocalSegments::new(),
            false => self.storage.map(node, offset, len, parts_max),
        }
    }

    fn submit(&mut self, token: OpToken, identity: &Identity, mut op: FsOp) -> Submitted {
        if let FsOp::CopyRange { source, .. } = &mut op
            && let Some(shared) = source.0.downcast_ref::<SharedOpened>()
        {
            source.0 = Arc::clone(&shared.file);
        }
        let kind = kind(&op);
        let mut inside = self.faults.lock();
        if let Some(submitted) = &mut inside.submitted {
            submitted.push(kind);
        }
        match inside.workers[self.worker].client.take() {
            Some(client) => drop(inside.clients.insert(client)),
            None => inside.nobodys += 1,
        }
        drop(inside);
        match self.faults.take(kind) {
            None | Some(Fault::Pass) => {}
            Some(Fault::Stall(time)) => std::thread::sleep(time),
            Some(Fault::Late) => drop(self.late.insert(token)),
            Some(Fault::FailLate(status)) => {
                self.late_results.push((token, Err(status)));
                self.held_changed();
                return Submitted::Pending;
            }
            Some(Fault::Fail(status)) => {
                if kind == Kind::Commit {
                    self.faults.lock().lost += LOSS;
                }
                return Submitted::Done(Err(status));
            }
            Some(Fault::Short) => {
                if let FsOp::Write { from, .. } | FsOp::Append { from, .. } = &mut op {
                    halve(from);
                }
                if let FsOp::Sieve { parts, offset, .. } = &op {
                    // What a file system without room says of the first half of the parts.
                    let (at, _) = parts[parts.len() / 2];
                    let count = (at - offset) as usize;
                    return Submitted::Done(Ok(FsReply::Sieved { count, as_window: false }));
                }
            }
            Some(Fault::Hold) => {
                self.held.push((token, identity.clone(), op));
                self.held_changed();
                return Submitted::Pending;
            }
        }
        if let FsOp::Read { offset, into, .. } = &op
            && self.faults.is_damaged(*offset, into.iter().map(MemoryRef::len).sum())
        {
            return Submitted::Done(Err(Status::IO));
        }
        if let FsOp::Readdir { cookie, .. } = &mut op
            && self.faults.lock().endless.is_some()
        {
            *cookie = 0;
        }
        match self.storage.submit(token, identity, op) {
            Submitted::Done(result) => {
                self.note_opened(&result);
                let result = self.faults.told(result);
                if !self.late.remove(&token) {
                    return Submitted::Done(result);
                }
                self.late_results.push((token, result));
                self.held_changed();
                Submitted::Pending
            }
            other => other,
        }
    }

    fn flush(&mut self) {
        self.storage.flush();
    }

    fn tidy(&mut self) -> bool {
        self.faults.lock().workers[self.worker].closed = 0;
        self.storage.tidy()
    }

    fn for_client(&mut self, client: u64) {
        self.faults.lock().workers[self.worker].client = Some(client);
        self.storage.for_client(client);
    }

    fn poll(&mut self, done: &mut Vec<(OpToken, FsResult)>) {
        let known = done.len();
        let mut drained = [0; 64];
        while matches!(self.woken.read(&mut drained), Ok(count) if count > 0) {}
        if !self.held.is_empty() && self.faults.lock().released {
            for (token, identity, op) in std::mem::take(&mut self.held) {
                if let Submitted::Done(result) = self.storage.submit(token, &identity, op) {
                    done.push((token, result));
                }
            }
            self.held_changed();
            self.storage.flush();
        }
        self.storage.poll(done);
        for (_, result) in &mut done[known..] {
            self.note_opened(result);
            let real = std::mem::replace(result, Ok(FsReply::Done));
            *result = self.faults.told(real);
        }
        let late = done.extract_if(known.., |(token, _)| self.late.remove(token));
        self.late_results.extend(late);
        if self.faults.lock().released {
            done.append(&mut self.late_results);
        }
        self.held_changed();
    }

    fn pending(&self) -> usize {
        self.storage.pending() + self.held.len() + self.late_results.len()
    }

    fn close(&mut self, node: NodeId) {
        let mut inside = self.faults.lock();
        if inside.nodes.remove(&(self.worker, node)).is_none() {
            inside.strays.push(node);
        }
        let worker = &mut inside.workers[self.worker];
        worker.closed += 1;
        worker.closed_max = worker.closed_max.max(worker.closed);
        drop(inside);
        self.storage.close(node);
    }

    fn share(&self, node: NodeId) -> Result<SharedFile, Status> {
        let opened = self.faults.lock().nodes.get(&(self.worker, node)).cloned().ok_or(Status::BAD_HANDLE)?;
        Ok(Arc::new(SharedOpened { file: self.storage.share(node)?, opened }))
    }

    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status> {
        self.storage.lock_key(node)
    }

    fn local_locks(&self, node: NodeId) -> Result<Box<dyn LocalLocks>, Status> {
        self.storage.local_locks(node)
    }

    fn adopt(&mut self, export: ExportId, file: &SharedFile) -> Result<NodeId, Status> {
        let shared = file.downcast_ref::<SharedOpened>().ok_or(Status::BAD_HANDLE)?;
        let node = self.storage.adopt(export, &shared.file)?;
        self.faults.lock().nodes.insert((self.worker, node), Arc::clone(&shared.opened));
        Ok(node)
    }

    fn event_fds(&self) -> Vec<RawFd> {
        let mut fds = self.storage.event_fds();
        fds.push(self.woken.as_raw_fd());
        fds
    }

    fn verifier(&self, export: ExportId) -> u64 {
        self.storage.verifier(export).wrapping_add(self.faults.lock().lost)
    }
}

fn claimed(mut attributes: Attributes, size: Option<u64>, nameless: bool) -> Attributes {
    if let Some(size) = size
        && attributes.kind == FileKind::File
        && attributes.size > 0
    {
        (attributes.size, attributes.allocated) = (size, size);
    }
    if nameless {
        attributes.generation = 0;
    }
    attributes
}

fn kind(op: &FsOp) -> Kind {
    match op {
        FsOp::Read { .. } => Kind::Read,
        FsOp::Write { .. } | FsOp::Sieve { .. } => Kind::Write,
        FsOp::Append { .. } => Kind::Append,
        FsOp::Commit { .. } => Kind::Commit,
        FsOp::Readdir { .. } => Kind::Readdir,
        FsOp::Mkdir { .. } => Kind::Mkdir,
        FsOp::Open { .. } => Kind::Open,
        FsOp::Hint { .. } => Kind::Hint,
        _ => Kind::Other,
    }
}

/// Keeps the first half of the bytes, one at least.
fn halve(from: &mut Vec<MemoryRef>) {
    let len: usize = from.iter().map(MemoryRef::len).sum();
    let mut left = len.div_ceil(2);
    from.retain_mut(|part| {
        let keep = left.min(part.len());
        left -= keep;
        if keep > 0 && keep < part.len() {
            *part = part.slice(0, keep).expect("a part of it");
        }
        keep > 0
    });
}
