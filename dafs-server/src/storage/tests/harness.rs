//! Storage to test, driven to the end of every operation.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use dafs_proto::transport::{HeapMemory, MemoryRef, OpToken, Span};
use dafs_proto::wire::{Attributes, DirEntry, OpenFlags, Stability, Status, decode_dir_entries};

use crate::storage::backend::Backend;
use crate::storage::exports::Served;
use crate::storage::*;

pub(super) const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
pub(super) const RWC: OpenFlags = RW.union(OpenFlags::CREATE);

/// What is tested: a backend, where its files are, and the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The default directory for temporary files.
    Disk(Engine),
    /// As `Disk`, with direct I/O.
    Direct(Engine),
    /// A directory on tmpfs.
    Tmpfs,
    /// The memory backend.
    Mem,
}

impl Kind {
    /// What is said of it.
    pub(super) fn capabilities(self) -> Capabilities {
        match self {
            Self::Mem => ExportKind::Memory { size_max: 1 << 30 }.capabilities(),
            _ => ExportKind::Directory(PathBuf::new()).capabilities(),
        }
    }
}

pub(super) fn kinds() -> Vec<Kind> {
    let mut kinds = vec![Kind::Disk(Engine::Pool), Kind::Direct(Engine::Pool), Kind::Mem];
    if uring_available() {
        kinds.extend([Kind::Disk(Engine::Uring), Kind::Direct(Engine::Uring)]);
    }
    if PathBuf::from("/dev/shm").is_dir() {
        kinds.push(Kind::Tmpfs);
    }
    kinds
}

// Where this does not run, the report says that no other test ran on it.
#[test]
#[ignore = "needs io_uring"]
fn io_uring_is_among_the_kinds_tested() {
    assert!(kinds().contains(&Kind::Disk(Engine::Uring)) && kinds().contains(&Kind::Direct(Engine::Uring)));
}

// The same.
#[test]
#[ignore = "needs dev-shm"]
fn tmpfs_is_among_the_kinds_tested() {
    assert!(kinds().contains(&Kind::Tmpfs));
}

/// A storage with one export, `data`.
pub(super) struct Fixture {
    pub(super) storage: Exports,
    pub(super) identity: Identity,
    /// Where the export's files are, for a posix export.
    pub(super) directory: Option<tempfile::TempDir>,
    next: u64,
    finished: HashMap<u64, FsResult>,
}

impl Fixture {
    pub(super) fn new(kind: Kind) -> Self {
        Self::with(kind, |_| {}, &StorageConfig::default())
    }

    pub(super) fn with(kind: Kind, change: impl FnOnce(&mut ExportConfig), config: &StorageConfig) -> Self {
        Self::try_with(kind, change, config).unwrap()
    }

    /// A storage of one export that this backend keeps.
    pub(super) fn of(backend: Box<dyn Backend>) -> Self {
        let served = vec![Served { name: "data".into(), read_only: false, backend }];
        let storage = Exports::serve(served, &StorageConfig::default()).unwrap();
        let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
        Self { storage, identity, directory: None, next: 0, finished: HashMap::new() }
    }

    fn try_with(
        kind: Kind,
        change: impl FnOnce(&mut ExportConfig),
        config: &StorageConfig,
    ) -> Result<Self, StorageError> {
        let mut config = config.clone();
        let directory = match kind {
            Kind::Disk(engine) | Kind::Direct(engine) => {
                config.engine = engine;
                Some(tempfile::tempdir().unwrap())
            }
            Kind::Mem => None,
            Kind::Tmpfs => Some(tempfile::tempdir_in("/dev/shm").unwrap()),
        };
        let mut export = ExportConfig {
            name: "data".into(),
            kind: match &directory {
                Some(directory) => {
                    // The directory itself belongs to the test's harness: the export lies below.
                    let root = directory.path().join("root");
                    std::fs::create_dir(&root).unwrap();
                    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                    std::fs::set_permissions(&root, mode).unwrap();
                    ExportKind::Directory(root)
                }
                None => ExportKind::Memory { size_max: 1 << 30 },
            },
            read_only: false,
            direct_io: matches!(kind, Kind::Direct(_)),
            local_locks: false,
            root: MemoryRoot { mode: 0o755, ..MemoryRoot::default() },
        };
        change(&mut export);
        let storage = Exports::new(vec![export], &config)?;
        let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
        Ok(Self { storage, identity, directory, next: 0, finished: HashMap::new() })
    }

