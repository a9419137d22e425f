//! The first bytes of every message. Layout in `spec/protocol/verbs.md`.

use byteorder::{ByteOrder, LittleEndian};

use super::super::{HEAD_SIZE_MAX, PeerFault, RegionKey};

/// Bytes before the head.
pub(super) const HEADER_SIZE: usize = 8;

/// Room before the payload.
pub(super) const PREFIX_SIZE: usize = HEADER_SIZE + HEAD_SIZE_MAX;

/// Bytes of a message of the provider itself.
pub(super) const NOTE_SIZE: usize = 32;

const KIND_MESSAGE: u8 = 1;
const KIND_IMMEDIATE: u8 = 2;
const KIND_CHECK: u8 = 3;
const KIND_CLOSE: u8 = 4;

const FLAG_IMMEDIATE: u8 = 1;
const FLAG_WRITE: u8 = 2;

/// What a received message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A head, behind it the payload.
    Message { head_len: usize, payload_len: usize },
    /// A write with immediate data that took more than one work request is done.
    Immediate { data: u32, size: u32 },
    /// An operation of 0 bytes: the device does not look at its key.
    Check { key: RegionKey, offset: u64, write: bool, immediate: Option<u32> },
    /// The sender closes; nothing follows.
    Close,
}

/// The header of a message.
pub(super) fn message_header(head_len: usize, payload_len: usize) -> [u8; HEADER_SIZE] {
    let mut bytes = [0; HEADER_SIZE];
    bytes[0] = KIND_MESSAGE;
    bytes[1] = u8::try_from(head_len).unwrap_or(u8::MAX);
    LittleEndian::write_u32(&mut bytes[4..], u32::try_from(payload_len).unwrap_or(u32::MAX));
    bytes
}

impl Frame {
    /// A message of the provider itself.
    pub(super) fn encode_note(&self) -> [u8; NOTE_SIZE] {
        let mut bytes = [0; NOTE_SIZE];
        match *self {
            Self::Message { .. } => {}
            Self::Immediate { data, size } => {
                bytes[0] = KIND_IMMEDIATE;
                LittleEndian::write_u32(&mut bytes[4..], data);
                LittleEndian::write_u32(&mut bytes[8..], size);
            }
            Self::Check { key, offset, write, immediate } => {
                bytes[0] = KIND_CHECK;
                bytes[1] =
                    if write { FLAG_WRITE } else { 0 } | if immediate.is_some() { FLAG_IMMEDIATE } else { 0 };
                LittleEndian::write_u32(&mut bytes[4..], immediate.unwrap_or(0));
                LittleEndian::write_u64(&mut bytes[8..], key.0);
                LittleEndian::write_u64(&mut bytes[16..], offset);
            }
            Self::Close => bytes[0] = KIND_CLOSE,
        }
        bytes
    }

    /// Reads the first bytes of a message of `len` bytes. `prefix` has as many of them as there are, up to [`NOTE_SIZE`].
    pub(super) fn decode(prefix: &[u8], len: usize, payload_max: usize) -> Result<Self, PeerFault> {
        let malformed = |what, value: usize, limit: usize| {
            Err(PeerFault::Malformed { what, value: value as u64, limit: limit as u64 })
        };
        let Some(header) = prefix.first_chunk::<HEADER_SIZE>() else {
            return malformed("size of a message", len, HEADER_SIZE);
        };
        let value = LittleEndian::read_u32(&header[4..]);
        if header[2..4] != [0, 0] {
            return malformed("reserved bytes of a message", usize::from(header[2] | header[3]), 0);
        }
        if header[0] == KIND_MESSAGE {
            let (head_len, payload_len) = (usize::from(header[1]), value as usize);
            if !(1..=HEAD_SIZE_MAX).contains(&head_len) {
                return malformed("size of a head", head_len, HEAD_SIZE_MAX);
            }
            if payload_len > payload_max {
                return malformed("size of a payload", payload_len, payload_max);
            }
            if HEADER_SIZE + head_len + payload_len != len {
                return malformed("size of a message", len, HEADER_SIZE + head_len + payload_len);
            }
            return Ok(Self::Message { head_len, payload_len });
        }
        let (Some(note), NOTE_SIZE) = (prefix.first_chunk::<NOTE_SIZE>(), len) else {
            return malformed("size of a note", len, NOTE_SIZE);
        };
        let flags = header[1];
        let frame = match header[0] {
            KIND_IMMEDIATE => Self::Immediate { data: value, size: LittleEndian::read_u32(&note[8..]) },
            KIND_CHECK => Self::Check {
                key: RegionKey(LittleEndian::read_u64(&note[8..])),
                offset: LittleEndian::read_u64(&note[16..]),
                write: flags & FLAG_WRITE != 0,
                immediate: (flags & FLAG_IMMEDIATE != 0).then_some(value),
            },
            KIND_CLOSE => Self::Close,
            kind => return malformed("kind of a message", usize::from(kind), usize::from(KIND_CLOSE)),
        };
        if frame.encode_note() != *note {
            return malformed("unused bytes of a note", usize::from(flags), 0);
        }
        Ok(frame)
    }
}

