//! A batch among the operations of a session: its reads and writes, cut into requests, and what became of them.

use std::time::Duration;

use std::sync::Arc;

use dafs_proto::extent::Extent;
use dafs_proto::transport::{PostError, RemoteRange, Span, part_of};
use dafs_proto::wire::{
    BATCH_MAX, BATCH_OPERATION_SIZE, BATCH_RESULT_SIZE, BatchFlags, BatchNotice, BatchOperation, BatchReply,
    BatchRequest, BatchResult, EXTENT_SIZE, Header, LIST_MAX, Method, REMOTE_RANGE_SIZE, ShortLists,
    Stability, Status, Verifier, WireError, WireRange, decode_batch_results, decode_noticed_results,
    lists_size,
};
use smallvec::SmallVec;

use crate::handle::node::Node;
use crate::memory::registration::Hold;
use crate::memory::{Keep, RawMemory, RegisteredBuf};
use crate::op::body::too_much;
use crate::op::draft::{Draft, HEAD_ROOM, Outlet};
use crate::op::parts::overlapped_size;
use crate::op::request::{Broken, Request};
use crate::op::terms::Terms;

/// How a program with many operations in flight wants to hear of their ends: the hints of DAFS 1.0's batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHints {
    /// Operations that should have ended before the program is told; at least one.
    pub completions: usize,
    /// Time after which it is told of fewer, counted from the first end.
    pub window: Duration,
}

/// Reads and writes, some in each request.
pub(crate) struct BatchWork {
    pub(crate) entries: Vec<Entry>,
    /// The first that was never sent.
    pub(crate) sent: usize,
    /// Requests that are sent again in a new session: the first entry, and how many.
    pub(crate) redo: Vec<(usize, usize)>,
    pub(crate) hints: Option<BatchHints>,
    pub(crate) expedite: bool,
    pub(crate) holds: SmallVec<[Hold; 1]>,
    pub(crate) keep: Keep,
    /// Registered buffers of the caller, and the operations that they are lent to.
    pub(crate) lent: Vec<(usize, RegisteredBuf)>,
    /// What the server reaches in place of the callers' memory.
    pub(crate) bounce: Option<Bounce>,
    /// Entries of which a notice told, not collected.
    pub(crate) told: Vec<usize>,
    /// Bytes that travel in messages and were never asked for.
    pub(crate) inline_left: usize,
    /// Bytes by way of copies that were asked for, and the first entry whose data may be to be copied before it is.
    pub(crate) copied: usize,
    pub(crate) written: usize,
}

/// Registered memory in place of what cannot be registered, or is better copied.
pub(crate) struct Bounce {
    pub(crate) buffer: RegisteredBuf,
    pub(crate) range: RemoteRange,
    /// The callers' memory, in the order of its places there, and where each piece begins.
    pub(crate) pieces: Vec<(usize, RawMemory)>,
}

/// Bytes of a piece, on average, from which the pieces of a batch are sent from where they are.
const GATHERED_PIECE_MIN: usize = 1024;

/// Batches that copy no more than this are not cut for it: their requests cost more than is won by working at once.
const OVERLAPPED_MIN: usize = 128 << 10;

impl Bounce {
    /// Bytes that are copied in all.
    fn size(&self) -> usize {
        self.pieces.last().map_or(0, |(place, piece)| place + piece.len())
    }

    /// Bytes of an entry that it has.
    fn len_of(&self, entry: &Entry) -> usize {
        let own = entry.lists.segments.iter().any(|[key, ..]| *key == self.range.key.0);
        if own { entry.len } else { 0 }
    }

    /// Copies what belongs to an entry: to the caller's memory, or from there.
    #[allow(clippy::cast_possible_truncation, reason = "within memory of this process")]
    fn copy(&self, entry: &Entry) {
        for [key, offset, len] in &entry.lists.segments {
            let Some(begin) = offset.checked_sub(self.range.offset).filter(|_| *key == self.range.key.0)
            else {
                continue;
            };
            let (begin, end) = (begin as usize, (begin + len) as usize);
            let first = self.pieces.partition_point(|(place, piece)| place + piece.len() <= begin);
            for (place, piece) in self.pieces[first..].iter().take_while(|(place, _)| *place < end) {
                let from = begin.max(*place);
                let len = end.min(place + piece.len()).saturating_sub(from);
                let own = piece.span().slice(from - place, len);
                let (Some(own), Some(copied)) = (own, self.buffer.span().slice(from, len)) else { continue };
                if entry.write { copied.copy_from(own) } else { own.copy_from(copied) }
            }
        }
    }
}

