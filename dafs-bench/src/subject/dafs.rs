//! dafs: a session with a server, and one file open over it.

mod files;

use std::cell::Cell;
use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow, bail, ensure};
use dafs_client::{
    Background, Config, Export, File, IoBuffer, Key, MethodOverride, Noncontiguous, OpenOptions, Pending,
    Provider, RegisteredBuf, RegistrationConfig, Session, Transferred, Url, WaitPolicy, wait_any,
};

use crate::cli::{Poll, Transport};
use crate::clock::{Laps, nanoseconds};
use crate::load::{Budget, DATA_FILE, FILE_BYTES, Load, Offsets, Work, compute};
use crate::record::{Method, NameOp, Op};
use crate::report::threshold;
use crate::stats::Samples;
use crate::subject::checks::Checks;
use crate::subject::files::Batch;
use crate::subject::libdafs::CFile;
use crate::subject::measured::Subject;
use crate::subject::names::cycle;
use crate::subject::server::Server;

/// Credits asked for where the queue depth needs no more.
const CREDITS_MIN: u16 = 64;
/// Inline payload that this side is ready for: as much as any server may offer, so that the server's limit counts.
const INLINE_MAX: u32 = 64 << 10;

/// Where a file is, and how it is reached.
#[derive(Debug, Clone)]
pub struct Target {
    /// Address of the export, such as `dafs+tcp://127.0.0.1:41731/data`.
    pub address: String,
    /// The transport that it means.
    pub transport: Transport,
    /// Name of the file in the export's root.
    pub file: &'static str,
    /// How the client waits.
    pub poll: Poll,
    /// Whether requests leave together.
    pub coalescing: bool,
    /// The key that the server demands.
    pub key: Option<Key>,
}

impl Target {
    /// The benchmark's file in `export` of a server of our own.
    pub fn on(server: &Server, transport: Transport, export: &str, poll: Poll) -> anyhow::Result<Self> {
        Ok(Self {
            address: server.address(transport.name(), export)?,
            transport,
            file: DATA_FILE,
            poll,
            coalescing: true,
            key: server.key().cloned(),
        })
    }
}

/// Sessions with one server: the method is a setting of a session, so each method has its own.
pub struct Dafs {
    target: Target,
    links: Vec<Link>,
    // Last, so that sessions end before their server does.
    server: Option<Server>,
}

/// One session.
struct Link {
    setup: Setup,
    coalescing: bool,
    session: Session,
    file: File,
    inline_max: [u32; 2],
    /// What the last run wrote.
    stamp: Cell<u8>,
}

/// What makes a session different from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setup {
    method: Method,
    progress_thread: bool,
    credits: u16,
}

impl Dafs {
    /// A subject on `target`, whose `server`, if it is ours, lives as long. The file must be there.
    pub fn connect(target: Target, server: Option<Server>) -> anyhow::Result<Self> {
        let mut dafs = Self { target, links: Vec::new(), server };
        dafs.link(Setup { method: Method::Auto, progress_thread: false, credits: CREDITS_MIN })?;
        Ok(dafs)
    }

    /// Creates the file on a server that is not ours, and fills it.
    pub fn write_data(&self) -> anyhow::Result<()> {
        let link = self.links.first().context("no session")?;
        let block: Vec<u8> = (0..1usize << 20).map(|index| (index % 251).to_le_bytes()[0]).collect();
        for offset in (0..FILE_BYTES).step_by(block.len()) {
            link.file.write_all_at(&block, offset)?;
        }
        Ok(link.file.commit()?)
    }

    /// A session of its own, with the file open: always Direct, memory registered as `registration` says.
    pub(crate) fn registering(&self, registration: RegistrationConfig) -> anyhow::Result<(Session, File)> {
        let setup = Setup { method: Method::Direct, progress_thread: false, credits: CREDITS_MIN };
        // Also of memory in pieces, where copies may be quicker.
        let noncontiguous = Noncontiguous::Gather;
        connect(&self.target, &Config { registration, noncontiguous, ..Link::config(&self.target, setup) })
    }

    /// A session of its own as a program gets it, with the file open.
    pub(crate) fn plain(&self) -> anyhow::Result<(Session, File)> {
        let setup = Setup { method: Method::Auto, progress_thread: false, credits: CREDITS_MIN };
        connect(&self.target, &Link::config(&self.target, setup))
    }

