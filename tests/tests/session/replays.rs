//! Requests that change something are executed, their replies are lost, and another client changes the same before they come again: nothing
//! is changed a second time.

use std::sync::Arc;

use dafs_client::{Datatype, File, LockOptions, Session, SetAttributes};
use dafs_proto::extent::Extent;
use dafs_proto::transport::{Access, Domain, Region};
use dafs_proto::wire::{
    AllocateRequest, BATCH_RESULT_SIZE, BatchOperation, BatchRequest, CommitRequest, CopyRequest,
    EXTENT_SIZE, FileHandle, Flags, HEADER_SIZE, Header, ListFlags, ListReadReply, ListRequest, Lists,
    LockKind, Method, NameRequest, Opcode, ReadReply, Resume, Sieve, Stability, Status, ViewRequest,
    ViewSetRequest, Welcome, WriteReply, decode_batch_results, encode_datatype, encode_lists,
    encode_message_pack, lists_size,
};
use dafs_tests::faulty::{Fault, Faults, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::raw::{Message, Raw, introduction, read_body, request, stable_write_body, write_body};
use dafs_tests::suite::{EXPORTS, assert_same, bytes, wait_for};

on_each_provider_and_three_workers! {
    resent_write_does_not_overwrite_what_another_wrote_since,
    batch_sent_again_writes_nothing_twice_and_reads_anew,
    stable_writes_of_a_broken_batch_are_committed_not_repeated,
    reply_that_is_too_large_for_the_next_connection_is_refused,
    write_that_comes_again_meets_a_lock_only_behind_what_is_written,
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

/// The view that [`changes`] write through: the even thousands of the first [`LEN`] bytes.
const VIEW: u32 = 1;

/// Describes it in a session.
fn describe_view(raw: &mut Raw) {
    let description = encode_datatype(&Datatype::bytes(1000).resized(0, 2000));
    let mut body = vec![0; ViewSetRequest::HEAD_SIZE - HEADER_SIZE];
    ViewSetRequest { view: VIEW, description_len: description.len() as u32, offset: 0 }.encode(&mut body);
    let reply = raw.call(Header::request(Opcode::ViewSet, FileHandle(0)), &body, &description);
    assert_eq!(reply.header.status, Status::OK);
}

/// A file with the bytes that [`changes`] copy.
fn source(raw: &mut Raw, root: FileHandle) -> FileHandle {
    let source = raw.create(root, b"source");
    let body = write_body(0, LEN, None);
    let reply = raw.call(Header::request(Opcode::Write, source), &body, &bytes(1, LEN as usize));
    assert_eq!(reply.header.status, Status::OK);
    source
}

fn list_body(len: u32, method: Method, [extents, segments]: [u32; 2]) -> Vec<u8> {
    let mut body = vec![0; ListRequest::HEAD_SIZE - HEADER_SIZE];
    ListRequest {
        len,
        method,
        stability: Stability::Unstable,
        sieve: Sieve::Auto,
        flags: ListFlags::default(),
        extent_count: extents,
        segment_count: segments,
    }
    .encode(&mut body);
    body
}

fn view_body() -> Vec<u8> {
    let mut body = vec![0; ViewRequest::HEAD_SIZE - HEADER_SIZE];
    ViewRequest {
        displacement: 0,
        place: 0,
        group: 0,
        group_size: 0,
        view: VIEW,
        len: 2000,
        method: Method::Inline,
        stability: Stability::Unstable,
        sieve: Sieve::Auto,
        flags: ListFlags::empty(),
        segment_count: 0,
    }
    .encode(&mut body);
    body
}

/// Changes the permission bits of the file behind the handle.
fn set_mode() -> [Vec<u8>; 2] {
    let mut body = vec![0; NameRequest::HEAD_SIZE - HEADER_SIZE];
    NameRequest { follow: true, mode: 0 }.encode(&mut body);
    // Of its own path, which is empty, the length comes first.
    let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
    [body, [vec![0, 0], encode_message_pack(&set)].concat()]
}

/// Requests that change the first [`LEN`] bytes of a file, or its mode, each in its own way.
fn changes(region: &Region, source: FileHandle) -> Vec<Request> {
    let data = || bytes(1, LEN as usize);
    let write = |stability| stable_write_body(0, LEN, stability, None);
    let list = list_body(LEN, Method::Inline, [2, 0]);
    let mut listed = vec![0; 2 * EXTENT_SIZE];
    encode_lists([Extent::new(0, 1000), Extent::new(1000, 2000)].into_iter(), &[], &mut listed);
    listed.extend(data());
    let mut commit = vec![0; CommitRequest::HEAD_SIZE - HEADER_SIZE];
    CommitRequest { offset: 0, len: 0, stability: Stability::DataSync }.encode(&mut commit);
    let mut copy = vec![0; CopyRequest::HEAD_SIZE - HEADER_SIZE];
    CopyRequest { source: source.0, source_offset: 0, offset: 0, len: LEN.into() }.encode(&mut copy);
    let [set_mode, mode] = set_mode();
    let none = Vec::new;
    [
        (Opcode::Write, write(Stability::Unstable), data()),
        (Opcode::Write, write(Stability::FileSync), data()),
        (Opcode::Write, write_body(0, LEN, Some(segment(region))), none()),
        (Opcode::Append, write(Stability::Unstable), data()),
        (Opcode::WriteList, list, listed),
        (Opcode::WriteView, view_body(), bytes(1, 2000)),
        (Opcode::CopyRange, copy, none()),
        (Opcode::Setattr, set_mode, mode),
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

/// What [`changes`] sends.
pub(crate) fn opcodes(raw: &Raw) -> Vec<Opcode> {
    let changes = changes(&raw.region(4096, Access::all()), FileHandle(0));
    changes.into_iter().map(|request| request.opcode).collect()
}

/// The mode that the other client gives.
const OTHER_MODE: u32 = 0o604;

fn rewritten(session: &Session, export: &str, name: &str) -> (File, Vec<u8>) {
    let file = session
        .mount(export)
        .unwrap()
        .open_with(name, dafs_client::OpenOptions::new().read(true).write(true));
    let (file, data) = (file.unwrap(), bytes(2, LEN as usize));
    file.truncate(0).unwrap();
    file.write_all_at(&data, 0).unwrap();
    file.set_attributes(&SetAttributes { mode: Some(OTHER_MODE), ..SetAttributes::default() }).unwrap();
    file.commit().unwrap();
    (file, data)
}

// [SESS-11] [SESS-14] [WIRE-15] [WIRE-18]
fn resent_write_does_not_overwrite_what_another_wrote_since(on: On) {
    let harness = Harness::start(on);
    let other = harness.session();
    for export in EXPORTS {
        let region = Raw::connect(harness.address()).region(4096, Access::all());
        for case in 0..changes(&region, FileHandle(0)).len() {
            let (mut raw, welcome) = Raw::session(harness.address(), 16);
            let region = raw.region(4096, Access::all());
            let root = raw.mount(export);
            let source = source(&mut raw, root);
            describe_view(&mut raw);
            let request = changes(&region, source).swap_remove(case);
            let what = format!("{export}: {:?}, case {case}", request.opcode);
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
            assert_eq!(file.metadata().unwrap().mode & 0o7777, OTHER_MODE, "{what}");
        }
    }
}

/// An operation of a batch, of 10 bytes.
fn inline(handle: FileHandle, write: bool, offset: u64, stability: Stability) -> BatchOperation {
    let lists = Lists { extents: vec![Extent::new(offset, 10)], segments: Vec::new() };
    BatchOperation { handle, write, method: Method::Inline, stability, lists: lists.into() }
}

/// A batch of such operations.
fn batch(operations: &[BatchOperation]) -> Request {
    let mut payload = Vec::new();
    operations.iter().for_each(|operation| operation.encode(&mut payload));
    let written = 10 * operations.iter().filter(|operation| operation.write).count();
    payload.extend(bytes(1, written));
    let mut body = vec![0; BatchRequest::HEAD_SIZE - HEADER_SIZE];
    let (operations, data) = (operations.len() as u32, written as u32);
    BatchRequest { operations, data, ..BatchRequest::default() }.encode(&mut body);
    Request { opcode: Opcode::Batch, body, payload }
}

/// Breaks the connection of what storage holds, which it then does without one. `other` is the only other session.
fn left_in_flight(raw: Raw, faults: &Faults, other: &Session) -> Arc<dyn Domain> {
    faults.wait_for_held(1);
    let domain = Arc::clone(&raw.domain);
    drop(raw);
    wait_for("its connection is gone", || other.statistics().unwrap().connections == 1);
    faults.release();
    wait_for("storage has let go", || other.statistics().unwrap().in_flight == 0);
    domain
}

// [BATCH-20] [BATCH-22] Storage lets go of them while their session has no connection.
fn stable_writes_of_a_broken_batch_are_committed_not_repeated(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let other = harness.session();
    let cases = [
        (Stability::DataSync, 1),
        (Stability::DataSync, 3),
        (Stability::FileSync, 1),
        (Stability::FileSync, 3),
    ];
    let cases = EXPORTS.into_iter().flat_map(|export| cases.map(|case| (export, case)));
    let cases =
        cases.flat_map(|(export, case)| [Status::OK, Status::IO].map(|commit| (export, case, commit)));
    for (export, (stability, count), commit) in cases {
        let (mut raw, welcome) = Raw::session(harness.address(), 16);
        let root = raw.mount(export);
        let handle = raw.create(root, b"f");
        let file = other.mount(export).unwrap();
        let file = file.open_with("f", dafs_client::OpenOptions::new().read(true).write(true)).unwrap();
        file.truncate(0).unwrap();
        let operations: Vec<_> =
            (0..count).map(|index| inline(handle, true, 10 * index, stability)).collect();
        let request = batch(&operations);
        faults.next(Kind::Write, Fault::Hold, count as usize);
        let mut header = Header::request(Opcode::Batch, FileHandle(0));
        raw.begin(&mut header);
        raw.send(header, &request.body, &request.payload);
        let domain = left_in_flight(raw, &faults, &other);
        let written = file.metadata().unwrap().size as usize;
        assert!(written >= 10, "{export}: nothing is in the file");
        file.write_all_at(&bytes(2, 50), 0).unwrap();
        if commit != Status::OK {
            faults.next(Kind::Commit, Fault::Fail(commit), usize::MAX);
        }
        let mut raw = Raw::connect_from(domain, harness.address());
        let resume = Resume { session: welcome.session, secret: welcome.secret };
        assert!(raw.shake(&introduction(harness.address(), 16, Some(resume))).unwrap().resumed);
        let reply = again(&mut raw, header, &request);
        assert_eq!(reply.header.status, Status::OK);
        for result in decode_batch_results(&reply.payload, operations.len()).unwrap() {
            assert_eq!(result.status, commit, "{export}, {stability:?}: told as durable without a commit");
        }
        faults.release();
        let mut found = vec![0; 50];
        file.read_exact_at(&mut found, 0).unwrap();
        // A commit that fails changes the verifier: what comes behind it may be lost, and is written again.
        let kept = if commit == Status::OK { written } else { 10 };
        assert_same(&found[..kept], &bytes(2, kept), "what the other has written since");
    }
}

// [LOCK-13] [SESS-14] Another session locks, while it has no connection, a part that is written, or the one that is not.
fn write_that_comes_again_meets_a_lock_only_behind_what_is_written(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let other = harness.session();
    const FAR: u64 = 100_000;
    for locked in [0..10, FAR..FAR + 1] {
        let (mut raw, welcome) = Raw::session(harness.address(), 16);
        let root = raw.mount("data");
        let handle = raw.create(root, b"f");
        let file = other.mount("data").unwrap();
        let file = file.open_with("f", dafs_client::OpenOptions::new().read(true).write(true)).unwrap();
        file.truncate(0).unwrap();
        let mut payload = vec![0; 2 * EXTENT_SIZE];
        encode_lists([Extent::new(0, 10), Extent::new(FAR, 10)].into_iter(), &[], &mut payload);
        payload.extend(bytes(1, 20));
        let body = list_body(20, Method::Inline, [2, 0]);
        let request = Request { opcode: Opcode::WriteList, body, payload };
        faults.next(Kind::Write, Fault::Pass, 1);
        faults.next(Kind::Write, Fault::FailLate(Status::IO), 1);
        let mut header = Header::request(request.opcode, handle);
        raw.begin(&mut header);
        raw.send(header, &request.body, &request.payload);
        let domain = left_in_flight(raw, &faults, &other);
        assert_eq!(file.metadata().unwrap().size, 10, "what is written");
        let mandatory = LockOptions { mandatory: true, ..LockOptions::default() };
        file.lock_with(locked.clone(), LockKind::Exclusive, mandatory).unwrap();
        let mut raw = Raw::connect_from(domain, harness.address());
        let resume = Resume { session: welcome.session, secret: welcome.secret };
        assert!(raw.shake(&introduction(harness.address(), 16, Some(resume))).unwrap().resumed);
        let reply = again(&mut raw, header, &request);
        assert_eq!(reply.header.status, Status::OK, "{locked:?}");
        let count = WriteReply::decode(&reply.body).unwrap().count;
        assert_eq!(count, if locked.start == 0 { 20 } else { 10 }, "{locked:?}");
        file.unlock(locked).unwrap();
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
            let inline = |write, offset| inline(handle, write, offset, Stability::Unstable);
            let reads = u64::from(writes == 2);
            let operations = (0..writes).map(|index| inline(true, index * 10));
            let operations: Vec<_> = operations.chain((0..reads).map(|_| inline(false, 0))).collect();
            let request = batch(&operations);
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
        fn interrupted_write_continues_behind_what_it_wrote() {
            super::super::broken_in_the_middle();
        }
    }
}

/// Body and payload of a list of one extent, from the file's first byte on.
fn direct_list(len: u32, range: [u64; 3]) -> (Vec<u8>, Vec<u8>) {
    let mut lists = vec![0; lists_size(1, 1)];
    encode_lists(std::iter::once(Extent::new(0, len.into())), &[range], &mut lists);
    (list_body(len, Method::Direct, [1, 1]), lists)
}

// [SESS-54] Over tcp a large write comes in chunks.
fn broken_in_the_middle() {
    const WHOLE: u32 = 4 << 20;
    const OTHERS: usize = 1000;
    let (harness, faults) = Harness::start_faulty(On::Tcp, |_| {});
    let other = harness.session();
    let cases = [Opcode::Write, Opcode::WriteList].map(|opcode| EXPORTS.map(|export| (opcode, export)));
    for (opcode, export) in cases.into_iter().flatten() {
        let (mut raw, welcome) = Raw::session(harness.address(), 16);
        let root = raw.mount(export);
        let handle = raw.create(root, b"f");
        let data = bytes(3, WHOLE as usize);
        let region = raw.region(WHOLE as usize, Access::all());
        region.memory().span().write_from(0, &data);
        let range = [region.range().key.0, region.range().offset, WHOLE.into()];
        let (body, payload) = match opcode {
            Opcode::Write => (write_body(0, WHOLE, Some(range)), Vec::new()),
            _ => direct_list(WHOLE, range),
        };
        faults.next(Kind::Write, Fault::Pass, 2);
        faults.next(Kind::Write, Fault::Hold, 1);
        let mut header = Header::request(opcode, handle);
        raw.begin(&mut header);
        raw.send(header, &body, &payload);
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
        let reply = raw.ask(Header { flags: Flags::REPLAY, ..header }, &body, &payload);
        assert_eq!(reply.header.status, Status::OK, "{export}: {opcode:?}");
        assert_eq!(WriteReply::decode(&reply.body).unwrap().count, WHOLE);
        let mut found = vec![0; WHOLE as usize];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found[..OTHERS], &others, "what the other wrote meanwhile");
        assert_same(&found[OTHERS..], &data[OTHERS..], "the rest");
    }
}

// [STOR-27] [TCP-27] [TCP-41] [STOR-68] The sockets are full, and the server waits in the middle of the data, when the file is cut.
fn cut_while_sent() {
    /// The first chunk of the smaller ones. All of it may have left.
    const CHUNK: u64 = 128 << 10;
    let harness = Harness::start(On::Tcp);
    let path = harness.data().join("f");
    // Of the smaller ones the last part is on its way, and the reply behind it, when the first is still waiting.
    // They are cut behind what has been sent, and before; and within the last page of all, or of a chunk, where no page of that is gone.
    let cases = [16u32 << 20, 2 << 20, 1 << 20].map(|whole| {
        [u64::from(whole / 4 * 3 + 123), 123, u64::from(whole - 5), (1 << 20) - 5, CHUNK - 5]
            .map(|kept| (whole, kept))
    });
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
                let (body, lists) = direct_list(whole, range);
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
        if kept > CHUNK {
            assert_eq!(u64::from(count), kept, "list: {lists}, {whole} bytes");
        }
        assert!((kept..whole.into()).contains(&count.into()), "{count} bytes, list: {lists}, {whole} bytes");
        let found = region.memory().span().slice(0, count as usize).unwrap().to_vec();
        assert_same(&found, &data[..count as usize], "what there was");
    }
    assert_eq!(harness.session().statistics().unwrap().in_flight, 0, "nothing is left of them");
}

// [SESS-51] Its request is not asked for again: it is being executed.
fn reply_that_is_too_large_for_the_next_connection_is_refused(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (mut raw, welcome) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let file = raw.create(root, b"f");
    raw.call(Header::request(Opcode::Write, file), &write_body(0, 8000, None), &bytes(1, 8000));
    faults.next(Kind::Read, Fault::Hold, 1);
    let mut read = Header::request(Opcode::Read, file);
    raw.begin(&mut read);
    raw.send(read, &read_body(0, 8000, None), &[]);
    faults.wait_for_held(1);
    drop(raw);
    let resume = Resume { session: welcome.session, secret: welcome.secret };
    let mut raw = Raw::connect_taking(harness.address(), 4096);
    assert!(raw.shake(&introduction(harness.address(), 4, Some(resume))).unwrap().resumed);
    read.flags |= Flags::REPLAY;
    raw.send(read, &read_body(0, 8000, None), &[]);
    // In a slot that nothing used: what came before it has arrived.
    assert_eq!(raw.ask(request(Opcode::Null, 3, 1), &[], &[]).header.status, Status::OK);
    faults.release();
    let refused = raw.receive().unwrap();
    assert_eq!((refused.header.slot, refused.header.status), (read.slot, Status::RANGE));
    assert_eq!(raw.ask(request(Opcode::Null, 3, 2), &[], &[]).header.status, Status::OK, "it goes on");
}
