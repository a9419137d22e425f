//! Pieces of a file at equal distances, in contiguous memory: by one list of dafs, and by the plans of a program on the file itself.

use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Context;
use dafs_client::{
    Datatype, Explanation, Extent, File, Noncontiguous, RegisteredBuf, Session, Sieve, ViewPlace,
};

use crate::limit::file::AlignedBuf;
use crate::load::{Budget, FILE_BYTES, Work};
use crate::record::{Method, Op};
use crate::stats::Samples;
use crate::subject::dafs::{repeat_after, whole};
use crate::subject::list::{Lists, evicting};
use crate::sys;

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pieces {
    /// Read or write.
    pub op: Op,
    /// Pieces of one list.
    pub segments: usize,
    /// Bytes of each.
    pub bytes: usize,
    /// Of so many bytes of the file one is wanted.
    pub sparsity: usize,
    /// Nothing of the file is in the page cache.
    pub cold: bool,
    /// The page cache is bypassed.
    pub direct_io: bool,
    /// The memory is registered beforehand.
    pub registered: bool,
}

/// Where all pieces of one list lie, one behind the other.
enum Memory {
    Registered(RegisteredBuf),
    Ordinary(Vec<u8>),
}

/// How dafs is told where the pieces lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// By a list of them.
    List(Sieve),
    /// By a view, which the server knows from before.
    View,
}

impl Pieces {
    /// Bytes of one list, and what lies between.
    pub fn span(&self) -> usize {
        self.segments * self.stride()
    }

    fn stride(&self) -> usize {
        self.bytes * self.sparsity
    }

    fn total(&self) -> usize {
        self.segments * self.bytes
    }

    fn extents(&self, offset: u64, extents: &mut Vec<Extent>) {
        extents.clear();
        let piece = |i: usize| Extent::new(offset + (i * self.stride()) as u64, self.bytes as u64);
        extents.extend((0..self.segments).map(piece));
    }

    fn memory(&self, session: &Session) -> anyhow::Result<Memory> {
        let ordinary = vec![0x5a; self.total()];
        if !self.registered {
            return Ok(Memory::Ordinary(ordinary));
        }
        let mut registered = session.buffer(self.total())?;
        registered.copy_from_slice(&ordinary);
        Ok(Memory::Registered(registered))
    }

    fn run_list(&self, file: &File, extents: &[Extent], memory: &mut Memory) -> anyhow::Result<()> {
        let all = 0..self.total();
        let all = std::slice::from_ref(&all);
        let moved = match (self.op, memory) {
            (Op::Write, Memory::Registered(memory)) => file.write_list_buf(extents, memory, all)?,
            (Op::Write, Memory::Ordinary(memory)) => file.write_list(extents, &[IoSlice::new(memory)])?,
            (_, Memory::Registered(memory)) => file.read_list_buf(extents, memory, all)?.count,
            (_, Memory::Ordinary(memory)) => file.read_list(extents, &mut [IoSliceMut::new(memory)])?.count,
        };
        whole(moved, self.total())
    }

    fn run_view(&self, file: &File, place: &ViewPlace<'_>, memory: &mut Memory) -> anyhow::Result<()> {
        let moved = match (self.op, memory) {
            (Op::Write, Memory::Registered(memory)) => file.write_view_buf(place, memory)?,
            (Op::Write, Memory::Ordinary(memory)) => file.write_view(place, memory)?,
            (_, Memory::Registered(memory)) => file.read_view_buf(place, memory)?.count,
            (_, Memory::Ordinary(memory)) => file.read_view(place, memory)?.count,
        };
        whole(moved, self.total())
    }

