//! Completion queues, and lists of work requests that are posted with one doorbell.
#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::device::Device;
use super::ffi;
use super::sys::{refusal, set_nonblocking};

/// Completions taken from the device at once.
pub(super) const POLL_BATCH: usize = POLL_COUNT as usize;
const POLL_COUNT: i32 = 16;

/// Events acknowledged at once: acknowledging takes a lock.
const ACKNOWLEDGE_BATCH: u32 = 64;

/// A completion queue with a channel of its own, which tells of completions when it was armed.
pub(super) struct CompletionQueue {
    cq: *mut ffi::ibv_cq,
    channel: *mut ffi::ibv_comp_channel,
    events_unacknowledged: u32,
    device: Arc<Device>,
}

// SAFETY: libibverbs allows any thread to use a completion queue.
unsafe impl Send for CompletionQueue {}

/// A work request that is done.
#[derive(Clone, Copy)]
pub(super) struct Done {
    /// As it was posted with.
    pub(super) id: u64,
    pub(super) status: ffi::ibv_wc_status::Type,
    /// A code of the device's maker, where something failed.
    pub(super) vendor_code: u32,
    /// Bytes received.
    pub(super) len: u32,
    /// The peer's immediate data.
    pub(super) immediate: Option<u32>,
}

impl CompletionQueue {
    /// A queue for `depth` completions.
    pub(super) fn new(device: &Arc<Device>, depth: u32) -> io::Result<Self> {
        let depth = i32::try_from(depth).unwrap_or(i32::MAX);
        // SAFETY: the device's context is open; what was made is owned by the value from here on.
        unsafe {
            let channel = ffi::ibv_create_comp_channel(device.context());
            if channel.is_null() {
                return Err(io::Error::last_os_error());
            }
            let cq = ffi::ibv_create_cq(device.context(), depth, std::ptr::null_mut(), channel, 0);
            if cq.is_null() {
                let error = io::Error::last_os_error();
                ffi::ibv_destroy_comp_channel(channel);
                return Err(error);
            }
            let queue = Self { cq, channel, events_unacknowledged: 0, device: Arc::clone(device) };
            set_nonblocking(queue.fd())?;
            Ok(queue)
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: the channel is open.
        unsafe { (*self.channel).fd }
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_cq {
        self.cq
    }

    /// Takes what is done, at most [`POLL_BATCH`]. Nearly always that is nothing: this is what a spinning side does.
    #[inline]
    pub(super) fn poll(&mut self, mut take: impl FnMut(Done)) -> io::Result<usize> {
        let mut batch = [const { MaybeUninit::<ffi::ibv_wc>::uninit() }; POLL_BATCH];
        // SAFETY: the queue is live; the array has the stated length.
        let count = unsafe { ffi::ibv_poll_cq(self.cq, POLL_COUNT, batch.as_mut_ptr().cast()) };
        let count = usize::try_from(count)
            .map_err(|_| io::Error::other(format!("the device answers {count} when it is polled")))?;
        for wc in batch.iter().take(count) {
            // SAFETY: the call has filled so many.
            let wc = unsafe { wc.assume_init_ref() };
            let with_immediate = wc.opcode == ffi::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
            take(Done {
                id: wc.wr_id,
                status: wc.status,
                vendor_code: wc.vendor_err,
                len: wc.byte_len,
                // SAFETY: both variants are plain integers.
                immediate: with_immediate
                    .then(|| u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data })),
            });
        }
        Ok(count)
    }

    /// Asks for an event with the next completion, or with the next one that its sender marked. What is done already gives none.
    pub(super) fn arm(&self, marked_only: bool) -> io::Result<()> {
        // SAFETY: the queue is live.
        match unsafe { ffi::ibv_req_notify_cq(self.cq, marked_only.into()) } {
            0 => Ok(()),
            code => Err(refusal(code)),
        }
    }

    /// Takes the events that are here, so that the descriptor is quiet.
    pub(super) fn take_events(&mut self) {
        while self.take_event() {}
    }

    /// Takes one event, if one is here: as many as there usually are, since each is asked for. Another one wakes the sleeper again.
    pub(super) fn take_event(&mut self) -> bool {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is live and does not block; it serves this queue only.
        if unsafe { ffi::ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) } != 0 {
            return false;
        }
        self.events_unacknowledged += 1;
        if self.events_unacknowledged >= ACKNOWLEDGE_BATCH {
            self.acknowledge();
        }
        true
    }

    fn acknowledge(&mut self) {
        // SAFETY: as many events were taken.
        unsafe { ffi::ibv_ack_cq_events(self.cq, std::mem::take(&mut self.events_unacknowledged)) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.take_events();
        // The end of the queue waits for the acknowledgements.
        self.acknowledge();
        // SAFETY: the queue pair that used it is gone (see `Core`); made once, destroyed once.
        let (queue, channel) =
            unsafe { (ffi::ibv_destroy_cq(self.cq), ffi::ibv_destroy_comp_channel(self.channel)) };
        if queue != 0 && self.device.is_taken_away(queue) {
            // The kernel has ended the queue, and the library keeps the channel for it.
            // SAFETY: nobody uses the descriptor any more.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd()) });
        } else if (queue, channel) != (0, 0) {
            tracing::warn!(queue, channel, "cannot free a completion queue");
        }
    }
}

/// A queue pair, by its address. It lives as long as its id's queues: see [`super::cm::CmId`].
#[derive(Clone, Copy)]
pub(super) struct QueuePair(pub(super) *mut ffi::ibv_qp);

// SAFETY: libibverbs allows any thread to use a queue pair.
unsafe impl Send for QueuePair {}

/// Memory of one work request, as the device names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) key: u32,
}

