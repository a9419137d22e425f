//! Tokens, by which other sessions open what one session has open. `spec/protocol/session.md`, "Tokens".
//!
//! The table decides who may use a token and for how long. A token keeps its file open, even if all handles are closed. What the table
//! gives back may take long to drop.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use dafs_proto::budget::Charge;
use dafs_proto::session::Moment;
use dafs_proto::wire::{OpenFlags, SessionId, Status, TOKEN_SIZE, Token};

use crate::shared::shares::Share;
use crate::storage::{ExportId, Identity, SharedFile};

/// Half of a token finds it; the other half is compared in a time that tells nothing.
type Half = [u8; TOKEN_SIZE / 2];

/// A file as a token names it.
#[derive(Clone)]
pub(crate) struct TokenFile {
    pub(crate) export: ExportId,
    pub(crate) file: SharedFile,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// As its maker has opened it.
    pub(crate) opened: OpenFlags,
    /// That of the open which it was made of: whoever opens by it takes part in that.
    pub(crate) share: Option<Arc<Share>>,
}

/// What a token stands for.
pub(crate) struct Grant {
    /// Who made it; it ends with that session.
    pub(crate) maker: SessionId,
    /// The key that its maker has proven.
    pub(crate) key_name: Option<String>,
    /// As whom its maker acts in the export.
    pub(crate) identity: Identity,
    /// The file, readable and writable as far as the token allows.
    pub(crate) open: TokenFile,
    /// It is over at this time.
    pub(crate) until: Moment,
    /// Of its maker: the file stays open when the maker has closed it.
    pub(crate) _descriptors: Charge,
}

/// Who wants to open a token: a client, below a root that it has mounted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) export: ExportId,
    pub(crate) identity: &'a Identity,
    pub(crate) read_only: bool,
    pub(crate) key_name: Option<&'a str>,
}

/// The tokens of all sessions.
#[derive(Default)]
pub(crate) struct TokenTable {
    tokens: HashMap<Half, (Half, Grant)>,
    by_time: BTreeSet<(Moment, Half)>,
    by_session: HashMap<SessionId, Vec<Half>>,
}

impl TokenTable {
    /// Adds a token, which is new.
    ///
    /// # Errors
    /// [`Status::TOO_MANY_OPEN`] when its session has `max` that are alive.
    pub(crate) fn insert(&mut self, token: &Token, grant: Grant, max: u32) -> Result<(), Status> {
        let own = self.by_session.entry(grant.maker).or_default();
        if own.len() >= max as usize {
            return Err(Status::TOO_MANY_OPEN);
        }
        let (name, secret) = halves(token);
        own.push(name);
        self.by_time.insert((grant.until, name));
        self.tokens.insert(name, (secret, grant));
        Ok(())
    }

    /// What a client opens by a token.
    ///
    /// # Errors
    /// [`Status::NO_TOKEN`] where the token is unknown or for others; [`Status::READ_ONLY`] where it allows what the mount does not.
    pub(crate) fn find(&self, token: &Token, claim: &Claim<'_>) -> Result<TokenFile, Status> {
        let (name, secret) = halves(token);
        let (expected, grant) = self.tokens.get(&name).ok_or(Status::NO_TOKEN)?;
        let difference = expected.iter().zip(secret).fold(0, |sum, (a, b)| sum | (a ^ b));
        if difference != 0
            || grant.open.export != claim.export
            || grant.key_name.as_deref() != claim.key_name
            || !grant.identity.is_same(claim.identity)
        {
            return Err(Status::NO_TOKEN);
        }
        if grant.open.writable && claim.read_only {
            return Err(Status::READ_ONLY);
        }
        Ok(grant.open.clone())
    }

    /// Takes out one token whose time is over; its file.
    pub(crate) fn take_expired(&mut self, now: Moment) -> Option<TokenFile> {
        let &(until, name) = self.by_time.first()?;
        if until > now { None } else { self.remove(name) }
    }

    /// Takes out one token of a session; its file.
    pub(crate) fn take_of(&mut self, session: SessionId) -> Option<TokenFile> {
        let name = *self.by_session.get(&session)?.last()?;
        self.remove(name)
    }

    fn remove(&mut self, name: Half) -> Option<TokenFile> {
        let (_, grant) = self.tokens.remove(&name)?;
        self.by_time.remove(&(grant.until, name));
        if let Entry::Occupied(mut own) = self.by_session.entry(grant.maker) {
            own.get_mut().retain(|own| *own != name);
            if own.get().is_empty() {
                own.remove();
            }
        }
        Some(grant.open)
    }
}

