//! Requests about names and handles that are sent again: executed once, whatever another client has done to the names since.

use dafs_client::{Export, XattrSetMode};
use dafs_proto::wire::{
    Class, Existing, FileHandle, Flags, HEADER_SIZE, Header, MknodRequest, NameRequest, NodeKind, Opcode,
    OpenFlags, OpenRequest, RemoveRequest, RenameRequest, Resume, ShareRequest, Status, TwoNames, XattrNames,
};
use dafs_tests::harness::{Harness, On, workers};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::raw::{Message, Raw, introduction, request};
use dafs_tests::suite::EXPORTS;

use crate::replays;

on_each_provider_and_three_workers! {
    resent_request_leaves_a_name_changed_by_another,
}

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const ATTRIBUTE: &str = "user.a";

/// A request's opcode, handle, body and payload, and how another client takes it back.
type Row = (Opcode, FileHandle, Vec<u8>, Vec<u8>, fn(&Export));

/// A request, and how another client takes back what it has done.
struct Case {
    header: Header,
    body: Vec<u8>,
    payload: Vec<u8>,
    undo: fn(&Export),
}

fn body_of<const SIZE: usize>(encode: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut body = vec![0; SIZE];
    encode(&mut body);
    body
}

fn name_body(mode: u32) -> Vec<u8> {
    body_of::<{ NameRequest::HEAD_SIZE - HEADER_SIZE }>(|body| {
        NameRequest { follow: false, mode }.encode(body);
    })
}

fn two_names(first: &[u8], second: &[u8]) -> Vec<u8> {
    let names = TwoNames { first, second };
    let mut payload = vec![0; names.size()];
    names.encode(&mut payload);
    payload
}

fn attribute(value: &[u8]) -> Vec<u8> {
    let names = XattrNames { path: b"f", name: ATTRIBUTE.as_bytes(), value };
    let mut payload = vec![0; names.size()];
    names.encode(&mut payload);
    payload
}

fn set(root: &Export, value: &[u8]) {
    root.set_xattr("f", ATTRIBUTE, value, XattrSetMode::Any).unwrap();
}

/// The files that the requests are about, as they are when each begins.
fn prepare(root: &Export) {
    for name in ["f", "gone"] {
        drop(root.create(name).unwrap());
    }
    for name in ["made", "moved", "linked", "link", "fifo"] {
        let _ = root.remove_file(name);
    }
    let _ = root.remove_dir("directory");
    set(root, b"before");
}

/// One request of each opcode that changes names or makes and takes handles.
fn cases(raw: &mut Raw, export: &str, root: FileHandle, file: FileHandle) -> Vec<Case> {
    let remove = body_of::<{ RemoveRequest::HEAD_SIZE - HEADER_SIZE }>(|body| {
        RemoveRequest { directory: false }.encode(body);
    });
    let rename = body_of::<{ RenameRequest::HEAD_SIZE - HEADER_SIZE }>(|body| {
        RenameRequest { second_handle: root.0, replace: Existing::Kept }.encode(body);
    });
    let fifo = body_of::<{ MknodRequest::HEAD_SIZE - HEADER_SIZE }>(|body| {
        MknodRequest { kind: NodeKind::Fifo, mode: 0o600, device: 0 }.encode(body);
    });
    let open = body_of::<{ OpenRequest::HEAD_SIZE - HEADER_SIZE }>(|body| {
        OpenRequest { flags: BOTH | OpenFlags::CREATE, mode: 0o644 }.encode(body);
    });
    let share = body_of::<{ ShareRequest::HEAD_SIZE - HEADER_SIZE }>(|body| {
        ShareRequest { rights: BOTH, ttl_ms: 0 }.encode(body);
    });
    let token = raw.call(Header::request(Opcode::Share, file), &share, &[]).payload;
    let nothing: fn(&Export) = |_| {};
    let cases: Vec<Row> = vec![
        (Opcode::Mkdir, root, name_body(0o755), b"directory".into(), |root| {
            root.remove_dir("directory").unwrap()
        }),
        (Opcode::Mknod, root, fifo, b"fifo".into(), |root| root.remove_file("fifo").unwrap()),
        (Opcode::Remove, root, remove, b"gone".into(), |root| drop(root.create("gone").unwrap())),
        (Opcode::Rename, root, rename.clone(), two_names(b"gone", b"moved"), |root| {
            root.rename("moved", root, "gone", false).unwrap();
        }),
        (Opcode::Link, root, rename, two_names(b"gone", b"linked"), |root| {
            root.remove_file("linked").unwrap()
        }),
        (Opcode::Symlink, root, name_body(0), two_names(b"gone", b"link"), |root| {
            root.remove_file("link").unwrap()
        }),
        (Opcode::XattrWrite, root, name_body(0), attribute(b"first"), |root| set(root, b"second")),
        (Opcode::XattrRemove, root, name_body(0), attribute(b""), |root| set(root, b"second")),
        (Opcode::Open, root, open, b"made".into(), |root| root.remove_file("made").unwrap()),
        (Opcode::Lookup, root, name_body(0), b"gone".into(), |root| root.remove_file("gone").unwrap()),
        (Opcode::Mount, FileHandle(0), Vec::new(), export.into(), nothing),
        (Opcode::Share, file, share, Vec::new(), nothing),
        (Opcode::OpenToken, root, Vec::new(), token, nothing),
        (Opcode::Close, file, Vec::new(), Vec::new(), nothing),
    ];
    let case = |(opcode, handle, body, payload, undo)| Case {
        header: Header::request(opcode, handle),
        body,
        payload,
        undo,
    };
    cases.into_iter().map(case).collect()
}

