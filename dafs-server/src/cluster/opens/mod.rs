//! Deny modes of all servers of a cluster. An open that denies nothing, of a file in whose bucket nobody denies anything, stays this
//! server's own. Any other is written into the store before it counts. `spec/design/cluster.md`, "Deny modes".
//!
//! - `state` has what sessions of this server have open, `table` is what the store has of a file.
//! - `marks` are set on buckets of files, and have all servers tell of their opens.
//! - `admission` asks when it is known which file an open is of.

pub(super) mod admission;
mod marks;
pub(super) mod state;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{OpenFlags, SessionId, Status};

use self::state::Waiter;
use self::table::{Claim, Opened, with_own, without};
use super::coordination::{Change, Compare, CoordinationError, Transaction};
use super::core::{Core, Tell, status_of};
use super::lock_table::Whose;
use super::records::decode;
use super::table::More;
use crate::storage::FileName;

/// Between two looks whether the store was told of all.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Changes of one transaction at most: etcd takes 128.
const CHANGES_MAX: usize = 100;

/// An open counts until this is dropped.
pub(super) struct OpenGuard {
    core: Arc<Core>,
    file: FileName,
    open: u64,
    /// The bucket whose mark it needs.
    needs: Option<u16>,
}

impl std::fmt::Debug for OpenGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenGuard").field("file", &self.file).field("open", &self.open).finish()
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.core.end_open(self.file, self.open, self.needs);
    }
}

