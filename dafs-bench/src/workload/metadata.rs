//! Calls on names: a directory of files is made, looked at, renamed, listed and removed, with one request and with many in flight, beside a
//! local program.

use std::time::Instant;

use crate::interrupt;
use crate::load::Work;
use crate::record::{Axis, Chart, CpuRow, Curve, NameOp, Panel, Row, Scale, Unit};
use crate::stats::{Samples, median};
use crate::subject::Subject;
use crate::subject::files::{Batch, files_in};
use crate::sys;
use crate::workload::{Bench, turns};

/// Files of the directory.
const FILES: usize = 1024;

/// Times that are kept of one call in one round.
const SAMPLES_MAX: usize = 1 << 17;

const CALLS: usize = NameOp::ALL.len();

/// What one round gave for one call.
#[derive(Debug, Clone, Copy)]
struct Figures {
    ops_per_s: f64,
    times_us: [Option<f64>; 2],
    /// Nanoseconds an operation, of this process and of the server; NaN where it is not known.
    cpu_ns: [f64; 2],
}

/// A round of all calls, and of the local program before it.
type Round = [(Figures, Figures); CALLS];

/// What is added up until the time of a round is over.
struct Sum {
    ops: u64,
    seconds: f64,
    cpu_ns: [u64; 2],
    knows_server: bool,
    samples: Samples,
}

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.each_subject(|plan, _| vec![plan.poll()], measure)?;
    let panels = NameOp::ALL.iter().map(|op| panel(*op, &bench.outcome.rows));
    let panels = panels.filter(|panel| !panel.curves.is_empty()).collect();
    let title = "Calls on names".to_owned();
    bench.outcome.chart = Some(Chart { title, panels, columns: CALLS });
    Ok(())
}

/// All depths of one subject, in turn.
fn measure(bench: &mut Bench<'_>, subject: &mut dyn Subject) -> anyhow::Result<()> {
    let mut depths = Vec::new();
    for &queue_depth in &bench.plan.queue_depths {
        // To warm up, and to see what it can.
        match calls(bench, Some(&mut *subject), queue_depth, true)? {
            Some(_) => depths.push(queue_depth),
            None => {
                let name = subject.transport().to_owned();
                bench.note_once(format!(
                    "no rows for {name} of {queue_depth} requests in flight: it does not do that"
                ));
            }
        }
    }
    let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); depths.len()];
    for count in 0..bench.plan.repeats as usize {
        subject.rest()?;
        let local = calls(bench, None, 1, false);
        subject.wake()?;
        let Some(local) = local? else { continue };
        for index in turns(count, depths.len()) {
            let Some(ours) = calls(bench, Some(&mut *subject), depths[index], false)? else { continue };
            rounds[index].push(std::array::from_fn(|call| (ours[call], local[call])));
            bench.progress.step();
        }
    }
    for (&queue_depth, rounds) in depths.iter().zip(&rounds) {
        let rows = NameOp::ALL.iter().enumerate().map(|(call, op)| {
            row(subject.transport(), *op, queue_depth, rounds.iter().map(|round| round[call]))
        });
        bench.outcome.rows.extend(rows);
    }
    Ok(())
}

/// All calls on all files, again and again until the time is over, or once to be `brief`; of a local program where there is no subject.
/// `None` where the subject has no such calls.
fn calls(
    bench: &mut Bench<'_>,
    mut subject: Option<&mut dyn Subject>,
    queue_depth: usize,
    brief: bool,
) -> anyhow::Result<Option<[Figures; CALLS]>> {
    bench.pins.be_client();
    let batch = Batch { files: FILES, queue_depth };
    let mut sums: [Sum; CALLS] = std::array::from_fn(|_| Sum::new());
    let began = Instant::now();
    loop {
        for (op, sum) in NameOp::ALL.into_iter().zip(&mut sums) {
            interrupt::check()?;
            let name = subject.as_ref().map_or("local", |subject| subject.transport()).to_owned();
            bench.progress.doing(format!("{name} {}, {queue_depth} in flight", op.name()));
            let server =
                |subject: &Option<&mut dyn Subject>| subject.as_ref().and_then(|one| one.server_cpu_ns());
            let before = (sys::process_cpu_ns(), server(&subject));
            let work = match &mut subject {
                Some(subject) => subject.files(op, batch, &mut sum.samples)?,
                None => {
                    let directory = bench.file.parent().unwrap_or(bench.file);
                    Some(files_in(directory, op, batch, &mut sum.samples)?)
                }
            };
            let Some(work) = work else { return Ok(None) };
            sum.add(work, before, (sys::process_cpu_ns(), server(&subject)));
        }
        if brief || began.elapsed() >= bench.plan.budget.duration {
            return Ok(Some(sums.map(Sum::figures)));
        }
    }
}

impl Sum {
    fn new() -> Self {
        let samples = Samples::with_capacity(SAMPLES_MAX);
        Self { ops: 0, seconds: 0.0, cpu_ns: [0; 2], knows_server: true, samples }
    }

    fn add(&mut self, work: Work, before: (u64, Option<u64>), after: (u64, Option<u64>)) {
        self.ops += work.ops;
        self.seconds += work.elapsed.as_secs_f64();
        self.cpu_ns[0] += after.0.saturating_sub(before.0);
        let server = before.1.zip(after.1).map(|(before, after)| after.saturating_sub(before));
        self.knows_server &= server.is_some();
        self.cpu_ns[1] += server.unwrap_or(0);
    }

