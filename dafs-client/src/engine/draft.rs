//! A request on its way into the endpoint: its head, and the room for its payload.

use dafs_proto::transport::{Endpoint, HEAD_SIZE_MAX, PostError, Span};
use dafs_proto::wire::{HEADER_SIZE, Header, Slot};

/// A request that has no number yet.
pub(crate) struct Draft {
    header: Header,
    head: [u8; HEAD_SIZE_MAX],
    head_len: usize,
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

    /// Sends it with a payload that `fill` writes, once there is room.
    #[inline]
    pub(crate) fn send(
        mut self,
        endpoint: &mut dyn Endpoint,
        payload_len: usize,
        fill: impl FnOnce(Span<'_>),
        number: impl FnOnce(&mut Header) -> Option<Slot>,
    ) -> Result<Slot, PostError> {
        let room = endpoint.reserve(payload_len)?;
        fill(if payload_len == 0 { Span::EMPTY } else { endpoint.slot_payload(&room) });
        match self.seal(payload_len, number) {
            Ok(slot) => counts_as_sent(slot, endpoint.send(room, self.head(), payload_len)),
            Err(full) => {
                endpoint.cancel_send(room);
                Err(full)
            }
        }
    }

    /// Sends it with a payload from where that is, after [`Endpoint::prefers_gathered`].
    pub(crate) fn send_gathered(
        mut self,
        endpoint: &mut dyn Endpoint,
        payload: &[Span<'_>],
        number: impl FnOnce(&mut Header) -> Option<Slot>,
    ) -> Result<Slot, PostError> {
        let slot = self.seal(payload.iter().map(Span::len).sum(), number)?;
        counts_as_sent(slot, endpoint.send_gathered(self.head(), payload))
    }
}

/// On a closed connection a request has its number and counts as sent: it is sent again on the next.
#[inline]
pub(crate) fn counts_as_sent(slot: Slot, outcome: Result<(), PostError>) -> Result<Slot, PostError> {
    match outcome {
        Ok(()) | Err(PostError::Closed) => Ok(slot),
        Err(error) => Err(error),
    }
}
