//! What it costs that a server is of a cluster: the same calls to one server that is and one that is not, in alternation.

use std::time::{Duration, Instant};

use anyhow::ensure;
use dafs_client::{Export, File, LockKind, OpenOptions, Session};

use crate::cli::{ClusterOptions, Poll, Transport};
use crate::interrupt;
use crate::peer::etcd::Etcd;
use crate::record::{Axis, Chart, Curve, Panel, Row, Scale, Unit};
use crate::stats::median;
use crate::subject::dafs::{Target, sleeper};
use crate::subject::server::Server;
use crate::workload::{Bench, turns};

/// Bytes of a read, a write and an append.
const BYTES: usize = 4096;
/// Names that a batch makes before they are removed.
const BATCH: usize = 8;

const CASES: [Case; 8] =
    [Case::Read, Case::Write, Case::Open, Case::Append, Case::Create, Case::Rename, Case::Remove, Case::Lock];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Read,
    Write,
    /// An open that makes the file.
    Open,
    Append,
    /// An open that must make the file.
    Create,
    Rename,
    Remove,
    /// A lock and its end.
    Lock,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Open => "open",
            Self::Append => "append",
            Self::Create => "create",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::Lock => "lock, unlock",
        }
    }

    fn bytes(self) -> usize {
        if matches!(self, Self::Read | Self::Write | Self::Append) { BYTES } else { 0 }
    }
}

/// A server, and a client of it.
struct Side {
    export: Export,
    file: File,
    _session: Session,
    _server: Server,
}

pub(super) fn run(bench: &mut Bench<'_>, options: &ClusterOptions) -> anyhow::Result<()> {
    bench.pins.be_anywhere();
    let etcd = options.store.is_none().then(Etcd::start).transpose()?;
    let own = etcd.as_ref().map(|etcd| format!("etcd://{}/bench", etcd.address()));
    let store = options.store.clone().or(own).unwrap_or_default();
    let transports = bench.plan.transports.clone();
    bench.progress.announce(transports.len() * CASES.len() * bench.plan.repeats as usize, 1, None);
    let mut panels = Vec::new();
    for (number, transport) in transports.into_iter().enumerate() {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        let sides = [
            Side::start(bench, transport, &format!("alone-{number}"), None)?,
            Side::start(bench, transport, &format!("cluster-{number}"), Some(&store))?,
        ];
        let first = bench.outcome.rows.len();
        for case in CASES {
            let rounds = rounds(bench, case, &sides)?;
            bench.outcome.rows.push(row(transport.name(), case, &rounds));
        }
        panels.push(panel(transport.name(), &bench.outcome.rows[first..]));
    }
    let columns = panels.len();
    bench.outcome.chart = Some(Chart { title: "A server of a cluster".to_owned(), panels, columns });
    Ok(())
}

/// Microseconds of a call, alone and in a cluster, by round.
fn rounds(bench: &mut Bench<'_>, case: Case, sides: &[Side; 2]) -> anyhow::Result<Vec<[[f64; 2]; 2]>> {
    let time = bench.plan.budget.duration;
    for side in sides {
        side.measure(case, usize::MAX, time / 10)?;
    }
    let mut rounds = Vec::new();
    for round in 0..bench.plan.repeats as usize {
        let began = Instant::now();
        bench.progress.doing(case.name().to_owned());
        let mut times = [[f64::NAN; 2]; 2];
        for side in turns(round, 2) {
            times[side] = sides[side].measure(case, round, time)?;
        }
        rounds.push(times);
        bench.progress.pass(began.elapsed());
    }
    Ok(rounds)
}

impl Side {
    fn start(
        bench: &mut Bench<'_>,
        transport: Transport,
        folder: &str,
        store: Option<&str>,
    ) -> anyhow::Result<Self> {
        let server = bench.subjects.server_of_cluster(folder, store)?;
        let (session, file) = sleeper(&Target::on(&server, transport, "bench", Poll::Event)?)?;
        file.write_all_at(&[0x5a; BYTES], 0)?;
        let export = session.mount("bench")?;
        Ok(Self { export, file, _session: session, _server: server })
    }

