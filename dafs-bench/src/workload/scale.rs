//! What more workers of a server give: four clients that sleep, on servers with one worker and with several, beside local threads.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dafs_client::{Datatype, Extent, File, LockKind, Session, View};
use rustix::fs::{FlockOperation, flock};

use crate::cli::{Poll, ScaleOptions, Transport};
use crate::interrupt;
use crate::load::FILE_BYTES;
use crate::record::{Axis, Chart, CpuRow, Curve, Panel, Row, Scale, ScaleRow, Unit};
use crate::stats::median;
use crate::subject::dafs::{Target, sleeper};
use crate::subject::server::Server;
use crate::sys;
use crate::workload::{Bench, turns};

/// Clients at once, each with one request under way: two for each of two workers.
const CLIENTS: usize = 4;
/// Pieces of a list, and of a view.
const PIECES: usize = 4096;
/// Bytes of a piece; as many lie between two of them.
const PIECE: usize = 64;
/// Bytes of a small read or write.
const SMALL: usize = 4096;
/// Small writes go to so many bytes of one file.
const HOT_BYTES: u64 = 1 << 20;

const CASES: [Case; 5] = [Case::List, Case::View, Case::Sleepers, Case::HotLock, Case::HotFile];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// Cached lists, read.
    List,
    /// Packed views, read.
    View,
    /// Small reads.
    Sleepers,
    /// One lock that all want.
    HotLock,
    /// Small writes to one place of one file.
    HotFile,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::View => "view",
            Self::Sleepers => "sleepers",
            Self::HotLock => "hot lock",
            Self::HotFile => "hot file",
        }
    }

    /// Bytes that an operation moves.
    fn bytes(self) -> usize {
        match self {
            Self::List | Self::View => PIECES * PIECE,
            Self::Sleepers | Self::HotFile => SMALL,
            Self::HotLock => 0,
        }
    }

    /// Its work is done by the workers themselves, and takes most of the time: two of them can give what their CPUs have left.
    fn has_bound(self) -> bool {
        matches!(self, Self::List | Self::View)
    }
}

/// What is done again and again.
type Step<'a> = Box<dyn FnMut() -> anyhow::Result<()> + 'a>;

/// One client of a server.
struct Client {
    // Before the session that it belongs to.
    view: View,
    file: File,
    _session: Session,
}

/// A server with its clients.
struct Side {
    workers: usize,
    clients: Vec<Client>,
    server: Server,
}

/// What one round gave.
#[derive(Debug, Clone, Copy)]
struct Figures {
    ops_per_s: f64,
    /// Of the client that got least.
    least: f64,
    /// Nanoseconds an operation, of this process and of the server; NaN where there is none.
    cpu_ns: [f64; 2],
}

/// Rounds of one case: each of local threads and of all sides.
type Rounds = Vec<(Figures, Vec<Figures>)>;

pub(super) fn run(bench: &mut Bench<'_>, options: &ScaleOptions) -> anyhow::Result<()> {
    bench.pins.be_anywhere();
    let transports = bench.plan.transports.clone();
    bench.progress.announce(transports.len() * CASES.len() * bench.plan.repeats as usize, 1, None);
    for transport in transports {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        let sides = options.workers.iter().map(|workers| Side::start(bench, transport, *workers));
        let sides = sides.collect::<anyhow::Result<Vec<_>>>()?;
        for case in CASES {
            check(case, &sides, bench.file)?;
            let rounds = rounds(bench, case, &sides)?;
            let rows = (0..sides.len()).map(|side| row(transport, case, &sides, side, &rounds));
            let rows: Vec<Row> = rows.collect();
            bench.outcome.rows.extend(rows);
        }
    }
    bench.outcome.chart = Some(chart(&bench.outcome.rows));
    Ok(())
}

