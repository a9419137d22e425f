//! Registration of ordinary memory: together, kept, and never used after the memory changed.
#![allow(
    unsafe_code,
    reason = "pins memory that is unmapped meanwhile, and lends it to operations in flight"
)]

use std::io::{IoSlice, IoSliceMut};

use dafs_client::{
    Config, Extent, File, MethodOverride, RegistrationConfig, RegistrationCost, RegistrationCounters,
    Session, wait_all,
};
use dafs_tests::area::{Area, page_size};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{Numbers, assert_invalid, assert_same, bytes, is_all};

on_each_provider! {
    memory_of_one_operation_is_not_kept,
    memory_without_bytes_is_not_registered,
    memory_that_is_more_than_all_addresses_is_refused,
    pinned_memory_is_registered_once_and_found_again,
    pinned_memory_beyond_the_cache_gives_way_and_returns,
    unpinned_memory_is_forgotten,
    vector_that_moves_is_registered_anew,
    memory_mapped_again_at_the_same_place_is_registered_anew,
    pages_that_are_moved_are_registered_anew,
    vector_that_is_reallocated_is_registered_anew,
    memory_mapped_again_under_operations_in_flight_lets_them_end,
    memory_is_unmapped_after_a_session_ended_beside_a_child,
    memory_is_not_kept_where_there_is_no_room,
    memory_of_a_parent_stays_its_own_after_a_fork,
    eviction_under_operations_in_flight_disturbs_none,
    rows_of_an_array_are_one_registration,
    rows_with_ten_holes_are_eleven_registrations,
    rows_further_apart_than_a_registration_costs_are_registered_one_by_one,
    memory_between_segments_is_not_registered_unasked,
    unpinned_memory_is_kept_where_the_configuration_says_so,
}

pub(crate) const SIZE: usize = 256 * 1024;

fn start(on: On, registration: RegistrationConfig) -> (Harness, Session, File) {
    let harness = Harness::start(on);
    let config = Config { method: MethodOverride::Direct, registration, ..Config::default() };
    let session = harness.session_with(&config);
    let file = session.mount("data").unwrap().create("file").unwrap();
    file.write_all_at(&bytes(1, SIZE), 0).unwrap();
    (harness, session, file)
}

/// What has happened since `before`.
pub(crate) fn since(session: &Session, before: &RegistrationCounters) -> RegistrationCounters {
    let now = session.registration_counters();
    RegistrationCounters {
        registrations: now.registrations - before.registrations,
        hits: now.hits - before.hits,
        misses: now.misses - before.misses,
        evictions: now.evictions - before.evictions,
        eviction_rounds: now.eviction_rounds - before.eviction_rounds,
        invalidations: now.invalidations - before.invalidations,
        stale: now.stale - before.stale,
        groups: now.groups - before.groups,
        hole_queries: now.hole_queries - before.hole_queries,
        failures: now.failures - before.failures,
        ..now
    }
}

pub(crate) fn assert_reads(file: &File, buffer: &mut [u8], offset: usize, expected: &[u8]) {
    buffer.fill(0xEE);
    let count = file.read_at(buffer, offset as u64).unwrap();
    assert_same(&buffer[..count], &expected[offset..offset + buffer.len()], "what was read");
}

// [CLI-13]
fn memory_of_one_operation_is_not_kept(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let before = session.registration_counters();
    let mut buffer = vec![0; SIZE];
    for _ in 0..3 {
        assert_reads(&file, &mut buffer, 0, &bytes(1, SIZE));
    }
    let counters = since(&session, &before);
    assert_eq!((counters.registrations, counters.hits, counters.entries), (3, 0, 0));
}

fn memory_without_bytes_is_not_registered(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let before = session.registration_counters();
    let buffers = vec![Vec::new(), Vec::new(), vec![0; SIZE], Vec::new()];
    let done = file.submit_read_list(&[Extent::new(0, SIZE as u64)], buffers).wait();
    assert_eq!(done.result.unwrap().count, SIZE);
    assert_same(&done.buffers[2], &bytes(1, SIZE), "what was read");
    assert_eq!(done.buffers.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, SIZE, 0]);
    let counters = since(&session, &before);
    assert_eq!(
        (counters.registrations, counters.groups, counters.hole_queries, counters.failures),
        (1, 0, 0, 0)
    );
}