    /// A session of its own with the defaults of the library, with the file open.
    pub(crate) fn with_defaults(&self) -> anyhow::Result<(Session, File)> {
        connect(&self.target, &Config::default())
    }

    /// The same by libdafs at `library`.
    pub(crate) fn by_libdafs(&self, library: &Path) -> anyhow::Result<CFile> {
        let url = Url::parse(self.target.address.as_ref())?;
        let export =
            url.export.as_deref().map(String::from_utf8_lossy).context("the address names no export")?;
        CFile::open(library, &self.target.address, &export, self.target.file)
    }

    /// A session of its own, with the file open, that may have so many operations in flight.
    pub(crate) fn bulk(&self, queue_depth: usize) -> anyhow::Result<(Session, File)> {
        let credits = u16::try_from(queue_depth).unwrap_or(u16::MAX).max(CREDITS_MIN);
        let setup = Setup { method: Method::Direct, progress_thread: false, credits };
        // Its waits are long: spinning would take the CPU from another client beside it.
        connect(&self.target, &Config { wait: WaitPolicy::Event, ..Link::config(&self.target, setup) })
    }

    /// One session of many, with the file open; none of them spins.
    pub(crate) fn one_of_many(&self) -> anyhow::Result<(Session, File)> {
        sleeper(&self.target)
    }

    /// The session for `setup`, made when first needed.
    fn link(&mut self, setup: Setup) -> anyhow::Result<&Link> {
        let place = match self.links.iter().position(|link| link.setup == setup) {
            Some(place) => place,
            None => {
                let link = Link::open(&self.target, setup)
                    .with_context(|| format!("cannot reach {}", self.target.address))?;
                self.links.push(link);
                self.links.len() - 1
            }
        };
        Ok(&self.links[place])
    }

    /// The size from which sessions use Direct, where the server exports this crossover; `None` is never.
    fn used_from(&self, op: Op, crossover: u32, inline_max: u32) -> Option<u64> {
        if op == Op::Write && self.cuts_writes() && crossover > inline_max {
            return None;
        }
        // Beyond the hard limit the session takes Direct, whatever the crossover says.
        Some(u64::from(crossover).min(u64::from(inline_max) + 1))
    }

    /// Sessions cut large writes into inline messages where Direct never pays.
    fn cuts_writes(&self) -> bool {
        self.links.first().is_some_and(|link| link.session.agreed().cuts_inline_writes)
    }

    fn setup(&self, load: &Load) -> Setup {
        // Over shared memory the server finishes operations by itself; a byte stream needs somebody to read it.
        let progress_thread = load.compute_ns.is_some() && self.target.transport == Transport::Tcp;
        let credits = u16::try_from(load.queue_depth).unwrap_or(u16::MAX).max(CREDITS_MIN);
        Setup { method: load.method, progress_thread, credits }
    }
}

impl Link {
    fn open(target: &Target, setup: Setup) -> anyhow::Result<Self> {
        let config = Self::config(target, setup);
        let (session, file) = connect(target, &config)?;
        let agreed = session.agreed();
        Ok(Self {
            setup,
            coalescing: target.coalescing,
            inline_max: [agreed.read_inline_max, agreed.write_inline_max],
            session,
            file,
            stamp: Cell::default(),
        })
    }

    fn config(target: &Target, setup: Setup) -> Config {
        Config {
            wait: match target.poll {
                Poll::Event => WaitPolicy::Event,
                Poll::Busy => WaitPolicy::Busy,
                Poll::Adaptive => WaitPolicy::Adaptive,
            },
            credits: setup.credits,
            client_name: Some("dafs-bench".to_owned()),
            method: match setup.method {
                Method::Inline => MethodOverride::Inline,
                Method::Direct => MethodOverride::Direct,
                Method::Eager => MethodOverride::Eager,
                Method::ClientInitiated => MethodOverride::ClientInitiated,
                Method::Hybrid => MethodOverride::Hybrid,
                // Of memory or files in pieces.
                _ => MethodOverride::Auto,
            },
            inline_max: INLINE_MAX,
            key: target.key.clone(),
            coalesce_submits: target.coalescing,
            background: if setup.progress_thread { Background::Progress } else { Background::KeepAlive },
            ..Config::default()
        }
    }

    fn ping_each(&self, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
        repeat(budget, samples, || Ok(self.session.probe()?))
    }

