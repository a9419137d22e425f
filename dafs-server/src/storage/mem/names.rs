//! Operations on names and attributes of an export in memory.

use std::sync::Arc;

use dafs_proto::wire::{FileKind, NodeKind, OpenFlags, PATH_SIZE_MAX, SetAttributes, SetTime, Status};

use super::super::paths::{check_open_flags, split_last};
use super::super::{Admission, At, FsOp, FsReply, FsResult, Identity, admit};
use super::MemFs;
use super::file::FileData;
use super::tree::{Content, Directory, INODE_SIZE, Ino, Inode, May, in_group, name_size};

impl MemFs {
    pub(super) fn names(&mut self, identity: &Identity, op: FsOp) -> FsResult {
        match op {
            FsOp::Lookup { at, follow } => {
                let ino = self.find(&at, follow, identity)?;
                self.open_node(ino, OpenFlags::empty())
            }
            FsOp::Open { at, flags, mode, admission } => {
                self.open(identity, &at, (flags, mode), admission.as_ref())
            }
            FsOp::Getattr { at, follow } => {
                let ino = self.find(&at, follow, identity)?;
                self.attributes(ino)
            }
            FsOp::Setattr { at, follow, set } => {
                let ino = self.find(&at, follow, identity)?;
                self.set_attributes(identity, ino, &set)?;
                self.attributes(ino)
            }
            FsOp::AccessCheck { at, follow, mode } => {
                let ino = self.find(&at, follow, identity)?;
                self.tree.inode(ino)?.check_access(identity, mode)?;
                Ok(FsReply::Done)
            }
            FsOp::Mkdir { at, mode } => {
                let (parent, name) = self.free_name(identity, &at, true)?;
                let content = Content::Directory(Directory::of(parent));
                let ino = self.make(identity, parent, &name, content, mode & 0o7777)?;
                self.attributes(ino)
            }
            FsOp::Mknod { at, kind, mode, device } => {
                let (parent, name) = self.free_name(identity, &at, false)?;
                let is_device = matches!(kind, NodeKind::CharDevice | NodeKind::BlockDevice);
                if is_device && identity.uid != 0 {
                    return Err(Status::PERMISSION);
                }
                let content = Content::Special(kind, device);
                let ino = self.make(identity, parent, &name, content, mode & 0o7777)?;
                self.attributes(ino)
            }
            FsOp::Symlink { target, at } => {
                self.parent(identity, &at, false)?;
                match target.len() {
                    0 => return Err(Status::NOT_FOUND),
                    len if len >= PATH_SIZE_MAX => return Err(Status::NAME_TOO_LONG),
                    _ if target.contains(&0) => return Err(Status::INVALID),
                    _ => {}
                }
                let (parent, name) = self.free_name(identity, &at, false)?;
                let ino = self.make(identity, parent, &name, Content::Symlink(target), 0o777)?;
                self.attributes(ino)
            }
            FsOp::Readlink { at } => {
                let ino = self.find(&at, false, identity)?;
                match &self.tree.inode(ino)?.content {
                    Content::Symlink(target) => Ok(FsReply::Bytes(target.clone())),
                    _ => Err(Status::INVALID),
                }
            }
            FsOp::Remove { at, directory } => self.remove(identity, &at, directory),
            FsOp::Rename { from, to, replace } => self.rename(identity, &from, &to, replace),
            FsOp::Exchange { from, to } => self.exchange(identity, &from, &to),
            FsOp::Link { from, to, replace } => self.link(identity, &from, &to, replace),
            _ => Err(Status::INVALID),
        }
    }

    fn find(&self, at: &At, follow: bool, identity: &Identity) -> Result<Ino, Status> {
        self.tree.find(self.node(at.node)?.ino, &at.path, follow, identity)
    }

    fn attributes(&self, ino: Ino) -> FsResult {
        Ok(FsReply::Attributes(self.tree.inode(ino)?.attributes(ino, self.identity)))
    }

    /// The directory and the plain last name of a path. Whether a name may be looked for there is not checked yet.
    fn parent(&self, identity: &Identity, at: &At, directory: bool) -> Result<(Ino, Vec<u8>), Status> {
        let (parent, name) = split_last(&at.path, directory)?;
        let found = self.tree.find(self.node(at.node)?.ino, parent, true, identity)?;
        // What a path begins at is looked at only when a name is looked for there.
        if !parent.is_empty() {
            self.tree.inode(found)?.directory()?;
        }
        Ok((found, name.to_vec()))
    }

    /// Names may be looked for there.
    fn check_search(&self, identity: &Identity, parent: Ino) -> Result<(), Status> {
        let inode = self.tree.inode(parent)?;
        inode.directory()?;
        inode.check(identity, May::Search)
    }

