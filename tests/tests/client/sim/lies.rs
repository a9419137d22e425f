//! A server that lies: the session ends with an error that says what was wrong, and nothing panics or is written
//! outside the caller's memory.

use std::time::Duration;

use dafs_client::{Config, Error, MethodOverride, Opcode, Status};
use dafs_proto::wire::{Flags, HEADER_SIZE, Header, ReadReply, Slot};
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

// [CLI-40] [CLI-128]
#[test]
fn read_answered_with_more_than_was_asked_ends_the_session() {
    for (count, payload) in [(9u32, 9usize), (8, 9), (9, 8), (4, 8), (8, 0), (u32::MAX, 8), (0, 1)] {
        let error = read_answered(move |header| reply(header, &read_reply(count), &vec![1; payload], |_| ()));
        assert!(matches!(error, Error::Peer(_)), "{count} {payload}: {error}");
    }
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

// [CLI-40]
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

// [CLI-40]
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
