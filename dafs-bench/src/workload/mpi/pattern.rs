//! Parts of an array in one file, by each method: a block of columns (PVFS over InfiniBand, Figures 5 to 7), a display (Figures 8
//! and 9), the cells of BT (Tables 5 and 6).

use anyhow::{Context, ensure};
use dafs_client::{Config, Session, Url};

use crate::cli::{Class, MpiCase, MpiOptions, Way};
use crate::interrupt;
use crate::mpi::{Command, Reply};
use crate::record::{MpiRow, Op, Row, Unit};
use crate::stats::median;
use crate::subject::server::Server;
use crate::workload::Bench;
use crate::workload::mpi::arena::{Arena, Contender};
use crate::workload::mpi::single::mib_per_s;
use crate::workload::turns;

/// Dumps of BT, written and read: the paper's counts are of so many.
const DUMPS: u32 = 10;
/// Entries of a list in the paper.
const PAPER_LIST_MAX: u32 = 128;

/// One way to move the pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Method {
    name: &'static str,
    collective: bool,
    hints: &'static [(&'static str, &'static str)],
}

const fn method(name: &'static str, hints: &'static [(&'static str, &'static str)]) -> Method {
    Method { name, collective: false, hints }
}

const TWO_PHASE: Method = Method {
    name: "two_phase",
    collective: true,
    hints: &[("romio_cb_read", "enable"), ("romio_cb_write", "enable")],
};

const OF_DAFS: [Method; 6] = [
    method("multiple", &[("dafs_method", "multiple")]),
    method("sieve", &[("dafs_method", "sieve")]),
    method("list", &[("dafs_method", "list"), ("dafs_sieve", "off")]),
    LIST_ADS,
    VIEW,
    TWO_PHASE,
];
/// With active data sieving, at the server.
const LIST_ADS: Method = method("list_ads", &[("dafs_method", "list"), ("dafs_sieve", "auto")]);
const VIEW: Method = method("view", &[("dafs_method", "view")]);
/// The same of a collective call, whose transfers say that they belong together.
const ECIO: Method = Method { name: "ecio", collective: true, hints: &[("dafs_collective", "server")] };
/// Pieces that are too small and too many for requests of their own.
const OF_MESH: [Method; 4] = [LIST_ADS, VIEW, ECIO, TWO_PHASE];
/// OMPIO has no hint for it: what it does by itself.
const OF_OMPIO: [Method; 2] = [method("default", &[]), TWO_PHASE];
const OF_ROMIO: [Method; 3] = [
    method("multiple", &[("romio_ds_read", "disable"), ("romio_ds_write", "disable")]),
    method("sieve", &[("romio_ds_read", "enable"), ("romio_ds_write", "enable")]),
    TWO_PHASE,
];

fn methods(contender: &Contender, case: MpiCase) -> &'static [Method] {
    match (contender.dafs, contender.way) {
        (Some(_), _) if case == MpiCase::Mesh => &OF_MESH,
        (Some(_), _) => &OF_DAFS,
        (None, _) if case == MpiCase::Mesh => &[TWO_PHASE],
        (None, Way::Ompio) => &OF_OMPIO,
        (None, Way::Romio) => &OF_ROMIO,
    }
}

/// Writes and reads of one array.
struct Array {
    case: MpiCase,
    command: Command,
    syncs: &'static [bool],
    /// It is the one that the paper counted requests of.
    counted: bool,
}

/// A contender with a method.
struct Entry {
    contender: Contender,
    method: Method,
    /// What it writes differs from what the others do: a write that stores nothing is found out by the read behind it.
    salt: usize,
}

/// Reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    op: Op,
    /// Made durable.
    sync: bool,
    /// The file is out of the page cache.
    cold: bool,
}

/// What one round gave.
#[derive(Debug, Clone, Default)]
struct Figures {
    reply: Reply,
    /// Requests for each step: all for data, and lists.
    requests: Option<[f64; 2]>,
}

pub(super) fn run(
    bench: &mut Bench<'_>,
    arena: &mut Arena<'_>,
    options: &MpiOptions,
    case: MpiCase,
) -> anyhow::Result<()> {
    let counter = arena.server.as_ref().map(Counter::connect).transpose()?;
    for array in arrays(bench, arena, options, case)? {
        measure(bench, arena, counter.as_ref(), &array)?;
    }
    Ok(())
}

