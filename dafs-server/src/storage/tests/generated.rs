//! A backend whose files are made of nothing: what a file has at an offset follows from its number. Nothing in it can be changed, nothing
//! waits, and it shares no code with the backends that are served. It shows what a backend is, and that nothing else has to know of one.

use std::sync::Arc;

use dafs_proto::transport::Span;
use dafs_proto::wire::{Attributes, DirEntry, FileKind, OpenFlags, Status, Timestamp};

use crate::storage::backend::{Backend, Capabilities, Opening};
use crate::storage::fair::FaultDomain;
use crate::storage::file_system::{Attempt, FileSystem, SharedFile};
use crate::storage::listing::{ENTRIES_MAX_ON_LOOP, Listing};
use crate::storage::nodes::NodeTable;
use crate::storage::paths::{check_open_flags, check_path, check_read_range};
use crate::storage::*;

/// Bytes of a file, by its number.
pub(super) fn content(file: u64, size: u64) -> impl Iterator<Item = u8> {
    (0..size).map(move |at| byte(file, at))
}

fn byte(file: u64, at: u64) -> u8 {
    (at.wrapping_mul(7) ^ file.wrapping_mul(31) ^ (at >> 9)) as u8
}

/// Files by name, and their sizes.
pub(super) struct GeneratedBackend(pub(super) &'static [(&'static str, u64)]);

impl Backend for GeneratedBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            needs_pool: false,
            acts_by_credentials: false,
            has_descriptors: false,
            has_page_cache: false,
            is_seen_by_host: false,
            can_map: false,
            outlives_server: true,
            makes_root: false,
        }
    }

    fn open(&self, opening: &Opening<'_>) -> Result<Box<dyn FileSystem>, StorageError> {
        let nodes = NodeTable::new(opening.id, Open { number: ROOT, reads: false });
        Ok(Box::new(Generated { files: self.0, id: opening.id, verifier: opening.verifier, nodes }))
    }
}

struct Generated {
    files: &'static [(&'static str, u64)],
    id: ExportId,
    verifier: u64,
    nodes: NodeTable<Open>,
}

#[derive(Clone, Copy)]
struct Open {
    number: u64,
    reads: bool,
}

/// Files count from 1.
const ROOT: u64 = 0;

impl Generated {
    fn open(&self, id: NodeId) -> Result<Open, Status> {
        self.nodes.get(id).copied().ok_or(Status::BAD_HANDLE)
    }

    fn find(&self, at: &At) -> Result<u64, Status> {
        check_path(&at.path)?;
        match (self.open(at.node)?.number, at.path.as_slice()) {
            (number, b"") => Ok(number),
            (ROOT, b".") => Ok(ROOT),
            (ROOT, path) => {
                let (name, rest) = path.split_at(path.iter().position(|b| *b == b'/').unwrap_or(path.len()));
                let place = self.files.iter().position(|(other, _)| other.as_bytes() == name);
                let number = place.map(|place| place as u64 + 1).ok_or(Status::NOT_FOUND)?;
                if rest.is_empty() { Ok(number) } else { Err(Status::NOT_DIRECTORY) }
            }
            _ => Err(Status::NOT_DIRECTORY),
        }
    }

    fn attributes(&self, number: u64) -> Attributes {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        let (kind, size) = match number {
            ROOT => (FileKind::Directory, 0),
            _ => (FileKind::File, self.files[number as usize - 1].1),
        };
        Attributes {
            kind,
            mode: if number == ROOT { 0o555 } else { 0o444 },
            links: 1,
            uid: 0,
            gid: 0,
            size,
            allocated: 0,
            file_id: number,
            fs_id: 0x6765_6e00_0000_0000 | u64::from(self.id.0),
            atime: time,
            mtime: time,
            ctime: time,
            device: 0,
            generation: 1,
            change: 1,
        }
    }

