//! Reads and writes by every path, blocking and not, against a server of the simulated network.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a test: small numbers, and what is wrong fails it"
)]

mod common;

use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};

use common::{CROSSOVER, INLINE_MAX, TRANSFER_MAX, World, config, pattern};
use dafs_client::{
    Config, Error, Extent, MethodOverride, Noncontiguous, Opcode, OpenOptions, wait_all, wait_any,
};

const METHODS: [MethodOverride; 4] =
    [MethodOverride::Auto, MethodOverride::Inline, MethodOverride::Direct, MethodOverride::Staged];

fn sizes() -> Vec<usize> {
    let mut sizes = vec![0, 1];
    for edge in [CROSSOVER, INLINE_MAX, TRANSFER_MAX, 256 * 1024] {
        let edge = edge as usize;
        sizes.extend([edge - 1, edge, edge + 1]);
    }
    sizes.push(1_000_003);
    sizes
}

// [CLI-1] [CLI-2] each method moves each size whole, at the edges of every threshold
#[test]
fn transfer_of_any_size_by_any_method_moves_the_bytes() {
    for method in METHODS {
        let world = World::new(1);
        let session = world.connect(&Config { method, ..config() }).unwrap();
        let export = session.mount("data").unwrap();
        let file = export.create("f").unwrap();
        for size in sizes() {
            let data = pattern(size, size as u64);
            file.truncate(0).unwrap();
            assert_eq!(file.write_at(&data, 7).unwrap(), size, "{method:?}");
            let mut back = vec![0xee; size];
            assert_eq!(file.read_at(&mut back, 7).unwrap(), size, "{method:?}");
            assert!(back == data, "{size} bytes, {method:?}");
            let mut longer = vec![0xee; size + 10_000];
            assert_eq!(file.read_at(&mut longer, 7).unwrap(), size, "short at the end of the file");
            assert!(longer[..size] == data);
            let mut buffer = session.buffer(size).unwrap();
            buffer.copy_from_slice(&data);
            assert_eq!(file.write_buf_at(&buffer, 3).unwrap(), size);
            buffer.fill(0);
            assert_eq!(file.read_buf_at(&mut buffer, 3).unwrap(), size);
            assert!(buffer[..] == data, "{size} bytes registered, {method:?}");
        }
    }
}

// [LIST-12] this server knows no lists
#[test]
fn list_towards_a_server_without_them_is_a_request_for_each_part() {
    for noncontiguous in Noncontiguous::ALL {
        let world = World::new(2);
        let session = world.connect(&Config { noncontiguous, ..config() }).unwrap();
        let file = session.mount("data").unwrap().create("f").unwrap();
        let data = pattern(60, 1);
        let list = [Extent::new(100, 20), Extent::new(10, 30), Extent::new(200, 10)];
        let slices = [IoSlice::new(&data[..25]), IoSlice::new(&data[25..])];
        assert_eq!(file.write_list(&list, &slices).unwrap(), 60);
        let mut back = vec![0; 60];
        let read = file.read_list(&list, &mut [IoSliceMut::new(&mut back)]).unwrap();
        assert_eq!((read.count, read.end), (60, None));
        assert!(back == data, "{noncontiguous:?}");
        let server = world.server();
        assert_eq!(server.count(Opcode::Write), 4, "two boundaries in the file, one in memory");
        assert_eq!(server.count(Opcode::Read), 3);
        assert_eq!(server.count(Opcode::ReadList) + server.count(Opcode::WriteList), 0);
    }
}

#[test]
fn transfer_of_several_slices_keeps_their_order_by_any_method() {
    for method in METHODS {
        let world = World::new(2);
        let session = world.connect(&Config { method, ..config() }).unwrap();
        let file = session.mount("data").unwrap().create("f").unwrap();
        let parts: Vec<Vec<u8>> =
            [0usize, 5, 70_000, 1, 0, 9_000].iter().map(|len| pattern(*len, *len as u64)).collect();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let whole = parts.concat();
        assert_eq!(file.write_vectored_at(&slices, 11).unwrap(), whole.len());
        assert!(world.server().data(b"f")[11..] == whole, "{method:?}");
        let (mut first, mut second) = (vec![0; 6], vec![0; whole.len()]);
        let mut slices = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(file.read_vectored_at(&mut slices, 11).unwrap(), whole.len());
        assert!([first, second].concat()[..whole.len()] == whole, "{method:?}");
    }
}

