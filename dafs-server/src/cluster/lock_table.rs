//! The table of locks of one file, as it stands in the store. Arithmetic only.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Mutex;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{LockKind, SessionId, Status};
use serde::{Deserialize, Serialize};

use super::records::{ServerNumber, hex, server_of, unhex};
use crate::storage::FileName;

/// Parts of a file that are locked at most: a table is read and written whole.
const PARTS_MAX: usize = 1024;

/// A part of a file that is locked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) exclusive: bool,
    pub(super) session: u64,
    pub(super) owner: u64,
    /// The handle by which it was locked.
    pub(super) handle: u64,
    /// Hexadecimal.
    pub(super) client: String,
}

impl Part {
    fn reaches_into(&self, range: &Range<u64>) -> bool {
        self.start < range.end && range.start < self.end
    }

    /// As a client is told of it.
    pub(super) fn told(&self) -> LockInWay {
        LockInWay {
            range: self.start..self.end,
            kind: if self.exclusive { LockKind::Exclusive } else { LockKind::Shared },
            owner: self.owner,
            client: unhex(&self.client).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default(),
        }
    }

    fn is_of(&self, session: SessionId, owner: u64) -> bool {
        (self.session, self.owner) == (session.0, owner)
    }
}

/// A lock that is asked for.
#[derive(Clone, Debug)]
pub(crate) struct LockWish {
    pub(crate) file: FileName,
    pub(crate) range: Range<u64>,
    pub(crate) kind: LockKind,
    pub(crate) session: SessionId,
    pub(crate) owner: u64,
    pub(crate) handle: u64,
    pub(crate) client: [u8; 16],
    /// Its client's session before, which was of a server that is gone.
    pub(crate) before: Option<SessionId>,
    /// That one held all of it.
    pub(crate) reclaims: bool,
}

/// What is in the way of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInWay {
    pub(crate) range: Range<u64>,
    pub(crate) kind: LockKind,
    pub(crate) owner: u64,
    pub(crate) client: [u8; 16],
}

/// What locks are given back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    /// An owner's.
    Owner(SessionId, u64),
    /// Those that were taken by a handle of a session.
    Handle(SessionId, u64),
    /// All of a session.
    Session(SessionId),
    /// Those of all sessions of a server.
    Server(ServerNumber),
}

impl Whose {
    pub(super) fn has(&self, part: &Part) -> bool {
        match self {
            Self::Owner(session, owner) => part.is_of(*session, *owner),
            Self::Handle(session, handle) => (part.session, part.handle) == (session.0, *handle),
            Self::Session(session) => part.session == session.0,
            Self::Server(server) => server_of(SessionId(part.session)) == *server,
        }
    }

    /// All that this session has is meant.
    pub(super) fn has_all_of(&self, session: SessionId) -> bool {
        match self {
            Self::Owner(..) | Self::Handle(..) => false,
            Self::Session(own) => session == *own,
            Self::Server(server) => server_of(session) == *server,
        }
    }
}

/// Takes what is meant out of a range.
fn cut(parts: &mut Vec<Part>, range: &Range<u64>, is_meant: impl Fn(&Part) -> bool) {
    let before = std::mem::take(parts);
    for part in before {
        if !(part.reaches_into(range) && is_meant(&part)) {
            parts.push(part);
            continue;
        }
        if part.start < range.start {
            parts.push(Part { end: range.start, ..part.clone() });
        }
        if range.end < part.end {
            parts.push(Part { start: range.end, ..part });
        }
    }
}

/// What others hold of a range that a lock of this kind cannot share.
pub(super) fn in_way<'a>(parts: &'a [Part], wish: &LockWish) -> Option<&'a Part> {
    let is_exclusive = wish.kind == LockKind::Exclusive;
    parts.iter().find(|part| {
        let is_own = part.is_of(wish.session, wish.owner)
            || wish.before.is_some_and(|before| part.is_of(before, wish.owner));
        !is_own && part.reaches_into(&wish.range) && (is_exclusive || part.exclusive)
    })
}

/// The table with a lock in it.
pub(super) fn with(mut parts: Vec<Part>, wish: &LockWish) -> Result<Vec<Part>, Status> {
    if in_way(&parts, wish).is_some() {
        return Err(Status::LOCKED);
    }
    let before = wish.before.unwrap_or(wish.session);
    if wish.reclaims {
        // All of it must have been held, as strongly.
        let is_enough = |part: &&Part| {
            // An attempt that was not answered may have taken it already.
            let is_own = part.is_of(before, wish.owner) || part.is_of(wish.session, wish.owner);
            is_own && (part.exclusive || wish.kind == LockKind::Shared)
        };
        let own = parts.iter().filter(is_enough).map(|part| part.start..part.end);
        let own: rangemap::RangeSet<u64> = own.filter(|range| !range.is_empty()).collect();
        if own.gaps(&wish.range).next().is_some() {
            return Err(Status::NO_RECLAIM);
        }
    }
    // What the client was granted by a server that could not tell it any more is its own all the same.
    cut(&mut parts, &wish.range, |part| part.is_of(before, wish.owner));
    cut(&mut parts, &wish.range, |part| part.is_of(wish.session, wish.owner));
    parts.push(Part {
        start: wish.range.start,
        end: wish.range.end,
        exclusive: wish.kind == LockKind::Exclusive,
        session: wish.session.0,
        owner: wish.owner,
        handle: wish.handle,
        client: hex(&wish.client),
    });
    tidy(&mut parts);
    if parts.len() > PARTS_MAX { Err(Status::TOO_MANY_LOCKS) } else { Ok(parts) }
}

