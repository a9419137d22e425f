//! Accepts connections, without ever waiting for one.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::smallvec;

use super::super::{Address, ConnectParams, Endpoint, EventFds, Listener, TransportError, WaitPolicy};
use super::cm::{CmEvent, CmEventKind, CmId, EventChannel};
use super::connect::{Prepared, device_of};
use super::core::Core;
use super::domain::private_data;
use super::endpoint::VerbsEndpoint;
use super::handshake::Hello;
use super::memory::Shared;

/// Handshakes in progress. Beyond it new ones are refused.
const HANDSHAKES_MAX: usize = 256;

/// A peer that does not finish its handshake by then is dropped.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);

/// A listening id, and the handshakes that came in through it. All their events arrive on one channel.
pub struct VerbsListener {
    // Dropped before the listening id.
    handshakes: Vec<Handshake>,
    ready: VecDeque<VerbsEndpoint>,
    id: CmId,
    address: Address,
    shared: Arc<Shared>,
    hello: Hello,
    policy: WaitPolicy,
}

/// A connection that was accepted and whose peer has not answered yet.
struct Handshake {
    prepared: Prepared,
    theirs: Hello,
    began: Instant,
}

impl VerbsListener {
    pub(super) fn bind(at: SocketAddr, shared: Arc<Shared>, params: &ConnectParams) -> io::Result<Self> {
        let id = CmId::new(&EventChannel::new()?)?;
        id.bind(at)?;
        if !id.context().is_null() {
            device_of(&id, &shared)?;
        }
        id.listen()?;
        let address = Address::Verbs(SocketAddr::new(at.ip(), id.source_port()));
        Ok(Self {
            handshakes: Vec::new(),
            ready: VecDeque::new(),
            id,
            address,
            shared,
            hello: Hello::new(params),
            policy: params.wait,
        })
    }

    /// As [`Listener::accept`], with the provider's own type.
    pub fn accept_verbs(&mut self) -> Result<Option<VerbsEndpoint>, TransportError> {
        loop {
            if let Some(endpoint) = self.ready.pop_front() {
                return Ok(Some(endpoint));
            }
            match self.id.channel().next() {
                Ok(None) => return Ok(None),
                Ok(Some(event)) => self.on_event(event)?,
                Err(error) => {
                    return Err(TransportError::system(
                        "take an event of the RDMA connection manager",
                        error,
                    ));
                }
            }
        }
    }

    /// Handshakes in progress.
    pub fn handshakes_count(&self) -> usize {
        self.handshakes.len()
    }

    fn on_event(&mut self, mut event: CmEvent) -> Result<(), TransportError> {
        if let Some(id) = event.request.take() {
            let peer = id.peer();
            if let Err(error) = self.begin(id, &event) {
                tracing::debug!(?peer, %error, "handshake failed");
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
    fn begin(&mut self, id: CmId, event: &CmEvent) -> io::Result<()> {
        let theirs = match Hello::decode(private_data(event)) {
            Ok(theirs) => theirs,
            Err(fault) => {
                // Whoever speaks another version of this transport learns ours.
                id.reject(&self.hello);
                return Err(io::Error::new(io::ErrorKind::InvalidData, fault));
            }
        };
        if self.handshakes.len() >= HANDSHAKES_MAX {
            id.reject(&self.hello);
            return Err(io::Error::other("too many handshakes at once"));
        }
        let device = device_of(&id, &self.shared)?;
        let prepared = Prepared::new(id, device, &self.shared, &self.hello, true)?;
        prepared.id.accept(&self.hello, prepared.reads_with(event.peer_reads))?;
        self.handshakes.push(Handshake { prepared, theirs, began: Instant::now() });
        Ok(())
    }

    fn finish(&self, handshake: Handshake) -> io::Result<VerbsEndpoint> {
        let Handshake { mut prepared, theirs, .. } = handshake;
        prepared.id.migrate(EventChannel::new()?)?;
        let core = Core::new(prepared, Arc::clone(&self.shared), self.hello, theirs, self.policy)?;
        Ok(VerbsEndpoint::new(core))
    }
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
        smallvec![self.id.channel().fd()]
    }
}