// [LIST-1]
fn memory_that_is_more_than_all_addresses_is_refused(on: On) {
    let (_harness, _session, file) = start(on, RegistrationConfig::default());
    let mut memory = [0; 10];
    let pieces = [(memory.as_mut_ptr(), usize::MAX), (memory.as_mut_ptr(), 11)];
    // SAFETY: refused, so nothing touches what is not there.
    let pending = unsafe { file.submit_read_list_raw(&[Extent::new(0, 10)], &pieces) };
    assert_invalid(pending.wait(), "a total that overflows");
}

fn pinned_memory_is_registered_once_and_found_again(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let before = session.registration_counters();
    let expected = bytes(1, SIZE);
    let mut buffer = session.pin(vec![0; SIZE]);
    assert_reads(&file, &mut buffer, 0, &expected);
    for part in [0..SIZE, 100..5000, SIZE - 1..SIZE] {
        assert_reads(&file, &mut buffer[part.clone()], part.start, &expected);
    }
    buffer.copy_from_slice(&bytes(2, SIZE));
    assert_eq!(file.write_at(&buffer, 0).unwrap(), SIZE);
    // SAFETY: the buffer is not used otherwise until the operation has ended.
    let pending = unsafe { file.submit_read_raw_at(buffer.as_mut_ptr(), SIZE, 0) };
    assert_eq!(pending.wait().unwrap(), SIZE);
    assert_same(&buffer, &bytes(2, SIZE), "what was written and read back");
    let counters = since(&session, &before);
    assert_eq!((counters.registrations, counters.misses, counters.hits), (1, 1, 5));
    assert_eq!((counters.entries, counters.kept_size), (1, SIZE as u64));
}

// [CLI-79] [CLI-80]
fn pinned_memory_beyond_the_cache_gives_way_and_returns(on: On) {
    let config = RegistrationConfig { entries_max: 10, evict_count: 4, ..RegistrationConfig::default() };
    let (_harness, session, file) = start(on, config);
    let expected = bytes(1, SIZE);
    let before = session.registration_counters();
    let len = 5000;
    let mut buffers: Vec<_> = (0..11).map(|_| session.pin(vec![0; len])).collect();
    for buffer in &mut buffers[..10] {
        assert_reads(&file, buffer, 0, &expected);
    }
    assert_reads(&file, &mut buffers[0], 0, &expected);
    assert_eq!(since(&session, &before).evictions, 0, "ten fit");
    assert_reads(&file, &mut buffers[10], 7, &expected);
    let counters = since(&session, &before);
    assert_eq!((counters.evictions, counters.eviction_rounds, counters.entries), (4, 1, 7), "four at once");
    // The first was used again, the four after it were not.
    assert_reads(&file, &mut buffers[0], 9, &expected);
    assert_eq!(since(&session, &before).registrations, 11);
    assert_reads(&file, &mut buffers[1], 9, &expected);
    assert_eq!(since(&session, &before).registrations, 12);
    let bounded =
        RegistrationConfig { size_max: 3 * len as u64, evict_count: 1, ..RegistrationConfig::default() };
    let (_harness, session, file) = start(on, bounded);
    let mut buffers: Vec<_> = (0..4).map(|_| session.pin(vec![0; len])).collect();
    for buffer in &mut buffers {
        assert_reads(&file, buffer, 0, &expected);
        assert!(session.registration_counters().kept_size <= 3 * len as u64);
    }
    assert_eq!(session.registration_counters().evictions, 1);
}

// [CLI-14]
fn unpinned_memory_is_forgotten(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let mut buffer = session.pin(vec![0; SIZE]);
    assert_reads(&file, &mut buffer, 0, &bytes(1, SIZE));
    assert_eq!(session.registration_counters().entries, 1);
    let mut plain = buffer.into_vec();
    let counters = session.registration_counters();
    assert_eq!((counters.entries, counters.kept_size, counters.invalidations), (0, 0, 1));
    assert_reads(&file, &mut plain, 0, &bytes(1, SIZE));
    let buffer = session.pin(plain);
    session.invalidate(buffer.as_ptr(), 1);
    let mut buffer = buffer;
    assert_reads(&file, &mut buffer, 0, &bytes(1, SIZE));
    session.invalidate(buffer[SIZE - 1..].as_ptr(), 1);
    assert_eq!(session.registration_counters().invalidations, 2);
    assert_reads(&file, &mut buffer, 0, &bytes(1, SIZE));
}

