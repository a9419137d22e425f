//! The C interface, of which `cargo xtask header` makes `adio_dafs.h`: opaque handles, integer status, panics caught. Imports `file` and
//! `name`.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(
    clippy::missing_safety_doc,
    non_camel_case_types,
    reason = "the header is the contract, in the names of C"
)]

mod abi;
mod guard;
mod types;

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use crate::error::Result;
use crate::file::{AccessMode, COUNTERS, CollectiveWay, File, Opening, Request};
use crate::name::{FileAddress, Surroundings};
pub use abi::*;
use dafs_ffi::last_error;
use guard::{argument, guard};
use types::{bytes_out, hints, name, put, put_text};

/// An open file, for C.
pub struct adio_dafs_file(Arc<File>);

/// Where a file is, for C.
pub struct adio_dafs_place(FileAddress);

/// A transfer under way, for C.
pub struct adio_dafs_request(Request);

/// ADIO_DAFS_ABI_VERSION of the library.
#[unsafe(no_mangle)]
pub extern "C" fn adio_dafs_abi_version() -> c_int {
    ADIO_DAFS_ABI_VERSION
}

/// 1 when a file of this name is on a dafs server: dafs:/export/path (server in DAFS_ADDRESS), dafs://host/export/path,
/// dafs+tcp://…, dafs+shm://…, dafs+verbs://…, or a path below a prefix in DAFS_MPI_PREFIX; else 0. 1 for every name where
/// DAFS_MPI_PREFIX cannot be read: opening or deleting it then fails, and says so. Connects to nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_claims(file_name: *const c_char) -> c_int {
    let mut claims = 0;
    guard(|| {
        // SAFETY: a string of the caller's, by the contract.
        let file_name = unsafe { name(file_name) }?;
        // A setting that cannot be read must not send the file elsewhere.
        claims = 1;
        claims = c_int::from(Surroundings::of_process()?.claims(file_name));
        Ok(())
    });
    claims
}

/// Opens or makes a file: by the first of the processes that open it together, which then gives the others a ticket. amode is a
/// sum of the constants above; permissions are those of a file that is made (-1: 0666 less the umask); ranks is how many
/// processes open it. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_open(
    file_name: *const c_char,
    amode: c_int,
    permissions: c_int,
    ranks: c_int,
    hint_list: *const adio_dafs_hint,
    hint_count: usize,
    file: *mut *mut adio_dafs_file,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, strings, an array of hints, and room for a pointer.
        let (opening, file) =
            unsafe { (opening(file_name, amode, ranks, hint_list, hint_count)?, put(file)?) };
        let opening = Opening { permissions: u32::try_from(permissions).ok(), ..opening };
        *file = Box::into_raw(Box::new(adio_dafs_file(Arc::new(opening.open()?))));
        Ok(())
    })
}

/// Joins a file that another process has open. name, amode and hints are those of that open. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_join(
    file_name: *const c_char,
    amode: c_int,
    ranks: c_int,
    ticket: *const c_void,
    len: usize,
    hint_list: *const adio_dafs_hint,
    hint_count: usize,
    file: *mut *mut adio_dafs_file,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, strings, an array of hints, and room for a pointer.
        let (opening, file) =
            unsafe { (opening(file_name, amode, ranks, hint_list, hint_count)?, put(file)?) };
        // SAFETY: by the contract, so many bytes.
        let ticket = unsafe { types::slice(ticket.cast::<u8>(), len) }?;
        *file = Box::into_raw(Box::new(adio_dafs_file(Arc::new(opening.join(ticket)?))));
        Ok(())
    })
}

/// # Safety
/// The name is a string, and the hints an array of as many as it says, of strings.
unsafe fn opening<'a>(
    file_name: *const c_char,
    amode: c_int,
    ranks: c_int,
    hint_list: *const adio_dafs_hint,
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

/// Makes a ticket by which the other processes join the open file. It holds for a minute. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_share(
    file: *mut adio_dafs_file,
    ticket: *mut c_void,
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
        unsafe { bytes_out(&bytes, ticket.cast()) }?;
        Ok(())
    })
}

/// Closes a file. Requests of it must have ended or been freed. The handle is gone, whatever is returned. DELETE_ON_CLOSE is the
/// caller's. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_close(file: *mut adio_dafs_file) -> c_int {
    guard(|| {
        if file.is_null() {
            return Err(argument("no file"));
        }
        // SAFETY: by the contract, a file of `adio_dafs_open` or `adio_dafs_join` that is not used any more.
        let file = unsafe { Box::from_raw(file) };
        file.0.finish()
    })
}

/// Removes a file by name. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_delete(file_name: *const c_char) -> c_int {
    // SAFETY: a string of the caller's, by the contract.
    guard(|| crate::file::delete(unsafe { name(file_name) }?))
}

