//! Copies trees with several threads.
//!
//! Each thread takes what there is to do: a batch of small files, one large file, or a directory to list, whose
//! entries become work in turn. Directories are made before anything in them and get their attributes at the end,
//! deepest first; second names of a file are made after all files. What fails is reported and left out; the rest goes
//! on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use dafs_client::FileKind;

use super::batch;
use super::claims::{self, Claim, Claims};
use super::directories;
use super::large::{self, Fault, Outcome};
use super::place::{Cause, KeepOwner, Meta, Place};
use super::same;
use super::tally::Tally;
use crate::report::{Failure, Failures};
use crate::signals::Interrupt;

/// Largest file that is read and written in one piece, bytes.
pub(super) const SMALL_SIZE_MAX: u64 = 256 * 1024;

/// Smallest file whose holes are looked for, bytes: below it, file systems that keep small files with their names would cost each a search.
const SPARSE_SIZE_MIN: u64 = 8 * 1024;

/// Files, and bytes, of a batch.
pub(super) const BATCH_COUNT: usize = 64;
const BATCH_SIZE: u64 = 4 << 20;

/// Files that wait at most; the thread that lists a directory copies some itself before it goes on.
const WAITING_MAX: usize = 4096;

/// Where a tree comes from and goes to.
pub(super) struct Roots {
    pub(super) source: Place,
    pub(super) destination: Place,
    pub(super) keep_owner: KeepOwner,
    /// Both are reached through one session.
    pub(super) one_session: bool,
    /// File system and number of the top directory of the copy, once it is there.
    pub(super) copy: OnceLock<(u64, u64)>,
    /// Of the whole command.
    pub(super) claims: Arc<Claims>,
}

/// Something to copy: the same path below both roots.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) roots: Arc<Roots>,
    pub(super) path: PathBuf,
    pub(super) meta: Meta,
    /// Symbolic links at the end of the path are followed: it was named by the user.
    pub(super) follow: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) sync: bool,
    pub(super) jobs: u16,
}

pub(super) struct Engine {
    pub(super) options: Options,
    pub(super) tally: Tally,
    pub(super) failures: Arc<Failures>,
    pub(super) interrupt: Interrupt,
    // A session has ended.
    over: AtomicBool,
    work: Mutex<Work>,
    more: Condvar,
    // Two of what is copied may get one name.
    overlap: AtomicBool,
    // Files with several names of which one is copied by now, or will be.
    first_names: Mutex<HashSet<Linked>>,
    second_names: Mutex<Vec<Item>>,
    // Where their data is, once it is all there.
    copied: Mutex<HashMap<Linked, PathBuf>>,
    directories: Mutex<Vec<Item>>,
    // Copies of large files that are not complete.
    incomplete: Mutex<Vec<String>>,
}

/// A file with several names.
#[derive(PartialEq, Eq, Hash)]
struct Linked {
    /// Which of the trees: the address of its roots.
    tree: usize,
    id: (u64, u64),
}

impl Linked {
    /// `None` for what is copied for itself alone.
    fn of(item: &Item) -> Option<Self> {
        let several = item.meta.kind == FileKind::File && item.meta.links > 1 && !item.follow;
        several.then_some(Self { tree: Arc::as_ptr(&item.roots) as usize, id: item.meta.id })
    }
}

#[derive(Default)]
struct Work {
    directories: Vec<Item>,
    files: VecDeque<Item>,
    /// Threads that may still find more.
    busy: usize,
}

/// What a thread does next.
enum Task {
    Directory(Item),
    Files(Vec<Item>),
}

impl Engine {
    pub(super) fn new(options: Options, tally: Tally, failures: Arc<Failures>, interrupt: Interrupt) -> Self {
        Self {
            options,
            tally,
            failures,
            interrupt,
            over: AtomicBool::new(false),
            work: Mutex::default(),
            more: Condvar::new(),
            overlap: AtomicBool::new(false),
            first_names: Mutex::default(),
            second_names: Mutex::default(),
            copied: Mutex::default(),
            directories: Mutex::default(),
            incomplete: Mutex::default(),
        }
    }

    /// Copies everything. Blocks until it is done or interrupted.
    pub(super) fn run(&self, tops: &[Item]) {
        match claims::overlap(tops) {
            false => self.copy_all(tops),
            true => {
                self.overlap.store(true, Ordering::Relaxed);
                claims::in_turn(tops).for_each(|items| self.copy_all(items));
            }
        }
        if self.over.load(Ordering::Relaxed) {
            return;
        }
        self.link_second_names();
        // After an interruption too: what is there can then be used by those it was meant for.
        let directories = std::mem::take(&mut *lock(&self.directories));
        directories::finish(self, directories);
        if self.options.sync && !self.is_over() {
            directories::commit_names(self, tops);
        }
    }

    /// Copies these with all that is in them, but for second names and the attributes of directories.
    fn copy_all(&self, items: &[Item]) {
        for item in items {
            self.found(item.clone());
        }
        std::thread::scope(|scope| {
            for _ in 1..self.options.jobs {
                scope.spawn(|| self.work());
            }
            self.work();
        });
    }

