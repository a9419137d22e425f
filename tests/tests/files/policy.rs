//! Who registers the memory of a file's transfers: counted for each policy. What is to be kept is no memory of the allocator's: a
//! session of another test could have that watched, and the kernel tells one of them only.
#![allow(unsafe_code, reason = "pins memory, and lends it to operations in flight")]

use std::io::{IoSlice, IoSliceMut};

use dafs_client::{
    Config, Direction, Extent, File, RegistrationConfig, RegistrationCost, RegistrationPolicy, Session,
    Stability, Thresholds,
};
use dafs_tests::area::{Area, page_size};
use dafs_tests::exhausted::{Registers, connect_exhausted};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{assert_same, bytes};

use crate::registration::{SIZE, assert_reads, since, userfaultfd_is_there, wait_for_stale};

on_each_provider! {
    library_copies_writes_that_block_and_registers_the_rest,
    memory_is_registered_for_each_operation,
    memory_is_registered_once_and_found_again,
    memory_of_what_goes_in_messages_is_not_registered,
    policy_that_changes_holds_for_what_begins_then,
    policies_of_two_files_do_not_meet,
    #[ignore = "needs userfaultfd"]
    buffers_beyond_the_entries_of_the_cache_are_registered_each_time,
    #[ignore = "needs userfaultfd"]
    cache_that_shrinks_forgets_what_was_used_least,
    #[ignore = "needs userfaultfd"]
    kept_memory_that_is_mapped_again_is_registered_anew,
    pinned_memory_is_found_registered_whatever_the_policy,
    pieces_are_registered_and_not_packed,
    memory_that_cannot_be_registered_is_copied,
    explanation_says_what_the_counters_show,
}

use RegistrationPolicy::{Kept, Library, Operation};

const ROUNDS: u64 = 5;

fn start(on: On, registration: RegistrationConfig) -> (Harness, Session, File) {
    let harness = Harness::start(on);
    let session = harness.session_with(&Config { registration, ..Config::default() });
    let file = session.mount("data").unwrap().create("file").unwrap();
    file.write_all_at(&bytes(1, SIZE), 0).unwrap();
    (harness, session, file)
}

/// Registrations and hits of what is done here.
fn counted(session: &Session, what: impl FnOnce()) -> (u64, u64) {
    let before = session.registration_counters();
    what();
    let counters = since(session, &before);
    assert_eq!(counters.failures, 0);
    (counters.registrations, counters.hits)
}

/// Of so many operations on one buffer whose registration is kept, and was not before.
fn kept(operations: u64) -> (u64, u64) {
    if userfaultfd_is_there() { (1, operations - 1) } else { (operations, 0) }
}

/// The smallest transfers that are not in messages.
fn thresholds(session: &Session) -> [usize; 2] {
    let Thresholds { read_inline_max, write_inline_max, crossovers } = session.agreed().thresholds;
    assert!(
        crossovers.read_unregistered > read_inline_max && crossovers.write_unregistered > write_inline_max
    );
    let agreed = session.agreed();
    [agreed.read_inline_max as usize + 1, agreed.write_inline_max as usize + 1]
}

/// Reads and durable writes, which are not cut into messages.
fn move_both_ways(file: &File, buffer: &mut [u8], rounds: u64) {
    for round in 0..rounds {
        buffer.copy_from_slice(&bytes(round, buffer.len()));
        assert_eq!(file.write_at_with(buffer, 0, Stability::DataSync).unwrap(), buffer.len());
        assert_reads(file, buffer, 0, &bytes(round, buffer.len()));
    }
}

// [CLI-5] [CLI-72]
fn library_copies_writes_that_block_and_registers_the_rest(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let data = bytes(1, SIZE);
    let registered = |what: &dyn Fn()| counted(&session, what).0;
    // Over tcp unstable writes are cut into messages; over shm the server has buffers of the library mapped.
    let is_cut = session.agreed().cuts_inline_writes;
    let is_mapped = on == On::Shm;
    let blocking = registered(&|| assert_eq!(file.write_at(&data, 0).unwrap(), SIZE));
    assert_eq!(blocking, u64::from(!is_cut && !is_mapped));
    let nonblocking = registered(&|| {
        assert_eq!(file.submit_write_at(data.clone(), 0).wait().result.unwrap(), SIZE);
    });
    assert_eq!(nonblocking, u64::from(!is_cut));
    let durable = || assert_eq!(file.write_at_with(&data, 0, Stability::DataSync).unwrap(), SIZE);
    assert_eq!(registered(&durable), 1);
    assert_eq!(registered(&|| assert_eq!(file.append(&data).unwrap(), SIZE as u64)), 1);
    assert_eq!(registered(&|| assert_eq!(file.read_at(&mut vec![0; SIZE], 0).unwrap(), SIZE)), 1);
}

