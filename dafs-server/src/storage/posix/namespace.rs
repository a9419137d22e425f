//! Names and attributes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_proto::wire::{Attributes, FileKind, NodeKind, OpenFlags, PATH_SIZE_MAX, SetAttributes, Status};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags};

use super::super::credentials::Identities;
use super::super::file_system::{Opened, Outcome};
use super::super::paths::{check_open_flags, check_set_attributes};
use super::super::{Admission, FsOp, FsReply, admit, admit_open};
use super::busy;
use super::link::link;
use super::resolve::{Resolved, Scope, Where};
use super::sys::{self, Errno, retry};
use super::write_gate::WriteGate;
use super::{DirectIo, Node};

/// Lookup, open, and attributes.
pub(super) fn access(scope: &Scope<'_>, node: &Arc<Node>, op: &FsOp) -> Result<Outcome, Status> {
    match op {
        FsOp::Lookup { at, follow } => {
            let fd = scope.name(node, &at.path, *follow)?;
            let attributes = sys::fstat(fd.as_fd())?;
            let node = scope.node(fd, &attributes, false);
            Ok(opened(node, attributes, false))
        }
        FsOp::Open { at, flags, mode, admission } => {
            let wish = Wish { flags: *flags, mode: *mode & 0o7777, admission: admission.as_ref() };
            let (node, attributes) = open(scope, node, &at.path, wish)?;
            Ok(opened(node, attributes, flags.contains(OpenFlags::TRUNCATE)))
        }
        FsOp::Getattr { at, follow } => {
            let attributes = sys::fstat(scope.at(node, &at.path, *follow)?.as_fd())?;
            Ok(Outcome::Reply(FsReply::Attributes(attributes)))
        }
        FsOp::AccessCheck { at, follow, mode } => {
            sys::faccess(scope.at(node, &at.path, *follow)?.as_fd(), *mode)?;
            Ok(Outcome::Reply(FsReply::Done))
        }
        FsOp::Setattr { at, follow, set } => {
            let attributes = set_attributes(scope.at(node, &at.path, *follow)?.as_fd(), set)?;
            Ok(Outcome::Reply(FsReply::Attributes(attributes)))
        }
        _ => Err(Status::INVALID),
    }
}

fn opened(node: Node, attributes: Attributes, was_cut: bool) -> Outcome {
    Outcome::Opened(Opened { file: Arc::new(node), attributes, was_cut })
}

