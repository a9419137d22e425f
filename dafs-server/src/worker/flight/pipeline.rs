//! The chunks of one transfer: which of them are where, and what may happen next. Pure: no memory, no I/O.
//!
//! ```text
//! read:   begin ─▶ Storage ─▶ Post ─▶ Rdma ─▶ gone        mapped memory: gone after Storage
//! write:  begin ─▶ Post ─▶ Rdma ─▶ Fetched ─▶ Storage ─▶ gone        append: gone after Rdma
//! ```
//!
//! Up to `depth` chunks are in progress at once, so that storage works on some while RDMA works on others. They begin in the order of
//! the file; a write's are given to storage in that order too. They end in any.

use dafs_proto::wire::Status;
use smallvec::SmallVec;

use super::transfer::TransferKind;
use crate::worker::sched::PIPELINE_DEPTH_MAX;

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// RDMA is to be posted.
    Post,
    /// RDMA is under way.
    Rdma,
    /// The same, from a mapped window: whether all of that was there shows when it has left.
    Window,
    /// A write's data is here, and chunks before it are not yet with storage.
    Fetched,
    /// Storage reads or writes it.
    Storage,
}

/// A part of the transfer, contiguous in the file and in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Names it among those in progress.
    pub(crate) slot: u8,
    /// Its first byte, from the transfer's beginning.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) len: u64,
}

#[derive(Debug)]
struct InProgress<P> {
    chunk: Chunk,
    stage: Stage,
    passage: P,
}

/// The chunks of one transfer, and what each of them passes through.
#[derive(Debug)]
pub(crate) struct Pipeline<P> {
    kind: TransferKind,
    depth: usize,
    /// In the order of the file.
    chunks: SmallVec<[InProgress<P>; 4]>,
    /// Bytes that chunks were made of.
    begun: u64,
    /// Nothing from here on is moved: the length, or where a read found the end of the file or a write had to stop.
    end: u64,
    /// The error that comes first in the file, and where.
    error: Option<(u64, Status)>,
}

impl<P> Pipeline<P> {
    /// A transfer of `len` bytes of which nothing has begun; `depth` is at least 1, at most [`PIPELINE_DEPTH_MAX`].
    pub(crate) fn new(kind: TransferKind, len: u64, depth: usize) -> Self {
        let depth = depth.clamp(1, PIPELINE_DEPTH_MAX as usize);
        Self { kind, depth, chunks: SmallVec::new(), begun: 0, end: len, error: None }
    }

    /// The same, of which a beginning is written already.
    pub(crate) fn behind(mut self, written: u64) -> Self {
        self.begun = written.min(self.end);
        self
    }

    /// A write's bytes that storage has been given from the first on. While it works on none these are in the file.
    pub(crate) fn stored_to(&self) -> u64 {
        let waiting = self.chunks.iter().find(|other| other.stage != Stage::Storage);
        let to = waiting.map_or(self.begun, |other| other.chunk.at);
        self.error.map_or(to, |(at, _)| to.min(at)).min(self.end)
    }

    /// Where the next chunk begins and the most it may have, if one may begin now.
    pub(crate) fn next(&self) -> Option<(u64, u64)> {
        let may = self.error.is_none() && self.begun < self.end && self.chunks.len() < self.depth;
        may.then(|| (self.begun, self.end - self.begun))
    }

    /// Begins the next chunk, of `len` bytes.
    pub(crate) fn begin(&mut self, len: u64, passage: P) -> Chunk {
        let taken = |slot: &u8| self.chunks.iter().any(|other| other.chunk.slot == *slot);
        let slot = (0..u8::MAX).find(|slot| !taken(slot)).unwrap_or(u8::MAX);
        let chunk = Chunk { slot, at: self.begun, len };
        let stage = if self.kind == TransferKind::Read { Stage::Storage } else { Stage::Post };
        self.begun += len;
        self.chunks.push(InProgress { chunk, stage, passage });
        chunk
    }

    /// Chunks in progress.
    pub(crate) fn in_progress(&self) -> usize {
        self.chunks.len()
    }

    /// Nothing has begun, or is written from before.
    pub(crate) fn is_untouched(&self) -> bool {
        self.begun == 0
    }

