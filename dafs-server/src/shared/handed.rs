//! Files that were handed over: clients on this host have descriptors of them, past the server. And who wants some of them back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{FileHandle, OpenFlags, SessionId, Status};

use super::fences::{Checked, Subject};
use super::shares::{Share, Shares};
use crate::storage::LockKey;
use crate::worker::ids::ConnectionKey;

/// What is handed over, and what is called back.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    table: Mutex<Table>,
    /// How many recalls there are: looked at without the lock.
    recalls: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    holders: Vec<Entry>,
    recalls: Vec<(u64, Scope)>,
    /// Counts both.
    count: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    holder: Holder,
    /// The connection that was told to give it back.
    told: Option<ConnectionKey>,
}

/// Who has a descriptor, and by which handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) file: LockKey,
    pub(crate) export: usize,
    pub(crate) worker: usize,
    pub(crate) session: SessionId,
    pub(crate) handle: FileHandle,
    /// As fences know him. He is on this host, so he has no address.
    pub(crate) client_id: [u8; 16],
    pub(crate) key_name: Option<String>,
}

/// Which files are wanted back.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// Of a file, but for those of one session.
    File { file: LockKey, but: Option<SessionId> },
    /// Of an export, those of clients that this list fences off.
    Fence { export: usize, list: Box<Checked> },
}

impl Scope {
    fn concerns(&self, holder: &Holder) -> bool {
        match self {
            Self::File { file, but } => holder.file == *file && *but != Some(holder.session),
            Self::Fence { export, list } => {
                let key_name = holder.key_name.as_deref();
                let subject = Subject { client_id: &holder.client_id, key_name, address: None };
                holder.export == *export && list.holds_off(&subject)
            }
        }
    }
}

/// A file counts as handed over, and as open for reading and writing, until this is dropped.
#[derive(Debug)]
pub(crate) struct HandedOver {
    handed: Arc<Handed>,
    number: u64,
    _share: Arc<Share>,
}

/// Files of a scope are wanted back, and none is handed over, until this is dropped.
#[derive(Debug)]
pub(crate) struct Recalling {
    handed: Arc<Handed>,
    number: u64,
}

impl Handed {
    /// Counts a file as handed over, and as open for these.
    ///
    /// # Errors
    /// [`Status::BUSY`] while it is called back; [`Status::SHARE_DENIED`] where an open of another denies what this has.
    pub(crate) fn hand(
        self: &Arc<Self>,
        holder: Holder,
        shares: &Arc<Shares>,
        opens: OpenFlags,
    ) -> Result<HandedOver, Status> {
        let share = shares.share(opens, None);
        share.admit_file(holder.file)?;
        let mut table = lock(&self.table);
        if table.recalls.iter().any(|(_, scope)| scope.concerns(&holder)) {
            return Err(Status::BUSY);
        }
        let number = table.next();
        table.holders.push(Entry { number, holder, told: None });
        drop(table);
        Ok(HandedOver { handed: Arc::clone(self), number, _share: share })
    }

    /// Wants files back. From now on no other is handed over.
    pub(crate) fn recall(self: &Arc<Self>, scope: Scope) -> Recalling {
        let mut table = lock(&self.table);
        let number = table.next();
        table.recalls.push((number, scope));
        drop(table);
        self.recalls.fetch_add(1, Ordering::AcqRel);
        Recalling { handed: Arc::clone(self), number }
    }

    /// Something is wanted back.
    #[inline]
    pub(crate) fn is_recalled(&self) -> bool {
        self.recalls.load(Ordering::Acquire) > 0
    }

    /// Sessions of a worker, and handles there, that are wanted back.
    pub(crate) fn wanted(&self, worker: usize) -> Vec<(SessionId, FileHandle)> {
        let table = lock(&self.table);
        let is_wanted = |holder: &Holder| table.recalls.iter().any(|(_, scope)| scope.concerns(holder));
        let own = table.holders.iter().map(|entry| &entry.holder).filter(|holder| holder.worker == worker);
        own.filter(|holder| is_wanted(holder)).map(|holder| (holder.session, holder.handle)).collect()
    }

    /// Whether a handle has not been asked for on this connection yet: it is about to be.
    pub(crate) fn tell(&self, session: SessionId, handle: FileHandle, connection: ConnectionKey) -> bool {
        let mut table = lock(&self.table);
        let mut entries = table.holders.iter_mut();
        let found = entries.find(|entry| (entry.holder.session, entry.holder.handle) == (session, handle));
        found.is_some_and(|entry| entry.told.replace(connection) != Some(connection))
    }
}

