//! Lists whose small parts are written with what lies between them. `DAFS_SIEVE_CASES=n` runs so many rounds of random ones.

use std::fs::File as Plain;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dafs_client::{Datatype, Explanation, Extent, File, OpenOptions, Session, Sieve};
use dafs_proto::wire::LIST_MAX;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::{Numbers, assert_same, bytes, wait_for};
use nix::fcntl::{FcntlArg, fcntl};

on_each_provider_and_three_workers! {
    lists_leave_the_same_file_however_they_are_sieved,
    writers_of_parts_that_interleave_lose_nothing,
    list_that_is_not_sieved_leaves_what_lies_between_to_others,
    dense_small_parts_are_sieved_and_others_are_not,
    explanations_say_which_calls_were_made_of_a_list,
    reads_that_fill_the_message_come_without_an_explanation,
}

const MODES: [Sieve; 3] = [Sieve::Auto, Sieve::On, Sieve::Off];

fn open(session: &Session) -> File {
    let export = session.mount("data").unwrap();
    export.open_with("f", OpenOptions::new().read(true).write(true).create(true)).unwrap()
}

fn plain(harness: &Harness) -> Plain {
    Plain::options().read(true).write(true).open(harness.data().join("f")).unwrap()
}

/// Extents in any order, which may overlap.
fn extents(numbers: &mut Numbers, size: u64) -> Vec<Extent> {
    let (count, len_max) = (1 + numbers.below(200), 1 + numbers.below(400));
    let spread = 1 + numbers.below(size);
    let start = numbers.below(size);
    let mut extents: Vec<Extent> =
        (0..count).map(|_| Extent::new(start + numbers.below(spread), 1 + numbers.below(len_max))).collect();
    if numbers.below(3) > 0 {
        extents.sort_by_key(|extent| extent.offset);
    }
    extents
}

/// How many rounds, each a write in every mode: `DAFS_SIEVE_CASES`, else `default`.
fn cases(default: u64) -> u64 {
    let text = std::env::var("DAFS_SIEVE_CASES").ok();
    text.map_or(default, |text| text.parse().expect("DAFS_SIEVE_CASES is a number"))
}

// [LIST-40] [LIST-42] [LIST-43] [LIST-44] [LIST-4]
fn lists_leave_the_same_file_however_they_are_sieved(on: On) {
    const SIZE: u64 = 60_000;
    let harness = Harness::start(on);
    let session = harness.session();
    let file = open(&session);
    let plain = plain(&harness);
    let mut numbers = Numbers::new(17);
    for round in 0..cases(on.rounds(150)) {
        // With holes and data, and an end that lists reach.
        plain.set_len(0).unwrap();
        plain.set_len(numbers.below(2 * SIZE)).unwrap();
        for _ in 0..numbers.below(4) {
            let data = bytes(round, numbers.below(SIZE) as usize);
            plain.write_all_at(&data, numbers.below(SIZE)).unwrap();
        }
        let mut model = vec![0; plain.metadata().unwrap().len() as usize];
        plain.read_exact_at(&mut model, 0).unwrap();
        for mode in MODES {
            file.set_sieve(mode);
            let extents = extents(&mut numbers, SIZE);
            let len: u64 = extents.iter().map(|extent| extent.len).sum();
            let data = bytes(1000 + round, len as usize);
            let memory = [IoSlice::new(&data)];
            let written = match round % 2 {
                0 => file.write_list(&extents, &memory),
                _ => file.with_sieve(MODES[round as usize / 2 % 3]).write_list(&extents, &memory),
            };
            assert_eq!(written.unwrap(), data.len());
            let mut place = 0;
            for Extent { offset, len } in extents {
                let (offset, len) = (offset as usize, len as usize);
                model.resize(model.len().max(offset + len), 0);
                model[offset..offset + len].copy_from_slice(&data[place..place + len]);
                place += len;
            }
            let mut found = vec![0; plain.metadata().unwrap().len() as usize];
            plain.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &model, &format!("round {round}, sieve {}", mode.name()));
        }
    }
}

fn lock(file: &Plain, kind: i32) {
    let lock =
        libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(file, FcntlArg::F_OFD_SETLKW(&lock)).unwrap();
}

/// The file of writers that interleave, bytes.
const SHARED: u64 = 8192;
const WRITERS: usize = 4;

/// The bytes of one of them.
fn own(writer: usize) -> impl Iterator<Item = u64> {
    (writer as u64..SHARED).step_by(WRITERS)
}

/// Its bytes are those of its last round: whatever another had changed would show now, and not be written over.
fn assert_own(content: &[u8], writer: usize, round: u64) {
    for at in own(writer) {
        assert_eq!(content[at as usize], round as u8, "byte {at}, of writer {writer} in round {round}");
    }
}

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; SHARED as usize];
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

/// The others go on until the one whose rounds are counted ends, well or not.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

