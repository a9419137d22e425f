//! What handles stand for. A handle is a number with a place and a generation, found without a lock; it never means what another
//! handle meant before.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};

use dafs_client::{Completions, Cork, Datatype, Dir, Export, File, Pending, ReadDir, Session, View};
use sharded_slab::{Config, DefaultConfig, Entry, Slab};

use crate::failure::Result;
use crate::group::{Batch, Chain};

/// Numbers are below 2^63, so that -1 is none.
#[derive(Debug)]
pub(crate) struct Numbers;

impl Config for Numbers {
    const MAX_THREADS: usize = DefaultConfig::MAX_THREADS;
    const RESERVED_BITS: usize = 1;
}

/// What an operation ends with: the result of its blocking call.
pub(crate) type Operation = Pending<Result<i64>>;

#[derive(Debug)]
pub(crate) enum Object {
    Session {
        session: Session,
        completions: Mutex<Option<Completions>>,
        corks: Mutex<Vec<Cork<'static>>>,
    },
    Export(Export),
    Dir(Dir),
    File(File),
    Listing(Mutex<ReadDir>),
    /// `None` while a thread waits for it.
    Op(Mutex<Option<Operation>>),
    Chain(Mutex<Chain>),
    Batch(Mutex<Batch>),
    Type(Datatype),
    View(View),
}

static OBJECTS: LazyLock<Slab<Kept, Numbers>> = LazyLock::new(Slab::new_with_config);

/// An object in the table. Of two that remove it while a third one uses it, the table tells both that they did.
struct Kept {
    object: Object,
    is_removed: AtomicBool,
}

/// An object that is kept as long as this lives.
pub(crate) struct Found(Entry<'static, Kept, Numbers>);

impl Deref for Found {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.0.object
    }
}

/// A handle for it; `None` where there are too many.
pub(crate) fn insert(object: Object) -> Option<i64> {
    let kept = Kept { object, is_removed: AtomicBool::new(false) };
    OBJECTS.insert(kept).and_then(|key| i64::try_from(key).ok()?.checked_add(1))
}

/// What a handle stands for, kept as long as the result lives.
pub(crate) fn find(handle: i64) -> Option<Found> {
    OBJECTS.get(key_of(handle)?).map(Found)
}

/// Makes the table, and knows this thread in it: a child that this thread forks then needs no lock that another thread may have had.
pub(crate) fn before_fork() {
    if let Some(handle) = insert(Object::Op(Mutex::new(None))) {
        remove(handle);
    }
}

/// The handle stands for nothing any more. Whether it did.
pub(crate) fn remove(handle: i64) -> bool {
    let Some(key) = key_of(handle) else { return false };
    let is_first = OBJECTS.get(key).is_some_and(|kept| !kept.is_removed.swap(true, Ordering::AcqRel));
    is_first && OBJECTS.remove(key)
}

/// 0 is no handle, so that what was never set is none.
fn key_of(handle: i64) -> Option<usize> {
    usize::try_from(handle.checked_sub(1)?).ok()
}

impl Object {
    /// The directory that paths begin at.
    pub(crate) fn dir(&self) -> Option<&Dir> {
        match self {
            Self::Export(export) => Some(export.root()),
            Self::Dir(dir) => Some(dir),
            _ => None,
        }
    }
}
