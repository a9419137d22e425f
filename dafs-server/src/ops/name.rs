//! Operations on names: paths below a handle.

use std::sync::Arc;

use dafs_proto::wire::{
    AccessMode, Existing, MknodRequest, NAME_SIZE_MAX, NameRequest, Opcode, OpenFlags, OpenRequest,
    PATH_SIZE_MAX, Reader, RemoveRequest, RenameRequest, SetAttributes, Status, TwoNames, VerifyFlags,
    VerifyRequest, WireError, XATTR_VALUE_SIZE_MAX, XattrNames, XattrSetMode, decode_message_pack,
};

use super::Worker;
use super::local::Recalled;
use crate::shared::handed::Scope;
use crate::storage::{At, FsOp, NodeId};
use crate::worker::flight::Call;
use crate::worker::flight::after::After;
use crate::worker::flight::answer::{Payload, Problem, Served};
use crate::worker::sessions::handles::{OpenHandle, Reserved};

impl Worker {
    pub(crate) fn execute_name(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let open = self.handle(call)?.clone();
        let payload = self.connections.copied_payload(call, payload);
        let reply_max = self.connections.send_payload_max(call.connection);
        let (op, mut after) = match call.header.opcode {
            Opcode::Open => self.open_op(call, &open, body, payload)?,
            Opcode::Remove => {
                let request = RemoveRequest::decode(body)?;
                (FsOp::Remove { at: at(open.node, &payload)?, directory: request.directory }, After::Plain)
            }
            Opcode::Mknod => {
                let MknodRequest { kind, mode, device } = MknodRequest::decode(body)?;
                (FsOp::Mknod { at: at(open.node, &payload)?, kind, mode, device }, After::Attributes)
            }
            Opcode::Verify => {
                let request = VerifyRequest::decode(body)?;
                let follow = request.flags.contains(VerifyFlags::FOLLOW);
                (FsOp::Getattr { at: at(open.node, &payload)?, follow }, After::Verify(request))
            }
            Opcode::Rename | Opcode::Link => self.two_names_op(call, &open, body, &payload)?,
            Opcode::XattrRead | Opcode::XattrWrite | Opcode::XattrList | Opcode::XattrRemove => {
                xattr_op(call.header.opcode, open.node, body, &payload, reply_max)?
            }
            _ => name_op(call.header.opcode, &open, body, &payload, reply_max)?,
        };
        if let After::Node { like, reserved, .. } = &mut after {
            *reserved = Some(self.reserve_handle(call, like)?);
        }
        self.start(call, op, after)
    }

    /// Room for one more handle like this: else nothing is opened, nor made.
    fn reserve_handle(&mut self, call: &Call, like: &OpenHandle) -> Result<Reserved, Status> {
        let needed = like.descriptors(&self.shared.settings);
        let handles = &self.shared.budgets.of_session.handles;
        let session = self.sessions.find_mut(call.session).ok_or(Status::NO_SESSION)?;
        let Some(place) = session.handles.reserve(handles.max()) else {
            handles.count_refused();
            return Err(Status::TOO_MANY_OPEN);
        };
        if !session.descriptors.grow(needed) {
            return Err(Status::TOO_MANY_OPEN);
        }
        Ok(Reserved { place, descriptors: session.descriptors.split(needed) })
    }

    fn open_op(
        &self,
        call: &Call,
        open: &OpenHandle,
        body: &[u8],
        path: Vec<u8>,
    ) -> Result<(FsOp, After), Problem> {
        let request = OpenRequest::decode(body)?;
        let flags = request.flags;
        if flags.intersects(OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE)
            && open.rights.read_only
        {
            return Err(Status::READ_ONLY.into());
        }
        if !flags.intersects(OpenFlags::READ | OpenFlags::WRITE)
            || (flags.contains(OpenFlags::TRUNCATE) && !flags.contains(OpenFlags::WRITE))
            || (flags.contains(OpenFlags::EXCLUSIVE) && !flags.contains(OpenFlags::CREATE))
        {
            return Err(Status::INVALID.into());
        }
        // Whether there are mandatory locks counts when it is done.
        let session = self.sessions.find(call.session).filter(|_| flags.contains(OpenFlags::TRUNCATE));
        let cuts = session.map(|session| (Arc::clone(&self.shared.locks), session.id));
        let share = self.shared.shares.share(flags, cuts);
        let like = OpenHandle {
            readable: flags.contains(OpenFlags::READ),
            writable: flags.contains(OpenFlags::WRITE),
            opened: flags,
            is_root: false,
            share: Some(Arc::clone(&share)),
            ..open.clone()
        };
        let denies = flags.intersects(OpenFlags::DENY_READ | OpenFlags::DENY_WRITE);
        let denies = denies.then(|| Box::new((body.to_vec(), path.clone())));
        let (at, mode) = (at(open.node, &path)?, request.mode);
        let after = After::Node { like, reserved: None, denies };
        Ok((FsOp::Open { at, flags, mode, admission: Some(share) }, after))
    }

    /// An open with a deny mode is refused, perhaps since a client has a descriptor of its file: then that is called back, and the open
    /// waits.
    pub(super) fn recalls_for_open(&mut self, call: &Call, after: &After) -> bool {
        let After::Node { like, denies: Some(denies), .. } = after else { return false };
        let Some(file) = like.share.as_ref().and_then(|share| share.refused()) else { return false };
        let recalled = Recalled { body: &denies.0, payload: &denies.1, refused: Status::SHARE_DENIED };
        self.call_back(call, Scope::File { file, but: None }, &recalled).is_none()
    }