/// A read or write, or as much of one as fits a request.
pub(crate) struct Entry {
    /// Whose part it is: a place among the operations of the caller.
    pub(crate) operation: usize,
    pub(crate) node: Arc<Node>,
    pub(crate) write: bool,
    pub(crate) stability: Stability,
    pub(crate) lists: ShortLists,
    pub(crate) len: usize,
    /// Of what travels in the messages: the caller's memory.
    pub(crate) memory: Option<SmallVec<[RawMemory; 1]>>,
    pub(crate) result: Option<BatchResult>,
}

/// What bounds one request of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes of a request's payload.
    pub(crate) payload_max: usize,
    /// Bytes of a reply's payload.
    pub(crate) reply_max: usize,
    /// Bytes moved.
    pub(crate) len_max: usize,
    /// Whether the server works on one request while this side copies for another.
    pub(crate) overlaps: bool,
}

impl Bounds {
    pub(crate) fn of(terms: &Terms) -> Self {
        Self {
            payload_max: terms.send_payload_max as usize,
            reply_max: terms.read_inline_max as usize,
            len_max: terms.welcome.transfer_size_max as usize,
            overlaps: terms.bounce_overlaps,
        }
    }
}

impl Entry {
    /// Bytes of a request that describe it.
    fn size(&self) -> usize {
        BATCH_OPERATION_SIZE + lists_size(self.lists.extents.len(), self.lists.segments.len())
    }

    /// Bytes of it in the request, or in the reply.
    fn data_len(&self, write: bool) -> usize {
        if self.memory.is_some() && self.write == write { self.len } else { 0 }
    }
}

impl BatchWork {
    /// Nothing of it is to be gathered any more; whether the server is to be told.
    pub(crate) fn hurry(&mut self) -> bool {
        // What is not sent yet says so itself.
        self.hints.is_some() && !std::mem::replace(&mut self.expedite, true)
    }

    /// The operations of the entries that notices told of.
    pub(crate) fn take_told(&mut self) -> Vec<usize> {
        let told = std::mem::take(&mut self.told);
        told.into_iter().map(|at| self.entries[at].operation).collect()
    }

    /// The session is over: no peer reaches its memory any more.
    pub(crate) fn revoke(&mut self) {
        self.holds.drain(..).for_each(Hold::revoke);
        // What travels in messages nobody else reaches.
        let mut direct = vec![false; self.entries.last().map_or(0, |entry| entry.operation + 1)];
        for entry in self.entries.iter().filter(|entry| entry.memory.is_none()) {
            direct[entry.operation] = true;
        }
        let is_direct = |place: usize| direct.get(place).is_some_and(|direct| *direct);
        if let Keep::Many(keeps) = &self.keep {
            let reached = keeps.iter().enumerate().filter(|(place, _)| is_direct(*place));
            reached.for_each(|(_, keep)| keep.revoke());
        }
        let reached = self.lent.iter().filter(|(place, _)| is_direct(*place));
        reached.for_each(|(_, buffer)| buffer.revoke());
        if let Some(bounce) = &self.bounce {
            bounce.buffer.revoke();
        }
    }

    pub(crate) fn has_more(&self) -> bool {
        !self.redo.is_empty() || self.sent < self.entries.len()
    }

    pub(crate) fn stop(&mut self) {
        self.redo.clear();
        self.sent = self.entries.len();
    }

    /// The entries of the next request. Only after [`BatchWork::has_more`].
    pub(crate) fn next_part(&self, bounds: &Bounds) -> (usize, usize) {
        let (from, most) = match self.redo.last() {
            Some(&(from, count)) => (from, count),
            None => (self.sent, self.entries.len() - self.sent),
        };
        let most = most.min(BATCH_MAX);
        let (mut size, mut reply, mut len, mut extents, mut ranges, mut copied) = (0, 0, 0, 0, 0, 0);
        let many = self.bounce.as_ref().is_some_and(|bounce| bounce.size() > OVERLAPPED_MIN);
        let copied_max = if many && bounds.overlaps { overlapped_size(self.copied) } else { usize::MAX };
        let fits = |entry: &&Entry| {
            size += entry.size() + entry.data_len(true);
            reply += BATCH_RESULT_SIZE + entry.data_len(false);
            len += entry.len;
            extents += entry.lists.extents.len();
            ranges += entry.lists.segments.len();
            copied += self.copied_len(entry);
            copied <= copied_max
                && size <= bounds.payload_max
                && reply <= bounds.reply_max
                && len <= bounds.len_max
                && extents <= LIST_MAX
                && ranges <= LIST_MAX
        };
        let entries = self.entries.get(from..).unwrap_or_default();
        // One entry was cut so that it fits.
        (from, entries.iter().take(most).take_while(fits).count().max(1))
    }

