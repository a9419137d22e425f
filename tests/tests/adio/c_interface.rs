//! The C interface from the outside: pointers that are null, strings that are cut, files that are not there.
#![allow(unsafe_code, reason = "calls of a C interface")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::process::Command;
use std::ptr::{null, null_mut};

use adio_dafs::ffi::{
    ADIO_DAFS_COUNTERS_MAX, ADIO_DAFS_READ, ADIO_DAFS_TICKET_SIZE_MAX, ADIO_DAFS_WRITE,
    adio_dafs_abi_version, adio_dafs_claims, adio_dafs_close, adio_dafs_counters, adio_dafs_delete,
    adio_dafs_explain, adio_dafs_file, adio_dafs_hint, adio_dafs_hint_at, adio_dafs_join,
    adio_dafs_last_error, adio_dafs_memory, adio_dafs_open, adio_dafs_place_of, adio_dafs_place_remove,
    adio_dafs_pointer_add, adio_dafs_pointer_begin, adio_dafs_pointer_open, adio_dafs_pointer_remove,
    adio_dafs_pointer_set, adio_dafs_pointer_used, adio_dafs_request, adio_dafs_request_free,
    adio_dafs_request_test, adio_dafs_request_wait, adio_dafs_segment, adio_dafs_set_atomic, adio_dafs_share,
    adio_dafs_size, adio_dafs_status, adio_dafs_transfer, adio_dafs_transfer_run, adio_dafs_transfer_submit,
    adio_dafs_type, adio_dafs_view, adio_dafs_view_offset, adio_dafs_view_position,
};
use adio_dafs::file::COUNTERS;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::bytes;

use crate::support::name;

on_sockets! {
    file_is_opened_shared_joined_moved_and_closed,
}

fn last_error() -> String {
    // SAFETY: a string that stays until the next call.
    unsafe { CStr::from_ptr(adio_dafs_last_error()) }.to_str().unwrap().to_owned()
}

fn segments_transfer(direction: c_int, segments: &[adio_dafs_segment]) -> adio_dafs_transfer {
    let (segments, segment_count) = (segments.as_ptr(), segments.len());
    adio_dafs_transfer {
        direction,
        collective: 0,
        segments,
        segment_count,
        memory: null(),
        view: null(),
        position: 0,
    }
}

const OK: c_int = adio_dafs_status::ADIO_DAFS_OK as c_int;
const ARGUMENT: c_int = adio_dafs_status::ADIO_DAFS_ERR_ARG as c_int;

