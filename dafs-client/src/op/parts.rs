//! The requests of one transfer: how much each may move, and what its reply does to the caller's memory.

use dafs_proto::extent::Extent;
use dafs_proto::transport::Span;
use dafs_proto::wire::{ListReadReply, Opcode};
use smallvec::SmallVec;

use crate::handle::node::Node;
use crate::memory::BounceBuffers;
use crate::method::io_path::{Direction, IoPath};
use crate::op::body::{DataReply, too_much};
use crate::op::list::{PartBounds, without_gap};
use crate::op::request::{Broken, Request};
use crate::op::terms::Terms;
use crate::op::transfer::{Transfer, TransferKind};

/// What one request asks for.
pub(crate) struct Part {
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The buffer that it is bounced through.
    pub(crate) bounce: Option<u16>,
    /// Copying the next takes long: the server is to begin with this one.
    pub(crate) is_copied: bool,
}

/// The next part of a transfer. Only after [`Transfer::has_more`].
pub(crate) fn next_part(
    transfer: &Transfer,
    terms: &Terms,
    eager_buffer: Option<(usize, usize)>,
    bounce: &mut Option<BounceBuffers>,
) -> Option<Part> {
    let ((max, bounce), segments_max) = match eager_buffer {
        Some((size, segments_max)) => ((size, None), terms.segments_max.min(segments_max)),
        None => (part_limit(transfer, terms, bounce)?, terms.segments_max),
    };
    let (at, len) = transfer.next_part(max);
    let len = trim(transfer, at, len, segments_max, terms);
    Some(Part { at, len, bounce, is_copied: bounce.is_some() })
}

/// How much one request of a transfer may move, and where it is bounced; `None` when there is no buffer to bounce through now.
fn part_limit(
    transfer: &Transfer,
    terms: &Terms,
    bounce: &mut Option<BounceBuffers>,
) -> Option<(usize, Option<u16>)> {
    let transfer_max = terms.welcome.transfer_size_max as usize;
    if let TransferKind::Readdir { .. } = transfer.kind {
        return Some((transfer.len, None));
    }
    if let Some(max) = terms.request_max(transfer.path, transfer.direction()) {
        return Some((max, None));
    }
    // Without an eager buffer now, what would use one is bounced.
    let pool = bounce.as_mut()?;
    let chunk = pool.take()?;
    let whole = pool.chunk_size().min(transfer_max);
    let size = match transfer.kind {
        // One request brings all of it.
        TransferKind::Read if transfer.sieved > 0 => transfer.len,
        // Describing and planning a list once takes less time than copying beside the server saves.
        _ if transfer.list.is_some() => whole,
        TransferKind::Write(_) if terms.bounce_overlaps => whole.min(overlapped_size(transfer.cut)),
        // The server, which has the buffers mapped, fills one while another is copied out.
        TransferKind::Read if terms.bounce_overlaps && transfer.memory.len() > 1 => {
            whole.min(OVERLAPPED_SIZE_MAX)
        }
        _ => whole,
    };
    Some((size, Some(chunk)))
}

/// Bytes of the next bounced part after `cut`, where the server works on one part while the next is copied: the first is small, so that
/// it begins soon; the others grow, because copying is quicker than writing.
pub(crate) fn overlapped_size(cut: usize) -> usize {
    cut.clamp(OVERLAPPED_SIZE_MIN, OVERLAPPED_SIZE_MAX)
}

const OVERLAPPED_SIZE_MIN: usize = 16 * 1024;
const OVERLAPPED_SIZE_MAX: usize = 64 * 1024;

/// Cuts a part where its lists would become too long for one request.
pub(crate) fn trim(transfer: &Transfer, at: usize, len: usize, segments_max: usize, terms: &Terms) -> usize {
    if transfer.sieved > 0 {
        return len;
    }
    if let Some(list) = &transfer.list {
        let inline = transfer.path == IoPath::Inline;
        let bounds = PartBounds {
            len_max: len,
            payload_max: terms.send_payload_max as usize,
            carries_data: inline && transfer.direction() == Direction::Write,
            carries_ranges: !inline,
        };
        return list.trim(at, len, &bounds);
    }
    if transfer.memory.len() <= segments_max {
        return len;
    }
    transfer.parts(at, len).take(segments_max).map(|(_, _, part)| part).sum()
}

