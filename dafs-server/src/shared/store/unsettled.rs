//! Locks that were released but may still be in the file. A repeated release is answered once the file is up to date.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::change::{FileName, OwnerName};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    files: HashMap<FileName, BTreeMap<u64, (Range<u64>, OwnerName)>>,
    last: u64,
}

impl Unsettled {
    /// A change is under way, from now on by this number.
    pub(super) fn begin(&mut self, file: FileName, range: &Range<u64>, by: OwnerName) -> u64 {
        self.last += 1;
        self.files.entry(file).or_default().insert(self.last, (range.clone(), by));
        self.last
    }

    /// It is written.
    pub(super) fn end(&mut self, file: FileName, number: u64) {
        if let Some(changes) = self.files.get_mut(&file) {
            changes.remove(&number);
            if changes.is_empty() {
                self.files.remove(&file);
            }
        }
    }

    /// An owner gave something of a range back.
    pub(super) fn has(&self, file: FileName, range: &Range<u64>, owner: OwnerName) -> bool {
        let is_in = |(changed, by): &(Range<u64>, OwnerName)| {
            *by == owner && changed.start < range.end && range.start < changed.end
        };
        self.files.get(&file).is_some_and(|changes| changes.values().any(is_in))
    }

    /// Nothing is.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}
