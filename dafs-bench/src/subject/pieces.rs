//! Pieces of a file at equal distances, in contiguous memory: by one list of dafs, and by the plans of a program on the file itself.

use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use dafs_client::{Explanation, Extent, File, Noncontiguous, RegisteredBuf, Session, Sieve};

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
    /// The memory is registered beforehand.
    pub registered: bool,
}

/// Where all pieces of one list lie, one behind the other.
enum Memory {
    Registered(RegisteredBuf),
    Ordinary(Vec<u8>),
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

    /// An endless walk over the file. Begins off the pages' beginnings, as records do.
    fn offsets(&self) -> impl FnMut() -> u64 + use<> {
        let stride = self.span().next_multiple_of(4096) as u64;
        let (count, mut next) = (FILE_BYTES / stride - 1, 0);
        move || {
            next = (next + 1) % count.max(1);
            next * stride + 64
        }
    }
}

impl Lists {
    /// One list after the other.
    pub fn run_sieved(
        &mut self,
        sieve: Sieve,
        pieces: &Pieces,
        path: &Path,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        let (session, file) = self.link(Noncontiguous::Auto)?;
        file.set_sieve(sieve);
        let (mut offsets, mut extents) = (pieces.offsets(), Vec::new());
        let mut memory = pieces.memory(session)?;
        repeat_after(evicting(pieces.cold, path)?, budget, samples, || {
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
    /// One call for all, and what lies between into memory that nobody looks at. Reads only.
    Vectored,
    /// A window with what lies between, and copies. A write reads it before.
    Sieved,
    /// An entry of an io_uring for each piece, all submitted together.
    IoUring,
}

impl Plan {
    /// Those that there are, and their names.
    pub fn of(op: Op) -> &'static [(Method, Self)] {
        const PLANS: [(Method, Plan); 4] = [
            (Method::Separate, Plan::Separate),
            (Method::Sieved, Plan::Sieved),
            (Method::IoUring, Plan::IoUring),
            (Method::Vectored, Plan::Vectored),
        ];
        if op == Op::Write { &PLANS[..3] } else { &PLANS }
    }

    /// One list after the other.
    pub fn run(
        self,
        pieces: &Pieces,
        path: &Path,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        let (mut offsets, mut extents) = (pieces.offsets(), Vec::new());
        let mut memory = AlignedBuf::new(pieces.total());
        let mut window = AlignedBuf::new(pieces.span());
        let mut ring = sys::IoRing::new(pieces.segments).context("set up an io_uring")?;
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
                Self::IoUring if writes => ring.write_all(&file, at.zip(each))?,
                Self::IoUring => ring.read_all(&file, at.zip(each))?,
                Self::Vectored => {
                    let gap = window.as_mut_slice();
                    sys::read_with_gaps(&file, extents[0].offset, each, &mut gap[..pieces.stride() - bytes])?;
                }
                Self::Sieved => {
                    let (window, first) = (window.as_mut_slice(), extents[0].offset);
                    let window = &mut window[..pieces.span() - (pieces.stride() - bytes)];
                    file.read_exact_at(window, first)?;
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
