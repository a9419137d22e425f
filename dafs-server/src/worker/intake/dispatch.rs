//! Requests: admitted by the session, begun in their turn, executed by opcode.

use dafs_proto::session::{Admission, ChainStep, SessionFault};
use dafs_proto::wire::{Header, LockFlags, LockRequest, Opcode, Status};

use crate::worker::Worker;
use crate::worker::flight::answer::{Answer, Payload, Problem, Served};
use crate::worker::flight::{Call, Wakeup};
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::operations::WaitsFor;
use crate::worker::requests::check::no_body;

/// By such requests a client opens what it had open in a session that is gone, and takes its locks again.
fn is_of_rebuilding(header: &Header, body: &[u8]) -> bool {
    match header.opcode {
        Opcode::Lock => LockRequest::decode(body).is_ok_and(|lock| lock.flags.contains(LockFlags::RECLAIM)),
        opcode => matches!(
            opcode,
            Opcode::Null
                | Opcode::Mount
                | Opcode::Lookup
                | Opcode::Open
                | Opcode::Close
                | Opcode::ViewSet
                | Opcode::EagerBuffers
                | Opcode::HandOver
        ),
    }
}

impl Worker {
    #[inline]
    pub(crate) fn on_request(
        &mut self,
        key: ConnectionKey,
        session_key: SessionKey,
        header: Header,
        body: &[u8],
    ) {
        // Its client goes on at another server, which answers it.
        if self.hands_over() {
            return;
        }
        let now = self.now;
        let Some(mut session) = self.sessions.find_mut(session_key) else { return };
        if session.presence.on_request(now) {
            self.tell_of_due_batches();
            self.tell_of_lock_turns(session_key);
            let Some(again) = self.sessions.find_mut(session_key) else { return };
            session = again;
        }
        if session.locks.takes_again && !is_of_rebuilding(&header, body) {
            self.end_locks_before(session_key);
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

    /// A read into an eager buffer of a connection that is gone was asked for again, on another connection, where it goes another way: the
    /// one under way is nobody's. `false` when it is another kind of operation, or on this connection.
    fn replaces_eager_buffer_read(
        &mut self,
        call_session: SessionKey,
        connection: ConnectionKey,
        header: &Header,
    ) -> bool {
        if !self.operations.forget_eager_read(call_session, connection, header) {
            return false;
        }
        if let Some(session) = self.sessions.find_mut(call_session) {
            session.core.on_abandoned(header.slot, None);
        }
        true
    }

    fn take_turn(&mut self, call: Call, step: Option<ChainStep>, body: &[u8]) {
        match step {
            None | Some(ChainStep::Execute(_)) => self.begin(call, body, Payload::Current),
            Some(ChainStep::Abort) => self.reply_status(&call, Status::CHAIN_ABORTED),
            Some(ChainStep::Wait) => {
                let payload = self.connections.copied_payload(&call, Payload::Current);
                self.park(call, WaitsFor::Chain { body: body.to_vec(), payload });
            }
        }
    }

    /// Begins a request whose turn has come.
    #[inline]
    pub(crate) fn begin(&mut self, mut call: Call, body: &[u8], payload: Payload<'_>) {
        let outcome = match self.sessions.chain_handle(&mut call).and_then(|()| self.check_features(&call)) {
            Ok(()) => self.execute(&call, body, payload),
            Err(status) => Err(status.into()),
        };
        if let Err(problem) = outcome {
            self.end_with(&call, problem);
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
                self.connections.no_payload(call, payload)?;
                self.reply(call, Status::OK, Answer::default());
                Ok(())
            }
            Opcode::Bye
            | Opcode::Limits
            | Opcode::Statistics
            | Opcode::Exports
            | Opcode::Publish
            | Opcode::Mount
            | Opcode::Close
            | Opcode::FenceRead
            | Opcode::FenceWrite => self.execute_session(call, body, payload),
            Opcode::EagerBuffers => self.lend_eager_buffers(call, body, payload),
            Opcode::ViewSet => self.set_view(call, body, payload),
            Opcode::ViewDrop => self.drop_view(call, body, payload),
            Opcode::HandOver => self.hand_over(call, body, payload),
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
            | Opcode::Mknod
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
            | Opcode::LockTurn
            | Opcode::Recall => Err(Problem::Fault(SessionFault::Misplaced {
                opcode: call.header.opcode,
                place: "in a session",
            })),
        }
    }
}
