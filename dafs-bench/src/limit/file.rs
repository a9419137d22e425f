//! Local `pread` and `pwrite` of the benchmark's own file.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::clock::Laps;
use crate::limit::Stage;
use crate::load::{Load, Work};
use crate::record::Op;
use crate::stats::Samples;

/// Memory that begins on a page, as `O_DIRECT` wants it, all pages touched.
#[derive(Debug)]
pub struct AlignedBuf {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuf {
    /// `length` bytes of 0x5a.
    pub fn new(length: usize) -> Self {
        const PAGE: usize = 4096;
        let memory = vec![0x5a; length + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start, length }
    }

    /// The bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// Transfers one block after the other with `flags` added to the open, through as many buffers as the load keeps
/// operations in flight, so that caches are as warm or cold as the subject's.
pub(crate) fn transfer(
    load: &Load,
    stage: &Stage<'_>,
    flags: libc::c_int,
    samples: &mut Samples,
) -> anyhow::Result<Work> {
    stage.pins.be_client();
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(stage.file)?;
    let mut buffers: Vec<_> = (0..load.queue_depth.max(1)).map(|_| AlignedBuf::new(load.bytes)).collect();
    let mut offsets = load.offsets();
    let (mut ops, mut next) = (0, 0);
    let deadline = stage.budget.start();
    let mut laps = Laps::start();
    loop {
        next = if next + 1 < buffers.len() { next + 1 } else { 0 };
        let buffer = buffers[next].as_mut_slice();
        match load.op {
            Op::Write => file.write_all_at(buffer, offsets.advance())?,
            Op::Read | Op::Ping | Op::Copy => file.read_exact_at(buffer, offsets.advance())?,
        }
        let (ns, now) = laps.lap();
        samples.record(ns);
        ops += 1;
        if deadline.over(now, ops) {
            return Ok(Work { ops, elapsed: now - deadline.start });
        }
    }
}
