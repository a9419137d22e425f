use dafs_client::{FileIdentity, Token};
use serde::{Deserialize, Serialize};

use crate::error::{Class, Error, Result};
use crate::name::FileAddress;

/// What one process tells the others, so that they have the same file open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ticket {
    version: u32,
    /// By which the server gives a handle; `None` where it has no tokens.
    token: Option<Vec<u8>>,
    export: String,
    path: Vec<u8>,
    /// Which file it is, for those who open it by path.
    file_id: u64,
    generation: u64,
    /// By which they name what is of this open alone.
    key: u64,
}

const VERSION: u32 = 3;

impl Ticket {
    pub(super) fn new(token: Option<&Token>, place: &FileAddress, identity: FileIdentity, key: u64) -> Self {
        use std::os::unix::ffi::OsStrExt;
        Self {
            version: VERSION,
            token: token.map(|token| token.as_bytes().to_vec()),
            export: place.export.clone(),
            path: place.path.as_os_str().as_bytes().to_vec(),
            file_id: identity.file_id,
            generation: identity.generation,
            key,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        rmp_serde::to_vec(self).expect("names and numbers can be encoded")
    }

    /// Reads what another process of the same program wrote.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let broken =
            |what: String| Error::new(Class::Argument, format!("the ticket of another rank: {what}"));
        let ticket: Self = rmp_serde::from_slice(bytes).map_err(|error| broken(error.to_string()))?;
        match ticket.version {
            VERSION => Ok(ticket),
            other => Err(broken(format!("version {other}: all ranks need the same version of adio-dafs"))),
        }
    }

    pub(super) fn token(&self) -> Option<Token> {
        self.token.as_deref().and_then(Token::from_bytes)
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn identity(&self) -> FileIdentity {
        FileIdentity { file_id: self.file_id, generation: self.generation }
    }

    /// The place is the one that the ticket is for.
    pub(super) fn check(&self, place: &FileAddress) -> Result<()> {
        use std::os::unix::ffi::OsStrExt;
        if self.export == place.export && self.path == place.path.as_os_str().as_bytes() {
            return Ok(());
        }
        let other = String::from_utf8_lossy(&self.path);
        let what = format!(
            "{} here is /{}/{other} at the rank that opened it: DAFS_ADDRESS and DAFS_MPI_PREFIX must be the same on all ranks",
            place.shown, self.export
        );
        Err(Error::new(Class::BadFile, what))
    }
}