    /// The same, where a name may be looked for.
    fn place(&self, identity: &Identity, at: &At, directory: bool) -> Result<(Ino, Vec<u8>), Status> {
        let place = self.parent(identity, at, directory)?;
        self.check_search(identity, place.0)?;
        Ok(place)
    }

    fn child(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.tree.inode(parent).ok()?.directory().ok()?.names.get(name).map(|(ino, _)| *ino)
    }

    /// A place where something can be made.
    fn free_name(&self, identity: &Identity, at: &At, directory: bool) -> Result<(Ino, Vec<u8>), Status> {
        let (parent, name) = self.place(identity, at, directory)?;
        if self.child(parent, &name).is_some() {
            return Err(Status::EXISTS);
        }
        self.check_change(identity, parent)?;
        Ok((parent, name))
    }

    /// Names may be made in this directory.
    fn check_change(&self, identity: &Identity, parent: Ino) -> Result<(), Status> {
        let inode = self.tree.inode(parent)?;
        // A directory that was removed takes no names.
        if inode.links == 0 {
            return Err(Status::NOT_FOUND);
        }
        inode.check(identity, May::Write)?;
        inode.check(identity, May::Search)
    }

    /// A name may be taken out of this directory.
    fn check_removal(&self, identity: &Identity, parent: Ino, ino: Ino) -> Result<(), Status> {
        self.check_change(identity, parent)?;
        self.check_sticky(identity, parent, ino)
    }

    /// In a sticky directory a name is for the owner of what it names, and for the directory's.
    fn check_sticky(&self, identity: &Identity, parent: Ino, ino: Ino) -> Result<(), Status> {
        let [directory, inode] = [self.tree.inode(parent)?, self.tree.inode(ino)?];
        let sticky = directory.mode & 0o1000 != 0;
        let owner = directory.is_owned_by(identity) || inode.is_owned_by(identity);
        if sticky && !owner { Err(Status::PERMISSION) } else { Ok(()) }
    }

    fn make(
        &mut self,
        identity: &Identity,
        parent: Ino,
        name: &[u8],
        content: Content,
        mode: u32,
    ) -> Result<Ino, Status> {
        let is_directory = matches!(content, Content::Directory(_));
        self.space.take(name_size(name))?;
        let ino = match self.make_unnamed(identity, parent, content, mode) {
            Ok(ino) => ino,
            Err(status) => {
                self.space.give(name_size(name));
                return Err(status);
            }
        };
        let inode = self.tree.inode_mut(ino)?;
        inode.links = if is_directory { 2 } else { 1 };
        let now = inode.ctime;
        let directory = self.tree.inode_mut(parent)?;
        directory.on_change(now);
        if is_directory {
            directory.links += 1;
        }
        self.tree.directory_mut(parent)?.insert(name, ino);
        Ok(ino)
    }

    /// Something that belongs in a directory, and has no name there.
    fn make_unnamed(
        &mut self,
        identity: &Identity,
        parent: Ino,
        content: Content,
        mode: u32,
    ) -> Result<Ino, Status> {
        let now = self.clock.now();
        let is_directory = matches!(content, Content::Directory(_));
        let size = match &content {
            Content::Symlink(target) => target.len() as u64,
            _ => 0,
        };
        let directory = self.tree.inode(parent)?;
        let inherits = directory.mode & 0o2000 != 0;
        // Nobody lets others act as a group that he is not in.
        let is_foreign = identity.uid != 0 && !in_group(identity, directory.gid);
        let mode = match (inherits, is_directory) {
            (true, true) => mode | 0o2000,
            (true, false) if is_foreign && mode & 0o2010 == 0o2010 => mode & !0o2000,
            _ => mode,
        };
        let gid = if inherits { directory.gid } else { identity.gid };
        let inode = Inode::new(content, mode, (identity.uid, gid), now);
        self.space.take(INODE_SIZE + size)?;
        let ino = self.next_ino;
        self.next_ino += 1;
        self.tree.inodes.insert(ino, inode);
        Ok(ino)
    }