    /// An endless walk over the file. Begins off the pages' beginnings, as records do, but where `O_DIRECT` forbids it.
    fn offsets(&self) -> impl FnMut() -> u64 + use<> {
        let stride = self.span().next_multiple_of(4096) as u64;
        let first = if self.direct_io { 0 } else { 64 };
        let (count, mut next, mut shift) = ((FILE_BYTES / stride - 1).max(1), 0, 0);
        let (piece, sparsity) = (self.bytes as u64, self.sparsity as u64);
        move || {
            next = (next + 1) % count;
            if next == 0 {
                // What lay between comes next: the bytes moved are those of the whole file, whatever is between.
                shift = (shift + 1) % sparsity;
            }
            next * stride + shift * piece + first
        }
    }
}

impl Lists {
    /// One transfer of all pieces after the other.
    pub fn run_pieces(
        &mut self,
        naming: Naming,
        pieces: &Pieces,
        path: &Path,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        let (session, file) = self.link(Noncontiguous::Auto)?;
        let (mut offsets, mut extents) = (pieces.offsets(), Vec::new());
        let mut memory = pieces.memory(session)?;
        let before = evicting(pieces.cold, path)?;
        let Naming::List(sieve) = naming else {
            file.set_sieve(Sieve::Auto);
            let view =
                session.view(&Datatype::bytes(pieces.bytes as u64).resized(0, pieces.stride() as i64))?;
            return repeat_after(before, budget, samples, || {
                pieces.run_view(file, &view.at(offsets(), 0), &mut memory)
            });
        };
        file.set_sieve(sieve);
        repeat_after(before, budget, samples, || {
            pieces.extents(offsets(), &mut extents);
            pieces.run_list(file, &extents, &mut memory)
        })
    }

    /// One list, and how the server moved it.
    pub fn explain(&mut self, sieve: Sieve, pieces: &Pieces, path: &Path) -> anyhow::Result<Explanation> {
        let (session, file) = self.link(Noncontiguous::Auto)?;
        let file = file.with_sieve(sieve).with_explanation();
        let (mut extents, mut memory) = (Vec::new(), pieces.memory(session)?);
        pieces.extents(pieces.offsets()(), &mut extents);
        evicting(pieces.cold, path)?()?;
        pieces.run_list(&file, &extents, &mut memory)?;
        Ok(file.take_explanation())
    }
}

/// How a program does it on the file itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// A call for each piece.
    Separate,
    /// One call for all, and what lies between into memory that nobody looks at. Writes only where nothing is between.
    Vectored,
    /// A window with what lies between, and copies. A write reads it before, if anything is.
    Sieved,
    /// An entry of an io_uring for each piece, all submitted together.
    IoUring,
}

