//! A request that has no number yet, and where it goes when it has one.

use dafs_proto::transport::{HEAD_SIZE_MAX, PostError, Span};
use dafs_proto::wire::{HEADER_SIZE, Header, Slot};

/// A request's head.
pub(crate) struct Draft {
    header: Header,
    head: [u8; HEAD_SIZE_MAX],
    head_len: usize,
}

/// Takes one request, gives it slot and sequence, and sends it.
pub(crate) trait Outlet {
    /// Whether a payload of this length is better sent from where it is.
    fn prefers_gathered(&mut self, payload_len: usize) -> Result<bool, PostError>;

    /// Sends it with a payload that `fill` writes, once there is room.
    fn send(self, draft: Draft, payload_len: usize, fill: impl FnOnce(Span<'_>)) -> Result<Slot, PostError>;

    /// Sends it with a payload from where that is, which [`Outlet::prefers_gathered`].
    fn send_gathered(self, draft: Draft, payload: &[Span<'_>]) -> Result<Slot, PostError>;
}

impl Draft {
    /// A request without a body, which `write` adds; it answers the length of the head.
    #[inline]
    pub(crate) fn new(header: Header, write: impl FnOnce(&mut [u8]) -> usize) -> Self {
        let mut head = [0; HEAD_SIZE_MAX];
        let head_len = write(&mut head[HEADER_SIZE..]);
        Self { header, head, head_len }
    }

    /// Gives it slot and sequence by `number`, which answers `None` when none is free; then its head is complete.
    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "heads are at most HEAD_SIZE_MAX, payloads at most send_payload_max"
    )]
    pub(crate) fn seal(
        &mut self,
        payload_len: usize,
        number: impl FnOnce(&mut Header) -> Option<Slot>,
    ) -> Result<Slot, PostError> {
        let slot = number(&mut self.header).ok_or(PostError::Full)?;
        self.header.head_len = self.head_len as u16;
        self.header.payload_len = payload_len as u32;
        self.header.encode(&mut self.head);
        Ok(slot)
    }

    pub(crate) fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }
}
