//! What the loop calls: the turns of connections and of storage, what is done as time passes ([`upkeep`]), and the mail of other workers
//! ([`inbox`]). What comes in is handed to `intake`. Imports `intake`, `ops` and all below them.

mod inbox;
mod upkeep;

use dafs_proto::transport::Received;

use super::{Served, Worker};
use crate::storage::work;
use crate::worker::ids::ConnectionKey;

/// Messages of the server's own accord that may wait on a connection beside its replies.
const CALLBACKS_MAX: usize = 16;

/// Flushes of one connection in a row.
const FLUSHES_MAX: usize = 4;

/// Messages of one connection handled in a turn, so that a busy one cannot starve the others.
const MESSAGES_PER_TURN: usize = 32;

impl Worker {
    /// Gives a connection its turn: handles what has arrived on it, and flushes what that led to.
    pub fn serve(&mut self, key: ConnectionKey) -> Served {
        let Some(connection) = self.connections.find_mut(key) else {
            return Served::Closed;
        };
        // [BUF-25] What another's end led to is not this one's to pay.
        work::take();
        self.sched.turn().begin_with(self.now, &mut connection.turn.debt);
        if self.sched.is_over() {
            // It moved too much in earlier ones.
            return Served::Budget(0);
        }
        self.begin_turn(key);
        if self.sched.is_over() {
            return self.end_turn(key, 0);
        }
        let messages = self.take_messages(key);
        let Some(connection) = self.connections.find(key) else {
            // What it held may be what others wait for.
            self.flush_dirty();
            return Served::Closed;
        };
        if messages == 0 && connection.is_quiet() && self.operations.are_settled() {
            return Served::Messages(0);
        }
        self.end_turn(key, messages)
    }

    /// The turn of a connection begins, with what did not fit into its last.
    #[inline]
    fn begin_turn(&mut self, key: ConnectionKey) {
        let contended = self.sched.is_contended(self.now);
        let Some(connection) = self.connections.find_mut(key) else { return };
        connection.begin_turn(contended);
        if connection.turn.has_deferred() {
            self.run_transfers(key);
        }
    }

