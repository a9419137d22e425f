//! Blocking transfers of memory that the caller names by address: for callers in other languages, whose memory is no slice of Rust.
#![allow(unsafe_code, reason = "the documented unsafe forms that take addresses")]

use dafs_proto::extent::Extent;

use crate::api::file::File;
use crate::api::file::list::ListRead;
use crate::driver::transfer::Memory;
use crate::error::Result;
use crate::memory::RawMemory;
use crate::op::transfer::TransferKind;

impl File {
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
