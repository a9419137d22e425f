//! The connections of a worker: those that are open, what accepted them, and which of them are to be looked at. What arrives on them is not
//! looked into here, and nothing of a session is known but its key. Imports `flight`'s words and `shared`'s.

pub mod connection;
pub(crate) mod memory;
pub(crate) mod rdma;

use std::hash::Hash;
use std::net::IpAddr;
use std::ops::{Index, IndexMut};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::budget::Charge;
use dafs_proto::session::Moment;
use dafs_proto::transport::util::{Waiting, gives_way};
use dafs_proto::transport::{Domain, Endpoint, OpToken, PeerIdentity, Reach, Span};
use dafs_proto::wire::{Header, Thresholds};
use slab::Slab;

use self::connection::Connection;
use crate::shared::mail::{Introduction, Mail, Resume};
use crate::shared::settings::ListenerInfo;
use crate::shared::{ServerState, WorkerId};
use crate::worker::flight::Call;
use crate::worker::flight::answer::Payload;
use crate::worker::ids::ConnectionKey;

/// A connection has this long for its handshake before it is closed for another of a peer that has as many.
const HANDSHAKE_AGE_MIN: Duration = Duration::from_millis(250);

/// The connections of a worker.
#[derive(Default)]
pub(crate) struct Connections {
    open: Slab<Connection>,
    /// Counts them.
    generation: u64,
    listeners: Vec<Accepting>,
    /// Whose turn among the workers it is to get the next that this one accepts.
    deals: usize,
    /// They have something to flush at the end of this turn.
    dirty: Vec<ConnectionKey>,
    /// They have something to do in their next turn, whether they send anything or not.
    runnable: Vec<ConnectionKey>,
    /// For the loop to forget.
    closed: Vec<ConnectionKey>,
    /// Closed, with RDMA on its way and a last message behind it: see [`Endpoint::lingers`].
    leaving: Vec<Box<dyn Endpoint>>,
    departures: Vec<(WorkerId, Box<Resume>)>,
}

/// A listener, and what its connections may have.
struct Accepting {
    info: ListenerInfo,
    /// Where the eager buffers of its connections are registered.
    domain: Option<Arc<dyn Domain>>,
}

impl Connections {
    /// Adds a listener; its connections are added with the index that this returns.
    pub(crate) fn add_listener(&mut self, info: ListenerInfo) -> usize {
        self.listeners.push(Accepting { info, domain: None });
        self.listeners.len() - 1
    }

    /// Connections of a listener may have eager buffers, registered in its domain.
    pub(crate) fn offer_eager_buffers(&mut self, listener: usize, domain: Arc<dyn Domain>) {
        self.listeners[listener].domain = Some(domain);
    }

    /// Where eager buffers of a connection are registered, where it may have any.
    pub(crate) fn eager_domain(&self, key: ConnectionKey) -> Option<Arc<dyn Domain>> {
        let connection = self.find(key)?;
        let reachable = connection.endpoint.capabilities().registers_ordinary_memory;
        self.listeners.get(connection.listener)?.domain.clone().filter(|_| reachable)
    }

    /// What the listener of a connection knows.
    pub(crate) fn listener_of(&self, connection: &Connection) -> &ListenerInfo {
        &self.listeners[connection.listener].info
    }

    /// The thresholds of a connection: what its provider measured, within what its messages hold.
    pub(crate) fn thresholds(&self, key: ConnectionKey) -> Thresholds {
        let connection = &self[key];
        let capabilities = connection.endpoint.capabilities();
        let mut thresholds = self.listener_of(connection).thresholds;
        thresholds.read_inline_max = thresholds.read_inline_max.min(capabilities.send_payload_max);
        thresholds.write_inline_max = thresholds.write_inline_max.min(capabilities.recv_payload_max);
        thresholds
    }

    /// The place of the worker, of so many, whose turn it is to get the next connection.
    pub(crate) fn next_turn(&mut self, workers: usize) -> usize {
        let place = self.deals;
        self.deals = (self.deals + 1) % workers;
        place
    }

