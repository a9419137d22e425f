//! The messages on the unix socket. Fixed sizes, native byte order: both ends are on one host.
//!
//! ```text
//! client → server   Hello     magic, version, what the client receives, a nonce in its memory
//! server → client   Welcome   what holds in both directions, what was probed, a nonce; the segment and the doorbells
//! client → server   Ready     what was probed
//! either way        Register  a region in a memory file, with the file · Unregister
//! server → client   Descriptor  of an open file, with it
//! ```

use super::super::{Access, ConnectParams, PeerFault};
use super::layout::{Layout, RingTerms};

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
    Hello { receives: RingTerms, nonce: NonceClaim },
    /// The server's answer.
    Welcome { to_server: RingTerms, to_client: RingTerms, cma: bool, nonce: NonceClaim },
    /// The client has mapped the segment.
    Ready { cma: bool },
    /// A region can be reached from now on; a memory file comes with it.
    Register { key: u64, offset: u64, len: u64, access: Access },
    /// It is gone.
    Unregister { key: u64 },
    /// The descriptor of an open file comes with it.
    Descriptor { key: u64 },
}

impl Message {
    /// Hello of a client with these parameters.
    pub(super) fn hello(params: &ConnectParams, nonce: &Nonce) -> Self {
        Self::Hello { receives: receives(params), nonce: nonce.claim() }
    }

    /// Welcome to a segment with this layout.
    pub(super) fn welcome(layout: &Layout, cma: bool, nonce: &Nonce) -> Self {
        let [to_server, to_client] = layout.ring_terms;
        Self::Welcome { to_server, to_client, cma, nonce: nonce.claim() }
    }

    /// The bytes to send: eight words, some of which are two halves.
    pub(super) fn encode(&self) -> [u8; MESSAGE_SIZE] {
        let words = match *self {
            Self::Hello { receives, nonce } => {
                let [n0, n1] = nonce.words();
                [halves(1, VERSION), MAGIC, receives.word(), nonce.address, n0, n1, 0, 0]
            }
            Self::Welcome { to_server, to_client, cma, nonce } => {
                let ([n0, n1], cma) = (nonce.words(), halves(flag(cma), 0));
                [halves(2, VERSION), MAGIC, to_server.word(), to_client.word(), nonce.address, n0, n1, cma]
            }
            Self::Ready { cma } => [halves(3, flag(cma)), 0, 0, 0, 0, 0, 0, 0],
            Self::Register { key, offset, len, access } => {
                [halves(4, access.bits().into()), key, offset, len, 0, 0, 0, 0]
            }
            Self::Unregister { key } => [halves(5, 0), key, 0, 0, 0, 0, 0, 0],
            Self::Descriptor { key } => [halves(6, 0), key, 0, 0, 0, 0, 0, 0],
        };
        let mut bytes = [0; MESSAGE_SIZE];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Reads a message of `len` bytes, which may be anything.
    pub(super) fn decode(bytes: &[u8; MESSAGE_SIZE], len: usize) -> Result<Self, PeerFault> {
        if len != MESSAGE_SIZE {
            return Err(malformed("size of a socket message", len as u64, MESSAGE_SIZE as u64));
        }
        let mut words = [0; MESSAGE_SIZE / 8];
        for (word, place) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*place);
        }
        let (kind, second) = split(words[0]);
        if matches!(kind, 1 | 2) && words[1] != MAGIC {
            return Err(malformed("magic number", words[1], MAGIC));
        }
        if matches!(kind, 1 | 2) && second != VERSION {
            return Err(malformed("version of the shm transport", second.into(), VERSION.into()));
        }
        match (kind, words) {
            (1, [_, _, receives, address, n0, n1, ..]) => {
                let receives = RingTerms::of_word(receives);
                Ok(Self::Hello { receives, nonce: NonceClaim::new(address, n0, n1) })
            }
            (2, [_, _, to_server, to_client, address, n0, n1, cma]) => Ok(Self::Welcome {
                to_server: RingTerms::of_word(to_server),
                to_client: RingTerms::of_word(to_client),
                nonce: NonceClaim::new(address, n0, n1),
                cma: is_set(split(cma).0),
            }),
            (3, _) => Ok(Self::Ready { cma: is_set(second) }),
            (4, [_, key, offset, len, ..]) => {
                let access = u8::try_from(second).ok().and_then(Access::from_bits);
                let access = access.ok_or_else(|| malformed("access rights", second.into(), 3))?;
                Ok(Self::Register { key, offset, len, access })
            }
            (5, [_, key, ..]) => Ok(Self::Unregister { key }),
            (6, [_, key, ..]) => Ok(Self::Descriptor { key }),
            _ => Err(malformed("kind of a socket message", kind.into(), 6)),
        }
    }
}

/// Messages that a peer can always reserve at once.
const DEPTH_MIN: u16 = 4;

/// What a side with these parameters is ready to receive.
pub(super) fn receives(params: &ConnectParams) -> RingTerms {
    RingTerms { depth: params.recv_depth.max(DEPTH_MIN), payload_max: params.recv_payload_max }
}

/// What this side will send to one that is ready to receive this.
pub(super) fn sent(params: &ConnectParams, peer_receives: RingTerms) -> RingTerms {
    let depth = peer_receives.depth.min(params.send_depth_max.max(DEPTH_MIN));
    RingTerms { depth, payload_max: peer_receives.payload_max.min(params.send_payload_max) }
}

/// A peer fault out of line.
#[cold]
pub(super) fn malformed(what: &'static str, value: u64, limit: u64) -> PeerFault {
    PeerFault::Malformed { what, value, limit }
}

/// A word of two, the first of which has the lower address.
fn halves(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// The two of [`halves`].
fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

/// A flag is the byte with the lowest address of a half.
fn flag(set: bool) -> u32 {
    u32::from_ne_bytes([u8::from(set), 0, 0, 0])
}

fn is_set(half: u32) -> bool {
    half.to_ne_bytes()[0] != 0
}

impl NonceClaim {
    fn new(address: u64, first: u64, second: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first.to_ne_bytes());
        bytes[8..].copy_from_slice(&second.to_ne_bytes());
        Self { address, bytes }
    }

    fn words(&self) -> [u64; 2] {
        let [first, second] = [0, 8].map(|at| self.bytes[at..].first_chunk().copied().unwrap_or_default());
        [u64::from_ne_bytes(first), u64::from_ne_bytes(second)]
    }
}

impl RingTerms {
    fn word(self) -> u64 {
        halves(self.depth.into(), self.payload_max)
    }

    /// A depth past 16 bits is past every limit: it stays so.
    fn of_word(word: u64) -> Self {
        let (depth, payload_max) = split(word);
        Self { depth: u16::try_from(depth).unwrap_or(u16::MAX), payload_max }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages() -> Vec<Message> {
        let way = RingTerms { depth: 128, payload_max: 16_384 };
        let nonce = NonceClaim { address: 0x7000_0000_1234, bytes: *b"0123456789abcdef" };
        vec![
            Message::Hello { receives: way, nonce },
            Message::Welcome { to_server: way, to_client: way, cma: true, nonce },
            Message::Ready { cma: true },
            Message::Register { key: 1, offset: 2, len: 3, access: Access::REMOTE_WRITE },
            Message::Unregister { key: 9 },
            Message::Descriptor { key: 9 },
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
