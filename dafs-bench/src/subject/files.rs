//! A directory full of files, to each of which the same is done: made, opened, looked at, renamed, listed and removed.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, StatxFlags, openat, renameat, statx, unlinkat};

use crate::clock::Laps;
use crate::load::Work;
use crate::record::NameOp;
use crate::stats::Samples;

/// The directory, in the one that the benchmark has.
pub const DIRECTORY: &str = "dafs-bench.files";

/// Listings at least, so that one takes long enough to be timed.
const LISTINGS_MIN: usize = 4;

/// How many files there are, and how many are worked on at a time.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    /// Files of the directory.
    pub files: usize,
    /// Requests in flight.
    pub queue_depth: usize,
}

impl Batch {
    /// The name that a file is made with.
    pub fn name(index: usize) -> String {
        format!("file-{index:06}")
    }

    /// The name that it is renamed to.
    pub fn other_name(index: usize) -> String {
        format!("renamed-{index:06}")
    }

    /// How often the directory is listed.
    pub fn listings(self) -> usize {
        self.queue_depth.max(LISTINGS_MIN)
    }

    /// What so many listings of all files are worth: an operation is an entry.
    pub fn listed(self, began: Instant) -> Work {
        Work { ops: (self.listings() * self.files) as u64, elapsed: began.elapsed() }
    }

    /// Has `step` done to each file, one after the other.
    pub fn one_by_one(
        self,
        samples: &mut Samples,
        mut step: impl FnMut(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<Work> {
        let (began, mut laps) = (Instant::now(), Laps::start());
        for index in 0..self.files {
            step(index)?;
            samples.record(laps.lap().0);
        }
        Ok(Work { ops: self.files as u64, elapsed: began.elapsed() })
    }

    /// Has `list` list the directory, one time after the other; it says how many files it found.
    pub fn list(self, mut list: impl FnMut() -> anyhow::Result<usize>) -> anyhow::Result<Work> {
        let began = Instant::now();
        for _ in 0..self.listings() {
            self.check(list()?)?;
        }
        Ok(self.listed(began))
    }

    /// A listing has all files.
    pub fn check(self, found: usize) -> anyhow::Result<()> {
        ensure!(found == self.files, "a listing with attributes had {found} of {} files", self.files);
        Ok(())
    }
}

/// The calls by themselves, below `parent`, one at a time whatever the batch says.
pub fn files_in(parent: &Path, op: NameOp, batch: Batch, samples: &mut Samples) -> anyhow::Result<Work> {
    let directory = parent.join(DIRECTORY);
    if op == NameOp::Create {
        std::fs::create_dir(&directory)?;
    }
    let opened = File::open(&directory)?;
    let work = match op {
        NameOp::List => batch.list(|| list(&opened))?,
        _ => batch.one_by_one(samples, |index| Ok(call(&opened, op, index)?))?,
    };
    if op == NameOp::Remove {
        std::fs::remove_dir(&directory)?;
    }
    Ok(work)
}

fn call(directory: &File, op: NameOp, index: usize) -> rustix::io::Result<()> {
    let name = Batch::name(index);
    match op {
        NameOp::Create => {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            openat(directory, name, flags, Mode::from_raw_mode(0o644)).map(drop)
        }
        NameOp::Open => openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(drop),
        NameOp::Rename => renameat(directory, name, directory, Batch::other_name(index)),
        NameOp::Remove => unlinkat(directory, Batch::other_name(index), AtFlags::empty()),
        NameOp::Stat | NameOp::List => {
            statx(directory, name, AtFlags::empty(), StatxFlags::BASIC_STATS).map(drop)
        }
    }
}

/// Files that there are, with their attributes.
fn list(directory: &File) -> anyhow::Result<usize> {
    let (fd, mut buffer) = (directory.as_fd(), [MaybeUninit::uninit(); 32 << 10]);
    rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(0))?;
    let mut names = RawDir::new(fd, &mut buffer);
    let mut count = 0;
    while let Some(found) = names.next() {
        let found = found?;
        let attributes = statx(fd, found.file_name(), AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
        let kind = FileType::from_raw_mode(u32::from(attributes.stx_mode));
        count += usize::from(kind == FileType::RegularFile);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Batch = Batch { files: 300, queue_depth: 1 };

    #[test]
    fn each_call_is_done_to_each_file_and_nothing_is_left() {
        let parent = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(parent.path().join(DIRECTORY)).unwrap().count();
        for op in NameOp::ALL {
            let mut samples = Samples::with_capacity(1000);
            let work = files_in(parent.path(), op, BATCH, &mut samples).unwrap();
            let lists = op == NameOp::List;
            assert_eq!(work.ops, if lists { 4 * 300 } else { 300 }, "{op:?}");
            assert_eq!(samples.len(), if lists { 0 } else { 300 }, "{op:?}");
            if op != NameOp::Remove {
                assert_eq!(names(), 300, "{op:?}");
            }
            if op == NameOp::Rename {
                assert!(parent.path().join(DIRECTORY).join(Batch::other_name(299)).exists());
            }
        }
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn listing_that_lacks_a_file_is_no_result() {
        let parent = tempfile::tempdir().unwrap();
        let mut samples = Samples::with_capacity(1000);
        files_in(parent.path(), NameOp::Create, BATCH, &mut samples).unwrap();
        std::fs::remove_file(parent.path().join(DIRECTORY).join(Batch::name(7))).unwrap();
        let error = files_in(parent.path(), NameOp::List, BATCH, &mut samples).unwrap_err().to_string();
        assert!(error.contains("299 of 300"), "{error}");
    }
}
