//! Decoders of single values. What decodes must encode to the same bytes again, so that no two messages mean the same
//! and none is half understood.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use dafs_proto::address::{ListenUrl, Url};
use dafs_proto::extent::{Extent, OFFSET_MAX, total};
use dafs_proto::session::{format_key_line, parse_key_file};
use dafs_proto::transport::tcp::frame;
use dafs_proto::view::View;
use dafs_proto::wire::{
    AllocateRequest, Attributes, Authenticate, AuthenticateReply, BATCH_RESULT_SIZE, BatchLimits,
    BatchNotice, BatchOperation, BatchReply, BatchRequest, CommitReply, CommitRequest, CopyReply,
    CopyRequest, EagerBufferTerms, Explanation, FenceList, FsStatistics, HEADER_SIZE, Header, Hello,
    HelloReply, HintRequest, LimitsReply, ListReadReply, ListRequest, LockRequest, LockTestReply, LockTurn,
    MknodRequest, MountReply, NameRequest, OpenRequest, ReadReply, ReadRequest, ReaddirReply, ReaddirRequest,
    Recall, RemoveRequest, RenameRequest, SEGMENTS_MAX, SeekReply, SeekRequest, SetAttributes, ShareReply,
    ShareRequest, Statistics, Token, TwoNames, UnlockRequest, VerifyRequest, ViewDropRequest, ViewRequest,
    ViewSetRequest, Welcome, WireError, WriteReply, WriteRequest, XattrNames, decode_batch,
    decode_batch_results, decode_datatype, decode_dir_entries, decode_lists, decode_message_pack,
    decode_noticed_results, decode_segments, encode_datatype, encode_dir_entry, encode_lists,
    encode_message_pack, encode_noticed_result, encode_segments, lists_size,
};
use dafs_server::access::{AddressRange, Keyring};
use dafs_server::cli::Settings;
use dafs_server::config::{Config, Environment};

use super::input::Input;

/// A message header and whatever body follows it. The length of the payload is taken from the header, so that more
/// than the length check is reached.
pub fn header(data: &[u8]) {
    let payload_len = data.get(16..20).map_or(0, |len| u32::from_le_bytes(len.try_into().expect("4 bytes")));
    if let Ok((header, body)) = Header::decode(data, payload_len) {
        let mut again = [0; HEADER_SIZE];
        header.encode(&mut again);
        assert_eq!(again, data[..HEADER_SIZE]);
        assert_eq!(body, &data[HEADER_SIZE..]);
    }
    assert!(Header::decode(data, payload_len ^ 1).is_err());
}

macro_rules! bodies {
    ($($kind:ident),* $(,)?) => {
        /// The names of what [`bodies`] decodes, in the order of its first byte.
        pub const BODIES: &[&str] = &[$(stringify!($kind)),*];

        /// Fixed-layout bodies: the first byte says of which kind.
        pub fn bodies(data: &[u8]) {
            const DECODERS: &[fn(&[u8])] =
                &[$(|body| round_trip(body, <$kind>::decode(body), |value, out| value.encode(out))),*];
            let Some((kind, body)) = data.split_first() else { return };
            DECODERS[usize::from(*kind) % DECODERS.len()](body);
        }
    };
}

// Inputs of the corpus begin with a number in this list.
bodies! {
    OpenRequest, MknodRequest, NameRequest, RemoveRequest, ReaddirRequest, ReaddirReply, AllocateRequest, SeekRequest, SeekReply,
    HintRequest, RenameRequest, ReadRequest, ReadReply, WriteRequest, WriteReply, CommitRequest, CommitReply,
    ListRequest, ListReadReply, BatchRequest, BatchReply, BatchNotice, ShareRequest, ShareReply, ViewSetRequest,
    ViewDropRequest, ViewRequest, Explanation, LockRequest, UnlockRequest, LockTestReply, LockTurn, CopyRequest,
    CopyReply, VerifyRequest, EagerBufferTerms, Recall,
}

fn round_trip<T>(body: &[u8], decoded: Result<T, WireError>, encode: impl FnOnce(&T, &mut [u8])) {
    if let Ok(value) = decoded {
        let mut again = vec![0; body.len()];
        encode(&value, &mut again);
        assert_eq!(again, body);
    }
}

/// Two paths, the names of an extended attribute, and a token.
pub fn names(data: &[u8]) {
    if let Ok(names) = TwoNames::decode(data) {
        let mut again = vec![0; names.size()];
        names.encode(&mut again);
        assert_eq!(again, data);
    }
    if let Ok(names) = XattrNames::decode(data) {
        let mut again = vec![0; names.size()];
        names.encode(&mut again);
        assert_eq!(again, data);
    }
    if let Ok(token) = Token::decode(data) {
        assert_eq!(token.as_bytes(), data);
    }
}

/// Entries of a directory.
pub fn dir_entries(data: &[u8]) {
    if let Ok(entries) = decode_dir_entries(data) {
        let mut again = Vec::new();
        entries.iter().for_each(|entry| encode_dir_entry(entry, &mut again));
        assert_eq!(decode_dir_entries(&again).expect("our own entries"), entries);
    }
}