    /// The same directory as two exports of one server, the second one as `ExportId(1)`. Nothing is open.
    pub(super) fn twice(mut self) -> Self {
        let directory = self.directory.as_ref().expect("a directory").path().join("root");
        let export = |name: &str| ExportConfig {
            name: name.into(),
            kind: ExportKind::Directory(directory.clone()),
            read_only: false,
            direct_io: false,
            local_locks: false,
            root: MemoryRoot::default(),
        };
        let exports = vec![export("data"), export("again")];
        self.storage =
            Exports::new(exports, &StorageConfig { engine: Engine::Pool, ..Default::default() }).unwrap();
        self
    }

    /// Opens what is in the second export of [`Fixture::twice`].
    pub(super) fn open_again(&mut self, path: &str, flags: OpenFlags) -> NodeId {
        let at = At { node: self.storage.root(ExportId(1)), path: path.into() };
        self.open_at(at, flags).unwrap()
    }

    /// The same files, for another loop.
    pub(super) fn another(&self) -> Self {
        let (storage, identity) = (self.storage.another().unwrap(), self.identity.clone());
        Self { storage, identity, directory: None, next: 0, finished: HashMap::new() }
    }

    pub(super) fn root(&self) -> NodeId {
        self.storage.root(ExportId(0))
    }

    pub(super) fn at(&self, path: impl AsRef<[u8]>) -> At {
        At { node: self.root(), path: path.as_ref().to_vec() }
    }

    /// Submits; the answer is collected with [`Fixture::finish`].
    pub(super) fn start(&mut self, op: FsOp) -> u64 {
        let token = self.next;
        self.next += 1;
        let identity = self.identity.clone();
        if let Submitted::Done(result) = self.storage.submit(OpToken(token), &identity, op) {
            self.finished.insert(token, result);
        }
        token
    }

    /// Waits for an operation, as the server's loop does: on the descriptors.
    pub(super) fn finish(&mut self, token: u64) -> FsResult {
        loop {
            if let Some(result) = self.finished.remove(&token) {
                return result;
            }
            self.storage.flush();
            wait_readable(&self.storage.event_fds());
            let mut done = Vec::new();
            self.storage.poll(&mut done);
            self.finished.extend(done.into_iter().map(|(token, result)| (token.0, result)));
        }
    }

    pub(super) fn run(&mut self, op: FsOp) -> FsResult {
        let token = self.start(op);
        self.finish(token)
    }

    pub(super) fn open(&mut self, path: impl AsRef<[u8]>, flags: OpenFlags) -> Result<NodeId, Status> {
        let at = self.at(path);
        self.open_at(at, flags)
    }

