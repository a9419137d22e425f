//! What programs have open: files and directories of the server, by the numbers that the kernel has for them.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use dafs_client::{Dir, DirEntry, File, OpenOptions};
use slab::Slab;

use crate::callers::Caller;
use crate::held::Held;
use crate::kernel::errno::{Answer, Errno};

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) file: Rc<File>,
    pub(crate) node: u64,
    /// Who has it open: his session stays as long.
    pub(crate) caller: Rc<Caller>,
    /// How it is opened again.
    pub(crate) how: OpenOptions,
    /// It is open for writing.
    pub(crate) writes: bool,
    /// The kernel reads and writes it itself.
    pub(crate) is_local: bool,
    /// The kernel caches nothing of it, and then asks for no `fsync` where a write is to be durable when it returns.
    pub(crate) is_direct: bool,
    /// It was made without a name.
    pub(crate) is_unnamed: bool,
    /// Owners who have locked something through it. Whoever locked must give back through the same open file: it takes its locks again
    /// after a restart of the server.
    pub(crate) owners: RefCell<HashSet<u64>>,
    /// What was written through it and is not durable yet.
    pub(crate) held: RefCell<Held>,
    /// The file opened for writing as well, for whoever locks exclusively through a descriptor that only reads.
    pub(crate) writable: RefCell<Option<Rc<File>>>,
}

impl OpenFile {
    /// A write with these flags is to be durable when it returns, and the kernel will not ask for that: whether its data alone is.
    pub(crate) fn lasts(&self, flags: u32) -> Option<bool> {
        let has = |flag: i32| flags & flag.cast_unsigned() == flag.cast_unsigned();
        (self.is_direct && has(libc::O_DSYNC)).then(|| !has(libc::O_SYNC))
    }
}

/// An open directory, and the entries that were fetched and not yet asked for.
pub(crate) struct OpenDir {
    pub(crate) dir: Dir,
    pub(crate) node: u64,
    pub(crate) ahead: RefCell<Ahead>,
}

/// Entries behind a place.
#[derive(Default)]
pub(crate) struct Ahead {
    /// The cookie that they follow.
    pub(crate) after: u64,
    pub(crate) entries: VecDeque<DirEntry>,
    /// Nothing follows them.
    pub(crate) end: bool,
    /// They carry attributes.
    pub(crate) with_attributes: bool,
}

/// All that is open.
#[derive(Default)]
pub(crate) struct Open {
    files: RefCell<Slab<Rc<OpenFile>>>,
    directories: RefCell<Slab<Rc<OpenDir>>>,
    /// Open files of each node.
    of_node: RefCell<HashMap<u64, Vec<u64>>>,
    /// Files that no program has open any more, with what is not durable yet: whoever asks for that later, by another descriptor, is to
    /// learn what became of it.
    lingering: RefCell<VecDeque<Rc<OpenFile>>>,
}

/// Files that linger, at most. Of those before nobody learns.
const LINGERING_MAX: usize = 1024;

fn number(index: usize) -> u64 {
    index as u64
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Open {
    pub(crate) fn add_file(&self, file: OpenFile) -> u64 {
        let node = file.node;
        let number = number(self.files.borrow_mut().insert(Rc::new(file)));
        self.of_node.borrow_mut().entry(node).or_default().push(number);
        number
    }

    pub(crate) fn file(&self, number: u64) -> Answer<Rc<OpenFile>> {
        self.files.borrow().get(index(number)).cloned().ok_or(Errno::BAD_FILE)
    }

    /// Puts one in the place of another of the same node.
    pub(crate) fn replace(&self, number: u64, file: OpenFile) -> Answer<Rc<OpenFile>> {
        let file = Rc::new(file);
        let mut files = self.files.borrow_mut();
        let place = files.get_mut(index(number)).filter(|place| place.node == file.node);
        *place.ok_or(Errno::BAD_FILE)? = Rc::clone(&file);
        Ok(file)
    }

    /// Some open file of a node.
    pub(crate) fn any_of(&self, node: u64) -> Option<Rc<OpenFile>> {
        let number = *self.of_node.borrow().get(&node)?.last()?;
        self.file(number).ok()
    }

    /// All open files of a node.
    pub(crate) fn all_of(&self, node: u64) -> Vec<Rc<OpenFile>> {
        let numbers = self.of_node.borrow().get(&node).cloned().unwrap_or_default();
        numbers.into_iter().filter_map(|number| self.file(number).ok()).collect()
    }

    /// The kernel has no number for it any more. The file stays where something of it is not durable; what is too much is returned.
    pub(crate) fn remove_file(&self, number: u64, gone: impl FnOnce(&OpenFile)) -> Option<Rc<OpenFile>> {
        let file = self.files.borrow_mut().try_remove(index(number))?;
        gone(&file);
        let too_much = match file.held.borrow().any {
            false => None,
            true => {
                let mut lingering = self.lingering.borrow_mut();
                lingering.push_back(Rc::clone(&file));
                if lingering.len() > LINGERING_MAX { lingering.pop_front() } else { None }
            }
        };
        let mut of_node = self.of_node.borrow_mut();
        if let Some(numbers) = of_node.get_mut(&file.node) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                of_node.remove(&file.node);
            }
        }
        too_much
    }

    /// Files of a node, or of all, of which something is not durable.
    pub(crate) fn not_durable(&self, node: Option<u64>) -> Vec<Rc<OpenFile>> {
        let is_wanted =
            |file: &&Rc<OpenFile>| node.is_none_or(|node| file.node == node) && file.held.borrow().any;
        let lingering = self.lingering.borrow();
        lingering
            .iter()
            .chain(self.files.borrow().iter().map(|(_, file)| file))
            .filter(is_wanted)
            .cloned()
            .collect()
    }

    /// The older half of those that linger.
    pub(crate) fn lingering_longest(&self) -> Vec<Rc<OpenFile>> {
        let lingering = self.lingering.borrow();
        lingering.iter().take(lingering.len().div_ceil(2)).cloned().collect()
    }

    /// Those that linger and are durable need not; whether there were any.
    pub(crate) fn let_go(&self) -> bool {
        let mut lingering = self.lingering.borrow_mut();
        let before = lingering.len();
        lingering.retain(|file| file.held.borrow().any);
        lingering.len() < before
    }

    /// A node is forgotten: nobody can ask of it.
    pub(crate) fn forget(&self, node: u64) -> Vec<Rc<OpenFile>> {
        let mut lingering = self.lingering.borrow_mut();
        if lingering.iter().all(|file| file.node != node) {
            return Vec::new();
        }
        let (gone, stay) = lingering.drain(..).partition(|file| file.node == node);
        *lingering = stay;
        Vec::from(gone)
    }

    pub(crate) fn add_directory(&self, directory: OpenDir) -> u64 {
        number(self.directories.borrow_mut().insert(Rc::new(directory)))
    }

    pub(crate) fn directory(&self, number: u64) -> Answer<Rc<OpenDir>> {
        self.directories.borrow().get(index(number)).cloned().ok_or(Errno::BAD_FILE)
    }

    pub(crate) fn remove_directory(&self, number: u64) {
        self.directories.borrow_mut().try_remove(index(number));
    }
}
