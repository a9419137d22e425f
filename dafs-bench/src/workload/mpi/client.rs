//! The client API, and local calls, doing what `mpi/transfer.c` does: the same places of the file, the same order of buffers.

use std::fs::{File as LocalFile, OpenOptions as LocalOptions};
use std::ops::DerefMut;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use dafs_client::{
    Background, Config, File, OpenOptions, Pending, PinnedBuf, RegisteredBuf, RegistrationConfig, Session,
    Transferred, Url,
};

use crate::cli::Transport;
use crate::load::{Budget, DATA_FILE, FILE_BYTES, compute};
use crate::mpi::Step;
use crate::record::Op;
use crate::stats::Samples;
use crate::subject::dafs::{repeat, whole};
use crate::subject::server::Server;

/// From one transfer to the next in random order: beyond what a file system reads ahead.
const STRIDE: u64 = 512 << 10;
/// Warm-up transfers before those that are measured, besides those that use new buffers.
const WARM_UP: usize = 64;

/// What is done again and again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    pub(super) op: Op,
    pub(super) bytes: usize,
    /// With a stride between transfers.
    pub(super) random: bool,
    /// Transfers of a hundred that use the first buffer.
    pub(super) reuse: u32,
    /// Buffers besides it.
    pub(super) fresh: usize,
}

/// What a measurement gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figures {
    pub p50_us: f64,
    pub(super) mean_us: f64,
    pub(super) min_us: f64,
    /// Registrations for each transfer.
    pub(super) registrations: Option<f64>,
    /// Share of those found registered among those looked for.
    pub(super) hit_ratio: Option<f64>,
}

/// Which memory the client API uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// Ordinary: the library decides.
    Ordinary,
    /// Of the client library, registered when it was made.
    Registered,
    /// Ordinary, registered before and kept.
    Pinned,
}

/// Sessions without MPI, and the file.
pub(super) struct Client {
    pub(super) transport: Transport,
    session: Session,
    file: File,
    // A session of its own: what is kept registered is a setting of sessions.
    pinning: (Session, File),
    ordinary: Option<Pool<Vec<u8>>>,
    registered: Option<Pool<RegisteredBuf>>,
    pinned: Option<Pool<PinnedBuf>>,
}

impl Client {
    /// Sessions with `server`; with a thread of the library that moves nonblocking transfers along where `progress_thread`.
    pub(super) fn connect(
        server: &Server,
        transport: Transport,
        progress_thread: bool,
    ) -> anyhow::Result<Self> {
        let background = if progress_thread { Background::Progress } else { Background::KeepAlive };
        let config = Config {
            key: server.key().cloned(),
            client_name: Some("dafs-bench".to_owned()),
            background,
            ..Config::default()
        };
        let address = server.address(transport.name(), "bench")?;
        let (session, file) = open(&address, &config)?;
        let registration = RegistrationConfig { entries_max: 4096, ..RegistrationConfig::default() };
        let pinning = open(&address, &Config { registration, ..config })?;
        Ok(Self { transport, session, file, pinning, ordinary: None, registered: None, pinned: None })
    }

    /// Blocking transfers, one after the other.
    pub(super) fn transfer(
        &mut self,
        load: &Load,
        memory: Memory,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Figures> {
        let bytes = load.bytes;
        match memory {
            Memory::Ordinary => {
                let pool = Pool::of(&mut self.ordinary, load, || Ok(vec![0x5a; bytes]))?;
                transfer(&self.file, pool, load, budget, samples)
            }
            Memory::Pinned => {
                let (session, file) = &self.pinning;
                let pool = Pool::of(&mut self.pinned, load, || {
                    let buffer = session.pin(vec![0x5a; bytes]);
                    session.preregister(&buffer);
                    Ok(buffer)
                })?;
                transfer(file, pool, load, budget, samples)
            }
            Memory::Registered => {
                let (session, file, mut walk) = (&self.session, &self.file, Walk::of(load));
                let pool = Pool::of(&mut self.registered, load, || {
                    let mut buffer = session.buffer(bytes)?;
                    buffer.fill(0x5a);
                    Ok(buffer)
                })?;
                measure(pool.warm_up(), budget, samples, || {
                    let (buffer, at) = (pool.next_buffer(), walk.advance());
                    let moved = match load.op {
                        Op::Write => file.write_buf_at(buffer, at)?,
                        _ => file.read_buf_at(buffer, at)?,
                    };
                    whole(moved, bytes)
                })
            }
        }
    }

    /// The time of a blocking transfer, and nonblocking ones with computation: one step for each share of it, percent.
    pub(super) fn overlap(
        &mut self,
        load: &Load,
        fractions: &[u32],
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<(f64, Vec<Step>)> {
        let io_us = self.transfer(load, Memory::Ordinary, budget, samples)?.p50_us;
        let mut walk = Walk::of(load);
        let mut buffer = Some(vec![0x5a; load.bytes]);
        let mut steps = Vec::new();
        for percent in fractions {
            let fraction = f64::from(*percent) / 100.0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "positive, below an hour"
            )]
            let compute_ns = (io_us * 1e3 * fraction / (1.0 - fraction)) as u64;
            let figures = measure(WARM_UP, budget, samples, || {
                let moving = buffer.take().context("the buffer is back")?;
                let pending = self.submit(load.op, moving, walk.advance());
                self.session.flush();
                compute(compute_ns);
                let (moved, back) = pending.wait().into_result()?;
                buffer = Some(back);
                whole(moved, load.bytes)
            })?;
            let Figures { p50_us, mean_us, min_us, .. } = figures;
            steps.push(Step { fraction, p50_us, mean_us, min_us });
        }
        Ok((io_us, steps))
    }

