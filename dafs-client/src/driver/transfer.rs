//! From what a caller wants moved to an operation: the path is decided here, and memory is registered.

use std::sync::Arc;

use dafs_proto::extent::Extent;
use dafs_proto::transport::{MemoryRef, RemoteRange};
use dafs_proto::wire::{Explanation, Features, Opcode, Sieve};
use smallvec::SmallVec;

use crate::driver::fast_path::{Attempt, Single, Wish};
use crate::driver::pending::{Finish, Moved, Pending};
use crate::driver::{EndOnUnwind, Owner, SharedSession};
use crate::engine::choice::Question;
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::handle::node::Node;
use crate::memory::registration::{Hold, Loan, RegistrationPolicy};
use crate::memory::{BounceBuffers, Keep, RawMemory, RegisteredBuf, tell_of_refusal};
use crate::method::io_path::{
    Circumstances, Direction, Form, IoPath, MethodOverride, Pieces, Registration, decide,
};
use crate::method::learned::Trial;
use crate::method::noncontiguous::{Noncontiguous, open_choice};
use crate::op::Op;
use crate::op::explain::Explanations;
use crate::op::list::{FilePart, List, places};
use crate::op::parts::trim;
use crate::op::transfer::{Transfer, TransferKind};

/// Whose memory a transfer uses.
pub(crate) enum Memory {
    /// What the operation keeps.
    Kept,
    /// The caller's, ordinary.
    Raw(SmallVec<[RawMemory; 1]>),
    /// Parts of registered buffers; `None` where one is not registered here.
    RegisteredParts(SmallVec<[RawMemory; 1]>, Option<SmallVec<[RemoteRange; 1]>>),
}

/// The same, looked up.
struct Lent {
    memory: SmallVec<[RawMemory; 1]>,
    /// Where the server reaches each piece, if all are registered.
    ranges: Option<SmallVec<[RemoteRange; 1]>>,
    /// As one that is registered for good.
    whole: Option<MemoryRef>,
}

/// What is to be moved.
pub(crate) struct TransferParts {
    pub(crate) kind: TransferKind,
    pub(crate) part: FilePart,
    pub(crate) memory: Memory,
    pub(crate) keep: Keep,
    /// Of the file.
    pub(crate) policy: RegistrationPolicy,
    /// Of the file: for a list.
    pub(crate) sieve: Sieve,
    /// Of the file: who wants to know how a list is moved.
    pub(crate) explanations: Option<Arc<Explanations>>,
}

/// A read or write, of one extent and memory in one piece, whose caller waits.
pub(crate) struct Contiguous<'a> {
    pub(crate) kind: TransferKind,
    pub(crate) offset: u64,
    pub(crate) memory: RawMemory,
    /// Whose memory it is, if it is registered.
    pub(crate) buffer: Option<&'a RegisteredBuf>,
    /// Of the file.
    pub(crate) policy: RegistrationPolicy,
}

impl SharedSession {
    /// Runs a transfer of memory in one piece to its end; bytes moved. When the session ends meanwhile, so do registrations of the
    /// memory. Blocks.
    #[inline]
    pub(crate) fn run_contiguous(&self, node: &Arc<Node>, asked: &Contiguous<'_>) -> Result<usize> {
        let Contiguous { kind, offset, memory, buffer, policy } = *asked;
        self.check_home()?;
        check_extent(offset, memory.len())?;
        let (range, loan) = match buffer {
            Some(buffer) => (Some(buffer.range_in(&self.domain).ok_or_else(not_registered_here)?), None),
            None => {
                let loan = self.registrar.lend(&memory, kind.access(), policy);
                (loan.as_ref().and_then(|loan| loan.range_of(&memory)), loan)
            }
        };
        let unwinding = EndOnUnwind { shared: self };
        let mut core = self.lock();
        let registration = registration(range.is_some());
        let question = Question { kind, size: memory.len() as u64, registration, policy, blocking: true };
        let mut circumstances = core.circumstances(&self.config, &question);
        let trial = core.refined.choose(&mut circumstances, true);
        let began = trial.map(|trial| (trial, self.clock.now()));
        let path = decide(&circumstances).path;
        let single = Single { wish: Wish::Move(kind), node: Some(node), offset, memory, range, path };
        let outcome = match self.attempt(core, &single) {
            Attempt::Done(count) => {
                self.send_closes_left();
                Ok(count)
            }
            attempt => self.run_generally(node, asked, &single, loan, attempt),
        };
        if let (Some((trial, began)), Ok(count)) = (began, &outcome)
            && *count == memory.len()
        {
            let time = self.clock.now().since(began);
            self.lock().refined.record(trial, *count, time);
        }
        std::mem::forget(unwinding);
        outcome
    }

