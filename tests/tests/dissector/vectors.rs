//! The golden bytes: every byte has a name, and nothing is remarked. Of bytes that are refused something is.

use dafs_tests::cut::Way;

use crate::capture::{Capture, PORT, Segment};
use crate::tshark::{ERROR, Item, NOTE, WARNING, dissect};

const MESSAGES: &str = include_str!("../../../spec/vectors/messages.txt");
const REFUSED: &str = include_str!("../../../spec/vectors/refused.txt");
const SESSION: &str = include_str!("../../../spec/vectors/session.txt");
const SECOND_SESSION: &str = include_str!("../../../spec/vectors/session-2.txt");
const TCP: &str = include_str!("../../../spec/vectors/tcp.txt");

const FIRST_CLIENT: u16 = 20_000;
const HEADER_SIZE: usize = 40;
const FRAME_HEADER_SIZE: usize = 32;

/// Bytes that one side sends after both hellos.
struct Vector {
    name: String,
    way: Way,
    bytes: Vec<u8>,
}

impl Vector {
    /// A message, by the transport.
    fn message(name: &str, head: &[u8], payload: &[u8]) -> Self {
        let is_from_server = head[2] & 0x11 != 0;
        let way = if is_from_server { Way::ToClient } else { Way::ToServer };
        Self { name: name.to_owned(), way, bytes: send(head, payload) }
    }
}

/// A SEND frame.
pub(crate) fn send(head: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; FRAME_HEADER_SIZE];
    frame[0] = 1;
    frame[2..4].copy_from_slice(&(head.len() as u16).to_le_bytes());
    frame[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    [&frame, head, payload].concat()
}

/// `NAME: HEX` lines of a file.
fn named_bytes(text: &'static str) -> Vec<(&'static str, Vec<u8>)> {
    let named = |line: &'static str| {
        let (name, digits) = line.split_once(": ")?;
        Some((name, bytes_of(digits)?))
    };
    text.lines().filter_map(named).collect()
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b' ').collect();
    let is_hex =
        !digits.is_empty() && digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit);
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    is_hex.then(|| digits.chunks(2).map(pair).collect())
}

pub(crate) fn hello() -> Vec<u8> {
    named_bytes(TCP).into_iter().find(|(name, _)| *name == "hello").expect("a golden hello").1
}

/// Each vector on a connection of its own; the last packet of each.
fn dissect_each(vectors: &[Vector], has_hellos: bool) -> Vec<Item> {
    let mut capture = Capture::new(PORT);
    for (client, vector) in (FIRST_CLIENT..).zip(vectors) {
        let mut push = |way, bytes| capture.push(&Segment { client, way, bytes });
        if has_hellos {
            push(Way::ToServer, hello());
            push(Way::ToClient, hello());
        }
        push(vector.way, vector.bytes.clone());
    }
    let mut last: Vec<Option<Item>> = vectors.iter().map(|_| None).collect();
    for packet in dissect(&capture) {
        let ports = [packet.number("tcp.srcport"), packet.number("tcp.dstport")];
        let client = ports.into_iter().find(|port| *port != u64::from(PORT)).expect("a client's port");
        last[client as usize - usize::from(FIRST_CLIENT)] = Some(packet);
    }
    last.into_iter().map(|packet| packet.expect("a packet of each connection")).collect()
}

fn golden_messages() -> Vec<Vector> {
    let lines = named_bytes(MESSAGES);
    let find = |name: &str| lines.iter().find(|(other, _)| *other == name).map(|(_, bytes)| bytes.clone());
    let heads = lines.iter().filter(|(name, _)| !name.ends_with("payload"));
    let message = |(name, head): &(&str, Vec<u8>)| {
        let len = u32::from_le_bytes(head[16..20].try_into().unwrap()) as usize;
        let own = find(&format!("{name} payload"));
        let other = name.ends_with("request").then(|| find(&name.replace("request", "payload"))).flatten();
        // Data and paths that the file leaves to the reader.
        let payload = own.or(other).filter(|_| len > 0).unwrap_or_else(|| vec![b'a'; len]);
        assert_eq!(payload.len(), len, "{name}");
        Vector::message(name, head, &payload)
    };
    heads.map(message).collect()
}

#[test]
#[ignore = "needs tshark"]
fn golden_messages_are_named_to_the_last_byte_and_nothing_is_remarked() {
    let vectors = golden_messages();
    assert!(vectors.len() > 80, "{} messages", vectors.len());
    for (vector, packet) in vectors.iter().zip(dissect_each(&vectors, true)) {
        let name = &vector.name;
        assert_eq!(packet.unnamed(vector.bytes.len()), Default::default(), "{name}: {}", packet.lines());
        assert_eq!(packet.remarks(WARNING), [], "{name}");
        assert_eq!(packet.messages().len(), 1, "{name}");
        let has_failed = packet.number("dafs.status") != 0;
        let remarks = packet.remarks(NOTE);
        assert_eq!(remarks.len(), usize::from(has_failed), "{name}: {remarks:?} {}", packet.lines());
    }
}