/// What a case writes and reads; one that does not fit the ranks is a note.
fn arrays(
    bench: &mut Bench<'_>,
    arena: &Arena<'_>,
    options: &MpiOptions,
    case: MpiCase,
) -> anyhow::Result<Vec<Array>> {
    let budget = bench.plan.budget;
    let command = |shape: &str| {
        Command::new("pattern")
            .with("shape", shape)
            .with("seconds", budget.duration.as_secs_f64())
            .with("ops_min", 1)
    };
    let ranks = arena.ranks();
    Ok(match case {
        MpiCase::BlockColumn => {
            let array = |columns: usize| Array {
                case,
                command: command("block-column").with("n", columns),
                syncs: &[false, true],
                counted: false,
            };
            shared(bench, "block-column", "columns", &options.columns, ranks).into_iter().map(array).collect()
        }
        MpiCase::Mesh => {
            let array = |integers: usize| Array {
                case,
                command: command("mesh").with("n", integers / ranks as usize),
                syncs: &[false],
                counted: false,
            };
            shared(bench, "mesh", "integers", &options.integers, ranks).into_iter().map(array).collect()
        }
        MpiCase::Btio if ranks.isqrt().pow(2) != ranks => {
            bench
                .outcome
                .notes
                .push(format!("no rows for btio: BT runs on a square number of ranks, not on {ranks}"));
            Vec::new()
        }
        MpiCase::Btio => vec![Array {
            case,
            // Each step takes its time: one is enough.
            command: command("bt").with("n", options.class.points()).with("dumps", DUMPS).with("warm_up", 0),
            syncs: &[false],
            counted: options.class == Class::A && ranks == 4,
        }],
        _ => vec![Array { case, command: command("tiled"), syncs: &[false, true], counted: false }],
    })
}

/// The counts that ranks can share evenly; the others are a note.
fn shared(bench: &mut Bench<'_>, case: &str, what: &str, counts: &[usize], ranks: u32) -> Vec<usize> {
    let (fit, other): (Vec<usize>, Vec<usize>) =
        counts.iter().partition(|count| count.is_multiple_of(ranks as usize));
    if !other.is_empty() {
        let note = format!("no rows for {case} of {other:?} {what}: {ranks} ranks cannot share them evenly");
        bench.outcome.notes.push(note);
    }
    fit
}

fn measure(
    bench: &mut Bench<'_>,
    arena: &mut Arena<'_>,
    counter: Option<&Counter>,
    array: &Array,
) -> anyhow::Result<()> {
    let with_methods = |contender: Contender| {
        methods(&contender, array.case).iter().map(move |method| Entry {
            contender: contender.clone(),
            method: *method,
            salt: 0,
        })
    };
    let mut entries: Vec<Entry> = arena.contenders().into_iter().flat_map(with_methods).collect();
    entries.iter_mut().enumerate().for_each(|(place, entry)| entry.salt = place + 1);
    let written = array.syncs.iter().map(|sync| Kind { op: Op::Write, sync: *sync, cold: false });
    let kinds: Vec<Kind> = written.chain(reads(bench.plan.cold)).collect();
    let repeats = bench.plan.repeats as usize;
    let mut rounds = vec![vec![Vec::new(); kinds.len()]; entries.len()];
    for round in 0..repeats {
        for place in turns(round, entries.len()) {
            let (entry, rounds) = (&entries[place], &mut rounds[place]);
            bench.progress.doing(format!("{} by {}", array.case.name(), entry.method.name));
            for (kind, rounds) in kinds.iter().zip(rounds) {
                rounds.extend(measure_kind(bench, arena, counter, array, entry, *kind)?);
            }
            bench.progress.step();
        }
    }
    for (place, kind) in kinds.iter().enumerate().filter(|(_, kind)| bench.plan.ops.contains(&kind.op)) {
        let best_local = best_local(&entries, &rounds, place);
        for (entry, rounds) in entries.iter().zip(&rounds).filter(|(_, rounds)| !rounds[place].is_empty()) {
            let row = row(array, entry, *kind, arena.ranks(), &rounds[place], &best_local);
            bench.outcome.rows.push(row);
        }
    }
    Ok(())
}

/// From the page cache, and where it is asked for from the disk.
fn reads(cold: bool) -> impl Iterator<Item = Kind> {
    let kind = |cold| Kind { op: Op::Read, sync: false, cold };
    [kind(false)].into_iter().chain(cold.then(|| kind(true)))
}

