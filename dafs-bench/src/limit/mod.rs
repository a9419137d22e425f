//! Raw limits: the least that any program must do for the same work, done in the best known way.
//!
//! Every limit runs in the process of the benchmark, in alternation with what it bounds. Its server, where it has
//! one, is a thread that lives for one measurement only, so that it never takes a CPU from the subject.

pub(crate) mod file;
mod memory;
mod ring;
mod tcp;
#[cfg_attr(not(feature = "verbs"), path = "no_verbs.rs")]
mod verbs;

use std::net::IpAddr;
use std::path::Path;

use anyhow::Context;

use crate::load::{Budget, Load, Work};
use crate::machine::Pins;
use crate::record::{Op, Unit};
use crate::stats::Samples;
use crate::sys;

pub use file::AlignedBuf;

/// A raw limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Round trip of a 128-byte message over a ring in shared memory, both ends spinning.
    Ring,
    /// The same with both ends asleep between messages (futex): the limit where both share a CPU.
    Doorbell,
    /// [`Limit::Ring`] plus [`Limit::File`]: a request over shared memory and the local system call that serves it.
    RingFile,
    /// [`Limit::Doorbell`] plus [`Limit::File`].
    DoorbellFile,
    /// Local `pread` or `pwrite` of the same file in the same order.
    File,
    /// The same with `O_DIRECT`.
    FileDirect,
    /// Request and response over loopback TCP, both ends blocking.
    TcpRr,
    /// The same, both ends spinning on non-blocking sockets.
    TcpRrSpin,
    /// Requests and responses over loopback TCP at the load's queue depth, with coalescing and the best of several
    /// socket buffer sizes.
    TcpStream,
    /// The same with one system call for each message at either end: what a server without coalescing reaches.
    TcpUncoalesced,
    /// Harmonic sum of [`Limit::TcpStream`] and [`Limit::File`]: one CPU that first receives and then writes.
    TcpStreamFile,
    /// A message and its answer over RDMA send and receive, both ends asleep between them.
    VerbsRr,
    /// The same, both ends spinning on their completion queues.
    VerbsRrSpin,
    /// RDMA writes into the other end's memory at the load's queue depth.
    VerbsWrite,
    /// RDMA reads out of the other end's memory at the load's queue depth.
    VerbsRead,
    /// Copy within memory.
    Memcpy,
    /// Copy out of another process's memory by cross-memory attach.
    CrossMemory,
}

/// What a limit took, once.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// In the unit that was asked for.
    pub value: f64,
    /// Time that all its ends together spent on CPUs, in nanoseconds an operation.
    pub cpu_ns: f64,
}

impl Figure {
    /// One after the other: times add; of rates, the times that they stand for do.
    fn and(self, other: Self, unit: Unit) -> Self {
        let (a, b) = (self.value, other.value);
        let value = if unit == Unit::Us { a + b } else { 1.0 / (1.0 / a + 1.0 / b) };
        Self { value, cpu_ns: self.cpu_ns + other.cpu_ns }
    }
}

/// What a limit runs on.
#[derive(Debug)]
pub struct Stage<'a> {
    /// A file of at least [`crate::load::FILE_BYTES`] bytes, all present.
    pub file: &'a Path,
    /// Where its ends run.
    pub pins: &'a Pins,
    /// Address of an RDMA device, where one is to be used.
    pub verbs: Option<IpAddr>,
    /// How long it takes.
    pub budget: Budget,
}

