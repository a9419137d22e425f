//! Chains: requests that depend on each other, in one round trip.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use dafs_client::{Chained, Expected, FileIdentity, Pending, Timestamp};
use dafs_ffi::{slice, slice_mut, text};

use crate::abi::{
    DAFS_EXPECT_BYTES, DAFS_EXPECT_CHANGE, DAFS_EXPECT_IDENTITY, DAFS_EXPECT_MTIME, dafs_attributes,
    dafs_expected, dafs_op,
};
use crate::attr::attributes_of;
use crate::call::{
    Failure, Result, alone, bad_handle, busy, done, handle_of, invalid, run, sized, sized_ref, with_dir,
    with_file,
};
use crate::file::{Opening, offset_of, opening_of, pattern_of, replaces};
use crate::group::{Chain, ChainDone, ChainState, Memory, Step};
use crate::lock::{kind_of, range_of};
use crate::object::{self, Object, Operation};
use crate::op::submit;

/// Begins a chain: requests that depend on each other and go out together, in one round trip. They are executed in order, and the first
/// that fails aborts the rest. A chain of a directory begins with dafs_chain_lookup() or dafs_chain_open(); one of a file has neither. The
/// other calls add a request each; dafs_chain_run() sends them. Returns its handle, or -1; close it by dafs_close(). Does not block.
///
/// Data travels in the messages: a read or write moves at most dafs_info.read_inline_max or write_inline_max bytes, and a chain has at most
/// dafs_info.slots requests. Its memory is the chain's while it runs. One thread at a time uses a chain: EBUSY.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_begin(dir_or_file: i64) -> i64 {
    run(|| {
        match object::find(dir_or_file).as_deref() {
            Some(Object::File(_) | Object::Dir(_) | Object::Export(_)) => {}
            _ => return Err(bad_handle(dir_or_file, "a directory or a file")),
        }
        let chain = Chain { begin: dir_or_file, steps: Vec::new(), state: Arc::default() };
        handle_of(Object::Chain(Mutex::new(chain)))
    })
}

/// Looks a path up, below what was looked up before. Does not block, as all that adds to a chain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_chain_lookup(chain: i64, path: *const c_char) -> c_int {
    add(chain, || {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?;
        Ok(Step::Lookup(path.to_owned()))
    })
}

/// Opens or makes a file, below what was looked up before; what follows is done to it. flags and mode as of dafs_openat(), also O_TMPFILE,
/// but not O_DIRECTORY, and not O_CREAT to read only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_chain_open(chain: i64, path: *const c_char, flags: c_int, mode: u32) -> c_int {
    add(chain, || {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?.to_owned();
        match opening_of(flags, mode)? {
            Opening::File(options) => Ok(Step::Open(path, options)),
            Opening::Unnamed(mode) => Ok(Step::OpenUnnamed(path, mode)),
            Opening::Directory { .. } => Err(invalid("a chain opens no directory; it looks it up")),
            Opening::ReadOrCreate => Err(invalid("a chain makes a file to write, or to read and write")),
        }
    })
}

/// Reads at an offset of the file that was opened, into the caller's memory. dafs_chain_count() has how much.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_chain_pread(
    chain: i64,
    buffer: *mut c_void,
    count: usize,
    offset: i64,
) -> c_int {
    add(chain, || {
        // SAFETY: memory of the caller's, by the contract.
        let memory = unsafe { slice_mut(buffer.cast::<u8>(), count) }?;
        let memory = Memory { address: memory.as_mut_ptr().expose_provenance(), len: count };
        Ok(Step::Read(memory, offset_of(offset)?))
    })
}

/// Writes at an offset of the file that was opened, as durable as that was opened for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_chain_pwrite(
    chain: i64,
    buffer: *const c_void,
    count: usize,
    offset: i64,
) -> c_int {
    add(chain, || {
        // SAFETY: memory of the caller's, by the contract.
        let memory = unsafe { slice(buffer.cast::<u8>(), count) }?;
        let memory = Memory { address: memory.as_ptr().expose_provenance(), len: count };
        Ok(Step::Write(memory, offset_of(offset)?))
    })
}

/// Goes on only where the file, or what was looked up, has the attributes that are expected; with differs not 0 only where one of them at
/// least is another. Else the chain fails with ECANCELED (DAFS_E_NOT_SAME). So a file is changed only if nobody else has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_chain_verify(
    chain: i64,
    expected: *const dafs_expected,
    differs: c_int,
) -> c_int {
    add(chain, || {
        // SAFETY: a struct of the caller's, by the contract; it is only read.
        let expected = unsafe { sized_ref(expected, "DAFS_EXPECTED_INIT") }?;
        Ok(Step::Verify(expected_of(expected)?, differs != 0))
    })
}

/// As dafs_ftruncate(), of the file that was opened.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_ftruncate(chain: i64, size: i64) -> c_int {
    add(chain, || Ok(Step::Truncate(offset_of(size)?)))
}

