//! Accepts connections, without ever waiting for one.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use smallvec::smallvec;

use super::super::util::{Waiting, gives_way};
use super::super::{Address, ConnectParams, Endpoint, EventFds, Listener, TransportError, WaitPolicy};
use super::cm::{CmEvent, CmEventKind, CmId, EventChannel};
use super::connect::{Prepared, device_of};
use super::core::Core;
use super::domain::private_data;
use super::endpoint::VerbsEndpoint;
use super::events;
use super::handshake::Hello;
use super::memory::VerbsDomainParts;

/// Handshakes in progress. Beyond it the oldest makes room, or new ones are refused.
const HANDSHAKES_MAX: usize = 256;

/// A handshake that has lasted this long makes room for others when there is none: what is missing is one answer of the peer, which its
/// program sends by looking at its events.
const HANDSHAKE_TIME_SAFE: Duration = Duration::from_millis(250);

/// A peer that does not finish its handshake by then is dropped.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);

/// One refusal in so long is said aloud: strangers may go on for ever, and who was refused is told to look into the log.
const REFUSAL_TOLD_EVERY: Duration = Duration::from_secs(60);

/// An accept ends when it has taken so many events, whatever became of the handshakes that they are about.
const STEPS_MAX: usize = 64;

/// A listening id, and the handshakes that came in through it. All their events arrive on one channel.
pub struct VerbsListener {
    // Dropped before the listening id.
    handshakes: Vec<Handshake>,
    ready: VecDeque<VerbsEndpoint>,
    pub(super) id: CmId,
    address: Address,
    shared: Arc<VerbsDomainParts>,
    hello: Hello,
    policy: WaitPolicy,
    /// The last connection was refused for want of room.
    is_full: bool,
    refusals: Refusals,
    /// As [`Listener::has_more`].
    has_more: bool,
    /// Watches the connection manager's channel and, once it is known, the device.
    poll: Poll,
    events: Events,
    watches_device: bool,
}

/// A connection that was accepted and whose peer has not answered yet.
struct Handshake {
    prepared: Prepared,
    /// Of its own, once it is a connection. Made before it is accepted: without a descriptor for it the peer is refused.
    channel: Arc<EventChannel>,
    theirs: Hello,
    began: Instant,
}

impl VerbsListener {
    pub(super) fn bind(
        at: SocketAddr,
        shared: Arc<VerbsDomainParts>,
        params: &ConnectParams,
    ) -> io::Result<Self> {
        let id = CmId::new(&EventChannel::new()?)?;
        id.bind(at)?;
        if !id.context().is_null() {
            device_of(&id, &shared)?;
        }
        id.listen()?;
        let address = Address::Verbs(SocketAddr::new(at.ip(), id.source_port()));
        let poll = Poll::new()?;
        poll.registry().register(&mut SourceFd(&id.channel().fd()), Token(0), Interest::READABLE)?;
        Ok(Self {
            handshakes: Vec::new(),
            ready: VecDeque::new(),
            id,
            address,
            shared,
            hello: Hello::new(params),
            policy: params.wait,
            is_full: false,
            refusals: Refusals::default(),
            has_more: false,
            poll,
            events: Events::with_capacity(2),
            watches_device: false,
        })
    }

    /// As [`Listener::accept`], with the provider's own type.
    pub fn accept_verbs(&mut self) -> Result<Option<VerbsEndpoint>, TransportError> {
        self.accept_from(EventChannel::next)
    }

    /// As [`VerbsListener::accept_verbs`], with events from here.
    pub(super) fn accept_from(
        &mut self,
        mut next: impl FnMut(&Arc<EventChannel>) -> io::Result<Option<CmEvent>>,
    ) -> Result<Option<VerbsEndpoint>, TransportError> {
        self.has_more = false;
        self.look_at_device()
            .map_err(|error| TransportError::system("watch the RDMA device for events", error))?;
        for _ in 0..STEPS_MAX {
            if !self.ready.is_empty() {
                break;
            }
            let event = next(self.id.channel()).map_err(|error| {
                TransportError::system("take an event of the RDMA connection manager", error)
            })?;
            let Some(event) = event else { return Ok(None) };
            // What lies behind an event that is an error is told by no other.
            self.on_event(event).inspect_err(|_| self.has_more = true)?;
        }
        self.has_more = true;
        Ok(self.ready.pop_front())
    }

    /// Takes what the device says: the connections on the listener's loop learn of it from here.
    fn look_at_device(&mut self) -> io::Result<()> {
        // So that the next event is told again.
        match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let Some(device) = self.shared.device.get() else { return Ok(()) };
        if !self.watches_device {
            let fd = events::descriptor(device);
            self.poll.registry().register(&mut SourceFd(&fd), Token(1), Interest::READABLE)?;
            self.watches_device = true;
        }
        events::take(device);
        Ok(())
    }

    /// Handshakes in progress.
    pub fn handshakes_count(&self) -> usize {
        self.handshakes.len()
    }

