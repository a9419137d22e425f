//! The turns of connections and of storage.

use dafs_proto::transport::{OpToken, Received};

use super::Worker;
use crate::storage::work;
use crate::worker::connection::Phase;
use crate::worker::ids::ConnectionKey;
use crate::worker::sched::CONTENDED_SIZE;

/// What serving a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// This many messages were handled; fewer than the budget, so nothing more is there now.
    Messages(usize),
    /// The budget was used up after this many messages; there may be more.
    Budget(usize),
    /// The connection is closed.
    Closed,
}

/// Messages of the server's own accord that may wait on a connection beside its replies.
const CALLBACKS_MAX: usize = 16;

/// Files of sessions that ended that are closed at a time.
const CLOSES_PER_TURN: usize = 256;

/// Flushes of one connection in a row.
const FLUSHES_MAX: usize = 4;

/// Messages of one connection handled in a turn, so that a busy one cannot starve the others.
const MESSAGES_PER_TURN: usize = 32;

impl Worker {
    /// Gives a connection its turn: handles what has arrived on it, and flushes what that led to.
    pub fn serve(&mut self, key: ConnectionKey) -> Served {
        let Some(connection) = self.connections.get_mut(key.index).filter(|c| c.key == key) else {
            return Served::Closed;
        };
        // [BUF-25] What another's end led to is not this one's to pay.
        work::take();
        self.turns.begin_with(self.now, &mut connection.debt);
        if self.turns.is_over() {
            // It moved too much in earlier ones.
            return Served::Budget(0);
        }
        self.begin_turn(key);
        if self.turns.is_over() {
            return self.end_turn(key, 0);
        }
        let messages = self.take_messages(key);
        let Some(connection) = self.connections.get(key.index).filter(|c| c.key == key) else {
            // What it held may be what others wait for.
            self.flush_dirty();
            return Served::Closed;
        };
        if messages == 0 && connection.is_quiet() && self.wakeups.is_empty() {
            return Served::Messages(0);
        }
        self.end_turn(key, messages)
    }

    /// The turn of a connection begins, with what did not fit into its last.
    #[inline]
    fn begin_turn(&mut self, key: ConnectionKey) {
        let contended = self.turns.is_contended(self.now);
        let Some(connection) = self.connections.get_mut(key.index) else { return };
        if connection.is_contended != contended {
            connection.is_contended = contended;
            connection.endpoint.set_turn(if contended { CONTENDED_SIZE } else { usize::MAX });
        }
        if !connection.runnable.is_empty() {
            self.run_transfers(key);
        }
    }

    /// The turn of a connection ends: what it led to leaves, and what it moved beyond its size is a debt.
    #[inline]
    fn end_turn(&mut self, key: ConnectionKey, messages: usize) -> Served {
        self.poll_rdma(key);
        self.run_wakeups();
        self.flush(key);
        self.turns.on_steps(work::take());
        let (over, overdraft) = (self.turns.is_over(), self.turns.overdraft());
        if let Some(connection) = self.connection(key) {
            connection.debt += overdraft;
        }
        // A buffer that this connection gave back may have moved another's transfer along.
        self.flush_dirty();
        match self.connections.get(key.index).filter(|c| c.key == key) {
            None => Served::Closed,
            Some(connection)
                if messages == MESSAGES_PER_TURN
                    || over
                    || connection.dirty
                    || !connection.runnable.is_empty() =>
            {
                Served::Budget(messages)
            }
            Some(_) => Served::Messages(messages),
        }
    }

    /// Handles messages until none is left or the turn is over; how many those were.
    #[inline]
    fn take_messages(&mut self, key: ConnectionKey) -> usize {
        let mut messages = 0;
        while messages < MESSAGES_PER_TURN && !self.turns.is_over() {
            let Some(connection) = self.connections.get_mut(key.index).filter(|c| c.key == key) else {
                break;
            };
            let size = match connection.endpoint.recv() {
                Ok(None) => {
                    // Receiving sends as well.
                    let sent = connection.take_sent();
                    self.turns.on_moved(sent);
                    break;
                }
                Ok(Some(Received::Message { head, payload_len })) => {
                    self.turns.on_message(key, self.now, self.others_waiting(key));
                    self.on_message(key, head.as_bytes(), payload_len);
                    payload_len
                }
                Ok(Some(Received::Immediate { data, size })) => {
                    self.turns.on_message(key, self.now, self.others_waiting(key));
                    self.on_eager_frame(key, data, size);
                    size
                }
                Err(error) => {
                    self.close(key, &error);
                    break;
                }
            };
            messages += 1;
            self.turns.on_steps(work::take());
            self.turns.on_moved(size as usize);
            self.check_outbox(key);
            if !self.shared.settings.coalesce_replies {
                self.flush(key);
            }
        }
        messages
    }

    /// Sessions whose operations wait, without that of a connection.
    #[inline]
    fn others_waiting(&self, key: ConnectionKey) -> usize {
        let all = self.turns.waiting_sessions();
        if all == 0 {
            return 0;
        }
        let phase = self.connections.get(key.index).map(|connection| &connection.phase);
        let own = match phase {
            Some(Phase::Live(session)) => self.sessions.find(*session),
            _ => None,
        };
        all.saturating_sub(usize::from(own.is_some_and(|own| own.waiting > 0)))
    }

    /// Goes on with transfers that went out of their turn.
    fn run_transfers(&mut self, key: ConnectionKey) {
        while !self.turns.is_over() {
            let Some(token) = self.connection(key).and_then(|connection| connection.runnable.pop_front())
            else {
                return;
            };
            self.resume_in_turn(token);
            self.turns.on_steps(work::take());
        }
    }

