//! Eager buffers: pairs of buffers, one of each side, that a connection exchanges once and then uses for many transfers.

use super::{Reader, WireError, Writer};
use crate::wire::{HEADER_SIZE, REMOTE_RANGE_SIZE, ReadReply, WriteRequest};

/// Eager buffers of one connection at most.
pub const EAGER_BUFFERS_MAX: u16 = 32;

/// Largest data of an eager buffer, bytes: with what is before it, one RDMA operation.
pub const EAGER_BUFFER_SIZE_MAX: u32 = (1 << 20) - 4096;

/// Bytes of an eager buffer's buffer before the data, so that data begins on a page; a frame's head is at their end.
pub const EAGER_BUFFER_ROOM: usize = 4096;

/// Bytes of the head of a frame that a client writes: that of a write or an append.
pub const EAGER_REQUEST_HEAD_SIZE: usize = WriteRequest::HEAD_SIZE;

/// Bytes of the head of a frame that a server writes: that of a read's reply.
pub const EAGER_REPLY_HEAD_SIZE: usize = ReadReply::HEAD_SIZE;

/// Body of a request for eager buffers and of its reply, 8 bytes. The payload has one range for each eager buffer: the sender's buffers, of
/// [`EAGER_BUFFER_ROOM`] and `size` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EagerBufferTerms {
    /// How many; 0 in a reply that grants none.
    pub count: u16,
    /// The client is going to read them by RDMA, not only to write.
    pub reads: bool,
    /// Data of each, bytes.
    pub size: u32,
}

impl EagerBufferTerms {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u16(self.count).u16(self.reads.into()).u32(self.size);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let count = reader.u16("eager buffer count")?;
        if count > EAGER_BUFFERS_MAX {
            return Err(WireError::Invalid { what: "eager buffer count", value: u64::from(count) });
        }
        let reads = match reader.u16("eager buffer rights")? {
            0 => false,
            1 => true,
            value => return Err(WireError::Invalid { what: "eager buffer rights", value: u64::from(value) }),
        };
        let size = reader.u32("eager buffer size")?;
        if size > EAGER_BUFFER_SIZE_MAX {
            return Err(WireError::Invalid { what: "eager buffer size", value: u64::from(size) });
        }
        reader.finish("eager buffer terms")?;
        Ok(Self { count, reads, size })
    }

    /// Bytes of the payload.
    pub fn payload_size(&self) -> usize {
        usize::from(self.count) * REMOTE_RANGE_SIZE
    }

    /// Bytes of each buffer.
    pub fn buffer_size(&self) -> usize {
        EAGER_BUFFER_ROOM + self.size as usize
    }
}

/// What a frame in an eager buffer holds, by the bytes that its immediate tells of: the data behind the head. `None`: it is none.
pub fn eager_frame_data(written: u32, head_size: usize, size: u32) -> Option<usize> {
    let data = (written as usize).checked_sub(head_size)?;
    (data <= size as usize).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    // [WIRE-138]
    #[test]
    fn eager_buffer_terms_at_their_limits() {
        let mut body = [0; 8];
        for (count, size, good) in [
            (EAGER_BUFFERS_MAX, EAGER_BUFFER_SIZE_MAX, true),
            (0, 0, true),
            (EAGER_BUFFERS_MAX + 1, 1, false),
            (1, EAGER_BUFFER_SIZE_MAX + 1, false),
        ] {
            let terms = EagerBufferTerms { count, reads: good, size };
            terms.encode(&mut body);
            assert_eq!(EagerBufferTerms::decode(&body).ok(), good.then_some(terms), "{count} {size}");
        }
        EagerBufferTerms { count: 1, reads: true, size: 1 }.encode(&mut body);
        body[2] = 2;
        assert!(EagerBufferTerms::decode(&body).is_err());
        assert!(EagerBufferTerms::decode(&body[..7]).is_err());
    }

    // [WIRE-22]
    #[test]
    fn eager_frame_is_a_head_and_at_most_the_eager_buffer() {
        for (written, data) in [(79, None), (80, Some(0)), (81, Some(1)), (180, Some(100)), (181, None)] {
            assert_eq!(eager_frame_data(written, EAGER_REQUEST_HEAD_SIZE, 100), data, "{written}");
        }
    }
}