    /// What is not done by one request on the fast path.
    fn run_generally(
        &self,
        node: &Arc<Node>,
        asked: &Contiguous<'_>,
        single: &Single<'_>,
        loan: Option<Loan>,
        attempt: Attempt<'_>,
    ) -> Result<usize> {
        let mut transfer = single.transfer(asked.kind);
        transfer.holds.extend(loan.map(Hold::Loan));
        transfer.registered = asked.buffer.and_then(RegisteredBuf::memory);
        let op = |transfer| Op::moving(asked.kind.opcode(), Arc::clone(node), transfer);
        let mut was_alive = true;
        let op = match attempt {
            Attempt::Done(count) => return Ok(count),
            Attempt::InFlight(core, sent, came) => self.end_generally(core, op(transfer), (sent, came)),
            Attempt::NotBegun(mut core) => {
                was_alive = core.dead.is_none();
                self.complete(&mut core, &mut transfer, asked.policy)?;
                self.run_locked(core, op(transfer))
            }
        };
        if let (Some(_), Some(buffer)) = (&op.error, asked.buffer)
            && was_alive
            && self.lock().dead.is_some()
        {
            buffer.revoke();
        }
        Moved::of(op).outcome()
    }

    /// Runs a transfer to its end. Blocks.
    pub(crate) fn run_transfer(&self, node: Arc<Node>, parts: TransferParts) -> Result<Op> {
        let mut core = self.lock();
        let op = self.transfer(&mut core, node, parts, true).map_err(|(error, _)| error)?;
        let Some(trial) = op.transfer().and_then(|transfer| transfer.trial) else {
            return Ok(self.run_locked(core, op));
        };
        let began = self.clock.now();
        let op = self.run_locked(core, op);
        let moved = op.transfer().filter(|transfer| op.error.is_none() && transfer.count() == transfer.len);
        if let Some(transfer) = moved {
            let time = self.clock.now().since(began);
            self.lock().learned.record(trial, transfer.len, time);
        }
        Ok(op)
    }

    /// Builds the operation. With an error what the operation would have kept comes back.
    fn transfer(
        &self,
        core: &mut Core,
        node: Arc<Node>,
        mut parts: TransferParts,
        blocking: bool,
    ) -> std::result::Result<Op, (Error, Keep)> {
        let mut keep = std::mem::replace(&mut parts.keep, Keep::None);
        if let Err(error) = self.check_home() {
            return Err((error, keep));
        }
        match self.decided(core, parts, &mut keep, blocking) {
            Ok((opcode, transfer)) => Ok(Op::moving(opcode, node, Transfer { keep, ..transfer })),
            Err(error) => Err((error, keep)),
        }
    }

    /// The memory of a transfer, and where the server reaches it.
    fn lent(&self, memory: Memory, keep: &mut Keep) -> Result<Lent> {
        let ordinary = |memory| Lent { memory, ranges: None, whole: None };
        match memory {
            Memory::Kept => {
                let memory = SmallVec::from_buf([keep.raw()]);
                let Keep::Registered(buffer) = keep else { return Ok(ordinary(memory)) };
                if !buffer.is_registered() {
                    return Ok(ordinary(memory));
                }
                let range = buffer.range_in(&self.domain).ok_or_else(not_registered_here)?;
                Ok(Lent { memory, ranges: Some(SmallVec::from_buf([range])), whole: buffer.memory() })
            }
            Memory::Raw(mut memory) => {
                // What has no bytes may lie anywhere: it is not registered.
                memory.retain(|piece| piece.len() > 0);
                Ok(ordinary(memory))
            }
            Memory::RegisteredParts(memory, ranges) => {
                let ranges = Some(ranges.ok_or_else(not_registered_here)?);
                let whole = match (&*memory, keep) {
                    ([part], Keep::Registered(buffer)) => buffer.memory_of(part),
                    _ => None,
                };
                Ok(Lent { memory, ranges, whole })
            }
        }
    }