#[test]
#[ignore = "needs tshark"]
fn golden_messages_have_the_values_that_the_page_says() {
    #[rustfmt::skip]
    let expected = [
        ("read direct request", "Read f=0x100000002 64 KiB at 4,096 direct", "dafs.read_request.offset", "4096"),
        ("write inline request", "Write f=0x100000002 3 bytes at 7 inline", "dafs.write_request.stability", "2"),
        ("write inline request", "Write f=0x100000002 3 bytes at 7 inline", "dafs.deadline_ms", "250"),
        ("error reply", "Open reply NOT_FOUND", "dafs.status", "2"),
        ("share reply", "Share reply", "dafs.share_reply.ttl_ms", "5000"),
        ("hello request", "Hello \"cp (77)\"", "dafs.hello.client_id", "101112131415161718191a1b1c1d1e1f"),
        ("hello request", "Hello \"cp (77)\"", "dafs.resume.session", "0x0123456789abcdef"),
        ("authenticate reply", "Authenticate reply", "dafs.welcome.keep_alive_ms", "10000"),
        ("lookup reply", "Lookup reply f=0x300000004", "dafs.attributes.kind", "File"),
        ("setattr request", "Setattr f=0x100000002 \"d/f\"", "dafs.set_attributes.mtime", "At"),
        ("setattr request", "Setattr f=0x100000002 \"d/f\"", "dafs.timestamp.seconds", "-1"),
        ("rename request", "Rename f=0x100000002 \"old/\u{fffd}\" \"new\"", "dafs.second_path", "new"),
        ("symlink request", "Symlink f=0x100000002 \"d/f\" \"s\"", "dafs.target", "d/f"),
        ("xattr write request", "XattrWrite f=0x100000002 \"d/f\" \"user.a\"", "dafs.xattr.value", "76"),
        ("xattr list reply", "XattrList reply", "dafs.xattr.name", "user.a"),
        ("seek request", "Seek f=0x100000002 hole from 4,096", "dafs.seek_request.what", "1"),
        ("hint request", "Hint f=0x100000002 8 KiB at 4,096", "dafs.hint_request.pattern", "3"),
        ("hint once request", "Hint f=0x100000002 from 0", "dafs.hint_request.likelihood", "75"),
        ("copy request", "CopyRange f=0x100000002 8 KiB of f=0x300000004 at 4,096 to 65,536", "dafs.copy_request.offset", "65536"),
        ("verify differ request", "Verify f=0x100000002 \"\" to differ in CHANGE", "dafs.verify_request.change", "11"),
        ("lock request", "Lock f=0x100000002 exclusive 7 bytes at 5", "dafs.lock_request.flags", "0x0003"),
        ("unlock request", "Unlock f=0x100000002 from 5", "dafs.unlock_request.owner", "9"),
        ("lock test reply", "LockTest reply", "dafs.lock_test_reply.client_id", "00:01:02:03:04:05:06:07:08:09:0a:0b:0c:0d:0e:0f"),
        ("lock turn callback", "LockTurn 7 bytes at 5", "dafs.lock_turn.owner", "9"),
        ("statfs reply", "Statfs reply", "dafs.fs_statistics.name_size_max", "255"),
        ("batch notice", "BatchDone 1 result of slot 3", "dafs.noticed_result.place", "1"),
        ("explained list read request", "ReadList f=0x100000002 8 bytes in 2 extents inline", "dafs.list_request.flags.explain", "1"),
        ("explained list read reply", "ReadList reply 7 bytes, end of file", "dafs.explanation.gap_max", "1600"),
        ("explained list read reply", "ReadList reply 7 bytes, end of file", "dafs.data", "65:78:70:6c:61:69:6e"),
        ("explained view write request", "WriteView f=0x100000002 8 bytes at place 16 of view 7 direct", "dafs.view_request.flags", "0x01"),
        ("explained view write reply", "WriteView reply 8 bytes", "dafs.explanation.measured_ns", "51000"),
        ("notice callback", "Notice draining", "dafs.words", "the server is shutting down"),
        ("credit target callback", "CreditTarget 32 credits", "dafs.credits", "32"),
    ];
    let vectors = golden_messages();
    let packets = dissect_each(&vectors, true);
    for (name, title, field, value) in expected {
        let place = vectors.iter().position(|vector| vector.name == name).expect("a golden message");
        assert_eq!(packets[place].messages()[0].text, format!("Message: {title}"), "{name}");
        assert_eq!(packets[place].value(field), value, "{name}");
    }
    let place = |name: &str| vectors.iter().position(|vector| vector.name == name).expect("a golden message");
    let exports = &packets[place("exports reply")];
    assert_eq!(exports.values("dafs.export"), ["data", "mem"]);
    let entries = &packets[place("readdir reply")];
    assert_eq!(entries.values("dafs.directory_entry.cookie"), ["10", "12"]);
    let extents = &packets[place("list write request")];
    assert_eq!(extents.values("dafs.extent.offset"), ["4096", "16"]);
    let operations = &packets[place("inline batch request")];
    assert_eq!(operations.values("dafs.batch_operation.kind"), ["1", "0", "1"]);
    assert_eq!(operations.values("dafs.data"), ["6f:6e:65", "74:77"]);
}

