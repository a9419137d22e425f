//! Ring entries: how a message is written and taken. The layout is drawn in `spec/protocol/shm.md`.

use std::sync::atomic::Ordering;

use super::super::{HEAD_SIZE_MAX, Head, PeerFault, Received, Span};
use super::connection::Connection;
use super::endpoint::ShmEndpoint;
use super::handshake::malformed;
use super::layout::{ENTRY_CONTROL_SIZE, ENTRY_ROOM, ENTRY_SIZE, RingTerms, Side};
use super::ring::Arrival;

/// A message of the layer above.
pub(super) const KIND_MESSAGE: u8 = 1;
/// The end of an RDMA write with immediate data.
const KIND_IMMEDIATE: u8 = 2;
/// Set in the kind of an entry whose payload lies behind the head.
const KIND_EMBEDDED: u8 = 0x80;
const KIND_MESSAGE_EMBEDDED: u8 = KIND_MESSAGE | KIND_EMBEDDED;
/// The payload of a message to be written: its buffer, and how much of it.
#[derive(Clone, Copy)]
pub(super) struct Payload {
    pub(super) buffer: Option<u16>,
    pub(super) len: usize,
}

/// What was negotiated for the messages of `sender`.
pub(super) fn ring_terms(connection: &Connection, sender: Side) -> RingTerms {
    connection.layout.ring_terms[sender as usize]
}

/// The usual sizes of heads are copied by a few instructions each, others by a call.
#[inline]
fn write_head(room: Span<'_>, head: &[u8]) {
    fn exactly<const SIZE: usize>(room: Span<'_>, head: &[u8]) -> bool {
        head.first_chunk::<SIZE>().map(|head| room.write_from(ENTRY_CONTROL_SIZE, head)).is_some()
    }
    // Headers alone; replies to reads and to writes; reads and writes; locks.
    let written = match head.len() {
        40 => exactly::<40>(room, head),
        48 => exactly::<48>(room, head),
        64 => exactly::<64>(room, head),
        72 => exactly::<72>(room, head),
        80 => exactly::<80>(room, head),
        _ => false,
    };
    if !written {
        room.write_from(ENTRY_CONTROL_SIZE, head);
    }
}

/// Copies between spans of one length. One word, the usual case beside large payloads, is copied without a call.
#[inline]
fn copy_small(from: Span<'_>, to: Span<'_>) {
    match (from.len(), from.read_array::<4>(0)) {
        (4, Some(word)) => to.write_from(0, &word),
        _ => to.copy_from(from),
    }
}

impl ShmEndpoint {
    /// Writes the next entry and makes it visible.
    pub(super) fn write_entry(&mut self, kind: u8, head: &[u8], payload: Payload) {
        let connection = &self.connection;
        let side = connection.side;
        let (entry, sequence) = self.send_ring.next_entry();
        let at = connection.layout.entry(side, entry);
        let segment = connection.segment.span();
        let Some(room) = segment.slice(at, ENTRY_SIZE) else { return };
        let mut kind = kind;
        let (mut position, mut kept) = (0, None);
        let len = payload.len;
        if let Some(buffer) = payload.buffer {
            if head.len() + len <= ENTRY_ROOM {
                kind |= KIND_EMBEDDED;
                let from = segment.slice(connection.layout.buffer(side, buffer), len);
                let to = room.slice(ENTRY_CONTROL_SIZE + head.len(), len);
                if let (Some(from), Some(to)) = (from, to) {
                    copy_small(from, to);
                }
                self.counters.bytes_embedded += len as u64;
                self.send_ring.free_buffer(buffer);
            } else {
                position = buffer;
                kept = Some(buffer);
            }
        }
        let mut control = [0u8; ENTRY_CONTROL_SIZE - 4];
        let taken = self.recv_ring.expected().wrapping_sub(1);
        control[..4].copy_from_slice(&taken.to_ne_bytes());
        control[4..8].copy_from_slice(&u32::try_from(len).unwrap_or(0).to_ne_bytes());
        control[8..10].copy_from_slice(&position.to_ne_bytes());
        control[10] = u8::try_from(head.len()).unwrap_or(0);
        control[11] = kind;
        room.write_from(4, &control);
        write_head(room, head);
        connection.segment.word(at).store(sequence, Ordering::Release);
        self.send_ring.sent(kept);
        self.sent_unflushed = true;
        self.counters.messages_sent += 1;
    }

