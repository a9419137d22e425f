//! Operations on several pieces at once, on memory of the caller: they have all ended before it is his again.
#![allow(unsafe_code, reason = "requests of several sessions on parts of one piece of memory")]

use std::marker::PhantomData;
use std::sync::Arc;

use dafs_client::{Error as ClientError, Extent, File, Pending, wait_ended};
use smallvec::SmallVec;

use crate::geometry::Geometry;

/// Memory of the caller, lent for `'a`: byte `n` of it is byte `n` of the transfer.
#[derive(Clone)]
pub(crate) struct Memory<'a> {
    parts: SmallVec<[MemoryPart; 1]>,
    len: usize,
    writes: bool,
    lent: PhantomData<&'a mut [u8]>,
}

/// A part of it, in one piece.
#[derive(Clone, Copy)]
struct MemoryPart {
    pointer: *mut u8,
    len: usize,
    /// Where it begins in the transfer.
    place: usize,
}

// SAFETY: as a slice; those who make one hold the borrow that it stands for.
unsafe impl Send for Memory<'_> {}

impl<'a> Memory<'a> {
    /// To read a file into.
    pub(crate) fn to_fill(bytes: &'a mut [u8]) -> Self {
        // SAFETY: the slice is borrowed for as long.
        unsafe { Self::from_raw([(bytes.as_mut_ptr(), bytes.len())], false) }
    }

    /// To write to a file; nothing writes the memory.
    pub(crate) fn to_send(bytes: &'a [u8]) -> Self {
        // SAFETY: the slice is borrowed for as long.
        unsafe { Self::from_raw([(bytes.as_ptr().cast_mut(), bytes.len())], true) }
    }

    /// By addresses and lengths.
    ///
    /// # Safety
    /// Each part must be valid for `'a`, for reads, and unless `writes` for writes, and be used by nobody else.
    pub(crate) unsafe fn from_raw(parts: impl IntoIterator<Item = (*mut u8, usize)>, writes: bool) -> Self {
        let mut len = 0;
        let placed = parts.into_iter().map(|(pointer, part_len)| {
            let part = MemoryPart { pointer, len: part_len, place: len };
            len += part_len;
            part
        });
        let parts = placed.collect();
        Self { parts, len, writes, lent: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// To write to a file.
    pub(crate) fn is_sent(&self) -> bool {
        self.writes
    }

    /// The memory of a range of the transfer, which is inside.
    fn range(&self, from: usize, len: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        assert!(from.checked_add(len).is_some_and(|end| end <= self.len), "inside the memory");
        let (mut at, end) = (from, from + len);
        let first = self.parts.partition_point(|part| part.place + part.len <= from);
        self.parts[first..].iter().map_while(move |part| {
            let from_part = at - part.place.min(at);
            let len = part.len.saturating_sub(from_part).min(end - at);
            at += len;
            (len > 0 || at < end).then(|| (part.pointer.wrapping_add(from_part), len))
        })
    }

    /// Makes a part of what was to be filled zeros; it is inside, and no operation is in flight there.
    pub(crate) fn fill_with_zeros(&mut self, from: usize, len: usize) {
        assert!(!self.writes, "to be filled");
        for (pointer, len) in self.range(from, len) {
            // SAFETY: valid for writes by `from_raw`, and inside.
            unsafe { pointer.write_bytes(0, len) }
        }
    }
}

/// Something contiguous in a piece and in the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atom {
    /// Where it is in the piece.
    pub(crate) local: u64,
    /// Where it is in the file.
    pub(crate) offset: u64,
    /// Where it is in the memory.
    pub(crate) place: usize,
    /// Bytes.
    pub(crate) len: usize,
}

/// What one piece takes part with, in the order of the memory.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) piece: usize,
    pub(crate) atoms: Vec<Atom>,
    extents: Vec<Extent>,
}

impl Work {
    fn push(&mut self, atom: Atom) {
        match self.extents.last_mut() {
            Some(last) if last.offset + last.len == atom.local => last.len += atom.len as u64,
            _ => self.extents.push(Extent::new(atom.local, atom.len as u64)),
        }
        self.atoms.push(atom);
    }

    pub(crate) fn len(&self) -> usize {
        self.atoms.iter().map(|atom| atom.len).sum()
    }

    /// The place in the memory behind the first `count` bytes of it.
    pub(crate) fn place_of(&self, mut count: usize) -> Option<usize> {
        for atom in &self.atoms {
            if count < atom.len {
                return Some(atom.place + count);
            }
            count -= atom.len;
        }
        None
    }
}

