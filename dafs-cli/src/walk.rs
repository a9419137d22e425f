//! A walk through a tree on a server that lists directories ahead of whoever takes it: many are opened, and their entries fetched, before
//! it is their turn. Over a long line a tree then takes some round trips for each of its levels, and not for each of its directories.
//!
//! Directories come in preorder, or each as soon as it is listed, after the one that it is in. Only some are open at a time, and only so
//! much of their entries is kept; a directory with more is listed on when it is its turn.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dafs_client::{Attributes, Dir, DirEntry, DirPage, Error, FileKind, Pending, ReadDir, wait_any};

use crate::folder::{Folder, Held};
use crate::remote::{entry_name, sure};

/// Directories that are held open on the server, beside those that are being listed.
const HELD_MAX: usize = 512;

/// Directories that are opened or listed at the same time.
const LISTING_MAX: usize = 64;

/// So many directories behind the next one are looked at, whether they can be listed.
const AHEAD_MAX: usize = 1024;

/// Bytes of entries of one directory, and of all, that are kept before it is their turn.
const ENTRIES_SIZE_MAX: usize = 256 << 10;
const ALL_ENTRIES_SIZE_MAX: usize = 16 << 20;

/// Bytes of the second page of a directory, and those that follow; the first fits one message.
const PAGE_SIZE: usize = 64 << 10;

/// In which order directories come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Preorder, those of one directory by their names.
    Names,
    /// As they are listed. Each is open then.
    Any,
}

/// What of a directory is walked through, and what else is fetched ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Directories in it are walked through.
    pub(crate) recursive: bool,
    /// Those whose name begins with a dot too.
    pub(crate) hidden: bool,
    pub(crate) order: Order,
    /// Attributes of entries.
    pub(crate) attributes: bool,
    /// What symbolic links point to.
    pub(crate) link_targets: bool,
}

/// A walk. After the directory that is next come those in it.
pub(crate) struct Walk {
    wanted: Wanted,
    /// Bytes of a first page.
    first_page_size: usize,
    /// The next one is the last.
    stack: Vec<Node>,
    listing: usize,
    kept_size: usize,
}

/// A directory whose turn has not come.
struct Node {
    /// What it is in; of the top, and of one that is come back to, itself, and the name is empty.
    above: Arc<Folder<Dir>>,
    name: PathBuf,
    state: State,
}

enum State {
    Waiting,
    Opening(Option<Pending<Came>>),
    Listing(Box<Listed>, Option<Pending<Came>>),
    Listed(Box<Listed>),
    /// It was taken, and there is more of it; its turn comes when those behind it on the stack are gone.
    Rest(Box<Listed>),
    Failed(Error),
}

/// What has come of a request.
enum Came {
    Open(dafs_client::Result<(Dir, Attributes)>),
    Page(dafs_client::Result<DirPage>),
}

/// What a symbolic link points to, and which entry that is.
pub(crate) type LinkTarget = (usize, Pending<dafs_client::Result<Vec<u8>>>);

/// A directory that is open, and what is known to be in it.
pub(crate) struct Listed {
    pub(crate) folder: Arc<Folder<Dir>>,
    /// `None` where it is listed whole, and its turn may come late: then its folder may hold it.
    pub(crate) dir: Option<Dir>,
    pub(crate) entries: Vec<DirEntry>,
    pub(crate) link_targets: Vec<LinkTarget>,
    /// How many of the directories in it come next. `None` if it is not known whole: then whoever takes the walk calls [`Walk::enter`].
    pub(crate) below: Option<usize>,
    /// Behind which entry it is to be listed on; `None` if nothing follows.
    rest: Option<u64>,
    size: usize,
}

/// A step of a walk.
pub(crate) struct Step {
    /// The directory that this one is in; itself for the top, and for one that is come back to, whose name is empty.
    pub(crate) above: Arc<Folder<Dir>>,
    pub(crate) name: PathBuf,
    pub(crate) listed: Result<Box<Listed>, Error>,
}

impl Walk {
    /// From a directory of these attributes on. `read_inline_max` is that of its session, bytes.
    pub(crate) fn new(top: Dir, found: &Attributes, read_inline_max: u32, wanted: Wanted) -> Self {
        let folder = Folder::top(top, (found.fs_id, found.file_id), HELD_MAX);
        let first_page_size = usize::try_from(read_inline_max).unwrap_or(PAGE_SIZE).clamp(4096, PAGE_SIZE);
        let top = Node { above: folder, name: PathBuf::new(), state: State::Waiting };
        let stack = vec![top];
        Self { wanted, first_page_size, stack, listing: 0, kept_size: 0 }
    }

