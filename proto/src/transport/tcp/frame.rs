//! The bytes on the stream: hello and frame headers (`spec/protocol/tcp.md`).

use byteorder::{ByteOrder, LittleEndian};
use smallvec::SmallVec;

use super::super::{HEAD_SIZE_MAX, PeerFault, RegionFault, RegionKey, RemoteRange, util};
use super::{LIST_RANGES_MAX, PAYLOAD_MAX, RDMA_SIZE_MAX};

/// Bytes of a frame header, and of a hello.
pub const HEADER_SIZE: usize = util::HELLO_SIZE;

/// The first bytes of a connection.
pub const MAGIC: [u8; 8] = *b"dafs-tcp";

/// Version of this transport. Peers of different versions do not talk.
pub const VERSION: u16 = 2;

/// Bytes of a range in the body of a list.
pub const RANGE_SIZE: usize = 24;

/// A frame header as it travels.
pub type HeaderBytes = [u8; HEADER_SIZE];

/// What stands before the data of a frame: the header, and the ranges of a list.
pub type FrontBytes = SmallVec<[u8; HEADER_SIZE]>;

/// What each side says first.
pub type Hello = util::Hello<{ u64::from_le_bytes(MAGIC) }, VERSION>;

/// One frame, as its header announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A message; head and payload follow.
    Send {
        /// Bytes of head, 1 to [`HEAD_SIZE_MAX`].
        head_len: u8,
        /// Bytes of payload.
        payload_len: u32,
    },
    /// Data for the receiver's registered memory; `range.len` bytes follow.
    Write {
        /// Where it goes.
        range: RemoteRange,
        /// Value to deliver once it is there.
        immediate: Option<u32>,
    },
    /// Asks for the receiver's registered memory. Nothing follows.
    ReadRequest {
        /// The requester's name for the read.
        id: u32,
        /// What to send.
        range: RemoteRange,
    },
    /// Part of the answer to a read; `len` bytes follow.
    ReadResponse {
        /// From the request.
        id: u32,
        /// First byte, counted from the start of the read.
        offset: u64,
        /// Bytes; 0 only for a read of nothing.
        len: u32,
    },
    /// The sender closes the connection. Nothing follows.
    Fault(FaultReason),
    /// Data for several ranges of the receiver's registered memory; the ranges follow, then `len` bytes for them in order.
    WriteList {
        /// Ranges, 1 to [`LIST_RANGES_MAX`].
        count: u16,
        /// Bytes for all of them.
        len: u32,
    },
    /// Asks for several ranges of the receiver's registered memory, which follow. The answer is that of one read of all their bytes.
    ReadList {
        /// The requester's name for the read.
        id: u32,
        /// Ranges, 1 to [`LIST_RANGES_MAX`].
        count: u16,
        /// Bytes of all of them.
        len: u32,
    },
}

/// Why the sender of a FAULT closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultReason {
    /// One of the codes of `spec/protocol/tcp.md`; unknown ones survive.
    pub code: u32,
    /// The key, or for a malformed frame the value received.
    pub key: u64,
    /// The offset asked for, or for a malformed frame what is allowed.
    pub offset: u64,
}

const KIND_SEND: u8 = 0x01;
const KIND_WRITE: u8 = 0x02;
const KIND_READ_REQUEST: u8 = 0x03;
const KIND_READ_RESPONSE: u8 = 0x04;
const KIND_FAULT: u8 = 0x05;
const KIND_WRITE_LIST: u8 = 0x06;
const KIND_READ_LIST: u8 = 0x07;

const FLAG_IMMEDIATE: u8 = 0x01;

const FAULT_MALFORMED: u32 = 1;
const FAULT_UNKNOWN_KEY: u32 = 2;
const FAULT_OUT_OF_BOUNDS: u32 = 3;
const FAULT_ACCESS: u32 = 4;