    fn open(
        &mut self,
        identity: &Identity,
        at: &At,
        (flags, mode): (OpenFlags, u32),
        admission: Option<&Arc<dyn Admission>>,
    ) -> FsResult {
        check_open_flags(flags)?;
        let create = flags.contains(OpenFlags::CREATE);
        let exclusive = flags.contains(OpenFlags::EXCLUSIVE);
        let follow = !flags.contains(OpenFlags::NO_FOLLOW) && !exclusive;
        let base = self.node(at.node)?.ino;
        if flags.contains(OpenFlags::UNNAMED) {
            let parent = self.find(at, true, identity)?;
            let directory = self.tree.inode(parent)?;
            directory.directory()?;
            directory.check(identity, May::Write)?;
            directory.check(identity, May::Search)?;
            // As ext4 has it of a directory that was removed.
            if directory.links == 0 {
                return Err(Status::PERMISSION);
            }
            let content = Content::File(FileData::default());
            let ino = self.make_unnamed(identity, parent, content, mode & 0o7777)?;
            self.tree.inode_mut(ino)?.can_be_named = true;
            admit(admission, &self.tree.inode(ino)?.attributes(ino, self.identity))?;
            return self.open_node(ino, flags);
        }
        if create && at.path.last() == Some(&b'/') {
            // Whatever the name is, no file can be made there.
            let end = at.path.iter().rposition(|byte| *byte != b'/').map_or(at.path.len(), |last| last + 1);
            self.tree.walk(base, &at.path[..end], false, create, identity)?;
            return Err(Status::IS_DIRECTORY);
        }
        let found = self.tree.walk(base, &at.path, follow, create, identity)?;
        let ino = match (found.ino, found.place) {
            (Some(_), _) if exclusive => return Err(Status::EXISTS),
            (Some(ino), _) => ino,
            (None, Some((parent, name))) if create => {
                self.check_change(identity, parent)?;
                let content = Content::File(FileData::default());
                let ino = self.make(identity, parent, &name, content, mode & 0o7777)?;
                admit(admission, &self.tree.inode(ino)?.attributes(ino, self.identity))?;
                // Who makes a file may open it, whatever its mode says.
                return self.open_node(ino, flags);
            }
            (None, _) => return Err(Status::NOT_FOUND),
        };
        let inode = self.tree.inode(ino)?;
        match inode.kind() {
            FileKind::Symlink if flags.contains(OpenFlags::DIRECTORY) && !at.path.is_empty() => {
                return Err(Status::NOT_DIRECTORY);
            }
            FileKind::Symlink => return Err(Status::LOOP),
            FileKind::Directory if flags.intersects(OpenFlags::WRITE | OpenFlags::CREATE) => {
                return Err(Status::IS_DIRECTORY);
            }
            FileKind::File if flags.contains(OpenFlags::DIRECTORY) => return Err(Status::NOT_DIRECTORY),
            FileKind::File | FileKind::Directory => {}
            _ if flags.contains(OpenFlags::DIRECTORY) => return Err(Status::NOT_DIRECTORY),
            _ => return Err(Status::NOT_SUPPORTED),
        }
        if flags.intersects(OpenFlags::READ | OpenFlags::DIRECTORY) {
            inode.check(identity, May::Read)?;
        }
        if flags.contains(OpenFlags::WRITE) {
            inode.check(identity, May::Write)?;
        }
        admit(admission, &inode.attributes(ino, self.identity))?;
        if flags.contains(OpenFlags::TRUNCATE) {
            let now = self.clock.now();
            let inode = self.tree.inode_mut(ino)?;
            if let Content::File(data) = &mut inode.content {
                data.truncate(&mut self.space, 0)?;
            }
            inode.lose_set_ids(in_group(identity, inode.gid));
            inode.on_change(now);
        }
        self.open_node(ino, flags)
    }

    fn set_attributes(&mut self, identity: &Identity, ino: Ino, set: &SetAttributes) -> Result<(), Status> {
        super::super::paths::check_set_attributes(set)?;
        let now = self.clock.now();
        let inode = self.tree.inode_mut(ino)?;
        let root = identity.uid == 0;
        let owner = root || identity.uid == inode.uid;
        if set.mode.is_some() && inode.kind() == FileKind::Symlink {
            return Err(Status::NOT_SUPPORTED);
        }
        let new_owner = set.uid.is_some_and(|uid| !root && (!owner || uid != inode.uid));
        let new_group =
            set.gid.is_some_and(|gid| !root && (!owner || gid != inode.gid && !in_group(identity, gid)));
        let times = [set.atime, set.mtime];
        let exact = times.iter().flatten().any(|time| matches!(time, SetTime::At(_)));
        // A writer may touch, both times at once.
        let touch = times == [Some(SetTime::Now); 2] && inode.check(identity, May::Write).is_ok();
        if new_owner || new_group || set.mode.is_some() && !owner || exact && !owner {
            return Err(Status::PERMISSION);
        }
        if times.iter().any(Option::is_some) && !owner && !touch {
            return Err(if times == [Some(SetTime::Now); 2] { Status::ACCESS } else { Status::PERMISSION });
        }
        if set.uid.is_some() || set.gid.is_some() {
            inode.lose_set_ids(root || in_group(identity, inode.gid));
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
        }
        if let Some(mode) = set.mode {
            let keeps_group = root || in_group(identity, inode.gid);
            inode.mode = mode & 0o7777 & if keeps_group { 0o7777 } else { 0o5777 };
        }
        let time = |time| match time {
            SetTime::Now => now,
            SetTime::At(at) => at,
        };
        inode.atime = set.atime.map_or(inode.atime, time);
        inode.mtime = set.mtime.map_or(inode.mtime, time);
        inode.on_attributes_change(now);
        Ok(())
    }