    /// One operation after the other through the blocking calls.
    fn run_each(&self, load: &Load, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
        let mut offsets = load.offsets();
        let mut checks = Checks::new(&self.stamp);
        let wanted = load.bytes;
        let work = if load.registered {
            let mut buffer = self.buffer(wanted)?;
            buffer.fill(checks.stamp);
            repeat(budget, samples, || {
                let offset = offsets.advance();
                let moved = match load.op {
                    Op::Write => self.file.write_buf_at(&buffer, offset)?,
                    Op::Read | Op::Ping | Op::Copy => self.file.read_buf_at(&mut buffer, offset)?,
                };
                checks.moved(load.op, offset, &buffer)?;
                whole(moved, wanted)
            })?
        } else {
            let mut buffer = vec![checks.stamp; wanted];
            repeat(budget, samples, || {
                let offset = offsets.advance();
                let moved = match load.op {
                    Op::Write => self.file.write_at(&buffer, offset)?,
                    Op::Read | Op::Ping | Op::Copy => self.file.read_at(&mut buffer, offset)?,
                };
                checks.moved(load.op, offset, &buffer)?;
                whole(moved, wanted)
            })?
        };
        if load.op == Op::Write {
            let mut written = vec![0; wanted];
            self.file.read_exact_at(&mut written, checks.last)?;
            checks.written(&written)?;
        }
        Ok(work)
    }

    /// Many in flight, collected in the order of their submission.
    fn run_many(&self, load: &Load, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
        let under_corks = load.compute_ns.is_none() && self.coalescing;
        if load.registered {
            let buffers =
                (0..load.queue_depth).map(|_| self.buffer(load.bytes)).collect::<Result<Vec<_>, _>>()?;
            self.keep_busy(under_corks, load, buffers, budget, samples)
        } else {
            let buffers = (0..load.queue_depth).map(|_| vec![0x5a; load.bytes]).collect();
            self.keep_busy(under_corks, load, buffers, budget, samples)
        }
    }

    fn keep_busy<B: IoBuffer>(
        &self,
        under_corks: bool,
        load: &Load,
        buffers: Vec<B>,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        match under_corks {
            true => self.corked(load, buffers, budget, samples),
            false => self.pipeline(load, buffers, budget, samples),
        }
    }

    /// All that has ended is collected, and as many operations are submitted under one cork.
    fn corked<B: IoBuffer>(
        &self,
        load: &Load,
        buffers: Vec<B>,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        let mut offsets = load.offsets();
        let deadline = budget.start();
        // The operations in flight, and when each was submitted; both in the order of submission.
        let mut pendings = Vec::with_capacity(buffers.len());
        let mut starts = Vec::with_capacity(buffers.len());
        let mut ended: Vec<bool> = Vec::with_capacity(buffers.len());
        let mut free = buffers;
        let (mut ops, mut now) = (0, deadline.start);
        loop {
            let cork = self.session.cork();
            for buffer in free.drain(..) {
                starts.push(now);
                pendings.push(self.submit(load, buffer, &mut offsets));
            }
            drop(cork);
            if pendings.is_empty() {
                return Ok(Work { ops, elapsed: now - deadline.start });
            }
            wait_any(&mut pendings);
            now = Instant::now();
            // One look, for both lists: more may end meanwhile.
            ended.clear();
            ended.extend(pendings.iter().map(Pending::has_ended));
            let mut flags = ended.iter();
            starts.retain(|start| {
                let ended = flags.next() == Some(&true);
                if ended {
                    samples.record(nanoseconds(*start, now));
                }
                !ended
            });
            let mut flags = ended.iter();
            for pending in pendings.extract_if(.., |_| flags.next() == Some(&true)) {
                let (moved, buffer) = pending.wait().into_result()?;
                whole(moved, load.bytes)?;
                ops += 1;
                free.push(buffer);
            }
            if deadline.over(now, ops) {
                free.clear();
            }
        }
    }

    fn pipeline<B: IoBuffer>(
        &self,
        load: &Load,
        buffers: Vec<B>,
        budget: Budget,
        samples: &mut Samples,
    ) -> anyhow::Result<Work> {
        let mut offsets = load.offsets();
        let mut in_flight = VecDeque::with_capacity(buffers.len());
        let deadline = budget.start();
        for buffer in buffers {
            in_flight.push_back((Instant::now(), self.submit(load, buffer, &mut offsets)));
        }
        let mut ops = 0;
        let mut now = deadline.start;
        while let Some((start, pending)) = in_flight.pop_front() {
            if let Some(ns) = load.compute_ns {
                // Computing means not calling in: what was queued must be on its way before.
                self.session.flush();
                compute(ns);
            }
            let (moved, buffer) = pending.wait().into_result()?;
            whole(moved, load.bytes)?;
            now = Instant::now();
            samples.record(nanoseconds(start, now));
            ops += 1;
            if !deadline.over(now, ops) {
                in_flight.push_back((now, self.submit(load, buffer, &mut offsets)));
            }
        }
        Ok(Work { ops, elapsed: now - deadline.start })
    }