impl Frame {
    /// The 32 bytes of the header.
    pub fn encode(&self) -> HeaderBytes {
        match *self {
            Self::Send { head_len, payload_len } => Fields {
                kind: KIND_SEND,
                head_len: u16::from(head_len),
                len: payload_len,
                ..Fields::default()
            },
            Self::Write { range, immediate } => Fields {
                kind: KIND_WRITE,
                flags: if immediate.is_some() { FLAG_IMMEDIATE } else { 0 },
                len: range_len(&range),
                key: range.key.0,
                offset: range.offset,
                value: immediate.unwrap_or(0),
                ..Fields::default()
            },
            Self::ReadRequest { id, range } => Fields {
                kind: KIND_READ_REQUEST,
                len: range_len(&range),
                key: range.key.0,
                offset: range.offset,
                value: id,
                ..Fields::default()
            },
            Self::ReadResponse { id, offset, len } => {
                Fields { kind: KIND_READ_RESPONSE, len, offset, value: id, ..Fields::default() }
            }
            Self::Fault(FaultReason { code, key, offset }) => {
                Fields { kind: KIND_FAULT, key, offset, value: code, ..Fields::default() }
            }
            Self::WriteList { count, len } => {
                Fields { kind: KIND_WRITE_LIST, head_len: count, len, ..Fields::default() }
            }
            Self::ReadList { id, count, len } => {
                Fields { kind: KIND_READ_LIST, head_len: count, len, value: id, ..Fields::default() }
            }
        }
        .encode()
    }

    /// Checks and reads a header: every length against the provider's limits, every unused field against zero.
    #[inline]
    pub fn decode(bytes: &HeaderBytes) -> Result<Self, PeerFault> {
        let fields = Fields::decode(bytes);
        let rdma_max = u64::from(RDMA_SIZE_MAX);
        let range =
            RemoteRange { key: RegionKey(fields.key), offset: fields.offset, len: u64::from(fields.len) };
        let frame = match fields.kind {
            KIND_SEND => {
                let head_len = u64::from(fields.head_len);
                check_range("head of a SEND, bytes", head_len, 1, HEAD_SIZE_MAX as u64)?;
                check_range("payload of a SEND, bytes", u64::from(fields.len), 0, u64::from(PAYLOAD_MAX))?;
                // Checked to be at most HEAD_SIZE_MAX.
                let head_len = u8::try_from(head_len).unwrap_or(u8::MAX);
                Self::Send { head_len, payload_len: fields.len }
            }
            KIND_WRITE => {
                check_range("data of a WRITE, bytes", range.len, 0, rdma_max)?;
                let immediate = (fields.flags & FLAG_IMMEDIATE != 0).then_some(fields.value);
                Self::Write { range, immediate }
            }
            KIND_READ_REQUEST => {
                check_range("length of a READ_REQUEST, bytes", range.len, 0, rdma_max)?;
                Self::ReadRequest { id: fields.value, range }
            }
            KIND_READ_RESPONSE => {
                check_range("data of a READ_RESPONSE, bytes", range.len, 0, rdma_max)?;
                Self::ReadResponse { id: fields.value, offset: fields.offset, len: fields.len }
            }
            KIND_WRITE_LIST | KIND_READ_LIST => {
                check_range("ranges of a list", u64::from(fields.head_len), 1, u64::from(LIST_RANGES_MAX))?;
                check_range("data of a list, bytes", range.len, 1, rdma_max)?;
                let (count, len) = (fields.head_len, fields.len);
                match fields.kind {
                    KIND_WRITE_LIST => Self::WriteList { count, len },
                    _ => Self::ReadList { id: fields.value, count, len },
                }
            }
            KIND_FAULT => {
                Self::Fault(FaultReason { code: fields.value, key: fields.key, offset: fields.offset })
            }
            kind => return Err(PeerFault::malformed("kind of frame", kind, KIND_READ_LIST)),
        };
        // `[TCP-22]`: what a kind does not use is zero.
        if frame.encode() != *bytes {
            return Err(PeerFault::malformed("unused fields of a frame of this kind", fields.kind, 0u8));
        }
        Ok(frame)
    }

