//! Measurements of one process: MPI programs, the client API and local calls in turn, round by round.

use anyhow::Context;

use crate::interrupt;
use crate::mpi::{Command, Reply};
use crate::record::{MpiRow, Op, Row, Unit};
use crate::stats::median;
use crate::workload::Bench;
use crate::workload::mpi::arena::{Arena, Contender};
use crate::workload::mpi::client::{Client, Figures, Load, Local, Memory};
use crate::workload::mpi::memory;
use crate::workload::turns;

/// Who does it, and in which memory.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Actor {
    /// `pread` or `pwrite`.
    Local,
    /// The client API: which of the clients.
    Client(usize, Memory),
    /// An MPI program, by a memory mode.
    Program(Contender, Option<&'static str>),
}

/// One line of a report in the making.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) actor: Actor,
    /// Which of the entries is its limit.
    pub(super) beside: Option<usize>,
}

/// What is compared with the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    Median,
    Mean,
    Bandwidth,
}

impl Compare {
    fn unit(self) -> Unit {
        if self == Self::Bandwidth { Unit::MibPerS } else { Unit::Us }
    }

    fn value(self, figures: &Figures, load: &Load) -> f64 {
        match self {
            Self::Median => figures.p50_us,
            Self::Mean => figures.mean_us,
            Self::Bandwidth => mib_per_s(load.bytes as f64, figures.mean_us),
        }
    }
}

/// All that is measured with one process.
pub(super) struct Single<'b, 'p, 'a> {
    pub(super) bench: &'b mut Bench<'p>,
    // Before the arena, so that sessions end before their server.
    pub(super) clients: Vec<Client>,
    pub(super) arena: Arena<'a>,
    local: Local,
}

impl<'b, 'p, 'a> Single<'b, 'p, 'a> {
    pub(super) fn new(bench: &'b mut Bench<'p>, arena: Arena<'a>) -> anyhow::Result<Self> {
        let server = arena.server.as_ref();
        let clients = bench.plan.transports.iter().flat_map(|transport| Some((transport, server?)));
        let clients = clients.map(|(transport, server)| Client::connect(server, *transport, false));
        let clients = clients.collect::<anyhow::Result<_>>()?;
        let local = Local::open(bench.file)?;
        Ok(Self { bench, arena, clients, local })
    }

    /// Which of the clients reaches dafs as a contender does.
    pub(super) fn client_of(&self, contender: &Contender) -> Option<usize> {
        self.clients.iter().position(|client| Some(client.transport) == contender.dafs)
    }

    /// Measures every entry in every round. An entry that could not be measured has no figures.
    pub(super) fn alternate(&mut self, entries: &[Entry], load: &Load) -> anyhow::Result<Vec<Vec<Figures>>> {
        let repeats = self.bench.plan.repeats as usize;
        let mut rounds = vec![Vec::new(); entries.len()];
        for round in 0..repeats {
            for place in turns(round, entries.len()) {
                let (entry, rounds) = (&entries[place], &mut rounds[place]);
                interrupt::check()?;
                self.bench.progress.doing(format!("{} of {} bytes", load.op, load.bytes));
                let figures = self.measure(&entry.actor, load)?;
                rounds.extend(figures);
                self.bench.progress.step();
            }
        }
        Ok(rounds)
    }

    fn measure(&mut self, actor: &Actor, load: &Load) -> anyhow::Result<Option<Figures>> {
        let bench = &mut *self.bench;
        let budget = bench.plan.budget;
        bench.pins.be_client();
        let figures = match actor {
            Actor::Local => self.local.transfer(load, budget, &mut bench.samples)?,
            Actor::Client(client, memory) => {
                let client = self.clients.get_mut(*client).context("there is such a client")?;
                client.transfer(load, *memory, budget, &mut bench.samples)?
            }
            Actor::Program(contender, mode) => {
                let command = self.arena.data(contender, command("transfer", load, bench));
                let command = mode.iter().fold(command, |command, mode| {
                    command.hint("dafs_memory", mode).with("entries", memory::ENTRIES)
                });
                let Some(reply) = self.arena.ask(bench, contender, false, &command)? else { return Ok(None) };
                figures(&reply)
            }
        };
        Ok(Some(figures))
    }