    /// Median and 99th percentile of a call, microseconds.
    fn measure(&self, case: Case, round: usize, time: Duration) -> anyhow::Result<[f64; 2]> {
        let (end, mut times, mut memory) = (Instant::now() + time, Vec::new(), [0x5a; BYTES]);
        let mut timed = |call: &mut dyn FnMut() -> anyhow::Result<()>| {
            let began = Instant::now();
            call()?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
            anyhow::Ok(())
        };
        let mut batch = 0;
        while batch == 0 || Instant::now() < end {
            interrupt::check()?;
            let name = |number: usize| format!("{round}-{batch}-{number}");
            match case {
                Case::Read => timed(&mut || {
                    let count = self.file.read_at(&mut memory, 0)?;
                    ensure!(count == BYTES, "{count} bytes");
                    Ok(())
                })?,
                Case::Write => timed(&mut || Ok(self.file.write_all_at(&memory, 0)?))?,
                Case::Append => timed(&mut || Ok(self.file.append(&memory).map(drop)?))?,
                Case::Lock => timed(&mut || {
                    self.file.lock(0..1, LockKind::Exclusive)?;
                    Ok(self.file.unlock(0..1)?)
                })?,
                Case::Open | Case::Create | Case::Rename | Case::Remove => {
                    let mut options = OpenOptions::new();
                    match case {
                        Case::Open => options.write(true).create(true),
                        _ => options.write(true).create_new(true),
                    };
                    let make = |number| {
                        drop(self.export.open_with(name(number), &options)?);
                        anyhow::Ok(())
                    };
                    match case {
                        Case::Open | Case::Create => {
                            (0..BATCH).try_for_each(|number| timed(&mut || make(number)))?;
                        }
                        _ => (0..BATCH).try_for_each(make)?,
                    }
                    let moved = |number| format!("moved-{}", name(number));
                    if case == Case::Rename {
                        let rename = |number| {
                            Ok(self.export.rename(name(number), self.export.root(), moved(number), false)?)
                        };
                        (0..BATCH).try_for_each(|number| timed(&mut || rename(number)))?;
                    }
                    let last = |number| if case == Case::Rename { moved(number) } else { name(number) };
                    let remove = |number| Ok(self.export.remove_file(last(number))?);
                    match case {
                        Case::Remove => (0..BATCH).try_for_each(|number| timed(&mut || remove(number)))?,
                        _ => (0..BATCH).try_for_each(remove)?,
                    }
                }
            }
            batch += 1;
        }
        times.sort_by(f64::total_cmp);
        Ok([times[times.len() / 2], times[times.len() * 99 / 100]])
    }
}

fn row(transport: &str, case: Case, rounds: &[[[f64; 2]; 2]]) -> Row {
    let ratios = || rounds.iter().map(|[alone, cluster]| cluster[0] / alone[0]);
    let row = Row {
        transport: transport.to_owned(),
        case: Some(case.name()),
        bytes: case.bytes(),
        queue_depth: 1,
        p50_us: median(rounds.iter().map(|[_, cluster]| cluster[0])),
        p99_us: median(rounds.iter().map(|[_, cluster]| cluster[1])),
        limit: Some("alone".to_owned()),
        limit_value: median(rounds.iter().map(|[alone, _]| alone[0])),
        limit_unit: Some(Unit::Us),
        ratio: median(ratios()),
        ratio_min: ratios().reduce(f64::min),
        ratio_max: ratios().reduce(f64::max),
        ..Row::default()
    };
    row.known_by(rounds.iter().map(|[_, cluster]| cluster[0]))
}

fn panel(transport: &str, rows: &[Row]) -> Panel {
    let curve = |name: &str, of: fn(&Row) -> Option<f64>, reference: bool| {
        let points = rows.iter().zip(1..).filter_map(|(row, place)| Some((f64::from(place), of(row)?)));
        Curve { name: name.to_owned(), points: points.collect(), reference, band: Vec::new() }
    };
    const NAMES: [&str; CASES.len()] =
        ["read", "write", "open", "append", "create", "rename", "remove", "lock, unlock"];
    Panel {
        title: transport.to_owned(),
        x: Axis { label: "call".to_owned(), scale: Scale::Names(&NAMES) },
        y: Axis { label: "one call (µs)".to_owned(), scale: Scale::Log },
        curves: vec![
            curve("in a cluster", |row| row.p50_us, false),
            curve("alone", |row| row.limit_value, true),
        ],
        marks: Vec::new(),
        remarks: Vec::new(),
    }
}
