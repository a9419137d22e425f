//! Operations on the session and the server: mount, close, limits, statistics, fences and tokens; and how sessions and connections end.

pub(crate) mod ending;
mod fence;
mod publish;
mod token;

use std::sync::Arc;

use dafs_proto::wire::{
    ClientStatistics, FenceChange, FenceList, FileHandle, LimitsReply, Opcode, OpenFlags, Statistics, Status,
    decode_message_pack, encode_message_pack,
};

use self::ending::End;
use super::Worker;
use crate::ops::local::Recalled;
use crate::shared::Checked;
use crate::shared::handed::Scope;
use crate::storage::{At, FsOp};
use crate::worker::flight::Call;
use crate::worker::flight::after::After;
use crate::worker::flight::answer::{Payload, Served};
use crate::worker::ids::SessionKey;
use crate::worker::requests::check::no_body;
use crate::worker::sessions::handles::OpenHandle;

impl Worker {
    pub(crate) fn execute_session(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        no_body(body)?;
        if !matches!(call.header.opcode, Opcode::Publish | Opcode::Mount | Opcode::FenceWrite) {
            self.connections.no_payload(call, payload)?;
        }
        let payload = self.connections.copied_payload(call, payload);
        match call.header.opcode {
            Opcode::Bye => {
                self.reply_status(call, Status::OK);
                if let Some(connection) = self.connections.find_mut(call.connection) {
                    // The client may be gone already; the session ends either way.
                    let _ = connection.flush();
                }
                self.end_session(call.session, End::Bye);
            }
            Opcode::Limits => {
                let limits = self.limits(call).ok_or(Status::NO_SESSION)?;
                self.reply_payload(call, &encode_message_pack(&limits));
            }
            Opcode::Statistics => {
                let mut statistics = self.statistics();
                let names = self.mountable(call);
                statistics.exports.retain(|export| names.contains(&export.name));
                statistics.clients = self.shown_clients(call, &statistics);
                self.reply_whole(call, &encode_message_pack(&statistics));
            }
            Opcode::Exports => {
                let names = self.mountable(call);
                self.reply_whole(call, &encode_message_pack(&names));
            }
            Opcode::Publish => self.publish_crossovers(call, &payload)?,
            Opcode::Mount => self.mount(call, &payload)?,
            Opcode::Close => self.close_handle(call)?,
            _ => self.fence(call, &payload)?,
        }
        Ok(())
    }

    /// All clients, for whoever may fence them off: as many as the reply has room for beside the rest.
    fn shown_clients(&self, call: &Call, beside: &Statistics) -> Vec<ClientStatistics> {
        let session = self.sessions.find(call.session);
        if !session.is_some_and(|session| self.shared.rules().access.administers(&session.client.known_as)) {
            return Vec::new();
        }
        // The head of a long array.
        let rest = encode_message_pack(beside).len() + 5;
        let mut room = self.connections.send_payload_max(call.connection).saturating_sub(rest);
        let fits = |client: &ClientStatistics| {
            let size = encode_message_pack(client).len();
            room = room.saturating_sub(size);
            room > 0
        };
        self.shared.directory.clients().into_iter().take_while(fits).collect()
    }

    fn limits(&self, call: &Call) -> Option<LimitsReply> {
        let session = self.sessions.find(call.session)?;
        Some(LimitsReply {
            thresholds: self.thresholds_of(call.connection, &session.client.known_as),
            transfer_size_max: self.shared.settings.transfer_size_max,
            handles_max: self.shared.settings.handles_max,
            slots: session.core.slots_max(),
            credits: session.core.credits().limit(),
            uid: session.client.known_as.identity.uid,
            gid: session.client.known_as.identity.gid,
        })
    }

    fn mountable(&self, call: &Call) -> Vec<String> {
        let Some(session) = self.sessions.find(call.session) else { return Vec::new() };
        let Some(connection) = self.connections.find(call.connection) else { return Vec::new() };
        let peer = &connection.endpoint.capabilities().peer;
        let rules = self.shared.rules();
        let may =
            rules.exports().filter(|export| rules.access.may_mount(export, &session.client.known_as, peer));
        may.map(|export| export.name.clone()).collect()
    }

