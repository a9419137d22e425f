//! Sessions and exports, errors, and the end of handles.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::{CString, OsStr, c_char, c_int};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dafs_client::{Background, Config, Cork, Error, MethodOverride, Session, Sieve, WaitPolicy, load_key};
use dafs_ffi::{bytes_out, last_error, put, slice, text};

use crate::abi::{
    DAFS_BACKGROUND_DEFAULT, DAFS_BACKGROUND_NONE, DAFS_BACKGROUND_PROGRESS, DAFS_SIEVE_AUTO, DAFS_SIEVE_OFF,
    DAFS_SIEVE_ON, DAFS_VERSION_MAJOR, DAFS_VERSION_MINOR, DAFS_WAIT_ADAPTIVE, DAFS_WAIT_BUSY,
    DAFS_WAIT_EVENT, dafs_extent, dafs_info, dafs_options,
};
use crate::call::{
    self, Result, alone, bad_handle, busy, done, handle_of, invalid, run, sized, with_session,
};
use crate::dir::{names_of, whole_out};
use crate::group::{BatchState, ChainState};
use crate::memory::watch_forks;
use crate::object::{self, Object};

/// The version of the library: major * 1000 + minor. Compare with DAFS_VERSION_MAJOR of the header. From any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_version() -> c_int {
    DAFS_VERSION_MAJOR * 1000 + DAFS_VERSION_MINOR
}

/// The words of the calling thread's last error; valid until its next error, never NULL. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_error() -> *const c_char {
    last_error()
}

/// DAFS_E_… of the calling thread's last error. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_error_code() -> c_int {
    call::last_code()
}

/// The ranges that the calling thread's last DAFS_E_WRITES_LOST told of: fills at most count, returns how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_lost(ranges: *mut dafs_extent, count: usize) -> isize {
    run(|| {
        let lost = call::last_lost();
        let known: Vec<_> =
            lost.iter().take(count).map(|&(offset, len)| dafs_extent { offset, len }).collect();
        if !known.is_empty() {
            // SAFETY: room for count, by the contract.
            unsafe { bytes_out(&known, ranges) }?;
        }
        isize::try_from(lost.len()).map_err(|_| invalid("too many ranges"))
    })
}

/// Opens a session with a server: dafs://host, dafs+tcp://host:port, dafs+shm:///path/of/socket, dafs+verbs://host. options may be NULL.
/// Returns its handle, or -1. Blocks.
///
/// A session may be used by all threads at once, and so may everything opened in it. When its connection breaks, the next call connects
/// again. In a child of fork() every call with it fails with ENOTCONN, but that dafs_close() and dafs_disconnect() forget handles; the
/// parent goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_connect(url: *const c_char, options: *const dafs_options) -> i64 {
    run(|| {
        // SAFETY: a string and settings of the caller's, by the contract.
        let (url, config) = unsafe { (text(url)?, config_of(options)?) };
        watch_forks();
        let session = Session::connect(url, &config)?;
        handle_of(Object::Session { session, completions: Mutex::new(None), corks: Mutex::new(Vec::new()) })
    })
}

/// Ends a session. Its files, directories and operations can only be closed then. Blocks until the server has heard of it, for a second
/// at most.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_disconnect(session: i64) -> c_int {
    done(|| match object::find(session).as_deref() {
        Some(Object::Session { session: ended, .. }) => {
            ended.close();
            object::remove(session);
            Ok(())
        }
        _ => Err(bad_handle(session, "a session")),
    })
}

/// Opens an export of the server: returns the handle of its root directory, or -1. Close it by dafs_close(). Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_mount(session: i64, export_name: *const c_char) -> i64 {
    run(|| {
        // SAFETY: a string of the caller's, by the contract.
        let name = unsafe { text(export_name) }?;
        let name = name.to_str().ok_or_else(|| invalid("the name of an export is UTF-8"))?;
        handle_of(Object::Export(with_session(session, |session| Ok(session.mount(name)?))?))
    })
}

/// Closes a file, a directory, a listing, a chain, a batch, a type or a view. Data that was not made durable by dafs_fsync() is with the
/// server, which writes it in its time. Operations in flight go on. EBUSY for a chain or a batch in flight. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_close(handle: i64) -> c_int {
    done(|| {
        match object::find(handle).as_deref() {
            None | Some(Object::Session { .. } | Object::Op(_)) => {
                return Err(bad_handle(handle, "something open"));
            }
            Some(Object::Chain(chain)) => {
                if matches!(*alone(chain, "the chain")?.state()?, ChainState::InFlight) {
                    return Err(busy("the chain"));
                }
            }
            Some(Object::Batch(batch)) => {
                if matches!(alone(batch, "the batch")?.state, BatchState::InFlight(_)) {
                    return Err(busy("the batch"));
                }
            }
            Some(
                Object::File(_)
                | Object::Dir(_)
                | Object::Export(_)
                | Object::Listing(_)
                | Object::Type(_)
                | Object::View(_),
            ) => {}
        }
        // Another thread may have been quicker.
        object::remove(handle).then_some(()).ok_or_else(|| bad_handle(handle, "something open"))
    })
}