    pub(crate) fn on_part_sent(&mut self, from: usize, count: usize) {
        match self.redo.pop() {
            Some((_, all)) if all > count => self.redo.push((from + count, all - count)),
            Some(_) => {}
            None => {
                self.sent = from + count;
                let sent = self.entries.get(from..from + count).unwrap_or_default();
                let inline = sent.iter().filter(|entry| entry.memory.is_some());
                self.inline_left -= inline.map(|entry| entry.len).sum::<usize>();
                self.copied += sent.iter().map(|entry| self.copied_len(entry)).sum::<usize>();
            }
        }
    }

    fn copied_len(&self, entry: &Entry) -> usize {
        self.bounce.as_ref().map_or(0, |bounce| bounce.len_of(entry))
    }

    /// Some entries are about to be asked for: what they write is copied to where the server reaches it, once. Returns whether any was.
    pub(crate) fn copy_written(&mut self, from: usize, count: usize) -> bool {
        let Some(bounce) = &self.bounce else { return false };
        let entries = self.entries.get(from.max(self.written)..from + count).unwrap_or_default();
        entries.iter().filter(|entry| entry.write).for_each(|entry| bounce.copy(entry));
        self.written = self.written.max(from + count);
        entries.iter().any(|entry| bounce.len_of(entry) > 0)
    }

