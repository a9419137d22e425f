//! From an operation to the bytes of one request.

use dafs_proto::extent::Extent;
use dafs_proto::transport::{Endpoint, HEAD_SIZE_MAX, PostError, RemoteRange, Span};
use dafs_proto::wire::{
    BatchRequest, FileHandle, HEADER_SIZE, Header, ListRequest, Method, Opcode, REMOTE_RANGE_SIZE,
    ReadRequest, ReaddirRequest, Slot, Stability, WireRange, WriteRequest, Writer, encode_lists, lists_size,
};
use smallvec::SmallVec;

use crate::memory::Staging;
use crate::method::io_path::IoPath;
use crate::op::batch::BatchWork;
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
    let slot = endpoint.reserve(named.payload.len())?;
    let mut head = [0; HEAD_SIZE_MAX];
    let head_len = HEADER_SIZE + named.body_len;
    head[HEADER_SIZE..head_len].copy_from_slice(&named.body[..named.body_len]);
    if let Some(second) = &named.second {
        Writer::new(&mut head[HEADER_SIZE..]).u64(second.handle().0);
    }
    if let Some(handle) = named.handle {
        header.handle = handle;
    }
    endpoint.slot_payload(&slot).write_from(0, &named.payload);
    finish(endpoint, slot, header, &mut head, head_len, named.payload.len(), number)
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
    let slot = endpoint.reserve(link.payload.len())?;
    let mut head = [0; HEAD_SIZE_MAX];
    let head_len = HEADER_SIZE + link.body_len;
    head[HEADER_SIZE..head_len].copy_from_slice(&link.body[..link.body_len]);
    endpoint.slot_payload(&slot).write_from(0, &link.payload);
    finish(endpoint, slot, header, &mut head, head_len, link.payload.len(), number)
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
    let mut head = [0; HEAD_SIZE_MAX];
    body.encode(&mut head[HEADER_SIZE..BatchRequest::HEAD_SIZE]);
    // Telling the kernel of many small pieces takes longer than copying them.
    let pieces = batch.written(request.at, request.len).count();
    if body.data as usize >= pieces.max(1) * GATHERED_PIECE_MIN && endpoint.prefers_gathered(payload_len)? {
        let data = batch.written(request.at, request.len);
        let payload: Vec<Span<'_>> = std::iter::once(Span::from_mut(&mut described)).chain(data).collect();
        return send_gathered(endpoint, header, &payload, &mut head, BatchRequest::HEAD_SIZE, number);
    }
    let slot = endpoint.reserve(payload_len)?;
    let room = endpoint.slot_payload(&slot);
    room.write_from(0, &described);
    let mut at = described.len();
    for data in batch.written(request.at, request.len) {
        if let Some(room) = room.slice(at, data.len()) {
            room.copy_from(data);
        }
        at += data.len();
    }
    finish(endpoint, slot, header, &mut head, BatchRequest::HEAD_SIZE, payload_len, number)
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
    let writes = matches!(transfer.kind, TransferKind::Write(_) | TransferKind::Append(_));
    let payload_len = match transfer.path {
        IoPath::Inline if writes => len,
        IoPath::Inline => 0,
        _ if segments.len() > 1 => segments.len() * REMOTE_RANGE_SIZE,
        _ => 0,
    };
    let mut head = [0; HEAD_SIZE_MAX];
    let head_len = encode_body(transfer, at, transfer.asked_len(len), &segments, &mut head);
    if transfer.path == IoPath::Inline && writes && endpoint.prefers_gathered(payload_len)? {
        return transmit_gathered(endpoint, header, transfer, (request, None), &mut head, head_len, number);
    }
    let slot = endpoint.reserve(payload_len)?;
    if let (Some(chunk), Some(pool), true) = (request.staging, staging, writes) {
        transfer.gather(at, len, pool.span(chunk, len));
    }
    if payload_len > 0 {
        let room = endpoint.slot_payload(&slot);
        if transfer.path == IoPath::Inline {
            transfer.gather(at, len, room);
        } else {
            let mut bytes: SmallVec<[u8; 1024]> = SmallVec::from_elem(0, payload_len);
            dafs_proto::wire::encode_segments(&segments, &mut bytes);
            room.write_from(0, &bytes);
        }
    }
    finish(endpoint, slot, header, &mut head, head_len, payload_len, number)
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
    let data_len = if inline && writes { len } else { 0 };
    let mut lists: SmallVec<[u8; 1024]> = SmallVec::from_elem(0, lists_size(extents.len(), segments.len()));
    encode_lists(extents.iter().copied(), &segments, &mut lists);
    let payload_len = lists.len() + data_len;
    let mut head = [0; HEAD_SIZE_MAX];
    let body = ListRequest {
        len: len as u32,
        method: if inline { Method::Inline } else { Method::Direct },
        stability,
        extent_count: extents.len() as u32,
        segment_count: segments.len() as u32,
    };
    body.encode(&mut head[HEADER_SIZE..]);
    let head_len = ListRequest::HEAD_SIZE;
    if data_len > 0 && endpoint.prefers_gathered(payload_len)? {
        let lists = Span::from_mut(&mut lists);
        return transmit_gathered(
            endpoint,
            header,
            transfer,
            (request, Some(lists)),
            &mut head,
            head_len,
            number,
        );
    }
    let slot = endpoint.reserve(payload_len)?;
    if let (Some(chunk), Some(pool), true) = (request.staging, staging, writes) {
        transfer.gather(at, len, pool.span(chunk, len));
    }
    let room = endpoint.slot_payload(&slot);
    room.write_from(0, &lists);
    if data_len > 0
        && let Some(room) = room.slice(lists.len(), data_len)
    {
        transfer.gather(at, len, room);
    }
    finish(endpoint, slot, header, &mut head, head_len, payload_len, number)
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

