//! What is done as time passes: ten times a second.

use std::collections::HashMap;
use std::time::Duration;

use dafs_proto::budget::Owner;
use dafs_proto::session::Moment;
use dafs_proto::wire::{Header, Opcode};

use super::Worker;
use super::ending::End;
use crate::access::Access;
use crate::config::millis;
use crate::storage::work;
use crate::worker::connection::{Connection, Phase};
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::requests::work::State;

/// Sessions that end in one tick: each closes hundreds of files, and a crowd may fall silent together.
const ENDED_AT_ONCE: usize = 4;

/// Credits more for a session whose operations take long, all of them in use.
const RAISE: u16 = 4;

impl Worker {
    /// Time passes: handshakes and sessions that are overdue end, fair shares follow. Called about ten times a second, and again soon where
    /// it returns that there is more to end.
    pub fn on_tick(&mut self) -> bool {
        let (now, handshake) = (self.now, millis(self.shared.settings.handshake_ms));
        self.turns.begin(now);
        let overdue: Vec<ConnectionKey> = self
            .connections
            .iter()
            .filter(|(_, c)| {
                matches!(c.phase, Phase::Connected | Phase::Greeted(_) | Phase::Introduced(_))
                    && now >= c.since.after(handshake)
            })
            .map(|(_, connection)| connection.key)
            .collect();
        for key in overdue {
            self.close(key, &"the handshake was not finished in time");
        }
        self.charge_unsent();
        self.hear_of_those_who_move_data();
        self.disconnect_those_who_keep_buffers();
        self.hear_of_those_in_storage();
        self.hear_of_those_who_wait_for_buffers();
        self.hear_of_those_who_wait_for_locks();
        let expired = self.sessions.expired(now, millis(self.shared.settings.lease_ms));
        for session in expired.iter().take(ENDED_AT_ONCE) {
            self.end_session(*session, End::LeaseOver);
        }
        self.end_expired_tokens();
        self.end_overdue_lock_waits();
        self.look_at_local_locks();
        self.look_after_lock_turns();
        self.look_after_kept_locks();
        let active = self.sessions.iter().filter(|(_, session)| session.is_active(now)).count();
        self.active_sessions = self.shared.count_active(self.id, u32::try_from(active).unwrap_or(u32::MAX));
        self.publish();
        self.raise_credits();
        self.expect_fewer();
        self.tell_of_due_batches();
        self.meetings.end_overdue(self.now);
        self.resume_storage_waiters();
        self.tidy_storage();
        self.flush_dirty();
        // It was nobody's turn.
        work::take();
        expired.len() > ENDED_AT_ONCE
    }

    /// For so long nothing was read, whatever was sent: nobody was silent in that time. Called before the tick that follows it.
    pub fn on_stall(&mut self, duration: Duration) {
        let now = self.now;
        tracing::warn!(
            seconds = duration.as_secs_f64(),
            "the server did not run for a while; leases are extended by that time"
        );
        let later = |moment: Moment| moment.after(duration).min(now);
        self.reclaims_since = later(self.reclaims_since);
        for session in self.sessions.iter_mut() {
            session.last_heard = later(session.last_heard);
            session.lock_turns.on_stall(later);
        }
        self.connections.iter_mut().for_each(|(_, connection)| connection.on_stall(later));
    }

    /// Closes connections whose clients leave more replies untaken than they may: kept replies are there when they come back.
    fn charge_unsent(&mut self) {
        let budget = &self.shared.budgets.unsent;
        let mut over = Vec::new();
        for (_, connection) in &mut self.connections {
            let unsent = connection.unsent_bytes();
            if unsent == 0 {
                connection.unsent = None;
                continue;
            }
            let fits = match &mut connection.unsent {
                Some(charge) => charge.set(unsent),
                None => {
                    let session = match connection.phase {
                        Phase::Live(session) => self.sessions.find(session),
                        _ => None,
                    };
                    let peer = &connection.endpoint.capabilities().peer;
                    let owner = session.map(|session| Access::budget_owner(&session.client, peer));
                    connection.unsent = budget.take(&owner.unwrap_or(Owner::Unknown), unsent);
                    connection.unsent.is_some()
                }
            };
            if !fits {
                over.push(connection.key);
            }
        }
        for key in over {
            self.close(key, &"its client leaves too many bytes of replies untaken");
        }
    }

    /// Shows the others how many sessions and connections there are now, and what was counted.
    pub(crate) fn publish(&self) {
        if self.shared.has_others() {
            self.shared.publish(self.id, self.own_statistics());
        }
    }

    /// A request of a client may be far behind data on its way, and one whose credits are all in use by transfers can send none.
    fn hear_of_those_who_move_data(&mut self) {
        let now = self.now;
        for (_, connection) in &mut self.connections {
            // [SESS-129]
            if connection.has_moved(now)
                && let Phase::Live(session) = connection.phase
                && let Some(session) = self.sessions.find_mut(session)
            {
                session.last_heard = now;
            }
        }
    }

