//! Transfers of memory that the caller names by address: for callers in other languages, whose memory is not a Rust slice.
#![allow(unsafe_code, reason = "the documented unsafe forms that take addresses")]

use std::sync::Arc;

use dafs_client::{Extent, ListRead, Pending};

use crate::error::Result;
use crate::file::flight::Memory;
use crate::file::striped::Striped;
use crate::file::transfer::{Transfer, check};
use crate::file::{File, Kind};

/// A submitted transfer of memory that the caller keeps. Dropping it cancels it, and waits until the memory is free.
#[must_use = "a submitted transfer is collected with `wait`"]
pub struct PendingList {
    state: State,
}

enum State {
    Plain(Option<Pending<dafs_client::Result<usize>>>),
    Striped(Transfer<'static>, Arc<Striped>),
    Refused(crate::Error),
}

impl File {
    /// As [`File::read_list`], into memory by address and length, bytes. Blocks.
    ///
    /// # Safety
    /// Each piece must be valid for writes, and not be used otherwise until this returns.
    pub unsafe fn read_list_raw(
        &self,
        extents: &[Extent],
        memory: impl IntoIterator<Item = (*mut u8, usize)>,
    ) -> Result<ListRead> {
        match &self.kind {
            // SAFETY: promised by the caller.
            Kind::Plain(file) => Ok(unsafe { file.read_list_raw(extents, memory) }?),
            // SAFETY: as above.
            Kind::Striped(striped) => striped.read_list(extents, unsafe { Memory::from_raw(memory, false) }),
        }
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
        match &self.kind {
            // SAFETY: promised by the caller.
            Kind::Plain(file) => Ok(unsafe { file.write_list_raw(extents, memory) }?),
            Kind::Striped(striped) => {
                let memory = memory.into_iter().map(|(pointer, len)| (pointer.cast_mut(), len));
                // SAFETY: as above; a write only reads the memory.
                striped.write_list(extents, unsafe { Memory::from_raw(memory, true) })
            }
        }
    }

    /// Nonblocking form of [`File::read_list_raw`].
    ///
    /// # Safety
    /// Each piece must be valid for writes, and not be used otherwise, until what is returned was waited for or dropped.
    pub unsafe fn submit_read_list_raw(
        &self,
        extents: &[Extent],
        memory: &[(*mut u8, usize)],
    ) -> PendingList {
        match &self.kind {
            Kind::Plain(file) => {
                // SAFETY: promised by the caller; dropping it cancels it.
                let pending = unsafe { file.submit_read_list_raw(extents, memory) };
                PendingList { state: State::Plain(Some(pending.map(|read| read.map(|read| read.count)))) }
            }
            Kind::Striped(striped) => {
                // SAFETY: as above.
                PendingList::striped(striped, extents, unsafe {
                    Memory::from_raw(memory.iter().copied(), false)
                })
            }
        }
    }

    /// Nonblocking form of [`File::write_list_raw`].
    ///
    /// # Safety
    /// Each piece must be valid for reads, and not be written, until what is returned was waited for or dropped.
    pub unsafe fn submit_write_list_raw(
        &self,
        extents: &[Extent],
        memory: &[(*const u8, usize)],
    ) -> PendingList {
        match &self.kind {
            Kind::Plain(file) => {
                // SAFETY: promised by the caller; dropping it cancels it.
                let pending = unsafe { file.submit_write_list_raw(extents, memory) };
                PendingList { state: State::Plain(Some(pending)) }
            }
            Kind::Striped(striped) => {
                let memory = memory.iter().map(|&(pointer, len)| (pointer.cast_mut(), len));
                // SAFETY: as above; a write only reads the memory.
                PendingList::striped(striped, extents, unsafe { Memory::from_raw(memory, true) })
            }
        }
    }
}

impl PendingList {
    fn striped(striped: &Arc<Striped>, extents: &[Extent], memory: Memory<'static>) -> Self {
        let state = match check(extents, memory.len()) {
            Ok(()) => State::Striped(striped.begin(extents, memory), Arc::clone(striped)),
            Err(error) => State::Refused(error),
        };
        Self { state }
    }

    /// Moves it along, and returns whether it has ended. Does not block.
    pub fn test(&mut self) -> bool {
        match &mut self.state {
            State::Plain(pending) => pending.as_mut().is_none_or(Pending::test),
            State::Striped(transfer, _) => transfer.test(),
            State::Refused(_) => true,
        }
    }

    /// Waits for the end; the bytes moved from the beginning without a gap. Blocks.
    pub fn wait(mut self) -> Result<usize> {
        match std::mem::replace(&mut self.state, State::Plain(None)) {
            State::Plain(pending) => Ok(pending.map_or(Ok(0), Pending::wait)?),
            State::Striped(transfer, striped) => transfer.finish(&striped).map(|read| read.count),
            State::Refused(error) => Err(error),
        }
    }
}

impl Drop for PendingList {
    fn drop(&mut self) {
        // A transfer of several servers does so by itself.
        if let State::Plain(pending) = &mut self.state
            && let Some(pending) = pending.take()
        {
            let _ = pending.cancel();
        }
    }
}
