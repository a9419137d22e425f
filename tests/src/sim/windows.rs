//! Windows that simulated storage rewrites in steps: it reads one, changes it, and writes it piece by piece. The server can die at each.

use std::collections::VecDeque;

use dafs_proto::transport::{MemoryRef, OpToken, Span};
use dafs_proto::wire::Stability;
use dafs_server::storage::{Exports, FsOp, FsReply, FsResult, Identity, NodeId, Storage, Submitted};

/// Bytes that one step writes. They are durable then, as if they were written back at once.
const PIECE: usize = 256;

/// The windows of all workers: one is rewritten at a time, and writers wait for it.
#[derive(Default)]
pub(super) struct Windows {
    /// Sieved writes are windows.
    pub(super) are_stepped: bool,
    underway: Option<Window>,
    waiting: VecDeque<(usize, OpToken, Identity, FsOp)>,
    steps: u64,
    /// At this step the server dies.
    pub(super) dies_at: Option<u64>,
    is_dead: bool,
}

struct Window {
    worker: usize,
    token: OpToken,
    identity: Identity,
    node: NodeId,
    offset: u64,
    parts: Vec<(u64, MemoryRef)>,
    bytes: Vec<u8>,
    next: Step,
}

#[derive(Clone, Copy)]
enum Step {
    Read,
    Change,
    /// So many bytes are written.
    Write(usize),
}

impl Windows {
    /// Writers have to wait.
    pub(super) fn are_underway(&self) -> bool {
        self.underway.is_some() || !self.waiting.is_empty()
    }

    /// What an operation does has to wait here; it is given back where not.
    pub(super) fn take(
        &mut self,
        worker: usize,
        token: OpToken,
        identity: &Identity,
        op: FsOp,
    ) -> Result<(), FsOp> {
        let is_window = self.are_stepped && matches!(op, FsOp::Sieve { .. });
        let changes = matches!(op, FsOp::Write { .. } | FsOp::Append { .. } | FsOp::Truncate { .. });
        let waits = is_window || self.are_underway() && changes;
        if !waits {
            return Err(op);
        }
        self.waiting.push_back((worker, token, identity.clone(), op));
        Ok(())
    }

    /// Does the next step, if it is this worker's; its operation that is over then.
    pub(super) fn step(&mut self, worker: usize, exports: &mut Exports) -> Option<(OpToken, FsResult)> {
        if self.is_dead {
            return None;
        }
        if self.underway.is_none() {
            self.waiting.front().filter(|(of, ..)| *of == worker)?;
            let (_, token, identity, op) = self.waiting.pop_front()?;
            let FsOp::Sieve { node, offset, len, parts } = op else {
                return done(token, exports.submit(token, &identity, op));
            };
            let (bytes, next) = (vec![0; len], Step::Read);
            self.underway = Some(Window { worker, token, identity, node, offset, parts, bytes, next });
        }
        let window = self.underway.as_mut().filter(|window| window.worker == worker)?;
        self.steps += 1;
        self.is_dead = self.dies_at == Some(self.steps);
        if self.is_dead {
            return None;
        }
        let ended = window.step(exports)?;
        let window = self.underway.take()?;
        done(window.token, ended)
    }

    /// Operations of a worker that are here.
    pub(super) fn pending(&self, worker: usize) -> usize {
        let waiting = self.waiting.iter().filter(|(of, ..)| *of == worker).count();
        waiting + usize::from(self.underway.as_ref().is_some_and(|window| window.worker == worker))
    }

    /// The server is to die now.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Steps that were done.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// The server died: what was underway is gone.
    pub(super) fn forget(&mut self) {
        (self.underway, self.is_dead, self.dies_at) = (None, false, None);
        self.waiting.clear();
    }
}

fn done(token: OpToken, submitted: Submitted) -> Option<(OpToken, FsResult)> {
    match submitted {
        Submitted::Done(result) => Some((token, result)),
        Submitted::Pending => panic!("memory does all at once"),
    }
}

impl Window {
    /// The next step; what came of the window, where that was the last.
    fn step(&mut self, exports: &mut Exports) -> Option<Submitted> {
        let (node, offset, len) = (self.node, self.offset, self.bytes.len());
        match self.next {
            Step::Read if exports.read_now(node, offset, &[Span::from_mut(&mut self.bytes)]) != Ok(len) => {
                // At the end of the file: part by part.
                let op = FsOp::Sieve { node, offset, len, parts: std::mem::take(&mut self.parts) };
                return Some(exports.submit(self.token, &self.identity, op));
            }
            Step::Read => self.next = Step::Change,
            Step::Change => {
                for (at, memory) in &self.parts {
                    let place = usize::try_from(at - offset).expect("a place in the window");
                    memory.span().read_into(0, &mut self.bytes[place..][..memory.len()]);
                }
                self.next = Step::Write(0);
            }
            Step::Write(written) => {
                let end = len.min(written + PIECE);
                let piece = Span::from_mut(&mut self.bytes[written..end]);
                let count = exports.write_now(node, offset + written as u64, &[piece]);
                assert_eq!(count, Ok(end - written), "memory has room");
                let commit = FsOp::Commit { node, offset: 0, len: 0, stability: Stability::FileSync };
                exports.submit(self.token, &self.identity, commit);
                self.next = Step::Write(end);
                return (end == len)
                    .then_some(Submitted::Done(Ok(FsReply::Sieved { count: len, as_window: true })));
            }
        }
        None
    }
}
