//! Open files: their data, sizes and attributes, blocking and not.

pub(crate) mod copy;
pub(crate) mod durable;
pub(crate) mod list;
pub(crate) mod local;
pub(crate) mod raw;
pub(crate) mod stream;
pub(crate) mod submit;
pub(crate) mod xattrs;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dafs_proto::wire::{
    AccessPattern, AllocateRequest, Attributes, CommitReply, HintRequest, Opcode, SeekReply, SeekRequest,
    SeekWhat, SetAttributes, Sieve, Stability, Verifier,
};
use smallvec::SmallVec;

use crate::api::dir::{commit_request, forms, name_request, setattr_request};
use crate::api::options::OpenOptions;
use crate::api::reply::{attributes, done};
use crate::driver::Owner;
use crate::driver::pending::{Call, Moved, Pending};
use crate::driver::transfer::{Contiguous, Memory, TransferParts, submit_transfer};
use crate::engine::choice::Question;
use crate::error::{Error, Result};
use crate::handle::node::Node;
use crate::handle::unstable::{self, Taken};
use crate::memory::registration::{PolicyCell, RegistrationPolicy};
use crate::memory::{Keep, RawMemory, RegisteredBuf};
use crate::method::io_path::{Direction, IoPath, Registration, decide};
use crate::op::Op;
use crate::op::explain::{Explanation, Explanations};
use crate::op::list::FilePart;
use crate::op::named::Named;
use crate::op::transfer::TransferKind;

/// A file that is open on the server. Dropping it closes it, without waiting.
///
/// Methods may be called from any thread. A method blocks until the server has answered, unless it says otherwise; its `submit_` form
/// does not block.
///
/// Written data is durable after [`File::commit`], or when the write returns where its stability says so ([`OpenOptions::stability`]).
pub struct File {
    pub(crate) node: Arc<Node>,
    pub(crate) owner: Arc<Owner>,
    pub(crate) stability: Stability,
    pub(crate) appends: bool,
    opened_as: Attributes,
    pub(crate) position: Mutex<u64>,
    policy: PolicyCell,
    /// [`Sieve`], by its number.
    sieve: AtomicU8,
    /// What it collects about its lists, where that was asked for.
    explanations: Option<Arc<Explanations>>,
}

impl File {
    pub(crate) fn new(
        owner: Arc<Owner>,
        node: Arc<Node>,
        opened_as: Attributes,
        options: &OpenOptions,
    ) -> Self {
        let sieve = AtomicU8::new(owner.shared.config.sieve as u8);
        Self {
            node,
            owner,
            sieve,
            stability: options.stability,
            appends: options.appends(),
            opened_as,
            position: Mutex::new(0),
            policy: PolicyCell::default(),
            explanations: None,
        }
    }

    /// The path below the export by which it was opened.
    pub fn path(&self) -> &[u8] {
        &self.node.path
    }

    /// Whether transfers of this file reach a buffer without a copy: it is registered with this session, which has not ended. Does not
    /// block.
    pub fn can_reach(&self, buffer: &RegisteredBuf) -> bool {
        buffer.range_in(&self.owner.shared.domain).is_some()
    }

    /// When what is written to it is durable, where a call does not say: as it was opened for.
    pub fn stability(&self) -> Stability {
        self.stability
    }

    /// Attributes when it was opened. Does not ask the server.
    pub fn attributes_at_open(&self) -> &Attributes {
        &self.opened_as
    }

    /// Sets who registers ordinary memory for transfers of this file that begin from now on. Batches ([`crate::Session::batch_io`]) go by
    /// the session's configuration instead. Does not block.
    pub fn set_registration_policy(&self, policy: RegistrationPolicy) {
        self.policy.set(policy);
    }

    /// Who registers ordinary memory for transfers of this file.
    #[inline]
    pub fn registration_policy(&self) -> RegistrationPolicy {
        self.policy.get()
    }

    /// Sets what becomes of what lies between the extents of lists ([`File::read_list`], [`File::write_list`]) and views that begin from
    /// now on; [`crate::Config::sieve`] until then. Does not block.
    pub fn set_sieve(&self, sieve: Sieve) {
        self.sieve.store(sieve as u8, Ordering::Relaxed);
    }

    /// The same open file with this in place of [`File::set_sieve`]: for single requests. It has a position of its own, and the settings
    /// that this one has now. Does not block.
    pub fn with_sieve(&self, sieve: Sieve) -> Self {
        let twin = self.twin();
        twin.set_sieve(sieve);
        twin
    }

