//! A mounted file system, through the kernel, bypassing the page cache.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, anyhow};

use crate::cli::Mount;
use crate::clock::nanoseconds;
use crate::limit::AlignedBuf;
use crate::load::{Budget, DATA_FILE, Deadline, FILE_BYTES, Load, Offsets, Work};
use crate::record::{NameOp, Op};
use crate::stats::Samples;
use crate::subject::files::{Batch, files_in};
use crate::subject::{Subject, names_in};

/// One file on a mounted file system.
pub struct Mounted {
    name: String,
    path: Guest,
    file: File,
    /// `O_DIRECT` takes multiples of this, bytes; 1 over NFS.
    unit: usize,
    /// Last, so that nothing is open there any more.
    host: Option<Box<dyn Host + Send + Sync>>,
}

/// What serves a file system that was mounted for the benchmark. Dropping it unmounts.
pub trait Host {
    /// Time that all of its processes have spent on CPUs, in nanoseconds; `None` where it is a part of this process.
    fn cpu_ns(&self) -> Option<u64>;
}

/// A file in a directory of others, removed when dropped.
struct Guest(PathBuf);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Mounted {
    /// Writes the file and opens it with `O_DIRECT`.
    pub fn open(mount: &Mount) -> anyhow::Result<Self> {
        let path = Guest(mount.directory.join(DATA_FILE));
        let what = || format!("the file {}", path.0.display());
        let block = vec![0x5a; 1 << 20];
        let file = File::create(&path.0).with_context(what)?;
        for offset in (0..FILE_BYTES).step_by(block.len()) {
            file.write_all_at(&block, offset).with_context(what)?;
        }
        file.sync_all().with_context(what)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        let file = options.open(&path.0).with_context(what)?;
        let unit = unit_of(&file).with_context(what)?;
        Ok(Self { name: mount.name.clone(), path, file, unit, host: None })
    }

    /// The same, where `host` has mounted it.
    pub fn hosted(mount: &Mount, host: Box<dyn Host + Send + Sync>) -> anyhow::Result<Self> {
        Ok(Self { host: Some(host), ..Self::open(mount)? })
    }

    /// What one thread does: one operation after the other. The first of a thread is counted as any.
    fn transfer(
        &self,
        load: &Load,
        mut offsets: Offsets,
        deadline: Deadline,
        ops: &AtomicU64,
    ) -> anyhow::Result<Vec<u64>> {
        let mut buffer = AlignedBuf::new(load.bytes);
        let buffer = buffer.as_mut_slice();
        let mut times = Vec::new();
        let mut before = Instant::now();
        loop {
            match load.op {
                Op::Write => self.file.write_all_at(buffer, offsets.advance())?,
                Op::Read | Op::Ping | Op::Copy => self.file.read_exact_at(buffer, offsets.advance())?,
            }
            let now = Instant::now();
            times.push(nanoseconds(before, now));
            before = now;
            if deadline.over(now, ops.fetch_add(1, Ordering::Relaxed) + 1) {
                return Ok(times);
            }
        }
    }
}

/// The smallest size that can be read with `O_DIRECT`.
fn unit_of(file: &File) -> io::Result<usize> {
    let mut buffer = AlignedBuf::new(4096);
    let mut unit = 1;
    loop {
        match file.read_exact_at(&mut buffer.as_mut_slice()[..unit], unit as u64) {
            Ok(()) => return Ok(unit),
            Err(error) if unit == 4096 => return Err(error),
            Err(_) => unit = (unit * 2).max(512),
        }
    }
}

impl Subject for Mounted {
    fn transport(&self) -> &str {
        &self.name
    }

    fn supports(&self, load: &Load) -> bool {
        // The kernel has no call that submits a read and returns, but for rings and threads: threads are used.
        matches!(load.op, Op::Read | Op::Write)
            && load.compute_ns.is_none()
            && load.bytes.is_multiple_of(self.unit)
    }

    fn refusal(&self, load: &Load) -> Option<String> {
        let (name, unit) = (&self.name, self.unit);
        (!load.bytes.is_multiple_of(unit)).then(|| {
            format!("no rows for {name} of {} bytes: O_DIRECT takes multiples of {unit} there", load.bytes)
        })
    }

    fn names(&mut self, op: NameOp, budget: Budget, samples: &mut Samples) -> anyhow::Result<Option<Work>> {
        let directory = self.path.0.parent().context("no directory")?;
        names_in(directory, op, budget, samples).map(Some)
    }

    fn files(&mut self, op: NameOp, batch: Batch, samples: &mut Samples) -> anyhow::Result<Option<Work>> {
        let directory = self.path.0.parent().context("no directory")?;
        if batch.queue_depth > 1 {
            return Ok(None);
        }
        files_in(directory, op, batch, samples).map(Some)
    }

    fn server_cpu_ns(&self) -> Option<u64> {
        self.host.as_ref()?.cpu_ns()
    }

    /// As many threads as operations in flight.
    fn run(&mut self, load: &Load, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
        let depth = load.queue_depth.max(1);
        let ops = AtomicU64::new(0);
        let deadline = budget.start();
        let mut all = load.offsets();
        let times = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..depth)
                .map(|_| {
                    // Each begins at a block of its own.
                    let offsets = all.clone();
                    all.advance();
                    let ops = &ops;
                    let this = &*self;
                    scope.spawn(move || this.transfer(load, offsets, deadline, ops))
                })
                .collect();
            let joined =
                threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?);
            joined.collect::<anyhow::Result<Vec<_>>>()
        })
        .with_context(|| format!("{} of {} bytes in {}", load.op, load.bytes, self.path.0.display()))?;
        let elapsed = deadline.start.elapsed();
        times.iter().flatten().for_each(|ns| samples.record(*ns));
        Ok(Work { ops: times.iter().map(|times| times.len() as u64).sum(), elapsed })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::Pattern;
    use crate::record::Method;

    #[test]
    fn file_that_cannot_be_written_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", directory.path().join(DATA_FILE)).unwrap();
        let mount = Mount { name: "full".to_owned(), directory: directory.path().to_owned() };
        let error = Mounted::open(&mount).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains(DATA_FILE)));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn mounted_reads_and_writes_with_threads_and_leaves_nothing() {
        // Not every directory takes O_DIRECT; a temporary one on a disk does.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mount = Mount { name: "local".to_owned(), directory: directory.path().to_owned() };
        let mut mounted = Mounted::open(&mount).unwrap();
        let budget = Budget { duration: Duration::ZERO, ops_min: 20, ops_slow_min: 20 };
        for (op, queue_depth) in [(Op::Read, 1), (Op::Write, 3)] {
            let load = Load {
                op,
                bytes: 4096,
                queue_depth,
                method: Method::Auto,
                registered: true,
                pattern: Pattern::Sequential,
                compute_ns: None,
            };
            let mut samples = Samples::with_capacity(100);
            let work = mounted.run(&load, budget, &mut samples).unwrap();
            assert!(work.ops >= 20 && samples.len() as u64 == work.ops, "{work:?}");
        }
        drop(mounted);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