// [CLI-93] [CLI-94]
fn memory_is_registered_for_each_operation(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    file.set_registration_policy(Operation);
    assert_eq!(file.registration_policy(), Operation);
    let mut buffer = vec![0; SIZE];
    let both = counted(&session, || move_both_ways(&file, &mut buffer, ROUNDS));
    assert_eq!(both, (2 * ROUNDS, 0));
    let submitted = counted(&session, || {
        for _ in 0..ROUNDS {
            let done = file.submit_read_at(std::mem::take(&mut buffer), 0).wait();
            (_, buffer) = done.into_result().unwrap();
        }
        // SAFETY: nobody uses the buffer until the operation has ended.
        let pending = unsafe { file.submit_read_raw_at(buffer.as_mut_ptr(), SIZE, 0) };
        assert_eq!(pending.wait().unwrap(), SIZE);
    });
    assert_eq!(submitted, (ROUNDS + 1, 0));
    // Neither is copied first where the server has buffers of the library mapped. Over tcp it goes in messages.
    let is_cut = session.agreed().cuts_inline_writes;
    let unstable = counted(&session, || assert_eq!(file.write_at(&buffer, 0).unwrap(), SIZE));
    assert_eq!(unstable, (u64::from(!is_cut), 0));
    assert_eq!((session.registration_counters().entries, session.registration_counters().misses), (0, 0));
}

// [CLI-49] [CLI-84]
fn memory_is_registered_once_and_found_again(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    file.set_registration_policy(Kept);
    let area = Area::new(SIZE);
    let buffer = area.bytes(0, SIZE);
    let reads = counted(&session, || {
        for _ in 0..ROUNDS {
            assert_reads(&file, buffer, 0, &bytes(1, SIZE));
        }
        for (start, len) in [(0, SIZE / 2), (100, SIZE / 4)] {
            // SAFETY: nobody uses the buffer until the operation has ended.
            let pending = unsafe { file.submit_read_raw_at(buffer[start..].as_mut_ptr(), len, start as u64) };
            assert_eq!(pending.wait().unwrap(), len);
        }
    });
    assert_eq!(reads, kept(ROUNDS + 2));
    // Once more, for the other direction.
    let both = counted(&session, || move_both_ways(&file, buffer, ROUNDS));
    let expected = if userfaultfd_is_there() { (1, 2 * ROUNDS - 1) } else { (2 * ROUNDS, 0) };
    assert_eq!(both, expected);
    let counters = session.registration_counters();
    let kept = if userfaultfd_is_there() { 2 } else { 0 };
    assert_eq!((counters.entries, counters.misses, counters.evictions), (kept, kept, 0));
}

// [CLI-95] at each edge: one less is in a message
fn memory_of_what_goes_in_messages_is_not_registered(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let [read_min, write_min] = thresholds(&session);
    let expected = bytes(1, SIZE);
    for policy in [Operation, Kept] {
        file.set_registration_policy(policy);
        let mut buffer = vec![0; read_min];
        let below = counted(&session, || {
            for len in [0, 1, read_min - 1] {
                assert_reads(&file, &mut buffer[..len], 0, &expected);
                let done = file.submit_read_at(vec![0; len], 0).wait();
                assert_same(&done.into_result().unwrap().1, &expected[..len], "what was submitted");
            }
            for len in [0, 1, write_min - 1] {
                assert_eq!(file.write_at_with(&expected[..len], 0, Stability::DataSync).unwrap(), len);
            }
        });
        assert_eq!(below, (0, 0), "{policy:?}");
        let (registered, _) = counted(&session, || {
            assert_reads(&file, &mut buffer, 0, &expected);
            let written = &expected[..write_min];
            assert_eq!(file.write_at_with(written, 0, Stability::DataSync).unwrap(), write_min);
        });
        assert_eq!(registered, 2, "{policy:?}");
    }
}

