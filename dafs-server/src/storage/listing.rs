//! Entries of a directory, as many as one reply takes.

use dafs_proto::wire::{DirEntry, Status, encode_dir_entry};

use super::{FsReply, FsResult, work};

/// Bytes of an encoded entry without its name and attributes: cookie, two lengths.
const ENTRY_OVERHEAD: usize = 12;

/// Entries of one reply at most: what they cost whoever lists them, and the loop that sends them, is then bounded however short names are.
pub(super) const ENTRIES_MAX: usize = 1024;

/// Entries that take no more than so many bytes, encoded.
pub(super) struct Listing {
    entries: Vec<DirEntry>,
    size: usize,
    size_max: usize,
    scratch: Vec<u8>,
}

impl Listing {
    pub(super) fn new(size_max: usize) -> Self {
        Self { entries: Vec::new(), size: 0, size_max, scratch: Vec::new() }
    }

    /// There is room for an entry without attributes.
    pub(super) fn fits_bare(&self, entry: &DirEntry) -> bool {
        self.entries.len() < ENTRIES_MAX && self.size + ENTRY_OVERHEAD + entry.name.len() <= self.size_max
    }

    /// Adds an entry; `false` where there is no room for it.
    pub(super) fn push(&mut self, entry: DirEntry) -> bool {
        if self.entries.len() >= ENTRIES_MAX {
            return false;
        }
        work::add(1);
        self.scratch.clear();
        encode_dir_entry(&entry, &mut self.scratch);
        let fits = self.size + self.scratch.len() <= self.size_max;
        if fits {
            self.size += self.scratch.len();
            self.entries.push(entry);
        }
        fits
    }

    /// All of them; `end`: the directory has no more.
    pub(super) fn finish(self, end: bool) -> FsResult {
        match self.entries.is_empty() && !end {
            true => Err(Status::RANGE),
            false => Ok(FsReply::Entries(self.entries, end)),
        }
    }
}
