//! From what a caller wants moved to an operation: the path is decided here, and memory is registered.

use std::sync::Arc;

use dafs_proto::extent::Extent;
use dafs_proto::transport::{Access, MemoryRef, Provider, RemoteRange};
use dafs_proto::wire::{Features, Opcode, Stability, Verifier};
use smallvec::SmallVec;

use crate::config::Config;
use crate::driver::pending::{Finish, Pending};
use crate::driver::{Owner, Shared};
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::handle::node::Node;
use crate::memory::registration::{Hold, RegistrationPolicy};
use crate::memory::{Keep, RawMemory, Staging, tell_of_refusal, tell_once};
use crate::method::io_path::MethodOverride;
use crate::method::io_path::{Circumstances, Direction, IoPath, Registration, decide};
use crate::method::noncontiguous::{Noncontiguous, decide_hybrid, decide_noncontiguous};
use crate::op::list::{List, places};
use crate::op::pieces::trim;
use crate::op::transfer::{Transfer, TransferKind};
use crate::op::{Op, Work};

/// Whose memory a transfer uses.
pub(crate) enum Memory {
    /// What the operation keeps.
    Kept,
    /// The caller's, ordinary.
    Raw(SmallVec<[RawMemory; 1]>),
    /// The caller's registered buffer, for a blocking call.
    Registered(RawMemory, Option<RemoteRange>, Option<MemoryRef>),
    /// Parts of registered buffers; `None` where one is not registered here.
    RegisteredParts(SmallVec<[RawMemory; 1]>, Option<SmallVec<[RemoteRange; 1]>>),
}

/// What is to be moved.
pub(crate) struct TransferParts {
    pub(crate) opcode: Opcode,
    pub(crate) kind: TransferKind,
    pub(crate) offset: u64,
    /// Instead of `offset`: a list.
    pub(crate) extents: Option<Vec<Extent>>,
    pub(crate) memory: Memory,
    pub(crate) keep: Keep,
    /// Of the file.
    pub(crate) policy: RegistrationPolicy,
}

