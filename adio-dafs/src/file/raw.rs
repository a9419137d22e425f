//! Calls of the client library with memory by address. All that is called here belongs to a [`super::Transfer`], whose maker promised that
//! the memory is there until the transfer has ended.
#![allow(unsafe_code, reason = "memory of MPI programs, by address")]

use dafs_client::{Direction, Error, Extent, ListRead, LockKind, Opcode, Pending, Result, Status};
use dafs_stripe::PendingList;

use super::view::Viewed;
use crate::layout::{Group, MemoryPart, PieceGroup, Segment};

/// What moves the data of a file.
#[derive(Clone, Copy)]
pub(super) enum Reach<'a> {
    /// One server.
    Plain(&'a dafs_client::File),
    /// Several.
    Striped(&'a dafs_stripe::File),
}

/// What went wrong with several servers, as of one: the words say which.
pub(super) fn of_servers(error: dafs_stripe::Error) -> Error {
    use dafs_stripe::Error as E;
    let told = error.to_string();
    match error {
        E::Client(error) => error,
        E::Invalid(what) => Error::Invalid(what),
        // What a server answered has a class of its own, but a piece that is not there is no missing file.
        E::Server { source: Error::Status { status, operation, path, .. }, .. }
            if !matches!(status, Status::NOT_FOUND | Status::STALE) =>
        {
            Error::Status { status, operation, path, explanation: told }
        }
        E::Server { server, source, .. } => Error::Connection { server, cause: source.cause() },
        _ => {
            Error::Status { status: Status::IO, operation: Opcode::Open, path: Vec::new(), explanation: told }
        }
    }
}

/// A stretch that is moved without waiting.
pub(super) enum Started {
    /// Of several servers.
    Striped(PendingList),
    /// Of one segment.
    Plain(Pending<Result<usize>>),
    /// A list that is read.
    ListRead(Pending<Result<ListRead>>),
}

fn pointer(address: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address)
}

fn len(segment: &Segment) -> usize {
    // Layouts have no segment beyond the addresses.
    usize::try_from(segment.len).unwrap_or(usize::MAX)
}

/// Moves one segment; the bytes moved. Blocks.
#[inline]
pub(super) fn run(reach: Reach<'_>, direction: Direction, segment: &Segment) -> Result<usize> {
    if segment.len == 0 {
        return Ok(0);
    }
    let (pointer, len) = (pointer(segment.address), len(segment));
    match direction {
        Direction::Read => {
            // SAFETY: promised by the maker of the transfer; the bytes need no initial value of Rust's, they come from C.
            let memory = unsafe { std::slice::from_raw_parts_mut(pointer, len) };
            match reach {
                Reach::Plain(file) => file.read_at(memory, segment.offset),
                Reach::Striped(file) => file.read_at(memory, segment.offset).map_err(of_servers),
            }
        }
        Direction::Write => {
            // SAFETY: as above.
            let memory = unsafe { std::slice::from_raw_parts(pointer, len) };
            match reach {
                Reach::Plain(file) => file.write_at(memory, segment.offset),
                Reach::Striped(file) => file.write_at(memory, segment.offset).map_err(of_servers),
            }
        }
    }
}

/// Locks one segment's extent, moves the segment and unlocks, in one round trip; the bytes moved. Fails where the lock has to wait. Blocks.
pub(super) fn run_locked(
    file: &dafs_client::File,
    direction: Direction,
    segment: &Segment,
    kind: LockKind,
) -> Result<usize> {
    let extent = segment.offset..segment.offset + segment.len;
    let (pointer, len) = (pointer(segment.address), len(segment));
    let chain = file.chain().try_lock(extent.clone(), kind);
    let chain = match direction {
        Direction::Read => {
            // SAFETY: as in `run`.
            chain.read_at(unsafe { std::slice::from_raw_parts_mut(pointer, len) }, segment.offset)
        }
        Direction::Write => {
            // SAFETY: as in `run`.
            chain.write_at(unsafe { std::slice::from_raw_parts(pointer, len) }, segment.offset)
        }
    };
    let done = chain.unlock(extent).run()?;
    Ok(done.counts.first().copied().unwrap_or(0))
}

/// Moves a list; the bytes moved from its beginning without a gap. Blocks.
pub(super) fn run_list(reach: Reach<'_>, direction: Direction, group: &Group) -> Result<usize> {
    let pieces = group.memory.iter();
    match (direction, reach) {
        (Direction::Read, reach) => {
            let memory = pieces.map(|piece| (pointer(piece.address), piece.len));
            // SAFETY: promised by the maker of the transfer.
            let read = unsafe {
                match reach {
                    Reach::Plain(file) => file.read_list_raw(&group.extents, memory),
                    Reach::Striped(file) => file.read_list_raw(&group.extents, memory).map_err(of_servers),
                }
            };
            read.map(|read| read.count)
        }
        (Direction::Write, reach) => {
            let memory = pieces.map(|piece| (pointer(piece.address).cast_const(), piece.len));
            // SAFETY: as above.
            unsafe {
                match reach {
                    Reach::Plain(file) => file.write_list_raw(&group.extents, memory),
                    Reach::Striped(file) => file.write_list_raw(&group.extents, memory).map_err(of_servers),
                }
            }
        }
    }
}

