//! Copies trees with several threads.
//!
//! Each thread takes what there is to do: a group of small files, one large file, or a directory to list, whose
//! entries become work in turn. Directories are made before anything in them and get their attributes when all of that is
//! there; second names of a file are made after all files. What fails is reported and left out; the rest goes on.
//!
//! Nothing says that a directory ends, nor a tree. For each directory, a bounded number of unvisited entries is kept, and complete ones are
//! forgotten.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use dafs_client::FileKind;

use super::account::Account;
use super::at::{At, Base, Entries, MadeDir, Spot, UNFINISHED_MODE};
use super::claims::{self, Claim};
use super::directories;
use super::group;
use super::item::{BATCH_COUNT, Folders, Item, Linked, Made, is_large, is_sparse};
use super::large;
use super::meta::{Cause, Later, Meta, SET_GROUP_ID};
use super::same;
use super::tree_root::TreeRoot;
use crate::folder::{Folder, Held};
use crate::report::{Failure, lock};

/// Bytes of a group.
const BATCH_SIZE: u64 = 4 << 20;

/// Files that wait at most; the thread that lists a directory copies some itself before it goes on.
const WAITING_MAX: usize = 4096;

/// Directories of one that a thread has found and that are not listed yet, at most: then these are listed before the rest of it.
const BELOW_MAX: usize = 4096;

/// Directories of a tree, and of its copy, that are held open beside those that something is just done in.
const HELD_MAX: usize = 512;

pub(super) struct Engine {
    pub(super) account: Account,
    work: Mutex<Work>,
    more: Condvar,
    // Two of what is copied may get one name.
    overlap: AtomicBool,
    // Files with several names of which one is copied by now, or will be, and where: it must be reached for the others.
    first_names: Mutex<HashMap<Linked, Option<Arc<Made>>>>,
    second_names: Mutex<Vec<Item>>,
    // Directories in which all is made, without their attributes yet.
    whole: Arc<Mutex<Vec<Item>>>,
    // Those that another tree may come to as well: they get theirs at the end.
    shared: Mutex<MergedDirectories>,
}

#[derive(Default)]
struct Work {
    directories: Vec<Listing>,
    files: VecDeque<Item>,
    /// Threads that may still find more.
    busy: usize,
    /// Of these, those that list directories.
    listing: usize,
    /// Small files of a group.
    group_count: usize,
}

/// Directories of which one may be made of several.
#[derive(Default)]
struct MergedDirectories {
    items: Vec<Item>,
    made: HashSet<String>,
}

impl MergedDirectories {
    /// Takes one more: to those that come later it was there.
    fn push(&mut self, item: &mut Item) {
        item.was_there |= !self.made.insert(item.roots.destination.shown(&item.path()));
        self.items.push(item.clone());
    }
}

/// A directory that was made, and is to be listed, or the rest of it.
struct Listing {
    item: Item,
    made: Option<Arc<Made>>,
    entries: Option<Entries>,
}

/// What a thread does next.
enum Task {
    Directory(Box<Listing>),
    Files(Vec<Item>),
}

