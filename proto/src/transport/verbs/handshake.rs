//! The private data of the connection manager: each side states what it receives. Layout in `spec/transport-verbs.md`.

use byteorder::{ByteOrder, LittleEndian};

use super::super::{ConnectParams, PeerFault};
use super::{DEPTH_MAX, PAYLOAD_MAX};

/// Bytes of a [`Hello`]. The connection manager carries 56 with a request, more with the answers.
pub const HELLO_SIZE: usize = HELLO_LEN as usize;

/// The same, as the connection manager takes it.
pub(super) const HELLO_LEN: u8 = 32;

const MAGIC: &[u8; 8] = b"dafs-rdm";
const VERSION: u16 = 1;

/// What one side states when a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Messages that it receives before its consumer takes them.
    pub recv_depth: u16,
    /// Largest payload that it receives, bytes.
    pub recv_payload_max: u32,
    /// RDMA operations that it wants in flight at once.
    pub rdma_depth: u16,
}

impl Hello {
    /// What `params` ask for, within the limits of this provider.
    pub fn new(params: &ConnectParams) -> Self {
        Self {
            recv_depth: params.recv_depth.clamp(1, DEPTH_MAX),
            recv_payload_max: params.recv_payload_max.min(PAYLOAD_MAX),
            rdma_depth: params.rdma_depth.clamp(1, DEPTH_MAX),
        }
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; HELLO_SIZE] {
        let mut bytes = [0; HELLO_SIZE];
        bytes[..8].copy_from_slice(MAGIC);
        LittleEndian::write_u16(&mut bytes[8..], VERSION);
        LittleEndian::write_u16(&mut bytes[10..], self.recv_depth);
        LittleEndian::write_u32(&mut bytes[12..], self.recv_payload_max);
        LittleEndian::write_u16(&mut bytes[16..], self.rdma_depth);
        bytes
    }

    /// Reads private data. Every field is checked. The connection manager pads it with zeros, to a size that depends on the device
    /// and the message, so more than [`HELLO_SIZE`] bytes are allowed; what follows is not looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, PeerFault> {
        let malformed = |what, value: u64, limit: u64| Err(PeerFault::Malformed { what, value, limit });
        let Some(bytes) = bytes.first_chunk::<HELLO_SIZE>() else {
            return malformed("size of the private data", bytes.len() as u64, HELLO_SIZE as u64);
        };
        if &bytes[..8] != MAGIC {
            let (value, limit) = (LittleEndian::read_u64(bytes), LittleEndian::read_u64(MAGIC));
            return malformed("no dafs peer: magic of the private data", value, limit);
        }
        let version = LittleEndian::read_u16(&bytes[8..]);
        if version != VERSION {
            return malformed("version of the verbs transport", version.into(), VERSION.into());
        }
        let hello = Self {
            recv_depth: LittleEndian::read_u16(&bytes[10..]),
            recv_payload_max: LittleEndian::read_u32(&bytes[12..]),
            rdma_depth: LittleEndian::read_u16(&bytes[16..]),
        };
        for (what, depth) in [("recv_depth", hello.recv_depth), ("rdma_depth", hello.rdma_depth)] {
            if !(1..=DEPTH_MAX).contains(&depth) {
                return malformed(what, depth.into(), DEPTH_MAX.into());
            }
        }
        if hello.recv_payload_max > PAYLOAD_MAX {
            return malformed("recv_payload_max", hello.recv_payload_max.into(), PAYLOAD_MAX.into());
        }
        if let Some(byte) = bytes[18..].iter().find(|byte| **byte != 0) {
            return malformed("reserved bytes of the private data", (*byte).into(), 0);
        }
        Ok(hello)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: Hello = Hello { recv_depth: 128, recv_payload_max: 16_384, rdma_depth: 64 };

    /// [VERBS-2]
    #[test]
    fn hello_has_the_bytes_of_the_specification() {
        let mut golden = [0; HELLO_SIZE];
        golden[..18].copy_from_slice(b"dafs-rdm\x01\x00\x80\x00\x00\x40\x00\x00\x40\x00");
        assert_eq!(GOOD.encode(), golden);
        assert_eq!(Hello::decode(&golden), Ok(GOOD));
        // As the connection manager pads it.
        let mut padded = [0; 56];
        padded[..HELLO_SIZE].copy_from_slice(&golden);
        assert_eq!(Hello::decode(&padded), Ok(GOOD));
    }

    /// [VERBS-2]
    #[test]
    fn hello_with_one_wrong_field_is_refused() {
        let refused = |change: &dyn Fn(&mut [u8; HELLO_SIZE])| {
            let mut bytes = GOOD.encode();
            change(&mut bytes);
            assert!(matches!(Hello::decode(&bytes), Err(PeerFault::Malformed { .. })), "{bytes:02x?}");
        };
        for at in (0..10).chain(18..HELLO_SIZE) {
            refused(&|bytes| bytes[at] ^= 0x81);
        }
        for depth in [0, DEPTH_MAX + 1, u16::MAX] {
            refused(&|bytes| LittleEndian::write_u16(&mut bytes[10..], depth));
            refused(&|bytes| LittleEndian::write_u16(&mut bytes[16..], depth));
        }
        for payload in [PAYLOAD_MAX + 1, u32::MAX] {
            refused(&|bytes| LittleEndian::write_u32(&mut bytes[12..], payload));
        }
        for len in 0..HELLO_SIZE {
            assert!(Hello::decode(&GOOD.encode()[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn hello_at_the_limits_is_taken() {
        for hello in [
            Hello { recv_depth: 1, recv_payload_max: 0, rdma_depth: 1 },
            Hello { recv_depth: DEPTH_MAX, recv_payload_max: PAYLOAD_MAX, rdma_depth: DEPTH_MAX },
        ] {
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
    }

    proptest! {
        /// [VERBS-2]: any bytes are answered, and what is taken says the same again.
        #[test]
        fn any_private_data_is_refused_or_taken_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            from_good: bool,
            at in 0..HELLO_SIZE,
        ) {
            let mut bytes = bytes;
            if from_good && bytes.len() >= HELLO_SIZE {
                let noise = bytes[at];
                bytes[..HELLO_SIZE].copy_from_slice(&GOOD.encode());
                bytes[at] = noise;
            }
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(&hello.encode()[..], &bytes[..HELLO_SIZE]);
            }
        }
    }
}
