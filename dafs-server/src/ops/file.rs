//! Operations on an open file beside reading and writing.

use dafs_proto::wire::{AllocateRequest, CommitRequest, HintRequest, Opcode, SeekRequest, Status};

use super::Worker;
use crate::storage::FsOp;
use crate::worker::flight::Call;
use crate::worker::flight::after::After;
use crate::worker::flight::answer::{Payload, Served};

impl Worker {
    pub(crate) fn execute_file(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let open = self.handle(call)?;
        let (node, readable, writable) = (open.node, open.readable, open.writable);
        let needs = |right: bool| if right { Ok(()) } else { Err(Status::BAD_HANDLE) };
        let (op, after) = match call.header.opcode {
            Opcode::Commit => {
                let CommitRequest { offset, len, stability } = CommitRequest::decode(body)?;
                needs(readable || writable)?;
                (FsOp::Commit { node, offset, len, stability }, After::Commit { export: node.export })
            }
            opcode @ (Opcode::Truncate | Opcode::Allocate | Opcode::Punch) => {
                let AllocateRequest { offset, len } = AllocateRequest::decode_for(opcode, body)?;
                needs(writable)?;
                let (op, end) = match opcode {
                    Opcode::Truncate => (FsOp::Truncate { node, size: offset }, u64::MAX),
                    Opcode::Allocate => (FsOp::Allocate { node, offset, len }, offset.saturating_add(len)),
                    _ => (FsOp::Punch { node, offset, len }, offset.saturating_add(len)),
                };
                self.check_locks(call, node, offset..end, true)?;
                (op, After::Plain)
            }
            Opcode::Seek => {
                let SeekRequest { offset, what } = SeekRequest::decode(body)?;
                needs(readable || writable)?;
                (FsOp::Seek { node, offset, what }, After::Seek)
            }
            _ => {
                let request = HintRequest::decode(body)?;
                let HintRequest { offset, len, .. } = request;
                (FsOp::Hint { node, offset, len, pattern: request.likely_pattern() }, After::Plain)
            }
        };
        self.connections.no_payload(call, payload)?;
        self.start(call, op, after)
    }
}
