//! What has been copied so far, and how far that is: a line on a terminal, nothing elsewhere.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str =
    "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} ETA {eta}";

/// As long as nothing moves: no speed, and no guess when it ends.
const WAITING: &str = "{binary_bytes}/{binary_total_bytes}: {wide_msg}";

pub(super) struct Tally {
    files: AtomicU64,
    directories: AtomicU64,
    symlinks: AtomicU64,
    skipped: AtomicU64,
    bytes: AtomicU64,
    begin: Instant,
    /// On standard error.
    bar: ProgressBar,
    waits: AtomicBool,
    wanted: bool,
}

impl Tally {
    /// Nothing so far. The line is shown where it is `wanted`.
    pub(super) fn new(wanted: bool) -> Self {
        let mut bar = ProgressBar::hidden();
        if wanted && std::io::stderr().is_terminal() {
            bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(style(TEMPLATE));
            bar.set_message("0 files");
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self {
            files: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            symlinks: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            begin: Instant::now(),
            bar,
            waits: AtomicBool::new(false),
            wanted,
        }
    }

    pub(super) fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    /// A file of this many bytes will be copied.
    pub(super) fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// A file is there, with bytes that were not counted yet.
    pub(super) fn file(&self, bytes: u64) {
        self.files.fetch_add(1, Relaxed);
        self.bytes(bytes);
    }

    /// Part of a large file.
    pub(super) fn bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        if self.bar.is_hidden() {
            return;
        }
        let files = self.files.load(Relaxed);
        if !self.waits.load(Relaxed) && (files.is_multiple_of(64) || bytes >= 1 << 16) {
            self.bar.set_message(format!("{} files", grouped(files)));
        }
        self.bar.inc(bytes);
    }

    /// Nothing moves, for this reason. Returns whether there is nothing more to say: the line shows it, or nothing is wanted.
    pub(super) fn waits(&self, why: &str) -> bool {
        if self.bar.is_hidden() {
            return !self.wanted;
        }
        if !self.waits.swap(true, Relaxed) {
            self.bar.set_style(style(WAITING));
        }
        self.bar.set_message(why.to_owned());
        true
    }

    /// It moves again. The time without is no part of the speed that is shown.
    pub(super) fn moves(&self) {
        if self.waits.swap(false, Relaxed) {
            self.bar.set_style(style(TEMPLATE));
            self.bar.set_message(format!("{} files", grouped(self.files.load(Relaxed))));
            self.bar.reset_eta();
        }
    }

    pub(super) fn directory(&self) {
        self.directories.fetch_add(1, Relaxed);
    }

    pub(super) fn symlink(&self) {
        self.symlinks.fetch_add(1, Relaxed);
    }

    pub(super) fn skipped(&self) {
        self.skipped.fetch_add(1, Relaxed);
    }

    /// One line: `copied 2,031 files, 12 directories, 3 symbolic links: 104.2 MiB in 1.20 s (86.8 MiB/s); 1 failed`.
    /// `failed` counts what was skipped as well.
    pub(super) fn summary(&self, failed: u64) -> String {
        let elapsed = self.begin.elapsed();
        let mut text = format!("copied {}", counted(self.files.load(Relaxed), "file", "files"));
        for (count, one, many) in [
            (self.directories.load(Relaxed), "directory", "directories"),
            (self.symlinks.load(Relaxed), "symbolic link", "symbolic links"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {}", counted(count, one, many)));
            }
        }
        let bytes = self.bytes.load(Relaxed);
        text.push_str(&format!(
            ": {} in {:.2} s ({}/s)",
            mebibytes(bytes),
            elapsed.as_secs_f64(),
            rate(bytes, elapsed)
        ));
        let skipped = self.skipped.load(Relaxed);
        for (count, what) in [(skipped, "skipped"), (failed.saturating_sub(skipped), "failed")] {
            if count > 0 {
                text.push_str(&format!("; {} {what}", grouped(count)));
            }
        }
        text
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

fn rate(bytes: u64, elapsed: Duration) -> String {
    let per_second = u128::from(bytes) * 1_000_000_000 / elapsed.as_nanos().max(1);
    mebibytes(u64::try_from(per_second).unwrap_or(u64::MAX))
}

fn mebibytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}