fn measure_kind(
    bench: &mut Bench<'_>,
    arena: &mut Arena<'_>,
    counter: Option<&Counter>,
    array: &Array,
    entry: &Entry,
    Kind { op, sync, cold }: Kind,
) -> anyhow::Result<Option<Figures>> {
    interrupt::check()?;
    // What is not asked for is written once all the same: reads find the array.
    let asked = bench.plan.ops.contains(&op);
    if !asked && (op == Op::Read || sync) {
        return Ok(None);
    }
    // Only the client's part of the page cache is within reach: the server of a mount keeps its own.
    let is_mount = bench.plan.mounts.iter().any(|mount| mount.name == entry.contender.subject);
    if cold && is_mount {
        return Ok(None);
    }
    let command =
        arena.array(&entry.contender, array.command.clone()).with("op", op).with("salt", entry.salt);
    let command = command.with("collective", u8::from(entry.method.collective)).with("sync", u8::from(sync));
    let command = match cold {
        // A second step would find it in the page cache.
        true => command.with("warm_up", 0).with("seconds", 0),
        false => command,
    };
    let command = entry.method.hints.iter().fold(command, |command, (key, value)| command.hint(key, value));
    let command = match array.counted {
        // As the paper counted: the bounds of a file type too.
        true => command.hint("dafs_list_max", PAPER_LIST_MAX).hint("dafs_list_bounds", "true"),
        false => command,
    };
    if cold {
        arena.evict(bench, &entry.contender)?;
    }
    let counter = counter.filter(|_| entry.contender.dafs.is_some());
    let before = counter.map(Counter::read).transpose()?;
    let Some(reply) = arena.ask(bench, &entry.contender, false, &command)? else { return Ok(None) };
    ensure!(!cold || reply.ops_all == 1, "{} steps of a cold read: only the first is cold", reply.ops_all);
    let now = counter.map(Counter::read).transpose()?;
    let steps = reply.ops_all as f64;
    let requests =
        now.zip(before).map(|(now, before)| [0, 1].map(|which| (now[which] - before[which]) as f64 / steps));
    Ok(Some(Figures { reply, requests }))
}

/// The least time of the local file system in each round, by whatever way and method.
fn best_local(entries: &[Entry], rounds: &[Vec<Vec<Figures>>], kind: usize) -> Vec<f64> {
    let local = entries.iter().zip(rounds).filter(|(entry, _)| entry.contender.subject == "local");
    let times: Vec<Vec<f64>> =
        local.map(|(_, rounds)| rounds[kind].iter().map(|figures| figures.reply.p50_us).collect()).collect();
    let count = times.iter().map(Vec::len).max().unwrap_or(0);
    let best = |round: usize| times.iter().filter_map(|times| times.get(round).copied()).reduce(f64::min);
    (0..count).filter_map(best).collect()
}

fn row(
    array: &Array,
    entry: &Entry,
    Kind { op, sync, cold }: Kind,
    ranks: u32,
    rounds: &[Figures],
    best_local: &[f64],
) -> Row {
    let over = |field: fn(&Reply) -> f64| median(rounds.iter().map(|figures| field(&figures.reply)));
    let of_stats = |counter: &str| median(rounds.iter().filter_map(|figures| figures.reply.per_op(counter)));
    let requests = |which: usize| median(rounds.iter().filter_map(|figures| Some(figures.requests?[which])));
    let (hits, misses) = (of_stats("cache_hits"), of_stats("cache_misses"));
    let first = rounds.first().map(|figures| figures.reply.clone()).unwrap_or_default();
    let bandwidth = |us: f64| mib_per_s(first.bytes as f64, us);
    let ratios: Vec<f64> =
        rounds.iter().zip(best_local).map(|(ours, local)| ours.reply.p50_us / local).collect();
    let is_local = entry.contender.subject == "local";
    let limit = (!is_local && !ratios.is_empty()).then_some("local");
    Row {
        transport: entry.contender.transport().to_owned(),
        case: Some(array.case.name()),
        op: Some(op),
        segments: Some(first.pieces),
        bytes: first.piece_bytes,
        cache: cold.then_some("cold"),
        queue_depth: 1,
        p50_us: over(|reply| reply.p50_us),
        mib_per_s: over(|reply| reply.p50_us).map(bandwidth),
        registrations: of_stats("registrations"),
        hit_ratio: hits
            .zip(misses)
            .map(|(hits, misses)| hits / (hits + misses))
            .filter(|ratio| ratio.is_finite()),
        limit: limit.map(str::to_owned),
        limit_value: limit.and(median(best_local.iter().copied().map(bandwidth))),
        limit_unit: Some(Unit::MibPerS),
        ratio: limit.and(median(ratios.iter().copied())),
        ratio_min: limit.and(ratios.iter().copied().reduce(f64::min)),
        ratio_max: limit.and(ratios.iter().copied().reduce(f64::max)),
        mpi: Some(MpiRow {
            subject: entry.contender.subject.clone(),
            way: entry.contender.way.name(),
            mode: Some(entry.method.name),
            ranks,
            sync: (op == Op::Write).then_some(sync),
            mean_us: over(|reply| reply.mean_us),
            min_us: over(|reply| reply.min_us),
            requests: requests(0),
            lists: requests(1),
            requests_paper: requests_paper(entry.method.name, op)
                .filter(|_| array.counted && entry.contender.dafs.is_some()),
            ..MpiRow::default()
        }),
        ..Row::default()
    }
    .known_by(rounds.iter().map(|figures| bandwidth(figures.reply.p50_us)))
}

