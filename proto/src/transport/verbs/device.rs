//! A device: its limits, its protection domain, and memory registered with it.
#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

use thiserror::Error;

use super::super::util::Home;
use super::super::{Access, Memory, MemoryRef};
use super::cm::{CmId, EventChannel};
use super::counters::RegistrationCounters;
use super::ffi;
use super::sys::set_nonblocking;

/// What the provider uses of a device's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Segments that one work request gathers or scatters.
    pub sge_max: u32,
    /// Work requests of one queue.
    pub queue_depth_max: u32,
    /// Entries of one completion queue.
    pub completions_max: u32,
    /// RDMA reads that a connection serves at once.
    pub read_responder_max: u8,
    /// RDMA reads that a connection has in flight at once.
    pub read_initiator_max: u8,
    /// Largest message, bytes.
    pub message_size_max: u32,
    /// Connections that all programs together have at once: each takes a queue pair and a completion queue.
    pub connections_max: u32,
    /// A peer that finds no receive posted is made to wait; on iWARP its connection ends.
    pub peers_wait: bool,
}

/// A device with a protection domain of ours.
pub(super) struct Device {
    context: *mut ffi::ibv_context,
    pd: *mut ffi::ibv_pd,
    pub(super) name: String,
    pub(super) limits: DeviceLimits,
    pub(super) counters: RegistrationCounters,
    home: Home,
    /// Dropped after the protection domain.
    _keeper: Keeper,
}

/// What keeps a context of librdmacm open: without one it closes that of a device that was removed when it next looks what there is.
struct Keeper {
    _contexts: Contexts,
    /// Bound to an address of the device, where librdmacm does not list it: some versions list none when one cannot be opened.
    _id: Option<CmId>,
}

// SAFETY: libibverbs allows any thread to use a context and a protection domain.
unsafe impl Send for Device {}
// SAFETY: as for Send.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a protection domain on the device of a connection manager's id, which has one.
    pub(super) fn of(id: &CmId) -> io::Result<Arc<Self>> {
        let context = id.context();
        let contexts = Contexts::new().unwrap_or(Contexts::NONE);
        let is_listed = contexts.as_slice().contains(&context);
        let other = if is_listed { None } else { Some(id.bind_another()?) };
        let keeper = Keeper { _contexts: contexts, _id: other };
        // SAFETY: librdmacm keeps the contexts of its ids open, and the keeper this one.
        unsafe { Self::open(context, id.port(), keeper) }
    }

    /// Opens a protection domain on a device.
    ///
    /// # Safety
    /// `context` must be one of librdmacm's, and open as long as the keeper lives.
    unsafe fn open(context: *mut ffi::ibv_context, port: u8, keeper: Keeper) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let (name, limits) = unsafe { (name_of((*context).device), query(context, port)?) };
        // SAFETY: as above. Whoever else reads the device's events in this process shares them, and this.
        unsafe { set_nonblocking((*context).async_fd)? };
        // SAFETY: as above.
        let pd = unsafe { ffi::ibv_alloc_pd(context) };
        if pd.is_null() {
            return Err(io::Error::last_os_error());
        }
        let (counters, home) = (RegistrationCounters::default(), Home::here());
        Ok(Arc::new(Self { context, pd, name, limits, counters, home, _keeper: keeper }))
    }

    /// Opens the first device that has an active port.
    pub(super) fn open_first() -> io::Result<Arc<Self>> {
        let contexts = Contexts::new()?;
        let active = contexts.as_slice().iter().find_map(|&context| {
            // A device that does not answer is none. SAFETY: `contexts` keeps it open.
            let ports = unsafe { query_device(context) }.ok()?.phys_port_cnt;
            let is_active = |port: &u8| {
                // SAFETY: as above.
                unsafe { query_port(context, *port) }
                    .is_ok_and(|port| port.state == ffi::ibv_port_state::IBV_PORT_ACTIVE)
            };
            (1..=ports).find(is_active).map(|port| (context, port))
        });
        match active {
            // SAFETY: as above.
            Some((context, port)) => unsafe {
                Self::open(context, port, Keeper { _contexts: contexts, _id: None })
            },
            None => Err(io::Error::new(io::ErrorKind::NotFound, no_active_port())),
        }
    }

    /// What the kernel refused with this code is of a device that it took away from this process: it has ended all that was made with it.
    #[cold]
    pub(super) fn is_taken_away(&self, code: i32) -> bool {
        let is_gone = |code: i32| code.abs() == libc::EIO;
        // A driver may answer the same for one object, of a device that is there.
        // SAFETY: the context is open.
        let queried = unsafe { query_device(self.context) };
        is_gone(code) && queried.is_err_and(|error| error.raw_os_error().is_some_and(is_gone))
    }

    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        self.context
    }

    pub(super) fn pd(&self) -> *mut ffi::ibv_pd {
        self.pd
    }

    /// Registers memory. Its first byte has the address `iova` for peers, which must lie in its page as the memory does in its own;
    /// `None` takes the memory's own address.
    pub(super) fn register(
        self: &Arc<Self>,
        memory: MemoryRef,
        rights: Rights,
        iova: Option<u64>,
    ) -> Result<MemoryRegion, RegistrationError> {
        let span = memory.span();
        let address = span.as_ptr() as u64;
        // A registration of nothing is none: the page around it is not touched by an access of 0 bytes.
        let len = span.len().max(1);
        let flags = rights.flags(self.limits.peers_wait);
        // SAFETY: the memory is mapped for as long as `memory` lives, which the region keeps until it is deregistered. Where it does not
        // keep it (`register_unkept`), the device reaches it for this side's requests alone, which keep it.
        let region = unsafe {
            ffi::ibv_reg_mr_iova(self.pd, span.as_ptr().cast(), len, iova.unwrap_or(address), flags)
        };
        if region.is_null() {
            return Err(RegistrationError::new(&self.name, span.len(), io::Error::last_os_error()));
        }
        self.counters.registered();
        Ok(MemoryRegion { region, memory: Some(memory), device: Arc::clone(self) })
    }

    /// Registers all of `memory` for this side's own work requests, without keeping it: whoever posts a request keeps both until it is
    /// done. It may outlive the memory: nobody else can reach that by it. On iWARP a peer can, that answered a read: there it keeps the
    /// memory.
    pub(super) fn register_unkept(
        self: &Arc<Self>,
        memory: &Arc<dyn Memory>,
    ) -> Result<MemoryRegion, RegistrationError> {
        let mut region = self.register(MemoryRef::new(Arc::clone(memory)), Rights::Destination, None)?;
        if self.limits.peers_wait {
            region.memory = None;
        }
        Ok(region)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // It is the parent's.
            return;
        }
        // SAFETY: everything made with it holds an `Arc` of this, so nothing is left.
        let code = unsafe { ffi::ibv_dealloc_pd(self.pd) };
        if code != 0 {
            tracing::warn!(device = self.name, error = %io::Error::from_raw_os_error(code), "cannot free a protection domain");
        }
    }
}

