//! Ctrl-C: the first asks the benchmark to stop and clean up, the second ends the process at once.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The exit status after an interrupt, as shells have it for SIGINT.
pub const EXIT_INTERRUPTED: i32 = 130;

/// Installs the handlers for SIGINT and SIGTERM. Call it once, before any child is started.
pub fn install() -> anyhow::Result<()> {
    let stop = STOP.get_or_init(Default::default);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // The order matters: the second signal finds the flag that the first one set.
        signal_hook::flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED, Arc::clone(stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
            .with_context(|| format!("cannot install a handler for signal {signal}"))?;
    }
    Ok(())
}

/// Whether an interrupt has been asked for.
pub fn requested() -> bool {
    STOP.get().is_some_and(|stop| stop.load(Ordering::Relaxed))
}

/// An error once an interrupt has been asked for, so that `?` unwinds and destructors clean up.
pub fn check() -> anyhow::Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}
