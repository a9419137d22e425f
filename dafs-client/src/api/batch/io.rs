//! Batches: many independent reads and writes in one submission (DAFS 1.0, batch I/O).

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::sync::Arc;

use dafs_proto::extent::Extent;
use smallvec::smallvec;

use crate::api::batch::part::{BatchOutcome, Parts};
use crate::api::batch::plan::{Plan, Prepared, prepare, results};
use crate::api::batch::singly::{Singles, run_singly};
use crate::api::file::File;
use crate::api::session::Session;
use crate::driver::Owner;
use crate::driver::pending::{Finish, Pending};
use crate::error::Result;
use crate::memory::{IoBuffer, Keep, RawMemory, RegisteredBuf};
use crate::op::Op;
use crate::op::batch::{BatchHints, BatchWork};
use crate::op::id::OperationId;

/// Many independent reads and writes on any files of a session, to and from memory that the caller lends: made by
/// [`Session::batch_io`], run by [`BatchIo::run`].
///
/// The operations go out in as few requests as carry them, and are executed in any order: of two that write the same bytes either may be
/// the last, and a read may or may not see what another writes. Each has its own result.
///
/// ```no_run
/// # fn f(session: &dafs_client::Session, a: &dafs_client::File, b: &dafs_client::File) -> dafs_client::Result<()> {
/// let (mut head, mut tail) = ([0; 512], [0; 512]);
/// let mut batch = session.batch_io();
/// batch.read_at(a, &mut head, 0).read_at(a, &mut tail, 1 << 20).write_at(b, b"seen", 0);
/// for outcome in batch.run()? {
///     println!("{} bytes", outcome?.count);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a batch is sent by `run`"]
pub struct BatchIo<'a> {
    parts: Parts,
    life: PhantomData<&'a mut [u8]>,
}

/// As [`BatchIo`], of buffers that the batch owns until it has ended: for [`OwnedBatch::submit`]. Made by [`Session::owned_batch`].
#[must_use = "a batch is sent by `submit`"]
pub struct OwnedBatch<B> {
    pub(super) parts: Parts,
    pub(super) buffers: Vec<Keep>,
    kind: PhantomData<B>,
}

/// The end of an [`OwnedBatch`]: the buffers come back whatever became of it.
#[derive(Debug)]
#[must_use = "the results tell whether data was moved"]
pub struct BatchDone<B> {
    /// The buffers, in order. After a read, bytes behind its count are undefined.
    pub buffers: Vec<B>,
    /// The results, in order; or why none is known: the session ended, or the server refused the batch.
    pub results: Result<Vec<Result<BatchOutcome>>>,
}

/// A batch in flight. Dropping it lets it run on, and frees its buffers when it has ended.
#[must_use = "a submitted batch is collected with `wait`"]
pub struct PendingBatch<B> {
    owner: Arc<Owner>,
    state: Running<B>,
}

enum Running<B> {
    Batch {
        pending: Pending<BatchDone<B>>,
        /// Entries of each operation that have not been told of; of one that moves nothing, and so has none, 1.
        untold: Vec<usize>,
        /// Operations that move nothing, not told of.
        empty: Vec<usize>,
    },
    Singly(Singles),
}

impl Session {
    /// Begins a batch of reads and writes. Sends nothing yet. (For operations that are submitted one by one and leave together see
    /// [`Session::cork`].)
    pub fn batch_io(&self) -> BatchIo<'_> {
        BatchIo { parts: Parts::new(&self.owner), life: PhantomData }
    }

    /// Begins a batch whose operations own their buffers, `Vec<u8>`s or [`RegisteredBuf`]s. Sends nothing yet.
    pub fn owned_batch<B: IoBuffer>(&self) -> OwnedBatch<B> {
        OwnedBatch { parts: Parts::new(&self.owner), buffers: Vec::new(), kind: PhantomData }
    }
}

impl<'a> BatchIo<'a> {
    /// Reads at `offset`.
    pub fn read_at(&mut self, file: &File, buffer: &'a mut [u8], offset: u64) -> &mut Self {
        let extent = Extent::new(offset, buffer.len() as u64);
        self.parts.push(file, false, &[extent], smallvec![RawMemory::of_mut(buffer)]);
        self
    }

    /// Writes at `offset`, as durable as the file was opened for.
    pub fn write_at(&mut self, file: &File, data: &'a [u8], offset: u64) -> &mut Self {
        let extent = Extent::new(offset, data.len() as u64);
        self.parts.push(file, true, &[extent], smallvec![RawMemory::of(data)]);
        self
    }