    /// Makes the other names of files with several. One whose first name could not be copied is tried under the others: what
    /// may be at the first name is not what was to be copied.
    fn link_second_names(&self) {
        let items = std::mem::take(&mut *lock(&self.second_names));
        for chunk in items.chunks(BATCH_COUNT) {
            if self.is_over() {
                return;
            }
            let (linked, others): (Vec<&Item>, Vec<&Item>) =
                chunk.iter().partition(|item| self.first_name(item).is_some());
            let with_first = |item: &Item| self.first_name(item).map(|first| (item.clone(), first));
            batch::make_hard_links(self, linked.into_iter().filter_map(with_first).collect());
            for item in others {
                if self.is_over() {
                    return;
                }
                match with_first(item) {
                    Some(link) => batch::make_hard_links(self, vec![link]),
                    None => self.copy_one(item),
                }
            }
        }
    }

    fn first_name(&self, item: &Item) -> Option<PathBuf> {
        lock(&self.copied).get(&Linked::of(item)?).cloned()
    }

    /// Counts a copy that is complete.
    pub(super) fn copied(&self, item: &Item, size: u64) {
        self.tally.file(size);
        if let Some(linked) = Linked::of(item) {
            lock(&self.copied).insert(linked, item.path.clone());
        }
    }

    /// Reports what could not be done. The end of a session is reported once, and ends everything: all that follows would fail for it.
    pub(super) fn failed(&self, place: &Place, action: &str, path: &Path, cause: &Cause) {
        if cause.ends_session() && self.over.swap(true, Ordering::Relaxed) {
            return;
        }
        self.failures.report(&place.failed(action, path, cause));
    }

    pub(super) fn changed(&self, item: &Item) {
        let cause = Cause::Text(
            "it changed meanwhile, and the copy may be partly old and partly new: copy it again".into(),
        );
        self.failed(&item.roots.source, "copy exactly", &item.path, &cause);
    }

    /// The rest is not copied.
    pub(super) fn is_over(&self) -> bool {
        self.interrupt.is_set() || self.over.load(Ordering::Relaxed)
    }

    /// Copies one file now, whatever its size.
    pub(super) fn copy_one(&self, item: &Item) {
        match is_large(&item.meta) {
            true => self.copy_large(item),
            false => batch::copy_files(self, vec![item.clone()]),
        }
    }

    /// Says which copies of large files are being made: for an end in their midst.
    pub(super) fn say_incomplete(&self) {
        for copy in lock(&self.incomplete).iter() {
            self.failures.say(&format!("interrupted: {copy} is incomplete"));
        }
    }

    pub(super) fn copy_large(&self, item: &Item) {
        let copy = item.roots.destination.shown(&item.path);
        lock(&self.incomplete).push(copy.clone());
        let copied = large::copy(self, item);
        lock(&self.incomplete).retain(|other| *other != copy);
        match copied {
            Ok(Outcome::Done { changed }) => {
                self.copied(item, 0);
                if changed {
                    self.changed(item);
                }
            }
            Ok(Outcome::Interrupted) => {
                self.failures.say(&format!("interrupted: {copy} is incomplete"));
            }
            Err(Fault::Source(action, cause)) => self.failed(&item.roots.source, action, &item.path, &cause),
            Err(Fault::Sink(action, cause)) => {
                self.failed(&item.roots.destination, action, &item.path, &cause)
            }
        }
    }

