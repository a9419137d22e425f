//! A node's protection domain and its listeners.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Link;
use super::world::{DomainId, ListenerState, REGIONS_MAX};
use super::{NodeId, SimEndpoint, SimNet, Waiting, nanos};
use crate::transport::util::{allocate_heap, refuse_faulting};
use crate::transport::{
    Access, Address, ConnectError, ConnectParams, Domain, Endpoint, EventFds, Listener, Memory, MemoryRef,
    Provider, Region, RegionError, RegionKey, RegionOwner, RemoteRange, TransportError,
};

/// Whoever connects through a partition looks again whether it has ended, if somebody else moves the time.
const LOOK_INTERVAL_NS: u64 = 10_000_000;

/// A protection domain on a simulated node. Clones are the same domain.
#[derive(Clone)]
pub struct SimDomain {
    shared: Arc<DomainShared>,
}

pub(super) struct DomainShared {
    net: SimNet,
    node: NodeId,
    id: DomainId,
}

impl SimDomain {
    pub(super) fn new(net: SimNet, node: NodeId) -> Self {
        let id = net.lock().add_domain(node);
        Self { shared: Arc::new(DomainShared { net, node, id }) }
    }

    /// The network.
    pub fn net(&self) -> &SimNet {
        &self.shared.net
    }

    /// The node.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// Lets virtual time pass up to `at_ns`, or to `deadline_ns` while the port's node is cut off; `false` when the deadline came first.
    fn travel(&self, port: u32, at_ns: u64, deadline_ns: u64) -> bool {
        let net = &self.shared.net;
        loop {
            let wait = net.shared.waits.get();
            if wait.is_none() {
                net.run_idle();
            }
            let mut state = net.lock();
            let listener = state.listeners.get(&port).and_then(|listener| state.node(listener.domain));
            let cut_off = listener.is_some_and(|node| state.partitioned(node, self.shared.node));
            let until_ns = if cut_off { deadline_ns } else { at_ns.min(deadline_ns) };
            let now_ns = state.now_ns();
            if now_ns >= until_ns {
                return !cut_off && now_ns >= at_ns;
            }
            if let Some(wait) = wait {
                drop(state);
                // A partition may end.
                let until_ns = until_ns.min(now_ns + LOOK_INTERVAL_NS);
                wait(Waiting::new(net, None, Some(until_ns)));
                continue;
            }
            let next_ns = state.next_event_ns().map_or(until_ns, |next_ns| next_ns.min(until_ns));
            state.advance_to(next_ns.max(now_ns));
        }
    }

    fn connect_failed(&self, address: &Address, kind: io::ErrorKind) -> ConnectError {
        self.shared.net.lock().counters.connects_failed += 1;
        ConnectError::System { what: "connect to", address: address.to_string(), source: kind.into() }
    }
}

impl Domain for SimDomain {
    fn provider(&self) -> Provider {
        Provider::Sim
    }

    fn pins_pages(&self) -> bool {
        false
    }

    fn allocate(&self, len: usize) -> Result<Arc<dyn Memory>, RegionError> {
        allocate_heap(len)
    }

    fn register(&self, memory: MemoryRef, access: Access) -> Result<Region, RegionError> {
        refuse_faulting(Provider::Sim, &memory)?;
        let mut state = self.shared.net.lock();
        if state.regions_len(self.shared.id) >= REGIONS_MAX {
            return Err(RegionError::TooMany { limit: REGIONS_MAX });
        }
        let len = memory.len() as u64;
        let key = state.add_region(self.shared.id, memory.clone(), access);
        drop(state);
        let owner = Arc::clone(&self.shared) as Arc<dyn RegionOwner>;
        Ok(Region::new(RemoteRange { key, offset: 0, len }, memory, owner))
    }

