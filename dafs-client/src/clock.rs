use std::time::{Duration, Instant};

use dafs_proto::session::Moment;

/// Where a session takes the time from: the system's clock, or a simulated one.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Moment;

    /// Lets this much time pass. Blocks the calling thread.
    fn sleep(&self, duration: Duration);
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    beginning: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { beginning: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::default().after(self.beginning.elapsed())
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}
