//! Who takes part: dafs over each transport, the local file system, plain sockets, and peers where they are.

use crate::cli::Peer;
use crate::interrupt;
use crate::limit::{Limit, Stage, file};
use crate::load::{Budget, Load, Work};
use crate::record::{NameOp, Op, Unit};
use crate::subject::{Subject, names_in};
use crate::sys;
use crate::workload::Bench;

use super::Task;

/// What one measurement gave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) work: Work,
    pub(super) bytes: usize,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Median time of the transfer alone, in the same round, in microseconds.
    pub(super) alone: Option<f64>,
    /// Nanoseconds an operation of the client, the server and, where they are one process, both; NaN where it is not known.
    pub(super) cpu_ns: [f64; 3],
}

/// One of them.
pub(super) enum Contestant {
    Subject {
        subject: Box<dyn Subject>,
        is_peer: bool,
    },
    /// The local file system, through system calls.
    Local,
    /// A request and a response of as many bytes over loopback TCP, without a file.
    Sockets,
}

/// All that can be had. What cannot, but for dafs, becomes a note.
pub(super) fn all(bench: &mut Bench<'_>) -> anyhow::Result<Vec<Contestant>> {
    let mut all = vec![Contestant::Local, Contestant::Sockets];
    for &transport in &bench.plan.transports {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        bench.pins.be_client();
        let subject = bench.subjects.dafs(transport, bench.plan.poll(), true)?;
        all.push(Contestant::Subject { subject, is_peer: false });
    }
    bench.progress.doing("starting NFS-Ganesha");
    let peers =
        [("nfs", bench.subjects.peer(Peer::Nfs))].into_iter().map(|(name, peer)| (name.to_owned(), peer));
    let mut peers: Vec<_> = peers.collect();
    for mount in &bench.plan.mounts {
        bench.progress.doing(format!("writing the file on {}", mount.directory.display()));
        peers.push((mount.name.clone(), bench.subjects.mount(mount)));
    }
    for (name, peer) in peers {
        match peer {
            Ok(subject) => all.push(Contestant::Subject { subject, is_peer: true }),
            Err(error) => {
                interrupt::check()?;
                bench.outcome.notes.push(format!("no rows for {name}: {error:#}"));
            }
        }
    }
    if bench.plan.mounts.is_empty() {
        bench.outcome.notes.push(
            "no rows for a kernel mount: none was named; --peer-mount nfs=/mnt/nfs adds one".to_owned(),
        );
    }
    Ok(all)
}

impl Contestant {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Subject { subject, .. } => subject.transport(),
            Self::Local => "local",
            Self::Sockets => "sockets",
        }
    }

    /// It is not dafs: that it fails is no failure of the benchmark.
    pub(super) fn is_peer(&self) -> bool {
        !matches!(self, Self::Subject { is_peer: false, .. })
    }

    /// Does the task once; `None` where it has no way to.
    pub(super) fn run(
        &mut self,
        bench: &mut Bench<'_>,
        task: &Task,
        budget: Budget,
    ) -> anyhow::Result<Option<Taken>> {
        interrupt::check()?;
        match task {
            Task::Move(load, unit) => self.transfer(bench, load, *unit, budget),
            Task::Name(op) => self.names(bench, *op, budget),
            Task::Overlap(load) => self.overlap(bench, load, budget),
        }
    }

    fn transfer(
        &mut self,
        bench: &mut Bench<'_>,
        load: &Load,
        unit: Unit,
        budget: Budget,
    ) -> anyhow::Result<Option<Taken>> {
        bench.samples.take_done();
        let before = sys::process_cpu_ns();
        let work = match self {
            Self::Subject { subject, .. } if !subject.supports(load) => return Ok(None),
            Self::Subject { subject, .. } => {
                let work = bench.run_subject(subject.as_mut(), load, budget)?;
                let cpu_ns = [bench.cpu_ns[0], bench.cpu_ns[1], f64::NAN];
                return Ok(Some(taken(bench, work, load.bytes, cpu_ns)));
            }
            Self::Local => {
                bench.doing("local", load);
                let stage = stage(bench, budget);
                // One thread, whatever the depth: its calls do not wait for anybody.
                file::transfer(
                    load,
                    &stage,
                    if bench.plan.direct_io { libc::O_DIRECT } else { 0 },
                    &mut bench.samples,
                )?
            }
            Self::Sockets => {
                bench.doing("sockets", load);
                let limit = if unit == Unit::Us { Limit::TcpRr } else { Limit::TcpStream };
                if limit == Limit::TcpStream && load.op == Op::Write {
                    // The stream is tuned for one direction; the other moves as much.
                    return Ok(None);
                }
                limit.run(load, &stage(bench, budget), &mut bench.samples)?
            }
        };
        let spent = sys::process_cpu_ns().saturating_sub(before) as f64
            / bench.samples.take_done().max(work.ops).max(1) as f64;
        let cpu_ns = match self {
            Self::Sockets => [f64::NAN, f64::NAN, spent],
            _ => [spent, f64::NAN, f64::NAN],
        };
        Ok(Some(taken(bench, work, load.bytes, cpu_ns)))
    }

    fn names(&mut self, bench: &mut Bench<'_>, op: NameOp, budget: Budget) -> anyhow::Result<Option<Taken>> {
        bench.pins.be_client();
        bench.samples.clear();
        bench.progress.doing(format!("{} {op:?}", self.name()));
        let work = match self {
            Self::Subject { subject, .. } => subject.names(op, budget, &mut bench.samples)?,
            Self::Local => {
                let directory = bench.file.parent().unwrap_or(bench.file);
                Some(names_in(directory, op, budget, &mut bench.samples)?)
            }
            Self::Sockets => None,
        };
        Ok(work.map(|work| taken(bench, work, 0, [f64::NAN; 3])))
    }

    fn overlap(
        &mut self,
        bench: &mut Bench<'_>,
        load: &Load,
        budget: Budget,
    ) -> anyhow::Result<Option<Taken>> {
        let Self::Subject { subject, .. } = self else { return Ok(None) };
        let alone = Load { compute_ns: Some(0), ..*load };
        if !subject.supports(&alone) {
            return Ok(None);
        }
        let work = bench.run_subject(subject.as_mut(), &alone, budget)?;
        let alone_us = bench.samples.quantile_us(0.5).unwrap_or(1e6 / work.ops_per_s());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and below an hour"
        )]
        let compute_ns = (1e3 * alone_us) as u64;
        let both = Load { compute_ns: Some(compute_ns), ..*load };
        let work = bench.run_subject(subject.as_mut(), &both, budget)?;
        let cpu_ns = [bench.cpu_ns[0], bench.cpu_ns[1], f64::NAN];
        Ok(Some(Taken { alone: Some(alone_us), ..taken(bench, work, load.bytes, cpu_ns) }))
    }
}

fn stage<'a>(bench: &Bench<'a>, budget: Budget) -> Stage<'a> {
    Stage { file: bench.file, pins: bench.pins, verbs: bench.verbs, budget }
}

fn taken(bench: &mut Bench<'_>, work: Work, bytes: usize, cpu_ns: [f64; 3]) -> Taken {
    let [p50_us, p99_us] = [0.5, 0.99].map(|part| bench.samples.quantile_us(part).unwrap_or(f64::NAN));
    Taken { work, bytes, p50_us, p99_us, alone: None, cpu_ns }
}
