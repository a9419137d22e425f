use byteorder::{ByteOrder, LittleEndian};
use thiserror::Error;

use super::Status;

/// Bytes that cannot be a message: malformed, so that the session ends, or wrong, which is answered ([`WireError::answer`]).
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum WireError {
    /// It ends too early.
    #[error("{what}: {missing} bytes are missing")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Bytes missing.
        missing: usize,
    },
    /// Something follows where the message must end.
    #[error("{what}: {extra} bytes too many")]
    TrailingBytes {
        /// The body.
        what: &'static str,
        /// Bytes too many.
        extra: usize,
    },
    /// A count or length beyond its limit.
    #[error("{what} is {value}, the limit is {limit}")]
    TooLarge {
        /// The field.
        what: &'static str,
        /// What was received.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A value that has no meaning here.
    #[error("{what} cannot be {value:#x}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// What was received.
        value: u64,
    },
    /// Bytes that mean nothing yet are not zero.
    #[error("{what} are {value:#x}, not zero")]
    Reserved {
        /// Of what.
        what: &'static str,
        /// The first of them.
        value: u8,
    },
    /// A name or path is said to be longer than any.
    #[error("{what} has {len} bytes, the limit is {limit}")]
    NameTooLong {
        /// The field.
        what: &'static str,
        /// The length before it.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// MessagePack that does not decode as the expected body.
    #[error("{what} does not decode: {reason}")]
    Body {
        /// The body.
        what: &'static str,
        /// The decoder's words.
        reason: String,
    },
}

impl WireError {
    /// What the body or payload of a request with this fault is answered: it is wrong, but can be taken apart. `None` where it cannot:
    /// whoever sent it broke the protocol. In a header every fault is one of the protocol.
    pub fn answer(&self) -> Option<Status> {
        match self {
            Self::Invalid { .. } => Some(Status::INVALID),
            Self::NameTooLong { .. } => Some(Status::NAME_TOO_LONG),
            Self::Truncated { .. }
            | Self::TrailingBytes { .. }
            | Self::TooLarge { .. }
            | Self::Reserved { .. }
            | Self::Body { .. } => None,
        }
    }
}

/// Reads fields in order from private bytes; never beyond their end.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from the beginning.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `len` bytes.
    #[inline]
    pub fn bytes(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(WireError::Truncated { what, missing: len - self.rest.len() }),
        }
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        Ok(self.bytes(what, 1)?[0])
    }

    /// 16 bits.
    #[inline]
    pub fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        Ok(LittleEndian::read_u16(self.bytes(what, 2)?))
    }

    /// 32 bits.
    #[inline]
    pub fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        Ok(LittleEndian::read_u32(self.bytes(what, 4)?))
    }

    /// 64 bits.
    #[inline]
    pub fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        Ok(LittleEndian::read_u64(self.bytes(what, 8)?))
    }

    /// Bytes with a 16-bit length before them, at most `limit`.
    pub fn prefixed(&mut self, what: &'static str, limit: usize) -> Result<&'a [u8], WireError> {
        let len = usize::from(self.u16(what)?);
        if len > limit {
            return Err(WireError::NameTooLong { what, len, limit });
        }
        self.bytes(what, len)
    }

    /// `len` bytes that must be zero.
    #[inline]
    pub fn reserved(&mut self, what: &'static str, len: usize) -> Result<(), WireError> {
        match self.bytes(what, len)?.iter().find(|byte| **byte != 0) {
            None => Ok(()),
            Some(value) => Err(WireError::Reserved { what, value: *value }),
        }
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Bytes left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Nothing may be left.
    #[inline]
    pub fn finish(&self, what: &'static str) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(WireError::TrailingBytes { what, extra }),
        }
    }
}

/// Writes fields in order into a fixed buffer. Running over is a fault of the calling code and panics.
#[derive(Debug)]
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Writes into `bytes` from the beginning.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }

    /// Raw bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// 16 bits.
    #[inline]
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// 32 bits.
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// 64 bits.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Bytes with a 16-bit length before them; the caller has checked the limit.
    pub fn prefixed(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u16::try_from(bytes.len()).expect("names and paths are checked against their limits first");
        self.u16(len).bytes(bytes)
    }

    /// Zero bytes.
    #[inline]
    pub fn reserved(&mut self, len: usize) -> &mut Self {
        self.bytes[self.len..self.len + len].fill(0);
        self.len += len;
        self
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