    fn remove(&mut self, identity: &Identity, at: &At, directory: bool) -> FsResult {
        let (parent, name) = self.place(identity, at, directory)?;
        let ino = self.child(parent, &name).ok_or(Status::NOT_FOUND)?;
        self.check_removal(identity, parent, ino)?;
        match &self.tree.inode(ino)?.content {
            Content::Directory(_) if !directory => return Err(Status::IS_DIRECTORY),
            Content::Directory(content) if !content.names.is_empty() => return Err(Status::NOT_EMPTY),
            Content::File(_) | Content::Symlink(_) | Content::Special(..) if directory => {
                return Err(Status::NOT_DIRECTORY);
            }
            _ => {}
        }
        self.unlink(parent, &name, ino)?;
        Ok(FsReply::Done)
    }

    /// Takes a name away, and what it named when that was all.
    fn unlink(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<(), Status> {
        self.tree.directory_mut(parent)?.remove(name);
        self.unname(parent, name, ino)
    }

    /// The same where the name is given to something else.
    fn unname(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<(), Status> {
        let now = self.clock.now();
        self.space.give(name_size(name));
        let inode = self.tree.inode_mut(ino)?;
        let directory = inode.kind() == FileKind::Directory;
        inode.links = if directory { 0 } else { inode.links - 1 };
        inode.on_attributes_change(now);
        let above = self.tree.inode_mut(parent)?;
        above.on_change(now);
        if directory {
            above.links -= 1;
        }
        self.drop_unused(ino);
        Ok(())
    }

    fn rename(&mut self, identity: &Identity, from: &At, to: &At, replace: bool) -> FsResult {
        let (old_parent, old_name) = self.parent(identity, from, false)?;
        let (new_parent, new_name) = self.parent(identity, to, false)?;
        self.check_search(identity, old_parent)?;
        self.check_search(identity, new_parent)?;
        let ino = self.child(old_parent, &old_name).ok_or(Status::NOT_FOUND)?;
        // A directory that was removed takes no names.
        if self.tree.inode(new_parent)?.links == 0 {
            return Err(Status::NOT_FOUND);
        }
        let target = self.child(new_parent, &new_name);
        if target.is_some() && !replace {
            return Err(Status::EXISTS);
        }
        let is_directory = self.tree.inode(ino)?.kind() == FileKind::Directory;
        if is_directory && self.tree.is_above(ino, new_parent)? {
            return Err(Status::INVALID);
        }
        // What lies on the way to the source cannot be replaced by it.
        if let Some(target) = target
            && self.tree.is_above(target, old_parent)?
        {
            return Err(Status::NOT_EMPTY);
        }
        if target == Some(ino) {
            return Ok(FsReply::Done);
        }
        self.check_removal(identity, old_parent, ino)?;
        self.check_change(identity, new_parent)?;
        if let Some(target) = target {
            self.check_removal(identity, new_parent, target)?;
            match (self.tree.inode(target)?.kind(), is_directory) {
                (FileKind::Directory, false) => return Err(Status::IS_DIRECTORY),
                (FileKind::File | FileKind::Symlink, true) => return Err(Status::NOT_DIRECTORY),
                _ => {}
            }
        }
        if is_directory && old_parent != new_parent {
            self.tree.inode(ino)?.check(identity, May::Write)?;
        }
        if let Some(target) = target
            && self.tree.inode(target)?.directory().is_ok_and(|directory| !directory.names.is_empty())
        {
            return Err(Status::NOT_EMPTY);
        }
        let (old_size, new_size) = (name_size(&old_name), name_size(&new_name));
        self.space.take(new_size.saturating_sub(old_size))?;
        self.space.give(old_size.saturating_sub(new_size));
        if let Some(target) = target {
            self.unname(new_parent, &new_name, target)?;
        }
        self.tree.directory_mut(old_parent)?.remove(&old_name);
        self.tree.directory_mut(new_parent)?.insert(&new_name, ino);
        let now = self.clock.now();
        if is_directory {
            self.tree.inode_mut(old_parent)?.links -= 1;
            self.tree.inode_mut(new_parent)?.links += 1;
            self.tree.directory_mut(ino)?.parent = new_parent;
        }
        for changed in [old_parent, new_parent] {
            let inode = self.tree.inode_mut(changed)?;
            inode.on_change(now);
        }
        self.tree.inode_mut(ino)?.on_attributes_change(now);
        Ok(FsReply::Done)
    }

    fn exchange(&mut self, identity: &Identity, from: &At, to: &At) -> FsResult {
        let mut sides = Vec::with_capacity(2);
        for at in [from, to] {
            let (parent, name) = self.parent(identity, at, false)?;
            self.check_search(identity, parent)?;
            let ino = self.child(parent, &name).ok_or(Status::NOT_FOUND)?;
            sides.push((parent, name, ino));
        }
        let Ok([one, other]) = <[_; 2]>::try_from(sides) else { return Err(Status::INVALID) };
        // Nothing comes to be below itself.
        if self.tree.is_above(one.2, other.0)? || self.tree.is_above(other.2, one.0)? {
            return Err(Status::INVALID);
        }
        if one.2 == other.2 {
            return Ok(FsReply::Done);
        }
        let now = self.clock.now();
        for (parent, _, ino) in [&one, &other] {
            self.check_removal(identity, *parent, *ino)?;
            if one.0 != other.0 && self.tree.inode(*ino)?.kind() == FileKind::Directory {
                self.tree.inode(*ino)?.check(identity, May::Write)?;
            }
        }
        for ((old, _, ino), (new, name, _)) in [(&one, &other), (&other, &one)] {
            self.tree.directory_mut(*new)?.remove(name);
            self.tree.directory_mut(*new)?.insert(name, *ino);
            if self.tree.inode(*ino)?.kind() == FileKind::Directory {
                self.tree.inode_mut(*old)?.links -= 1;
                self.tree.inode_mut(*new)?.links += 1;
                self.tree.directory_mut(*ino)?.parent = *new;
            }
            self.tree.inode_mut(*new)?.on_change(now);
            self.tree.inode_mut(*ino)?.on_attributes_change(now);
        }
        Ok(FsReply::Done)
    }

    fn link(&mut self, identity: &Identity, from: &At, to: &At, replace: bool) -> FsResult {
        // As in a directory of the system: both places are found before either name is looked at.
        self.parent(identity, to, false)?;
        let ino = if from.path.is_empty() {
            self.node(from.node)?.ino
        } else {
            let (parent, name) = self.place(identity, from, false)?;
            self.child(parent, &name).ok_or(Status::NOT_FOUND)?
        };
        let (parent, name) = self.place(identity, to, false)?;
        let existing = self.child(parent, &name);
        if existing.is_some() && !replace {
            return Err(Status::EXISTS);
        }
        if let Some(existing) = existing {
            if self.tree.inode(existing)?.kind() == FileKind::Directory {
                return Err(Status::IS_DIRECTORY);
            }
            self.check_sticky(identity, parent, existing)?;
            self.check_sticky(identity, parent, ino)?;
        }
        self.check_link(identity, parent, ino)?;
        if existing == Some(ino) {
            return self.attributes(ino);
        }
        // Before the old one goes: there may be no room.
        self.space.take(name_size(&name))?;
        if let Some(existing) = existing {
            self.unname(parent, &name, existing)?;
        }
        let now = self.clock.now();
        self.tree.directory_mut(parent)?.insert(&name, ino);
        let inode = self.tree.inode_mut(ino)?;
        inode.links += 1;
        inode.can_be_named = false;
        inode.on_attributes_change(now);
        let directory = self.tree.inode_mut(parent)?;
        directory.on_change(now);
        self.attributes(ino)
    }

    /// A file may get a further name in this directory.
    fn check_link(&self, identity: &Identity, parent: Ino, ino: Ino) -> Result<(), Status> {
        let [directory, inode] = [self.tree.inode(parent)?, self.tree.inode(ino)?];
        if directory.links > 0 && self.host.guards_hardlinks {
            inode.check_link_source(identity)?;
        }
        self.check_change(identity, parent)?;
        if inode.kind() == FileKind::Directory {
            return Err(Status::PERMISSION);
        }
        // A file without a name stays without, unless it was made so.
        if inode.links == 0 && !inode.can_be_named {
            return Err(Status::NOT_FOUND);
        }
        if inode.links == u32::MAX {
            return Err(Status::TOO_MANY_LINKS);
        }
        Ok(())
    }
}
