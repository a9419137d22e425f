//! libnfs against NFS-Ganesha: a client and a server of NFS that both live in user space, over loopback TCP.

use std::path::Path;
use std::time::Instant;

use crate::clock::{Laps, nanoseconds};
use crate::load::{Budget, Load, Work, compute};
use crate::machine::Pins;
use crate::peer::ganesha::Ganesha;
use crate::peer::libnfs::{self, File};
use crate::record::{NameOp, Op};
use crate::stats::Samples;
use crate::subject::Subject;
use crate::subject::files::{Batch, DIRECTORY};
use crate::subject::names::cycle;

/// One file, open over NFS.
pub struct Nfs {
    // Before the server, so that the connection is closed first.
    file: File,
    server: Ganesha,
}

impl Nfs {
    /// Starts a server on `directory` and opens `file` in it. Server and client are pinned as those of dafs are.
    pub fn start(directory: &Path, file: &str, pins: &Pins) -> anyhow::Result<Self> {
        libnfs::available()?;
        let (server, file) = Ganesha::start(directory, file, pins.servers(), File::open)?;
        Ok(Self { file, server })
    }

    /// One operation after the other through the blocking calls.
    fn run_each(&mut self, load: &Load, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
        let mut offsets = load.offsets();
        let mut ops = 0;
        let deadline = budget.start();
        let mut laps = Laps::start();
        loop {
            self.file.transfer(load.op, offsets.advance())?;
            let (ns, now) = laps.lap();
            samples.record(ns);
            ops += 1;
            if deadline.over(now, ops) {
                return Ok(Work { ops, elapsed: now - deadline.start });
            }
        }
    }

    /// Many in flight through the callbacks.
    fn run_many(&mut self, load: &Load, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
        let mut offsets = load.offsets();
        let mut started = vec![Instant::now(); load.queue_depth];
        let (mut ops, mut in_flight) = (0, 0);
        let deadline = budget.start();
        for (index, start) in started.iter_mut().enumerate() {
            *start = Instant::now();
            self.file.submit(index, load.op, offsets.advance())?;
            in_flight += 1;
        }
        loop {
            compute(load.compute_ns.unwrap_or(0));
            let index = self.file.wait_any()?;
            let now = Instant::now();
            samples.record(nanoseconds(started[index], now));
            ops += 1;
            if !deadline.over(now, ops) {
                started[index] = now;
                self.file.submit(index, load.op, offsets.advance())?;
                continue;
            }
            in_flight -= 1;
            if in_flight == 0 {
                return Ok(Work { ops, elapsed: now - deadline.start });
            }
        }
    }
}

impl Subject for Nfs {
    fn transport(&self) -> &str {
        "nfs"
    }

    fn supports(&self, load: &Load) -> bool {
        // libnfs offers no call for the null procedure on a mounted context.
        matches!(load.op, Op::Read | Op::Write)
    }

    fn names(&mut self, op: NameOp, budget: Budget, samples: &mut Samples) -> anyhow::Result<Option<Work>> {
        cycle(op, budget, samples, |call, name| self.file.name(call, name)).map(Some)
    }

    fn files(&mut self, op: NameOp, batch: Batch, samples: &mut Samples) -> anyhow::Result<Option<Work>> {
        // Its calls on names wait for their replies.
        if batch.queue_depth > 1 {
            return Ok(None);
        }
        let file = &mut self.file;
        if op == NameOp::Create {
            file.directory(DIRECTORY, true)?;
        }
        let work = match op {
            NameOp::List => batch.list(|| file.list(DIRECTORY))?,
            _ => batch.one_by_one(samples, |index| {
                let name = |name: String| format!("{DIRECTORY}/{name}");
                let (first, second) = (name(Batch::name(index)), name(Batch::other_name(index)));
                match op {
                    NameOp::Rename => file.rename(&first, &second),
                    NameOp::Remove => file.name(op, &second),
                    _ => file.name(op, &first),
                }
            })?,
        };
        if op == NameOp::Remove {
            file.directory(DIRECTORY, false)?;
        }
        Ok(Some(work))
    }

    fn server_cpu_ns(&self) -> Option<u64> {
        self.server.cpu_ns().ok()
    }

    fn run(&mut self, load: &Load, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
        self.file.prepare(load.queue_depth, load.bytes)?;
        if load.queue_depth == 1 && load.compute_ns.is_none() {
            self.run_each(load, budget, samples)
        } else {
            self.run_many(load, budget, samples)
        }
    }
}
