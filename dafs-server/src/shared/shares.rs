//! Deny modes: what the opens of a file let others do with it, for all workers. They are kept by file, not by name, since a file may have
//! several names, also in several exports.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{Attributes, OpenFlags, SessionId, Status};

use crate::shared::locks::Locks;
use crate::storage::{Admission, Kept, LockKey};

/// A file: its file system, its number there, and what tells it from an earlier one of that number.
type FileKey = (u64, u64, u64);

/// The files that clients have open.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    files: Mutex<HashMap<FileKey, Opens>>,
}

/// What an open does, and then what it keeps others from. Each conflicts with the one two places away.
const KINDS: [OpenFlags; 4] =
    [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::DENY_READ, OpenFlags::DENY_WRITE];

/// How many opens of a file are of each kind.
type Opens = [u32; 4];

/// What an open has of a file, from when it is known which file that is until this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    flags: OpenFlags,
    held: Mutex<Option<FileKey>>,
    /// The file that others had open in its way, when it was refused last.
    refused: Mutex<Option<LockKey>>,
    /// Where it cuts the file: the locks that may keep this session from that.
    cuts: Option<(Arc<Locks>, SessionId)>,
    /// What others want to have kept as long as it counts.
    kept: Mutex<Option<Kept>>,
}

impl Shares {
    /// What an open with these flags is going to have. Where it may cut the file, `cuts` says whose locks may keep the session from that.
    pub(crate) fn share(
        self: &Arc<Self>,
        flags: OpenFlags,
        cuts: Option<(Arc<Locks>, SessionId)>,
    ) -> Arc<Share> {
        Arc::new(Share {
            shares: Arc::clone(self),
            flags,
            held: Mutex::default(),
            refused: Mutex::default(),
            cuts,
            kept: Mutex::default(),
        })
    }

    fn add(&self, file: FileKey, flags: OpenFlags) -> Result<(), Status> {
        let mut files = lock(&self.files);
        let opens = files.get(&file).copied().unwrap_or_default();
        if (0..4).any(|kind| flags.contains(KINDS[kind]) && opens[(kind + 2) % 4] > 0) {
            return Err(Status::SHARE_DENIED);
        }
        // As many as there are handles: they do not reach the number's end.
        count(files.entry(file).or_default(), flags, |number| number + 1);
        Ok(())
    }

    fn remove(&self, file: FileKey, flags: OpenFlags) {
        if let Entry::Occupied(mut entry) = lock(&self.files).entry(file) {
            count(entry.get_mut(), flags, |number| number.saturating_sub(1));
            if *entry.get() == Opens::default() {
                entry.remove();
            }
        }
    }

    /// Files that are open.
    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.files).len()
    }
}

impl Share {
    /// The open is of this file.
    pub(crate) fn admit_file(&self, key: LockKey) -> Result<(), Status> {
        let file = (key.fs, key.file, key.generation);
        let mut held = lock(&self.held);
        if *held == Some(file) {
            return Ok(());
        }
        self.release(&mut held);
        self.shares.add(file, self.flags).inspect_err(|_| *lock(&self.refused) = Some(key))?;
        *held = Some(file);
        Ok(())
    }

    /// The file that others had open in its way, when it was refused last.
    pub(crate) fn refused(&self) -> Option<LockKey> {
        *lock(&self.refused)
    }

    fn release(&self, held: &mut Option<FileKey>) {
        if let Some(file) = held.take() {
            self.shares.remove(file, self.flags);
        }
    }
}

impl Admission for Share {
    /// Asked again when an open is tried again, perhaps of another file then.
    fn admit(&self, file: &Attributes) -> Result<(), Status> {
        let key = LockKey { fs: file.fs_id, file: file.file_id, generation: file.generation };
        if let Some((locks, session)) = self.cuts.as_ref().filter(|(locks, _)| locks.are_mandatory())
            && locks.with(|table| table.keeps_out(key, std::slice::from_ref(&(0..u64::MAX)), *session, true))
        {
            return Err(Status::LOCKED);
        }
        self.admit_file(key)
    }

    fn keep(&self, what: Option<Kept>) {
        let before = std::mem::replace(&mut *lock(&self.kept), what);
        drop(before);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = lock(&self.held).take();
        self.release(&mut held);
    }
}

/// Counts an open in or out.
fn count(opens: &mut Opens, flags: OpenFlags, step: fn(u32) -> u32) {
    for (number, _) in opens.iter_mut().zip(KINDS).filter(|(_, kind)| flags.contains(*kind)) {
        *number = step(*number);
    }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::{FileKind, Timestamp};

    use super::*;

    fn file(file_id: u64) -> Attributes {
        let time = Timestamp::default();
        Attributes {
            kind: FileKind::File,
            mode: 0o600,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            file_id,
            fs_id: 1,
            atime: time,
            mtime: time,
            ctime: time,
            device: 0,
            generation: 1,
            change: 0,
        }
    }

    fn modes() -> impl Iterator<Item = OpenFlags> {
        let access = [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::READ | OpenFlags::WRITE];
        let none = OpenFlags::empty();
        let denies =
            [none, OpenFlags::DENY_READ, OpenFlags::DENY_WRITE, OpenFlags::DENY_READ | OpenFlags::DENY_WRITE];
        access.into_iter().flat_map(move |access| denies.into_iter().map(move |deny| access | deny))
    }

    /// One denies what the other does.
    fn is_denied(one: OpenFlags, other: OpenFlags) -> bool {
        one.contains(OpenFlags::READ) && other.contains(OpenFlags::DENY_READ)
            || one.contains(OpenFlags::WRITE) && other.contains(OpenFlags::DENY_WRITE)
    }

    // [STOR-150]
    #[test]
    fn every_pair_of_opens_conflicts_where_one_denies_what_the_other_does() {
        for first in modes() {
            for second in modes() {
                let shares = Arc::new(Shares::default());
                let (one, two) = (shares.share(first, None), shares.share(second, None));
                one.admit(&file(1)).unwrap();
                let conflict = is_denied(first, second) || is_denied(second, first);
                let expected = if conflict { Err(Status::SHARE_DENIED) } else { Ok(()) };
                assert_eq!(two.admit(&file(1)), expected, "{first:?} {second:?}");
                // Another file is another matter.
                shares.share(second, None).admit(&file(2)).unwrap();
                drop(one);
                assert_eq!(shares.len(), usize::from(!conflict), "a conflict leaves nothing");
                two.admit(&file(1)).unwrap();
                drop(two);
                assert_eq!(shares.len(), 0);
            }
        }
    }

    // [STOR-151]
    #[test]
    fn open_that_is_tried_again_counts_once_and_of_another_file_there() {
        let shares = Arc::new(Shares::default());
        let own = shares.share(OpenFlags::READ | OpenFlags::DENY_READ, None);
        own.admit(&file(1)).unwrap();
        own.admit(&file(1)).unwrap();
        own.admit(&file(2)).unwrap();
        shares.share(OpenFlags::READ, None).admit(&file(1)).unwrap();
        assert!(shares.share(OpenFlags::READ, None).admit(&file(2)).is_err());
        drop(own);
        assert_eq!(shares.len(), 0);
    }
}
