//! Files over several servers, each behind a link of a limited rate: how bandwidth grows with servers and clients, what that takes of CPUs
//! ("PVFS over InfiniBand" §6.3 to §6.6, Figures 5 to 7 and 9).

mod clients;
mod cluster;
mod figures;
mod ranks;
mod sockets;

use std::time::{Duration, Instant};

use anyhow::Context;

use crate::cli::{StripeOptions, Way};
use crate::interrupt;
use crate::record::{CpuRow, Op, Row, Unit};
use crate::stats::median;
use crate::workload::Bench;

use clients::{Clients, Moved, Tile};
use cluster::Cluster;
use ranks::Ranks;

/// Each client moves so much of each server, in one operation.
const REGION_BYTES_PER_SERVER: usize = 2 << 20;

/// What is measured, but for the direction.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Load {
    /// A contiguous region for each client.
    Contiguous,
    /// The same by ranks of an MPI program.
    Mpi(Way),
    /// A tile of a picture for each of four clients.
    Tile(Tile),
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Mpi(Way::Ompio) => "mpi-ompio",
            Self::Mpi(Way::Romio) => "mpi-romio",
            Self::Tile(Tile::List) => "tile-list",
            Self::Tile(Tile::Multiple) => "tile-multiple",
        }
    }
}

/// One line of the report to be: its rounds.
struct Case {
    load: Load,
    op: Op,
    servers: usize,
    clients: usize,
    rounds: Vec<Round>,
}

/// One round of it.
#[derive(Debug, Clone, Copy)]
struct Round {
    moved: Moved,
    server_cpu_ns_per_mib: f64,
    limit: f64,
}

pub(super) fn run(bench: &mut Bench<'_>, options: &StripeOptions) -> anyhow::Result<()> {
    let most = |counts: &[usize]| counts.iter().copied().max().unwrap_or(1);
    bench.progress.doing("starting servers");
    bench.pins.be_anywhere();
    let cluster = Cluster::start(bench.subjects, most(&options.servers), options.link_rate)?;
    let mut clients = Clients::connect(&cluster, most(&options.clients), options.striping_unit << 10)?;
    bench.progress.doing("compiling the MPI program");
    let mut ranks = match Ranks::new(options) {
        Ok(ranks) => Some(ranks),
        Err(error) => {
            bench.outcome.notes.push(format!("no rows for MPI-IO: {error:#}"));
            None
        }
    };
    let ways = ways(bench, ranks.as_ref());
    let mut cases = cases(options, &bench.plan.ops, &ways);
    bench.progress.announce(bench.plan.repeats as usize * cases.len(), 1, None);
    for round in 0..bench.plan.repeats as usize {
        let mut limits = Vec::new();
        for step in 0..cases.len() {
            interrupt::check()?;
            let began = Instant::now();
            // In another order in each round.
            let count = cases.len();
            let case = &mut cases[if round.is_multiple_of(2) { step } else { count - 1 - step }];
            bench.progress.doing(format!("{}, {} of {} servers", case.load.name(), case.op, case.servers));
            let limit = limit(&mut limits, &cluster, case, bench.plan.budget.duration)?;
            let before = cluster.cpu_ns()?;
            let moved = moved(&cluster, &mut clients, ranks.as_mut(), case, bench.plan.budget.duration)?;
            let server_ns = cluster.cpu_ns()?.saturating_sub(before);
            let server_cpu_ns_per_mib = server_ns as f64 / moved.mib();
            case.rounds.push(Round { moved, server_cpu_ns_per_mib, limit });
            bench.progress.pass(began.elapsed());
        }
    }
    bench.outcome.rows = cases.iter().map(row).collect();
    bench.outcome.notes.extend(bench.plan.ops.iter().filter_map(|op| growth(*op, &bench.outcome.rows)));
    bench.outcome.chart = Some(figures::chart(&bench.outcome.rows));
    Ok(())
}

/// The implementations of MPI-IO that go to dafs.
fn ways(bench: &mut Bench<'_>, ranks: Option<&Ranks>) -> Vec<Way> {
    let Some(ranks) = ranks else { return Vec::new() };
    let mut ways = Vec::new();
    for way in [Way::Ompio, Way::Romio] {
        match ranks.lacks(way) {
            None => ways.push(way),
            Some(why) => bench.outcome.notes.push(format!("no rows for {}: {why}", way.name())),
        }
    }
    ways
}

fn cases(options: &StripeOptions, ops: &[Op], ways: &[Way]) -> Vec<Case> {
    let case = |load, op, servers, clients| Case { load, op, servers, clients, rounds: Vec::new() };
    let mut cases = Vec::new();
    // Writes first: they fill the file.
    for op in [Op::Write, Op::Read].into_iter().filter(|op| ops.contains(op)) {
        for &servers in &options.servers {
            let contiguous =
                options.clients.iter().map(|&clients| case(Load::Contiguous, op, servers, clients));
            cases.extend(contiguous);
        }
        let most = options.servers.iter().copied().max().unwrap_or(1);
        for load in ways.iter().copied().map(Load::Mpi) {
            cases.extend(options.clients.iter().map(|&clients| case(load, op, most, clients)));
        }
        if options.clients.contains(&Tile::CLIENTS) {
            let tiles = [Tile::Multiple, Tile::List].map(Load::Tile);
            cases.extend(tiles.map(|load| case(load, op, most, Tile::CLIENTS)));
        }
    }
    cases
}