    /// Bytes that follow the header.
    pub fn body_len(&self) -> u64 {
        match self {
            Self::Send { head_len, payload_len } => u64::from(*head_len) + u64::from(*payload_len),
            Self::Write { range, .. } => range.len,
            Self::ReadResponse { len, .. } => u64::from(*len),
            Self::ReadRequest { .. } | Self::Fault(_) => 0,
            Self::WriteList { count, len } => list_size(*count) as u64 + u64::from(*len),
            Self::ReadList { count, .. } => list_size(*count) as u64,
        }
    }
}

/// Bytes that the ranges of a list take behind its header.
#[inline]
pub fn list_size(count: u16) -> usize {
    usize::from(count) * RANGE_SIZE
}

/// Appends the ranges of a list.
pub fn encode_ranges(ranges: &[RemoteRange], bytes: &mut FrontBytes) {
    for range in ranges {
        for field in [range.key.0, range.offset, range.len] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
    }
}

/// Reads the ranges of a list, of [`list_size`] bytes, whose lengths must add up to `len`; none is empty.
pub fn decode_ranges(bytes: &[u8], len: u32) -> Result<SmallVec<[RemoteRange; 1]>, PeerFault> {
    let mut ranges = SmallVec::with_capacity(bytes.len() / RANGE_SIZE);
    let mut total = 0;
    for range in bytes.as_chunks::<RANGE_SIZE>().0 {
        let [key, offset, range_len] = [0, 8, 16].map(|at| LittleEndian::read_u64(&range[at..]));
        check_range("range of a list, bytes", range_len, 1, u64::from(RDMA_SIZE_MAX))?;
        total += range_len;
        ranges.push(RemoteRange { key: RegionKey(key), offset, len: range_len });
    }
    if total != u64::from(len) {
        return Err(PeerFault::malformed("total of a list, bytes", total, len));
    }
    Ok(ranges)
}

/// Reads the first frame of `bytes`: the frame and the bytes of it (header and body) that are there, `None` when even
/// the header is not. For tools and fuzzing: the endpoint decodes from its staging buffer.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, &[u8])>, PeerFault> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_SIZE>() else { return Ok(None) };
    let frame = Frame::decode(header)?;
    let body_len = usize::try_from(frame.body_len()).unwrap_or(usize::MAX).min(rest.len());
    Ok(Some((frame, &rest[..body_len])))
}

impl FaultReason {
    /// What the FAULT for `fault` says.
    pub fn new(fault: &PeerFault) -> Self {
        match fault {
            PeerFault::Malformed { value, limit, .. } => {
                Self { code: FAULT_MALFORMED, key: *value, offset: *limit }
            }
            PeerFault::HandshakeTimeout { limit_ms } => {
                Self { code: FAULT_MALFORMED, key: 0, offset: *limit_ms }
            }
            PeerFault::Region(RegionFault::UnknownKey(key)) => {
                Self { code: FAULT_UNKNOWN_KEY, key: key.0, offset: 0 }
            }
            PeerFault::Region(RegionFault::OutOfBounds { key, offset, .. }) => {
                Self { code: FAULT_OUT_OF_BOUNDS, key: key.0, offset: *offset }
            }
            PeerFault::Region(RegionFault::Access { key, .. } | RegionFault::Refused { key, .. }) => {
                Self { code: FAULT_ACCESS, key: key.0, offset: 0 }
            }
        }
    }
}

impl std::fmt::Display for FaultReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, key, offset } = self;
        match *code {
            FAULT_MALFORMED => write!(f, "it found a malformed frame: value {key}, limit {offset}"),
            FAULT_UNKNOWN_KEY => write!(f, "it has no region with the key {key:#x}"),
            FAULT_OUT_OF_BOUNDS => write!(f, "offset {offset} and length exceed its region {key:#x}"),
            FAULT_ACCESS => write!(f, "its region {key:#x} does not allow the access"),
            _ => write!(f, "fault code {code}"),
        }
    }
}

/// The fields that all headers share.
#[derive(Clone, Copy, Default)]
struct Fields {
    kind: u8,
    flags: u8,
    head_len: u16,
    len: u32,
    key: u64,
    offset: u64,
    value: u32,
}

