//! Tables of files in the store: each is read and written whole, by comparing and setting.

use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{SessionId, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::coordination::{Change, Compare, CoordinationError, Entry, Transaction};
use super::core::Core;
use super::records::{decode, encode};

/// Attempts to change a table that others change.
const ATTEMPTS_MAX: usize = 64;
/// Before another one.
const AGAIN_INTERVAL: Duration = Duration::from_millis(2);

/// What goes together with a change of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct More {
    /// The store is to know of this session.
    pub(super) session: Option<SessionId>,
    /// This key was written last in this revision; otherwise nothing is changed, and the status is `AGAIN`.
    pub(super) mark: Option<(String, u64)>,
}

fn rows_in<R: DeserializeOwned>(entries: &[Entry], key: &str) -> (Vec<R>, u64) {
    let entry = entries.iter().find(|entry| entry.key == key);
    entry.map_or((Vec::new(), 0), |entry| (decode(&entry.value).unwrap_or_default(), entry.revision))
}

impl Core {
    /// A table, and the revision in which it was written last.
    pub(super) fn read_table<R: DeserializeOwned>(
        &self,
        key: &str,
    ) -> Result<(Vec<R>, u64), CoordinationError> {
        let (entries, revision) = self.store.read(key)?;
        self.hear(revision);
        Ok(rows_in(&entries, key))
    }

    /// Changes a table, which was seen last as it is `known`, however others change it meanwhile. Returns what it is then.
    pub(super) fn change_table<R>(
        &self,
        key: &str,
        known: (Vec<R>, u64),
        more: More,
        change: impl Fn(Vec<R>) -> Result<Vec<R>, Status>,
    ) -> Result<Result<(Vec<R>, u64), Status>, CoordinationError>
    where
        R: Clone + PartialEq + Serialize + DeserializeOwned,
    {
        let (mut rows, mut revision) = known;
        let mut is_fresh = false;
        for attempt in 0..ATTEMPTS_MAX {
            let changed = match change(rows.clone()) {
                Ok(changed) => changed,
                // What was seen last may be long past.
                Err(_) if !is_fresh => {
                    (rows, revision) = self.read_table(key)?;
                    is_fresh = true;
                    continue;
                }
                Err(status) => return Ok(Err(status)),
            };
            if changed == rows {
                if is_fresh {
                    return Ok(Ok((rows, revision)));
                }
                // There is probably nothing to be written, as where a file is closed that nobody has locked.
                (rows, revision) = self.read_table(key)?;
                is_fresh = true;
                continue;
            }
            let found = match self.set_table(key, &changed, revision, &more)? {
                Set::Done(revision) => return Ok(Ok((changed, revision))),
                Set::Unmarked => return Ok(Err(Status::AGAIN)),
                Set::Changed(found) => found,
            };
            (rows, revision) = rows_in(&found, key);
            is_fresh = true;
            if attempt > 2 {
                self.rest(AGAIN_INTERVAL);
            }
        }
        Ok(Err(Status::AGAIN))
    }

    fn set_table<R: Serialize>(
        &self,
        key: &str,
        rows: &Vec<R>,
        revision: u64,
        more: &More,
    ) -> Result<Set, CoordinationError> {
        // It stays for a while: what the store writes later than its server waits must not find what it was meant for.
        let lease = if rows.is_empty() { self.recent_lease() } else { None };
        let mut changes = vec![Change::Put(key.to_owned(), encode(rows), lease)];
        let unwritten =
            more.session.and_then(|session| Some((session, lock(&self.sessions).get(&session)?.clone())));
        if let Some((session, (proof, false))) = unwritten {
            changes.push(Change::Put(self.keys.session(session), proof.into_bytes(), None));
        }
        let live = self.keys.live_server(self.number);
        let mut compares = vec![Compare::Present(live.clone()), Compare::At(key.to_owned(), revision)];
        let mut reads = vec![live.clone(), key.to_owned()];
        if let Some((mark, revision)) = &more.mark {
            compares.push(Compare::At(mark.clone(), *revision));
            reads.push(mark.clone());
        }
        let committed = self.commit(&Transaction { compares, changes, reads })?;
        if committed.succeeded {
            if let Some(session) = more.session
                && let Some(known) = lock(&self.sessions).get_mut(&session)
            {
                known.1 = true;
            }
            return Ok(Set::Done(committed.revision));
        }
        let revision_of = |key: &str| {
            let entry = committed.found.iter().find(|entry| entry.key == key);
            entry.map_or(0, |entry| entry.revision)
        };
        if revision_of(&live) == 0 {
            return Err(CoordinationError::NoLease);
        }
        let is_unmarked = more.mark.as_ref().is_some_and(|(mark, revision)| revision_of(mark) != *revision);
        Ok(if is_unmarked { Set::Unmarked } else { Set::Changed(committed.found) })
    }
}

/// What came of an attempt.
enum Set {
    /// It was set in this revision.
    Done(u64),
    /// The mark that it needs is not there.
    Unmarked,
    /// Somebody has changed it: this stands there.
    Changed(Vec<Entry>),
}
