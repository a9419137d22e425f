//! One operation of the caller: what is asked, what memory takes part, what has come of it.

use std::sync::Arc;

use dafs_proto::session::Moment;
use dafs_proto::transport::{Head, LocalSegments, MemoryRef, RemoteRange, Span};
use dafs_proto::wire::{Header, Opcode, OpenFlags, Stability, Verifier};
use smallvec::SmallVec;

use crate::batch_work::BatchWork;
use crate::chain_work::ChainWork;
use crate::error::Error;
use crate::io_path::{Direction, IoPath};
use crate::learned::Trial;
use crate::list::{List, place_at};
use crate::memory::{Keep, RawMemory};
use crate::node::{Node, join};
use crate::registration::Hold;

/// Bytes of a body that is kept with its operation.
pub(crate) const BODY_MAX: usize = 32;

/// An operation, from submission until its result is collected.
pub(crate) struct Op {
    pub(crate) opcode: Opcode,
    /// Whose handle the requests carry.
    pub(crate) target: Option<Arc<Node>>,
    pub(crate) work: Work,
    /// When it ends with [`Error::TimedOut`].
    pub(crate) deadline: Option<Moment>,
    pub(crate) timeout_ms: u32,
    /// In the queue of operations with something to send.
    pub(crate) queued: bool,
    /// Requests sent and not answered.
    pub(crate) outstanding: u16,
    pub(crate) done: bool,
    /// Nobody collects the result.
    pub(crate) detached: bool,
    pub(crate) error: Option<Box<Error>>,
}

/// What an operation does.
#[allow(clippy::large_enum_variant, reason = "transfers are the fast path and are not allocated one by one")]
pub(crate) enum Work {
    /// One request, one reply.
    Named(Box<Named>),
    /// File data, or directory entries, in one or more requests.
    Data(Transfer),
    /// Requests that depend on each other.
    Chain(Box<ChainWork>),
    /// Reads and writes that do not depend on each other.
    Batch(Box<BatchWork>),
}

/// A request about names or ranges.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) body: [u8; BODY_MAX],
    pub(crate) body_len: usize,
    pub(crate) payload: Vec<u8>,
    /// Whose handle is written over the first 8 bytes of the body.
    pub(crate) second: Option<Arc<Node>>,
    /// For errors: the path below the target.
    pub(crate) path: Vec<u8>,
    /// Flags of an open: decide whether it can be sent again after a restart of the server.
    pub(crate) open_flags: Option<OpenFlags>,
    /// A handle of its own instead of the target's: closing.
    pub(crate) handle: Option<dafs_proto::wire::FileHandle>,
    pub(crate) sent: bool,
    pub(crate) reply: Option<NamedReply>,
}

impl Named {
    /// A request of this kind changes the size or the attributes of what it is about, and that is no path below it.
    pub(crate) fn changes_target(&self, opcode: Opcode) -> bool {
        use Opcode::{Allocate, Punch, Setattr, Truncate};
        matches!(opcode, Truncate | Allocate | Punch | Setattr) && self.path.is_empty()
    }
}

/// The reply to a [`Named`] request.
pub(crate) struct NamedReply {
    /// The session that answered ([`crate::core::Core::epoch`]): a handle in the reply means nothing in another.
    pub(crate) epoch: u64,
    /// The server that answered: another after it was restarted.
    pub(crate) server_epoch: u64,
    pub(crate) header: Header,
    pub(crate) head: Head,
    pub(crate) payload: Vec<u8>,
}

impl NamedReply {
    pub(crate) fn body(&self) -> &[u8] {
        self.head.as_bytes().get(dafs_proto::wire::HEADER_SIZE..).unwrap_or(&[])
    }
}

/// What a transfer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferKind {
    Read,
    Write(Stability),
    Append(Stability),
    Readdir { cookie: u64, attributes: bool },
}

