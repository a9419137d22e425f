//! The RDMA of lists. A write fetches its next chunk while storage writes the one before.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use dafs_proto::transport::{MemoryRef, OpToken, PostError, PostedList, RemoteRange, TransportError};
use dafs_proto::wire::Status;

use super::{Progress, Worker};
use crate::worker::buffers::Owner;
use crate::worker::flight::list::{Ahead, Step};
use crate::worker::flight::plan::{next_posts, posts};
use crate::worker::flight::transfer::Direction;
use crate::worker::flight::{Call, State, token_with_slot};
use crate::worker::ids::ConnectionKey;

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

impl Worker {
    /// Posts RDMA for every range of the chunk, as many at once as the provider takes.
    pub(super) fn post_ranges(&mut self, index: usize, token: OpToken) -> Progress {
        match self.post_some(index, token, false) {
            Posting::All => {}
            Posting::Full => {
                let connection = self.operations[index].call.connection;
                if let Some(connection) = self.connection(connection) {
                    connection.post_waiters.push_back(index);
                }
                return Progress::Wait;
            }
            Posting::Closed => return Progress::Wait,
            Posting::Refused => return Progress::End(Err(Status::REMOTE_ACCESS)),
            Posting::Faulted => {
                self.distrust_mapped_files(self.operations[index].call.session);
                let Some(list) = self.list_at(index) else { return Progress::Wait };
                list.memory.clear();
                list.step = Step::Begin;
                return Progress::Continue;
            }
        }
        let Some(list) = self.list_at(index) else { return Progress::Wait };
        if list.direction == Direction::Read {
            list.done = list.chunk.end;
            list.step = Step::Begin;
            list.memory.clear();
            self.release_sent_buffers(index);
            return Progress::Continue;
        }
        let is_here = list.pending() == 0;
        list.step = if is_here { Step::Storage } else { Step::Fetch };
        if !self.fetch_ahead(index, token) {
            return Progress::End(Err(Status::REMOTE_ACCESS));
        }
        if is_here { Progress::Continue } else { Progress::Wait }
    }

    /// Begins to fetch the next chunk of a write, where there is a buffer for it; `false` when its memory is refused.
    fn fetch_ahead(&mut self, index: usize, token: OpToken) -> bool {
        let Call { session, connection, .. } = self.operations[index].call;
        // Where RDMA is a copy by this CPU there is nothing to gain.
        let is_copy = self.connection(connection).is_none_or(|c| c.endpoint.capabilities().remote_mapped);
        let Some(list) = self.list_at(index).filter(|_| !is_copy) else { return true };
        if list.ahead.is_some() || list.chunk.end == list.len {
            return true;
        }
        let size = list.chunk.end - list.chunk.start;
        let chunk = list.chunk.end..list.len.min(list.chunk.end + size);
        let len = (chunk.end - chunk.start) as usize;
        let Some(buffer) = self.buffers.acquire(Owner { session, operation: token }, len) else {
            return true;
        };
        let memory = buffer.memory().slice(0, len);
        let (Some(memory), Some(list)) = (memory, self.list_at(index)) else {
            // A smaller one than wanted.
            self.release_buffer(buffer);
            return true;
        };
        let posts = posts(&list.ranges, &list.extents, &chunk, u64::MAX);
        list.ahead = Some(Box::new(Ahead { chunk, memory, buffer, posts, next_post: 0 }));
        !matches!(self.post_some(index, token, true), Posting::Refused)
    }

    /// Posts what is left of a chunk's RDMA, or of that of the chunk ahead.
    fn post_some(&mut self, index: usize, token: OpToken, ahead: bool) -> Posting {
        let key = self.operations[index].call.connection;
        loop {
            let Some(State::List(list)) = self.operations.get(index).map(|operation| &operation.state) else {
                return Posting::Closed;
            };
            let (posts, next, memory) = match (&list.ahead, ahead) {
                (Some(ahead), true) => (&ahead.posts, ahead.next_post, Some(&ahead.memory)),
                (None, true) => return Posting::All,
                (_, false) => (&list.posts, list.next_post, list.memory.first()),
            };
            let parity = list.parity ^ u8::from(ahead);
            let reads = list.direction == Direction::Read;
            let Some((at, ranges)) = next_posts(posts, next) else { return Posting::All };
            let Some(memory) = memory.and_then(|memory| memory.slice(at, memory.len().checked_sub(at)?))
            else {
                return Posting::Refused;
            };
            let posted = match self.post_list(key, token_with_slot(token, parity), reads, &memory, &ranges) {
                Ok(posted) => posted,
                Err(posting) => return posting,
            };
            self.operations[index].rdma_pending += posted.pending;
            let Some(list) = self.list_at(index) else { return Posting::Closed };
            list.fetching[usize::from(parity)] += posted.pending;
            match (&mut list.ahead, ahead) {
                (Some(ahead), true) => ahead.next_post += posted.ranges,
                _ => list.next_post += posted.ranges,
            }
        }
    }

    fn post_list(
        &mut self,
        key: ConnectionKey,
        token: OpToken,
        reads: bool,
        memory: &MemoryRef,
        ranges: &[RemoteRange],
    ) -> Result<PostedList, Posting> {
        let Some(connection) = self.connection(key) else { return Err(Posting::Closed) };
        connection.dirty = true;
        let posted = if reads {
            connection.endpoint.rdma_write_list(token, memory, ranges)
        } else {
            connection.endpoint.rdma_read_list(token, memory, ranges)
        };
        match posted {
            Ok(posted) => {
                connection.rdma_pending += posted.pending;
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

    /// Gives back the buffers of a read whose data has left, so that one that waits for another buffer holds none for nothing.
    fn release_sent_buffers(&mut self, index: usize) {
        if self.operations[index].rdma_pending > 0 {
            return;
        }
        let Some(list) = self.list_at(index) else { return };
        if list.direction != Direction::Read || !matches!(list.step, Step::Begin | Step::Buffer) {
            return;
        }
        for buffer in std::mem::take(&mut list.buffers) {
            self.release_buffer(buffer);
        }
    }

    /// RDMA has finished something of a list.
    pub(crate) fn list_on_rdma(&mut self, index: usize, slot: u8, result: Result<(), TransportError>) {
        self.release_sent_buffers(index);
        let (token, all_pending) = (self.token_of(index), self.operations[index].rdma_pending);
        let Some(list) = self.list_at(index) else { return };
        if let Some(fetching) = list.fetching.get_mut(usize::from(slot)) {
            *fetching = fetching.saturating_sub(1);
        }
        // After a failure the connection is broken: closing it abandons the list.
        if result.is_err() {
            return;
        }
        match list.step {
            Step::Fetch if list.pending() == 0 => {
                list.step = Step::Storage;
                self.advance_list(token);
            }
            Step::Ending(outcome) if all_pending == 0 => self.end_list(index, token, outcome),
            _ => {}
        }
    }

    /// Ends a list when nothing of a write is fetched any more: nothing touches the client's memory after the reply.
    pub(super) fn end_fetched_list(&mut self, index: usize, token: OpToken, outcome: Result<(), Status>) {
        let pending = self.operations[index].rdma_pending;
        let Some(list) = self.list_at(index) else { return };
        if list.direction != Direction::Read && pending > 0 {
            list.step = Step::Ending(outcome);
            return;
        }
        self.end_list(index, token, outcome);
    }

    /// There is room again for a post that found none.
    pub(crate) fn resume_list_post(&mut self, index: usize) {
        let token = self.token_of(index);
        if self.list_at(index).is_some_and(|list| list.step == Step::Post) {
            self.advance_list(token);
        }
    }
}
