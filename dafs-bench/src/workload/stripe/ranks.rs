//! The clients as ranks of MPI programs, one job for each number of them.

use std::time::Duration;

use anyhow::Context;

use crate::cli::{StripeOptions, Way};
use crate::mpi::{Command, Job, Kit, Setup};
use crate::record::Op;

use super::clients::Moved;
use super::cluster::Cluster;

/// MPI programs, and the jobs that run so far.
pub(super) struct Ranks {
    kit: Kit,
    unit: u64,
    jobs: Vec<((Way, usize), Job)>,
    /// What was written last: another byte each time.
    stamp: u8,
}

impl Ranks {
    /// Compiles the program. An error says what is missing.
    pub(super) fn new(options: &StripeOptions) -> anyhow::Result<Self> {
        let kit = Kit::build(&options.mpi_prefix)?;
        Ok(Self { kit, unit: options.striping_unit << 10, jobs: Vec::new(), stamp: 0 })
    }

    /// Why this way does not go to dafs, where it does not.
    pub(super) fn lacks(&self, way: Way) -> Option<String> {
        self.kit.lacks(way)
    }

    /// Each rank moves its own region of `bytes`, again and again.
    pub(super) fn contiguous(
        &mut self,
        cluster: &Cluster,
        way: Way,
        (op, servers, count, bytes): (Op, usize, usize, usize),
        duration: Duration,
    ) -> anyhow::Result<Moved> {
        if op == Op::Write {
            self.stamp = self.stamp.wrapping_add(1);
        }
        let command = Command::new("region")
            .with("file", format!("{}/{}-over-{servers}", cluster.address()?, way.name()))
            .with("op", op)
            .with("bytes", bytes)
            .with("stamp", self.stamp)
            .with("seconds", duration.as_secs_f64())
            .hint("striping_factor", servers)
            .hint("striping_unit", self.unit)
            .hint("start_iodevice", 0);
        let reply = self.job(cluster, way, count)?.ask(&command);
        let reply = reply.with_context(|| format!("{count} ranks by {}", way.name()))?;
        let elapsed = Duration::from_secs_f64(reply.elapsed_us / 1e6);
        Ok(Moved { bytes: reply.moved, elapsed, cpu_ns: reply.cpu_ns })
    }

    fn job(&mut self, cluster: &Cluster, way: Way, ranks: usize) -> anyhow::Result<&mut Job> {
        let place = match self.jobs.iter().position(|(of, _)| *of == (way, ranks)) {
            Some(place) => place,
            None => {
                let key_file = cluster.key_file().map(ToOwned::to_owned);
                let setup =
                    Setup { way, dafs: true, ranks, cpus: Vec::new(), progress_thread: false, key_file };
                self.jobs.push(((way, ranks), Job::start(&self.kit, &setup)?));
                self.jobs.len() - 1
            }
        };
        Ok(&mut self.jobs[place].1)
    }
}