/// Moves data, cut into requests that are in flight together.
pub(crate) struct Transfer {
    pub(crate) kind: TransferKind,
    pub(crate) path: IoPath,
    pub(crate) offset: u64,
    /// Instead of `offset`, where the transfer is a list.
    pub(crate) list: Option<Box<List>>,
    pub(crate) len: usize,
    /// Bytes cut into requests so far.
    pub(crate) cut: usize,
    /// All of the list is read with its gaps, so many bytes, into one staging buffer, and taken out of there; 0 where it is not.
    pub(crate) sieved: usize,
    /// Something was cut: an empty transfer is one request.
    pub(crate) begun: bool,
    /// Pieces that are sent again in a new session.
    pub(crate) redo: Vec<(usize, usize)>,
    /// Where the data ends: the end of the first piece that was short.
    pub(crate) short_at: usize,
    pub(crate) memory: SmallVec<[RawMemory; 1]>,
    /// Where each piece of the memory begins, when there are many and a list does not know it.
    pub(crate) starts: Vec<usize>,
    pub(crate) ranges: SmallVec<[RemoteRange; 1]>,
    pub(crate) holds: SmallVec<[Hold; 1]>,
    pub(crate) keep: Keep,
    /// The memory as one that is registered for good, where the caller's is.
    pub(crate) registered: Option<MemoryRef>,
    /// Where an append went; the cookie after a readdir.
    pub(crate) position: u64,
    /// A read reached the end of the file; a readdir the end of the directory.
    pub(crate) end: bool,
    pub(crate) verifier: Verifier,
    /// Data that still arrives is thrown away: its memory went back to the caller.
    pub(crate) discard: bool,
    /// Its time tells which method is the quicker.
    pub(crate) trial: Option<Trial>,
}

impl Op {
    pub(crate) fn new(opcode: Opcode, target: Option<Arc<Node>>, work: Work) -> Self {
        Self {
            opcode,
            target,
            work,
            deadline: None,
            timeout_ms: 0,
            queued: false,
            outstanding: 0,
            done: false,
            detached: false,
            error: None,
        }
    }

    pub(crate) fn named(opcode: Opcode, target: Option<Arc<Node>>, named: Named) -> Self {
        Self::new(opcode, target, Work::Named(Box::new(named)))
    }

    /// A file that it names is gone.
    pub(crate) fn is_stale(&self) -> bool {
        let second = match &self.work {
            Work::Named(named) => named.second.as_ref(),
            Work::Batch(batch) => batch.entries.iter().map(|entry| &entry.node).find(|node| node.is_stale()),
            Work::Data(_) | Work::Chain(_) => None,
        };
        self.target.iter().chain(second).any(|node| node.is_stale())
    }

    /// What a request for a piece of it asks.
    #[inline]
    pub(crate) fn request_opcode(&self, at: usize, len: usize) -> Opcode {
        match &self.work {
            Work::Data(Transfer { sieved: 1.., .. }) => Opcode::Read,
            Work::Data(Transfer { list: Some(list), kind, .. }) => match (kind, list.is_plain(at, len)) {
                (TransferKind::Write(_), true) => Opcode::Write,
                (_, true) => Opcode::Read,
                _ => self.opcode,
            },
            Work::Chain(chain) => chain.links.get(at).map_or(self.opcode, |link| link.opcode),
            _ => self.opcode,
        }
    }

    /// It has more to send.
    pub(crate) fn has_more(&self) -> bool {
        match &self.work {
            Work::Named(named) => !named.sent,
            Work::Data(transfer) => transfer.has_more(),
            Work::Chain(chain) => chain.sent < chain.links.len(),
            Work::Batch(batch) => batch.has_more(),
        }
    }

    /// Nothing more is sent for it.
    pub(crate) fn stop(&mut self) {
        match &mut self.work {
            Work::Named(named) => named.sent = true,
            Work::Data(transfer) => transfer.stop(),
            Work::Chain(chain) => chain.sent = chain.links.len(),
            Work::Batch(batch) => batch.stop(),
        }
    }

    /// A peer may be reading or writing its memory now, or it cannot be given up for another reason.
    pub(crate) fn peer_holds_memory(&self) -> bool {
        match &self.work {
            Work::Named(_) => false,
            Work::Batch(_) => self.outstanding > 0,
            // Nor is a chain left half sent: the server would wait for its end.
            Work::Chain(chain) => self.outstanding > 0 || chain.sent > 0,
            Work::Data(transfer) => {
                let by_rdma = matches!(
                    transfer.path,
                    IoPath::Direct | IoPath::DirectRegister | IoPath::Fast | IoPath::Client
                );
                self.outstanding > 0 && by_rdma
            }
        }
    }

    /// Ends remote access to its memory: the session is over.
    pub(crate) fn revoke_memory(&mut self) {
        if let Work::Data(transfer) = &mut self.work {
            transfer.holds.drain(..).for_each(Hold::revoke);
            if transfer.path == IoPath::Direct {
                transfer.keep.revoke();
            }
        }
        if let Work::Batch(batch) = &mut self.work {
            batch.revoke();
        }
    }

    /// The path it is about, below its export.
    pub(crate) fn path(&self) -> Vec<u8> {
        let base = self.target.as_ref().map_or(&[][..], |node| &node.path);
        match &self.work {
            Work::Named(named) => join(base, &named.path),
            Work::Data(_) | Work::Chain(_) | Work::Batch(_) => base.to_vec(),
        }
    }