    /// Takes over an accepted connection, which is counted among those without a session by `beginning`.
    pub(crate) fn insert(
        &mut self,
        listener: usize,
        mut endpoint: Box<dyn Endpoint>,
        beginning: Charge,
        now: Moment,
    ) -> ConnectionKey {
        // The client reaches what is lent to it, and nothing before.
        endpoint.open_memory(Reach::Own);
        self.generation += 1;
        let entry = self.open.vacant_entry();
        let key = ConnectionKey { index: entry.key(), generation: self.generation };
        let address = self.listeners[listener].info.address.clone();
        let connection = entry.insert(Connection::new(key, endpoint, listener, address, now));
        connection.beginning = Some(beginning);
        key
    }

    /// Who of a listener's connections without a session goes for one more, where `max` may be there.
    pub(crate) fn goes_for(
        &self,
        listener: usize,
        newcomer: &PeerIdentity,
        max: usize,
        now: Moment,
    ) -> Option<ConnectionKey> {
        let begin = || self.iter().filter(|c| c.listener == listener && c.phase.is_beginning());
        let all = begin().map(|connection| Waiting {
            place: connection.key,
            whose: origin(&connection.endpoint.capabilities().peer),
            age: now.since(connection.since),
        });
        one_to_go(all, begin().count(), origin(newcomer), max)
    }

    /// A connection that is open.
    #[inline]
    pub(crate) fn find(&self, key: ConnectionKey) -> Option<&Connection> {
        self.open.get(key.index).filter(|connection| connection.key == key)
    }

    /// A connection that is open.
    #[inline]
    pub(crate) fn find_mut(&mut self, key: ConnectionKey) -> Option<&mut Connection> {
        self.open.get_mut(key.index).filter(|connection| connection.key == key)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> + Clone {
        self.open.iter().map(|(_, connection)| connection)
    }

    /// All of them, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.open.iter_mut().map(|(_, connection)| connection)
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// A request's payload, where it is.
    #[inline]
    pub(crate) fn payload_of<'a>(&'a self, call: &Call, payload: Payload<'a>) -> Span<'a> {
        match payload {
            Payload::Kept(bytes) => bytes,
            Payload::Current => {
                self.find(call.connection).map_or(Span::EMPTY, |connection| connection.endpoint.payload())
            }
        }
    }

    /// The largest payload of a message to a connection's client, bytes.
    pub(crate) fn send_payload_max(&self, key: ConnectionKey) -> usize {
        self.find(key).map_or(0, |connection| connection.endpoint.capabilities().send_payload_max as usize)
    }

    /// Sends a message of the server's own accord, where the client takes such: one that has not named callbacks asks instead.
    pub(crate) fn send_callback(&mut self, key: ConnectionKey, header: Header, body: &[u8], payload: &[u8]) {
        let takes = |connection: &&mut Connection| connection.features.contains(header.opcode.feature());
        if let Some(connection) = self.find_mut(key).filter(takes) {
            connection.send_parts(header, body, payload);
            self.mark_dirty(key);
        }
    }

    /// Takes a connection out that was closed.
    pub(crate) fn remove(&mut self, key: ConnectionKey) {
        let mut endpoint = self.open.remove(key.index).endpoint;
        if endpoint.lingers() {
            // What tells the client why lies behind data that is on its way. Buffers that RDMA holds are lent to nobody meanwhile.
            self.leaving.push(endpoint);
        }
        self.closed.push(key);
    }

    /// Lets go of connections that were closed, and of which nothing more is on its way.
    pub(crate) fn drop_those_who_left(&mut self) {
        self.leaving.retain_mut(|endpoint| endpoint.lingers());
    }

    /// Some connection was closed since [`Connections::take_closed`].
    #[inline]
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Connections that were closed since the last call, for the loop to forget.
    pub(crate) fn take_closed(&mut self) -> Vec<ConnectionKey> {
        std::mem::take(&mut self.closed)
    }

    /// A connection has output that its provider could not send yet. Looks at all.
    pub(crate) fn has_unsent(&self) -> bool {
        self.iter().any(Connection::wants_flush) || !self.leaving.is_empty()
    }

    /// A connection is to be served by another worker from now on, with the handshake that it is in.
    pub(crate) fn depart(&mut self, key: ConnectionKey, to: WorkerId, introduction: Introduction) {
        let Connection { listener, endpoint, .. } = self.open.remove(key.index);
        self.closed.push(key);
        self.departures.push((to, Box::new(Resume { listener, endpoint, introduction })));
    }

    /// Hands connections on that another worker is to serve. The loop that served them stops to watch their descriptors first.
    pub(crate) fn send_departures(&mut self, shared: &ServerState, mut unwatch: impl FnMut(RawFd)) {
        for (to, resume) in self.departures.drain(..) {
            resume.endpoint.event_fds().iter().for_each(|fd| unwatch(*fd));
            shared.send(to, Mail::Resume(resume));
        }
    }

    /// Marks a connection that has something to flush at the end of this turn.
    pub(crate) fn mark_dirty(&mut self, key: ConnectionKey) {
        if !self.dirty.contains(&key) {
            self.dirty.push(key);
        }
    }

    /// Takes one that has something to flush.
    pub(crate) fn next_dirty(&mut self) -> Option<ConnectionKey> {
        self.dirty.pop()
    }

    /// None has anything to flush.
    pub(crate) fn are_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    /// A transfer, a list or a batch has more to move than fits its turn.
    pub(crate) fn yield_turn(&mut self, key: ConnectionKey, token: OpToken) {
        let Some(connection) = self.find_mut(key) else { return };
        if connection.turn.defer(token) {
            self.runnable.push(key);
        }
    }

    /// Nobody may be about to serve it. What a turn left of its output is no event, and what was posted since it was armed may complete
    /// without one.
    pub(crate) fn run_unless_quiet(&mut self, key: ConnectionKey) {
        if self.find(key).is_some_and(|connection| !connection.is_quiet()) {
            self.runnable.push(key);
        }
    }

    /// Takes one that has something to do in its next turn.
    #[inline]
    pub(crate) fn take_runnable(&mut self) -> Option<ConnectionKey> {
        self.runnable.pop()
    }
}

/// A connection that is known to be open.
impl Index<ConnectionKey> for Connections {
    type Output = Connection;

