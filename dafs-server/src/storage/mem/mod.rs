//! An export in memory: a file system of its own with the semantics of the posix backend. Everything is done at once.
//!
//! In simulation it also crashes: names and attributes are durable at once, data after a commit or a synchronous write.

mod chunks;
mod file;
mod host;
mod names;
mod tree;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use dafs_proto::transport::{HeapMemory, LocalSegments, Memory, MemoryRef, Span};
use dafs_proto::wire::{
    DirEntry, FileKind, FsStatistics, NAME_SIZE_MAX, OpenFlags, SeekWhat, Stability, Status, Timestamp,
    XATTR_VALUE_SIZE_MAX, XattrSetMode,
};
use smallvec::SmallVec;

use super::backend::{Backend, Capabilities, Opening};
use super::clock::Clock;
use super::copy::{CopyRange, CopySource};
use super::fair::FaultDomain;
use super::file_system::{Attempt, FileSystem, SharedFile};
use super::listing::{ENTRIES_MAX_ON_LOOP, Listing};
use super::nodes::NodeTable;
use super::paths::{check_len, check_read_range, check_write_range};
use super::work;
use super::{
    ExportId, FsOp, FsReply, FsResult, Identity, LOSS, LockKey, MemoryRoot, NodeId, NowError, StorageError,
};
use chunks::Garbage;
use file::{FileData, Space};
use host::Host;
use tree::{Content, Directory, FsIdentity, INODE_SIZE, Ino, Inode, May, ROOT, Tree};

/// What is open.
#[derive(Clone, Copy)]
struct Node {
    ino: Ino,
    read: bool,
    write: bool,
}

/// A file system in memory, with what all loops have open in it.
struct MemFs {
    tree: Tree,
    nodes: NodeTable<Node>,
    space: Space,
    next_ino: Ino,
    clock: Clock,
    verifier: u64,
    identity: FsIdentity,
    /// Its rules are those of a directory of this host.
    host: Host,
    id: ExportId,
}

/// A file system in memory, as one loop sees it. It is one for all of them, open nodes included.
pub(super) struct MemExport {
    fs: Arc<RwLock<MemFs>>,
}

/// Something that is shared: a node of its own, until it is dropped.
struct Held {
    fs: Arc<RwLock<MemFs>>,
    node: NodeId,
}

impl Drop for Held {
    fn drop(&mut self) {
        write(&self.fs).close(self.node);
    }
}

fn read(fs: &RwLock<MemFs>) -> RwLockReadGuard<'_, MemFs> {
    fs.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(fs: &RwLock<MemFs>) -> RwLockWriteGuard<'_, MemFs> {
    fs.write().unwrap_or_else(PoisonError::into_inner)
}

/// What files in memory can do.
pub(super) const CAPABILITIES: Capabilities = Capabilities {
    needs_pool: false,
    acts_by_credentials: false,
    has_descriptors: false,
    has_page_cache: false,
    is_seen_by_host: false,
    can_map: true,
    outlives_server: false,
    makes_root: true,
};

/// An empty file system in memory.
pub(super) struct MemoryBackend {
    /// Bytes of data and names at most.
    pub(super) size_max: u64,
    pub(super) root: MemoryRoot,
}

impl Backend for MemoryBackend {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn open(&self, opening: &Opening<'_>) -> Result<Box<dyn FileSystem>, StorageError> {
        let clock = opening.config.clock.clone().unwrap_or_else(Clock::system);
        // A simulation needs what a crash leaves.
        let crashes = opening.config.seed.is_some();
        let fs = MemFs::new(opening.id, self.size_max, self.root, clock, opening.verifier, crashes);
        Ok(Box::new(MemExport { fs: Arc::new(RwLock::new(fs)) }))
    }
}

/// Bytes that one request copies at most: all that is in memory is done on the loop.
const COPY_SIZE_MAX: u64 = 1 << 20;

