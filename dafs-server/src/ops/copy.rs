//! Copies from one file to another, within the server.

use dafs_proto::wire::{CopyReply, CopyRequest, Opcode};

use super::Worker;
use crate::storage::{CopySource, FsOp};
use crate::worker::flight::Call;
use crate::worker::flight::after::{After, Target};
use crate::worker::flight::answer::{Payload, Served};

impl Worker {
    /// Begins a copy. Its source is looked at as that of a read.
    pub(crate) fn copy_range(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let request = CopyRequest::decode(body)?;
        self.connections.no_payload(call, payload)?;
        let node = self.data_node(call, true)?;
        let mut reading = *call;
        reading.header.opcode = Opcode::Read;
        reading.header.handle = request.source();
        let CopyRequest { source_offset, offset, len, .. } = request;
        let read = self.data_node(&reading, false)?;
        // A length of 0 is all that follows.
        let range = |from: u64| from..if len == 0 { u64::MAX } else { from.saturating_add(len) };
        self.check_locks(&reading, read, range(source_offset), false)?;
        self.check_locks(call, node, range(offset), true)?;
        let source = CopySource(self.storage.share(read)?);
        let op = FsOp::CopyRange { node, offset, source, source_offset, len };
        self.start(call, op, After::Copied(self.target(node)))
    }

    /// Answers a copy.
    pub(crate) fn reply_copied(&mut self, call: &Call, target: Target, count: u64, end: bool) {
        self.reply_body(call, &CopyReply { count, verifier: target.verifier, end }.bytes());
    }
}
