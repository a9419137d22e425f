//! The requests of one transfer: how much each may move, and what its reply does to the caller's memory.

use dafs_proto::session::SessionFault;
use dafs_proto::transport::Span;
use dafs_proto::wire::{ReadReply, ReaddirReply, Stability, Verifier, WriteReply};
use smallvec::SmallVec;

use crate::core::{Broken, Request, Terms};
use crate::io_path::IoPath;
use crate::memory::{Keep, Staging};
use crate::node::Node;
use crate::op::{Transfer, TransferKind};

/// How much one request of a transfer may move, and where it is staged; `None` when there is no buffer to stage in now.
pub(crate) fn piece_limit(
    transfer: &Transfer,
    terms: &Terms,
    staging: &mut Option<Staging>,
) -> Option<(usize, Option<u16>)> {
    let transfer_max = terms.welcome.transfer_size_max as usize;
    match (transfer.path, transfer.kind) {
        (_, TransferKind::Readdir { .. }) => Some((transfer.len, None)),
        (IoPath::Inline, TransferKind::Read) => Some((terms.read_inline_max as usize, None)),
        (IoPath::Inline, _) => Some((terms.write_inline_max as usize, None)),
        (IoPath::Direct | IoPath::DirectRegister, _) => Some((transfer_max, None)),
        (IoPath::Staged, _) => {
            let pool = staging.as_mut()?;
            let chunk = pool.take()?;
            let whole = pool.chunk_size().min(transfer_max);
            let size = match transfer.kind {
                TransferKind::Write(_) if terms.staging_overlaps => whole.min(overlapped_size(transfer.cut)),
                _ => whole,
            };
            Some((size, Some(chunk)))
        }
    }
}

/// Bytes of the next staged piece after `cut`, where the server works on one piece while the next is copied: the first is small, so that it
/// begins soon; the others grow, because copying is quicker than writing.
fn overlapped_size(cut: usize) -> usize {
    cut.clamp(OVERLAPPED_SIZE_MIN, OVERLAPPED_SIZE_MAX)
}

const OVERLAPPED_SIZE_MIN: usize = 16 * 1024;
const OVERLAPPED_SIZE_MAX: usize = 64 * 1024;

/// Cuts a piece where its list of ranges would become too long for one request.
pub(crate) fn trim_to_segments(transfer: &Transfer, at: usize, len: usize, segments_max: usize) -> usize {
    if transfer.memory.len() <= segments_max {
        return len;
    }
    transfer.parts(at, len).take(segments_max).map(|(_, _, part)| part).sum()
}

/// The reply to a piece of a transfer.
pub(crate) fn on_data(
    transfer: &mut Transfer,
    body: &[u8],
    payload: Span<'_>,
    request: &Request,
    staged: Option<Span<'_>>,
    target: Option<&Node>,
) -> Result<(), Broken> {
    let too_much = |what, value: usize, limit: usize| SessionFault::TooMuch {
        what,
        value: value as u64,
        limit: limit as u64,
    };
    match transfer.kind {
        TransferKind::Read | TransferKind::Readdir { .. } => {
            let count = if let TransferKind::Read = transfer.kind {
                let reply = ReadReply::decode(body)?;
                transfer.end |= reply.end_of_file;
                reply.count as usize
            } else {
                let reply = ReaddirReply::decode(body)?;
                transfer.end = reply.end;
                transfer.position = reply.cookie;
                reply.count as usize
            };
            if transfer.discard {
                return Ok(());
            }
            if count > request.len {
                return Err(too_much("the count of a read", count, request.len).into());
            }
            let in_payload = if transfer.path == IoPath::Inline { count } else { 0 };
            if payload.len() != in_payload {
                return Err(too_much("the payload of a read's reply", payload.len(), in_payload).into());
            }
            if transfer.path == IoPath::Inline || transfer.path == IoPath::Staged {
                scatter(transfer, request.at, count, staged.unwrap_or(payload));
            }
            transfer.on_count(request.at, request.len, count);
        }
        TransferKind::Write(_) | TransferKind::Append(_) => {
            let reply = WriteReply::decode(body)?;
            let count = reply.count as usize;
            if transfer.discard {
                return Ok(());
            }
            if count > request.len {
                return Err(too_much("the count of a write", count, request.len).into());
            }
            if let TransferKind::Append(_) = transfer.kind {
                transfer.position = reply.offset;
            }
            transfer.verifier = reply.verifier;
            if let (Stability::Unstable, Some(node)) = (reply.stability, target) {
                let start = match transfer.kind {
                    TransferKind::Append(_) => reply.offset,
                    _ => transfer.offset + request.at as u64,
                };
                node.unstable().add(reply.verifier, start..start.saturating_add(count as u64));
            }
            transfer.on_count(request.at, request.len, count);
        }
    }
    Ok(())
}

/// A transfer without memory.
pub(crate) fn void() -> Transfer {
    Transfer {
        kind: TransferKind::Read,
        path: IoPath::Inline,
        offset: 0,
        len: 0,
        cut: 0,
        begun: true,
        redo: Vec::new(),
        short_at: usize::MAX,
        memory: SmallVec::new(),
        ranges: SmallVec::new(),
        holds: SmallVec::new(),
        keep: Keep::None,
        position: 0,
        end: false,
        verifier: Verifier(0),
        discard: true,
    }
}

/// Copies data that arrived into the memory of a transfer.
fn scatter(transfer: &Transfer, at: usize, count: usize, source: Span<'_>) {
    let mut done = 0;
    for (index, from, len) in transfer.parts(at, count) {
        let target = transfer.memory[index].span();
        if let (Some(target), Some(source)) = (target.slice(from, len), source.slice(done, len)) {
            target.copy_from(source);
        }
        done += len;
    }
}