    /// It may be sent again in a new session although it had been sent in the old one: executing it twice does no
    /// harm, or its only effect was on the session that is gone.
    pub(crate) fn can_repeat(&self) -> bool {
        let making = OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE;
        match (self.opcode, &self.work) {
            (_, Work::Chain(chain)) => chain.repeats(),
            (Opcode::Mount | Opcode::Lookup | Opcode::Close | Opcode::Share | Opcode::OpenToken, _) => true,
            (Opcode::Open, Work::Named(named)) => {
                named.open_flags.is_some_and(|flags| !flags.intersects(making))
            }
            _ => self.opcode.is_idempotent(),
        }
    }
}

impl Transfer {
    pub(crate) fn has_more(&self) -> bool {
        !self.redo.is_empty() || self.cut < self.len || !self.begun
    }

    pub(crate) fn stop(&mut self) {
        self.redo.clear();
        self.cut = self.len;
        self.begun = true;
    }

    pub(crate) fn direction(&self) -> Direction {
        match self.kind {
            TransferKind::Read | TransferKind::Readdir { .. } => Direction::Read,
            TransferKind::Write(_) | TransferKind::Append(_) => Direction::Write,
        }
    }

    /// The next piece of at most `max` bytes: where it begins and its length. Only after [`Transfer::has_more`].
    pub(crate) fn next_piece(&self, max: usize) -> (usize, usize) {
        match self.redo.last() {
            Some(&(at, len)) => (at, len.min(max)),
            None => (self.cut, (self.len - self.cut).min(max)),
        }
    }

    /// The piece that [`Transfer::next_piece`] named is on its way.
    pub(crate) fn on_piece_sent(&mut self, at: usize, len: usize) {
        self.begun = true;
        match self.redo.pop() {
            Some((_, whole)) if whole > len => self.redo.push((at + len, whole - len)),
            Some(_) => {}
            None => self.cut += len,
        }
    }

    /// A piece was answered with this many bytes.
    pub(crate) fn on_count(&mut self, at: usize, len: usize, count: usize) {
        if count < len {
            self.short_at = self.short_at.min(at + count);
            // What lies beyond the end need not be asked for.
            let follows_file = self.list.as_ref().is_none_or(|list| list.is_ascending());
            if self.direction() == Direction::Read && follows_file {
                self.stop();
            }
        }
    }

    /// Bytes of the file that a piece's request names.
    pub(crate) fn asked_len(&self, len: usize) -> usize {
        if self.sieved > 0 { self.sieved } else { len }
    }

    /// Bytes moved, counted from the beginning without a gap.
    pub(crate) fn count(&self) -> usize {
        let count = self.short_at.min(self.len);
        self.list.as_ref().map_or(count, |list| list.original_count(count, self.len))
    }

    /// Where the byte at a place lies in the file.
    pub(crate) fn offset_at(&self, at: usize) -> u64 {
        self.list.as_ref().map_or(self.offset + at as u64, |list| list.offset(at))
    }

    /// The memory of a piece, for RDMA that this side posts.
    pub(crate) fn local(&self, at: usize, len: usize) -> LocalSegments {
        match &self.registered {
            Some(memory) => memory.slice(at, len).into_iter().collect(),
            None => {
                let parts = self.parts(at, len);
                parts.filter_map(|(index, from, len)| self.memory[index].lend().slice(from, len)).collect()
            }
        }
    }

    /// Copies the memory of a piece out.
    pub(crate) fn gather(&self, at: usize, len: usize, into: Span<'_>) {
        let mut done = 0;
        for (index, from, part) in self.parts(at, len) {
            let source = self.memory[index].span();
            if let (Some(source), Some(into)) = (source.slice(from, part), into.slice(done, part)) {
                into.copy_from(source);
            }
            done += part;
        }
    }

    /// Parts of the memory that a piece covers: index, and bytes in it.
    pub(crate) fn parts(&self, at: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        // Memory may be in many pieces, and cut into many requests.
        let (first, mut start) = match &self.list {
            Some(list) => list.segment_at(at),
            None => place_at(&self.starts, at),
        };
        let end = at + len;
        let segments = self.memory.iter().enumerate().skip(first);
        segments
            .map(move |(index, memory)| {
                let begin = start;
                start += memory.len();
                (index, begin, start)
            })
            .take_while(move |(_, begin, _)| *begin < end)
            .filter_map(move |(index, begin, memory_end)| {
                let (from, to) = (begin.max(at), memory_end.min(end));
                (from < to).then(|| (index, from - begin, to - from))
            })
    }
}
