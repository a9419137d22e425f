//! Something to copy.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use dafs_client::FileKind;

use super::claims::Claims;
use super::draft::Drafts;
use super::place::{KeepOwner, Meta, Place};
use crate::report::lock;

/// Largest file that is read and written in one piece, bytes.
pub(super) const SMALL_SIZE_MAX: u64 = 256 * 1024;

/// Smallest file whose holes are looked for, bytes: below it, file systems that keep small files with their names would cost each a search.
const SPARSE_SIZE_MIN: u64 = 8 * 1024;

/// Files of a group.
pub(super) const BATCH_COUNT: usize = 64;

/// Where a tree comes from and goes to.
pub(super) struct Roots {
    pub(super) source: Place,
    pub(super) destination: Place,
    pub(super) keep_owner: KeepOwner,
    /// Both are reached through one session.
    pub(super) one_session: bool,
    /// File system and number of the top directory of the copy, once it is there.
    pub(super) copy: OnceLock<(u64, u64)>,
    /// Copies are written where they shall be, whatever becomes of them.
    pub(super) in_place: bool,
    /// Of the whole command.
    pub(super) claims: Arc<Claims>,
    /// Of the whole command.
    pub(super) drafts: Arc<Drafts>,
}

/// Something to copy: the same path below both roots.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) roots: Arc<Roots>,
    pub(super) path: PathBuf,
    pub(super) meta: Meta,
    /// Symbolic links at the end of the path are followed: it was named by the user.
    pub(super) follow: bool,
    /// The directory that it is in, where that was made before: it is not whole as long as this is there.
    pub(super) parent: Option<Arc<Made>>,
    /// The copy of a directory was there before.
    pub(super) was_there: bool,
}

/// A directory that was made, for as long as something is still to be made in it. Then it is given to those who end it.
pub(super) struct Made {
    item: Option<Item>,
    whole: Arc<Mutex<Vec<Item>>>,
}

impl Made {
    pub(super) fn new(item: Item, whole: &Arc<Mutex<Vec<Item>>>) -> Arc<Self> {
        Arc::new(Self { item: Some(item), whole: Arc::clone(whole) })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        lock(&self.whole).extend(self.item.take());
    }
}

#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) sync: bool,
    /// Directories that were there get attributes too.
    pub(super) preserve: bool,
    pub(super) jobs: u16,
}

/// A file with several names.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Linked {
    /// Which of the trees: the address of its roots.
    tree: usize,
    id: (u64, u64),
}

impl Linked {
    /// `None` for what is copied for itself alone.
    pub(super) fn of(item: &Item) -> Option<Self> {
        let several = item.meta.kind == FileKind::File && item.meta.links > 1 && !item.follow;
        several.then_some(Self { tree: Arc::as_ptr(&item.roots) as usize, id: item.meta.id })
    }
}

pub(super) fn is_sparse(meta: &Meta) -> bool {
    meta.size >= SPARSE_SIZE_MIN && meta.allocated < meta.size
}

/// What is copied by itself: a large or sparse file, or what is read to its end.
pub(super) fn is_large(meta: &Meta) -> bool {
    match meta.kind {
        FileKind::Symlink => false,
        FileKind::File => meta.size > SMALL_SIZE_MAX || is_sparse(meta),
        _ => true,
    }
}
