//! From an id of the connection manager to queues that are ready for a connection.
#![allow(unsafe_code, reason = "makes queue pairs")]

use std::io;
use std::mem::zeroed;
use std::sync::Arc;

use super::buffers::{RECEIVE, Receives, slots_max};
use super::cm::{CmId, QueueSize};
use super::device::Device;
use super::ffi;
use super::handshake::Hello;
use super::memory::Shared;
use super::queue::{CompletionQueue, QueuePair, RecvList};
use super::{INLINE_LESS, INLINE_WANTED, READS_MAX, SEGMENTS_MAX};

/// Receives beyond those that were asked for: notes of the provider.
const SPARE_RECEIVES: u32 = 4;

/// Work requests beside messages: parts of RDMA operations, and the closing note.
const SPARE_REQUESTS: u32 = 32;

/// Work requests that one of many connections has on their way at once: each takes memory of the device for all of its segments, about
/// 1 KiB. Devices round one more than this up to a power of two.
const SHORT_QUEUE: u32 = 15;

/// Beside the parts of one RDMA operation: its note, and the closing note.
const SPARE_REQUESTS_SHORT: u32 = 3;

/// Segments of a work request: a device makes room for them in every entry of its queue.
const SEGMENTS_WANTED: u32 = 32;

/// How long a peer waits when this side has no receive posted: 0.16 ms, as the device encodes it.
const RNR_TIMER: u8 = 8;

/// Queues with their receives posted, before the connection is there.
pub(super) struct Prepared {
    // Dropped first: see `Core`.
    pub(super) id: CmId,
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    pub(super) receives: Receives,
    pub(super) device: Arc<Device>,
    pub(super) send_queue_depth: usize,
    pub(super) sge_max: usize,
    pub(super) inline_max: usize,
}

/// The domain's device, which the first connection or listener decides.
pub(super) fn device_of(id: &CmId, shared: &Shared) -> io::Result<Arc<Device>> {
    let context = id.context();
    if context.is_null() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the address belongs to no RDMA device"));
    }
    let device = match shared.device.get() {
        Some(device) => device,
        None => {
            // SAFETY: librdmacm keeps the contexts of its ids open.
            let opened = unsafe { Device::open(context, id.port())? };
            shared.device.get_or_init(|| opened)
        }
    };
    if !std::ptr::eq(device.context(), context) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("it is reached through another RDMA device than {}, which this domain uses", device.name),
        ));
    }
    Ok(Arc::clone(device))
}

impl Prepared {
    /// Makes the queues for a connection with these limits and posts its receives. One that is accepted, among many perhaps, has a short
    /// send queue, and posts the first receives only.
    pub(super) fn new(
        id: CmId,
        device: Arc<Device>,
        shared: &Arc<Shared>,
        own: &Hello,
        accepted: bool,
    ) -> io::Result<Self> {
        let limits = device.limits;
        let count = u32::from(own.recv_depth) + SPARE_RECEIVES;
        let sge_max = limits.sge_max.min(SEGMENTS_WANTED);
        let requests = match accepted {
            true => SHORT_QUEUE,
            false => slots_max(own) + u32::from(own.rdma_depth) + SPARE_REQUESTS,
        };
        // One operation has room, also where a request takes few segments.
        let requests = requests.max(u32::from(SEGMENTS_MAX).div_ceil(sge_max) + SPARE_REQUESTS_SHORT);
        let requests = requests.min(limits.queue_depth_max);
        // Every request may have a completion, and those of the receives come on top.
        let cq = CompletionQueue::new(&device, (requests + count).min(limits.completions_max))
            .map_err(|error| no_room(&device, "completion queue", &error))?;
        let receives = Receives::new(shared, &device, count, own.recv_payload_max, accepted)?;
        // When something fails it is dropped before these two, and with it the queue pair that uses them.
        let mut id = id;
        let mut make = |inline| {
            let size = QueueSize { requests, receives: count, segments: sge_max, inline };
            // SAFETY: of the same device; `Prepared` and `Core` drop the id first.
            unsafe { id.create_queues(&device, &cq, &size) }
        };
        // A device that has no inline data, or less, says so by failing.
        let made =
            INLINE_LESS.into_iter().fold(make(INLINE_WANTED), |made, less| made.or_else(|_| make(less)));
        let (qp, inline_max) = made.map_err(|error| no_room(&device, "queue pair", &error))?;
        let mut list = RecvList::new();
        for buffer in receives.all() {
            list.push(RECEIVE | u64::from(buffer), receives.segment(buffer));
        }
        // SAFETY: the queue pair is live; the buffers are dropped after it.
        unsafe { list.post(qp)? };
        Ok(Self {
            id,
            qp,
            cq,
            receives,
            device,
            send_queue_depth: requests as usize,
            sge_max: sge_max as usize,
            inline_max: inline_max.min(INLINE_WANTED) as usize,
        })
    }

    /// RDMA reads in flight that this side wants, and serves.
    pub(super) fn reads(&self) -> (u8, u8) {
        let limits = self.device.limits;
        (limits.read_initiator_max.min(READS_MAX), limits.read_responder_max.min(READS_MAX))
    }

    /// What holds, given what the peer asked for.
    pub(super) fn reads_with(&self, (peer_serves, peer_wants): (u8, u8)) -> (u8, u8) {
        let (initiator, responder) = self.reads();
        (initiator.min(peer_serves), responder.min(peer_wants))
    }
}

/// Says what of a device is used up.
#[cold]
fn no_room(device: &Device, what: &str, error: &io::Error) -> io::Error {
    let (name, max) = (&device.name, device.limits.connections_max);
    let says = format!(
        "cannot make a {what}: {error}; {name} has room for {max} connections of all programs together, and each takes memory of the kernel"
    );
    io::Error::new(error.kind(), says)
}

/// Tells the device how soon a peer may try again that found no receive posted. The default is two thirds of a second.
pub(super) fn set_rnr_timer(qp: QueuePair) {
    // SAFETY: plain C data, for which zero is valid; the queue pair is live.
    let code = unsafe {
        let mut attributes: ffi::ibv_qp_attr = zeroed();
        attributes.min_rnr_timer = RNR_TIMER;
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
        ffi::ibv_modify_qp(qp.0, &raw mut attributes, i32::try_from(mask).unwrap_or(0))
    };
    if code != 0 {
        let error = io::Error::from_raw_os_error(code.abs());
        tracing::debug!(%error, "the device keeps its time for receives that are not ready");
    }
}
