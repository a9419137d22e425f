//! Memory and connections of one side.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::util::{allocate_heap, deadline_after, refuse_faulting, socket_address};
use super::super::{
    Access, Address, ConnectError, ConnectParams, Domain, Endpoint, Listener, Memory, MemoryRef, Provider,
    Region, RegionError,
};
use super::cm::{CmEvent, CmEventKind, CmId, EventChannel};
use super::connect::{Prepared, device_of};
use super::core::Core;
use super::device::{Device, devices};
use super::endpoint::VerbsEndpoint;
use super::handshake::Hello;
use super::listener::VerbsListener;
use super::memory::VerbsDomainParts;

/// The protection domain of the verbs provider: one device, that of its first connection or listener.
#[derive(Default)]
pub struct VerbsDomain {
    pub(super) shared: Arc<VerbsDomainParts>,
}

impl VerbsDomain {
    /// A domain. No device is opened before it is needed.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Domain::connect`], with the provider's own type.
    pub fn connect_verbs(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<VerbsEndpoint, ConnectError> {
        let to = socket_address(Provider::Verbs, address)?;
        let deadline = deadline_after(timeout);
        let failed = |error| ConnectError::connecting(address, timeout, explain_missing(error));
        let refused = |refusal| match refusal {
            // A peer that speaks another version of this transport says so in its refusal.
            Refusal::Event(event) if event.kind == CmEventKind::Rejected && says_something(&event) => {
                match Hello::decode(private_data(&event)) {
                    Ok(_) => failed(event.error()),
                    Err(fault) => ConnectError::peer(address, fault),
                }
            }
            refusal => failed(refusal.into_io()),
        };
        let id = resolve(to, deadline).map_err(refused)?;
        let device = device_of(&id, &self.shared).map_err(failed)?;
        let prepared = Prepared::new(id, device, &self.shared, &Hello::new(params), false).map_err(failed)?;
        prepared.id.connect(&prepared.own.encode(), prepared.reads()).map_err(failed)?;
        let event = await_event(&prepared.id, CmEventKind::Established, deadline).map_err(refused)?;
        let theirs =
            Hello::decode(private_data(&event)).map_err(|fault| ConnectError::peer(address, fault))?;
        let core = Core::new(prepared, Arc::clone(&self.shared), theirs, params.wait);
        Ok(VerbsEndpoint::new(core.map_err(failed)?))
    }

    /// As [`Domain::listen`], with the provider's own type.
    pub fn listen_verbs(
        &self,
        address: &Address,
        params: &ConnectParams,
    ) -> Result<VerbsListener, ConnectError> {
        let at = socket_address(Provider::Verbs, address)?;
        VerbsListener::bind(at, Arc::clone(&self.shared), params)
            .map_err(|error| ConnectError::listening(address, explain_missing(error)))
    }

    /// Regions registered now.
    pub fn regions_count(&self) -> usize {
        self.shared.registry.len()
    }

    /// The device, or the first there is when no connection has decided yet.
    fn device(&self) -> Result<Arc<Device>, RegionError> {
        if let Some(device) = self.shared.device.get() {
            return Ok(Arc::clone(device));
        }
        let failed = |source| RegionError::System { what: "open an RDMA device", source };
        let device = Device::open_first().map_err(failed)?;
        Ok(Arc::clone(self.shared.device.get_or_init(|| device)))
    }
}

impl Domain for VerbsDomain {
    fn provider(&self) -> Provider {
        Provider::Verbs
    }

    fn pins_pages(&self) -> bool {
        true
    }

    fn allocate(&self, len: usize) -> Result<Arc<dyn Memory>, RegionError> {
        allocate_heap(len)
    }

    fn register(&self, memory: MemoryRef, access: Access) -> Result<Region, RegionError> {
        refuse_faulting(Provider::Verbs, &memory)?;
        let (registry, device) = (&self.shared.registry, self.device()?);
        match registry.register(&device, memory.clone(), access) {
            // What is only kept for later may stand in the way.
            Err(RegionError::System { .. }) if self.shared.shrink() => {
                registry.register(&device, memory, access)
            }
            registered => registered,
        }
    }

    fn connect(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<Box<dyn Endpoint>, ConnectError> {
        Ok(Box::new(self.connect_verbs(address, params, timeout)?))
    }

    fn listen(&self, address: &Address, params: &ConnectParams) -> Result<Box<dyn Listener>, ConnectError> {
        Ok(Box::new(self.listen_verbs(address, params)?))
    }
}

/// Whether an RDMA device of this machine has a route to an address; if not, why. Blocks for `timeout` at most.
pub fn check_route(to: SocketAddr, timeout: Duration) -> io::Result<()> {
    resolve(to, deadline_after(timeout)).map(drop).map_err(Refusal::into_io)
}

/// An id whose device and route to an address are known.
pub(super) fn resolve(to: SocketAddr, deadline: Instant) -> Result<CmId, Refusal> {
    let left = || deadline.saturating_duration_since(Instant::now());
    let id = CmId::new(&EventChannel::new()?)?;
    id.resolve_address(to, left())?;
    await_event(&id, CmEventKind::AddressResolved, deadline)?;
    id.resolve_route(left())?;
    await_event(&id, CmEventKind::RouteResolved, deadline)?;
    Ok(id)
}

/// What came instead of the event that was waited for.
pub(super) enum Refusal {
    Event(Box<CmEvent>),
    System(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Refusal {
    pub(super) fn into_io(self) -> io::Error {
        match self {
            Self::Event(event) => event.error(),
            Self::System(error) => error,
        }
    }
}

pub(super) fn await_event(id: &CmId, wanted: CmEventKind, deadline: Instant) -> Result<CmEvent, Refusal> {
    loop {
        match id.channel().next()? {
            Some(event) if event.kind == wanted => return Ok(event),
            Some(event) if event.kind == CmEventKind::Other => {}
            Some(event) => return Err(Refusal::Event(Box::new(event))),
            None => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                }
                id.channel().wait(left)?;
            }
        }
    }
}

/// What of the peer's private data was kept.
pub(super) fn private_data(event: &CmEvent) -> &[u8] {
    &event.private_data[..event.private_data_len.min(event.private_data.len())]
}

/// The connection manager pads with zeros where nothing was said.
fn says_something(event: &CmEvent) -> bool {
    private_data(event).iter().any(|byte| *byte != 0)
}

/// Says what is missing where the kernel or the machine has no RDMA.
pub(super) fn explain_missing(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        // The same number says that none of the devices that are there leads to an address.
        Some(libc::ENODEV) if devices().is_ok_and(|found| !found.is_empty()) => io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "{error}: no RDMA device of this machine has a route to the address; see dafs info --devices"
            ),
        ),
        Some(libc::ENODEV | libc::ENOENT | libc::ENOSYS) => io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "{error}: this machine has no RDMA device, or its kernel modules (rdma_ucm, ib_uverbs) are not loaded"
            ),
        ),
        Some(libc::EADDRNOTAVAIL) => io::Error::new(
            error.kind(),
            format!(
                "{error}: the address belongs to no network interface of an RDMA device; see dafs info --devices"
            ),
        ),
        _ => error,
    }
}