impl Plan {
    /// Those that there are where one byte in `sparsity` is wanted, and their names.
    pub fn of(op: Op, sparsity: usize) -> &'static [(Method, Self)] {
        const PLANS: [(Method, Plan); 4] = [
            (Method::Separate, Plan::Separate),
            (Method::Sieved, Plan::Sieved),
            (Method::IoUring, Plan::IoUring),
            (Method::Vectored, Plan::Vectored),
        ];
        if op == Op::Write && sparsity > 1 { &PLANS[..3] } else { &PLANS }
    }

    /// One list after the other.
    pub fn run(
        self,
        pieces: &Pieces,
        path: &Path,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        let flags = if pieces.direct_io { libc::O_DIRECT } else { 0 };
        let file = std::fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        let (mut offsets, mut extents) = (pieces.offsets(), Vec::new());
        let mut memory = AlignedBuf::new(pieces.total());
        let mut window = AlignedBuf::new(pieces.span());
        let ring = (self == Self::IoUring).then(|| sys::IoRing::new(pieces.segments));
        let mut ring = ring.transpose().context("set up an io_uring")?;
        let (bytes, writes) = (pieces.bytes, pieces.op == Op::Write);
        repeat_after(evicting(pieces.cold, path)?, budget, samples, || {
            pieces.extents(offsets(), &mut extents);
            let memory = memory.as_mut_slice();
            let each = memory.chunks_exact_mut(bytes);
            let at = extents.iter().map(|extent| extent.offset);
            match self {
                Self::Separate => {
                    for (at, piece) in at.zip(each) {
                        if writes { file.write_all_at(piece, at)? } else { file.read_exact_at(piece, at)? }
                    }
                }
                Self::IoUring => {
                    let ring = ring.as_mut().context("the io_uring was set up")?;
                    if writes {
                        ring.write_all(&file, at.zip(each))?
                    } else {
                        ring.read_all(&file, at.zip(each))?
                    }
                }
                Self::Vectored => {
                    let gap = &mut window.as_mut_slice()[..pieces.stride() - bytes];
                    sys::move_with_gaps(&file, writes, extents[0].offset, each, gap)?;
                }
                Self::Sieved => {
                    let (window, first) = (window.as_mut_slice(), extents[0].offset);
                    let window = &mut window[..pieces.span() - (pieces.stride() - bytes)];
                    if !writes || pieces.sparsity > 1 {
                        file.read_exact_at(window, first)?;
                    }
                    for (place, piece) in window.chunks_mut(pieces.stride()).zip(each) {
                        if writes {
                            place[..bytes].copy_from_slice(piece);
                        } else {
                            piece.copy_from_slice(&place[..bytes]);
                        }
                    }
                    if writes {
                        file.write_all_at(window, first)?;
                    }
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(op: Op, segments: usize, bytes: usize, sparsity: usize) -> Pieces {
        let (cold, direct_io, registered) = (false, false, false);
        Pieces { op, segments, bytes, sparsity, cold, direct_io, registered }
    }

    #[test]
    fn offsets_stay_within_the_file_and_reach_what_lay_between() {
        for (segments, bytes, sparsity) in [(128, 4096, 64), (128, 128, 8), (1, 1, 1), (2, 4096, 4)] {
            let pieces = pieces(Op::Read, segments, bytes, sparsity);
            let mut offsets = pieces.offsets();
            let mut extents = Vec::new();
            let mut shifts = std::collections::BTreeSet::new();
            for _ in 0..20_000 {
                let offset = offsets();
                pieces.extents(offset, &mut extents);
                assert!(extents.last().unwrap().end().unwrap() <= FILE_BYTES, "{pieces:?} at {offset}");
                shifts.insert((offset - 64) % (bytes * sparsity) as u64);
            }
            assert!(shifts.len() >= sparsity, "{pieces:?}: {}", shifts.len());
        }
    }

    #[test]
    fn offsets_of_direct_transfers_are_aligned() {
        let mut offsets = Pieces { direct_io: true, ..pieces(Op::Read, 3, 4096, 8) }.offsets();
        assert!((0..10_000).all(|_| offsets().is_multiple_of(4096)));
    }

    #[test]
    fn every_plan_writes_all_pieces_and_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        for sparsity in [1, 4] {
            let pieces = pieces(Op::Write, 5, 100, sparsity);
            for (method, plan) in Plan::of(Op::Write, sparsity) {
                // Not every system lets one set up a ring.
                if *plan == Plan::IoUring && sys::IoRing::new(5).is_err() {
                    continue;
                }
                std::fs::File::create(&path).unwrap().set_len(FILE_BYTES).unwrap();
                let once = Budget { duration: std::time::Duration::ZERO, ops_min: 1, ops_slow_min: 1 };
                plan.run(&pieces, &path, once, &mut Samples::with_capacity(1)).unwrap();
                let mut written = vec![0; 64 << 10];
                std::fs::File::open(&path).unwrap().read_exact_at(&mut written, 0).unwrap();
                let mut extents = Vec::new();
                pieces.extents(pieces.offsets()(), &mut extents);
                assert_eq!(written.iter().filter(|byte| **byte == 0x5a).count(), 500, "{method}");
                for Extent { offset, .. } in extents {
                    let at = usize::try_from(offset).unwrap();
                    assert!(written[at..at + 100].iter().all(|byte| *byte == 0x5a), "{method}");
                }
            }
        }
        assert_eq!([1, 2].map(|sparsity| Plan::of(Op::Write, sparsity).len()), [4, 3]);
    }
}