    fn mount(&mut self, call: &Call, name: &[u8]) -> Served {
        let name = std::str::from_utf8(name).map_err(|_| Status::NO_EXPORT)?;
        let id = self.storage.export(name).ok_or(Status::NO_EXPORT)?;
        let rules = self.shared.rules();
        let export = rules.export(id.0.into()).ok_or(Status::NO_EXPORT)?;
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        let connection = self.connections.find(call.connection).ok_or(Status::NO_SESSION)?;
        let peer = &connection.endpoint.capabilities().peer;
        let rights = Arc::new(rules.access.mount(export, &session.client.known_as, peer)?);
        let index = usize::from(id.0);
        let is_fenced = self.shared.fences.holds_off(index, &session.subject());
        if is_fenced && !self.shared.may_enter_to_fence(&session.client.known_as, index) {
            return Err(Status::FENCED.into());
        }
        let node = self.storage.root(id);
        let identity = rights.identity.clone();
        let root = OpenHandle {
            node,
            rights,
            readable: true,
            writable: false,
            opened: OpenFlags::empty(),
            is_root: true,
            share: None,
        };
        let at = At { node, path: Vec::new() };
        self.start_as(&identity, call, FsOp::Getattr { at, follow: true }, After::Mount { root });
        Ok(())
    }

    fn close_handle(&mut self, call: &Call) -> Served {
        let handle = call.header.handle;
        let session = self.sessions.find_mut(call.session).ok_or(Status::NO_SESSION)?;
        let open = session.handles.remove(handle)?;
        self.free_locks_of_handle(call, open.node);
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        if session.load.waiting > 0 && self.operations.use_handle(call.session, handle) {
            let last = self.operations.last_number();
            if let Some(session) = self.sessions.find_mut(call.session) {
                session.handles.leave(handle, open, last);
            }
        } else {
            self.let_go_of_handle(call.session, &open);
        }
        self.reply_status(call, Status::OK);
        self.look_after_recalls();
        Ok(())
    }

    /// Lets go of a handle that was closed while operations used it, unless another still does. Without one, of all such handles: a
    /// batch has ended, which may have used many. One pass over the operations either way.
    pub(crate) fn close_left(&mut self, key: SessionKey, handle: Option<FileHandle>) {
        let left = match handle {
            Some(handle) if self.operations.use_handle(key, handle) => return,
            Some(handle) => self.sessions.find_mut(key).map(|own| own.handles.take_left(|it| it != handle)),
            None => {
                let used = self.operations.handles_in_use(key);
                self.sessions.find_mut(key).map(|own| own.handles.take_left(|it| used.contains(&it)))
            }
        };
        left.unwrap_or_default().iter().for_each(|open| self.let_go_of_handle(key, open));
    }

    fn let_go_of_handle(&mut self, key: SessionKey, open: &OpenHandle) {
        let descriptors = open.descriptors(&self.shared.settings);
        if let Some(session) = self.sessions.find_mut(key) {
            session.descriptors.shrink(descriptors);
        }
        if !open.is_root {
            self.storage.close(open.node);
        }
    }

    /// Fences belong to whoever owns the export: the superuser, with the right to write.
    fn fence(&mut self, call: &Call, payload: &[u8]) -> Served {
        // What is malformed is refused, whoever sends it.
        let change = match call.header.opcode {
            Opcode::FenceRead => FenceChange::new(FenceList::default(), None),
            _ => decode_message_pack("fence list", payload)?,
        };
        let open = self.handle(call)?;
        let export = usize::from(open.node.export.0);
        if call.header.opcode == Opcode::FenceRead {
            self.reply_whole(call, &encode_message_pack(&self.shared.fences.of(export)));
            return Ok(());
        }
        if open.rights.read_only {
            return Err(Status::READ_ONLY.into());
        }
        let client = self.sessions.find(call.session).map(|session| &session.client.known_as);
        if !client.is_some_and(|client| self.shared.rules().access.administers(client)) {
            return Err(Status::PERMISSION.into());
        }
        let (before, list) = (change.before, change.into_list());
        let (mode, entries) = (list.mode, list.len());
        if let Some(cluster) = self.shared.cluster.clone() {
            Checked::new(list.clone())?;
            let name = self.shared.settings.exports[export].name.clone();
            tracing::info!(export = %name, ?mode, entries, "replacing the fence list of all servers");
            let tell = self.teller_of_cluster(call);
            cluster.set_fence(name, list, before, tell);
            return Ok(());
        }
        let list = Checked::new(list)?;
        // Whoever is fenced off would go on past the server.
        let scope = Scope::Fence { export, list: Box::new(list.clone()) };
        let recalled = Recalled { body: &[], payload, refused: Status::BUSY };
        let Some(_recalling) = self.call_back(call, scope, &recalled) else { return Ok(()) };
        self.shared.fences.set(export, list, before)?;
        let name = &self.shared.settings.exports[export].name;
        tracing::info!(export = %name, ?mode, entries, "fence list replaced");
        self.wait_for_drain(call, export);
        Ok(())
    }
}
