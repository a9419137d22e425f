//! Copies within memory, and out of another process.

use std::hint::black_box;

use anyhow::{Context, ensure};

use crate::clock::Laps;
use crate::limit::{AlignedBuf, Stage};
use crate::load::{Load, Work};
use crate::stats::Samples;
use crate::sys::MemoryHolder;

/// Copies the load's bytes from one buffer to another.
pub(crate) fn copy(load: &Load, stage: &Stage<'_>, samples: &mut Samples) -> anyhow::Result<Work> {
    let (mut from, mut to) = (AlignedBuf::new(load.bytes), AlignedBuf::new(load.bytes));
    repeat(stage, samples, || {
        to.as_mut_slice().copy_from_slice(black_box(from.as_mut_slice()));
        black_box(to.as_mut_slice());
        Ok(())
    })
}

/// Copies the load's bytes out of a child process with `process_vm_readv`.
pub(crate) fn cross_memory(load: &Load, stage: &Stage<'_>, samples: &mut Samples) -> anyhow::Result<Work> {
    let holder = MemoryHolder::start(load.bytes).context("cannot fork a process to read from")?;
    let mut to = AlignedBuf::new(load.bytes);
    repeat(stage, samples, || {
        let count =
            holder.read(to.as_mut_slice()).context("process_vm_readv (is ptrace restricted here?)")?;
        ensure!(count == load.bytes, "process_vm_readv stopped after {count} bytes");
        Ok(())
    })
}

fn repeat(
    stage: &Stage<'_>,
    samples: &mut Samples,
    mut step: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Work> {
    stage.pins.be_client();
    let mut ops = 0;
    let deadline = stage.budget.start();
    let mut laps = Laps::start();
    loop {
        step()?;
        let (ns, now) = laps.lap();
        samples.record(ns);
        ops += 1;
        if deadline.over(now, ops) {
            return Ok(Work { ops, elapsed: now - deadline.start });
        }
    }
}