/// MessagePack bodies: the first byte says of which kind.
pub fn message_pack(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else { return };
    macro_rules! kinds {
        ($($number:literal => $kind:ty),* $(,)?) => {
            match kind % 14 {
                $($number => {
                    if let Ok(value) = decode_message_pack::<$kind>("fuzzed", body) {
                        let again = encode_message_pack(&value);
                        let read = decode_message_pack::<$kind>("fuzzed", &again).expect("our own body");
                        assert_eq!(read, value);
                    }
                })*
                _ => {}
            }
        };
    }
    kinds! {
        0 => Hello, 1 => HelloReply, 2 => Authenticate, 3 => AuthenticateReply, 4 => Welcome, 5 => MountReply,
        6 => LimitsReply, 7 => Statistics, 8 => Attributes, 9 => SetAttributes, 10 => FsStatistics,
        11 => FenceList, 12 => Vec<String>,
    }
}

/// Segments of a direct request; the first two bytes are the count.
pub fn segments(data: &[u8]) {
    let mut input = Input::new(data);
    let count = u16::from_le_bytes([input.byte(), input.byte()]) % (SEGMENTS_MAX as u16 + 1);
    let payload = data.get(2..).unwrap_or_default();
    if let Ok(segments) = decode_segments(payload, count) {
        assert_eq!(segments.len(), usize::from(count));
        let mut again = vec![0; payload.len()];
        encode_segments(&segments, &mut again);
        assert_eq!(again, payload);
    }
}

/// A list request: its body, then its payload.
pub fn lists(data: &[u8]) {
    let Some((body, payload)) = data.split_at_checked(ListRequest::HEAD_SIZE - HEADER_SIZE) else { return };
    let Ok(request) = ListRequest::decode(body) else { return };
    // The data of an inline write is what the lists leave over.
    let described = lists_size(request.extent_count as usize, request.segment_count as usize);
    let inline_len = u32::try_from(payload.len().saturating_sub(described)).unwrap_or(0);
    if let Ok(lists) = decode_lists(payload, &request, inline_len) {
        let mut again = vec![0; described];
        encode_lists(lists.extents.iter().copied(), &lists.segments, &mut again);
        assert_eq!(again, payload[..described]);
        assert_eq!(total(&lists.extents), Some(u64::from(request.len)));
    }
}

/// Segments of a view that are walked.
const SEGMENTS_WALKED_MAX: u64 = 1000;

/// A range of what a view shows (displacement, place, length), then the description of the view.
pub fn views(data: &[u8]) {
    let mut input = Input::new(data);
    let (displacement, place, len) = (input.number(), input.number(), input.number());
    let description = input.take(input.left());
    let Ok(datatype) = decode_datatype(description) else { return };
    assert_eq!(encode_datatype(&datatype), description);
    let Ok(view) = View::new(&datatype) else { return };
    // What is asked for may be refused: walking it is harmless all the same, and what is told is not beyond the edge of any number.
    view.segments(displacement, place, len).take(100).for_each(drop);
    let len = view.fit(place, len, SEGMENTS_WALKED_MAX);
    if view.check(displacement, place, len).is_err() {
        return;
    }
    let segments: Vec<Extent> = view.segments(displacement, place, len).collect();
    assert!(segments.len() as u64 <= SEGMENTS_WALKED_MAX);
    assert_eq!(total(&segments), Some(len));
    let is_inside = |segment: &Extent| segment.end().is_some_and(|end| segment.len > 0 && end <= OFFSET_MAX);
    assert!(segments.iter().all(is_inside));
    assert!(!view.is_ascending() || segments.windows(2).all(|pair| pair[0].end() <= Some(pair[1].offset)));
    // Cut anywhere, it is the same.
    let cut = len / 2;
    let first = view.segments(displacement, place, cut);
    let parts: Vec<Extent> = first.chain(view.segments(displacement, place + cut, len - cut)).collect();
    assert_eq!(joined(&parts), joined(&segments));
}

/// Neighbours in the list that are neighbours in the file become one.
fn joined(extents: &[Extent]) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for extent in extents {
        match joined.last_mut() {
            Some(last) if last.end() == Some(extent.offset) => last.len += extent.len,
            _ => joined.push(*extent),
        }
    }
    joined
}

/// Of a batch that is decoded alone.
const BATCH_LIMITS: BatchLimits = BatchLimits { len_max: u32::MAX, reply_max: 16 << 10 };

