//! How far a copy is: a line on a terminal, nothing elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress line on standard error.
pub(crate) struct Progress {
    bar: ProgressBar,
}

const TEMPLATE: &str =
    "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} ETA {eta}";

impl Progress {
    pub(crate) fn new(wanted: bool) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message("0 files");
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    pub(crate) fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// There are this many bytes more to do.
    pub(crate) fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// This many bytes more are done, and now so many files in all.
    pub(crate) fn advance(&self, files: u64, bytes: u64) {
        if self.bar.is_hidden() {
            return;
        }
        if files.is_multiple_of(64) || bytes >= 1 << 16 {
            self.bar.set_message(format!("{} files", indicatif::HumanCount(files)));
        }
        self.bar.inc(bytes);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
