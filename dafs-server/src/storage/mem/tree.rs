//! Inodes, names, permissions, and the walk along a path.

use std::collections::BTreeMap;

use dafs_proto::wire::{AccessMode, Attributes, FileKind, NAME_SIZE_MAX, NodeKind, Status, Timestamp};
use smallvec::SmallVec;

use super::super::Identity;
use super::super::paths::check_path;
use super::super::work;
use super::chunks::Xattrs;
use super::file::FileData;

/// Links followed on one path, as in Linux.
const LINKS_FOLLOWED_MAX: u32 = 40;

/// Parts of paths and of the links on them that one resolution looks at: more than one path can have.
const PARTS_MAX: usize = 4096;

/// Directories above one that is renamed, as far as they are looked at.
const DEPTH_MAX: usize = 4096;

/// Bytes that an inode counts for besides its data.
pub(super) const INODE_SIZE: u64 = 256;

/// Bytes that a name counts for: it is kept twice, for finding and for listing it.
pub(super) fn name_size(name: &[u8]) -> u64 {
    const PLACES_SIZE: u64 = 64;
    2 * name.len() as u64 + PLACES_SIZE
}

/// An inode's number; never used twice.
pub(super) type Ino = u64;

pub(super) const ROOT: Ino = 1;

/// What an inode is.
pub(super) enum Content {
    File(FileData),
    Directory(Directory),
    Symlink(Vec<u8>),
    /// A FIFO, a socket or a device, with its number.
    Special(NodeKind, u64),
}

/// Names, and the order in which they came: the cookie of a listing.
#[derive(Default)]
pub(super) struct Directory {
    pub(super) parent: Ino,
    /// Sorted, so that no growth moves all of them at once.
    pub(super) names: BTreeMap<Vec<u8>, (Ino, u64)>,
    pub(super) order: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
}

impl Directory {
    pub(super) fn of(parent: Ino) -> Self {
        Self { parent, ..Self::default() }
    }

    /// A name that is there, and names something else now, keeps its place: whoever lists finds it once.
    pub(super) fn insert(&mut self, name: &[u8], ino: Ino) {
        if let Some((there, _)) = self.names.get_mut(name) {
            *there = ino;
            return;
        }
        self.next_cookie += 1;
        self.names.insert(name.to_vec(), (ino, self.next_cookie));
        self.order.insert(self.next_cookie, name.to_vec());
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some((_, cookie)) = self.names.remove(name) {
            self.order.remove(&cookie);
        }
    }
}

/// Names a file system in memory.
#[derive(Clone, Copy)]
pub(super) struct FsIdentity {
    pub(super) id: u64,
    /// Of every server another, as its numbers begin again: they name other files then.
    pub(super) instance: u64,
}

/// A file, directory or link.
pub(super) struct Inode {
    pub(super) content: Content,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) links: u32,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    /// Changes so far.
    pub(super) change: u64,
    /// It was made without a name, to get one.
    pub(super) can_be_named: bool,
    pub(super) xattrs: Xattrs,
    /// Bytes of their names and values, and of the names as they are listed.
    pub(super) xattrs_size: u64,
    pub(super) xattrs_listed: usize,
    /// Nodes that refer to it: it lives on without a name.
    pub(super) open_count: u32,
}

/// What a permission is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum May {
    Read = 4,
    Write = 2,
    Search = 1,
}

impl Inode {
    /// Without a name, and not open.
    pub(super) fn new(content: Content, mode: u32, (uid, gid): (u32, u32), now: Timestamp) -> Self {
        Self {
            content,
            mode,
            uid,
            gid,
            links: 0,
            atime: now,
            mtime: now,
            ctime: now,
            change: 1,
            can_be_named: false,
            xattrs: Xattrs::new(),
            xattrs_size: 0,
            xattrs_listed: 0,
            open_count: 0,
        }
    }

    pub(super) fn kind(&self) -> FileKind {
        match self.content {
            Content::File(_) => FileKind::File,
            Content::Directory(_) => FileKind::Directory,
            Content::Symlink(_) => FileKind::Symlink,
            Content::Special(NodeKind::Fifo, _) => FileKind::Fifo,
            Content::Special(NodeKind::Socket, _) => FileKind::Socket,
            Content::Special(NodeKind::CharDevice, _) => FileKind::CharDevice,
            Content::Special(NodeKind::BlockDevice, _) => FileKind::BlockDevice,
        }
    }