// SAFETY of all calls here: pointers are of live values of the test, or null.
fn file_is_opened_shared_joined_moved_and_closed(on: On) {
    let harness = Harness::start(on);
    let path = CString::new(name(&harness, on, "f")).unwrap();
    // [MPI-50] What is no text is no hint.
    let hints = [(c"dafs_memory", c"\xff"), (c"dafs_memory", c"adio"), (c"dafs_\xc0", c"adio")];
    let hints = hints.map(|(key, value)| adio_dafs_hint { key: key.as_ptr(), value: value.as_ptr() });
    let mut file: *mut adio_dafs_file = null_mut();
    let mut ticket = vec![0u8; ADIO_DAFS_TICKET_SIZE_MAX];
    let mut len = 0;
    let mut joined: *mut adio_dafs_file = null_mut();
    // SAFETY: see above.
    unsafe {
        assert_eq!(adio_dafs_claims(path.as_ptr()), 1);
        assert_eq!(adio_dafs_open(path.as_ptr(), 8 | 1, -1, 2, hints.as_ptr(), hints.len(), &mut file), OK);
        assert_eq!(adio_dafs_share(file, ticket.as_mut_ptr().cast(), 4, &mut len), ARGUMENT);
        assert!(last_error().contains("room for 4"), "{}", last_error());
        assert_eq!(adio_dafs_share(file, ticket.as_mut_ptr().cast(), ticket.len(), &mut len), OK);
        assert_eq!(
            adio_dafs_join(path.as_ptr(), 8, 2, ticket.as_ptr().cast(), len, null(), 0, &mut joined),
            OK
        );
    }
    // Every second block of 8 bytes of the file, from memory in one piece.
    let mut data = bytes(1, 800);
    let (memory_offsets, memory_lens) = ([0i64], [1i64]);
    let (view_offsets, view_lens) = ([0i64], [8i64]);
    let memory = adio_dafs_memory {
        base: data.as_mut_ptr().cast(),
        count: 800,
        r#type: adio_dafs_type {
            offsets: memory_offsets.as_ptr(),
            lens: memory_lens.as_ptr(),
            count: 1,
            extent: 1,
        },
    };
    let view = adio_dafs_view {
        displacement: 100,
        r#type: adio_dafs_type {
            offsets: view_offsets.as_ptr(),
            lens: view_lens.as_ptr(),
            count: 1,
            extent: 16,
        },
    };
    let typed = adio_dafs_transfer {
        direction: ADIO_DAFS_WRITE,
        collective: 1,
        segments: null(),
        segment_count: 0,
        memory: &memory,
        view: &view,
        position: 0,
    };
    let (mut count, mut size) = (0, 0);
    let mut request: *mut adio_dafs_request = null_mut();
    let mut found = vec![0u8; 800];
    // SAFETY: see above.
    unsafe {
        assert_eq!(adio_dafs_transfer_run(file, &typed, &mut count), OK, "{}", last_error());
        assert_eq!(count, 800);
        assert_eq!(adio_dafs_size(joined, &mut size), OK);
        assert_eq!(size, 100 + 99 * 16 + 8);
        let mut at = 0;
        assert_eq!(adio_dafs_view_offset(&view, 9, &mut at), OK);
        assert_eq!(at, 100 + 16 + 1);
        assert_eq!(adio_dafs_view_position(&view, 100 + 16 + 1, &mut at), OK);
        assert_eq!(at, 9);
        let segments: Vec<adio_dafs_segment> = found
            .chunks_mut(8)
            .zip(0..)
            .map(|(chunk, row)| adio_dafs_segment {
                memory: chunk.as_mut_ptr().cast(),
                offset: 100 + row * 16,
                len: 8,
            })
            .collect();
        let transfer = segments_transfer(ADIO_DAFS_READ, &segments);
        assert_eq!(adio_dafs_transfer_submit(joined, &transfer, &mut request), OK);
        let mut done = 0;
        while done == 0 {
            assert_eq!(adio_dafs_request_test(request, &mut done, &mut count), OK);
        }
        assert_eq!(count, 800);
        assert_eq!(adio_dafs_request_wait(request, &mut count), OK);
        adio_dafs_request_free(request);
    }
    assert!(found == data);
    pointer_is_moved_in_atomic_mode_too(file, joined);
    what_is_shown_is_bounded(file);
    calls_without_what_they_need_are_errors(file);
    let mut place = null_mut();
    // SAFETY: see above.
    unsafe {
        assert_eq!(adio_dafs_place_of(file, &mut place), OK);
        assert_eq!(adio_dafs_close(file), OK);
        assert_eq!(adio_dafs_close(joined), OK);
        assert_eq!(adio_dafs_place_remove(place), OK);
        assert_eq!(adio_dafs_delete(path.as_ptr()), adio_dafs_status::ADIO_DAFS_ERR_NO_SUCH_FILE as c_int);
    }
    assert!(last_error().contains("cannot delete") && last_error().contains("/data/f"), "{}", last_error());
    assert_eq!(adio_dafs_abi_version(), 5);
}

fn pointer_is_moved_in_atomic_mode_too(file: *mut adio_dafs_file, joined: *mut adio_dafs_file) {
    let mut position = 9;
    // SAFETY: see above.
    unsafe {
        for each in [file, joined] {
            assert_eq!(adio_dafs_set_atomic(each, 1), OK);
            assert_eq!(adio_dafs_pointer_begin(each, 7), OK);
        }
        assert_eq!(adio_dafs_pointer_used(file), 0);
        assert_eq!(adio_dafs_pointer_open(file), OK);
        assert_eq!(adio_dafs_pointer_add(file, 3, &mut position), OK);
        assert_eq!((position, adio_dafs_pointer_used(file), adio_dafs_pointer_used(joined)), (7, 1, 0));
        assert_eq!(adio_dafs_pointer_add(joined, 1, &mut position), OK);
        assert_eq!(position, 10);
        assert_eq!(adio_dafs_pointer_set(joined, 2), OK);
        assert_eq!(adio_dafs_pointer_add(file, 0, &mut position), OK);
        assert_eq!(position, 2);
        assert_eq!(adio_dafs_pointer_remove(file), OK);
        assert_eq!(adio_dafs_set_atomic(file, 0), OK);
        assert_eq!(adio_dafs_pointer_add(file, 0, null_mut()), ARGUMENT);
        assert_eq!(adio_dafs_pointer_add(null_mut(), 0, &mut position), ARGUMENT);
        assert_eq!(adio_dafs_pointer_used(null_mut()), 0);
        for call in [adio_dafs_pointer_open, adio_dafs_pointer_remove] {
            assert_eq!(call(null_mut()), ARGUMENT);
        }
        assert_eq!(
            [adio_dafs_pointer_set(null_mut(), 0), adio_dafs_set_atomic(null_mut(), 1)],
            [ARGUMENT; 2]
        );
    }
}

