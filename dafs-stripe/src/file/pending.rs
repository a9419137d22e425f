//! Nonblocking transfers that own their buffer.
#![allow(unsafe_code, reason = "a transfer and the buffer that it owns, in one value")]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use dafs_client::{Extent, IoBuffer, Pending, Transferred};

use crate::error::Result;
use crate::file::flight::Memory;
use crate::file::striped::Striped;
use crate::file::transfer::Transfer;
use crate::file::{File, Kind};
use dafs_proto::extent::OFFSET_MAX;

/// A submitted transfer. [`PendingTransfer::test`] says whether it has ended, and [`PendingTransfer::wait`] collects it. Dropping it
/// cancels it, and waits until its memory is free.
#[must_use = "a submitted transfer is collected with `wait`"]
pub struct PendingTransfer<B: IoBuffer> {
    state: State<B>,
}

enum State<B: IoBuffer> {
    Plain(Pending<Transferred<B>>),
    Striped(Owned<B>),
    Refused(B, crate::Error),
}

/// A transfer on memory of the buffer beside it, which nobody touches before the transfer is gone.
struct Owned<B> {
    /// Before the buffer, and taken or dropped before it.
    transfer: ManuallyDrop<Transfer<'static>>,
    buffer: ManuallyDrop<B>,
    striped: Arc<Striped>,
}

impl<B> Owned<B> {
    /// Waits for the end. Blocks.
    fn finish(self) -> (B, Result<usize>) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: each field is taken once, from a value that is not dropped.
        let (transfer, buffer, striped) = unsafe {
            let transfer = ManuallyDrop::take(&mut this.transfer);
            (transfer, ManuallyDrop::take(&mut this.buffer), std::ptr::read(&raw const this.striped))
        };
        // The bytes of the buffer are at an address that does not change with it.
        let result = transfer.finish(&striped).map(|read| read.count);
        (buffer, result)
    }
}

impl<B> Drop for Owned<B> {
    fn drop(&mut self) {
        // SAFETY: neither is used afterwards; the transfer has let go of the buffer when it is dropped.
        unsafe {
            ManuallyDrop::drop(&mut self.transfer);
            ManuallyDrop::drop(&mut self.buffer);
        }
    }
}

impl<B: IoBuffer + std::ops::DerefMut<Target = [u8]>> PendingTransfer<B> {
    pub(crate) fn read(file: &File, buffer: B, offset: u64) -> Self {
        Self { state: State::begin(file, buffer, offset, false) }
    }

    pub(crate) fn write(file: &File, buffer: B, offset: u64) -> Self {
        Self { state: State::begin(file, buffer, offset, true) }
    }

    /// Moves it along, and returns whether it has ended. Does not block.
    pub fn test(&mut self) -> bool {
        match &mut self.state {
            State::Plain(pending) => pending.test(),
            State::Striped(owned) => owned.transfer.test(),
            State::Refused(..) => true,
        }
    }

    /// Waits for the end; the buffer comes back whatever became of it. Blocks.
    pub fn wait(self) -> (B, Result<usize>) {
        match self.state {
            State::Plain(pending) => {
                let Transferred { buffer, result } = pending.wait();
                (buffer, result.map_err(Into::into))
            }
            State::Striped(owned) => owned.finish(),
            State::Refused(buffer, error) => (buffer, Err(error)),
        }
    }
}

impl<B: IoBuffer + std::ops::DerefMut<Target = [u8]>> State<B> {
    fn begin(file: &File, mut buffer: B, offset: u64, writes: bool) -> Self {
        let striped = match &file.kind {
            Kind::Plain(file) if writes => return Self::Plain(file.submit_write_at(buffer, offset)),
            Kind::Plain(file) => return Self::Plain(file.submit_read_at(buffer, offset)),
            Kind::Striped(striped) => Arc::clone(striped),
        };
        let len = buffer.len();
        if offset.checked_add(len as u64).is_none_or(|end| end > OFFSET_MAX) {
            let what = format!("{len} bytes at {offset}: beyond the largest file");
            return Self::Refused(buffer, crate::Error::Invalid(what));
        }
        let bytes = buffer.deref_mut();
        // SAFETY: vectors and registered buffers keep their bytes where they are when they are moved; `Owned` keeps the buffer longer than
        // the transfer, and nobody reaches it there.
        let bytes: &'static mut [u8] = unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), len) };
        let memory = if writes { Memory::to_send(bytes) } else { Memory::to_fill(bytes) };
        let transfer = ManuallyDrop::new(striped.begin(&[Extent::new(offset, len as u64)], memory));
        Self::Striped(Owned { transfer, buffer: ManuallyDrop::new(buffer), striped })
    }
}