fn vector_that_moves_is_registered_anew(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let expected = bytes(1, SIZE);
    let mut plain = vec![0; 4096];
    for round in 0..20 {
        let mut buffer = session.pin(plain);
        assert_reads(&file, &mut buffer, 0, &expected);
        assert_reads(&file, &mut buffer[10..], 10, &expected);
        plain = buffer.into_vec();
        // Grows, and may move; freed memory is used again by the next.
        let len = plain.len() + 4096 * (round % 3);
        plain.resize(len, 0);
        plain.shrink_to_fit();
    }
    assert_eq!(session.registration_counters().entries, 0);
}

// [CLI-82]
fn memory_mapped_again_at_the_same_place_is_registered_anew(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let expected = bytes(1, SIZE);
    let mut area = Area::new(SIZE);
    // SAFETY: what is done to it below is announced, or noticed where the kernel lets it be watched.
    let pin = unsafe { session.pin_raw(area.pointer(), SIZE) };
    let watched = userfaultfd_is_there();
    for round in 0..10 {
        assert_reads(&file, area.bytes(0, SIZE), 0, &expected);
        keep(&session, area.bytes(0, SIZE));
        if round % 2 == 0 {
            area = area.mapped_again();
        } else {
            area.empty(0, SIZE);
        }
        if !watched {
            session.invalidate(area.pointer(), SIZE);
        }
        assert_reads(&file, area.bytes(0, SIZE / 2), 0, &expected);
        area.bytes(0, SIZE).copy_from_slice(&expected);
        assert_eq!(file.write_at(area.bytes(0, SIZE), 0).unwrap(), SIZE);
    }
    if watched {
        wait_for_stale(&session, 10);
    }
    drop(pin);
    assert_eq!(session.registration_counters().entries, 0);
}

// [CLI-82] On tcp and shm a registration is an address, and a stale one would do no harm: only the counters show that it is not used. On
// verbs it is pages, and the data would be the old ones'.
fn pages_that_are_moved_are_registered_anew(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let expected = bytes(1, SIZE);
    let (area, place) = (Area::new(SIZE), Area::new(2 * SIZE));
    // SAFETY: what is done to it below is announced, or noticed where the kernel lets it be watched.
    let _pins =
        unsafe { [session.pin_raw(area.pointer(), SIZE), session.pin_raw(place.pointer(), 2 * SIZE)] };
    let watched = userfaultfd_is_there();
    for round in 0..5 {
        assert_reads(&file, area.bytes(0, SIZE), 0, &expected);
        assert_reads(&file, place.bytes(0, SIZE), 0, &expected);
        keep(&session, area.bytes(0, SIZE));
        keep(&session, place.bytes(0, SIZE));
        let before = session.registration_counters();
        area.move_pages_to(&place);
        if !watched {
            session.invalidate(area.pointer(), SIZE);
            session.invalidate(place.pointer(), SIZE);
        }
        assert_same(place.bytes(0, SIZE), &expected, "what was moved");
        assert_reads(&file, area.bytes(0, SIZE), 0, &expected);
        place.bytes(0, SIZE).fill(round);
        assert_eq!(file.write_at(place.bytes(0, SIZE), SIZE as u64).unwrap(), SIZE);
        assert_same(area.bytes(0, SIZE), &expected, "what was read to where the pages had been");
        assert_reads(&file, area.bytes(0, SIZE), SIZE, &vec![round; 2 * SIZE]);
        keep(&session, area.bytes(0, SIZE));
        let counters = since(&session, &before);
        assert!(counters.registrations >= 2, "{counters:?}");
        assert_eq!(counters.stale + counters.invalidations, 2, "{counters:?}");
    }
}

