//! Whether something that may be in vain is tried once more: what does not pay is done ever more rarely. Pure; it reads no clock.

/// Trials in vain in a row that make it rest.
const MISSES_MAX: u32 = 3;

/// Learns from trials that paid or did not. Where they do not it switches itself off, and tries again after pauses that double.
#[derive(Debug)]
pub struct BackOff {
    misses: u32,
    pause: u32,
    pause_min: u32,
    pause_max: u32,
    /// Occasions left before the next trial.
    paused: u32,
}

impl BackOff {
    /// Lets so many occasions pass before the first new trial, and at most.
    pub fn new(pause_min: u32, pause_max: u32) -> Self {
        Self { misses: 0, pause: pause_min, pause_min, pause_max, paused: 0 }
    }

    /// Whether to try on the occasion that there is now; then [`BackOff::paid`] or [`BackOff::missed`] is to follow.
    #[inline]
    pub fn tries(&mut self) -> bool {
        let tries = self.paused == 0;
        self.paused = self.paused.saturating_sub(1);
        tries
    }

    /// The trial paid.
    #[inline]
    pub fn paid(&mut self) {
        (self.misses, self.pause) = (0, self.pause_min);
    }

    /// The trial was in vain.
    #[inline]
    pub fn missed(&mut self) {
        self.misses += 1;
        if self.misses >= MISSES_MAX {
            self.paused = self.pause;
            self.pause = (self.pause * 2).min(self.pause_max);
            // The next trial is a single one.
            self.misses = MISSES_MAX - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [BUF-54]
    #[test]
    fn trials_that_never_pay_become_rare() {
        for (min, max) in [(16, 1024), (64, 8192)] {
            let mut back_off = BackOff::new(min, max);
            assert_eq!((0..1000).filter(|_| back_off.tries()).count(), 1000, "until it is told otherwise");
            let mut trials = 0;
            for _ in 0..100 * max {
                if back_off.tries() {
                    trials += 1;
                    back_off.missed();
                }
            }
            let doublings = (max / min).ilog2() + 1;
            // 3 at once, then after 16, 32, … 1024 occasions, then every 1024.
            assert!((3..=3 + doublings + 100).contains(&trials), "{trials}");
        }
    }

    #[test]
    fn trials_that_pay_go_on() {
        let mut back_off = BackOff::new(64, 8192);
        for _ in 0..1000 {
            assert!(back_off.tries());
            back_off.missed();
            assert!(back_off.tries());
            back_off.paid();
        }
    }

    // [BUF-54]
    #[test]
    fn trial_that_pays_again_comes_back_at_once() {
        let mut back_off = BackOff::new(64, 8192);
        (0..3).for_each(|_| back_off.missed());
        assert_eq!((0..).take_while(|_| !back_off.tries()).count(), 64);
        back_off.paid();
        for _ in 0..100 {
            assert!(back_off.tries());
            back_off.missed();
            assert!(back_off.tries());
            back_off.paid();
        }
    }
}