    fn index(&self, key: ConnectionKey) -> &Connection {
        &self.open[key.index]
    }
}

impl IndexMut<ConnectionKey> for Connections {
    fn index_mut(&mut self, key: ConnectionKey) -> &mut Connection {
        &mut self.open[key.index]
    }
}

/// Who goes of `count` that begin a session, where `max` may: from half of that on one that has had its time, of the peer that has most; at
/// the bound one of them that has not.
fn one_to_go<P: Copy, W: Copy + Eq + Hash>(
    begin: impl Iterator<Item = Waiting<P, W>> + Clone,
    count: usize,
    newcomer: W,
    max: usize,
) -> Option<P> {
    if count < max.div_ceil(2) {
        return None;
    }
    let (age_min, newcomer) =
        if count < max { (HANDSHAKE_AGE_MIN, None) } else { (Duration::ZERO, Some(newcomer)) };
    gives_way(begin, newcomer, age_min)
}

/// Whom a connection is counted for before its client has said who it is.
fn origin(peer: &PeerIdentity) -> (Option<IpAddr>, Option<u32>) {
    (peer.address.map(|address| address.ip()), peer.credentials.as_ref().map(|peer| peer.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    // [LIMIT-6] [LIMIT-7]
    #[test]
    fn handshake_gives_way_after_its_time_or_without_room() {
        // Of ten that may, these many of 'a' and 'b', each a millisecond older than the one before it.
        let gone = |a: usize, b: usize, youngest: u64| {
            let whose = std::iter::repeat_n('a', a).chain(std::iter::repeat_n('b', b));
            let begin = whose.enumerate().map(|(place, whose)| Waiting {
                place,
                whose,
                age: Duration::from_millis(youngest + place as u64),
            });
            one_to_go(begin, a + b, 'b', 10)
        };
        assert_eq!(gone(4, 0, 1000), None, "below half of the bound");
        assert_eq!(gone(5, 0, 245), None, "all are young");
        assert_eq!(gone(5, 0, 246), Some(4), "the oldest has had its time");
        assert_eq!(gone(4, 3, 1000), Some(3), "the oldest of whoever has most");
        assert_eq!(gone(6, 3, 0), None);
        assert_eq!(gone(6, 4, 0), Some(5), "there is no room");
    }
}