    /// The chunk of a slot, if it is in this stage.
    pub(crate) fn chunk_in(&self, slot: u8, stage: Stage) -> Option<Chunk> {
        self.find(slot).filter(|found| found.stage == stage).map(|found| found.chunk)
    }

    /// What a chunk passes through.
    pub(crate) fn passage(&self, slot: u8) -> Option<&P> {
        self.find(slot).map(|found| &found.passage)
    }

    /// The same, to be changed.
    pub(crate) fn passage_mut(&mut self, slot: u8) -> Option<&mut P> {
        self.chunks.iter_mut().find(|other| other.chunk.slot == slot).map(|found| &mut found.passage)
    }

    /// What all chunks in progress pass through.
    pub(crate) fn into_passages(self) -> impl Iterator<Item = P> {
        self.chunks.into_iter().map(|chunk| chunk.passage)
    }

    fn find(&self, slot: u8) -> Option<&InProgress<P>> {
        self.chunks.iter().find(|other| other.chunk.slot == slot)
    }

    /// The first chunk of the file whose RDMA is to be posted.
    pub(crate) fn next_post(&self) -> Option<Chunk> {
        // After an error nothing more is fetched.
        self.chunks.iter().find(|other| other.stage == Stage::Post).map(|other| other.chunk)
    }

    /// The next chunk of a write that storage may be given.
    pub(crate) fn next_store(&self) -> Option<Chunk> {
        let next = self.chunks.iter().find(|other| other.stage != Stage::Storage)?;
        (next.stage == Stage::Fetched && next.chunk.at < self.end).then_some(next.chunk)
    }

    /// Storage has its hands on the memory of some chunk.
    pub(crate) fn in_storage(&self) -> bool {
        self.chunks.iter().any(|other| other.stage == Stage::Storage)
    }

    /// Storage is given a chunk of a write.
    pub(crate) fn storing(&mut self, slot: u8) {
        self.set(slot, Stage::Storage);
    }

    /// RDMA of a chunk was posted.
    pub(crate) fn posted(&mut self, slot: u8) {
        self.set(slot, Stage::Rdma);
    }

    /// RDMA of a chunk was posted that may find its memory gone.
    pub(crate) fn posted_window(&mut self, slot: u8) {
        self.set(slot, Stage::Window);
    }

    /// RDMA of a chunk is over; returns what it passed through where the chunk is too.
    pub(crate) fn moved(&mut self, slot: u8) -> Option<P> {
        match self.kind {
            TransferKind::Read | TransferKind::Append => self.remove(slot),
            TransferKind::Write => {
                self.set(slot, Stage::Fetched);
                None
            }
        }
    }

    /// Storage has moved `count` bytes of a chunk. `sends`: a read's now wait for RDMA; else the chunk is over, and what it passed through
    /// is returned.
    pub(crate) fn stored(&mut self, slot: u8, count: u64, sends: bool) -> Option<P> {
        let chunk = self.chunk_in(slot, Stage::Storage)?;
        if count < chunk.len {
            self.end = self.end.min(chunk.at + count);
        }
        if self.kind == TransferKind::Read && sends && count > 0 {
            if let Some(found) = self.chunks.iter_mut().find(|other| other.chunk.slot == slot) {
                found.chunk.len = count;
                found.stage = Stage::Post;
            }
            None
        } else {
            self.remove(slot)
        }
    }

    /// A chunk failed, wherever it was. What comes after it does not begin, and is not given to storage.
    pub(crate) fn failed(&mut self, slot: u8, status: Status) -> Option<P> {
        let at = self.find(slot)?.chunk.at;
        if self.error.is_none_or(|(first, _)| at < first) {
            self.error = Some((at, status));
        }
        self.remove(slot)
    }

    /// The next chunk cannot begin.
    pub(crate) fn refused(&mut self, status: Status) {
        if self.error.is_none() {
            self.error = Some((self.begun, status));
        }
    }