/// The reply to the request for a part of a transfer.
#[derive(Clone, Copy)]
pub(crate) struct PartReply<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) payload: Span<'a>,
    pub(crate) request: &'a Request,
    /// Where its data was bounced.
    pub(crate) bounced: Option<Span<'a>>,
}

/// A part of a transfer was answered.
pub(crate) fn on_data(
    transfer: &mut Transfer,
    answer: PartReply<'_>,
    target: Option<&Node>,
) -> Result<(), Broken> {
    let answer = PartReply { payload: without_explanation(transfer, &answer)?, ..answer };
    let PartReply { body, payload, request, bounced } = answer;
    match transfer.kind {
        TransferKind::Read if transfer.sieved > 0 => on_sieved_read(transfer, answer)?,
        TransferKind::Read if matches!(request.opcode, Opcode::ReadList | Opcode::ReadView) => {
            on_list_read(transfer, answer)?
        }
        kind => {
            let reply = DataReply::decode(kind, body)?;
            if transfer.discard {
                return Ok(());
            }
            let framed = transfer.path == IoPath::Eager && bounced.is_none();
            let in_payload = transfer.path == IoPath::Inline || framed;
            reply.check(kind, request.len, payload.len(), in_payload)?;
            transfer.on_reply(&reply, request, target);
            if kind.direction() == Direction::Read && (in_payload || bounced.is_some()) {
                bounced.unwrap_or(payload).scatter(transfer.spans(request.at, reply.count));
            }
        }
    }
    Ok(())
}

/// The data of a reply, without what explains how the server moved it.
fn without_explanation<'a>(transfer: &Transfer, answer: &PartReply<'a>) -> Result<Span<'a>, Broken> {
    let PartReply { body, payload, request, .. } = *answer;
    let explanations = transfer.list.as_ref().and_then(|list| list.explanations.as_ref());
    let Some(explanations) = explanations.filter(|_| !transfer.discard) else { return Ok(payload) };
    let data_len = match request.opcode {
        Opcode::ReadList | Opcode::ReadView if transfer.path == IoPath::Inline => {
            ListReadReply::decode(body)?.count as usize
        }
        Opcode::ReadList | Opcode::ReadView | Opcode::WriteList | Opcode::WriteView => 0,
        _ => {
            explanations.add_other();
            return Ok(payload);
        }
    };
    Ok(explanations.split(payload, data_len))
}

impl Transfer {
    /// The file ended within a part of a list: what counts are its bytes up to the first that lies at or behind the end.
    fn on_gap(&mut self, request: &Request, end: u64) {
        let extents = self.list.iter().flat_map(|list| list.extents(request.at, request.len));
        let count = without_gap(extents, end);
        self.on_count(request.at, request.len, count);
    }

    /// Remembers what a reply says.
    fn on_reply(&mut self, reply: &DataReply, request: &Request, target: Option<&Node>) {
        match self.kind {
            TransferKind::Readdir { .. } => (self.end, self.position) = (reply.end, reply.position),
            TransferKind::Append(_) => self.position = reply.position,
            TransferKind::Read if reply.count < request.len => {
                let end = self.offset_at(request.at) + reply.count as u64;
                if let Some(list) = &mut self.list {
                    list.end = list.end.min(end);
                }
            }
            TransferKind::Read | TransferKind::Write(_) => {}
        }
        if let (Some(verifier), Some(node)) = (reply.unstable, target) {
            match (self.kind, &self.list) {
                (TransferKind::Append(_), _) => node.wrote(verifier, reply.position, reply.count),
                (_, None) => node.wrote(verifier, self.offset + request.at as u64, reply.count),
                (_, Some(list)) => {
                    let mut unstable = node.unstable();
                    for range in list.covers(request.at, reply.count) {
                        unstable.add(verifier, range);
                    }
                }
            }
        }
        self.on_count(request.at, request.len, reply.count);
    }
}

