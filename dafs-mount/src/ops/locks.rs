//! Locks of fcntl(2) and flock(2), at the server.
//!
//! The server has ranges alone. A lock of flock is one of a byte behind the largest file, so that the two kinds never meet, as they do not
//! on a local file system.

use std::ops::Range;
use std::rc::Rc;

use dafs_client::{Error, File, LockKind, LockOptions, OpenOptions, Status};
use futures_channel::oneshot;
use futures_util::future::{Either, select};

use crate::files::OpenFile;
use crate::kernel::errno::{Answer, Errno};
use crate::kernel::reply::Fields;
use crate::kernel::request::LockAsked;
use crate::volume::Volume;

/// Where the largest file ends.
const END: u64 = 1 << 63;

/// What flock locks.
const FLOCK: Range<u64> = END..END + 1;

impl LockAsked {
    fn range(&self) -> Range<u64> {
        match self.is_flock {
            true => FLOCK,
            false => self.start..self.last.saturating_add(1).min(END),
        }
    }

    /// `None` gives back.
    fn lock_kind(&self) -> Option<LockKind> {
        match self.kind.cast_signed() {
            libc::F_RDLCK => Some(LockKind::Shared),
            libc::F_WRLCK => Some(LockKind::Exclusive),
            _ => None,
        }
    }

    fn options(&self) -> LockOptions {
        LockOptions { owner: Some(self.owner), ..LockOptions::default() }
    }
}

impl Volume {
    pub(super) async fn test_lock(&self, asked: &LockAsked) -> Answer<Vec<u8>> {
        let open = self.opened_file(asked.file).await?;
        let kind = asked.lock_kind().ok_or(Errno::INVALID)?;
        let conflict = open.file.submit_test_lock_with(asked.range(), kind, asked.options()).await?;
        let Some(conflict) = conflict else {
            return Ok(found(asked.start, asked.last, libc::F_UNLCK, 0));
        };
        let kind = if conflict.kind == LockKind::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
        let last = conflict.range.end.min(END).saturating_sub(1);
        // The number of a process means nothing on another host.
        let process = if conflict.is_local() { u32::try_from(conflict.owner).unwrap_or(0) } else { 0 };
        Ok(found(conflict.range.start.min(last), last, kind, process))
    }

    /// Waits where it can be interrupted.
    pub(super) async fn lock(
        &self,
        asked: &LockAsked,
        mut interrupted: Option<oneshot::Receiver<()>>,
    ) -> Answer<()> {
        let open = self.opened_file(asked.file).await?;
        let Some(kind) = asked.lock_kind() else {
            self.unlock(open.node, asked.range(), asked.owner).await;
            return Ok(());
        };
        let file = self.lockable(&open, kind).await?;
        open.owners.borrow_mut().insert(asked.owner);
        // It may change from one kind to the other, and be held through another open file of its owner.
        loop {
            let done = match &mut interrupted {
                None => file.submit_try_lock_with(asked.range(), kind, asked.options()).await,
                Some(interrupted) => self.wait_for_lock(interrupted, &file, asked, kind).await?,
            };
            return match done {
                Err(Error::TimedOut { .. }) if interrupted.is_some() => continue,
                Err(Error::Status { status: Status::LOCKED, .. }) => Err(Errno(libc::EAGAIN)),
                Err(Error::Status { status: Status::BAD_HANDLE, .. }) => Err(Errno::BAD_FILE),
                done => Ok(done?),
            };
        }
    }

    /// Waits for a lock, and gives up when the kernel says that whoever asks has been interrupted.
    async fn wait_for_lock(
        &self,
        interrupted: &mut oneshot::Receiver<()>,
        file: &File,
        asked: &LockAsked,
        kind: LockKind,
    ) -> Answer<dafs_client::Result<()>> {
        let pending = file.submit_lock_with(asked.range(), kind, asked.options());
        match select(pending, interrupted).await {
            Either::Left((done, _)) => Ok(done),
            // It may have been granted meanwhile; what became of it decides.
            Either::Right((_, waits)) => match waits.cancel() {
                Ok(()) => Ok(Ok(())),
                Err(_) => Err(Errno::INTERRUPTED),
            },
        }
    }

    /// The file by which a descriptor may lock so: the server wants one that is open for writing for a lock that excludes others.
    async fn lockable(&self, open: &OpenFile, kind: LockKind) -> Answer<Rc<File>> {
        if kind == LockKind::Shared || open.writes {
            return Ok(Rc::clone(&open.file));
        }
        let known = open.writable.borrow().clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let handle = self.handle(open.node, &open.caller).await?;
        let how = OpenOptions::new().read(true).write(true).clone();
        let file = self.with_room(|| handle.submit_open_with("", &how)).await;
        let file = Rc::new(file.map_err(|_| Errno::BAD_FILE)?);
        *open.writable.borrow_mut() = Some(Rc::clone(&file));
        Ok(file)
    }

    /// Gives back what an owner has locked of a file with fcntl, through whichever descriptor.
    pub(super) async fn unlock_all_of(&self, node: u64, owner: u64) {
        self.unlock(node, 0..END, owner).await;
    }

    async fn unlock(&self, node: u64, range: Range<u64>, owner: u64) {
        for open in self.open.all_of(node) {
            if !open.owners.borrow().contains(&owner) {
                continue;
            }
            let writable = open.writable.borrow().clone();
            for file in std::iter::once(&open.file).chain(writable.iter()) {
                if let Err(error) = file.submit_unlock_with(range.clone(), owner).await {
                    tracing::debug!("a lock is not given back: {error}");
                }
            }
        }
    }
}

/// The reply that tells what is in the way of a lock.
fn found(start: u64, last: u64, kind: i32, process: u32) -> Vec<u8> {
    Fields::new().u64(start).u64(last).u32(kind.cast_unsigned()).u32(process).into_bytes()
}