// [CLI-82] As above, the data shows it on verbs only.
fn vector_that_is_reallocated_is_registered_anew(on: On) {
    let config = RegistrationConfig { keep_unpinned: true, ..RegistrationConfig::default() };
    let (_harness, session, file) = start(on, config);
    let expected = bytes(1, SIZE);
    let mut buffer = vec![0; SIZE];
    let mut moved = 0;
    for round in 1..8 {
        assert_reads(&file, &mut buffer[..SIZE], 0, &expected);
        let was = buffer.as_ptr();
        // So large that the allocator moves pages rather than bytes.
        buffer.resize(SIZE << round, 0);
        assert_same(&buffer[..SIZE], &expected, "what was moved");
        let before = session.registration_counters();
        assert_reads(&file, &mut buffer[..SIZE], 0, &expected);
        assert_reads(&file, &mut buffer[(SIZE << round) - SIZE..], 0, &expected);
        if buffer.as_ptr() != was {
            moved += 1;
            assert_eq!(since(&session, &before).hits, 0);
        }
        buffer[..SIZE].fill(0);
        assert_same(&buffer[(SIZE << round) - SIZE..], &expected, "what was read to the end");
    }
    assert!(moved > 0, "the allocator never moved it");
}

// [CLI-82] In one step, for to have an operation touch memory that is not there is no less a fault of this process than to touch it
// itself. Where the data goes is not said: to the pages of before on verbs, to those of now on tcp and shm.
fn memory_mapped_again_under_operations_in_flight_lets_them_end(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let expected = bytes(1, SIZE);
    let mut area = Area::new(SIZE);
    // SAFETY: what is done to it below is announced, or noticed where the kernel lets it be watched.
    let _pin = unsafe { session.pin_raw(area.pointer(), SIZE) };
    let watched = userfaultfd_is_there();
    let part = SIZE / 4;
    for _ in 0..10 {
        assert_reads(&file, area.bytes(0, SIZE), 0, &expected);
        keep(&session, area.bytes(0, SIZE));
        let before = session.registration_counters();
        let pending: Vec<_> = (0..4)
            .map(|number| {
                let place = area.pointer().wrapping_add(number * part);
                // SAFETY: nobody uses the memory until all have ended, and there is always some.
                unsafe { file.submit_read_raw_at(place, part, (number * part) as u64) }
            })
            .collect();
        area = area.mapped_again();
        if !watched {
            session.invalidate(area.pointer(), SIZE);
        }
        for result in wait_all(pending) {
            assert_eq!(result.unwrap(), part);
        }
        assert_reads(&file, area.bytes(0, SIZE), 0, &expected);
        let hits = since(&session, &before).hits;
        keep(&session, area.bytes(0, SIZE));
        let counters = since(&session, &before);
        assert_eq!(hits, 4, "those that began before found it, the one after did not: {counters:?}");
        // The registration of before is dropped as stale, or the one made meanwhile takes its place.
        assert!(counters.stale + counters.invalidations <= 1, "{counters:?}");
        assert!(counters.registrations >= 1, "it is registered anew: {counters:?}");
    }
}

// [CLI-88] The child has what memory is watched by, and does nothing with it.
fn memory_is_unmapped_after_a_session_ended_beside_a_child(on: On) {
    let config = RegistrationConfig { keep_unpinned: true, ..RegistrationConfig::default() };
    let (_harness, session, file) = start(on, config);
    let area = Area::new(SIZE);
    assert_reads(&file, area.bytes(0, SIZE), 0, &bytes(1, SIZE));
    // SAFETY: the child waits for its end, and does nothing else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: waits.
            unsafe { libc::pause() };
        }
    }
    drop((file, session));
    let (sender, unmapped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(area);
        sender.send(()).unwrap();
    });
    let ended = unmapped.recv_timeout(std::time::Duration::from_secs(60));
    // SAFETY: ends the child made above, and waits for that.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert!(ended.is_ok(), "unmapping hangs");
}