    fn submit(&self, op: Op, buffer: Vec<u8>, at: u64) -> Pending<Transferred<Vec<u8>>> {
        match op {
            Op::Write => self.file.submit_write_at(buffer, at),
            _ => self.file.submit_read_at(buffer, at),
        }
    }
}

/// Blocking transfers in the program's memory.
fn transfer<B: DerefMut<Target = [u8]>>(
    file: &File,
    pool: &mut Pool<B>,
    load: &Load,
    budget: Budget,
    samples: &mut Samples,
) -> anyhow::Result<Figures> {
    let mut walk = Walk::of(load);
    measure(pool.warm_up(), budget, samples, || {
        let (buffer, at) = (pool.next_buffer(), walk.advance());
        let moved = match load.op {
            Op::Write => file.write_at(buffer, at)?,
            _ => file.read_at(buffer, at)?,
        };
        whole(moved, load.bytes)
    })
}

fn open(address: &str, config: &Config) -> anyhow::Result<(Session, File)> {
    let url = Url::parse(address.as_ref())?;
    let session = Session::connect_url(&url, config)?;
    let export = url.export.as_deref().context("the address names an export")?;
    let export = session.mount(std::str::from_utf8(export)?)?;
    let file = export.open_with(DATA_FILE, OpenOptions::new().read(true).write(true))?;
    Ok((session, file))
}

/// Local `pread` and `pwrite`.
pub(super) struct Local {
    file: LocalFile,
    pool: Option<Pool<Vec<u8>>>,
}

impl Local {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = LocalOptions::new().read(true).write(true).open(path)?;
        Ok(Self { file, pool: None })
    }

    pub(super) fn transfer(
        &mut self,
        load: &Load,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Figures> {
        let mut walk = Walk::of(load);
        let pool = Pool::of(&mut self.pool, load, || Ok(vec![0x5a; load.bytes]))?;
        measure(pool.warm_up(), budget, samples, || {
            let (buffer, at) = (pool.next_buffer(), walk.advance());
            match load.op {
                Op::Write => self.file.write_all_at(buffer, at)?,
                _ => self.file.read_exact_at(buffer, at)?,
            }
            Ok(())
        })
    }
}

