//! What TCP does to a stream: frames in pieces, captures that begin late, other ports.

use dafs_client::MethodOverride;
use dafs_tests::cut::Way;
use dafs_tests::harness::{Harness, On};
use dafs_tests::suite::Numbers;

use crate::capture::{Capture, PORT, Segment};
use crate::operations::{config, connect, move_data};
use crate::recorder::Recorder;
use crate::tshark::{Item, NOTE, WARNING, dissect, dissect_installed};
use crate::vectors::golden_session;

const WAYS: [Way; 2] = [Way::ToServer, Way::ToClient];

/// A session that moves data inline and by RDMA.
fn recorded() -> Vec<Segment> {
    let harness = Harness::start(On::Tcp);
    let recorder = Recorder::start(harness.address());
    for method in [MethodOverride::Inline, MethodOverride::Direct] {
        let session = connect(&recorder, &config(method));
        let file = session.mount("data").unwrap().create("f").unwrap();
        move_data(&session, &file);
        drop(file);
        session.close();
    }
    recorder.recorded()
}

/// What was said in a direction, in order.
fn titles(packets: &[Item], way: Way, server: u16) -> Vec<String> {
    let port = if way == Way::ToServer { "tcp.dstport" } else { "tcp.srcport" };
    let of_way = packets.iter().filter(|packet| packet.number(port) == u64::from(server));
    of_way.flat_map(|packet| packet.titles().into_iter().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
#[ignore = "needs tshark"]
fn stream_that_is_cut_anywhere_is_dissected_alike() {
    let segments = recorded();
    let whole = dissect(&Capture::of(PORT, &segments));
    assert!(WAYS.iter().all(|way| titles(&whole, *way, PORT).len() > 20));
    for seed in 1..=3 {
        let mut numbers = Numbers::new(seed);
        let mut pieces: Vec<Segment> = Vec::new();
        for segment in &segments {
            let mut rest = segment.bytes.as_slice();
            while !rest.is_empty() {
                // Mostly small, so that headers are cut too.
                let size_max = numbers.one_of(&[3, 40, 100, 1500, 60_000]);
                let (bytes, behind) =
                    rest.split_at(1 + numbers.below(size_max.min(rest.len() as u64)) as usize);
                pieces.push(Segment { bytes: bytes.to_vec(), ..segment.clone() });
                rest = behind;
            }
        }
        let cut = dissect(&Capture::of(PORT, &pieces));
        for way in WAYS {
            let (cut, whole) = (titles(&cut, way, PORT), titles(&whole, way, PORT));
            let differ = cut.iter().zip(&whole).position(|(cut, whole)| cut != whole);
            let place = differ.unwrap_or(cut.len().min(whole.len()));
            assert_eq!(cut.get(place..), whole.get(place..), "seed {seed}, {way:?}, from {place} on");
        }
        assert!(cut.iter().all(|packet| packet.remarks(WARNING).is_empty()), "seed {seed}");
    }
}

#[test]
#[ignore = "needs tshark"]
fn many_frames_in_one_segment_are_all_dissected() {
    let segments = golden_session();
    let joined = WAYS.map(|way| {
        let of_way = segments.iter().filter(|segment| segment.way == way);
        let bytes = of_way.flat_map(|segment| segment.bytes.clone()).collect();
        Segment { client: segments[0].client, way, bytes }
    });
    let (whole, cut) = (dissect(&Capture::of(PORT, &segments)), dissect(&Capture::of(PORT, &joined)));
    assert_eq!(cut.len(), 2);
    for way in WAYS {
        assert_eq!(titles(&cut, way, PORT), titles(&whole, way, PORT));
        assert_eq!(titles(&cut, way, PORT).len(), 7);
    }
}

#[test]
#[ignore = "needs tshark"]
fn capture_begun_midway_waits_for_a_message_and_says_so() {
    let segments = recorded();
    let client = segments[0].client;
    let segments: Vec<Segment> = segments.into_iter().filter(|segment| segment.client == client).collect();
    let whole = dissect(&Capture::of(PORT, &segments));
    let count = |way: Way| -> usize {
        segments.iter().filter(|segment| segment.way == way).map(|segment| segment.bytes.len()).sum()
    };
    for seed in 1..=4 {
        let mut numbers = Numbers::new(seed);
        let mut capture = Capture::new(PORT);
        let mut missing = WAYS.map(|way| 33 + numbers.below(count(way) as u64 * 3 / 4) as usize);
        for segment in &segments {
            let missing = &mut missing[segment.way as usize];
            let skipped = segment.bytes.len().min(*missing);
            *missing -= skipped;
            capture.leave_out(client, segment.way, skipped as u32);
            capture.push(&Segment { bytes: segment.bytes[skipped..].to_vec(), ..segment.clone() });
        }
        let late = dissect(&capture);
        for way in WAYS {
            let (whole, late) = (titles(&whole, way, PORT), titles(&late, way, PORT));
            let is_lost = |title: &&String| title.contains("not decoded");
            let found: Vec<&String> = late.iter().filter(|title| !is_lost(title)).collect();
            assert!(!found.is_empty() && found.len() < whole.len(), "seed {seed}: {late:#?}");
            let last = whole.iter().skip(whole.len() - found.len()).collect::<Vec<_>>();
            assert_eq!(found, last, "seed {seed}, {way:?}");
            // What is lost is lost at the beginning.
            let lost = late.iter().take_while(is_lost).count();
            assert_eq!(late.iter().filter(is_lost).count(), lost, "seed {seed}: {late:#?}");
        }
        assert!(late.iter().all(|packet| packet.remarks(WARNING).is_empty()), "seed {seed}");
        let remarks: Vec<_> = late.iter().flat_map(|packet| packet.remarks(NOTE)).collect();
        assert!(remarks.iter().any(|remark| remark.text.contains("waiting for a message")), "seed {seed}");
    }
}

#[test]
#[ignore = "needs tshark"]
fn script_is_loaded_from_the_folder_of_plugins() {
    let capture = Capture::of(PORT, &golden_session());
    let (named, installed) = (dissect(&capture), dissect_installed(&capture));
    assert_eq!(titles(&installed, Way::ToServer, PORT), titles(&named, Way::ToServer, PORT));
}

#[test]
#[ignore = "needs tshark"]
fn any_port_is_recognized_by_its_bytes() {
    const OTHER: u16 = 4567;
    let segments = golden_session();
    let usual = dissect(&Capture::of(PORT, &segments));
    // From the hellos on, and from the first message on.
    for skipped in [0, 2] {
        let packets = dissect(&Capture::of(OTHER, &segments[skipped..]));
        for way in WAYS {
            let expected = titles(&usual, way, PORT);
            assert_eq!(titles(&packets, way, OTHER), expected[skipped / 2..]);
        }
    }
    // Bytes of another protocol are left alone.
    let other = Segment { bytes: b"GET / HTTP/1.0\r\n\r\n".to_vec(), ..segments[0].clone() };
    assert_eq!(titles(&dissect(&Capture::of(OTHER, &[other])), Way::ToServer, OTHER), [""; 0]);
}
