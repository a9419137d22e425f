//! Locks that outlive their owners, and the server: what is to be kept of them, and what was kept.

use std::collections::{HashMap, HashSet};
use std::iter::successors;
use std::ops::Range;

use dafs_proto::wire::{LockKind, SessionId, Status};

use super::held::{Held, Lasting, Owner};
use super::restart::Restart;
use super::{FileLocks, Freed, LockTable};
use crate::shared::store::{FileName, LocksChange, Record};
use crate::storage::{LockKey, work};

/// What is in the store alone.
#[derive(Debug, Default)]
pub(super) struct Lastings {
    /// There is a store for them.
    are_kept: bool,
    kept: HashMap<FileName, Vec<Record>>,
    /// Of those, the mandatory ones.
    mandatory: usize,
}

impl Lastings {
    /// Some are in the store alone.
    pub(super) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    pub(super) fn has_mandatory(&self) -> bool {
        self.mandatory > 0
    }
}

impl LockTable {
    /// Takes up what a file has kept: sessions that had locks, and those that last. They are broken until somebody takes them again.
    pub(crate) fn restore(&mut self, sessions: HashSet<SessionId>, files: Vec<(FileName, Vec<Record>)>) {
        self.restart = Restart::of(sessions);
        self.lasting.are_kept = true;
        self.lasting.kept = files.into_iter().collect();
        let records = self.lasting.kept.values().flatten();
        self.lasting.mandatory = records.filter(|record| record.is_mandatory).count();
    }

    /// A lock may outlive its owner here.
    pub(super) fn check_lasting(&self, file: LockKey, range: &Range<u64>, held: &Held) -> Result<(), Status> {
        if held.lasting != Lasting::No {
            let is_of_another = |(key, locks): (LockKey, &FileLocks)| {
                if key == file {
                    return false;
                }
                let mut waiters = work::looked(locks.waiters.values());
                let is_awaited = waiters.any(|waiter| waiter.held.lasting != Lasting::No);
                is_awaited || locks.segments.lasting_count() > 0
            };
            if !self.lasting.are_kept || file.generation == 0 || self.of_name(file).any(is_of_another) {
                return Err(Status::NOT_SUPPORTED);
            }
        }
        let Some(locks) = self.files.get(&file) else { return Ok(()) };
        // Whoever asks again for what he has, or waits for, takes no more.
        let is_known = || locks.segments.holds(range, held) || self.wait_for(file, range, held).is_some();
        match locks.segments.has_room_for_lasting(range, held) || is_known() {
            true => Ok(()),
            false => Err(Status::TOO_MANY_LOCKS),
        }
    }

    /// Somebody asks about a file: what was kept of it holds.
    pub(super) fn adopt(&mut self, file: LockKey) {
        if self.lasting.kept.is_empty() || file.generation == 0 {
            return;
        }
        let Some(records) = self.lasting.kept.remove(&(file.file, file.generation)) else { return };
        let segments = &mut self.files.entry(file).or_default().segments;
        for record in records {
            self.lasting.mandatory -= usize::from(record.is_mandatory);
            let held = Held {
                owner: Owner { session: SessionId(record.session), id: record.owner },
                client: record.client,
                handle: 0,
                kind: LockKind::Exclusive,
                is_mandatory: record.is_mandatory,
                lasting: Lasting::Broken,
            };
            segments.lock(&(record.start..record.end), held, &mut self.counts);
        }
    }

    /// The locks of those files that have the name of one in the store: it, and what is the same in a clone of its file system.
    fn of_name(&self, file: LockKey) -> impl Iterator<Item = (LockKey, &FileLocks)> {
        let first_from = |fs: u64| {
            let from = LockKey { fs, file: 0, generation: 0 };
            self.files.range(from..).next().map(|(key, _)| key.fs)
        };
        let all_fs = successors(first_from(0), move |fs| first_from(fs.checked_add(1)?));
        work::looked(all_fs).filter_map(move |fs| {
            let key = LockKey { fs, ..file };
            Some((key, self.files.get(&key)?))
        })
    }