// [CLI-48] [CLI-93]
fn policy_that_changes_holds_for_what_begins_then(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let expected = bytes(1, SIZE);
    let area = Area::new(SIZE);
    let reads = |policy| {
        file.set_registration_policy(policy);
        let read = |_| assert_reads(&file, area.bytes(0, SIZE), 0, &expected);
        counted(&session, || (0..ROUNDS).for_each(read))
    };
    let library = (ROUNDS, 0);
    assert_eq!(reads(Library), library);
    assert_eq!(reads(Kept), kept(ROUNDS));
    // What is kept meanwhile is nothing to them.
    assert_eq!(reads(Operation), (ROUNDS, 0));
    assert_eq!(reads(Library), library);
    let again = if userfaultfd_is_there() { (0, ROUNDS) } else { (ROUNDS, 0) };
    assert_eq!(reads(Kept), again);
}

// [CLI-48]
fn policies_of_two_files_do_not_meet(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let other = session.mount("data").unwrap().open("file").unwrap();
    assert_eq!(other.registration_policy(), Library);
    file.set_registration_policy(Kept);
    other.set_registration_policy(Operation);
    let area = Area::new(SIZE);
    let both = counted(&session, || {
        for _ in 0..ROUNDS {
            assert_reads(&file, area.bytes(0, SIZE), 0, &bytes(1, SIZE));
            assert_reads(&other, area.bytes(0, SIZE), 0, &bytes(1, SIZE));
        }
    });
    let (registrations, hits) = kept(ROUNDS);
    assert_eq!(both, (registrations + ROUNDS, hits));
}

// [CLI-79]
fn buffers_beyond_the_entries_of_the_cache_are_registered_each_time(on: On) {
    let entries = on.rounds(200) as usize;
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    file.set_registration_policy(Kept);
    assert_eq!(session.registrations_max(), 200);
    session.set_registrations_max(entries);
    let expected = bytes(1, SIZE);
    let len = thresholds(&session)[0];
    let area = Area::new((entries + 1) * len);
    let round = |count: usize| {
        for number in 0..count {
            let offset = number * 100;
            assert_reads(&file, area.bytes(number * len, len), offset, &expected);
        }
    };
    assert_eq!(counted(&session, || round(entries)), (entries as u64, 0));
    assert_eq!(counted(&session, || round(entries)), (0, entries as u64), "all are kept");
    // In turn, the one that is needed next has always just given way.
    assert_eq!(counted(&session, || round(entries + 1)), (1, entries as u64));
    for _ in 0..2 {
        assert_eq!(counted(&session, || round(entries + 1)), (entries as u64 + 1, 0));
    }
    let counters = session.registration_counters();
    assert!(counters.entries <= entries as u64);
    // One whose memory changes while it is made serves its operation, and is not kept.
    assert!(counters.entries + counters.evictions <= counters.registrations);
    // One more, and all have room.
    session.set_registrations_max(entries + 1);
    round(entries + 1);
    assert_eq!(counted(&session, || round(entries + 1)), (0, entries as u64 + 1));
}

// [CLI-53]
fn cache_that_shrinks_forgets_what_was_used_least(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    file.set_registration_policy(Kept);
    let expected = bytes(1, SIZE);
    let len = thresholds(&session)[0];
    let area = Area::new(10 * len);
    let read = |number: usize| assert_reads(&file, area.bytes(number * len, len), number, &expected);
    (0..10).for_each(read);
    session.set_registrations_max(4);
    let counters = session.registration_counters();
    assert_eq!((counters.entries, counters.evictions, counters.eviction_rounds), (4, 6, 1));
    assert_eq!(counted(&session, || (6..10).for_each(read)), (0, 4), "the last four");
    session.set_registrations_max(0);
    assert_eq!(session.registration_counters().entries, 0);
    assert_eq!(counted(&session, || (6..10).for_each(read)), (4, 0), "each for its operation");
    session.set_registrations_max(1);
    assert_eq!(counted(&session, || [6, 6, 7, 7].into_iter().for_each(read)), (2, 2));
    assert_eq!(session.registration_counters().entries, 1);
}

