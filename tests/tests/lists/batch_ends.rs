//! How a batch tells of its ends: while storage still has some of it, gathered as the hints say, hurried, and of each once.

use std::time::Duration;

use dafs_client::{BatchHints, Session};
use dafs_proto::transport::{Access, Region};
use dafs_proto::wire::{
    BatchFlags, BatchNotice, BatchOperation, BatchRequest, FileHandle, HEADER_SIZE, Header, Opcode, Status,
    decode_batch_results, decode_noticed_results,
};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::raw::{Message, Raw, write_body};
use dafs_tests::suite::{EXPORTS, assert_same, bytes};

use crate::batch_requests::operation;
use crate::batches::tell_all;

on_each_provider! {
    batch_tells_what_has_ended_while_storage_has_the_rest,
    batch_of_operations_that_move_nothing_tells_of_each_once,
    batch_in_flight_is_hurried_when_it_is_expedited,
    notices_hold_as_many_ends_as_the_hints_say,
    silent_client_gets_eight_notices_and_the_others_when_it_speaks,
    batch_of_overlapping_writes_reports_only_what_was_written,
}

const HOUR: Duration = Duration::from_secs(3600);

fn file(session: &Session) -> dafs_client::File {
    let file = session.mount("mem").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(1, 10_000), 0).unwrap();
    file
}

// [BATCH-6] [CLI-44] [BATCH-14]
fn batch_tells_what_has_ended_while_storage_has_the_rest(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    let file = file(&session);
    let hints = |completions, window| Some(BatchHints { completions, window });
    for (hints, expedite) in [(hints(1, HOUR), false), (hints(39, Duration::ZERO), false), (None, true)] {
        faults.next(Kind::Read, Fault::Hold, 1);
        let mut batch = session.owned_batch();
        batch.read_at(&file, vec![0; 100], 0);
        (1..40).for_each(|n| {
            batch.write_at(&file, vec![1; 100], n * 200);
        });
        if expedite {
            batch.expedite();
        }
        let mut pending = batch.submit(hints);
        let mut told = Vec::new();
        while told.len() < 39 {
            let some = pending.wait_some();
            assert_eq!(faults.held(), 1, "told by the reply alone: {hints:?}");
            told.extend(some);
        }
        told.sort_unstable();
        assert_eq!(told, (1..40).collect::<Vec<_>>());
        assert!(!pending.test());
        faults.release();
        assert_eq!(pending.wait_some(), [0]);
        assert!(pending.wait_some().is_empty());
        assert!(pending.wait().results.unwrap().iter().all(|outcome| outcome.as_ref().unwrap().count == 100));
    }
}

// [BATCH-6] [CLI-118] [CLI-119]
fn batch_of_operations_that_move_nothing_tells_of_each_once(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    let file = file(&session);
    assert!(session.owned_batch::<Vec<u8>>().submit(None).wait_some().is_empty());
    let hints = Some(BatchHints { completions: 1, window: Duration::ZERO });
    for (lens, hints) in [(&[0, 0, 0][..], hints), (&[0], None), (&[0, 50, 0], hints), (&[50, 0], None)] {
        faults.next(Kind::Read, Fault::Hold, 1);
        let mut batch = session.owned_batch();
        lens.iter().for_each(|len| {
            batch.read_at(&file, vec![0; *len], 10);
        });
        let mut pending = batch.submit(hints);
        let mut told = pending.wait_some();
        let empty: Vec<usize> = (0..lens.len()).filter(|place| lens[*place] == 0).collect();
        assert_eq!(told, empty, "nothing keeps them");
        faults.release();
        told.extend(tell_all(&mut pending));
        told.sort_unstable();
        assert_eq!(told, (0..lens.len()).collect::<Vec<_>>());
        let done = pending.wait();
        let counts: Vec<usize> = done.results.unwrap().iter().map(|o| o.as_ref().unwrap().count).collect();
        assert_eq!(counts, lens);
    }
}

// [BATCH-16] [CLI-121]
fn batch_in_flight_is_hurried_when_it_is_expedited(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    let file = file(&session);
    faults.next(Kind::Read, Fault::Hold, 1);
    let mut batch = session.owned_batch();
    batch.read_at(&file, vec![0; 100], 0);
    (1..6).for_each(|n| {
        batch.write_at(&file, vec![1; 100], n * 200);
    });
    let mut pending = batch.submit(Some(BatchHints { completions: 100, window: HOUR }));
    pending.expedite();
    let mut told = Vec::new();
    while told.len() < 5 {
        told.extend(pending.wait_some());
        assert_eq!(faults.held(), 1, "told by the reply alone");
    }
    pending.expedite();
    faults.release();
    assert_eq!(pending.wait_some(), [0]);
    pending.expedite();
    assert!(pending.wait().results.is_ok());
}