// [LIST-40] [LIST-41] Each byte belongs to one writer: two sessions with lists, one with plain writes, and a program that locks.
fn writers_of_parts_that_interleave_lose_nothing(on: On) {
    let harness = Harness::start(on);
    let sessions: Vec<Session> = (0..3).map(|_| harness.session()).collect();
    let files: Vec<File> = sessions.iter().map(open).collect();
    let local = plain(&harness);
    local.write_all_at(&[0; SHARED as usize], 0).unwrap();
    let (is_over, lists) = (AtomicBool::new(false), AtomicU64::new(0));
    let rounds = || (1..).take_while(|_| !is_over.load(Ordering::Acquire));
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        for (writer, file) in files[..2].iter().enumerate() {
            let lists = &lists;
            scope.spawn(move || {
                let extents: Vec<Extent> = own(writer).map(|at| Extent::new(at, 1)).collect();
                for round in rounds() {
                    assert_own(&content(file), writer, round - 1);
                    file.set_sieve(MODES[(round + writer as u64) as usize % 2]);
                    let data = vec![round as u8; extents.len()];
                    assert_eq!(file.write_list(&extents, &[IoSlice::new(&data)]).unwrap(), data.len());
                    assert_own(&content(file), writer, round);
                    lists.fetch_add(1, Ordering::Release);
                }
            });
        }
        scope.spawn(|| {
            let mut content = [0; SHARED as usize];
            for round in rounds() {
                lock(&local, libc::F_WRLCK);
                own(3).for_each(|at| local.write_all_at(&[round as u8], at).unwrap());
                lock(&local, libc::F_UNLCK);
                // Where it always had the lock, no window would be rewritten.
                let seen = lists.load(Ordering::Acquire);
                while lists.load(Ordering::Acquire) < seen + 4 && !is_over.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                local.read_exact_at(&mut content, 0).unwrap();
                assert_own(&content, 3, round);
            }
        });
        for round in 1..=on.rounds(4) {
            own(2).for_each(|at| files[2].write_all_at(&[round as u8], at).unwrap());
            assert_own(&content(&files[2]), 2, round);
        }
    });
    // Another worker tells its counters later.
    wait_for("windows are rewritten", || sessions[2].statistics().unwrap().sieved_windows > 0);
}

// [LIST-42] A program that knows nothing of locks writes between the parts.
fn list_that_is_not_sieved_leaves_what_lies_between_to_others(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = open(&session);
    file.set_sieve(Sieve::Off);
    let local = plain(&harness);
    local.write_all_at(&[0; 8192], 0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let extents: Vec<Extent> = (0..8192).step_by(16).map(|at| Extent::new(at, 8)).collect();
            for round in 0..on.rounds(100) {
                let data = vec![round as u8; extents.len() * 8];
                file.write_list(&extents, &[IoSlice::new(&data)]).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        let (mut byte, mut found) = (0, [0]);
        while !done.load(Ordering::Acquire) {
            byte = u8::wrapping_add(byte, 1);
            local.write_all_at(&[byte], 4090).unwrap();
            std::thread::yield_now();
            local.read_exact_at(&mut found, 4090).unwrap();
            assert_eq!(found, [byte]);
        }
    });
}

// [LIST-42] [LIST-44] [LIST-46]
fn dense_small_parts_are_sieved_and_others_are_not(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = open(&session);
    plain(&harness).write_all_at(&bytes(1, 8 << 20), 0).unwrap();
    let sieved = |mode: Sieve, len: u64, stride: u64| {
        file.set_sieve(mode);
        let extents: Vec<Extent> = (0..100).map(|at| Extent::new(stride * at, len)).collect();
        let data = vec![7; extents.len() * len as usize];
        let before = session.statistics().unwrap().sieved_windows;
        assert_eq!(file.write_list(&extents, &[IoSlice::new(&data)]).unwrap(), data.len());
        session.statistics().unwrap().sieved_windows - before
    };
    assert!(sieved(Sieve::Auto, 64, 128) > 0);
    assert!(sieved(Sieve::On, 64, 128) > 0);
    assert_eq!(sieved(Sieve::Off, 64, 128), 0);
    assert_eq!(sieved(Sieve::Auto, 128, 128), 0, "nothing lies between");
    // For one request only.
    file.set_sieve(Sieve::Off);
    let extents: Vec<Extent> = (0..100).map(|at| Extent::new(128 * at, 64)).collect();
    let before = session.statistics().unwrap().sieved_windows;
    file.with_sieve(Sieve::On).write_list(&extents, &[IoSlice::new(&[7; 6400])]).unwrap();
    assert!(session.statistics().unwrap().sieved_windows > before && file.sieve() == Sieve::Off);
    assert!(sieved(Sieve::On, 1, 40_000) > 0);
    // Neighbours of a batch become one list.
    let before = session.statistics().unwrap().sieved_windows;
    let mut batch = session.batch_io();
    for at in 0..100 {
        batch.write_at(&file, &[9; 64], 128 * at);
    }
    batch.run().unwrap().into_iter().for_each(|outcome| assert_eq!(outcome.unwrap().count, 64));
    assert_eq!(session.statistics().unwrap().sieved_windows, before);
    assert_eq!(sieved(Sieve::On, 1, 70_000), 0, "no gap is as large");
}