    fn read(&self, id: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, Status> {
        let file = self.open(id)?;
        check_read_range(offset, into.iter().map(Span::len).sum())?;
        if !file.reads {
            return Err(Status::BAD_HANDLE);
        }
        let left = self.attributes(file.number).size.saturating_sub(offset);
        let mut done = 0;
        for span in into {
            let len = span.len().min(usize::try_from(left).unwrap().saturating_sub(done));
            let bytes: Vec<u8> = (0..len).map(|at| byte(file.number, offset + (done + at) as u64)).collect();
            span.write_from(0, &bytes);
            done += len;
        }
        Ok(done)
    }

    fn list(&self, node: NodeId, cookie: u64, size_max: usize, attributes: bool) -> FsResult {
        if self.open(node)?.number != ROOT {
            return Err(Status::NOT_DIRECTORY);
        }
        let mut listing = Listing::new(size_max, ENTRIES_MAX_ON_LOOP);
        for (number, (name, _)) in (1..).zip(self.files).filter(|(number, _)| *number > cookie) {
            let attributes = attributes.then(|| self.attributes(number));
            if !listing.push(&DirEntry { cookie: number, name: name.as_bytes().to_vec(), attributes }) {
                return listing.finish(false);
            }
        }
        listing.finish(true)
    }

    fn node(&mut self, number: u64, reads: bool) -> FsResult {
        let attributes = self.attributes(number);
        let node = self.nodes.insert(Open { number, reads }).ok_or(Status::TOO_MANY_OPEN)?;
        Ok(FsReply::Node(node, attributes))
    }

    fn run(&mut self, op: FsOp) -> FsResult {
        match op {
            FsOp::Lookup { at, .. } => self.find(&at).and_then(|number| self.node(number, false)),
            FsOp::Open { at, flags, admission, .. } => {
                check_open_flags(flags)?;
                let number = self.find(&at)?;
                match (number, flags.contains(OpenFlags::DIRECTORY)) {
                    (ROOT, _) => {}
                    (_, true) => return Err(Status::NOT_DIRECTORY),
                    (_, false) => admit(admission.as_ref(), &self.attributes(number))?,
                }
                self.node(number, number != ROOT)
            }
            FsOp::Getattr { at, .. } => {
                self.find(&at).map(|number| FsReply::Attributes(self.attributes(number)))
            }
            FsOp::Read { node, offset, into } => {
                let spans: Vec<Span<'_>> = into.iter().map(|memory| memory.span()).collect();
                self.read(node, offset, &spans).map(FsReply::Count)
            }
            FsOp::Readdir { node, cookie, size_max, attributes } => {
                self.list(node, cookie, size_max, attributes)
            }
            FsOp::Commit { node, .. } | FsOp::Hint { node, .. } => self.open(node).map(|_| FsReply::Done),
            op if op.traits().changes => Err(Status::READ_ONLY),
            _ => Err(Status::NOT_SUPPORTED),
        }
    }
}

impl FileSystem for Generated {
    fn root(&self) -> NodeId {
        self.nodes.root()
    }

    fn verifier(&self) -> u64 {
        self.verifier
    }

    fn open_count(&self) -> usize {
        self.nodes.len()
    }

    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
        self.read(node, offset, into).map_err(NowError::Failed)
    }

    fn write_now(&mut self, node: NodeId, _offset: u64, _from: &[Span<'_>]) -> Result<usize, NowError> {
        let status = self.open(node).map_or_else(|status| status, |_| Status::READ_ONLY);
        Err(NowError::Failed(status))
    }

    fn attempt(&mut self, _identity: &Identity, op: FsOp) -> Attempt {
        Attempt::Done(self.run(op))
    }

    fn close(&mut self, node: NodeId) -> Option<(SharedFile, Option<FaultDomain>)> {
        self.nodes.remove(node);
        None
    }

    fn share(&self, node: NodeId) -> Result<SharedFile, Status> {
        Ok(Arc::new(self.open(node)?))
    }

    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status> {
        let found = self.attributes(self.open(node)?.number);
        Ok(LockKey { fs: found.fs_id, file: found.file_id, generation: found.generation })
    }

    fn adopt(&mut self, file: &SharedFile) -> Result<NodeId, Status> {
        let open = file.downcast_ref::<Open>().ok_or(Status::BAD_HANDLE)?;
        self.nodes.insert(*open).ok_or(Status::TOO_MANY_OPEN)
    }

    fn another(&self) -> Box<dyn FileSystem> {
        let nodes = NodeTable::new(self.id, Open { number: ROOT, reads: false });
        Box::new(Self { files: self.files, id: self.id, verifier: self.verifier, nodes })
    }
}
