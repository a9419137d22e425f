//! The connection manager: event channels, ids and events of librdmacm, each owned by one value.
#![allow(unsafe_code, reason = "calls into librdmacm")]

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use socket2::SockAddr;

use super::super::util::poll;
use super::device::Device;
use super::ffi::{self, rdma_cm_event_type as kind};
use super::handshake::{HELLO_LEN, HELLO_SIZE, Hello};
use super::queue::{CompletionQueue, QueuePair};
use super::sys::{refusal, set_nonblocking};

/// Retries of a message that was not acknowledged; the most there are.
const RETRY_COUNT: u8 = 7;
/// Retries for a peer without a posted receive: without end.
const RNR_RETRY_FOREVER: u8 = 7;
const BACKLOG: i32 = 256;

/// Where events of ids arrive. Not blocking.
pub(super) struct EventChannel {
    channel: *mut ffi::rdma_event_channel,
}

// SAFETY: librdmacm allows any thread to use a channel.
unsafe impl Send for EventChannel {}
// SAFETY: as for Send.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: no arguments.
        let channel = unsafe { ffi::rdma_create_event_channel() };
        if channel.is_null() {
            return Err(io::Error::last_os_error());
        }
        let channel = Self { channel };
        // SAFETY: the channel is open.
        unsafe { set_nonblocking(channel.fd())? };
        Ok(Arc::new(channel))
    }

    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: the channel is open.
        unsafe { (*self.channel).fd }
    }

    /// The next event, acknowledged already; `None` when there is none.
    pub(super) fn next(self: &Arc<Self>) -> io::Result<Option<CmEvent>> {
        let mut event = std::ptr::null_mut();
        // SAFETY: stores a pointer to an event that is ours until it is acknowledged.
        if unsafe { ffi::rdma_get_cm_event(self.channel, &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(refusal(error.raw_os_error().unwrap_or(0))),
            };
        }
        // SAFETY: the event is live until it is acknowledged below, and nothing of it is kept but copies; the id of a connection
        // request is a new one, which `CmId` owns from here.
        unsafe {
            let copy = CmEvent::copy(&*event, self);
            if copy.kind == CmEventKind::Other {
                let code = (*event).event;
                tracing::debug!(code, "event of the RDMA connection manager that ends nothing");
            }
            ffi::rdma_ack_cm_event(event);
            Ok(Some(copy))
        }
    }

    /// Waits until there is an event or the time is over.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<()> {
        poll_readable([self.fd()], Some(timeout)).map(drop)
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every id on it holds an `Arc` of this, so none is left.
        unsafe { ffi::rdma_destroy_event_channel(self.channel) }
    }
}

/// What happened to an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmEventKind {
    AddressResolved,
    RouteResolved,
    ConnectRequest,
    Established,
    /// The peer said no, or nobody listens there.
    Rejected,
    Disconnected,
    DeviceRemoved,
    /// Resolution, or the connection, failed.
    Failed(&'static str),
    /// Of no interest.
    Other,
}

/// An event, copied.
pub(super) struct CmEvent {
    pub(super) kind: CmEventKind,
    /// Which id it is about, for comparison only. For a connection request the listening one.
    pub(super) about: usize,
    /// The new id of a connection request.
    pub(super) request: Option<CmId>,
    /// Negative error number, or the reason of a rejection.
    pub(super) status: i32,
    /// What the peer sent along: its first bytes.
    pub(super) private_data: [u8; HELLO_SIZE],
    /// How many there were.
    pub(super) private_data_len: usize,
    /// RDMA reads that the peer offers to have in flight, and to serve.
    pub(super) peer_reads: (u8, u8),
}

