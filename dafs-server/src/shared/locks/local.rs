//! Locks as processes of this host see and set them: some files have a [`LocalLocks`], which shows all locks of the table. What a process
//! holds there is in the way of the table's.

use std::collections::{HashMap, HashSet};
use std::iter::once;
use std::ops::Range;

use dafs_proto::wire::{LockKind, SessionId, Status};

use super::held::{Held, Lasting, Owner, Waiting};
use super::segments::Segments;
use super::{FileLocks, LockTable, WaiterId};
use crate::storage::{LocalLocks, LockKey};

/// Files that are shown at most: each takes a descriptor.
pub(super) const SHOWN_MAX: usize = 4096;

/// Requests that wait for processes, of one file, that are tried at once.
pub(super) const TRIED_MAX: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Local {
    files: HashMap<LockKey, Shown>,
    /// Somebody waits for a process here.
    awaited: HashSet<LockKey>,
    /// A process is in the way of a lock that an owner has got back: it is shown as soon as the process lets go.
    unshown: HashSet<LockKey>,
}

#[derive(Debug)]
struct Shown {
    locks: Box<dyn LocalLocks>,
    /// In the pass over those that wait.
    tried: usize,
    /// Those before were tried in earlier passes.
    after: Option<WaiterId>,
}

impl Local {
    pub(super) fn is_shown(&self, file: LockKey) -> bool {
        self.files.contains_key(&file)
    }

    /// Locks a range for the table; whether no process is in the way.
    pub(super) fn take(&mut self, file: LockKey, range: &Range<u64>, kind: LockKind) -> Result<bool, Status> {
        self.files.get(&file).map_or(Ok(true), |shown| shown.locks.lock(range, kind))
    }

    /// Somebody waits for a process.
    pub(super) fn await_process(&mut self, file: LockKey) {
        self.awaited.insert(file);
    }

    /// A pass over those that wait begins.
    pub(super) fn begin_pass(&mut self, file: LockKey) {
        if let Some(shown) = self.files.get_mut(&file) {
            shown.tried = 0;
        }
    }

    /// As [`Local::take`], for one that waits. Passes share the work, where many wait for processes.
    pub(super) fn take_in_turn(
        &mut self,
        file: LockKey,
        waiter: WaiterId,
        range: &Range<u64>,
        kind: LockKind,
    ) -> bool {
        let Some(shown) = self.files.get_mut(&file) else { return true };
        let is_later = shown.after.is_none_or(|after| waiter > after);
        if is_later && shown.tried < TRIED_MAX {
            if matches!(shown.locks.lock(range, kind), Ok(true)) {
                return true;
            }
            shown.tried += 1;
            if shown.tried == TRIED_MAX {
                shown.after = Some(waiter);
            }
        }
        self.awaited.insert(file);
        false
    }

    pub(super) fn end_pass(&mut self, file: LockKey) {
        if let Some(shown) = self.files.get_mut(&file)
            && shown.tried < TRIED_MAX
        {
            shown.after = None;
        }
    }

    /// Shows what the table holds of a range, where that has become less, or what it was before.
    pub(super) fn show(&mut self, file: LockKey, range: &Range<u64>, locks: Option<&FileLocks>) {
        let Some(shown) = self.files.get(&file) else { return };
        let none = Segments::default();
        let segments = locks.map_or(&none, |locks| &locks.segments);
        let mut at = range.start;
        for (part, held) in segments.overlapping(range) {
            let part = part.start.max(range.start)..part.end.min(range.end);
            // Those who share a part are seen one after the other.
            if part.end <= at {
                continue;
            }
            if at < part.start {
                shown.locks.unlock(&(at..part.start));
            }
            // To hold less of what is held is never refused. What could not be written is held again as before.
            if !matches!(shown.locks.lock(&part, held.kind), Ok(true)) {
                self.unshown.insert(file);
            }
            at = part.end;
        }
        if at < range.end {
            shown.locks.unlock(&(at..range.end));
        }
    }

    /// Nobody holds or awaits anything of a file: it is shown no longer.
    pub(super) fn forget(&mut self, file: LockKey) {
        if !self.files.is_empty() {
            self.files.remove(&file);
            self.awaited.remove(&file);
            self.unshown.remove(&file);
        }
    }
}

impl LockTable {
    /// The locks of a file are to be shown from now on, by what `open` returns.
    ///
    /// # Errors
    /// Of `open`; [`Status::TOO_MANY_LOCKS`].
    pub(crate) fn show(
        &mut self,
        file: LockKey,
        open: impl FnOnce() -> Result<Box<dyn LocalLocks>, Status>,
    ) -> Result<(), Status> {
        if self.local.is_shown(file) {
            return Ok(());
        }
        if self.local.files.len() >= SHOWN_MAX {
            return Err(Status::TOO_MANY_LOCKS);
        }
        let shown = Shown { locks: open()?, tried: 0, after: None };
        self.local.files.insert(file, shown);
        // Another export of the same file may not be shown; and what is kept of it holds.
        self.adopt(file);
        self.local.show(file, &(0..u64::MAX), self.files.get(&file));
        Ok(())
    }