    fn connect(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<Box<dyn Endpoint>, ConnectError> {
        let Address::Sim(port) = *address else {
            return Err(ConnectError::WrongAddress { provider: Provider::Sim, address: address.to_string() });
        };
        let net = &self.shared.net;
        let (there_ns, deadline_ns, refused) = {
            let mut state = net.lock();
            let there_ns = state.now_ns() + state.delay_ns(0);
            let refuse_ppm = state.plan().refuse_ppm;
            (there_ns, state.now_ns().saturating_add(nanos(timeout)), state.chance(refuse_ppm))
        };
        let timed_out = || {
            net.lock().counters.connects_failed += 1;
            let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            ConnectError::Timeout { address: address.to_string(), timeout_ms }
        };
        if !self.travel(port, there_ns, deadline_ns) {
            return Err(timed_out());
        }
        let (connection, back_ns) = {
            let mut state = net.lock();
            let connection = if refused { None } else { state.add_connection(self.shared.id, *params, port) };
            (connection, state.now_ns() + state.delay_ns(0))
        };
        let arrived = self.travel(port, back_ns, deadline_ns);
        let Some(connection) = connection else {
            return Err(self.connect_failed(address, io::ErrorKind::ConnectionRefused));
        };
        // From here on the connection is closed when this is dropped.
        let endpoint = SimEndpoint::new(Arc::clone(&self.shared), Link { connection, side: 0 });
        if !arrived {
            return Err(timed_out());
        }
        endpoint
            .map(|endpoint| Box::new(endpoint) as Box<dyn Endpoint>)
            .ok_or_else(|| self.connect_failed(address, io::ErrorKind::ConnectionReset))
    }

    fn listen(&self, address: &Address, params: &ConnectParams) -> Result<Box<dyn Listener>, ConnectError> {
        let Address::Sim(port) = *address else {
            return Err(ConnectError::WrongAddress { provider: Provider::Sim, address: address.to_string() });
        };
        let failed = |kind: io::ErrorKind| ConnectError::System {
            what: "listen on",
            address: address.to_string(),
            source: kind.into(),
        };
        let mut state = self.shared.net.lock();
        if state.node(self.shared.id).is_none() {
            return Err(failed(io::ErrorKind::NetworkDown));
        }
        if state.listeners.contains_key(&port) {
            return Err(failed(io::ErrorKind::AddrInUse));
        }
        let listener = ListenerState { domain: self.shared.id, params: *params, backlog: Default::default() };
        state.listeners.insert(port, listener);
        drop(state);
        let (domain, address) = (Arc::clone(&self.shared), address.clone());
        Ok(Box::new(SimListener { domain, address, port, has_more: false }))
    }
}

/// A simulated port that is listened on.
pub struct SimListener {
    domain: Arc<DomainShared>,
    address: Address,
    port: u32,
    has_more: bool,
}

/// An accept ends when it has looked at so many connections, whatever became of them.
const STEPS_MAX: usize = 64;

impl SimListener {
    /// The listener still stands for this domain: after a crash, another domain may listen on the port.
    fn own<'a>(&self, state: &'a mut super::SimWorld) -> Option<&'a mut ListenerState> {
        state.listeners.get_mut(&self.port).filter(|listener| listener.domain == self.domain.id)
    }
}

impl Listener for SimListener {
    fn address(&self) -> &Address {
        &self.address
    }

    fn accept(&mut self) -> Result<Option<Box<dyn Endpoint>>, TransportError> {
        self.has_more = false;
        let mut accepted = None;
        for _ in 0..STEPS_MAX {
            let next = {
                let mut state = self.domain.net.lock();
                let listener = self.own(&mut state).ok_or_else(|| {
                    TransportError::system("accept on a crashed node", io::ErrorKind::NetworkDown.into())
                })?;
                listener.backlog.pop_front()
            };
            let Some(connection) = next else { return Ok(None) };
            // The connector may have given up meanwhile.
            accepted = SimEndpoint::new(Arc::clone(&self.domain), Link { connection, side: 1 });
            if accepted.is_some() {
                break;
            }
        }
        self.has_more = true;
        Ok(accepted.map(|endpoint| Box::new(endpoint) as Box<dyn Endpoint>))
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn expire_handshakes(&mut self) {}

    fn event_fds(&self) -> EventFds {
        EventFds::new()
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.domain.net.lock();
        let backlog = self.own(&mut state).map(|listener| std::mem::take(&mut listener.backlog));
        let Some(backlog) = backlog else { return };
        state.listeners.remove(&self.port);
        for connection in backlog {
            state.release(Link { connection, side: 1 });
        }
    }
}

impl DomainShared {
    pub(super) fn net(&self) -> &SimNet {
        &self.net
    }
}

impl RegionOwner for DomainShared {
    fn deregister(&self, key: RegionKey) {
        // A statement of its own: the lock is released before the memory is.
        let memory = self.net.lock().remove_region(self.id, key);
        drop(memory);
    }
}

impl Drop for DomainShared {
    fn drop(&mut self) {
        self.net.lock().remove_domain(self.id);
    }
}
