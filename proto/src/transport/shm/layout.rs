//! Where everything lies in the segment of a connection. Pure arithmetic; see `spec/protocol/shm.md` for the diagrams.

/// Bytes of one ring entry: two cache lines.
pub(super) const ENTRY_SIZE: usize = 128;
/// Bytes of an entry before the head.
pub(super) const ENTRY_CONTROL_SIZE: usize = 16;
/// Bytes of an entry for the head and a payload that fits behind it.
pub(super) const ENTRY_ROOM: usize = ENTRY_SIZE - ENTRY_CONTROL_SIZE;
/// Most messages in one direction that are not taken yet.
pub(super) const DEPTH_MAX: u16 = 1024;
/// Largest payload of a message, bytes.
pub(super) const PAYLOAD_MAX: u32 = 1 << 20;
/// Largest segment, bytes of address space; the depths are lowered until it fits.
const SEGMENT_SIZE_MAX: usize = 1 << 30;
/// Most regions of a domain that peers may reach.
pub(super) const REGIONS_MAX: u16 = 4096;
/// The last of them, in each connection, are for regions that its peer alone reaches: twice the eager buffers that a connection may have.
pub(super) const OWN_REGIONS_MAX: u16 = 64;
/// Bytes of one region record: one cache line.
pub(super) const RECORD_SIZE: usize = 64;

const PAGE: usize = 4096;
/// Control words of one kind lie this far apart, so that neither the line nor its prefetched neighbour is shared.
const LINE_PAIR: usize = 128;
const RINGS_OFFSET: usize = 4 * LINE_PAIR;

/// Which end of the connection; also names the direction that this end sends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The end that connected.
    Client = 0,
    /// The end that listened, and made the segment.
    Server = 1,
}

impl Side {
    /// The other end.
    #[inline]
    pub(super) fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// One direction of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingTerms {
    /// Messages not yet taken. 1 ≤ depth ≤ `DEPTH_MAX`
    pub(super) depth: u16,
    /// Largest payload, bytes. At most `PAYLOAD_MAX`
    pub(super) payload_max: u32,
}

impl RingTerms {
    /// Ring entries: a power of two, at least `depth` and at least 2.
    pub(super) fn capacity(self) -> u32 {
        u32::from(self.depth).next_power_of_two().max(2)
    }

    /// Bytes from one payload buffer to the next: whole pages, so that direct disk I/O can use them.
    #[inline]
    pub(super) fn buffer_size(self) -> usize {
        (self.payload_max as usize).next_multiple_of(PAGE)
    }

    fn ring_size(self) -> usize {
        self.capacity() as usize * ENTRY_SIZE
    }

    fn buffers_size(self) -> usize {
        self.buffer_size() * usize::from(self.depth)
    }
}

/// Offsets in the segment. Both sides compute it from the same two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// By sending [`Side`].
    pub(super) ring_terms: [RingTerms; 2],
    rings: [usize; 2],
    records: [usize; 2],
    buffers: [usize; 2],
    size: usize,
}

impl Layout {
    /// The layout for what the two sides are ready to receive, lowered to the limits.
    pub(super) fn negotiate(client_receives: RingTerms, server_receives: RingTerms) -> Self {
        let clamp = |wanted: RingTerms| RingTerms {
            depth: wanted.depth.clamp(1, DEPTH_MAX),
            payload_max: wanted.payload_max.min(PAYLOAD_MAX),
        };
        let (mut to_server, mut to_client) = (clamp(server_receives), clamp(client_receives));
        loop {
            let layout = Self::of(to_server, to_client);
            if layout.size <= SEGMENT_SIZE_MAX {
                return layout;
            }
            let largest = if to_server.buffers_size() > to_client.buffers_size() {
                &mut to_server
            } else {
                &mut to_client
            };
            largest.depth = (largest.depth / 2).max(1);
        }
    }

    /// The layout that a server stated; `None` when it exceeds the limits.
    pub(super) fn stated(to_server: RingTerms, to_client: RingTerms) -> Option<Self> {
        let layout = Self::negotiate(to_client, to_server);
        (layout.ring_terms == [to_server, to_client]).then_some(layout)
    }

    fn of(to_server: RingTerms, to_client: RingTerms) -> Self {
        let ring_terms = [to_server, to_client];
        let rings = [RINGS_OFFSET, RINGS_OFFSET + to_server.ring_size()];
        let mut end = (rings[1] + to_client.ring_size()).next_multiple_of(PAGE);
        let mut take = |size: usize| {
            let begin = end;
            end += size.next_multiple_of(PAGE);
            begin
        };
        let records_size = usize::from(REGIONS_MAX) * RECORD_SIZE;
        let records = [take(records_size), take(records_size)];
        let buffers = [take(to_server.buffers_size()), take(to_client.buffers_size())];
        Self { ring_terms, rings, records, buffers, size: end }
    }