// More memory segments than a request may carry.
#[test]
fn transfer_of_more_slices_than_segments_is_cut() {
    let world = World::new(3);
    let session = world.connect(&Config { method: MethodOverride::Direct, ..config() }).unwrap();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let parts: Vec<Vec<u8>> = (0..700).map(|index| pattern(13, index)).collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    assert_eq!(file.write_vectored_at(&slices, 0).unwrap(), 700 * 13);
    assert!(world.server().data(b"f") == parts.concat());
}

#[test]
fn large_transfer_keeps_several_requests_in_flight() {
    let world = World::new(4);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let data = pattern(TRANSFER_MAX as usize * 20, 1);
    file.write_all_at(&data, 0).unwrap();
    let begin = world.net.now();
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == data);
    let together = world.net.now() - begin;
    let begin = world.net.now();
    for chunk in back.chunks_mut(TRANSFER_MAX as usize) {
        file.read_exact_at(chunk, 0).unwrap();
    }
    assert!(together < world.net.now() - begin, "pieces overlap");
}

#[test]
fn nonblocking_transfers_give_their_buffers_back_in_any_order() {
    let world = World::new(5);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let data = pattern(40 * 5000, 9);
    let writes: Vec<_> = data
        .chunks(5000)
        .enumerate()
        .map(|(i, part)| file.submit_write_at(part.to_vec(), i as u64 * 5000))
        .collect();
    for written in wait_all(writes) {
        assert_eq!(written.into_result().unwrap().0, 5000);
    }
    let mut reads: Vec<_> =
        (0..40).map(|i| (i, file.submit_read_at(session.buffer(5000).unwrap(), i as u64 * 5000))).collect();
    let mut seen = 0;
    while !reads.is_empty() {
        let (places, mut pendings): (Vec<usize>, Vec<_>) = reads.into_iter().unzip();
        let at = wait_any(&mut pendings).unwrap();
        reads = places.into_iter().zip(pendings).collect();
        let (i, pending) = reads.swap_remove(at);
        let (count, buffer) = pending.wait().into_result().unwrap();
        assert!(buffer[..count] == data[i * 5000..][..5000]);
        seen += 1;
    }
    assert_eq!(seen, 40);
    assert_eq!(wait_any::<()>(&mut []), None);
}

#[test]
fn nonblocking_transfer_tested_alone_comes_to_its_end() {
    let world = World::new(6);
    let session = world.session();
    world.server().make(b"f", b"content");
    let file = session.mount("data").unwrap().open("f").unwrap();
    let mut pending = file.submit_read_at(vec![0; 100], 0);
    while !pending.test() {
        world.net.advance(std::time::Duration::from_micros(10));
        // The server runs while someone waits.
        session.ping().unwrap();
    }
    let done = pending.wait();
    assert_eq!(&done.buffer[..done.result.unwrap()], b"content");
}

// [CLI-10] the buffer comes back at once where no peer can reach it
#[test]
fn cancelled_inline_read_gives_its_buffer_back_and_its_late_reply_harms_nothing() {
    let world = World::new(7);
    let session = world.session();
    world.server().make(b"f", b"content");
    let file = session.mount("data").unwrap().open("f").unwrap();
    let pending = file.submit_read_at(vec![1; 100], 0);
    let done = pending.cancel();
    assert!(matches!(done.result, Err(Error::Cancelled)));
    assert_eq!(done.buffer, vec![1; 100]);
    let mut again = [0; 7];
    file.read_exact_at(&mut again, 0).unwrap();
    assert_eq!(&again, b"content");
}

// [CLI-10] and else when the server is done with it
#[test]
fn cancelled_direct_read_waits_for_the_server() {
    let world = World::new(8);
    let session = world.session();
    let data = pattern(60_000, 3);
    world.server().make(b"f", &data);
    let file = session.mount("data").unwrap().open("f").unwrap();
    let done = file.submit_read_at(session.buffer(60_000).unwrap(), 0).cancel();
    assert_eq!(done.result.unwrap(), 60_000, "it was sent whole, and done");
    assert!(done.buffer[..] == data);
}

// [CLI-10] of a transfer in several requests, some of which never went
#[test]
fn cancelled_direct_transfer_of_which_a_part_was_not_sent_says_so() {
    for write in [false, true] {
        let world = World::new(8);
        world.server().credits = 1;
        let session = world.session();
        world.server().make(b"f", &pattern(200_000, 3));
        let export = session.mount("data").unwrap();
        let file = export.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
        let buffer = session.buffer(200_000).unwrap();
        let pending = if write { file.submit_write_at(buffer, 0) } else { file.submit_read_at(buffer, 0) };
        assert!(matches!(pending.cancel().result, Err(Error::Cancelled)));
        session.ping().unwrap();
    }
}

