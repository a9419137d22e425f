//! Marks: a server sets one on a bucket of files before its clients deny anything there, and waits until all servers have told of their
//! opens in that bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::Status;

use super::state::Waiter;
use crate::cluster::coordination::{Change, Compare, CoordinationError, Entry, Transaction};
use crate::cluster::core::{Core, status_of};
use crate::cluster::records::ServerNumber;
use crate::storage::FileName;

/// A mark that nobody needs stays for so long: whoever denies again soon need not wait.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// A server that has not told, nor was taken over, is waited for no longer.
const TERMS_MAX: u32 = 3;
/// Between two attempts to tell the store what it did not take.
const AGAIN_TIME: Duration = Duration::from_secs(1);
/// Between two looks while somebody waits for others to tell.
const AWAITED_INTERVAL: Duration = Duration::from_millis(10);
/// Between two looks while there are marks: so much for each server that looks, and these bounds.
const SERVER_INTERVAL: Duration = Duration::from_millis(5);
const MARKED_INTERVAL: Duration = Duration::from_millis(50);

/// A mark as it stands in the store.
struct Mark {
    server: ServerNumber,
    bucket: u16,
    revision: u64,
}

/// What is to be done after a look at marks.
#[derive(Default)]
struct Due {
    /// Marks of this server that it does not need.
    unneeded: Vec<(u16, u64)>,
    /// The store is to be told of these files, up to these marks.
    untold: Option<(u64, Vec<FileName>)>,
    again: Vec<FileName>,
    /// Marks of this server of which not all others are known to have told.
    unheard: Vec<(u16, u64)>,
    overdue: Vec<Waiter>,
}

impl Core {
    /// How long to wait before the next look at what all servers watch.
    pub(crate) fn look_interval(&self, usual: Duration) -> Duration {
        let state = lock(&self.opens.state);
        let is_marked = !state.marks.marked.is_empty();
        match state.marks.are_awaited() {
            true => AWAITED_INTERVAL,
            false if is_marked => {
                drop(state);
                let servers = u32::try_from(lock(&self.view).live().count()).unwrap_or(u32::MAX);
                SERVER_INTERVAL.saturating_mul(servers).clamp(MARKED_INTERVAL, usual)
            }
            false => usual,
        }
    }

    /// This server's mark on a bucket, and the revision in which it was set.
    pub(super) fn own_mark(&self, bucket: u16) -> (String, u64) {
        let state = lock(&self.opens.state);
        let revision = state.marks.own.get(&bucket).map_or(0, |mark| mark.revision);
        (self.keys.deny(self.number, bucket), revision)
    }

    /// Goes on once this server's mark is set and all servers have told. Does not block.
    pub(super) fn with_mark(self: &Arc<Self>, bucket: u16, then: Waiter) {
        let sets = {
            let mut state = lock(&self.opens.state);
            let mark = state.marks.own.entry(bucket).or_default();
            if mark.is_heard {
                drop(state);
                return then(Ok(()));
            }
            mark.waiting.push((self.host.now(), then));
            let sets = mark.revision == 0 && !mark.is_being_set;
            mark.is_being_set |= sets;
            sets
        };
        if sets {
            let own = Arc::clone(self);
            self.opens.run(Box::new(move || own.set_mark(bucket)));
        }
    }

    /// Blocks.
    fn set_mark(&self, bucket: u16) {
        let set = self.insist(|| self.write_mark(bucket));
        let waiting = {
            let mut state = lock(&self.opens.state);
            let Some(mark) = state.marks.own.get_mut(&bucket) else { return };
            mark.is_being_set = false;
            match &set {
                Ok(revision) => {
                    mark.revision = *revision;
                    Vec::new()
                }
                Err(_) => std::mem::take(&mut mark.waiting),
            }
        };
        if let Err(error) = set {
            waiting.into_iter().for_each(|(_, tell)| tell(Err(status_of(&error))));
        }
        self.wake();
    }

    /// Always in a new revision: what is left of an attempt before, or of removing it, must not take it away.
    fn write_mark(&self, bucket: u16) -> Result<u64, CoordinationError> {
        let (live, key) = (self.keys.live_server(self.number), self.keys.deny(self.number, bucket));
        let mut at = 0;
        loop {
            let set = self.commit(&Transaction {
                compares: vec![Compare::Present(live.clone()), Compare::At(key.clone(), at)],
                changes: vec![Change::Put(key.clone(), Vec::new(), None)],
                reads: vec![live.clone(), key.clone()],
            })?;
            if set.succeeded {
                return Ok(set.revision);
            }
            if !set.found.iter().any(|entry| entry.key == live) {
                return Err(CoordinationError::NoLease);
            }
            at = set.found.iter().find(|entry| entry.key == key).map_or(0, |entry| entry.revision);
        }
    }