/// As dafs_fadvise(), of the file that was opened.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_fadvise(chain: i64, offset: i64, len: i64, advice: c_int) -> c_int {
    add(chain, || Ok(Step::Advise(offset_of(offset)?, offset_of(len)?, pattern_of(advice)?)))
}

/// As dafs_fsync(), of the file that was opened.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_fsync(chain: i64) -> c_int {
    add(chain, || Ok(Step::Commit))
}

/// As dafs_flinkat(), of the file that was opened by O_TMPFILE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_chain_flinkat(
    chain: i64,
    dir: i64,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    add(chain, || {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?.to_owned();
        with_dir(dir, |_| Ok(()))?;
        Ok(Step::Link(dir, path, replaces(flags)?))
    })
}

/// As dafs_lock(), for this chain: what follows is done under the lock, until dafs_chain_unlock(). It is given back where the chain breaks
/// off, and behind it. Where another owner of this session may have the lock, use dafs_chain_trylock().
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_lock(chain: i64, offset: i64, len: i64, kind: c_int) -> c_int {
    add(chain, || Ok(Step::Lock(range_of(offset, len)?, kind_of(kind)?, true)))
}

/// As dafs_chain_lock(), without waiting for others: the chain fails with EAGAIN.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_trylock(chain: i64, offset: i64, len: i64, kind: c_int) -> c_int {
    add(chain, || Ok(Step::Lock(range_of(offset, len)?, kind_of(kind)?, false)))
}

/// Gives back what this chain has locked of a range.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_unlock(chain: i64, offset: i64, len: i64) -> c_int {
    add(chain, || Ok(Step::Unlock(range_of(offset, len)?)))
}

/// Closes the file that was opened.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_close(chain: i64) -> c_int {
    add(chain, || Ok(Step::Close))
}

/// Sends the chain and waits until all of it is answered: 0, or -1 and the error of the first request that failed. What was opened is then
/// closed again. It may be run again, and does the same again. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_run(chain: i64) -> c_int {
    done(|| {
        with_chain(chain, |chain| {
            if matches!(*chain.state()?, ChainState::InFlight) {
                return Err(busy("the chain"));
            }
            let outcome = with_built(chain, |built| Ok(built.run()?));
            match outcome {
                Ok(chained) => *chain.state()? = ChainState::Done(done_of(chained)),
                Err(failure) => {
                    *chain.state()? = ChainState::None;
                    return Err(failure);
                }
            }
            Ok(())
        })
    })
}

/// Nonblocking form of dafs_chain_run(); op.result is 0 at the end. Its memory is the chain's until the operation has ended, and so is the
/// chain: EBUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_chain(chain: i64, op: *mut dafs_op) -> c_int {
    let begin = || {
        with_chain(chain, |chain| {
            if matches!(*chain.state()?, ChainState::InFlight) {
                return Err(busy("the chain"));
            }
            // SAFETY: the memory stays the operation's, by the contract.
            let pending: Pending<dafs_client::Result<Chained>> =
                with_built(chain, |built| Ok(unsafe { built.submit() }))?;
            *chain.state()? = ChainState::InFlight;
            let state = Arc::clone(&chain.state);
            let operation: Operation = pending.map(move |outcome| {
                let mut place = state.lock().unwrap_or_else(PoisonError::into_inner);
                *place = ChainState::None;
                *place = ChainState::Done(done_of(outcome?));
                Ok(0)
            });
            Ok(operation)
        })
    };
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Bytes that a read or write of the chain has moved, counted from 0. A read is short only at the end of the file. ENOENT where there is no
/// such one, or the chain has not succeeded. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_count(chain: i64, place: usize) -> isize {
    run(|| {
        with_done(chain, |done| {
            let count = done.counts.get(place).ok_or_else(|| nothing("no such read or write"))?;
            crate::file::count_of(*count)
        })
    })
}

/// The attributes of what the chain looked up or opened last. ENOENT as of dafs_chain_count(). Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_chain_attributes(chain: i64, attributes: *mut dafs_attributes) -> c_int {
    done(|| {
        // SAFETY: a struct of the caller's, by the contract.
        let place = unsafe { sized(attributes, "DAFS_ATTRIBUTES_INIT") }?;
        with_done(chain, |done| {
            let found = done.attributes.as_ref().ok_or_else(|| nothing("it opened nothing"))?;
            *place = attributes_of(found, place.size);
            Ok(())
        })
    })
}

/// The file that the chain opened and did not close: its handle, which is the caller's, or -1 with ENOENT. It is given once. Does not
/// block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_chain_file(chain: i64) -> i64 {
    run(|| {
        let file = with_done(chain, |done| done.file.take().ok_or_else(|| nothing("it left no file open")))?;
        handle_of(Object::File(file))
    })
}

fn nothing(why: &str) -> Failure {
    Failure::Caller(libc::ENOENT, format!("the chain has none: {why}"))
}