/// A client by hand, a file and memory of its own.
struct Hand {
    raw: Raw,
    file: FileHandle,
    region: Region,
    /// Requests of the batches in progress.
    batches: Vec<Header>,
    /// Ends that notices told of: which batch, and the place.
    told: Vec<(usize, usize)>,
    /// Ends in each notice.
    notices: Vec<usize>,
    replies: Vec<Message>,
}

impl Hand {
    fn new(harness: &Harness) -> Self {
        let (mut raw, _) = Raw::session(harness.address(), 64);
        let root = raw.mount("mem");
        let file = raw.create(root, b"f");
        raw.call(Header::request(Opcode::Write, file), &write_body(0, 8000, None), &bytes(1, 8000));
        let region = raw.region(4096, Access::all());
        let (batches, told, notices, replies) = Default::default();
        Self { raw, file, region, batches, told, notices, replies }
    }

    /// A read, and after it so many writes, in one batch.
    fn batch(&mut self, writes: u64, window_us: u32, completions: u32) {
        let range = |at: u64| [self.region.range().key.0, self.region.range().offset + 16 * at, 16];
        let operations = (0..=writes).map(|at| operation(self.file, at > 0, (16 * at, 16), range(at % 100)));
        let (operations_len, flags) = (writes as u32 + 1, BatchFlags::NOTIFY);
        let request = BatchRequest { operations: operations_len, flags, window_us, completions, data: 0 };
        let header = self.send(&request, &operations.collect::<Vec<_>>());
        self.batches.push(header);
    }

    fn send(&mut self, request: &BatchRequest, operations: &[BatchOperation]) -> Header {
        let mut payload = Vec::new();
        operations.iter().for_each(|operation| operation.encode(&mut payload));
        let mut body = vec![0; BatchRequest::HEAD_SIZE - HEADER_SIZE];
        request.encode(&mut body);
        let mut header = Header::request(Opcode::Batch, FileHandle(0));
        self.raw.begin(&mut header);
        self.raw.send(header, &body, &payload);
        header
    }

    /// Says nothing, and takes notice of what arrives before the answer to that.
    fn probe(&mut self) {
        let mut header = Header::request(Opcode::Null, FileHandle(0));
        self.raw.begin(&mut header);
        self.raw.send(header, &[], &[]);
        self.take_until(&header);
    }

    /// Asks for all that has ended, and takes notice of what arrives before the answer to that.
    fn expedite(&mut self) {
        let request = BatchRequest { flags: BatchFlags::EXPEDITE, ..BatchRequest::default() };
        let header = self.send(&request, &[]);
        self.take_until(&header);
    }

    /// The request whose reply it is.
    fn take_until(&mut self, request: &Header) {
        loop {
            let message = self.raw.receive().expect("a message");
            if message.header.opcode == Opcode::BatchDone {
                self.on_notice(&message);
                continue;
            }
            assert_eq!(message.header.status, Status::OK);
            self.raw.end(&message);
            if message.header.slot == request.slot {
                return;
            }
            self.replies.push(message);
        }
    }

    fn on_notice(&mut self, message: &Message) {
        let notice = BatchNotice::decode(&message.body).unwrap();
        let batch = self
            .batches
            .iter()
            .position(|header| (header.slot.0, header.sequence) == (notice.slot, notice.sequence))
            .expect("a notice of a batch that is in progress");
        let ends = decode_noticed_results(&message.payload, &notice, 1024).unwrap();
        for (place, result) in &ends {
            assert_eq!((result.status, result.count), (Status::OK, 16));
            assert!(!self.told.contains(&(batch, *place)), "{place} of batch {batch} is told twice");
            self.told.push((batch, *place));
        }
        self.notices.push(ends.len());
    }
}

/// Answers of a server after which it would have told what it is going to: it is not asked for anything else.
const PROBES: usize = 20;

// [BATCH-6] [BATCH-14] [BATCH-16]: none below the number of completions, at that number and beyond it.
fn notices_hold_as_many_ends_as_the_hints_say(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    for completions in [1, 2, 16, 0] {
        for writes in [15, 16, 17, 40] {
            let mut hand = Hand::new(&harness);
            faults.next(Kind::Read, Fault::Hold, 1);
            hand.batch(writes, u32::MAX, completions);
            faults.wait_for_held(1);
            (0..PROBES).for_each(|_| hand.probe());
            assert_eq!(faults.held(), 1);
            let is_due = completions > 0 && u64::from(completions) <= writes;
            let told = |hand: &Hand| hand.notices.iter().sum::<usize>() as u64;
            // What found something else to be sent is told when the client speaks again.
            let mut probes = 0;
            while is_due && told(&hand) <= writes - u64::from(completions) {
                assert!(probes < 10_000, "{completions} of {writes}: {} told", told(&hand));
                hand.probe();
                probes += 1;
            }
            if !is_due {
                assert_eq!(hand.notices, [0; 0], "{completions} of {writes}");
            }
            assert!(hand.notices.iter().all(|ends| *ends as u32 >= completions), "{:?}", hand.notices);
            hand.expedite();
            assert_eq!(hand.told.len() as u64, writes, "all that has ended");
            assert!(hand.told.iter().all(|(_, place)| *place > 0), "the read is held");
            faults.release();
            let header = hand.batches[0];
            hand.take_until(&header);
        }
    }
}