    /// Chunks that will not be moved any further, because one before them failed or came short: what they passed through is free.
    pub(crate) fn take_moot(&mut self) -> SmallVec<[P; 4]> {
        let end = match (self.kind, self.error) {
            (TransferKind::Read, None) => return SmallVec::new(),
            (_, Some((at, _))) => self.end.min(at),
            (_, None) => self.end,
        };
        let is_moot = |other: &InProgress<P>| {
            other.chunk.at >= end && matches!(other.stage, Stage::Post | Stage::Fetched)
        };
        let mut moot = SmallVec::new();
        while let Some(place) = self.chunks.iter().position(is_moot) {
            moot.push(self.chunks.remove(place).passage);
        }
        moot
    }

    /// What the transfer came to, once nothing of it is left to do but what order takes care of: bytes from its beginning, or the error.
    pub(crate) fn outcome(&self) -> Option<Result<u64, Status>> {
        let all_begun = self.begun >= self.end || self.error.is_some();
        // The reply of a read goes out behind its data.
        let is_over = |other: &InProgress<P>| self.kind == TransferKind::Read && other.stage == Stage::Rdma;
        if !all_begun || !self.chunks.iter().all(is_over) {
            return None;
        }
        Some(match (self.error, self.kind) {
            (Some((at, _)), TransferKind::Write) if at > 0 => Ok(at.min(self.end)),
            (Some((at, status)), _) if at < self.end || at == 0 => Err(status),
            _ => Ok(self.end),
        })
    }

    /// The bytes of a read of which all is posted, and nothing left to be known but whether its windows were there.
    pub(crate) fn departing(&self) -> Option<u64> {
        let is_posted = |other: &InProgress<P>| matches!(other.stage, Stage::Rdma | Stage::Window);
        let all_begun = self.begun >= self.end && self.error.is_none();
        let departs = self.kind == TransferKind::Read && all_begun && self.chunks.iter().all(is_posted);
        (departs && !self.chunks.is_empty()).then_some(self.end)
    }

    fn set(&mut self, slot: u8, stage: Stage) {
        if let Some(found) = self.chunks.iter_mut().find(|other| other.chunk.slot == slot) {
            found.stage = stage;
        }
    }