fn with_chain<T>(handle: i64, body: impl FnOnce(&mut Chain) -> Result<T>) -> Result<T> {
    match object::find(handle).as_deref() {
        Some(Object::Chain(chain)) => body(&mut *alone(chain, "the chain")?),
        _ => Err(bad_handle(handle, "a chain")),
    }
}

fn with_done<T>(handle: i64, body: impl FnOnce(&mut ChainDone) -> Result<T>) -> Result<T> {
    with_chain(handle, |chain| match &mut *chain.state()? {
        ChainState::Done(done) => body(done),
        ChainState::InFlight => Err(busy("the chain")),
        ChainState::None => Err(nothing("it has not succeeded")),
    })
}

/// Adds a request.
fn add(chain: i64, step: impl FnOnce() -> Result<Step>) -> c_int {
    done(|| {
        let step = step()?;
        with_chain(chain, |chain| {
            if matches!(*chain.state()?, ChainState::InFlight) {
                return Err(busy("the chain"));
            }
            chain.steps.push(step);
            Ok(())
        })
    })
}

fn done_of(chained: Chained) -> Box<ChainDone> {
    let Chained { counts, attributes, file } = chained;
    Box::new(ChainDone { counts, attributes, file })
}

/// Builds the chain as the client's library has it.
fn with_built<T>(chain: &Chain, body: impl FnOnce(dafs_client::Chain<'_>) -> Result<T>) -> Result<T> {
    match object::find(chain.begin).as_deref() {
        Some(Object::File(_)) => with_file(chain.begin, |file| body(build(file.chain(), &chain.steps)?)),
        _ => with_dir(chain.begin, |dir| body(build(dir.chain(), &chain.steps)?)),
    }
}

fn build<'a>(mut chain: dafs_client::Chain<'a>, steps: &[Step]) -> Result<dafs_client::Chain<'a>> {
    for step in steps {
        chain = match step {
            Step::Lookup(path) => chain.lookup(path),
            Step::Open(path, options) => chain.open(path, options),
            Step::OpenUnnamed(path, mode) => chain.open_unnamed(path, *mode),
            Step::Read(memory, offset) => {
                let address = std::ptr::with_exposed_provenance_mut::<u8>(memory.address);
                // SAFETY: memory of the caller's until the chain has ended, by the contract.
                chain.read_at(unsafe { slice_mut(address, memory.len) }?, *offset)
            }
            Step::Write(memory, offset) => {
                let address = std::ptr::with_exposed_provenance::<u8>(memory.address);
                // SAFETY: memory of the caller's until the chain has ended, by the contract.
                chain.write_at(unsafe { slice(address, memory.len) }?, *offset)
            }
            Step::Advise(offset, len, pattern) => chain.hint(*offset, *len, *pattern),
            Step::Verify(expected, false) => chain.verify(expected),
            Step::Verify(expected, true) => chain.verify_differs(expected),
            Step::Truncate(size) => chain.truncate(*size),
            Step::Commit => chain.commit(),
            Step::Close => chain.close(),
            Step::Lock(range, kind, true) => chain.lock(range.clone(), *kind),
            Step::Lock(range, kind, false) => chain.try_lock(range.clone(), *kind),
            Step::Unlock(range) => chain.unlock(range.clone()),
            Step::Link(dir, path, replace) => link(chain, *dir, path, *replace)?,
        };
    }
    Ok(chain)
}

fn link<'a>(
    chain: dafs_client::Chain<'a>,
    dir: i64,
    path: &OsStr,
    replace: bool,
) -> Result<dafs_client::Chain<'a>> {
    with_dir(dir, |dir| Ok(chain.link_to(dir, path, replace)))
}

fn expected_of(of: &dafs_expected) -> Result<Expected> {
    const KNOWN: u32 = DAFS_EXPECT_CHANGE | DAFS_EXPECT_BYTES | DAFS_EXPECT_MTIME | DAFS_EXPECT_IDENTITY;
    if of.mask == 0 || of.mask & !KNOWN != 0 {
        return Err(invalid(format!("mask {:#x}: one DAFS_EXPECT_… at least, and no others", of.mask)));
    }
    let has = |bit: u32| of.mask & bit != 0;
    let mut expected = Expected::new();
    if has(DAFS_EXPECT_CHANGE) {
        expected = expected.change(of.change);
    }
    if has(DAFS_EXPECT_BYTES) {
        expected = expected.size(of.bytes);
    }
    if has(DAFS_EXPECT_MTIME) {
        let nanoseconds = u32::try_from(of.mtime.tv_nsec).map_err(|_| invalid("a time of no nanoseconds"))?;
        expected = expected.mtime(Timestamp { seconds: of.mtime.tv_sec, nanoseconds });
    }
    if has(DAFS_EXPECT_IDENTITY) {
        expected = expected.identity(FileIdentity { file_id: of.ino, generation: of.generation });
    }
    Ok(expected)
}
