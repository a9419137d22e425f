//! Readdir, inline and direct.

use dafs_proto::transport::{Access, LocalSegments, PostError, Posted, RemoteRange};
use dafs_proto::wire::{ReaddirReply, ReaddirRequest, Status};

use super::Worker;
use crate::storage::{Entries, FsOp, work};
use crate::worker::flight::after::{After, Wanted};
use crate::worker::flight::answer::{Answer, Keep, Payload, Served};
use crate::worker::flight::transfer::range;
use crate::worker::flight::{Call, own_memory};
use crate::worker::operations::WaitsFor;

/// Encoded entries of one request at most, bytes.
const ENTRIES_SIZE_MAX: usize = 1 << 20;

/// Bytes that are copied while a step of another kind is done.
const COPIED_IN_A_STEP: usize = 256;

impl Worker {
    pub(crate) fn readdir(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let request = ReaddirRequest::decode(body)?;
        self.connections.no_payload(call, payload)?;
        let node = self.handle(call)?.node;
        let remote = (request.segment[2] != 0).then(|| range(request.segment));
        let room = match remote {
            Some(remote) => usize::try_from(remote.len).unwrap_or(usize::MAX).min(ENTRIES_SIZE_MAX),
            None => self.connections.send_payload_max(call.connection),
        };
        let size_max = (request.len as usize).min(room);
        let op = FsOp::Readdir { node, cookie: request.cookie, size_max, attributes: request.attributes };
        let wanted = Wanted { cookie: request.cookie, remote };
        self.start(call, op, After::Entries(wanted))
    }

    pub(crate) fn finish_readdir(&mut self, call: &Call, wanted: Wanted, entries: &Entries) {
        let &Entries { bytes: ref encoded, cookie, end } = entries;
        let cookie = cookie.unwrap_or(wanted.cookie);
        work::add(encoded.len() / COPIED_IN_A_STEP);
        let count = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
        let body = ReaddirReply { count, end, cookie }.bytes();
        let payload = match wanted.remote {
            None => &encoded[..],
            Some(remote) => match self.place(call, remote, encoded) {
                Ok(()) => &[],
                Err(status) => return self.reply_status(call, status),
            },
        };
        let keep = if wanted.remote.is_some() { Keep::Never } else { Keep::AsAny };
        self.reply(call, Status::OK, Answer { body: &body, payload, keep, ..Answer::default() });
    }

    /// Puts bytes into the client's memory; the reply that follows is ordered behind them.
    fn place(&mut self, call: &Call, remote: RemoteRange, bytes: &[u8]) -> Result<(), Status> {
        let Some(remote) = remote.slice(0, bytes.len() as u64).filter(|_| !bytes.is_empty()) else {
            return if bytes.is_empty() { Ok(()) } else { Err(Status::RANGE) };
        };
        let memory = own_memory(bytes.len())?;
        memory.span().write_from(0, bytes);
        match self.connections.remote_memory(call, &remote, Access::REMOTE_WRITE) {
            Ok(Some(target)) => {
                target.span().copy_from(memory.span());
                return Ok(());
            }
            Ok(None) => {}
            Err(_) => return Err(Status::REMOTE_ACCESS),
        }
        let token = self.park(*call, WaitsFor::Draining(Vec::new()));
        let Some(index) = self.operations.index_of(token) else { return Err(Status::IO) };
        let posted = match self.connections.find_mut(call.connection) {
            Some(connection) => {
                let posted =
                    connection.endpoint.rdma_write(token, LocalSegments::from_iter([memory]), remote, None);
                connection.rdma.on_posted_apart(u32::from(matches!(posted, Ok(Posted::Pending))));
                posted
            }
            None => Err(PostError::Closed),
        };
        match posted {
            Ok(Posted::Pending) => {
                self.operations[index].rdma_pending = 1;
                Ok(())
            }
            Ok(Posted::Done) => {
                self.unpark(index);
                Ok(())
            }
            Err(error) => {
                self.unpark(index);
                // Readdir is idempotent: the client can ask again when there is room.
                Err(if matches!(error, PostError::Full) { Status::AGAIN } else { Status::REMOTE_ACCESS })
            }
        }
    }
}
