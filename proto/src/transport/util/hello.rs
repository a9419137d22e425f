//! What each side states first, if messages have no other bound: layout in `spec/protocol/tcp.md` and `spec/protocol/verbs.md`.

use std::net::SocketAddr;

use byteorder::{ByteOrder, LittleEndian};

use super::super::{Address, Capabilities, ConnectError, ConnectParams, PeerFault, PeerIdentity, Provider};

/// Bytes of a [`Hello`].
pub const HELLO_SIZE: usize = 32;

/// Largest `recv_payload_max` in a hello, bytes.
pub const PAYLOAD_MAX: u32 = 1 << 20;

/// Largest `recv_depth` and `rdma_depth` in a hello.
pub const DEPTH_MAX: u16 = 4096;

/// What one side states when a connection is made. A transport has a magic, whose bytes are those of the number in little-endian order,
/// and a version of its own: peers of different ones do not talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<const MAGIC: u64, const VERSION: u16> {
    /// Messages that it receives before its consumer takes them.
    pub recv_depth: u16,
    /// Largest payload that it receives, bytes.
    pub recv_payload_max: u32,
    /// RDMA operations that it wants in flight at once, and serves.
    pub rdma_depth: u16,
}

impl<const MAGIC: u64, const VERSION: u16> Hello<MAGIC, VERSION> {
    /// What `params` ask for, within the limits.
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
        LittleEndian::write_u64(&mut bytes, MAGIC);
        LittleEndian::write_u16(&mut bytes[8..], VERSION);
        LittleEndian::write_u16(&mut bytes[10..], self.recv_depth);
        LittleEndian::write_u32(&mut bytes[12..], self.recv_payload_max);
        LittleEndian::write_u16(&mut bytes[16..], self.rdma_depth);
        bytes
    }

    /// Reads a hello. Every field is checked. More than [`HELLO_SIZE`] bytes are allowed, and what follows is not looked at: RDMA's
    /// connection manager pads private data with zeros, to a size that depends on the device and the message.
    pub fn decode(bytes: &[u8]) -> Result<Self, PeerFault> {
        let malformed = |what, value: u64, limit: u64| Err(PeerFault::malformed(what, value, limit));
        let Some(bytes) = bytes.first_chunk::<HELLO_SIZE>() else {
            return malformed("size of the hello", bytes.len() as u64, HELLO_SIZE as u64);
        };
        let magic = LittleEndian::read_u64(bytes);
        if magic != MAGIC {
            return malformed("no dafs peer: magic of the hello", magic, MAGIC);
        }
        let version = LittleEndian::read_u16(&bytes[8..]);
        if version != VERSION {
            return malformed("transport version", version.into(), VERSION.into());
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
            return malformed("reserved byte of the hello", (*byte).into(), 0);
        }
        Ok(hello)
    }

    /// What a connection can do after these were exchanged, besides what only some providers can.
    pub fn agree(
        &self,
        theirs: &Self,
        provider: Provider,
        peer: Option<SocketAddr>,
        segments_max: u16,
        rdma_size_max: u32,
    ) -> Capabilities {
        Capabilities {
            provider,
            send_payload_max: theirs.recv_payload_max,
            recv_payload_max: self.recv_payload_max,
            send_depth: theirs.recv_depth,
            rdma_depth: self.rdma_depth.min(theirs.rdma_depth),
            segments_max,
            rdma_size_max,
            remote_mapped: false,
            faults_late: false,
            copies_faulting: false,
            is_stream: false,
            registers_ordinary_memory: true,
            peer: PeerIdentity { address: peer, credentials: None },
        }
    }
}

/// The socket address of an address of this provider.
pub fn socket_address(provider: Provider, address: &Address) -> Result<SocketAddr, ConnectError> {
    match (provider, address) {
        (Provider::Tcp, Address::Tcp(at)) | (Provider::Verbs, Address::Verbs(at)) => Ok(*at),
        _ => Err(ConnectError::wrong_address(provider, address)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Hello = super::Hello<{ u64::from_le_bytes(*b"dafs-abc") }, 3>;

    const GOOD: Hello = Hello { recv_depth: 128, recv_payload_max: 16_384, rdma_depth: 64 };

    /// [TCP-15] [VERBS-47] Whichever side wants fewer.
    #[test]
    fn sides_agree_on_the_smaller_depth_of_rdma() {
        let [few, many] = [5, 11].map(|rdma_depth| Hello { rdma_depth, ..GOOD });
        for (own, theirs) in [(&few, &many), (&many, &few)] {
            assert_eq!(own.agree(theirs, Provider::Verbs, None, 1, 1 << 20).rdma_depth, 5);
        }
    }

    // [TCP-2] [VERBS-2]
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
    fn hello_of_another_transport_or_version_is_refused() {
        type OtherMagic = super::Hello<{ u64::from_le_bytes(*b"dafs-abd") }, 3>;
        type OtherVersion = super::Hello<{ u64::from_le_bytes(*b"dafs-abc") }, 2>;
        assert!(OtherMagic::decode(&GOOD.encode()).is_err());
        assert!(OtherVersion::decode(&GOOD.encode()).is_err());
    }

    #[test]
    fn hello_at_the_limits_is_taken() {
        for hello in [
            Hello { recv_depth: 1, recv_payload_max: 0, rdma_depth: 1 },
            Hello { recv_depth: DEPTH_MAX, recv_payload_max: PAYLOAD_MAX, rdma_depth: DEPTH_MAX },
        ] {
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
        let beyond = ConnectParams {
            recv_depth: u16::MAX,
            recv_payload_max: u32::MAX,
            rdma_depth: 0,
            ..ConnectParams::default()
        };
        let hello = Hello { recv_depth: DEPTH_MAX, recv_payload_max: PAYLOAD_MAX, rdma_depth: 1 };
        assert_eq!(Hello::new(&beyond), hello);
    }

    proptest! {
        // [TCP-2] [VERBS-2]: any bytes are answered, and what is taken says the same again.
        #[test]
        fn any_bytes_are_refused_or_taken_whole(
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
