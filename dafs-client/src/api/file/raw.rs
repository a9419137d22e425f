//! Transfers of memory that the caller names by address: for callers in other languages, whose memory is not a Rust slice.
#![allow(unsafe_code, reason = "the documented unsafe forms that take addresses")]

use dafs_proto::extent::Extent;
use dafs_proto::wire::Stability;
use smallvec::SmallVec;

use crate::api::file::File;
use crate::api::file::list::ListRead;
use crate::api::view::ViewPlace;
use crate::driver::pending::{Moved, Pending};
use crate::driver::transfer::Memory;
use crate::error::Result;
use crate::memory::{Keep, RawMemory};
use crate::op::list::FilePart;
use crate::op::transfer::TransferKind;

impl File {
    /// As [`File::read_vectored_at`], into memory by address and length, bytes. Blocks.
    ///
    /// # Safety
    /// As of [`File::read_list_raw`].
    pub unsafe fn read_vectored_raw_at(
        &self,
        memory: impl IntoIterator<Item = (*mut u8, usize)>,
        offset: u64,
    ) -> Result<usize> {
        // SAFETY: promised by the caller.
        let memory = memory.into_iter().map(|(pointer, len)| unsafe { RawMemory::new(pointer, len) });
        self.run_part(TransferKind::Read, FilePart::At(offset), Memory::Raw(memory.collect()))?.outcome()
    }

    /// As [`File::write_vectored_at`], from memory by address and length, bytes. Blocks.
    ///
    /// # Safety
    /// As of [`File::write_list_raw`].
    pub unsafe fn write_vectored_raw_at(
        &self,
        memory: impl IntoIterator<Item = (*const u8, usize)>,
        offset: u64,
        stability: Stability,
    ) -> Result<usize> {
        let memory = memory
            .into_iter()
            // SAFETY: promised by the caller; a write only reads the memory.
            .map(|(pointer, len)| unsafe { RawMemory::new(pointer.cast_mut(), len) });
        let kind = TransferKind::Write(stability);
        self.run_part(kind, FilePart::At(offset), Memory::Raw(memory.collect()))?.outcome()
    }

    /// Nonblocking form of [`File::read_vectored_raw_at`].
    ///
    /// # Safety
    /// As of [`File::submit_read_list_raw`].
    pub unsafe fn submit_read_vectored_raw_at(
        &self,
        memory: impl IntoIterator<Item = (*mut u8, usize)>,
        offset: u64,
    ) -> Pending<Result<usize>> {
        // SAFETY: promised by the caller.
        let memory = memory.into_iter().map(|(pointer, len)| unsafe { RawMemory::new(pointer, len) });
        let memory = Memory::Raw(memory.collect());
        self.submit(self.parts(TransferKind::Read, FilePart::At(offset), memory, Keep::None), Moved::outcome)
    }

    /// Nonblocking form of [`File::write_vectored_raw_at`], as durable as the file was opened for.
    ///
    /// # Safety
    /// As of [`File::submit_write_list_raw`].
    pub unsafe fn submit_write_vectored_raw_at(
        &self,
        memory: impl IntoIterator<Item = (*const u8, usize)>,
        offset: u64,
    ) -> Pending<Result<usize>> {
        let memory = memory
            .into_iter()
            // SAFETY: promised by the caller; a write only reads the memory.
            .map(|(pointer, len)| unsafe { RawMemory::new(pointer.cast_mut(), len) });
        let (kind, memory) = (TransferKind::Write(self.stability), Memory::Raw(memory.collect()));
        self.submit(self.parts(kind, FilePart::At(offset), memory, Keep::None), Moved::outcome)
    }

    /// Nonblocking form of [`File::append`] from memory that the caller keeps.
    ///
    /// # Safety
    /// As of [`File::submit_write_list_raw`].
    pub unsafe fn submit_append_raw(&self, pointer: *const u8, len: usize) -> Pending<Result<u64>> {
        // SAFETY: promised by the caller; a write only reads the memory.
        let memory = Memory::Raw(SmallVec::from_buf([unsafe { RawMemory::new(pointer.cast_mut(), len) }]));
        let kind = TransferKind::Append(self.stability);
        self.submit(self.parts(kind, FilePart::At(0), memory, Keep::None), Moved::position)
    }