/// What sockets move over as many links at once, measured once a round.
fn limit(
    known: &mut Vec<((Op, usize), f64)>,
    cluster: &Cluster,
    case: &Case,
    duration: Duration,
) -> anyhow::Result<f64> {
    let key = (case.op, case.servers);
    if let Some((_, limit)) = known.iter().find(|(other, _)| *other == key) {
        return Ok(*limit);
    }
    let limit = sockets::mib_per_s(&cluster.network.hosts[..case.servers], case.op, duration)?;
    known.push((key, limit));
    Ok(limit)
}

fn moved(
    cluster: &Cluster,
    clients: &mut Clients,
    ranks: Option<&mut Ranks>,
    case: &Case,
    duration: Duration,
) -> anyhow::Result<Moved> {
    let bytes = REGION_BYTES_PER_SERVER * case.servers;
    match case.load {
        Load::Contiguous => clients.contiguous(case.op, case.servers, case.clients, bytes, duration),
        Load::Mpi(way) => {
            let size = (case.op, case.servers, case.clients, bytes);
            ranks.context("no MPI program")?.contiguous(cluster, way, size, duration)
        }
        Load::Tile(tile) => clients.tiles(tile, case.op, case.servers, duration),
    }
}

fn row(case: &Case) -> Row {
    let over = |of: &dyn Fn(&Round) -> f64| median(case.rounds.iter().map(of));
    let ratios = || case.rounds.iter().map(|round| Unit::MibPerS.ratio(round.moved.mib_per_s(), round.limit));
    let (bytes, segments) = match case.load {
        Load::Contiguous | Load::Mpi(_) => (REGION_BYTES_PER_SERVER * case.servers, None),
        Load::Tile(_) => (Tile::ROW_BYTES, Some(Tile::ROWS)),
    };
    let cpu = CpuRow {
        client_cpu_ns_per_mib: over(&|round| round.moved.cpu_ns as f64 / round.moved.mib()),
        server_cpu_ns_per_mib: over(&|round| round.server_cpu_ns_per_mib),
        ..CpuRow::default()
    };
    Row {
        transport: "tcp".to_owned(),
        case: Some(case.load.name()),
        op: Some(case.op),
        bytes,
        segments,
        queue_depth: 1,
        servers: Some(case.servers),
        clients: Some(case.clients),
        mib_per_s: over(&|round| round.moved.mib_per_s()),
        cpu_percent: over(&|round| round.moved.cpu_percent() / case.clients as f64),
        cpu: Some(cpu),
        limit: Some("sockets".to_owned()),
        limit_value: over(&|round| round.limit),
        limit_unit: Some(Unit::MibPerS),
        ratio: median(ratios()),
        ratio_min: ratios().reduce(f64::min),
        ratio_max: ratios().reduce(f64::max),
        ..Row::default()
    }
    .known_by(case.rounds.iter().map(|round| round.moved.mib_per_s()))
}

/// How the bandwidth of most clients grows with the servers.
fn growth(op: Op, rows: &[Row]) -> Option<String> {
    let own =
        || rows.iter().filter(move |row| row.op == Some(op) && row.case == Some(Load::Contiguous.name()));
    let clients = own().filter_map(|row| row.clients).max()?;
    let by_servers = || own().filter(move |row| row.clients == Some(clients));
    let one = by_servers().find(|row| row.servers == Some(1))?.mib_per_s?;
    let grown =
        by_servers().filter_map(|row| Some((row.servers?, row.mib_per_s?))).filter(|(count, _)| *count > 1);
    let words: Vec<String> = grown
        .map(|(count, all)| {
            format!("{:.2} × {count} of one server's over {count}", all / (one * count as f64))
        })
        .collect();
    (!words.is_empty()).then(|| format!("{op} by {clients} clients: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_beside_as_many_single_servers() {
        let row = |servers, clients, mib_per_s| Row {
            case: Some("contiguous"),
            op: Some(Op::Read),
            servers: Some(servers),
            clients: Some(clients),
            mib_per_s: Some(mib_per_s),
            ..Row::default()
        };
        let rows = [row(1, 1, 7.0), row(1, 4, 100.0), row(2, 4, 190.0), row(4, 4, 300.0)];
        let words = growth(Op::Read, &rows).unwrap();
        assert_eq!(
            words,
            "read by 4 clients: 0.95 × 2 of one server's over 2, 0.75 × 4 of one server's over 4"
        );
        assert_eq!(growth(Op::Write, &rows), None);
    }
}