    /// A transfer, a list or a batch has more to move than fits its turn.
    pub(crate) fn yield_turn(&mut self, key: ConnectionKey, token: OpToken) {
        let Some(connection) = self.connection(key) else { return };
        connection.runnable.push_back(token);
        if connection.runnable.len() == 1 {
            self.runnable.push(key);
        }
    }

    /// Connections that have something to do in their next turn, whether they send anything or not.
    #[inline]
    pub(crate) fn take_runnable(&mut self) -> Option<ConnectionKey> {
        self.runnable.pop()
    }

    /// Ends the session of a client that sends requests and takes no replies: one that keeps to its credits never has
    /// more replies waiting than it has slots.
    #[inline]
    fn check_outbox(&mut self, key: ConnectionKey) {
        let waiting_max = usize::from(self.shared.settings.slots_max) + CALLBACKS_MAX;
        if self.connection(key).is_some_and(|connection| connection.waiting() > waiting_max) {
            self.end_for_fault(key, "more requests than credits: replies are not taken");
        }
    }

    /// Collects what storage has finished and goes on with it. Returns how many operations that were.
    pub fn poll_storage(&mut self) -> usize {
        let mut count = self.poll_storage_turn(usize::MAX);
        while self.has_results() {
            count += self.poll_storage_turn(usize::MAX);
        }
        count
    }

    /// The same, moving at most `transfers_max` reads and writes that waited for a disk. Where the results take many steps, as listings do,
    /// some stay for the next turn: see [`Worker::has_results`].
    pub(crate) fn poll_storage_turn(&mut self, transfers_max: usize) -> usize {
        self.turns.begin(self.now);
        self.storage.set_turn(transfers_max);
        self.storage.flush();
        let mut finished = std::mem::take(&mut self.finished);
        self.storage.poll(&mut finished);
        self.results.extend(finished.drain(..));
        self.finished = finished;
        let mut count = 0;
        while !self.turns.is_storage_turn_over()
            && let Some((token, result)) = self.results.pop_front()
        {
            self.on_storage(token, result);
            self.turns.on_steps(work::take());
            count += 1;
        }
        if count > 0 {
            self.run_wakeups();
            self.storage.flush();
        }
        self.turns.on_steps(work::take());
        self.flush_dirty();
        count
    }

    /// Storage has finished what no turn has gone on with yet.
    pub(crate) fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    /// Frees a part of the memory that files gave back, and closes some of what sessions that ended had open; whether there is more.
    pub(crate) fn tidy_storage(&mut self) -> bool {
        let more = self.close_some() | self.free_some_locks() | self.storage.tidy();
        // It is nobody's turn.
        work::take();
        // Whoever waited for what was freed is answered.
        self.flush_dirty();
        more
    }

    /// A session may have had tens of thousands of files open.
    pub(crate) fn close_some(&mut self) -> bool {
        let keep = self.closing.len().saturating_sub(CLOSES_PER_TURN);
        for (node, descriptors) in self.closing.drain(keep..) {
            self.storage.close(node);
            drop(descriptors);
        }
        keep > 0
    }

    /// Nothing is left that only an event would take up again which is not going to come: the loop may sleep.
    pub(crate) fn is_settled(&self) -> bool {
        self.wakeups.is_empty() && self.dirty.is_empty() && self.storage_waiters_will_wake()
    }

    /// Marks a connection that has something to flush at the end of this turn.
    pub(crate) fn mark_dirty(&mut self, key: ConnectionKey) {
        if !self.dirty.contains(&key) {
            self.dirty.push(key);
        }
    }

    pub(crate) fn flush_dirty(&mut self) {
        loop {
            // The last flush may have completed RDMA that somebody waited for, and no event will tell of it.
            self.run_wakeups();
            let Some(key) = self.dirty.pop() else { return };
            self.poll_rdma(key);
            self.run_wakeups();
            self.flush(key);
            // Nobody may be about to serve it. What a turn left of its output is no event, and what was posted since it was armed may
            // complete without one.
            if self.connection(key).is_some_and(|connection| !connection.is_quiet()) {
                self.runnable.push(key);
            }
        }
    }

    fn flush(&mut self, key: ConnectionKey) {
        for _ in 0..FLUSHES_MAX {
            if let Some(connection) = self.connection(key)
                && (connection.dirty || connection.wants_flush())
            {
                let flushed = connection.flush();
                let sent = connection.take_sent();
                self.turns.on_moved(sent);
                if let Err(error) = flushed {
                    self.close(key, &error);
                }
            }
            self.poll_rdma(key);
            // What has left makes room for more, which need not wait for the next turn where this one is not over.
            if self.turns.is_over() || !self.connection(key).is_some_and(|connection| connection.dirty) {
                return;
            }
        }
    }

    /// Completions of RDMA, and posts that found no room before.
    fn poll_rdma(&mut self, key: ConnectionKey) {
        if self
            .connection(key)
            .is_none_or(|connection| connection.rdma_pending == 0 && connection.post_waiters.is_empty())
        {
            return;
        }
        let mut freed = false;
        while let Some(connection) = self.connection(key) {
            let Some(completion) = connection.endpoint.poll_completion() else { break };
            freed = true;
            connection.rdma_pending = connection.rdma_pending.saturating_sub(1);
            connection.rdma_completed += u64::from(completion.result.is_ok());
            let step = connection.next_rdma_step();
            self.on_rdma(completion.token, completion.result, step);
        }
        let Some(connection) = self.connection(key) else { return };
        if connection.post_waiters.is_empty() || (!freed && connection.endpoint.wants_flush()) {
            return;
        }
        for index in std::mem::take(&mut connection.post_waiters) {
            self.resume_post(index, key);
        }
    }
}