// [CLI-79]
fn memory_is_not_kept_where_there_is_no_room(on: On) {
    for config in [
        RegistrationConfig { entries_max: 0, ..RegistrationConfig::default() },
        RegistrationConfig { size_max: 0, evict_count: usize::MAX, ..RegistrationConfig::default() },
    ] {
        let (_harness, session, file) = start(on, config);
        let mut buffer = session.pin(vec![0; SIZE]);
        assert!(!session.preregister(&buffer));
        assert_reads(&file, &mut buffer, 0, &bytes(1, SIZE));
        let counters = session.registration_counters();
        assert_eq!((counters.hits, counters.entries), (0, 0));
    }
}

/// Waits until the memory is kept: while the kernel's word is being read, nothing is.
fn keep(session: &Session, memory: &[u8]) {
    while !session.preregister(memory) {
        std::thread::yield_now();
    }
}

/// The kernel's word is taken in by a thread of its own.
pub(crate) fn wait_for_stale(session: &Session, count: u64) {
    let given_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while session.registration_counters().stale < count {
        assert!(std::time::Instant::now() < given_up, "{:?}", session.registration_counters());
        std::thread::yield_now();
    }
}

pub(crate) fn userfaultfd_is_there() -> bool {
    // SAFETY: makes a descriptor, which is closed at once.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1);
        fd >= 0 && libc::close(fd as i32) == 0
    }
}

fn memory_of_a_parent_stays_its_own_after_a_fork(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let expected = bytes(1, SIZE);
    let mut buffer = session.pin(vec![0; SIZE]);
    assert_reads(&file, &mut buffer, 0, &expected);
    for _ in 0..3 {
        // The child shares the pages until one of them writes.
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        // SAFETY: nothing is shared but pages; the child ends at once.
        let forked = unsafe { libc::fork() };
        if forked == 0 {
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        buffer[0] = 1;
        assert_reads(&file, &mut buffer, 0, &expected);
        buffer.copy_from_slice(&expected);
        assert_eq!(file.write_at(&buffer, 0).unwrap(), SIZE);
        child.kill().unwrap();
        child.wait().unwrap();
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(forked, std::ptr::null_mut(), 0) }, forked);
    }
    assert_eq!(session.registration_counters().registrations, 2, "the first was for the file's first write");
}

// [CLI-81]
fn eviction_under_operations_in_flight_disturbs_none(on: On) {
    let config = RegistrationConfig { entries_max: 3, evict_count: 2, ..RegistrationConfig::default() };
    let (_harness, session, file) = start(on, config);
    let expected = bytes(1, SIZE);
    let len = 20_000;
    let mut numbers = Numbers::new(7);
    let mut buffers: Vec<_> = (0..24).map(|_| session.pin(vec![0; len])).collect();
    for _ in 0..20 {
        // Those that are kept are not the first to be used again.
        buffers.rotate_left(5);
        let offsets: Vec<u64> = buffers.iter().map(|_| numbers.below((SIZE - len) as u64)).collect();
        let pending: Vec<_> = buffers
            .iter_mut()
            .zip(&offsets)
            .map(|(buffer, offset)| {
                buffer.fill(0);
                // SAFETY: nobody uses the buffer until all have ended.
                unsafe { file.submit_read_raw_at(buffer.as_mut_ptr(), len, *offset) }
            })
            .collect();
        session.invalidate(buffers[3].as_ptr(), len);
        for result in wait_all(pending) {
            assert_eq!(result.unwrap(), len);
        }
        for (buffer, offset) in buffers.iter().zip(&offsets) {
            let offset = *offset as usize;
            assert_same(buffer, &expected[offset..offset + len], "what was read in flight");
        }
    }
    let counters = session.registration_counters();
    assert!(counters.evictions > 0 && counters.entries <= 3, "{counters:?}");
}

const ROWS: usize = 1024;

fn grouping(page_ns: f64, call_ns: f64) -> RegistrationConfig {
    let cost = Some(RegistrationCost { page_ns, call_ns });
    RegistrationConfig { cost, group: true, ..RegistrationConfig::default() }
}