impl Fields {
    fn encode(&self) -> HeaderBytes {
        let mut bytes = [0; HEADER_SIZE];
        bytes[0] = self.kind;
        bytes[1] = self.flags;
        LittleEndian::write_u16(&mut bytes[2..], self.head_len);
        LittleEndian::write_u32(&mut bytes[4..], self.len);
        LittleEndian::write_u64(&mut bytes[8..], self.key);
        LittleEndian::write_u64(&mut bytes[16..], self.offset);
        LittleEndian::write_u32(&mut bytes[24..], self.value);
        bytes
    }

    fn decode(bytes: &HeaderBytes) -> Self {
        Self {
            kind: bytes[0],
            flags: bytes[1],
            head_len: LittleEndian::read_u16(&bytes[2..]),
            len: LittleEndian::read_u32(&bytes[4..]),
            key: LittleEndian::read_u64(&bytes[8..]),
            offset: LittleEndian::read_u64(&bytes[16..]),
            value: LittleEndian::read_u32(&bytes[24..]),
        }
    }
}

fn range_len(range: &RemoteRange) -> u32 {
    u32::try_from(range.len).expect("posts are checked against RDMA_SIZE_MAX")
}

fn check_range(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), PeerFault> {
    match value {
        _ if value < min => Err(PeerFault::malformed(what, value, min)),
        _ if value > max => Err(PeerFault::malformed(what, value, max)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::util::vectors::{Vector, check_kinds, vectors};
    use super::*;

    const RANGE: RemoteRange =
        RemoteRange { key: RegionKey(0x1122_3344_5566_7788), offset: 0x0102_0304_0506, len: 0x10_0000 };

    fn frames() -> Vec<Frame> {
        vec![
            Frame::Send { head_len: 40, payload_len: 4096 },
            Frame::Write { range: RANGE, immediate: None },
            Frame::Write { range: RANGE, immediate: Some(0) },
            Frame::Write { range: RemoteRange { len: 0, ..RANGE }, immediate: Some(7) },
            Frame::ReadRequest { id: 9, range: RANGE },
            Frame::ReadResponse { id: 9, offset: 0x4_0000, len: 0x4_0000 },
            Frame::Fault(FaultReason { code: FAULT_ACCESS, key: 5, offset: 0 }),
            Frame::WriteList { count: 2, len: 0x1800 },
            Frame::ReadList { id: 9, count: 256, len: 0x10_0000 },
        ]
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const VECTORS: &str = include_str!("../../../../spec/vectors/tcp.txt");

    /// Reads a vector as a receiver would, and writes what it says again.
    fn rewritten(vector: &Vector) -> Result<Vec<u8>, PeerFault> {
        if vector.is("hello") {
            return Hello::decode(&vector.bytes).map(|hello| hello.encode().to_vec());
        }
        let (frame, body) = decode(&vector.bytes)?.expect("a whole header");
        let mut bytes = FrontBytes::from_buf(frame.encode());
        match frame {
            Frame::WriteList { count, len } | Frame::ReadList { count, len, .. } if !body.is_empty() => {
                encode_ranges(&decode_ranges(&body[..list_size(count)], len)?, &mut bytes);
            }
            _ => bytes.extend_from_slice(body),
        }
        Ok(bytes.into_vec())
    }

    fn kind_of(frame: &Frame) -> &'static str {
        match frame {
            Frame::Send { .. } => "send",
            Frame::Write { .. } => "write",
            Frame::ReadRequest { .. } => "read request",
            Frame::ReadResponse { .. } => "read response",
            Frame::Fault(_) => "fault",
            Frame::WriteList { .. } => "write list",
            Frame::ReadList { .. } => "read list",
        }
    }

    // [TCP-2] [TCP-3] [TCP-5] [TCP-22] [TCP-33]
    #[test]
    fn vectors_are_taken_and_refused_as_they_say() {
        let vectors = vectors(VECTORS);
        for vector in &vectors {
            let rewritten = rewritten(vector);
            match vector.is_refused {
                true => assert!(rewritten.is_err(), "{} is taken", vector.name),
                false => assert_eq!(rewritten.as_ref(), Ok(&vector.bytes), "{}", vector.name),
            }
        }
        // Every kind that a decoder knows, whatever is in this list of them.
        let is_known = |kind: &u8| {
            let mut header = [0; HEADER_SIZE];
            header[0] = *kind;
            let decoded = Frame::decode(&header);
            !matches!(decoded, Err(PeerFault::Malformed { what: "kind of frame", .. }))
        };
        let known: Vec<u8> = (0..=u8::MAX).filter(is_known).collect();
        let mut kinds = vec!["hello"];
        for frame in frames() {
            assert!(known.contains(&frame.encode()[0]));
            if !kinds.contains(&kind_of(&frame)) {
                kinds.push(kind_of(&frame));
            }
        }
        assert_eq!(kinds.len() - 1, known.len(), "{known:?}");
        check_kinds(&vectors, &kinds);
    }

    // [TCP-1] [TCP-3]
    #[test]
    fn vectors_are_what_is_sent() {
        let vectors = vectors(VECTORS);
        let golden = |name: &str| {
            let vector = vectors.iter().find(|vector| vector.name == name && !vector.is_refused);
            hex(&vector.unwrap_or_else(|| panic!("no vector {name:?}")).bytes)
        };
        let hello = Hello { recv_depth: 128, recv_payload_max: 16384, rdma_depth: 64 };
        assert_eq!(hex(&hello.encode()), golden("hello"));
        let names = [
            "send",
            "write",
            "write, immediate 0",
            "write, no data, immediate 7",
            "read request",
            "read response",
            "fault, rights",
            "write list",
            "read list",
        ];
        for (frame, name) in frames().into_iter().zip(names) {
            assert_eq!(hex(&frame.encode()), golden(name), "{frame:?}");
        }
    }

    #[test]
    fn decode_reverses_encode() {
        for frame in frames() {
            assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
    }

    #[test]
    fn decode_of_every_truncation_asks_for_more() {
        for frame in frames() {
            let header = frame.encode();
            for len in 0..HEADER_SIZE {
                assert_eq!(decode(&header[..len]), Ok(None));
            }
            assert_eq!(decode(&header), Ok(Some((frame, &[][..]))));
        }
    }

    // [TCP-4] [TCP-22]
    #[test]
    fn decode_with_any_unused_bit_set_is_refused() {
        // Bytes that a kind uses; all others must be zero.
        let used: [(Frame, &[std::ops::Range<usize>]); 7] = [
            (Frame::Send { head_len: 1, payload_len: 0 }, &[0..1, 2..8]),
            (Frame::Write { range: RANGE, immediate: None }, &[0..2, 4..24]),
            (Frame::ReadRequest { id: 0, range: RANGE }, &[0..1, 4..28]),
            (Frame::ReadResponse { id: 0, offset: 0, len: 1 }, &[0..1, 4..8, 16..28]),
            (Frame::Fault(FaultReason { code: 1, key: 0, offset: 0 }), &[0..1, 8..28]),
            (Frame::WriteList { count: 1, len: 1 }, &[0..1, 2..8]),
            (Frame::ReadList { id: 0, count: 1, len: 1 }, &[0..1, 2..8, 24..28]),
        ];
        for (frame, used) in used {
            for at in (0..HEADER_SIZE).filter(|at| !used.iter().any(|range| range.contains(at))) {
                for bit in 0..8 {
                    let mut header = frame.encode();
                    header[at] |= 1 << bit;
                    assert!(Frame::decode(&header).is_err(), "{frame:?} byte {at} bit {bit}");
                }
            }
        }
    }

    // [TCP-5]
    #[test]
    fn decode_at_and_past_each_limit_accepts_and_refuses() {
        let accept = [
            Frame::Send { head_len: 1, payload_len: PAYLOAD_MAX },
            Frame::Send { head_len: 112, payload_len: 0 },
            Frame::Write { range: RemoteRange { len: u64::from(RDMA_SIZE_MAX), ..RANGE }, immediate: None },
            Frame::ReadRequest { id: 0, range: RemoteRange { len: u64::from(RDMA_SIZE_MAX), ..RANGE } },
            Frame::ReadRequest { id: 0, range: RemoteRange { len: 0, ..RANGE } },
            Frame::ReadResponse { id: 0, offset: 0, len: RDMA_SIZE_MAX },
            Frame::WriteList { count: LIST_RANGES_MAX, len: RDMA_SIZE_MAX },
            Frame::ReadList { id: 0, count: LIST_RANGES_MAX, len: RDMA_SIZE_MAX },
        ];
        for frame in accept {
            assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
        let refuse = [
            Frame::Send { head_len: 1, payload_len: PAYLOAD_MAX + 1 },
            Frame::Send { head_len: 113, payload_len: 0 },
            Frame::Send { head_len: 0, payload_len: 0 },
            Frame::Write {
                range: RemoteRange { len: u64::from(RDMA_SIZE_MAX) + 1, ..RANGE },
                immediate: None,
            },
            Frame::ReadRequest { id: 0, range: RemoteRange { len: u64::from(RDMA_SIZE_MAX) + 1, ..RANGE } },
            Frame::ReadResponse { id: 0, offset: 0, len: RDMA_SIZE_MAX + 1 },
            Frame::WriteList { count: LIST_RANGES_MAX + 1, len: 1 },
            Frame::WriteList { count: 1, len: RDMA_SIZE_MAX + 1 },
            Frame::WriteList { count: 0, len: 1 },
            Frame::WriteList { count: 1, len: 0 },
            Frame::ReadList { id: 0, count: LIST_RANGES_MAX + 1, len: 1 },
            Frame::ReadList { id: 0, count: 1, len: RDMA_SIZE_MAX + 1 },
            Frame::ReadList { id: 0, count: 0, len: 1 },
        ];
        for frame in refuse {
            assert!(matches!(Frame::decode(&frame.encode()), Err(PeerFault::Malformed { .. })), "{frame:?}");
        }
    }

    // [TCP-14] [TCP-33]
    #[test]
    fn ranges_of_a_list_are_read_back_and_must_add_up() {
        let ranges =
            [RemoteRange { len: 0x1000, ..RANGE }, RemoteRange { key: RegionKey(5), offset: 0, len: 1 }];
        let mut bytes = FrontBytes::new();
        encode_ranges(&ranges, &mut bytes);
        assert_eq!(decode_ranges(&bytes, 0x1001).as_deref(), Ok(&ranges[..]));
        for len in [0x1000, 0x1002, 0, u32::MAX] {
            assert!(decode_ranges(&bytes, len).is_err(), "{len}");
        }
        for (len, total) in [(0, 0x1000), (u64::MAX, 0xfff), (u64::from(RDMA_SIZE_MAX) + 1, 0x100_1001)] {
            bytes.truncate(RANGE_SIZE);
            encode_ranges(&[RemoteRange { len, ..RANGE }], &mut bytes);
            assert!(decode_ranges(&bytes, total).is_err(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn decode_of_random_bytes_answers_or_refuses(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some((frame, body))) = decode(&bytes) {
                prop_assert_eq!(&frame.encode()[..], &bytes[..HEADER_SIZE]);
                prop_assert!(body.len() as u64 <= frame.body_len());
            }
        }

        #[test]
        fn decode_of_a_likely_header_answers_or_refuses(kind in 0u8..9, flags in 0u8..3, rest in any::<[u8; 30]>(), keep in any::<u32>()) {
            let mut header = [0u8; HEADER_SIZE];
            header[0] = kind;
            header[1] = flags;
            for (at, byte) in rest.into_iter().enumerate() {
                header[at + 2] = if keep >> at & 1 == 1 { byte } else { 0 };
            }
            if let Ok(frame) = Frame::decode(&header) {
                prop_assert_eq!(frame.encode(), header);
            }
            let _ = Hello::decode(&header);
        }
    }
}