/// What makes, moves or removes names.
pub(super) fn change(
    scope: &Scope<'_>,
    node: &Arc<Node>,
    second: Option<&Arc<Node>>,
    op: &FsOp,
) -> Result<FsReply, Status> {
    match op {
        FsOp::Mkdir { at, mode } => {
            let (parent, name) = scope.parent(node, &at.path, true)?;
            make_directory(parent.as_fd(), name, mode & 0o7777).map(FsReply::Attributes)
        }
        FsOp::Mknod { at, kind, mode, device } => {
            let (parent, name) = scope.parent(node, &at.path, false)?;
            make_node(parent.as_fd(), name, (*kind, mode & 0o7777, *device)).map(FsReply::Attributes)
        }
        FsOp::Remove { at, directory } => {
            let (parent, name) = scope.parent(node, &at.path, *directory)?;
            scope.check_frees_little(parent.as_fd(), name)?;
            let flags = if *directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            retry(|| fs::unlinkat(&parent, name, flags))?;
            Ok(FsReply::Done)
        }
        FsOp::Rename { from, to, .. } | FsOp::Exchange { from, to } => {
            let target = second.ok_or(Status::INVALID)?;
            let (from_parent, from_name) = scope.parent(node, &from.path, false)?;
            let (to_parent, to_name) = scope.parent(target, &to.path, false)?;
            let flags = match op {
                FsOp::Exchange { .. } => RenameFlags::EXCHANGE,
                FsOp::Rename { replace: true, .. } => RenameFlags::empty(),
                _ => RenameFlags::NOREPLACE,
            };
            if flags.is_empty() {
                scope.check_frees_little(to_parent.as_fd(), to_name)?;
            }
            match retry(|| fs::renameat_with(&from_parent, from_name, &to_parent, to_name, flags)) {
                Err(Errno::INVAL) if flags == RenameFlags::NOREPLACE && !node.class.local => {
                    move_name((from_parent.as_fd(), from_name), (to_parent.as_fd(), to_name))?;
                }
                // Also a file system in FUSE that knows no such flag says so.
                Err(Errno::INVAL) if flags == RenameFlags::EXCHANGE && !node.class.local => {
                    return Err(Status::NOT_SUPPORTED);
                }
                renamed => renamed?,
            }
            Ok(FsReply::Done)
        }
        FsOp::Link { from, to, replace } => {
            link(scope, node, &from.path, second.ok_or(Status::INVALID)?, &to.path, *replace)
        }
        FsOp::Symlink { target, at } => {
            let (parent, name) = scope.parent(node, &at.path, false)?;
            if target.len() >= PATH_SIZE_MAX {
                return Err(Status::NAME_TOO_LONG);
            }
            retry(|| fs::symlinkat(target.as_slice(), &parent, name))?;
            Ok(FsReply::Attributes(sys::statx(parent.as_fd(), name)?))
        }
        FsOp::Readlink { at } => {
            let link = scope.at(node, &at.path, false)?;
            if sys::fstat(link.as_fd())?.kind != FileKind::Symlink {
                return Err(Status::INVALID);
            }
            Ok(FsReply::Bytes(sys::readlinkat(link.as_fd(), c"")?))
        }
        _ => Err(Status::INVALID),
    }
}

/// Renames what is no directory, where the file system cannot keep a name from being replaced: a further name never replaces one.
fn move_name(from: (BorrowedFd<'_>, &[u8]), to: (BorrowedFd<'_>, &[u8])) -> Result<(), Status> {
    match sys::statx(to.0, to.1) {
        Ok(_) => return Err(Status::EXISTS),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    if sys::statx(from.0, from.1)?.kind == FileKind::Directory {
        return Err(Status::NOT_SUPPORTED);
    }
    retry(|| fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty()))?;
    Ok(retry(|| fs::unlinkat(from.0, from.1, AtFlags::empty()))?)
}

fn make_node(
    parent: BorrowedFd<'_>,
    name: &[u8],
    (kind, mode, device): (NodeKind, u32, u64),
) -> Result<Attributes, Status> {
    let kind = match kind {
        NodeKind::Fifo => FileType::Fifo,
        NodeKind::Socket => FileType::Socket,
        NodeKind::CharDevice => FileType::CharacterDevice,
        NodeKind::BlockDevice => FileType::BlockDevice,
    };
    retry(|| fs::mknodat(parent, name, kind, Mode::from_raw_mode(mode), device))?;
    Ok(sys::statx(parent, name)?)
}

