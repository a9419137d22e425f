//! What names servers and striped files.

use std::fmt;

use crate::error::{Error, Result};

/// Bytes of a server's name at most.
pub(crate) const NAME_SIZE_MAX: usize = 32;

/// Names a striped file and its pieces, or a data server, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StripeId(pub(crate) [u8; 16]);

impl StripeId {
    pub(crate) fn random() -> Result<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| Error::Random(error.to_string()))?;
        Ok(Self(id))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| u128::from_str_radix(text, 16).ok().map(|id| Self(id.to_be_bytes())))?
    }
}

impl fmt::Display for StripeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Whether layouts can name a server so.
pub(crate) fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=NAME_SIZE_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}