fn what_is_shown_is_bounded(file: *mut adio_dafs_file) {
    let mut values = [0u64; ADIO_DAFS_COUNTERS_MAX];
    let (mut count, mut found) = (0, 0);
    let (mut key, mut value): ([c_char; 8], [c_char; 64]) = ([1; 8], [1; 64]);
    // SAFETY: see above.
    unsafe {
        assert_eq!(adio_dafs_counters(file, values.as_mut_ptr(), 3, &mut count), ARGUMENT);
        assert_eq!(adio_dafs_counters(file, values.as_mut_ptr(), values.len(), &mut count), OK);
        assert_eq!(count, COUNTERS.len());
        assert_eq!(adio_dafs_hint_at(file, 0, key.as_mut_ptr(), 8, value.as_mut_ptr(), 64, &mut found), OK);
        assert_eq!(found, 1);
        // Cut to what there is room for.
        assert_eq!(CStr::from_ptr(key.as_ptr()).to_str().unwrap(), "dafs_me");
        assert_eq!(CStr::from_ptr(value.as_ptr()).to_str().unwrap(), "adio");
        assert_eq!(
            adio_dafs_hint_at(file, 9999, key.as_mut_ptr(), 8, value.as_mut_ptr(), 64, &mut found),
            OK
        );
        assert_eq!(found, 0);
        assert_eq!(
            adio_dafs_hint_at(file, 0, key.as_mut_ptr(), 0, value.as_mut_ptr(), 64, &mut found),
            ARGUMENT
        );
        let mut len = 9;
        assert_eq!(adio_dafs_explain(file, values.as_ptr(), count, value.as_mut_ptr(), 64, &mut len), OK);
        assert_eq!(len, 0);
    }
}

fn calls_without_what_they_need_are_errors(file: *mut adio_dafs_file) {
    let (mut count, mut other) = (0, null_mut());
    let bad = [adio_dafs_segment { memory: null_mut(), offset: u64::MAX, len: 5 }];
    // SAFETY: see above.
    unsafe {
        assert_eq!(adio_dafs_claims(null()), 0);
        assert_eq!(adio_dafs_open(null(), 8, -1, 1, null(), 0, &mut other), ARGUMENT);
        assert_eq!(adio_dafs_open(c"dafs:/x".as_ptr(), 8, -1, 1, null(), 0, null_mut()), ARGUMENT);
        assert_eq!(adio_dafs_open(c"dafs:/x".as_ptr(), 0, -1, 1, null(), 0, &mut other), 2);
        assert_eq!(adio_dafs_open(c"dafs+tcp://x/e/f".as_ptr(), 8, -1, 1, null(), 5, &mut other), ARGUMENT);
        assert_eq!(adio_dafs_close(null_mut()), ARGUMENT);
        assert_eq!(adio_dafs_place_of(file, null_mut()), ARGUMENT);
        assert_eq!(adio_dafs_place_remove(null_mut()), ARGUMENT);
        assert_eq!(adio_dafs_transfer_run(null_mut(), null(), &mut count), ARGUMENT);
        assert_eq!(adio_dafs_transfer_run(file, null(), &mut count), ARGUMENT);
        assert_eq!(adio_dafs_transfer_run(file, &segments_transfer(7, &[]), &mut count), ARGUMENT);
        assert_eq!(adio_dafs_transfer_run(file, &segments_transfer(0, &bad), &mut count), ARGUMENT);
        assert_eq!(adio_dafs_transfer_submit(file, &segments_transfer(0, &bad), null_mut()), ARGUMENT);
        assert_eq!(adio_dafs_request_test(null_mut(), null_mut(), null_mut()), ARGUMENT);
        adio_dafs_request_free(null_mut());
        let mut empty = segments_transfer(0, &[]);
        (empty.segments, empty.segment_count) = (null(), 3);
        assert_eq!(adio_dafs_transfer_run(file, &empty, &mut count), ARGUMENT);
    }
}

/// Set in the process that ends.
const ENDS: &str = "DAFS_TEST_ENDS";

#[test]
fn last_error_is_there_for_a_function_that_runs_at_exit() {
    if std::env::var_os(ENDS).is_some() {
        // SAFETY: see above; the function stays.
        unsafe {
            assert_eq!((adio_dafs_close(null_mut()), libc::atexit(at_exit)), (ARGUMENT, 0));
        }
        std::process::exit(0);
    }
    let name = "c_interface::last_error_is_there_for_a_function_that_runs_at_exit";
    let mut command = Command::new(std::env::current_exe().unwrap());
    let ran = command.args(["--exact", name, "--nocapture"]).env(ENDS, "1").output().unwrap();
    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
}

/// What belonged to the thread is gone.
extern "C" fn at_exit() {
    let before = last_error();
    // SAFETY: see above.
    unsafe {
        let closed = adio_dafs_close(null_mut());
        let is_told = before.is_empty() && closed == ARGUMENT && !last_error().is_empty();
        libc::_exit(if is_told { 7 } else { 1 });
    }
}
