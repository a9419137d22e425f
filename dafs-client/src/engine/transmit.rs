//! From an operation to the bytes of one request.

use dafs_proto::extent::Extent;
use dafs_proto::transport::{Endpoint, PostError, RemoteRange, Span};
use dafs_proto::wire::{
    BatchRequest, FileHandle, HEADER_SIZE, Header, ListRequest, Method, Opcode, REMOTE_RANGE_SIZE, Slot,
    Stability, WireRange, Writer, encode_lists, encode_segments, lists_size,
};
use smallvec::SmallVec;

use crate::engine::draft::Draft;
use crate::memory::Staging;
use crate::method::io_path::{Direction, IoPath};
use crate::op::batch::BatchWork;
use crate::op::body::Body;
use crate::op::chain::ChainWork;
use crate::op::named::Named;
use crate::op::request::Request;
use crate::op::transfer::{Transfer, TransferKind};
use crate::op::{Op, Work};

/// Encodes a request and hands it to the endpoint. `number` gives it slot and sequence once there is room for it.
pub(crate) fn transmit(
    endpoint: &mut dyn Endpoint,
    header: Header,
    op: &Op,
    request: &Request,
    staging: Option<&Staging>,
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    let handle = op.target.as_ref().map_or(FileHandle(0), |node| node.handle());
    let header = Header { handle, ..header };
    match &op.work {
        Work::Named(named) => transmit_named(endpoint, header, named, number),
        Work::Data(transfer) => transmit_data(endpoint, header, transfer, request, staging, number),
        Work::Chain(chain) => transmit_link(endpoint, header, chain, request.at, number),
        Work::Batch(batch) => transmit_batch(endpoint, header, batch, request, number),
    }
}

fn transmit_named(
    endpoint: &mut dyn Endpoint,
    mut header: Header,
    named: &Named,
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    header.handle = named.handle.unwrap_or(header.handle);
    let draft = Draft::new(header, |body| {
        body[..named.body_len].copy_from_slice(&named.body[..named.body_len]);
        if let Some(second) = &named.second {
            Writer::new(body).u64(second.handle().0);
        }
        HEADER_SIZE + named.body_len
    });
    let payload = &named.payload;
    draft.send(endpoint, payload.len(), |room| room.write_from(0, payload), number)
}

fn transmit_link(
    endpoint: &mut dyn Endpoint,
    mut header: Header,
    chain: &ChainWork,
    index: usize,
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    let Some(link) = chain.links.get(index) else {
        return Err(PostError::Invalid("a link that a chain does not have"));
    };
    let (flags, handle) = chain.place(index);
    header.flags |= flags;
    header.handle = handle.unwrap_or(header.handle);
    let draft = Draft::new(header, |body| {
        body[..link.body_len].copy_from_slice(&link.body[..link.body_len]);
        HEADER_SIZE + link.body_len
    });
    draft.send(endpoint, link.payload.len(), |room| room.write_from(0, &link.payload), number)
}

fn transmit_batch(
    endpoint: &mut dyn Endpoint,
    header: Header,
    batch: &BatchWork,
    request: &Request,
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    let (body, mut described) = batch.encode(request.at, request.len);
    let payload_len = described.len() + body.data as usize;
    let draft = Draft::new(header, |head| {
        body.encode(head);
        BatchRequest::HEAD_SIZE
    });
    // Telling the kernel of many small pieces takes longer than copying them.
    let pieces = batch.written(request.at, request.len).count();
    if body.data as usize >= pieces.max(1) * GATHERED_PIECE_MIN && endpoint.prefers_gathered(payload_len)? {
        let data = batch.written(request.at, request.len);
        let payload: Vec<Span<'_>> = std::iter::once(Span::from_mut(&mut described)).chain(data).collect();
        return draft.send_gathered(endpoint, &payload, number);
    }
    let fill = |room: Span<'_>| {
        room.write_from(0, &described);
        let mut at = described.len();
        for data in batch.written(request.at, request.len) {
            if let Some(room) = room.slice(at, data.len()) {
                room.copy_from(data);
            }
            at += data.len();
        }
    };
    draft.send(endpoint, payload_len, fill, number)
}

/// Bytes of a piece, on average, from which the pieces of a batch are sent from where they are.
const GATHERED_PIECE_MIN: usize = 1024;

fn transmit_data(
    endpoint: &mut dyn Endpoint,
    header: Header,
    transfer: &Transfer,
    request: &Request,
    staging: Option<&Staging>,
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    let (at, len) = (request.at, request.len);
    let segments = segments(transfer, request, staging)?;
    if matches!(request.opcode, Opcode::ReadList | Opcode::WriteList) {
        return transmit_list(endpoint, header, transfer, request, segments, staging, number);
    }
    let (inline, offset) = (transfer.path == IoPath::Inline, transfer.offset_at(at));
    let body = match inline {
        true => Body::inline(transfer.kind, offset, len),
        false => Body::direct(transfer.kind, offset, transfer.asked_len(len), &segments),
    };
    let draft = Draft::new(header, |head| body.encode(head));
    if inline && transfer.direction() == Direction::Write {
        return transmit_data_behind(endpoint, draft, transfer, request, &mut [], number);
    }
    let payload_len = if segments.len() > 1 { segments.len() * REMOTE_RANGE_SIZE } else { 0 };
    let fill = |room: Span<'_>| {
        stage(transfer, request, staging);
        if payload_len > 0 {
            let mut bytes: SmallVec<[u8; 1024]> = SmallVec::from_elem(0, payload_len);
            encode_segments(&segments, &mut bytes);
            room.write_from(0, &bytes);
        }
    };
    draft.send(endpoint, payload_len, fill, number)
}

