//! Extended attributes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use dafs_proto::wire::{Status, XATTR_VALUE_SIZE_MAX, XattrSetMode};
use rustix::buffer::spare_capacity;
use rustix::fs::{self, XattrFlags};

use super::super::paths::{check_xattr_name, is_of_users};
use super::super::{FsOp, FsReply, Identity};
use super::Node;
use super::resolve::Scope;
use super::sys::{FdPath, retry};

pub(super) fn execute(
    scope: &Scope<'_>,
    node: &Arc<Node>,
    identity: &Identity,
    op: &FsOp,
) -> Result<FsReply, Status> {
    let (FsOp::XattrRead { at, .. }
    | FsOp::XattrWrite { at, .. }
    | FsOp::XattrList { at }
    | FsOp::XattrRemove { at, .. }) = op
    else {
        return Err(Status::INVALID);
    };
    on_fd(scope.at(node, &at.path, false)?.as_fd(), identity, op)
}

fn on_fd(fd: BorrowedFd<'_>, identity: &Identity, op: &FsOp) -> Result<FsReply, Status> {
    // There is no call for descriptors that only name.
    let path = FdPath::new(fd);
    let path = path.as_c_str();
    match op {
        FsOp::XattrRead { name, .. } => {
            check_xattr_name(name, identity)?;
            let mut value = Vec::with_capacity(XATTR_VALUE_SIZE_MAX);
            retry(|| fs::getxattr(path, &name[..], spare_capacity(&mut value)))?;
            Ok(FsReply::Bytes(value))
        }
        FsOp::XattrWrite { name, value, mode, .. } => {
            check_xattr_name(name, identity)?;
            if value.len() > XATTR_VALUE_SIZE_MAX {
                return Err(Status::TOO_LARGE);
            }
            let flags = match mode {
                XattrSetMode::Any => XattrFlags::empty(),
                XattrSetMode::Create => XattrFlags::CREATE,
                XattrSetMode::Replace => XattrFlags::REPLACE,
            };
            retry(|| fs::setxattr(path, &name[..], value, flags))?;
            Ok(FsReply::Done)
        }
        FsOp::XattrList { .. } => {
            let mut names = Vec::with_capacity(XATTR_VALUE_SIZE_MAX);
            retry(|| fs::listxattr(path, spare_capacity(&mut names)))?;
            let visible = names.split_inclusive(|byte| *byte == 0);
            let is_visible =
                |name: &[u8]| identity.uid == 0 || is_of_users(name.strip_suffix(b"\0").unwrap_or(name));
            let visible = visible.filter(|name| is_visible(name));
            Ok(FsReply::Bytes(visible.flatten().copied().collect()))
        }
        FsOp::XattrRemove { name, .. } => {
            check_xattr_name(name, identity)?;
            retry(|| fs::removexattr(path, &name[..]))?;
            Ok(FsReply::Done)
        }
        _ => Err(Status::INVALID),
    }
}
