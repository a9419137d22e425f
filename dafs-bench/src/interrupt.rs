//! Ctrl-C: the first asks the benchmark to stop and clean up, the second ends the process at once. Other signals ask, however often: one
//! `timeout` sends SIGTERM twice, and a terminal that closes SIGHUP.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The exit status after an interrupt, as shells have it for SIGINT.
pub const EXIT_INTERRUPTED: i32 = 130;

/// Installs the handlers for SIGINT, SIGTERM and SIGHUP. Call it once, before any child is started.
pub fn install() -> anyhow::Result<()> {
    let stop = STOP.get_or_init(Default::default);
    let interrupted = Arc::<AtomicBool>::default();
    // nohup(1) has SIGHUP ignored, and so it stays.
    for signal in
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().filter(|signal| !is_ignored(*signal))
    {
        let asks = || signal_hook::flag::register(signal, Arc::clone(stop));
        // The order matters: the second Ctrl-C finds the flag that the first one set.
        let ends = |flag: &Arc<AtomicBool>| {
            signal_hook::flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED, Arc::clone(flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(flag)))
        };
        let installed = if signal == libc::SIGINT { ends(&interrupted).and_then(|_| asks()) } else { asks() };
        installed.with_context(|| format!("cannot install a handler for signal {signal}"))?;
    }
    Ok(())
}

fn is_ignored(signal: libc::c_int) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
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