    /// The same open file with this in place of [`File::set_registration_policy`]: for single requests, and for threads that want each
    /// another. It has a position of its own, and the settings that this one has now. Does not block.
    pub fn with_registration_policy(&self, policy: RegistrationPolicy) -> Self {
        let twin = self.twin();
        twin.set_registration_policy(policy);
        twin
    }

    /// The same open file, which collects how the server moves its lists and views: [`File::take_explanation`]. It has a position of its
    /// own, and the settings that this one has now. What the client decides is not changed, but that reads which would fill a message with
    /// their data go directly. Servers before `Features.EXPLAIN` tell nothing. Does not block.
    pub fn with_explanation(&self) -> Self {
        Self { explanations: Some(Arc::default()), ..self.twin() }
    }

    /// How the lists and views of [`File::with_explanation`] were moved that have ended since this was called last; nothing for any other
    /// file. Does not block.
    pub fn take_explanation(&self) -> Explanation {
        self.explanations.as_ref().map(|explanations| explanations.take()).unwrap_or_default()
    }

    /// The same open file and settings, with a position of its own.
    fn twin(&self) -> Self {
        let policy = PolicyCell::default();
        policy.set(self.registration_policy());
        Self {
            node: Arc::clone(&self.node),
            owner: Arc::clone(&self.owner),
            stability: self.stability,
            appends: self.appends,
            opened_as: self.opened_as.clone(),
            position: Mutex::new(0),
            policy,
            sieve: AtomicU8::new(self.sieve() as u8),
            explanations: self.explanations.clone(),
        }
    }

    /// What the server does with what lies between the extents of lists.
    pub fn sieve(&self) -> Sieve {
        Sieve::ALL.get(usize::from(self.sieve.load(Ordering::Relaxed))).copied().unwrap_or_default()
    }

    /// Says in words how a blocking unstable transfer of `size` bytes would travel now, and why. The memory is ordinary, in one piece, and
    /// not pinned. Does not ask the server.
    pub fn explain(&self, direction: Direction, size: u64) -> String {
        let (shared, policy) = (&self.owner.shared, self.registration_policy());
        let look = |registration| {
            let core = shared.lock();
            let question = Question { policy, ..Question::of(direction, size, registration) };
            let circumstances = core.circumstances(&shared.config, &question);
            (decide(&circumstances), circumstances)
        };
        let (mut decision, mut circumstances) = look(Registration::Ordinary);
        let mut note = "";
        match policy {
            RegistrationPolicy::Library => {}
            RegistrationPolicy::Operation => note = "; the file's memory is registered for each operation",
            RegistrationPolicy::Kept if shared.registrar.can_keep() => {
                note = "; the file's registrations are kept";
                if decision.path == IoPath::Inline
                    || shared
                        .registrar
                        .keeps(Question::of(direction, size, Registration::Ordinary).kind.access(), size)
                {
                    (decision, circumstances) = look(Registration::Registered);
                }
            }
            RegistrationPolicy::Kept => {
                note = "; no registrations are kept: the session keeps none, or the kernel does not report changes of mappings";
            }
        }
        decision.explain(&circumstances) + note
    }

