//! A server that lies: the session ends with an error that says what was wrong, and nothing panics or is written
//! outside the caller's memory.

use std::io::IoSliceMut;
use std::time::Duration;

use dafs_client::{Config, Datatype, Error, Extent, File, MethodOverride, Opcode, Session, Status};
use dafs_proto::wire::{BatchReply, BatchResult, Flags, HEADER_SIZE, Header, ListReadReply, ReadReply, Slot};
use dafs_tests::sim::{Action, ScriptedWorld};

fn reply(header: &Header, body: &[u8], payload: &[u8], change: impl Fn(&mut Header)) -> Action {
    let mut reply = header.reply(Status::OK);
    reply.head_len = (HEADER_SIZE + body.len()) as u16;
    reply.payload_len = payload.len() as u32;
    change(&mut reply);
    let mut head = vec![0; HEADER_SIZE];
    reply.encode(&mut head);
    head.extend(body);
    Action::Say(head, payload.to_vec())
}

fn read_reply(count: u32) -> Vec<u8> {
    let mut body = vec![0; 8];
    ReadReply { count, end_of_file: false }.encode(&mut body);
    body
}

/// The error that a read of 8 bytes ends with when it is answered so.
fn read_answered(action: impl Fn(&Header) -> Action + Send + 'static) -> Error {
    let world = ScriptedWorld::new(1);
    let session = world.session();
    world.put("f", b"12345678");
    let file = session.mount("data").unwrap().open("f").unwrap();
    world.once(Opcode::Read, action);
    let mut memory = [0xaa; 24];
    let error = file.read_at(&mut memory[8..16], 0).unwrap_err();
    assert_eq!((&memory[..8], &memory[16..]), (&[0xaa; 8][..], &[0xaa; 8][..]), "written outside");
    assert!(matches!(session.ping(), Err(Error::Peer(_))), "the session is over");
    error
}

// [WIRE-139] [CLI-128]
#[test]
fn read_answered_with_more_than_was_asked_ends_the_session() {
    for (count, payload) in [(9u32, 9usize), (8, 9), (9, 8), (4, 8), (8, 0), (u32::MAX, 8), (0, 1)] {
        let error = read_answered(move |header| reply(header, &read_reply(count), &vec![1; payload], |_| ()));
        assert!(matches!(error, Error::Peer(_)), "{count} {payload}: {error}");
    }
}

/// Three times eight bytes to be read into, with eight of another's around each.
struct Guarded([u8; 56]);

impl Guarded {
    fn new() -> Self {
        Self([0xaa; 56])
    }

    fn parts(&mut self) -> [&mut [u8]; 3] {
        let [_, first, _, second, _, third, _] = self.0.as_chunks_mut::<8>().0 else { panic!("7 chunks") };
        [first, second, third]
    }

    /// What lies beside the parts is as it was.
    fn assert_kept(&self, what: &str) {
        let kept = self.0.as_chunks::<8>().0.iter().step_by(2);
        assert!(kept.copied().all(|guard| guard == [0xaa; 8]), "{what}: written outside: {:x?}", self.0);
    }
}

/// A session of a lying server, and its file of 1000 bytes.
fn lied_to() -> (ScriptedWorld, Session, File) {
    let world = ScriptedWorld::new(6);
    // Data travels in the messages.
    let config = Config { method: MethodOverride::Inline, ..ScriptedWorld::config() };
    let session = world.connect(&config).unwrap();
    world.put("f", &[1; 1000]);
    let file = session.mount("data").unwrap().open("f").unwrap();
    (world, session, file)
}

fn assert_ended(session: &Session, error: &Error, what: &str) {
    assert!(matches!(error, Error::Peer(_)), "{what}: {error}");
    assert!(matches!(session.ping(), Err(Error::Peer(_))), "{what}: the session is over");
}

