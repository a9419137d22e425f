//! dafs beside the local file system, NFS and plain sockets, axis by axis: the same work, in rounds in which they take turns.

mod contestant;

use std::time::{Duration, Instant};

use crate::interrupt;
use crate::load::{Budget, Load, Pattern};
use crate::record::{CpuRow, Method, NameOp, Op, Row, Unit};
use crate::stats::{is_known, median, median_interval};
use crate::workload::Bench;

use self::contestant::{Contestant, Taken};

/// Rounds that every case has, however little time there is, and those after which it may be known well enough.
const ROUNDS_MIN: usize = 3;
const ROUNDS_KNOWN_MIN: usize = 6;
/// So many rounds should fit into the time.
const ROUNDS_WANTED: f64 = 8.0;
/// One measurement takes no less and no more.
const SECONDS: (f64, f64) = (0.005, 0.25);

/// One thing that all are asked to do.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// The axis of the report.
    axis: &'static str,
    task: Task,
}

#[derive(Debug, Clone, Copy)]
enum Task {
    /// Transfers; their figure is in this unit.
    Move(Load, Unit),
    /// Calls on names.
    Name(NameOp),
    /// A transfer while the client computes for as long as it takes alone.
    Overlap(Load),
}

/// What one contestant took for one case.
struct Cell {
    case: usize,
    contestant: usize,
    rounds: Vec<Taken>,
}

/// Runs all cases until their medians are known, or `time` is over.
pub(super) fn run(bench: &mut Bench<'_>, time: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut contestants = contestant::all(bench)?;
    let cases = cases(bench.plan.same_cpu);
    let end = start + time;
    let count = (cases.len() * contestants.len()) as f64;
    let left = end.saturating_duration_since(Instant::now()).as_secs_f64();
    let seconds = (left / ROUNDS_WANTED / count).clamp(SECONDS.0, SECONDS.1);
    let budget = Budget { duration: Duration::from_secs_f64(seconds), ..bench.plan.budget };
    bench.progress.announce((cases.len()) * ROUNDS_MIN, 1, Some(end));
    let mut cells = warmed(bench, &mut contestants, &cases, budget)?;
    let mut longest = Duration::ZERO;
    for round in 0.. {
        let began = Instant::now();
        if round >= ROUNDS_MIN && began + longest > end {
            break;
        }
        let mut is_any_open = false;
        for (index, case) in cases.iter().enumerate() {
            let of_case: Vec<usize> = (0..cells.len()).filter(|cell| cells[*cell].case == index).collect();
            if of_case.is_empty() || of_case.iter().all(|cell| is_settled(case, &cells[*cell])) {
                continue;
            }
            is_any_open = true;
            let pass = Instant::now();
            // Another one is the first in each round: what comes after the last case, or after another, favours none.
            let first = (round + index) % of_case.len();
            for cell in of_case[first..].iter().chain(&of_case[..first]) {
                let cell = &mut cells[*cell];
                let taken = contestants[cell.contestant].run(bench, &case.task, budget)?;
                cell.rounds.extend(taken);
                bench.progress.step();
            }
            bench.progress.pass(pass.elapsed());
        }
        if !is_any_open {
            break;
        }
        longest = longest.max(began.elapsed());
    }
    let rows =
        cells.iter().map(|cell| row(&cases[cell.case], contestants[cell.contestant].name(), &cell.rounds));
    bench.outcome.rows.extend(rows);
    Ok(())
}

