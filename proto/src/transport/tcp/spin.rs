//! Whether spinning before a sleep pays.

use std::time::Duration;

/// One spin lasts at most this long.
pub(super) const SPIN_MAX: Duration = Duration::from_micros(50);
/// Fruitless spins in a row that switch spinning off.
const MISSES_MAX: u32 = 3;
/// Waits without a spin before the first new trial; doubled by every trial that fails.
const PAUSE_MIN: u32 = 64;
const PAUSE_MAX: u32 = 8192;

/// Learns from the spins that were made. One that does not pay switches itself off, and is tried again ever more rarely.
#[derive(Debug)]
pub(super) struct SpinHistory {
    misses: u32,
    pause: u32,
    // Waits left before the next trial.
    paused: u32,
}

impl SpinHistory {
    pub(super) fn new() -> Self {
        Self { misses: 0, pause: PAUSE_MIN, paused: 0 }
    }

    /// Whether to spin in the wait that begins now.
    pub(super) fn begin_wait(&mut self) -> bool {
        if self.paused > 0 {
            self.paused -= 1;
            return false;
        }
        true
    }

    pub(super) fn paid(&mut self) {
        self.misses = 0;
        self.pause = PAUSE_MIN;
    }

    pub(super) fn missed(&mut self) {
        self.misses += 1;
        if self.misses >= MISSES_MAX {
            self.paused = self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            // The next trial is a single one.
            self.misses = MISSES_MAX - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_that_never_pays_switches_itself_off() {
        let mut spin = SpinHistory::new();
        let mut spun = 0;
        for _ in 0..100_000 {
            if spin.begin_wait() {
                spun += 1;
                spin.missed();
            }
        }
        // 3 at once, then after 64, 128, … 8192 waits, then every 8192.
        assert!((3..=3 + 8 + 12).contains(&spun), "{spun}");
    }

    #[test]
    fn spin_that_pays_stays_on() {
        let mut spin = SpinHistory::new();
        for _ in 0..1000 {
            assert!(spin.begin_wait());
            spin.missed();
            assert!(spin.begin_wait());
            spin.paid();
        }
    }

    #[test]
    fn spin_that_pays_again_comes_back() {
        let mut spin = SpinHistory::new();
        (0..3).for_each(|_| spin.missed());
        let pause = (0..).take_while(|_| !spin.begin_wait()).count();
        assert_eq!(pause, 64);
        spin.paid();
        assert!(spin.begin_wait());
    }
}