impl CmEvent {
    /// # Safety
    /// `event` must be live; called once for each.
    unsafe fn copy(event: &ffi::rdma_cm_event, channel: &Arc<EventChannel>) -> Self {
        let mut copy = Self {
            kind: event_kind(event.event),
            about: event.id as usize,
            request: None,
            status: event.status,
            private_data: [0; HELLO_SIZE],
            private_data_len: 0,
            peer_reads: (0, 0),
        };
        if matches!(copy.kind, CmEventKind::ConnectRequest | CmEventKind::Established | CmEventKind::Rejected)
        {
            // SAFETY: for these events the union holds the parameters of a connection, whose private data has the stated length.
            unsafe {
                let connection = &event.param.conn;
                copy.peer_reads = (connection.initiator_depth, connection.responder_resources);
                if !connection.private_data.is_null() {
                    copy.private_data_len = usize::from(connection.private_data_len);
                    let len = copy.private_data_len.min(HELLO_SIZE);
                    std::ptr::copy_nonoverlapping(
                        connection.private_data.cast(),
                        copy.private_data.as_mut_ptr(),
                        len,
                    );
                }
            }
        }
        if copy.kind == CmEventKind::ConnectRequest {
            copy.about = event.listen_id as usize;
            copy.request = Some(CmId { id: event.id, channel: Arc::clone(channel), has_queues: false });
        }
        copy
    }

    /// Why a connection could not be made, for an event that says so.
    pub(super) fn error(&self) -> io::Error {
        match self.kind {
            CmEventKind::Rejected => io::Error::new(
                io::ErrorKind::ConnectionRefused,
                match self.status {
                    // IBTA: invalid service id; TCP's errno on iWARP.
                    8 | -111 | 111 => "nobody listens there over RDMA".to_owned(),
                    28 => "the peer takes no more connections over RDMA, or not this one: its log says why"
                        .to_owned(),
                    status => format!("the peer refused the connection (reason {status})"),
                },
            ),
            CmEventKind::Failed(what) if self.status < 0 => {
                let cause = io::Error::from_raw_os_error(-self.status);
                io::Error::new(cause.kind(), format!("{what}: {cause}"))
            }
            CmEventKind::Failed(what) => io::Error::other(format!("{what} (status {})", self.status)),
            CmEventKind::DeviceRemoved => {
                io::Error::new(io::ErrorKind::NotConnected, "the device was removed")
            }
            _ => io::Error::new(io::ErrorKind::ConnectionReset, "the connection ended in its handshake"),
        }
    }
}

fn event_kind(event: kind::Type) -> CmEventKind {
    match event {
        kind::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
        kind::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
        kind::RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::ConnectRequest,
        kind::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
        kind::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
        kind::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
        kind::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoved,
        kind::RDMA_CM_EVENT_ADDR_ERROR => CmEventKind::Failed("no RDMA device has a route to the address"),
        kind::RDMA_CM_EVENT_ROUTE_ERROR => {
            CmEventKind::Failed("no route to the address from the RDMA device")
        }
        kind::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::Failed("the connection failed"),
        kind::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Failed("the peer does not answer"),
        // RDMA_CM_EVENT_ADDR_CHANGE too: a hint, after a failover of bonded interfaces, that a new connection would go another way. The
        // queue pair goes on.
        _ => CmEventKind::Other,
    }
}

/// What a queue pair has room for.
pub(super) struct QueueSize {
    /// Work requests of the send queue.
    pub(super) requests: u32,
    pub(super) receives: u32,
    /// Of a work request of the send queue.
    pub(super) segments: u32,
    /// Data that leaves with a request itself, bytes.
    pub(super) inline: u32,
}

/// An id: a connection or a listener of librdmacm. Dropping it ends both, and its queue pair.
pub(super) struct CmId {
    id: *mut ffi::rdma_cm_id,
    channel: Arc<EventChannel>,
    has_queues: bool,
}

// SAFETY: librdmacm allows any thread to use an id; `CmId` has one owner.
unsafe impl Send for CmId {}

impl CmId {
    pub(super) fn new(channel: &Arc<EventChannel>) -> io::Result<Self> {
        let mut id = std::ptr::null_mut();
        // SAFETY: stores the new id; the channel outlives it, as the value holds an `Arc`.
        check(unsafe {
            ffi::rdma_create_id(
                channel.channel,
                &raw mut id,
                std::ptr::null_mut(),
                ffi::rdma_port_space::RDMA_PS_TCP,
            )
        })?;
        Ok(Self { id, channel: Arc::clone(channel), has_queues: false })
    }

    /// What [`CmEvent::about`] says of events about this id.
    pub(super) fn name(&self) -> usize {
        self.id as usize
    }