    /// Bytes of the segment.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// `u32` of `side`: 0 awake, else what wakes it (`SLEEPS_*`). Written by `side`; cleared by the peer that rings.
    #[inline]
    pub(super) fn sleeping(&self, side: Side) -> usize {
        side as usize * LINE_PAIR
    }

    /// `u32`: one more than the CPU that `side` was last seen on, 0 unknown.
    #[inline]
    pub(super) fn cpu(&self, side: Side) -> usize {
        self.sleeping(side) + 4
    }

    /// `u32`: messages that `side` has sent over the socket since the handshake.
    #[inline]
    pub(super) fn control_sent(&self, side: Side) -> usize {
        self.sleeping(side) + 8
    }

    /// `u32`: messages sent by `sender` that the other side has taken. Written by the receiver.
    #[inline]
    pub(super) fn consumed(&self, sender: Side) -> usize {
        (2 + sender as usize) * LINE_PAIR
    }

    /// Entry `entry` of the ring that `sender` writes.
    #[inline]
    pub(super) fn entry(&self, sender: Side, entry: u32) -> usize {
        self.rings[sender as usize] + entry as usize * ENTRY_SIZE
    }

    /// Payload buffer `buffer` of the direction that `sender` writes.
    #[inline]
    pub(super) fn buffer(&self, sender: Side, buffer: u16) -> usize {
        self.buffers[sender as usize] + usize::from(buffer) * self.ring_terms[sender as usize].buffer_size()
    }

    /// Record `slot` of the regions that belong to `owner`.
    #[inline]
    pub(super) fn record(&self, owner: Side, slot: u16) -> usize {
        self.records[owner as usize] + usize::from(slot) * RECORD_SIZE
    }
}

/// [`Layout::sleeping`]: wake for a message.
pub(super) const SLEEPS_FOR_MESSAGE: u32 = 1;
/// [`Layout::sleeping`]: wake for a message, or for room in the ring.
pub(super) const SLEEPS_FOR_ROOM: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn ring_terms(depth: u16, payload_max: u32) -> RingTerms {
        RingTerms { depth, payload_max }
    }

    // [SHM-3] parts of the segment do not overlap and lie inside it.
    #[test]
    fn layout_of_any_params_has_disjoint_parts() {
        for depth in [1, 2, 3, 127, 128, 129, DEPTH_MAX] {
            for payload_max in [0, 1, 4095, 4096, 4097, PAYLOAD_MAX] {
                let layout = Layout::negotiate(ring_terms(depth, payload_max), ring_terms(7, 100));
                let [to_server, to_client] = layout.ring_terms;
                let mut parts = vec![];
                for side in [Side::Client, Side::Server] {
                    let way = layout.ring_terms[side as usize];
                    parts.push((layout.sleeping(side), 12));
                    parts.push((layout.consumed(side), 4));
                    parts.push((layout.entry(side, 0), way.ring_size()));
                    parts.push((layout.record(side, 0), usize::from(REGIONS_MAX) * RECORD_SIZE));
                    parts.push((layout.buffer(side, 0), way.buffers_size()));
                    assert_eq!(layout.entry(side, way.capacity()) % ENTRY_SIZE, 0);
                }
                parts.sort_unstable();
                for pair in parts.windows(2) {
                    assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
                }
                let last = parts.last().unwrap();
                assert!(last.0 + last.1 <= layout.size());
                assert_eq!(Layout::stated(to_server, to_client), Some(layout));
            }
        }
    }

    // [SHM-1] [SHM-36] [SHM-37]
    #[test]
    fn negotiate_past_the_limits_is_lowered_and_refused_when_stated() {
        let huge = ring_terms(u16::MAX, u32::MAX);
        let layout = Layout::negotiate(huge, huge);
        assert!(layout.size() <= SEGMENT_SIZE_MAX);
        assert!(layout.ring_terms.iter().all(|way| way.depth >= 1 && way.payload_max == PAYLOAD_MAX));
        assert_eq!(Layout::stated(huge, ring_terms(1, 1)), None);
        assert_eq!(Layout::stated(ring_terms(0, 1), ring_terms(1, 1)), None);
        assert_eq!(Layout::stated(ring_terms(1, PAYLOAD_MAX + 1), ring_terms(1, 1)), None);
    }
}
