//! Bodies of the requests that move data, and of their replies: written and read here, whichever path a request takes.

use dafs_proto::session::SessionFault;
use dafs_proto::transport::RemoteRange;
use dafs_proto::wire::{
    Method, ReadReply, ReadRequest, ReaddirReply, ReaddirRequest, Stability, Verifier, WireError, WireRange,
    WriteReply, WriteRequest,
};

use crate::op::transfer::TransferKind;

/// A range as requests name it.
#[inline]
pub(crate) fn wire(range: RemoteRange) -> WireRange {
    [range.key.0, range.offset, range.len]
}

/// What a request says of its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    kind: TransferKind,
    offset: u64,
    len: usize,
    method: Method,
    segment_count: u16,
    segment: WireRange,
}

impl Body {
    /// Data in the messages.
    #[inline]
    pub(crate) fn inline(kind: TransferKind, offset: u64, len: usize) -> Self {
        Self { kind, offset, len, method: Method::Inline, segment_count: 0, segment: [0; 3] }
    }

    /// Data in memory that the server reaches. Of more than one range all are in the payload.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "at most SEGMENTS_MAX")]
    pub(crate) fn direct(kind: TransferKind, offset: u64, len: usize, ranges: &[WireRange]) -> Self {
        let segment = match ranges {
            [one] => *one,
            _ => [0; 3],
        };
        Self { kind, offset, len, method: Method::Direct, segment_count: ranges.len() as u16, segment }
    }

    /// Data through an eager buffer.
    pub(crate) fn through_eager_buffer(
        kind: TransferKind,
        offset: u64,
        len: usize,
        method: Method,
        eager_buffer: u16,
    ) -> Self {
        Self { method, segment: [u64::from(eager_buffer), 0, 0], ..Self::inline(kind, offset, len) }
    }

    /// Writes it; the length of the head that it makes.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "pieces are at most transfer_size_max")]
    pub(crate) fn encode(&self, body: &mut [u8]) -> usize {
        let Self { kind, offset, len, method, segment_count, segment } = *self;
        let len = len as u32;
        let write = |offset, stability, body| {
            WriteRequest { offset, len, method, stability, segment_count, segment }.encode(body);
            WriteRequest::HEAD_SIZE
        };
        match kind {
            TransferKind::Read => {
                ReadRequest { offset, len, method, segment_count, segment }.encode(body);
                ReadRequest::HEAD_SIZE
            }
            TransferKind::Write(stability) => write(offset, stability, body),
            TransferKind::Append(stability) => write(0, stability, body),
            TransferKind::Readdir { cookie, attributes } => {
                ReaddirRequest { cookie, len, segment, attributes }.encode(body);
                ReaddirRequest::HEAD_SIZE
            }
        }
    }
}

/// What the reply to such a request says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataReply {
    /// Bytes moved.
    pub(crate) count: usize,
    /// There are no more entries of the directory.
    pub(crate) end: bool,
    /// Where an append went; the cookie after a readdir.
    pub(crate) position: u64,
    /// What was written is lost when the server restarts, which this tells.
    pub(crate) unstable: Option<Verifier>,
}

impl DataReply {
    #[inline]
    pub(crate) fn decode(kind: TransferKind, body: &[u8]) -> Result<Self, WireError> {
        let read = |count: u32| Self { count: count as usize, end: false, position: 0, unstable: None };
        Ok(match kind {
            TransferKind::Read => read(ReadReply::decode(body)?.count),
            TransferKind::Write(_) | TransferKind::Append(_) => {
                let reply = WriteReply::decode(body)?;
                let unstable = (reply.stability == Stability::Unstable).then_some(reply.verifier);
                Self { position: reply.offset, unstable, ..read(reply.count) }
            }
            TransferKind::Readdir { .. } => {
                let reply = ReaddirReply::decode(body)?;
                Self { end: reply.end, position: reply.cookie, ..read(reply.count) }
            }
        })
    }

    /// It tells of no more than was asked for, and what was read is in the payload if it is to come there.
    #[inline]
    pub(crate) fn check(
        &self,
        kind: TransferKind,
        asked: usize,
        payload: usize,
        in_payload: bool,
    ) -> Result<(), SessionFault> {
        let expected = if in_payload { self.count } else { 0 };
        let reads = !matches!(kind, TransferKind::Write(_) | TransferKind::Append(_));
        match reads {
            true if self.count > asked => Err(too_much("the count of a read", self.count, asked)),
            true if payload != expected => Err(too_much("the payload of a read's reply", payload, expected)),
            false if self.count > asked => Err(too_much("the count of a write", self.count, asked)),
            _ => Ok(()),
        }
    }
}

#[cold]
pub(crate) fn too_much(what: &'static str, value: usize, limit: usize) -> SessionFault {
    SessionFault::TooMuch { what, value: value as u64, limit: limit as u64 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const KINDS: [TransferKind; 4] = [
        TransferKind::Read,
        TransferKind::Write(Stability::DataSync),
        TransferKind::Append(Stability::FileSync),
        TransferKind::Readdir { cookie: 7, attributes: true },
    ];

    #[test]
    fn body_says_where_the_data_is() {
        let range = [1, 2, 3];
        for (body, method, segment_count, segment) in [
            (Body::inline(KINDS[0], 9, 5), Method::Inline, 0, [0; 3]),
            (Body::direct(KINDS[0], 9, 5, &[range]), Method::Direct, 1, range),
            (Body::direct(KINDS[0], 9, 5, &[range; 2]), Method::Direct, 2, [0; 3]),
            (Body::through_eager_buffer(KINDS[0], 9, 5, Method::Eager, 4), Method::Eager, 0, [4, 0, 0]),
        ] {
            for kind in KINDS {
                let mut bytes = [0; 64];
                let head_len = Body { kind, ..body }.encode(&mut bytes);
                let bytes = &bytes[..head_len - dafs_proto::wire::HEADER_SIZE];
                match kind {
                    TransferKind::Read => {
                        let expected = ReadRequest { offset: 9, len: 5, method, segment_count, segment };
                        assert_eq!(ReadRequest::decode(bytes).unwrap(), expected);
                    }
                    TransferKind::Write(stability) | TransferKind::Append(stability) => {
                        let offset = if kind == KINDS[1] { 9 } else { 0 };
                        let expected =
                            WriteRequest { offset, len: 5, method, stability, segment_count, segment };
                        assert_eq!(WriteRequest::decode(bytes).unwrap(), expected);
                    }
                    TransferKind::Readdir { cookie, attributes } => {
                        let expected = ReaddirRequest { cookie, len: 5, segment, attributes };
                        assert_eq!(ReaddirRequest::decode(bytes).unwrap(), expected);
                    }
                }
            }
        }
    }

    // [WIRE-139] one less, exact, one more
    #[test]
    fn reply_that_tells_of_more_than_was_asked_for_is_a_fault() {
        for (count, is_good) in [(4, true), (5, true), (6, false)] {
            let reply = DataReply { count, end: false, position: 0, unstable: None };
            for kind in KINDS {
                assert_eq!(reply.check(kind, 5, 0, false).is_ok(), is_good, "{kind:?}");
            }
            for payload in [count - 1, count, count + 1] {
                let fits = is_good && payload == count;
                assert_eq!(reply.check(TransferKind::Read, 5, payload, true).is_ok(), fits, "{payload}");
                assert!(reply.check(TransferKind::Read, 5, payload, false).is_err());
            }
        }
    }
}