    /// Adds rows for the entries that have figures.
    pub(super) fn report(
        &mut self,
        case: &'static str,
        (entries, rounds): (&[Entry], &[Vec<Figures>]),
        load: &Load,
        compare: Compare,
    ) {
        for (entry, ours) in entries.iter().zip(rounds) {
            if ours.is_empty() {
                continue;
            }
            let mut row = self.row(case, &entry.actor, load, ours);
            if let Some(beside) = entry.beside {
                put_limit(&mut row, &entries[beside].actor, (ours, &rounds[beside]), load, compare);
            }
            self.bench.outcome.rows.push(row);
        }
    }

    fn row(&self, case: &'static str, actor: &Actor, load: &Load, rounds: &[Figures]) -> Row {
        let over = |field: fn(&Figures) -> f64| median(rounds.iter().map(field));
        let mean_us = over(|figures| figures.mean_us);
        let (transport, subject, way, mode) = match actor {
            Actor::Local => ("local".to_owned(), "local".to_owned(), "calls", None),
            Actor::Client(client, memory) => {
                let name = self.clients[*client].transport.name();
                (name.to_owned(), "dafs".to_owned(), "client", Some(memory_name(*memory)))
            }
            Actor::Program(contender, mode) => {
                (contender.transport().to_owned(), contender.subject.clone(), contender.way.name(), *mode)
            }
        };
        Row {
            transport,
            case: Some(case),
            op: Some(load.op),
            bytes: load.bytes,
            queue_depth: 1,
            p50_us: over(|figures| figures.p50_us),
            mib_per_s: mean_us.map(|us| mib_per_s(load.bytes as f64, us)),
            registrations: median(rounds.iter().filter_map(|figures| figures.registrations)),
            hit_ratio: median(rounds.iter().filter_map(|figures| figures.hit_ratio)),
            mpi: Some(MpiRow {
                subject,
                way,
                mode,
                order: Some(if load.random { "random" } else { "sequential" }),
                reuse: (load.fresh > 0).then_some(load.reuse),
                ranks: 1,
                mean_us,
                min_us: over(|figures| figures.min_us),
                ..MpiRow::default()
            }),
            ..Row::default()
        }
    }
}

/// Puts the limit beside a row, and the ratio of each round.
fn put_limit(
    row: &mut Row,
    limit: &Actor,
    (ours, theirs): (&[Figures], &[Figures]),
    load: &Load,
    compare: Compare,
) {
    let (unit, value) = (compare.unit(), |figures: &Figures| compare.value(figures, load));
    let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| unit.ratio(value(ours), value(theirs)));
    let ratios: Vec<f64> = ratios.collect();
    let name = match limit {
        Actor::Local if load.op == Op::Write => "pwrite",
        Actor::Local => "pread",
        Actor::Client(_, Memory::Registered) => "none",
        Actor::Client(..) => "client",
        Actor::Program(..) => "program",
    };
    row.limit = Some(name.to_owned());
    row.limit_value = median(theirs.iter().map(value));
    row.limit_unit = Some(unit);
    *row = std::mem::take(row).known_by(ours.iter().map(value));
    row.ratio = median(ratios.iter().copied());
    row.ratio_min = ratios.iter().copied().reduce(f64::min);
    row.ratio_max = ratios.iter().copied().reduce(f64::max);
}

/// A command with what a load says.
pub(super) fn command(name: &'static str, load: &Load, bench: &Bench<'_>) -> Command {
    let budget = bench.plan.budget;
    Command::new(name)
        .with("op", load.op)
        .with("bytes", load.bytes)
        .with("order", if load.random { "random" } else { "sequential" })
        .with("fresh", load.fresh)
        .with("reuse", load.reuse)
        .with("seconds", budget.duration.as_secs_f64())
        .with("ops_min", budget.ops_min)
}

pub(super) fn mib_per_s(bytes: f64, us: f64) -> f64 {
    bytes / f64::from(1 << 20) / (us / 1e6)
}

/// The value of `mode` in rows.
fn memory_name(memory: Memory) -> &'static str {
    match memory {
        Memory::Ordinary => "ordinary",
        Memory::Registered => "none",
        Memory::Pinned => "pinned",
    }
}

fn figures(reply: &Reply) -> Figures {
    let found = reply.per_op("cache_hits").zip(reply.per_op("cache_misses"));
    Figures {
        p50_us: reply.p50_us,
        mean_us: reply.mean_us,
        min_us: reply.min_us,
        registrations: reply.per_op("registrations"),
        hit_ratio: found.map(|(hits, misses)| hits / (hits + misses)).filter(|ratio| ratio.is_finite()),
    }
}