/// What a registration allows: no more than its use needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// The device sends from it, receives into it, or scatters reads into it.
    Destination,
    /// Peers reach it.
    Remote(Access),
}

impl Rights {
    fn flags(self, peers_wait: bool) -> i32 {
        use ffi::ibv_access_flags as flag;
        let local_write = flag::IBV_ACCESS_LOCAL_WRITE.0;
        let flags = match self {
            Self::Destination if peers_wait => local_write,
            // On iWARP the answer to a read is a write by the peer.
            Self::Destination => flag::IBV_ACCESS_REMOTE_WRITE.0 | local_write,
            Self::Remote(access) => {
                let mut flags = 0;
                if access.contains(Access::REMOTE_READ) {
                    flags |= flag::IBV_ACCESS_REMOTE_READ.0;
                }
                if access.contains(Access::REMOTE_WRITE) {
                    // The device demands both.
                    flags |= flag::IBV_ACCESS_REMOTE_WRITE.0 | local_write;
                }
                flags
            }
        };
        i32::try_from(flags).unwrap_or(0)
    }
}

/// Registered memory. Dropping it ends the registration: afterwards the device does not touch the memory.
pub(super) struct MemoryRegion {
    region: *mut ffi::ibv_mr,
    // `None` only in drop.
    memory: Option<MemoryRef>,
    device: Arc<Device>,
}

// SAFETY: an `ibv_mr` may be used and deregistered by any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: its keys are constant.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// The key by which this side's own work requests name the memory.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.region).lkey }
    }

    /// The key by which peers name it.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.region).rkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if !self.device.home.is_here() {
            // After a fork: the registration is the parent's.
            return;
        }
        self.device.counters.deregistered();
        // SAFETY: registered in `Device::register`, ended once.
        let code = unsafe { ffi::ibv_dereg_mr(self.region) };
        if code != 0 && !self.device.is_taken_away(code) {
            // The device may still reach it: the memory is never given back.
            std::mem::forget(self.memory.take());
            let error = io::Error::from_raw_os_error(code.abs());
            tracing::error!(device = self.device.name, %error, "cannot end a registration; its memory is kept for good");
        }
    }
}

