//! Something to copy.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use dafs_client::{FileKind, OpenOptions};
use dafs_stripe::Striping;

use super::at::{Base, Spot};
use super::claims::Claims;
use super::draft::Drafts;
use super::local;
use super::meta::{Cause, KeepOwner, Later, Meta};
use super::open_file::{OpenFile, SMALL_SIZE_MAX};
use super::tree_root::TreeRoot;
use crate::folder::Folder;
use crate::report::lock;

/// Smallest file whose holes are looked for, bytes: below it, file systems that keep small files with their names would cost each a search.
const SPARSE_SIZE_MIN: u64 = 8 * 1024;

/// Steps in flight at the same time.
pub(super) const BATCH_COUNT: usize = 64;

/// Where a tree comes from and goes to.
pub(super) struct Roots {
    pub(super) source: TreeRoot,
    pub(super) destination: TreeRoot,
    pub(super) keep_owner: KeepOwner,
    /// Both are reached through one session.
    pub(super) one_session: bool,
    /// File system and number of the top directory of the copy, once it is there.
    pub(super) copy: OnceLock<(u64, u64)>,
    /// How files are striped that are made, where the user says so.
    pub(super) striping: Option<Striping>,
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
    /// Where it is.
    pub(super) source: Spot,
    /// Where its copy is.
    pub(super) copy: Spot,
    /// Of a directory that was made: itself and its copy, to reach what is in them.
    pub(super) folders: Option<Folders>,
    pub(super) meta: Meta,
    /// Symbolic links at the end of the path are followed: it was named by the user.
    pub(super) follow: bool,
    /// The directory that it is in, where that was made before: it is not whole as long as this is there.
    pub(super) parent: Option<Arc<Made>>,
    /// The copy of a directory was there before.
    pub(super) was_there: bool,
}

/// A directory and its copy.
#[derive(Clone)]
pub(super) struct Folders {
    pub(super) source: Arc<Folder<Base>>,
    pub(super) copy: Arc<Folder<Base>>,
}

impl Item {
    /// What the user named.
    pub(super) fn top(roots: Arc<Roots>, meta: Meta, follow: bool) -> Self {
        let (source, copy) = (Spot::default(), Spot::default());
        Self { roots, source, copy, folders: None, meta, follow, parent: None, was_there: false }
    }

    /// Begins to open what is copied, and returns what it is by then.
    pub(super) fn begin_open(&self) -> Later<(OpenFile, Meta)> {
        let opening = self.roots.source.begin(&self.source, |at| at.begin_open(self.follow));
        let TreeRoot::Remote(target) = &self.roots.source else { return opening };
        let (volume, path) = (target.volume.clone(), self.path());
        Later::Wait(Box::new(move || {
            let (file, meta) = opening.wait()?;
            let options = OpenOptions::new().read(true).clone();
            let file = file.adopted(&volume, &path, &options)?;
            match file {
                OpenFile::Striped(_) => file.metadata().map(|meta| (file, meta)),
                file => Ok((file, meta)),
            }
        }))
    }

    /// Opens a pipe or a device of this machine that the user named, and returns what it is by then. Blocks until a pipe has another end.
    pub(super) fn open_stream(&self) -> Result<(OpenFile, Meta), Cause> {
        let file = std::fs::File::open(self.roots.source.path(Path::new("")))?;
        let meta = local::meta_of(&file)?;
        // No size that it may have says how much comes.
        Ok((OpenFile::Local(file), Meta { size: 0, allocated: 0, ..meta }))
    }

    /// Its path below the roots.
    pub(super) fn path(&self) -> PathBuf {
        self.copy.path()
    }
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
    /// Small files of a group, which are open at the same time.
    pub(super) group_count: usize,
}

/// Small files that all jobs together have open.
const OPEN_COUNT: usize = 256;

impl Options {
    pub(super) fn new(sync: bool, preserve: bool, jobs: u16) -> Self {
        let group_count = (OPEN_COUNT / usize::from(jobs.max(1))).clamp(1, BATCH_COUNT);
        Self { sync, preserve, jobs, group_count }
    }
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
