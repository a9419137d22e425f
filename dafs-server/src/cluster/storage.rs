//! The storage of a server of a cluster. Operations whose repetition would do harm wait until their intent is written down. What a server
//! may do alone with a file, and not beside others, is left out.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use dafs_proto::transport::util::lock;
use dafs_proto::transport::{LocalSegments, OpToken, Span};
use dafs_proto::wire::{OpenFlags, Stability, Status, XattrSetMode, encode_message_pack};

use super::Cluster;
use super::intents::{Named, Ticket, What, Wish};
use super::opens::OpenGuard;
use super::opens::admission::OpenAdmission;
use super::records::Reply;
use crate::storage::{
    Admission, At, ExportId, FileName, FsOp, FsReply, FsResult, HandedFile, Identity, LocalLocks, LockKey,
    NodeId, NowError, RequestName, SharedFile, Storage, Submitted, Wake,
};

/// What other threads have to say, until the loop asks.
struct Answers {
    wake: Wake,
    /// Intents that were written, or not.
    answers: Mutex<Vec<(OpToken, Result<Ticket, Status>)>>,
    /// Operations that have failed, on file systems that are there.
    confirmed: Mutex<Vec<OpToken>>,
    /// Opens that the store was asked for.
    opened: Mutex<Vec<(OpToken, Result<OpenGuard, Status>)>>,
}

/// How a file is opened.
struct Opening {
    identity: Identity,
    client: u64,
    at: At,
    flags: OpenFlags,
    mode: u32,
    admission: Arc<OpenAdmission>,
}

impl Opening {
    fn op(&self) -> FsOp {
        let admission: Arc<dyn Admission> = Arc::clone(&self.admission) as _;
        FsOp::Open { at: self.at.clone(), flags: self.flags, mode: self.mode, admission: Some(admission) }
    }
}

/// An open of a file that the store is asked for, and what is answered where it is granted; it is tried again where that is not known yet.
struct Asked {
    opening: Opening,
    file: FileName,
    reply: Option<FsReply>,
}

/// See the module.
pub(crate) struct ClusterStorage {
    inner: Box<dyn Storage>,
    cluster: Arc<Cluster>,
    answers: Arc<Answers>,
    /// They wait for their intents.
    waiting: HashMap<OpToken, (Identity, FsOp, u64)>,
    /// They are carried out.
    executing: HashMap<OpToken, Ticket>,
    /// They change a file that other hosts keep, and are answered when that is durable.
    to_sync: HashMap<OpToken, (Identity, NodeId, Stability)>,
    /// They are being made durable; what they are answered then.
    syncing: HashMap<OpToken, FsReply>,
    /// They have failed, and it is not known yet whether their file system is there at all.
    failed: HashMap<OpToken, Status>,
    /// They open files.
    openings: HashMap<OpToken, Opening>,
    /// The store is asked whether they may.
    asked: HashMap<OpToken, Asked>,
    request: Option<RequestName>,
    client: u64,
    /// What verifiers were at the start: from there on they count losses.
    verifiers: Vec<u64>,
}

impl ClusterStorage {
    /// Around a storage.
    pub(crate) fn new(inner: Box<dyn Storage>, cluster: Arc<Cluster>) -> std::io::Result<Self> {
        let verifiers = (0..cluster.exports()).map(|export| inner.verifier(ExportId(export))).collect();
        let answers = Arc::new(Answers {
            wake: Wake::new()?,
            answers: Mutex::default(),
            confirmed: Mutex::default(),
            opened: Mutex::default(),
        });
        Ok(Self {
            inner,
            cluster,
            answers,
            waiting: HashMap::new(),
            executing: HashMap::new(),
            to_sync: HashMap::new(),
            syncing: HashMap::new(),
            failed: HashMap::new(),
            openings: HashMap::new(),
            asked: HashMap::new(),
            request: None,
            client: 0,
            verifiers,
        })
    }

    fn writes_through(&self, export: ExportId) -> bool {
        self.cluster.writes_through(usize::from(export.0))
    }

    fn named(&self, at: &At) -> Result<Named, Status> {
        Ok(Named { node: self.inner.share(at.node)?, path: at.path.clone() })
    }

