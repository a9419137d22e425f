//! What a view costs beside others: what the server plans is work of the client that asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::Datatype;
use dafs_proto::transport::{Access, Region};
use dafs_proto::view::{VIEW_ENTRIES_MAX, VIEW_SEGMENTS_MAX};
use dafs_proto::wire::{
    FileHandle, HEADER_SIZE, Header, Method, Opcode, OpenFlags, Status, ViewRequest, ViewSetRequest,
    encode_datatype, encode_segments,
};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::raw::{Raw, introduction, write_body};
use dafs_tests::suite::{assert_same, bytes, is_alone, resident_size, wait_for};

use super::hostile::{GOOD, set, set_all};

on_sockets! {
    views_that_take_long_to_plan_leave_turns_to_others,
    inline_view_without_order_takes_no_more_steps_than_a_turn_has,
    views_that_wait_keep_a_bounded_number_of_plans,
}

/// Requests in flight of one client.
const COUNT: u16 = 16;

/// A client that may have so many.
fn client(harness: &Harness) -> Raw {
    let (mut raw, _) = Raw::session(harness.address(), COUNT);
    while raw.credits() < COUNT {
        raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
    }
    raw
}

pub(super) fn send(raw: &mut Raw, opcode: Opcode, file: FileHandle, request: &ViewRequest, region: &Region) {
    let request = ViewRequest { method: Method::Direct, segment_count: 1, ..*request };
    let mut body = [0; ViewRequest::HEAD_SIZE - HEADER_SIZE];
    request.encode(&mut body);
    let mut ranges = vec![0; 24];
    let range = region.range();
    encode_segments(&[[range.key.0, range.offset, request.len.into()]], &mut ranges);
    let mut header = Header::request(opcode, file);
    raw.begin(&mut header);
    raw.send(header, &body, &ranges);
}

