//! Ctrl-C: asked for at every step of a long command, so that it can say what it has done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set when the user pressed Ctrl-C.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the first Ctrl-C (or SIGTERM) only sets this, and the second ends the program.
    pub(crate) fn catch() -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // In this order: the shutdown looks at the flag before the second handler sets it. Where handlers cannot
            // be set, the signal ends the program as ever.
            let caught = signal_hook::flag::register_conditional_shutdown(
                signal,
                i32::from(crate::report::INTERRUPTED),
                Arc::clone(&flag),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)));
            if let Err(error) = caught {
                tracing::debug!("signal {signal}: {error}");
            }
        }
        Self(flag)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
