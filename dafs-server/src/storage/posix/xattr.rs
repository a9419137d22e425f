//! Extended attributes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use dafs_proto::wire::{Status, XATTR_VALUE_SIZE_MAX, XattrSetMode};
use rustix::fs::XattrFlags;

use super::super::paths::check_xattr_name;
use super::super::{FsOp, FsReply, Identity};
use super::Node;
use super::resolve::Scope;
use super::sys;

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
    match op {
        FsOp::XattrRead { name, .. } => {
            check_xattr_name(name, identity)?;
            Ok(FsReply::Bytes(sys::xattr_read(fd, name, XATTR_VALUE_SIZE_MAX)?))
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
            sys::xattr_write(fd, name, value, flags)?;
            Ok(FsReply::Done)
        }
        FsOp::XattrList { .. } => {
            let names = sys::xattr_list(fd, XATTR_VALUE_SIZE_MAX)?;
            let mut visible = Vec::with_capacity(names.len());
            for name in names.split_inclusive(|b| *b == 0) {
                if identity.uid == 0 || name.starts_with(b"user.") {
                    visible.extend_from_slice(name);
                }
            }
            Ok(FsReply::Bytes(visible))
        }
        FsOp::XattrRemove { name, .. } => {
            check_xattr_name(name, identity)?;
            sys::xattr_remove(fd, name)?;
            Ok(FsReply::Done)
        }
        _ => Err(Status::INVALID),
    }
}