// [CLI-82]
fn kept_memory_that_is_mapped_again_is_registered_anew(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    file.set_registration_policy(Kept);
    let expected = bytes(1, SIZE);
    let mut area = Area::new(SIZE);
    for round in 0..6u64 {
        // While the kernel's word is being read nothing is kept.
        while counted(&session, || assert_reads(&file, area.bytes(0, SIZE), 0, &expected)).1 == 0 {}
        match round % 2 {
            0 => area = area.mapped_again(),
            _ => area.empty(0, SIZE),
        }
        assert_eq!(counted(&session, || assert_reads(&file, area.bytes(0, SIZE), 0, &expected)).1, 0);
        area.bytes(0, SIZE).copy_from_slice(&bytes(2 + round, SIZE));
        assert_eq!(file.write_at_with(area.bytes(0, SIZE), SIZE as u64, Stability::DataSync).unwrap(), SIZE);
        let mut found = vec![0; SIZE];
        file.read_exact_at(&mut found, SIZE as u64).unwrap();
        assert_same(&found, &bytes(2 + round, SIZE), "what was written");
    }
    wait_for_stale(&session, 6);
    // Moved pages, the old place mapped anew.
    let place = Area::new(2 * SIZE);
    while counted(&session, || assert_reads(&file, area.bytes(0, SIZE), 0, &expected)).1 == 0 {}
    area.move_pages_to(&place);
    assert_eq!(counted(&session, || assert_reads(&file, area.bytes(0, SIZE), 0, &expected)).1, 0);
    assert_same(place.bytes(0, SIZE), &expected, "what was moved");
}

// [CLI-93]
fn pinned_memory_is_found_registered_whatever_the_policy(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let mut buffer = session.pin(vec![0; SIZE]);
    for (policy, expected) in [(Operation, (1, ROUNDS - 1)), (Kept, (0, ROUNDS)), (Library, (0, ROUNDS))] {
        file.set_registration_policy(policy);
        let counts = counted(&session, || {
            (0..ROUNDS).for_each(|_| assert_reads(&file, &mut buffer, 0, &bytes(1, SIZE)));
        });
        assert_eq!(counts, expected, "{policy:?}");
    }
    // Kept before it was pinned: not what its owner promised.
    let mut buffer = buffer.into_vec();
    file.set_registration_policy(Kept);
    assert_reads(&file, &mut buffer, 0, &bytes(1, SIZE));
    let mut buffer = session.pin(buffer);
    file.set_registration_policy(Operation);
    let counts = counted(&session, || {
        (0..ROUNDS).for_each(|_| assert_reads(&file, &mut buffer, 0, &bytes(1, SIZE)));
    });
    assert_eq!(counts, (1, ROUNDS - 1));
}

