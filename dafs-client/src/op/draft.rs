//! A request that is ready to be sent, and its destination.

use dafs_proto::transport::{
    HEAD_SIZE_MAX, LocalSegments, OpToken, PostError, Posted, RemoteRange, Span, TransportError,
};
use dafs_proto::wire::{HEADER_SIZE, Header, Opcode};

/// Room for a request's head, which is too large to be moved about.
pub(crate) type HeadRoom = [u8; HEAD_SIZE_MAX];
pub(crate) const HEAD_ROOM: HeadRoom = [0; HEAD_SIZE_MAX];

/// A request's head, and its length.
pub(crate) struct Draft<'a> {
    header: Header,
    head: &'a mut HeadRoom,
    head_len: usize,
}

/// Room for requests, which the driver hands to the engine: they are written where they leave from. What is sent on a closed connection
/// counts as sent: it is sent again on the next.
pub(crate) trait Outlet {
    /// Segments of memory that one RDMA takes.
    fn segments_max(&self) -> usize;

    /// Whether a payload of this length is better sent from where it is.
    fn prefers_gathered(&mut self, payload_len: usize) -> Result<bool, PostError>;

    /// Sends it with a payload that `fill` writes, once there is room.
    fn send(
        &mut self,
        draft: Draft<'_>,
        payload_len: usize,
        fill: impl FnOnce(Span<'_>),
    ) -> Result<(), PostError>;

    /// Sends it with a payload from where that is, which [`Outlet::prefers_gathered`].
    fn send_gathered(&mut self, draft: Draft<'_>, payload: &[Span<'_>]) -> Result<(), PostError>;

    /// Whether a request without a payload can be sent now.
    fn check_room(&mut self) -> Result<(), PostError>;

    /// Writes into the server's memory; with `immediate` the server is told.
    fn write(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError>;

    /// Reads from the server's memory.
    fn read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
    ) -> Result<Posted, PostError>;

    /// What was sent is to leave now.
    fn push(&mut self) -> Result<(), TransportError>;
}

impl<'a> Draft<'a> {
    /// A request without a body, which `write` adds; it returns the length of the head.
    #[inline]
    pub(crate) fn new(
        head: &'a mut HeadRoom,
        header: Header,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Self {
        let head_len = write(&mut head[HEADER_SIZE..]);
        Self { header, head, head_len }
    }

    /// A request with this body.
    #[inline]
    pub(crate) fn of(head: &'a mut HeadRoom, header: Header, body: &[u8]) -> Self {
        Self::new(head, header, |room| {
            room[..body.len()].copy_from_slice(body);
            HEADER_SIZE + body.len()
        })
    }

    /// Under which key a descriptor may come with its reply.
    #[inline]
    pub(crate) fn descriptor_key(&self) -> Option<u64> {
        (self.header.opcode == Opcode::HandOver).then_some(self.header.handle.0)
    }

    /// The complete head, of a request with so much payload.
    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "heads are at most HEAD_SIZE_MAX, payloads at most send_payload_max"
    )]
    pub(crate) fn head(&mut self, payload_len: usize) -> &[u8] {
        self.header.head_len = self.head_len as u16;
        self.header.payload_len = payload_len as u32;
        self.header.encode(self.head);
        &self.head[..self.head_len]
    }
}