fn rounds(bench: &mut Bench<'_>, case: Case, sides: &[Side]) -> anyhow::Result<Rounds> {
    let time = bench.plan.budget.duration;
    for side in sides {
        side.measure(case, time / 10)?;
    }
    let mut rounds = Rounds::new();
    for round in 0..bench.plan.repeats as usize {
        let began = Instant::now();
        bench.progress.doing(format!("{}, local", case.name()));
        let local = local(case, bench.file, time)?;
        let mut figures = vec![None; sides.len()];
        for index in turns(round, sides.len()) {
            bench.progress.doing(format!("{}, {} workers", case.name(), sides[index].workers));
            figures[index] = Some(sides[index].measure(case, time)?);
        }
        rounds.push((local, figures.into_iter().flatten().collect()));
        bench.progress.pass(began.elapsed());
    }
    Ok(rounds)
}

impl Side {
    fn start(bench: &mut Bench<'_>, transport: Transport, workers: usize) -> anyhow::Result<Self> {
        let server = bench.subjects.server_of_workers(workers)?;
        let clients = (0..CLIENTS).map(|_| {
            let (session, file) = sleeper(&Target::on(&server, transport, "bench", Poll::Event)?)?;
            let view = session.view(&Datatype::bytes(PIECE as u64).resized(0, 2 * PIECE as i64))?;
            Ok(Client { view, file, _session: session })
        });
        Ok(Self { workers, clients: clients.collect::<anyhow::Result<_>>()?, server })
    }

    fn measure(&self, case: Case, time: Duration) -> anyhow::Result<Figures> {
        let before = self.server.cpu_ns()?;
        let clients = self.clients.iter().enumerate();
        let steps: Vec<_> = clients
            .map(|(number, client)| move || -> anyhow::Result<Step<'_>> { Ok(client.step(case, number)) })
            .collect();
        let (mut figures, ops) = together(steps, time)?;
        figures.cpu_ns[1] = self.server.cpu_ns()?.saturating_sub(before) as f64 / ops as f64;
        Ok(figures)
    }
}

impl Client {
    fn step(&self, case: Case, number: usize) -> Step<'_> {
        let Self { view, file, .. } = self;
        let (mut places, mut memory) = (Places::of(case, number), vec![0x5a; case.bytes()]);
        match case {
            Case::List => Box::new(move || {
                let extents = extents(places.advance());
                let mut slices = [std::io::IoSliceMut::new(&mut memory)];
                whole(file.read_list(&extents, &mut slices)?.count, case)
            }),
            Case::View => Box::new(move || {
                let place = view.at(places.advance(), 0);
                whole(file.read_view(&place, &mut memory)?.count, case)
            }),
            Case::Sleepers => Box::new(move || whole(file.read_at(&mut memory, places.advance())?, case)),
            Case::HotLock => Box::new(move || {
                file.lock(0..1, LockKind::Exclusive)?;
                Ok(file.unlock(0..1)?)
            }),
            Case::HotFile => Box::new(move || whole(file.write_at(&memory, places.advance())?, case)),
        }
    }
}

/// The same by as many threads of this process, by calls of the kernel.
fn local(case: Case, path: &Path, time: Duration) -> anyhow::Result<Figures> {
    let steps = (0..CLIENTS).map(|number| move || local_step(case, path, number)).collect();
    Ok(together(steps, time)?.0)
}

fn local_step(case: Case, path: &Path, number: usize) -> anyhow::Result<Step<'static>> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    let (mut places, mut memory) = (Places::of(case, number), vec![0x5a; case.bytes()]);
    Ok(match case {
        Case::List | Case::View => Box::new(move || {
            let at = places.advance();
            let pieces = memory.chunks_exact_mut(PIECE).zip((at..).step_by(2 * PIECE));
            Ok(pieces.into_iter().try_for_each(|(piece, at)| file.read_exact_at(piece, at))?)
        }),
        Case::Sleepers => Box::new(move || Ok(file.read_exact_at(&mut memory, places.advance())?)),
        Case::HotLock => Box::new(move || {
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(flock(&file, FlockOperation::Unlock)?)
        }),
        Case::HotFile => Box::new(move || Ok(file.write_all_at(&memory, places.advance())?)),
    })
}