impl Table {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }
}

impl Recalling {
    /// Nobody has one of the files.
    pub(crate) fn is_done(&self) -> bool {
        let table = lock(&self.handed.table);
        let scope = table.recalls.iter().find(|(number, _)| *number == self.number);
        scope.is_none_or(|(_, scope)| !table.holders.iter().any(|entry| scope.concerns(&entry.holder)))
    }
}

impl Drop for Recalling {
    fn drop(&mut self) {
        lock(&self.handed.table).recalls.retain(|(number, _)| *number != self.number);
        self.handed.recalls.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        lock(&self.handed.table).holders.retain(|entry| entry.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::FenceList;

    use super::*;

    const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

    fn holder(file: u64, session: u64) -> Holder {
        Holder {
            file: LockKey { fs: 1, file, generation: 1 },
            export: 0,
            worker: 0,
            session: SessionId(session),
            handle: FileHandle(file),
            client_id: [u8::try_from(session).unwrap(); 16],
            key_name: None,
        }
    }

    // [LOCAL-6] [LOCAL-8]
    #[test]
    fn file_that_is_called_back_is_handed_to_nobody() {
        let (handed, shares) = (Arc::new(Handed::default()), Arc::new(Shares::default()));
        let hand = |file, session| handed.hand(holder(file, session), &shares, BOTH);
        let first = hand(1, 1).unwrap();
        assert!(!handed.is_recalled());
        let file = holder(1, 1).file;
        let recalling = handed.recall(Scope::File { file, but: None });
        assert!(handed.is_recalled() && !recalling.is_done());
        assert_eq!(handed.wanted(0), [(SessionId(1), FileHandle(1))]);
        assert_eq!(handed.wanted(1), []);
        assert_eq!(hand(1, 2).unwrap_err(), Status::BUSY);
        drop(hand(2, 2).unwrap());
        let connection = |index| ConnectionKey { index, generation: 1 };
        assert!(handed.tell(SessionId(1), FileHandle(1), connection(1)));
        assert!(!handed.tell(SessionId(1), FileHandle(1), connection(1)), "once");
        assert!(handed.tell(SessionId(1), FileHandle(1), connection(2)), "and on each connection");
        drop(first);
        assert!(recalling.is_done());
        drop(recalling);
        drop(hand(1, 2).unwrap());
    }

    // [LOCAL-6]
    #[test]
    fn recall_concerns_others_of_the_file_and_those_who_are_fenced_off() {
        let (handed, shares) = (Arc::new(Handed::default()), Arc::new(Shares::default()));
        let _one = handed.hand(holder(1, 1), &shares, BOTH).unwrap();
        let but = |session| Scope::File { file: holder(1, 1).file, but: Some(SessionId(session)) };
        assert!(handed.recall(but(1)).is_done(), "one's own is no hindrance");
        assert!(!handed.recall(but(2)).is_done());
        let fence = |export, client| {
            let list = Box::new(Checked::new(FenceList::of_clients(&[[client; 16]])).unwrap());
            Scope::Fence { export, list }
        };
        assert!(!handed.recall(fence(0, 1)).is_done());
        assert!(handed.recall(fence(0, 2)).is_done(), "another client");
        assert!(handed.recall(fence(1, 1)).is_done(), "another export");
    }

    // [LOCAL-5]
    #[test]
    fn file_that_is_handed_over_counts_as_open() {
        let (handed, shares) = (Arc::new(Handed::default()), Arc::new(Shares::default()));
        let denies = |flags| {
            let share = shares.share(OpenFlags::READ | flags, None);
            share.admit_file(holder(1, 1).file).map(|()| share)
        };
        let one = handed.hand(holder(1, 1), &shares, BOTH).unwrap();
        assert_eq!(denies(OpenFlags::DENY_WRITE).unwrap_err(), Status::SHARE_DENIED);
        drop(one);
        let _denying = denies(OpenFlags::DENY_WRITE).unwrap();
        assert_eq!(handed.hand(holder(1, 1), &shares, BOTH).unwrap_err(), Status::SHARE_DENIED);
        drop(handed.hand(holder(1, 1), &shares, OpenFlags::READ).unwrap());
    }
}
