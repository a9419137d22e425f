//! The messages on the unix socket. Fixed sizes, native byte order: both ends are on one host.
//!
//! ```text
//! client → server   Hello     magic, version, what the client receives, a nonce in its memory
//! server → client   Welcome   what holds in both directions, what was probed, a nonce; the segment and the doorbells
//! client → server   Ready     what was probed
//! either way        Register  a region in a memory file, with the file · Unregister
//! ```

use super::super::{Access, ConnectParams, PeerFault};
use super::layout::{Direction, Layout};

/// Bytes of every message.
pub(super) const MESSAGE_SIZE: usize = 64;
/// "dafs shm" and the version of all that both sides must lay out the same.
const MAGIC: u64 = u64::from_le_bytes(*b"dafs-shm");
const VERSION: u32 = 1;

/// A word of this process that the other side may try to read: whether cross-memory attach works, and to the right process.
pub(super) struct Nonce(Box<[u8; 16]>);

impl Nonce {
    /// 16 random bytes on the heap.
    pub(super) fn new() -> std::io::Result<Self> {
        let mut bytes = Box::new([0; 16]);
        getrandom::fill(bytes.as_mut_slice()).map_err(std::io::Error::other)?;
        Ok(Self(bytes))
    }

    fn claim(&self) -> NonceClaim {
        NonceClaim { address: self.0.as_ptr() as u64, bytes: *self.0 }
    }
}

/// The other side's word: where it says it is, and what it says it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NonceClaim {
    /// Its address there.
    pub(super) address: u64,
    /// Its content.
    pub(super) bytes: [u8; 16],
}

/// A message, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The client's first.
    Hello { receives: Direction, nonce: NonceClaim },
    /// The server's answer.
    Welcome { to_server: Direction, to_client: Direction, cma: bool, nonce: NonceClaim },
    /// The client has mapped the segment.
    Ready { cma: bool },
    /// A region can be reached from now on; a memory file comes with it.
    Register { key: u64, offset: u64, len: u64, access: Access },
    /// It is gone.
    Unregister { key: u64 },
}

impl Message {
    /// Hello of a client with these parameters.
    pub(super) fn hello(params: &ConnectParams, nonce: &Nonce) -> Self {
        Self::Hello { receives: receives(params), nonce: nonce.claim() }
    }

    /// Welcome to a segment with this layout.
    pub(super) fn welcome(layout: &Layout, cma: bool, nonce: &Nonce) -> Self {
        let [to_server, to_client] = layout.directions;
        Self::Welcome { to_server, to_client, cma, nonce: nonce.claim() }
    }

    /// The bytes to send.
    pub(super) fn encode(&self) -> [u8; MESSAGE_SIZE] {
        let mut out = Encoder { bytes: [0; MESSAGE_SIZE], at: 0 };
        match *self {
            Self::Hello { receives, nonce } => {
                out.put(1u32.to_ne_bytes()).put(VERSION.to_ne_bytes()).put(MAGIC.to_ne_bytes());
                out.direction(receives).nonce(nonce);
            }
            Self::Welcome { to_server, to_client, cma, nonce } => {
                out.put(2u32.to_ne_bytes()).put(VERSION.to_ne_bytes()).put(MAGIC.to_ne_bytes());
                out.direction(to_server).direction(to_client).nonce(nonce).put([u8::from(cma)]);
            }
            Self::Ready { cma } => {
                out.put(3u32.to_ne_bytes()).put([u8::from(cma)]);
            }
            Self::Register { key, offset, len, access } => {
                out.put(4u32.to_ne_bytes()).put(u32::from(access.bits()).to_ne_bytes());
                out.put(key.to_ne_bytes()).put(offset.to_ne_bytes()).put(len.to_ne_bytes());
            }
            Self::Unregister { key } => {
                out.put(5u32.to_ne_bytes()).put(0u32.to_ne_bytes()).put(key.to_ne_bytes());
            }
        }
        out.bytes
    }