impl Segment {
    /// No memory.
    pub(super) const EMPTY: Self = Self { address: 0, len: 0, key: 0 };
}

/// What a work request of the send queue does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Send,
    Write { address: u64, key: u32, immediate: Option<u32> },
    Read { address: u64, key: u32 },
}

/// Work requests that leave together.
pub(super) struct SendList {
    requests: Vec<ffi::ibv_send_wr>,
    segments: Vec<ffi::ibv_sge>,
}

// SAFETY: the raw pointers in the requests are set when they are posted, and not used after.
unsafe impl Send for SendList {}

impl SendList {
    pub(super) fn new() -> Self {
        Self { requests: Vec::new(), segments: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request. With `inline` the device's library copies the memory when it is posted, and keys do not matter.
    pub(super) fn push(
        &mut self,
        id: u64,
        action: Action,
        segments: &[Segment],
        inline: bool,
        signaled: bool,
    ) {
        use ffi::{ibv_send_flags as flag, ibv_wr_opcode as opcode};
        // SAFETY: plain C data, for which zero is valid.
        let mut request: ffi::ibv_send_wr = unsafe { zeroed() };
        request.wr_id = id;
        request.num_sge = i32::try_from(segments.len()).unwrap_or(i32::MAX);
        let mut flags = 0;
        if inline {
            flags |= flag::IBV_SEND_INLINE.0;
        }
        if signaled {
            flags |= flag::IBV_SEND_SIGNALED.0;
        }
        match action {
            Action::Send => {
                request.opcode = opcode::IBV_WR_SEND;
                flags |= flag::IBV_SEND_SOLICITED.0;
            }
            Action::Write { address, key, immediate } => {
                request.opcode = opcode::IBV_WR_RDMA_WRITE;
                request.wr = ffi::wr_t { rdma: ffi::rdma_t { remote_addr: address, rkey: key } };
                if let Some(data) = immediate {
                    request.opcode = opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                    request.imm_data_invalidated_rkey_union =
                        ffi::imm_data_invalidated_rkey_union_t { imm_data: data.to_be() };
                    flags |= flag::IBV_SEND_SOLICITED.0;
                }
            }
            Action::Read { address, key } => {
                request.opcode = opcode::IBV_WR_RDMA_READ;
                request.wr = ffi::wr_t { rdma: ffi::rdma_t { remote_addr: address, rkey: key } };
            }
        }
        request.send_flags = flags;
        self.requests.push(request);
        self.segments.extend(segments.iter().map(|segment| ffi::ibv_sge {
            addr: segment.address,
            length: segment.len,
            lkey: segment.key,
        }));
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.segments.clear();
    }

    /// Asks for a completion of the last request.
    pub(super) fn signal_last(&mut self) {
        if let Some(last) = self.requests.last_mut() {
            last.send_flags |= ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }

    /// Posts everything, in order, and empties the list. After an error nothing can be said of the requests: the connection ends.
    ///
    /// # Safety
    /// The queue pair must be live, and the memory of all segments stay valid until their requests are done.
    pub(super) unsafe fn post(&mut self, qp: QueuePair) -> io::Result<()> {
        let mut segment = self.segments.as_mut_ptr();
        let count = self.requests.len();
        let first = self.requests.as_mut_ptr();
        for index in 0..count {
            // SAFETY: both arrays are as long as the requests say; one past the end is never read.
            unsafe {
                let request = first.add(index);
                (*request).sg_list = segment;
                segment = segment.add(usize::try_from((*request).num_sge).unwrap_or(0));
                (*request).next = if index + 1 < count { first.add(index + 1) } else { std::ptr::null_mut() };
            }
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a list of valid requests; memory as promised by the caller.
        let code = if count == 0 { 0 } else { unsafe { ffi::ibv_post_send(qp.0, first, &raw mut bad) } };
        self.clear();
        if code == 0 { Ok(()) } else { Err(refusal(code)) }
    }
}

/// Receives that are posted together.
pub(super) struct RecvList {
    requests: Vec<ffi::ibv_recv_wr>,
    segments: Vec<ffi::ibv_sge>,
}

// SAFETY: as for `SendList`.
unsafe impl Send for RecvList {}

impl RecvList {
    pub(super) fn new() -> Self {
        Self { requests: Vec::new(), segments: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn push(&mut self, id: u64, segment: Segment) {
        // SAFETY: plain C data, for which zero is valid.
        let mut request: ffi::ibv_recv_wr = unsafe { zeroed() };
        request.wr_id = id;
        request.num_sge = 1;
        self.requests.push(request);
        self.segments.push(ffi::ibv_sge { addr: segment.address, length: segment.len, lkey: segment.key });
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.segments.clear();
    }

    /// As [`SendList::post`].
    ///
    /// # Safety
    /// The queue pair must be live, and the memory stay valid until the receives are done or the queue pair is gone.
    pub(super) unsafe fn post(&mut self, qp: QueuePair) -> io::Result<()> {
        let count = self.requests.len();
        if count == 0 {
            return Ok(());
        }
        let (first, segments) = (self.requests.as_mut_ptr(), self.segments.as_mut_ptr());
        for index in 0..count {
            // SAFETY: both arrays have `count` entries.
            unsafe {
                (*first.add(index)).sg_list = segments.add(index);
                (*first.add(index)).next =
                    if index + 1 < count { first.add(index + 1) } else { std::ptr::null_mut() };
            }
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a list of valid requests; memory as promised by the caller.
        let code = unsafe { ffi::ibv_post_recv(qp.0, first, &raw mut bad) };
        self.clear();
        if code == 0 { Ok(()) } else { Err(refusal(code)) }
    }
}