/// The table without what is meant in a range.
pub(super) fn without(mut parts: Vec<Part>, range: &Range<u64>, whose: Whose) -> Result<Vec<Part>, Status> {
    cut(&mut parts, range, |part| whose.has(part));
    tidy(&mut parts);
    if parts.len() > PARTS_MAX { Err(Status::TOO_MANY_LOCKS) } else { Ok(parts) }
}

/// In order, and with what touches as one.
fn tidy(parts: &mut Vec<Part>) {
    parts.sort_by(|a, b| {
        (a.session, a.owner, a.handle, a.exclusive, a.start).cmp(&(
            b.session,
            b.owner,
            b.handle,
            b.exclusive,
            b.start,
        ))
    });
    parts.dedup_by(|next, kept| {
        let is_one =
            next.start == kept.end && Part { start: kept.start, end: kept.end, ..next.clone() } == *kept;
        if is_one {
            kept.end = next.end;
        }
        is_one
    });
    parts.sort_by_key(|part| part.start);
}

/// Tables that are remembered, of which some are empty.
const TABLES_MAX: usize = 4096;

/// Tables as this server saw them last, of files that its sessions have locked, and which those are.
#[derive(Default)]
pub(super) struct LockTables {
    tables: Mutex<HashMap<FileName, (Vec<Part>, u64)>>,
    files: Mutex<HashMap<SessionId, HashSet<FileName>>>,
}

impl LockTables {
    /// A session may have locks of a file from now on.
    pub(super) fn note(&self, session: SessionId, file: FileName) {
        lock(&self.files).entry(session).or_default().insert(file);
    }

    /// A session has ended: the files in which it may have locks.
    pub(super) fn forget(&self, session: SessionId) -> HashSet<FileName> {
        lock(&self.files).remove(&session).unwrap_or_default()
    }

    pub(super) fn known(&self, file: FileName) -> (Vec<Part>, u64) {
        lock(&self.tables).get(&file).cloned().unwrap_or_default()
    }

    pub(super) fn learn(&self, file: FileName, parts: Vec<Part>, revision: u64) {
        let mut tables = lock(&self.tables);
        tables.insert(file, (parts, revision));
        if tables.len() > TABLES_MAX {
            tables.retain(|_, (parts, _)| !parts.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wish(session: u64, owner: u64, range: Range<u64>, kind: LockKind) -> LockWish {
        LockWish {
            file: FileName { file: 1, generation: 1 },
            range,
            kind,
            session: SessionId(session),
            owner,
            handle: 0,
            client: [0; 16],
            before: None,
            reclaims: false,
        }
    }

    proptest! {
        /// Against what each offset has.
        #[test]
        fn table_holds_what_each_offset_was_locked_for(
            steps in prop::collection::vec((0u64..3, 0u64..2, 0u64..12, 1u64..6, any::<bool>(), any::<bool>()), 1..60)
        ) {
            let mut parts = Vec::new();
            let mut model: Vec<HashMap<(u64, u64), bool>> = vec![HashMap::new(); 20];
            for (session, owner, start, len, exclusive, unlocks) in steps {
                let range = start..start + len;
                let cells = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
                if unlocks {
                    cut(&mut parts, &range, |part| part.is_of(SessionId(session), owner));
                    tidy(&mut parts);
                    model[cells].iter_mut().for_each(|cell| { cell.remove(&(session, owner)); });
                } else {
                    let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
                    let conflicts = model[cells.clone()].iter().any(|cell| {
                        cell.iter().any(|(who, other)| *who != (session, owner) && (exclusive || *other))
                    });
                    match with(parts.clone(), &wish(session, owner, range, kind)) {
                        Ok(changed) => {
                            prop_assert!(!conflicts);
                            parts = changed;
                            model[cells].iter_mut().for_each(|cell| { cell.insert((session, owner), exclusive); });
                        }
                        Err(status) => prop_assert!(conflicts && status == Status::LOCKED),
                    }
                }
                for (at, cell) in model.iter().enumerate() {
                    let at = at as u64;
                    let found: Vec<_> = parts.iter().filter(|part| part.start <= at && at < part.end).collect();
                    prop_assert_eq!(found.len(), cell.len());
                    for part in found {
                        prop_assert_eq!(cell.get(&(part.session, part.owner)), Some(&part.exclusive));
                    }
                }
            }
        }
    }

    #[test]
    fn lock_of_a_lost_session_is_taken_again_by_its_successor_alone() {
        let parts = with(Vec::new(), &wish(1, 7, 0..10, LockKind::Exclusive)).unwrap();
        let again = |before, owner, range: Range<u64>| {
            let wish = wish(2, owner, range, LockKind::Exclusive);
            with(parts.clone(), &LockWish { before: Some(SessionId(before)), reclaims: true, ..wish })
        };
        let taken = again(1, 7, 2..5).unwrap();
        assert_eq!(
            taken.iter().filter(|part| part.session == 1).map(|part| part.end - part.start).sum::<u64>(),
            7
        );
        assert_eq!(taken.iter().filter(|part| part.session == 2).count(), 1);
        assert_eq!(again(1, 7, 5..11), Err(Status::NO_RECLAIM));
        assert_eq!(again(3, 7, 2..5), Err(Status::LOCKED));
        assert_eq!(again(1, 8, 2..5), Err(Status::LOCKED));
    }
}
