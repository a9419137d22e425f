//! Operations that move data.

use dafs_proto::transport::{Access, LocalSegments, MemoryRef, RemoteRange, Span};
use dafs_proto::wire::{Features, Opcode, Stability};
use smallvec::SmallVec;

use crate::error::Error;
use crate::memory::registration::Hold;
use crate::memory::{Keep, RawMemory};
use crate::method::io_path::{Direction, IoPath};
use crate::method::learned::Trial;
use crate::op::list::{List, place_at};
use crate::op::terms::Terms;

/// What a transfer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferKind {
    Read,
    Write(Stability),
    Append(Stability),
    Readdir { cookie: u64, attributes: bool },
}

impl TransferKind {
    #[inline]
    pub(crate) fn direction(self) -> Direction {
        match self {
            Self::Read | Self::Readdir { .. } => Direction::Read,
            Self::Write(_) | Self::Append(_) => Direction::Write,
        }
    }

    /// What a request asks that moves one extent.
    #[inline]
    pub(crate) fn opcode(self) -> Opcode {
        match self {
            Self::Read => Opcode::Read,
            Self::Write(_) => Opcode::Write,
            Self::Append(_) => Opcode::Append,
            Self::Readdir { .. } => Opcode::Readdir,
        }
    }

    /// How the server reaches the memory.
    #[inline]
    pub(crate) fn access(self) -> Access {
        match self.direction() {
            Direction::Read => Access::REMOTE_WRITE,
            Direction::Write => Access::REMOTE_READ,
        }
    }
}

/// Moves data, cut into requests that are in flight together.
pub(crate) struct Transfer {
    pub(crate) kind: TransferKind,
    pub(crate) path: IoPath,
    pub(crate) offset: u64,
    /// Instead of `offset`, where the transfer is a list.
    pub(crate) list: Option<Box<List>>,
    pub(crate) len: usize,
    /// Bytes cut into requests so far.
    pub(crate) cut: usize,
    /// All of the list is read with its gaps, so many bytes, into one bounce buffer, and taken out of there; 0 where it is not.
    pub(crate) sieved: usize,
    /// Something was cut: an empty transfer is one request.
    pub(crate) begun: bool,
    /// Its requests may write the same bytes: one is in flight at a time, so that the later ones win.
    pub(crate) in_order: bool,
    /// Parts that are sent again in a new session.
    pub(crate) redo: Vec<(usize, usize)>,
    /// Where the data ends: the end of the first part that was short.
    pub(crate) short_at: usize,
    /// Why a part of a write failed before which others were sent. It counts where none of those is written.
    pub(crate) failure: Option<Box<Error>>,
    pub(crate) memory: SmallVec<[RawMemory; 1]>,
    /// Where each piece of the memory begins, when there are many and a list does not know it.
    pub(crate) starts: Vec<usize>,
    pub(crate) ranges: SmallVec<[RemoteRange; 1]>,
    pub(crate) holds: SmallVec<[Hold; 1]>,
    pub(crate) keep: Keep,
    /// The memory as one that is registered for good, where the caller's is.
    pub(crate) registered: Option<MemoryRef>,
    /// Where an append went; the cookie after a readdir.
    pub(crate) position: u64,
    /// A readdir reached the end of the directory.
    pub(crate) end: bool,
    /// Data that still arrives is thrown away: its memory went back to the caller.
    pub(crate) discard: bool,
    /// Its time tells which method is the quicker.
    pub(crate) trial: Option<Trial>,
}

impl Transfer {
    /// A transfer of which nothing was sent yet.
    pub(crate) fn new(
        kind: TransferKind,
        path: IoPath,
        offset: u64,
        memory: SmallVec<[RawMemory; 1]>,
        ranges: SmallVec<[RemoteRange; 1]>,
    ) -> Self {
        Self {
            kind,
            path,
            offset,
            list: None,
            len: memory.iter().map(RawMemory::len).sum(),
            cut: 0,
            sieved: 0,
            begun: false,
            in_order: false,
            redo: Vec::new(),
            short_at: usize::MAX,
            failure: None,
            memory,
            starts: Vec::new(),
            ranges,
            holds: SmallVec::new(),
            keep: Keep::None,
            registered: None,
            position: 0,
            end: false,
            discard: false,
            trial: None,
        }
    }

    /// A transfer without memory, which takes the replies to one that was given up.
    pub(crate) fn discarding(kind: TransferKind) -> Self {
        let none = Self::new(kind, IoPath::Inline, 0, SmallVec::new(), SmallVec::new());
        Self { begun: true, discard: true, ..none }
    }

    /// It goes on in a new session, whose server may know less, and move less at once, than the one that it was decided for.
    pub(crate) fn on_terms(&mut self, terms: &Terms) {
        let Some(list) = &mut self.list else { return };
        list.each_part |= !terms.has(Features::LISTS);
        list.explanations.take_if(|_| !terms.has(Features::EXPLAIN));
        if self.sieved > terms.welcome.transfer_size_max as usize {
            self.sieved = 0;
        }
    }

    pub(crate) fn has_more(&self) -> bool {
        !self.redo.is_empty() || self.cut < self.len || !self.begun
    }

    pub(crate) fn stop(&mut self) {
        self.redo.clear();
        self.cut = self.len;
        self.begun = true;
    }