    /// Posts the immediate that ends an RDMA write; the caller has made room.
    pub(super) fn post_immediate(&mut self, data: u32, size: u32) {
        let mut head = [0; 8];
        head[..4].copy_from_slice(&data.to_ne_bytes());
        head[4..].copy_from_slice(&size.to_ne_bytes());
        self.send_ring.reserve();
        self.write_entry(KIND_IMMEDIATE, &head, Payload { buffer: None, len: 0 });
    }

    /// The sequence word of the next entry.
    #[inline]
    pub(super) fn arrival(&self) -> (Arrival, usize) {
        let at = self.recv_entries + self.recv_ring.next_entry() as usize * ENTRY_SIZE;
        let sequence = self.connection.segment.word(at).load(Ordering::Acquire);
        (self.recv_ring.classify(sequence), at)
    }

    /// Checks the control part of the entry at `at` on a private copy, and takes the message. Its head is still to be copied.
    #[inline]
    pub(super) fn take_entry(&mut self, at: usize) -> Result<Taken, PeerFault> {
        let way = ring_terms(&self.connection, self.connection.side.peer());
        let segment = self.connection.segment.span();
        let control: [u8; ENTRY_CONTROL_SIZE] = segment.read_array(at).unwrap_or_default();
        let [_, _, _, _, t0, t1, t2, t3, l0, l1, l2, l3, p0, p1, head_len, kind] = control;
        let payload_len = u32::from_ne_bytes([l0, l1, l2, l3]);
        let buffer = u16::from_ne_bytes([p0, p1]);
        let head_size = usize::from(head_len);
        if head_size == 0 || head_size > HEAD_SIZE_MAX {
            return Err(malformed("size of a head", head_len.into(), HEAD_SIZE_MAX as u64));
        }
        let len = payload_len as usize;
        let offset = match kind {
            KIND_MESSAGE if len == 0 => 0,
            KIND_MESSAGE => {
                if payload_len > way.payload_max {
                    return Err(malformed("size of a payload", payload_len.into(), way.payload_max.into()));
                }
                if buffer >= way.depth {
                    return Err(malformed("payload buffer", buffer.into(), way.depth.into()));
                }
                self.connection.layout.buffer(self.connection.side.peer(), buffer)
            }
            KIND_MESSAGE_EMBEDDED => {
                let room = (ENTRY_ROOM - head_size).min(way.payload_max as usize);
                if len > room {
                    return Err(malformed("size of an embedded payload", payload_len.into(), room as u64));
                }
                at + ENTRY_CONTROL_SIZE + head_size
            }
            KIND_IMMEDIATE if head_size == 8 && len == 0 => 0,
            _ => return Err(malformed("kind of a ring entry", kind.into(), KIND_IMMEDIATE.into())),
        };
        let taken = u32::from_ne_bytes([t0, t1, t2, t3]);
        if let Err(bad) = self.send_ring.taken_until_at_least(taken) {
            return Err(malformed("messages taken", bad.value.into(), bad.limit.into()));
        }
        self.current = Some((offset, len));
        self.counters.messages_received += 1;
        Ok(Taken { is_immediate: kind == KIND_IMMEDIATE, head_len, payload_len })
    }

    /// What was taken, with a private copy of its head.
    #[inline]
    pub(super) fn received(&self, at: usize, taken: &Taken) -> Received {
        let segment = self.connection.segment.span();
        if taken.is_immediate {
            let bytes: [u8; 8] = segment.read_array(at + ENTRY_CONTROL_SIZE).unwrap_or_default();
            let [d0, d1, d2, d3, s0, s1, s2, s3] = bytes;
            let (data, size) = (u32::from_ne_bytes([d0, d1, d2, d3]), u32::from_ne_bytes([s0, s1, s2, s3]));
            return Received::Immediate { data, size };
        }
        let head = Head::read_from(segment, at + ENTRY_CONTROL_SIZE, taken.head_len).unwrap_or(Head::EMPTY);
        Received::Message { head, payload_len: taken.payload_len }
    }
}

/// A message that was taken from its entry.
pub(super) struct Taken {
    is_immediate: bool,
    // Checked against `HEAD_SIZE_MAX`.
    head_len: u8,
    payload_len: u32,
}