    /// A client that serves none of the server's reads and writes would keep buffers from others for ever. Its requests come again on its
    /// next connection, behind those that wait now.
    fn disconnect_those_who_keep_buffers(&mut self) {
        if !self.buffers.has_waiters() {
            return;
        }
        let (now, lease) = (self.now, millis(self.shared.settings.lease_ms));
        let rests = |connection: &Connection| {
            connection.rdma_rests_since().is_some_and(|since| now >= since.after(lease))
        };
        let live = self.connections.iter().filter_map(|(_, connection)| match connection.phase {
            Phase::Live(session) => Some((connection, session)),
            _ => None,
        });
        // [LIMIT-23]
        let keeping = live
            .filter(|(connection, session)| self.buffers.keeps_from_others(*session) && rests(connection));
        let keeping: Vec<_> = keeping.map(|(connection, _)| connection.key).collect();
        for key in keeping {
            self.close(key, &"its client lets none of its data move, and others wait for the buffers");
        }
    }

    /// A client whose requests wait for buffers of the server may have no credit for a keep-alive.
    fn hear_of_those_who_wait_for_buffers(&mut self) {
        if !self.buffers.has_waiters() {
            return;
        }
        let (now, buffers) = (self.now, &self.buffers);
        for (key, session) in self.sessions.iter_mut_with_keys() {
            let is_full = session.core.credits().executing() >= session.core.credits().limit();
            // [SESS-98]
            if is_full && session.connection.is_some() && buffers.has_waiting(key) {
                session.last_heard = now;
            }
        }
    }

    /// A client whose operations storage still carries out may have no credit to speak with, and would repeat them in a new session: no
    /// lease ends before storage is done with all of them.
    fn hear_of_those_in_storage(&mut self) {
        for (_, operation) in &self.operations {
            if !operation.forgotten
                && operation.state.in_storage()
                && let Some(session) = self.sessions.find_mut(operation.call.session)
            {
                session.last_heard = self.now;
            }
        }
    }

    /// A client whose requests all wait for locks, or for the file of them, has no credit for a keep-alive.
    fn hear_of_those_who_wait_for_locks(&mut self) {
        if !self.shared.locks.is_used() {
            return;
        }
        let mut waiting: HashMap<SessionKey, usize> = HashMap::new();
        for (_, operation) in &self.operations {
            if matches!(operation.state, State::Lock { .. } | State::LocksKept(_) | State::Chain { .. }) {
                *waiting.entry(operation.call.session).or_default() += 1;
            }
        }
        for (key, count) in waiting {
            let Some(session) = self.sessions.find_mut(key).filter(|session| session.connection.is_some())
            else {
                continue;
            };
            let (executing, limit) = (session.core.credits().executing(), session.core.credits().limit());
            // One that waits for its client itself is no excuse.
            if executing >= limit && count >= usize::from(executing) {
                session.last_heard = self.now;
            }
        }
    }

    /// Connections need not be ready for more messages than their clients may send.
    fn expect_fewer(&mut self) {
        for (_, session) in self.sessions.iter() {
            let connection = session.connection.and_then(|key| self.connections.get_mut(key.index));
            let limit = session.core.credits().limit();
            if let Some(connection) = connection.filter(|found| found.endpoint.messages_expected() > limit) {
                connection.endpoint.expect_messages(limit);
            }
        }
    }

    /// Tells active sessions whose share has grown since their last reply: one that waits for a slow operation has none coming.
    fn raise_credits(&mut self) {
        let now = self.now;
        let raised: Vec<_> = self
            .sessions
            .iter()
            .filter_map(|(key, session)| {
                let credits = session.core.credits();
                // A client whose every credit is in use can say no more that it would like others.
                let is_full = credits.executing() >= credits.limit();
                let wanted =
                    credits.wanted().max(if is_full { credits.limit().saturating_add(RAISE) } else { 0 });
                let target = self.credit_target(wanted, session.core.slots_max());
                // A client that has sent nothing since may not have read the last: its receives for callbacks are few. `last_heard` does
                // not tell: while storage is at work for a session, that moves on by itself.
                let grows = !session.raised && session.is_active(now) && target > credits.limit();
                grows.then_some((key, session.connection?, target))
            })
            .collect();
        for (session, connection, target) in raised {
            // Behind replies that wait it would tell nothing new.
            let ready = self.connection(connection).filter(|connection| connection.sends_at_once());
            let Some(ready) = ready.map(|connection| connection.endpoint.expect_messages(target)) else {
                continue;
            };
            let Some(session) = self.sessions.find_mut(session) else { continue };
            session.raised = true;
            let mut header = Header::callback(Opcode::CreditTarget, session.core.next_callback());
            header.credits = session.core.on_credit_target(target.min(ready));
            self.send_callback(connection, header, &[], &[]);
        }
    }
}