    /// What is to be written down before an operation, and in which export.
    fn what(&self, op: &FsOp) -> Result<Option<(ExportId, What)>, Status> {
        let made = OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
        Ok(Some(match op {
            FsOp::Append { node, from, .. } => {
                let at = At { node: *node, path: Vec::new() };
                (node.export, What::Append(self.named(&at)?, from.clone()))
            }
            FsOp::Open { at, flags, .. } if flags.contains(made) => {
                (at.node.export, What::Make(self.named(at)?))
            }
            FsOp::Mkdir { at, .. } | FsOp::Mknod { at, .. } | FsOp::Symlink { at, .. } => {
                (at.node.export, What::Make(self.named(at)?))
            }
            FsOp::Remove { at, directory } => (at.node.export, What::Remove(self.named(at)?, *directory)),
            FsOp::Rename { from, to, .. } => {
                (from.node.export, What::Rename(self.named(from)?, self.named(to)?))
            }
            FsOp::Exchange { from, to } => {
                (from.node.export, What::Exchange(self.named(from)?, self.named(to)?))
            }
            FsOp::Link { from, to, replace } => {
                (from.node.export, What::Link(self.named(from)?, self.named(to)?, *replace))
            }
            FsOp::XattrWrite { at, mode: XattrSetMode::Create | XattrSetMode::Replace, .. }
            | FsOp::XattrRemove { at, .. } => (at.node.export, What::Other),
            _ => return Ok(None),
        }))
    }

    fn begin(
        &mut self,
        token: OpToken,
        identity: &Identity,
        op: FsOp,
        request: RequestName,
        what: (ExportId, What),
    ) {
        let answers = Arc::clone(&self.answers);
        let tell = Box::new(move |answer| {
            lock(&answers.answers).push((token, answer));
            answers.wake.raise();
        });
        let (export, what) = (usize::from(what.0.0), what.1);
        self.waiting.insert(token, (identity.clone(), op, self.client));
        self.cluster.intents.begin(Wish { request, export, what, tell, waited: std::time::Duration::ZERO });
    }

    /// An intent is written: the operation is carried out. Returns its result if that is known at once.
    fn on_intent(&mut self, token: OpToken, answer: Result<Ticket, Status>) -> Option<FsResult> {
        let (identity, op, client) = self.waiting.remove(&token)?;
        let ticket = match answer {
            Ok(ticket) => ticket,
            Err(status) => {
                self.openings.remove(&token);
                return self.on_failure(token, status);
            }
        };
        let op = match op {
            FsOp::Append { node, from, stability } => {
                FsOp::Write { node, offset: ticket.offset, from, stability: self.stability(node, stability) }
            }
            op => op,
        };
        self.executing.insert(token, ticket);
        self.inner.for_client(client);
        self.submit_below(token, &identity, op)
    }

    /// Returns what an operation that has failed is answered, if that is known at once.
    fn on_failure(&mut self, token: OpToken, status: Status) -> Option<FsResult> {
        if !self.cluster.has_remote_exports() {
            return Some(self.on_end(token, Err(status)));
        }
        self.failed.insert(token, status);
        let answers = Arc::clone(&self.answers);
        self.cluster.confirm_files(Box::new(move |()| {
            lock(&answers.confirmed).push(token);
            answers.wake.raise();
        }));
        None
    }

    /// The storage below has answered. Returns what the operation is answered, if nothing is left to be done.
    fn on_result(&mut self, token: OpToken, result: FsResult) -> Option<FsResult> {
        if let Some(opening) = self.openings.remove(&token)
            && matches!(result, Ok(FsReply::Node(..)) | Err(Status::SHARE_DENIED))
            && let Some(file) = opening.admission.take_wanted()
        {
            self.ask_for(token, opening, file, result);
            return None;
        }
        if let Err(status) = result {
            self.syncing.remove(&token);
            self.to_sync.remove(&token);
            return self.on_failure(token, status);
        }
        if let Some(reply) = self.syncing.remove(&token) {
            return Some(result.map(|_| reply));
        }
        match (self.to_sync.remove(&token), result) {
            (Some((identity, node, stability)), Ok(reply)) => {
                self.syncing.insert(token, reply);
                let (offset, len) = (0, 0);
                self.submit_below(token, &identity, FsOp::Commit { node, offset, len, stability })
            }
            (_, result) => Some(self.on_end(token, result)),
        }
    }

    /// Has the open of a file counted by the store: it is open, or is to be opened again.
    fn ask_for(&mut self, token: OpToken, opening: Opening, file: FileName, result: FsResult) {
        let reply = match result {
            Ok(_) => self.on_end(token, result).ok(),
            Err(_) => None,
        };
        let answers = Arc::clone(&self.answers);
        let tell = Box::new(move |opened| {
            lock(&answers.opened).push((token, opened));
            answers.wake.raise();
        });
        let (session, flags) = (opening.admission.session, opening.admission.flags);
        self.asked.insert(token, Asked { opening, file, reply });
        self.cluster.core.ask_open(file, session, flags, tell);
    }