/// Reads and writes the first half page of every other page of an area, a row each, in one operation; returns what
/// that registered.
fn move_rows(on: On, config: RegistrationConfig, prepare: impl Fn(&Area)) -> RegistrationCounters {
    let (_harness, session, file) = start(on, config);
    let page = page_size();
    let row = page / 2;
    let area = Area::new(2 * ROWS * page);
    area.bytes(0, 2 * ROWS * page).fill(0xAB);
    prepare(&area);
    let expected = bytes(3, ROWS * row);
    file.write_all_at(&expected, 0).unwrap();
    let before = session.registration_counters();
    let mut rows: Vec<_> =
        (0..ROWS).map(|index| IoSliceMut::new(area.bytes(2 * index * page, row))).collect();
    assert_eq!(file.read_vectored_at(&mut rows, 0).unwrap(), expected.len());
    let counters = since(&session, &before);
    for (index, row) in rows.iter().enumerate() {
        assert_same(row, &expected[index * row.len()..][..row.len()], "a row");
        let behind = area.bytes(2 * index * page + row.len(), page - row.len());
        assert!(is_all(behind, 0xAB), "bytes behind a row were written");
    }
    let rows: Vec<_> = rows.iter().map(|row| IoSlice::new(row)).collect();
    assert_eq!(file.write_vectored_at(&rows, 0).unwrap(), expected.len());
    let mut back = vec![0; expected.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_same(&back, &expected, "what the rows wrote");
    counters
}

// [CLI-15]
fn rows_of_an_array_are_one_registration(on: On) {
    let counters = move_rows(on, grouping(1.0, 1000.0), |_| {});
    assert_eq!((counters.registrations, counters.groups, counters.failures), (1, 1, 0));
}

// [CLI-89]
fn rows_with_ten_holes_are_eleven_registrations(on: On) {
    let counters = move_rows(on, grouping(1.0, 1000.0), |area| {
        let page = page_size();
        // Between rows: neither allocated nor asked for.
        for hole in 1..=10 {
            let at = (2 * (hole * 90) + 1) * page;
            match hole % 3 {
                0 => area.protect(at, page, libc::PROT_NONE),
                1 => area.protect(at, page, libc::PROT_READ),
                _ => area.unmap(at, page),
            }
        }
    });
    assert_eq!((counters.registrations, counters.groups, counters.hole_queries), (11, 11, 1));
    // Where pages are held it is tried before anybody asks for holes.
    assert_eq!(counters.failures, u64::from(on.is_verbs()));
}

fn rows_further_apart_than_a_registration_costs_are_registered_one_by_one(on: On) {
    let counters = move_rows(on, grouping(1000.0, 999.0), |_| {});
    assert_eq!((counters.registrations, counters.groups), (ROWS as u64, 0));
}

// [CLI-65]
fn memory_between_segments_is_not_registered_unasked(on: On) {
    let counters = move_rows(on, RegistrationConfig { group: false, ..grouping(0.0, 1000.0) }, |_| {});
    assert_eq!((counters.registrations, counters.groups), (ROWS as u64, 0));
    assert!(!RegistrationConfig::default().group);
}

// [CLI-13] [CLI-82] [CLI-83] [CLI-84]
fn unpinned_memory_is_kept_where_the_configuration_says_so(on: On) {
    let config = RegistrationConfig { keep_unpinned: true, ..RegistrationConfig::default() };
    let (_harness, session, file) = start(on, config);
    if !userfaultfd_is_there() {
        assert_eq!(session.registration_counters().entries, 0, "what cannot be watched is not kept");
        return;
    }
    let expected = bytes(1, SIZE);
    let area = Area::new(SIZE);
    let before = session.registration_counters();
    for _ in 0..4 {
        assert_reads(&file, area.bytes(0, SIZE), 0, &expected);
    }
    let counters = since(&session, &before);
    assert_eq!((counters.misses, counters.hits), (1, 3));
    // For reading only: what is only lent to be sent may not be written by the server.
    assert_eq!(file.write_at(area.bytes(0, SIZE), 0).unwrap(), SIZE);
    assert_eq!(since(&session, &before).misses, 2);
    let area = area.mapped_again();
    wait_for_stale(&session, 2);
    assert_reads(&file, area.bytes(0, SIZE), 0, &expected);
    drop(area);
    // Vectors come and go; the allocator gives some of their memory back.
    for round in 0..200usize {
        let mut buffer = vec![0; 1000 + round * 1500 % SIZE];
        assert_reads(&file, &mut buffer, 0, &expected);
    }
}
