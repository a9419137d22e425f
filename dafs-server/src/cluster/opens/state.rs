//! What this server's sessions have open, and what is known of marks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::Status;

use super::table::{Opened, gathered};
use crate::storage::FileName;

/// Tables that are remembered.
const TABLES_MAX: usize = 4096;

/// Called when all servers have told, or cannot.
pub(super) type Waiter = Box<dyn FnOnce(Result<(), Status>) + Send>;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Has threads do something.
pub(crate) struct Runner {
    pub(crate) at_once: Box<dyn Fn(Job) + Send + Sync>,
    /// Once all is done that was to be done about this file.
    pub(crate) in_turn: Box<dyn Fn(FileName, Job) + Send + Sync>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Opens {
    pub(super) state: Mutex<State>,
    pub(crate) runner: OnceLock<Runner>,
    /// Tables as they were seen last.
    known: Mutex<HashMap<FileName, (Vec<Opened>, u64)>>,
    /// Files of which the store is about to be told.
    pub(crate) pending: AtomicUsize,
}

impl Opens {
    pub(super) fn run(&self, job: Job) {
        if let Some(runner) = self.runner.get() {
            (runner.at_once)(job);
        }
    }

    pub(super) fn run_in_turn(&self, file: FileName, job: Job) {
        if let Some(runner) = self.runner.get() {
            (runner.in_turn)(file, job);
        }
    }

    pub(super) fn known(&self, file: FileName) -> (Vec<Opened>, u64) {
        lock(&self.known).get(&file).cloned().unwrap_or_default()
    }

    pub(super) fn learn(&self, file: FileName, rows: Vec<Opened>, revision: u64) {
        let mut known = lock(&self.known);
        known.insert(file, (rows, revision));
        if known.len() > TABLES_MAX {
            known.retain(|_, (rows, _)| !rows.is_empty());
        }
    }

    /// The store has still to be told of something.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }
}

#[derive(Default)]
pub(super) struct State {
    files: HashMap<FileName, OpenFile>,
    next: u64,
    pub(super) marks: Marks,
    /// Of these the store could not be told.
    pub(super) failed: Vec<FileName>,
}

#[derive(Default)]
struct OpenFile {
    opens: BTreeMap<u64, Open>,
    /// The store may have something of it that is this server's.
    is_in_store: bool,
}

struct Open {
    opened: Opened,
    /// It was asked for, and the store has not granted it yet, where this is false.
    is_granted: bool,
    /// The store has it.
    is_told: bool,
}

/// Which of a server's opens of a file are written.
pub(super) struct Snapshot {
    pub(super) rows: Vec<Opened>,
    opens: Vec<u64>,
}

impl State {
    /// Counts an open. Returns its number.
    pub(super) fn add(&mut self, file: FileName, opened: Opened, is_granted: bool) -> u64 {
        self.next += 1;
        let open = Open { opened, is_granted, is_told: false };
        self.files.entry(file).or_default().opens.insert(self.next, open);
        self.next
    }

    /// An open counts no more. Whether the store has to be told.
    pub(super) fn remove(&mut self, file: FileName, open: u64) -> bool {
        let Some(of) = self.files.get_mut(&file) else { return false };
        of.opens.remove(&open);
        let is_in_store = of.is_in_store;
        if of.opens.is_empty() && !is_in_store {
            self.files.remove(&file);
        }
        is_in_store
    }

    /// What the store is to have of a file, with one open that is asked for; `None`: it has nothing, and is to have nothing.
    pub(super) fn snapshot(&mut self, file: FileName, asked: Option<u64>) -> Option<Snapshot> {
        let of = self.files.get_mut(&file)?;
        let counts = |(number, open): &(&u64, &Open)| open.is_granted || asked == Some(**number);
        let counted: Vec<_> = of.opens.iter().filter(counts).collect();
        let rows = gathered(counted.iter().map(|(_, open)| &open.opened));
        let opens: Vec<u64> = counted.into_iter().map(|(number, _)| *number).collect();
        if opens.is_empty() && !of.is_in_store {
            return None;
        }
        of.is_in_store |= !opens.is_empty();
        Some(Snapshot { rows, opens })
    }

    /// The store has what was to be written.
    pub(super) fn confirm(&mut self, file: FileName, written: &Snapshot) {
        let Some(of) = self.files.get_mut(&file) else { return };
        for number in &written.opens {
            if let Some(open) = of.opens.get_mut(number) {
                (open.is_granted, open.is_told) = (true, true);
            }
        }
        of.is_in_store = !written.opens.is_empty();
        if of.opens.is_empty() && !of.is_in_store {
            self.files.remove(&file);
        }
    }

    /// Files of which the store is to be told, by who asks for marks: in the order in which they were opened.
    pub(super) fn untold(&self, is_marked: impl Fn(FileName) -> bool) -> Vec<FileName> {
        let untold = |of: &OpenFile| of.opens.values().any(|open| open.is_granted && !open.is_told);
        let files = self.files.iter().filter(|(file, of)| untold(of) && is_marked(**file));
        let mut files: Vec<_> = files.map(|(file, of)| (of.opens.keys().next().copied(), *file)).collect();
        files.sort();
        files.into_iter().map(|(_, file)| file).collect()
    }
}

/// Marks on buckets.
#[derive(Default)]
pub(super) struct Marks {
    /// Buckets that have one, of whichever server.
    pub(super) marked: BTreeSet<u16>,
    pub(super) own: BTreeMap<u16, OwnMark>,
    /// Up to which revision of marks this server has told of its opens, and what stands in the store, in which revision.
    pub(super) told: u64,
    pub(super) written: (u64, u64),
    /// The store is being told.
    pub(super) is_telling: bool,
    /// When files are tried again of which it could not be told.
    pub(super) again_at: Duration,
}

/// A mark of this server.
#[derive(Default)]
pub(super) struct OwnMark {
    /// In which it was set; 0: it was not.
    pub(super) revision: u64,
    /// All servers have told.
    pub(super) is_heard: bool,
    /// Opens that need it, and since when there are none.
    pub(super) opens: u32,
    pub(super) idle_since: Duration,
    pub(super) is_being_set: bool,
    /// Since when they wait for others to tell, in order.
    pub(super) waiting: Vec<(Duration, Waiter)>,
}

impl Marks {
    /// An open needs this server's mark.
    pub(super) fn need(&mut self, bucket: u16) {
        self.own.entry(bucket).or_default().opens += 1;
    }

    /// It does no more.
    pub(super) fn release(&mut self, bucket: u16, now: Duration) {
        if let Some(mark) = self.own.get_mut(&bucket) {
            mark.opens = mark.opens.saturating_sub(1);
            mark.idle_since = now;
        }
    }

    /// Somebody waits for others to tell.
    pub(super) fn are_awaited(&self) -> bool {
        self.own.values().any(|mark| !mark.waiting.is_empty())
    }
}

impl OwnMark {
    /// Nobody has needed it for so long.
    pub(super) fn is_idle(&self, now: Duration, patience: Duration) -> bool {
        let is_needed = self.opens > 0 || self.is_being_set || !self.waiting.is_empty();
        !is_needed && now.saturating_sub(self.idle_since) >= patience
    }
}