/// Memory could not be registered with a device.
#[derive(Debug, Error)]
#[error("{device} cannot register {len} bytes of memory: {reason}")]
pub struct RegistrationError {
    device: String,
    len: usize,
    reason: String,
    kind: io::ErrorKind,
}

/// Bytes of memory that this process may lock; `None` where that is not limited, or not known.
fn locked_memory_max() -> Option<u64> {
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
    getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(limit, _)| limit).filter(|limit| *limit != RLIM_INFINITY)
}

impl RegistrationError {
    fn new(device: &str, len: usize, error: io::Error) -> Self {
        let (reason, kind) = match error.raw_os_error() {
            Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) => match locked_memory_max() {
                Some(limit) => (
                    format!(
                        "the limit of locked memory of this process is {} KiB; raise it (ulimit -l unlimited, LimitMEMLOCK=infinity \
                         in a systemd unit) or give the program CAP_IPC_LOCK",
                        limit / 1024
                    ),
                    io::ErrorKind::OutOfMemory,
                ),
                None => (error.to_string(), io::ErrorKind::OutOfMemory),
            },
            Some(libc::EFAULT) => (
                "it is not mapped, or mapped shared and read-only, which the kernel cannot lock; map it writable".to_owned(),
                io::ErrorKind::Unsupported,
            ),
            _ => (error.to_string(), error.kind()),
        };
        Self { device: device.to_owned(), len, reason, kind }
    }
}

impl From<RegistrationError> for io::Error {
    fn from(error: RegistrationError) -> Self {
        Self::new(error.kind, error)
    }
}

/// # Safety
/// The device must be open, or in a list that lives.
unsafe fn name_of(device: *mut ffi::ibv_device) -> String {
    // SAFETY: a device's name lives as long as the device.
    unsafe { CStr::from_ptr(ffi::ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}

/// # Safety
/// `context` must be open.
unsafe fn query(context: *mut ffi::ibv_context, port: u8) -> io::Result<DeviceLimits> {
    // SAFETY: the context is open; the call fills the structure.
    let (device, port) = unsafe { (query_device(context)?, query_port(context, port)?) };
    // SAFETY: a device lives as long as its context.
    let transport = unsafe { (*(*context).device).transport_type };
    let unsigned = |value: i32| u32::try_from(value).unwrap_or(0);
    let narrow = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or(u8::MAX);
    Ok(DeviceLimits {
        sge_max: unsigned(device.max_sge.min(device.max_sge_rd)).max(1),
        queue_depth_max: unsigned(device.max_qp_wr),
        completions_max: unsigned(device.max_cqe),
        read_responder_max: narrow(device.max_qp_rd_atom),
        read_initiator_max: narrow(device.max_qp_init_rd_atom),
        message_size_max: port.max_msg_sz,
        connections_max: unsigned(device.max_qp.min(device.max_cq)),
        peers_wait: transport != ffi::ibv_transport_type::IBV_TRANSPORT_IWARP,
    })
}

/// # Safety
/// `context` must be open.
unsafe fn query_device(context: *mut ffi::ibv_context) -> io::Result<ffi::ibv_device_attr> {
    let mut attributes = MaybeUninit::<ffi::ibv_device_attr>::zeroed();
    // SAFETY: the context is open; the call fills the structure, for which zero is valid.
    unsafe {
        match ffi::ibv_query_device(context, attributes.as_mut_ptr()) {
            0 => Ok(attributes.assume_init()),
            code => Err(io::Error::from_raw_os_error(code.abs())),
        }
    }
}

/// # Safety
/// `context` must be open.
unsafe fn query_port(context: *mut ffi::ibv_context, port: u8) -> io::Result<ffi::ibv_port_attr> {
    let mut attributes = MaybeUninit::<ffi::ibv_port_attr>::zeroed();
    // SAFETY: the context is open; the call fills the structure, for which zero is valid.
    unsafe {
        match ffi::ibv_query_port(context, port, attributes.as_mut_ptr()) {
            0 => Ok(attributes.assume_init()),
            code => Err(io::Error::from_raw_os_error(code.abs())),
        }
    }
}

/// A port of a device on this machine, for people who ask what there is.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Name of the device.
    pub name: String,
    /// Port of the device, from 1.
    pub port: u8,
    /// "InfiniBand" or "Ethernet".
    pub link_layer: &'static str,
    /// State of the port, in the words of the specification.
    pub state: &'static str,
    /// What can be used of it.
    pub limits: DeviceLimits,
    /// Why it cannot be used; `None` when it can.
    pub unusable: Option<String>,
}

/// The devices of this machine, those too that cannot be opened. An empty list: there is none. An error: the kernel or the library has no
/// RDMA.
pub fn devices() -> io::Result<Vec<DeviceInfo>> {
    // Without a connection manager there is nothing to be used.
    let available = EventChannel::new().map(drop).and_then(|()| DeviceList::new());
    let list = match available {
        Ok(list) => list,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut infos = Vec::new();
    for &device in list.as_slice() {
        // SAFETY: the list keeps it.
        let name = unsafe { name_of(device) };
        match ports(device, &name) {
            Ok(ports) => infos.extend(ports),
            Err(error) => infos.push(DeviceInfo {
                name,
                port: 1,
                link_layer: "not known",
                state: "not known",
                limits: DeviceLimits::default(),
                unusable: Some(format!("it cannot be opened ({error}): see who may use its node in /dev/infiniband, and the kernel's log")),
            }),
        }
    }
    Ok(infos)
}

/// The ports of one device of a list.
fn ports(device: *mut ffi::ibv_device, name: &str) -> io::Result<Vec<DeviceInfo>> {
    // SAFETY: whoever has the list keeps it meanwhile.
    let opened = Opened(unsafe { ffi::ibv_open_device(device) });
    let context = opened.0;
    if context.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open until `opened` is dropped.
    let count = unsafe { query_device(context)? }.phys_port_cnt;
    let info = |port| {
        // SAFETY: as above.
        let (limits, attributes) = unsafe { (query(context, port)?, query_port(context, port)?) };
        let state = state_name(attributes.state);
        let active = attributes.state == ffi::ibv_port_state::IBV_PORT_ACTIVE;
        Ok(DeviceInfo {
            name: name.to_owned(),
            port,
            link_layer: if attributes.link_layer == 2 { "Ethernet" } else { "InfiniBand" },
            state,
            limits,
            unusable: (!active).then(|| {
                format!("the port is {state}: check the cable, the network interface (ip link), and for InfiniBand a subnet manager")
            }),
        })
    };
    (1..=count).map(info).collect()
}

/// A device that was opened, perhaps.
struct Opened(*mut ffi::ibv_context);

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: opened once, closed once.
            unsafe { ffi::ibv_close_device(self.0) };
        }
    }
}

