//! A progress bar, on a terminal only.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// How far a benchmark is; writes to standard error, and nothing at all where that is no terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
    estimate: Mutex<Estimate>,
}

/// What a run that has announced its passes takes. A pass measures all of one case once; passes take about as long as each other.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Estimate {
    /// Passes to do in all.
    passes: u32,
    passes_done: u32,
    in_passes: Duration,
    /// A part is some passes, and what is repeated of them until the time is over.
    parts: u32,
    parts_done: u32,
    /// When the last part ended, from the start.
    part_ended: Duration,
    /// When nothing more is repeated, from the start.
    until: Option<Duration>,
}

impl Estimate {
    /// Time to come, at `elapsed` from the start; `None` before anything was measured.
    fn left(&self, elapsed: Duration) -> Option<Duration> {
        let pass = self.in_passes.checked_div(self.passes_done)?;
        let passes = pass * self.passes.saturating_sub(self.passes_done);
        let Some(until) = self.until else { return Some(passes) };
        let allowed = until.saturating_sub(elapsed);
        let parts = self.part_ended.checked_div(self.parts_done).map(|part| {
            let all = part * self.parts.saturating_sub(self.parts_done);
            all.saturating_sub(elapsed.saturating_sub(self.part_ended))
        });
        Some(parts.map_or(allowed, |parts| parts.min(allowed)).max(passes))
    }
}

impl Progress {
    /// A bar without a length yet.
    pub fn new() -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let progress = Self { bar, start: Instant::now(), estimate: Mutex::default() };
        // Who cannot tell how much is to come says only what is done.
        progress.style("{spinner} {pos} measured  {msg}");
        progress
    }

    fn style(&self, template: &str) {
        // A fixed template: a mistake in it shows in the first run, and then the default style serves.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
    }

    /// Announces all passes of the run, in so many parts, of which nothing is repeated after `until`. The first word counts.
    pub fn announce(&self, passes: usize, parts: usize, until: Option<Instant>) {
        if self.estimate.lock().unwrap_or_else(PoisonError::into_inner).passes > 0 {
            return;
        }
        let until = until.map(|until| until.saturating_duration_since(self.start));
        let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
        self.change(|estimate| {
            *estimate = Estimate { passes: count(passes), parts: count(parts), until, ..Estimate::default() };
        });
        self.style("{bar:24} {prefix}  {msg}");
    }

    /// A pass is over that took so long.
    pub fn pass(&self, took: Duration) {
        self.change(|estimate| {
            estimate.passes_done += 1;
            estimate.in_passes += took;
        });
    }

    /// A part is over.
    pub fn part(&self) {
        let elapsed = self.start.elapsed();
        self.change(|estimate| {
            estimate.parts_done += 1;
            estimate.part_ended = elapsed;
        });
    }

    fn change(&self, change: impl FnOnce(&mut Estimate)) {
        change(&mut self.estimate.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Says what is being done.
    pub fn doing(&self, what: impl Into<String>) {
        let elapsed = self.start.elapsed();
        let estimate = *self.estimate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = estimate.left(elapsed) {
            let all = elapsed + left;
            self.bar.set_length(u64::try_from(all.as_millis()).unwrap_or(u64::MAX));
            self.bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
            self.bar.set_prefix(format!("about {} left", HumanDuration(left)));
        } else if estimate.passes > 0 {
            self.bar.set_prefix("measuring");
        }
        self.bar.set_message(what.into());
        self.bar.tick();
    }

    /// Ends one measurement.
    pub fn step(&self) {
        if self.estimate.lock().unwrap_or_else(PoisonError::into_inner).passes == 0 {
            self.bar.inc(1);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows a line above the bar.
    pub fn say(&self, line: &str) {
        use std::io::Write;
        // Progress that nobody can see is no reason to stop.
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

/// How often a wait for a child looks at it.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn estimate_is_unknown_before_the_first_pass_and_then_follows_the_passes() {
        let estimate = Estimate { passes: 10, ..Estimate::default() };
        assert_eq!(estimate.left(s(3)), None);
        let estimate = Estimate { passes_done: 4, in_passes: s(20), ..estimate };
        assert_eq!(estimate.left(s(25)), Some(s(30)));
        assert_eq!(Estimate { passes_done: 10, ..estimate }.left(s(50)), Some(s(0)));
    }

    #[test]
    fn estimate_of_repeating_is_the_time_allowed_or_what_parts_took() {
        let estimate = Estimate {
            passes: 8,
            passes_done: 2,
            in_passes: s(2),
            parts: 4,
            until: Some(s(100)),
            ..Estimate::default()
        };
        // No part is over: it may take all its time.
        assert_eq!(estimate.left(s(10)), Some(s(90)));
        // The first needed 5 s, and the second is 1 s old.
        let second = Estimate { parts_done: 1, part_ended: s(5), ..estimate };
        assert_eq!(second.left(s(6)), Some(s(14)));
        // Parts that took long do so no longer than is allowed.
        assert_eq!(Estimate { parts_done: 1, part_ended: s(50), ..estimate }.left(s(60)), Some(s(40)));
        // Every case is measured once, whatever the time.
        let slow = Estimate { in_passes: s(60), ..estimate };
        assert_eq!(slow.left(s(99)), Some(s(180)));
        assert_eq!(slow.left(s(120)), Some(s(180)));
    }
}