impl Shared {
    /// Runs a transfer to its end. Blocks.
    pub(crate) fn run_transfer(&self, node: Arc<Node>, parts: TransferParts) -> Result<Op> {
        let mut core = self.lock();
        let op = self.transfer(&mut core, node, parts, true).map_err(|(error, _)| error)?;
        let Work::Data(Transfer { trial: Some(trial), .. }) = op.work else {
            return Ok(self.run_locked(core, op));
        };
        let began = self.clock.now();
        let op = self.run_locked(core, op);
        if let (None, Work::Data(transfer)) = (&op.error, &op.work)
            && transfer.count() == transfer.len
        {
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
        let mut registered = None;
        let one = |range: Option<RemoteRange>| range.map(|range| SmallVec::from_buf([range]));
        let (memory, ranges, registration) = match parts.memory {
            Memory::Kept => {
                let ranges = match &parts.keep {
                    Keep::Registered(buffer) if buffer.is_registered() => {
                        registered = buffer.memory();
                        Some(one(buffer.range_in(&self.domain)))
                    }
                    _ => None,
                };
                let registration = registration(ranges.is_some());
                (SmallVec::from_buf([parts.keep.raw()]), ranges, registration)
            }
            Memory::Raw(mut memory) => {
                // What has no bytes may lie anywhere: it is not registered.
                memory.retain(|piece| piece.len() > 0);
                (memory, None, Registration::Ordinary)
            }
            Memory::Registered(memory, range, whole) => {
                registered = whole;
                (SmallVec::from_buf([memory]), Some(one(range)), Registration::Registered)
            }
            Memory::RegisteredParts(memory, ranges) => (memory, Some(ranges), Registration::Registered),
        };
        if let Some(None) = ranges {
            let what = "the buffer is not registered with this session: it is another session's, or its session ended";
            return Err((Error::Invalid(what.into()), parts.keep));
        }
        let mut holds = SmallVec::new();
        let lease = match (&*memory, &ranges) {
            ([single], None) => self.registrar.lease(single, access(parts.kind), parts.policy),
            _ => None,
        };
        let (ranges, registration) = match lease {
            Some(lease) => {
                let range = lease.range_of(&memory[0]);
                holds.push(Hold::Lease(lease));
                (Some(one(range)), Registration::Registered)
            }
            None => (ranges, registration),
        };
        let Some(len) = total_len(&memory) else {
            let what = "the memory of a transfer is more than there are addresses";
            return Err((Error::Invalid(what.into()), parts.keep));
        };
        let mut list = None;
        if let Some(extents) = &parts.extents {
            match List::new(extents, len) {
                Ok(made) => (list, parts.offset) = made,
                Err(error) => return Err((error, parts.keep)),
            }
        }
        if let Err(error) = check_extent(parts.offset, len) {
            return Err((error, parts.keep));
        }
        if parts.extents.is_some() && list.is_none() {
            // One extent is an ordinary transfer.
            parts.opcode = match parts.kind {
                TransferKind::Write(_) => Opcode::Write,
                _ => Opcode::Read,
            };
        }
        let direction = match parts.kind {
            TransferKind::Read | TransferKind::Readdir { .. } => Direction::Read,
            TransferKind::Write(_) | TransferKind::Append(_) => Direction::Write,
        };
        let mut circumstances =
            core.circumstances(&self.config, direction, len as u64, registration).under(parts.policy);
        // Each piece would be made durable by itself, and an append is not cut.
        let cuts = matches!(parts.kind, TransferKind::Write(Stability::Unstable));
        circumstances.cuts_inline &= cuts;
        // Who does not wait has better to do than to copy.
        circumstances.staging_overlaps &= cuts && blocking;
        let has_lists = core.terms.welcome.features & Features::LISTS.bits() != 0;
        let noncontiguous = self.config.noncontiguous;
        let may_copy = parts.policy == RegistrationPolicy::Library;
        let in_pieces = memory.len() > 1
            && self.config.method == MethodOverride::Auto
            && matches!(parts.kind, TransferKind::Read | TransferKind::Write(_));
        if in_pieces && list.is_none() && noncontiguous == Noncontiguous::Multiple {
            list = Some(List::of_pieces(Extent::new(parts.offset, len as u64)));
        }
        if let Some(list) = &mut list {
            list.each_part |= !has_lists || in_pieces && noncontiguous == Noncontiguous::Multiple;
            if direction == Direction::Write {
                // What describes a list leaves less room for data.
                let room = (core.terms.send_payload_max as usize).saturating_sub(list.described_size());
                circumstances.inline_max =
                    circumstances.inline_max.min(u32::try_from(room).unwrap_or(u32::MAX));
            }
        }
        let undivided = matches!(parts.kind, TransferKind::Append(_)) && len > core.lane_size();
        if undivided || list.is_some() {
            // Neither is cut to the size of lanes.
            circumstances.has_lanes = false;
        }
        // One request describes and plans a list once.
        circumstances.cuts_inline &= list.is_none();
        let mut trial = None;
        // Nothing moves, and no bytes have no address that a peer could reach.
        let path = match len {
            0 => IoPath::Inline,
            _ if in_pieces => {
                let (switches, learned) = (core.terms.welcome.gather, &mut core.learned);
                let pieces = memory.len();
                match noncontiguous {
                    // Packing is copying.
                    Noncontiguous::Hybrid if !may_copy => decide(&circumstances).path,
                    Noncontiguous::Hybrid => {
                        let (path, tried) =
                            decide_hybrid(&circumstances, pieces, switches, learned, blocking);
                        trial = tried;
                        path
                    }
                    _ => decide_noncontiguous(&circumstances, noncontiguous, pieces, switches).path,
                }
            }
            _ => decide(&circumstances).path,
        };
        let mut transfer = Transfer {
            kind: parts.kind,
            path,
            offset: parts.offset,
            list,
            len,
            cut: 0,
            sieved: 0,
            begun: false,
            redo: Vec::new(),
            short_at: usize::MAX,
            memory,
            starts: Vec::new(),
            ranges: ranges.flatten().unwrap_or_default(),
            holds,
            keep: parts.keep,
            registered,
            position: 0,
            end: false,
            verifier: Verifier(0),
            discard: false,
            trial,
        };
        if let TransferKind::Readdir { .. } = transfer.kind {
            // One request: into registered memory, or inline as far as a message reaches.
            if transfer.path != IoPath::Direct {
                transfer.path = IoPath::Inline;
                transfer.len = transfer.len.min(core.terms.read_inline_max as usize);
            }
        }
        let may_sieve =
            self.config.method == MethodOverride::Auto && noncontiguous == Noncontiguous::Hybrid && may_copy;
        if may_sieve && transfer.kind == TransferKind::Read && core.terms.staging_overlaps {
            self.sieve(core, &mut transfer);
        }
        // First, for the way may become another, of smaller requests.
        self.prepare(core, &mut transfer, parts.policy);
        cut_list(core, &mut transfer);
        if transfer.path != path || transfer.sieved > 0 {
            transfer.trial = None;
        }
        if let Err(error) = check_undivided(core, &transfer) {
            return Err((error, transfer.keep));
        }
        Ok(Op::new(parts.opcode, Some(node), Work::Data(transfer)))
    }

    /// Reads a dense list with its gaps, where the server has staging buffers mapped: copying them costs less than describing each extent.
    fn sieve(&self, core: &mut Core, transfer: &mut Transfer) {
        let Some(span) = transfer.list.as_ref().and_then(|list| list.dense_span()) else { return };
        if core.ensure_staging(&self.config)
            && core.staging.as_ref().is_some_and(|staging| span <= staging.chunk_size())
            && span <= core.terms.welcome.transfer_size_max as usize
        {
            (transfer.sieved, transfer.path, transfer.trial) = (span, IoPath::Staged, None);
        }
    }

    /// Registers or stages, and falls back where that fails: inline always works.
    fn prepare(&self, core: &mut Core, transfer: &mut Transfer, policy: RegistrationPolicy) {
        if transfer.path == IoPath::DirectRegister {
            match self.registrar.register(&transfer.memory, access(transfer.kind), policy) {
                Ok(registered) => {
                    transfer.ranges = registered.ranges;
                    transfer.holds = registered.holds;
                }
                Err(error) => {
                    tell_of_refusal(&error);
                    transfer.path = IoPath::Staged;
                }
            }
        }
        if transfer.path == IoPath::Staged && !core.ensure_staging(&self.config) {
            transfer.path = IoPath::Inline;
        }
    }
}

/// Starts a transfer. Does not block. When it cannot be started, `refused` makes the caller's result of the error and
/// what the operation would have kept.
pub(crate) fn submit_transfer<T>(
    owner: &Arc<Owner>,
    node: Arc<Node>,
    parts: TransferParts,
    finish: Finish<T>,
    refused: impl FnOnce(Error, Keep) -> T,
) -> Pending<T> {
    let shared = &owner.shared;
    let mut core = shared.lock();
    match shared.transfer(&mut core, node, parts, false) {
        Ok(op) => {
            let keep_back = core.uncollected > 0 && shared.config.batch_submits;
            let index = shared.submit_locked(&mut core, op);
            shared.push(&mut core, keep_back);
            Pending::new(owner, index, finish)
        }
        Err((error, keep)) => Pending::ready(refused(error, keep)),
    }
}

impl Core {
    /// Makes the buffers to stage in, where they are not made yet; whether there are any.
    pub(crate) fn ensure_staging(&mut self, config: &Config) -> bool {
        if self.staging.is_none() && config.staging_size > 0 {
            match Staging::allocate(&self.domain, config.staging_size) {
                Ok(staging) => self.staging = Some(staging),
                Err(error) => tell_once(&error),
            }
        }
        self.staging.is_some()
    }