impl Core {
    fn bucket(&self, file: FileName) -> u16 {
        let mixed = (file.file ^ file.generation.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        u16::try_from((mixed >> 32) % u64::from(self.config.buckets.max(1))).unwrap_or(0)
    }

    /// Counts an open that the store need not know of; `None` where it must. Without a mark nobody denies anything, at this server either.
    fn try_open(self: &Arc<Self>, file: FileName, session: SessionId, flags: OpenFlags) -> Option<OpenGuard> {
        let opened = Opened::one(session, flags);
        let mut state = lock(&self.opens.state);
        if opened.denies() || state.marks.marked.contains(&self.bucket(file)) {
            return None;
        }
        let open = state.add(file, opened, true);
        Some(OpenGuard { core: Arc::clone(self), file, open, needs: None })
    }

    /// Asks for an open: [`Status::SHARE_DENIED`] where it conflicts. Does not block.
    pub(super) fn ask_open(
        self: &Arc<Self>,
        file: FileName,
        session: SessionId,
        flags: OpenFlags,
        tell: Tell<Result<OpenGuard, Status>>,
    ) {
        let opened = Opened::one(session, flags);
        let before = lock(&self.befores).get(&session).copied();
        let needs = opened.denies().then(|| self.bucket(file));
        let open = {
            let mut state = lock(&self.opens.state);
            needs.into_iter().for_each(|bucket| state.marks.need(bucket));
            state.add(file, opened.clone(), false)
        };
        let (own, core) = (Arc::clone(self), Arc::clone(self));
        let guard = OpenGuard { core, file, open, needs };
        let claim = Claim { opened, before };
        let then: Waiter = Box::new(move |marked| match marked {
            Ok(()) => own.claim_in_turn(guard, claim, tell),
            Err(status) => {
                drop(guard);
                tell(Err(status));
            }
        });
        match needs {
            Some(bucket) => self.with_mark(bucket, then),
            None => then(Ok(())),
        }
    }

    fn claim_in_turn(
        self: &Arc<Self>,
        guard: OpenGuard,
        claim: Claim,
        tell: Tell<Result<OpenGuard, Status>>,
    ) {
        let (own, file) = (Arc::clone(self), guard.file);
        let claims = move || match own.write_opens(file, Some((&guard, &claim))) {
            Status::OK => tell(Ok(guard)),
            status => {
                drop(guard);
                tell(Err(status));
            }
        };
        self.opens.run_in_turn(file, Box::new(claims));
    }

    /// An open counts no more.
    fn end_open(self: &Arc<Self>, file: FileName, open: u64, needs: Option<u16>) {
        // Where a server leaves, its clients go on elsewhere with what they have open.
        if self.is_leaving() {
            return;
        }
        let is_in_store = {
            let mut state = lock(&self.opens.state);
            needs.into_iter().for_each(|bucket| state.marks.release(bucket, self.host.now()));
            state.remove(file, open)
        };
        if is_in_store {
            self.tell_of(file, Box::new(|_| {}));
        }
    }

    /// Has the store told what this server has open of a file, and says whether it was. Does not block.
    fn tell_of(self: &Arc<Self>, file: FileName, told: Tell<bool>) {
        let own = Arc::clone(self);
        self.opens.pending.fetch_add(1, Ordering::AcqRel);
        let tells = move || {
            let status = own.write_opens(file, None);
            if status != Status::OK {
                tracing::warn!(%status, "cannot tell the cluster yet who has a file open");
                lock(&own.opens.state).failed.push(file);
            }
            own.opens.pending.fetch_sub(1, Ordering::AcqRel);
            told(status == Status::OK);
        };
        self.opens.run_in_turn(file, Box::new(tells));
    }

    /// Waits until the store was told of all that was closed, as long as it answers.
    pub(super) fn await_opens(&self) {
        let until = self.host.now() + self.config.term();
        while self.opens.is_pending() && self.is_current() && self.host.now() < until {
            self.rest(LOOK_INTERVAL);
        }
    }

    /// Writes what this server has open of a file, with an open that is asked for. Blocks.
    fn write_opens(&self, file: FileName, claim: Option<(&OpenGuard, &Claim)>) -> Status {
        let written = self.insist(|| {
            let Some(snapshot) = lock(&self.opens.state).snapshot(file, claim.map(|(guard, _)| guard.open))
            else {
                return Ok(Status::OK);
            };
            self.write_proofs(&snapshot.rows)?;
            let mark = claim.and_then(|(guard, _)| guard.needs).map(|bucket| self.own_mark(bucket));
            let (key, known) = (self.keys.open(file), self.opens.known(file));
            let (more, claim) = (More { session: None, mark }, claim.map(|(_, claim)| claim));
            let change = |rows| with_own(rows, self.number, &snapshot.rows, claim);
            Ok(match self.change_table(&key, known, more, change)? {
                Err(status) => status,
                Ok((rows, revision)) => {
                    self.opens.learn(file, rows, revision);
                    lock(&self.opens.state).confirm(file, &snapshot);
                    Status::OK
                }
            })
        });
        written.unwrap_or_else(|error| status_of(&error))
    }

    /// The store is to know what proves whose sessions these are, so that their clients can take their opens again.
    fn write_proofs(&self, rows: &[Opened]) -> Result<(), CoordinationError> {
        let mut unwritten: Vec<(SessionId, String)> = Vec::new();
        {
            let sessions = lock(&self.sessions);
            for session in rows.iter().map(Opened::session) {
                if let Some((proof, false)) = sessions.get(&session)
                    && unwritten.last().is_none_or(|(last, _)| *last != session)
                {
                    unwritten.push((session, proof.clone()));
                }
            }
        }
        for part in unwritten.chunks(CHANGES_MAX) {
            let put = |(session, proof): &(SessionId, String)| {
                Change::Put(self.keys.session(*session), proof.clone().into_bytes(), None)
            };
            let compares = vec![Compare::Present(self.keys.live_server(self.number))];
            let changes = part.iter().map(put).collect();
            if !self.commit(&Transaction { compares, changes, reads: Vec::new() })?.succeeded {
                return Err(CoordinationError::NoLease);
            }
            let mut sessions = lock(&self.sessions);
            for (session, _) in part {
                sessions.entry(*session).and_modify(|known| known.1 = true);
            }
        }
        Ok(())
    }

    /// Opens of sessions that are over count no more, whatever files they are of. Blocks.
    pub(super) fn end_opens(&self, whose: Whose) -> Result<(), CoordinationError> {
        let (entries, revision) = self.store.read(&self.keys.opens())?;
        self.hear(revision);
        for entry in entries {
            let rows: Vec<Opened> = decode(&entry.value).unwrap_or_default();
            if !rows.iter().any(|row| whose.has_all_of(row.session())) {
                continue;
            }
            let change = |rows| Ok(without(rows, |session| whose.has_all_of(session)));
            let ended = self.change_table(&entry.key, (rows, entry.revision), More::default(), change)?;
            if let Err(status) = ended {
                tracing::warn!(%status, "cannot end what sessions that are gone had open");
            }
        }
        Ok(())
    }
}
