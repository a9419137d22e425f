//! Reads and writes of lists.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use dafs_proto::extent::Extent;
use dafs_proto::transport::RemoteRange;
use dafs_proto::wire::Stability;
use smallvec::SmallVec;

use crate::api::file::File;
use crate::driver::pending::{Moved, Pending, Transferred};
use crate::driver::transfer::Memory;
use crate::error::{Error, Result};
use crate::memory::{IoBuffer, Keep, RawMemory, RegisteredBuf};
use crate::op::list::FilePart;
use crate::op::transfer::{Transfer, TransferKind};

/// What a read of a list brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRead {
    /// Bytes read from the beginning of the list without a gap: all of it, unless the file ended before.
    pub count: usize,
    /// Where the file ended, when that was met. What lies before it was read, of every extent; what lies behind it was not.
    pub end: Option<u64>,
}

impl ListRead {
    /// Bytes that were read of an extent of the list.
    pub fn of(&self, extent: &Extent) -> u64 {
        extent.len_before(self.end.unwrap_or(u64::MAX))
    }
}

/// The end of a nonblocking transfer of a list: the buffers come back whatever became of it.
#[derive(Debug)]
#[must_use = "the result tells whether data was moved"]
pub struct ListTransferred<B, T> {
    /// The buffers, in order. After a read, bytes that were not read are undefined.
    pub buffers: Vec<B>,
    /// What was moved.
    pub result: Result<T>,
}

