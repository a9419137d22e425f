//! Nonblocking transfers of a file.
#![allow(unsafe_code, reason = "the documented unsafe forms that borrow memory")]

use dafs_proto::extent::Extent;
use dafs_proto::wire::Stability;
use smallvec::SmallVec;

use crate::api::file::File;
use crate::api::file::list::ListRead;
use crate::driver::pending::{Moved, Pending, Transferred};
use crate::driver::transfer::Memory;
use crate::error::Result;
use crate::memory::{IoBuffer, Keep, RawMemory};
use crate::op::list::FilePart;
use crate::op::transfer::{Transfer, TransferKind};

impl File {
    /// Nonblocking form of [`File::read_at`], into a `Vec<u8>` (all `len` bytes of it) or a [`crate::RegisteredBuf`],
    /// which the operation owns until it is collected.
    pub fn submit_read_at<B: IoBuffer>(&self, buffer: B, offset: u64) -> Pending<Transferred<B>> {
        self.submit_owned(TransferKind::Read, buffer, offset)
    }

    /// Nonblocking form of [`File::write_at`]. The operation owns the buffer until it is collected.
    pub fn submit_write_at<B: IoBuffer>(&self, buffer: B, offset: u64) -> Pending<Transferred<B>> {
        self.submit_owned(TransferKind::Write(self.stability), buffer, offset)
    }

    /// Nonblocking form of [`File::write_at_with`]. The operation owns the buffer until it is collected.
    pub fn submit_write_at_with<B: IoBuffer>(
        &self,
        buffer: B,
        offset: u64,
        stability: Stability,
    ) -> Pending<Transferred<B>> {
        self.submit_owned(TransferKind::Write(stability), buffer, offset)
    }

    /// Nonblocking form of [`File::append`]: returns where the data went. The operation owns the buffer until it has ended, and drops it.
    pub fn submit_append<B: IoBuffer>(&self, buffer: B) -> Pending<Result<u64>> {
        let kind = TransferKind::Append(self.stability);
        self.submit(self.parts(kind, FilePart::At(0), Memory::Kept, buffer.into_keep().0), Moved::position)
    }

    /// Nonblocking read into memory that the caller keeps.
    ///
    /// # Safety
    /// `pointer..pointer + len` must be valid for writes, and not be used otherwise, until the operation has ended:
    /// until [`Pending::wait`] or [`Pending::cancel`] has returned, or the session has ended. Dropping the `Pending`
    /// does not end the operation.
    pub unsafe fn submit_read_raw_at(
        &self,
        pointer: *mut u8,
        len: usize,
        offset: u64,
    ) -> Pending<Result<usize>> {
        // SAFETY: promised by the caller.
        let memory = unsafe { RawMemory::new(pointer, len) };
        self.submit_raw(TransferKind::Read, memory, offset)
    }

    /// Nonblocking write from memory that the caller keeps.
    ///
    /// # Safety
    /// `pointer..pointer + len` must be valid for reads, and not be written, until the operation has ended: see
    /// [`File::submit_read_raw_at`].
    pub unsafe fn submit_write_raw_at(
        &self,
        pointer: *const u8,
        len: usize,
        offset: u64,
    ) -> Pending<Result<usize>> {
        // SAFETY: promised by the caller; a write only reads the memory.
        let memory = unsafe { RawMemory::new(pointer.cast_mut(), len) };
        self.submit_raw(TransferKind::Write(self.stability), memory, offset)
    }

    /// Nonblocking read of a list into memory that the caller keeps: addresses and lengths, bytes.
    ///
    /// # Safety
    /// Each piece must be valid for writes, and not be used otherwise, until the operation has ended: until [`Pending::wait`] or
    /// [`Pending::cancel`] has returned, or the session has ended. Dropping the `Pending` does not end the operation.
    pub unsafe fn submit_read_list_raw(
        &self,
        extents: &[Extent],
        memory: &[(*mut u8, usize)],
    ) -> Pending<Result<ListRead>> {
        // SAFETY: promised by the caller.
        let memory = memory.iter().map(|&(pointer, len)| unsafe { RawMemory::new(pointer, len) });
        self.submit_list_raw(TransferKind::Read, extents, memory.collect())
    }

    /// Nonblocking write of a list from memory that the caller keeps: addresses and lengths, bytes.
    ///
    /// # Safety
    /// Each piece must be valid for reads, and not be written, until the operation has ended: see [`File::submit_read_list_raw`].
    pub unsafe fn submit_write_list_raw(
        &self,
        extents: &[Extent],
        memory: &[(*const u8, usize)],
    ) -> Pending<Result<usize>> {
        let memory = memory
            .iter()
            // SAFETY: promised by the caller; a write only reads the memory.
            .map(|&(pointer, len)| unsafe { RawMemory::new(pointer.cast_mut(), len) });
        self.submit_list_raw(TransferKind::Write(self.stability), extents, memory.collect())
    }

    fn submit_owned<B: IoBuffer>(
        &self,
        kind: TransferKind,
        buffer: B,
        offset: u64,
    ) -> Pending<Transferred<B>> {
        self.submit(
            self.parts(kind, FilePart::At(offset), Memory::Kept, buffer.into_keep().0),
            Moved::transferred,
        )
    }

    fn submit_raw(&self, kind: TransferKind, memory: RawMemory, offset: u64) -> Pending<Result<usize>> {
        let memory = Memory::Raw(SmallVec::from_buf([memory]));
        self.submit(self.parts(kind, FilePart::At(offset), memory, Keep::None), Moved::outcome)
    }

    fn submit_list_raw<T: From<Transfer>>(
        &self,
        kind: TransferKind,
        extents: &[Extent],
        memory: SmallVec<[RawMemory; 1]>,
    ) -> Pending<Result<T>> {
        self.submit(self.parts(kind, FilePart::of(extents), Memory::Raw(memory), Keep::None), Moved::outcome)
    }
}
