//! Whether a client that was just answered is likely to ask again at once.

/// Looks at the rings of light clients before large transfers go on: about as long as a client takes from an answer to its next request.
pub(crate) const LOOKS_LIGHT: u32 = 512;
/// How often a light client is served before large transfers go on: as many small requests as take about as long as a turn of theirs.
pub(crate) const LIGHT_ROUNDS: usize = 3;

/// Looks in vain that make it rest.
const MISSES_MAX: u8 = 3;
/// Answers without a look at first, and at most: doubled by every trial that fails.
const PAUSE_MIN: u16 = 16;
const PAUSE_MAX: u16 = 1024;

/// Learns from the looks that were made for one client. Where they do not pay it switches itself off, and tries again ever more rarely.
#[derive(Debug)]
pub(crate) struct Anticipation {
    misses: u8,
    pause: u16,
    /// Answers left before the next trial.
    paused: u16,
}

impl Default for Anticipation {
    fn default() -> Self {
        Self { misses: 0, pause: PAUSE_MIN, paused: 0 }
    }
}

impl Anticipation {
    /// Whether to look for the next request now that one was answered.
    #[inline]
    pub(crate) fn expects(&mut self) -> bool {
        self.paused = self.paused.saturating_sub(1);
        self.paused == 0
    }

    /// It was there.
    #[inline]
    pub(crate) fn came(&mut self) {
        (self.misses, self.pause) = (0, PAUSE_MIN);
    }

    /// It was not.
    #[inline]
    pub(crate) fn missed(&mut self) {
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

    // [BUF-23]
    #[test]
    fn looks_that_find_nothing_become_rare() {
        let mut anticipation = Anticipation::default();
        let looks = (0..10_000).filter(|_| anticipation.expects()).count();
        assert_eq!(looks, 10_000, "until it is told otherwise");
        let mut looks = 0;
        for _ in 0..10_000 {
            if anticipation.expects() {
                looks += 1;
                anticipation.missed();
            }
        }
        // 3 at once, then after 16, 32, … 1024 answers, then every 1024.
        assert!((3..=3 + 7 + 9).contains(&looks), "{looks}");
    }

    #[test]
    fn look_that_pays_again_comes_back_at_once() {
        let mut anticipation = Anticipation::default();
        (0..3).for_each(|_| anticipation.missed());
        let pause = (1..).find(|_| anticipation.expects());
        assert_eq!(pause, Some(16));
        anticipation.came();
        for _ in 0..100 {
            assert!(anticipation.expects());
            anticipation.missed();
            assert!(anticipation.expects());
            anticipation.came();
        }
    }
}
