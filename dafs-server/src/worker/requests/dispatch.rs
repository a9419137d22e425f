//! Requests: admitted by the session, begun in their turn, executed by opcode, answered.

use dafs_proto::session::{Admission, ChainStep, REPLY_CACHE_PAYLOAD_MAX, SessionFault, fair_target};
use dafs_proto::wire::{
    BatchResult, CHAIN_HANDLE, FileHandle, Flags, HEAD_SIZE_MAX, HEADER_SIZE, Header, Opcode, Status,
    WireError,
};

use crate::storage::{Identity, NodeId};
use crate::worker::Worker;
use crate::worker::flight::answer::{Answer, Keep, Payload, Problem, Served};
use crate::worker::flight::{Call, Wakeup};
use crate::worker::handshake::ACTIVE_FOR;
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::operations::WaitsFor;
use crate::worker::sessions::Session;
use crate::worker::sessions::handles::OpenHandle;

impl Worker {
    #[inline]
    pub(crate) fn on_request(
        &mut self,
        key: ConnectionKey,
        session_key: SessionKey,
        header: Header,
        body: &[u8],
    ) {
        let now = self.now;
        let Some(mut session) = self.sessions.find_mut(session_key) else { return };
        session.last_heard = now;
        session.active_until = now.after(ACTIVE_FOR);
        session.notices = 0;
        session.raised = false;
        if std::mem::take(&mut session.owes_notices) {
            self.tell_of_due_batches();
            self.tell_of_lock_turns(session_key);
            let Some(again) = self.sessions.find_mut(session_key) else { return };
            session = again;
        }
        let admission = match session.core.admit(&header) {
            Ok(admission) => admission,
            Err(fault) => return self.end_for_fault(key, fault),
        };
        if let Some(chain) = session.core.take_ended_chain() {
            self.operations.wake(Wakeup::Chain(session_key, chain));
        }
        let deadline = std::time::Duration::from_millis(u64::from(header.deadline_ms));
        let expires = (header.deadline_ms != 0).then(|| now.after(deadline));
        match admission {
            Admission::Execute(link) => {
                let call = Call {
                    session: session_key,
                    connection: key,
                    header,
                    link,
                    batch: None,
                    expires,
                    is_amended: false,
                };
                let step = link.map(|link| session.core.chain_step(link));
                self.take_turn(call, step, body);
            }
            Admission::Replay(kept) => {
                self.stats.counted.replies_replayed += 1;
                if let Some(connection) = self.connections.find_mut(key) {
                    connection.send(kept.head(), kept.payload());
                }
            }
            Admission::InProgress if self.replaces_eager_buffer_read(session_key, key, &header) => {
                self.on_request(key, session_key, header, body);
            }
            Admission::InProgress => self.operations.readdress(session_key, &header, key),
            Admission::FalseRetry => {
                if let Some(connection) = self.connections.find_mut(key) {
                    connection.send_parts(header.reply(Status::FALSE_RETRY), &[], &[]);
                }
            }
        }
    }

    fn take_turn(&mut self, call: Call, step: Option<ChainStep>, body: &[u8]) {
        match step {
            None | Some(ChainStep::Execute(_)) => self.begin(call, body, Payload::Current),
            Some(ChainStep::Abort) => self.reply_status(&call, Status::CHAIN_ABORTED),
            Some(ChainStep::Wait) => {
                let payload = self.payload(&call, Payload::Current);
                self.park(call, WaitsFor::Chain { body: body.to_vec(), payload });
            }
        }
    }

    /// Begins a request whose turn has come.
    #[inline]
    pub(crate) fn begin(&mut self, mut call: Call, body: &[u8], payload: Payload<'_>) {
        let outcome = match self.chain_handle(&mut call) {
            Ok(()) => self.execute(&call, body, payload),
            Err(status) => Err(status.into()),
        };
        if let Err(problem) = outcome {
            self.end_with(&call, problem);
        }
    }

    /// A request cannot be carried out.
    #[cold]
    pub(crate) fn end_with(&mut self, call: &Call, problem: Problem) {
        match problem {
            Problem::Status(status) => self.reply_status(call, status),
            Problem::Refused(status, why) => {
                tracing::debug!(problem = %why, opcode = call.header.opcode.name(), "request refused");
                self.reply(call, status, Answer { payload: why.as_bytes(), ..Answer::default() });
            }
            Problem::Fault(fault) => self.end_for_fault(call.connection, fault),
        }
    }

    /// Puts the chain's saved handle in place of its stand-in; a chain that failed is aborted.
    #[inline]
    fn chain_handle(&self, call: &mut Call) -> Result<(), Status> {
        let Some(link) = call.link else {
            return if call.header.handle == CHAIN_HANDLE { Err(Status::BAD_HANDLE) } else { Ok(()) };
        };
        let step = self.sessions.find(call.session).map(|session| session.core.chain_step(link));
        match step {
            Some(ChainStep::Execute(saved)) => {
                if call.header.handle == CHAIN_HANDLE {
                    call.header.handle = saved.ok_or(Status::BAD_HANDLE)?;
                }
                Ok(())
            }
            _ => Err(Status::CHAIN_ABORTED),
        }
    }