impl MemExport {
    /// Copies a slice, from another export in memory too. One lock is held at a time.
    fn copy(&self, target: NodeId, source: &CopySource, range: &CopyRange) -> FsResult {
        let held = source.0.downcast_ref::<Held>().ok_or(Status::CROSS_DEVICE)?;
        let own = Arc::ptr_eq(&held.fs, &self.fs).then_some(target);
        let (memory, ends) = read(&held.fs).read_to_copy(held.node, own, range)?;
        let span = memory.as_ref().map_or(Span::EMPTY, |memory| memory.span());
        let (_, count) = write(&self.fs).write(target, Some(range.offset), &[span], Stability::Unstable)?;
        Ok(FsReply::Copied(count as u64, ends && count == span.len()))
    }
}

impl FileSystem for MemExport {
    fn root(&self) -> NodeId {
        read(&self.fs).root()
    }

    fn verifier(&self) -> u64 {
        read(&self.fs).verifier
    }

    fn open_count(&self) -> usize {
        read(&self.fs).nodes.len()
    }

    fn crash(&mut self) -> bool {
        write(&self.fs).crash()
    }

    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
        read(&self.fs).read(node, offset, into).map_err(NowError::Failed)
    }

    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError> {
        let written = write(&self.fs).write(node, Some(offset), from, Stability::Unstable);
        written.map(|(_, count)| count).map_err(NowError::Failed)
    }

    fn map(&mut self, node: NodeId, offset: u64, len: usize, parts_max: usize) -> LocalSegments {
        read(&self.fs).map(node, offset, len, parts_max)
    }

    fn attempt(&mut self, identity: &Identity, op: FsOp) -> Attempt {
        if let FsOp::CopyRange { node, offset, source, source_offset, len } = &op {
            let range = CopyRange { source_offset: *source_offset, offset: *offset, len: *len };
            return Attempt::Done(self.copy(*node, source, &range));
        }
        Attempt::Done(write(&self.fs).run(identity, op))
    }

    fn tidy(&mut self, bytes: u64) -> bool {
        if read(&self.fs).space.garbage.is_empty() {
            return false;
        }
        let garbage = &mut write(&self.fs).space.garbage;
        garbage.free(bytes);
        !garbage.is_empty()
    }

    fn close(&mut self, node: NodeId) -> Option<(SharedFile, Option<FaultDomain>)> {
        write(&self.fs).close(node);
        None
    }

    fn share(&self, node: NodeId) -> Result<SharedFile, Status> {
        let node = write(&self.fs).duplicate(node)?;
        Ok(Arc::new(Held { fs: Arc::clone(&self.fs), node }))
    }

    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status> {
        let fs = read(&self.fs);
        Ok(LockKey { fs: fs.identity.id, file: fs.node(node)?.ino, generation: fs.identity.instance })
    }

    fn adopt(&mut self, file: &SharedFile) -> Result<NodeId, Status> {
        let held = file.downcast_ref::<Held>().ok_or(Status::BAD_HANDLE)?;
        write(&self.fs).duplicate(held.node)
    }

    fn another(&self) -> Box<dyn FileSystem> {
        Box::new(Self { fs: Arc::clone(&self.fs) })
    }
}

impl MemFs {
    /// An empty file system of `size_max` bytes; `crashes`: keep what a crash leaves.
    fn new(
        id: ExportId,
        size_max: u64,
        root: MemoryRoot,
        clock: Clock,
        verifier: u64,
        crashes: bool,
    ) -> Self {
        let content = Content::Directory(Directory::of(ROOT));
        let root = Inode::new(content, root.mode, (root.uid, root.gid), clock.now());
        let root = Inode { links: 2, open_count: 1, ..root };
        // What is simulated is the same on every host.
        let host = if crashes { Host::simulated() } else { Host::of_process() };
        Self {
            tree: Tree { inodes: BTreeMap::from([(ROOT, root)]), guards_symlinks: host.guards_symlinks },
            nodes: NodeTable::new(id, Node { ino: ROOT, read: false, write: false }),
            space: Space { size_max, used: 0, keep_stable: crashes, garbage: Garbage::default() },
            next_ino: ROOT + 1,
            clock,
            verifier,
            // Unlike any device number: those have 20 bits of minor and 12 of major number.
            identity: FsIdentity { id: 0x6d65_6d00_0000_0000 | u64::from(id.0), instance: verifier.max(1) },
            host,
            id,
        }
    }

