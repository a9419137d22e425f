//! As whom clients act.

use std::sync::Arc;

use crate::backend::Identity;

/// User and group without rights of their own.
pub const NOBODY: u32 = 65_534;

/// As whom the clients of an export act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityMapping {
    /// As themselves where the server can ([`IdentityMapping::Client`]). Where it cannot, as the server, and then only the server's own user, root and holders of keys may mount.
    #[default]
    Auto,
    /// `map=client`: as themselves. Needs a privileged server, except for memory.
    Client,
    /// `squash=server`: all as the user that the server runs as.
    Server,
    /// `squash=UID:GID`: all as one user.
    Fixed {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
}

/// As whom the server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Its effective user, group and supplementary groups.
    pub identity: Identity,
    /// It may act as other users: `CAP_SETUID` and `CAP_SETGID`.
    pub privileged: bool,
}

impl Default for ServerIdentity {
    /// Nobody, without privileges.
    fn default() -> Self {
        Self { identity: nobody(), privileged: false }
    }
}

pub(super) fn nobody() -> Identity {
    Identity { uid: NOBODY, gid: NOBODY, groups: Arc::from([]) }
}
