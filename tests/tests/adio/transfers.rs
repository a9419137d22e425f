//! Every method and memory mode moves the same bytes as a plain array.

use adio_dafs::error::Class;
use adio_dafs::file::File;
use adio_dafs::layout::Segment;
use dafs_client::Direction;
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::{Numbers, bytes};

use crate::support::{RDWR_CREATE, counter, describe_rows, name, open, opening, rows, run, segment, submit};

on_sockets! {
    segments_move_as_by_a_plain_loop_in_every_mode,
    write_is_sieved_by_no_one_whoever_has_the_file_open,
    read_beyond_the_end_is_short_in_every_method,
    nonblocking_transfers_are_as_blocking_ones,
    request_that_is_dropped_lets_go_of_its_memory,
    transfers_beyond_4_gib_go_where_they_should,
    segments_that_cannot_be_are_errors,
}

const METHODS: [&str; 4] = ["list", "multiple", "sieve", "view"];
const MODES: [&str; 4] = ["auto", "adio", "adio_cache", "dafs"];

/// Segments that ascend in the file, over parts of a buffer in any order.
fn segments(numbers: &mut Numbers, memory: &mut [u8], scale: u64) -> Vec<Segment> {
    let (mut offset, mut at, mut found) = (numbers.below(scale), 0, Vec::new());
    while at < memory.len() && found.len() < 300 {
        let len = (numbers.below(scale) as usize).min(memory.len() - at);
        found.push(segment(&mut memory[at..at + len], offset));
        offset += len as u64 + numbers.below(3) * numbers.below(scale);
        at += len.max(1) + numbers.below(2) as usize;
    }
    found
}

// [MPI-10] [MPI-20]
fn segments_move_as_by_a_plain_loop_in_every_mode(on: On) {
    let harness = Harness::start(on);
    let file = open(&name(&harness, on, "f"), &[]);
    let model = moved_in_every_mode(on, &file);
    assert!(std::fs::read(harness.data().join("f")).unwrap() == model);
    assert!(counter(&file, "sieve_windows") > 0 && counter(&file, "lists") > 0);
}

/// Moves random segments by each method and memory mode; what the file has then.
pub(crate) fn moved_in_every_mode(on: On, file: &File) -> Vec<u8> {
    let mut model = vec![0u8; 8 << 20];
    let mut numbers = Numbers::new(7);
    let mut largest = 0;
    for round in 0..on.rounds(120) {
        let method = METHODS[round as usize % METHODS.len()];
        let mode = MODES[round as usize / METHODS.len() % 4];
        let limit = ["0", "1", "128"][numbers.below(3) as usize];
        file.take_hints([("dafs_method", method), ("dafs_memory", mode), ("dafs_list_max", limit)]);
        let scale = [16, 700, 9000][numbers.below(3) as usize];
        let mut memory = bytes(round, 200_000);
        let list = segments(&mut numbers, &mut memory, scale);
        let size: u64 = list.iter().map(|segment| segment.len).sum();
        let base = memory.as_ptr() as usize;
        assert_eq!(run(file, Direction::Write, &list).unwrap(), size, "{method} {mode}");
        for segment in &list {
            let (at, from) = (segment.offset as usize, segment.address - base);
            model[at..at + segment.len as usize].copy_from_slice(&memory[from..from + segment.len as usize]);
            largest = largest.max(at + segment.len as usize);
        }
        assert_eq!(file.size().unwrap(), largest as u64);
        // Read by another list.
        let mut found = vec![0xee; 150_000];
        let list = segments(&mut numbers, &mut found, scale);
        let fits = list.iter().take_while(|s| (s.offset + s.len) as usize <= largest).count();
        let size: u64 = list[..fits].iter().map(|segment| segment.len).sum();
        assert_eq!(run(file, Direction::Read, &list[..fits]).unwrap(), size, "{method} {mode}");
        let base = found.as_ptr() as usize;
        for segment in &list[..fits] {
            let (at, to, len) = (segment.offset as usize, segment.address - base, segment.len as usize);
            assert!(found[to..to + len] == model[at..at + len], "{method} {mode} round {round} at {at}");
        }
    }
    model.truncate(largest);
    model
}

fn column(memory: &mut [u8], len: usize, stride: u64) -> Vec<Segment> {
    memory.chunks_mut(len).zip(0..).map(|(chunk, row)| segment(chunk, row * stride)).collect()
}

