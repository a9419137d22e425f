//! Tokens: what a session has open, for others to open as well. `spec/session.md`, "Tokens".
//!
//! The table decides who may use a token and for how long. It holds no nodes by itself: whoever puts a token in holds the
//! node for it ([`crate::worker::session::shared_nodes`]), and lets go of the nodes that the table gives back.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use dafs_proto::session::Moment;
use dafs_proto::wire::{Status, TOKEN_SIZE, Token};

use crate::storage::{Identity, NodeId};
use crate::worker::ids::SessionKey;
use crate::worker::session::handles::OpenHandle;

/// Tokens of a session that are alive.
pub(crate) const TOKENS_MAX: usize = 64;

/// Half of a token finds it; the other half is compared in a time that tells nothing.
type Half = [u8; TOKEN_SIZE / 2];

/// What a token stands for.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Who made it; it ends with that session.
    pub(crate) session: SessionKey,
    /// The key that its maker has proven.
    pub(crate) key_name: Option<String>,
    /// The file, readable and writable as far as the token allows.
    pub(crate) open: OpenHandle,
    /// It is over at this time.
    pub(crate) until: Moment,
}

/// The tokens of all sessions.
#[derive(Default)]
pub(crate) struct TokenTable {
    tokens: HashMap<Half, (Half, Shared)>,
    by_time: BTreeSet<(Moment, Half)>,
    by_session: HashMap<SessionKey, Vec<Half>>,
}

impl TokenTable {
    /// Adds a token, which is new.
    ///
    /// # Errors
    /// [`Status::TOO_MANY_OPEN`] when its session has [`TOKENS_MAX`].
    pub(crate) fn insert(&mut self, token: &Token, shared: Shared) -> Result<(), Status> {
        let own = self.by_session.entry(shared.session).or_default();
        if own.len() >= TOKENS_MAX {
            return Err(Status::TOO_MANY_OPEN);
        }
        let (name, secret) = halves(token);
        own.push(name);
        self.by_time.insert((shared.until, name));
        self.tokens.insert(name, (secret, shared));
        Ok(())
    }

    /// What a client opens by a token below the root of its own mount.
    ///
    /// # Errors
    /// [`Status::NO_TOKEN`] where the token is unknown or for others; [`Status::READ_ONLY`] where it allows what the mount does not.
    pub(crate) fn find(
        &self,
        token: &Token,
        root: &OpenHandle,
        key_name: Option<&str>,
    ) -> Result<OpenHandle, Status> {
        let (name, secret) = halves(token);
        let (expected, shared) = self.tokens.get(&name).ok_or(Status::NO_TOKEN)?;
        let difference = expected.iter().zip(secret).fold(0, |sum, (a, b)| sum | (a ^ b));
        let open = &shared.open;
        if difference != 0
            || open.node.export != root.node.export
            || shared.key_name.as_deref() != key_name
            || !acts_as(&root.rights.identity, &open.rights.identity)
        {
            return Err(Status::NO_TOKEN);
        }
        if open.writable && root.rights.read_only {
            return Err(Status::READ_ONLY);
        }
        Ok(OpenHandle { rights: root.rights.clone(), ..open.clone() })
    }

    /// Takes out one token whose time is over; its node.
    pub(crate) fn take_expired(&mut self, now: Moment) -> Option<NodeId> {
        let &(until, name) = self.by_time.first()?;
        if until > now { None } else { self.remove(name) }
    }

    /// Takes out one token of a session; its node.
    pub(crate) fn take_of(&mut self, session: SessionKey) -> Option<NodeId> {
        let name = *self.by_session.get(&session)?.last()?;
        self.remove(name)
    }

    fn remove(&mut self, name: Half) -> Option<NodeId> {
        let (_, shared) = self.tokens.remove(&name)?;
        self.by_time.remove(&(shared.until, name));
        if let Entry::Occupied(mut own) = self.by_session.entry(shared.session) {
            own.get_mut().retain(|own| *own != name);
            if own.get().is_empty() {
                own.remove();
            }
        }
        Some(shared.open.node)
    }
}

fn halves(token: &Token) -> (Half, Half) {
    let (mut name, mut secret) = (Half::default(), Half::default());
    name.copy_from_slice(&token.as_bytes()[..TOKEN_SIZE / 2]);
    secret.copy_from_slice(&token.as_bytes()[TOKEN_SIZE / 2..]);
    (name, secret)
}

