//! What requests mean: semantics only. Encoding is `wire`'s, files are `storage`'s.

mod batch;
mod copy;
mod eager;
mod file;
mod list;
pub(crate) mod local;
mod lock;
mod name;
mod read;
mod readdir;
pub(crate) mod session;
mod transfer;
mod view;
mod write;

use dafs_proto::session::Effect;
use dafs_proto::wire::{CommitReply, MountReply, SeekReply, Status, Verifier, encode_message_pack};

use crate::storage::{FsOp, FsReply, FsResult, Identity, NodeId, Submitted};
use crate::worker::Worker;
use crate::worker::flight::Call;
use crate::worker::flight::after::{After, Target, Writing};
use crate::worker::flight::answer::{Answer, Problem, Served};
use crate::worker::operations::WaitsFor;
use crate::worker::sessions::handles::{OpenHandle, Reserved};

impl Worker {
    /// Hands an operation to storage; answers at once if it is done at once.
    pub(crate) fn start(&mut self, call: &Call, op: FsOp, after: After) -> Served {
        let identity = self.identity(call)?;
        self.start_as(&identity, call, op, after);
        Ok(())
    }

    fn start_as(&mut self, identity: &Identity, call: &Call, op: FsOp, after: After) {
        let token = self.park(*call, WaitsFor::Storage(after));
        self.storage_works_for_call(call);
        if let Submitted::Done(result) = self.storage.submit(token, identity, op)
            && let Some(index) = self.operations.index_of(token)
            && let WaitsFor::Storage(after) = self.unpark(index).state
        {
            self.connections.mark_dirty(call.connection);
            self.finish(call, after, result);
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

    /// Storage has answered: so does the server.
    pub(crate) fn finish(&mut self, call: &Call, after: After, result: FsResult) {
        let reply = match result {
            Ok(reply) => reply,
            Err(Status::SHARE_DENIED) if self.recalls_for_open(call, &after) => return,
            Err(status) => {
                self.release_held(&after);
                return self.reply_status(call, status);
            }
        };
        match (after, reply) {
            (After::Plain, _) => self.reply(call, Status::OK, Answer::default()),
            (After::Attributes, FsReply::Attributes(attributes)) => {
                self.reply_payload(call, &encode_message_pack(&attributes));
            }
            (After::Verify(request), FsReply::Attributes(attributes)) => {
                self.reply_status(call, request.outcome(&attributes));
            }
            (After::Node { like, reserved, .. }, FsReply::Node(node, attributes)) => {
                let open = OpenHandle { node, ..like };
                self.reply_handle(call, open, reserved, &encode_message_pack(&attributes));
            }
            (After::Held { open }, FsReply::Attributes(attributes)) => {
                self.reply_handle(call, open, None, &encode_message_pack(&attributes));
            }
            (After::Mount { root }, FsReply::Attributes(attributes)) => {
                let reply = MountReply { read_only: root.rights.read_only, attributes };
                self.reply_handle(call, root, None, &encode_message_pack(&reply));
            }
            (After::Bytes { max }, FsReply::Bytes(bytes)) if bytes.len() <= max => {
                self.reply_payload(call, &bytes)
            }
            (After::Bytes { .. }, FsReply::Bytes(_)) => self.reply_status(call, Status::RANGE),
            (After::Seek, FsReply::Offset(offset)) => {
                self.reply_body(call, &SeekReply { offset }.bytes());
            }
            (After::Statfs, FsReply::Statistics(statistics)) => {
                self.reply_payload(call, &encode_message_pack(&statistics));
            }
            (After::Entries(wanted), FsReply::Entries(entries)) => {
                self.finish_readdir(call, wanted, &entries);
            }
            (After::Commit { export }, _) => {
                let verifier = Verifier(self.storage.verifier(export));
                self.reply_body(call, &CommitReply { verifier }.bytes());
            }
            (After::Copied(target), FsReply::Copied(count, end)) => {
                self.reply_copied(call, target, count, end)
            }
            (After::Read(read), FsReply::Count(count)) if count <= read.memory.len() => {
                self.answer_read(call, &read, count);
            }
            (After::Written(write, count), _) => self.reply_written(call, &write, count, &[]),
            (After::Write(write), FsReply::Count(count)) => self.finish_write(call, write, count),
            (After::Write(write), FsReply::Appended(offset, count)) => {
                self.finish_write(call, Writing { offset, ..write }, count);
            }
            (after, other) => {
                self.release_held(&after);
                self.mismatch(call, &other);
            }
        }
    }

    /// Lets go of the node that is held for a reply which is not going to name it.
    pub(crate) fn release_held(&mut self, after: &After) {
        if let After::Held { open } = after {
            self.storage.close(open.node);
        }
    }

    /// To be taken before anything is written.
    #[inline]
    pub(crate) fn target(&self, node: NodeId) -> Target {
        Target { node, verifier: Verifier(self.storage.verifier(node.export)) }
    }

    /// Bytes from the beginning of a request's data that are in the file, because it was executed before and its connection broke. What
    /// was written under another verifier may be lost.
    pub(crate) fn written_before(&mut self, call: &Call, verifier: Verifier) -> u64 {
        if let Some(place) = call.batch {
            return self.operations.part_written_before(place, verifier);
        }
        let session = self.sessions.find_mut(call.session);
        match session.and_then(|session| session.core.take_effect(call.header.slot)) {
            Some(Effect::Bytes(count, before)) if before == verifier => count,
            _ => 0,
        }
    }

    /// Answers with a new handle, or, when the session or its client has too many, closes the node again.
    fn reply_handle(&mut self, call: &Call, open: OpenHandle, reserved: Option<Reserved>, payload: &[u8]) {
        let handles = &self.shared.budgets.of_session.handles;
        let (node, is_root) = (open.node, open.is_root);
        let descriptors = open.descriptors(&self.shared.settings);
        let handle = self.sessions.find_mut(call.session).and_then(|session| {
            match reserved {
                Some(Reserved { place, descriptors }) => {
                    drop(place);
                    session.descriptors.join(descriptors);
                }
                None if !session.descriptors.grow(descriptors) => return None,
                None => {}
            }
            let handle = session.handles.insert(open, handles.max());
            if handle.is_none() {
                handles.count_refused();
                session.descriptors.shrink(descriptors);
            } else if is_root && !session.mounts.contains(&node.export) {
                session.mounts.push(node.export);
            }
            handle
        });
        match handle {
            Some(handle) => self.reply(call, Status::OK, Answer { handle, payload, ..Answer::default() }),
            None => {
                if !is_root {
                    self.storage.close(node);
                }
                self.reply_status(call, Status::TOO_MANY_OPEN);
            }
        }
    }

    #[cold]
    fn mismatch(&mut self, call: &Call, reply: &FsReply) {
        tracing::error!(opcode = ?call.header.opcode, ?reply, "cannot reply: storage returned a result of another kind");
        self.reply_status(call, Status::IO);
    }
}