    /// Reads a list of extents, as [`File::read_list`].
    pub fn read_list(
        &mut self,
        file: &File,
        extents: &[Extent],
        buffers: &'a mut [IoSliceMut<'_>],
    ) -> &mut Self {
        let memory = RawMemory::all_of_mut(buffers);
        self.parts.push(file, false, extents, memory);
        self
    }

    /// Writes a list of extents, as [`File::write_list`]; of one that is too long for a request the extents ascend and do not overlap.
    pub fn write_list(&mut self, file: &File, extents: &[Extent], buffers: &'a [IoSlice<'_>]) -> &mut Self {
        let memory = RawMemory::all_of(buffers);
        self.parts.push(file, true, extents, memory);
        self
    }

    /// Reads at `offset` into a registered buffer: no copy, no registration.
    pub fn read_buf_at(&mut self, file: &File, buffer: &'a mut RegisteredBuf, offset: u64) -> &mut Self {
        let extent = Extent::new(offset, buffer.len() as u64);
        self.parts.push(file, false, &[extent], smallvec![buffer.raw()]);
        self.parts.lends(buffer);
        self
    }

    /// Writes a registered buffer at `offset`: no copy, no registration.
    pub fn write_buf_at(&mut self, file: &File, buffer: &'a RegisteredBuf, offset: u64) -> &mut Self {
        let extent = Extent::new(offset, buffer.len() as u64);
        self.parts.push(file, true, &[extent], smallvec![buffer.raw()]);
        self.parts.lends(buffer);
        self
    }

    /// Operations so far.
    pub fn len(&self) -> usize {
        self.parts.operations.len()
    }

    /// There is none yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs the batch and returns the results in the order of its operations. Blocks until all of them have ended.
    ///
    /// Fails as a whole, with nothing sent, with [`Error::Invalid`](crate::Error::Invalid) when an operation cannot be (totals that
    /// differ, an extent beyond the end of any file, a file of another session); and when the session ends. Registered buffers that the
    /// server may then still be reading or writing lose their registration.
    pub fn run(&mut self) -> Result<Vec<Result<BatchOutcome>>> {
        let owner = Arc::clone(&self.parts.owner);
        let parts = std::mem::replace(&mut self.parts, Parts::new(&owner));
        let shared = &owner.shared;
        let mut core = shared.lock();
        match prepare(shared, &mut core, parts, None, Keep::None).map_err(|(error, _)| error)? {
            Plan::Batch(Prepared { op, operations }) => {
                let op = shared.run_locked(core, *op);
                results(shared, op, &operations).1
            }
            Plan::Singly { parts, .. } => {
                drop(core);
                run_singly(&owner, parts.operations, &parts.lent)
            }
        }
    }
}

impl<B: IoBuffer> OwnedBatch<B> {
    /// Reads at `offset` into the whole buffer.
    pub fn read_at(&mut self, file: &File, buffer: B, offset: u64) -> &mut Self {
        self.push(file, false, buffer, |len| vec![Extent::new(offset, len)])
    }

    /// Writes the whole buffer at `offset`, as durable as the file was opened for.
    pub fn write_at(&mut self, file: &File, buffer: B, offset: u64) -> &mut Self {
        self.push(file, true, buffer, |len| vec![Extent::new(offset, len)])
    }

    /// Reads a list of extents into the whole buffer.
    pub fn read_list(&mut self, file: &File, extents: &[Extent], buffer: B) -> &mut Self {
        self.push(file, false, buffer, |_| extents.to_vec())
    }

    /// Writes the whole buffer to a list of extents, as [`BatchIo::write_list`].
    pub fn write_list(&mut self, file: &File, extents: &[Extent], buffer: B) -> &mut Self {
        self.push(file, true, buffer, |_| extents.to_vec())
    }

    /// Asks the server to tell every end as soon as it can, whatever the hints say, and without hints too. It then executes no operations
    /// together, so the batch as a whole takes longer. For a batch in flight see [`PendingBatch::expedite`].
    pub fn expedite(&mut self) -> &mut Self {
        self.parts.expedite = true;
        self
    }

    /// Starts the batch. With `hints` the server tells of ends while others run ([`PendingBatch::wait_some`]), and gathers as many of them
    /// as the hints say; without, it tells once, of all, unless the batch is expedited. Does not block.
    pub fn submit(self, hints: Option<BatchHints>) -> PendingBatch<B> {
        let Self { parts, buffers, .. } = self;
        let owner = Arc::clone(&parts.owner);
        let count = parts.operations.len();
        let shared = &owner.shared;
        let mut core = shared.lock();
        let state = match prepare(shared, &mut core, parts, hints, Keep::Many(buffers)) {
            Err((error, keep)) => {
                drop(core);
                let done = BatchDone { buffers: keep.unpacked(), results: Err(error) };
                Running::Batch { pending: Pending::ready(done), untold: vec![1; count], empty: Vec::new() }
            }
            Ok(Plan::Singly { parts, keep }) => {
                drop(core);
                Running::Singly(Singles::submit(&owner, parts.operations, keep))
            }
            Ok(Plan::Batch(Prepared { mut op, operations })) => {
                let mut untold = vec![0; count];
                for entry in op.running_batch().iter().flat_map(|batch| &batch.entries) {
                    untold[entry.operation] += 1;
                }
                let empty: Vec<usize> = (0..count).filter(|operation| untold[*operation] == 0).collect();
                empty.iter().for_each(|operation| untold[*operation] = 1);
                let index = shared.submit_under(&mut core, *op);
                drop(core);
                let shared = Arc::clone(shared);
                let finish = Finish::boxed(move |op| {
                    let (keep, results) = results(&shared, op, &operations);
                    BatchDone { buffers: keep.unpacked(), results }
                });
                Running::Batch { pending: Pending::new(&owner, index, finish), untold, empty }
            }
        };
        PendingBatch { owner, state }
    }