    #[inline]
    fn execute(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        match call.header.opcode {
            Opcode::Read => self.read(call, body, payload),
            Opcode::Write | Opcode::Append => self.write(call, body, payload),
            Opcode::ReadList | Opcode::WriteList => self.list(call, body, payload),
            Opcode::ReadView | Opcode::WriteView => self.move_view(call, body, payload),
            Opcode::Batch => self.batch(call, body, payload),
            Opcode::CopyRange => self.copy_range(call, body, payload),
            Opcode::Null => {
                no_body(body)?;
                self.no_payload(call, payload)?;
                self.reply(call, Status::OK, Answer::default());
                Ok(())
            }
            Opcode::Bye
            | Opcode::Limits
            | Opcode::Statistics
            | Opcode::Exports
            | Opcode::Mount
            | Opcode::Close
            | Opcode::FenceRead
            | Opcode::FenceWrite => self.execute_session(call, body, payload),
            Opcode::EagerBuffers => self.lend_eager_buffers(call, body, payload),
            Opcode::ViewSet => self.set_view(call, body, payload),
            Opcode::ViewDrop => self.drop_view(call, body, payload),
            Opcode::Share => self.share(call, body, payload),
            Opcode::OpenToken => self.open_token(call, body, payload),
            Opcode::Readdir => self.readdir(call, body, payload),
            Opcode::Commit
            | Opcode::Truncate
            | Opcode::Allocate
            | Opcode::Punch
            | Opcode::Seek
            | Opcode::Hint => self.execute_file(call, body, payload),
            Opcode::Lock | Opcode::Unlock | Opcode::LockTest => self.execute_lock(call, body, payload),
            Opcode::Lookup
            | Opcode::Open
            | Opcode::Getattr
            | Opcode::Setattr
            | Opcode::Mkdir
            | Opcode::Remove
            | Opcode::Rename
            | Opcode::Link
            | Opcode::Symlink
            | Opcode::Readlink
            | Opcode::AccessCheck
            | Opcode::Verify
            | Opcode::XattrRead
            | Opcode::XattrWrite
            | Opcode::XattrList
            | Opcode::XattrRemove
            | Opcode::Statfs => self.execute_name(call, body, payload),
            Opcode::Hello
            | Opcode::Authenticate
            | Opcode::Notice
            | Opcode::CreditTarget
            | Opcode::BatchDone
            | Opcode::LockTurn => Err(Problem::Fault(SessionFault::Misplaced {
                opcode: call.header.opcode,
                place: "in a session",
            })),
        }
    }

    /// What the request's handle names, if its opcode may be used on it now.
    #[inline]
    pub(crate) fn handle(&self, call: &Call) -> Result<&OpenHandle, Status> {
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        self.check_handle(call, session, session.handles.find(call.header.handle)?)
    }

