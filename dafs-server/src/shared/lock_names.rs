//! What the file of locks may say, as far as its writer knows: who gives a lock back is answered when it says so no more.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::lock_file::{Changed, FileName, Record};

/// By file: what was written of it last, and what is being written.
#[derive(Debug, Default)]
pub(super) struct LockNames {
    files: HashMap<FileName, Named>,
}

#[derive(Debug, Default)]
struct Named {
    /// What was written last.
    records: Vec<Record>,
    /// What is under way, in the order in which it is written.
    under_way: VecDeque<Vec<Record>>,
}

impl LockNames {
    /// What was read.
    pub(super) fn new(files: &[Changed]) -> Self {
        let named = |(file, records): &Changed| {
            (*file, Named { records: records.clone(), under_way: VecDeque::new() })
        };
        Self { files: files.iter().map(named).collect() }
    }

    /// A change of a file is under way.
    pub(super) fn begin(&mut self, (file, records): &Changed) {
        self.files.entry(*file).or_default().under_way.push_back(records.clone());
    }

    /// One that was not written is going to be, before those that are under way.
    pub(super) fn begin_again(&mut self, (file, records): &Changed) {
        self.files.entry(*file).or_default().under_way.push_front(records.clone());
    }

    /// The one that is longest under way is written, or is not.
    pub(super) fn end(&mut self, file: FileName, is_written: bool) {
        let Some(named) = self.files.get_mut(&file) else { return };
        let ended = named.under_way.pop_front().unwrap_or_default();
        if is_written {
            named.records = ended;
        }
        if named.under_way.is_empty() && named.records.is_empty() {
            self.files.remove(&file);
        }
    }

    /// After the next start an owner, of a session, might be told to have a lock in a range.
    pub(super) fn may_name(&self, file: FileName, range: &Range<u64>, owner: (u64, u64)) -> bool {
        let is_own = |record: &Record| {
            (record.session, record.owner) == owner && record.start < range.end && range.start < record.end
        };
        let Some(named) = self.files.get(&file) else { return false };
        named.under_way.iter().flatten().chain(&named.records).any(is_own)
    }
}
