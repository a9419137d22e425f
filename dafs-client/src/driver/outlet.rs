//! The endpoint, as those who write requests see it.

use dafs_proto::transport::{
    Endpoint, LocalSegments, OpToken, PostError, Posted, RemoteRange, Span, TransportError,
};

use crate::op::draft::{Draft, Outlet};

impl Outlet for Box<dyn Endpoint> {
    fn segments_max(&self) -> usize {
        usize::from(self.capabilities().segments_max)
    }

    #[inline]
    fn prefers_gathered(&mut self, payload_len: usize) -> Result<bool, PostError> {
        (**self).prefers_gathered(payload_len)
    }

    #[inline]
    fn send(
        &mut self,
        mut draft: Draft<'_>,
        payload_len: usize,
        fill: impl FnOnce(Span<'_>),
    ) -> Result<(), PostError> {
        let room = self.reserve(payload_len)?;
        if let Some(key) = draft.descriptor_key()
            && let Some(descriptors) = self.descriptors()
        {
            descriptors.expect(key);
        }
        fill(if payload_len == 0 { Span::EMPTY } else { self.slot_payload(&room) });
        counts_as_sent((**self).send(room, draft.head(payload_len), payload_len))
    }

    fn send_gathered(&mut self, mut draft: Draft<'_>, payload: &[Span<'_>]) -> Result<(), PostError> {
        let head = draft.head(payload.iter().map(Span::len).sum());
        counts_as_sent((**self).send_gathered(head, payload))
    }

    fn check_room(&mut self) -> Result<(), PostError> {
        let room = self.reserve(0)?;
        self.cancel_send(room);
        Ok(())
    }

    fn write(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        self.rdma_write(token, local, remote, immediate)
    }

    fn read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
    ) -> Result<Posted, PostError> {
        self.rdma_read(token, local, remote)
    }

    fn push(&mut self) -> Result<(), TransportError> {
        self.flush()
    }
}

/// On a closed connection a request counts as sent: it is sent again on the next.
#[inline]
fn counts_as_sent(outcome: Result<(), PostError>) -> Result<(), PostError> {
    match outcome {
        Err(PostError::Closed) => Ok(()),
        outcome => outcome,
    }
}
