//! The size of chunks, learned from the transfers themselves. Pure: it is told times, and reads no clock.
//!
//! A chunk that is too small pays the cost of each step too often; one that is too large leaves disk and network waiting for each other
//! at both ends of a transfer. Where the best lies is a matter of the disk, the network and the machine. So the sizes take turns on
//! transfers that are long enough to tell, a few each, and the one that moved a byte in the least time, in the median, is used from then
//! on; after many transfers the sizes are compared again.

/// Transfers of each size that are timed.
const TRIALS: usize = 7;
/// Transfers with the best size before the sizes are compared again.
const TRANSFERS_PER_SIZE: u32 = 4096;
/// Bytes of a transfer that is long enough to be timed.
const TIMED_LEN_MIN: u64 = 4 << 20;
/// A size is better when it takes a twentieth less time than the usual one: less may be noise.
const GAIN_MIN: f64 = 0.95;

/// Which size a timed transfer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial(usize);

/// Finds the size of chunks.
#[derive(Debug)]
pub(crate) struct Tuner {
    usual: u64,
    /// Sizes to compare, and nanoseconds per byte of transfers with them; none where the size is set.
    candidates: Vec<(u64, Vec<f64>)>,
    next: usize,
    /// The best so far, once all were compared.
    best: Option<u64>,
    left: u32,
}

impl Tuner {
    /// Compares these sizes with `usual`, which is used until it is known better; with none it always is.
    pub(crate) fn new(usual: u64, sizes: &[u64]) -> Self {
        let candidates = sizes.iter().map(|size| (*size, Vec::with_capacity(TRIALS))).collect();
        Self { usual, candidates, next: 0, best: None, left: 0 }
    }

    /// The size in use.
    pub(crate) fn size(&self) -> u64 {
        self.best.unwrap_or(self.usual)
    }

    /// That was learned.
    pub(crate) fn is_measured(&self) -> bool {
        self.best.is_some()
    }

    /// The size for a transfer of `len` bytes, and what to call it where it is to be timed.
    pub(crate) fn choose(&mut self, len: u64) -> (u64, Option<Trial>) {
        if len < TIMED_LEN_MIN || self.candidates.is_empty() || self.left > 0 {
            self.left = self.left.saturating_sub(1);
            return (self.size(), None);
        }
        self.next = (self.next + 1) % self.candidates.len();
        (self.candidates[self.next].0, Some(Trial(self.next)))
    }

    /// A transfer that was to be timed, and waited for storage, has moved `len` bytes in `ns` nanoseconds.
    pub(crate) fn on_timed(&mut self, trial: Trial, len: u64, ns: u64) {
        let Some((_, times)) = self.candidates.get_mut(trial.0) else { return };
        if ns == 0 || len == 0 || times.len() >= TRIALS {
            return;
        }
        times.push(ns as f64 / len as f64);
        if self.candidates.iter().all(|(_, times)| times.len() >= TRIALS) {
            self.decide();
        }
    }

    fn decide(&mut self) {
        let mut medians: Vec<(u64, f64)> = Vec::with_capacity(self.candidates.len());
        for (size, times) in &mut self.candidates {
            times.sort_by(f64::total_cmp);
            medians.push((*size, times[times.len() / 2]));
            times.clear();
        }
        let usual =
            medians.iter().find(|(size, _)| *size == self.usual).map_or(f64::INFINITY, |found| found.1);
        let best = medians.into_iter().min_by(|one, other| one.1.total_cmp(&other.1));
        let better = best.filter(|(_, time)| *time < usual * GAIN_MIN);
        self.best = Some(better.map_or(self.usual, |(size, _)| size));
        self.left = TRANSFERS_PER_SIZE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Runs transfers until the tuner has decided; `cost` says how long a byte takes with a size.
    fn run(tuner: &mut Tuner, cost: impl Fn(u64) -> u64) -> u32 {
        for count in 0..1000 {
            match tuner.choose(16 * MIB) {
                (size, Some(trial)) => tuner.on_timed(trial, 16 * MIB, 16 * MIB * cost(size)),
                (_, None) => return count,
            }
        }
        panic!("it never decides");
    }

    // [BUF-13]
    #[test]
    fn tuner_takes_the_size_that_is_clearly_quickest_and_compares_again_later() {
        let mut tuner = Tuner::new(256, &[128, 256, 1024]);
        assert_eq!((tuner.size(), tuner.is_measured()), (256, false));
        assert_eq!(
            run(&mut tuner, |size| if size == 1024 { 80 } else { 100 }),
            u32::try_from(3 * TRIALS).unwrap()
        );
        assert_eq!((tuner.size(), tuner.is_measured()), (1024, true));
        for _ in 1..TRANSFERS_PER_SIZE {
            assert_eq!(tuner.choose(16 * MIB), (1024, None));
        }
        run(&mut tuner, |size| if size == 128 { 80 } else { 100 });
        assert_eq!(tuner.size(), 128);
    }

    // [BUF-13]
    #[test]
    fn tuner_keeps_the_usual_size_where_others_are_hardly_better() {
        let mut tuner = Tuner::new(256, &[128, 256, 1024]);
        run(&mut tuner, |size| if size == 256 { 100 } else { 96 });
        assert_eq!((tuner.size(), tuner.is_measured()), (256, true));
    }

    #[test]
    fn tuner_times_neither_short_transfers_nor_anything_where_the_size_is_set() {
        let mut tuner = Tuner::new(256, &[128, 1024]);
        assert_eq!(tuner.choose(4 * MIB - 1), (256, None));
        assert!(tuner.choose(4 * MIB).1.is_some());
        assert_eq!(Tuner::new(256, &[]).choose(64 * MIB), (256, None));
    }
}