// [CLI-49] [CLI-94] Apart for any group, so that each piece counts.
fn pieces_are_registered_and_not_packed(on: On) {
    const PIECES: usize = 64;
    let cost = Some(RegistrationCost { page_ns: 1000.0, call_ns: 999.0 });
    let (_harness, session, file) = start(on, RegistrationConfig { cost, ..RegistrationConfig::default() });
    let len = page_size() / 2;
    assert!(PIECES * len >= thresholds(&session)[0] && PIECES * len >= thresholds(&session)[1]);
    let area = Area::new(2 * PIECES * page_size());
    let expected = bytes(1, SIZE);
    let extents: Vec<Extent> =
        (0..PIECES).map(|piece| Extent::new((piece * 2 * len) as u64, len as u64)).collect();
    let wanted: Vec<u8> = (0..PIECES).flat_map(|piece| expected[piece * 2 * len..][..len].to_vec()).collect();
    let pieces = || (0..PIECES).map(|piece| area.bytes(2 * piece * page_size(), len));
    let move_them = || {
        pieces().for_each(|piece| piece.fill(0));
        let mut slices: Vec<_> = pieces().map(IoSliceMut::new).collect();
        assert_eq!(file.read_vectored_at(&mut slices, 0).unwrap(), PIECES * len);
        assert_same(
            &pieces().flat_map(|piece| piece.to_vec()).collect::<Vec<_>>(),
            &expected[..PIECES * len],
            "a vector",
        );
        let mut slices: Vec<_> = pieces().map(IoSliceMut::new).collect();
        assert_eq!(file.read_list(&extents, &mut slices).unwrap().count, PIECES * len);
        assert_same(&pieces().flat_map(|piece| piece.to_vec()).collect::<Vec<_>>(), &wanted, "a list");
        let memory: Vec<_> = pieces().map(|piece| (piece.as_mut_ptr(), piece.len())).collect();
        // SAFETY: nobody uses the area until the operation has ended.
        let pending = unsafe { file.submit_read_list_raw(&extents, &memory) };
        assert_eq!(pending.wait().unwrap().count, PIECES * len);
        assert_same(
            &pieces().flat_map(|piece| piece.to_vec()).collect::<Vec<_>>(),
            &wanted,
            "a list that was submitted",
        );
        let slices: Vec<_> = pieces().map(|piece| IoSlice::new(piece)).collect();
        assert_eq!(file.write_list_with(&extents, &slices, Stability::DataSync).unwrap(), PIECES * len);
    };
    let pieces_count = PIECES as u64;
    assert_eq!(counted(&session, move_them), (0, 0), "the library packs pieces so small");
    file.set_registration_policy(Operation);
    assert_eq!(counted(&session, move_them), (4 * pieces_count, 0));
    file.set_registration_policy(Kept);
    let kept = userfaultfd_is_there();
    let first = if kept { (2 * pieces_count, 2 * pieces_count) } else { (4 * pieces_count, 0) };
    assert_eq!(counted(&session, move_them), first, "each direction once");
    let again = if kept { (0, 4 * pieces_count) } else { (4 * pieces_count, 0) };
    assert_eq!(counted(&session, move_them), again);
}

// [CLI-3]
fn memory_that_cannot_be_registered_is_copied(on: On) {
    let harness = Harness::start(on);
    for registers in [Registers::Nothing, Registers::Allocated(usize::MAX)] {
        let session = connect_exhausted(&harness, registers, &Config::default());
        let file = session.mount("mem").unwrap().create("f").unwrap();
        for policy in [Operation, Kept] {
            file.set_registration_policy(policy);
            let mut data = bytes(3, SIZE);
            assert_eq!(file.write_at_with(&data, 0, Stability::DataSync).unwrap(), SIZE);
            data.fill(0);
            assert_reads(&file, &mut data, 0, &bytes(3, SIZE));
            let counters = session.registration_counters();
            assert_eq!((counters.registrations, counters.entries), (0, 0), "{policy:?}");
            assert!(counters.failures >= 2, "{policy:?}");
        }
    }
}

// [CLI-95]
fn explanation_says_what_the_counters_show(on: On) {
    let (_harness, session, file) = start(on, RegistrationConfig::default());
    let [read_min, write_min] = thresholds(&session);
    let before = session.registration_counters();
    let says = |direction, size: usize| file.explain(direction, size as u64);
    let library = says(Direction::Read, SIZE);
    assert_eq!(library, session.explain(Direction::Read, SIZE as u64, dafs_client::Registration::Ordinary));
    for (policy, words) in [(Operation, "registered for each operation"), (Kept, "registrations are kept")] {
        file.set_registration_policy(policy);
        let keeps = policy == Kept && userfaultfd_is_there();
        for (direction, size_min) in [(Direction::Read, read_min), (Direction::Write, write_min)] {
            let text = says(direction, size_min - 1);
            assert!(text.contains(": inline, because"), "{policy:?}: {text}");
            // Unstable writes over tcp are cut into messages.
            let is_cut = direction == Direction::Write && session.agreed().cuts_inline_writes;
            let way = match (is_cut, keeps) {
                (true, _) => ": inline, because",
                (false, true) => "registered memory: direct, because",
                (false, false) => "ordinary memory: direct, registered for the operation, because",
            };
            let text = says(direction, size_min);
            assert!(text.contains(way), "{policy:?}: {text}");
            if keeps || policy == Operation {
                assert!(text.contains(words), "{policy:?}: {text}");
            }
        }
    }
    session.set_registrations_max(0);
    let text = says(Direction::Read, SIZE);
    assert!(
        text.contains("registered for the operation") && text.contains("no registrations are kept"),
        "{text}"
    );
    assert_eq!(session.registration_counters(), before, "a look registers nothing");
}
