//! Reads and writes that wait, in io_uring.
#![allow(unsafe_code, reason = "entries of the ring point at memory that the operations own")]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use dafs_proto::transport::OpToken;
use io_uring::{IoUring, opcode, squeue, types};
use slab::Slab;

use super::file_system::{RingCall, RingNext, RingOp};
use super::pool::Wake;
use super::{FsReply, FsResult};

/// Reads and writes of all exports.
pub(super) struct Ring {
    // Before `ops`: dropping it waits for nothing, so `Drop` empties it first.
    ring: IoUring,
    wake: Wake,
    /// In the kernel or queued; the key is the entry's user data.
    ops: Slab<(OpToken, Box<dyn RingOp>)>,
    /// To be pushed: the submission queue was full, or they were just submitted.
    queued: VecDeque<usize>,
    /// Entries in the kernel. Invariant: <= `in_kernel_max`, so that completions never overflow.
    in_kernel: usize,
    in_kernel_max: usize,
    /// Entries that one flush or poll moves at most.
    turn_max: usize,
    /// Ended, and the last to have their file open.
    ended: Vec<Box<dyn RingOp>>,
}

impl Ring {
    /// Sets the ring up; fails where the kernel has none, or forbids it.
    pub(super) fn new(entries: u32) -> std::io::Result<Self> {
        let entries = entries.clamp(8, 4096).next_power_of_two();
        let ring = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries)?;
        let wake = Wake::new()?;
        ring.submitter().register_eventfd(wake.raw_fd())?;
        Ok(Self {
            ring,
            wake,
            ops: Slab::new(),
            queued: VecDeque::new(),
            in_kernel: 0,
            in_kernel_max: entries as usize,
            turn_max: usize::MAX,
            ended: Vec::new(),
        })
    }

    /// Takes an operation, to be started with the next flush.
    pub(super) fn submit(&mut self, token: OpToken, op: Box<dyn RingOp>) {
        let key = self.ops.insert((token, op));
        self.queued.push_back(key);
    }

    /// See [`super::Storage::set_turn`].
    pub(super) fn set_turn(&mut self, ops_max: usize) {
        self.turn_max = ops_max;
    }

    /// Hands what is queued to the kernel, as far as it has room.
    pub(super) fn flush(&mut self) {
        let mut pushed = 0;
        while self.in_kernel < self.in_kernel_max && pushed < self.turn_max {
            let Some(key) = self.queued.pop_front() else { break };
            let Some((_, op)) = self.ops.get_mut(key) else { continue };
            let entry = entry(&op.call()).user_data(key as u64);
            // SAFETY: descriptor and segments belong to the operation, which stays in the slab until its
            // completion; the segments are on the heap and do not move.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.queued.push_front(key);
                break;
            }
            self.in_kernel += 1;
            pushed += 1;
        }
        if pushed > 0
            && let Err(error) = self.ring.submit()
        {
            // EAGAIN, EBUSY: the entries stay in the ring for the next call.
            tracing::debug!(%error, "cannot submit to io_uring yet");
        }
    }

    /// Collects ended operations; those with more to do are continued.
    pub(super) fn poll(&mut self, done: &mut Vec<(OpToken, FsResult)>) {
        if self.in_kernel == 0 || self.turn_max == 0 {
            return;
        }
        if self.ring.submission().taskrun() || !self.ring.submission().is_empty() {
            let _ = self.ring.submit();
        }
        let mut completed = 0;
        let Self { ring, ops, queued, turn_max, ended, .. } = self;
        for completion in ring.completion().take(*turn_max) {
            completed += 1;
            let key = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
            let Some((_, op)) = ops.get_mut(key) else { continue };
            match op.complete(completion.result()) {
                RingNext::Continue => queued.push_back(key),
                RingNext::End(result) => {
                    let (token, op) = ops.remove(key);
                    done.push((token, result.map(FsReply::Count)));
                    if op.is_last() {
                        ended.push(op);
                    }
                }
            }
        }
        if completed > 0 {
            self.in_kernel -= completed;
            // The eventfd stays readable: it is watched for edges, and each completion makes one.
            self.flush();
        }
    }

    /// Transfers that ended after their node was closed: dropping them closes its file.
    pub(super) fn take_ended(&mut self) -> impl Iterator<Item = Box<dyn RingOp>> + '_ {
        self.ended.drain(..)
    }

    /// Transfers not yet collected.
    pub(super) fn pending(&self) -> usize {
        self.ops.len()
    }

    /// What becomes readable with completions.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.wake.raw_fd()
    }
}

impl Drop for Ring {
    /// The kernel may still write into the operations' memory: wait for it.
    fn drop(&mut self) {
        self.queued.clear();
        while self.in_kernel > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "cannot wait for io_uring; its memory is not freed");
                    std::mem::forget(std::mem::take(&mut self.ops));
                    return;
                }
            }
            let completed = self.ring.completion().count();
            self.in_kernel -= completed;
        }
    }
}

/// The ring's entry for a call.
fn entry(call: &RingCall<'_>) -> squeue::Entry {
    let RingCall { fd, writes, segments, offset, flags } = *call;
    let fd = types::Fd(fd.as_raw_fd());
    let count = u32::try_from(segments.len()).unwrap_or(0);
    if writes {
        opcode::Writev::new(fd, segments.as_ptr(), count).offset(offset).rw_flags(flags).build()
    } else {
        opcode::Readv::new(fd, segments.as_ptr(), count).offset(offset).rw_flags(flags).build()
    }
}
