//! The end of a loop, asked for by another thread or a signal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::Waker;

/// Stops a loop that runs in another thread.
#[derive(Clone, Debug)]
pub struct Stop {
    requested: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stop {
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        Self { requested: Arc::new(AtomicBool::new(false)), waker }
    }

    pub(super) fn request(&self) {
        self.requested.store(true, Ordering::Release);
    }

    pub(super) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// The loop is to drain and end at SIGTERM and SIGINT, whatever it waits for. It is not woken by that.
    pub(crate) fn stop_at_signals(&self) -> io::Result<()> {
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&self.requested))?;
        }
        Ok(())
    }

    /// Asks the loop to drain and end. Does not block.
    pub fn stop(&self) {
        self.request();
        // A loop that cannot be woken is gone already.
        let _ = self.waker.wake();
    }
}