/// Names and the attribute.
fn state(root: &Export) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
    let mut names: Vec<_> = root.entries(false).map(|entry| entry.unwrap().name).collect();
    names.sort();
    (names, root.xattr("f", ATTRIBUTE).ok())
}

// [SESS-14] [WIRE-15] [WIRE-18]
fn resent_request_leaves_a_name_changed_by_another(on: On) {
    let harness = Harness::start(on);
    let other = harness.session();
    for export in EXPORTS {
        let root_of_other = other.mount(export).unwrap();
        let mut tried = replays::opcodes(&Raw::connect(harness.address()));
        for number in 0.. {
            prepare(&root_of_other);
            let (mut raw, welcome) = Raw::session(harness.address(), 16);
            let root = raw.mount(export);
            let file = raw.create(root, b"f");
            let mut cases = cases(&mut raw, export, root, file);
            if number == cases.len() {
                break;
            }
            let Case { mut header, body, payload, undo } = cases.swap_remove(number);
            let what = format!("{export}: {:?}", header.opcode);
            tried.push(header.opcode);
            raw.begin(&mut header);
            let told = |Message { header, body, payload }: Message| {
                (header.opcode, header.status, header.handle, body, payload)
            };
            let first = told(raw.ask(header, &body, &payload));
            assert_eq!((first.0, first.1), (header.opcode, Status::OK), "{what}");
            let done = state(&root_of_other);
            undo(&root_of_other);
            let handles = other.statistics().unwrap().handles;
            let expected = state(&root_of_other);
            drop(raw);
            let mut raw = Raw::connect(harness.address());
            let resume = Resume { session: welcome.session, secret: welcome.secret };
            assert!(raw.shake(&introduction(harness.address(), 16, Some(resume))).unwrap().resumed);
            let again = Header { flags: Flags::REPLAY, ..header };
            assert_eq!(told(raw.ask(again, &body, &payload)), first, "{what}");
            assert_eq!(state(&root_of_other), expected, "{what}: {done:?} was done");
            // Those of another worker are some time old.
            assert!(workers() > 1 || other.statistics().unwrap().handles == handles, "{what}");
            // Else it would keep its handles for its lease.
            raw.ask(request(Opcode::Bye, 9, 1), &[], &[]);
        }
        let must_be_kept = |opcode: &&Opcode| matches!(opcode.class(), Class::Modify | Class::Handle);
        for opcode in Opcode::ALL.iter().filter(must_be_kept) {
            assert!(opcode.keeps_reply(), "{opcode:?}");
            assert!(tried.contains(opcode), "{opcode:?} is not sent again");
        }
    }
}
