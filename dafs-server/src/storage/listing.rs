//! Entries of a directory, as many as one reply takes.

use dafs_proto::wire::{DirEntry, NAME_SIZE_MAX, Status, encode_dir_entry};

use super::{FsReply, FsResult, work};

/// Bytes of an encoded entry without its name and attributes: cookie, two lengths.
const ENTRY_OVERHEAD: usize = 12;

/// Entries of one reply at most: what they cost whoever lists them is then bounded however short names are.
pub(super) const ENTRIES_MAX: usize = 1024;

/// The same where the loop itself lists: each client may have that much of it in turn.
pub(super) const ENTRIES_MAX_ON_LOOP: usize = 128;

/// Entries of a directory, as a reply carries them. Whoever lists encodes them, so that the loop only copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Encoded, one behind the other.
    pub bytes: Vec<u8>,
    /// Where the next listing goes on; `None` where there are none.
    pub cookie: Option<u64>,
    /// The directory has no more.
    pub end: bool,
}

/// Makes [`Entries`] of no more than so many bytes.
pub(super) struct Listing {
    entries: Entries,
    count: usize,
    count_max: usize,
    size_max: usize,
}

impl Listing {
    pub(super) fn new(size_max: usize, count_max: usize) -> Self {
        Self {
            entries: Entries { bytes: Vec::new(), cookie: None, end: false },
            count: 0,
            count_max,
            size_max,
        }
    }

    /// There is room for an entry without attributes.
    pub(super) fn fits_bare(&self, entry: &DirEntry) -> bool {
        self.count < self.count_max
            && self.entries.bytes.len() + ENTRY_OVERHEAD + entry.name.len() <= self.size_max
    }

    /// Adds an entry; `false` where there is no room for it. One whose name no request could carry is passed over.
    pub(super) fn push(&mut self, entry: &DirEntry) -> bool {
        if entry.name.len() > NAME_SIZE_MAX {
            tracing::warn!("cannot list a name of {} bytes: the limit is {NAME_SIZE_MAX}", entry.name.len());
            return true;
        }
        if self.count >= self.count_max {
            return false;
        }
        work::add(1);
        let size = self.entries.bytes.len();
        encode_dir_entry(entry, &mut self.entries.bytes);
        let fits = self.entries.bytes.len() <= self.size_max;
        if fits {
            self.count += 1;
            self.entries.cookie = Some(entry.cookie);
        } else {
            self.entries.bytes.truncate(size);
        }
        fits
    }

    /// All of them; `end`: the directory has no more.
    pub(super) fn finish(mut self, end: bool) -> FsResult {
        self.entries.end = end;
        match self.count == 0 && !end {
            true => Err(Status::RANGE),
            false => Ok(FsReply::Entries(self.entries)),
        }
    }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::decode_dir_entries;

    use super::*;

    // [STOR-177]
    #[test]
    fn name_that_no_client_could_ask_for_is_passed_over() {
        let mut listing = Listing::new(4096, 10);
        for (cookie, len) in [(1, NAME_SIZE_MAX), (2, NAME_SIZE_MAX + 1), (3, 1), (4, 765)] {
            assert!(listing.push(&DirEntry { cookie, name: vec![b'n'; len], attributes: None }));
        }
        let Ok(FsReply::Entries(found)) = listing.finish(true) else { panic!("it fits") };
        let names = decode_dir_entries(&found.bytes).unwrap();
        assert_eq!(names.iter().map(|entry| entry.cookie).collect::<Vec<_>>(), [1, 3]);
        // A directory of such names alone is empty.
        let mut listing = Listing::new(4096, 10);
        assert!(listing.push(&DirEntry { cookie: 1, name: vec![b'n'; 300], attributes: None }));
        assert!(matches!(listing.finish(true), Ok(FsReply::Entries(found)) if found.cookie.is_none()));
    }
}