/// Where an open file is, which its name need not lead to when it is closed: relative names begin at the current directory. It stays when
/// the file is closed, and goes by adio_dafs_place_remove().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_place_of(
    file: *mut adio_dafs_file,
    place: *mut *mut adio_dafs_place,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and room for a pointer.
        let (file, place) = unsafe { (open_file(file)?, put(place)?) };
        *place = Box::into_raw(Box::new(adio_dafs_place(file.place().clone())));
        Ok(())
    })
}

/// Removes the file at a place, which is freed, whatever is returned. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_place_remove(place: *mut adio_dafs_place) -> c_int {
    guard(|| {
        if place.is_null() {
            return Err(argument("no place"));
        }
        // SAFETY: by the contract, a place of `adio_dafs_place_of` that is not used any more.
        let place = unsafe { Box::from_raw(place) };
        crate::file::remove(&place.0)
    })
}

/// Moves data. count gets the bytes moved from the beginning without a gap, also with an error; a read beyond the end of the
/// file is short. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_transfer_run(
    file: *mut adio_dafs_file,
    transfer: *const adio_dafs_transfer,
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

/// Starts to move data. The lists of the transfer may go when this returns; the memory belongs to the request until that has
/// ended. Does not block, but of a file in atomic mode where no thread can be started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_transfer_submit(
    file: *mut adio_dafs_file,
    transfer: *const adio_dafs_transfer,
    request: *mut *mut adio_dafs_request,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file, a transfer whose memory stays until the request has ended, and room for a pointer.
        let (file, transfer, request) =
            unsafe { (open_file(file)?, types::transfer(transfer)?, put(request)?) };
        *request = Box::into_raw(Box::new(adio_dafs_request(file.submit(transfer)?)));
        Ok(())
    })
}

/// Sets done to 1 when the request has ended, and then count and the status; else done to 0 and returns ADIO_DAFS_OK. Moves data
/// along. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_request_test(
    request: *mut adio_dafs_request,
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

/// Waits for the end of a request. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_request_wait(request: *mut adio_dafs_request, count: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: by the contract, a request that nobody else uses now, and room for a number.
        let (request, count) = unsafe { (put(request)?, put(count)?) };
        request.0.wait();
        let (moved, result) = request.0.outcome();
        *count = moved;
        result
    })
}

/// Frees a request. One that runs is cancelled, and waited for where the server may be at its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_request_free(request: *mut adio_dafs_request) {
    guard(|| {
        if !request.is_null() {
            // SAFETY: by the contract, a request of `adio_dafs_transfer_submit` that is not used any more.
            drop(unsafe { Box::from_raw(request) });
        }
        Ok(())
    });
}

/// Bytes of a view's data before a byte of the file; from a byte in a gap, those before the next data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_view_position(
    view: *const adio_dafs_view,
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

/// The byte of the file where data after position bytes of the view begins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_view_offset(
    view: *const adio_dafs_view,
    position: u64,
    offset: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, a view whose arrays are there, and room for a number.
        let (view, offset) = unsafe { (types::view(view)?, put(offset)?) };
        *offset = view.offset_of(position)?;
        Ok(())
    })
}

/// The process sees the file by this view from now on. It is described to the server where the hints have transfers name it there; the
/// description stays for transfers with an equal type. A view that the server does not take is no error: its transfers go by lists. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_view_set(file: *mut adio_dafs_file, view: *const adio_dafs_view) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and a view whose arrays are there.
        let (file, view) = unsafe { (open_file(file)?, types::view(view)?) };
        file.describe(&view.of)
    })
}

/// 1 where transfers of a direction name views in the server, by the hints in force; else 0. Asks nobody.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_view_used(file: *mut adio_dafs_file, direction: c_int) -> c_int {
    let mut used = 0;
    guard(|| {
        // SAFETY: by the contract, an open file.
        used = c_int::from(unsafe { open_file(file) }?.names_views(types::direction(direction)?));
        Ok(())
    });
    used
}

/// Sets the size. By one process of those that have it open. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_resize(file: *mut adio_dafs_file, size: u64) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.resize(size))
}

/// The size now. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_size(file: *mut adio_dafs_file, size: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and room for a number.
        let (file, size) = unsafe { (open_file(file)?, put(size)?) };
        *size = file.size()?;
        Ok(())
    })
}

/// Has space for the first size bytes set aside; the file grows to it. By one process. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_preallocate(file: *mut adio_dafs_file, size: u64) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.preallocate(size))
}

/// Makes durable what this process wrote. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_sync(file: *mut adio_dafs_file) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.sync())
}

/// What adio_dafs_close() does before the handle goes: makes durable what this process wrote, unless a hint says no. What fails here a
/// close tries again. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_finish(file: *mut adio_dafs_file) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.finish())
}

