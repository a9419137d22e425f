//! Directories of a tree that a command walks through. Each is opened by its name in the directory above, which is open: if another user
//! may rename parts of the tree, a path could change its meaning.
//!
//! Only some are held open at a time, however deep the tree is. One that was closed is opened again from the nearest above it that is held,
//! many levels in one step, and is known by its number: what links on the way lead to is taken for nothing else.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use dafs_client::{Dir, Error, FileKind, Status};

use crate::remote::{join, sure};
use crate::report::lock;

/// Bytes of a path by which a directory that was closed is opened again.
const STEP_SIZE_MAX: usize = 4000;

/// So many of those above a directory that is opened again are opened too, for they are wanted next.
const NEAR: usize = 16;

/// File system and number in it.
pub(crate) type Id = (u64, u64);

/// A directory that is being opened.
pub(crate) type Opening<H, E> = Box<dyn FnOnce() -> Result<(H, Id), E>>;

/// An open directory.
pub(crate) trait Held: Clone {
    type Error;

    /// Opens what is at a path below it. A symbolic link at its end is none that is followed, and no directory.
    fn directory(&self, path: &Path) -> Result<(Self, Id), Self::Error>;

    /// Begins that; the result is waited for where it is called.
    fn begin_directory(&self, path: &Path) -> Opening<Self, Self::Error>;

    /// What has a directory's name is another by now.
    fn replaced() -> Self::Error;

    /// It was closed by a restart of the server.
    fn is_lost(&self) -> bool;

    /// Whoever opens it may not have more open: then fewer are held.
    fn is_full(error: &Self::Error) -> bool;
}

/// Those of a tree that are held.
pub(crate) struct Pool<H: Held> {
    max: AtomicUsize,
    count: AtomicUsize,
    // As they were opened; some of them are gone.
    order: Mutex<VecDeque<Weak<Folder<H>>>>,
}

/// A directory of a tree.
pub(crate) struct Folder<H: Held> {
    /// `None` for the top, which is held as long as anything in it is known.
    above: Option<Arc<Folder<H>>>,
    /// In the directory above; empty for the top.
    name: PathBuf,
    depth: usize,
    id: Id,
    held: Mutex<Option<H>>,
    was_used: AtomicBool,
    pool: Arc<Pool<H>>,
}

impl<H: Held> Folder<H> {
    /// The top of a tree, of which so many others are held at most.
    pub(crate) fn top(held: H, id: Id, max: usize) -> Arc<Self> {
        let pool = Arc::new(Pool {
            max: AtomicUsize::new(max),
            count: AtomicUsize::new(0),
            order: Mutex::default(),
        });
        let held = Mutex::new(Some(held));
        let was_used = AtomicBool::new(false);
        Arc::new(Self { above: None, name: PathBuf::new(), depth: 0, id, held, was_used, pool })
    }

    /// A directory in this one, which was just opened.
    pub(crate) fn below(self: &Arc<Self>, name: &Path, held: H, id: Id) -> Arc<Self> {
        let folder = Arc::new(Self {
            above: Some(Arc::clone(self)),
            name: name.to_owned(),
            depth: self.depth + 1,
            id,
            held: Mutex::default(),
            was_used: AtomicBool::new(false),
            pool: Arc::clone(&self.pool),
        });
        folder.keep(held);
        folder
    }

    /// How many directories of the tree it is in.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Its path below the top.
    pub(crate) fn path(&self) -> PathBuf {
        let mut names = Vec::with_capacity(self.depth);
        let mut folder = self;
        while let Some(above) = &folder.above {
            names.push(folder.name.as_path());
            folder = above;
        }
        names.into_iter().rev().collect()
    }

    /// The path of a name in it.
    pub(crate) fn path_of(&self, name: &Path) -> PathBuf {
        join(&self.path(), name)
    }