/// The kernel makes directories without set-user-id and set-group-id bits, but for the latter where it is inherited: they are set then.
fn make_directory(parent: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<Attributes, Status> {
    const SET_IDS: u32 = 0o6000;
    retry(|| fs::mkdirat(parent, name, Mode::from_raw_mode(mode & !SET_IDS)))?;
    let made = sys::statx(parent, name)?;
    if mode & SET_IDS & !made.mode == 0 {
        return Ok(made);
    }
    let fd = sys::open_named(parent, name)?;
    let there = sys::fstat(fd.as_fd())?;
    // Others may have put something else there: that keeps its mode.
    if (there.fs_id, there.file_id) != (made.fs_id, made.file_id) || made.kind != FileKind::Directory {
        return Ok(made);
    }
    // One who is not in the group that it has inherited would take the set-group-id bit away.
    let _keeping = if made.mode & 0o2000 != 0 { Identities::keep_ids() } else { None };
    sys::chmod(fd.as_fd(), made.mode | mode & SET_IDS)?;
    Ok(sys::fstat(fd.as_fd())?)
}

impl Scope<'_> {
    /// A descriptor that only names; `path` empty for the node itself.
    pub(super) fn name(&self, node: &Node, path: &[u8], follow: bool) -> Result<OwnedFd, Status> {
        if path.is_empty() {
            return Ok(sys::reopen(node.fd.as_fd(), OFlags::PATH)?);
        }
        self.open(node, path, OFlags::PATH | if follow { OFlags::empty() } else { OFlags::NOFOLLOW }, 0)
    }

    /// A descriptor of what a path leads to: the node's own where it is empty.
    pub(super) fn at<'n>(&self, node: &'n Node, path: &[u8], follow: bool) -> Result<Resolved<'n>, Status> {
        match path.is_empty() {
            true => Ok(Resolved::Node(node)),
            false => self.name(node, path, follow).map(Resolved::Opened),
        }
    }

    /// Opens what may have to be made. User 0 may give it the set-group-id bit of any group.
    fn make(&self, node: &Node, path: &[u8], system: OFlags, mode: u32) -> Result<OwnedFd, Status> {
        let sets = mode & 0o2000 != 0 && self.place.on_thread();
        let _setting = if sets { self.shared.identities.set_ids() } else { None };
        self.open(node, path, system, mode)
    }

    /// Opens what is there, and known to be of this kind. A thread that may hang waits for whoever holds a lease on it.
    fn reopen(&self, found: BorrowedFd<'_>, kind: FileKind, system: OFlags) -> Result<OwnedFd, Status> {
        let waits = self.place == Where::AnyMount && kind == FileKind::File;
        let not_here = if waits { OFlags::NONBLOCK } else { OFlags::empty() };
        Ok(sys::reopen(found, system.difference(OFlags::CREATE | OFlags::NOFOLLOW | not_here))?)
    }

    fn node(&self, fd: OwnedFd, attributes: &Attributes, opened: bool) -> Node {
        let class = self.shared.classes.of(fd.as_fd(), attributes.fs_id);
        Node::new(fd, attributes, class, opened)
    }
}

/// How a file is to be opened.
#[derive(Clone, Copy)]
struct Wish<'a> {
    flags: OpenFlags,
    mode: u32,
    admission: Option<&'a Arc<dyn Admission>>,
}

fn open(scope: &Scope<'_>, node: &Node, path: &[u8], wish: Wish<'_>) -> Result<(Node, Attributes), Status> {
    let flags = wish.flags;
    // Whoever holds a lease on the file is not waited for, but where that was found before.
    let system = system_flags(flags)? | OFlags::NONBLOCK | OFlags::NOCTTY;
    let made = if flags.contains(OpenFlags::UNNAMED) || path.is_empty() {
        None
    } else {
        make_new(scope, node, path, wish, system.difference(OFlags::NONBLOCK))?
    };
    let is_new = made.is_some();
    let (fd, attributes) = match made {
        Some(made) => made,
        None if flags.contains(OpenFlags::UNNAMED) => {
            let directory = if path.is_empty() { b"." } else { path };
            with_attributes(scope.make(node, directory, system | OFlags::TMPFILE, wish.mode)?)?
        }
        None if path.is_empty() => with_attributes(reopen(scope, node, wish, system)?)?,
        None => open_path(scope, node, path, wish, system)?,
    };
    // Of what was made only now it is known.
    admit_open(wish.admission, &attributes)?;
    match attributes.kind {
        FileKind::File => {}
        FileKind::Directory => return Ok((scope.node(fd, &attributes, true), attributes)),
        _ => return Err(Status::NOT_SUPPORTED),
    }
    if !is_new {
        // Off with O_NONBLOCK again.
        retry(|| fs::fcntl_setfl(&fd, OFlags::empty()))?;
    }
    let direct = if scope.shared.direct_io || flags.contains(OpenFlags::DIRECT_IO) {
        open_direct(scope, &fd, system)
    } else {
        None
    };
    let mut node = scope.node(fd, &attributes, true);
    node.readable = flags.contains(OpenFlags::READ);
    node.writable = flags.contains(OpenFlags::WRITE);
    let shows_locks = scope.shared.local_locks;
    node.gate = (node.writable || shows_locks).then(|| WriteGate::of(node.key()));
    node.gate.iter().filter(|_| shows_locks).for_each(|gate| gate.show_locks());
    node.name_unsynced = AtomicBool::new(flags.contains(OpenFlags::CREATE));
    node.unnamed = flags.contains(OpenFlags::UNNAMED);
    if let Some((direct_fd, memory_alignment, offset_alignment)) = direct {
        let buffered = std::mem::replace(&mut node.fd, direct_fd);
        node.direct_io = Some(DirectIo { buffered, memory_alignment, offset_alignment });
    }
    Ok((node, attributes))
}