// [MPI-12]
fn write_is_sieved_by_no_one_whoever_has_the_file_open(on: On) {
    let harness = Harness::start(on);
    let before = bytes(3, 100_000);
    for ranks in [1, 2] {
        std::fs::write(harness.data().join("f"), &before).unwrap();
        let name = name(&harness, on, "f");
        let mut opening = opening(&name, RDWR_CREATE, &[("dafs_method", "sieve"), ("dafs_explain", "true")]);
        opening.ranks = ranks;
        let file = opening.open().unwrap();
        let mut data = bytes(4, 200 * 100);
        assert_eq!(run(&file, Direction::Write, &column(&mut data, 100, 1000)).unwrap(), 20_000);
        // A window would undo what others write in its gaps, who may have opened the file by themselves.
        assert_eq!([counter(&file, "sieve_windows"), counter(&file, "calls")], [0, 200], "{ranks} ranks");
        let words = file.explanation(&file.counter_values()).unwrap();
        assert!(words.contains("multiple") && words.contains("would need locks"), "{words}");
        let mut expected = before.clone();
        expected.resize(199 * 1000 + 100, 0);
        for (row, chunk) in data.chunks(100).enumerate() {
            expected[row * 1000..row * 1000 + 100].copy_from_slice(chunk);
        }
        assert!(std::fs::read(harness.data().join("f")).unwrap() == expected);
    }
}

// [MPI-13]
fn read_beyond_the_end_is_short_in_every_method(on: On) {
    let harness = Harness::start(on);
    let content = bytes(5, 1050);
    std::fs::write(harness.data().join("f"), &content).unwrap();
    for method in METHODS {
        let file = open(&name(&harness, on, "f"), &[("dafs_method", method)]);
        // Rows of 100 every 200: the sixth, from 1,000 on, has 50.
        let mut found = vec![0xee; 1000];
        let moved = match method {
            "view" => file.run(rows(Direction::Read, &mut found, 100, (0, 200))),
            _ => (run(&file, Direction::Read, &column(&mut found, 100, 200)).unwrap(), Ok(())),
        };
        assert_eq!(moved, (550, Ok(())), "{method}");
        for row in 0..5 {
            assert!(found[row * 100..row * 100 + 100] == content[row * 200..row * 200 + 100], "{method}");
        }
        assert!(found[500..550] == content[1000..1050], "{method}");
        let request = match method {
            "view" => file.submit(rows(Direction::Read, &mut found, 100, (0, 200))),
            _ => submit(&file, Direction::Read, &column(&mut found, 100, 200)),
        };
        let mut request = request.unwrap();
        request.wait();
        assert_eq!(counter(&file, "views"), if method == "view" { 2 } else { 0 }, "{method}");
        assert_eq!(request.outcome(), (550, Ok(())), "{method}");
        // Wholly behind it.
        assert_eq!(run(&file, Direction::Read, &[segment(&mut found[..10], 1050)]).unwrap(), 0);
        assert_eq!(run(&file, Direction::Read, &[segment(&mut found[..10], 1045)]).unwrap(), 5);
    }
}

// [MPI-14]
fn nonblocking_transfers_are_as_blocking_ones(on: On) {
    let harness = Harness::start(on);
    for (method, limit) in [("list", "0"), ("list", "7"), ("multiple", "0"), ("sieve", "0"), ("view", "0")] {
        let file = open(&name(&harness, on, "f"), &[("dafs_method", method), ("dafs_list_max", limit)]);
        describe_rows(&file, 50, 1000);
        let mut data: Vec<Vec<u8>> = (0..20).map(|n| bytes(n, 5000 + 100 * n as usize)).collect();
        let many: Vec<Vec<Segment>> = data
            .iter_mut()
            .zip(0..)
            .map(|(data, n)| {
                data.chunks_mut(50).zip(0..).map(|(c, row)| segment(c, (row * 20 + n) * 50)).collect()
            })
            .collect();
        let mut requests: Vec<_> = match method {
            // Rows of one are 20 blocks apart, and those of the others lie between.
            "view" => data
                .iter_mut()
                .zip(0..)
                .map(|(data, n)| file.submit(rows(Direction::Write, data, 50, (n * 50, 1000))).unwrap())
                .collect(),
            _ => many.iter().map(|list| submit(&file, Direction::Write, list).unwrap()).collect(),
        };
        // By testing alone, in no order of theirs.
        while !requests.iter_mut().rev().all(|request| request.test()) {}
        for (request, data) in requests.iter().zip(&data) {
            assert_eq!(request.outcome(), (data.len() as u64, Ok(())), "{method}");
        }
        let whole = std::fs::read(harness.data().join("f")).unwrap();
        for (n, data) in data.iter().enumerate() {
            for (row, chunk) in data.chunks(50).enumerate() {
                let at = (row * 20 + n) * 50;
                assert!(whole[at..at + chunk.len()] == *chunk, "{method} {n} {row}");
            }
        }
        let mut found = vec![vec![0u8; 3000]; 10];
        let mut requests: Vec<_> = found
            .iter_mut()
            .zip(0..)
            .map(|(found, n)| submit(&file, Direction::Read, &[segment(found, n * 3000)]).unwrap())
            .collect();
        requests.iter_mut().for_each(|request| request.wait());
        assert!(found.concat() == whole[..30_000]);
        assert_eq!(counter(&file, "views") > 0, method == "view");
        assert_eq!(counter(&file, "nonblocking"), 30);
        assert_eq!(counter(&file, "read_bytes"), 30_000);
    }
}

