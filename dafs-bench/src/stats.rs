//! Percentiles over the operations of one round, medians over rounds.

/// How long single operations took, in nanoseconds.
#[derive(Debug, Default, Clone)]
pub struct Samples {
    ns: Vec<u64>,
    ops_done: u64,
}

impl Samples {
    /// An empty set with room for `count` samples, so that recording does not allocate.
    pub fn with_capacity(count: usize) -> Self {
        Self { ns: Vec::with_capacity(count), ops_done: 0 }
    }

    /// Records one operation; ignored once the set is full, so that a data path never allocates.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        if self.ns.len() < self.ns.capacity() {
            self.ns.push(ns);
        }
    }

    /// Forgets all samples and keeps the room.
    pub fn clear(&mut self) {
        self.ns.clear();
    }

    /// Counts operations that were done, in attempts too that are no result.
    pub fn count_done(&mut self, ops: u64) {
        self.ops_done += ops;
    }

    /// Operations that were counted since the last time.
    pub fn take_done(&mut self) -> u64 {
        std::mem::take(&mut self.ops_done)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.ns.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.ns.is_empty()
    }

    /// The `fraction` quantile (0.5 is the median, 0.99 the 99th percentile) in microseconds by the nearest-rank
    /// rule; `None` without samples.
    pub fn quantile_us(&mut self, fraction: f64) -> Option<f64> {
        if self.ns.is_empty() {
            return None;
        }
        let rank = rank(fraction, self.ns.len());
        let (_, value, _) = self.ns.select_nth_unstable(rank);
        Some(*value as f64 / 1e3)
    }
}

impl Samples {
    /// The mean without the slowest hundredth, in microseconds: what interrupts a process for milliseconds is not the operation's. `None`
    /// without samples.
    pub fn trimmed_mean_us(&mut self) -> Option<f64> {
        let kept = self.ns.len() - self.ns.len() / 100;
        if kept == 0 {
            return None;
        }
        if kept < self.ns.len() {
            self.ns.select_nth_unstable(kept);
        }
        let sum: u64 = self.ns[..kept].iter().sum();
        Some(sum as f64 / kept as f64 / 1e3)
    }
}

/// Median of `values`; the mean of the middle two for an even count; `None` when empty.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// How far from a median its interval may reach for the median to be known.
pub const KNOWN_WITHIN: f64 = 0.05;

/// The interval in which the median of all such values lies, with 95 % confidence: order statistics, so that no distribution is assumed.
/// With
/// fewer than six values it is from the least to the greatest, and less certain; `None` when empty.
pub fn median_interval(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    // Of n values, each is below the median with probability 1/2: fewer than k are below with that of a binomial distribution.
    let (count, mut below, mut chance) = (values.len(), 0, 0.5f64.powi(i32::try_from(values.len()).ok()?));
    let mut sum = chance;
    while below + 1 < count.div_ceil(2) {
        chance *= (count - below) as f64 / (below + 1) as f64;
        sum += chance;
        if 2.0 * sum > 0.05 {
            break;
        }
        below += 1;
    }
    Some((*values.get(below)?, *values.get(count.checked_sub(below + 1)?)?))
}

/// Whether the median of values is known to 5 %.
pub fn is_known(values: impl IntoIterator<Item = f64> + Clone) -> bool {
    let (Some(median), Some((low, high))) = (median(values.clone()), median_interval(values)) else {
        return false;
    };
    low >= median * (1.0 - KNOWN_WITHIN) && high <= median * (1.0 + KNOWN_WITHIN)
}

/// Index of the `fraction` quantile among `count` sorted values, `count > 0`.
fn rank(fraction: f64, count: usize) -> usize {
    let rank = (fraction.clamp(0.0, 1.0) * count as f64).ceil();
    // In range: 0 <= rank <= count, and f64 represents every realistic count.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= rank <= count")]
    let rank = rank as usize;
    rank.clamp(1, count) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl IntoIterator<Item = u64>) -> Samples {
        let values: Vec<u64> = values.into_iter().collect();
        let mut samples = Samples::with_capacity(values.len());
        values.into_iter().for_each(|ns| samples.record(ns));
        samples
    }

    #[test]
    fn quantile_of_one_to_hundred_is_nearest_rank() {
        let mut set = samples((1..=100).rev().map(|us| us * 1000));
        assert_eq!(set.quantile_us(0.5), Some(50.0));
        assert_eq!(set.quantile_us(0.99), Some(99.0));
        assert_eq!(set.quantile_us(0.0), Some(1.0));
        assert_eq!(set.quantile_us(1.0), Some(100.0));
    }

    #[test]
    fn quantile_without_samples_is_none() {
        assert_eq!(Samples::default().quantile_us(0.5), None);
    }

    #[test]
    fn trimmed_mean_leaves_out_the_slowest_hundredth() {
        let mut set = samples((1..=200).rev().map(|us| us * 1000));
        assert_eq!(set.trimmed_mean_us(), Some(99.5));
        assert_eq!(samples([1000, 3000]).trimmed_mean_us(), Some(2.0));
        assert_eq!(Samples::default().trimmed_mean_us(), None);
    }

    #[test]
    fn samples_past_capacity_are_dropped() {
        let mut set = Samples::with_capacity(2);
        let room = set.ns.capacity();
        (0..room as u64 + 3).for_each(|ns| set.record(ns));
        assert_eq!(set.len(), room);
    }

    #[test]
    fn interval_of_a_median_leaves_out_as_many_as_chance_allows() {
        let to = |count: u32| median_interval((1..=count).map(f64::from));
        assert_eq!(to(0), None);
        assert_eq!(to(1), Some((1.0, 1.0)));
        // As tables of order statistics have it.
        for (count, low) in [(5, 1.0), (6, 1.0), (8, 1.0), (9, 2.0), (12, 3.0), (20, 6.0), (100, 40.0)] {
            let high = f64::from(count) + 1.0 - low;
            assert_eq!(to(count), Some((low, high)), "{count}");
        }
    }

    #[test]
    fn median_is_known_where_its_interval_is_narrow() {
        assert!(is_known([100.0, 104.0, 96.0, 100.0, 101.0]));
        assert!(!is_known([100.0, 106.0, 96.0, 100.0, 101.0]));
        assert!(!is_known([100.0, 104.0, 94.0, 100.0, 101.0]));
        assert!(!is_known([]));
        // One disturbed round of many is left out.
        assert!(is_known([100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0, 300.0]));
    }

    #[test]
    fn median_of_odd_even_and_empty() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }
}