/// A file that was not there before, which waits for nobody; `None` where it is, or is not to be made.
fn make_new(
    scope: &Scope<'_>,
    node: &Node,
    path: &[u8],
    Wish { flags, mode, .. }: Wish<'_>,
    system: OFlags,
) -> Result<Option<(OwnedFd, Attributes)>, Status> {
    if !flags.contains(OpenFlags::CREATE) || flags.contains(OpenFlags::DIRECTORY) {
        return Ok(None);
    }
    match scope.make(node, path, system | OFlags::EXCL, mode) {
        Err(Status::EXISTS) if !flags.contains(OpenFlags::EXCLUSIVE) => Ok(None),
        made => with_attributes(made?).map(Some),
    }
}

/// Devices, FIFOs and sockets reach beyond the file system, and not even opening them is without effect: a device may act, and what waits
/// for the other end of a FIFO goes on. So what the open does not make is named first, and opened when it is seen what it is.
fn open_path(
    scope: &Scope<'_>,
    node: &Node,
    path: &[u8],
    Wish { flags, mode, admission }: Wish<'_>,
    system: OFlags,
) -> Result<(OwnedFd, Attributes), Status> {
    let creates = flags.contains(OpenFlags::CREATE);
    if flags.contains(OpenFlags::DIRECTORY) {
        return with_attributes(scope.make(node, path, system, mode)?);
    }
    // To cut what is there is a thread's.
    if flags.contains(OpenFlags::TRUNCATE) && !scope.place.on_thread() {
        return Err(Status::AGAIN);
    }
    let (found, is_open) = match scope.name(node, path, !flags.contains(OpenFlags::NO_FOLLOW)) {
        // A link to nothing: what it names is made. It may be there by now, so it is not cut before it was looked at.
        Err(_) if creates => (scope.make(node, path, system.difference(OFlags::TRUNC), mode)?, true),
        named => (named?, false),
    };
    let attributes = sys::fstat(found.as_fd())?;
    check_kind(attributes.kind, flags)?;
    admit(admission, &attributes)?;
    let cuts = flags.contains(OpenFlags::TRUNCATE);
    let file = (attributes.fs_id, attributes.file_id);
    let _held = cuts.then(|| busy::hold_to_cut(file));
    let gate = cuts.then(|| WriteGate::of(file));
    let _writing = gate.as_ref().map(|gate| gate.wait_and_begin());
    let fd = match is_open {
        true => found,
        false => scope.reopen(found.as_fd(), attributes.kind, system)?,
    };
    // What was made by the open is empty, and being cut would take its set-user-id bit away.
    if is_open && cuts && attributes.size > 0 {
        retry(|| fs::ftruncate(&fd, 0))?;
    }
    if cuts { with_attributes(fd) } else { Ok((fd, attributes)) }
}

fn with_attributes(fd: OwnedFd) -> Result<(OwnedFd, Attributes), Status> {
    let attributes = sys::fstat(fd.as_fd())?;
    Ok((fd, attributes))
}