/// Moves what a view shows; the bytes moved from its beginning without a gap. Blocks.
pub(super) fn run_view(
    file: &dafs_client::File,
    direction: Direction,
    viewed: &Viewed<'_>,
    group: &PieceGroup,
) -> Result<usize> {
    let (place, pieces) = (viewed.place(group), group.memory.iter());
    match direction {
        Direction::Read => {
            let memory = pieces.map(|piece| (pointer(piece.address), piece.len));
            // SAFETY: promised by the maker of the transfer.
            unsafe { file.read_view_raw(&place, memory) }.map(|read| read.count)
        }
        Direction::Write => {
            let memory = pieces.map(|piece| (pointer(piece.address).cast_const(), piece.len));
            // SAFETY: as above.
            unsafe { file.write_view_raw(&place, memory) }
        }
    }
}

/// Starts to move what a view shows.
pub(super) fn start_view(
    file: &dafs_client::File,
    direction: Direction,
    viewed: &Viewed<'_>,
    group: &PieceGroup,
) -> Started {
    let (place, pieces) = (viewed.place(group), group.memory.iter());
    match direction {
        Direction::Read => {
            let memory = pieces.map(|piece| (pointer(piece.address), piece.len));
            // SAFETY: as in `start`.
            Started::ListRead(unsafe { file.submit_read_view_raw(&place, memory) })
        }
        Direction::Write => {
            let memory = pieces.map(|piece| (pointer(piece.address).cast_const(), piece.len));
            // SAFETY: as in `start`.
            Started::Plain(unsafe { file.submit_write_view_raw(&place, memory) })
        }
    }
}

/// Starts to move one segment.
pub(super) fn start(reach: Reach<'_>, direction: Direction, segment: &Segment) -> Started {
    let (pointer, len) = (pointer(segment.address), len(segment));
    let extent = [Extent::new(segment.offset, segment.len)];
    // SAFETY: promised by the maker of the transfer; the request holds what is returned until it has ended.
    unsafe {
        match (reach, direction) {
            (Reach::Plain(file), Direction::Read) => {
                Started::Plain(file.submit_read_raw_at(pointer, len, segment.offset))
            }
            (Reach::Plain(file), Direction::Write) => {
                Started::Plain(file.submit_write_raw_at(pointer, len, segment.offset))
            }
            (Reach::Striped(file), Direction::Read) => {
                Started::Striped(file.submit_read_list_raw(&extent, &[(pointer, len)]))
            }
            (Reach::Striped(file), Direction::Write) => {
                Started::Striped(file.submit_write_list_raw(&extent, &[(pointer.cast_const(), len)]))
            }
        }
    }
}

/// Starts to move a list.
pub(super) fn start_list(reach: Reach<'_>, direction: Direction, group: &Group) -> Started {
    let pieces = group.memory.iter().map(|piece| (pointer(piece.address), piece.len));
    match direction {
        Direction::Read => {
            let memory: Vec<_> = pieces.collect();
            // SAFETY: as in `start`.
            unsafe {
                match reach {
                    Reach::Plain(file) => {
                        Started::ListRead(file.submit_read_list_raw(&group.extents, &memory))
                    }
                    Reach::Striped(file) => {
                        Started::Striped(file.submit_read_list_raw(&group.extents, &memory))
                    }
                }
            }
        }
        Direction::Write => {
            let memory: Vec<_> = pieces.map(|(pointer, len)| (pointer.cast_const(), len)).collect();
            // SAFETY: as in `start`.
            unsafe {
                match reach {
                    Reach::Plain(file) => Started::Plain(file.submit_write_list_raw(&group.extents, &memory)),
                    Reach::Striped(file) => {
                        Started::Striped(file.submit_write_list_raw(&group.extents, &memory))
                    }
                }
            }
        }
    }
}

impl Started {
    /// Whether it has ended. Does not block.
    pub(super) fn test(&mut self) -> bool {
        match self {
            Self::Plain(pending) => pending.test(),
            Self::ListRead(pending) => pending.test(),
            Self::Striped(pending) => pending.test(),
        }
    }

    /// The bytes moved without a gap. Blocks until it has ended.
    pub(super) fn wait(self) -> Result<u64> {
        match self {
            Self::Plain(pending) => pending.wait().map(|count| count as u64),
            Self::ListRead(pending) => pending.wait().map(|read| read.count as u64),
            Self::Striped(pending) => pending.wait().map(|count| count as u64).map_err(of_servers),
        }
    }

    /// Gives it up. Blocks while the server may be at its memory.
    pub(super) fn cancel(self) {
        match self {
            Self::Plain(pending) => drop(pending.cancel()),
            Self::ListRead(pending) => drop(pending.cancel()),
            Self::Striped(pending) => drop(pending),
        }
    }
}

/// Copies bytes of a window into memory of the transfer.
pub(super) fn copy_out(from: &[u8], to: MemoryPart) {
    let len = from.len().min(to.len);
    // SAFETY: the memory is promised by the maker of the transfer, and is not the window, which is this library's own.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), pointer(to.address), len) };
}
