use std::fmt;

use super::{HEADER_SIZE, OpenFlags, Reader, WireError, Writer};

/// Bytes of a [`Token`].
pub const TOKEN_SIZE: usize = 32;

/// Names a file that a session has open, so that other sessions open the same: payload of the answer to `Share` and of
/// `OpenToken`. A secret while it lives; [`fmt::Debug`] does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; TOKEN_SIZE]);

impl Token {
    /// Makes a token of exactly [`TOKEN_SIZE`] bytes; `None` of any other number.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Its bytes, to be handed to another session.
    pub fn as_bytes(&self) -> &[u8; TOKEN_SIZE] {
        &self.0
    }

    /// Reads the payload of a message.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let mut token = [0; TOKEN_SIZE];
        token.copy_from_slice(reader.bytes("token", TOKEN_SIZE)?);
        reader.finish("token")?;
        Ok(Self(token))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl From<[u8; TOKEN_SIZE]> for Token {
    fn from(bytes: [u8; TOKEN_SIZE]) -> Self {
        Self(bytes)
    }
}

/// Body of a share, 8 bytes; the header's handle is the open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// What the token allows: [`OpenFlags::READ`], [`OpenFlags::WRITE`] or both.
    pub rights: OpenFlags,
    /// How long the token is to live, milliseconds; 0 for the server's default.
    pub ttl_ms: u32,
}

impl ShareRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u32(self.rights.bits()).u32(self.ttl_ms);
    }

    /// Reads the body. Flags of an open that are no rights are refused.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let bits = reader.u32("rights to share")?;
        let rights = OpenFlags::from_bits(bits)
            .filter(|rights| (OpenFlags::READ | OpenFlags::WRITE).contains(*rights))
            .ok_or(WireError::Invalid { what: "rights to share", value: u64::from(bits) })?;
        let ttl_ms = reader.u32("lifetime of a token")?;
        reader.finish("share request")?;
        Ok(Self { rights, ttl_ms })
    }
}

/// Body of the answer to a share, 8 bytes; the payload is the [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareReply {
    /// How long the token lives, milliseconds.
    pub ttl_ms: u32,
}

impl ShareReply {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u32(self.ttl_ms).reserved(4);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let ttl_ms = reader.u32("lifetime of a token")?;
        reader.reserved("reserved share reply bytes", 4)?;
        reader.finish("share reply")?;
        Ok(Self { ttl_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_shown_for_debugging_keeps_its_secret() {
        let token = Token::from([0xa7; TOKEN_SIZE]);
        let shown = format!("{token:?} {token:#?}").to_lowercase();
        assert!(!shown.contains("a7") && !shown.contains("167"), "{shown}");
    }

    // [WIRE-2] [WIRE-12]
    #[test]
    fn token_of_another_size_is_refused() {
        let bytes = [5; TOKEN_SIZE + 1];
        for len in [0, 1, TOKEN_SIZE - 1, TOKEN_SIZE + 1] {
            assert!(Token::decode(&bytes[..len]).is_err(), "{len} bytes");
            assert!(Token::from_bytes(&bytes[..len]).is_none(), "{len} bytes");
        }
        assert_eq!(Token::decode(&bytes[..TOKEN_SIZE]).map(|token| *token.as_bytes()), Ok([5; TOKEN_SIZE]));
    }

    // [WIRE-4]
    #[test]
    fn rights_that_are_none_are_refused() {
        for bits in 0..=u16::MAX.into() {
            let mut body = [0; 8];
            Writer::new(&mut body).u32(bits);
            assert_eq!(ShareRequest::decode(&body).is_ok(), bits <= 3, "{bits:#x}");
        }
    }
}
