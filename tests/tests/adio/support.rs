//! A server, and files on it as an MPI program names them.
#![allow(unsafe_code, reason = "transfers of memory by address, as C programs make them")]

use std::ffi::OsStr;
use std::sync::Arc;

use adio_dafs::error::Result;
use adio_dafs::file::{AccessMode, COUNTERS, File, Opening, Request, Transfer};
use adio_dafs::layout::{Instances, Segment, Source, Type, View};
use dafs_client::{Direction, Session};
use dafs_tests::harness::{Harness, On};

pub(crate) const RDWR_CREATE: i32 = 8 | 1;
pub(crate) const RDWR: i32 = 8;
pub(crate) const RDONLY: i32 = 2;
pub(crate) const WRONLY: i32 = 4;

/// The name of a file on the server.
pub(crate) fn name(harness: &Harness, on: On, path: &str) -> String {
    match on {
        On::Shm => format!("{}:/data/{path}", harness.url()),
        _ => format!("{}/data/{path}", harness.url()),
    }
}

pub(crate) fn opening<'a>(name: &'a str, mode: i32, hints: &[(&'a str, &'a str)]) -> Opening<'a> {
    let mode = AccessMode::new(mode).unwrap();
    Opening { name: OsStr::new(name), mode, permissions: None, ranks: 1, hints: hints.to_vec() }
}

pub(crate) fn open(name: &str, hints: &[(&str, &str)]) -> Arc<File> {
    Arc::new(opening(name, RDWR_CREATE, hints).open().unwrap())
}

/// A segment over a part of a buffer.
pub(crate) fn segment(memory: &mut [u8], offset: u64) -> Segment {
    Segment { address: memory.as_mut_ptr().expose_provenance(), offset, len: memory.len() as u64 }
}

fn transfer<'a>(direction: Direction, segments: &'a [Segment]) -> Transfer<'a> {
    // SAFETY: the tests keep the buffers until the transfer has ended.
    unsafe { Transfer::new(direction, false, Source::Segments(segments.into())) }
}

/// Moves segments; the bytes moved.
pub(crate) fn run(file: &File, direction: Direction, segments: &[Segment]) -> Result<u64> {
    let (moved, result) = file.run(transfer(direction, segments));
    result.map(|()| moved)
}

pub(crate) fn submit(file: &Arc<File>, direction: Direction, segments: &[Segment]) -> Result<Request> {
    file.submit(transfer(direction, segments))
}

/// A buffer by a view: each of its bytes so far behind the one before.
pub(crate) fn by_view<'a>(direction: Direction, memory: &mut [u8], distance: i64) -> Transfer<'a> {
    let base = memory.as_mut_ptr().expose_provenance();
    let memory = Instances { base, count: memory.len() as u64, of: Type::contiguous(1).unwrap() };
    let view = View { displacement: 0, of: Type::new(vec![0], vec![1], distance).unwrap() };
    // SAFETY: as of `transfer`.
    unsafe { Transfer::new(direction, false, Source::Typed { memory, view, position: 0 }) }
}

/// A buffer by a view of blocks with gaps of their size.
pub(crate) fn in_blocks<'a>(direction: Direction, memory: &mut [u8], len: usize) -> Transfer<'a> {
    rows(direction, memory, len, (0, 2 * len as i64))
}

/// A buffer by a view of rows, the first at a displacement, each so far behind the one before.
pub(crate) fn rows<'a>(
    direction: Direction,
    memory: &mut [u8],
    len: usize,
    (displacement, distance): (u64, i64),
) -> Transfer<'a> {
    let base = memory.as_mut_ptr().expose_provenance();
    let memory = Instances { base, count: memory.len() as u64, of: Type::contiguous(1).unwrap() };
    let view = View { displacement, of: Type::new(vec![0], vec![len as i64], distance).unwrap() };
    // SAFETY: as of `transfer`.
    unsafe { Transfer::new(direction, false, Source::Typed { memory, view, position: 0 }) }
}

/// Has the server know the view of such rows, where it is to have views: submitting would not wait for that.
pub(crate) fn describe_rows(file: &File, len: usize, distance: i64) {
    file.describe(&Type::new(vec![0], vec![len as i64], distance).unwrap()).unwrap();
}

/// A counter of the file.
pub(crate) fn counter(file: &File, name: &str) -> u64 {
    let place = COUNTERS.iter().position(|other| *other == name).unwrap();
    file.counter_values()[place]
}

/// Requests of some opcodes that the server has answered.
pub(crate) fn requests(session: &Session, names: &[&str]) -> u64 {
    let operations = session.statistics().unwrap().operations;
    let of = operations.iter().filter(|(opcode, _)| names.contains(&opcode.as_str()));
    of.map(|(_, count)| *count).sum()
}