/// The cells of those that can do a case; each has done it once, which does not count.
fn warmed(
    bench: &mut Bench<'_>,
    contestants: &mut [Contestant],
    cases: &[Case],
    budget: Budget,
) -> anyhow::Result<Vec<Cell>> {
    let brief = Budget { duration: budget.duration / 4, ..budget };
    let mut cells = Vec::new();
    let mut failed = Vec::new();
    for (case, what) in cases.iter().enumerate() {
        for (contestant, subject) in contestants.iter_mut().enumerate() {
            interrupt::check()?;
            if failed.contains(&contestant) {
                continue;
            }
            match subject.run(bench, &what.task, brief) {
                Ok(Some(_)) => cells.push(Cell { case, contestant, rounds: Vec::new() }),
                Ok(None) => {}
                Err(error) if subject.is_peer() => {
                    interrupt::check()?;
                    bench.outcome.notes.push(format!("no rows for {}: {error:#}", subject.name()));
                    failed.push(contestant);
                }
                Err(error) => return Err(error),
            }
        }
    }
    cells.retain(|cell| !failed.contains(&cell.contestant));
    Ok(cells)
}

fn is_settled(case: &Case, cell: &Cell) -> bool {
    cell.rounds.len() >= ROUNDS_KNOWN_MIN && is_known(cell.rounds.iter().map(|round| round.figure(case)))
}

fn cases(same_cpu: bool) -> Vec<Case> {
    const KIB: usize = 1 << 10;
    let load = |op, bytes, queue_depth| Load {
        op,
        bytes,
        queue_depth,
        method: Method::Auto,
        registered: true,
        pattern: if queue_depth > 1 && bytes < 64 * KIB { Pattern::Random } else { Pattern::Sequential },
        compute_ns: None,
    };
    let both = [Op::Read, Op::Write];
    let mut cases = Vec::new();
    for bytes in [4, 4 * KIB, 64 * KIB, 1024 * KIB] {
        cases.extend(both.map(|op| Case { axis: "latency", task: Task::Move(load(op, bytes, 1), Unit::Us) }));
    }
    let wide = |op| Case { axis: "bandwidth", task: Task::Move(load(op, 1024 * KIB, 16), Unit::MibPerS) };
    cases.extend(both.map(wide));
    let many = |depth| Case { axis: "rate", task: Task::Move(load(Op::Read, 4 * KIB, depth), Unit::OpsPerS) };
    cases.extend([1, 16, 64].map(many));
    cases.extend(NameOp::PLAIN.map(|op| Case { axis: "names", task: Task::Name(op) }));
    // On one CPU nothing can go on while the client computes.
    if !same_cpu {
        let computing = |op| Case { axis: "overlap", task: Task::Overlap(load(op, 64 * KIB, 1)) };
        cases.extend(both.map(computing));
    }
    cases
}

impl Taken {
    /// What is compared.
    fn figure(&self, case: &Case) -> f64 {
        match case.task {
            Task::Move(_, Unit::MibPerS) => self.work.mib_per_s(1) * self.bytes as f64,
            Task::Move(_, Unit::OpsPerS) => self.work.ops_per_s(),
            Task::Move(_, Unit::Us) | Task::Name(_) => self.p50_us,
            Task::Overlap(_) => self.alone.map_or(f64::NAN, |alone| self.p50_us / alone),
        }
    }

    fn mib_per_s(&self) -> f64 {
        self.work.mib_per_s(self.bytes)
    }
}

