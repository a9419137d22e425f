//! Files that are handed over to clients on this host, and called back before something that they would be past.

use std::os::fd::AsFd;

use dafs_proto::transport::PostError;
use dafs_proto::wire::{Header, Opcode, OpenFlags, Recall, Status};

use super::Worker;
use super::lock::CALLBACKS_MAX;
use crate::config::millis;
use crate::shared::handed::{HandedOver, Holder, Recalling, Scope};
use crate::storage::HandedFile;
use crate::worker::flight::Call;
use crate::worker::flight::answer::{Answer, Payload, Problem, Served};
use crate::worker::ids::SessionKey;
use crate::worker::operations::WaitsFor;
use crate::worker::requests::check::no_body;

/// A request that files are called back for.
pub(crate) struct Recalled<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) payload: &'a [u8],
    /// What it is refused with where they do not come back.
    pub(crate) refused: Status,
}

impl Worker {
    pub(crate) fn hand_over(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        no_body(body)?;
        self.connections.no_payload(call, payload)?;
        let (file, handed) = self.handed_over(call)?;
        let connection = self.connections.find_mut(call.connection).ok_or(Status::NO_SESSION)?;
        let passed = match connection.endpoint.descriptors() {
            Some(way) => way.pass(call.header.handle.0, file.as_fd()),
            None => return Err(Status::NOT_SUPPORTED.into()),
        };
        match passed {
            Ok(()) => {}
            Err(PostError::Full) => return Err(Status::BUSY.into()),
            // Nobody hears of it; it is asked for again.
            Err(_) => return Err(Status::IO.into()),
        }
        let session = self.sessions.find_mut(call.session).ok_or(Status::NO_SESSION)?;
        session.handles.hand(call.header.handle, handed);
        self.reply(call, Status::OK, Answer::default());
        Ok(())
    }

    /// The descriptor that a request asks for. From now on its file counts as handed over.
    fn handed_over(&mut self, call: &Call) -> Result<(std::os::fd::OwnedFd, HandedOver), Status> {
        let open = self.handle(call)?;
        let (node, readable, writable) = (open.node, open.readable, open.writable);
        let (read_only, uid) = (open.rights.read_only, open.rights.identity.uid);
        let export = usize::from(node.export.0);
        let connection = self.connections.find_mut(call.connection).ok_or(Status::NO_SESSION)?;
        if !self.shared.settings.exports[export].local_open || connection.endpoint.descriptors().is_none() {
            return Err(Status::NOT_SUPPORTED);
        }
        // Whoever has a descriptor can open it anew with more rights.
        let credentials = connection.endpoint.capabilities().peer.credentials.as_ref();
        if uid != 0 || credentials.is_none_or(|peer| peer.uid != 0) {
            return Err(Status::PERMISSION);
        }
        let HandedFile { file, writes } = self.storage.hand_over(node)?;
        match (read_only, writes) {
            (true, true) => return Err(Status::READ_ONLY),
            (false, true) if !writable => return Err(Status::BAD_HANDLE),
            _ if !readable => return Err(Status::BAD_HANDLE),
            _ => {}
        }
        let key = self.storage.lock_key(node)?;
        let session = self.sessions.find_mut(call.session).ok_or(Status::NO_SESSION)?;
        // One that is asked for again is not in its own way.
        drop(session.handles.take_back(call.header.handle));
        let holder = Holder {
            file: key,
            export,
            worker: self.id.0,
            session: session.id,
            handle: call.header.handle,
            client_id: session.client.id,
            key_name: session.client.known_as.key_name.clone(),
        };
        let opens = if writes { OpenFlags::READ | OpenFlags::WRITE } else { OpenFlags::READ };
        let handed = self.shared.handed.hand(holder, &self.shared.shares, opens)?;
        // Looked at after it counts: whoever locks or fences looks at what counts after he has said so.
        self.check_locks(call, node, 0..u64::MAX, true)?;
        self.handle(call)?;
        Ok((file, handed))
    }

    /// Calls back what a request would be past. `None`: it waits, and begins again when all of that is back. Else nothing is handed over
    /// until what is returned is dropped.
    pub(crate) fn call_back(&mut self, call: &Call, scope: Scope, of: &Recalled<'_>) -> Option<Recalling> {
        let recalling = self.shared.handed.recall(scope);
        if recalling.is_done() {
            return Some(recalling);
        }
        let until = self.now.after(millis(self.shared.settings.lease_ms));
        let (body, payload) = (of.body.to_vec(), of.payload.to_vec());
        self.park(*call, WaitsFor::Recall { recalling, body, payload, until, refused: of.refused });
        self.tell_of_recalls();
        None
    }

    /// Tells those clients of this worker who have what is wanted back.
    fn tell_of_recalls(&mut self) {
        for (id, handle) in self.shared.handed.wanted(self.id.0) {
            if let Some(key) = self.sessions.key_of(id) {
                self.tell_of_recall(key, handle.0);
            }
        }
    }

    fn tell_of_recall(&mut self, key: SessionKey, handle: u64) {
        let Some(connection) = self.sessions.find(key).and_then(|session| session.presence.connection) else {
            return;
        };
        let listens = self.connections.find_mut(connection).is_some_and(|c| c.sends_at_once());
        let Some(session) = self.sessions.find_mut(key) else { return };
        // Whoever does not listen is told at another tick.
        if !listens
            || session.presence.notices >= CALLBACKS_MAX
            || !self.shared.handed.tell(session.id, dafs_proto::wire::FileHandle(handle), connection)
        {
            return;
        }
        session.presence.notices += 1;
        let header = Header::callback(Opcode::Recall, session.core.next_callback());
        self.connections.send_callback(connection, header, &Recall { handle }.bytes(), &[]);
    }

    /// Lets those go on who have waited for files to come back, and refuses those who have waited for too long.
    pub(crate) fn look_after_recalls(&mut self) {
        if !self.shared.handed.is_recalled() {
            return;
        }
        self.tell_of_recalls();
        let now = self.now;
        let is_over = |call: &Call, until| now >= until || call.has_expired(now);
        let ready = self.operations.places_of(|operation| match &operation.state {
            WaitsFor::Recall { recalling, until, .. } => {
                recalling.is_done() || is_over(&operation.call, *until)
            }
            _ => false,
        });
        for index in ready {
            let operation = self.unpark(index);
            let call = operation.call;
            let WaitsFor::Recall { recalling, body, mut payload, refused, .. } = operation.state else {
                continue;
            };
            self.connections.mark_dirty(call.connection);
            if recalling.is_done() {
                drop(recalling);
                let payload = dafs_proto::transport::Span::from_mut(&mut payload);
                self.begin(call, &body, Payload::Kept(payload));
            } else if call.has_expired(now) {
                self.reply_status(&call, Status::TIMED_OUT);
            } else {
                let why = "a client on the server's host has the file open past the server, and does not give it back";
                self.end_with(&call, Problem::Refused(refused, why.into()));
            }
        }
    }
}