    /// As [`File::read_list`], into memory by address and length, bytes. Blocks.
    ///
    /// # Safety
    /// Each piece must be valid for writes, and not be used otherwise until this returns. Pieces may overlap: the bytes there are then
    /// those of one of them.
    pub unsafe fn read_list_raw(
        &self,
        extents: &[Extent],
        memory: impl IntoIterator<Item = (*mut u8, usize)>,
    ) -> Result<ListRead> {
        // SAFETY: promised by the caller.
        let memory = memory.into_iter().map(|(pointer, len)| unsafe { RawMemory::new(pointer, len) });
        self.run_list(TransferKind::Read, extents, Memory::Raw(memory.collect()))?.outcome()
    }

    /// As [`File::read_view`], into memory by address and length, bytes. Blocks.
    ///
    /// # Safety
    /// As of [`File::read_list_raw`].
    pub unsafe fn read_view_raw(
        &self,
        from: &ViewPlace<'_>,
        memory: impl IntoIterator<Item = (*mut u8, usize)>,
    ) -> Result<ListRead> {
        // SAFETY: promised by the caller.
        let memory = memory.into_iter().map(|(pointer, len)| unsafe { RawMemory::new(pointer, len) });
        self.run_view(TransferKind::Read, from, Memory::Raw(memory.collect()))?.outcome()
    }

    /// As [`File::write_view`], from memory by address and length, bytes. Blocks.
    ///
    /// # Safety
    /// As of [`File::write_list_raw`].
    pub unsafe fn write_view_raw(
        &self,
        to: &ViewPlace<'_>,
        memory: impl IntoIterator<Item = (*const u8, usize)>,
    ) -> Result<usize> {
        let memory = memory
            .into_iter()
            // SAFETY: promised by the caller; a write only reads the memory.
            .map(|(pointer, len)| unsafe { RawMemory::new(pointer.cast_mut(), len) });
        self.run_view(TransferKind::Write(self.stability), to, Memory::Raw(memory.collect()))?.outcome()
    }

    /// Nonblocking form of [`File::read_view_raw`].
    ///
    /// # Safety
    /// As of [`File::submit_read_list_raw`].
    pub unsafe fn submit_read_view_raw(
        &self,
        from: &ViewPlace<'_>,
        memory: impl IntoIterator<Item = (*mut u8, usize)>,
    ) -> Pending<Result<ListRead>> {
        // SAFETY: promised by the caller.
        let memory = memory.into_iter().map(|(pointer, len)| unsafe { RawMemory::new(pointer, len) });
        self.submit_view_raw(TransferKind::Read, from, memory.collect())
    }

    /// Nonblocking form of [`File::write_view_raw`].
    ///
    /// # Safety
    /// As of [`File::submit_write_list_raw`].
    pub unsafe fn submit_write_view_raw(
        &self,
        to: &ViewPlace<'_>,
        memory: impl IntoIterator<Item = (*const u8, usize)>,
    ) -> Pending<Result<usize>> {
        let memory = memory
            .into_iter()
            // SAFETY: promised by the caller; a write only reads the memory.
            .map(|(pointer, len)| unsafe { RawMemory::new(pointer.cast_mut(), len) });
        self.submit_view_raw(TransferKind::Write(self.stability), to, memory.collect())
    }

    /// As [`File::write_list`], from memory by address and length, bytes. Blocks.
    ///
    /// # Safety
    /// Each piece must be valid for reads, and not be written until this returns.
    pub unsafe fn write_list_raw(
        &self,
        extents: &[Extent],
        memory: impl IntoIterator<Item = (*const u8, usize)>,
    ) -> Result<usize> {
        let memory = memory
            .into_iter()
            // SAFETY: promised by the caller; a write only reads the memory.
            .map(|(pointer, len)| unsafe { RawMemory::new(pointer.cast_mut(), len) });
        let kind = TransferKind::Write(self.stability);
        self.run_list(kind, extents, Memory::Raw(memory.collect()))?.outcome()
    }
}
