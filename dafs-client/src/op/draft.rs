//! A request that has no number yet, and where it goes when it has one.

use dafs_proto::transport::{HEAD_SIZE_MAX, PostError, Span};
use dafs_proto::wire::{HEADER_SIZE, Header, Slot};

/// Room for a request's head, which is too large to be moved about.
pub(crate) type HeadRoom = [u8; HEAD_SIZE_MAX];
pub(crate) const HEAD_ROOM: HeadRoom = [0; HEAD_SIZE_MAX];

/// A request's head.
pub(crate) struct Draft<'a> {
    header: Header,
    head: &'a mut HeadRoom,
    head_len: usize,
}

/// Takes one request, gives it slot and sequence, and sends it.
pub(crate) trait Outlet {
    /// Whether a payload of this length is better sent from where it is.
    fn prefers_gathered(&mut self, payload_len: usize) -> Result<bool, PostError>;

    /// Sends it with a payload that `fill` writes, once there is room.
    fn send(
        self,
        draft: Draft<'_>,
        payload_len: usize,
        fill: impl FnOnce(Span<'_>),
    ) -> Result<Slot, PostError>;

    /// Sends it with a payload from where that is, which [`Outlet::prefers_gathered`].
    fn send_gathered(self, draft: Draft<'_>, payload: &[Span<'_>]) -> Result<Slot, PostError>;
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
        self.header.encode(self.head);
        Ok(slot)
    }

    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }
}
