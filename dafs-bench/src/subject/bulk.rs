//! Large transfers: a server with a large file in memory and one on a disk, and sessions that move all of a file, or ask for ever more.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_client::{File, Session};
use tempfile::TempDir;

use crate::cli::{Poll, Transport};
use crate::interrupt;
use crate::record::Op;
use crate::subject::dafs::{Dafs, whole};

/// Name of the large files.
pub const BULK_FILE: &str = "dafs-bench.bulk";

/// What is set up for large transfers.
#[derive(Debug, Clone, Copy)]
pub struct BulkSetup {
    /// How the client reaches the server.
    pub transport: Transport,
    /// How both ends wait.
    pub poll: Poll,
    /// Bytes of each file.
    pub file_bytes: u64,
    /// Bytes of a chunk and chunks in progress at once, where they are not the server's own choice.
    pub pipeline: Option<(usize, usize)>,
}

/// A server with two large files, and clients of each.
pub struct Bulk {
    // In this order, so that sessions end before their server, and the server before its directory.
    /// The client of the disk.
    pub disk: Dafs,
    /// The client of the memory; the server is its own.
    pub memory: Dafs,
    /// The file on the disk.
    pub disk_file: PathBuf,
    /// Its directory.
    pub directory: Option<TempDir>,
}

/// A session that moves a file's data.
pub struct Mover {
    // Before the session that it belongs to.
    file: File,
    session: Session,
}

impl Mover {
    /// With a session of its own, which may have so many operations in flight.
    pub fn of(dafs: &Dafs, queue_depth: usize) -> anyhow::Result<Self> {
        let (session, file) = dafs.bulk(queue_depth)?;
        Ok(Self { file, session })
    }

    /// Moves the first `total` bytes of the file, in operations of `bytes`, `queue_depth` at once; how long that took.
    pub fn move_all(&self, op: Op, bytes: usize, queue_depth: usize, total: u64) -> anyhow::Result<Duration> {
        let mut free: Vec<Vec<u8>> = (0..queue_depth).map(|_| vec![0x5a; bytes]).collect();
        let mut in_flight = VecDeque::with_capacity(queue_depth);
        let start = Instant::now();
        let mut at = 0;
        loop {
            interrupt::check()?;
            while let Some(buffer) = free.pop_if(|_| at < total) {
                in_flight.push_back(match op {
                    Op::Write => self.file.submit_write_at(buffer, at),
                    Op::Read | Op::Ping | Op::Copy => self.file.submit_read_at(buffer, at),
                });
                at += bytes as u64;
            }
            let Some(pending) = in_flight.pop_front() else { return Ok(start.elapsed()) };
            let (moved, buffer) = pending.wait().into_result()?;
            whole(moved, bytes)?;
            free.push(buffer);
        }
    }

    /// Reads the file again and again, `queue_depth` operations at once, until told to stop; how many operations that were. `started` once
    /// as many have been answered as were begun with.
    pub fn flood(
        &self,
        bytes: usize,
        queue_depth: usize,
        total: u64,
        started: &AtomicBool,
        stop: &AtomicBool,
    ) -> anyhow::Result<u64> {
        let mut at = 0;
        let mut next = || {
            let offset = at;
            at = if at + 2 * bytes as u64 <= total { at + bytes as u64 } else { 0 };
            offset
        };
        let mut in_flight = VecDeque::with_capacity(queue_depth);
        for _ in 0..queue_depth {
            let mut buffer = self.session.buffer(bytes)?;
            // No page of it shall be new.
            buffer.fill(0x5a);
            in_flight.push_back(self.file.submit_read_at(buffer, next()));
        }
        self.session.flush();
        let mut ops = 0;
        while let Some(pending) = in_flight.pop_front() {
            let (moved, buffer) = pending.wait().into_result()?;
            whole(moved, bytes)?;
            ops += 1;
            if ops >= queue_depth as u64 {
                started.store(true, Ordering::Release);
            }
            if !stop.load(Ordering::Acquire) {
                in_flight.push_back(self.file.submit_read_at(buffer, next()));
            }
        }
        Ok(ops)
    }
}

/// Reads or writes the first `total` bytes of a file, bypassing the page cache, as fast as the disk goes: several threads, each with
/// blocks of 1 MiB in turn.
pub fn disk_alone(path: &Path, op: Op, total: u64) -> anyhow::Result<Duration> {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    const THREADS: u64 = 4;
    const BLOCK: u64 = 1 << 20;
    const STEP: usize = 4 << 20;
    let file = std::fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|worker| {
                let file = &file;
                scope.spawn(move || -> std::io::Result<()> {
                    let mut buffer = crate::limit::AlignedBuf::new(1 << 20);
                    for at in (worker * BLOCK..total).step_by(STEP).take_while(|_| !interrupt::requested()) {
                        match op {
                            Op::Write => file.write_all_at(buffer.as_mut_slice(), at)?,
                            Op::Read | Op::Ping | Op::Copy => {
                                file.read_exact_at(buffer.as_mut_slice(), at)?
                            }
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a thread that reads the disk panicked"))??;
        }
        Ok(start.elapsed())
    })
}