    /// The transfer of memory that the operation will keep, or that the caller lends.
    fn decided(
        &self,
        core: &mut Core,
        parts: TransferParts,
        keep: &mut Keep,
        blocking: bool,
    ) -> Result<(Opcode, Transfer)> {
        let TransferParts { kind, part, policy, sieve, explanations, .. } = parts;
        let Lent { memory, mut ranges, whole } = self.lent(parts.memory, keep)?;
        let mut holds = SmallVec::new();
        if let ([single], None) = (&*memory, &ranges)
            && let Some(loan) = self.registrar.lend(single, kind.access(), policy)
        {
            ranges = loan.range_of(single).map(|range| SmallVec::from_buf([range]));
            holds.push(Hold::Loan(loan));
        }
        let len = total_len(&memory).ok_or_else(|| {
            Error::Invalid("the buffers of a transfer are larger than the address space".into())
        })?;
        let (mut list, offset) = List::of_part(part, len)?;
        let mut opcode = kind.opcode();
        if let Some(list) = &mut list {
            list.sieve = sieve;
            let may_ask = core.terms.has(Features::EXPLAIN);
            list.explanations = explanations.filter(|_| may_ask);
            opcode = list.opcode(kind);
        }
        check_extent(offset, len)?;
        let registration = registration(ranges.is_some());
        // The explanation needs room in a reply that carries the data.
        let is_explained = list.as_ref().is_some_and(|list| list.explanations.is_some());
        let explained_size = if is_explained { Explanation::SIZE as u64 } else { 0 };
        let size = len as u64 + explained_size;
        let question = Question { kind, size, registration, policy, blocking };
        let mut circumstances = core.circumstances(&self.config, &question);
        let sieved = self.form(core, &question, (offset, memory.len()), &mut list, &mut circumstances);
        let trial = trial(core, &mut circumstances, blocking);
        core.refined.choose(&mut circumstances, false);
        let path = decide(&circumstances).path;
        let mut transfer = Transfer {
            list,
            sieved,
            holds,
            registered: whole,
            trial,
            ..Transfer::new(kind, path, offset, memory, ranges.unwrap_or_default())
        };
        if let (TransferKind::Readdir { .. }, IoPath::Inline) = (kind, path) {
            // One request, as far as a message reaches.
            transfer.len = transfer.len.min(core.terms.read_inline_max as usize);
        }
        self.complete(core, &mut transfer, policy)?;
        Ok((opcode, transfer))
    }

    /// What a list, or memory in `pieces`, makes of the circumstances. Returns the bytes that a list is read with, gaps and all, or 0.
    fn form(
        &self,
        core: &mut Core,
        question: &Question,
        (offset, pieces): (u64, usize),
        list: &mut Option<Box<List>>,
        c: &mut Circumstances,
    ) -> usize {
        let method = self.config.noncontiguous;
        let is_auto = self.config.method == MethodOverride::Auto;
        let is_plain = matches!(question.kind, TransferKind::Read | TransferKind::Write(_));
        let in_pieces = pieces > 1 && is_auto && is_plain;
        let each_piece = in_pieces && method == Noncontiguous::Multiple;
        // Packing is copying.
        let may_pack = method != Noncontiguous::Auto || question.policy == RegistrationPolicy::Library;
        if in_pieces && may_pack {
            let switches = core.terms.welcome.gather;
            c.form = Form::Pieces(Pieces { count: pieces, method, switches, learned: None });
        }
        if each_piece && list.is_none() {
            *list = Some(List::of_pieces(Extent::new(offset, question.size)));
        }
        let Some(list) = list else { return 0 };
        list.each_part |= each_piece || !core.terms.has(Features::LISTS);
        if c.direction == Direction::Write {
            // What describes a list leaves less room for data.
            let room = (core.terms.send_payload_max as usize).saturating_sub(list.described_size());
            c.inline_max = c.inline_max.min(u32::try_from(room).unwrap_or(u32::MAX));
        }
        // It is not cut to the size of eager buffers, and one request describes and plans it once.
        (c.has_eager_buffers, c.cuts_inline) = (false, false);
        let may_sieve = is_auto && may_pack && method == Noncontiguous::Auto && core.terms.bounce_overlaps;
        match list.dense_span().filter(|_| may_sieve && question.kind == TransferKind::Read) {
            Some(span) if core.can_stage_whole(&self.config, span) => {
                c.form = Form::Dense;
                span
            }
            _ => 0,
        }
    }

    /// Registers or bounces, falls back where that fails, and makes ready to be cut into requests.
    fn complete(&self, core: &mut Core, transfer: &mut Transfer, policy: RegistrationPolicy) -> Result<()> {
        let decided = transfer.path;
        // First, for the way may become another, of smaller requests.
        self.prepare(core, transfer, policy);
        cut_list(core, transfer);
        transfer.trial.take_if(|_| transfer.path != decided);
        check_undivided(core, transfer)
    }

    /// Registers or bounces, and falls back where that fails: inline always works.
    fn prepare(&self, core: &mut Core, transfer: &mut Transfer, policy: RegistrationPolicy) {
        if transfer.path == IoPath::DirectRegister {
            // Of one piece this looks for a kept registration once more: how durable a write is decides its way, and so whether it is kept.
            match self.registrar.register(&transfer.memory, transfer.kind.access(), policy) {
                Ok(registered) => {
                    transfer.ranges = registered.ranges;
                    transfer.holds = registered.holds;
                }
                Err(error) => {
                    tell_of_refusal(&error);
                    transfer.path = IoPath::Bounced;
                }
            }
        }
        if transfer.path == IoPath::Bounced && !core.ensure_bounce(&self.config) {
            transfer.path = IoPath::Inline;
        }
    }
}

