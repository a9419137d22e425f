//! A FUSE program that keeps files in memory and does nothing else: what the kernel's part of a mount takes.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use tempfile::TempDir;

use crate::cli::Mount;
use crate::peer::mount::{Host, Mounted};

/// The largest read or write, bytes: that of `dafs mount`.
const DATA_SIZE_MAX: u32 = 1 << 20;
/// Names and attributes are believed for so long: as in `dafs mount`.
const VALID: Duration = Duration::from_secs(1);
/// What is read from one of its descriptors is answered there.
const THREADS: usize = 4;

type Data = Arc<RwLock<Vec<u8>>>;
type Answer<T> = Result<T, Errno>;

/// A directory's names, or a file's bytes.
enum Node {
    Directory(BTreeMap<OsString, u64>),
    File(Data),
}

struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

struct Bare(Mutex<Tree>);

/// The session, and where it is mounted. Dropping it unmounts before the directory goes.
struct Session {
    _session: BackgroundSession,
    _directory: TempDir,
}

impl Host for Session {
    fn cpu_ns(&self) -> Option<u64> {
        None
    }
}

/// Mounts one at a directory. Needs root, or `fusermount3`.
pub fn mounted(directory: TempDir) -> anyhow::Result<Mounted> {
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName("dafs-bench".into()), MountOption::Subtype("bare".into())];
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let nodes = HashMap::from([(INodeNo::ROOT.0, Node::Directory(BTreeMap::new()))]);
    let bare = Bare(Mutex::new(Tree { nodes, next: INodeNo::ROOT.0 + 1 }));
    let session = fuser::spawn_mount(bare, directory.path(), &config)
        .context("cannot mount a FUSE program; only root may without fusermount3 (Debian: fuse3)")?;
    let mount = Mount { name: "fuse".to_owned(), directory: directory.path().to_owned() };
    Mounted::hosted(&mount, Box::new(Session { _session: session, _directory: directory }))
}

impl Tree {
    fn names(&mut self, directory: u64) -> Answer<&mut BTreeMap<OsString, u64>> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory(names)) => Ok(names),
            Some(Node::File(_)) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn child(&mut self, parent: u64, name: &OsStr) -> Answer<u64> {
        self.names(parent)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn make(&mut self, parent: u64, name: &OsStr, node: Node) -> Answer<u64> {
        let number = self.next;
        let names = self.names(parent)?;
        if names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        names.insert(name.to_owned(), number);
        self.nodes.insert(number, node);
        self.next += 1;
        Ok(number)
    }

    /// Nothing is open by then: the benchmark closes what it removes.
    fn remove(&mut self, parent: u64, name: &OsStr) -> Answer<()> {
        let number = self.child(parent, name)?;
        if self.names(number).is_ok_and(|names| !names.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        self.names(parent)?.remove(name);
        self.nodes.remove(&number);
        Ok(())
    }

    fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) -> Answer<()> {
        let number = self.child(from.0, from.1)?;
        if let Some(before) = self.names(to.0)?.insert(to.1.to_owned(), number)
            && before != number
        {
            self.nodes.remove(&before);
        }
        if from != to {
            self.names(from.0)?.remove(from.1);
        }
        Ok(())
    }

    fn attributes(&self, number: u64) -> Answer<FileAttr> {
        let (kind, perm, size) = match self.nodes.get(&number).ok_or(Errno::ENOENT)? {
            Node::Directory(_) => (FileType::Directory, 0o755, 0),
            Node::File(data) => (FileType::RegularFile, 0o644, locked_to_read(data).len() as u64),
        };
        let time = SystemTime::UNIX_EPOCH;
        Ok(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

fn locked_to_read(data: &Data) -> std::sync::RwLockReadGuard<'_, Vec<u8>> {
    data.read().unwrap_or_else(PoisonError::into_inner)
}

impl Bare {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn data(&self, file: INodeNo) -> Answer<Data> {
        match self.tree().nodes.get(&file.0) {
            Some(Node::File(data)) => Ok(Arc::clone(data)),
            Some(Node::Directory(_)) => Err(Errno::EISDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn made(&self, parent: INodeNo, name: &OsStr, node: Node) -> Answer<FileAttr> {
        let mut tree = self.tree();
        let number = tree.make(parent.0, name, node)?;
        tree.attributes(number)
    }
}

fn entry(found: Answer<FileAttr>, reply: ReplyEntry) {
    match found {
        Ok(attributes) => reply.entry(&VALID, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn done(done: Answer<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl Filesystem for Bare {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(DATA_SIZE_MAX);
        let _ = config.set_max_readahead(DATA_SIZE_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut tree = self.tree();
        let found = tree.child(parent.0, name).and_then(|number| tree.attributes(number));
        entry(found, reply);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree().attributes(node.0) {
            Ok(attributes) => reply.attr(&VALID, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let (Some(size), Ok(data)) = (size, self.data(node)) {
            data.write().unwrap_or_else(PoisonError::into_inner).resize(index(size), 0);
        }
        match self.tree().attributes(node.0) {
            Ok(attributes) => reply.attr(&VALID, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        entry(self.made(parent, name, Node::Directory(BTreeMap::new())), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.tree().remove(parent.0, name), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.tree().remove(parent.0, name), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        done(self.tree().rename((parent.0, name), (target.0, new_name)), reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.made(parent, name, Node::File(Data::default())) {
            Ok(attributes) => {
                reply.created(&VALID, &attributes, Generation(0), FileHandle(0), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        file: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.data(file) {
            Ok(data) => {
                let data = locked_to_read(&data);
                let begin = index(offset).min(data.len());
                reply.data(&data[begin..data.len().min(begin + size as usize)]);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        file: INodeNo,
        _: FileHandle,
        offset: u64,
        written: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.data(file) {
            Ok(data) => {
                let mut data = data.write().unwrap_or_else(PoisonError::into_inner);
                let end = index(offset).saturating_add(written.len());
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[end - written.len()..end].copy_from_slice(written);
                reply.written(u32::try_from(written.len()).unwrap_or(u32::MAX));
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        directory: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut tree = self.tree();
        let names = match tree.names(directory.0) {
            Ok(names) => std::mem::take(names),
            Err(error) => return reply.error(error),
        };
        for (place, (name, number)) in names.iter().enumerate().skip(index(offset)) {
            let Ok(attributes) = tree.attributes(*number) else { continue };
            if reply.add(INodeNo(*number), place as u64 + 1, name, &VALID, &attributes, Generation(0)) {
                break;
            }
        }
        if let Ok(place) = tree.names(directory.0) {
            *place = names;
        }
        reply.ok();
    }
}