// [WIRE-139] [CLI-128] Of 24 bytes.
#[test]
fn list_and_view_answered_with_more_than_was_asked_end_the_session() {
    let lies = [(25u32, 25usize), (24, 25), (25, 24), (16, 24), (24, 16), (u32::MAX, 24), (0, 1), (24, 0)];
    for (opcode, (count, payload)) in
        [Opcode::ReadList, Opcode::ReadView].into_iter().flat_map(|opcode| lies.map(|lie| (opcode, lie)))
    {
        let what = format!("{opcode:?}, {count} of {payload} bytes");
        let (world, session, file) = lied_to();
        let view = session.view(&Datatype::bytes(8).resized(0, 100)).unwrap();
        world.once(opcode, move |header| {
            let body = ListReadReply { count, end: None }.bytes();
            reply(header, &body, &vec![1; payload], |_| ())
        });
        let mut memory = Guarded::new();
        let mut parts = memory.parts().map(IoSliceMut::new);
        let read = match opcode {
            Opcode::ReadList => file.read_list(&[0, 100, 200].map(|at| Extent::new(at, 8)), &mut parts),
            _ => file.read_view_vectored(&view.at(0, 0), &mut parts),
        };
        assert_ended(&session, &read.unwrap_err(), &what);
        memory.assert_kept(&what);
        assert_eq!(world.count(opcode), 1, "{what}");
    }
}

// [WIRE-139] [CLI-128] Each operation of a batch asked for 8 bytes.
#[test]
fn batch_answered_with_more_than_was_asked_ends_the_session() {
    // How many results and bytes it says there are, the counts, and how many bytes there are.
    let lies = [
        (3u32, 25u32, [8u32, 8, 9], 25usize),
        (3, 24, [9, 7, 8], 24),
        (3, 24, [24, 0, 0], 24),
        (3, 24, [u32::MAX, 8, 8], 24),
        (3, 24, [8, 8, 8], 23),
        (3, 24, [8, 8, 8], 25),
        (3, 23, [8, 8, 8], 24),
        (3, u32::MAX, [8, 8, 8], 24),
        (2, 24, [8, 8, 8], 24),
        (4, 24, [8, 8, 8], 24),
        (u32::MAX, 24, [8, 8, 8], 24),
    ];
    for (operations, data, counts, len) in lies {
        let what = format!("{operations} results, {data} bytes, {counts:?}, {len} bytes");
        let (world, session, file) = lied_to();
        world.once(Opcode::Batch, move |header| {
            let mut payload = vec![0; 3 * 16];
            for (bytes, count) in payload.chunks_mut(16).zip(counts) {
                let value = BatchResult::NOT_ENDED;
                BatchResult { status: Status::OK, count, value }.encode(bytes);
            }
            payload.resize(payload.len() + len, 1);
            reply(header, &BatchReply { operations, data }.bytes(), &payload, |_| ())
        });
        let mut memory = Guarded::new();
        let mut batch = session.batch_io();
        for (part, at) in memory.parts().into_iter().zip([0, 100, 200]) {
            batch.read_at(&file, part, at);
        }
        let error = batch.run().map(|outcomes| outcomes.into_iter().find_map(Result::err));
        drop(batch);
        let error = error.unwrap_or_else(Some).expect("it is no reply to this");
        assert_ended(&session, &error, &what);
        memory.assert_kept(&what);
        assert_eq!(world.count(Opcode::Batch), 1, "{what}");
    }
}

// [WIRE-139] [CLI-129] Entries that are longer than their names, and more than there are.
#[test]
fn directory_answered_with_what_are_no_entries_ends_the_session() {
    let (world, session, _) = lied_to();
    let export = session.mount("data").unwrap();
    world.hook(|header| match header.opcode {
        Opcode::Readdir => reply(header, &[0; 16], &[0xff; 64], |_| ()),
        _ => Action::Serve,
    });
    let error = export.read_dir("", true).and_then(|mut entries| entries.next().expect("an answer"));
    assert_ended(&session, &error.unwrap_err(), "entries");
}

// [CLI-69]
#[test]
fn read_of_which_a_piece_comes_short_counts_what_lies_before_it() {
    let world = ScriptedWorld::new(5);
    let config = Config { method: MethodOverride::Inline, ..ScriptedWorld::config() };
    let session = world.connect(&config).unwrap();
    let len = 3 * session.agreed().read_inline_max as usize;
    world.put("f", &vec![1; len]);
    let file = session.mount("data").unwrap().open("f").unwrap();
    world.once(Opcode::Read, |header| reply(header, &read_reply(5), &[2; 5], |_| ()));
    let mut memory = vec![0; len];
    assert_eq!(file.read_at(&mut memory, 0).unwrap(), 5);
    assert_eq!(memory[..5], [2; 5]);
}