#[test]
fn cancelled_before_it_was_sent_has_no_effect() {
    let world = World::new(9);
    world.server().credits = 1;
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let first = file.submit_write_at(vec![1; 10], 0);
    let second = file.submit_write_at(vec![2; 10], 0);
    assert!(matches!(second.cancel().result, Err(Error::Cancelled)));
    assert_eq!(first.wait().result.unwrap(), 10);
    session.ping().unwrap();
    assert_eq!(world.server().data(b"f"), vec![1; 10]);
}

#[test]
fn pending_dropped_runs_on_and_an_unclaimed_open_is_closed() {
    let world = World::new(10);
    let session = world.session();
    let export = session.mount("data").unwrap();
    drop(export.submit_open_with("f", OpenOptions::new().write(true).create(true)));
    for _ in 0..3 {
        session.ping().unwrap();
    }
    assert!(world.server().nodes.contains_key(&b"f"[..]));
    assert_eq!(world.server().handles(), 1, "only the root is open");
}

#[test]
fn file_dropped_is_closed_without_waiting() {
    let world = World::new(11);
    let session = world.session();
    let export = session.mount("data").unwrap();
    let file = export.create("f").unwrap();
    assert_eq!(world.server().handles(), 2);
    drop(file);
    session.ping().unwrap();
    assert_eq!(world.server().handles(), 1);
}

#[test]
fn append_answers_where_it_went_and_refuses_what_cannot_be_atomic() {
    let world = World::new(12);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    assert_eq!(file.append(b"one").unwrap(), 0);
    assert_eq!(file.append(&pattern(TRANSFER_MAX as usize, 1)).unwrap(), 3);
    assert_eq!(file.submit_append(b"two".to_vec()).wait().unwrap(), u64::from(TRANSFER_MAX) + 3);
    assert!(matches!(file.append(&pattern(TRANSFER_MAX as usize + 1, 1)), Err(Error::Invalid(_))));
    assert_eq!(world.server().count(Opcode::Append), 3);
}

#[test]
fn file_as_a_stream_reads_writes_and_seeks() {
    let world = World::new(13);
    let session = world.session();
    let export = session.mount("data").unwrap();
    let mut file = export.create("f").unwrap();
    file.write_all(b"hello world").unwrap();
    assert_eq!(file.seek(SeekFrom::End(-5)).unwrap(), 6);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "world");
    assert!(file.seek(SeekFrom::Current(-100)).is_err());
    let mut log = export.open_with("f", OpenOptions::new().append(true)).unwrap();
    log.write_all(b"!").unwrap();
    assert_eq!(world.server().data(b"f"), b"hello world!");
}

#[test]
fn read_exact_beyond_the_end_says_how_much_is_missing() {
    let world = World::new(14);
    let session = world.session();
    world.server().make(b"f", b"12345");
    let file = session.mount("data").unwrap().open("f").unwrap();
    let error = file.read_exact_at(&mut [0; 8], 2).unwrap_err();
    assert!(matches!(error, Error::UnexpectedEnd { missing: 5, .. }), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn offsets_beyond_any_file_are_refused_before_anything_is_sent() {
    let world = World::new(15);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    for offset in [u64::MAX, i64::MAX as u64, i64::MAX as u64 - 3] {
        assert!(matches!(file.write_at(b"1234", offset), Err(Error::Invalid(_))), "{offset}");
    }
    assert_eq!(world.server().count(Opcode::Write), 0);
}

#[test]
fn buffer_of_another_session_is_refused_and_comes_back() {
    let world = World::new(16);
    let (session, other) = (world.session(), world.session());
    let file = session.mount("data").unwrap().create("f").unwrap();
    let done = file.submit_write_at(other.buffer(10).unwrap(), 0).wait();
    assert!(matches!(done.result, Err(Error::Invalid(_))));
    assert_eq!(done.buffer.len(), 10);
}

#[test]
fn buffer_split_and_joined_is_one_registration() {
    let world = World::new(17);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let mut left = session.buffer(20_000).unwrap();
    left.copy_from_slice(&pattern(20_000, 5));
    let right = left.split_off(10_000);
    let both = wait_all([file.submit_write_at(right, 10_000), file.submit_write_at(left, 0)]);
    assert!(world.server().data(b"f") == pattern(20_000, 5));
    let mut both = both.into_iter().map(|done| done.into_result().unwrap().1);
    let (right, mut left) = (both.next().unwrap(), both.next().unwrap());
    left.unsplit(right).unwrap();
    assert_eq!(left.len(), 20_000);
}