    /// What is to be written of a file when locks of a range have changed: all parts that last and reach into the range, or touch it, and
    /// those that continue them. Neighbours of one holder are one record, so the file never has more records than the table has parts.
    pub(crate) fn records_of(&self, file: LockKey, changed: &Range<u64>) -> LocksChange {
        let around = changed.start.saturating_sub(1)..changed.end.saturating_add(1);
        let mut records: Vec<Record> = Vec::new();
        for next in self.lasting_parts(file, &around) {
            match records.last_mut() {
                Some(last) if last.is_continued_by(&next) => last.end = next.end,
                _ => records.push(next),
            }
        }
        if let Some(first) = records.first_mut() {
            let before = |at: u64| self.lasting_parts(file, &(at.checked_sub(1)?..at)).pop();
            while let Some(part) = before(first.start).filter(|part| part.is_continued_by(first)) {
                first.start = part.start;
            }
        }
        if let Some(last) = records.last_mut() {
            let behind = |at: u64| self.lasting_parts(file, &(at..at.checked_add(1)?)).pop();
            while let Some(part) = behind(last.end).filter(|part| last.is_continued_by(part)) {
                last.end = part.end;
            }
        }
        let start = records.first().map_or(changed.start, |first| first.start.min(changed.start));
        let end = records.last().map_or(changed.end, |last| last.end.max(changed.end));
        LocksChange { file: (file.file, file.generation), range: start..end, records }
    }

    /// The parts that last and reach into a range, as they are kept, in ascending order.
    fn lasting_parts(&self, file: LockKey, range: &Range<u64>) -> Vec<Record> {
        let record = |(range, held): (Range<u64>, &Held)| Record {
            start: range.start,
            end: range.end,
            session: held.owner.session.0,
            owner: held.owner.id,
            client: held.client,
            is_mandatory: held.is_mandatory,
        };
        let reaching = self.of_name(file).flat_map(|(_, locks)| locks.segments.overlapping(range));
        let lasting = reaching.filter(|(_, held)| held.lasting != Lasting::No);
        let mut parts: Vec<Record> = lasting.map(record).collect();
        parts.sort_unstable_by_key(|part| part.start);
        parts
    }

    /// A request for a lock is answered once that is written: the number of it. `None` where it need not be.
    pub(crate) fn begin_writing(&mut self, file: LockKey, range: &Range<u64>, held: &Held) -> Option<u64> {
        self.files.get_mut(&file)?.segments.unwritten.begin(range, held)
    }

    /// A lock is written: it is granted.
    pub(crate) fn on_written(&mut self, file: LockKey, number: u64) {
        if let Some(locks) = self.files.get_mut(&file) {
            locks.segments.unwritten.on_written(number);
        }
    }

    /// A lock could not be written, and is not granted: its owner has what it had before of the range.
    pub(crate) fn put_back(&mut self, file: LockKey, range: &Range<u64>, number: u64) -> Freed {
        let locks = self.files.get_mut(&file);
        let broken = locks.and_then(|locks| locks.segments.put_back(number, &mut self.counts));
        let Some(broken) = broken else { return Freed::default() };
        self.enter_holders(file, range);
        self.local.show(file, range, self.files.get(&file));
        let mut freed = Freed { granted: self.serve(file, [range.clone()]), ..Freed::default() };
        self.end_waits_for_broken(file, broken, &mut freed);
        self.forget_if_free(file);
        freed
    }

    /// Who holds something of a range may have had nothing of the file meanwhile. What he locks there next is to end with his session.
    fn enter_holders(&mut self, file: LockKey, range: &Range<u64>) {
        let Some(locks) = self.files.get(&file) else { return };
        for (_, held) in locks.segments.overlapping(range) {
            self.by_session.entry(held.owner.session).or_default().entry(file).or_insert(0);
        }
    }

    /// A session has all of its locks again that it wants. Returns the sessions of before when it was the last.
    pub(crate) fn reclaimed_all(&mut self, session: SessionId) -> Option<HashSet<SessionId>> {
        self.restart.is_done(session).then(|| self.end_restart())
    }

    /// Nobody takes locks again any more. Returns the sessions of before, whose locks are free, or broken.
    pub(crate) fn end_restart(&mut self) -> HashSet<SessionId> {
        self.restart
            .end(self.files.iter().filter(|(_, locks)| !locks.waiters.is_empty()).map(|(file, _)| *file))
    }

    /// Locks of before the restart that those who had them have taken again.
    pub(crate) fn reclaims(&self) -> u64 {
        self.restart.reclaims()
    }

    /// How long locks are taken again is to be watched.
    pub(crate) fn is_restart_over(&self) -> bool {
        self.restart.is_over()
    }

    /// A session holds or awaits something.
    pub(crate) fn has_any(&self, session: SessionId) -> bool {
        self.counts.by_session.of(session) > 0
    }
}
