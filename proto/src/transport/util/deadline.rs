//! Deadlines, computed from a caller's duration.

use std::time::{Duration, Instant};

/// A longer time-out is as good as none.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// When `timeout` from now is over; of one that no clock can hold, [`Duration::MAX`] for instance, in a year.
pub fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(TIMEOUT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_of_the_longest_duration_is_far_away() {
        assert!(deadline_after(Duration::MAX) > Instant::now() + TIMEOUT_MAX / 2);
        assert!(deadline_after(Duration::ZERO) <= Instant::now());
    }
}
