//! Closed connections whose peers have not acknowledged all that was sent. One thread sees to all of them.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use super::super::util::{Home, lock};
use super::core::{Core, LINGER_MAX, Phase};

/// How often each is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

static LINGERING: Mutex<Lingering> = Mutex::new(Lingering { new: Vec::new(), count: 0, home: None });

/// Fewer linger than before.
static FEWER: Condvar = Condvar::new();

struct Lingering {
    /// Those that the thread has not taken yet.
    new: Vec<Core>,
    /// With those that it has. The thread runs while there are any.
    count: usize,
    home: Option<Home>,
}

impl Lingering {
    fn is_here(&self) -> bool {
        self.home.is_some_and(Home::is_here)
    }
}

/// Keeps a connection until what was sent is acknowledged, at most [`LINGER_MAX`] from its close.
pub(super) fn linger(core: Core) {
    let mut all = lock(&LINGERING);
    if !all.is_here() {
        // The first, or that of a child: its parent's are not the child's to end, and it has not the thread.
        std::mem::forget(std::mem::take(&mut all.new));
        all.count = 0;
        all.home = Some(Home::here());
    }
    all.new.push(core);
    all.count += 1;
    if all.count > 1 {
        return;
    }
    if let Err(error) = std::thread::Builder::new().name("dafs-verbs-close".into()).spawn(see_to_all) {
        tracing::warn!(%error, "a connection is cut before its peer has taken everything: no thread");
        all.count = 0;
        let cut = std::mem::take(&mut all.new);
        drop(all);
        drop(cut);
    }
}

fn see_to_all() {
    let mut own = Vec::new();
    loop {
        own.append(&mut lock(&LINGERING).new);
        let before = own.len();
        own.retain_mut(|core: &mut Core| {
            core.take_events();
            core.progress();
            core.is_lingering()
        });
        let mut all = lock(&LINGERING);
        all.count -= before - own.len();
        FEWER.notify_all();
        if all.count == 0 {
            return;
        }
        drop(all);
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until none of this process lingers: its end would cut them. A second at most.
pub fn finish_closing() {
    let all = lock(&LINGERING);
    if all.is_here() {
        drop(FEWER.wait_timeout_while(all, LINGER_MAX, |all| all.count > 0));
    }
}

/// How many linger.
#[cfg(test)]
pub(super) fn count() -> usize {
    lock(&LINGERING).count
}

impl Core {
    /// Closed, and the peer has not acknowledged everything: for a while it may.
    pub(super) fn is_lingering(&self) -> bool {
        matches!(self.state, Phase::Closing { until } if Instant::now() < until) && !self.is_quiet()
    }
}
