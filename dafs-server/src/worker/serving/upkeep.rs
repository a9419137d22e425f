//! What is done as time passes: ten times a second.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use dafs_proto::budget::Owner;
use dafs_proto::session::{KEEP_ALIVE_MAX_MS, Moment};
use dafs_proto::transport::OpToken;
use dafs_proto::wire::{Header, NoticeKind, Opcode};

use super::Worker;
use crate::access::Access;
use crate::config::millis;
use crate::ops::session::ending::End;
use crate::storage::work;
use crate::worker::connections::connection::Phase;
use crate::worker::connections::rdma::RdmaStep;
use crate::worker::flight::token;
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::lifetime::Lifetime;
use crate::worker::operations::WaitsFor;

/// Sessions that end in one tick: each closes hundreds of files, and a crowd may fall silent together.
const ENDED_AT_ONCE: usize = 4;

/// Credits more for a session whose operations take long, all of them in use.
const RAISE: u16 = 4;

/// How many operations of a session wait for what.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    in_storage: usize,
    /// For buffers, for locks or fenced clients, or for those before them in their chains.
    for_others: usize,
    for_client: usize,
}

impl Worker {
    /// Time passes: handshakes and sessions that are overdue end, fair shares follow. Called about ten times a second, and again soon where
    /// it returns that there is more to end.
    pub fn on_tick(&mut self) -> bool {
        let (now, handshake) = (self.now, millis(self.shared.settings.handshake_ms));
        self.sched.turn().begin(now);
        let overdue: Vec<ConnectionKey> = self
            .connections
            .iter()
            .filter(|c| c.phase.is_beginning() && now >= c.since.after(handshake))
            .map(|connection| connection.key)
            .collect();
        for key in overdue {
            self.close(key, &"the handshake was not finished in time");
        }
        self.connections.drop_those_who_left();
        self.charge_unsent();
        self.hear_of_those_who_move_data();
        self.disconnect_those_who_keep_buffers();
        self.hear_of_those_who_wait();
        let expired = self.sessions.expired(now, millis(self.shared.settings.lease_ms));
        for session in expired.iter().take(ENDED_AT_ONCE) {
            self.end_session(*session, End::LeaseOver);
        }
        self.end_expired_tokens();
        self.end_overdue_lock_waits();
        self.look_at_local_locks();
        self.ask_cluster_again();
        self.look_after_lock_turns();
        self.look_after_kept_locks();
        self.look_after_recalls();
        let active = self.sessions.iter().filter(|(_, session)| session.is_active(now)).count();
        let active = self.shared.count_active(self.id, u32::try_from(active).unwrap_or(u32::MAX));
        self.sessions.set_active(active);
        self.publish();
        self.raise_credits();
        self.expect_fewer();
        self.tell_of_due_batches();
        self.operations.meetings().end_overdue(self.now, self.id);
        self.resume_storage_waiters();
        self.tidy_storage();
        self.flush_dirty();
        // It was nobody's turn.
        work::take();
        expired.len() > ENDED_AT_ONCE
    }

    /// Stops taking sessions and tells the clients. Operations in flight finish, and requests of sessions that are there
    /// are served as long as the loop runs.
    pub fn drain(&mut self) {
        self.sessions.drain();
        let live: Vec<_> = self
            .sessions
            .iter()
            .filter_map(|(key, session)| Some((key, session.presence.connection?)))
            .collect();
        for (session, connection) in live {
            self.notice(session, connection, NoticeKind::Draining, "the server is shutting down");
        }
        self.flush_dirty();
    }

    /// Of a cluster: clients of which nothing is under way any more go on at other servers.
    pub fn let_clients_go(&mut self) {
        if !self.hands_over() {
            return;
        }
        let busy = self.operations.sessions_with_unfinished();
        let idle = self.sessions.iter().filter(|(key, _)| !busy.contains(key));
        let idle: Vec<_> = idle.filter_map(|(_, session)| session.presence.connection).collect();
        for key in idle {
            if self.connections.find_mut(key).is_some_and(|connection| !connection.wants_flush()) {
                self.close(key, &"its client goes on at another server of the cluster");
            }
        }
        // What those kept others from may be theirs now.
        self.flush_dirty();
    }

    /// Tells of what has waited for a window that is over, and lets go on who has waited in vain.
    pub fn end_windows(&mut self) {
        self.tell_of_due_batches();
        self.operations.meetings().end_overdue(self.now, self.id);
        self.flush_dirty();
    }

