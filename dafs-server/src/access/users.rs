//! Groups of users, from the system's user database.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Uid, User, getgrouplist};

use super::identity::NOBODY;
use crate::storage::Identity;

/// An answer is used again for this long.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Answers kept at most.
const KEPT_MAX: usize = 1024;

/// The user database, with its answers kept for a minute: it may be a directory service far away, and it is asked from the server's loop.
#[derive(Debug, Default)]
pub(super) struct Users {
    known: Mutex<HashMap<u32, (Instant, Identity)>>,
}

impl Users {
    /// The user with its groups. One that the database does not know has the group nobody and no others. Blocks while
    /// the database is asked.
    pub(super) fn identity(&self, uid: u32) -> Identity {
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, identity)) = known.get(&uid)
            && now.duration_since(*since) < KEPT_FOR
        {
            return identity.clone();
        }
        let identity = look_up(uid);
        if known.len() >= KEPT_MAX {
            known.clear();
        }
        known.insert(uid, (now, identity.clone()));
        identity
    }
}

fn look_up(uid: u32) -> Identity {
    let user = match User::from_uid(Uid::from_raw(uid)) {
        Ok(user) => user,
        Err(error) => {
            tracing::warn!(uid, %error, "the user database does not answer; the user has no groups");
            None
        }
    };
    let Some(user) = user else { return Identity { uid, gid: NOBODY, groups: Arc::from([]) } };
    let groups = CString::new(user.name).ok().and_then(|name| getgrouplist(&name, user.gid).ok());
    let groups = groups.unwrap_or_default().into_iter().map(Gid::as_raw);
    Identity { uid, gid: user.gid.as_raw(), groups: groups.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_root_has_group_root() {
        let root = Users::default().identity(0);
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
    }

    #[test]
    fn users_unknown_user_has_no_groups() {
        let users = Users::default();
        let expected = Identity { uid: 3_999_999_999, gid: NOBODY, groups: Arc::from([]) };
        assert_eq!(users.identity(3_999_999_999), expected);
        assert_eq!(users.identity(3_999_999_999), expected);
    }
}