    #[inline]
    fn submit<B: IoBuffer>(&self, load: &Load, buffer: B, offsets: &mut Offsets) -> Pending<Transferred<B>> {
        let offset = offsets.advance();
        match load.op {
            Op::Write => self.file.submit_write_at(buffer, offset),
            Op::Read | Op::Ping | Op::Copy => self.file.submit_read_at(buffer, offset),
        }
    }

    /// Registered memory, touched, so that no page of it is new to either side.
    fn buffer(&self, bytes: usize) -> dafs_client::Result<RegisteredBuf> {
        let mut buffer = self.session.buffer(bytes)?;
        buffer.fill(0x5a);
        Ok(buffer)
    }
}

impl Subject for Dafs {
    fn transport(&self) -> &str {
        match (self.target.transport, self.target.coalescing) {
            (transport, true) => transport.name(),
            (Transport::Tcp, false) => "tcp-uncoalesced",
            (Transport::Shm, false) => "shm-uncoalesced",
            (Transport::Verbs, false) => "verbs-uncoalesced",
        }
    }

    fn spins(&self) -> bool {
        self.target.poll == Poll::Busy
    }

    fn spins_first(&self) -> bool {
        self.target.poll != Poll::Event
    }

    fn coalesces(&self) -> bool {
        self.target.coalescing
    }

    fn supports(&self, load: &Load) -> bool {
        let inline_max = self.links.first().map_or([0, 0], |link| link.inline_max);
        match (load.method, load.op) {
            (_, Op::Ping) => true,
            // More than one message carries would be another method, several requests, unless that is what sessions do of themselves.
            (Method::Inline, Op::Read) => load.bytes <= inline_max[0] as usize,
            (Method::Inline, Op::Write) => self.cuts_writes() || load.bytes <= inline_max[1] as usize,
            (_, Op::Copy) => false,
            _ => true,
        }
    }

    fn has_methods(&self) -> bool {
        true
    }

    fn run(&mut self, load: &Load, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
        let link = self.link(self.setup(load))?;
        if load.op == Op::Ping {
            link.ping_each(budget, samples)
        } else if load.queue_depth == 1 && load.compute_ns.is_none() {
            link.run_each(load, budget, samples)
        } else {
            link.run_many(load, budget, samples)
        }
    }

    fn exported_threshold(&self, op: Op, registered: bool) -> Option<u64> {
        let link = self.links.first()?;
        let crossovers = link.session.agreed().thresholds.crossovers;
        let (crossover, inline_max) = match (op, registered) {
            (Op::Write, true) => (crossovers.write_registered, link.inline_max[1]),
            (Op::Write, false) => (crossovers.write_unregistered, link.inline_max[1]),
            (_, true) => (crossovers.read_registered, link.inline_max[0]),
            (_, false) => (crossovers.read_unregistered, link.inline_max[0]),
        };
        self.used_from(op, crossover, inline_max)
    }

    fn names(&mut self, op: NameOp, budget: Budget, samples: &mut Samples) -> anyhow::Result<Option<Work>> {
        let link = self.links.first().context("no session")?;
        let root = exported(&link.session, &self.target)?;
        let work = cycle(op, budget, samples, |call, name| {
            match call {
                NameOp::Create => drop(root.create(name)?),
                NameOp::Stat => {
                    root.metadata(name)?;
                }
                NameOp::Remove => root.remove_file(name)?,
                NameOp::Open | NameOp::Rename | NameOp::List => bail!("no {} of a single name", call.name()),
            }
            Ok(())
        })?;
        Ok(Some(work))
    }

    fn files(&mut self, op: NameOp, batch: Batch, samples: &mut Samples) -> anyhow::Result<Option<Work>> {
        files::run(self, op, batch, samples).map(Some)
    }

    fn server_cpu_ns(&self) -> Option<u64> {
        self.server.as_ref().and_then(|server| server.cpu_ns().ok())
    }

