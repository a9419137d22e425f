//! The request for a part of a transfer.

use dafs_proto::extent::Extent;
use dafs_proto::transport::{PostError, Span};
use dafs_proto::wire::{
    Header, ListRequest, Method, Opcode, REMOTE_RANGE_SIZE, Stability, ViewRequest, WireRange, encode_lists,
    encode_segments, lists_size,
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
        use Opcode::{ReadList, ReadView, WriteList, WriteView};
        let (transfer, len) = (self.transfer, self.request.len);
        let segments = self.segments()?;
        if matches!(self.request.opcode, ReadList | WriteList | ReadView | WriteView) {
            return self.send_list(outlet, segments);
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
            pool.span(chunk, request.len).gather(transfer.spans(request.at, request.len));
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
        let described = (!described.is_empty()).then(|| Span::from_mut(described));
        let payload = described.into_iter().chain(transfer.spans(at, len));
        if len > 0 && outlet.prefers_gathered(payload_len)? {
            return outlet.send_gathered(draft, &payload.collect::<SmallVec<[Span<'_>; 4]>>());
        }
        outlet.send(draft, payload_len, |room| {
            room.gather(payload);
        })
    }

    /// Of a list or a view: the ranges, of a list its extents before them, and the data of an inline write behind them are the payload.
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
        let list = transfer.list.as_ref();
        let is_of_view = matches!(self.request.opcode, Opcode::ReadView | Opcode::WriteView);
        let mut extents: SmallVec<[Extent; 32]> = SmallVec::new();
        if let Some(list) = list.filter(|_| !is_of_view) {
            if len == transfer.len {
                extents.reserve(list.extent_count());
            }
            extents.extend(list.extents(at, len));
        }
        let segments = joined(segments);
        let mut lists: SmallVec<[u8; 1024]> =
            SmallVec::from_elem(0, lists_size(extents.len(), segments.len()));
        encode_lists(extents.iter().copied(), &segments, &mut lists);
        // A part of a transfer is no whole member of its group.
        let is_whole = len == transfer.len;
        let (len, extent_count, segment_count) = (len as u32, extents.len() as u32, segments.len() as u32);
        let inline = transfer.path == IoPath::Inline;
        let method = if inline { Method::Inline } else { Method::Direct };
        let stability = match transfer.kind {
            TransferKind::Write(stability) => stability,
            _ => Stability::Unstable,
        };
        let (sieve, flags) = list.map(|list| (list.sieve, list.flags())).unwrap_or_default();
        let mut head = HEAD_ROOM;
        let draft = if is_of_view {
            // Without one it was given up, and takes the place of what was sent: it moves nothing.
            let shown = list.and_then(|list| list.shown());
            let place = shown.map(|shown| (shown.displacement, shown.place + at as u64, shown.view.number));
            let group = shown.filter(|_| is_whole).map(|shown| (shown.group, shown.group_size));
            let ((displacement, place, view), (group, group_size)) =
                (place.unwrap_or_default(), group.unwrap_or_default());
            let body = ViewRequest {
                displacement,
                place,
                group,
                group_size,
                view,
                len,
                method,
                stability,
                sieve,
                flags,
                segment_count,
            };
            Draft::of(&mut head, self.header, &body.bytes())
        } else {
            let body = ListRequest { len, method, stability, sieve, flags, extent_count, segment_count };
            Draft::of(&mut head, self.header, &body.bytes())
        };
        if inline && transfer.direction() == Direction::Write {
            return self.send_data_behind(outlet, draft, &mut lists);
        }
        let fill = |room: Span<'_>| {
            self.stage();
            room.write_from(0, &lists);
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
