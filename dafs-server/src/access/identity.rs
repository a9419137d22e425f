//! As whom clients act.

use std::sync::Arc;

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
        let status = std::fs::read_to_string("/proc/self/status")?;
        let mut own = Self::from_status(&status)
            .ok_or_else(|| std::io::Error::other("/proc/self/status has no users, groups or capabilities"))?;
        own.privileged = own.privileged && may_change_identity();
        Ok(own)
    }

    /// From the text of `/proc/self/status`, as far as that tells.
    fn from_status(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        // Real, effective, saved, file system.
        let effective = |name| field(name)?.split_ascii_whitespace().nth(1)?.parse().ok();
        let groups = field("Groups")?.split_ascii_whitespace().map(|group| group.parse().ok());
        let capabilities = u64::from_str_radix(field("CapEff")?.trim(), 16).ok()?;
        Some(Self {
            identity: Identity {
                uid: effective("Uid")?,
                gid: effective("Gid")?,
                groups: groups.collect::<Option<_>>()?,
            },
            privileged: capabilities & CAPABILITIES_TO_ACT_AS_OTHERS == CAPABILITIES_TO_ACT_AS_OTHERS,
        })
    }
}

/// `CAP_SETGID` (6) and `CAP_SETUID` (7).
const CAPABILITIES_TO_ACT_AS_OTHERS: u64 = 1 << 6 | 1 << 7;

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

    fn status(capabilities: &str) -> String {
        format!(
            "Name:\tdafs-server\nUid:\t1\t1000\t3\t4\nGid:\t5\t100\t7\t8\n\
             FDSize:\t64\nGroups:\t100 24 \nCapPrm:\t00\nCapEff:\t{capabilities}\n"
        )
    }

    #[test]
    fn server_identity_is_the_effective_one() {
        let server = ServerIdentity::from_status(&status("0000000000000000")).unwrap();
        assert_eq!(server.identity, Identity { uid: 1000, gid: 100, groups: Arc::from([100, 24]) });
        assert!(!server.privileged);
    }

    #[test]
    fn server_is_privileged_with_both_capabilities_only() {
        for (capabilities, privileged) in [
            ("000001ffffffffff", true),
            ("00000000000000c0", true),
            ("0000000000000040", false),
            ("0000000000000080", false),
        ] {
            assert_eq!(
                ServerIdentity::from_status(&status(capabilities)).unwrap().privileged,
                privileged,
                "{capabilities}"
            );
        }
    }

    #[test]
    fn server_identity_without_a_field_is_none() {
        let whole = status("0");
        for field in ["Uid", "Gid", "Groups", "CapEff"] {
            assert_eq!(ServerIdentity::from_status(&whole.replace(field, "X")), None, "{field}");
        }
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
