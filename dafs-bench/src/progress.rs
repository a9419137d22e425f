//! A progress bar, on a terminal only.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How far a benchmark is; writes to standard error, and nothing at all where that is no terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar without a length yet.
    pub fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::no_length();
        // A fixed template: a mistake in it shows in the first run, and then the default style serves.
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {eta:>4} left  {msg}") {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Adds `steps` to come.
    pub fn expect(&self, steps: usize) {
        let steps = steps as u64;
        self.bar.set_length(self.bar.length().unwrap_or(0) + steps);
    }

    /// Says what is being done.
    pub fn doing(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
        self.bar.tick();
    }

    /// Ends one step.
    pub fn step(&self) {
        self.bar.inc(1);
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