    /// The turn of a connection ends: what it led to leaves, and what it moved beyond its size is a debt.
    #[inline]
    fn end_turn(&mut self, key: ConnectionKey, messages: usize) -> Served {
        self.poll_rdma(key);
        self.run_wakeups();
        self.flush(key);
        self.sched.turn().on_steps(work::take());
        let (over, overdraft) = (self.sched.is_over(), self.sched.turn().overdraft());
        if let Some(connection) = self.connections.find_mut(key) {
            connection.turn.debt += overdraft;
        }
        // A buffer that this connection gave back may have moved another's transfer along.
        self.flush_dirty();
        match self.connections.find(key) {
            None => Served::Closed,
            Some(connection)
                if messages == MESSAGES_PER_TURN
                    || over
                    || connection.dirty
                    || connection.turn.has_deferred() =>
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
        while messages < MESSAGES_PER_TURN && !self.sched.is_over() {
            let Some(connection) = self.connections.find_mut(key) else {
                break;
            };
            let size = match connection.endpoint.recv() {
                Ok(None) => {
                    // Receiving sends as well.
                    let sent = connection.take_sent();
                    self.sched.turn().on_moved(sent);
                    break;
                }
                Ok(Some(Received::Message { head, payload_len })) => {
                    let others = self.others_waiting(key);
                    self.sched.turn().on_message(key, self.now, others);
                    self.on_message(key, head.as_bytes(), payload_len);
                    payload_len
                }
                Ok(Some(Received::Immediate { data, size })) => {
                    let others = self.others_waiting(key);
                    self.sched.turn().on_message(key, self.now, others);
                    self.on_eager_frame(key, data, size);
                    size
                }
                Err(error) => {
                    self.close(key, &error);
                    break;
                }
            };
            messages += 1;
            self.sched.turn().on_steps(work::take());
            self.sched.turn().on_moved(size as usize);
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
        let all = self.sched.waiting_sessions();
        if all == 0 {
            return 0;
        }
        let own = self.connections.find(key).and_then(|connection| connection.phase.session());
        let own = own.and_then(|session| self.sessions.find(session));
        all.saturating_sub(usize::from(own.is_some_and(|own| own.load.waiting > 0)))
    }

    /// Goes on with transfers that went out of their turn.
    fn run_transfers(&mut self, key: ConnectionKey) {
        while !self.sched.is_over() {
            let connection = self.connections.find_mut(key);
            let Some(token) = connection.and_then(|connection| connection.turn.take_deferred()) else {
                return;
            };
            self.resume_in_turn(token);
            self.sched.turn().on_steps(work::take());
        }
    }

    /// Ends the session of a client that sends requests and takes no replies: one that keeps to its credits never has
    /// more replies waiting than it has slots.
    #[inline]
    fn check_outbox(&mut self, key: ConnectionKey) {
        let waiting_max = usize::from(self.shared.settings.slots_max) + CALLBACKS_MAX;
        if self.connections.find_mut(key).is_some_and(|connection| connection.waiting() > waiting_max) {
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
        self.sched.turn().begin(self.now);
        self.storage.set_turn(transfers_max);
        self.storage.flush();
        self.operations.collect(&mut *self.storage);
        let mut count = 0;
        while !self.sched.turn().is_storage_turn_over()
            && let Some((token, result)) = self.operations.next_result()
        {
            self.on_storage(token, result);
            self.sched.turn().on_steps(work::take());
            count += 1;
        }
        if count > 0 {
            self.run_wakeups();
            self.storage.flush();
        }
        self.sched.turn().on_steps(work::take());
        self.flush_dirty();
        count
    }

    /// Storage has finished what no turn has gone on with yet.
    pub(crate) fn has_results(&self) -> bool {
        self.operations.has_results()
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

    /// Nothing is left that only an event would take up again which is not going to come: the loop may sleep.
    pub(crate) fn is_settled(&self) -> bool {
        self.operations.are_settled() && self.connections.are_clean() && self.storage_waiters_will_wake()
    }

    pub(crate) fn flush_dirty(&mut self) {
        loop {
            // The last flush may have completed RDMA that somebody waited for, and no event will tell of it.
            self.run_wakeups();
            let Some(key) = self.connections.next_dirty() else { return };
            self.poll_rdma(key);
            self.run_wakeups();
            self.flush(key);
            self.connections.run_unless_quiet(key);
        }
    }

    fn flush(&mut self, key: ConnectionKey) {
        // Another server has taken over: what this one says is no answer any more, nor why it cannot say another.
        if self.shared.cluster.as_ref().is_some_and(|cluster| cluster.is_lost()) {
            return;
        }
        for _ in 0..FLUSHES_MAX {
            if let Some(connection) = self.connections.find_mut(key)
                && (connection.dirty || connection.wants_flush())
            {
                let flushed = connection.flush();
                let sent = connection.take_sent();
                self.sched.turn().on_moved(sent);
                if let Err(error) = flushed {
                    self.close(key, &error);
                }
            }
            self.poll_rdma(key);
            // What has left makes room for more, which need not wait for the next turn where this one is not over.
            if self.sched.is_over()
                || !self.connections.find_mut(key).is_some_and(|connection| connection.dirty)
            {
                return;
            }
        }
    }

    /// Completions of RDMA, and posts that found no room before.
    fn poll_rdma(&mut self, key: ConnectionKey) {
        if self.connections.find(key).is_none_or(|connection| connection.rdma.is_quiet()) {
            return;
        }
        let mut freed = false;
        while let Some(connection) = self.connections.find_mut(key) {
            let Some(completion) = connection.endpoint.poll_completion() else { break };
            freed = true;
            let step = connection.rdma.on_completed(completion.result.is_ok());
            self.on_rdma(completion.token, completion.result, step);
        }
        let Some(connection) = self.connections.find_mut(key) else { return };
        if !connection.rdma.has_waiters() || (!freed && connection.endpoint.wants_flush()) {
            return;
        }
        for index in connection.rdma.take_waiters() {
            self.resume_post(index, key);
        }
    }
}