/// Sets reaches to 1 when the file has the byte at an offset, else to 0. It is read, which is no transfer. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_reaches(
    file: *mut adio_dafs_file,
    offset: u64,
    reaches: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and room for a number.
        let (file, reaches) = unsafe { (open_file(file)?, put(reaches)?) };
        *reaches = c_int::from(file.reaches(offset)?);
        Ok(())
    })
}

/// A collective call was made, for what adio_dafs_explain() says: the processes exchanged data (ADIO_DAFS_EXCHANGED), and by is who did it
/// for them; or each moved its own (ADIO_DAFS_ALONE), and by is the reason.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_collective(
    file: *mut adio_dafs_file,
    direction: c_int,
    way: c_int,
    by: *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and a string.
        let (file, by) = unsafe { (open_file(file)?, name(by)?) };
        let way = match way {
            ADIO_DAFS_EXCHANGED => CollectiveWay::Exchanged,
            ADIO_DAFS_ALONE => CollectiveWay::Alone,
            other => return Err(argument(format!("{other} is not a method of collective calls"))),
        };
        file.note_collective(types::direction(direction)?, way, &by.to_string_lossy());
        Ok(())
    })
}

/// Turns atomic mode on (atomic is not 0) or off, for transfers that begin after this: each then locks all from its first byte to
/// its last while it runs. By all processes that have the file open together. ADIO_DAFS_ERR_UNSUPPORTED where the server knows no
/// locks. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_set_atomic(file: *mut adio_dafs_file, atomic: c_int) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.set_atomic(atomic != 0))
}

/// The shared file pointer, kept on the server, begins anew at position (in etypes): when a file is opened at its end, and when the
/// view changes. By all processes, while nobody moves it. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_pointer_begin(file: *mut adio_dafs_file, position: u64) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file.
        unsafe { open_file(file) }?.begin_pointer(position);
        Ok(())
    })
}

/// Sees to it that the server keeps the pointer, which the calls below do too. What they fail of for lack of a right or of locks, they
/// fail of here. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_pointer_open(file: *mut adio_dafs_file) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.open_pointer())
}

/// Moves the pointer on by count etypes; position gets where it was. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_pointer_add(
    file: *mut adio_dafs_file,
    count: u64,
    position: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and room for a number.
        let (file, position) = unsafe { (open_file(file)?, put(position)?) };
        *position = file.add_to_pointer(count)?;
        Ok(())
    })
}

/// Sets the pointer. By one process. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_pointer_set(file: *mut adio_dafs_file, position: u64) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.set_pointer(position))
}

/// 1 when this process has used the pointer, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_pointer_used(file: *mut adio_dafs_file) -> c_int {
    let mut used = 0;
    guard(|| {
        // SAFETY: by the contract, an open file.
        used = c_int::from(unsafe { open_file(file) }?.uses_pointer());
        Ok(())
    });
    used
}

/// Removes the pointer from the server: by one process, before it closes the file, where any has used the pointer and none will any
/// more. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_pointer_remove(file: *mut adio_dafs_file) -> c_int {
    // SAFETY: by the contract, an open file.
    guard(|| unsafe { open_file(file) }?.remove_pointer())
}

/// Takes hints over. Keys that it does not know, and values that cannot be, are passed over. At any time; from the next transfer
/// on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_set_hints(
    file: *mut adio_dafs_file,
    hint_list: *const adio_dafs_hint,
    hint_count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract, an open file and an array of hints.
        let (file, hints) = unsafe { (open_file(file)?, hints(hint_list, hint_count)?) };
        file.take_hints(hints);
        Ok(())
    })
}

/// The index-th of the hints in force and of the counters (dafs_stat_…), as strings with an ending zero; found is 0 beyond the
/// last. Strings that do not fit are cut.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_hint_at(
    file: *mut adio_dafs_file,
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

/// Counters of this process, in the order in which adio_dafs_hint_at() tells them, to be added up over the processes. count gets how many
/// there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_counters(
    file: *mut adio_dafs_file,
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
        unsafe { bytes_out(&file.counter_values(), values) }?;
        Ok(())
    })
}

/// What the hint dafs_explain asks to be said when the file is closed: which ways were chosen and why, and the counters of all
/// processes, added up. len is 0 where the hint does not ask. With an ending zero; what does not fit is cut.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adio_dafs_explain(
    file: *mut adio_dafs_file,
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

/// The words of the last error on this thread, "" where there was none. Valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn adio_dafs_last_error() -> *const c_char {
    last_error()
}

/// # Safety
/// It is null, or a file of `adio_dafs_open` or `adio_dafs_join` that is not closed meanwhile.
unsafe fn open_file<'a>(file: *mut adio_dafs_file) -> Result<&'a Arc<File>> {
    // SAFETY: promised by the caller.
    unsafe { file.as_ref() }.map(|file| &file.0).ok_or_else(|| argument("no file"))
}