/// What is there may be opened like this.
fn check_kind(kind: FileKind, flags: OpenFlags) -> Result<(), Status> {
    match kind {
        FileKind::Symlink => Err(Status::LOOP),
        FileKind::Directory if flags.intersects(OpenFlags::CREATE | OpenFlags::WRITE) => {
            Err(Status::IS_DIRECTORY)
        }
        FileKind::Directory | FileKind::File => Ok(()),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

fn system_flags(flags: OpenFlags) -> Result<OFlags, Status> {
    check_open_flags(flags)?;
    let mut system = match (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        // Without either it is a directory.
        (_, false) => OFlags::RDONLY,
    };
    for (flag, value) in [
        (OpenFlags::CREATE, OFlags::CREATE),
        (OpenFlags::EXCLUSIVE, OFlags::EXCL),
        (OpenFlags::TRUNCATE, OFlags::TRUNC),
        (OpenFlags::NO_FOLLOW, OFlags::NOFOLLOW),
        (OpenFlags::DIRECTORY, OFlags::DIRECTORY),
    ] {
        if flags.contains(flag) {
            system |= value;
        }
    }
    Ok(system)
}

/// Data access to what a node already names; permission is checked anew.
fn reopen(
    scope: &Scope<'_>,
    node: &Node,
    Wish { flags, admission, .. }: Wish<'_>,
    system: OFlags,
) -> Result<OwnedFd, Status> {
    if flags.contains(OpenFlags::EXCLUSIVE) {
        return Err(Status::EXISTS);
    }
    check_kind(node.kind, flags)?;
    if flags.contains(OpenFlags::TRUNCATE) && !scope.place.on_thread() {
        return Err(Status::AGAIN);
    }
    if flags.contains(OpenFlags::TRUNCATE) {
        admit(admission, &sys::fstat(node.fd.as_fd())?)?;
    }
    let cuts = flags.contains(OpenFlags::TRUNCATE);
    let _held = cuts.then(|| busy::hold_to_cut(node.key()));
    let gate = cuts.then(|| WriteGate::of(node.key()));
    let _writing = gate.as_ref().map(|gate| gate.wait_and_begin());
    scope.reopen(node.fd.as_fd(), node.kind, system)
}

/// The same file opened with O_DIRECT, and its alignment; `None` where that cannot be had.
fn open_direct(scope: &Scope<'_>, fd: &OwnedFd, system: OFlags) -> Option<(OwnedFd, usize, u64)> {
    let access = system & OFlags::ACCMODE;
    let direct = match sys::reopen(fd.as_fd(), access | OFlags::DIRECT) {
        Ok(direct) => direct,
        Err(Errno::INVAL) => {
            if !scope.shared.direct_io_noted.swap(true, Ordering::Relaxed) {
                tracing::warn!("the export's file system does not support O_DIRECT; the page cache is used");
            }
            return None;
        }
        // The one who makes a file may forbid himself to write it, and has it open all the same. Where there is no further descriptor, the
        // file is made or cut already.
        Err(_) => return None,
    };
    let (memory, offset) = sys::direct_io_alignment(direct.as_fd()).unwrap_or((4096, 4096));
    Some((direct, memory.max(1) as usize, u64::from(offset.max(1))))
}

fn set_attributes(fd: BorrowedFd<'_>, set: &SetAttributes) -> Result<Attributes, Status> {
    check_set_attributes(set)?;
    let symlink = set.mode.is_some() && sys::fstat(fd)?.kind == FileKind::Symlink;
    if symlink {
        return Err(Status::NOT_SUPPORTED);
    }
    // The owner first: a change of owner takes set-user-id bits away.
    if set.uid.is_some() || set.gid.is_some() {
        sys::chown(fd, set.uid, set.gid)?;
    }
    if let Some(mode) = set.mode {
        sys::chmod(fd, mode & 0o7777)?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        sys::set_times(fd, set.atime, set.mtime)?;
    }
    Ok(sys::fstat(fd)?)
}