/// Frames, with a body where the file gives only a header. A header that is refused needs none.
fn frames(is_refused: bool) -> Vec<Vector> {
    let lines = named_bytes(TCP).into_iter().filter_map(|(name, bytes)| {
        let name = if is_refused { name.strip_prefix("refused ")? } else { name };
        let is_frame = ["send", "write", "read", "fault"].iter().any(|kind| name.starts_with(kind));
        is_frame.then_some((name, bytes))
    });
    let vector = |(name, bytes): (&str, Vec<u8>)| {
        let is_header = bytes.len() == FRAME_HEADER_SIZE;
        let bytes = if is_refused && is_header { bytes } else { with_body(bytes) };
        Vector { name: name.to_owned(), way: Way::ToServer, bytes }
    };
    lines.map(vector).collect()
}

fn with_body(mut frame: Vec<u8>) -> Vec<u8> {
    let head = usize::from(u16::from_le_bytes([frame[2], frame[3]]));
    let len = u32::from_le_bytes(frame[4..8].try_into().unwrap()) as usize;
    let ranges = if matches!(frame[0], 6 | 7) { head } else { 0 };
    if frame.len() == FRAME_HEADER_SIZE && ranges > 0 && len > ranges {
        // All but the last are of one byte.
        for index in 0..ranges {
            let length = if index + 1 == ranges { len - index } else { 1 };
            frame.extend([5, 0, length as u64].iter().flat_map(|number| number.to_le_bytes()));
        }
    }
    let size = FRAME_HEADER_SIZE
        + match frame[0] {
            1 => head + len,
            2 | 4 => len,
            6 => 24 * head + len,
            7 => 24 * head,
            _ => 0,
        };
    frame.resize(size.max(frame.len()), 0);
    frame
}

#[test]
#[ignore = "needs tshark"]
fn golden_frames_are_named_to_the_last_byte_and_none_is_malformed() {
    // 16 MiB of data are in no one packet; what they look like is tested with less.
    let vectors: Vec<Vector> =
        frames(false).into_iter().filter(|vector| vector.bytes.len() < 60_000).collect();
    assert!(vectors.len() >= 14, "{} frames", vectors.len());
    for (vector, packet) in vectors.iter().zip(dissect_each(&vectors, true)) {
        let name = &vector.name;
        // The file's messages are any bytes: the protocol has remarks about them, the transport has none.
        assert_eq!(packet.values("dafs.malformed_frame"), [""; 0], "{name}: {}", packet.lines());
        let header = packet.unnamed(FRAME_HEADER_SIZE);
        assert_eq!(header, Default::default(), "{name}: {}", packet.lines());
        if !name.starts_with("send") {
            assert_eq!(packet.unnamed(vector.bytes.len()), Default::default(), "{name}: {}", packet.lines());
            assert_eq!(packet.remarks(ERROR), [], "{name}");
        }
    }
}

#[test]
#[ignore = "needs tshark"]
fn frames_that_are_refused_are_remarked() {
    let vectors = frames(true);
    assert!(vectors.len() > 25, "{} frames", vectors.len());
    for (vector, packet) in vectors.iter().zip(dissect_each(&vectors, true)) {
        assert_ne!(packet.remarks(ERROR), [], "{}: {}", vector.name, packet.lines());
    }
}

#[test]
#[ignore = "needs tshark"]
fn hellos_are_named_and_those_that_are_refused_are_remarked() {
    let lines = named_bytes(TCP).into_iter();
    let hellos = lines.filter(|(name, _)| name.trim_start_matches("refused ").starts_with("hello"));
    let vectors: Vec<Vector> =
        hellos.map(|(name, bytes)| Vector { name: name.to_owned(), way: Way::ToServer, bytes }).collect();
    assert!(vectors.len() > 10, "{} hellos", vectors.len());
    for (vector, packet) in vectors.iter().zip(dissect_each(&vectors, false)) {
        let name = &vector.name;
        if !name.starts_with("refused") {
            assert_eq!(packet.unnamed(32), Default::default(), "{name}: {}", packet.lines());
            assert_eq!(packet.remarks(NOTE), [], "{name}");
        } else if vector.bytes.len() < 32 {
            // The rest may follow.
            assert_eq!(packet.titles(), [""; 0], "{name}");
        } else {
            assert_ne!(packet.remarks(NOTE), [], "{name}: {}", packet.lines());
        }
    }
}

