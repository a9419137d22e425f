//! The endpoint, as requests see it.

use dafs_proto::transport::{Endpoint, PostError, Span};
use dafs_proto::wire::{Header, Slot};

use crate::op::draft::{Draft, Outlet};

/// Where one request leaves. `number` gives it slot and sequence once there is room for it.
pub(crate) struct Door<'a, N> {
    pub(crate) endpoint: &'a mut dyn Endpoint,
    pub(crate) number: N,
}

impl<N: FnOnce(&mut Header) -> Option<Slot>> Outlet for Door<'_, N> {
    #[inline]
    fn prefers_gathered(&mut self, payload_len: usize) -> Result<bool, PostError> {
        self.endpoint.prefers_gathered(payload_len)
    }

    #[inline]
    fn send(
        self,
        mut draft: Draft<'_>,
        payload_len: usize,
        fill: impl FnOnce(Span<'_>),
    ) -> Result<Slot, PostError> {
        let room = self.endpoint.reserve(payload_len)?;
        fill(if payload_len == 0 { Span::EMPTY } else { self.endpoint.slot_payload(&room) });
        match draft.seal(payload_len, self.number) {
            Ok(slot) => counts_as_sent(slot, self.endpoint.send(room, draft.head(), payload_len)),
            Err(full) => {
                self.endpoint.cancel_send(room);
                Err(full)
            }
        }
    }

    fn send_gathered(self, mut draft: Draft<'_>, payload: &[Span<'_>]) -> Result<Slot, PostError> {
        let slot = draft.seal(payload.iter().map(Span::len).sum(), self.number)?;
        counts_as_sent(slot, self.endpoint.send_gathered(draft.head(), payload))
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