    /// The store has answered. Returns what the open is answered, if that is known.
    fn on_opened(&mut self, token: OpToken, opened: Result<OpenGuard, Status>) -> Option<FsResult> {
        let Asked { opening, file, reply } = self.asked.remove(&token)?;
        match (opened, reply) {
            (Ok(guard), reply) => {
                opening.admission.grant(file, guard);
                if let Some(reply) = reply {
                    return Some(Ok(reply));
                }
                let (identity, op) = (opening.identity.clone(), opening.op());
                self.inner.for_client(opening.client);
                self.openings.insert(token, opening);
                self.submit_below(token, &identity, op)
            }
            (Err(status), reply) => {
                if let Some(FsReply::Node(node, _)) = reply {
                    self.inner.close(node);
                }
                Some(Err(status))
            }
        }
    }

    /// An open is asked of the cluster too when it is known which file it is of.
    fn with_admission(
        &mut self,
        token: OpToken,
        identity: &Identity,
        op: FsOp,
        request: Option<&RequestName>,
    ) -> FsOp {
        let (at, flags, mode, inner, session) = match (op, request) {
            (FsOp::Open { at, flags, mode, admission: Some(inner) }, Some(request)) => {
                (at, flags, mode, inner, request.session)
            }
            (op, _) => return op,
        };
        let admission = Arc::new(OpenAdmission::new(&self.cluster.core, session, flags, inner));
        let (identity, client) = (identity.clone(), self.client);
        let opening = Opening { identity, client, at, flags, mode, admission };
        let op = opening.op();
        self.openings.insert(token, opening);
        op
    }

    /// An operation has ended: what came of it is written down, later than it is answered.
    fn on_end(&mut self, token: OpToken, result: FsResult) -> FsResult {
        let Some(ticket) = self.executing.remove(&token) else { return result };
        let (offset, len) = (ticket.offset, ticket.len);
        let (result, reply) = match result {
            Ok(FsReply::Count(count)) => {
                let whole = count as u64 == len;
                let reply = Reply::of(Status::OK.value(), offset, &[]);
                (Ok(FsReply::Appended(offset, count)), whole.then_some(reply))
            }
            Ok(FsReply::Attributes(attributes)) => {
                let reply = Reply::of(Status::OK.value(), 0, &encode_message_pack(&attributes));
                (Ok(FsReply::Attributes(attributes)), Some(reply))
            }
            Ok(other) => (Ok(other), Some(Reply::of(Status::OK.value(), 0, &[]))),
            Err(status) => (Err(status), None),
        };
        self.cluster.intents.end(ticket, reply);
        result
    }

    /// What changes a file and does not say how durable that is to be, where it has to be durable at once.
    fn to_sync(&self, op: &FsOp) -> Option<(NodeId, Stability)> {
        let (node, stability) = match op {
            FsOp::Sieve { node, .. } => (*node, Stability::DataSync),
            FsOp::Truncate { node, .. }
            | FsOp::Allocate { node, .. }
            | FsOp::Punch { node, .. }
            | FsOp::CopyRange { node, .. } => (*node, Stability::FileSync),
            _ => return None,
        };
        self.writes_through(node.export).then_some((node, stability))
    }

    /// Gives an operation to the storage below. Returns its result if that is known at once.
    fn submit_below(&mut self, token: OpToken, identity: &Identity, op: FsOp) -> Option<FsResult> {
        if let Some((node, stability)) = self.to_sync(&op) {
            self.to_sync.insert(token, (identity.clone(), node, stability));
        }
        match self.inner.submit(token, identity, op) {
            Submitted::Done(result) => self.on_result(token, result),
            Submitted::Pending => None,
        }
    }

    /// How durable a write is made that asks for `stability`.
    pub(super) fn stability(&self, node: NodeId, stability: Stability) -> Stability {
        match stability {
            Stability::Unstable if self.writes_through(node.export) => Stability::DataSync,
            stability => stability,
        }
    }
}

impl Storage for ClusterStorage {
    fn export(&self, name: &str) -> Option<ExportId> {
        self.inner.export(name)
    }

