//! Batches of memory that the caller names by address: for callers in other languages, whose memory is not a Rust slice.
#![allow(unsafe_code, reason = "the documented unsafe forms that take addresses")]

use dafs_proto::extent::Extent;
use smallvec::SmallVec;

use crate::api::batch::io::OwnedBatch;
use crate::api::file::File;
use crate::memory::{Keep, Lent, RawMemory, RegisteredBuf};

impl OwnedBatch<Lent> {
    /// As [`OwnedBatch::read_list`], into memory by address and length, bytes. `registered` is the buffer that the one piece is, where it
    /// is a registered one.
    ///
    /// # Safety
    /// Each piece must be valid for writes, and not be used otherwise, until the batch has ended: until
    /// [`PendingBatch::wait`](crate::PendingBatch::wait) has returned, or the session has ended. Dropping what was submitted does not end
    /// it.
    pub unsafe fn read_list_raw(
        &mut self,
        file: &File,
        extents: &[Extent],
        memory: impl IntoIterator<Item = (*mut u8, usize)>,
        registered: Option<RegisteredBuf>,
    ) -> &mut Self {
        // SAFETY: promised by the caller.
        let memory = memory.into_iter().map(|(pointer, len)| unsafe { RawMemory::new(pointer, len) });
        self.push_raw((file, false), extents, memory.collect(), registered)
    }

    /// As [`OwnedBatch::write_list`], from memory by address and length, bytes. `registered` as of [`OwnedBatch::read_list_raw`].
    ///
    /// # Safety
    /// Each piece must be valid for reads, and not be written, until the batch has ended: see [`OwnedBatch::read_list_raw`].
    pub unsafe fn write_list_raw(
        &mut self,
        file: &File,
        extents: &[Extent],
        memory: impl IntoIterator<Item = (*const u8, usize)>,
        registered: Option<RegisteredBuf>,
    ) -> &mut Self {
        let memory = memory
            .into_iter()
            // SAFETY: promised by the caller; a write only reads the memory.
            .map(|(pointer, len)| unsafe { RawMemory::new(pointer.cast_mut(), len) });
        self.push_raw((file, true), extents, memory.collect(), registered)
    }

    fn push_raw(
        &mut self,
        (file, write): (&File, bool),
        extents: &[Extent],
        memory: SmallVec<[RawMemory; 1]>,
        registered: Option<RegisteredBuf>,
    ) -> &mut Self {
        let is_whole = memory.len() == 1;
        self.parts.push(file, write, extents, memory);
        // One of another session is ordinary memory here.
        let domain = &self.parts.owner.shared.domain;
        let own = registered.filter(|buffer| is_whole && buffer.range_in(domain).is_some());
        self.buffers.push(match own {
            Some(buffer) => {
                self.parts.is_registered(&buffer);
                Keep::Registered(buffer)
            }
            None => Keep::None,
        });
        self
    }
}
