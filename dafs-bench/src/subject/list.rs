//! dafs as a mover of lists: memory in pieces, and a file that is contiguous or in pieces too.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use dafs_client::{Config, Extent, File, Noncontiguous, OpenOptions, Session, Url, WaitPolicy};

use crate::cli::Poll;
use crate::limit::file::AlignedBuf;
use crate::load::{Budget, FILE_BYTES, Work};
use crate::record::{Method, Op};
use crate::stats::Samples;
use crate::subject::dafs::{Target, repeat, repeat_after, whole};
use crate::subject::server::Server;
use crate::sys;

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Read or write.
    pub op: Op,
    /// Pieces of memory.
    pub segments: usize,
    /// Bytes of each.
    pub bytes: usize,
    /// The memory is registered beforehand.
    pub registered: bool,
    /// The file is in pieces as large, with gaps as large between them.
    pub scattered_file: bool,
    /// Nothing of the file is in the page cache.
    pub cold: bool,
}

impl Shape {
    /// Bytes of one operation.
    pub fn total(&self) -> usize {
        self.segments * self.bytes
    }

    /// Bytes from the first to the last.
    fn span(&self) -> usize {
        2 * self.total()
    }

    fn parts(&self) -> Vec<Range<usize>> {
        (0..self.segments).map(|i| 2 * i * self.bytes..(2 * i + 1) * self.bytes).collect()
    }

    fn extents(&self, offset: u64, extents: &mut Vec<Extent>) {
        extents.clear();
        if self.scattered_file {
            let piece = |i: usize| Extent::new(offset + (2 * i * self.bytes) as u64, self.bytes as u64);
            extents.extend((0..self.segments).map(piece));
        } else {
            extents.push(Extent::new(offset, self.total() as u64));
        }
    }

    /// What happens before each operation.
    fn prepare(&self, path: &Path) -> anyhow::Result<impl FnMut() -> anyhow::Result<()> + use<>> {
        evicting(self.cold, path)
    }

    /// An endless walk over the file.
    fn offsets(&self) -> impl FnMut() -> u64 {
        let stride = self.span().next_multiple_of(4096) as u64;
        let (count, mut next) = ((FILE_BYTES / stride).max(1), 0);
        move || {
            next = (next + 1) % count;
            next * stride
        }
    }
}

/// What happens before each operation, where nothing of the file is to be in the page cache.
pub(crate) fn evicting(
    cold: bool,
    path: &Path,
) -> anyhow::Result<impl FnMut() -> anyhow::Result<()> + use<>> {
    let (file, path) = (std::fs::File::open(path)?, path.to_owned());
    Ok(move || if cold { evict(&file, &path) } else { Ok(()) })
}

/// Puts all of a file out of the page cache, or fails.
fn evict(file: &std::fs::File, path: &Path) -> anyhow::Result<()> {
    // What is being read ahead cannot be put out before it is there.
    const TIME_MAX: Duration = Duration::from_secs(2);
    let began = Instant::now();
    loop {
        // What is not written back stays there.
        file.sync_all()?;
        sys::evict(file)?;
        let pages = sys::cached_pages(file)?;
        if pages == 0 {
            return Ok(());
        }
        anyhow::ensure!(
            began.elapsed() < TIME_MAX,
            "cannot take {} out of the page cache: {pages} pages stay; a process has mapped them",
            path.display()
        );
        std::thread::yield_now();
    }
}

/// Sessions with one server: one for each method.
pub struct Lists {
    target: Target,
    links: Vec<(Noncontiguous, Session, File)>,
    // Last, so that sessions end before their server does.
    _server: Server,
}

impl Lists {
    /// On the benchmark's file of a server of our own.
    pub fn new(target: Target, server: Server) -> Self {
        Self { target, links: Vec::new(), _server: server }
    }

