//! Requests that change something are executed, their replies are lost, and another client changes the same before they come again: nothing
//! is changed a second time.

use std::sync::Arc;

use dafs_client::{File, Session};
use dafs_proto::extent::Extent;
use dafs_proto::transport::{Access, Region};
use dafs_proto::wire::{
    AllocateRequest, BATCH_RESULT_SIZE, BatchOperation, BatchRequest, CommitRequest, EXTENT_SIZE, FileHandle,
    Flags, HEADER_SIZE, Header, ListFlags, ListReadReply, ListRequest, Lists, Method, Opcode, ReadReply,
    Resume, Sieve, Stability, Status, Welcome, WriteReply, encode_lists, lists_size,
};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_two_workers;
use dafs_tests::raw::{Message, Raw, introduction, read_body, stable_write_body, write_body};
use dafs_tests::suite::{EXPORTS, assert_same, bytes};

on_each_provider_and_two_workers! {
    what_another_client_has_written_since_is_not_overwritten_by_a_request_sent_again,
    batch_sent_again_writes_nothing_twice_and_reads_anew,
}

const LEN: u32 = 3000;

/// A request, to be sent in any slot.
struct Request {
    opcode: Opcode,
    body: Vec<u8>,
    payload: Vec<u8>,
}

fn range_body(offset: u64, len: u64) -> Vec<u8> {
    let mut body = vec![0; AllocateRequest::HEAD_SIZE - HEADER_SIZE];
    AllocateRequest { offset, len }.encode(&mut body);
    body
}

fn segment(region: &Region) -> [u64; 3] {
    [region.range().key.0, region.range().offset, u64::from(LEN)]
}

/// Requests that change the first [`LEN`] bytes of a file, each in its own way.
fn changes(region: &Region) -> Vec<Request> {
    let data = || bytes(1, LEN as usize);
    let write = |stability| stable_write_body(0, LEN, stability, None);
    let mut list = vec![0; ListRequest::HEAD_SIZE - HEADER_SIZE];
    let (method, stability) = (Method::Inline, Stability::Unstable);
    ListRequest {
        len: LEN,
        method,
        stability,
        sieve: Sieve::Auto,
        flags: ListFlags::default(),
        extent_count: 2,
        segment_count: 0,
    }
    .encode(&mut list);
    let mut listed = vec![0; 2 * EXTENT_SIZE];
    encode_lists([Extent::new(0, 1000), Extent::new(1000, 2000)].into_iter(), &[], &mut listed);
    listed.extend(data());
    let mut commit = vec![0; CommitRequest::HEAD_SIZE - HEADER_SIZE];
    CommitRequest { offset: 0, len: 0, stability: Stability::DataSync }.encode(&mut commit);
    let none = Vec::new;
    [
        (Opcode::Write, write(Stability::Unstable), data()),
        (Opcode::Write, write(Stability::FileSync), data()),
        (Opcode::Write, write_body(0, LEN, Some(segment(region))), none()),
        (Opcode::Append, write(Stability::Unstable), data()),
        (Opcode::WriteList, list, listed),
        (Opcode::Punch, range_body(0, 2000), none()),
        (Opcode::Allocate, range_body(0, 10_000), none()),
        (Opcode::Truncate, range_body(5, 0), none()),
        (Opcode::Commit, commit, none()),
    ]
    .map(|(opcode, body, payload)| Request { opcode, body, payload })
    .into()
}

/// The connection is lost, and another takes its session up.
fn resumed(harness: &Harness, lost: Raw, welcome: &Welcome) -> Raw {
    drop(lost);
    let mut raw = Raw::connect(harness.address());
    let resume = Resume { session: welcome.session, secret: welcome.secret };
    let welcome = raw.shake(&introduction(harness.address(), 16, Some(resume))).unwrap();
    assert!(welcome.resumed);
    raw
}

fn again(raw: &mut Raw, header: Header, request: &Request) -> Message {
    raw.ask(Header { flags: Flags::REPLAY, ..header }, &request.body, &request.payload)
}

fn rewritten(session: &Session, export: &str, name: &str) -> (File, Vec<u8>) {
    let file = session
        .mount(export)
        .unwrap()
        .open_with(name, dafs_client::OpenOptions::new().read(true).write(true));
    let (file, data) = (file.unwrap(), bytes(2, LEN as usize));
    file.truncate(0).unwrap();
    file.write_all_at(&data, 0).unwrap();
    file.commit().unwrap();
    (file, data)
}

