use std::fmt;

use super::body::body;
use super::{OpenFlags, Reader, WireError};

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

body! {
    /// Body of a share, 8 bytes; the header's handle is the open file. Flags of an open that are no rights are refused.
    pub struct ShareRequest("share request") {
        /// What the token allows: [`OpenFlags::READ`], [`OpenFlags::WRITE`] or both.
        pub rights: OpenFlags = "rights to share",
        /// How long the token is to live, milliseconds; 0 for the server's default.
        pub ttl_ms: u32 = "lifetime of a token",
    }
    check |request| match (OpenFlags::READ | OpenFlags::WRITE).contains(request.rights) {
        true => Ok(()),
        false => Err(WireError::Invalid { what: "rights to share", value: u64::from(request.rights.bits()) }),
    }
}

body! {
    /// Body of the answer to a share, 8 bytes; the payload is the [`Token`].
    pub struct ShareReply("share reply") {
        /// How long the token lives, milliseconds.
        pub ttl_ms: u32 = "lifetime of a token" and 4 reserved,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Writer;
    use super::*;

    // [SESS-109]
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

    // [WIRE-138]
    #[test]
    fn rights_that_are_none_are_refused() {
        for bits in 0..=if cfg!(miri) { 99 } else { u16::MAX.into() } {
            let mut body = [0; 8];
            Writer::new(&mut body).u32(bits);
            assert_eq!(ShareRequest::decode(&body).is_ok(), bits <= 3, "{bits:#x}");
        }
    }
}