impl Engine {
    pub(super) fn new(account: Account) -> Self {
        Self {
            work: Mutex::new(Work { group_count: account.options.group_count, ..Work::default() }),
            account,
            more: Condvar::new(),
            overlap: AtomicBool::new(false),
            first_names: Mutex::default(),
            second_names: Mutex::default(),
            whole: Arc::default(),
            shared: Mutex::default(),
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
        self.link_second_names();
        // After an interruption, and the end of the source's session, too: what is there can then be used by those it was meant for.
        drop(std::mem::take(&mut *lock(&self.work)));
        drop(std::mem::take(&mut *lock(&self.first_names)));
        while self.finish_whole(1) {}
        directories::finish_tree(&self.account, std::mem::take(&mut lock(&self.shared).items));
        if self.account.options.sync && !self.account.is_over() {
            directories::commit_names(&self.account, tops);
        }
    }

    /// Copies these with all that is in them, but for second names and the attributes of directories.
    fn copy_all(&self, items: &[Item]) {
        for item in items {
            self.found(item.clone());
        }
        std::thread::scope(|scope| {
            for _ in 1..self.account.options.jobs {
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
            if self.account.is_over() {
                return;
            }
            let (linked, others): (Vec<&Item>, Vec<&Item>) =
                chunk.iter().partition(|item| self.account.first_name(item).is_some());
            let with_first = |item: &Item| self.account.first_name(item).map(|first| (item.clone(), first));
            group::make_hard_links(&self.account, linked.into_iter().filter_map(with_first).collect());
            for item in others {
                if self.account.is_over() {
                    return;
                }
                match with_first(item) {
                    Some(link) => group::make_hard_links(&self.account, vec![link]),
                    None => group::copy_one(&self.account, item),
                }
            }
            directories::commit_full(&self.account, &chunk[0]);
        }
    }

    fn work(&self) {
        let mut work = lock(&self.work);
        loop {
            if self.account.is_over() {
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
            let is_listing = matches!(task, Task::Directory(_));
            work.busy += 1;
            work.listing += usize::from(is_listing);
            drop(work);
            self.carry_out(task);
            self.finish_whole(BATCH_COUNT);
            work = lock(&self.work);
            work.busy -= 1;
            work.listing -= usize::from(is_listing);
            // What is left may be copied when nobody lists any more.
            if work.busy == 0 || is_listing && work.listing == 0 {
                self.more.notify_all();
            }
        }
    }

    fn carry_out(&self, task: Task) {
        match task {
            Task::Directory(listing) => self.list(*listing),
            Task::Files(mut items) => {
                let first = items.first().cloned();
                let links: Vec<Item> =
                    items.extract_if(.., |item| item.meta.kind == FileKind::Symlink).collect();
                if !links.is_empty() {
                    group::copy_symlinks(&self.account, links);
                }
                match items.as_slice() {
                    [] => {}
                    [item] if is_large(&item.meta) => large::copy_reported(&self.account, item),
                    _ => group::copy_files(&self.account, items),
                }
                if let Some(item) = first {
                    directories::commit_full(&self.account, &item);
                }
            }
        }
    }

    /// Queues all that is in a directory, and makes the copies of those in it; the rest of one that has too many waits behind them.
    fn list(&self, mut listing: Listing) {
        let roots = Arc::clone(&listing.item.roots);
        let Some(folders) = listing.item.folders.clone() else { return };
        let failed = |cause| self.account.failed(&roots.source, "list", &listing.item.path(), &cause);
        let entries = match listing.entries.take() {
            None => loop {
                match folders.source.held().and_then(|held| held.entries()) {
                    Err(cause) if Base::is_full(&cause) && folders.source.hold_fewer() => {}
                    entries => break entries,
                }
            },
            Some(entries) => Ok(entries),
        };
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(cause) => return failed(cause),
        };
        let (mut directories, made) = (Vec::new(), listing.made.clone());
        while !self.account.is_over()
            && let Some(entry) = entries.next()
        {
            match entry {
                Ok((name, Ok(mut meta))) => {
                    let (roots, parent) = (Arc::clone(&roots), made.clone());
                    meta.inherits_group =
                        listing.item.meta.inherits_group && meta.kind == FileKind::Directory;
                    let source = Spot::below(&folders.source, name.clone());
                    let copy = Spot::below(&folders.copy, name);
                    let (folders, follow, was_there) = (None, false, false);
                    let item = Item { roots, source, copy, folders, meta, follow, parent, was_there };
                    self.entry(item, &mut directories);
                }
                Ok((name, Err(cause))) => {
                    self.account.failed(&roots.source, "look at", &folders.source.path_of(&name), &cause);
                }
                Err(cause) => {
                    failed(cause);
                    break;
                }
            }
            // Not to have a whole directory of millions of names waiting.
            while let Some(items) = self.surplus() {
                self.carry_out(Task::Files(items));
            }
            if directories.len() >= BELOW_MAX {
                listing.entries = Some(entries);
                lock(&self.work).directories.push(listing);
                break;
            }
        }
        for chunk in directories.chunks(BATCH_COUNT) {
            if self.account.is_over() {
                break;
            }
            self.make_directories(chunk.to_vec());
            directories::commit_full(&self.account, &chunk[0]);
        }
    }

    /// Something in a directory that is listed.
    fn entry(&self, entry: Item, directories: &mut Vec<Item>) {
        if entry.meta.kind != FileKind::Directory {
            return self.found(entry);
        }
        let source = &entry.roots.source;
        match same::is_copy(&entry.roots, &entry.source, &entry.meta) {
            Ok(false) => directories.push(entry),
            Ok(true) => {
                let cause = Cause::Text("it is the copy itself".into());
                self.account.failed(source, "copy", &entry.path(), &cause);
            }
            Err(cause) => self.account.failed(source, "look at", &entry.path(), &cause),
        }
    }

    /// Gives directories their attributes in which all is made, if there are so many. Those that they are in may be whole then.
    fn finish_whole(&self, count_min: usize) -> bool {
        let mut whole = lock(&self.whole);
        if whole.len() < count_min {
            return false;
        }
        let directories = std::mem::take(&mut *whole);
        drop(whole);
        directories::finish(&self.account, &directories);
        true
    }

    /// Makes the copies of directories, and opens both: what is in them is reached by one name.
    fn make_directories(&self, items: Vec<Item>) {
        let opening: Vec<_> = items
            .into_iter()
            .map(|item| {
                let later = item.roots.source.begin(&item.source, At::begin_directory);
                (item, later)
            })
            .collect();
        let making: Vec<_> = opening
            .into_iter()
            .filter_map(|(item, later)| match opened(&item.roots.source, &item.source, later) {
                Ok(source) => {
                    let session = item.roots.destination.session();
                    let later = item.roots.destination.begin(&item.copy, At::begin_make_dir);
                    Some((item, source, session, later))
                }
                Err(cause) => {
                    self.account.failed(&item.roots.source, "list", &item.path(), &cause);
                    None
                }
            })
            .collect();
        let opening: Vec<_> = making
            .into_iter()
            .filter_map(|(item, source, session, later)| match later.wait() {
                Ok(made) => {
                    if made.is_new {
                        self.account.drafts.made(session, &item);
                    }
                    let later = item.roots.destination.begin(&item.copy, At::begin_directory);
                    Some((item, source, made, later))
                }
                Err(cause) => {
                    self.not_made(&item, &cause);
                    None
                }
            })
            .collect();
        for (item, source, made, later) in opening {
            match opened(&item.roots.destination, &item.copy, later) {
                Ok(copy) => self.made(item, source, copy, &made),
                Err(cause) => self.not_made(&item, &cause),
            }
        }
    }

    fn not_made(&self, item: &Item, cause: &Cause) {
        self.account.failed(&item.roots.destination, "make the directory", &item.path(), cause);
    }

    /// A directory and its copy are there.
    fn made(&self, mut item: Item, source: (Base, Meta), copy: (Base, Meta), made: &MadeDir) {
        self.account.tally.directory();
        let found = copy.1.mode & 0o7777;
        item.was_there = !made.is_new && found & !SET_GROUP_ID != UNFINISHED_MODE;
        if item.copy.folder.is_none() {
            // Once for each tree.
            let _ = item.roots.copy.set(copy.1.id);
        }
        item.meta.inherits_group = found & SET_GROUP_ID != 0;
        let folder = |spot: &Spot, (held, meta): (Base, Meta)| match &spot.folder {
            Some(above) => above.below(&spot.name, held, meta.id),
            None => Folder::top(held, meta.id, HELD_MAX),
        };
        let (source, copy) = (folder(&item.source, source), folder(&item.copy, copy));
        item.folders = Some(Folders { source, copy });
        let made = match self.overlap.load(Ordering::Relaxed) {
            false => Some(Made::new(item.clone(), &self.whole)),
            true => {
                lock(&self.shared).push(&mut item);
                None
            }
        };
        lock(&self.work).directories.push(Listing { item, made, entries: None });
        self.more.notify_one();
    }

    /// Queues something.
    fn found(&self, item: Item) {
        match item.meta.kind {
            FileKind::Directory => return self.make_directories(vec![item]),
            FileKind::File | FileKind::Symlink => {}
            // Named by the user: what comes out of it is meant, as with cp.
            FileKind::Fifo | FileKind::CharDevice | FileKind::BlockDevice if is_local_stream(&item) => {}
            kind => {
                let shown = item.roots.source.shown(&item.path());
                let kind = crate::format::kind_name(kind);
                self.account
                    .failures
                    .report(&Failure::text(format!("skipping {shown}: a {kind} is not copied")));
                self.account.tally.skipped();
                return;
            }
        }
        if self.overlap.load(Ordering::Relaxed) && !self.claim(&item) {
            return;
        }
        if let Some(linked) = Linked::of(&item) {
            match lock(&self.first_names).entry(linked) {
                Entry::Vacant(first) => drop(first.insert(item.parent.clone())),
                Entry::Occupied(_) => return lock(&self.second_names).push(item),
            }
        }
        if item.meta.kind == FileKind::File {
            self.account.tally.expect(if is_sparse(&item.meta) {
                item.meta.allocated
            } else {
                item.meta.size
            });
        }
        let is_large = is_large(&item.meta);
        let mut work = lock(&self.work);
        work.files.push_back(item);
        let is_group = work.files.len().is_multiple_of(work.group_count) || is_large;
        if is_group || work.listing == 0 {
            self.more.notify_one();
        }
    }

    /// Whether this is the source that the name of its copy is made of.
    fn claim(&self, item: &Item) -> bool {
        match item.roots.claims.name(item) {
            Claim::New => true,
            Claim::Again => false,
            Claim::Taken(first) => {
                let copy = item.roots.destination.shown(&item.path());
                let cause = Cause::Text(format!("will not overwrite {copy}, which {first} is copied to"));
                self.account.failed(&item.roots.source, "copy", &item.path(), &cause);
                false
            }
        }
    }

    fn surplus(&self) -> Option<Vec<Item>> {
        let mut work = lock(&self.work);
        (work.files.len() > WAITING_MAX).then(|| work.group())
    }
}

impl Work {
    /// Full groups first, then directories, for they bring more. What is left is copied when nobody finds more: far away from the server a
    /// step of few files takes as long as one of many.
    fn next(&mut self) -> Option<Task> {
        if self.files.len() < self.group_count
            && let Some(directory) = self.directories.pop()
        {
            return Some(Task::Directory(Box::new(directory)));
        }
        let is_due = self.files.len() >= self.group_count
            || self.listing == 0
            || self.files.front().is_some_and(|item| is_large(&item.meta));
        (is_due && !self.files.is_empty()).then(|| Task::Files(self.group()))
    }

    /// One large file, or several small ones.
    fn group(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        let mut size = 0;
        while let Some(item) = self.files.front() {
            let large = is_large(&item.meta);
            let full = items.len() >= self.group_count || size + item.meta.size > BATCH_SIZE;
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

/// What was opened, which is a directory. Where too much is open it is opened again when some has been closed.
fn opened(place: &TreeRoot, spot: &Spot, mut later: Later<(Base, Meta)>) -> Result<(Base, Meta), Cause> {
    loop {
        match (later.wait(), &spot.folder) {
            (Err(cause), Some(above)) if Base::is_full(&cause) && above.hold_fewer() => {
                later = place.begin(spot, At::begin_directory);
            }
            (opened, _) => return opened.and_then(directory),
        }
    }
}

/// What was opened is a directory.
fn directory((held, meta): (Base, Meta)) -> Result<(Base, Meta), Cause> {
    match meta.kind {
        FileKind::Directory => Ok((held, meta)),
        // Whatever is there: a link to a directory is none, for it may lead elsewhere.
        kind => {
            let kind = crate::format::kind_name(kind);
            Err(Cause::Text(format!("a {kind} with that name is in the way")))
        }
    }
}

/// A pipe or device of this machine that the user named.
fn is_local_stream(item: &Item) -> bool {
    item.follow && matches!(item.roots.source, TreeRoot::Local(_))
}