/// A walk over the file, another one for each client.
struct Places {
    next: u64,
    count: u64,
    stride: u64,
}

impl Places {
    fn of(case: Case, number: usize) -> Self {
        let (all, stride) = match case {
            Case::List | Case::View => (FILE_BYTES, 2 * (PIECES * PIECE) as u64),
            Case::HotFile => (HOT_BYTES, SMALL as u64),
            Case::Sleepers | Case::HotLock => (FILE_BYTES, SMALL as u64),
        };
        let count = all / stride;
        Self { next: number as u64 * count / CLIENTS as u64, count, stride }
    }

    fn advance(&mut self) -> u64 {
        self.next = (self.next + 1) % self.count;
        self.next * self.stride
    }
}

fn extents(at: u64) -> Vec<Extent> {
    (0..PIECES as u64).map(|piece| Extent::new(at + piece * 2 * PIECE as u64, PIECE as u64)).collect()
}

fn whole(count: usize, case: Case) -> anyhow::Result<()> {
    ensure!(count == case.bytes(), "{}: {count} of {} bytes", case.name(), case.bytes());
    Ok(())
}

/// Lists and views give what a local program finds in the file.
fn check(case: Case, sides: &[Side], path: &Path) -> anyhow::Result<()> {
    if !case.has_bound() {
        return Ok(());
    }
    let at = 2 * (PIECES * PIECE) as u64;
    let mut whole = vec![0; 2 * PIECES * PIECE];
    fs::File::open(path)?.read_exact_at(&mut whole, at)?;
    let expected: Vec<u8> = whole.chunks_exact(2 * PIECE).flat_map(|row| &row[..PIECE]).copied().collect();
    for client in sides.iter().flat_map(|side| &side.clients) {
        let mut found = vec![0; expected.len()];
        match case {
            Case::List => client.file.read_list(&extents(at), &mut [std::io::IoSliceMut::new(&mut found)])?,
            _ => client.file.read_view(&client.view.at(at, 0), &mut found)?,
        };
        ensure!(found == expected, "{}: other bytes than the file has", case.name());
    }
    Ok(())
}

/// Each of these by a thread, all at once; and how many operations that were.
fn together<'a>(
    steps: Vec<impl FnOnce() -> anyhow::Result<Step<'a>> + Send>,
    time: Duration,
) -> anyhow::Result<(Figures, u64)> {
    interrupt::check()?;
    let start = Barrier::new(steps.len() + 1);
    let (counts, cpu_ns, elapsed) = std::thread::scope(|scope| {
        let start = &start;
        let run = move |make: Result<Step<'a>, anyhow::Error>| {
            start.wait();
            let (mut step, began, mut count) = (make?, Instant::now(), 0u64);
            while count == 0 || began.elapsed() < time {
                step()?;
                count += 1;
            }
            anyhow::Ok(count)
        };
        let threads: Vec<_> = steps.into_iter().map(|make| scope.spawn(move || run(make()))).collect();
        start.wait();
        let (began, before) = (Instant::now(), sys::process_cpu_ns());
        let counts: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        (counts, sys::process_cpu_ns().saturating_sub(before), began.elapsed())
    });
    let mut all = Vec::new();
    for count in counts {
        all.push(count.map_err(|_| anyhow::anyhow!("a thread panicked"))??);
    }
    let (ops, least) = (all.iter().sum::<u64>(), all.iter().min().copied().context("no client")?);
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let cpu_ns = [cpu_ns as f64 / ops as f64, f64::NAN];
    Ok((Figures { ops_per_s: ops as f64 / seconds, least: least as f64 / seconds, cpu_ns }, ops))
}

/// What `workers` can give that have as many CPUs for themselves and their clients, times what one gives that has one of them for itself:
/// its operations take `server` of its CPU, and `client` of another. Clients that take more than a worker have all CPUs busy with one.
fn bound(workers: usize, client: f64, server: f64) -> f64 {
    (workers as f64 / (1.0 + client / server)).max(1.0)
}