    pub(crate) fn direction(&self) -> Direction {
        self.kind.direction()
    }

    /// The next part of at most `max` bytes: where it begins and its length. Only after [`Transfer::has_more`].
    pub(crate) fn next_part(&self, max: usize) -> (usize, usize) {
        match self.redo.last() {
            Some(&(at, len)) => (at, len.min(max)),
            None => (self.cut, (self.len - self.cut).min(max)),
        }
    }

    /// The part that [`Transfer::next_part`] named is on its way.
    pub(crate) fn on_part_sent(&mut self, at: usize, len: usize) {
        self.begun = true;
        match self.redo.pop() {
            Some((_, whole)) if whole > len => self.redo.push((at + len, whole - len)),
            Some(_) => {}
            None => self.cut += len,
        }
    }

    /// A part was answered with this many bytes.
    pub(crate) fn on_count(&mut self, at: usize, len: usize, count: usize) {
        if count < len {
            self.short_at = self.short_at.min(at + count);
            // What lies beyond the end need not be asked for. What is asked for again may lie before it.
            let follows_file = self.list.as_ref().is_none_or(|list| list.is_ascending());
            if self.direction() == Direction::Read && follows_file {
                let before = self.short_at;
                self.redo.retain(|(at, _)| *at < before);
                self.cut = self.len;
                self.begun = true;
            }
        }
    }

    /// A part of a write failed: what is written before it counts. Parts before it that are not sent are not.
    pub(crate) fn on_failed(&mut self, at: usize, error: Error) {
        let unsent = self.redo.iter().map(|(at, _)| *at).min();
        self.short_at = self.short_at.min(unsent.unwrap_or(at)).min(at);
        self.failure.get_or_insert_with(|| Box::new(error));
    }

    /// Bytes of the file that a part's request names.
    pub(crate) fn asked_len(&self, len: usize) -> usize {
        if self.sieved > 0 { self.sieved } else { len }
    }

    /// Bytes moved, counted from the beginning without a gap.
    pub(crate) fn count(&self) -> usize {
        let count = self.short_at.min(self.len);
        self.list.as_ref().map_or(count, |list| list.original_count(count))
    }

    /// Where the file ended, when a read met that.
    pub(crate) fn file_end(&self) -> Option<u64> {
        match &self.list {
            Some(list) => (list.end != u64::MAX).then_some(list.end),
            None => (self.count() < self.len).then(|| self.offset + self.count() as u64),
        }
    }

    /// This side fetches what it reads by RDMA, when its requests are answered.
    pub(crate) fn fetches(&self) -> bool {
        self.path == IoPath::ClientInitiated && self.kind == TransferKind::Read && !self.discard
    }

    /// Where the byte at a place lies in the file.
    pub(crate) fn offset_at(&self, at: usize) -> u64 {
        self.list.as_ref().map_or(self.offset + at as u64, |list| list.offset(at))
    }

    /// The memory of a part, for RDMA that this side posts.
    pub(crate) fn local(&self, at: usize, len: usize) -> LocalSegments {
        match &self.registered {
            Some(memory) => memory.slice(at, len).into_iter().collect(),
            None => {
                let parts = self.parts(at, len);
                parts.filter_map(|(index, from, len)| self.memory[index].lend().slice(from, len)).collect()
            }
        }
    }

    /// The memory of a part, for copies.
    pub(crate) fn spans(&self, at: usize, len: usize) -> impl Iterator<Item = Span<'_>> {
        self.parts(at, len).filter_map(|(index, from, len)| self.memory[index].span().slice(from, len))
    }

    /// Parts of the memory that a part covers: index, and bytes in it.
    pub(crate) fn parts(&self, at: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        // Memory may be in many pieces, and cut into many requests.
        let (first, mut start) = match &self.list {
            Some(list) => list.segment_at(at),
            None => place_at(&self.starts, at),
        };
        let end = at + len;
        let segments = self.memory.iter().enumerate().skip(first);
        segments
            .map(move |(index, memory)| {
                let begin = start;
                start += memory.len();
                (index, begin, start)
            })
            .take_while(move |(_, begin, _)| *begin < end)
            .filter_map(move |(index, begin, memory_end)| {
                let (from, to) = (begin.max(at), memory_end.min(end));
                (from < to).then(|| (index, from - begin, to - from))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CLI-170]
    #[test]
    fn read_that_meets_the_end_still_asks_again_for_what_lies_before() {
        let mut memory = [0; 40];
        let memory = SmallVec::from_buf([RawMemory::of_mut(&mut memory)]);
        let mut read = Transfer::new(TransferKind::Read, IoPath::Inline, 0, memory, SmallVec::new());
        while read.has_more() {
            read.on_part_sent(read.cut, 10);
        }
        read.redo = vec![(0, 10), (10, 10), (20, 10), (30, 10)];
        let (at, len) = read.next_part(10);
        read.on_part_sent(at, len);
        read.on_count(30, 10, 5);
        assert_eq!((read.has_more(), read.next_part(10)), (true, (20, 10)));
        read.on_part_sent(20, 10);
        read.on_count(20, 10, 0);
        assert_eq!((read.count(), &read.redo[..]), (20, &[(0, 10), (10, 10)][..]));
    }
}
