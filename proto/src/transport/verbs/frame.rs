//! The first bytes of every message. Layout in `spec/transport-verbs.md`.

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

    /// [VERBS-10]
    #[test]
    fn frames_have_the_bytes_of_the_specification() {
        assert_eq!(message_header(40, 4096), *b"\x01\x28\x00\x00\x00\x10\x00\x00");
        let golden: [&[u8]; 4] = [
            b"\x02\x00\x00\x00\x07\x00\x00\x00\x00\x00\x10\x00",
            b"\x03\x03\x00\x00\x09\x00\x00\x00\x88\x77\x66\x55\x44\x33\x22\x11\x06\x05\x04\x03\x02\x01",
            b"\x03\x00\x00\x00\x00\x00\x00\x00\x88\x77\x66\x55\x44\x33\x22\x11\x06\x05\x04\x03\x02\x01",
            b"\x04",
        ];
        for (frame, golden) in NOTES.iter().zip(golden) {
            let bytes = frame.encode_note();
            assert_eq!(&bytes[..golden.len()], golden, "{frame:?}");
            assert!(bytes[golden.len()..].iter().all(|byte| *byte == 0));
        }
    }

    /// [VERBS-10]
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

    /// [VERBS-10]
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