fn row(transport: Transport, case: Case, sides: &[Side], side: usize, rounds: &Rounds) -> Row {
    let workers = sides[side].workers;
    scale_row(transport.name(), case, (workers, side), rounds)
}

fn scale_row(transport: &str, case: Case, (workers, side): (usize, usize), rounds: &Rounds) -> Row {
    let own = || rounds.iter().map(|(_, sides)| sides[side]);
    let first = || rounds.iter().map(|(_, sides)| sides[0]);
    let local = || rounds.iter().map(|(local, _)| *local);
    let over_first = |of: fn(Figures) -> f64| {
        (side > 0).then(|| median(own().zip(first()).map(|(own, first)| of(own) / of(first)))).flatten()
    };
    let cpu = |end: usize| median(own().map(|one| one.cpu_ns[end]));
    let of_first = |end: usize| median(first().map(|one| one.cpu_ns[end]));
    let gain = over_first(|one| one.ops_per_s);
    let bound =
        (side > 0 && case.has_bound()).then(|| Some(bound(workers, of_first(0)?, of_first(1)?))).flatten();
    let ratios = || own().zip(local()).map(|(own, local)| local.ops_per_s / own.ops_per_s);
    Row {
        transport: transport.to_owned(),
        case: Some(case.name()),
        clients: Some(CLIENTS),
        bytes: case.bytes(),
        queue_depth: 1,
        ops_per_s: median(own().map(|one| one.ops_per_s)),
        limit: Some("local".to_owned()),
        limit_value: median(local().map(|one| one.ops_per_s)),
        limit_unit: Some(Unit::OpsPerS),
        ratio: median(ratios()),
        ratio_min: ratios().reduce(f64::min),
        ratio_max: ratios().reduce(f64::max),
        cpu: CpuRow::of(0, cpu(0), cpu(1), median(local().map(|one| one.cpu_ns[0]))),
        scale: Some(ScaleRow {
            workers,
            least_ops_per_s: median(own().map(|one| one.least)),
            gain,
            least_gain: over_first(|one| one.least),
            bound,
            reached: gain.zip(bound).map(|(gain, bound)| gain / bound),
        }),
        ..Row::default()
    }
    .known_by(own().map(|one| one.ops_per_s))
}