    pub(super) fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    /// The device, once an address is bound or resolved to one; null before.
    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        // SAFETY: the id is live.
        unsafe { (*self.id).verbs }
    }

    /// The port of the device.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: as above.
        unsafe { (*self.id).port_num.max(1) }
    }

    pub(super) fn resolve_address(&self, to: SocketAddr, timeout: Duration) -> io::Result<()> {
        let to = SockAddr::from(to);
        // SAFETY: the address is copied by the call.
        check(unsafe {
            ffi::rdma_resolve_addr(
                self.id,
                std::ptr::null_mut(),
                to.as_ptr().cast_mut().cast(),
                milliseconds(timeout),
            )
        })
    }

    pub(super) fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        // SAFETY: the id is live.
        check(unsafe { ffi::rdma_resolve_route(self.id, milliseconds(timeout)) })
    }

    pub(super) fn bind(&self, at: SocketAddr) -> io::Result<()> {
        let at = SockAddr::from(at);
        // SAFETY: the address is copied by the call.
        check(unsafe { ffi::rdma_bind_addr(self.id, at.as_ptr().cast_mut().cast()) })
    }

    pub(super) fn listen(&self) -> io::Result<()> {
        // SAFETY: the id is live.
        check(unsafe { ffi::rdma_listen(self.id, BACKLOG) })
    }

    /// The port that was bound.
    pub(super) fn source_port(&self) -> u16 {
        // SAFETY: the id is live.
        u16::from_be(unsafe { ffi::rdma_get_src_port(self.id) })
    }

    /// The peer's address.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the id is live; the union has room for every address.
        unsafe { read_address((&raw const (*self.id).route.addr.dst_addr_union).cast()) }
    }

    /// Another id, bound to the same address and so to the same device.
    pub(super) fn bind_another(&self) -> io::Result<Self> {
        // SAFETY: as in `peer`.
        let own = unsafe { read_address((&raw const (*self.id).route.addr.src_addr_union).cast()) };
        let mut own = own.ok_or(io::ErrorKind::AddrNotAvailable)?;
        own.set_port(0);
        let other = Self::new(&EventChannel::new()?)?;
        other.bind(own)?;
        if other.context() == self.context() {
            Ok(other)
        } else {
            Err(io::ErrorKind::AddrNotAvailable.into())
        }
    }

    /// Makes the queue pair; and how much data may leave with a request itself, bytes.
    ///
    /// # Safety
    /// Device and completion queue must be those of this id, and outlive it.
    pub(super) unsafe fn create_queues(
        &mut self,
        device: &Device,
        cq: &CompletionQueue,
        size: &QueueSize,
    ) -> io::Result<(QueuePair, u32)> {
        // SAFETY: plain C data, for which zero is valid.
        let mut attributes: ffi::ibv_qp_init_attr = unsafe { zeroed() };
        attributes.send_cq = cq.raw();
        attributes.recv_cq = cq.raw();
        attributes.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
        attributes.cap.max_send_wr = size.requests;
        attributes.cap.max_recv_wr = size.receives;
        attributes.cap.max_send_sge = size.segments;
        attributes.cap.max_recv_sge = 1;
        attributes.cap.max_inline_data = size.inline;
        // SAFETY: promised by the caller.
        check(unsafe { ffi::rdma_create_qp(self.id, device.pd(), &raw mut attributes) })?;
        self.has_queues = true;
        // SAFETY: set by the call.
        Ok((QueuePair(unsafe { (*self.id).qp }), attributes.cap.max_inline_data))
    }

    /// Ends the queue pair: when this returns, the device touches no memory for it.
    pub(super) fn destroy_queues(&mut self) {
        if std::mem::replace(&mut self.has_queues, false) {
            // SAFETY: made by `create_queues`, destroyed once.
            unsafe { ffi::rdma_destroy_qp(self.id) }
        }
    }

    /// For who may end the connection; of no use once the id is gone.
    pub(super) fn weak_name(&self) -> CmName {
        CmName(self.id)
    }

    /// Asks the peer for a connection; answered by an event.
    pub(super) fn connect(&self, private_data: &[u8; HELLO_SIZE], reads: (u8, u8)) -> io::Result<()> {
        let mut parameters = connection_parameters(private_data, reads);
        // SAFETY: parameters and private data are copied by the call.
        check(unsafe { ffi::rdma_connect(self.id, &raw mut parameters) })
    }

    /// Accepts a request; answered by an event.
    pub(super) fn accept(&self, private_data: &[u8; HELLO_SIZE], reads: (u8, u8)) -> io::Result<()> {
        let mut parameters = connection_parameters(private_data, reads);
        // SAFETY: as in `connect`.
        check(unsafe { ffi::rdma_accept(self.id, &raw mut parameters) })
    }

    /// Refuses a request. The peer learns what this side speaks.
    pub(super) fn reject(&self, hello: &Hello) {
        let bytes = hello.encode();
        // SAFETY: the private data is copied by the call. A failure leaves it to the drop of the id.
        unsafe { ffi::rdma_reject(self.id, bytes.as_ptr().cast(), HELLO_LEN) };
    }

    /// Ends the connection: the queue pair goes to its error state, and the peer is told.
    pub(super) fn disconnect(&self) {
        // SAFETY: the id is live. A failure means that it was not connected any more.
        unsafe { ffi::rdma_disconnect(self.id) };
    }

    /// Moves the id, with its events that nobody has taken, to a channel of its own.
    pub(super) fn migrate(&mut self, channel: Arc<EventChannel>) -> io::Result<()> {
        // SAFETY: both channels are live. Every event that was taken has been acknowledged, so the call does not wait.
        check(unsafe { ffi::rdma_migrate_id(self.id, channel.channel) })?;
        self.channel = channel;
        Ok(())
    }
}