    /// The next directory. Blocks until as much of it is known as is fetched ahead; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Step> {
        loop {
            self.look();
            let node = match self.first_known() {
                Some(at) => self.stack.remove(at),
                None if self.stack.is_empty() => return None,
                None => {
                    self.wait();
                    continue;
                }
            };
            let Node { above, name, state } = node;
            let listed = match state {
                State::Listed(listed) | State::Rest(listed) => Ok(listed),
                State::Failed(error) => Err(error),
                State::Waiting | State::Opening(_) | State::Listing(..) => continue,
            };
            if let Ok(listed) = &listed {
                self.kept_size = self.kept_size.saturating_sub(listed.size);
            }
            return Some(Step { above, name, listed });
        }
    }

    /// Directories in one that was taken come next, the first one first.
    pub(crate) fn enter(&mut self, listed: &Arc<Folder<Dir>>, names: Vec<PathBuf>) {
        self.stack.extend(nodes_in(listed, names));
    }

    /// Comes back to a directory that was taken, behind this entry, when those have been that are entered from now on.
    pub(crate) fn come_back(&mut self, mut listed: Box<Listed>, cookie: u64) {
        (listed.rest, listed.size) = (Some(cookie), 0);
        let (above, name) = (Arc::clone(&listed.folder), PathBuf::new());
        self.stack.push(Node { above, name, state: State::Rest(listed) });
    }

    /// The place of a directory that is known and whose turn it is.
    fn first_known(&self) -> Option<usize> {
        if matches!(self.stack.last()?.state, State::Rest(_)) {
            return Some(self.stack.len() - 1);
        }
        let begin = match self.wanted.order {
            Order::Names => self.stack.len().saturating_sub(1),
            Order::Any => self.stack.len().saturating_sub(AHEAD_MAX),
        };
        let is_known = |node: &Node| matches!(node.state, State::Listed(_) | State::Failed(_));
        Some(begin + self.stack[begin..].iter().rposition(is_known)?)
    }

    /// Waits until something has come.
    fn wait(&mut self) {
        let begin = self.stack.len().saturating_sub(AHEAD_MAX);
        let nodes = &mut self.stack[begin..];
        let mut pending: Vec<_> = nodes.iter_mut().filter_map(|node| node.pending()?.take()).collect();
        wait_any(&mut pending);
        let places = nodes.iter_mut().filter_map(|node| node.pending()).filter(|place| place.is_none());
        for (place, pending) in places.zip(pending) {
            *place = Some(pending);
        }
    }

    /// Sees what has come, and begins what may be begun.
    fn look(&mut self) {
        let mut at = self.stack.len();
        let end = at.saturating_sub(AHEAD_MAX);
        while at > end {
            at -= 1;
            let is_next = at + 1 == self.stack.len();
            let node = &mut self.stack[at];
            match node.came() {
                Some(Came::Open(opened)) => self.opened(at, opened),
                Some(Came::Page(page)) => at += self.page_came(at, page),
                None if matches!(node.state, State::Waiting) => {
                    let has_room = self.listing < LISTING_MAX && self.kept_size < ALL_ENTRIES_SIZE_MAX;
                    if is_next || has_room {
                        self.listing += usize::from(node.begin());
                    }
                }
                None => {}
            }
        }
    }

    /// The node is open, or cannot be opened.
    fn opened(&mut self, at: usize, opened: dafs_client::Result<(Dir, Attributes)>) {
        let node = &mut self.stack[at];
        let above = &node.above;
        node.state = State::Waiting;
        match sure(opened, || above.held()?.enter(&node.name)) {
            Ok((dir, found)) => {
                let folder = match node.name.as_os_str().is_empty() {
                    true => Arc::clone(above),
                    false => above.below(&node.name, dir.clone(), (found.fs_id, found.file_id)),
                };
                let page = dir.submit_page(self.wanted.attributes, 0, self.first_page_size);
                node.state = State::Listing(Box::new(Listed::new(folder, dir)), Some(page.map(Came::Page)));
                return;
            }
            // When others are closed there is one for it.
            Err(error) if Dir::is_full(&error) && above.hold_fewer() => {}
            Err(error) => node.state = State::Failed(error),
        }
        self.listing -= 1;
    }

    /// A page of the node has come. Returns how many directories come before it on the stack now.
    fn page_came(&mut self, at: usize, page: dafs_client::Result<DirPage>) -> usize {
        let node = &mut self.stack[at];
        let State::Listing(mut listed, _) = std::mem::replace(&mut node.state, State::Waiting) else {
            return 0;
        };
        let size_before = listed.size;
        match page {
            Ok(page) => listed.take(page, self.wanted.link_targets),
            // Whoever takes the walk asks again, and is told what is wrong.
            Err(_) => listed.size = ENTRIES_SIZE_MAX,
        }
        self.kept_size += listed.size - size_before;
        if let (Some(dir), Some(cookie)) = (&listed.dir, listed.rest)
            && listed.size < ENTRIES_SIZE_MAX
        {
            let page = dir.submit_page(self.wanted.attributes, cookie, PAGE_SIZE);
            node.state = State::Listing(listed, Some(page.map(Came::Page)));
            return 0;
        }
        self.listing -= 1;
        let below = listed.directories(self.wanted);
        let below = below.inspect(|below| listed.below = Some(below.len())).unwrap_or_default();
        let folder = Arc::clone(&listed.folder);
        // One that is listed whole is reached by its folder, where it is still held.
        if listed.below == Some(0) {
            folder.let_go();
        }
        let is_used = listed.rest.is_some() || self.wanted.order == Order::Any;
        listed.dir = listed.dir.filter(|_| is_used);
        node.state = State::Listed(listed);
        let count = below.len();
        self.stack.splice(at..at, nodes_in(&folder, below));
        count
    }
}