// [SESS-11] [SESS-14] [WIRE-15] [WIRE-18]
fn what_another_client_has_written_since_is_not_overwritten_by_a_request_sent_again(on: On) {
    let harness = Harness::start(on);
    let other = harness.session();
    for export in EXPORTS {
        let count = changes(&Raw::connect(harness.address()).region(4096, Access::all())).len();
        for case in 0..count {
            let (mut raw, welcome) = Raw::session(harness.address(), 16);
            let region = raw.region(4096, Access::all());
            let request = changes(&region).swap_remove(case);
            let what = format!("{export}: {:?}, case {case}", request.opcode);
            let root = raw.mount(export);
            let handle = raw.create(root, b"f");
            let mut header = Header::request(request.opcode, handle);
            raw.begin(&mut header);
            let first = raw.ask(header, &request.body, &request.payload);
            assert_eq!(first.header.status, Status::OK, "{what}");
            let (file, data) = rewritten(&other, export, "f");
            let mut raw = resumed(&harness, raw, &welcome);
            let second = again(&mut raw, header, &request);
            assert_eq!((second.header.status, &second.body), (Status::OK, &first.body), "{what}");
            let mut found = vec![0; 2 * LEN as usize];
            let len = file.read_at(&mut found, 0).unwrap();
            assert_same(&found[..len], &data, &what);
        }
    }
}

// [BATCH-8] [BATCH-19]
fn batch_sent_again_writes_nothing_twice_and_reads_anew(on: On) {
    let harness = Harness::start(on);
    let other = harness.session();
    for export in EXPORTS {
        // Answered with what was read, and with more results than a kept reply has.
        for writes in [2, 100] {
            let (mut raw, welcome) = Raw::session(harness.address(), 16);
            let root = raw.mount(export);
            let handle = raw.create(root, b"f");
            let inline = |write, offset| BatchOperation {
                handle,
                write,
                method: Method::Inline,
                stability: Stability::Unstable,
                lists: Lists { extents: vec![Extent::new(offset, 10)], segments: Vec::new() }.into(),
            };
            let reads = u64::from(writes == 2);
            let operations = (0..writes).map(|index| inline(true, index * 10));
            let operations: Vec<_> = operations.chain((0..reads).map(|_| inline(false, 0))).collect();
            let mut payload = Vec::new();
            operations.iter().for_each(|operation| operation.encode(&mut payload));
            payload.extend(bytes(1, 10 * writes as usize));
            let mut body = vec![0; BatchRequest::HEAD_SIZE - HEADER_SIZE];
            let (operations, data) = (operations.len() as u32, 10 * writes as u32);
            BatchRequest { operations, data, ..BatchRequest::default() }.encode(&mut body);
            let request = Request { opcode: Opcode::Batch, body, payload };
            let mut header = Header::request(Opcode::Batch, FileHandle(0));
            raw.begin(&mut header);
            let first = raw.ask(header, &request.body, &request.payload);
            assert_eq!(first.header.status, Status::OK);
            let (file, data) = rewritten(&other, export, "f");
            let mut raw = resumed(&harness, raw, &welcome);
            let second = again(&mut raw, header, &request);
            assert_eq!(second.header.status, Status::OK);
            let results = writes as usize * BATCH_RESULT_SIZE;
            assert_same(&second.payload[..results], &first.payload[..results], "results of writes");
            if reads > 0 {
                let read = &second.payload[results + BATCH_RESULT_SIZE..];
                assert_same(read, &data[..10], "what is read when it is asked for again");
            }
            let mut found = vec![0; LEN as usize];
            file.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &data, export);
        }
    }
}

mod in_chunks {
    pub(super) mod tcp {
        #[test]
        fn file_cut_while_it_is_sent_is_answered_with_what_there_was() {
            super::super::cut_while_sent();
        }

        #[test]
        fn write_that_broke_in_the_middle_goes_on_behind_what_it_has_written() {
            super::super::broken_in_the_middle();
        }
    }
}

