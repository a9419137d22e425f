//! Lanes: pairs of buffers, one of each side, that a connection exchanges once and then uses for many transfers.

use super::{Reader, WireError, Writer};
use crate::wire::{HEADER_SIZE, REMOTE_RANGE_SIZE, ReadReply, WriteRequest};

/// Lanes of one connection at most.
pub const LANES_MAX: u16 = 32;

/// Largest data of a lane, bytes: with what is before it, one RDMA operation.
pub const LANE_SIZE_MAX: u32 = (1 << 20) - 4096;

/// Bytes of a lane's buffer before the data, so that data begins on a page; a frame's head is at their end.
pub const LANE_ROOM: usize = 4096;

/// Bytes of the head of a frame that a client writes: that of a write or an append.
pub const LANE_REQUEST_HEAD_SIZE: usize = WriteRequest::HEAD_SIZE;

/// Bytes of the head of a frame that a server writes: that of a read's reply.
pub const LANE_REPLY_HEAD_SIZE: usize = ReadReply::HEAD_SIZE;

/// Body of a request for lanes and of its reply, 8 bytes. The payload has one range for each lane: the sender's buffers, of
/// [`LANE_ROOM`] and `size` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTerms {
    /// How many; 0 in a reply that grants none.
    pub count: u16,
    /// The client is going to read them by RDMA, not only to write.
    pub reads: bool,
    /// Data of each, bytes.
    pub size: u32,
}

impl LaneTerms {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u16(self.count).u16(self.reads.into()).u32(self.size);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let count = reader.u16("lane count")?;
        if count > LANES_MAX {
            let (value, limit) = (u64::from(count), u64::from(LANES_MAX));
            return Err(WireError::TooLarge { what: "lane count", value, limit });
        }
        let reads = match reader.u16("lane rights")? {
            0 => false,
            1 => true,
            value => return Err(WireError::Invalid { what: "lane rights", value: u64::from(value) }),
        };
        let size = reader.u32("lane size")?;
        if size > LANE_SIZE_MAX {
            let (value, limit) = (u64::from(size), u64::from(LANE_SIZE_MAX));
            return Err(WireError::TooLarge { what: "lane size", value, limit });
        }
        reader.finish("lane terms")?;
        Ok(Self { count, reads, size })
    }

    /// Bytes of the payload.
    pub fn payload_size(&self) -> usize {
        usize::from(self.count) * REMOTE_RANGE_SIZE
    }

    /// Bytes of each buffer.
    pub fn buffer_size(&self) -> usize {
        LANE_ROOM + self.size as usize
    }
}

/// What a frame in a lane holds, by the bytes that its immediate tells of: the data behind the head. `None`: it is none.
pub fn lane_frame_data(written: u32, head_size: usize, size: u32) -> Option<usize> {
    let data = (written as usize).checked_sub(head_size)?;
    (data <= size as usize).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    // [WIRE-20]
    #[test]
    fn lane_terms_at_their_limits() {
        let mut body = [0; 8];
        for (count, size, good) in [
            (LANES_MAX, LANE_SIZE_MAX, true),
            (0, 0, true),
            (LANES_MAX + 1, 1, false),
            (1, LANE_SIZE_MAX + 1, false),
        ] {
            let terms = LaneTerms { count, reads: good, size };
            terms.encode(&mut body);
            assert_eq!(LaneTerms::decode(&body).ok(), good.then_some(terms), "{count} {size}");
        }
        LaneTerms { count: 1, reads: true, size: 1 }.encode(&mut body);
        body[2] = 2;
        assert!(LaneTerms::decode(&body).is_err());
        assert!(LaneTerms::decode(&body[..7]).is_err());
    }

    // [WIRE-22]
    #[test]
    fn lane_frame_is_a_head_and_at_most_the_lane() {
        for (written, data) in [(79, None), (80, Some(0)), (81, Some(1)), (180, Some(100)), (181, None)] {
            assert_eq!(lane_frame_data(written, LANE_REQUEST_HEAD_SIZE, 100), data, "{written}");
        }
    }
}
