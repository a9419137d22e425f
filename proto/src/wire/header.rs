use super::{HEAD_SIZE_MAX, Opcode, Status, WireError};

/// Bytes of a header.
pub const HEADER_SIZE: usize = 40;

/// The smallest `head_len`: a header without a body.
const HEAD_LEN_MIN: u16 = 40;

bitflags::bitflags! {
    /// Header flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u16 {
        /// This is a reply.
        const REPLY = 0x0001;
        /// More requests of this chain follow.
        const CHAIN_FORWARD = 0x0002;
        /// This request continues the chain that the request before it began.
        const CHAIN_BACK = 0x0004;
        /// The handle that this request's reply carries is saved for the rest of the chain.
        const SAVE_HANDLE = 0x0008;
        /// From the server, not an answer to anything.
        const CALLBACK = 0x0010;
        /// The request is sent again after a reconnect; the first copy may have been executed.
        const REPLAY = 0x0020;
    }
}

/// A slot of a session: a stream of requests, one at a time, each with the next sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// The server's name for something that a session has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileHandle(pub u64);

/// In a chain: the handle that the chain saved.
pub const CHAIN_HANDLE: FileHandle = FileHandle(u64::MAX);

/// The first 40 bytes of every message.
///
/// ```text
///  0      2      4             8            12    14    16            20            24                      32            36         40
///  | opcode| flags|    slot     |  sequence  |cred.|head |payload_len |   status    |        handle         | deadline_ms | reserved |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked or answered.
    pub opcode: Opcode,
    /// Flags.
    pub flags: Flags,
    /// The slot; 0 in callbacks.
    pub slot: Slot,
    /// Sequence number in the slot; counts callbacks in callbacks.
    pub sequence: u32,
    /// Requests: how many the client would like outstanding. Replies: the server's target. At least 1.
    pub credits: u16,
    /// Bytes of header and body.
    pub head_len: u16,
    /// Bytes of payload.
    pub payload_len: u32,
    /// Replies: the outcome. Requests: 0.
    pub status: Status,
    /// The file the request is about; 0 where it needs none. In replies that open something: its handle.
    pub handle: FileHandle,
    /// Requests: do not begin after this many milliseconds; 0 for no deadline.
    pub deadline_ms: u32,
}

impl Header {
    /// A request's header; the session fills in slot, sequence and credits.
    #[inline]
    pub fn request(opcode: Opcode, handle: FileHandle) -> Self {
        Self {
            opcode,
            flags: Flags::empty(),
            slot: Slot(0),
            sequence: 0,
            credits: 1,
            head_len: HEAD_LEN_MIN,
            payload_len: 0,
            status: Status::OK,
            handle,
            deadline_ms: 0,
        }
    }

    /// The header of a message that the server sends on its own account, with its place in the order of those.
    pub fn callback(opcode: Opcode, sequence: u32) -> Self {
        Self { flags: Flags::CALLBACK, sequence, ..Self::request(opcode, FileHandle(0)) }
    }

    /// The header of the answer to `self`; the session fills in credits.
    #[inline]
    pub fn reply(&self, status: Status) -> Self {
        Self {
            flags: Flags::REPLY,
            status,
            handle: FileHandle(0),
            deadline_ms: 0,
            credits: 1,
            head_len: HEAD_LEN_MIN,
            payload_len: 0,
            ..*self
        }
    }

    /// Writes the 40 bytes at the beginning of `head`.
    #[inline]
    pub fn encode(&self, head: &mut [u8]) {
        let mut bytes = [0; HEADER_SIZE];
        bytes[0..2].copy_from_slice(&self.opcode.value().to_le_bytes());
        bytes[2..4].copy_from_slice(&self.flags.bits().to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.credits.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.head_len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.status.value().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.handle.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.deadline_ms.to_le_bytes());
        head[..HEADER_SIZE].copy_from_slice(&bytes);
    }

