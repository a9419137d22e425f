//! Transfers that are cut, cancelled, dropped, or never sent.

use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_client::{Config, Error, Extent, MethodOverride, Noncontiguous, Opcode, OpenOptions, wait_all};
use dafs_proto::transport::sim::FaultPlan;
use dafs_proto::wire::Features;
use dafs_tests::sim::{Action, ScriptedWorld};
use dafs_tests::suite::bytes;

// [LIST-12] this server knows no lists
#[test]
fn list_towards_a_server_without_them_is_a_request_for_each_part() {
    for noncontiguous in Noncontiguous::ALL {
        let world = ScriptedWorld::with(2, FaultPlan::calm(), Features::all() - Features::LISTS);
        let session = world.connect(&Config { noncontiguous, ..ScriptedWorld::config() }).unwrap();
        let file = session.mount("data").unwrap().create("f").unwrap();
        let data = bytes(1, 60);
        let list = [Extent::new(100, 20), Extent::new(10, 30), Extent::new(200, 10)];
        let slices = [IoSlice::new(&data[..25]), IoSlice::new(&data[25..])];
        assert_eq!(file.write_list(&list, &slices).unwrap(), 60);
        let mut back = vec![0; 60];
        let read = file.read_list(&list, &mut [IoSliceMut::new(&mut back)]).unwrap();
        assert_eq!((read.count, read.end), (60, None));
        assert!(back == data, "{noncontiguous:?}");
        assert_eq!(world.count(Opcode::Write), 4, "two boundaries in the file, one in memory");
        assert_eq!(world.count(Opcode::Read), 3);
        assert_eq!(world.count(Opcode::ReadList) + world.count(Opcode::WriteList), 0);
    }
}

#[test]
fn large_transfer_keeps_several_requests_in_flight() {
    let world = ScriptedWorld::new(4);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let transfer_max = session.agreed().transfer_size_max as usize;
    let data = bytes(1, transfer_max * 20);
    file.write_all_at(&data, 0).unwrap();
    let begin = world.net().now();
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == data);
    let together = world.net().now() - begin;
    let begin = world.net().now();
    for chunk in back.chunks_mut(transfer_max) {
        file.read_exact_at(chunk, 0).unwrap();
    }
    assert!(together < world.net().now() - begin, "pieces overlap");
}

// [WIRE-141]
#[test]
fn inline_limit_is_the_lesser_of_what_both_sides_say() {
    let world = ScriptedWorld::new(19);
    world.put("f", &bytes(1, 50_000));
    for (own, limit) in [(8_256, 8_256), (16_384, 16_384), (1 << 20, 16_384)] {
        let config = Config { inline_max: own, method: MethodOverride::Inline, ..ScriptedWorld::config() };
        let session = world.connect(&config).unwrap();
        assert_eq!(session.agreed().read_inline_max, limit);
        let file = session.mount("data").unwrap().open("f").unwrap();
        let before = world.count(Opcode::Read);
        file.read_exact_at(&mut vec![0; 2 * limit as usize + 1], 0).unwrap();
        assert_eq!(world.count(Opcode::Read) - before, 3, "{own}");
    }
}

// [CLI-35]
#[test]
fn requests_leave_in_the_order_of_submission() {
    use Opcode::{Commit, Mkdir, Null, Read, Truncate, Write};
    for credits in [1, 3, 8] {
        let world = ScriptedWorld::new(20);
        let config = Config { credits, method: MethodOverride::Inline, ..ScriptedWorld::config() };
        let session = world.connect(&config).unwrap();
        let export = session.mount("data").unwrap();
        let file = export.create("f").unwrap();
        let before = world.log().len();
        let written = file.submit_write_at(vec![1; 3 * session.agreed().write_inline_max as usize], 0);
        let made = export.submit_create_dir("d", 0o755);
        let read = file.submit_read_at(vec![0; 10], 0);
        let cut = file.submit_truncate(10);
        let ping = session.submit_ping();
        file.submit_commit().wait().unwrap();
        let sent: Vec<_> = world.log().into_iter().skip(before).map(|(opcode, _)| opcode).collect();
        assert_eq!(sent, [Write, Write, Write, Mkdir, Read, Truncate, Null, Commit], "{credits} credits");
        written.wait().result.unwrap();
        read.wait().result.unwrap();
        made.wait().map(drop).and(cut.wait()).and(ping.wait()).unwrap();
    }
}

// [CLI-108]
#[test]
fn credits_are_asked_for_as_they_are_used_and_let_go_slowly() {
    let world = ScriptedWorld::new(21);
    let session = world.session();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    world.hook(move |header| {
        noted.lock().unwrap().push(header.credits);
        Action::Serve
    });
    session.ping().unwrap();
    let pings: Vec<_> = (0..20).map(|_| session.submit_ping()).collect();
    assert!(wait_all(pings).into_iter().all(|ended| ended.is_ok()));
    assert_eq!(asked.lock().unwrap().iter().max(), Some(&8), "no more than the configuration allows");
    // One less in 64 requests.
    (0..5 * 64).for_each(|_| session.probe().unwrap());
    assert!((2..8).contains(asked.lock().unwrap().last().unwrap()));
    (0..3 * 64).for_each(|_| session.probe().unwrap());
    assert_eq!(asked.lock().unwrap().last(), Some(&1));
}