    /// Data of some entries that travels in their request, in its order.
    fn written(&self, from: usize, count: usize) -> impl Iterator<Item = Span<'_>> {
        let entries = self.entries.get(from..from + count).unwrap_or_default();
        let inline = entries.iter().filter(|entry| entry.write).filter_map(|entry| entry.memory.as_ref());
        inline.flatten().map(RawMemory::span)
    }

    /// The request for some entries: its body's fields, and what describes them.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "at most BATCH_MAX; hints that are longer mean the same"
    )]
    fn encode(&self, from: usize, count: usize) -> (BatchRequest, Vec<u8>) {
        let entries = self.entries.get(from..from + count).unwrap_or_default();
        let mut payload = Vec::with_capacity(entries.iter().map(Entry::size).sum());
        for entry in entries {
            let operation = BatchOperation {
                handle: entry.node.handle(),
                write: entry.write,
                method: if entry.memory.is_some() { Method::Inline } else { Method::Direct },
                stability: entry.stability,
                lists: entry.lists.clone(),
            };
            operation.encode(&mut payload);
        }
        let mut flags = BatchFlags::empty();
        flags.set(BatchFlags::NOTIFY, self.hints.is_some() || self.expedite);
        flags.set(BatchFlags::EXPEDITE, self.expedite);
        let (window_us, completions) = self.hints.map_or((0, 0), |hints| {
            let window = u32::try_from(hints.window.as_micros()).unwrap_or(u32::MAX);
            (window, u32::try_from(hints.completions).unwrap_or(u32::MAX))
        });
        let data = entries.iter().map(|entry| entry.data_len(true)).sum::<usize>() as u32;
        (BatchRequest { operations: count as u32, flags, window_us, completions, data }, payload)
    }

    /// Sends a request for some entries.
    pub(crate) fn send(
        &self,
        outlet: &mut impl Outlet,
        header: Header,
        request: &Request,
    ) -> Result<(), PostError> {
        let (body, mut described) = self.encode(request.at, request.len);
        let payload_len = described.len() + body.data as usize;
        let mut head = HEAD_ROOM;
        let draft = Draft::of(&mut head, header, &body.bytes());
        // Telling the kernel of many small pieces takes longer than copying them.
        let pieces = self.written(request.at, request.len).count();
        let described = std::iter::once(Span::from_mut(&mut described));
        let payload = described.chain(self.written(request.at, request.len));
        if body.data as usize >= pieces.max(1) * GATHERED_PIECE_MIN && outlet.prefers_gathered(payload_len)? {
            return outlet.send_gathered(draft, &payload.collect::<Vec<_>>());
        }
        outlet.send(draft, payload_len, |room| {
            room.gather(payload);
        })
    }

    /// The reply to a request for some entries.
    pub(crate) fn on_reply(
        &mut self,
        request: &Request,
        body: &[u8],
        payload: Span<'_>,
    ) -> Result<(), Broken> {
        let reply = BatchReply::decode(body)?;
        if reply.operations as usize != request.len {
            return Err(too_much("results of a batch", reply.operations as usize, request.len).into());
        }
        let described = request.len * BATCH_RESULT_SIZE;
        let data = payload.len().checked_sub(described).filter(|data| *data == reply.data as usize);
        let (Some(data), Some(results)) = (data, payload.slice(0, described)) else {
            return Err(too_much("the payload of a batch's reply", payload.len(), described).into());
        };
        let mut left = payload.slice(described, data).unwrap_or(Span::EMPTY);
        let results = decode_batch_results(&results.to_vec(), request.len)?;
        for (index, result) in results.into_iter().enumerate() {
            self.take_result(request.at + index, result)?;
            if let Some(entry) = self.entries.get(request.at + index) {
                left = entry.take_data(&result, left)?;
                if let Some(bounce) = self.bounce.as_ref().filter(|_| !entry.write && result.count > 0) {
                    bounce.copy(entry);
                }
            }
        }
        match left.len() {
            0 => Ok(()),
            extra => Err(too_much("data behind what a batch read", extra, 0).into()),
        }
    }

    /// Some entries of a request have ended.
    pub(crate) fn on_notice(
        &mut self,
        request: &Request,
        notice: &BatchNotice,
        payload: Span<'_>,
    ) -> Result<(), Broken> {
        for (index, result) in decode_noticed_results(&payload.to_vec(), notice, request.len)? {
            self.take_result(request.at + index, result)?;
        }
        Ok(())
    }

    fn take_result(&mut self, at: usize, result: BatchResult) -> Result<(), Broken> {
        let Some(entry) = self.entries.get_mut(at) else { return Ok(()) };
        if entry.result.is_none() {
            // By a reply too: the requests behind it may take long.
            self.told.push(at);
        }
        if result.count as usize > entry.len {
            return Err(too_much("the count of an operation", result.count as usize, entry.len).into());
        }
        let ends = !entry.write && result.status == Status::OK;
        if ends && (result.count as usize) < entry.len && result.value == BatchResult::NOT_ENDED {
            return Err(Broken::from(WireError::Invalid {
                what: "a short read before the end of its file",
                value: 0,
            }));
        }
        // A reply repeats what a notice has told; a commit may have come between.
        let is_new = entry.result != Some(result);
        if is_new && entry.write && result.status == Status::OK && entry.stability == Stability::Unstable {
            let mut left = u64::from(result.count);
            for extent in &entry.lists.extents {
                let len = extent.len.min(left);
                left -= len;
                if len > 0 {
                    let range = extent.offset..extent.offset.saturating_add(len);
                    entry.node.unstable().add(Verifier(result.value), range);
                }
            }
        }
        entry.result = Some(result);
        Ok(())
    }
}

impl Entry {
    /// Takes what an inline read got from the beginning of the data; returns the rest.
    #[allow(clippy::cast_possible_truncation, reason = "within memory of this process")]
    fn take_data<'a>(&self, result: &BatchResult, data: Span<'a>) -> Result<Span<'a>, Broken> {
        let Some(memory) = self.memory.as_ref().filter(|_| !self.write && result.count > 0) else {
            return Ok(data);
        };
        let (mut taken, mut place) = (0, 0);
        for extent in &self.lists.extents {
            let got = extent.len_before(result.value) as usize;
            let Some(source) = data.slice(taken, got) else {
                return Err(too_much("the data of a batch's reply", taken + got, data.len()).into());
            };
            source.scatter(part_of(memory.iter().map(RawMemory::span), place, got));
            taken += got;
            place += extent.len as usize;
        }
        if taken != result.count as usize {
            return Err(too_much("the count of an operation", result.count as usize, taken).into());
        }
        Ok(data.slice(taken, data.len() - taken).unwrap_or(Span::EMPTY))
    }
}