// [SESS-54] Over tcp a large write comes in chunks.
fn broken_in_the_middle() {
    const WHOLE: u32 = 4 << 20;
    const OTHERS: usize = 1000;
    let (harness, faults) = Harness::start_faulty(On::Tcp, |_| {});
    let other = harness.session();
    for export in EXPORTS {
        let (mut raw, welcome) = Raw::session(harness.address(), 16);
        let root = raw.mount(export);
        let handle = raw.create(root, b"f");
        let data = bytes(3, WHOLE as usize);
        let region = raw.region(WHOLE as usize, Access::all());
        region.memory().span().write_from(0, &data);
        let range = region.range();
        let body = write_body(0, WHOLE, Some([range.key.0, range.offset, WHOLE.into()]));
        faults.next(Kind::Write, Fault::Pass, 2);
        faults.next(Kind::Write, Fault::Hold, 1);
        let mut header = Header::request(Opcode::Write, handle);
        raw.begin(&mut header);
        raw.send(header, &body, &[]);
        while faults.held() == 0 {
            // The server fetches by way of this side.
            raw.endpoint.flush().unwrap();
            assert!(raw.endpoint.recv().unwrap().is_none());
            std::thread::yield_now();
        }
        let file = other.mount(export).unwrap();
        let file = file.open_with("f", dafs_client::OpenOptions::new().read(true).write(true)).unwrap();
        let (others, mut found) = (bytes(4, OTHERS), vec![0; OTHERS]);
        while found != data[..OTHERS] {
            file.read_at(&mut found, 0).unwrap();
        }
        file.write_all_at(&others, 0).unwrap();
        file.commit().unwrap();
        let domain = Arc::clone(&raw.domain);
        drop(raw);
        faults.release();
        let mut raw = Raw::connect_from(domain, harness.address());
        let resume = Resume { session: welcome.session, secret: welcome.secret };
        assert!(raw.shake(&introduction(harness.address(), 16, Some(resume))).unwrap().resumed);
        let reply = raw.ask(Header { flags: Flags::REPLAY, ..header }, &body, &[]);
        assert_eq!(reply.header.status, Status::OK);
        assert_eq!(WriteReply::decode(&reply.body).unwrap().count, WHOLE);
        let mut found = vec![0; WHOLE as usize];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found[..OTHERS], &others, "what the other wrote meanwhile");
        assert_same(&found[OTHERS..], &data[OTHERS..], "the rest");
    }
}

// [STOR-27] [TCP-27] [STOR-68] The sockets are full, and the server waits in the middle of the data, when the file is cut.
fn cut_while_sent() {
    let harness = Harness::start(On::Tcp);
    let path = harness.data().join("f");
    // Of the smaller ones the last part is on its way, and the reply behind it, when the first is still waiting.
    // They are cut behind what has been sent, and before.
    let cases =
        [16u32 << 20, 2 << 20, 1 << 20].map(|whole| [(whole, u64::from(whole / 4 * 3 + 123)), (whole, 123)]);
    let cases = [false, true]
        .into_iter()
        .flat_map(|lists| cases.into_iter().flatten().map(move |case| (lists, case)));
    for (lists, (whole, kept)) in cases {
        let data = bytes(5, whole as usize);
        std::fs::write(&path, &data).unwrap();
        let (mut raw, _) = Raw::session(harness.address(), 16);
        let root = raw.mount("data");
        let handle = raw.create(root, b"f");
        let region = raw.region(whole as usize, Access::all());
        let range = [region.range().key.0, region.range().offset, whole.into()];
        let (opcode, body, payload) = match lists {
            false => (Opcode::Read, read_body(0, whole, Some(range)), Vec::new()),
            true => {
                let mut body = vec![0; ListRequest::HEAD_SIZE - HEADER_SIZE];
                let (method, stability) = (Method::Direct, Stability::Unstable);
                ListRequest {
                    len: whole,
                    method,
                    stability,
                    sieve: Sieve::Auto,
                    flags: ListFlags::default(),
                    extent_count: 1,
                    segment_count: 1,
                }
                .encode(&mut body);
                let mut lists = vec![0; lists_size(1, 1)];
                encode_lists(std::iter::once(Extent::new(0, whole.into())), &[range], &mut lists);
                (Opcode::ReadList, body, lists)
            }
        };
        let mut header = Header::request(opcode, handle);
        raw.begin(&mut header);
        raw.send(header, &body, &payload);
        // Something has come; nothing of it is taken until the file is cut.
        raw.endpoint.wait(Some(std::time::Duration::from_secs(30))).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(kept).unwrap();
        let reply = raw.receive().unwrap();
        assert_eq!(reply.header.status, Status::OK);
        let count = match lists {
            false => ReadReply::decode(&reply.body).unwrap().count,
            true => ListReadReply::decode(&reply.body).unwrap().count,
        };
        if kept > 123 {
            assert_eq!(u64::from(count), kept, "list: {lists}, {whole} bytes");
        }
        assert!((kept..whole.into()).contains(&count.into()), "{count} bytes, list: {lists}, {whole} bytes");
        let found = region.memory().span().slice(0, count as usize).unwrap().to_vec();
        assert_same(&found, &data[..count as usize], "what there was");
    }
    assert_eq!(harness.session().statistics().unwrap().in_flight, 0, "nothing is left of them");
}