    /// May be used by this request, whether it began before the handle was closed or not.
    fn check_handle<'a>(
        &self,
        call: &Call,
        session: &Session,
        open: &'a OpenHandle,
    ) -> Result<&'a OpenHandle, Status> {
        if call.header.opcode.modifies() && open.rights.read_only {
            return Err(Status::READ_ONLY);
        }
        let export = usize::from(open.node.export.0);
        if self.shared.fences.holds_off(export, &session.subject()) {
            let opcode = call.header.opcode;
            let is_about_fences = matches!(opcode, Opcode::FenceRead | Opcode::FenceWrite);
            if !is_about_fences || !self.may_enter_to_fence(session, export) {
                return Err(Status::FENCED);
            }
        }
        Ok(open)
    }

    /// A list that fences off all whom it does not name would lock out those who are to change it.
    #[cold]
    pub(crate) fn may_enter_to_fence(&self, session: &Session, export: usize) -> bool {
        self.shared.fences.names_the_allowed(export)
            && self.shared.rules().access.administers(&session.client)
    }

    /// The file whose data a request reads or writes, if that was asked for when it was opened.
    #[inline]
    pub(crate) fn data_node(&self, call: &Call, writes: bool) -> Result<NodeId, Status> {
        Self::node_for_data(self.handle(call)?, writes)
    }

    /// The same for an operation of a batch that was parked as number `parked`: its handle may have been closed since.
    pub(crate) fn data_node_as_of(&self, call: &Call, writes: bool, parked: u32) -> Result<NodeId, Status> {
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        let open = session.handles.find_as_of(call.header.handle, parked)?;
        Self::node_for_data(self.check_handle(call, session, open)?, writes)
    }

    #[inline]
    fn node_for_data(open: &OpenHandle, writes: bool) -> Result<NodeId, Status> {
        match if writes { open.writable } else { open.readable } {
            true => Ok(open.node),
            false => Err(Status::BAD_HANDLE),
        }
    }

    /// As whom storage works for a request.
    pub(crate) fn identity(&self, call: &Call) -> Result<Identity, Status> {
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        let open = session.handles.find_in_use(call.header.handle)?;
        self.check_handle(call, session, open).map(|open| open.rights.identity.clone())
    }

    /// A private copy of the request's payload; bounded by what the connection may receive.
    pub(crate) fn payload(&self, call: &Call, payload: Payload<'_>) -> Vec<u8> {
        self.connections.payload_of(call, payload).to_vec()
    }

    /// The request has no payload.
    pub(crate) fn no_payload(&self, call: &Call, payload: Payload<'_>) -> Result<(), WireError> {
        match self.connections.payload_of(call, payload).len() {
            0 => Ok(()),
            extra => Err(WireError::TrailingBytes { what: "request without a payload", extra }),
        }
    }

    /// Answers with a status alone.
    #[cold]
    pub(crate) fn reply_status(&mut self, call: &Call, status: Status) {
        self.reply(call, status, Answer::default());
    }

    /// Answers.
    pub(crate) fn reply(&mut self, call: &Call, status: Status, answer: Answer<'_>) {
        if let Some(place) = call.batch {
            return self.end_part(place, BatchResult::failed(status));
        }
        if call.is_amended {
            return self.amend(call, status, answer.body);
        }
        let mut head = [0; HEAD_SIZE_MAX];
        let len = self.seal(call, status, answer.handle, answer.body, answer.payload.len(), &mut head);
        // A link of a chain is not to be executed again behind those that follow it.
        if keeps(call, status, &answer)
            && let Some(session) = self.sessions.find_mut(call.session)
        {
            session.core.keep_reply(call.header.slot, &head[..len], answer.payload);
        }
        if let Some(connection) = self.connections.find_mut(call.connection) {
            connection.send(&head[..len], answer.payload);
        }
    }

    /// Ends a request in its session and writes the head of its reply; returns the head's length.
    #[inline]
    pub(crate) fn seal(
        &mut self,
        call: &Call,
        status: Status,
        handle: FileHandle,
        body: &[u8],
        payload_len: usize,
        head: &mut [u8; HEAD_SIZE_MAX],
    ) -> usize {
        self.stats.on_operation(call.header.opcode);
        let mut header = call.header.reply(status);
        let len = HEADER_SIZE + body.len();
        header.head_len = u16::try_from(len).expect("bodies are at most 72 bytes");
        header.payload_len = u32::try_from(payload_len).expect("payloads are bounded by the connection");
        header.handle = handle;
        let (operations_max, active) = (self.shared.settings.operations_max, self.sessions.active());
        if let Some(session) = self.sessions.find_mut(call.session) {
            session.ledger.requests += 1;
            let saves = call.header.flags.contains(Flags::SAVE_HANDLE) && status == Status::OK;
            let saved = saves.then_some(if handle.0 == 0 { call.header.handle } else { handle });
            let mut target =
                fair_target(call.header.credits, session.core.slots_max(), operations_max, active);
            if target > session.core.credits().limit() {
                let connection = session.connection.and_then(|key| self.connections.find_mut(key));
                let ready = connection.map_or(1, |connection| connection.endpoint.expect_messages(target));
                target = target.min(ready);
            }
            header.credits = session.core.on_reply(&call.header, status, saved, target);
        }
        // The next link may wait for this one.
        if let Some(link) = call.link.filter(|_| !self.operations.is_empty()) {
            self.operations.wake(Wakeup::Chain(call.session, link.chain));
        }
        header.encode(head);
        head[HEADER_SIZE..len].copy_from_slice(body);
        len
    }
}

/// The reply is kept for the case that it is asked for again.
#[inline]
fn keeps(call: &Call, status: Status, answer: &Answer<'_>) -> bool {
    let opcode = call.header.opcode;
    if (call.link.is_some() && answer.keep != Keep::Never) || answer.keep == Keep::Yes {
        return answer.payload.len() <= REPLY_CACHE_PAYLOAD_MAX;
    }
    // What failed changed nothing. That memory of a client is out of reach may be the doing of its connection, which is over.
    let failed = status != Status::OK && (opcode.is_idempotent() || status == Status::REMOTE_ACCESS);
    opcode.keeps_reply() && answer.keep == Keep::AsAny && !failed
}

/// The request has no body.
pub(crate) fn no_body(body: &[u8]) -> Result<(), WireError> {
    match body.len() {
        0 => Ok(()),
        extra => Err(WireError::TrailingBytes { what: "request without a body", extra }),
    }
}
