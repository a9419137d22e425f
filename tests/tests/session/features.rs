//! Features that a client did not name: what it may not ask for, and what it is not sent.

use dafs_proto::session::ClientIntroduction;
use dafs_proto::wire::{
    Features, FileHandle, Flags, HEADER_SIZE, Header, ListFlags, ListRequest, Method, Opcode, OpenFlags,
    Resume, Sieve, Stability, Status, Welcome,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::raw::{Raw, introduction, request};

on_each_provider_and_three_workers! {
    request_of_a_feature_that_does_not_hold_is_not_supported,
    client_without_callbacks_is_sent_none,
    session_is_not_resumed_without_the_feature,
}

fn session(harness: &Harness, features: Features, resume: Option<Resume>) -> (Raw, Welcome) {
    let mut raw = Raw::connect(harness.address());
    let introduction = ClientIntroduction { features, ..introduction(harness.address(), 8, resume) };
    let welcome = raw.shake(&introduction).unwrap();
    // The server is alone.
    assert_eq!(welcome.features, (features - Features::CLUSTER).bits());
    (raw, welcome)
}

// [WIRE-136] [SESS-84]
fn request_of_a_feature_that_does_not_hold_is_not_supported(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = session(&harness, Features::LISTS, None);
    let root = raw.mount("mem");
    let file = raw.create(root, b"f");
    let needing = Opcode::ALL.iter().filter(|opcode| !opcode.is_callback());
    let needing: Vec<_> = needing.filter(|opcode| !Features::LISTS.contains(opcode.feature())).collect();
    assert!(needing.len() > 10, "{needing:?}");
    for opcode in needing {
        let reply = raw.call(Header::request(*opcode, file), &[], &[]);
        assert_eq!(reply.header.status, Status::NOT_SUPPORTED, "{opcode:?}");
    }
    // What a flag asks for.
    let list = |flags| {
        let mut body = [0; ListRequest::HEAD_SIZE - HEADER_SIZE];
        let (method, stability, sieve) = (Method::Inline, Stability::Unstable, Sieve::default());
        let (extent_count, segment_count) = (0, 0);
        ListRequest { len: 0, method, stability, sieve, flags, extent_count, segment_count }
            .encode(&mut body);
        body
    };
    for (flags, status) in [(ListFlags::EXPLAIN, Status::NOT_SUPPORTED), (ListFlags::default(), Status::OK)] {
        let reply = raw.call(Header::request(Opcode::ReadList, file), &list(flags), &[]);
        assert_eq!(reply.header.status, status, "{flags:?}");
    }
    // A chain: its first link is answered so, and those behind it are aborted.
    let link = |slot, sequence, flags| Header { flags, ..request(Opcode::Null, slot, sequence) };
    let (mut raw, _) = session(&harness, Features::BASE, None);
    raw.ask(request(Opcode::Null, 0, 1), &[], &[]);
    let first = raw.ask(link(0, 2, Flags::CHAIN_FORWARD), &[], &[]);
    let second = raw.ask(link(1, 1, Flags::CHAIN_BACK), &[], &[]);
    let statuses = [first.header.status, second.header.status];
    assert_eq!(statuses, [Status::NOT_SUPPORTED, Status::CHAIN_ABORTED]);
    assert_eq!(harness.session().statistics().unwrap().protocol_errors, 0);
}

// [SESS-134]
fn client_without_callbacks_is_sent_none(on: On) {
    let harness = Harness::start(on);
    for (features, is_told) in [(Features::all(), true), (Features::all() - Features::CALLBACKS, false)] {
        let (mut raw, _) = session(&harness, features, None);
        // A number that is not the slot's next.
        raw.send(request(Opcode::Null, 0, 7), &[], &[]);
        assert_eq!(raw.ending().is_some(), is_told, "{features:?}");
    }
}

// [SESS-135]
fn session_is_not_resumed_without_the_feature(on: On) {
    let harness = Harness::start(on);
    for (features, resumed) in [(Features::all() - Features::RESUME, false), (Features::all(), true)] {
        let (mut raw, welcome) = session(&harness, Features::all(), None);
        let root = raw.mount("mem");
        let opened = raw.open(root, b"f", OpenFlags::WRITE | OpenFlags::CREATE);
        assert_ne!(opened.header.handle, FileHandle(0));
        drop(raw);
        let resume = Resume { session: welcome.session, secret: welcome.secret };
        let (_, again) = session(&harness, features, Some(resume));
        assert_eq!(again.resumed, resumed, "{features:?}");
        assert_eq!(again.session == welcome.session, resumed);
    }
}