    fn root(&self) -> NodeId {
        self.nodes.root()
    }

    /// Reads what is to be copied, as far as the loop copies it at once, and whether the source ends with it. `target` is the file that it
    /// goes to, where that is here too.
    fn read_to_copy(
        &self,
        source: NodeId,
        target: Option<NodeId>,
        range: &CopyRange,
    ) -> Result<(Option<HeapMemory>, bool), Status> {
        let target = target.map(|target| self.node(target)).transpose()?.map(|target| target.ino);
        let data = self.readable(source)?;
        let wanted = range.wanted(data.size(), target == Some(self.node(source)?.ino))?;
        let len = wanted.len.min(COPY_SIZE_MAX);
        if len == 0 {
            return Ok((None, wanted.ends));
        }
        let len_in_memory = usize::try_from(len).map_err(|_| Status::NO_MEMORY)?;
        let memory = HeapMemory::allocate(len_in_memory).ok_or(Status::NO_MEMORY)?;
        data.read(range.source_offset, &[memory.span()]);
        Ok((Some(memory), wanted.ends && len == wanted.len))
    }

    /// As if the server had been restarted: nothing is open, data that was not durable is gone, the verifier is
    /// another. False when it was not made for this.
    fn crash(&mut self) -> bool {
        if !self.space.keep_stable {
            return false;
        }
        self.verifier = self.verifier.wrapping_add(LOSS);
        for inode in self.tree.inodes.values_mut() {
            inode.open_count = 0;
            inode.change += 1;
            if let Content::File(data) = &mut inode.content {
                data.crash(&mut self.space);
            }
        }
        if let Some(root) = self.tree.inodes.get_mut(&ROOT) {
            root.open_count = 1;
        }
        self.nodes.clear();
        let gone: Vec<Ino> = self.tree.inodes.keys().copied().collect();
        for ino in gone {
            self.drop_unused(ino);
        }
        true
    }

    fn node(&self, id: NodeId) -> Result<Node, Status> {
        self.nodes.get(id).copied().ok_or(Status::BAD_HANDLE)
    }

    /// A file opened for reading.
    fn readable(&self, id: NodeId) -> Result<&FileData, Status> {
        let node = self.node(id)?;
        if !node.read {
            return Err(Status::BAD_HANDLE);
        }
        match &self.tree.inode(node.ino)?.content {
            Content::File(data) => Ok(data),
            _ => Err(Status::IS_DIRECTORY),
        }
    }

    /// A file opened for writing, the space it shares, the host, and the time.
    fn writable(&mut self, id: NodeId) -> Result<(&mut Inode, &mut Space, &Host, Timestamp), Status> {
        let node = self.node(id)?;
        if !node.write {
            return Err(Status::BAD_HANDLE);
        }
        let now = self.clock.now();
        Ok((self.tree.inode_mut(node.ino)?, &mut self.space, &self.host, now))
    }

