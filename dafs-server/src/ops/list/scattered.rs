//! Contiguous reads and writes of many ranges of the client's memory: moved at once if the memory is mapped and the data is cached. A
//! separate list for them would take longer than copying some hundred bytes for each range.

use dafs_proto::extent::Extent;
use dafs_proto::transport::{Access, RemoteRange, Span};
use smallvec::SmallVec;

use super::Worker;
use crate::storage::{NodeId, NowError};
use crate::worker::connections::memory::with_remote_memory;
use crate::worker::flight::Call;
use crate::worker::flight::answer::Problem;
use crate::worker::flight::moving::COPIED_PART_MAX;
use crate::worker::flight::transfer::TransferKind;

impl Worker {
    /// Moves all of an extent, and returns the bytes moved; `None` where a list has to do it: then what was moved is moved again.
    pub(crate) fn move_scattered(
        &mut self,
        call: &Call,
        (kind, node): (TransferKind, NodeId),
        extent: Extent,
        ranges: &[RemoteRange],
    ) -> Result<Option<usize>, Problem> {
        let (Some(first), Some(cover)) = (ranges.first(), RemoteRange::covering(ranges)) else {
            return Ok(None);
        };
        let is_one_region = ranges.iter().all(|range| range.key == first.key);
        if !is_one_region || extent.end().is_none() || self.sched.is_divided(extent.len, self.now) {
            return Ok(None);
        }
        // Writes of small pieces are copied together first.
        let is_small = extent.len / ranges.len() as u64 <= COPIED_PART_MAX as u64;
        let access = match kind {
            TransferKind::Read => Access::REMOTE_WRITE,
            TransferKind::Write if !is_small => Access::REMOTE_READ,
            TransferKind::Write | TransferKind::Append => return Ok(None),
        };
        let storage = &mut *self.storage;
        let connection = self.connections.find_mut(call.connection);
        let moved = with_remote_memory(connection, &cover, access, |memory| {
            let piece = |range: &RemoteRange| {
                memory
                    .slice((range.offset - cover.offset) as usize, range.len as usize)
                    .unwrap_or(Span::EMPTY)
            };
            if kind != TransferKind::Read {
                let pieces: SmallVec<[Span<'_>; 128]> = ranges.iter().map(piece).collect();
                return storage.write_now(node, extent.offset, &pieces).map(Some);
            }
            let mut at = extent.offset;
            let place = |range: &RemoteRange| {
                let offset = at;
                at += range.len;
                (offset, piece(range))
            };
            let pieces: SmallVec<[(u64, Span<'_>); 128]> = ranges.iter().map(place).collect();
            let whole = storage.read_pieces(node, extent.len as usize, &|index| pieces.get(index).copied());
            Ok((whole == pieces.len()).then_some(extent.len as usize))
        })?;
        match moved {
            Some(Ok(Some(count))) => {
                self.sched.turn().on_moved(count);
                // The list finds out why not all of it was written.
                Ok((count as u64 == extent.len).then_some(count))
            }
            Some(Err(NowError::Failed(status))) => Err(status.into()),
            Some(Ok(None) | Err(NowError::WouldBlock)) | None => Ok(None),
        }
    }
}