/// The reply to a read of a list: of each extent that came which lies before the end of the file.
#[allow(clippy::cast_possible_truncation, reason = "extents of a part are as long as memory of this process")]
fn on_list_read(transfer: &mut Transfer, answer: PartReply<'_>) -> Result<(), Broken> {
    let PartReply { body, payload, request, bounced } = answer;
    let reply = ListReadReply::decode(body)?;
    let Some(list) = transfer.list.as_mut().filter(|_| !transfer.discard) else { return Ok(()) };
    let end = reply.end.unwrap_or(u64::MAX);
    list.end = list.end.min(end);
    let (count, inline) = (reply.count as usize, transfer.path == IoPath::Inline);
    let copies = inline || transfer.path == IoPath::Bounced;
    let got: SmallVec<[(usize, usize); 32]> = match reply.end {
        // All of it came, and nearly always does: one pass over the memory.
        None => SmallVec::from_iter([(request.at, request.len)]),
        Some(_) => list
            .extents(request.at, request.len)
            .scan(request.at, |place, extent| {
                let begin = *place;
                *place += extent.len as usize;
                Some((begin, extent.len_before(end) as usize))
            })
            .collect(),
    };
    let total = got.iter().map(|(_, got)| got).sum();
    if count != total || (count == request.len && reply.end.is_some()) {
        return Err(too_much("the count of a list's read", count, total).into());
    }
    let in_payload = if inline { count } else { 0 };
    if payload.len() != in_payload {
        return Err(too_much("the payload of a list's reply", payload.len(), in_payload).into());
    }
    if copies {
        let mut before = 0;
        for &(place, len) in &got {
            // Bounced, everything is at its place; in a message, all follows without gaps.
            let source = match bounced {
                Some(bounced) => bounced.slice(place - request.at, len),
                None => payload.slice(before, len),
            };
            source.unwrap_or(Span::EMPTY).scatter(transfer.spans(place, len));
            before += len;
        }
    }
    if count < request.len {
        transfer.on_gap(request, end);
    }
    Ok(())
}

/// The reply to a read of a list with its gaps.
#[allow(clippy::cast_possible_truncation, reason = "within a bounce buffer")]
fn on_sieved_read(transfer: &mut Transfer, answer: PartReply<'_>) -> Result<(), Broken> {
    let PartReply { body, payload, request, bounced } = answer;
    let reply = DataReply::decode(TransferKind::Read, body)?;
    if transfer.discard {
        return Ok(());
    }
    reply.check(TransferKind::Read, transfer.sieved, payload.len(), false)?;
    let count = reply.count;
    let first = transfer.offset_at(0);
    let end = if count < transfer.sieved { first + count as u64 } else { u64::MAX };
    let Some(list) = &mut transfer.list else { return Ok(()) };
    list.end = list.end.min(end);
    take_sieved(transfer, request.len, end, bounced.unwrap_or(Span::EMPTY));
    if end != u64::MAX {
        transfer.on_gap(request, end);
    }
    Ok(())
}

/// Copies the extents of a list, as far as they lie before the file's `end`, out of all that lies between the first and the last.
#[allow(clippy::cast_possible_truncation, reason = "within a bounce buffer")]
fn take_sieved(transfer: &Transfer, len_all: usize, end: u64, bounced: Span<'_>) {
    let Some(list) = &transfer.list else { return };
    let first = transfer.offset_at(0);
    let mut extents = list.extents(0, len_all);
    let mut extent = Extent::default();
    for (index, mut from, mut len) in transfer.parts(0, len_all) {
        let memory = transfer.memory[index].span();
        while len > 0 {
            if extent.len == 0 {
                let Some(next) = extents.next() else { return };
                extent = next;
            }
            let part = len.min(extent.len as usize);
            let got = Extent::new(extent.offset, part as u64).len_before(end) as usize;
            let source = bounced.slice((extent.offset - first) as usize, got);
            if let (Some(target), Some(source)) = (memory.slice(from, got), source) {
                target.copy_from(source);
            }
            extent = Extent::new(extent.offset + part as u64, extent.len - part as u64);
            (from, len) = (from + part, len - part);
        }
    }
}