    /// From now on clients are heard.
    pub fn begin_serving(&mut self) {
        self.lifetime = Lifetime::new(self.now);
    }

    /// For so long nothing was read, whatever was sent: nobody was silent in that time. Called before the tick that follows it.
    pub fn on_stall(&mut self, duration: Duration) {
        let now = self.now;
        tracing::warn!(
            seconds = duration.as_secs_f64(),
            "the server did not run for a while; leases are extended by that time"
        );
        let later = |moment: Moment| moment.after(duration).min(now);
        self.lifetime.on_stall(later);
        for (_, session) in self.sessions.iter_mut() {
            session.presence.last_heard = later(session.presence.last_heard);
            session.locks.turns.on_stall(later);
        }
        self.connections.iter_mut().for_each(|connection| connection.on_stall(later));
    }

    /// Closes connections whose clients leave more replies untaken than they may: kept replies are there when they come back.
    fn charge_unsent(&mut self) {
        let budget = &self.shared.budgets.unsent;
        let mut over = Vec::new();
        for connection in self.connections.iter_mut() {
            let unsent = connection.unsent_bytes();
            if unsent == 0 {
                connection.unsent = None;
                continue;
            }
            let fits = match &mut connection.unsent {
                Some(charge) => charge.set(unsent),
                None => {
                    let session = connection.phase.session().and_then(|session| self.sessions.find(session));
                    let peer = &connection.endpoint.capabilities().peer;
                    let owner = session.map(|session| Access::budget_owner(&session.client.known_as, peer));
                    connection.unsent = budget.take(&owner.unwrap_or(Owner::Unknown), unsent);
                    connection.unsent.is_some()
                }
            };
            if !fits {
                over.push(connection.key);
            }
        }
        for key in over {
            self.close(key, &"its client does not receive its replies, and too many bytes wait");
        }
    }

    /// A request of a client may be far behind data on its way, and one whose credits are all in use by transfers can send none.
    fn hear_of_those_who_move_data(&mut self) {
        let now = self.now;
        for connection in self.connections.iter_mut() {
            // [SESS-129]
            if connection.has_moved(now)
                && let Phase::Live(session) = connection.phase
                && let Some(session) = self.sessions.find_mut(session)
            {
                session.presence.last_heard = now;
            }
        }
    }

    /// A client that serves none of the server's reads and writes would keep buffers from others for ever. Its requests come again on its
    /// next connection, behind those that wait now.
    fn disconnect_those_who_keep_buffers(&mut self) {
        if !self.buffers.has_waiters() {
            return;
        }
        let mut oldest: HashMap<ConnectionKey, RdmaStep> = HashMap::new();
        for (owner, _) in self.buffers.owners() {
            let index = self.operations.index_of(owner.operation);
            let operation = index.map(|index| &self.operations[index]);
            if let Some(operation) = operation.filter(|operation| operation.rdma_pending > 0) {
                let oldest = oldest.entry(operation.call.connection).or_insert(operation.rdma_step);
                *oldest = operation.rdma_step.min(*oldest);
            }
        }
        let (now, lease) = (self.now, millis(self.shared.settings.lease_ms));
        let mut keeping = Vec::new();
        for connection in self.connections.iter_mut() {
            let Phase::Live(session) = connection.phase else { continue };
            // [LIMIT-23] [LIMIT-24]
            if self.buffers.keeps_from_others(session)
                && connection.rdma.rests(oldest.get(&connection.key).copied(), now, lease)
            {
                keeping.push(connection.key);
            }
        }
        for key in keeping {
            self.close(key, &"its client's transfers make no progress, and others wait for the buffers");
        }
    }