    /// The open directory. Opens it again where it was closed, which is an error where it is not there any more.
    pub(crate) fn held(self: &Arc<Self>) -> Result<H, H::Error> {
        self.was_used.store(true, Ordering::Relaxed);
        let mut closed = Vec::new();
        let mut folder = self;
        let mut held = loop {
            let known = folder.known();
            match (known, &folder.above) {
                (Some(held), _) => break held,
                (None, Some(above)) => {
                    closed.push(folder);
                    folder = above;
                }
                (None, None) => return Err(H::replaced()),
            }
        };
        while let Some(mut next) = closed.pop() {
            let mut path = next.name.clone();
            while closed.len() > NEAR
                && let Some(further) = closed.last()
                && path.as_os_str().len() + 1 + further.name.as_os_str().len() <= STEP_SIZE_MAX
            {
                path.push(&further.name);
                next = further;
                closed.pop();
            }
            let (opened, id) = loop {
                match held.directory(&path) {
                    Err(error) if H::is_full(&error) && next.hold_fewer() => {}
                    opened => break opened?,
                }
            };
            if id != next.id {
                return Err(H::replaced());
            }
            next.keep(opened.clone());
            held = opened;
        }
        Ok(held)
    }

    /// Opens those that were closed, all at the same time, each in one step. What cannot be opened so is left to [`Folder::held`].
    pub(crate) fn hold_all<'a>(folders: impl Iterator<Item = &'a Arc<Self>>)
    where
        H: 'a,
    {
        let closed = folders.filter(|folder| folder.known().is_none());
        let opening: Vec<_> = closed.filter_map(|folder| Some((folder, folder.begin_held()?))).collect();
        for (folder, opening) in opening {
            if let Ok((held, id)) = opening()
                && id == folder.id
            {
                folder.keep(held);
            }
        }
    }

    /// Begins to open it from the nearest above it that is held.
    fn begin_held(&self) -> Option<Opening<H, H::Error>> {
        let mut names = vec![&self.name];
        let mut above = self.above.as_ref()?;
        let held = loop {
            if let Some(held) = above.known() {
                break held;
            }
            names.push(&above.name);
            above = above.above.as_ref()?;
        };
        let path: PathBuf = names.into_iter().rev().collect();
        (path.as_os_str().len() <= STEP_SIZE_MAX).then(|| held.begin_directory(&path))
    }

    /// The open directory, where it is held. The top stays so, whatever became of it.
    fn known(&self) -> Option<H> {
        let mut held = lock(&self.held);
        if self.above.is_some() && held.as_ref().is_some_and(H::is_lost) {
            *held = None;
            self.pool.count.fetch_sub(1, Ordering::Relaxed);
        }
        held.clone()
    }

    /// Holds it, in the place of another where there are enough.
    fn keep(self: &Arc<Self>, held: H) {
        {
            let mut known = lock(&self.held);
            if known.is_some() {
                return;
            }
            *known = Some(held);
        }
        self.pool.count.fetch_add(1, Ordering::Relaxed);
        lock(&self.pool.order).push_back(Arc::downgrade(self));
        self.close_surplus();
    }

    /// The server has no room for as many as are held: half of them are closed, and from now on fewer are. False if it is fewer already.
    pub(crate) fn hold_fewer(self: &Arc<Self>) -> bool {
        let fewer = |max: usize| (max > 1).then_some(max / 2);
        let has_fewer = self.pool.max.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok();
        self.close_surplus();
        has_fewer
    }

    /// Nothing is reached through it any more, or only seldom: another may be held in its place.
    pub(crate) fn let_go(&self) {
        if self.above.is_some() && lock(&self.held).take().is_some() {
            self.pool.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes those beyond as many as may be held, but not this one.
    fn close_surplus(self: &Arc<Self>) {
        let pool = &self.pool;
        let (max, mut count) = (pool.max.load(Ordering::Relaxed), pool.count.load(Ordering::Relaxed));
        let mut order = lock(&pool.order);
        // Each may come again once.
        let mut looks = 2 * order.len();
        while looks > 0
            && (count > max || order.len() > 2 * max)
            && let Some(first) = order.pop_front()
        {
            looks -= 1;
            if let Some(first) = first.upgrade() {
                if first.was_used.swap(false, Ordering::Relaxed) && !Arc::ptr_eq(&first, self) {
                    order.push_back(Arc::downgrade(&first));
                } else if lock(&first.held).take().is_some() {
                    pool.count.fetch_sub(1, Ordering::Relaxed);
                }
            }
            count = pool.count.load(Ordering::Relaxed);
        }
    }
}

impl<H: Held> Drop for Folder<H> {
    fn drop(&mut self) {
        if self.above.is_some() && lock(&self.held).is_some() {
            self.pool.count.fetch_sub(1, Ordering::Relaxed);
        }
        // One after the other, not one in the other: there may be any number.
        let mut above = self.above.take();
        while let Some(mut folder) = above.and_then(Arc::into_inner) {
            above = folder.above.take();
            if above.is_some() && folder.held.get_mut().is_ok_and(|held| held.take().is_some()) {
                folder.pool.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Held for Dir {
    type Error = Error;

    fn directory(&self, path: &Path) -> dafs_client::Result<(Self, Id)> {
        let look = || self.lookup(path, false);
        let (dir, found) = sure(look(), look)?;
        match found.kind {
            FileKind::Directory => Ok((dir, (found.fs_id, found.file_id))),
            _ => Err(Self::replaced()),
        }
    }

    fn begin_directory(&self, path: &Path) -> Opening<Self, Error> {
        let pending = self.submit_lookup(path, false);
        Box::new(move || match pending.wait()? {
            (dir, found) if found.kind == FileKind::Directory => Ok((dir, (found.fs_id, found.file_id))),
            _ => Err(Self::replaced()),
        })
    }

    fn replaced() -> Error {
        Error::Invalid("it was replaced meanwhile".into())
    }

    fn is_lost(&self) -> bool {
        self.is_stale()
    }

    fn is_full(error: &Error) -> bool {
        error.status() == Some(Status::TOO_MANY_OPEN)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A directory of a tree in which each has one below, `d`, and its depth as its number.
    #[derive(Clone)]
    struct Level(u64, Arc<Counts>);

    #[derive(Default)]
    struct Counts {
        open: AtomicU64,
        most: AtomicU64,
        opened: AtomicU64,
        /// The depth of one that is of no use; 0 for none.
        lost: AtomicU64,
    }

    /// What is counted for as long as it is open.
    impl Level {
        fn open(depth: u64, counts: &Arc<Counts>) -> Counted {
            counts.opened.fetch_add(1, Ordering::Relaxed);
            let open = counts.open.fetch_add(1, Ordering::Relaxed) + 1;
            counts.most.fetch_max(open, Ordering::Relaxed);
            Counted(Arc::new(Self(depth, Arc::clone(counts))))
        }
    }

    impl Drop for Level {
        fn drop(&mut self) {
            self.1.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[derive(Clone)]
    struct Counted(Arc<Level>);

    impl Held for Counted {
        type Error = &'static str;

        fn directory(&self, path: &Path) -> Result<(Self, Id), Self::Error> {
            assert!(path.as_os_str().len() <= STEP_SIZE_MAX);
            let depth = self.0.0 + path.components().count() as u64;
            Ok((Level::open(depth, &self.0.1), (0, depth)))
        }

        fn begin_directory(&self, path: &Path) -> Opening<Self, Self::Error> {
            let opened = self.directory(path);
            Box::new(move || opened)
        }

        fn replaced() -> Self::Error {
            "replaced"
        }

        fn is_full(error: &Self::Error) -> bool {
            *error == "full"
        }

        fn is_lost(&self) -> bool {
            self.0.1.lost.load(Ordering::Relaxed) == self.0.0
        }
    }

    // [CMD-97]
    #[test]
    fn walk_down_and_up_a_deep_tree_holds_few_directories() {
        const DEPTH: u64 = 20_000;
        let counts = Arc::<Counts>::default();
        let mut folder = Folder::top(Level::open(0, &counts), (0, 0), 64);
        let mut all = vec![Arc::clone(&folder)];
        for depth in 1..=DEPTH {
            let held = folder.held().unwrap().directory(Path::new("d")).unwrap();
            assert_eq!(held.1, (0, depth));
            folder = folder.below(Path::new("d"), held.0, held.1);
            all.push(Arc::clone(&folder));
        }
        drop(folder);
        while let Some(folder) = all.pop() {
            assert_eq!(folder.held().unwrap().0.0, folder.depth() as u64);
        }
        let (most, opened) = (counts.most.load(Ordering::Relaxed), counts.opened.load(Ordering::Relaxed));
        assert!(most <= 70, "{most} were open");
        assert!(opened <= 4 * DEPTH, "{opened} were opened");
        assert_eq!(counts.open.load(Ordering::Relaxed), 0);
    }

    // [CMD-97]
    #[test]
    fn directories_that_were_closed_are_opened_together_in_one_step_each() {
        let counts = Arc::<Counts>::default();
        let top = Folder::top(Level::open(0, &counts), (0, 0), 2);
        let below = |above: &Arc<Folder<Counted>>, depth| {
            above.below(Path::new("d"), Level::open(depth, &counts), (0, depth))
        };
        let deep = (1..6).fold(Arc::clone(&top), |above, depth| below(&above, depth));
        let (one, other) = (below(&deep, 6), below(&deep, 77));
        let _take_their_places = (below(&top, 1), below(&top, 1));
        let known = || [&one, &other].map(|folder| folder.known().is_some());
        assert_eq!(known(), [false, false]);
        let before = counts.opened.load(Ordering::Relaxed);
        Folder::hold_all([&one, &other].into_iter());
        assert_eq!(counts.opened.load(Ordering::Relaxed), before + 2);
        assert_eq!(known(), [true, false], "that of another number is none of the tree");
    }

    #[test]
    fn directory_that_has_another_number_by_now_is_an_error() {
        let counts = Arc::<Counts>::default();
        let top = Folder::top(Level::open(0, &counts), (0, 0), 1);
        let one = top.below(Path::new("d"), Level::open(1, &counts), (0, 77));
        // Takes its place.
        let two = one.below(Path::new("d"), Level::open(2, &counts), (0, 2));
        let three = two.below(Path::new("d"), Level::open(3, &counts), (0, 3));
        assert_eq!(three.path_of(Path::new("x")), Path::new("d/d/d/x"));
        assert_eq!(one.held().err(), Some("replaced"));
    }

    #[test]
    fn directory_that_is_lost_is_opened_again() {
        let counts = Arc::<Counts>::default();
        let top = Folder::top(Level::open(0, &counts), (0, 0), 8);
        let one = top.below(Path::new("d"), Level::open(1, &counts), (0, 1));
        let two = one.below(Path::new("d"), Level::open(2, &counts), (0, 2));
        let opened = || counts.opened.load(Ordering::Relaxed);
        counts.lost.store(1, Ordering::Relaxed);
        two.held().unwrap();
        assert_eq!(opened(), 3);
        one.held().unwrap();
        assert_eq!(opened(), 4);
    }

    #[test]
    fn long_chain_of_directories_is_dropped() {
        let counts = Arc::<Counts>::default();
        let mut folder = Folder::top(Level::open(0, &counts), (0, 0), 8);
        for depth in 1..1_000_000 {
            folder = folder.below(Path::new("d"), Level::open(depth, &counts), (0, depth));
        }
        drop(folder);
        assert_eq!(counts.open.load(Ordering::Relaxed), 0);
    }
}