    fn work(&self) {
        let mut work = lock(&self.work);
        loop {
            if self.is_over() {
                self.more.notify_all();
                return;
            }
            let Some(task) = work.next() else {
                if work.busy == 0 {
                    self.more.notify_all();
                    return;
                }
                work = self.more.wait(work).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            work.busy += 1;
            drop(work);
            self.carry_out(task);
            work = lock(&self.work);
            work.busy -= 1;
            if work.busy == 0 {
                self.more.notify_all();
            }
        }
    }

    fn carry_out(&self, task: Task) {
        match task {
            Task::Directory(item) => self.list(&item),
            Task::Files(mut items) => {
                let links: Vec<Item> =
                    items.extract_if(.., |item| item.meta.kind == FileKind::Symlink).collect();
                if !links.is_empty() {
                    batch::copy_symlinks(self, links);
                }
                match items.as_slice() {
                    [] => {}
                    [item] if is_large(&item.meta) => self.copy_large(item),
                    _ => batch::copy_files(self, items),
                }
            }
        }
    }

    /// Makes the copies of a directory's subdirectories, and queues all that is in it.
    fn list(&self, item: &Item) {
        let mut directories = Vec::new();
        let roots = &item.roots;
        let listed = roots.source.list(&item.path, &mut |path, meta| {
            if self.is_over() {
                return;
            }
            match meta {
                Ok(meta) => {
                    let entry = Item { roots: Arc::clone(roots), path, meta, follow: false };
                    match entry.meta.kind {
                        FileKind::Directory => match same::is_copy(roots, &entry.path, &entry.meta) {
                            Ok(false) => directories.push(entry),
                            Ok(true) => {
                                let cause = Cause::Text("it is the copy itself".into());
                                self.failed(&roots.source, "copy", &entry.path, &cause);
                            }
                            Err(cause) => self.failed(&roots.source, "look at", &entry.path, &cause),
                        },
                        _ => self.found(entry),
                    }
                }
                Err(cause) => self.failed(&roots.source, "look at", &path, &cause),
            }
            // Not to have a whole directory of millions of names waiting.
            while let Some(items) = self.surplus() {
                self.carry_out(Task::Files(items));
            }
        });
        if let Err(cause) = listed {
            self.failed(&roots.source, "list", &item.path, &cause);
        }
        for chunk in directories.chunks(BATCH_COUNT) {
            self.make_directories(chunk.to_vec());
        }
    }

    fn make_directories(&self, items: Vec<Item>) {
        let making: Vec<_> = items
            .into_iter()
            .map(|item| {
                // Others may use it when all of it is there.
                let later = item.roots.destination.begin_make_dir(&item.path, 0o700);
                (item, later)
            })
            .collect();
        for (item, later) in making {
            match later.wait() {
                Ok(_) => {
                    self.tally.directory();
                    if item.path.as_os_str().is_empty()
                        && let Ok(copy) = item.roots.destination.metadata(&item.path, false)
                    {
                        // Once for each tree.
                        let _ = item.roots.copy.set(copy.id);
                    }
                    lock(&self.directories).push(item.clone());
                    lock(&self.work).directories.push(item);
                    self.more.notify_one();
                }
                Err(cause) => self.failed(&item.roots.destination, "make the directory", &item.path, &cause),
            }
        }
    }

    /// Queues something.
    fn found(&self, item: Item) {
        match item.meta.kind {
            FileKind::Directory => return self.make_directories(vec![item]),
            FileKind::File | FileKind::Symlink => {}
            // Named by the user: what comes out of it is meant, as with cp.
            FileKind::Fifo | FileKind::CharDevice | FileKind::BlockDevice if is_local_stream(&item) => {}
            kind => {
                let shown = item.roots.source.shown(&item.path);
                let kind = crate::format::kind_name(kind);
                self.failures.report(&Failure::text(format!("skipping {shown}: a {kind} is not copied")));
                self.tally.skipped();
                return;
            }
        }
        if self.overlap.load(Ordering::Relaxed) && !self.claim(&item) {
            return;
        }
        if let Some(linked) = Linked::of(&item)
            && !lock(&self.first_names).insert(linked)
        {
            lock(&self.second_names).push(item);
            return;
        }
        if item.meta.kind == FileKind::File {
            self.tally.expect(if is_sparse(&item.meta) { item.meta.allocated } else { item.meta.size });
        }
        let mut work = lock(&self.work);
        work.files.push_back(item);
        if work.files.len() % BATCH_COUNT == 1 {
            self.more.notify_one();
        }
    }

    /// Whether this is the source that the name of its copy is made of.
    fn claim(&self, item: &Item) -> bool {
        match item.roots.claims.name(item) {
            Claim::New => true,
            Claim::Again => false,
            Claim::Taken(first) => {
                let copy = item.roots.destination.shown(&item.path);
                let cause = Cause::Text(format!("will not overwrite {copy}, which {first} is copied to"));
                self.failed(&item.roots.source, "copy", &item.path, &cause);
                false
            }
        }
    }

    fn surplus(&self) -> Option<Vec<Item>> {
        let mut work = lock(&self.work);
        (work.files.len() > WAITING_MAX).then(|| work.batch())
    }
}

impl Work {
    /// Full batches first, then directories, for they bring more, then what is left.
    fn next(&mut self) -> Option<Task> {
        if self.files.len() < BATCH_COUNT
            && let Some(directory) = self.directories.pop()
        {
            return Some(Task::Directory(directory));
        }
        (!self.files.is_empty()).then(|| Task::Files(self.batch()))
    }

    /// One large file, or several small ones.
    fn batch(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        let mut size = 0;
        while let Some(item) = self.files.front() {
            let large = is_large(&item.meta);
            let full = items.len() >= BATCH_COUNT || size + item.meta.size > BATCH_SIZE;
            if !items.is_empty() && (large || full) {
                break;
            }
            size = size.saturating_add(item.meta.size);
            items.extend(self.files.pop_front());
            if large {
                break;
            }
        }
        items
    }
}

fn is_sparse(meta: &Meta) -> bool {
    meta.size >= SPARSE_SIZE_MIN && meta.allocated < meta.size
}

/// What is copied by itself: a large or sparse file, or what is read to its end.
fn is_large(meta: &Meta) -> bool {
    match meta.kind {
        FileKind::Symlink => false,
        FileKind::File => meta.size > SMALL_SIZE_MAX || is_sparse(meta),
        _ => true,
    }
}

/// A pipe or device of this machine that the user named.
fn is_local_stream(item: &Item) -> bool {
    item.follow && matches!(item.roots.source, Place::Local(_))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