    /// Reads at `offset` into a slice and returns the number of bytes, which is less than the slice holds only at the end of the file.
    /// Large reads are cut into requests that are in flight together.
    #[inline]
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.run_one(TransferKind::Read, offset, RawMemory::of_mut(buffer), None)
    }

    /// Reads exactly as many bytes as the slice holds, or fails with [`Error::UnexpectedEnd`].
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let count = self.read_at(buffer, offset)?;
        match buffer.len() - count {
            0 => Ok(()),
            missing => Err(Error::UnexpectedEnd { path: self.node.path.clone(), missing: missing as u64 }),
        }
    }

    /// Reads at `offset` into several slices, in order.
    pub fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.run(TransferKind::Read, offset, RawMemory::all_of_mut(buffers))?.outcome()
    }

    /// Reads at `offset` into a registered buffer: no copy, no registration.
    pub fn read_buf_at(&self, buffer: &mut RegisteredBuf, offset: u64) -> Result<usize> {
        self.run_one(TransferKind::Read, offset, buffer.raw(), Some(buffer))
    }

    /// Writes a slice at `offset`, with the stability of the file, and returns the number of bytes. It is less than the slice holds only
    /// when the server met an error after them.
    #[inline]
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.write_at_with(data, offset, self.stability)
    }

    /// As [`File::write_at`], with this stability.
    pub fn write_at_with(&self, data: &[u8], offset: u64, stability: Stability) -> Result<usize> {
        self.run_one(TransferKind::Write(stability), offset, RawMemory::of(data), None)
    }

    /// Writes all of a slice at `offset`, or fails with the reason. A part may then have been written.
    pub fn write_all_at(&self, mut data: &[u8], mut offset: u64) -> Result<()> {
        while !data.is_empty() {
            let count = self.write_at(data, offset)?;
            if count == 0 {
                return Err(Error::Invalid("the server wrote nothing and gave no reason".into()));
            }
            data = &data[count..];
            offset += count as u64;
        }
        Ok(())
    }

    /// Writes several slices, in order, at `offset`.
    pub fn write_vectored_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        self.run(TransferKind::Write(self.stability), offset, RawMemory::all_of(buffers))?.outcome()
    }

    /// Writes a registered buffer at `offset`: no copy, no registration.
    pub fn write_buf_at(&self, buffer: &RegisteredBuf, offset: u64) -> Result<usize> {
        self.run_one(TransferKind::Write(self.stability), offset, buffer.raw(), Some(buffer))
    }

    /// Appends a slice to the file, whole and atomically, and returns its offset. At most [`crate::Agreed::transfer_size_max`] bytes.
    /// A durable append that fails with `IO`, or for a lack of room, may be in the file, and not be durable.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        let memory = SmallVec::from_buf([RawMemory::of(data)]);
        self.run(TransferKind::Append(self.stability), 0, memory)?.position()
    }

    forms! {
        /// Makes everything written so far durable, with all attributes. [`Error::WritesLost`] names what a restart of the server has
        /// lost: the ranges to write again, which [`crate::DurableWriter`] does by itself, and whether changes of size or attributes are
        /// lost too.
        commit, submit_commit, commit_call, (&self) -> () {
            self.commit_range_call(0, 0, Stability::FileSync)
        }

        /// Makes a range durable (`len` 0: to the end of the file): its data (`DataSync`), or all of it (`FileSync`).
        /// As [`File::commit`] otherwise.
        commit_range, submit_commit_range, commit_range_call,
        (&self, offset: u64, len: u64, stability: Stability) -> () {
            if stability == Stability::Unstable {
                return Err(Error::Invalid("a commit makes data durable: DataSync or FileSync".into()));
            }
            self.owner.shared.check_home()?;
            let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
            // Of a part only data: who names a range has that in mind.
            let all = stability == Stability::FileSync && (offset, end) == (0, u64::MAX);
            let mut covered = Covered::begin(&self.node, &(offset..end), all);
            let finish = move |op: Op| {
                let reply = op.into_reply()?;
                let committed = CommitReply::decode(reply.body())?.verifier;
                match covered.end(committed, reply.server_epoch) {
                    (ranges, false) if ranges.is_empty() => Ok(()),
                    (ranges, attributes) => {
                        Err(Error::WritesLost { path: covered.node.path.clone(), ranges, attributes })
                    }
                }
            };
            let named = commit_request(offset, len, stability);
            Ok(Call::boxed(Some(&self.node), Opcode::Commit, named, finish))
        }

        /// Attributes now.
        metadata, submit_metadata, metadata_call, (&self) -> Attributes {
            Ok(self.call(Opcode::Getattr, name_request(Path::new(""), true, 0)?, attributes))
        }

        /// Changes attributes and returns the new ones.
        set_attributes, submit_set_attributes, set_attributes_call,
        (&self, set: &SetAttributes) -> Attributes {
            Ok(self.call(Opcode::Setattr, setattr_request(Path::new(""), true, set)?, attributes))
        }

        /// Sets the size: truncates the file, or extends it by a hole.
        truncate, submit_truncate, truncate_call, (&self, size: u64) -> () {
            Ok(self.range_call(Opcode::Truncate, size, 0))
        }

        /// Reserves space for a range; the file grows to cover it.
        allocate, submit_allocate, allocate_call, (&self, offset: u64, len: u64) -> () {
            Ok(self.range_call(Opcode::Allocate, offset, len))
        }

        /// Punches a hole: gives the space of a range back, which then reads as zeros. The size stays.
        punch_hole, submit_punch_hole, punch_hole_call, (&self, offset: u64, len: u64) -> () {
            Ok(self.range_call(Opcode::Punch, offset, len))
        }

        /// Where the next data at or after `offset` begins; the status `NO_DEVICE` when none follows.
        seek_data, submit_seek_data, seek_data_call, (&self, offset: u64) -> u64 {
            Ok(self.seek_call(offset, SeekWhat::Data))
        }

        /// Where the next hole at or after `offset` begins; the end of the file is one.
        seek_hole, submit_seek_hole, seek_hole_call, (&self, offset: u64) -> u64 {
            Ok(self.seek_call(offset, SeekWhat::Hole))
        }

        /// Tells how a range will be used (`len` 0: to the end of the file). The server may ignore it. Data that is written and not needed
        /// is written out first, so this may take as long as a commit.
        hint, submit_hint, hint_call, (&self, offset: u64, len: u64, pattern: AccessPattern) -> () {
            self.hint_likely_call(offset, len, pattern, 0)
        }

        /// As [`File::hint`], where it is not certain that the range will be used so: `likelihood` is 1 to 100 percent. Servers may
        /// ignore what is not likely; this project's does so below 50.
        hint_likely, submit_hint_likely, hint_likely_call,
        (&self, offset: u64, len: u64, pattern: AccessPattern, likelihood: u32) -> () {
            if likelihood > 100 {
                return Err(Error::Invalid(format!("a likelihood of {likelihood} percent: the limit is 100")));
            }
            let request = HintRequest { offset, len, pattern: pattern as u32, likelihood };
            Ok(self.call(Opcode::Hint, Named::of(&request.bytes()), done))
        }
    }

    fn range_call(&self, opcode: Opcode, offset: u64, len: u64) -> Call<Result<()>> {
        self.call(opcode, Named::of(&AllocateRequest { offset, len }.bytes()), done)
    }

    fn seek_call(&self, offset: u64, what: SeekWhat) -> Call<Result<u64>> {
        let named = Named::of(&SeekRequest { offset, what }.bytes());
        self.call(Opcode::Seek, named, |op| Ok(SeekReply::decode(op.into_reply()?.body())?.offset))
    }

    fn call<T>(&self, opcode: Opcode, named: Named, finish: fn(Op) -> T) -> Call<T> {
        Call::plain(Some(&self.node), opcode, named, finish)
    }

    /// Runs a transfer of memory in one piece, of a buffer that the caller lends where one is given.
    #[inline]
    fn run_one(
        &self,
        kind: TransferKind,
        offset: u64,
        memory: RawMemory,
        buffer: Option<&RegisteredBuf>,
    ) -> Result<usize> {
        let buffer = buffer.filter(|buffer| buffer.is_registered());
        let asked = Contiguous { kind, offset, memory, buffer, policy: self.registration_policy() };
        self.owner.shared.run_contiguous(&self.node, &asked)
    }

    fn run(&self, kind: TransferKind, offset: u64, memory: SmallVec<[RawMemory; 1]>) -> Result<Moved> {
        let parts = self.parts(kind, FilePart::At(offset), Memory::Raw(memory), Keep::None);
        self.owner.shared.run_transfer(Arc::clone(&self.node), parts).map(Moved::of)
    }

    /// A transfer of one extent, or of a list.
    pub(crate) fn parts(
        &self,
        kind: TransferKind,
        part: FilePart,
        memory: Memory,
        keep: Keep,
    ) -> TransferParts {
        let policy = self.registration_policy();
        let explanations = self.explanations.clone();
        TransferParts { kind, part, memory, keep, policy, sieve: self.sieve(), explanations }
    }

    pub(crate) fn submit<T>(&self, parts: TransferParts, finish: fn(Moved) -> T) -> Pending<T> {
        submit_transfer(&self.owner, Arc::clone(&self.node), parts, finish)
    }

    pub(crate) fn position(&self) -> std::sync::MutexGuard<'_, u64> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({}:/{})", self.node.export, String::from_utf8_lossy(&self.node.path))
    }
}

/// What a commit in flight covers. Goes back when the commit failed, or nobody collected it.
pub(crate) struct Covered {
    node: Arc<Node>,
    taken: Option<Taken>,
}

impl Covered {
    /// A commit of this range is to be sent; `all`: it covers attributes too.
    pub(crate) fn begin(node: &Arc<Node>, range: &Range<u64>, all: bool) -> Self {
        let taken = node.unstable().take(range, all);
        Self { node: Arc::clone(node), taken: Some(taken) }
    }

    /// It was answered: what is lost, see [`unstable::lost`].
    pub(crate) fn end(&mut self, committed: Verifier, epoch: u64) -> (Vec<Range<u64>>, bool) {
        let Some(taken) = self.taken.take() else { return (Vec::new(), false) };
        self.node.unstable().end(&taken);
        unstable::lost(&taken, committed, epoch)
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        if let Some(taken) = &self.taken {
            self.node.unstable().put_back(taken);
        }
    }
}
