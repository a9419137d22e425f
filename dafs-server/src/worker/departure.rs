//! A connection on its way to another worker.

use std::os::fd::RawFd;

use crate::shared::WorkerId;
use crate::shared::mail::Resume;

/// A connection that goes to another worker, once nothing here watches its descriptors.
pub struct Departure {
    pub(super) to: WorkerId,
    pub(super) resume: Resume,
}

impl Departure {
    /// Its descriptors, which the loop that served it stops to watch before [`super::Worker::send_off`].
    pub fn event_fds(&self) -> Vec<RawFd> {
        self.resume.endpoint.event_fds().to_vec()
    }
}