/// Requests of one direction in Table 6, which adds up both: 163,840, 1,360, 160, and for sieving 82,040, of which the reads are windows.
fn requests_paper(method: &str, op: Op) -> Option<u64> {
    match (method, op) {
        ("multiple", _) | ("sieve", Op::Write) => Some(81_920),
        ("sieve", _) => Some(120),
        ("list", _) => Some(680),
        ("two_phase", _) => Some(80),
        _ => None,
    }
}

/// A session that asks the server for its counts, and moves no data itself.
struct Counter(Session);

impl Counter {
    fn connect(server: &Server) -> anyhow::Result<Self> {
        // Over TCP it is always reached.
        let url = Url::parse(server.address("tcp", "bench")?.as_ref())?;
        let config = Config { key: server.key().cloned(), ..Config::default() };
        Ok(Self(Session::connect_url(&url, &config).context("cannot count the server's requests")?))
    }

    /// Requests so far: all for data, and lists.
    fn read(&self) -> anyhow::Result<[u64; 2]> {
        let statistics = self.0.statistics()?;
        let of = |names: &[&str]| {
            let counted = statistics.operations.iter().filter(|(name, _)| names.contains(&name.as_str()));
            counted.map(|(_, count)| count).sum()
        };
        let all = ["Read", "Write", "ReadList", "WriteList", "ReadView", "WriteView", "Batch"];
        Ok([of(&all), of(&["ReadList", "WriteList"])])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::mpi::arena::stock;

    fn entry(subject: &str, dafs: bool) -> Entry {
        let mut contender = stock(subject, std::path::Path::new("/x"), Way::Ompio);
        contender.dafs = dafs.then_some(crate::cli::Transport::Shm);
        Entry { contender, method: OF_DAFS[2], salt: 1 }
    }

    fn figures(p50_us: f64, requests: f64) -> Figures {
        let mut reply =
            Reply { p50_us, bytes: 1 << 20, pieces: 4, piece_bytes: 512, ops_all: 2, ..Reply::default() };
        for (counter, count) in [("registrations", 6), ("cache_hits", 3), ("cache_misses", 1)] {
            reply.stats.insert(counter.to_owned(), count);
        }
        Figures { reply, requests: Some([requests, 1.0]) }
    }

    #[test]
    fn dafs_row_has_counts_and_the_fastest_local_row() {
        let array =
            Array { case: MpiCase::Btio, command: Command::new("pattern"), syncs: &[false], counted: true };
        let entries = [entry("local", false), entry("local", false), entry("dafs", true)];
        let rounds = vec![
            vec![vec![figures(10.0, 0.0), figures(50.0, 0.0)]],
            vec![vec![figures(40.0, 0.0), figures(20.0, 0.0)]],
            vec![vec![figures(20.0, 680.0), figures(60.0, 680.0)]],
        ];
        let best = best_local(&entries, &rounds, 0);
        assert_eq!(best, [10.0, 20.0]);
        let row = row(
            &array,
            &entries[2],
            Kind { op: Op::Write, sync: false, cold: false },
            4,
            &rounds[2][0],
            &best,
        );
        assert_eq!((row.ratio_min, row.ratio, row.ratio_max), (Some(2.0), Some(2.5), Some(3.0)));
        assert_eq!((row.registrations, row.hit_ratio, row.segments), (Some(3.0), Some(0.75), Some(4)));
        let mpi = row.mpi.unwrap();
        assert_eq!((mpi.requests, mpi.lists, mpi.requests_paper), (Some(680.0), Some(1.0), Some(680)));
        assert_eq!((mpi.mode, mpi.sync, mpi.ranks), (Some("list"), Some(false), 4));
    }

    #[test]
    fn requests_of_the_paper_add_up_to_its_table() {
        let both = |method| {
            requests_paper(method, Op::Read).zip(requests_paper(method, Op::Write)).map(|(r, w)| r + w)
        };
        assert_eq!(
            ["multiple", "list", "two_phase", "sieve", "default"].map(both),
            [Some(163_840), Some(1_360), Some(160), Some(82_040), None]
        );
    }
}