    /// The smallest read and the smallest write that may use registered memory, bytes.
    pub(crate) fn registered_sizes_min(&self, config: &Config) -> [u64; 2] {
        self.sizes_min(config, Registration::Registered)
    }

    /// The same for ordinary memory that is kept registered. Where registering takes hold of pages, that is what makes ordinary memory
    /// slower. Elsewhere it stays slower to reach when its registration is kept, and its own threshold counts.
    pub(crate) fn kept_sizes_min(&self, config: &Config) -> [u64; 2] {
        match self.domain.provider() {
            Provider::Verbs => self.sizes_min(config, Registration::Registered),
            _ => self.sizes_min(config, Registration::Ordinary),
        }
    }

    fn sizes_min(&self, config: &Config, registration: Registration) -> [u64; 2] {
        let smallest = |direction| {
            let is_direct = |size| {
                let circumstances = self.circumstances(config, direction, size, registration);
                decide(&circumstances).path != IoPath::Inline
            };
            // Nothing is decided by larger sizes: what does not fit a message is direct, and so is what is larger than what is direct.
            let max = u64::from(self.terms.read_inline_max.max(self.terms.write_inline_max)) + 1;
            if !is_direct(max) {
                return u64::MAX;
            }
            let (mut inline, mut direct) = (0, max);
            while inline + 1 < direct {
                let size = inline.midpoint(direct);
                *(if is_direct(size) { &mut direct } else { &mut inline }) = size;
            }
            direct
        };
        [Direction::Read, Direction::Write].map(smallest)
    }