// [LIST-47] [LIST-48]
fn explanations_say_which_calls_were_made_of_a_list(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = open(&session);
    let plain = plain(&harness);
    plain.write_all_at(&bytes(1, 1 << 20), 0).unwrap();
    let extents: Vec<Extent> = (0..100).map(|at| Extent::new(128 * at, 64)).collect();
    let data = bytes(2, 6400);
    assert_eq!(file.take_explanation(), Explanation::default(), "it was not asked for");
    let explained = file.with_explanation();
    let write = |mode: Sieve| {
        assert_eq!(explained.with_sieve(mode).write_list(&extents, &[IoSlice::new(&data)]).unwrap(), 6400);
        explained.take_explanation()
    };
    let told = write(Sieve::Off);
    assert_eq!((told.requests, told.others, told.parts, told.windows, told.calls), (1, 0, 100, 0, 100));
    assert!(told.waited <= told.calls && !told.measured.is_zero(), "{told}");
    // A call that was not waited for was expected to take something.
    assert!(told.waited == told.calls || told.predicted > told.call, "{told}");
    let told = write(Sieve::On);
    assert_eq!((told.parts, told.windows, told.calls), (100, 1, 0), "{told}");
    assert_eq!(told.window_bytes, 99 * 128 + 64);
    assert!(told.waited == 1 || told.predicted_apart > told.predicted, "{told}");
    let mut found = vec![0; 6400];
    for mode in MODES {
        let reads = explained.with_sieve(mode);
        assert_eq!(reads.read_list(&extents, &mut [IoSliceMut::new(&mut found)]).unwrap().count, 6400);
        assert_eq!(found, data);
        let told = reads.take_explanation();
        assert_eq!(told.requests + told.others, 1, "{told}");
        assert!(told.others == 1 || told.parts == 100, "{told}");
    }
    // Neighbours in the file that are none in memory are one call, with gaps or without.
    let backwards: Vec<Extent> = (0..100).rev().map(|at| Extent::new(64 * at, 64)).collect();
    assert_eq!(explained.write_list(&backwards, &[IoSlice::new(&data)]).unwrap(), 6400);
    let told = explained.take_explanation();
    assert_eq!((told.parts, told.calls, told.windows), (100, 1, 0), "{told}");
    assert_eq!(told.predicted_apart, told.predicted, "{told}");
    // One extent is a plain read.
    explained.read_list(&extents[..1], &mut [IoSliceMut::new(&mut found[..64])]).unwrap();
    assert_eq!(explained.take_explanation().requests, 0);
    // Several requests are one sum; what ends in an error explains nothing.
    let many: Vec<Extent> = (0..3 * LIST_MAX as u64).map(|at| Extent::new(2 * at, 1)).collect();
    explained.write_list(&many, &[IoSlice::new(&vec![3; many.len()])]).unwrap();
    let told = explained.take_explanation();
    assert!(told.requests >= 3 && told.parts == many.len() as u64, "{told}");
    let view = session.view(&Datatype::bytes(2).resized(0, 5)).unwrap();
    explained.write_view(&view.at(0, 0), &data[..2000]).unwrap();
    let told = explained.take_explanation();
    assert_eq!((told.requests, told.parts), (1, 1000), "{told}");
}

// [LIST-47]
fn reads_that_fill_the_message_come_without_an_explanation(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = open(&session).with_explanation();
    let data = bytes(3, 256 * 1024);
    plain(&harness).write_all_at(&data, 0).unwrap();
    // Around each size at which a message is full, whatever the provider's is.
    let inline_max = session.agreed().read_inline_max as usize;
    for len in (inline_max.saturating_sub(80)..=inline_max + 8).chain([1, 63, 64, 65]) {
        let first = len.div_ceil(2);
        let extents = [Extent::new(0, first as u64), Extent::new(100_000, (len - first) as u64)];
        let mut found = vec![0; len];
        assert_eq!(file.read_list(&extents, &mut [IoSliceMut::new(&mut found)]).unwrap().count, len);
        // All of it is there, or nothing.
        let told = file.take_explanation();
        assert!(told.requests == 0 || (told.requests, told.parts) == (1, 2) || len == 1, "{len}: {told}");
        assert!(told.requests == 1 || len > 65 || len == 1, "{len} leave room for it");
        assert!(found[..first] == data[..first] && found[first..] == data[100_000..][..len - first], "{len}");
    }
}