/// Cuts what one operation moves into entries that fit a request each.
pub(crate) fn cut(
    extents: &[Extent],
    ranges: &[WireRange],
    bounds: &Bounds,
) -> SmallVec<[(ShortLists, usize); 1]> {
    let room = bounds.payload_max.saturating_sub(BATCH_OPERATION_SIZE);
    if let ([extent], [range]) = (extents, ranges)
        && let Ok(len) = usize::try_from(extent.len)
        && extent.len == range[2]
        && (1..=bounds.len_max).contains(&len)
    {
        let lists =
            ShortLists { extents: SmallVec::from_buf([*extent]), segments: SmallVec::from_buf([*range]) };
        return SmallVec::from_buf([(lists, len)]);
    }
    let pair = EXTENT_SIZE + REMOTE_RANGE_SIZE;
    let mut cut = SmallVec::new();
    let mut current: (ShortLists, usize) = Default::default();
    let (mut extents, mut ranges) = (extents.iter().copied(), ranges.iter().copied());
    let (mut extent, mut range) = (Extent::default(), [0; 3]);
    loop {
        while extent.len == 0 {
            match extents.next() {
                Some(next) => extent = next,
                None => break,
            }
        }
        while range[2] == 0 {
            match ranges.next() {
                Some(next) => range = next,
                None => break,
            }
        }
        if extent.len == 0 || range[2] == 0 {
            break;
        }
        let (lists, moved) = &mut current;
        let size = lists_size(lists.extents.len(), lists.segments.len()) + pair;
        let is_full = size > room || lists.extents.len() >= LIST_MAX || lists.segments.len() >= LIST_MAX;
        if *moved == bounds.len_max || (is_full && *moved > 0) {
            cut.push((std::mem::take(lists), std::mem::take(moved)));
        }
        let len = extent.len.min(range[2]).min((bounds.len_max - *moved) as u64);
        match lists.extents.last_mut() {
            Some(last) if last.offset + last.len == extent.offset => last.len += len,
            _ => lists.extents.push(Extent::new(extent.offset, len)),
        }
        match lists.segments.last_mut() {
            Some(last) if last[0] == range[0] && last[1] + last[2] == range[1] => last[2] += len,
            _ => lists.segments.push([range[0], range[1], len]),
        }
        *moved += usize::try_from(len).unwrap_or(0);
        extent = Extent::new(extent.offset + len, extent.len - len);
        range = [range[0], range[1] + len, range[2] - len];
    }
    if current.1 > 0 {
        cut.push(current);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_is_cut_where_a_request_is_full_and_loses_no_byte() {
        let extents: Vec<Extent> = (0..50).map(|i| Extent::new(i * 100, 10 + i % 3)).collect();
        let total: u64 = extents.iter().map(|extent| extent.len).sum();
        let ranges = [[1, 0, 33], [1, 1000, 0], [2, 500, total - 33]];
        for (payload_max, len_max) in [(10_000, 10_000), (200, 10_000), (10_000, 37), (100, 1), (64, 10_000)]
        {
            let bounds = Bounds { payload_max, reply_max: 1600, len_max, overlaps: false };
            let (mut file, mut memory) = (Vec::new(), Vec::new());
            for (ShortLists { extents, segments: ranges }, len) in cut(&extents, &ranges, &bounds) {
                assert!(BATCH_OPERATION_SIZE + lists_size(extents.len(), ranges.len()) <= payload_max);
                assert!(len <= len_max && len > 0);
                assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), len as u64);
                assert_eq!(ranges.iter().map(|r| r[2]).sum::<u64>(), len as u64);
                file.extend(extents.iter().flat_map(|e| e.offset..e.offset + e.len));
                memory.extend(ranges.iter().flat_map(|r| (r[1]..r[1] + r[2]).map(|at| (r[0], at))));
            }
            assert!(file.iter().copied().eq(extents.iter().flat_map(|e| e.offset..e.offset + e.len)));
            assert!(
                memory.into_iter().eq(ranges.iter().flat_map(|r| (r[1]..r[1] + r[2]).map(|at| (r[0], at))))
            );
        }
        assert!(
            cut(&[], &[], &Bounds { payload_max: 100, reply_max: 16, len_max: 1, overlaps: false })
                .is_empty()
        );
    }
}