    /// What the operations of each session wait for that have not been answered. Those of a batch are operations of their own.
    fn waits(&self) -> HashMap<SessionKey, Waits> {
        let for_buffers: HashSet<OpToken> = self.buffers.waiting().collect();
        let mut waits: HashMap<SessionKey, Waits> = HashMap::new();
        for (index, operation) in self.operations.iter() {
            let state = &operation.state;
            if operation.forgotten || state.is_answered() || matches!(state, WaitsFor::Batch(_)) {
                continue;
            }
            let waits = waits.entry(operation.call.session).or_default();
            let is_held = matches!(
                state,
                WaitsFor::Lock { .. }
                    | WaitsFor::ClusterLock { .. }
                    | WaitsFor::Cluster
                    | WaitsFor::Recall { .. }
                    | WaitsFor::LocksKept(_)
                    | WaitsFor::CrossoversKept
                    | WaitsFor::FenceDrain { .. }
                    | WaitsFor::Chain { .. }
            );
            // One that waits for RDMA as well waits for its client.
            let has_no_buffer =
                operation.rdma_pending == 0 && for_buffers.contains(&token(index, operation.generation));
            if state.in_storage() {
                waits.in_storage += 1;
            } else if is_held || has_no_buffer {
                waits.for_others += 1;
            } else {
                waits.for_client += 1;
            }
        }
        waits
    }

    /// A client whose requests wait for the server may have no credit to speak with: it is not silent, and is told that the server is not.
    fn hear_of_those_who_wait(&mut self) {
        // [SESS-132]
        let keep_alive = millis(self.shared.settings.keep_alive_ms.min(KEEP_ALIVE_MAX_MS));
        let now = self.now;
        let waits = self.waits();
        let mut told = Vec::new();
        for (key, session) in self.sessions.iter_mut() {
            let waits = waits.get(&key).copied().unwrap_or_default();
            let credits = session.core.credits();
            let is_mute = session.presence.connection.is_some() && credits.executing() >= credits.limit();
            let waits_for_others = is_mute && waits.for_others > 0 && waits.for_client == 0;
            // [SESS-98] What storage does would be repeated in another session.
            let is_excused = waits.in_storage > 0 || waits_for_others;
            if is_excused {
                session.presence.last_heard = now;
            }
            if !(is_excused && is_mute) {
                session.presence.assured = now;
            } else if now >= session.presence.assured.after(keep_alive) {
                session.presence.assured = now;
                told.extend(session.presence.connection.map(|connection| (key, connection, credits.limit())));
            }
        }
        for (session, connection, limit) in told {
            // [SESS-130]
            self.tell_credits(session, connection, limit);
        }
    }

    /// Connections need not be ready for more messages than their clients may send.
    fn expect_fewer(&mut self) {
        for (_, session) in self.sessions.iter() {
            let connection = session.presence.connection.and_then(|key| self.connections.find_mut(key));
            let limit = session.core.credits().limit();
            if let Some(connection) = connection
                && connection.endpoint.messages_expected() > limit
            {
                connection.endpoint.expect_messages(limit);
            }
        }
    }

    /// Tells active sessions whose share has grown since their last reply: one that waits for a slow operation has none coming.
    fn raise_credits(&mut self) {
        let (now, operations_max) = (self.now, self.shared.settings.operations_max);
        let raised: Vec<_> = self
            .sessions
            .iter()
            .filter_map(|(key, session)| {
                let credits = session.core.credits();
                // A client whose every credit is in use can say no more that it would like others.
                let is_full = credits.executing() >= credits.limit();
                let wanted =
                    credits.wanted().max(if is_full { credits.limit().saturating_add(RAISE) } else { 0 });
                let target = self.sessions.credit_target(wanted, session.core.slots_max(), operations_max);
                // A client that has sent nothing since may not have read the last: its receives for callbacks are few. `last_heard` does
                // not tell: while storage is at work for a session, that moves on by itself.
                let grows = !session.presence.raised && session.is_active(now) && target > credits.limit();
                grows.then_some((key, session.presence.connection?, target))
            })
            .collect();
        for (session, connection, target) in raised {
            let Some(ready) =
                self.connections.find_mut(connection).map(|c| c.endpoint.expect_messages(target))
            else {
                continue;
            };
            if self.tell_credits(session, connection, target.min(ready))
                && let Some(session) = self.sessions.find_mut(session)
            {
                session.presence.raised = true;
            }
        }
    }

    /// Tells a session of its credits, unless what is sent before waits: behind that it would tell nothing new.
    fn tell_credits(&mut self, session: SessionKey, connection: ConnectionKey, target: u16) -> bool {
        let is_ready =
            self.connections.find_mut(connection).is_some_and(|connection| connection.sends_at_once());
        let Some(session) = self.sessions.find_mut(session).filter(|_| is_ready) else { return false };
        let mut header = Header::callback(Opcode::CreditTarget, session.core.next_callback());
        header.credits = session.core.on_credit_target(target);
        self.connections.send_callback(connection, header, &[], &[]);
        true
    }
}