    fn read(&self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, Status> {
        let data = self.readable(node)?;
        check_read_range(offset, into.iter().map(Span::len).sum())?;
        Ok(data.read(offset, into))
    }

    /// `offset` `None`: at the end.
    fn write(
        &mut self,
        node: NodeId,
        offset: Option<u64>,
        from: &[Span<'_>],
        stability: Stability,
    ) -> Result<(u64, usize), Status> {
        let (inode, space, host, now) = self.writable(node)?;
        let Content::File(data) = &mut inode.content else { return Err(Status::BAD_HANDLE) };
        let offset = offset.unwrap_or(data.size());
        check_write_range(offset, from.iter().map(Span::len).sum())?;
        let count = data.write(space, offset, from)?;
        if stability != Stability::Unstable {
            data.commit();
        }
        if count > 0 {
            inode.lose_set_ids(host.is_in_group(inode.gid));
            inode.on_change(now);
        }
        Ok((offset, count))
    }

    fn map(&self, node: NodeId, offset: u64, len: usize, parts_max: usize) -> LocalSegments {
        self.readable(node).map(|data| data.map(offset, len, parts_max)).unwrap_or_default()
    }

    fn close(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.remove(node) {
            if let Some(inode) = self.tree.inodes.get_mut(&node.ino) {
                inode.open_count = inode.open_count.saturating_sub(1);
            }
            self.drop_unused(node.ino);
        }
    }

    /// Another node of what a node has open.
    fn duplicate(&mut self, node: NodeId) -> Result<NodeId, Status> {
        let node = self.node(node)?;
        let inode = self.tree.inode_mut(node.ino)?;
        let id = self.nodes.insert(node).ok_or(Status::TOO_MANY_OPEN)?;
        inode.open_count += 1;
        Ok(id)
    }

    /// An inode without name and node gives its space back.
    fn drop_unused(&mut self, ino: Ino) {
        let unused = self.tree.inodes.get(&ino).is_some_and(|i| i.links == 0 && i.open_count == 0);
        if unused && let Some(inode) = self.tree.inodes.remove(&ino) {
            self.space.give(INODE_SIZE + inode.xattrs_size);
            self.space.garbage.add_xattrs(inode.xattrs);
            match inode.content {
                Content::File(data) => data.clear(&mut self.space),
                Content::Symlink(target) => self.space.give(target.len() as u64),
                Content::Directory(_) | Content::Special(..) => {}
            }
        }
    }

    /// Does an operation.
    fn run(&mut self, identity: &Identity, op: FsOp) -> FsResult {
        match op {
            FsOp::Read { node, offset, into } => {
                let spans: SmallVec<[Span<'_>; 8]> = into.iter().map(MemoryRef::span).collect();
                self.read(node, offset, &spans).map(FsReply::Count)
            }
            FsOp::Write { node, offset, from, stability } => {
                let spans: SmallVec<[Span<'_>; 8]> = from.iter().map(MemoryRef::span).collect();
                self.write(node, Some(offset), &spans, stability).map(|(_, count)| FsReply::Count(count))
            }
            FsOp::Sieve { node, offset, len, parts } => {
                for (at, memory) in parts {
                    let (_, count) = self.write(node, Some(at), &[memory.span()], Stability::Unstable)?;
                    if count < memory.len() {
                        let count = usize::try_from(at - offset).unwrap_or(0) + count;
                        return Ok(FsReply::Sieved { count, as_window: false });
                    }
                }
                Ok(FsReply::Sieved { count: len, as_window: false })
            }
            FsOp::Append { node, from, stability } => {
                let spans: SmallVec<[Span<'_>; 8]> = from.iter().map(MemoryRef::span).collect();
                self.write(node, None, &spans, stability)
                    .map(|(offset, count)| FsReply::Appended(offset, count))
            }
            FsOp::Commit { node, .. } => {
                let ino = self.node(node)?.ino;
                match &mut self.tree.inode_mut(ino)?.content {
                    Content::File(data) => data.commit(),
                    Content::Directory(_) => {}
                    Content::Symlink(_) | Content::Special(..) => return Err(Status::BAD_HANDLE),
                }
                Ok(FsReply::Done)
            }
            FsOp::Truncate { node, size } => {
                let opened = self.node(node)?;
                // As the kernel: a descriptor that may only read cannot be cut.
                if opened.read && !opened.write {
                    return Err(Status::INVALID);
                }
                self.resize(node, |data, space| {
                    check_write_range(size, 0)?;
                    data.truncate(space, size)
                })
            }
            FsOp::Allocate { node, offset, len } => {
                self.node(node)?;
                check_len(offset, len)?;
                self.resize(node, |data, space| data.allocate(space, offset, len))
            }
            FsOp::Punch { node, offset, len } => {
                self.node(node)?;
                check_len(offset, len)?;
                self.resize(node, |data, space| data.punch(space, offset, len))
            }
            FsOp::Seek { node, offset, what } => {
                let node = self.node(node)?;
                if !node.read && !node.write {
                    return Err(Status::BAD_HANDLE);
                }
                match &self.tree.inode(node.ino)?.content {
                    Content::File(data) => data.seek(offset, what == SeekWhat::Hole).map(FsReply::Offset),
                    _ => Err(Status::INVALID),
                }
            }
            FsOp::Hint { node, .. } => self.node(node).map(|_| FsReply::Done),
            FsOp::Readdir { node, cookie, size_max, attributes } => {
                self.readdir(identity, node, cookie, size_max, attributes)
            }
            FsOp::Statfs { at, follow } => {
                self.tree.find(self.node(at.node)?.ino, &at.path, follow, identity)?;
                Ok(FsReply::Statistics(self.statistics()))
            }
            FsOp::XattrRead { .. }
            | FsOp::XattrWrite { .. }
            | FsOp::XattrList { .. }
            | FsOp::XattrRemove { .. } => self.xattr(identity, op),
            op => self.names(identity, op),
        }
    }

    /// Changes the size of a file, or what space it has.
    fn resize(
        &mut self,
        node: NodeId,
        change: impl FnOnce(&mut FileData, &mut Space) -> Result<(), Status>,
    ) -> FsResult {
        let (inode, space, host, now) = self.writable(node)?;
        let Content::File(data) = &mut inode.content else { return Err(Status::BAD_HANDLE) };
        change(data, space)?;
        inode.lose_set_ids(host.is_in_group(inode.gid));
        inode.on_change(now);
        Ok(FsReply::Done)
    }

    fn readdir(
        &self,
        identity: &Identity,
        node: NodeId,
        cookie: u64,
        size_max: usize,
        attributes: bool,
    ) -> FsResult {
        let node = self.node(node)?;
        let inode = self.tree.inode(node.ino)?;
        let directory = inode.directory()?;
        if !node.read {
            inode.check(identity, May::Read)?;
        }
        // It was removed while it was open.
        if inode.links == 0 {
            return Err(Status::NOT_FOUND);
        }
        if i64::try_from(cookie).is_err() {
            return Err(Status::INVALID);
        }
        let mut listing = Listing::new(size_max, ENTRIES_MAX_ON_LOOP);
        for (cookie, name) in directory.order.range(cookie + 1..) {
            let visible = attributes && inode.check(identity, May::Search).is_ok();
            let attributes = directory
                .names
                .get(name)
                .filter(|_| visible)
                .and_then(|(ino, _)| Some(self.tree.inodes.get(ino)?.attributes(*ino, self.identity)));
            let entry = DirEntry { cookie: *cookie, name: name.clone(), attributes };
            if !listing.push(&entry) {
                return listing.finish(false);
            }
        }
        listing.finish(true)
    }

    fn statistics(&self) -> FsStatistics {
        const BLOCK_SIZE: u64 = 4096;
        let free = (self.space.size_max - self.space.used.min(self.space.size_max)) / BLOCK_SIZE;
        FsStatistics {
            block_size: BLOCK_SIZE,
            blocks: self.space.size_max / BLOCK_SIZE,
            blocks_free: free,
            blocks_available: free,
            files: self.space.size_max / INODE_SIZE,
            files_free: free * (BLOCK_SIZE / INODE_SIZE),
            name_size_max: u32::try_from(NAME_SIZE_MAX).unwrap_or(u32::MAX),
        }
    }

    fn xattr(&mut self, identity: &Identity, op: FsOp) -> FsResult {
        let (FsOp::XattrRead { at, .. }
        | FsOp::XattrWrite { at, .. }
        | FsOp::XattrList { at }
        | FsOp::XattrRemove { at, .. }) = &op
        else {
            return Err(Status::INVALID);
        };
        let ino = self.tree.find(self.node(at.node)?.ino, &at.path, false, identity)?;
        let now = self.clock.now();
        let inode = self.tree.inode_mut(ino)?;
        let check = |name: &[u8], inode: &Inode, may| {
            if !name.starts_with(b"user.") {
                return Err(Status::NOT_SUPPORTED);
            }
            // As the kernel: users' attributes only where data permissions mean something.
            if !matches!(inode.kind(), FileKind::File | FileKind::Directory) {
                return Err(if may == May::Write { Status::PERMISSION } else { Status::NO_DATA });
            }
            // Whoever may make names in a sticky directory is not the one whose it is.
            let is_sticky = inode.kind() == FileKind::Directory && inode.mode & 0o1000 != 0;
            if is_sticky && may == May::Write && !inode.is_owned_by(identity) {
                return Err(Status::PERMISSION);
            }
            inode.check(identity, may)
        };
        if let FsOp::XattrRead { name, .. } | FsOp::XattrWrite { name, .. } | FsOp::XattrRemove { name, .. } =
            &op
        {
            super::paths::check_xattr_name(name, identity)?;
        }
        match op {
            FsOp::XattrRead { name, .. } => {
                check(&name, inode, May::Read)?;
                inode.xattrs.get(&name).cloned().map(FsReply::Bytes).ok_or(Status::NO_DATA)
            }
            FsOp::XattrList { .. } => {
                work::add(inode.xattrs.len());
                let names = inode.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
                Ok(FsReply::Bytes(names))
            }
            FsOp::XattrWrite { name, value, mode, .. } => {
                if value.len() > XATTR_VALUE_SIZE_MAX {
                    return Err(Status::TOO_LARGE);
                }
                check(&name, inode, May::Write)?;
                let old = inode.xattrs.get(&name).map(|value| (name.len() + value.len()) as u64);
                match (mode, old) {
                    (XattrSetMode::Create, Some(_)) => return Err(Status::EXISTS),
                    (XattrSetMode::Replace, None) => return Err(Status::NO_DATA),
                    _ => {}
                }
                // Names are listed in one reply.
                if old.is_none() && inode.xattrs_listed + name.len() >= XATTR_VALUE_SIZE_MAX {
                    return Err(Status::NO_SPACE);
                }
                let new = (name.len() + value.len()) as u64;
                self.space.take(new)?;
                self.space.give(old.unwrap_or(0));
                inode.xattrs_size = inode.xattrs_size + new - old.unwrap_or(0);
                inode.xattrs_listed += if old.is_none() { name.len() + 1 } else { 0 };
                inode.xattrs.insert(name, value);
                inode.on_attributes_change(now);
                Ok(FsReply::Done)
            }
            FsOp::XattrRemove { name, .. } => {
                check(&name, inode, May::Write)?;
                let value = inode.xattrs.remove(&name).ok_or(Status::NO_DATA)?;
                let size = (name.len() + value.len()) as u64;
                self.space.give(size);
                inode.xattrs_size -= size;
                inode.xattrs_listed -= name.len() + 1;
                inode.on_attributes_change(now);
                Ok(FsReply::Done)
            }
            _ => Err(Status::INVALID),
        }
    }

    /// Enters a node for an inode.
    fn open_node(&mut self, ino: Ino, flags: OpenFlags) -> FsResult {
        let node = Node {
            ino,
            read: flags.contains(OpenFlags::READ) || flags.contains(OpenFlags::DIRECTORY),
            write: flags.contains(OpenFlags::WRITE),
        };
        let identity = self.identity;
        let inode = self.tree.inode_mut(ino)?;
        inode.open_count += 1;
        let attributes = inode.attributes(ino, identity);
        let id = self.nodes.insert(node).ok_or(Status::TOO_MANY_OPEN)?;
        debug_assert_eq!(id.export, self.id);
        Ok(FsReply::Node(id, attributes))
    }
}
