//! Directories: opened, listed, made durable.

use std::cell::RefCell;

use dafs_client::{DirEntry, FileKind};

use crate::files::{Ahead, OpenDir};
use crate::kernel::errno::Answer;
use crate::kernel::reply::{ENTRY_SIZE, Fields, open};
use crate::kernel::request::{Header, ReadAsked};
use crate::options::Cache;
use crate::volume::Volume;

/// Places behind `.` and `..`, which the server does not list. No file system has them: they count from 0, or end at `i64::MAX`.
const AFTER_SELF: u64 = i64::MAX.cast_unsigned() - 3;
const AFTER_PARENT: u64 = i64::MAX.cast_unsigned() - 2;

/// Bytes of entries that the server is asked for at once.
const PAGE_SIZE: usize = 32 * 1024;

impl Volume {
    pub(super) async fn open_directory(&self, asks: &Header) -> Answer<Vec<u8>> {
        let node = self.directory(asks).await?;
        let dir = self.with_room(|| node.submit_open_dir_no_follow("")).await?;
        let opened = OpenDir { dir, node: asks.node, ahead: RefCell::default() };
        let flags = match self.options.cache {
            Cache::Lasting => open::KEEP_CACHE | open::CACHE_DIR,
            Cache::CloseToOpen | Cache::None => 0,
        };
        Ok(Fields::new().open(self.open.add_directory(opened), flags, 0).into_bytes())
    }

    pub(super) async fn read_directory(&self, asked: &ReadAsked, with_attributes: bool) -> Answer<Vec<u8>> {
        let open = self.open.directory(asked.file)?;
        let room = asked.size as usize;
        let mut listing = Fields::with_capacity(room);
        let mut at = asked.offset;
        for (place, name, next) in [(0, &b"."[..], AFTER_SELF), (AFTER_SELF, b"..", AFTER_PARENT)] {
            if at == place {
                let entry = with_attributes.then(|| nothing(ENTRY_SIZE));
                if !listing.dirent(room, (open.node, next, Some(FileKind::Directory)), name, entry) {
                    return Ok(listing.into_bytes());
                }
                at = next;
            }
        }
        let mut at = if at == AFTER_PARENT { 0 } else { at };
        loop {
            let mut ahead = open.ahead.take();
            if ahead.after != at || ahead.entries.is_empty() || ahead.with_attributes != with_attributes {
                if ahead.after == at && ahead.end && at != 0 {
                    *open.ahead.borrow_mut() = ahead;
                    return Ok(listing.into_bytes());
                }
                // What is there already is enough for an answer.
                if listing.len() > 0 && at != 0 {
                    *open.ahead.borrow_mut() = ahead;
                    return Ok(listing.into_bytes());
                }
                let page = open.dir.submit_page(with_attributes, at, PAGE_SIZE).await?;
                ahead = Ahead { after: at, entries: page.entries.into(), end: page.end, with_attributes };
                if ahead.entries.is_empty() {
                    *open.ahead.borrow_mut() = ahead;
                    return Ok(listing.into_bytes());
                }
            }
            while let Some(entry) = ahead.entries.front() {
                if !self.list(&mut listing, room, open.node, entry, with_attributes) {
                    *open.ahead.borrow_mut() = ahead;
                    return Ok(listing.into_bytes());
                }
                at = entry.cookie;
                ahead.after = at;
                ahead.entries.pop_front();
            }
            *open.ahead.borrow_mut() = ahead;
        }
    }

    /// Adds an entry to a listing, if it fits.
    fn list(
        &self,
        listing: &mut Fields,
        room: usize,
        directory: u64,
        entry: &DirEntry,
        with_attributes: bool,
    ) -> bool {
        let Some(attributes) = &entry.attributes else {
            let unknown = with_attributes.then(|| nothing(ENTRY_SIZE));
            // A number that is no file's: programs take 0 for a name that was removed.
            return listing.dirent(room, (u64::from(u32::MAX), entry.cookie, None), &entry.name, unknown);
        };
        let about = (attributes.file_id, entry.cookie, Some(attributes.kind));
        if !with_attributes {
            return listing.dirent(room, about, &entry.name, None);
        }
        // It counts as looked up only where it fits.
        let fits = listing.len() + ENTRY_SIZE + (24 + entry.name.len()).next_multiple_of(8) <= room;
        fits && listing.dirent(room, about, &entry.name, Some(self.entry(directory, &entry.name, attributes)))
    }

    pub(super) async fn sync_directory(&self, directory: u64) -> Answer<()> {
        Ok(self.open.directory(directory)?.dir.submit_commit().await?)
    }

    pub(super) async fn statistics(&self, asks: &Header) -> Answer<Vec<u8>> {
        let node = self.directory(asks).await?;
        let statistics = node.submit_statfs("").await?;
        Ok(Fields::new().statistics(&statistics).into_bytes())
    }
}

/// An entry that the kernel is not to take for a file it knows.
fn nothing(bytes: usize) -> Fields {
    (0..bytes / 8).fold(Fields::with_capacity(bytes), |fields, _| fields.u64(0))
}