    fn figures(mut self) -> Figures {
        let ops = self.ops.max(1) as f64;
        let server = if self.knows_server { self.cpu_ns[1] as f64 / ops } else { f64::NAN };
        Figures {
            ops_per_s: ops / self.seconds.max(1e-9),
            times_us: [0.5, 0.99].map(|part| self.samples.quantile_us(part)),
            cpu_ns: [self.cpu_ns[0] as f64 / ops, server],
        }
    }
}

fn row(
    name: &str,
    op: NameOp,
    queue_depth: usize,
    rounds: impl Iterator<Item = (Figures, Figures)> + Clone,
) -> Row {
    let ours = || rounds.clone().map(|(ours, _)| ours);
    let local = || rounds.clone().map(|(_, local)| local);
    let ratios = || rounds.clone().map(|(ours, local)| Unit::OpsPerS.ratio(ours.ops_per_s, local.ops_per_s));
    // The kernel counts by ticks that are longer than such a phase: only many of them together say something.
    let cpu = |end: usize| mean(ours().map(|one| one.cpu_ns[end]).filter(|ns| !ns.is_nan()));
    Row {
        transport: name.to_owned(),
        name_op: Some(op),
        queue_depth,
        p50_us: median(ours().filter_map(|one| one.times_us[0])),
        p99_us: median(ours().filter_map(|one| one.times_us[1])),
        ops_per_s: median(ours().map(|one| one.ops_per_s)),
        limit: Some("local".to_owned()),
        limit_value: median(local().map(|one| one.ops_per_s)),
        limit_unit: Some(Unit::OpsPerS),
        ratio: median(ratios()),
        ratio_min: ratios().reduce(f64::min),
        ratio_max: ratios().reduce(f64::max),
        cpu: CpuRow::of(0, cpu(0), cpu(1), mean(local().map(|one| one.cpu_ns[0]))),
        ..Row::default()
    }
    .known_by(ours().map(|one| one.ops_per_s))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    (count > 0.0).then(|| sum / count)
}

/// Rates by requests in flight, of each subject, and as a level those of the local program.
fn panel(op: NameOp, rows: &[Row]) -> Panel {
    let own = || rows.iter().filter(|row| row.name_op == Some(op));
    let mut names: Vec<&str> = own().map(|row| row.transport.as_str()).collect();
    names.dedup();
    let curve = |name: &str| {
        let of_name = || own().filter(|row| row.transport == name);
        let at = |row: &Row| row.queue_depth as f64;
        let points = of_name().filter_map(|row| Some((at(row), row.ops_per_s?))).collect();
        let band = of_name().filter_map(|row| Some((at(row), row.low?, row.high?))).collect();
        Curve { name: name.to_owned(), points, reference: false, band }
    };
    let mut curves: Vec<Curve> = names.into_iter().map(curve).collect();
    let depths = || own().map(|row| row.queue_depth as f64);
    let level = median(own().filter_map(|row| row.limit_value));
    if let (Some(level), Some(first), Some(last)) =
        (level, depths().reduce(f64::min), depths().reduce(f64::max))
    {
        let points = vec![(first, level), (last, level)];
        curves.push(Curve { name: "local".to_owned(), points, reference: true, band: Vec::new() });
    }
    Panel {
        title: op.name().to_owned(),
        x: Axis { label: "requests in flight".to_owned(), scale: Scale::Log },
        y: Axis { label: "op/s".to_owned(), scale: Scale::Linear },
        curves,
        marks: Vec::new(),
        remarks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(ops_per_s: f64, server: f64) -> Figures {
        Figures { ops_per_s, times_us: [Some(2.0), Some(9.0)], cpu_ns: [100.0, server] }
    }

    #[test]
    fn row_is_the_median_of_rounds_beside_the_local_program_of_each() {
        let rounds = [(10.0, 40.0), (20.0, 40.0), (30.0, 30.0)];
        let rounds = rounds.map(|(ours, local)| (figures(ours, f64::NAN), figures(local, f64::NAN)));
        let row = row("tcp", NameOp::Rename, 16, rounds.into_iter());
        assert_eq!((row.transport.as_str(), row.name_op, row.queue_depth), ("tcp", Some(NameOp::Rename), 16));
        assert_eq!((row.ops_per_s, row.limit_value), (Some(20.0), Some(40.0)));
        assert_eq!((row.ratio, row.ratio_min, row.ratio_max), (Some(2.0), Some(1.0), Some(4.0)));
        assert_eq!((row.p50_us, row.rounds), (Some(2.0), Some(3)));
        let cpu = row.cpu.unwrap();
        assert_eq!(
            (cpu.client_cpu_ns, cpu.server_cpu_ns, cpu.limit_cpu_ns),
            (Some(100.0), None, Some(100.0))
        );
    }

    #[test]
    fn plot_has_a_curve_of_each_subject_and_the_local_level() {
        let rows: Vec<Row> = [("shm", 1, 5.0), ("shm", 16, 9.0), ("nfs", 1, 1.0)]
            .map(|(name, depth, rate)| {
                row(name, NameOp::Stat, depth, [(figures(rate, 1.0), figures(12.0, 1.0))].into_iter())
            })
            .into();
        let panel = panel(NameOp::Stat, &rows);
        let names: Vec<&str> = panel.curves.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["shm", "nfs", "local"]);
        assert_eq!(panel.curves[0].points, [(1.0, 5.0), (16.0, 9.0)]);
        assert_eq!(panel.curves[2].points, [(1.0, 12.0), (16.0, 12.0)]);
        assert!(super::panel(NameOp::List, &rows).curves.is_empty());
    }
}
