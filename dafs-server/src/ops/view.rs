//! Views: taken and given back, and transfers of what they show, which are lists that are expanded as they go.

use std::sync::Arc;

use dafs_proto::view::{VIEW_SEGMENTS_MAX, ViewError};
use dafs_proto::wire::{Method, Opcode, Status, ViewDropRequest, ViewRequest, ViewSetRequest};

use super::Worker;
use crate::worker::flight::Call;
use crate::worker::flight::answer::{Payload, Problem, Served};
use crate::worker::flight::layout::{Layout, Shown};
use crate::worker::flight::list::List;
use crate::worker::flight::meeting::{Group, MEMBERS_MAX, SEGMENTS_MIN};
use crate::worker::flight::transfer::TransferKind;
use crate::worker::sessions::views::Refused;

impl Worker {
    /// Takes a view, or a part of its description.
    pub(crate) fn set_view(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let request = ViewSetRequest::decode(body)?;
        let part = self.connections.copied_payload(call, payload);
        let session = self.sessions.find_mut(call.session).ok_or(Status::NO_SESSION)?;
        match session.views.set(&request, &part) {
            Ok(()) => self.reply_status(call, Status::OK),
            Err(Refused::Full) => self.reply_status(call, Status::TOO_MANY_VIEWS),
            Err(Refused::TooMany) => {
                self.shared.budgets.of_session.views.count_refused();
                self.reply_status(call, Status::TOO_MANY_VIEWS);
            }
            Err(refused @ Refused::Taken(_)) => return Err(Problem::refused(Status::EXISTS)(refused)),
            Err(refused) => return Err(Problem::refused(Status::INVALID)(refused)),
        }
        Ok(())
    }

    /// Gives a view back.
    pub(crate) fn drop_view(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let request = ViewDropRequest::decode(body)?;
        self.connections.no_payload(call, payload)?;
        let session = self.sessions.find_mut(call.session).ok_or(Status::NO_SESSION)?;
        let was_there = session.views.drop_view(request.view);
        self.reply_status(call, if was_there { Status::OK } else { Status::NO_VIEW });
        Ok(())
    }

    /// Reads and writes of what a view shows.
    pub(crate) fn move_view(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let request = ViewRequest::decode_for(call.header.opcode, body)?;
        self.check_feature(call, request.flags.feature())?;
        let kind =
            if call.header.opcode == Opcode::ReadView { TransferKind::Read } else { TransferKind::Write };
        let node = self.data_node(call, kind != TransferKind::Read)?;
        let (inline_len, limit) = self.list_limits(call, kind, request.method, request.len);
        let bytes = self.connections.copied_payload(call, payload);
        let ranges = request.ranges(&bytes, inline_len).map_err(Problem::refused(Status::INVALID))?;
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        let view = session.views.find(request.view).ok_or(Status::NO_VIEW)?;
        let shown = Shown {
            view: Arc::clone(view),
            displacement: request.displacement,
            place: request.place,
            len: request.len.into(),
        };
        check(&shown, limit).map_err(Problem::refused(Status::INVALID))?;
        let mut list = List::of((kind, node), Layout::Shown(shown), ranges, request.stability);
        list.ask(request.sieve, request.flags);
        let list = self.prepare_asked(call, list, bytes, inline_len as usize)?;
        match self.group_of(call, &request, &list) {
            Some(group) => self.begin_member(call, list, &group),
            None => self.begin_work(call, list),
        }
        Ok(())
    }

    /// The group of a transfer, where this worker may wait for the rest of it.
    fn group_of(&self, call: &Call, request: &ViewRequest, list: &List) -> Option<Group> {
        let (number, size) = (request.group, request.group_size);
        let is_awaited = number != 0
            && (2..=MEMBERS_MAX).contains(&size)
            && list.request.layout.fit(0, list.request.len, SEGMENTS_MIN - 1) < list.request.len
            && call.link.is_none()
            && !self.sessions.are_draining();
        let file = is_awaited.then(|| self.storage.lock_key(list.request.node).ok()).flatten()?;
        Some(Group { number, size, file, writes: call.header.opcode == Opcode::WriteView })
    }

    /// Bytes of data in the message, and bytes that a request of a list may move.
    pub(super) fn list_limits(
        &self,
        call: &Call,
        kind: TransferKind,
        method: Method,
        len: u32,
    ) -> (u32, u32) {
        let transfer_size_max = self.shared.settings.transfer_size_max;
        match (kind, method) {
            (TransferKind::Read, Method::Inline) => {
                (0, u32::try_from(self.connections.send_payload_max(call.connection)).unwrap_or(u32::MAX))
            }
            (_, Method::Inline) => (len, transfer_size_max),
            _ => (0, transfer_size_max),
        }
    }
}

/// Why a range of a view cannot be moved.
#[derive(Debug, thiserror::Error)]
enum Problematic {
    #[error("{len} bytes of a view in one request; the limit is {limit}")]
    TooLong { len: u64, limit: u32 },
    #[error("{len} bytes of a view are more than {VIEW_SEGMENTS_MAX} segments, the most of one request")]
    TooMany { len: u64 },
    #[error(transparent)]
    View(#[from] ViewError),
}

fn check(shown: &Shown, limit: u32) -> Result<(), Problematic> {
    let len = shown.len;
    if len > limit.into() {
        return Err(Problematic::TooLong { len, limit });
    }
    if shown.view.fit(shown.place, len, VIEW_SEGMENTS_MAX) < len && shown.place.checked_add(len).is_some() {
        return Err(Problematic::TooMany { len });
    }
    Ok(shown.check()?)
}