    fn publish(&mut self, found: &[(Op, bool, Option<u64>)]) -> anyhow::Result<String> {
        let link = self.links.first().context("no session")?;
        let thresholds = link.session.limits()?.thresholds;
        let mut crossovers = thresholds.crossovers;
        for &(op, registered, bytes) in found {
            let (size, inline_max) = match (op, registered) {
                (Op::Write, true) => (&mut crossovers.write_registered, thresholds.write_inline_max),
                (Op::Write, false) => (&mut crossovers.write_unregistered, thresholds.write_inline_max),
                (_, true) => (&mut crossovers.read_registered, thresholds.read_inline_max),
                (_, false) => (&mut crossovers.read_unregistered, thresholds.read_inline_max),
            };
            let never = u64::from(inline_max) + 1;
            *size = u32::try_from(bytes.unwrap_or(never).clamp(1, never)).unwrap_or(u32::MAX);
        }
        let published = link.session.publish(crossovers);
        published.map_err(|error| anyhow!("{error}; --publish needs the right to"))?;
        let used = |op, size, inline_max| threshold(self.used_from(op, size, inline_max));
        let (reads, writes) = (thresholds.read_inline_max, thresholds.write_inline_max);
        Ok(format!(
            "published for {}: new sessions use direct for reads {} (registered memory) and {} (ordinary), for writes {} and {}",
            self.transport(),
            used(Op::Read, crossovers.read_registered, reads),
            used(Op::Read, crossovers.read_unregistered, reads),
            used(Op::Write, crossovers.write_registered, writes),
            used(Op::Write, crossovers.write_unregistered, writes)
        ))
    }

    fn rest(&mut self) -> anyhow::Result<()> {
        match &self.server {
            Some(server) if self.spins() => server.pause(),
            _ => Ok(()),
        }
    }

    fn wake(&mut self) -> anyhow::Result<()> {
        match &self.server {
            Some(server) if self.spins() => server.resume(),
            _ => Ok(()),
        }
    }
}

/// A session with the benchmark's file open.
/// A session that sleeps while it waits, and has no thread of its own, with the file open.
pub(crate) fn sleeper(target: &Target) -> anyhow::Result<(Session, File)> {
    let setup = Setup { method: Method::Auto, progress_thread: false, credits: CREDITS_MIN };
    let config = Link::config(target, setup);
    connect(target, &Config { wait: WaitPolicy::Event, background: Background::None, ..config })
}

fn connect(target: &Target, config: &Config) -> anyhow::Result<(Session, File)> {
    let url = Url::parse(target.address.as_ref())?;
    let session = Session::connect_url(&url, config)?;
    let provider = match target.transport {
        Transport::Tcp => Provider::Tcp,
        Transport::Shm => Provider::Shm,
        Transport::Verbs => Provider::Verbs,
    };
    ensure!(session.provider() == provider, "the session took {:?}, not {provider:?}", session.provider());
    let export = exported(&session, target)?;
    let file = export.open_with(target.file, OpenOptions::new().read(true).write(true).create(true))?;
    Ok((session, file))
}

/// The root of the export.
fn exported(session: &Session, target: &Target) -> anyhow::Result<Export> {
    let url = Url::parse(target.address.as_ref())?;
    let Some(export) = &url.export else {
        bail!("cannot use {}: it names no export; write SERVER/EXPORT", target.address)
    };
    let export = std::str::from_utf8(export).context("the export's name is not UTF-8")?;
    Ok(session.mount(export)?)
}

/// Calls `step` until the budget is used up.
pub(crate) fn repeat(
    budget: Budget,
    samples: &mut Samples,
    mut step: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Work> {
    let mut ops = 0;
    let deadline = budget.start();
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

/// As [`repeat`], with something before each step that is not timed.
pub(crate) fn repeat_after(
    mut before: impl FnMut() -> anyhow::Result<()>,
    budget: Budget,
    samples: &mut Samples,
    mut step: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Work> {
    let mut ops = 0;
    let deadline = budget.start();
    loop {
        before()?;
        let mut laps = Laps::start();
        step()?;
        let (ns, now) = laps.lap();
        samples.record(ns);
        ops += 1;
        if deadline.over(now, ops) {
            return Ok(Work { ops, elapsed: now - deadline.start });
        }
    }
}

/// A transfer must have moved all of its bytes.
#[inline]
pub(crate) fn whole(moved: usize, wanted: usize) -> anyhow::Result<()> {
    if moved != wanted {
        bail!("dafs moved {moved} of {wanted} bytes");
    }
    Ok(())
}