    /// What the decision about a transfer is made from.
    #[inline]
    pub(crate) fn circumstances(
        &self,
        config: &Config,
        direction: Direction,
        size: u64,
        registration: Registration,
    ) -> Circumstances {
        let inline_max = match direction {
            Direction::Read => self.terms.read_inline_max,
            Direction::Write => self.terms.write_inline_max,
        };
        Circumstances {
            direction,
            size,
            registration,
            thresholds: self.terms.welcome.thresholds,
            method: config.method,
            inline_max,
            registers_ordinary_memory: self.terms.registers_ordinary_memory,
            cuts_inline: self.terms.cuts_inline_writes && direction == Direction::Write,
            can_stage: self.staging.is_some()
                || config.staging_size > 0
                || config.method == MethodOverride::Staged,
            staging_overlaps: self.terms.staging_overlaps,
            has_lanes: self.lane_size() > 0,
        }
    }
}

/// Bytes of all pieces together; `None` where that is no number: pieces may overlap.
pub(crate) fn total_len(memory: &[RawMemory]) -> Option<usize> {
    memory.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len()))
}

/// How the server reaches the memory of a transfer.
pub(crate) fn access(kind: TransferKind) -> Access {
    match kind {
        TransferKind::Read | TransferKind::Readdir { .. } => Access::REMOTE_WRITE,
        TransferKind::Write(_) | TransferKind::Append(_) => Access::REMOTE_READ,
    }
}

/// Makes a list, or memory in many pieces, ready to be cut into requests. A list that is written in several, which the server may execute
/// in any order, holds no byte of the file twice.
fn cut_list(core: &Core, transfer: &mut Transfer) {
    let Some(mut list) = transfer.list.take() else {
        if transfer.memory.len() > core.terms.segments_max {
            transfer.starts = places(transfer.memory.iter().map(RawMemory::len));
        }
        return;
    };
    list.set_memory(transfer.memory.iter().map(RawMemory::len));
    let overlaps = transfer.direction() == Direction::Write && !list.is_ascending();
    transfer.list = Some(list);
    if !overlaps {
        return;
    }
    let len_max = match transfer.path {
        IoPath::Inline => core.terms.write_inline_max as usize,
        IoPath::Direct | IoPath::DirectRegister => core.terms.welcome.transfer_size_max as usize,
        // Lists use no lanes.
        IoPath::Staged | IoPath::Fast | IoPath::Client => 0,
    };
    if trim(transfer, 0, transfer.len.min(len_max), core.terms.segments_max, &core.terms) == transfer.len {
        return;
    }
    let Some(mut list) = transfer.list.take() else { return };
    (transfer.memory, transfer.ranges) = list.take_out_overlaps(&transfer.memory, &transfer.ranges);
    list.set_memory(transfer.memory.iter().map(RawMemory::len));
    transfer.len = transfer.memory.iter().map(RawMemory::len).sum();
    transfer.list = Some(list);
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
    let inline_max = match transfer.direction() {
        Direction::Read => core.terms.read_inline_max,
        Direction::Write => core.terms.write_inline_max,
    };
    let limit = match transfer.path {
        IoPath::Inline => inline_max as usize,
        IoPath::Direct | IoPath::DirectRegister => core.terms.welcome.transfer_size_max as usize,
        IoPath::Staged => core.staging.as_ref().map_or(0, Staging::chunk_size),
        IoPath::Fast | IoPath::Client => core.lane_size(),
    };
    match transfer.kind {
        TransferKind::Append(_) if transfer.len > limit => Err(Error::Invalid(format!(
            "an append of {} bytes: at most {limit} are written atomically here",
            transfer.len
        ))),
        TransferKind::Append(_) if transfer.memory.len() > core.terms.segments_max => {
            Err(Error::Invalid(format!("an append from more than {} buffers", core.terms.segments_max)))
        }
        _ => Ok(()),
    }
}