    /// Reads a message of `len` bytes, which may be anything.
    pub(super) fn decode(bytes: &[u8; MESSAGE_SIZE], len: usize) -> Result<Self, PeerFault> {
        if len != MESSAGE_SIZE {
            return Err(malformed("size of a socket message", len as u64, MESSAGE_SIZE as u64));
        }
        let mut input = Decoder { bytes, at: 0 };
        let kind = input.u32();
        match kind {
            1 => {
                input.start()?;
                Ok(Self::Hello { receives: input.direction(), nonce: input.nonce() })
            }
            2 => {
                input.start()?;
                let (to_server, to_client) = (input.direction(), input.direction());
                let nonce = input.nonce();
                Ok(Self::Welcome { to_server, to_client, nonce, cma: input.take::<1>()[0] != 0 })
            }
            3 => Ok(Self::Ready { cma: input.take::<1>()[0] != 0 }),
            4 => {
                let bits = input.u32();
                let access = u8::try_from(bits).ok().and_then(Access::from_bits);
                let access = access.ok_or_else(|| malformed("access rights", bits.into(), 3))?;
                let (key, offset, len) = (input.u64(), input.u64(), input.u64());
                Ok(Self::Register { key, offset, len, access })
            }
            5 => {
                input.u32();
                Ok(Self::Unregister { key: input.u64() })
            }
            _ => Err(malformed("kind of a socket message", kind.into(), 5)),
        }
    }
}

/// What a side with these parameters is ready to receive.
pub(super) fn receives(params: &ConnectParams) -> Direction {
    Direction { depth: params.recv_depth, payload_max: params.recv_payload_max }
}

/// A peer fault out of line.
#[cold]
pub(super) fn malformed(what: &'static str, value: u64, limit: u64) -> PeerFault {
    PeerFault::Malformed { what, value, limit }
}

struct Encoder {
    bytes: [u8; MESSAGE_SIZE],
    at: usize,
}

impl Encoder {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Self {
        self.bytes[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
        self
    }

    fn direction(&mut self, way: Direction) -> &mut Self {
        self.put(u32::from(way.depth).to_ne_bytes()).put(way.payload_max.to_ne_bytes())
    }

    fn nonce(&mut self, nonce: NonceClaim) -> &mut Self {
        self.put(nonce.address.to_ne_bytes()).put(nonce.bytes)
    }
}

struct Decoder<'b> {
    bytes: &'b [u8; MESSAGE_SIZE],
    at: usize,
}

impl Decoder<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        out
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn start(&mut self) -> Result<(), PeerFault> {
        let (version, magic) = (self.u32(), self.u64());
        if magic != MAGIC {
            return Err(malformed("magic number", magic, MAGIC));
        }
        if version != VERSION {
            return Err(malformed("version of the shm transport", version.into(), VERSION.into()));
        }
        Ok(())
    }

    /// A depth past 16 bits is past every limit: it stays so.
    fn direction(&mut self) -> Direction {
        Direction { depth: u16::try_from(self.u32()).unwrap_or(u16::MAX), payload_max: self.u32() }
    }

    fn nonce(&mut self) -> NonceClaim {
        NonceClaim { address: self.u64(), bytes: self.take() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages() -> Vec<Message> {
        let way = Direction { depth: 128, payload_max: 16_384 };
        let nonce = NonceClaim { address: 0x7000_0000_1234, bytes: *b"0123456789abcdef" };
        vec![
            Message::Hello { receives: way, nonce },
            Message::Welcome { to_server: way, to_client: way, cma: true, nonce },
            Message::Ready { cma: true },
            Message::Register { key: 1, offset: 2, len: 3, access: Access::REMOTE_WRITE },
            Message::Unregister { key: 9 },
        ]
    }

    #[test]
    fn message_encoded_and_decoded_is_the_same() {
        for message in messages() {
            assert_eq!(Message::decode(&message.encode(), MESSAGE_SIZE), Ok(message));
        }
    }

    #[test]
    fn message_of_another_size_kind_magic_or_version_is_refused() {
        let good = messages()[0].encode();
        for len in [0, 1, MESSAGE_SIZE - 1] {
            assert!(Message::decode(&good, len).is_err());
        }
        for at in [0, 4, 8] {
            let mut bad = good;
            bad[at] ^= 0x40;
            assert!(Message::decode(&bad, MESSAGE_SIZE).is_err(), "byte {at}");
        }
        let mut register = messages()[3].encode();
        register[4] = 4;
        assert!(Message::decode(&register, MESSAGE_SIZE).is_err());
    }

    proptest! {
        #[test]
        fn message_of_random_bytes_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), MESSAGE_SIZE), kind in 0u8..8) {
            bytes[0] = kind;
            bytes[1..4].fill(0);
            let _ = Message::decode(&bytes.try_into().unwrap(), MESSAGE_SIZE);
        }
    }
}
