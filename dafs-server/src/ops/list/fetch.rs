//! The RDMA of lists. A write fetches its next chunk while storage writes the one before.

use dafs_proto::transport::{MemoryRef, OpToken, PostError, PostedList, RemoteRange};
use dafs_proto::wire::Status;

use super::Progress;
use crate::worker::flight::list::{Ahead, List, Step};
use crate::worker::flight::plan::next_posts;
use crate::worker::flight::token_with_slot;
use crate::worker::flight::transfer::TransferKind;
use crate::worker::requests::work::{Context, Fate};

/// What became of some posts.
enum Posting {
    All,
    /// There is no room for more now.
    Full,
    /// The connection is over: what it led to shows when that is noticed.
    Closed,
    Refused,
    /// The file was truncated since the chunk was mapped.
    Faulted,
}

impl List {
    /// Posts RDMA for every range of the chunk, as many at once as the provider takes.
    pub(super) fn post_ranges(&mut self, at: &mut Context<'_>) -> Progress {
        match self.post_some(at, false) {
            Posting::All => {}
            Posting::Full => {
                at.wait_for_post_room();
                return Progress::Wait;
            }
            Posting::Closed => return Progress::Wait,
            Posting::Refused => return Progress::End(Err(Status::REMOTE_ACCESS)),
            Posting::Faulted => {
                at.distrust_mapped_files();
                self.data.memory.clear();
                self.step = Step::Begin;
                return Progress::Continue;
            }
        }
        let faults_late = at.connection().is_some_and(|c| c.endpoint.capabilities().faults_late);
        if self.data.is_window && faults_late {
            if self.rdma.pending() > 0 {
                self.step = Step::Window;
                let is_last = self.chunk.end == self.request.len && self.gaps.account.is_none();
                return if is_last { Progress::Departs } else { Progress::Wait };
            }
            self.end_window(at);
            return Progress::Continue;
        }
        if self.request.kind == TransferKind::Read {
            self.done = self.chunk.end;
            self.step = Step::Begin;
            self.data.memory.clear();
            self.release_sent_buffers(at);
            return Progress::Continue;
        }
        let is_here = self.rdma.pending() == 0;
        self.step = if is_here { Step::Storage } else { Step::Fetch };
        if !self.fetch_ahead(at) {
            return Progress::End(Err(Status::REMOTE_ACCESS));
        }
        if is_here { Progress::Continue } else { Progress::Wait }
    }

    /// A window of the file has left: what of it was gone is read again, as far as it is there now.
    pub(super) fn end_window(&mut self, at: &mut Context<'_>) {
        self.data.memory.clear();
        self.step = Step::Begin;
        if self.data.is_faulted {
            at.distrust_mapped_files();
        } else {
            self.done = self.chunk.end;
            self.release_sent_buffers(at);
        }
    }

    /// Begins to fetch the next chunk of a write, where there is a buffer for it; `false` when its memory is refused.
    fn fetch_ahead(&mut self, at: &mut Context<'_>) -> bool {
        // Where RDMA is a copy by this CPU there is nothing to gain.
        let is_copy = at.connection().is_none_or(|c| c.endpoint.capabilities().remote_mapped);
        if is_copy || self.rdma.ahead.is_some() || self.chunk.end == self.request.len {
            return true;
        }
        let size = self.chunk.end - self.chunk.start;
        let chunk = self.chunk.end..self.chunk_end(self.chunk.end, size);
        let len = (chunk.end - chunk.start) as usize;
        let Some(buffer) = at.spare_buffer(len) else { return true };
        let Some(memory) = buffer.memory().slice(0, len) else {
            // A smaller one than wanted.
            at.release_buffer(buffer);
            return true;
        };
        let posts = self.posts_of(&chunk, u64::MAX);
        self.rdma.ahead = Some(Box::new(Ahead { chunk, memory, buffer, posts, next_post: 0 }));
        !matches!(self.post_some(at, true), Posting::Refused)
    }

    /// Posts what is left of a chunk's RDMA, or of that of the chunk ahead.
    fn post_some(&mut self, at: &mut Context<'_>, ahead: bool) -> Posting {
        loop {
            let (posts, next, memory) = match (&self.rdma.ahead, ahead) {
                (Some(ahead), true) => (&ahead.posts, ahead.next_post, Some(&ahead.memory)),
                (None, true) => return Posting::All,
                (_, false) => (&self.rdma.posts, self.rdma.next_post, self.data.memory.first()),
            };
            let parity = self.rdma.parity ^ u8::from(ahead);
            let reads = self.request.kind == TransferKind::Read;
            let Some((from, ranges)) = next_posts(posts, next) else { return Posting::All };
            let memory = memory.and_then(|memory| memory.slice(from, memory.len().checked_sub(from)?));
            let Some(memory) = memory else { return Posting::Refused };
            let token = token_with_slot(at.token, parity);
            let posted = match at.post_list(token, reads, &memory, &ranges) {
                Ok(posted) => posted,
                Err(posting) => return posting,
            };
            self.rdma.fetching[usize::from(parity)] += posted.pending;
            match (&mut self.rdma.ahead, ahead) {
                (Some(ahead), true) => ahead.next_post += posted.ranges,
                _ => self.rdma.next_post += posted.ranges,
            }
        }
    }

    /// Gives back the buffers of a read whose data has left, so that one that waits for another buffer holds none for nothing.
    pub(super) fn release_sent_buffers(&mut self, at: &mut Context<'_>) {
        if at.rdma_pending() == 0
            && self.request.kind == TransferKind::Read
            && matches!(self.step, Step::Begin | Step::Buffer)
        {
            at.release_buffers(std::mem::take(&mut self.data.buffers));
        }
    }

    /// Ends when nothing of a write is fetched any more: nothing touches the client's memory after the reply.
    pub(super) fn end_fetched(&mut self, at: &mut Context<'_>, outcome: Result<(), Status>) -> Fate {
        if self.request.kind != TransferKind::Read && at.rdma_pending() > 0 {
            self.step = Step::Ending(outcome);
            return Fate::Waits;
        }
        self.end(at, outcome)
    }
}

impl Context<'_> {
    fn post_list(
        &mut self,
        token: OpToken,
        reads: bool,
        memory: &MemoryRef,
        ranges: &[RemoteRange],
    ) -> Result<PostedList, Posting> {
        let Some(connection) = self.connection() else { return Err(Posting::Closed) };
        connection.dirty = true;
        let posted = if reads {
            connection.endpoint.rdma_write_list(token, memory, ranges)
        } else {
            connection.endpoint.rdma_read_list(token, memory, ranges)
        };
        match posted {
            Ok(posted) => {
                self.on_posted(posted.pending);
                Ok(posted)
            }
            Err(PostError::Full) => Err(Posting::Full),
            Err(PostError::Closed) => Err(Posting::Closed),
            Err(PostError::Faulted) => Err(Posting::Faulted),
            Err(PostError::Invalid(why)) => {
                tracing::debug!(why, "RDMA of a list refused");
                Err(Posting::Refused)
            }
        }
    }
}