impl Limit {
    /// Its name in reports; `op` tells `pread` from `pwrite`.
    pub fn name(self, op: Op) -> &'static str {
        let write = op == Op::Write;
        match self {
            Self::Ring => "ring",
            Self::Doorbell => "doorbell",
            Self::RingFile => {
                if write {
                    "ring+pwrite"
                } else {
                    "ring+pread"
                }
            }
            Self::DoorbellFile => {
                if write {
                    "doorbell+pwrite"
                } else {
                    "doorbell+pread"
                }
            }
            Self::File => {
                if write {
                    "pwrite"
                } else {
                    "pread"
                }
            }
            Self::FileDirect => {
                if write {
                    "pwrite_direct"
                } else {
                    "pread_direct"
                }
            }
            Self::TcpRr => "tcp_rr",
            Self::TcpRrSpin => "tcp_rr_spin",
            Self::TcpStream => "tcp_stream",
            Self::TcpUncoalesced => "tcp_uncoalesced",
            Self::TcpStreamFile => "tcp_stream+pwrite",
            Self::VerbsRr => "verbs_rr",
            Self::VerbsRrSpin => "verbs_rr_spin",
            Self::VerbsWrite => "verbs_write",
            Self::VerbsRead => "verbs_read",
            Self::Memcpy => "memcpy",
            Self::CrossMemory => "process_vm_readv",
        }
    }

    /// Runs it once for the budget of the stage; its figure for `load` in `unit`, and what it took of CPUs.
    pub fn measure(
        self,
        load: &Load,
        unit: Unit,
        stage: &Stage<'_>,
        samples: &mut Samples,
    ) -> anyhow::Result<Figure> {
        let sum = |parts: [Self; 2], samples: &mut Samples| -> anyhow::Result<Figure> {
            let [a, b] = parts.map(|part| part.measure(load, unit, stage, samples));
            Ok(a?.and(b?, unit))
        };
        match self {
            Self::RingFile => sum([Self::Ring, Self::File], samples),
            Self::DoorbellFile => sum([Self::Doorbell, Self::File], samples),
            Self::TcpStreamFile => {
                // The stream carries the same bytes whichever way they go; reads are the way it is tuned for.
                let read = Load { op: Op::Read, ..*load };
                let stream = Self::TcpStream.measure(&read, unit, stage, samples)?;
                let file = Self::File.measure(load, unit, stage, samples)?;
                Ok(stream.and(file, unit))
            }
            simple => {
                samples.clear();
                samples.take_done();
                let before = sys::process_cpu_ns();
                let work = simple.run(load, stage, samples).with_context(|| {
                    format!("cannot take the raw limit `{}` of {} bytes", self.name(load.op), load.bytes)
                })?;
                let cpu_ns = sys::process_cpu_ns().saturating_sub(before) as f64
                    / samples.take_done().max(work.ops).max(1) as f64;
                Ok(Figure { value: value(work, load.bytes, unit, samples)?, cpu_ns })
            }
        }
    }

    /// Runs it once, where it is no sum.
    pub(crate) fn run(self, load: &Load, stage: &Stage<'_>, samples: &mut Samples) -> anyhow::Result<Work> {
        match self {
            Self::Ring => ring::spinning(stage, samples),
            Self::Doorbell => ring::sleeping(stage, samples),
            Self::File => file::transfer(load, stage, 0, samples),
            Self::FileDirect => file::transfer(load, stage, libc::O_DIRECT, samples),
            Self::TcpRr => tcp::request_response(load, stage, false, samples),
            Self::TcpRrSpin => tcp::request_response(load, stage, true, samples),
            Self::TcpStream => tcp::stream(load, stage, tcp::Coalescing::Yes, samples),
            Self::TcpUncoalesced => tcp::stream(load, stage, tcp::Coalescing::No, samples),
            Self::VerbsRr => verbs::request_response(load, stage, false, samples),
            Self::VerbsRrSpin => verbs::request_response(load, stage, true, samples),
            Self::VerbsWrite => verbs::stream(load, stage, verbs::Way::Write, samples),
            Self::VerbsRead => verbs::stream(load, stage, verbs::Way::Read, samples),
            Self::Memcpy => memory::copy(load, stage, samples),
            Self::CrossMemory => memory::cross_memory(load, stage, samples),
            Self::RingFile | Self::DoorbellFile | Self::TcpStreamFile => {
                unreachable!("sums are taken apart by `measure`")
            }
        }
    }
}

/// The figure of a finished measurement in `unit`.
pub(crate) fn value(work: Work, bytes: usize, unit: Unit, samples: &mut Samples) -> anyhow::Result<f64> {
    match unit {
        Unit::Us => samples.quantile_us(0.5).context("no operation was completed"),
        Unit::MibPerS => Ok(work.mib_per_s(bytes)),
        Unit::OpsPerS => Ok(work.ops_per_s()),
    }
}