/// Steps until the budget is used up, after some that are not counted.
fn measure(
    warm_up: usize,
    budget: Budget,
    samples: &mut Samples,
    mut step: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Figures> {
    for _ in 0..warm_up {
        step()?;
    }
    samples.clear();
    repeat(budget, samples, step)?;
    let figures = |samples: &mut Samples| {
        let (p50_us, min_us) = (samples.quantile_us(0.5)?, samples.quantile_us(0.0)?);
        let mean_us = samples.trimmed_mean_us()?;
        Some(Figures { p50_us, mean_us, min_us, registrations: None, hit_ratio: None })
    };
    figures(samples).context("nothing was measured")
}

/// The places of transfers.
#[derive(Debug)]
struct Walk {
    bytes: u64,
    step: u64,
    at: u64,
    shift: u64,
}

impl Walk {
    fn of(load: &Load) -> Self {
        let bytes = load.bytes as u64;
        Self { bytes, step: if load.random { STRIDE } else { bytes }, at: 0, shift: 0 }
    }

    fn advance(&mut self) -> u64 {
        if self.at + self.bytes > FILE_BYTES {
            if self.step != self.bytes {
                self.shift = (self.shift + 4096) % STRIDE;
                if self.shift + self.bytes > FILE_BYTES {
                    self.shift = 0;
                }
            }
            self.at = self.shift;
        }
        let at = self.at;
        self.at += self.step;
        at
    }
}

/// Buffers: the first is used again and again, the others one after the other. Before that each is used once.
struct Pool<B> {
    bytes: usize,
    buffers: Vec<B>,
    next: usize,
    unseen: usize,
    reuse: u32,
    owed: u32,
}

impl<B> Pool<B> {
    /// The pool in `slot` if it is of this load, else another in its place.
    fn of<'s>(
        slot: &'s mut Option<Self>,
        load: &Load,
        make: impl FnMut() -> anyhow::Result<B>,
    ) -> anyhow::Result<&'s mut Self> {
        let count = load.fresh + 1;
        if slot.as_ref().is_none_or(|pool| (pool.bytes, pool.buffers.len()) != (load.bytes, count)) {
            // The memory of the last goes first.
            *slot = None;
            let buffers = std::iter::repeat_with(make).take(count).collect::<anyhow::Result<_>>()?;
            *slot = Some(Self { bytes: load.bytes, buffers, next: 0, unseen: count, reuse: 0, owed: 0 });
        }
        let pool = slot.as_mut().context("there is a pool")?;
        pool.reuse = if load.fresh == 0 { 100 } else { load.reuse };
        pool.owed = 0;
        Ok(pool)
    }

    /// Transfers before those that are measured.
    fn warm_up(&self) -> usize {
        WARM_UP + self.unseen
    }

    fn next_buffer(&mut self) -> &mut B {
        if self.unseen > 0 {
            self.unseen -= 1;
            return &mut self.buffers[self.unseen];
        }
        self.owed += self.reuse;
        if self.owed >= 100 {
            self.owed -= 100;
            return &mut self.buffers[0];
        }
        self.next = if self.next + 1 < self.buffers.len() { self.next + 1 } else { 1 };
        &mut self.buffers[self.next]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(bytes: usize, random: bool, reuse: u32, fresh: usize) -> Load {
        Load { op: Op::Read, bytes, random, reuse, fresh }
    }

    #[test]
    fn walk_stays_within_the_file_and_strides_at_random() {
        for bytes in [4, 4096, 1 << 20, 64 << 20] {
            for random in [false, true] {
                let mut walk = Walk::of(&load(bytes, random, 100, 0));
                let mut last = None;
                for _ in 0..1000 {
                    let at = walk.advance();
                    assert!(at + bytes as u64 <= FILE_BYTES, "{bytes} at {at}");
                    if let Some(last) = last
                        && at > last
                    {
                        assert_eq!(at - last, if random { STRIDE } else { bytes as u64 });
                    }
                    last = Some(at);
                }
            }
        }
    }

    #[test]
    fn pool_reuses_the_first_buffer_as_often_as_asked() {
        for reuse in [0, 25, 50, 75, 100] {
            let mut slot = None;
            let mut number = 0;
            let make = || {
                number += 1;
                Ok(number - 1)
            };
            let pool = Pool::of(&mut slot, &load(8, false, reuse, 240), make).unwrap();
            let mut new: Vec<usize> = (0..241).map(|_| *pool.next_buffer()).collect();
            new.sort_unstable();
            assert!(new.into_iter().eq(0..=240));
            assert_eq!(pool.warm_up(), WARM_UP);
            let used: Vec<usize> = (0..10_000).map(|_| *pool.next_buffer()).collect();
            assert_eq!(used.iter().filter(|buffer| **buffer == 0).count(), reuse as usize * 100);
            let others: Vec<usize> = used.into_iter().filter(|buffer| *buffer != 0).collect();
            assert!(
                others.windows(240).all(|turn| (1..=240).all(|buffer| turn.contains(&buffer))),
                "{reuse}"
            );
        }
    }

    #[test]
    fn pool_without_others_is_one_buffer() {
        let mut slot = None;
        let pool = Pool::of(&mut slot, &load(8, false, 0, 0), || Ok(7)).unwrap();
        assert_eq!([*pool.next_buffer(), *pool.next_buffer()], [7, 7]);
    }
}