fn halves(token: &Token) -> (Half, Half) {
    let (mut name, mut secret) = (Half::default(), Half::default());
    name.copy_from_slice(&token.as_bytes()[..TOKEN_SIZE / 2]);
    secret.copy_from_slice(&token.as_bytes()[TOKEN_SIZE / 2..]);
    (name, secret)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dafs_proto::budget::{Budget, Owner};

    use super::*;

    const MAX: u32 = 64;

    fn identity(gid: u32, groups: &[u32]) -> Identity {
        Identity { uid: 7, gid, groups: groups.into() }
    }

    fn grant(maker: u64, number: u32, until: u64) -> Grant {
        Grant {
            maker: SessionId(maker),
            key_name: Some("team".to_owned()),
            identity: identity(8, &[1, 2]),
            open: TokenFile {
                export: ExportId(1),
                file: Arc::new(number),
                readable: true,
                writable: true,
                opened: OpenFlags::READ | OpenFlags::WRITE,
                share: None,
            },
            until: Moment::from_millis(until),
            _descriptors: Budget::unlimited().count(&Owner::User(8), 0),
        }
    }

    fn number(open: Option<TokenFile>) -> Option<u32> {
        open.map(|open| *open.file.downcast_ref::<u32>().unwrap())
    }

    fn token(number: u8) -> Token {
        Token::from([number; TOKEN_SIZE])
    }

    fn claim<'a>(identity: &'a Identity, key_name: Option<&'a str>) -> Claim<'a> {
        Claim { export: ExportId(1), identity, read_only: false, key_name }
    }

    // [SESS-73] [SESS-114]
    #[test]
    fn token_opens_its_file_for_its_kind_of_client_only() {
        let mut table = TokenTable::default();
        table.insert(&token(1), grant(0, 5, 10), MAX).unwrap();
        let same = identity(8, &[2, 1, 1]);
        let own = claim(&same, Some("team"));
        let opened = table.find(&token(1), &own).unwrap();
        assert!(opened.readable && opened.writable);
        assert_eq!(number(Some(opened)), Some(5));

        let mut half_right = [1; TOKEN_SIZE];
        half_right[TOKEN_SIZE - 1] ^= 0x80;
        let others = [identity(9, &[1, 2]), identity(8, &[1]), identity(8, &[1, 2, 3]), identity(8, &[])];
        for (token, claim) in [
            (token(2), own),
            (Token::from(half_right), own),
            (token(1), Claim { export: ExportId(2), ..own }),
            (token(1), Claim { key_name: Some("other"), ..own }),
            (token(1), Claim { key_name: None, ..own }),
            (token(1), claim(&others[0], Some("team"))),
            (token(1), claim(&others[1], Some("team"))),
            (token(1), claim(&others[2], Some("team"))),
            (token(1), Claim { read_only: true, ..claim(&others[3], Some("team")) }),
        ] {
            assert_eq!(table.find(&token, &claim).err(), Some(Status::NO_TOKEN), "{claim:?}");
        }
        let read_only = Claim { read_only: true, ..own };
        assert_eq!(table.find(&token(1), &read_only).err(), Some(Status::READ_ONLY));
    }

    // [SESS-114]
    #[test]
    fn token_to_read_by_opens_below_a_read_only_mount() {
        let mut table = TokenTable::default();
        let mut readable = grant(0, 5, 10);
        readable.open.writable = false;
        readable.key_name = None;
        table.insert(&token(1), readable, MAX).unwrap();
        let same = identity(8, &[1, 2]);
        let found = table.find(&token(1), &Claim { read_only: true, ..claim(&same, None) });
        assert!(!found.unwrap_or_else(|status| panic!("{status}")).writable);
    }

    // [SESS-112]
    #[test]
    fn tokens_end_in_the_order_of_their_times_and_with_their_session() {
        let mut table = TokenTable::default();
        for (number, maker, until) in [(1, 0, 30), (2, 1, 10), (3, 0, 20), (4, 1, 20)] {
            table.insert(&token(number), grant(maker, number.into(), until), MAX).unwrap();
        }
        assert_eq!(number(table.take_expired(Moment::from_millis(9))), None);
        assert_eq!(number(table.take_expired(Moment::from_millis(10))), Some(2));
        assert_eq!(number(table.take_expired(Moment::from_millis(10))), None);
        assert_eq!(number(table.take_of(SessionId(1))), Some(4));
        assert_eq!(number(table.take_of(SessionId(1))), None);
        assert_eq!(number(table.take_expired(Moment::from_millis(30))), Some(3));
        let same = identity(8, &[1, 2]);
        assert!(table.find(&token(3), &claim(&same, Some("team"))).is_err());
        assert_eq!(number(table.take_expired(Moment::from_millis(30))), Some(1));
        assert!(table.tokens.is_empty() && table.by_time.is_empty() && table.by_session.is_empty());
    }

    // [SESS-76]
    #[test]
    fn tokens_of_a_session_are_bounded() {
        let mut table = TokenTable::default();
        for number in 0..64 {
            table.insert(&token(number), grant(0, 1, 10), MAX).unwrap();
        }
        assert_eq!(table.insert(&token(64), grant(0, 1, 10), MAX), Err(Status::TOO_MANY_OPEN));
        table.insert(&token(64), grant(1, 1, 10), MAX).unwrap();
        table.take_of(SessionId(0)).unwrap_or_else(|| panic!("it has tokens"));
        table.insert(&token(65), grant(0, 1, 10), MAX).unwrap();
        assert_eq!(table.tokens.len(), 65);
    }
}