    pub(super) fn attributes(&self, ino: Ino, fs: FsIdentity) -> Attributes {
        let (size, allocated) = match &self.content {
            Content::File(data) => (data.size(), data.allocated()),
            Content::Directory(directory) => (directory.names.len() as u64, 0),
            Content::Symlink(target) => (target.len() as u64, 0),
            Content::Special(..) => (0, 0),
        };
        let device = match &self.content {
            Content::Special(_, device) => *device,
            Content::File(_) | Content::Directory(_) | Content::Symlink(_) => 0,
        };
        Attributes {
            kind: self.kind(),
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            size,
            allocated,
            file_id: ino,
            fs_id: fs.id,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            device,
            generation: fs.instance,
            change: self.change,
        }
    }

    /// Its data has changed, or its names.
    pub(super) fn on_change(&mut self, now: Timestamp) {
        self.mtime = now;
        self.on_attributes_change(now);
    }

    /// Its attributes have changed.
    pub(super) fn on_attributes_change(&mut self, now: Timestamp) {
        self.ctime = now;
        self.change += 1;
    }

    pub(super) fn check(&self, identity: &Identity, may: May) -> Result<(), Status> {
        let bits = if identity.uid == 0 {
            7
        } else if identity.uid == self.uid {
            self.mode >> 6
        } else if in_group(identity, self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        if bits & may as u32 != 0 { Ok(()) } else { Err(Status::ACCESS) }
    }

    /// As access(2): all of it, and nobody executes a file that has no bit for that.
    pub(super) fn check_access(&self, identity: &Identity, mode: AccessMode) -> Result<(), Status> {
        for (bit, may) in [
            (AccessMode::READ, May::Read),
            (AccessMode::WRITE, May::Write),
            (AccessMode::EXECUTE, May::Search),
        ] {
            if mode.contains(bit) {
                self.check(identity, may)?;
            }
        }
        let executes = mode.contains(AccessMode::EXECUTE) && self.kind() == FileKind::File;
        if executes && self.mode & 0o111 == 0 { Err(Status::ACCESS) } else { Ok(()) }
    }

    /// A file that changes hands or data loses its set-user-id bit; and its set-group-id bit where its group may execute it, or whoever
    /// does it is not `in_group`.
    pub(super) fn lose_set_ids(&mut self, in_group: bool) {
        if self.kind() == FileKind::File {
            let group_bit = if self.mode & 0o010 != 0 || !in_group { 0o2000 } else { 0 };
            self.mode &= !(0o4000 | group_bit);
        }
    }

    /// Its owner, and who may do all that an owner may.
    pub(super) fn is_owned_by(&self, identity: &Identity) -> bool {
        [0, self.uid].contains(&identity.uid)
    }

    /// It may get a further name by somebody who is not its owner: whom that name would give something he could not have had.
    pub(super) fn check_link_source(&self, identity: &Identity) -> Result<(), Status> {
        let gives_rights = self.mode & 0o4000 != 0 || self.mode & 0o2010 == 0o2010;
        let is_open = [May::Read, May::Write].iter().all(|may| self.check(identity, *may).is_ok());
        let is_safe = self.kind() == FileKind::File && !gives_rights && is_open;
        if is_safe || self.is_owned_by(identity) { Ok(()) } else { Err(Status::PERMISSION) }
    }

    pub(super) fn directory(&self) -> Result<&Directory, Status> {
        match &self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Status::NOT_DIRECTORY),
        }
    }
}

pub(super) fn in_group(identity: &Identity, gid: u32) -> bool {
    identity.gid == gid || identity.groups.contains(&gid)
}

/// All inodes.
pub(super) struct Tree {
    pub(super) inodes: BTreeMap<Ino, Inode>,
    /// See [`super::host::Host::guards_symlinks`].
    pub(super) guards_symlinks: bool,
}

/// Where a path leads.
pub(super) struct Found {
    /// The directory that holds the last name; `None` where the path ends with `.`, `..` or nothing.
    pub(super) place: Option<(Ino, Vec<u8>)>,
    /// What is there.
    pub(super) ino: Option<Ino>,
}

impl Tree {
    pub(super) fn inode(&self, ino: Ino) -> Result<&Inode, Status> {
        self.inodes.get(&ino).ok_or(Status::STALE)
    }

    pub(super) fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode, Status> {
        self.inodes.get_mut(&ino).ok_or(Status::STALE)
    }

