//! Logins that were refused: counted, and told in the log, but never so often that a stranger fills it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use dafs_proto::session::Moment;
use std::time::Duration;

/// Lines of the log in a window; what is more is counted in one line.
const LINES_MAX: u32 = 10;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(10);

/// Refused logins of the process.
#[derive(Default)]
pub(crate) struct Refusals {
    count: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    end: Option<Moment>,
    lines: u32,
    untold: u64,
}

impl Refusals {
    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// One more. Answers whether it is told, and how many before it were not.
    pub(crate) fn add(&self, now: Moment) -> Option<u64> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.end.is_none_or(|end| now >= end) {
            (window.end, window.lines) = (Some(now.after(WINDOW)), 0);
        }
        if window.lines == LINES_MAX {
            window.untold += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [ACC-70]
    #[test]
    fn refusals_are_all_counted_and_few_are_told() {
        let (refusals, begin) = (Refusals::default(), Moment::default());
        let told = (0..1000).filter(|_| refusals.add(begin).is_some()).count();
        assert_eq!((told, refusals.count()), (10, 1000));
        assert_eq!(refusals.add(begin.after(WINDOW)), Some(990));
        assert_eq!(refusals.add(begin.after(WINDOW)), Some(0));
    }
}