/// Directories in one, as they lie on the stack.
fn nodes_in(above: &Arc<Folder<Dir>>, names: Vec<PathBuf>) -> impl Iterator<Item = Node> {
    let node = |name| Node { above: Arc::clone(above), name, state: State::Waiting };
    names.into_iter().rev().map(node)
}

impl Node {
    /// The request that has begun for it.
    fn pending(&mut self) -> Option<&mut Option<Pending<Came>>> {
        match &mut self.state {
            State::Opening(pending) | State::Listing(_, pending) => Some(pending),
            State::Waiting | State::Listed(_) | State::Rest(_) | State::Failed(_) => None,
        }
    }

    /// What has come of it, if it has.
    fn came(&mut self) -> Option<Came> {
        let pending = self.pending()?;
        pending.as_mut()?.test().then(|| pending.take().map(Pending::wait)).flatten()
    }

    /// Begins to open it. Returns whether that has begun.
    fn begin(&mut self) -> bool {
        let (state, has_begun) = match self.above.held() {
            Ok(held) => (State::Opening(Some(held.submit_enter(&self.name).map(Came::Open))), true),
            Err(error) => (State::Failed(error), false),
        };
        self.state = state;
        has_begun
    }
}

impl Listed {
    fn new(folder: Arc<Folder<Dir>>, dir: Dir) -> Self {
        let (entries, link_targets) = (Vec::new(), Vec::new());
        Self { folder, dir: Some(dir), entries, link_targets, below: None, rest: Some(0), size: 0 }
    }

    /// The entries of one more page.
    fn take(&mut self, page: DirPage, link_targets: bool) {
        let last = page.entries.last().map(|entry| entry.cookie);
        self.rest = last.filter(|_| !page.end);
        for entry in page.entries {
            self.size += size_of::<DirEntry>() + entry.name.len();
            let is_link =
                entry.attributes.as_ref().is_some_and(|attributes| attributes.kind == FileKind::Symlink);
            if link_targets && is_link {
                let name = Path::new(OsStr::from_bytes(&entry.name));
                let pending = self.dir.as_ref().map(|dir| dir.submit_read_link(name));
                self.link_targets.extend(pending.map(|pending| (self.entries.len(), pending)));
            }
            self.entries.push(entry);
        }
    }

    /// The directories in it that are walked through; `None` if they are not known.
    fn directories(&self, wanted: Wanted) -> Option<Vec<PathBuf>> {
        if !wanted.recursive {
            return Some(Vec::new());
        }
        if self.rest.is_some() || self.entries.iter().any(|entry| entry.attributes.is_none()) {
            return None;
        }
        let is_walked = |entry: &&DirEntry| {
            (wanted.hidden || entry.name.first() != Some(&b'.'))
                && entry.attributes.as_ref().is_some_and(|attributes| attributes.kind == FileKind::Directory)
        };
        let walked = self.entries.iter().filter(is_walked);
        let mut names: Vec<PathBuf> =
            walked.filter_map(|entry| entry_name(&entry.name)).map(Path::to_owned).collect();
        if wanted.order == Order::Names {
            names.sort_unstable();
        }
        Some(names)
    }

    /// What follows the entries that are known.
    pub(crate) fn rest(&mut self, attributes: bool) -> Option<ReadDir> {
        let (dir, cookie) = (self.dir.as_ref()?, self.rest.take()?);
        Some(dir.entries_from(attributes, cookie))
    }
}