#[test]
fn nonblocking_transfer_tested_alone_comes_to_its_end() {
    let world = ScriptedWorld::new(6);
    let session = world.session();
    world.put("f", b"content");
    let file = session.mount("data").unwrap().open("f").unwrap();
    let mut pending = file.submit_read_at(vec![0; 100], 0);
    while !pending.test() {
        world.net().advance(Duration::from_micros(10));
        // The server runs while someone waits.
        session.ping().unwrap();
    }
    let done = pending.wait();
    assert_eq!(&done.buffer[..done.result.unwrap()], b"content");
}

// [CLI-10] the buffer comes back at once where no peer can reach it
#[test]
fn cancelled_inline_read_returns_its_buffer_before_the_late_reply() {
    let world = ScriptedWorld::new(7);
    let session = world.session();
    world.put("f", b"content");
    let file = session.mount("data").unwrap().open("f").unwrap();
    let pending = file.submit_read_at(vec![1; 100], 0);
    let done = pending.cancel();
    assert!(matches!(done.result, Err(Error::Cancelled)));
    assert_eq!(done.buffer, vec![1; 100]);
    let mut again = [0; 7];
    file.read_exact_at(&mut again, 0).unwrap();
    assert_eq!(&again, b"content");
}

// [CLI-76] [CLI-77] and else when the server is done with it
#[test]
fn cancelled_direct_read_waits_for_the_server() {
    let world = ScriptedWorld::new(8);
    let session = world.session();
    let data = bytes(3, 60_000);
    world.put("f", &data);
    let file = session.mount("data").unwrap().open("f").unwrap();
    let done = file.submit_read_at(session.buffer(60_000).unwrap(), 0).cancel();
    assert_eq!(done.result.unwrap(), 60_000, "it was sent whole, and done");
    assert!(done.buffer[..] == data);
}

// [CLI-77] of a transfer in several requests, some of which never went
#[test]
fn cancelled_direct_transfer_of_which_a_part_was_not_sent_says_so() {
    for write in [false, true] {
        let world = ScriptedWorld::new(8);
        let session = world.connect(&Config { credits: 1, ..ScriptedWorld::config() }).unwrap();
        let len = 3 * session.agreed().transfer_size_max as usize;
        world.put("f", &bytes(3, len));
        let export = session.mount("data").unwrap();
        let file = export.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
        let buffer = session.buffer(len).unwrap();
        let pending = if write { file.submit_write_at(buffer, 0) } else { file.submit_read_at(buffer, 0) };
        assert!(matches!(pending.cancel().result, Err(Error::Cancelled)));
        session.ping().unwrap();
    }
}

// [CLI-78]
#[test]
fn cancelled_before_it_was_sent_has_no_effect() {
    let world = ScriptedWorld::new(9);
    let session = world.connect(&Config { credits: 1, ..ScriptedWorld::config() }).unwrap();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let first = file.submit_write_at(vec![1; 10], 0);
    let second = file.submit_write_at(vec![2; 10], 0);
    assert!(matches!(second.cancel().result, Err(Error::Cancelled)));
    assert_eq!(first.wait().result.unwrap(), 10);
    session.ping().unwrap();
    assert_eq!(world.content("f"), vec![1; 10]);
}

#[test]
fn pending_dropped_runs_on_and_an_unclaimed_open_is_closed() {
    let world = ScriptedWorld::new(10);
    let session = world.session();
    let export = session.mount("data").unwrap();
    drop(export.submit_open_with("f", OpenOptions::new().write(true).create(true)));
    for _ in 0..3 {
        session.ping().unwrap();
    }
    assert!(world.exists("f"));
    assert_eq!(session.statistics().unwrap().handles, 1, "only the root is open");
}

#[test]
fn offsets_beyond_any_file_are_refused_before_anything_is_sent() {
    let world = ScriptedWorld::new(15);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    for offset in [u64::MAX, i64::MAX as u64, i64::MAX as u64 - 3] {
        assert!(matches!(file.write_at(b"1234", offset), Err(Error::Invalid(_))), "{offset}");
    }
    assert_eq!(world.count(Opcode::Write), 0);
}

#[test]
fn buffer_split_and_joined_is_one_registration() {
    let world = ScriptedWorld::new(17);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let mut left = session.buffer(20_000).unwrap();
    left.copy_from_slice(&bytes(5, 20_000));
    let right = left.split_off(10_000);
    let both = wait_all([file.submit_write_at(right, 10_000), file.submit_write_at(left, 0)]);
    assert!(world.content("f") == bytes(5, 20_000));
    let mut both = both.into_iter().map(|done| done.into_result().unwrap().1);
    let (right, mut left) = (both.next().unwrap(), both.next().unwrap());
    left.unsplit(right).unwrap();
    assert_eq!(left.len(), 20_000);
}
