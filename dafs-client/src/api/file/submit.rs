//! Nonblocking transfers of a file.
#![allow(unsafe_code, reason = "the documented unsafe forms that borrow memory")]

use std::sync::Arc;

use dafs_proto::extent::Extent;
use dafs_proto::wire::Stability;
use smallvec::SmallVec;

use crate::api::file::list::{ListRead, list_parts, list_read};
use crate::api::file::{File, appended};
use crate::driver::pending::{Finish, Pending, Transferred, count, transferred};
use crate::driver::transfer::{Memory, submit_transfer};
use crate::error::Result;
use crate::memory::{IoBuffer, Keep, KeepBox, RawMemory};
use crate::op::transfer::TransferKind;

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

    /// Nonblocking form of [`File::append`]: answers where the data went. The operation owns the buffer until it has ended, and drops it.
    pub fn submit_append<B: IoBuffer>(&self, buffer: B) -> Pending<Result<u64>> {
        let kind = TransferKind::Append(self.stability);
        let parts = self.parts(kind, 0, Memory::Kept, buffer.into_keep().0);
        let path = self.node.path.clone();
        let finish = Finish::boxed(move |op| appended(op, &path));
        submit_transfer(&self.owner, Arc::clone(&self.node), parts, finish, |error, _| Err(error))
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
        let parts = list_parts(
            TransferKind::Read,
            extents,
            Memory::Raw(memory.collect()),
            Keep::None,
            self.registration_policy(),
        );
        let finish = Finish::Plain(list_read);
        submit_transfer(&self.owner, Arc::clone(&self.node), parts, finish, |error, _| Err(error))
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
        let kind = TransferKind::Write(self.stability);
        let parts =
            list_parts(kind, extents, Memory::Raw(memory.collect()), Keep::None, self.registration_policy());
        submit_transfer(&self.owner, Arc::clone(&self.node), parts, Finish::Plain(count), |error, _| {
            Err(error)
        })
    }

    fn submit_owned<B: IoBuffer>(
        &self,
        kind: TransferKind,
        buffer: B,
        offset: u64,
    ) -> Pending<Transferred<B>> {
        let parts = self.parts(kind, offset, Memory::Kept, buffer.into_keep().0);
        let finish = Finish::Plain(transferred::<B>);
        submit_transfer(&self.owner, Arc::clone(&self.node), parts, finish, |error, keep| Transferred {
            buffer: B::from_keep(KeepBox(keep)),
            result: Err(error),
        })
    }

    fn submit_raw(&self, kind: TransferKind, memory: RawMemory, offset: u64) -> Pending<Result<usize>> {
        let memory = Memory::Raw(SmallVec::from_buf([memory]));
        let parts = self.parts(kind, offset, memory, Keep::None);
        submit_transfer(&self.owner, Arc::clone(&self.node), parts, Finish::Plain(count), |error, _| {
            Err(error)
        })
    }
}