    pub(super) fn open_at(&mut self, at: At, flags: OpenFlags) -> Result<NodeId, Status> {
        match self.run(FsOp::Open { at, flags, mode: 0o644, admission: None })? {
            FsReply::Node(node, _) => Ok(node),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn lookup(&mut self, path: impl AsRef<[u8]>) -> Result<NodeId, Status> {
        match self.run(FsOp::Lookup { at: self.at(path), follow: false })? {
            FsReply::Node(node, _) => Ok(node),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn stat(&mut self, path: impl AsRef<[u8]>) -> Result<Attributes, Status> {
        attributes(self.run(FsOp::Getattr { at: self.at(path), follow: false }))
    }

    pub(super) fn mkdir(&mut self, path: impl AsRef<[u8]>) -> Result<Attributes, Status> {
        attributes(self.run(FsOp::Mkdir { at: self.at(path), mode: 0o755 }))
    }

    pub(super) fn symlink(
        &mut self,
        target: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<Attributes, Status> {
        attributes(self.run(FsOp::Symlink { target: target.as_ref().to_vec(), at: self.at(path) }))
    }

    pub(super) fn remove(&mut self, path: impl AsRef<[u8]>, directory: bool) -> Result<(), Status> {
        self.run(FsOp::Remove { at: self.at(path), directory }).map(|_| ())
    }

    pub(super) fn rename(
        &mut self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        replace: bool,
    ) -> Result<(), Status> {
        self.run(FsOp::Rename { from: self.at(from), to: self.at(to), replace }).map(|_| ())
    }

    /// Reads as the server does: now, else by an operation.
    pub(super) fn read(&mut self, node: NodeId, offset: u64, len: usize) -> Result<Vec<u8>, Status> {
        let mut bytes = vec![0xee; len];
        match self.storage.read_now(node, offset, &[Span::from_mut(&mut bytes)]) {
            Ok(count) => {
                bytes.truncate(count);
                Ok(bytes)
            }
            Err(NowError::WouldBlock) => self.read_submitted(node, offset, &[len]),
            Err(NowError::Failed(status)) => Err(status),
        }
    }

    /// Reads by an operation into parts of these lengths.
    pub(super) fn read_submitted(
        &mut self,
        node: NodeId,
        offset: u64,
        lens: &[usize],
    ) -> Result<Vec<u8>, Status> {
        let into: Vec<MemoryRef> = lens.iter().map(|len| memory(*len)).collect();
        match self.run(FsOp::Read { node, offset, into: into.clone() })? {
            FsReply::Count(count) => {
                let mut bytes: Vec<u8> = into.iter().flat_map(|part| part.span().to_vec()).collect();
                bytes.truncate(count);
                Ok(bytes)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Writes as the server does: now, else by an operation.
    pub(super) fn write(&mut self, node: NodeId, offset: u64, bytes: &[u8]) -> Result<usize, Status> {
        let mut copy = bytes.to_vec();
        match self.storage.write_now(node, offset, &[Span::from_mut(&mut copy)]) {
            Ok(count) => Ok(count),
            Err(NowError::WouldBlock) => self.write_submitted(node, offset, &[bytes], Stability::Unstable),
            Err(NowError::Failed(status)) => Err(status),
        }
    }

    pub(super) fn write_submitted(
        &mut self,
        node: NodeId,
        offset: u64,
        parts: &[&[u8]],
        stability: Stability,
    ) -> Result<usize, Status> {
        let from = parts.iter().map(|part| memory_of(part)).collect();
        count(self.run(FsOp::Write { node, offset, from, stability }))
    }

    pub(super) fn append(&mut self, node: NodeId, bytes: &[u8]) -> Result<(u64, usize), Status> {
        let op = FsOp::Append { node, from: vec![memory_of(bytes)], stability: Stability::Unstable };
        match self.run(op)? {
            FsReply::Appended(offset, count) => Ok((offset, count)),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn readdir(
        &mut self,
        node: NodeId,
        cookie: u64,
        size_max: usize,
        attributes: bool,
    ) -> Result<(Vec<DirEntry>, bool), Status> {
        match self.run(FsOp::Readdir { node, cookie, size_max, attributes })? {
            FsReply::Entries(found) => Ok((decode_dir_entries(&found.bytes).unwrap(), found.end)),
            other => panic!("{other:?}"),
        }
    }

    /// All names of a directory, sorted.
    pub(super) fn names(&mut self, node: NodeId, size_max: usize) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let (entries, end) = self.readdir(node, cookie, size_max, false).unwrap();
            cookie = entries.last().map_or(cookie, |entry| entry.cookie);
            names.extend(entries.into_iter().map(|entry| entry.name));
            if end {
                names.sort();
                return names;
            }
        }
    }
}

pub(super) fn attributes(result: FsResult) -> Result<Attributes, Status> {
    match result? {
        FsReply::Attributes(attributes) => Ok(attributes),
        other => panic!("{other:?}"),
    }
}

pub(super) fn count(result: FsResult) -> Result<usize, Status> {
    match result? {
        FsReply::Count(count) | FsReply::Sieved { count, .. } => Ok(count),
        other => panic!("{other:?}"),
    }
}

/// Page-aligned memory of this length.
pub(super) fn memory(len: usize) -> MemoryRef {
    MemoryRef::new(Arc::new(HeapMemory::allocate(len.max(1)).unwrap())).slice(0, len).unwrap()
}

pub(super) fn memory_of(bytes: &[u8]) -> MemoryRef {
    let memory = memory(bytes.len());
    memory.span().write_from(0, bytes);
    memory
}

#[allow(unsafe_code, reason = "poll")]
fn wait_readable(fds: &[RawFd]) {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    assert!(!polled.is_empty(), "an operation is pending with nothing to wait for");
    // SAFETY: the list is as long as said.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
}

fn uring_available() -> bool {
    Fixture::try_with(Kind::Disk(Engine::Uring), |_| {}, &StorageConfig::default()).is_ok()
}

/// Whether this is a process of its own for the test of this path, as one needs that changes what its whole process may do. The first
/// time it is not: the test has passed there then.
pub(super) fn in_own_process(test: &str) -> bool {
    const OWN_PROCESS: &str = "DAFS_TEST_OWN_PROCESS";
    if std::env::var_os(OWN_PROCESS).is_some() {
        return true;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(OWN_PROCESS, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    false
}

/// Does something while this process can open no more than so many descriptors.
pub(super) fn with_descriptors_left<T>(count: u64, work: impl FnOnce() -> T) -> T {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    // The lowest one that is free.
    let next = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap());
    let current = Some(u64::try_from(next).unwrap() + count);
    setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
    let result = work();
    setrlimit(Resource::Nofile, before).unwrap();
    result
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a hole, beside the server.
pub(super) fn punch(file: &std::fs::File, offset: u64, len: u64) {
    use rustix::fs::{FallocateFlags, fallocate};
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len).unwrap();
}

/// Whether anybody has opened the file since.
pub(super) fn watch_opens(path: &std::path::Path) -> impl FnOnce() -> bool {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    let events = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    add_watch(&events, path, WatchFlags::OPEN).unwrap();
    move || std::io::Read::read(&mut std::fs::File::from(events), &mut [0; 256]).is_ok()
}

/// A file system whose server answers nothing: whoever asks it hangs, until it ends. It does by itself where a test hangs with it.
pub(super) struct HungMount {
    end: std::sync::mpsc::Sender<()>,
    ended: std::thread::JoinHandle<bool>,
}

impl HungMount {
    /// `None` where this process may not mount.
    pub(super) fn new(on: &std::path::Path) -> Option<Self> {
        use std::os::fd::AsRawFd;
        const HANGS_FOR_MAX: std::time::Duration = std::time::Duration::from_secs(60);
        let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        let path = std::ffi::CString::new(on.as_os_str().as_encoded_bytes()).ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = std::ffi::CString::new(options).ok()?;
        #[allow(unsafe_code, reason = "mount")]
        // SAFETY: all of it is zero-terminated.
        let mounted = unsafe {
            libc::mount(c"hung".as_ptr(), path.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast())
        };
        if mounted != 0 {
            return None;
        }
        let (end, told) = std::sync::mpsc::channel();
        let ended = std::thread::spawn(move || {
            let in_time = told.recv_timeout(HANGS_FOR_MAX).is_ok();
            #[allow(unsafe_code, reason = "umount2")]
            // SAFETY: the path is zero-terminated.
            unsafe {
                libc::umount2(path.as_ptr(), libc::MNT_DETACH)
            };
            drop(device);
            in_time
        });
        Some(Self { end, ended })
    }

    /// Ends it: whoever hangs gets an error. Nobody was hanging whom the test waited for.
    pub(super) fn end(self) {
        let _ = self.end.send(());
        assert!(self.ended.join().unwrap(), "somebody else hung with it");
    }
}