/// Lists: many extents of the file, and many pieces of memory, in one operation. The counts need not match, only the totals: byte `n` of
/// the extents, in the order in which they are given, belongs to byte `n` of the memory.
///
/// One request moves as much as a message can describe, some hundreds of extents at least; what is longer is cut into requests that are in
/// flight together. Extents may touch, overlap and come in any order: where written ones overlap, the last in the list counts. A list is
/// not one atomic operation.
impl File {
    /// Reads a list of extents into slices. Blocks.
    ///
    /// Fails with [`Error::Invalid`] when the totals differ or an extent lies beyond the end of any file; then nothing was sent.
    ///
    /// ```no_run
    /// # fn f(file: &dafs_client::File) -> dafs_client::Result<()> {
    /// use std::io::IoSliceMut;
    /// use dafs_client::Extent;
    /// // A column of a matrix with rows of 4,096 bytes: 16 bytes of each of 100 rows, side by side in memory.
    /// let rows: Vec<Extent> = (0..100).map(|row| Extent::new(row * 4096 + 64, 16)).collect();
    /// let mut column = [0; 1600];
    /// let read = file.read_list(&rows, &mut [IoSliceMut::new(&mut column)])?;
    /// assert_eq!(read.count, 1600);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_list(&self, extents: &[Extent], buffers: &mut [IoSliceMut<'_>]) -> Result<ListRead> {
        let memory = Memory::Raw(RawMemory::all_of_mut(buffers));
        self.run_list(TransferKind::Read, extents, memory)?.outcome()
    }

    /// Writes slices to a list of extents, as durable as the file was opened for; returns the bytes written without a gap from the
    /// beginning of the list, fewer than given only when the server met an error after them. Blocks. Errors as of [`File::read_list`].
    pub fn write_list(&self, extents: &[Extent], buffers: &[IoSlice<'_>]) -> Result<usize> {
        self.write_list_with(extents, buffers, self.stability)
    }

    /// As [`File::write_list`], as durable as asked for.
    pub fn write_list_with(
        &self,
        extents: &[Extent],
        buffers: &[IoSlice<'_>],
        stability: Stability,
    ) -> Result<usize> {
        let memory = Memory::Raw(RawMemory::all_of(buffers));
        self.run_list(TransferKind::Write(stability), extents, memory)?.outcome()
    }

    /// Reads a list of extents into parts of a registered buffer: no copy, no registration. Blocks. Where the parts overlap, the bytes are
    /// those of one of them. [`Error::Invalid`] also when a part is not inside the buffer.
    pub fn read_list_buf(
        &self,
        extents: &[Extent],
        buffer: &mut RegisteredBuf,
        parts: &[Range<usize>],
    ) -> Result<ListRead> {
        self.run_list_buf(TransferKind::Read, extents, buffer, parts)?.outcome()
    }

    /// Writes parts of a registered buffer to a list of extents: no copy, no registration. Otherwise as [`File::write_list`].
    pub fn write_list_buf(
        &self,
        extents: &[Extent],
        buffer: &RegisteredBuf,
        parts: &[Range<usize>],
    ) -> Result<usize> {
        self.run_list_buf(TransferKind::Write(self.stability), extents, buffer, parts)?.outcome()
    }

    /// Nonblocking form of [`File::read_list`], into `Vec<u8>`s (all `len` bytes of each) or [`RegisteredBuf`]s, which the operation owns
    /// until it is collected.
    pub fn submit_read_list<B: IoBuffer>(
        &self,
        extents: &[Extent],
        buffers: Vec<B>,
    ) -> Pending<ListTransferred<B, ListRead>> {
        self.submit_list(TransferKind::Read, extents, buffers)
    }

    /// Nonblocking form of [`File::write_list`]. The operation owns the buffers until it is collected.
    pub fn submit_write_list<B: IoBuffer>(
        &self,
        extents: &[Extent],
        buffers: Vec<B>,
    ) -> Pending<ListTransferred<B, usize>> {
        self.submit_list(TransferKind::Write(self.stability), extents, buffers)
    }

    /// Nonblocking form of [`File::read_list_buf`]; the count is that of [`ListRead`].
    pub fn submit_read_list_buf(
        &self,
        extents: &[Extent],
        buffer: RegisteredBuf,
        parts: &[Range<usize>],
    ) -> Pending<Transferred<RegisteredBuf>> {
        self.submit_list_buf(TransferKind::Read, extents, buffer, parts)
    }

    /// Nonblocking form of [`File::write_list_buf`].
    pub fn submit_write_list_buf(
        &self,
        extents: &[Extent],
        buffer: RegisteredBuf,
        parts: &[Range<usize>],
    ) -> Pending<Transferred<RegisteredBuf>> {
        self.submit_list_buf(TransferKind::Write(self.stability), extents, buffer, parts)
    }

    pub(crate) fn run_list(&self, kind: TransferKind, extents: &[Extent], memory: Memory) -> Result<Moved> {
        self.run_part(kind, FilePart::of(extents), memory)
    }

    pub(crate) fn run_part(&self, kind: TransferKind, part: FilePart, memory: Memory) -> Result<Moved> {
        let parts = self.parts(kind, part, memory, Keep::None);
        self.owner.shared.run_transfer(Arc::clone(&self.node), parts).map(Moved::of)
    }

    fn run_list_buf(
        &self,
        kind: TransferKind,
        extents: &[Extent],
        buffer: &RegisteredBuf,
        parts: &[Range<usize>],
    ) -> Result<Moved> {
        self.run_part_buf(kind, FilePart::of(extents), buffer, parts)
    }

    pub(crate) fn run_part_buf(
        &self,
        kind: TransferKind,
        part: FilePart,
        buffer: &RegisteredBuf,
        parts: &[Range<usize>],
    ) -> Result<Moved> {
        let was_alive = self.owner.shared.lock().dead.is_none();
        let moved = self.run_part(kind, part, self.parts_of(buffer, parts)?)?;
        if was_alive && moved.result.is_err() && self.owner.shared.lock().dead.is_some() {
            buffer.revoke();
        }
        Ok(moved)
    }

    /// Parts of a buffer as memory of a transfer.
    fn parts_of(&self, buffer: &RegisteredBuf, parts: &[Range<usize>]) -> Result<Memory> {
        let (whole, range) = (buffer.raw(), buffer.range_in(&self.owner.shared.domain));
        let mut memory = SmallVec::with_capacity(parts.len());
        let mut ranges: Option<SmallVec<[RemoteRange; 1]>> = Some(SmallVec::with_capacity(parts.len()));
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let len = part.end - part.start;
            let Some(piece) = whole.slice(part.start, len) else {
                let what = format!("bytes {part:?} of a buffer of {} bytes", buffer.len());
                return Err(Error::Invalid(what));
            };
            memory.push(piece);
            let range = range.and_then(|range| range.slice(part.start as u64, len as u64));
            match (&mut ranges, range) {
                (Some(ranges), Some(range)) => ranges.push(range),
                _ => ranges = None,
            }
        }
        match buffer.is_registered() {
            true => Ok(Memory::RegisteredParts(memory, ranges)),
            false => Ok(Memory::Raw(memory)),
        }
    }

    fn submit_list<B: IoBuffer, T: From<Transfer>>(
        &self,
        kind: TransferKind,
        extents: &[Extent],
        buffers: Vec<B>,
    ) -> Pending<ListTransferred<B, T>> {
        let mut keeps: Vec<Keep> = buffers.into_iter().map(|buffer| buffer.into_keep().0).collect();
        let registered = keeps.iter().map(|keep| match keep {
            Keep::Registered(buffer) if buffer.is_registered() => {
                Some(buffer.range_in(&self.owner.shared.domain))
            }
            _ => None,
        });
        // All buffers are of one type: all have a range, or none, or some could not be registered.
        let ranges: Option<Vec<Option<RemoteRange>>> = registered.collect();
        let raw = keeps.iter_mut().map(Keep::raw).collect();
        let memory = match ranges {
            Some(ranges) if !ranges.is_empty() => Memory::RegisteredParts(raw, ranges.into_iter().collect()),
            _ => Memory::Raw(raw),
        };
        let parts = self.parts(kind, FilePart::of(extents), memory, Keep::Many(keeps));
        self.submit(parts, |moved| ListTransferred {
            buffers: moved.keep.unpacked(),
            result: moved.result.map(T::from),
        })
    }

    fn submit_list_buf(
        &self,
        kind: TransferKind,
        extents: &[Extent],
        buffer: RegisteredBuf,
        parts: &[Range<usize>],
    ) -> Pending<Transferred<RegisteredBuf>> {
        let memory = match self.parts_of(&buffer, parts) {
            Ok(memory) => memory,
            Err(error) => return Pending::ready(Transferred { buffer, result: Err(error) }),
        };
        let parts = self.parts(kind, FilePart::of(extents), memory, Keep::Registered(buffer));
        self.submit(parts, Moved::transferred)
    }
}

impl From<Transfer> for ListRead {
    fn from(moved: Transfer) -> Self {
        Self { count: moved.count(), end: moved.file_end() }
    }
}