    fn push(
        &mut self,
        file: &File,
        write: bool,
        buffer: B,
        extents: impl FnOnce(u64) -> Vec<Extent>,
    ) -> &mut Self {
        let mut keep = buffer.into_keep().0;
        let memory = keep.raw();
        let extents = extents(memory.len() as u64);
        self.parts.push(file, write, &extents, smallvec![memory]);
        if let Keep::Registered(buffer) = &keep {
            self.parts.is_registered(buffer);
        }
        self.buffers.push(keep);
        self
    }
}

impl<B: IoBuffer> PendingBatch<B> {
    /// What names its end in [`Completions::next`](crate::Completions::next); `None` where it has ended before it was submitted, and where
    /// its operations go one by one, each with a name of its own.
    #[must_use]
    pub fn id(&self) -> Option<OperationId> {
        match &self.state {
            Running::Batch { pending, .. } => pending.id(),
            Running::Singly(_) => None,
        }
    }

    /// Whether all operations have ended; moves the session along. Never blocks, as [`Pending::test`].
    pub fn test(&mut self) -> bool {
        match &mut self.state {
            Running::Batch { pending, .. } => pending.test(),
            Running::Singly(singles) => singles.test(),
        }
    }

    /// Waits until some operations have ended that were not told yet, and returns their places, each once; none when all are told. Results
    /// and buffers come with [`PendingBatch::wait`]. Until then the batch owns its memory. Blocks.
    pub fn wait_some(&mut self) -> Vec<usize> {
        let (pending, untold, empty) = match &mut self.state {
            Running::Batch { pending, untold, empty } => (pending, untold, empty),
            Running::Singly(singles) => return singles.wait_some(),
        };
        if untold.iter().all(|entries| *entries == 0) {
            return Vec::new();
        }
        let Some(index) = pending.index() else { return tell_all(untold) };
        if !empty.is_empty() {
            empty.iter().for_each(|operation| untold[*operation] = 0);
            return std::mem::take(empty);
        }
        let shared = &self.owner.shared;
        let mut core = shared.lock();
        loop {
            let Some(batch) = core.ops.get_mut(index).and_then(Op::running_batch) else {
                return tell_all(untold);
            };
            let told = batch.take_told();
            let mut ended = Vec::new();
            for operation in told {
                let left = &mut untold[operation];
                *left = left.saturating_sub(1);
                if *left == 0 {
                    ended.push(operation);
                }
            }
            if !ended.is_empty() {
                return ended;
            }
            core = shared.wait_until(core, |core| core.ops.get(index).is_none_or(Op::has_news));
        }
    }

    /// Asks the server to tell what has ended at once, and what ends from now on as soon as it can (DAFS 1.0, `DAFS_PROC_HURRY_UP`). It is
    /// for a program that has nothing left to do but wait. It concerns all batches of the session in progress. The end of a batch without
    /// hints is told by its reply, which comes no sooner. It takes a credit, so it leaves when one is free. Does not block.
    pub fn expedite(&self) {
        let Running::Batch { pending, .. } = &self.state else { return };
        let Some(index) = pending.index() else { return };
        let shared = &self.owner.shared;
        let mut core = shared.lock();
        if core.ops.get_mut(index).and_then(Op::running_batch).is_some_and(BatchWork::hurry) {
            shared.submit_locked(&mut core, Op::expediting());
            shared.push(&mut core, false);
        }
    }

    /// Waits until all operations have ended, and returns results and buffers. Blocks.
    pub fn wait(self) -> BatchDone<B> {
        match self.state {
            Running::Batch { pending, .. } => pending.wait(),
            Running::Singly(singles) => {
                let (keep, results) = singles.wait();
                BatchDone { buffers: keep.unpacked(), results }
            }
        }
    }
}

/// All that was not told of has ended.
fn tell_all(untold: &mut [usize]) -> Vec<usize> {
    let untold = untold.iter_mut().enumerate().filter(|(_, entries)| **entries > 0);
    untold
        .map(|(operation, entries)| {
            *entries = 0;
            operation
        })
        .collect()
}

impl<B> std::fmt::Debug for PendingBatch<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = match &self.state {
            Running::Batch { untold, .. } => untold.len(),
            Running::Singly(singles) => singles.len(),
        };
        write!(f, "PendingBatch({count} operations)")
    }
}