/// Rates by workers, of each transport; as references those of local threads, and what workers can give.
fn chart(rows: &[Row]) -> Chart {
    let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
    let panel = |case: Case| {
        let own = || rows.iter().filter(move |row| row.case == Some(case.name()));
        let mut names: Vec<&str> = own().map(|row| row.transport.as_str()).collect();
        names.dedup();
        let at = |row: &Row| Some(row.scale?.workers as f64);
        let mut curves = Vec::new();
        for name in names {
            let rows = || own().filter(move |row| row.transport == name);
            let points = |y: &dyn Fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
                rows().filter_map(|row| Some((at(row)?, y(row)?))).collect()
            };
            let first = rows().next().and_then(|row| row.ops_per_s).unwrap_or(f64::NAN);
            let can = |row: &Row| match row.scale?.bound {
                Some(bound) => Some(bound * first),
                None => row.scale?.gain.is_none().then_some(first),
            };
            let band = rows().filter_map(|row| Some((at(row)?, row.low?, row.high?))).collect();
            let curve = |name: String, points, reference, band| Curve { name, points, reference, band };
            curves.push(curve(name.to_owned(), points(&|row| row.ops_per_s), false, band));
            if case.has_bound() {
                curves.push(curve(format!("{name} can"), points(&can), true, Vec::new()));
            }
        }
        let levels: Vec<(f64, f64)> = own().filter_map(|row| Some((at(row)?, row.limit_value?))).collect();
        let ends = || levels.iter().map(|(workers, _)| *workers);
        if let (Some(level), Some(first), Some(last)) =
            (median(levels.iter().map(|(_, level)| *level)), ends().reduce(f64::min), ends().reduce(f64::max))
        {
            let points = vec![(first, level), (last, level)];
            curves.push(Curve { name: "local".to_owned(), points, reference: true, band: Vec::new() });
        }
        Panel {
            title: case.name().to_owned(),
            x: axis("workers", Scale::Linear),
            // Local calls may be a hundred times as many.
            y: axis("op/s", Scale::Log),
            curves,
            marks: Vec::new(),
            remarks: Vec::new(),
        }
    };
    Chart { title: format!("{CLIENTS} clients of a server"), panels: CASES.map(panel).into(), columns: 3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(ops_per_s: f64, least: f64) -> Figures {
        Figures { ops_per_s, least, cpu_ns: [1000.0, 3000.0] }
    }

    #[test]
    fn gain_is_that_of_each_round_beside_what_cpus_can_give() {
        let local = figures(1200.0, 300.0);
        let rounds = [(100.0, 120.0), (200.0, 300.0), (100.0, 160.0)];
        let rounds = rounds.map(|(one, two)| (local, vec![figures(one, 25.0), figures(two, 20.0)]));
        let row = |side| scale_row("shm", Case::View, (side + 1, side), &rounds.to_vec());
        let (one, two) = (row(0).scale.unwrap(), row(1).scale.unwrap());
        assert_eq!((one.workers, one.gain, one.bound, one.reached), (1, None, None, None));
        // 2 / (1 + 1/3)
        assert_eq!((two.workers, two.gain, two.bound, two.reached), (2, Some(1.5), Some(1.5), Some(1.0)));
        assert_eq!(
            (one.least_ops_per_s, two.least_ops_per_s, two.least_gain),
            (Some(25.0), Some(20.0), Some(0.8))
        );
        assert_eq!(
            (row(0).ops_per_s, row(0).limit_value, row(0).ratio),
            (Some(100.0), Some(1200.0), Some(12.0))
        );
        let lock = scale_row("shm", Case::HotLock, (2, 1), &rounds.to_vec()).scale.unwrap();
        assert!((bound(2, 3.0, 2.0) - 1.0).abs() < 1e-9, "clients have both CPUs busy");
        assert_eq!((lock.gain, lock.bound), (Some(1.5), None), "its work is not on the loop");
    }

    #[test]
    fn plot_shows_what_workers_give_and_can_give() {
        let rounds = vec![(figures(900.0, 1.0), vec![figures(100.0, 1.0), figures(140.0, 1.0)])];
        let rows = [0, 1].map(|side| scale_row("tcp", Case::List, (side + 1, side), &rounds));
        let chart = chart(&rows);
        let list = &chart.panels[0];
        let names: Vec<&str> = list.curves.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["tcp", "tcp can", "local"]);
        assert_eq!(list.curves[0].points, [(1.0, 100.0), (2.0, 140.0)]);
        assert_eq!(list.curves[1].points, [(1.0, 100.0), (2.0, 150.0)]);
    }

    #[test]
    fn clients_at_once_are_all_counted_and_one_that_fails_ends_them() {
        let step = |fails: bool| {
            move || -> anyhow::Result<Step<'static>> {
                Ok(Box::new(move || {
                    ensure!(!fails, "it fails");
                    Ok(())
                }))
            }
        };
        let (figures, ops) = together(vec![step(false), step(false)], Duration::ZERO).unwrap();
        assert_eq!(ops, 2);
        assert!(figures.least <= figures.ops_per_s / 2.0);
        assert!(together(vec![step(false), step(true)], Duration::ZERO).is_err());
    }

    #[test]
    fn clients_walk_over_different_places_of_the_file() {
        for case in CASES {
            let ends = (0..CLIENTS).map(|number| {
                let mut places = Places::of(case, number);
                let at = places.advance();
                assert!((0..10_000).all(|_| places.advance() + places.stride <= FILE_BYTES));
                at
            });
            let mut ends: Vec<u64> = ends.collect();
            ends.dedup();
            assert_eq!(ends.len(), CLIENTS, "{case:?}");
        }
    }
}