    fn two_names_op(
        &self,
        call: &Call,
        open: &OpenHandle,
        body: &[u8],
        payload: &[u8],
    ) -> Result<(FsOp, After), Problem> {
        let request = RenameRequest::decode_for(call.header.opcode, body)?;
        let names = TwoNames::decode(payload)?;
        let mut second = *call;
        second.header.handle = dafs_proto::wire::FileHandle(request.second_handle);
        let second = self.handle(&second)?.node;
        if second.export != open.node.export {
            return Err(Status::CROSS_DEVICE.into());
        }
        let (from, to) = (at(open.node, names.first)?, at(second, names.second)?);
        let replace = request.replace == Existing::Replaced;
        Ok(match (call.header.opcode, request.replace) {
            (Opcode::Rename, Existing::Exchanged) => (FsOp::Exchange { from, to }, After::Plain),
            (Opcode::Rename, _) => (FsOp::Rename { from, to, replace }, After::Plain),
            _ => (FsOp::Link { from, to, replace }, After::Attributes),
        })
    }
}

fn name_op(
    opcode: Opcode,
    open: &OpenHandle,
    body: &[u8],
    payload: &[u8],
    reply_max: usize,
) -> Result<(FsOp, After), Problem> {
    let NameRequest { follow, mode } = NameRequest::decode_for(opcode, body)?;
    let node = open.node;
    Ok(match opcode {
        Opcode::Lookup => {
            let like = OpenHandle {
                readable: false,
                writable: false,
                opened: OpenFlags::empty(),
                is_root: false,
                share: None,
                ..open.clone()
            };
            let after = After::Node { like, reserved: None, denies: None };
            (FsOp::Lookup { at: at(node, payload)?, follow }, after)
        }
        Opcode::Getattr => (FsOp::Getattr { at: at(node, payload)?, follow }, After::Attributes),
        Opcode::AccessCheck => {
            let mode = AccessMode::from_bits(mode).ok_or(Status::INVALID)?;
            if mode.contains(AccessMode::WRITE) && open.rights.read_only {
                return Err(Status::READ_ONLY.into());
            }
            (FsOp::AccessCheck { at: at(node, payload)?, follow, mode }, After::Plain)
        }
        Opcode::Statfs => (FsOp::Statfs { at: at(node, payload)?, follow }, After::Statfs),
        Opcode::Setattr => {
            let mut reader = Reader::new(payload);
            let at = at(node, reader.prefixed("path", PATH_SIZE_MAX)?)?;
            let set: SetAttributes = decode_message_pack("attributes to set", reader.rest())?;
            if set.mode.is_some_and(|mode| mode > 0o7777) {
                return Err(Status::INVALID.into());
            }
            (FsOp::Setattr { at, follow, set }, After::Attributes)
        }
        Opcode::Mkdir => (FsOp::Mkdir { at: at(node, payload)?, mode }, After::Attributes),
        Opcode::Symlink => {
            let names = TwoNames::decode(payload)?;
            let target = names.first.to_vec();
            (FsOp::Symlink { target, at: at(node, names.second)? }, After::Attributes)
        }
        _ => (FsOp::Readlink { at: at(node, payload)? }, After::Bytes { max: reply_max }),
    })
}

fn xattr_op(
    opcode: Opcode,
    node: NodeId,
    body: &[u8],
    payload: &[u8],
    reply_max: usize,
) -> Result<(FsOp, After), Problem> {
    let request = NameRequest::decode_for(opcode, body)?;
    let names = XattrNames::decode(payload)?;
    let (at, name) = (at(node, names.path)?, names.name.to_vec());
    if names.value.len() > XATTR_VALUE_SIZE_MAX {
        return Err(Status::TOO_LARGE.into());
    }
    if opcode != Opcode::XattrWrite && !names.value.is_empty() {
        return Err(WireError::TrailingBytes { what: "attribute name", extra: names.value.len() }.into());
    }
    if (opcode == Opcode::XattrList) != name.is_empty() {
        return Err(Status::INVALID.into());
    }
    Ok(match opcode {
        Opcode::XattrRead => (FsOp::XattrRead { at, name }, After::Bytes { max: reply_max }),
        Opcode::XattrList => (FsOp::XattrList { at }, After::Bytes { max: reply_max }),
        Opcode::XattrRemove => (FsOp::XattrRemove { at, name }, After::Plain),
        _ => {
            let mode = match request.mode {
                0 => XattrSetMode::Any,
                1 => XattrSetMode::Create,
                _ => XattrSetMode::Replace,
            };
            (FsOp::XattrWrite { at, name, value: names.value.to_vec(), mode }, After::Plain)
        }
    })
}

/// A path that can be one: bounded, and without zero bytes.
fn at(node: NodeId, path: &[u8]) -> Result<At, Status> {
    if path.len() > PATH_SIZE_MAX || path.split(|byte| *byte == b'/').any(|name| name.len() > NAME_SIZE_MAX) {
        return Err(Status::NAME_TOO_LONG);
    }
    if path.contains(&0) {
        return Err(Status::INVALID);
    }
    Ok(At { node, path: path.to_vec() })
}