    /// One operation after the other, by one method.
    pub fn run(
        &mut self,
        method: Method,
        shape: &Shape,
        path: &Path,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        let before = shape.prepare(path)?;
        if method == Method::Batch {
            return self.run_batch(shape, before, budget, samples);
        }
        let noncontiguous: Noncontiguous = method.to_string().parse().map_err(anyhow::Error::msg)?;
        let (session, file) = self.link(noncontiguous)?;
        let (mut offsets, mut extents) = (shape.offsets(), Vec::new());
        let parts = shape.parts();
        if shape.registered {
            let mut buffer = session.buffer(shape.span())?;
            buffer.fill(0x5a);
            return repeat_after(before, budget, samples, || {
                shape.extents(offsets(), &mut extents);
                let moved = match shape.op {
                    Op::Write => file.write_list_buf(&extents, &buffer, &parts)?,
                    _ => file.read_list_buf(&extents, &mut buffer, &parts)?.count,
                };
                whole(moved, shape.total())
            });
        }
        let mut memory = vec![0x5a; shape.span()];
        repeat_after(before, budget, samples, || {
            shape.extents(offsets(), &mut extents);
            let moved = match shape.op {
                Op::Write => {
                    let slices = memory.chunks_exact(2 * shape.bytes).map(|row| &row[..shape.bytes]);
                    file.write_list(&extents, &slices.map(IoSlice::new).collect::<Vec<_>>())?
                }
                _ => {
                    let slices = memory.chunks_exact_mut(2 * shape.bytes).map(|row| &mut row[..shape.bytes]);
                    file.read_list(&extents, &mut slices.map(IoSliceMut::new).collect::<Vec<_>>())?.count
                }
            };
            whole(moved, shape.total())
        })
    }

    /// Each piece is an operation of one batch.
    fn run_batch(
        &mut self,
        shape: &Shape,
        before: impl FnMut() -> anyhow::Result<()>,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        let (session, file) = self.link(Noncontiguous::Auto)?;
        let mut offsets = shape.offsets();
        let stride = 2 * shape.bytes as u64;
        let mut buffers = Vec::new();
        let mut rest = session.buffer(shape.span())?;
        rest.fill(0x5a);
        while rest.len() >= 2 * shape.bytes && shape.registered {
            let mut row = std::mem::replace(&mut rest, session.buffer(0)?);
            rest = row.split_off(2 * shape.bytes);
            let gap = row.split_off(shape.bytes);
            buffers.push((row, gap));
        }
        let mut memory = vec![0x5a; shape.span()];
        repeat_after(before, budget, samples, || {
            let from = offsets();
            let mut batch = session.batch_io();
            let places = (0..).map(|index| from + index * stride);
            if shape.registered {
                for ((buffer, _), at) in buffers.iter_mut().zip(places) {
                    match shape.op {
                        Op::Write => batch.write_buf_at(file, buffer, at),
                        _ => batch.read_buf_at(file, buffer, at),
                    };
                }
            } else {
                for (row, at) in memory.chunks_exact_mut(2 * shape.bytes).zip(places) {
                    match shape.op {
                        Op::Write => batch.write_at(file, &row[..shape.bytes], at),
                        _ => batch.read_at(file, &mut row[..shape.bytes], at),
                    };
                }
            }
            let mut moved = 0;
            for outcome in batch.run()? {
                moved += outcome?.count;
            }
            whole(moved, shape.total())
        })
    }

    /// The contiguous transfer of as many bytes, in contiguous memory.
    pub fn run_contiguous(
        &mut self,
        shape: &Shape,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        let (session, file) = self.link(Noncontiguous::Auto)?;
        let mut offsets = shape.offsets();
        if shape.registered {
            let mut buffer = session.buffer(shape.total())?;
            buffer.fill(0x5a);
            return repeat(budget, samples, || {
                let moved = match shape.op {
                    Op::Write => file.write_buf_at(&buffer, offsets())?,
                    _ => file.read_buf_at(&mut buffer, offsets())?,
                };
                whole(moved, shape.total())
            });
        }
        let mut memory = vec![0x5a; shape.total()];
        repeat(budget, samples, || {
            let moved = match shape.op {
                Op::Write => file.write_at(&memory, offsets())?,
                _ => file.read_at(&mut memory, offsets())?,
            };
            whole(moved, shape.total())
        })
    }