/// How often another client is answered while all of these requests are.
fn answers_meanwhile(harness: &Harness, opcode: Opcode, tile: &Datatype, displacement: u64, len: u32) -> u32 {
    let mut raw = client(harness);
    let (mut other, _) = Raw::session(harness.address(), 1);
    let root = raw.mount("mem");
    let file = raw.open(root, b"f", OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE).header.handle;
    assert_eq!(set_all(&mut raw, 1, tile), Status::OK);
    let region = raw.region(len as usize, Access::all());
    let request = ViewRequest { displacement, len, ..GOOD };
    for _ in 0..COUNT {
        send(&mut raw, opcode, file, &request, &region);
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    let receives = std::thread::spawn(move || {
        for _ in 0..COUNT {
            let reply = raw.receive().unwrap();
            assert_eq!((reply.header.opcode, reply.header.status), (opcode, Status::OK));
            raw.end(&reply);
        }
        told.store(true, Ordering::Release);
        drop(region);
    });
    let mut answers = 0;
    while !is_over.load(Ordering::Acquire) {
        other.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
        answers += 1;
    }
    receives.join().unwrap();
    answers
}

// [BUF-20] [BUF-25] [BUF-56] Hardly a byte is moved, and each request takes 16 plans of thousands of steps.
fn views_that_take_long_to_plan_leave_turns_to_others(on: On) {
    let harness = Harness::start(on);
    let segments = VIEW_SEGMENTS_MAX as u32;
    let overlapping = Datatype::bytes(2).resized(0, 1);
    let apart = Datatype::bytes(1).resized(0, 2);
    for (opcode, tile, displacement, len) in [
        (Opcode::WriteView, &overlapping, 0, 2 * segments),
        // Wholly behind the end of the file, and partly.
        (Opcode::ReadView, &apart, 1 << 40, segments),
        (Opcode::ReadView, &apart, 1000, segments),
    ] {
        // A plan that is sorted and cut takes many turns, and in most of them the other is answered.
        let (plans, count) = (u32::from(COUNT) * 16, u32::from(COUNT));
        let least = if opcode == Opcode::WriteView { 2 * plans } else { count };
        // On a busy machine it may not have asked as often.
        wait_for(&format!("{opcode:?}: more than {least} answers while {plans} plans are made"), || {
            answers_meanwhile(&harness, opcode, tile, displacement, len) > least
        });
    }
}

// [BUF-25] [BUF-56] Debug builds panic where a turn takes more. One entry less than a description may have,
// and as many segments as a view; the file ends before the highest.
fn inline_view_without_order_takes_no_more_steps_than_a_turn_has(on: On) {
    let displacements: Vec<i64> =
        (0..VIEW_ENTRIES_MAX as i64 - 1).map(|index| 3 * index + index * index % 2).collect();
    let tile = Datatype::bytes(1).hindexed_block(1, &displacements);
    let description = encode_datatype(&tile);
    let (len, size) = (VIEW_SEGMENTS_MAX as u32, 4000);
    let harness = Harness::start_with(on, |config| config.inline_max = len);
    let [mut raw, mut other] = [(); 2].map(|()| {
        let mut raw = Raw::connect_taking(harness.address(), 1 << 20);
        raw.shake(&introduction(harness.address(), COUNT, None)).unwrap();
        raw
    });
    for raw in [&mut raw, &mut other] {
        let root = raw.mount("mem");
        let file = raw.create(root, b"f");
        raw.call(Header::request(Opcode::Write, file), &write_body(0, size, None), &bytes(1, size as usize));
        let mut offset = 0;
        for piece in description.chunks(4000) {
            let description_len = description.len() as u32;
            let reply = set(raw, ViewSetRequest { view: 1, description_len, offset }, piece);
            assert_eq!(reply.header.status, Status::OK);
            offset += piece.len() as u32;
        }
        for _ in 0..3 {
            let request = ViewRequest { displacement: 0, len, ..GOOD };
            let mut body = [0; ViewRequest::HEAD_SIZE - HEADER_SIZE];
            request.encode(&mut body);
            let reply = raw.call(Header::request(Opcode::ReadView, file), &body, &[]);
            assert_eq!(reply.header.status, Status::OK);
            let before: Vec<_> = displacements.iter().take_while(|at| **at < size.into()).collect();
            let expected: Vec<u8> =
                before.into_iter().map(|at| bytes(1, size as usize)[*at as usize]).collect();
            assert_same(&reply.payload, &expected, "what lies before the end");
        }
    }
}

// [VIEW-12] Hundreds of reads wait for storage, each of more segments than are planned at once.
fn views_that_wait_keep_a_bounded_number_of_plans(on: On) {
    if !is_alone() {
        return;
    }
    const SESSIONS: usize = 24;
    // All plans whole would take 250 MB.
    const GROWTH_MAX: u64 = 150 << 20;
    let (harness, faults) = Harness::start_faulty(on, |config| config.lease_ms = 600_000);
    let len = VIEW_SEGMENTS_MAX as u32;
    std::fs::write(harness.data().join("f"), vec![7; 1 << 20]).unwrap();
    let (mut other, _) = Raw::session(harness.address(), 1);
    let clients = (0..SESSIONS).map(|_| {
        let mut raw = client(&harness);
        let root = raw.mount("data");
        let file = raw.open(root, b"f", OpenFlags::READ).header.handle;
        assert_eq!(set_all(&mut raw, 1, &Datatype::bytes(1).resized(0, 2)), Status::OK);
        let region = raw.region(len as usize, Access::all());
        (raw, file, region)
    });
    let mut clients: Vec<_> = clients.collect();
    let before = resident_size(std::process::id());
    faults.next(Kind::Read, Fault::Hold, usize::MAX);
    let request = ViewRequest { displacement: 0, len, ..GOOD };
    for (raw, file, region) in &mut clients {
        for _ in 0..COUNT {
            send(raw, Opcode::ReadView, *file, &request, region);
        }
    }
    faults.wait_for_held(1);
    // Each turn plans one of a session at most, and takes it several turns more.
    for _ in 0..1000 {
        other.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
    }
    let growth = resident_size(std::process::id()).saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes of {} requests that wait", SESSIONS * usize::from(COUNT));
    faults.release();
    drop(clients);
}