// [WIRE-139]
#[test]
fn replies_that_cannot_be_end_the_session() {
    type Make = fn(&Header) -> Action;
    let cases: [(&str, Make); 9] = [
        ("empty body", |h| reply(h, &[], &[], |_| ())),
        ("long body", |h| reply(h, &[0; 9], &[], |_| ())),
        ("end of file 2", |h| reply(h, &[0, 0, 0, 0, 2, 0, 0, 0], &[], |_| ())),
        ("another slot", |h| reply(h, &read_reply(0), &[], |r| r.slot = Slot(7))),
        ("a slot that is not", |h| reply(h, &read_reply(0), &[], |r| r.slot = Slot(u32::MAX))),
        ("another sequence", |h| reply(h, &read_reply(0), &[], |r| r.sequence += 1)),
        ("another opcode", |h| reply(h, &read_reply(0), &[], |r| r.opcode = Opcode::Write)),
        ("no credits", |h| reply(h, &read_reply(0), &[], |r| r.credits = 0)),
        ("a request", |h| reply(h, &read_reply(0), &[], |r| r.flags = Flags::empty())),
    ];
    for (name, make) in cases {
        let error = read_answered(make);
        assert!(matches!(error, Error::Peer(_)), "{name}: {error}");
        assert_eq!(error.errno(), 71, "EPROTO for {name}");
    }
}

// [WIRE-139]
#[test]
fn head_cut_anywhere_ends_the_session() {
    for len in 1..HEADER_SIZE + 8 {
        let error = read_answered(move |header| match reply(header, &read_reply(0), &[], |_| ()) {
            Action::Say(head, payload) => Action::Say(head[..len].to_vec(), payload),
            other => other,
        });
        assert!(matches!(error, Error::Peer(_)), "{len} bytes: {error}");
    }
}

// [CLI-129]
#[test]
fn attributes_that_do_not_decode_are_an_error_and_not_a_panic() {
    let world = ScriptedWorld::new(2);
    let session = world.session();
    let export = session.mount("data").unwrap();
    world.hook(|header| match header.opcode {
        Opcode::Getattr => reply(header, &[], &[0xdd, 0xff, 0xff, 0xff, 0xff, 1], |_| ()),
        _ => Action::Serve,
    });
    assert!(matches!(export.metadata(""), Err(Error::Peer(_))));
}

// [WIRE-28]
#[test]
fn notice_of_a_later_version_is_ignored() {
    let world = ScriptedWorld::new(5);
    let operation_timeout = Some(Duration::from_millis(200));
    let session = world.connect(&Config { operation_timeout, ..ScriptedWorld::config() }).unwrap();
    let export = session.mount("data").unwrap();
    world.once(Opcode::Getattr, |_| {
        let words = b"something new";
        let notice = Header { payload_len: words.len() as u32, ..Header::callback(Opcode::Notice, 1) };
        let mut head = vec![0; HEADER_SIZE];
        Header { head_len: HEADER_SIZE as u16 + 4, ..notice }.encode(&mut head);
        head.extend(77u32.to_le_bytes());
        Action::Say(head, words.to_vec())
    });
    let unanswered = export.metadata("");
    assert!(matches!(unanswered, Err(Error::TimedOut { .. })), "{unanswered:?}");
    session.ping().unwrap();
    assert_eq!((session.reconnects(), session.is_draining()), (0, false));
}

#[test]
fn directory_without_entries_and_without_end_is_not_read_for_ever() {
    let world = ScriptedWorld::new(3);
    let session = world.session();
    let export = session.mount("data").unwrap();
    world.hook(|header| match header.opcode {
        Opcode::Readdir => reply(header, &[0; 16], &[], |_| ()),
        _ => Action::Serve,
    });
    assert_eq!(export.read_dir("", true).unwrap().count(), 0);
}

// [ERR-4]
#[test]
fn status_of_a_later_version_reaches_the_caller_with_the_servers_words() {
    let world = ScriptedWorld::new(4);
    let session = world.session();
    let export = session.mount("data").unwrap();
    world.hook(|header| match header.opcode {
        Opcode::Getattr => reply(header, &[], &vec![b'x'; 4000], |r| r.status = Status::from_value(0x7777)),
        _ => Action::Serve,
    });
    let Err(Error::Status { status, path, explanation, .. }) = export.metadata("a/b") else { panic!() };
    assert_eq!((status.value(), &path[..], explanation.len()), (0x7777, &b"a/b"[..], 512));
}
