//! The C interface: `adio_dafs.h`. Opaque handles, integer status, panics caught. What a function promises stands in the header.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

mod guard;
mod types;

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::error::{Class, Error, Result};
use crate::file::{AccessMode, COUNTERS, File, Opening, Request};
use crate::name::Surroundings;
use guard::{OK, argument, guard, last_error};
use types::{CHint, CTransfer, CView, bytes_out, hints, name, put, put_text};

/// `ADIO_DAFS_ABI_VERSION`.
const ABI_VERSION: c_int = 1;

/// An open file, for C.
pub struct CFile(Arc<File>);

/// A transfer under way, for C.
pub struct CRequest(Request);

#[unsafe(no_mangle)]
pub extern "C" fn adio_dafs_abi_version() -> c_int {
    ABI_VERSION
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_claims(file_name: *const c_char) -> c_int {
    let mut claims = 0;
    let status = guard(|| {
        // SAFETY: a string of the caller's, by the contract.
        let file_name = unsafe { name(file_name) }?;
        claims = c_int::from(Surroundings::of_process()?.claims(file_name));
        Ok(())
    });
    if status != OK {
        // A setting that cannot be read must not quietly send the file elsewhere.
        guard::say_once();
    }
    claims
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_open(
    file_name: *const c_char,
    amode: c_int,
    permissions: c_int,
    ranks: c_int,
    hint_list: *const CHint,
    hint_count: usize,
    file: *mut *mut CFile,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, strings, an array of hints, and room for a pointer.
        let (opening, file) =
            unsafe { (opening(file_name, amode, ranks, hint_list, hint_count)?, put(file)?) };
        let opening = Opening { permissions: u32::try_from(permissions).ok(), ..opening };
        *file = Box::into_raw(Box::new(CFile(Arc::new(opening.open()?))));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_join(
    file_name: *const c_char,
    amode: c_int,
    ranks: c_int,
    ticket: *const u8,
    len: usize,
    hint_list: *const CHint,
    hint_count: usize,
    file: *mut *mut CFile,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, strings, an array of hints, and room for a pointer.
        let (opening, file) =
            unsafe { (opening(file_name, amode, ranks, hint_list, hint_count)?, put(file)?) };
        // SAFETY: by the contract, so many bytes.
        let ticket = unsafe { types::slice(ticket, len) }?;
        *file = Box::into_raw(Box::new(CFile(Arc::new(opening.join(ticket)?))));
        Ok(())
    })
}

/// # Safety
/// The name is a string, and the hints an array of as many as it says, of strings.
unsafe fn opening<'a>(
    file_name: *const c_char,
    amode: c_int,
    ranks: c_int,
    hint_list: *const CHint,
    hint_count: usize,
) -> Result<Opening<'a>> {
    // SAFETY: promised by the caller.
    let (name, hints) = unsafe { (name(file_name)?, hints(hint_list, hint_count)?) };
    Ok(Opening {
        name,
        mode: AccessMode::new(amode)?,
        permissions: None,
        ranks: usize::try_from(ranks).unwrap_or(1),
        hints,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_share(
    file: *const CFile,
    ticket: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and room for a length.
        let (file, len) = unsafe { (open_file(file)?, put(len)?) };
        let bytes = file.share()?;
        *len = bytes.len();
        if bytes.len() > capacity {
            return Err(argument(format!(
                "a ticket has {} bytes, and there is room for {capacity}",
                bytes.len()
            )));
        }
        // SAFETY: by the contract, room for `capacity` bytes.
        unsafe { bytes_out(&bytes, ticket) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_close(file: *mut CFile) -> c_int {
    guard(|| {
        if file.is_null() {
            return Err(argument("no file"));
        }
        // SAFETY: by the contract, a file of `adio_dafs_open` or `adio_dafs_join` that is not used any more.
        let file = unsafe { Box::from_raw(file) };
        file.0.finish()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_delete(file_name: *const c_char) -> c_int {
    // SAFETY: a string of the caller's, by the contract.
    guard(|| crate::file::delete(unsafe { name(file_name) }?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_transfer_run(
    file: *const CFile,
    transfer: *const CTransfer,
    count: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file, a transfer whose memory is there, and room for a count.
        let (file, transfer, count) = unsafe { (open_file(file)?, types::transfer(transfer)?, put(count)?) };
        let (moved, result) = file.run(transfer);
        *count = moved;
        result
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_transfer_submit(
    file: *const CFile,
    transfer: *const CTransfer,
    request: *mut *mut CRequest,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file, a transfer whose memory stays until the request has ended, and room for a pointer.
        let (file, transfer, request) =
            unsafe { (open_file(file)?, types::transfer(transfer)?, put(request)?) };
        *request = Box::into_raw(Box::new(CRequest(file.submit(transfer)?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_request_test(
    request: *mut CRequest,
    done: *mut c_int,
    count: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, a request that nobody else uses now, and room for two numbers.
        let (request, done, count) = unsafe { (put(request)?, put(done)?, put(count)?) };
        *done = c_int::from(request.0.test());
        if *done == 0 {
            return Ok(());
        }
        let (moved, result) = request.0.outcome();
        *count = moved;
        result
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_request_wait(request: *mut CRequest, count: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: by the contract, a request that nobody else uses now, and room for a number.
        let (request, count) = unsafe { (put(request)?, put(count)?) };
        request.0.wait();
        let (moved, result) = request.0.outcome();
        *count = moved;
        result
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_request_free(request: *mut CRequest) {
    guard(|| {
        if !request.is_null() {
            // SAFETY: by the contract, a request of `adio_dafs_transfer_submit` that is not used any more.
            drop(unsafe { Box::from_raw(request) });
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_view_position(
    view: *const CView,
    offset: u64,
    position: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, a view whose arrays are there, and room for a number.
        let (view, position) = unsafe { (types::view(view)?, put(position)?) };
        *position = view.position_of(offset);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_view_offset(view: *const CView, position: u64, offset: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: by the contract, a view whose arrays are there, and room for a number.
        let (view, offset) = unsafe { (types::view(view)?, put(offset)?) };
        *offset = view.offset_of(position)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_resize(file: *const CFile, size: u64) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.resize(size))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_size(file: *const CFile, size: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and room for a number.
        let (file, size) = unsafe { (open_file(file)?, put(size)?) };
        *size = file.size()?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_preallocate(file: *const CFile, size: u64) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.preallocate(size))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_sync(file: *const CFile) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.sync())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_set_hints(
    file: *const CFile,
    hint_list: *const CHint,
    hint_count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and an array of hints.
        let (file, hints) = unsafe { (open_file(file)?, hints(hint_list, hint_count)?) };
        file.take_hints(hints);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_hint_at(
    file: *const CFile,
    index: usize,
    key: *mut c_char,
    key_capacity: usize,
    value: *mut c_char,
    value_capacity: usize,
    found: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and room for a number.
        let (file, found) = unsafe { (open_file(file)?, put(found)?) };
        let hint = file.shown_hints().into_iter().nth(index);
        *found = c_int::from(hint.is_some());
        let Some((own_key, own_value)) = hint else { return Ok(()) };
        // SAFETY: by the contract, room for so many bytes.
        unsafe {
            put_text(&own_key, key, key_capacity)?;
            put_text(&own_value, value, value_capacity)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_counters(
    file: *const CFile,
    values: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and room for a number.
        let (file, count) = unsafe { (open_file(file)?, put(count)?) };
        *count = COUNTERS.len();
        if capacity < COUNTERS.len() {
            return Err(argument(format!("there are {} counters, and room for {capacity}", COUNTERS.len())));
        }
        // SAFETY: by the contract, room for `capacity` numbers, each of which may be written.
        unsafe { bytes_out(&file.counter_values(), values) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_explain(
    file: *const CFile,
    values: *const u64,
    count: usize,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file, so many numbers, and room for a length.
        let (file, values, len) = unsafe { (open_file(file)?, types::slice(values, count)?, put(len)?) };
        let words = file.explanation(values).unwrap_or_default();
        *len = words.len().min(capacity.saturating_sub(1));
        // SAFETY: by the contract, room for so many bytes.
        unsafe { put_text(&words, text, capacity) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn adio_dafs_last_error() -> *const c_char {
    last_error()
}

/// # Safety
/// It is null, or a file of `adio_dafs_open` or `adio_dafs_join` that is not closed meanwhile.
unsafe fn open_file<'a>(file: *const CFile) -> Result<&'a Arc<File>> {
    // SAFETY: promised by the caller.
    unsafe { file.as_ref() }.map(|file| &file.0).ok_or_else(|| argument("no file"))
}

impl From<std::str::Utf8Error> for Error {
    fn from(_: std::str::Utf8Error) -> Self {
        Self::new(Class::Argument, "a hint is no text")
    }
}

#[cfg(test)]
mod tests;