/// Starts a transfer. Does not block.
pub(crate) fn submit_transfer<T>(
    owner: &Arc<Owner>,
    node: Arc<Node>,
    parts: TransferParts,
    finish: fn(Moved) -> T,
) -> Pending<T> {
    let shared = &owner.shared;
    let mut core = shared.lock();
    match shared.transfer(&mut core, node, parts, false) {
        Ok(op) => {
            let index = shared.submit_under(&mut core, op);
            Pending::new(owner, index, Finish::Moved(finish))
        }
        Err((error, keep)) => {
            drop(core);
            Pending::ready(finish(Moved::refused(keep, error)))
        }
    }
}

/// What this session has learned goes into the circumstances of memory in pieces; the trial that the transfer is.
fn trial(core: &mut Core, c: &mut Circumstances, blocking: bool) -> Option<Trial> {
    let Form::Pieces(pieces) = c.form else { return None };
    let prior = open_choice(c, &pieces)?;
    let kind = (c.direction, c.registration);
    let (gathers, trial) = core.learned.choose(kind, (c.size, pieces.count), prior, blocking);
    c.form = Form::Pieces(Pieces { learned: (gathers != prior).then_some(gathers), ..pieces });
    trial
}

/// Bytes of all pieces together; `None` where that is no number: pieces may overlap.
pub(crate) fn total_len(memory: &[RawMemory]) -> Option<usize> {
    memory.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len()))
}

/// Makes a list, or memory in many pieces, ready to be cut into requests, which the server may execute in any order. Where those of a write
/// may name a byte of the file twice, they go one after the other; of extents that are cut at once, what would be written over is taken out
/// instead. Even one that fits a request may be cut later, by the terms of another session.
fn cut_list(core: &Core, transfer: &mut Transfer) {
    let Some(mut list) = transfer.list.take() else {
        if transfer.memory.len() > core.terms.segments_max {
            transfer.starts = places(transfer.memory.iter().map(RawMemory::len));
        }
        return;
    };
    list.set_memory(transfer.memory.iter().map(RawMemory::len));
    transfer.in_order = transfer.direction() == Direction::Write && list.may_overlap();
    let is_shown = list.shown().is_some();
    transfer.list = Some(list);
    if !transfer.in_order || is_shown {
        return;
    }
    // Lists use no eager buffers.
    let len_max = core.terms.request_max(transfer.path, Direction::Write).unwrap_or(0);
    if trim(transfer, 0, transfer.len.min(len_max), core.terms.segments_max, &core.terms) == transfer.len {
        return;
    }
    let Some(mut list) = transfer.list.take() else { return };
    (transfer.memory, transfer.ranges) = list.take_out_overlaps(&transfer.memory, &transfer.ranges);
    list.set_memory(transfer.memory.iter().map(RawMemory::len));
    transfer.len = transfer.memory.iter().map(RawMemory::len).sum();
    transfer.in_order = false;
    transfer.list = Some(list);
}

fn not_registered_here() -> Error {
    let what =
        "the buffer is not registered with this session: it belongs to another, or to one that has ended";
    Error::Invalid(what.into())
}

fn registration(registered: bool) -> Registration {
    if registered { Registration::Registered } else { Registration::Ordinary }
}

/// File offsets are below 2⁶³, as in every file system.
#[inline]
pub(crate) fn check_extent(offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Error::Invalid(format!("bytes {offset}+{len} lie beyond the end of any file"))),
    }
}

/// An append and a readdir are one request: what does not fit cannot be cut.
fn check_undivided(core: &Core, transfer: &Transfer) -> Result<()> {
    let buffered = || match transfer.path {
        IoPath::Bounced => {
            let chunk = core.buffers.bounce.as_ref().map_or(0, BounceBuffers::chunk_size);
            chunk.min(core.terms.welcome.transfer_size_max as usize)
        }
        _ => core.eager_buffer_size(),
    };
    let limit = core.terms.request_max(transfer.path, transfer.direction()).unwrap_or_else(buffered);
    match transfer.kind {
        TransferKind::Append(_) if transfer.len > limit => Err(Error::Invalid(format!(
            "an append of {} bytes: at most {limit} can be written atomically here",
            transfer.len
        ))),
        TransferKind::Append(_) if transfer.memory.len() > core.terms.segments_max => {
            Err(Error::Invalid(format!("an append from more than {} buffers", core.terms.segments_max)))
        }
        _ => Ok(()),
    }
}
