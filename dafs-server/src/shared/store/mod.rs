//! What outlives the server: one file, kept by one thread, since that waits for a disk. What comes while it writes is written together, all
//! of it or nothing. It does not know what a lock or a fence means, and decides nothing. Imports nothing of the other rooms.
//!
//! Something else is kept by a table in `tables`: a variant of [`Change`], a field of [`Kept`], and how each is written and read.

mod change;
mod draft;
mod keeper;
mod medium;
mod tables;
#[cfg(test)]
pub(crate) mod tests;
mod unsettled;

use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::Status;

pub use self::change::StoreError;
use self::change::{AnyError, Sent};
pub(crate) use self::change::{
    Change, FileName, Kept, LocksChange, OwnerName, Proof, PublishedEntry, PublishedName, Record, Tell,
    proof_of,
};
use self::keeper::Keeper;
use self::unsettled::Unsettled;

/// The file, with its thread.
#[derive(Debug)]
pub(crate) struct Store {
    /// `None` when it has ended.
    changes: Mutex<Option<Sender<Sent>>>,
    unsettled: Arc<Mutex<Unsettled>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Reads the file, or makes it where there is none. Blocks.
    pub(crate) fn open(path: &Path) -> Result<(Self, Kept), StoreError> {
        let (changes, arriving) = channel();
        let (opened, outcome) = channel();
        let unsettled = Arc::new(Mutex::new(Unsettled::default()));
        let (shared, of) = (Arc::clone(&unsettled), path.to_owned());
        // The reader of a damaged file may panic: on a thread of its own, that ends nothing else.
        let thread = std::thread::Builder::new().name("dafs-store".into()).spawn(move || {
            match medium::open(&of) {
                Ok((medium, database, kept)) => {
                    let keeper = Keeper::new(medium, Some(database), &of, shared);
                    // Whoever opens it waits for this.
                    let _ = opened.send(Ok(kept));
                    keeper.keep(&arriving);
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        });
        let unusable = |error: AnyError| StoreError::Unusable { path: path.to_owned(), error };
        let thread = thread.map_err(|error| unusable(error.into()))?;
        let damaged = || unusable("it is damaged: its reader panicked".into());
        let kept = outcome.recv().map_err(|_| damaged())??;
        Ok((Self { changes: Mutex::new(Some(changes)), unsettled, thread: Mutex::new(Some(thread)) }, kept))
    }

    /// Has a change written that is undone where that fails; whoever asked is told.
    pub(crate) fn ask(&self, change: Change, tell: Tell) {
        self.send(Sent { change, number: None, has_happened: false, tell: Some(tell) });
    }

    /// Has a change written that has happened already. Where it cannot be, it is written with what can be later.
    pub(crate) fn note(&self, change: Change, tell: Option<Tell>) {
        self.send(Sent { change, number: None, has_happened: true, tell });
    }

    /// As [`Store::note`], where an owner has given locks back: [`Store::is_unsettled`] for him until it is written.
    pub(crate) fn note_freed(&self, change: LocksChange, by: OwnerName, tell: Option<Tell>) {
        let number = lock(&self.unsettled).begin(change.file, &change.range, by);
        self.send(Sent { change: Change::Locks(change), number: Some(number), has_happened: true, tell });
    }

    fn send(&self, sent: Sent) {
        let unsent = match &*lock(&self.changes) {
            Some(changes) => changes.send(sent).err().and_then(|error| error.0.tell),
            None => sent.tell,
        };
        if let Some(tell) = unsent {
            tell(Status::IO);
        }
    }

    /// What an owner has given back in a range of a file may be kept as his: that is still to be written.
    pub(crate) fn is_unsettled(&self, file: FileName, range: &Range<u64>, owner: OwnerName) -> bool {
        lock(&self.unsettled).has(file, range, owner)
    }

    /// Writes what there is to be written, and closes the file. Blocks.
    pub(crate) fn close(&self) {
        *lock(&self.changes) = None;
        if let Some(thread) = lock(&self.thread).take() {
            // It has told of what went wrong in it.
            let _ = thread.join();
        }
    }
}
