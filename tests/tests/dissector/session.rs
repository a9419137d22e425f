//! What a real client and server say to each other.

use std::collections::{BTreeMap, BTreeSet};

use dafs_client::MethodOverride;
use dafs_proto::wire::Opcode;
use dafs_tests::cut::Way;
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};

use crate::capture::{Capture, PORT, Segment};
use crate::operations::{config, connect, move_data, run_all};
use crate::recorder::Recorder;
use crate::tshark::{Item, WARNING, dissect};

/// Whether a callback of this opcode was sent: a SEND of a head without or with a body, whose flags say so.
fn has_callback(segments: &[Segment], opcode: Opcode) -> bool {
    let start = [&(opcode as u16).to_le_bytes()[..], &[0x10, 0, 0, 0, 0, 0]].concat();
    let has = |segment: &Segment| segment.bytes.windows(start.len()).any(|window| window == start);
    segments.iter().any(|segment| segment.way == Way::ToClient && has(segment))
}

/// All operations, then what only a slow server or its end make a client see.
fn record_everything() -> Vec<Segment> {
    let (mut harness, faults) = Harness::start_faulty(On::Tcp, |_| {});
    let recorder = Recorder::start(harness.address());
    run_all(&recorder);
    // A session that asks for one thing at a time has few credits in the end. All of them in use, the server offers more.
    let session = connect(&recorder, &config(MethodOverride::Inline));
    let file = session.mount("mem").unwrap().create("f").unwrap();
    file.write_all_at(&[1; 100], 0).unwrap();
    (0..100).for_each(|_| session.probe().unwrap());
    let count = usize::from(session.credits());
    faults.next(Kind::Read, Fault::Hold, count);
    let reads: Vec<_> = (0..count).map(|_| file.submit_read_at(vec![0; 100], 0)).collect();
    session.flush();
    recorder.wait_until(|segments| has_callback(segments, Opcode::CreditTarget));
    faults.release();
    assert!(reads.into_iter().all(|read| read.wait().result.unwrap() == 100));
    // A batch of which one operation takes longer than the others.
    faults.next(Kind::Read, Fault::Hold, 1);
    let mut batch = session.owned_batch();
    batch.read_at(&file, vec![0; 100], 0).write_at(&file, vec![2; 100], 200).expedite();
    let mut pending = batch.submit(None);
    assert_eq!(pending.wait_some(), [1]);
    faults.release();
    assert_eq!(pending.wait_some(), [0]);
    drop(pending);
    session.close();
    // A connection that breaks while a request is in progress: it comes again on another.
    let session = connect(&recorder, &config(MethodOverride::Direct));
    let file = session.mount("data").unwrap().create("again").unwrap();
    faults.next(Kind::Append, Fault::Hold, 1);
    let append = file.submit_append(vec![3; 100]);
    session.flush();
    faults.wait_for_held(1);
    recorder.cut();
    faults.release();
    append.wait().unwrap();
    assert_eq!(session.reconnects(), 1);
    move_data(&session, &file);
    // The server's end, while a session is there.
    harness.stop();
    recorder.wait_until(|segments| has_callback(segments, Opcode::Notice));
    // What the client says from here on nobody answers.
    recorder.recorded()
}

fn is_reply(message: &Item) -> bool {
    message.value("dafs.flags.reply") == "1"
}

/// Of replies and of requests by opcode: how many, and how many that have the other.
fn matched(packets: &[Item]) -> BTreeMap<(u64, bool), (usize, usize)> {
    let mut counts: BTreeMap<(u64, bool), (usize, usize)> = BTreeMap::new();
    for message in packets.iter().flat_map(Item::messages) {
        let opcode = message.number("dafs.opcode");
        let other = if is_reply(message) { "dafs.request_in" } else { "dafs.reply_in" };
        let count = counts.entry((opcode, is_reply(message))).or_default();
        count.0 += 1;
        count.1 += usize::from(message.one(other).is_some());
    }
    counts
}

#[test]
#[ignore = "needs tshark"]
fn real_sessions_are_dissected_whole_and_each_reply_has_its_request() {
    let segments = record_everything();
    let packets = dissect(&Capture::of(PORT, &segments));
    for packet in &packets {
        assert_eq!(packet.remarks(WARNING), [], "{}", packet.lines());
        assert_eq!(packet.values("dafs.rest"), [""; 0], "{}", packet.lines());
    }
    let counts = matched(&packets);
    let seen: BTreeSet<u64> = counts.keys().map(|(opcode, _)| *opcode).collect();
    // Over TCP there is nothing to recall.
    let all = Opcode::ALL.iter().filter(|opcode| **opcode != Opcode::Recall);
    let all: BTreeSet<u64> = all.map(|opcode| *opcode as u64).collect();
    assert_eq!(seen, all, "opcodes");
    let is_explained = |message: &&Item| message.one("dafs.explanation.parts").is_some();
    let explained = packets.iter().flat_map(Item::messages).filter(is_explained);
    let explained: BTreeSet<u64> = explained.map(|message| message.number("dafs.opcode")).collect();
    let lists = [Opcode::ReadList, Opcode::WriteList, Opcode::ReadView, Opcode::WriteView];
    assert_eq!(explained, lists.iter().map(|opcode| *opcode as u64).collect(), "explained");
    for ((opcode, is_reply), (count, found)) in counts {
        let is_callback = opcode >= 0x8000;
        if is_reply {
            assert_eq!(count, found, "replies of opcode {opcode:#x} without a request");
        // The client closes without waiting for the reply to its `Bye`.
        } else if !is_callback && opcode != Opcode::Bye as u64 {
            // One append was lost with its connection.
            let lost = usize::from(opcode == Opcode::Append as u64);
            assert_eq!(count, found + lost, "requests of opcode {opcode:#x} without a reply");
        }
    }
}

#[test]
#[ignore = "needs tshark"]
fn data_by_rdma_is_told_with_its_request() {
    let harness = Harness::start(On::Tcp);
    let recorder = Recorder::start(harness.address());
    let session = connect(&recorder, &config(MethodOverride::Direct));
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&[1; 40_000], 0).unwrap();
    file.read_exact_at(&mut [0; 40_000], 0).unwrap();
    session.close();
    let packets = dissect(&Capture::of(PORT, &recorder.recorded()));
    let frames = |kind: &str| {
        let is_kind = |item: &&Item| item.text.starts_with(&format!("dafs {kind},"));
        let found = packets.iter().flat_map(Item::all).filter(is_kind).collect::<Vec<_>>();
        assert!(!found.is_empty(), "no frame {kind}");
        found
    };
    let request = |name: &str| {
        let is_it =
            |packet: &&Item| packet.titles().iter().any(|title| title.contains(&format!("{name} f=")));
        packets.iter().find(is_it).expect(name).number("frame.number")
    };
    let (read, write) = (request("Read"), request("Write"));
    frames("WRITE").iter().for_each(|frame| assert_eq!(frame.number("dafs.data_of"), read));
    frames("READ_REQUEST").iter().for_each(|frame| assert_eq!(frame.number("dafs.data_of"), write));
    let (requests, responses) = (frames("READ_REQUEST"), frames("READ_RESPONSE"));
    assert!(responses.iter().all(|frame| frame.one("dafs.read_in").is_some()));
    let answered: usize = requests.iter().map(|frame| frame.values("dafs.response_in").len()).sum();
    assert_eq!(answered, responses.len());
}