    /// A process of this host that keeps others from locking a range: what it holds.
    pub(super) fn local_conflict(
        &self,
        file: LockKey,
        range: &Range<u64>,
        kind: LockKind,
    ) -> Option<(Range<u64>, Held)> {
        let found = self.local.files.get(&file)?.locks.conflict(range, kind)?;
        let held = Held {
            owner: Owner { session: SessionId(0), id: found.process },
            client: [0; 16],
            handle: 0,
            kind: found.kind,
            is_mandatory: false,
            lasting: Lasting::No,
        };
        Some((found.range, held))
    }

    /// Somebody waits for processes of this host: [`LockTable::serve_local`] is to be called again and again.
    pub(crate) fn awaits_local(&self) -> bool {
        !self.local.awaited.is_empty() || !self.local.unshown.is_empty()
    }

    /// Grants what processes of this host have given back. Returns whose turn has come.
    pub(crate) fn serve_local(&mut self) -> Vec<Waiting> {
        for file in std::mem::take(&mut self.local.unshown) {
            self.local.show(file, &(0..u64::MAX), self.files.get(&file));
        }
        let files = std::mem::take(&mut self.local.awaited);
        files.into_iter().flat_map(|file| self.serve(file, once(0..u64::MAX))).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, reason = "offsets that the tests choose")]

    use std::sync::{Arc, Mutex};

    use dafs_proto::transport::OpToken;
    use proptest::prelude::*;

    use super::super::{Claim, Outcome, Told};
    use super::*;
    use crate::storage::LocalConflict;

    const FILE: LockKey = LockKey { fs: 1, file: 2, generation: 3 };
    const OFFSETS: usize = 12;

    /// What the host has of each offset: the table's, and a process's.
    #[derive(Clone, Debug, Default)]
    struct Host(Arc<Mutex<[[Option<LockKind>; 2]; OFFSETS]>>);

    impl Host {
        fn set(&self, range: &Range<u64>, who: usize, kind: Option<LockKind>) -> bool {
            let mut all = self.0.lock().unwrap();
            let part = &mut all[range.start as usize..(range.end as usize).min(OFFSETS)];
            let is_in_way = |[ours, others]: &[Option<LockKind>; 2]| {
                let other = if who == 0 { others } else { ours };
                matches!((other, kind), (Some(a), Some(b)) if [*a, b].contains(&LockKind::Exclusive))
            };
            if part.iter().any(is_in_way) {
                return false;
            }
            part.iter_mut().for_each(|offset| offset[who] = kind);
            true
        }
    }

    impl LocalLocks for Host {
        fn lock(&self, range: &Range<u64>, kind: LockKind) -> Result<bool, Status> {
            Ok(self.set(range, 0, Some(kind)))
        }

        fn unlock(&self, range: &Range<u64>) {
            self.set(range, 0, None);
        }

        fn conflict(&self, _: &Range<u64>, _: LockKind) -> Option<LocalConflict> {
            None
        }
    }

    fn held(id: u64, kind: LockKind) -> Held {
        Held {
            owner: Owner { session: SessionId(id / 2), id },
            client: [0; 16],
            handle: id % 3,
            kind,
            is_mandatory: false,
            lasting: if id == 1 && kind == LockKind::Exclusive { Lasting::Persistent } else { Lasting::No },
        }
    }

    fn waiting(number: u64) -> Waiting {
        Waiting { worker: 0, told: Told::Operation(OpToken(number)) }
    }

    #[derive(Clone, Debug)]
    enum Action {
        Lock(u64, Range<u64>, LockKind, bool),
        Unlock(u64, Range<u64>),
        Repair(u64, Range<u64>),
        End(u64),
        Process(Range<u64>, Option<LockKind>),
        Look,
    }

    fn action() -> impl Strategy<Value = Action> {
        let range = (0u64..10, 1u64..6).prop_map(|(start, len)| start..(start + len).min(OFFSETS as u64));
        let kind = prop_oneof![Just(LockKind::Shared), Just(LockKind::Exclusive)];
        prop_oneof![
            6 => (0u64..6, range.clone(), kind.clone(), any::<bool>())
                .prop_map(|(id, range, kind, waits)| Action::Lock(id, range, kind, waits)),
            4 => (0u64..6, range.clone()).prop_map(|(id, range)| Action::Unlock(id, range)),
            1 => (0u64..6, range.clone()).prop_map(|(id, range)| Action::Repair(id, range)),
            1 => (0u64..3).prop_map(Action::End),
            4 => (range, prop::option::of(kind)).prop_map(|(range, kind)| Action::Process(range, kind)),
            2 => Just(Action::Look),
        ]
    }

    fn act(table: &mut LockTable, host: &Host, number: u64, action: &Action) {
        let shown = || Ok(Box::new(host.clone()) as Box<dyn LocalLocks>);
        let mut lock = |held: Held, range: &Range<u64>, claim, waits: bool| {
            table.show(FILE, shown).unwrap();
            let _ = table.lock(FILE, range.clone(), held, claim, waits.then(|| waiting(number)));
            // Of those that are to be written some are.
            if let Some(written) = table.begin_writing(FILE, range, &held)
                && number.is_multiple_of(2)
            {
                table.on_written(FILE, written);
            }
        };
        match action {
            Action::Lock(id, range, kind, waits) => lock(held(*id, *kind), range, Claim::New, *waits),
            Action::Repair(id, range) => lock(held(*id, LockKind::Exclusive), range, Claim::Repair, false),
            Action::Unlock(id, range) => {
                table.unlock(FILE, range, held(*id, LockKind::Shared).owner);
            }
            Action::End(session) => while table.end_some_of(SessionId(*session)).is_some() {},
            Action::Process(range, kind) => {
                host.set(range, 1, *kind);
            }
            Action::Look => {
                table.serve_local();
            }
        }
    }

    fn strongest_at(table: &LockTable, at: u64) -> Option<LockKind> {
        let (locks, range) = (table.files.get(&FILE), at..at + 1);
        let holders = locks.into_iter().flat_map(|locks| locks.segments.overlapping(&range));
        holders.map(|(_, held)| held.kind).max()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        // [LOCK-50] [LOCK-51]
        #[test]
        fn host_sees_what_the_table_holds(actions in prop::collection::vec(action(), 1..60)) {
            let (mut table, host) = (LockTable::default(), Host::default());
            table.restore([].into(), Vec::new());
            for (number, action) in actions.iter().enumerate() {
                act(&mut table, &host, number as u64, action);
                for at in 0..OFFSETS as u64 {
                    let strongest = strongest_at(&table, at);
                    let [seen, of_process] = host.0.lock().unwrap()[at as usize];
                    // Nothing of a file is shown, or all; but what a process is in the way of.
                    let is_late = of_process.is_some() && seen < strongest && table.awaits_local();
                    prop_assert!(seen == strongest || is_late, "at {at} after {action:?}: {seen:?}, {strongest:?}");
                }
                let is_known = table.files.get(&FILE).is_some_and(|locks| !locks.is_free());
                prop_assert_eq!(table.local.is_shown(FILE), is_known);
            }
            host.set(&(0..OFFSETS as u64), 1, None);
            while table.awaits_local() {
                table.serve_local();
            }
            prop_assert_eq!(table.serve(FILE, once(0..u64::MAX)), []);
            for at in 0..OFFSETS as u64 {
                prop_assert_eq!(host.0.lock().unwrap()[at as usize][0], strongest_at(&table, at));
            }
        }
    }

    // [LOCK-74]
    #[test]
    fn lock_got_back_is_shown_when_the_process_lets_go() {
        let (mut table, host) = (LockTable::default(), Host::default());
        table.restore([].into(), Vec::new());
        let (exclusive, shared) = (LockKind::Exclusive, LockKind::Shared);
        for (number, action) in [
            Action::Lock(1, 7..8, exclusive, false),
            Action::Lock(4, 8..9, exclusive, false),
            Action::Lock(1, 6..9, shared, true),
            Action::Unlock(4, 6..9),
            Action::Process(6..8, Some(shared)),
            Action::End(0),
        ]
        .iter()
        .enumerate()
        {
            act(&mut table, &host, number as u64, action);
        }
        let seen = || host.0.lock().unwrap()[7][0];
        assert_eq!((seen(), strongest_at(&table, 7)), (Some(shared), Some(exclusive)));
        assert!(table.awaits_local());
        host.set(&(6..8), 1, None);
        table.serve_local();
        assert_eq!((seen(), table.awaits_local()), (Some(exclusive), false));
    }

    #[test]
    fn number_of_shown_files_is_bounded() {
        let mut table = LockTable::default();
        let mut lock = |file: u64| {
            let key = LockKey { file, ..FILE };
            table.show(key, || Ok(Box::new(Host::default())))?;
            table.lock(key, 0..1, held(0, LockKind::Shared), Claim::New, None)
        };
        for file in 0..SHOWN_MAX as u64 {
            assert_eq!(lock(file), Ok(Outcome::Granted(Vec::new())));
        }
        assert_eq!(lock(SHOWN_MAX as u64), Err(Status::TOO_MANY_LOCKS));
        assert_eq!(lock(0), Ok(Outcome::Granted(Vec::new())));
    }
}