    fn root(&self, export: ExportId) -> NodeId {
        self.inner.root(export)
    }

    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
        self.inner.read_now(node, offset, into)
    }

    fn read_pieces<'a>(
        &mut self,
        node: NodeId,
        total: usize,
        piece: &dyn Fn(usize) -> Option<(u64, Span<'a>)>,
    ) -> usize {
        self.inner.read_pieces(node, total, piece)
    }

    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError> {
        match self.writes_through(node.export) {
            true => Err(NowError::WouldBlock),
            false => self.inner.write_now(node, offset, from),
        }
    }

    fn map(&mut self, node: NodeId, offset: u64, len: usize, parts_max: usize) -> LocalSegments {
        self.inner.map(node, offset, len, parts_max)
    }

    fn submit(&mut self, token: OpToken, identity: &Identity, op: FsOp) -> Submitted {
        let request = self.request.take();
        let op = self.with_admission(token, identity, op, request.as_ref());
        match (self.what(&op), request) {
            (Err(status), _) => {
                self.openings.remove(&token);
                Submitted::Done(Err(status))
            }
            (Ok(Some(what)), Some(request)) => {
                self.begin(token, identity, op, request, what);
                Submitted::Pending
            }
            (Ok(_), _) => {
                let op = match op {
                    FsOp::Write { node, offset, from, stability } => {
                        FsOp::Write { node, offset, from, stability: self.stability(node, stability) }
                    }
                    op => op,
                };
                self.submit_below(token, identity, op).map_or(Submitted::Pending, Submitted::Done)
            }
        }
    }

    fn for_request(&mut self, request: RequestName) {
        self.request = Some(request);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn watch(&mut self, watched: bool) {
        self.inner.watch(watched);
    }

    fn tidy(&mut self) -> bool {
        self.inner.tidy()
    }

    fn for_client(&mut self, client: u64) {
        self.client = client;
        self.inner.for_client(client);
    }

    fn set_turn(&mut self, ops_max: usize) {
        self.inner.set_turn(ops_max);
    }

    fn poll(&mut self, done: &mut Vec<(OpToken, FsResult)>) {
        let first = done.len();
        self.inner.poll(done);
        let mut found: Vec<_> = done.drain(first..).collect();
        for (token, result) in found.drain(..) {
            if let Some(result) = self.on_result(token, result) {
                done.push((token, result));
            }
        }
        if self.answers.wake.lower() {
            let answers = std::mem::take(&mut *lock(&self.answers.answers));
            for (token, answer) in answers {
                if let Some(result) = self.on_intent(token, answer) {
                    done.push((token, result));
                }
            }
            let opened = std::mem::take(&mut *lock(&self.answers.opened));
            for (token, answer) in opened {
                if let Some(result) = self.on_opened(token, answer) {
                    done.push((token, result));
                }
            }
            let confirmed = std::mem::take(&mut *lock(&self.answers.confirmed));
            for token in confirmed {
                if let Some(status) = self.failed.remove(&token) {
                    done.push((token, self.on_end(token, Err(status))));
                }
            }
            self.inner.flush();
        }
    }

    fn pending(&self) -> usize {
        self.inner.pending() + self.waiting.len() + self.failed.len() + self.asked.len()
    }

    fn close(&mut self, node: NodeId) {
        self.inner.close(node);
    }

    fn share(&self, node: NodeId) -> Result<SharedFile, Status> {
        self.inner.share(node)
    }

    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status> {
        self.inner.lock_key(node)
    }

    fn local_locks(&self, node: NodeId) -> Result<Box<dyn LocalLocks>, Status> {
        self.inner.local_locks(node)
    }

    fn hand_over(&self, _: NodeId) -> Result<HandedFile, Status> {
        Err(Status::NOT_SUPPORTED)
    }

    fn adopt(&mut self, export: ExportId, file: &SharedFile) -> Result<NodeId, Status> {
        self.inner.adopt(export, file)
    }

    fn is_absent(&self, node: NodeId, offset: u64, len: u64) -> bool {
        self.inner.is_absent(node, offset, len)
    }

    fn is_direct(&self, node: NodeId) -> bool {
        self.inner.is_direct(node)
    }

    fn event_fds(&self) -> Vec<RawFd> {
        let mut fds = self.inner.event_fds();
        fds.push(self.answers.wake.raw_fd());
        fds
    }

    fn verifier(&self, export: ExportId) -> u64 {
        let index = usize::from(export.0);
        let losses =
            self.verifiers.get(index).map_or(0, |first| self.inner.verifier(export).wrapping_sub(*first));
        self.cluster.verifier(index).wrapping_add(losses)
    }
}
