//! What has been copied so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::progress::Progress;

pub(super) struct Tally {
    files: AtomicU64,
    directories: AtomicU64,
    symlinks: AtomicU64,
    skipped: AtomicU64,
    bytes: AtomicU64,
    begin: Instant,
    progress: Arc<Progress>,
}

impl Tally {
    pub(super) fn new(progress: Arc<Progress>) -> Self {
        Self {
            files: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            symlinks: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            begin: Instant::now(),
            progress,
        }
    }

    /// A file of this many bytes will be copied.
    pub(super) fn expect(&self, bytes: u64) {
        self.progress.expect(bytes);
    }

    /// A file is there, with bytes that were not counted yet.
    pub(super) fn file(&self, bytes: u64) {
        let files = self.files.fetch_add(1, Relaxed) + 1;
        self.bytes.fetch_add(bytes, Relaxed);
        self.progress.advance(files, bytes);
    }

    /// Part of a large file.
    pub(super) fn bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.progress.advance(self.files.load(Relaxed), bytes);
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