/// The devices that libibverbs knows, none of them open.
struct DeviceList {
    list: *mut *mut ffi::ibv_device,
    count: usize,
}

impl DeviceList {
    fn new() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: stores the length of the array that it answers.
        let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn as_slice(&self) -> &[*mut ffi::ibv_device] {
        // SAFETY: the array has that length until it is freed.
        unsafe { std::slice::from_raw_parts(self.list, self.count) }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: answered by `ibv_get_device_list`, freed once.
        unsafe { ffi::ibv_free_device_list(self.list) };
    }
}

/// Why no device serves.
#[cold]
fn no_active_port() -> String {
    let mut says = "this machine has no RDMA device with an active port".to_owned();
    for DeviceInfo { name, port, unusable, .. } in devices().unwrap_or_default() {
        if let Some(why) = unusable {
            says += &format!("; {name} port {port}: {why}");
        }
    }
    says
}

/// The kernel has no such device, or no RDMA.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT | libc::ENOSYS))
}

/// The devices that librdmacm opens, as long as this lives. In some versions none, where one of them cannot be opened.
struct Contexts {
    list: *mut *mut ffi::ibv_context,
    count: usize,
}

impl Contexts {
    const NONE: Self = Self { list: std::ptr::null_mut(), count: 0 };

    fn new() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: stores the length of the array that it answers.
        let list = unsafe { ffi::rdma_get_devices(&raw mut count) };
        if list.is_null() {
            let error = io::Error::last_os_error();
            return if is_missing(&error) { Ok(Self::NONE) } else { Err(error) };
        }
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn as_slice(&self) -> &[*mut ffi::ibv_context] {
        if self.list.is_null() {
            return &[];
        }
        // SAFETY: the array has that length until it is freed.
        unsafe { std::slice::from_raw_parts(self.list, self.count) }
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: answered by `rdma_get_devices`, freed once.
            unsafe { ffi::rdma_free_devices(self.list) };
        }
    }
}

// SAFETY: the array does not change.
unsafe impl Send for Contexts {}
// SAFETY: as for Send.
unsafe impl Sync for Contexts {}

fn state_name(state: ffi::ibv_port_state::Type) -> &'static str {
    match state {
        ffi::ibv_port_state::IBV_PORT_ACTIVE => "active",
        1 => "down",
        2 => "initializing",
        3 => "armed",
        5 => "active, deferred",
        _ => "not known",
    }
}