fn row(case: &Case, name: &str, rounds: &[Taken]) -> Row {
    let over =
        |field: &dyn Fn(&Taken) -> f64| median(rounds.iter().map(field).filter(|value| !value.is_nan()));
    let figures: Vec<f64> = rounds.iter().map(|round| round.figure(case)).collect();
    let interval = median_interval(figures.iter().copied());
    let bytes = rounds.first().map_or(0, |round| round.bytes);
    let cpu = |end: usize| over(&|round| round.cpu_ns[end]);
    let mut row = Row {
        transport: name.to_owned(),
        case: Some(case.axis),
        bytes,
        queue_depth: 1,
        p50_us: over(&|round| round.p50_us),
        p99_us: over(&|round| round.p99_us),
        rounds: Some(rounds.len()),
        low: interval.map(|(low, _)| low),
        high: interval.map(|(_, high)| high),
        unsettled: !is_known(figures.iter().copied()),
        disturbed: is_disturbed(&figures),
        cpu: CpuRow::of(bytes, cpu(0), cpu(1), cpu(2)),
        ..Row::default()
    };
    match case.task {
        Task::Move(load, unit) => {
            (row.op, row.queue_depth, row.limit_unit) = (Some(load.op), load.queue_depth, Some(unit));
            row.mib_per_s = over(&Taken::mib_per_s);
            row.ops_per_s = over(&|round| round.work.ops_per_s());
            if case.axis == "bandwidth" {
                row.cpu_percent = over(&|round| round.cpu_ns[0] * round.work.ops_per_s() / 1e7);
            }
        }
        Task::Name(op) => (row.name_op, row.limit_unit) = (Some(op), Some(Unit::Us)),
        Task::Overlap(load) => {
            (row.op, row.cpu_fraction) = (Some(load.op), Some(0.5));
            row.mib_per_s = over(&Taken::mib_per_s);
            row.limit = Some("alone".to_owned());
            row.limit_value = over(&|round| round.alone.unwrap_or(f64::NAN));
            row.limit_unit = Some(Unit::Us);
            row.ratio = median(figures);
        }
    }
    row
}

/// Half of the rounds are further apart than whatever moves a program that has the machine for itself.
fn is_disturbed(figures: &[f64]) -> bool {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (quarter, count) = (sorted.len() / 4, sorted.len());
    sorted
        .get(quarter)
        .zip(sorted.get(count.saturating_sub(quarter + 1)))
        .is_some_and(|(low, high)| *high > 1.5 * *low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Work;

    fn taken(ms: u64, alone: Option<f64>) -> Taken {
        let work = Work { ops: 10, elapsed: Duration::from_millis(ms) };
        Taken {
            work,
            bytes: 1 << 20,
            p50_us: ms as f64 * 100.0,
            p99_us: 1.0,
            alone,
            cpu_ns: [1e6, f64::NAN, f64::NAN],
        }
    }

    fn case(axis: &str) -> Case {
        cases(false).into_iter().find(|case| case.axis == axis).unwrap()
    }

    #[test]
    fn row_has_medians_intervals_and_the_share_of_a_cpu() {
        let rounds = [taken(100, None), taken(200, None), taken(100, None)];
        let bandwidth = row(&case("bandwidth"), "tcp", &rounds);
        assert_eq!(
            (bandwidth.transport.as_str(), bandwidth.case, bandwidth.rounds),
            ("tcp", Some("bandwidth"), Some(3))
        );
        assert_eq!(
            (bandwidth.mib_per_s, bandwidth.low, bandwidth.high),
            (Some(100.0), Some(50.0), Some(100.0))
        );
        // 1 ms for each of a hundred operations a second.
        assert_eq!(bandwidth.cpu_percent.map(f64::round), Some(10.0));
        assert!(bandwidth.unsettled);
        let cpu = bandwidth.cpu.unwrap();
        assert_eq!(
            (cpu.client_cpu_ns, cpu.server_cpu_ns, cpu.client_cpu_ns_per_mib),
            (Some(1e6), None, Some(1e6))
        );
    }

    #[test]
    fn ratio_of_overlap_is_the_time_beyond_the_transfer_alone() {
        let overlap = row(&case("overlap"), "tcp", &[taken(100, Some(8000.0)); 3]);
        assert_eq!(
            (overlap.mib_per_s, overlap.limit_value, overlap.ratio),
            (Some(100.0), Some(8000.0), Some(1.25))
        );
    }

    #[test]
    fn nothing_overlaps_on_one_cpu() {
        assert!(cases(true).iter().all(|case| case.axis != "overlap"));
        assert!(cases(false).iter().any(|case| case.axis == "overlap"));
    }

    #[test]
    fn rounds_far_apart_are_disturbed_and_one_outlier_is_none() {
        assert!(!is_disturbed(&[1.0, 1.1, 0.9, 1.0, 9.0]));
        assert!(is_disturbed(&[1.0, 1.0, 2.0, 2.0, 2.0]));
        assert!(!is_disturbed(&[]));
    }
}