    fn on_event(&mut self, mut event: CmEvent) -> Result<(), TransportError> {
        if let Some(id) = event.request.take() {
            let peer = id.peer();
            match self.begin(id, &event) {
                Ok(()) => self.is_full = false,
                Err(Unable::Refused(error)) => match self.refusals.is_told(Instant::now()) {
                    true => {
                        tracing::warn!(?peer, %error, "handshake refused; more within a minute are logged at level debug");
                    }
                    false => tracing::debug!(?peer, %error, "handshake refused"),
                },
                // Once, and again when one was taken in between: who wants in tries often.
                Err(Unable::NoRoom(error)) if !std::mem::replace(&mut self.is_full, true) => {
                    tracing::warn!(?peer, %error, "no room for another RDMA connection; those that are there go on");
                }
                Err(Unable::NoRoom(error)) => tracing::debug!(?peer, %error, "no room for the connection"),
            }
            return Ok(());
        }
        if event.about == self.id.name() {
            return match event.kind {
                CmEventKind::DeviceRemoved => Err(TransportError::system("listen", removed())),
                CmEventKind::Failed(_) => Err(TransportError::system("listen", event.error())),
                _ => Ok(()),
            };
        }
        let Some(place) =
            self.handshakes.iter().position(|handshake| handshake.prepared.id.name() == event.about)
        else {
            return Ok(());
        };
        match event.kind {
            CmEventKind::Other => {}
            CmEventKind::Established => {
                let handshake = self.handshakes.swap_remove(place);
                let peer = handshake.prepared.id.peer();
                match self.finish(handshake) {
                    Ok(endpoint) => self.ready.push_back(endpoint),
                    Err(error) => tracing::warn!(?peer, %error, "cannot take a connection over"),
                }
            }
            _ => {
                let handshake = self.handshakes.swap_remove(place);
                tracing::debug!(peer = ?handshake.prepared.id.peer(), error = %event.error(), "handshake failed");
            }
        }
        Ok(())
    }

    /// Answers a request for a connection.
    fn begin(&mut self, id: CmId, event: &CmEvent) -> Result<(), Unable> {
        let theirs = match Hello::decode(private_data(event)) {
            Ok(theirs) => theirs,
            Err(fault) => {
                // Whoever speaks another version of this transport learns ours.
                id.reject(&self.hello);
                return Err(Unable::Refused(io::Error::new(io::ErrorKind::InvalidData, fault)));
            }
        };
        if self.handshakes.len() >= HANDSHAKES_MAX && !self.make_room(Some(address(&id))) {
            id.reject(&self.hello);
            return Err(Unable::Refused(io::Error::other("too many handshakes at once")));
        }
        if event.peer_reads.0 == 0 {
            // They would stay in the queue for as long as it likes.
            let fault = "the peer serves no RDMA reads, by which its data is fetched";
            return Err(Unable::Refused(io::Error::new(io::ErrorKind::InvalidData, fault)));
        }
        let device = device_of(&id, &self.shared).map_err(Unable::Refused)?;
        // What fails from here on drops the id, which refuses the connection.
        let channel = EventChannel::new().map_err(Unable::NoRoom)?;
        let prepared = Prepared::new(id, device, &self.shared, &self.hello, true).map_err(Unable::NoRoom)?;
        prepared
            .id
            .accept(&prepared.own.encode(), prepared.reads_with(event.peer_reads))
            .map_err(Unable::NoRoom)?;
        self.handshakes.push(Handshake { prepared, channel, theirs, began: Instant::now() });
        Ok(())
    }

    /// Gives one up, of the address that has most, if that has had its time.
    fn make_room(&mut self, newcomer: Option<Option<IpAddr>>) -> bool {
        let all = self.handshakes.iter().enumerate().map(|(place, handshake)| Waiting {
            place,
            whose: address(&handshake.prepared.id),
            age: handshake.began.elapsed(),
        });
        let Some(place) = gives_way(all, newcomer, HANDSHAKE_TIME_SAFE) else { return false };
        let handshake = self.handshakes.swap_remove(place);
        tracing::debug!(peer = ?handshake.prepared.id.peer(), "handshake dropped for a newer one");
        true
    }

    fn finish(&self, handshake: Handshake) -> io::Result<VerbsEndpoint> {
        let Handshake { mut prepared, channel, theirs, .. } = handshake;
        prepared.id.migrate(channel)?;
        let core = Core::new(prepared, Arc::clone(&self.shared), theirs, self.policy)?;
        Ok(VerbsEndpoint::new(core))
    }
}

/// When a refusal was said last.
#[derive(Default)]
struct Refusals(Option<Instant>);

impl Refusals {
    fn is_told(&mut self, now: Instant) -> bool {
        let is_told = self.0.is_none_or(|told| now.duration_since(told) >= REFUSAL_TOLD_EVERY);
        if is_told {
            self.0 = Some(now);
        }
        is_told
    }
}

/// Why a connection is not taken.
enum Unable {
    /// The peer is not one, or too many are coming at once.
    Refused(io::Error),
    /// The device or the system has no queues or no memory for it.
    NoRoom(io::Error),
}

fn removed() -> io::Error {
    let what = "the RDMA device was removed; no connection is taken here until a server is started anew with a device";
    io::Error::new(io::ErrorKind::NotConnected, what)
}

impl Listener for VerbsListener {
    fn address(&self) -> &Address {
        &self.address
    }

    fn accept(&mut self) -> Result<Option<Box<dyn Endpoint>>, TransportError> {
        Ok(self.accept_verbs()?.map(|endpoint| Box::new(endpoint) as Box<dyn Endpoint>))
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn expire_handshakes(&mut self) {
        self.handshakes.retain(|handshake| {
            let keep = handshake.began.elapsed() < HANDSHAKE_TIME_MAX;
            if !keep {
                tracing::debug!(peer = ?handshake.prepared.id.peer(), "handshake not finished in time");
            }
            keep
        });
    }

    fn event_fds(&self) -> EventFds {
        smallvec![self.poll.as_raw_fd()]
    }
}

/// Where a connection comes from.
fn address(id: &CmId) -> Option<IpAddr> {
    id.peer().map(|peer| peer.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [VERBS-73]
    #[test]
    fn refusals_are_told_once_a_minute() {
        let (mut refusals, begin) = (Refusals::default(), Instant::now());
        let told: Vec<u64> =
            (0..200).filter(|seconds| refusals.is_told(begin + Duration::from_secs(*seconds))).collect();
        assert_eq!(told, [0, 60, 120, 180]);
    }
}