    /// Looks at the marks of all servers, among what all watch: tells of opens, and hears what others have told. Blocks.
    pub(crate) fn look_at_marks(self: &Arc<Self>, entries: &[Entry]) -> Result<(), CoordinationError> {
        let prefix = self.keys.denies();
        let mark = |entry: &Entry| {
            let (server, bucket) = entry.key.strip_prefix(&prefix)?.split_once('/')?;
            Some(Mark {
                server: server.parse().ok()?,
                bucket: bucket.parse().ok()?,
                revision: entry.revision,
            })
        };
        let marks: Vec<Mark> = entries.iter().filter_map(mark).collect();
        let due = self.see_marks(&marks);
        due.overdue.into_iter().for_each(|tell| tell(Err(Status::AGAIN)));
        for file in due.again {
            self.tell_of(file, Box::new(|_| {}));
        }
        if let Some((revision, files)) = due.untold {
            self.tell_of_all(revision, files);
        }
        for (bucket, revision) in due.unneeded {
            let key = self.keys.deny(self.number, bucket);
            let compares = vec![Compare::At(key.clone(), revision)];
            self.commit(&Transaction { compares, changes: vec![Change::Delete(key)], reads: Vec::new() })?;
        }
        self.write_told()?;
        if due.unheard.is_empty() { Ok(()) } else { self.hear_told(entries, &due.unheard) }
    }

    fn see_marks(&self, marks: &[Mark]) -> Due {
        let now = self.host.now();
        let current_since = Duration::from_nanos(self.current_since.load(Ordering::Acquire));
        let patience = TERMS_MAX * self.config.term();
        let mut due = Due::default();
        let mut state = lock(&self.opens.state);
        let state = &mut *state;
        state.marks.marked = marks.iter().map(|mark| mark.bucket).collect();
        state.marks.own.retain(|_, mark| !mark.is_idle(now, IDLE_TIME));
        for mark in marks.iter().filter(|mark| mark.server == self.number) {
            match state.marks.own.get(&mark.bucket) {
                None => due.unneeded.push((mark.bucket, mark.revision)),
                Some(own) if own.revision == mark.revision && !own.is_heard => {
                    due.unheard.push((mark.bucket, mark.revision));
                }
                Some(_) => {}
            }
        }
        for mark in state.marks.own.values_mut() {
            let is_overdue = |since: Duration| now.saturating_sub(since.max(current_since)) > patience;
            let overdue = mark.waiting.extract_if(.., |(since, _)| is_overdue(*since));
            due.overdue.extend(overdue.map(|(_, tell)| tell));
        }
        if now >= state.marks.again_at {
            due.again = std::mem::take(&mut state.failed);
            due.again.sort();
            due.again.dedup();
            state.marks.again_at = now + AGAIN_TIME;
        }
        let newest = marks.iter().map(|mark| mark.revision).max().unwrap_or(0);
        if newest > state.marks.told && !state.marks.is_telling {
            let files = state.untold(|file| state.marks.marked.contains(&self.bucket(file)));
            match files.is_empty() {
                true => state.marks.told = newest,
                false => {
                    state.marks.is_telling = true;
                    due.untold = Some((newest, files));
                }
            }
        }
        due
    }

    /// Tells the store of opens of these files, and then that it was told of all up to these marks.
    fn tell_of_all(self: &Arc<Self>, revision: u64, files: Vec<FileName>) {
        let (left, is_all) = (Arc::new(AtomicUsize::new(files.len())), Arc::new(AtomicBool::new(true)));
        for file in files {
            let (own, left, is_all) = (Arc::clone(self), Arc::clone(&left), Arc::clone(&is_all));
            let told = move |is_told| {
                is_all.fetch_and(is_told, Ordering::AcqRel);
                if left.fetch_sub(1, Ordering::AcqRel) > 1 {
                    return;
                }
                {
                    let mut state = lock(&own.opens.state);
                    state.marks.is_telling = false;
                    if is_all.load(Ordering::Acquire) {
                        state.marks.told = state.marks.told.max(revision);
                    }
                }
                own.wake();
            };
            self.tell_of(file, Box::new(told));
        }
    }

    /// Says up to which mark this server has told.
    fn write_told(&self) -> Result<(), CoordinationError> {
        let (told, (written, at)) = {
            let state = lock(&self.opens.state);
            (state.marks.told, state.marks.written)
        };
        if told <= written {
            return Ok(());
        }
        let (member, key) = (self.keys.member(self.number), self.keys.told(self.number));
        let said = self.commit(&Transaction {
            compares: vec![Compare::Present(member), Compare::At(key.clone(), at)],
            changes: vec![Change::Put(key.clone(), told.to_string().into_bytes(), None)],
            reads: vec![key.clone()],
        })?;
        let found = said.found.first().map_or(0, |entry| entry.revision);
        lock(&self.opens.state).marks.written =
            if said.succeeded { (told, said.revision) } else { (written, found) };
        Ok(())
    }

    /// Lets those go on that wait for others to tell, where all have.
    fn hear_told(&self, entries: &[Entry], unheard: &[(u16, u64)]) -> Result<(), CoordinationError> {
        let (told, revision) = self.store.read(&self.keys.all_told())?;
        self.hear(revision);
        let told_by = |server| {
            let key = self.keys.told(server);
            let entry = told.iter().find(|entry| entry.key == key);
            entry.and_then(|entry| std::str::from_utf8(&entry.value).ok()?.parse::<u64>().ok()).unwrap_or(0)
        };
        let least = self.keys.members_in(entries).map(told_by).min().unwrap_or(0);
        let mut ready = Vec::new();
        {
            let mut state = lock(&self.opens.state);
            for (bucket, revision) in unheard.iter().filter(|(_, revision)| *revision <= least) {
                if let Some(mark) = state.marks.own.get_mut(bucket).filter(|mark| mark.revision == *revision)
                {
                    mark.is_heard = true;
                    ready.append(&mut mark.waiting);
                }
            }
        }
        ready.into_iter().for_each(|(_, tell)| tell(Ok(())));
        Ok(())
    }
}