/// Sends inline data from the caller's memory, without a copy of the library's.
fn transmit_gathered(
    endpoint: &mut dyn Endpoint,
    header: Header,
    transfer: &Transfer,
    (request, before): (&Request, Option<Span<'_>>),
    head: &mut [u8; HEAD_SIZE_MAX],
    head_len: usize,
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    let parts = transfer.parts(request.at, request.len);
    let data = parts.filter_map(|(index, from, len)| transfer.memory[index].span().slice(from, len));
    let payload: SmallVec<[Span<'_>; 4]> = before.into_iter().chain(data).collect();
    send_gathered(endpoint, header, &payload, head, head_len, number)
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "heads are at most HEAD_SIZE_MAX, payloads at most send_payload_max"
)]
fn send_gathered(
    endpoint: &mut dyn Endpoint,
    mut header: Header,
    payload: &[Span<'_>],
    head: &mut [u8; HEAD_SIZE_MAX],
    head_len: usize,
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    let Some(slot) = number(&mut header) else { return Err(PostError::Full) };
    header.head_len = head_len as u16;
    header.payload_len = payload.iter().map(Span::len).sum::<usize>() as u32;
    header.encode(head);
    match endpoint.send_gathered(&head[..head_len], payload) {
        // As in `finish`.
        Ok(()) | Err(PostError::Closed) => Ok(slot),
        Err(error) => Err(error),
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "heads are at most HEAD_SIZE_MAX, payloads at most send_payload_max"
)]
fn finish(
    endpoint: &mut dyn Endpoint,
    room: dafs_proto::transport::SendSlot,
    mut header: Header,
    head: &mut [u8; HEAD_SIZE_MAX],
    head_len: usize,
    payload_len: usize,
    number: impl FnOnce(&mut Header) -> Option<Slot>,
) -> Result<Slot, PostError> {
    let Some(slot) = number(&mut header) else {
        endpoint.cancel_send(room);
        return Err(PostError::Full);
    };
    header.head_len = head_len as u16;
    header.payload_len = payload_len as u32;
    header.encode(head);
    match endpoint.send(room, &head[..head_len], payload_len) {
        // The request has its number and counts as sent: it is sent again on the next connection.
        Ok(()) | Err(PostError::Closed) => Ok(slot),
        Err(error) => Err(error),
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "pieces are at most transfer_size_max, ranges at most SEGMENTS_MAX"
)]
fn encode_body(
    transfer: &Transfer,
    at: usize,
    len: usize,
    segments: &[WireRange],
    head: &mut [u8; HEAD_SIZE_MAX],
) -> usize {
    let body = &mut head[HEADER_SIZE..];
    let method = if transfer.path == IoPath::Inline { Method::Inline } else { Method::Direct };
    let segment = match segments {
        [one] => *one,
        _ => [0; 3],
    };
    let (len, segment_count) = (len as u32, segments.len() as u16);
    let offset = transfer.offset_at(at);
    match transfer.kind {
        TransferKind::Read => {
            ReadRequest { offset, len, method, segment_count, segment }.encode(body);
            ReadRequest::HEAD_SIZE
        }
        TransferKind::Write(stability) => {
            WriteRequest { offset, len, method, stability, segment_count, segment }.encode(body);
            WriteRequest::HEAD_SIZE
        }
        TransferKind::Append(stability) => {
            WriteRequest { offset: 0, len, method, stability, segment_count, segment }.encode(body);
            WriteRequest::HEAD_SIZE
        }
        TransferKind::Readdir { cookie, attributes } => {
            ReaddirRequest { cookie, len, segment, attributes }.encode(body);
            ReaddirRequest::HEAD_SIZE
        }
    }
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
