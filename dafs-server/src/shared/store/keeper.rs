//! The thread that writes: what has arrived while it wrote is one transaction.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{SessionId, Status};
use rangemap::RangeSet;
use redb::Database;

use super::change::{Change, FileName, PublishedName, Sent, Tell};
use super::medium::{Medium, open_database};
use super::tables::{self, StoreFault};
use super::unsettled::Unsettled;

/// Changes that are written together at most.
const TOGETHER_MAX: usize = 4096;
/// Changes that are owed at most. Of more the latest are.
pub(super) const OWED_MAX: usize = 1 << 16;

/// What the thread has.
pub(super) struct Keeper<M> {
    medium: M,
    /// `None` after a failure: then it is opened again, with what was durable before.
    database: Option<Database>,
    path: PathBuf,
    unsettled: Arc<Mutex<Unsettled>>,
    /// What has happened and could not be written. It goes with what is written next.
    pub(super) owed: Vec<Sent>,
}

impl<M: Medium> Keeper<M> {
    pub(super) fn new(
        medium: M,
        database: Option<Database>,
        path: &Path,
        unsettled: Arc<Mutex<Unsettled>>,
    ) -> Self {
        Self { medium, database, path: path.to_owned(), unsettled, owed: Vec::new() }
    }

    /// Writes what arrives until nobody sends any more.
    pub(super) fn keep(mut self, arriving: &Receiver<Sent>) {
        while let Ok(first) = arriving.recv() {
            let more = arriving.try_iter().take(TOGETHER_MAX - 1);
            self.write_together(std::iter::once(first).chain(more));
        }
        if !self.owed.is_empty() {
            self.write_together(std::iter::empty());
        }
    }

    /// Writes what is owed, and what has arrived since, and tells of that.
    pub(super) fn write_together(&mut self, arrived: impl Iterator<Item = Sent>) {
        let mut group = std::mem::take(&mut self.owed);
        group.extend(arrived);
        // Whoever waits is told, whatever the database makes of a damaged file.
        let written = std::panic::catch_unwind(AssertUnwindSafe(|| self.write(&group)));
        let written = written.unwrap_or_else(|_| Err(StoreFault::Content("its writer panicked".into())));
        let status = match written {
            Ok(()) => Status::OK,
            Err(fault) => {
                self.database = None;
                tracing::error!("cannot write the state file {}: {fault}", self.path.display());
                fault.status()
            }
        };
        let tells: Vec<Tell> = group.iter_mut().filter_map(|sent| sent.tell.take()).collect();
        if status == Status::OK {
            group.into_iter().for_each(|sent| self.settle(&sent));
        } else {
            let (owed, undone) = group.into_iter().partition(|sent| sent.has_happened);
            self.owe(owed);
            undone.iter().for_each(|sent| self.settle(sent));
        }
        tells.into_iter().for_each(|tell| tell(status));
    }

    fn write(&mut self, group: &[Sent]) -> Result<(), StoreFault> {
        let database = match &mut self.database {
            Some(database) => database,
            none => none.insert(open_database(self.medium.backend()?)?.0),
        };
        tables::write(database, group.iter().map(|sent| &sent.change))
    }

    /// Of some changes, in their order, those that no later one makes needless are owed.
    fn owe(&mut self, changes: Vec<Sent>) {
        let mut later = Later::default();
        let (mut owed, mut needless) = (Vec::new(), Vec::new());
        for sent in changes.into_iter().rev() {
            let is_owed = owed.len() < OWED_MAX && later.lacks(&sent.change);
            if is_owed { owed.push(sent) } else { needless.push(sent) }
        }
        needless.iter().for_each(|sent| self.settle(sent));
        owed.reverse();
        self.owed = owed;
    }

    fn settle(&self, sent: &Sent) {
        if let (Change::Locks(change), Some(number)) = (&sent.change, sent.number) {
            lock(&self.unsettled).end(change.file, number);
        }
    }
}

/// What later changes say.
#[derive(Default)]
struct Later {
    sessions: HashSet<SessionId>,
    locks: HashMap<FileName, RangeSet<u64>>,
    fences: HashSet<String>,
    published: HashSet<PublishedName>,
}

impl Later {
    /// They leave something of a change, which is among them from now on.
    fn lacks(&mut self, change: &Change) -> bool {
        match change {
            Change::Session(session, _) => self.sessions.insert(*session),
            Change::Fence(export, _) => self.fences.insert(export.clone()),
            Change::Published(name, _) => self.published.insert(name.clone()),
            Change::Locks(change) => {
                let known = self.locks.entry(change.file).or_default();
                if change.range.is_empty() || known.gaps(&change.range).next().is_none() {
                    return false;
                }
                known.insert(change.range.clone());
                true
            }
        }
    }
}