    fn remove(&mut self, slot: u8) -> Option<P> {
        let place = self.chunks.iter().position(|other| other.chunk.slot == slot)?;
        Some(self.chunks.remove(place).passage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each passes through what is named by where it begins.
    fn begin(pipeline: &mut Pipeline<u64>, size: u64) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        while let Some((at, left)) = pipeline.next() {
            chunks.push(pipeline.begin(left.min(size), at));
        }
        chunks
    }

    // [BUF-10] [BUF-38]
    #[test]
    fn chunks_begin_in_order_up_to_the_depth_and_cover_the_transfer() {
        for depth in [1, 2, 4] {
            let mut pipeline = Pipeline::new(TransferKind::Read, 1000, depth);
            let (mut at, mut together) = (0, 0);
            let mut waiting = Vec::new();
            while pipeline.outcome().is_none() {
                waiting.extend(begin(&mut pipeline, 300));
                together = together.max(waiting.len());
                let chunk: Chunk = waiting.remove(0);
                assert_eq!(chunk.at, at);
                at += chunk.len;
                pipeline.stored(chunk.slot, chunk.len, true);
                assert_eq!(pipeline.next_post(), Some(chunk));
                pipeline.posted(chunk.slot);
                pipeline.moved(chunk.slot);
            }
            assert_eq!((at, together), (1000, depth));
            assert_eq!(pipeline.outcome(), Some(Ok(1000)));
        }
    }

    // [BUF-39]
    #[test]
    fn read_takes_completions_out_of_order_and_ends_when_all_is_posted() {
        let mut pipeline = Pipeline::new(TransferKind::Read, 30, 3);
        let chunks = begin(&mut pipeline, 10);
        for index in [2, 0, 1] {
            assert_eq!(pipeline.outcome(), None);
            assert!(pipeline.in_storage());
            pipeline.stored(chunks[index].slot, 10, true);
            assert_eq!(pipeline.outcome(), None);
            pipeline.posted(chunks[index].slot);
        }
        // Nothing is acknowledged yet: the reply leaves behind the data.
        assert_eq!(pipeline.outcome(), Some(Ok(30)));
        assert_eq!(pipeline.in_progress(), 3);
    }

    // [BUF-46]
    #[test]
    fn read_from_windows_replies_when_posted_and_ends_when_sent() {
        let mut pipeline = Pipeline::new(TransferKind::Read, 30, 2);
        let chunks = begin(&mut pipeline, 10);
        for chunk in &chunks {
            pipeline.stored(chunk.slot, 10, true);
            pipeline.posted_window(chunk.slot);
            assert_eq!(pipeline.departing(), None, "there is more");
        }
        pipeline.moved(chunks[0].slot);
        let last = begin(&mut pipeline, 10)[0];
        assert_eq!(pipeline.departing(), None, "the last is not posted");
        pipeline.stored(last.slot, 4, true);
        pipeline.posted_window(last.slot);
        assert_eq!((pipeline.departing(), pipeline.outcome()), (Some(24), None));
        pipeline.moved(last.slot);
        pipeline.moved(chunks[1].slot);
        assert_eq!((pipeline.departing(), pipeline.outcome()), (None, Some(Ok(24))));
    }

    #[test]
    fn read_short_anywhere_ends_there_whatever_came_of_what_lies_behind() {
        for late in [false, true] {
            let mut pipeline = Pipeline::new(TransferKind::Read, 40, 3);
            let chunks = begin(&mut pipeline, 10);
            let mut order = vec![(1, 4), (2, 0)];
            if late {
                order.reverse();
            }
            for (index, count) in order {
                pipeline.stored(chunks[index].slot, count, true);
            }
            assert_eq!(pipeline.next(), None, "nothing behind the end begins");
            pipeline.stored(chunks[0].slot, 10, true);
            while let Some(chunk) = pipeline.next_post() {
                pipeline.posted(chunk.slot);
            }
            assert_eq!(pipeline.outcome(), Some(Ok(14)));
        }
        // An error behind the end is none.
        let mut pipeline = Pipeline::new(TransferKind::Read, 20, 2);
        let chunks = begin(&mut pipeline, 10);
        pipeline.failed(chunks[1].slot, Status::IO);
        pipeline.stored(chunks[0].slot, 3, true);
        assert_eq!(pipeline.next_post().map(|chunk| chunk.len), Some(3));
        pipeline.posted(chunks[0].slot);
        assert_eq!(pipeline.outcome(), Some(Ok(3)));
        // At the end of the file there is nothing to send.
        let mut pipeline = Pipeline::new(TransferKind::Read, 20, 2);
        let chunks = begin(&mut pipeline, 20);
        pipeline.stored(chunks[0].slot, 0, true);
        assert_eq!(pipeline.outcome(), Some(Ok(0)));
    }

    // [BUF-11] [BUF-42] [BUF-43]
    #[test]
    fn read_that_fails_in_the_middle_waits_for_storage_and_fails_whole() {
        let mut pipeline = Pipeline::new(TransferKind::Read, 100, 3);
        let chunks = begin(&mut pipeline, 10);
        pipeline.failed(chunks[1].slot, Status::IO);
        assert_eq!(pipeline.next(), None, "nothing more begins");
        assert_eq!(pipeline.outcome(), None, "storage still has memory");
        pipeline.stored(chunks[2].slot, 10, true);
        assert_eq!(pipeline.take_moot().as_slice(), [chunks[2].at]);
        pipeline.stored(chunks[0].slot, 10, true);
        pipeline.posted(chunks[0].slot);
        assert_eq!(pipeline.outcome(), Some(Err(Status::IO)));
    }

    // [BUF-40] [BUF-41]
    #[test]
    fn write_is_given_to_storage_in_order_while_later_chunks_are_fetched() {
        let mut pipeline = Pipeline::new(TransferKind::Write, 30, 3);
        let chunks = begin(&mut pipeline, 10);
        for chunk in &chunks {
            assert_eq!(pipeline.next_post(), Some(*chunk));
            pipeline.posted(chunk.slot);
        }
        pipeline.moved(chunks[1].slot);
        assert_eq!(pipeline.next_store(), None, "the first is not here yet");
        pipeline.moved(chunks[0].slot);
        for chunk in &chunks[..2] {
            assert_eq!(pipeline.next_store(), Some(*chunk));
            pipeline.storing(chunk.slot);
        }
        assert_eq!(pipeline.next_store(), None);
        pipeline.stored(chunks[1].slot, 10, true);
        pipeline.moved(chunks[2].slot);
        assert_eq!(pipeline.next_store(), Some(chunks[2]), "while the first is still being written");
        pipeline.storing(chunks[2].slot);
        pipeline.stored(chunks[2].slot, 10, true);
        assert_eq!(pipeline.outcome(), None);
        pipeline.stored(chunks[0].slot, 10, true);
        assert_eq!(pipeline.outcome(), Some(Ok(30)));
    }

    // [BUF-11] [BUF-42] [BUF-44] [BUF-45]
    #[test]
    fn failed_write_counts_the_prefix_and_waits_for_rdma() {
        let mut pipeline = Pipeline::new(TransferKind::Write, 60, 4);
        let chunks = begin(&mut pipeline, 10);
        chunks[..3].iter().for_each(|chunk| pipeline.posted(chunk.slot));
        for chunk in &chunks[..2] {
            pipeline.moved(chunk.slot);
        }
        chunks[..2].iter().for_each(|chunk| pipeline.storing(chunk.slot));
        pipeline.failed(chunks[1].slot, Status::NO_SPACE);
        assert_eq!(pipeline.take_moot().as_slice(), [chunks[3].at], "it was not even posted");
        assert_eq!(pipeline.next(), None);
        pipeline.stored(chunks[0].slot, 10, true);
        assert_eq!(pipeline.outcome(), None, "RDMA still reads the client's memory");
        pipeline.moved(chunks[2].slot);
        assert_eq!(pipeline.take_moot().as_slice(), [chunks[2].at]);
        assert_eq!(pipeline.outcome(), Some(Ok(10)));
        // Nothing before it: that is an error.
        let mut pipeline = Pipeline::new(TransferKind::Write, 20, 2);
        let chunks = begin(&mut pipeline, 20);
        pipeline.posted(chunks[0].slot);
        pipeline.moved(chunks[0].slot);
        pipeline.storing(chunks[0].slot);
        pipeline.failed(chunks[0].slot, Status::IO);
        assert_eq!(pipeline.outcome(), Some(Err(Status::IO)));
    }

    #[test]
    fn write_that_comes_short_stops_there() {
        let mut pipeline = Pipeline::new(TransferKind::Write, 40, 2);
        let chunks = begin(&mut pipeline, 10);
        for chunk in &chunks {
            pipeline.posted(chunk.slot);
            pipeline.moved(chunk.slot);
            pipeline.storing(chunk.slot);
        }
        pipeline.stored(chunks[0].slot, 4, true);
        assert_eq!((pipeline.next(), pipeline.outcome()), (None, None));
        pipeline.stored(chunks[1].slot, 10, true);
        assert_eq!(pipeline.outcome(), Some(Ok(4)));
    }

    #[test]
    fn append_is_over_when_all_is_fetched() {
        let mut pipeline = Pipeline::new(TransferKind::Append, 30, 2);
        let mut fetched = 0;
        while pipeline.outcome().is_none() {
            for chunk in begin(&mut pipeline, 10) {
                pipeline.posted(chunk.slot);
            }
            assert!(pipeline.in_progress() <= 2);
            let slot = pipeline.chunks[pipeline.chunks.len() - 1].chunk.slot;
            pipeline.moved(slot);
            fetched += 1;
        }
        assert_eq!((fetched, pipeline.outcome()), (3, Some(Ok(30))));
    }

    #[test]
    fn transfer_refused_before_it_began_is_an_error() {
        for kind in [TransferKind::Read, TransferKind::Write, TransferKind::Append] {
            let mut pipeline: Pipeline<u64> = Pipeline::new(kind, 30, 2);
            pipeline.refused(Status::TIMED_OUT);
            assert_eq!(pipeline.outcome(), Some(Err(Status::TIMED_OUT)));
        }
        assert_eq!(Pipeline::<u64>::new(TransferKind::Read, 0, 1).outcome(), Some(Ok(0)));
    }
}
