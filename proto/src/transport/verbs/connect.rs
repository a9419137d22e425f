//! From an id of the connection manager to queues that are ready for a connection.
#![allow(unsafe_code, reason = "makes queue pairs")]

use std::io;
use std::mem::zeroed;
use std::sync::Arc;

use super::buffers::{RECEIVE, Receives, slots_max};
use super::cm::{CmId, QueueSize};
use super::device::{Device, DeviceLimits};
use super::ffi;
use super::handshake::Hello;
use super::memory::VerbsDomainParts;
use super::queue::{CompletionQueue, QueuePair, RecvList};
use super::{INLINE_LESS, INLINE_WANTED, RDMA_SIZE_NEEDED, READS_MAX, SEGMENTS_MAX};

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

/// Lengths of the queues of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lengths {
    requests: u32,
    receives: u32,
    sge_max: u32,
}

/// Lengths of queues that this device has, and what a side says of itself that has these. Every request may have a completion, and those
/// of the receives come on top; one operation has room, also where a request takes few segments.
fn fit(limits: &DeviceLimits, wanted: &Hello, accepted: bool) -> io::Result<(Lengths, Hello)> {
    let sge_max = limits.sge_max.min(SEGMENTS_WANTED);
    let requests_min = u32::from(SEGMENTS_MAX).div_ceil(sge_max) + SPARE_REQUESTS_SHORT;
    let receives_min = 1 + SPARE_RECEIVES;
    for (what, has, needs) in [
        ("work requests in a queue", limits.queue_depth_max, requests_min.max(receives_min)),
        ("completions in a queue", limits.completions_max, requests_min + receives_min),
        ("bytes in a message", limits.message_size_max, RDMA_SIZE_NEEDED),
    ] {
        if has < needs {
            let says = format!("the RDMA device takes at most {has} {what}, and a connection needs {needs}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, says));
        }
    }
    let requests = match accepted {
        true => SHORT_QUEUE,
        false => slots_max(wanted) + u32::from(wanted.rdma_depth) + SPARE_REQUESTS,
    };
    let requests = requests.min(limits.queue_depth_max).min(limits.completions_max / 2).max(requests_min);
    let receives = (u32::from(wanted.recv_depth) + SPARE_RECEIVES)
        .min(limits.queue_depth_max)
        .min(limits.completions_max - requests);
    let recv_depth = u16::try_from(receives - SPARE_RECEIVES).unwrap_or(u16::MAX);
    Ok((Lengths { requests, receives, sge_max }, Hello { recv_depth, ..*wanted }))
}

/// Queues with their receives posted, before the connection is there.
pub(super) struct Prepared {
    // Dropped first: see `Core`.
    pub(super) id: CmId,
    /// What this side says of itself.
    pub(super) own: Hello,
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    pub(super) receives: Receives,
    pub(super) device: Arc<Device>,
    pub(super) send_queue_depth: usize,
    pub(super) sge_max: usize,
    pub(super) inline_max: usize,
}

/// The domain's device, which the first connection or listener decides.
pub(super) fn device_of(id: &CmId, shared: &VerbsDomainParts) -> io::Result<Arc<Device>> {
    let context = id.context();
    if context.is_null() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the address belongs to no RDMA device"));
    }
    let device = match shared.device.get() {
        Some(device) => device,
        None => {
            let opened = Device::of(id)?;
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
    /// send queue, and posts the first receives only. A device with small queues makes it say less of itself than was wanted.
    pub(super) fn new(
        id: CmId,
        device: Arc<Device>,
        shared: &Arc<VerbsDomainParts>,
        wanted: &Hello,
        accepted: bool,
    ) -> io::Result<Self> {
        let (lengths, own) = fit(&device.limits, wanted, accepted)?;
        let Lengths { requests, receives: count, sge_max } = lengths;
        let cq = CompletionQueue::new(&device, requests + count)
            .map_err(|error| no_room(&device, "completion queue", lengths, &error))?;
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
        let (qp, inline_max) = made.map_err(|error| no_room(&device, "queue pair", lengths, &error))?;
        let mut list = RecvList::new();
        for buffer in receives.all() {
            list.push(RECEIVE | u64::from(buffer), receives.segment(buffer));
        }
        // SAFETY: the queue pair is live; the buffers are dropped after it.
        unsafe { list.post(qp)? };
        Ok(Self {
            id,
            own,
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

/// Says what of a device is used up, or that it has no queues so long.
#[cold]
fn no_room(device: &Device, what: &str, lengths: Lengths, error: &io::Error) -> io::Error {
    let (name, max) = (&device.name, device.limits.connections_max);
    let why = match error.kind() {
        io::ErrorKind::InvalidInput => {
            let Lengths { requests, receives, sge_max } = lengths;
            format!(
                "{name} refuses room for {requests} requests of {sge_max} segments and for {receives} receives"
            )
        }
        _ => format!(
            "{name} has room for {max} connections of all programs together, and each takes memory of the kernel"
        ),
    };
    io::Error::new(error.kind(), format!("cannot make a {what}: {error}; {why}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Hello = Hello { recv_depth: 4096, recv_payload_max: 8192, rdma_depth: 128 };

    const LIMITS: DeviceLimits = DeviceLimits {
        sge_max: 32,
        queue_depth_max: 16_384,
        completions_max: 1 << 20,
        read_responder_max: 16,
        read_initiator_max: 16,
        message_size_max: 1 << 30,
        connections_max: 1000,
        peers_wait: true,
    };

    /// [VERBS-76] A side says no more of itself than its device has, and no completion queue can run over.
    #[test]
    fn queues_are_as_long_as_the_device_has_them() {
        for (queue_depth_max, completions_max) in
            [(16_384, 1 << 20), (4060, 1 << 20), (4060, 4096), (100, 4096), (4060, 100), (11, 16)]
        {
            let limits = DeviceLimits { queue_depth_max, completions_max, ..LIMITS };
            for accepted in [false, true] {
                let (lengths, own) = fit(&limits, &WANTED, accepted).unwrap();
                let Lengths { requests, receives, .. } = lengths;
                assert!(requests.max(receives) <= queue_depth_max, "{lengths:?}");
                assert!(requests + receives <= completions_max, "{lengths:?} {completions_max}");
                assert_eq!(u32::from(own.recv_depth) + SPARE_RECEIVES, receives);
                assert!(requests >= 256 / 32 + 3);
            }
        }
        let (lengths, own) = fit(&LIMITS, &WANTED, true).unwrap();
        assert_eq!((lengths, own), (Lengths { requests: 15, receives: 4100, sge_max: 32 }, WANTED));
    }

    /// [VERBS-77] [PROV-46]
    #[test]
    fn device_that_is_too_small_is_named_with_what_it_lacks() {
        for (limits, what) in [
            (DeviceLimits { queue_depth_max: 10, ..LIMITS }, "10 work requests in a queue"),
            (DeviceLimits { completions_max: 15, ..LIMITS }, "15 completions in a queue"),
            (DeviceLimits { sge_max: 1, queue_depth_max: 258, ..LIMITS }, "258 work requests in a queue"),
            (DeviceLimits { message_size_max: 65_536, ..LIMITS }, "65536 bytes in a message"),
        ] {
            let error = fit(&limits, &WANTED, true).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