    /// Reads the header of a whole head and checks it against the lengths that arrived. Returns the body behind it.
    #[inline]
    pub fn decode(head: &[u8], payload_len: u32) -> Result<(Self, &[u8]), WireError> {
        let Some((bytes, body)) = head.split_first_chunk::<HEADER_SIZE>() else {
            return Err(WireError::Truncated { what: "header", missing: HEADER_SIZE - head.len() });
        };
        // One check of the length for all fields: this is done for every message.
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (opcode, flags, reserved) = (u16_at(0), u16_at(2), u32_at(36));
        let header = Self {
            opcode: Opcode::from_value(opcode)
                .ok_or(WireError::Invalid { what: "opcode", value: u64::from(opcode) })?,
            flags: Flags::from_bits(flags)
                .ok_or(WireError::Invalid { what: "flags", value: u64::from(flags) })?,
            slot: Slot(u32_at(4)),
            sequence: u32_at(8),
            credits: u16_at(12),
            head_len: u16_at(14),
            payload_len: u32_at(16),
            status: Status::from_value(u32_at(20)),
            handle: FileHandle(u64::from(u32_at(24)) | u64::from(u32_at(28)) << 32),
            deadline_ms: u32_at(32),
        };
        if reserved != 0 {
            let value = reserved.to_le_bytes().into_iter().find(|byte| *byte != 0).unwrap_or(0);
            return Err(WireError::Invalid { what: "reserved header bytes", value: u64::from(value) });
        }
        header.check(head.len(), payload_len)?;
        Ok((header, body))
    }

    #[inline]
    fn check(&self, head_len: usize, payload_len: u32) -> Result<(), WireError> {
        if usize::from(self.head_len) != head_len || head_len > HEAD_SIZE_MAX {
            return Err(WireError::Invalid { what: "head_len", value: u64::from(self.head_len) });
        }
        if self.payload_len != payload_len {
            return Err(WireError::Invalid { what: "payload_len", value: u64::from(self.payload_len) });
        }
        if self.credits == 0 {
            return Err(WireError::Invalid { what: "credits", value: 0 });
        }
        let reply = self.flags.contains(Flags::REPLY);
        if !reply && self.status != Status::OK {
            return Err(WireError::Invalid {
                what: "status of a request",
                value: u64::from(self.status.value()),
            });
        }
        if self.flags.contains(Flags::CALLBACK) != self.opcode.is_callback()
            || (reply && self.opcode.is_callback())
        {
            return Err(WireError::Invalid {
                what: "flags of the opcode",
                value: u64::from(self.flags.bits()),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            slot: Slot(3),
            sequence: 7,
            credits: 9,
            handle: FileHandle(0x1122),
            ..Header::request(Opcode::Read, FileHandle(0))
        }
    }

    #[test]
    fn header_encoded_decodes_to_itself() {
        let mut head = [0xff; HEADER_SIZE];
        sample().encode(&mut head);
        let (decoded, body) = Header::decode(&head, 0).unwrap();
        assert_eq!(decoded, sample());
        assert!(body.is_empty());
    }

    #[test]
    fn header_truncated_anywhere_is_an_error() {
        let mut head = [0; HEADER_SIZE];
        sample().encode(&mut head);
        for len in 0..HEADER_SIZE {
            assert!(Header::decode(&head[..len], 0).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn header_with_lying_lengths_is_an_error() {
        let mut head = [0; HEADER_SIZE];
        sample().encode(&mut head);
        assert!(Header::decode(&head, 1).is_err());
        head[14] = 41;
        assert!(Header::decode(&head, 0).is_err());
    }

    #[test]
    fn header_with_reserved_bytes_set_is_an_error() {
        let mut head = [0; HEADER_SIZE];
        sample().encode(&mut head);
        head[39] = 1;
        assert_eq!(
            Header::decode(&head, 0),
            Err(WireError::Invalid { what: "reserved header bytes", value: 1 })
        );
    }
}