/// Copies what a piece writes to where it is staged.
fn stage(transfer: &Transfer, request: &Request, staging: Option<&Staging>) {
    if let (Some(chunk), Some(pool), Direction::Write) = (request.staging, staging, transfer.direction()) {
        transfer.gather(request.at, request.len, pool.span(chunk, request.len));
    }
}

/// Sends a piece whose data is in the message, behind what describes it.
fn transmit_data_behind(
    endpoint: &mut dyn Endpoint,
    draft: Draft,
    transfer: &Transfer,
    request: &Request,
    described: &mut [u8],
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    let (at, len) = (request.at, request.len);
    let payload_len = described.len() + len;
    if len > 0 && endpoint.prefers_gathered(payload_len)? {
        let parts = transfer.parts(at, len);
        let data = parts.filter_map(|(index, from, len)| transfer.memory[index].span().slice(from, len));
        let described = (!described.is_empty()).then(|| Span::from_mut(described));
        let payload: SmallVec<[Span<'_>; 4]> = described.into_iter().chain(data).collect();
        return draft.send_gathered(endpoint, &payload, number);
    }
    let fill = |room: Span<'_>| {
        room.write_from(0, described);
        if let Some(room) = room.slice(described.len(), len) {
            transfer.gather(at, len, room);
        }
    };
    draft.send(endpoint, payload_len, fill, number)
}

/// A piece that is a list: its extents and ranges, and the data of an inline write, are the payload.
#[allow(
    clippy::cast_possible_truncation,
    reason = "lists are at most LIST_MAX, pieces at most transfer_size_max"
)]
fn transmit_list(
    endpoint: &mut dyn Endpoint,
    header: Header,
    transfer: &Transfer,
    request: &Request,
    segments: SmallVec<[WireRange; 4]>,
    staging: Option<&Staging>,
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    let (at, len) = (request.at, request.len);
    let (writes, stability) = match transfer.kind {
        TransferKind::Write(stability) => (true, stability),
        _ => (false, Stability::Unstable),
    };
    let mut extents: SmallVec<[Extent; 32]> = SmallVec::new();
    if let Some(list) = &transfer.list {
        if len == transfer.len {
            extents.reserve(list.extent_count());
        }
        extents.extend(list.extents(at, len));
    }
    let segments = joined(segments);
    let inline = transfer.path == IoPath::Inline;
    let mut lists: SmallVec<[u8; 1024]> = SmallVec::from_elem(0, lists_size(extents.len(), segments.len()));
    encode_lists(extents.iter().copied(), &segments, &mut lists);
    let body = ListRequest {
        len: len as u32,
        method: if inline { Method::Inline } else { Method::Direct },
        stability,
        extent_count: extents.len() as u32,
        segment_count: segments.len() as u32,
    };
    let draft = Draft::new(header, |head| {
        body.encode(head);
        ListRequest::HEAD_SIZE
    });
    if inline && writes {
        return transmit_data_behind(endpoint, draft, transfer, request, &mut lists, number);
    }
    let fill = |room: Span<'_>| {
        stage(transfer, request, staging);
        room.write_from(0, &lists);
    };
    draft.send(endpoint, lists.len(), fill, number)
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

/// The ranges of registered memory that a piece of a transfer uses.
fn segments(
    transfer: &Transfer,
    request: &Request,
    staging: Option<&Staging>,
) -> Result<SmallVec<[WireRange; 4]>, PostError> {
    let wire = |range: RemoteRange| [range.key.0, range.offset, range.len];
    let outside = PostError::Invalid("a piece outside of its registered memory");
    let mut segments = SmallVec::new();
    if transfer.path == IoPath::Inline {
        return Ok(segments);
    }
    if let (Some(chunk), Some(pool)) = (request.staging, staging) {
        let len = transfer.asked_len(request.len);
        segments.push(wire(pool.range(chunk, len).ok_or(outside)?));
        return Ok(segments);
    }
    if request.len == transfer.len {
        // All of the memory, as nearly always: nothing is cut.
        segments.reserve(transfer.ranges.len());
        for (range, memory) in transfer.ranges.iter().zip(&transfer.memory).filter(|(_, m)| m.len() > 0) {
            match range.slice(0, memory.len() as u64) {
                Some(range) => segments.push(wire(range)),
                None => return Err(outside),
            }
        }
    } else {
        for (index, from, len) in transfer.parts(request.at, request.len) {
            let range = transfer.ranges.get(index).and_then(|range| range.slice(from as u64, len as u64));
            match range {
                Some(range) => segments.push(wire(range)),
                None => return Err(outside),
            }
        }
    }
    if segments.is_empty() {
        // An empty transfer still names a range, because the method says so.
        let range = transfer.ranges.first().and_then(|range| range.slice(0, 0));
        segments.push(range.map_or([0; 3], wire));
    }
    Ok(segments)
}
