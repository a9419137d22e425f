//! What a request may use: what its client has named, the handle that it names, and the bytes that others have not locked.

use std::ops::Range;

use dafs_proto::extent::Extent;
use dafs_proto::wire::{Features, Opcode, Status, WireError};

use crate::shared::settings::Pipelining;
use crate::storage::{Identity, LockKey, NodeId, work};
use crate::worker::Worker;
use crate::worker::flight::Call;
use crate::worker::sessions::Session;
use crate::worker::sessions::handles::OpenHandle;

impl Worker {
    /// What a request needs beyond the base holds in its session.
    #[inline]
    pub(crate) fn check_features(&self, call: &Call) -> Result<(), Status> {
        let chains = if call.link.is_some() { Features::CHAINS } else { Features::BASE };
        self.check_feature(call, call.header.opcode.feature() | chains)
    }

    /// The same for what a request asks for beside its opcode.
    #[inline]
    pub(crate) fn check_feature(&self, call: &Call, needed: Features) -> Result<(), Status> {
        let holds = |session: &Session| session.features.contains(needed);
        match needed.is_empty() || self.sessions.find(call.session).is_some_and(holds) {
            true => Ok(()),
            false => Err(Status::NOT_SUPPORTED),
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
            if !is_about_fences || !self.shared.may_enter_to_fence(&session.client.known_as, export) {
                return Err(Status::FENCED);
            }
        }
        Ok(open)
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

    /// A mandatory lock of another session keeps a request from its data.
    #[inline]
    pub(crate) fn check_locks(
        &self,
        call: &Call,
        node: NodeId,
        range: Range<u64>,
        writes: bool,
    ) -> Result<(), Status> {
        match self.shared.locks.are_mandatory() {
            true => self.look_at_locks(call, node, [range], writes),
            false => Ok(()),
        }
    }

    /// The same for a list of extents.
    #[inline]
    pub(crate) fn check_locks_of(
        &self,
        call: &Call,
        node: NodeId,
        extents: impl Iterator<Item = Extent>,
        writes: bool,
    ) -> Result<(), Status> {
        if !self.shared.locks.are_mandatory() {
            return Ok(());
        }
        let range = |extent: Extent| extent.offset..extent.offset.saturating_add(extent.len);
        self.look_at_locks(call, node, extents.map(range), writes)
    }

    #[cold]
    fn look_at_locks(
        &self,
        call: &Call,
        node: NodeId,
        ranges: impl IntoIterator<Item = Range<u64>>,
        writes: bool,
    ) -> Result<(), Status> {
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?.id;
        let file: LockKey = self.storage.lock_key(node)?;
        // Not below the lock of the table.
        let ranges = joined(ranges);
        match self.shared.locks.with(|table| table.keeps_out(file, &ranges, session, writes)) {
            true => Err(Status::LOCKED),
            false => Ok(()),
        }
    }

    /// How a transfer of `len` bytes on this connection is cut; `None` when the connection is gone.
    pub(crate) fn pipelining(&self, call: &Call, len: u64) -> Option<Pipelining> {
        let connection = self.connections.find(call.connection)?;
        let terms = self.connections.listener_of(connection).pipelining;
        let size_max = u64::from(connection.endpoint.capabilities().rdma_size_max);
        let size_max = size_max.min(self.buffers.largest() as u64);
        Some(Pipelining { chunk_size: terms.chunk_size_of(len).min(size_max), ..terms })
    }
}

/// The request has no body.
pub(crate) fn no_body(body: &[u8]) -> Result<(), WireError> {
    match body.len() {
        0 => Ok(()),
        extra => Err(WireError::TrailingBytes { what: "request without a body", extra }),
    }
}

/// Ranges of bytes in ascending order, those that touch joined.
fn joined(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    let mut ascends = true;
    for range in work::looked(ranges).filter(|range| !range.is_empty()) {
        match joined.last_mut() {
            Some(last) if last.start <= range.start && range.start <= last.end => {
                last.end = last.end.max(range.end);
            }
            last => {
                ascends &= last.is_none_or(|last| last.end < range.start);
                joined.push(range);
            }
        }
    }
    if !ascends {
        work::add_looks(joined.len());
        joined.sort_unstable_by_key(|range| range.start);
        joined.dedup_by(|next, last| {
            let touches = next.start <= last.end;
            last.end = if touches { last.end.max(next.end) } else { last.end };
            touches
        });
    }
    joined
}