/// Deals extents of the file out to pieces; their total is the length of the memory.
pub(crate) fn deal_out(geometry: Geometry, extents: &[Extent]) -> Vec<Work> {
    let mut works: Vec<Work> = Vec::new();
    let mut work_of = vec![None; usize::try_from(geometry.factor).unwrap_or(0)];
    let mut place = 0;
    for extent in extents {
        for stripe in geometry.stripes(extent.offset, extent.len) {
            let at = *work_of[stripe.piece].get_or_insert_with(|| {
                works.push(Work { piece: stripe.piece, ..Work::default() });
                works.len() - 1
            });
            let len = usize::try_from(stripe.len).unwrap_or(usize::MAX);
            works[at].push(Atom { local: stripe.local, offset: stripe.offset, place, len });
            place += len;
        }
    }
    works
}

/// What became of the work of one piece.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    /// Bytes from its beginning without a gap.
    pub(crate) count: usize,
    /// Where the piece ended, when that was met: nothing was read behind it.
    pub(crate) end: Option<u64>,
}

/// Works in flight, in order. Dropping it cancels them, and waits until their memory is free.
pub(crate) struct Flight<'a> {
    pendings: Vec<Pending<Result<Moved, ClientError>>>,
    lent: PhantomData<Memory<'a>>,
}

impl<'a> Flight<'a> {
    pub(crate) fn new() -> Self {
        Self { pendings: Vec::new(), lent: PhantomData }
    }

    /// Starts the work of one piece on its file. Does not block.
    pub(crate) fn submit(&mut self, file: &Arc<File>, work: &Work, memory: &Memory<'a>) {
        let segments = |atom: &Atom| memory.range(atom.place, atom.len);
        let total = work.len();
        let pending = match (&work.extents[..], memory.writes) {
            ([extent], true) => {
                let segments = joined(work.atoms.iter().flat_map(segments))
                    .map(|(pointer, len)| (pointer.cast_const(), len));
                // SAFETY: inside memory that is lent for `'a`, which outlives this, and the operation has ended when this is dropped.
                unsafe { file.submit_write_vectored_raw_at(segments, extent.offset) }.map(whole)
            }
            ([extent], false) => {
                let (begin, segments) = (extent.offset, joined(work.atoms.iter().flat_map(segments)));
                // SAFETY: as above.
                unsafe { file.submit_read_vectored_raw_at(segments, begin) }.map(move |read| {
                    let end = |count: usize| (count < total).then(|| begin + count as u64);
                    read.map(|count| Moved { count, end: end(count) })
                })
            }
            (extents, true) => {
                let segments: Vec<_> = joined(work.atoms.iter().flat_map(segments))
                    .map(|(pointer, len)| (pointer.cast_const(), len))
                    .collect();
                // SAFETY: as above.
                unsafe { file.submit_write_list_raw(extents, &segments) }.map(whole)
            }
            (extents, false) => {
                let segments: Vec<_> = joined(work.atoms.iter().flat_map(segments)).collect();
                // SAFETY: as above.
                unsafe { file.submit_read_list_raw(extents, &segments) }
                    .map(|read| read.map(|read| Moved { count: read.count, end: read.end }))
            }
        };
        self.pendings.push(pending);
    }

    /// Moves them along; whether all have ended. Does not block.
    pub(crate) fn test(&mut self) -> bool {
        self.pendings.iter_mut().filter_map(|pending| (!pending.test()).then_some(())).count() == 0
    }

    /// Waits for all, and says what became of each. Blocks.
    pub(crate) fn wait(mut self) -> Vec<Result<Moved, ClientError>> {
        wait_ended(&mut self.pendings);
        std::mem::take(&mut self.pendings).into_iter().map(Pending::wait).collect()
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        for pending in self.pendings.drain(..) {
            let _ = pending.cancel();
        }
    }
}

fn whole(written: Result<usize, ClientError>) -> Result<Moved, ClientError> {
    written.map(|count| Moved { count, end: None })
}

/// Neighbours in memory are one segment.
fn joined(segments: impl Iterator<Item = (*mut u8, usize)>) -> impl Iterator<Item = (*mut u8, usize)> {
    let mut segments = segments.peekable();
    std::iter::from_fn(move || {
        let (pointer, mut len) = segments.next()?;
        while let Some((_, more)) =
            segments.next_if(|(next, _)| std::ptr::eq(*next, pointer.wrapping_add(len)))
        {
            len += more;
        }
        Some((pointer, len))
    })
}