/// What was agreed with the server, and how the session is. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_session_info(session: i64, info: *mut dafs_info) -> c_int {
    done(|| {
        // SAFETY: a struct of the caller's, by the contract.
        let place = unsafe { sized(info, "DAFS_INFO_INIT") }?;
        with_session(session, |session| {
            let agreed = session.agreed();
            *place = dafs_info {
                size: place.size,
                slots: agreed.slots.into(),
                read_inline_max: agreed.read_inline_max,
                write_inline_max: agreed.write_inline_max,
                transfer_size_max: agreed.transfer_size_max,
                handles_max: agreed.handles_max,
                keep_alive_ms: agreed.keep_alive_ms,
                lease_ms: agreed.lease_ms,
                connected: session.is_connected().into(),
                draining: session.is_draining().into(),
                reconnects: session.reconnects(),
                client_id: session.client_id(),
            };
            Ok(())
        })
    })
}

/// The names of the exports that this client may mount, each with an ending zero: their size, and the names where size is large enough;
/// with size 0 only their size. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_exports(session: i64, names: *mut c_char, size: usize) -> isize {
    run(|| {
        let found = with_session(session, |session| Ok(session.exports()?))?;
        let all = names_of(found.into_iter().map(String::into_bytes));
        // SAFETY: room for size bytes, by the contract.
        unsafe { whole_out(&all, names.cast(), size) }
    })
}

/// A round trip to the server: its duration in nanoseconds, or -1. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_ping(session: i64) -> i64 {
    run(|| {
        let time = with_session(session, |session| Ok(session.ping()?))?;
        Ok(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
    })
}

/// Holds submissions back: nonblocking operations that are submitted until dafs_uncork() leave together, in few system calls and few
/// wake-ups of the server. They leave earlier where buffers are full, and when a thread waits for or tests an operation of the session.
/// Corks are counted. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_cork(session: i64) -> c_int {
    done(|| {
        with_corks(session, |session, corks| {
            corks.push(session.cork().into_owned());
            Ok(())
        })
    })
}

/// Sends what dafs_cork() held back, where it is the last. EINVAL where there is none. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_uncork(session: i64) -> c_int {
    done(|| {
        let cork =
            with_corks(session, |_, corks| corks.pop().ok_or_else(|| invalid("the session has no cork")))?;
        drop(cork);
        Ok(())
    })
}

fn with_corks<T>(
    handle: i64,
    body: impl FnOnce(&Session, &mut Vec<Cork<'static>>) -> Result<T>,
) -> Result<T> {
    with_session(handle, |_| Ok(()))?;
    match object::find(handle).as_deref() {
        Some(Object::Session { session, corks, .. }) => {
            body(session, &mut corks.lock().unwrap_or_else(PoisonError::into_inner))
        }
        _ => Err(bad_handle(handle, "a session")),
    }
}

/// How the server is reached: "tcp", "shm" or "verbs", written with an ending zero to at most size bytes. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_provider(session: i64, name: *mut c_char, size: usize) -> c_int {
    done(|| {
        let provider = with_session(session, |session| Ok(session.provider().to_string()))?;
        let name_of = CString::new(provider).map_err(|_| invalid("the provider has no name"))?;
        let bytes = name_of.as_bytes_with_nul();
        if bytes.len() > size {
            return Err(call::Failure::Caller(libc::ERANGE, format!("{} bytes are needed", bytes.len())));
        }
        // SAFETY: room for size, by the contract.
        unsafe { bytes_out(bytes, name.cast::<u8>()) }?;
        Ok(())
    })
}