/// Reads a message as a connection does that takes payloads of `payload_max` bytes: whether it is one. Nothing is done with it.
pub fn check_message(bytes: &[u8], payload_max: usize) -> Result<(), PeerFault> {
    Frame::decode(&bytes[..bytes.len().min(NOTE_SIZE)], bytes.len(), payload_max).map(drop)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::util::vectors::{check_kinds, vectors};
    use super::*;

    const NOTES: [Frame; 5] = [
        Frame::Immediate { data: 7, size: 1 << 20 },
        Frame::Check {
            key: RegionKey(0x1122_3344_5566_7788),
            offset: 0x0102_0304_0506,
            write: true,
            immediate: Some(9),
        },
        Frame::Check {
            key: RegionKey(0x1122_3344_5566_7788),
            offset: 0x0102_0304_0506,
            write: false,
            immediate: None,
        },
        Frame::Close,
        Frame::Check { key: RegionKey(0), offset: u64::MAX, write: true, immediate: None },
    ];

    const VECTORS: &str = include_str!("../../../../spec/vectors/verbs.txt");

    fn kind_of(frame: &Frame) -> &'static str {
        match frame {
            Frame::Message { .. } => "message",
            Frame::Immediate { .. } => "immediate",
            Frame::Check { .. } => "check",
            Frame::Close => "close",
        }
    }

    /// [VERBS-10] [VERBS-53]
    #[test]
    fn vectors_are_taken_and_refused_as_they_say() {
        let kinds = ["message", "immediate", "check", "close"];
        let vectors: Vec<_> = vectors(VECTORS).into_iter().filter(|vector| !vector.is("hello")).collect();
        check_kinds(&vectors, &kinds);
        for vector in &vectors {
            let prefix = &vector.bytes[..vector.bytes.len().min(NOTE_SIZE)];
            let frame = Frame::decode(prefix, vector.bytes.len(), 1000);
            match (vector.is_refused, frame) {
                (true, Err(_)) => {}
                (false, Ok(Frame::Message { head_len, payload_len })) => {
                    assert!(vector.is("message"), "{}", vector.name);
                    assert_eq!(message_header(head_len, payload_len), vector.bytes[..HEADER_SIZE]);
                }
                (false, Ok(note)) => {
                    assert!(vector.is(kind_of(&note)), "{}", vector.name);
                    assert_eq!(note.encode_note()[..], vector.bytes, "{}", vector.name);
                }
                (_, other) => panic!("{}: {other:?}", vector.name),
            }
        }
        // Every kind that the decoder knows is in the list.
        let known = (0..=u8::MAX).filter(|kind| {
            let mut note = [0; NOTE_SIZE];
            note[0] = *kind;
            let decoded = Frame::decode(&note, NOTE_SIZE, 1000);
            !matches!(decoded, Err(PeerFault::Malformed { what: "kind of a message", .. }))
        });
        assert_eq!(known.count(), kinds.len());
    }

    /// [VERBS-10]
    #[test]
    fn vectors_are_what_is_sent() {
        assert_eq!(message_header(40, 4096), *b"\x01\x28\x00\x00\x00\x10\x00\x00");
        let vectors = vectors(VECTORS);
        let names = ["immediate", "check, write with immediate", "check, read", "close"];
        for (frame, name) in NOTES.iter().zip(names) {
            let golden = vectors.iter().find(|vector| vector.name == name && !vector.is_refused);
            assert_eq!(frame.encode_note()[..], golden.unwrap().bytes, "{name}");
        }
    }

    /// [VERBS-53]
    #[test]
    fn notes_are_read_back_and_changed_ones_refused() {
        for frame in NOTES {
            let bytes = frame.encode_note();
            assert_eq!(Frame::decode(&bytes, NOTE_SIZE, 0), Ok(frame));
            for len in 0..NOTE_SIZE {
                assert!(Frame::decode(&bytes[..len], len, 100).is_err(), "{frame:?} cut to {len}");
            }
            assert!(Frame::decode(&bytes, NOTE_SIZE + 1, 100).is_err());
            let mut reserved = bytes;
            reserved[31] = 1;
            assert!(Frame::decode(&reserved, NOTE_SIZE, 0).is_err());
        }
        for kind in [0, 5, 255] {
            let mut bytes = Frame::Close.encode_note();
            bytes[0] = kind;
            assert!(Frame::decode(&bytes, NOTE_SIZE, 0).is_err());
        }
    }

    /// [VERBS-53]
    #[test]
    fn messages_outside_the_limits_are_refused() {
        let decode = |head_len: usize, payload_len: usize, len: usize| {
            let mut bytes = vec![0; NOTE_SIZE];
            bytes[..HEADER_SIZE].copy_from_slice(&message_header(head_len, payload_len));
            Frame::decode(&bytes, len, 1000)
        };
        for (head_len, payload_len) in [(1, 0), (112, 0), (1, 1000), (112, 1000)] {
            let frame = Frame::Message { head_len, payload_len };
            assert_eq!(decode(head_len, payload_len, 8 + head_len + payload_len), Ok(frame));
            assert!(decode(head_len, payload_len, 7 + head_len + payload_len).is_err());
            assert!(decode(head_len, payload_len, 9 + head_len + payload_len).is_err());
        }
        for (head_len, payload_len) in [(0, 0), (113, 0), (255, 0), (1, 1001), (1, u32::MAX as usize)] {
            assert!(decode(head_len, payload_len, 8 + head_len + payload_len).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_taken(
            bytes in proptest::collection::vec(any::<u8>(), 0..NOTE_SIZE + 1),
            kind in 0u8..6,
            more in 0usize..2000,
        ) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let len = if bytes.len() == NOTE_SIZE { NOTE_SIZE + more } else { bytes.len() };
            if let Ok(Frame::Message { head_len, payload_len }) = Frame::decode(&bytes, len, 1000) {
                prop_assert!(HEADER_SIZE + head_len + payload_len == len && payload_len <= 1000 && head_len <= HEAD_SIZE_MAX);
            }
        }
    }
}
