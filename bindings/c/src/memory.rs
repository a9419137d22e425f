//! Registered memory.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use dafs_client::{File, Pin, RegisteredBuf};

use crate::call::{Failure, Result, done, invalid, run, with_session};
use crate::object;

/// Memory of dafs_alloc(), by its address.
static ALLOCATED: RwLock<BTreeMap<usize, RegisteredBuf>> = RwLock::new(BTreeMap::new());
/// How many there are: without any, no call looks.
static ALLOCATED_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Memory of dafs_pin(), by its address.
static PINNED: RwLock<BTreeMap<usize, Vec<Pin>>> = RwLock::new(BTreeMap::new());

fn allocated() -> RwLockReadGuard<'static, BTreeMap<usize, RegisteredBuf>> {
    ALLOCATED.read().unwrap_or_else(PoisonError::into_inner)
}

fn changed<T>(table: &'static RwLock<T>) -> RwLockWriteGuard<'static, T> {
    table.write().unwrap_or_else(PoisonError::into_inner)
}

/// The buffer that this memory is a part of, as a buffer; `None` for ordinary memory, and for what another session has registered.
pub(crate) fn registered(file: &File, memory: *const c_void, len: usize) -> Option<RegisteredBuf> {
    if ALLOCATED_COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let allocated = allocated();
    let (_, buffer) = allocated.range(..=memory as usize).next_back()?;
    // SAFETY: the caller of C promises that nobody else uses the memory of a transfer until it has ended.
    unsafe { buffer.alias(memory.cast(), len) }.filter(|buffer| file.can_reach(buffer))
}

/// As [`registered`], of memory in pieces, all of which lie in one buffer: that, and where in it they are.
pub(crate) fn registered_parts(
    file: &File,
    memory: impl Iterator<Item = (*const u8, usize)> + Clone,
) -> Option<(RegisteredBuf, Vec<Range<usize>>)> {
    if ALLOCATED_COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let first = memory.clone().find(|(_, len)| *len > 0)?.0 as usize;
    let allocated = allocated();
    let (&begin, buffer) =
        allocated.range(..=first).next_back().filter(|(_, buffer)| file.can_reach(buffer))?;
    let part = |(pointer, len): (*const u8, usize)| {
        let from = (pointer as usize).checked_sub(begin)?;
        let end = from.checked_add(len).filter(|end| *end <= buffer.len())?;
        Some(from..end)
    };
    let parts = memory.filter(|(_, len)| *len > 0).map(part).collect::<Option<_>>()?;
    // SAFETY: the caller of C promises that nobody else uses the parts of a transfer until it has ended; no others are touched.
    Some((unsafe { buffer.alias(std::ptr::with_exposed_provenance(begin), buffer.len()) }?, parts))
}

/// As [`registered`], of memory that is one piece.
pub(crate) fn one_registered(
    file: &File,
    mut memory: impl ExactSizeIterator<Item = (*const u8, usize)>,
) -> Option<RegisteredBuf> {
    let is_one = memory.len() == 1;
    let (pointer, len) = memory.next().filter(|_| is_one)?;
    registered(file, pointer.cast(), len)
}

thread_local! {
    /// What this thread holds while it forks: the tables would stay locked in the child if another thread had them.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

type Held = (
    RwLockWriteGuard<'static, BTreeMap<usize, RegisteredBuf>>,
    RwLockWriteGuard<'static, BTreeMap<usize, Vec<Pin>>>,
);

/// From now on a fork leaves this library's tables free in the child.
pub(crate) fn watch_forks() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handlers live as long as the process. Without memory for them a child may wait for ever, as before.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    });
}

unsafe extern "C" fn before_fork() {
    object::before_fork();
    let held = (changed(&ALLOCATED), changed(&PINNED));
    // A thread that ends forks no more.
    let _ = HELD.try_with(|place| place.replace(Some(held)));
}

unsafe extern "C" fn after_fork() {
    let _ = HELD.try_with(|place| drop(place.take()));
}

/// Allocates memory that stays registered with the session's network: transfers to and from it, or any part of it, take neither a copy
/// nor a registration. Zeroed, and aligned to a page. It is ordinary memory for all other uses, and for other sessions. NULL for an
/// error. A child of fork() must not use it. Does not block on the server.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_alloc(session: i64, size: usize) -> *mut c_void {
    let address: i64 = run(|| {
        let mut buffer = with_session(session, |session| Ok(session.buffer(size.max(1))?))?;
        let address = buffer.as_mut_ptr() as usize;
        changed(&ALLOCATED).insert(address, buffer);
        ALLOCATED_COUNT.fetch_add(1, Ordering::Release);
        i64::try_from(address).map_err(|_| invalid("an address beyond what a program has"))
    });
    usize::try_from(address).map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

/// Frees memory of dafs_alloc(), once the operations that use it have ended; NULL is nothing. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_free(memory: *mut c_void) -> c_int {
    done(|| {
        if memory.is_null() {
            return Ok(());
        }
        let freed = changed(&ALLOCATED).remove(&(memory as usize));
        if freed.is_none() {
            return Err(invalid("this memory is not of dafs_alloc(), or was freed"));
        }
        ALLOCATED_COUNT.fetch_sub(1, Ordering::Release);
        Ok(())
    })
}

/// Keeps memory of the caller's registered, from its first transfer on, until dafs_unpin(). It must stay mapped, readable and writable,
/// until then. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_pin(session: i64, memory: *mut c_void, size: usize) -> c_int {
    done(|| {
        if memory.is_null() || size == 0 {
            return Err(Failure::Caller(libc::EFAULT, "there is no memory to pin".into()));
        }
        // SAFETY: that it stays is the caller's promise.
        let pin = with_session(session, |session| Ok(unsafe { session.pin_raw(memory.cast(), size) }))?;
        changed(&PINNED).entry(memory as usize).or_default().push(pin);
        Ok(())
    })
}

/// Ends what dafs_pin() of this address began last. Operations on the memory must have ended. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_unpin(memory: *mut c_void) -> c_int {
    done(|| unpin(memory as usize))
}

fn unpin(address: usize) -> Result<()> {
    let mut pinned = changed(&PINNED);
    let pins = pinned.get_mut(&address).ok_or_else(|| invalid("no memory at this address is pinned"))?;
    let pin = pins.pop();
    if pins.is_empty() {
        pinned.remove(&address);
    }
    drop(pinned);
    drop(pin);
    Ok(())
}