/// A batch: its body, then its payload; and what is no batch, read as results.
pub fn batches(data: &[u8]) {
    let Some((body, payload)) = data.split_at_checked(BatchRequest::HEAD_SIZE - HEADER_SIZE) else { return };
    if let Ok(request) = BatchRequest::decode(body)
        && let Ok(described) = request.described_len(payload.len())
        && let Ok(operations) = decode_batch(&payload[..described], &request, &BATCH_LIMITS)
    {
        assert_eq!(operations.len(), request.operations as usize);
        let inline = |write: bool| {
            let own = operations.iter().filter(|operation| operation.is_inline() && operation.write == write);
            own.map(BatchOperation::len).sum::<u64>()
        };
        assert_eq!(inline(true), u64::from(request.data));
        assert!(inline(false) <= BATCH_LIMITS.reply_max as u64);
        let mut again = Vec::new();
        operations.iter().for_each(|operation| operation.encode(&mut again));
        assert_eq!(again, payload[..described]);
    }
    if let Ok(results) = decode_batch_results(payload, payload.len() / BATCH_RESULT_SIZE) {
        let mut again = vec![0; payload.len()];
        let places = again.chunks_mut(BATCH_RESULT_SIZE);
        results.iter().zip(places).for_each(|(result, place)| result.encode(place));
        assert_eq!(again, payload);
    }
    let Some((body, payload)) = data.split_at_checked(BatchNotice::HEAD_SIZE - HEADER_SIZE) else { return };
    if let Ok(notice) = BatchNotice::decode(body)
        && let Ok(results) = decode_noticed_results(payload, &notice, payload.len())
    {
        let mut again = Vec::new();
        for (index, result) in &results {
            encode_noticed_result(u32::try_from(*index).expect("it was of 32 bits"), result, &mut again);
        }
        assert_eq!(again, payload);
    }
}

/// A stream of the tcp transport: a hello, then frames.
pub fn tcp_frames(mut data: &[u8]) {
    if let Some((hello, rest)) = data.split_first_chunk()
        && let Ok(decoded) = frame::Hello::decode(hello)
    {
        assert_eq!(decoded.encode(), *hello);
        data = rest;
    }
    while let Ok(Some((frame, body))) = frame::decode(data) {
        assert_eq!(frame.encode(), data[..frame::HEADER_SIZE]);
        assert!(body.len() as u64 <= frame.body_len());
        if let frame::Frame::WriteList { count, len } | frame::Frame::ReadList { count, len, .. } = frame
            && let Some(bytes) = body.get(..frame::list_size(count))
            && let Ok(ranges) = frame::decode_ranges(bytes, len)
        {
            assert_eq!(ranges.len(), usize::from(count));
            let mut again = frame::FrontBytes::new();
            frame::encode_ranges(&ranges, &mut again);
            assert_eq!(again[..], *bytes);
        }
        data = &data[frame::HEADER_SIZE + body.len()..];
    }
}

/// The private data of an RDMA connection, then a message on it.
#[cfg(feature = "verbs")]
pub fn verbs_messages(data: &[u8]) {
    use dafs_proto::transport::verbs::{HELLO_SIZE, Hello, check_message};
    let payload_max = match Hello::decode(data) {
        Ok(hello) => {
            assert_eq!(hello.encode(), data[..HELLO_SIZE]);
            hello.recv_payload_max as usize
        }
        Err(_) => 8192,
    };
    // An error is an answer; anything but a panic is right.
    let _ = check_message(data.get(HELLO_SIZE..).unwrap_or(data), payload_max);
}

/// A message on the unix socket of the shm transport.
pub fn shm_handshake(data: &[u8]) {
    // An error is an answer; anything but a panic is right.
    let _ = dafs_proto::transport::shm::check_control_message(data);
}

/// Addresses: of servers and files, of listeners, ranges of clients.
pub fn address(data: &[u8]) {
    let text = OsStr::from_bytes(data);
    if let Ok(url) = Url::parse(text) {
        let again = Url::parse(&url.to_os_string()).expect("an address that was printed can be read");
        assert_eq!(again, url);
    }
    let _ = ListenUrl::parse(text);
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(range) = text.parse::<AddressRange>()
    {
        assert_eq!(range.to_string().parse::<AddressRange>().as_ref(), Ok(&range));
    }
}

/// Key files, of clients and of servers.
pub fn key_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(lines) = parse_key_file(text) {
        for line in lines {
            let again = parse_key_file(&format_key_line(&line.key)).expect("our own line");
            assert_eq!(again[0].key.name, line.key.name);
            assert_eq!(again[0].key.secret, line.key.secret);
        }
    }
    let _ = Keyring::parse(text, Path::new("keys"));
}

/// The server's settings file, up to a checked configuration.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(settings) = Settings::from_toml(text, "fuzzed")
        && settings.listen.is_empty()
        && settings.metrics.is_none()
        && settings.key_file.is_none()
    {
        // Addresses and key files are left out: host names would be looked up and any file opened.
        let _ = Config::from_settings(settings, environment());
    }
}

/// One `--export` flag.
pub fn export_flag(data: &[u8]) {
    let settings = Settings { exports: vec![OsStr::from_bytes(data).to_owned()], ..Settings::default() };
    let _ = Config::from_settings(settings, environment());
}

fn environment() -> &'static Environment {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| Environment::of_process(false).expect("this process has an identity"))
}