// [MPI-15] What comes late would overwrite what the program puts there next.
fn request_that_is_dropped_lets_go_of_its_memory(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let file = open(&name(&harness, on, "f"), &[]);
    let mut first = bytes(1, 300_000);
    assert_eq!(run(&file, Direction::Write, &column(&mut first, 1000, 3000)).unwrap(), 300_000);
    for round in 0..20 {
        let mut memory = vec![1; 300_000];
        if round % 2 == 0 {
            faults.next(Kind::Read, Fault::Late, 1);
        }
        let mut request = submit(&file, Direction::Read, &column(&mut memory, 1000, 3000)).unwrap();
        let has_ended = request.test();
        // Whoever drops it waits while the server may be at the memory.
        std::thread::scope(|scope| {
            let dropped = scope.spawn(move || drop(request));
            if round % 2 == 0 && !has_ended {
                faults.release();
            }
            dropped.join().unwrap();
        });
        memory.fill(7);
        // Behind whatever is under way.
        assert_eq!(run(&file, Direction::Read, &[segment(&mut [0; 1], 1 << 40)]).unwrap(), 0);
        assert!(memory.iter().all(|byte| *byte == 7), "round {round}");
    }
}

fn transfers_beyond_4_gib_go_where_they_should(on: On) {
    let harness = Harness::start(on);
    let file = open(&name(&harness, on, "f"), &[]);
    let far = 5 << 30;
    let mut data = bytes(9, 70_000);
    let list: Vec<Segment> =
        data.chunks_mut(700).zip(0..).map(|(c, row)| segment(c, far + row * 1000)).collect();
    for method in METHODS {
        file.take_hints([("dafs_method", method)]);
        assert_eq!(run(&file, Direction::Write, &list).unwrap(), 70_000);
        let mut found = vec![0; 70_000];
        let back: Vec<Segment> =
            found.chunks_mut(700).zip(0..).map(|(c, row)| segment(c, far + row * 1000)).collect();
        assert_eq!(run(&file, Direction::Read, &back).unwrap(), 70_000);
        assert!(found == data);
    }
    assert_eq!(file.size().unwrap(), far + 99 * 1000 + 700);
}

fn segments_that_cannot_be_are_errors(on: On) {
    let harness = Harness::start(on);
    let file: std::sync::Arc<File> = open(&name(&harness, on, "f"), &[]);
    let mut memory = [0u8; 16];
    for offset in [u64::MAX, i64::MAX as u64, i64::MAX as u64 - 15] {
        let bad = segment(&mut memory, offset);
        for list in [vec![bad], vec![bad, bad]] {
            for direction in [Direction::Read, Direction::Write] {
                assert_eq!(run(&file, direction, &list).unwrap_err().class, Class::Argument);
                let outcome = submit(&file, direction, &list).map(|mut request| {
                    request.wait();
                    request.outcome().1.unwrap_err().class
                });
                assert_eq!(outcome.unwrap_or_else(|error| error.class), Class::Argument);
            }
        }
    }
    assert_eq!(run(&file, Direction::Write, &[]).unwrap(), 0);
    assert_eq!(run(&file, Direction::Read, &[segment(&mut [], 5), segment(&mut [], 9)]).unwrap(), 0);
    assert_eq!(file.size().unwrap(), 0);
}