// [BATCH-7] [BATCH-18]
fn silent_client_gets_eight_notices_and_the_others_when_it_speaks(on: On) {
    const BATCHES: usize = 12;
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let mut hand = Hand::new(&harness);
    while usize::from(hand.raw.credits()) <= BATCHES {
        hand.probe();
    }
    faults.next(Kind::Read, Fault::Hold, BATCHES);
    (0..BATCHES).for_each(|_| hand.batch(3, u32::MAX, 0));
    faults.wait_for_held(BATCHES);
    (0..PROBES).for_each(|_| hand.probe());
    assert!(hand.notices.is_empty(), "nothing is due");
    hand.expedite();
    assert_eq!(hand.notices.len(), 8, "one request, at most eight notices");
    while hand.notices.len() < BATCHES {
        hand.probe();
    }
    assert_eq!(hand.notices, [3; BATCHES]);
    assert_eq!(faults.held(), BATCHES);
    faults.release();
    for _ in 0..BATCHES {
        let reply = hand.raw.receive().unwrap();
        assert_eq!(reply.header.opcode, Opcode::Batch, "nothing is told twice");
        let results = decode_batch_results(&reply.payload, 4).unwrap();
        assert!(results.iter().all(|result| (result.status, result.count) == (Status::OK, 16)));
        hand.raw.end(&reply);
    }
}

mod sim {
    use super::*;
    use dafs_proto::transport::sim::FaultPlan;
    use dafs_tests::sim::{World, WorldPlan};

    /// Round trips, processing and all.
    const A_WHILE: Duration = Duration::from_millis(20);

    // [BATCH-14]: on virtual time, the window to what a message takes.
    #[test]
    fn ends_wait_for_others_as_long_as_the_window_and_no_longer() {
        let world = World::new(5, WorldPlan { network: FaultPlan::calm(), crash_ppm: 0 });
        let session = world.connect(1, &World::client_config(4)).unwrap();
        let file = {
            let root = session.mount("data").unwrap();
            root.create("f").unwrap()
        };
        file.write_all_at(&bytes(1, 10_000), 0).unwrap();
        let held = Duration::from_secs(5);
        for (window, expedites) in [
            (Duration::ZERO, false),
            (Duration::from_millis(250), false),
            (Duration::from_millis(1500), false),
            (HOUR, true),
        ] {
            world.hold_reads(held);
            let began = world.net().now();
            let mut batch = session.owned_batch();
            batch.read_at(&file, vec![0; 100], 0);
            (1..6).for_each(|n| {
                batch.write_at(&file, vec![1; 100], n * 200);
            });
            let mut pending = batch.submit(Some(BatchHints { completions: usize::MAX, window }));
            let mut least = window;
            if expedites {
                world.let_time_pass(Duration::from_secs(1));
                assert!(!pending.test());
                (least, _) = (world.net().now() - began, pending.expedite());
            }
            let mut told = pending.wait_some();
            told.sort_unstable();
            let took = world.net().now() - began;
            assert_eq!(told, [1, 2, 3, 4, 5]);
            let most = least + A_WHILE;
            assert!((least..=most).contains(&took), "window {window:?}: told after {took:?}");
            assert_eq!(pending.wait_some(), [0]);
            assert!(world.net().now() - began >= held, "storage had the read until then");
            assert!(pending.wait().results.is_ok());
        }
    }
}

// [BATCH-3] [BATCH-13]
fn batch_of_overlapping_writes_reports_only_what_was_written(on: On) {
    const PLACES: [u64; 3] = [0, 1 << 20, 0];
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    for export in EXPORTS {
        let file = session.mount(export).unwrap().create("f").unwrap();
        let data = [1, 2, 3].map(|seed| bytes(seed, 10));
        // Together, and then two of them by themselves.
        faults.next(Kind::Write, Fault::Fail(Status::NO_SPACE), 3);
        let mut batch = session.batch_io();
        for (data, place) in data.iter().zip(PLACES) {
            batch.write_at(&file, data, place);
        }
        let outcomes = batch.run().unwrap();
        assert_eq!(faults.left(), 0);
        let written: Vec<usize> = (0..3).filter(|index| outcomes[*index].is_ok()).collect();
        let [written] = written[..] else { panic!("{outcomes:?}") };
        let mut found = [0; 10];
        assert_eq!(file.read_at(&mut found, PLACES[written]).unwrap(), 10, "{export}");
        assert_same(&found, &data[written], "what was said to be written");
    }
}