    pub(super) fn directory_mut(&mut self, ino: Ino) -> Result<&mut Directory, Status> {
        match &mut self.inode_mut(ino)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Status::NOT_DIRECTORY),
        }
    }

    /// Follows a path. Leaving the export, by `..` of the root or an absolute link, is refused; and so is a link that
    /// asks for a directory by a slash at its end, where it leads to a file that is to be made (`create`).
    pub(super) fn walk(
        &self,
        start: Ino,
        path: &[u8],
        follow: bool,
        create: bool,
        identity: &Identity,
    ) -> Result<Found, Status> {
        check_path(path)?;
        let mut refused = None;
        let mut rest = Parts::default();
        rest.push(path);
        let mut place = None;
        // A part that is missing may only be the last.
        let mut found = Some(start);
        let (mut links_followed, mut parts_seen) = (0, 0);
        while let Some(part) = rest.next() {
            parts_seen += 1;
            if parts_seen > PARTS_MAX {
                return Err(Status::LOOP);
            }
            let here = found.ok_or(Status::NOT_FOUND)?;
            let inode = self.inode(here)?;
            let directory = inode.directory()?;
            inode.check(identity, May::Search)?;
            (place, found) = match part {
                b"." => (None, Some(here)),
                b".." if here == ROOT || inode.links == 0 => return Err(Status::CROSS_DEVICE),
                b".." => (None, Some(directory.parent)),
                // The client's path has none; what a link leads to may.
                name if name.len() > NAME_SIZE_MAX => return Err(Status::NAME_TOO_LONG),
                name => {
                    let next = directory.names.get(name).map(|(ino, _)| *ino);
                    match next.map(|ino| self.inode(ino)).transpose()?.map(|inode| &inode.content) {
                        Some(Content::Symlink(target)) if follow || !rest.is_empty() => {
                            links_followed += 1;
                            if links_followed > LINKS_FOLLOWED_MAX {
                                return Err(Status::LOOP);
                            }
                            if let (true, Some(link)) = (rest.is_empty(), next) {
                                self.check_follow(identity, inode, link)?;
                            }
                            if target.first() == Some(&b'/') {
                                return Err(Status::CROSS_DEVICE);
                            }
                            if create && rest.is_empty() && target.last() == Some(&b'/') {
                                refused = Some(Status::IS_DIRECTORY);
                                rest.push_directory_of(target);
                            } else {
                                rest.push(target);
                            }
                            (None, Some(here))
                        }
                        _ => (Some((here, name)), next),
                    }
                }
            };
        }
        let place = place.map(|(directory, name)| (directory, name.to_vec()));
        refused.map_or(Ok(Found { place, ino: found }), Err)
    }

    /// A link at the end of a path may be followed: not another's where everybody may put one.
    fn check_follow(&self, identity: &Identity, directory: &Inode, link: Ino) -> Result<(), Status> {
        let owner = self.inode(link)?.uid;
        let is_anybodys = directory.mode & 0o1002 == 0o1002;
        let is_trusted = owner == identity.uid || owner == directory.uid;
        if self.guards_symlinks && is_anybodys && !is_trusted { Err(Status::ACCESS) } else { Ok(()) }
    }

    /// What must be there.
    pub(super) fn find(
        &self,
        start: Ino,
        path: &[u8],
        follow: bool,
        identity: &Identity,
    ) -> Result<Ino, Status> {
        self.walk(start, path, follow, false, identity)?.ino.ok_or(Status::NOT_FOUND)
    }

    /// `ino` is `below`, or one of the directories above it. [`Status::LOOP`] where it lies too deep to tell.
    pub(super) fn is_above(&self, ino: Ino, below: Ino) -> Result<bool, Status> {
        let mut at = below;
        for _ in 0..DEPTH_MAX {
            work::add(1);
            let parent = match self.inodes.get(&at).map(|inode| &inode.content) {
                _ if at == ino => Some(true),
                Some(Content::Directory(directory)) if at != ROOT => {
                    at = directory.parent;
                    None
                }
                _ => Some(false),
            };
            if let Some(is_above) = parent {
                return Ok(is_above);
            }
        }
        Err(Status::LOOP)
    }
}

/// What is still to be walked: paths, the next one last. A slash at the end of one asks for a directory, as `.` does.
#[derive(Default)]
struct Parts<'a> {
    // Invariant: none is empty, or begins with a slash.
    paths: SmallVec<[&'a [u8]; 8]>,
}

impl<'a> Parts<'a> {
    fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    fn push(&mut self, path: &'a [u8]) {
        if path.last() == Some(&b'/') {
            self.paths.push(b".");
        }
        self.push_plain(path);
    }

    /// Whatever the name before the slash is: the directory it would be in must be there.
    fn push_directory_of(&mut self, path: &'a [u8]) {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let name = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let end = if matches!(&path[name..end], b"." | b"..") { end } else { name };
        self.paths.push(b".");
        self.push_plain(&path[..end]);
    }

    fn push_plain(&mut self, path: &'a [u8]) {
        let begin = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(begin, |last| last + 1);
        if begin < end {
            self.paths.push(&path[begin..end]);
        }
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let path = self.paths.pop()?;
        work::add(1);
        let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
        let (part, rest) = path.split_at(end);
        self.push_plain(rest);
        Some(part)
    }
}