/// # Safety
/// Null, or settings whose strings are there.
unsafe fn config_of(options: *const dafs_options) -> Result<Config> {
    let mut config = Config::default();
    if options.is_null() {
        return Ok(config);
    }
    // SAFETY: promised by the caller; the size comes first in each version.
    let size = unsafe { slice(options.cast::<u32>(), 1) }?[0] as usize;
    let mut known = dafs_options {
        size: 0,
        credits: 0,
        key_file: std::ptr::null(),
        client_name: std::ptr::null(),
        connect_timeout_ms: 0,
        operation_timeout_ms: 0,
        reconnect_time_ms: 0,
        background: DAFS_BACKGROUND_DEFAULT,
        method: std::ptr::null(),
        wait: DAFS_WAIT_ADAPTIVE,
        sieve: DAFS_SIEVE_AUTO,
    };
    if size < size_of::<u32>() {
        return Err(invalid("the size of the options is not set: begin with DAFS_OPTIONS_INIT"));
    }
    let common = size.min(size_of::<dafs_options>());
    // SAFETY: both have that many bytes, and any bytes are numbers, or pointers that are looked at below.
    unsafe {
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut known).cast::<u8>(), common);
    }
    // SAFETY: bytes of a struct of that size.
    let unknown = unsafe { slice(options.cast::<u8>().wrapping_add(common), size - common) }?;
    if unknown.iter().any(|byte| *byte != 0) {
        let why = "the options say what this version of the library does not know";
        return Err(call::Failure::Caller(libc::E2BIG, why.into()));
    }
    if known.credits != 0 {
        let credits = u16::try_from(known.credits).ok().filter(|credits| *credits <= 4096);
        config.credits = credits.ok_or_else(|| invalid("credits are 1 to 4096"))?;
    }
    // SAFETY: strings of the caller's.
    unsafe {
        if !known.key_file.is_null() {
            config.key = Some(load_key(Path::new(text(known.key_file)?))?);
        }
        if !known.client_name.is_null() {
            config.client_name = Some(text(known.client_name)?.to_string_lossy().into_owned());
        }
        if !known.method.is_null() {
            config.method = method_of(text(known.method)?)?;
        }
    }
    let time = |ms: u32| (ms != 0).then(|| Duration::from_millis(ms.into()));
    config.connect_timeout = time(known.connect_timeout_ms).unwrap_or(config.connect_timeout);
    config.operation_timeout = time(known.operation_timeout_ms);
    config.reconnect.time_max = time(known.reconnect_time_ms).unwrap_or(config.reconnect.time_max);
    config.background = match known.background {
        DAFS_BACKGROUND_DEFAULT => Background::KeepAlive,
        DAFS_BACKGROUND_NONE => Background::None,
        DAFS_BACKGROUND_PROGRESS => Background::Progress,
        other => return Err(invalid(format!("background {other}: it is one of DAFS_BACKGROUND_…"))),
    };
    config.wait = match known.wait {
        DAFS_WAIT_ADAPTIVE => WaitPolicy::Adaptive,
        DAFS_WAIT_EVENT => WaitPolicy::Event,
        DAFS_WAIT_BUSY => WaitPolicy::Busy,
        other => return Err(invalid(format!("wait {other}: it is one of DAFS_WAIT_…"))),
    };
    config.sieve = match known.sieve {
        DAFS_SIEVE_AUTO => Sieve::Auto,
        DAFS_SIEVE_ON => Sieve::On,
        DAFS_SIEVE_OFF => Sieve::Off,
        other => return Err(invalid(format!("sieve {other}: it is one of DAFS_SIEVE_…"))),
    };
    Ok(config)
}

fn method_of(name: &OsStr) -> Result<MethodOverride> {
    let named = MethodOverride::ALL.iter().find(|(_, known)| name == *known);
    named.map(|(method, _)| *method).ok_or_else(|| {
        let known: Vec<_> = MethodOverride::ALL.iter().map(|(_, known)| *known).collect();
        invalid(format!("no method is {}; it is one of {}", name.display(), known.join(", ")))
    })
}

/// A descriptor for poll(2), select(2) or epoll(7), which is readable when nonblocking operations of the session have ended or need the
/// program's turn. It stays the session's, and the same when that connects again; do not read or close it. One thread uses it, so:
///
///   dafs_turn(session) until it returns 0; dafs_next() until it returns 0; dafs_arm(session): 0 means begin anew, 1 means
///   poll() may sleep.
///
/// Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_session_fd(session: i64) -> c_int {
    run(|| with_completions(session, |completions| Ok(std::os::fd::AsRawFd::as_raw_fd(completions))))
}

/// Receives and sends what can be without waiting. 1 where there may be more to do, 0 where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_turn(session: i64) -> c_int {
    run(|| with_completions(session, |completions| Ok(c_int::from(completions.turn()))))
}

/// An operation that has ended and was not told of: 1, and its number in *id (that of struct dafs_op); 0 where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_next(session: i64, id: *mut u64) -> c_int {
    run(|| {
        // SAFETY: room for a number, by the contract.
        let place = unsafe { put(id) }?;
        with_completions(session, |completions| {
            let Some(found) = completions.next() else { return Ok(0) };
            *place = found.number();
            Ok(1)
        })
    })
}

/// 1: the descriptor becomes readable as soon as there is something to do. 0: there is something now; take turns again.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_arm(session: i64) -> c_int {
    run(|| with_completions(session, |completions| Ok(c_int::from(completions.arm()?))))
}

fn with_completions<T>(handle: i64, body: impl FnOnce(&dafs_client::Completions) -> Result<T>) -> Result<T> {
    match object::find(handle).as_deref() {
        Some(Object::Session { session, .. }) if session.is_inherited() => Err(Error::Forked.into()),
        Some(Object::Session { session, completions, .. }) => {
            let mut made = alone(completions, "the descriptor of the session")?;
            let completions = match &mut *made {
                Some(completions) => completions,
                none => none.insert(session.completions()?),
            };
            body(completions)
        }
        _ => Err(bad_handle(handle, "a session")),
    }
}