/// An id, by its address, for who may end its connection without owning it.
#[derive(Clone, Copy)]
pub(super) struct CmName(*mut ffi::rdma_cm_id);

// SAFETY: librdmacm allows any thread to use an id.
unsafe impl Send for CmName {}

impl CmName {
    /// As [`CmId::disconnect`].
    ///
    /// # Safety
    /// The id must be live.
    pub(super) unsafe fn disconnect(self) {
        // SAFETY: promised by the caller.
        unsafe { ffi::rdma_disconnect(self.0) };
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_queues();
        // SAFETY: every event that was taken has been acknowledged, so the call does not wait; ended once.
        unsafe { ffi::rdma_destroy_id(self.id) };
    }
}

fn connection_parameters(hello: &[u8; HELLO_SIZE], (initiator, responder): (u8, u8)) -> ffi::rdma_conn_param {
    // SAFETY: plain C data, for which zero is valid.
    let mut parameters: ffi::rdma_conn_param = unsafe { zeroed() };
    parameters.private_data = hello.as_ptr().cast();
    parameters.private_data_len = HELLO_LEN;
    parameters.initiator_depth = initiator;
    parameters.responder_resources = responder;
    parameters.flow_control = 1;
    parameters.retry_count = RETRY_COUNT;
    parameters.rnr_retry_count = RNR_RETRY_FOREVER;
    parameters
}

/// # Safety
/// It must point to room for any address, of which the family says which it is.
unsafe fn read_address(address: *const libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: promised by the caller; every variant is plain data that begins with the family.
    unsafe {
        match i32::from((*address).ss_family) {
            libc::AF_INET => {
                let v4 = *address.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                let v6 = *address.cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

fn check(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis().max(1)).unwrap_or(i32::MAX)
}

/// Blocks until one of these descriptors of connections is readable, or the timeout has passed; which. A signal ends the wait.
pub(super) fn poll_readable<const N: usize>(
    fds: [RawFd; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    // SAFETY: whoever waits for a connection holds it.
    let fds = fds.map(|fd| (unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN));
    Ok(poll(fds, timeout)?.map(|found| !found.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [VERBS-74]
    #[test]
    fn events_that_end_a_connection_are_those_that_say_so() {
        let ends = |event| !matches!(event_kind(event), CmEventKind::Other);
        assert!(!ends(kind::RDMA_CM_EVENT_ADDR_CHANGE));
        assert!(!ends(kind::RDMA_CM_EVENT_TIMEWAIT_EXIT));
        assert!(ends(kind::RDMA_CM_EVENT_DISCONNECTED) && ends(kind::RDMA_CM_EVENT_DEVICE_REMOVAL));
        assert!(ends(kind::RDMA_CM_EVENT_CONNECT_ERROR) && ends(kind::RDMA_CM_EVENT_UNREACHABLE));
    }
}