    pub(crate) fn link(&mut self, method: Noncontiguous) -> anyhow::Result<(&Session, &File)> {
        if !self.links.iter().any(|link| link.0 == method) {
            let config = Config {
                wait: match self.target.poll {
                    Poll::Event => WaitPolicy::Event,
                    Poll::Busy => WaitPolicy::Busy,
                    Poll::Adaptive => WaitPolicy::Adaptive,
                },
                client_name: Some("dafs-bench".to_owned()),
                noncontiguous: method,
                key: self.target.key.clone(),
                ..Config::default()
            };
            let url = Url::parse(self.target.address.as_ref())?;
            let session = Session::connect_url(&url, &config)
                .with_context(|| format!("cannot reach {}", self.target.address))?;
            let Some(export) = &url.export else {
                bail!("cannot use {}: it names no export; write SERVER/EXPORT", self.target.address)
            };
            let export = std::str::from_utf8(export).context("the export's name is not UTF-8")?;
            let export = session.mount(export)?;
            let file = export.open_with(self.target.file, OpenOptions::new().read(true).write(true))?;
            self.links.push((method, session, file));
        }
        let link = self.links.iter().find(|link| link.0 == method).context("the session was just made")?;
        Ok((&link.1, &link.2))
    }
}

/// How a program without lists does it: on the file itself, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// A call for each piece.
    Each,
    /// One call for all, with what lies between, and copies. Reads only.
    Sieved,
    /// An entry of an io_uring for each piece, all submitted together. Reads only.
    Ring,
}

impl Local {
    /// Its name among the limits.
    pub fn name(self, op: Op) -> &'static str {
        match (self, op) {
            (Self::Each, Op::Write) => "pwrites",
            (Self::Each, _) => "preads",
            (Self::Sieved, _) => "sieved pread",
            (Self::Ring, _) => "io_uring",
        }
    }

    /// Runs it on the file.
    pub fn run(
        self,
        shape: &Shape,
        path: &Path,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        let (mut offsets, mut extents) = (shape.offsets(), Vec::new());
        let mut memory = AlignedBuf::new(shape.span());
        let mut window = AlignedBuf::new(shape.span());
        let mut ring = match self {
            Self::Ring => Some(sys::IoRing::new(shape.segments).context("set up an io_uring")?),
            Self::Each | Self::Sieved => None,
        };
        repeat_after(shape.prepare(path)?, budget, samples, || {
            shape.extents(offsets(), &mut extents);
            let memory = memory.as_mut_slice();
            if self == Self::Sieved {
                let (window, first) = (window.as_mut_slice(), extents[0].offset);
                let len = shape.span() - shape.bytes;
                file.read_exact_at(&mut window[..len], first)?;
                for part in shape.parts() {
                    memory[part.clone()].copy_from_slice(&window[part]);
                }
                return Ok(());
            }
            if let Some(ring) = &mut ring {
                let pieces = memory.chunks_exact_mut(2 * shape.bytes).map(|piece| &mut piece[..shape.bytes]);
                let reads = extents.iter().map(|extent| extent.offset).zip(pieces);
                return Ok(ring.read_all(&file, reads)?);
            }
            for (extent, piece) in extents.iter().zip(memory.chunks_exact_mut(2 * shape.bytes)) {
                let piece = &mut piece[..shape.bytes];
                match shape.op {
                    Op::Write => file.write_all_at(piece, extent.offset)?,
                    _ => file.read_exact_at(piece, extent.offset)?,
                }
            }
            Ok(())
        })
    }
}
