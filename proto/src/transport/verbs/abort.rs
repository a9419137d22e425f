//! A way to break a connection from outside.
#![allow(unsafe_code, reason = "changes the state of a queue pair")]

use std::io;
use std::mem::zeroed;
use std::sync::{Arc, Mutex};

use super::super::util::lock;
use super::cm::CmName;
use super::ffi;
use super::queue::QueuePair;
use super::sys::refusal;

/// Breaks a connection as a device that fails would, from any thread: for tests, and for whoever watches over connections. It does not
/// keep the connection.
#[derive(Clone)]
pub struct AbortHandle {
    live: Arc<Mutex<Option<(QueuePair, CmName)>>>,
}

impl AbortHandle {
    /// Puts the queue pair into its error state: what is on its way is flushed, and the connection ends on both sides. `false`: it was
    /// gone already. Not blocking for longer than the system call takes.
    pub fn abort(&self) -> io::Result<bool> {
        let live = lock(&self.live);
        let Some((qp, _)) = *live else { return Ok(false) };
        // SAFETY: plain C data, for which zero is valid; the queue pair is live as long as it stands here, and the lock is held.
        let code = unsafe {
            let mut attributes: ffi::ibv_qp_attr = zeroed();
            attributes.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
            let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE.0;
            ffi::ibv_modify_qp(qp.0, &raw mut attributes, i32::try_from(mask).unwrap_or(0))
        };
        if code == 0 { Ok(true) } else { Err(refusal(code)) }
    }

    /// The same, and the connection manager tells both sides, also where the completion queue tells nothing any more.
    pub(super) fn disconnect(&self) -> io::Result<bool> {
        let aborted = self.abort();
        if let Some((_, id)) = *lock(&self.live) {
            // SAFETY: an id is destroyed after its connection's part of this has ended, which waits for the lock.
            unsafe { id.disconnect() };
        }
        aborted
    }

    /// Of no connection.
    #[cfg(test)]
    pub(super) fn of_nothing() -> Self {
        Self { live: Arc::default() }
    }
}

/// The connection's side of it. Dropped, or ended, before the queue pair is destroyed.
pub(super) struct Abortable(AbortHandle);

impl Abortable {
    pub(super) fn new(qp: QueuePair, id: CmName) -> Self {
        Self(AbortHandle { live: Arc::new(Mutex::new(Some((qp, id)))) })
    }

    pub(super) fn handle(&self) -> AbortHandle {
        self.0.clone()
    }

    /// The queue pair is about to be destroyed: nobody reaches it any more.
    pub(super) fn end(&self) {
        *lock(&self.0.live) = None;
    }
}

impl Drop for Abortable {
    fn drop(&mut self) {
        self.end();
    }
}
