//! As whom clients act.

use std::sync::Arc;

use rustix::process::{getegid, geteuid, getgroups};

use crate::storage::{Identity, may_change_identity};

/// User and group without rights of their own.
pub const NOBODY: u32 = 65_534;

/// As whom the clients of an export act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityMapping {
    /// As themselves where the server can ([`IdentityMapping::Client`]). Where it cannot, as the server, and then
    /// only the server's own user, root and holders of keys may mount.
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
    /// It may act as other users: it has `CAP_SETUID` and `CAP_SETGID`, and the kernel lets it use them.
    pub privileged: bool,
}

impl ServerIdentity {
    /// That of this process.
    pub fn of_process() -> std::io::Result<Self> {
        let identity = Identity {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: getgroups()?.into_iter().map(rustix::fs::Gid::as_raw).collect(),
        };
        Ok(Self { identity, privileged: may_change_identity() })
    }
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

/// A user or group id in decimal digits. 4294967295 is none: system calls take it for "leave it as it is".
pub(crate) fn parse_id(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| digits && *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_identity_is_the_effective_one() {
        let told = std::fs::read_to_string("/proc/self/status").unwrap();
        let numbers = |name: &str| {
            let line = told.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_ascii_whitespace().map(|number| number.parse().unwrap()).collect::<Vec<u32>>()
        };
        let server = ServerIdentity::of_process().unwrap();
        // Real, effective, saved, file system.
        assert_eq!([server.identity.uid, server.identity.gid], [numbers("Uid:")[1], numbers("Gid:")[1]]);
        assert_eq!(*server.identity.groups, *numbers("Groups:"));
        assert_eq!(server.privileged, may_change_identity());
    }

    #[test]
    fn id_is_decimal_and_possible() {
        assert_eq!(parse_id("0"), Some(0));
        assert_eq!(parse_id("4294967294"), Some(u32::MAX - 1));
        for text in ["4294967295", "4294967296", "", "-1", "+1", "root", "1 "] {
            assert_eq!(parse_id(text), None, "{text}");
        }
    }
}