/// A message that is refused, or answered INVALID.
struct Refused {
    vector: Vector,
    is_answered: bool,
}

fn refused() -> Vec<Refused> {
    let paragraphs = REFUSED.split("\n\n").filter_map(|paragraph| {
        let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name));
        let (head, payload) = (bytes_of(field("head: ")?)?, field("payload: ").and_then(bytes_of));
        let name = paragraph.trim_start().lines().next()?;
        let vector = Vector::message(name, &head, &payload.unwrap_or_default());
        Some(Refused { vector, is_answered: field("answered: ").is_some() })
    });
    paragraphs.collect()
}

#[test]
#[ignore = "needs tshark"]
fn messages_that_are_refused_are_remarked() {
    let refused = refused();
    assert!(refused.len() > 120, "{} messages", refused.len());
    let (vectors, is_answered): (Vec<Vector>, Vec<bool>) =
        refused.into_iter().map(|refused| (refused.vector, refused.is_answered)).unzip();
    for ((vector, is_answered), packet) in vectors.iter().zip(is_answered).zip(dissect_each(&vectors, true)) {
        let severity = if is_answered { WARNING } else { ERROR };
        assert_ne!(packet.remarks(severity), [], "{}: {}", vector.name, packet.lines());
    }
}

/// The first session: a segment for each hello and each message.
pub(crate) fn golden_session() -> Vec<Segment> {
    segments_of(SESSION)
}

/// A segment for each hello and each frame. A hello of the client begins a connection.
fn segments_of(session: &'static str) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut client = FIRST_CLIENT - 1;
    for (name, bytes) in named_bytes(session) {
        let (side, what) = name.split_once(' ').expect("a side and a name");
        if what.contains("proof") {
            continue;
        }
        let way = if side == "client" { Way::ToServer } else { Way::ToClient };
        client += u16::from(way == Way::ToServer && what.ends_with("hello"));
        if what.ends_with("hello") || what.ends_with("frame") {
            segments.push(Segment { client, way, bytes });
        } else {
            segments.last_mut().expect("a frame begins with its header").bytes.extend(bytes);
        }
    }
    segments
}

#[test]
#[ignore = "needs tshark"]
fn golden_session_is_named_and_each_reply_has_its_request() {
    let segments = golden_session();
    let packets = dissect(&Capture::of(PORT, &segments));
    assert_eq!(packets.len(), segments.len());
    let mut requests = 0;
    for ((segment, packet), number) in segments.iter().zip(&packets).zip(1..) {
        assert_eq!(packet.unnamed(segment.bytes.len()), Default::default(), "{}", packet.lines());
        assert_eq!(packet.remarks(NOTE), [], "{}", packet.lines());
        if segment.way == Way::ToServer && segment.bytes.len() > HEADER_SIZE {
            // The server's answer is the next packet.
            assert_eq!(packet.number("dafs.reply_in"), number + 1, "{}", packet.lines());
            assert_eq!(packets[number as usize].number("dafs.request_in"), number);
            requests += 1;
        }
    }
    assert_eq!(requests, 6);
    let read = packets.iter().find(|packet| packet.titles().iter().any(|title| title.contains("Read f=")));
    assert_eq!(read.expect("a read").value("dafs.file"), "hello.txt");
}

#[test]
#[ignore = "needs tshark"]
fn second_golden_session_is_named_on_both_connections() {
    let segments = segments_of(SECOND_SESSION);
    let packets = dissect(&Capture::of(PORT, &segments));
    assert_eq!(packets.len(), segments.len());
    for (segment, packet) in segments.iter().zip(&packets) {
        assert_eq!(packet.unnamed(segment.bytes.len()), Default::default(), "{}", packet.lines());
        assert_eq!(packet.remarks(WARNING), [], "{}", packet.lines());
    }
    let connections: Vec<u16> = segments.iter().map(|segment| segment.client).collect();
    assert_eq!((connections[0], connections[connections.len() - 1]), (FIRST_CLIENT, FIRST_CLIENT + 1));
    let titles: Vec<&str> = packets.iter().flat_map(Item::titles).collect();
    for (word, count) in [
        ("Append", 3),
        ("LockTurn", 1),
        ("Lock ", 6),
        ("RDMA write list 11 bytes in 2 ranges for ReadList", 1),
    ] {
        let found = titles.iter().filter(|title| title.contains(word)).count();
        assert_eq!(found, count, "{word}: {titles:#?}");
    }
}