/// The same user, group and supplementary groups: these have no order.
fn acts_as(one: &Identity, other: &Identity) -> bool {
    let includes = |a: &Identity, b: &Identity| b.groups.iter().all(|group| a.groups.contains(group));
    (one.uid, one.gid) == (other.uid, other.gid) && includes(one, other) && includes(other, one)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::access::MountRights;
    use crate::storage::ExportId;

    fn root(read_only: bool, gid: u32, groups: &[u32]) -> OpenHandle {
        let identity = Identity { uid: 7, gid, groups: groups.into() };
        OpenHandle {
            node: NodeId { export: ExportId(1), index: 0, generation: 0 },
            rights: Arc::new(MountRights { read_only, identity }),
            readable: true,
            writable: false,
            is_root: true,
        }
    }

    fn shared(session: usize, index: u32, until: u64) -> Shared {
        let root = root(false, 8, &[1, 2]);
        let node = NodeId { index, ..root.node };
        Shared {
            session: SessionKey(session),
            key_name: Some("team".to_owned()),
            open: OpenHandle { node, writable: true, is_root: false, ..root },
            until: Moment::from_millis(until),
        }
    }

    fn token(number: u8) -> Token {
        Token::from([number; TOKEN_SIZE])
    }

    // [SESS-70] [SESS-73] [SESS-77]
    #[test]
    fn token_opens_its_file_for_its_kind_of_client_only() {
        let mut table = TokenTable::default();
        table.insert(&token(1), shared(0, 5, 10)).unwrap();
        let own = root(false, 8, &[2, 1, 1]);
        let opened = table.find(&token(1), &own, Some("team")).unwrap();
        assert_eq!(
            (opened.node.index, opened.readable, opened.writable, opened.is_root),
            (5, true, true, false)
        );
        assert!(Arc::ptr_eq(&opened.rights, &own.rights), "who opens acts by its own mount");

        let other_export = OpenHandle { node: NodeId { export: ExportId(2), ..own.node }, ..own.clone() };
        let mut half_right = [1; TOKEN_SIZE];
        half_right[TOKEN_SIZE - 1] ^= 0x80;
        for (token, root, key) in [
            (token(2), &own, Some("team")),
            (Token::from(half_right), &own, Some("team")),
            (token(1), &other_export, Some("team")),
            (token(1), &own, Some("other")),
            (token(1), &own, None),
            (token(1), &root(false, 9, &[1, 2]), Some("team")),
            (token(1), &root(false, 8, &[1]), Some("team")),
            (token(1), &root(false, 8, &[1, 2, 3]), Some("team")),
            (token(1), &root(true, 8, &[]), Some("team")),
        ] {
            assert_eq!(table.find(&token, root, key).unwrap_err(), Status::NO_TOKEN, "{root:?} {key:?}");
        }
        assert_eq!(
            table.find(&token(1), &root(true, 8, &[1, 2]), Some("team")).unwrap_err(),
            Status::READ_ONLY
        );
    }

    // [SESS-77]
    #[test]
    fn token_to_read_by_opens_below_a_read_only_mount() {
        let mut table = TokenTable::default();
        let mut readable = shared(0, 5, 10);
        readable.open.writable = false;
        readable.key_name = None;
        table.insert(&token(1), readable).unwrap();
        assert!(!table.find(&token(1), &root(true, 8, &[1, 2]), None).unwrap().writable);
    }

    // [SESS-74]
    #[test]
    fn tokens_end_in_the_order_of_their_times_and_with_their_session() {
        let mut table = TokenTable::default();
        for (number, session, until) in [(1, 0, 30), (2, 1, 10), (3, 0, 20), (4, 1, 20)] {
            table.insert(&token(number), shared(session, number.into(), until)).unwrap();
        }
        let index = |node: Option<NodeId>| node.map(|node| node.index);
        assert_eq!(index(table.take_expired(Moment::from_millis(9))), None);
        assert_eq!(index(table.take_expired(Moment::from_millis(10))), Some(2));
        assert_eq!(index(table.take_expired(Moment::from_millis(10))), None);
        assert_eq!(index(table.take_of(SessionKey(1))), Some(4));
        assert_eq!(index(table.take_of(SessionKey(1))), None);
        assert_eq!(index(table.take_expired(Moment::from_millis(30))), Some(3));
        assert!(table.find(&token(3), &root(false, 8, &[1, 2]), Some("team")).is_err());
        assert_eq!(index(table.take_expired(Moment::from_millis(30))), Some(1));
        assert!(table.tokens.is_empty() && table.by_time.is_empty() && table.by_session.is_empty());
    }

    // [SESS-76]
    #[test]
    fn tokens_of_a_session_are_bounded() {
        let mut table = TokenTable::default();
        for number in 0..64 {
            table.insert(&token(number), shared(0, 1, 10)).unwrap();
        }
        assert_eq!(table.insert(&token(64), shared(0, 1, 10)), Err(Status::TOO_MANY_OPEN));
        table.insert(&token(64), shared(1, 1, 10)).unwrap();
        table.take_of(SessionKey(0)).unwrap();
        table.insert(&token(65), shared(0, 1, 10)).unwrap();
        assert_eq!(table.tokens.len(), 65);
    }
}
