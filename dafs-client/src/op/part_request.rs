//! The request for a part of a transfer.

use dafs_proto::extent::Extent;
use dafs_proto::transport::{PostError, Span};
use dafs_proto::wire::{
    Header, ListFlags, ListRequest, Method, Opcode, REMOTE_RANGE_SIZE, Sieve, Stability, ViewRequest,
    WireRange, encode_lists, encode_segments, lists_size,
};
use smallvec::SmallVec;

use crate::memory::BounceBuffers;
use crate::method::io_path::{Direction, IoPath};
use crate::op::body::{Body, wire};
use crate::op::draft::{Draft, HEAD_ROOM, Outlet};
use crate::op::request::Request;
use crate::op::transfer::{Transfer, TransferKind};

/// A request for a part of a transfer.
pub(crate) struct PartRequest<'a> {
    pub(crate) header: Header,
    pub(crate) transfer: &'a Transfer,
    pub(crate) request: &'a Request,
    pub(crate) bounce: Option<&'a BounceBuffers>,
}

impl PartRequest<'_> {
    /// Sends it.
    pub(crate) fn send(&self, outlet: &mut impl Outlet) -> Result<(), PostError> {
        let (transfer, len) = (self.transfer, self.request.len);
        let segments = self.segments()?;
        match self.request.opcode {
            Opcode::ReadList | Opcode::WriteList => return self.send_list(outlet, segments),
            Opcode::ReadView | Opcode::WriteView => return self.send_shown(outlet, segments),
            _ => {}
        }
        let (inline, offset) = (transfer.path == IoPath::Inline, transfer.offset_at(self.request.at));
        let body = match inline {
            true => Body::inline(transfer.kind, offset, len),
            false => Body::direct(transfer.kind, offset, transfer.asked_len(len), &segments),
        };
        let mut head = HEAD_ROOM;
        let draft = Draft::new(&mut head, self.header, |head| body.encode(head));
        if inline && transfer.direction() == Direction::Write {
            return self.send_data_behind(outlet, draft, &mut []);
        }
        let payload_len = if segments.len() > 1 { segments.len() * REMOTE_RANGE_SIZE } else { 0 };
        let fill = |room: Span<'_>| {
            self.stage();
            if payload_len > 0 {
                let mut bytes: SmallVec<[u8; 1024]> = SmallVec::from_elem(0, payload_len);
                encode_segments(&segments, &mut bytes);
                room.write_from(0, &bytes);
            }
        };
        outlet.send(draft, payload_len, fill)
    }

    /// Copies what it writes to where it is bounced.
    fn stage(&self) {
        let (transfer, request) = (self.transfer, self.request);
        if let (Some(chunk), Some(pool), Direction::Write) =
            (request.bounce, self.bounce, transfer.direction())
        {
            transfer.gather(request.at, request.len, pool.span(chunk, request.len));
        }
    }

    /// Sends it with its data in the message, behind what describes it.
    fn send_data_behind(
        &self,
        outlet: &mut impl Outlet,
        draft: Draft<'_>,
        described: &mut [u8],
    ) -> Result<(), PostError> {
        let (transfer, at, len) = (self.transfer, self.request.at, self.request.len);
        let payload_len = described.len() + len;
        if len > 0 && outlet.prefers_gathered(payload_len)? {
            let parts = transfer.parts(at, len);
            let data = parts.filter_map(|(index, from, len)| transfer.memory[index].span().slice(from, len));
            let described = (!described.is_empty()).then(|| Span::from_mut(described));
            let payload: SmallVec<[Span<'_>; 4]> = described.into_iter().chain(data).collect();
            return outlet.send_gathered(draft, &payload);
        }
        let fill = |room: Span<'_>| {
            room.write_from(0, described);
            if let Some(room) = room.slice(described.len(), len) {
                transfer.gather(at, len, room);
            }
        };
        outlet.send(draft, payload_len, fill)
    }

    /// Of a list: its extents and ranges, and the data of an inline write, are the payload.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "lists are at most LIST_MAX, parts at most transfer_size_max"
    )]
    fn send_list(
        &self,
        outlet: &mut impl Outlet,
        segments: SmallVec<[WireRange; 4]>,
    ) -> Result<(), PostError> {
        let (transfer, at, len) = (self.transfer, self.request.at, self.request.len);
        let mut extents: SmallVec<[Extent; 32]> = SmallVec::new();
        if let Some(list) = &transfer.list {
            if len == transfer.len {
                extents.reserve(list.extent_count());
            }
            extents.extend(list.extents(at, len));
        }
        let segments = joined(segments);
        let inline = transfer.path == IoPath::Inline;
        let mut lists: SmallVec<[u8; 1024]> =
            SmallVec::from_elem(0, lists_size(extents.len(), segments.len()));
        encode_lists(extents.iter().copied(), &segments, &mut lists);
        let body = ListRequest {
            len: len as u32,
            method: if inline { Method::Inline } else { Method::Direct },
            stability: self.stability(),
            sieve: transfer.list.as_ref().map_or_else(Sieve::default, |list| list.sieve),
            flags: transfer.list.as_ref().map_or_else(ListFlags::default, |list| list.flags()),
            extent_count: extents.len() as u32,
            segment_count: segments.len() as u32,
        };
        let mut head = HEAD_ROOM;
        let draft = Draft::new(&mut head, self.header, |head| {
            body.encode(head);
            ListRequest::HEAD_SIZE
        });
        self.send_lists(outlet, draft, &mut lists)
    }

    /// Of a view: its size does not depend on what the view shows.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "ranges are at most LIST_MAX, parts at most transfer_size_max"
    )]
    fn send_shown(
        &self,
        outlet: &mut impl Outlet,
        segments: SmallVec<[WireRange; 4]>,
    ) -> Result<(), PostError> {
        let (transfer, at, len) = (self.transfer, self.request.at, self.request.len);
        // Without one it was given up, and takes the place of what was sent: it moves nothing.
        let shown = transfer.list.as_ref().and_then(|list| list.shown());
        let segments = joined(segments);
        let mut lists: SmallVec<[u8; 1024]> = SmallVec::from_elem(0, lists_size(0, segments.len()));
        encode_segments(&segments, &mut lists);
        // A part of a transfer is no whole member of its group.
        let whole = shown.filter(|_| len == transfer.len);
        let (group, group_size) = whole.map_or((0, 0), |shown| (shown.group, shown.group_size));
        let body = ViewRequest {
            displacement: shown.map_or(0, |shown| shown.displacement),
            place: shown.map_or(0, |shown| shown.place + at as u64),
            group,
            group_size,
            view: shown.map_or(0, |shown| shown.view.number),
            len: len as u32,
            method: if transfer.path == IoPath::Inline { Method::Inline } else { Method::Direct },
            stability: self.stability(),
            sieve: transfer.list.as_ref().map_or_else(Sieve::default, |list| list.sieve),
            flags: transfer.list.as_ref().map_or_else(ListFlags::default, |list| list.flags()),
            segment_count: segments.len() as u32,
        };
        let mut head = HEAD_ROOM;
        let draft = Draft::new(&mut head, self.header, |head| {
            body.encode(head);
            ViewRequest::HEAD_SIZE
        });
        self.send_lists(outlet, draft, &mut lists)
    }

    fn stability(&self) -> Stability {
        match self.transfer.kind {
            TransferKind::Write(stability) => stability,
            _ => Stability::Unstable,
        }
    }

    /// Sends a request with its lists as the payload, and the data of an inline write behind them.
    fn send_lists(
        &self,
        outlet: &mut impl Outlet,
        draft: Draft<'_>,
        lists: &mut [u8],
    ) -> Result<(), PostError> {
        let transfer = self.transfer;
        if transfer.path == IoPath::Inline && transfer.direction() == Direction::Write {
            return self.send_data_behind(outlet, draft, lists);
        }
        let fill = |room: Span<'_>| {
            self.stage();
            room.write_from(0, lists);
        };
        outlet.send(draft, lists.len(), fill)
    }

    /// The ranges of registered memory that it uses.
    fn segments(&self) -> Result<SmallVec<[WireRange; 4]>, PostError> {
        let (transfer, request) = (self.transfer, self.request);
        const OUTSIDE: PostError = PostError::Invalid("a part outside of its registered memory");
        let mut segments = SmallVec::new();
        if transfer.path == IoPath::Inline {
            return Ok(segments);
        }
        if let (Some(chunk), Some(pool)) = (request.bounce, self.bounce) {
            let len = transfer.asked_len(request.len);
            segments.push(wire(pool.range(chunk, len).ok_or(OUTSIDE)?));
            return Ok(segments);
        }
        // All of the memory, as nearly always: nothing is cut.
        if request.len == transfer.len {
            segments.reserve(transfer.ranges.len());
        }
        for (index, from, len) in transfer.parts(request.at, request.len) {
            let range = transfer.ranges.get(index).and_then(|range| range.slice(from as u64, len as u64));
            segments.push(wire(range.ok_or(OUTSIDE)?));
        }
        if segments.is_empty() {
            // An empty transfer still names a range, because the method says so.
            let range = transfer.ranges.first().and_then(|range| range.slice(0, 0));
            segments.push(range.map_or([0; 3], wire));
        }
        Ok(segments)
    }
}

/// Ranges that follow each other in one region become one.
fn joined(mut ranges: SmallVec<[WireRange; 4]>) -> SmallVec<[WireRange; 4]> {
    ranges.dedup_by(|next, last| {
        let follows = next[0] == last[0] && last[1].checked_add(last[2]) == Some(next[1]);
        if follows {
            last[2] += next[2];
        }
        follows
    });
    ranges
}
