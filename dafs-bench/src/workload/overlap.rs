//! Bandwidth against the share of computation: how far transfers go on while the client computes.

use std::time::Instant;

use crate::limit::{Figure, Limit};
use crate::load::{Budget, Load, Work, compute};
use crate::record::{Axis, Chart, Curve, Op, Panel, Row, SPREAD_MAX, Scale, Unit};
use crate::stats::median;
use crate::subject::Subject;
use crate::workload::bandwidth::rate_limit;
use crate::workload::{AGAIN_MAX, Bench, Round, worst_spread};

/// Shares of computation, T/(T + Tio).
const FRACTIONS: [f64; 10] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut panels: Vec<Panel> = Vec::new();
    let plan = bench.plan;
    let cases = plan.ops.len() * plan.sizes.len() * FRACTIONS.len();
    let passes = (plan.transports.len() + plan.peers.len()) * cases * plan.directories;
    bench.progress.announce(passes, 1, None);
    bench.each_subject(
        |plan, _| vec![plan.poll()],
        |bench, subject| {
            for &op in &bench.plan.ops {
                for &bytes in &bench.plan.sizes {
                    let rows = sweep(bench, subject, op, bytes)?;
                    let panel = match panels.iter_mut().find(|panel| panel.title == title(op, bytes)) {
                        Some(panel) => panel,
                        None => {
                            panels.push(empty_panel(op, bytes));
                            let last = panels.len() - 1;
                            &mut panels[last]
                        }
                    };
                    draw(panel, subject.transport(), bytes, &rows);
                }
            }
            Ok(())
        },
    )?;
    let title = "Overlap of transfers and computation".to_owned();
    bench.outcome.chart = Some(Chart { title, panels, columns: bench.plan.ops.len() });
    Ok(())
}

/// One row for each fraction, with the bandwidth over transfer and computation together.
fn sweep(bench: &mut Bench<'_>, subject: &mut dyn Subject, op: Op, bytes: usize) -> anyhow::Result<Vec<Row>> {
    let limit = rate_limit(bench, subject, op, Unit::MibPerS);
    let alone = Load { compute_ns: Some(0), ..bench.load(op, bytes, 1) };
    let mut io_us = 0.0;
    let mut rows = Vec::new();
    for fraction in FRACTIONS {
        let start = Instant::now();
        let compute_us = io_us * fraction / (1.0 - fraction);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and below an hour"
        )]
        let compute_ns = (compute_us * 1e3) as u64;
        let measured = if fraction == 0.0 {
            bench.compare(subject, limit, Unit::MibPerS, &[alone])?.pop()
        } else {
            beside_its_parts(bench, subject, limit, &alone, compute_ns)?
        };
        bench.progress.pass(start.elapsed());
        let Some(mut row) = measured else { continue };
        if fraction == 0.0 {
            // Tio is the time of the operation alone, waited for at once.
            io_us = row.p50_us.unwrap_or(0.0);
        }
        row.cpu_fraction = Some(fraction);
        // The row has been added as it was.
        if let Some(last) = bench.outcome.rows.last_mut() {
            last.clone_from(&row);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Transfer and computation together, beside the slower of the two, each measured alone in the same rounds: what perfect overlap takes.
fn beside_its_parts(
    bench: &mut Bench<'_>,
    subject: &mut dyn Subject,
    limit: Limit,
    alone: &Load,
    compute_ns: u64,
) -> anyhow::Result<Option<Row>> {
    let both = Load { compute_ns: Some(compute_ns), ..*alone };
    if bench.ready(subject, &[both])?.is_empty() {
        return Ok(None);
    }
    let mut best = Parts::default();
    for turn in 0..=AGAIN_MAX {
        let parts = rounds_of_parts(bench, subject, alone, &both)?;
        if turn == 0 || worst_spread(&parts.rounds) < worst_spread(&best.rounds) {
            best = parts;
        }
        if worst_spread(&best.rounds) <= SPREAD_MAX {
            break;
        }
    }
    let slower = best.slower();
    let mut rows = bench.rows(subject, limit, Unit::MibPerS, &[both], &best.rounds);
    let row = rows.pop().map(|row| Row { limit: Some(slower.to_owned()), ..row });
    Ok(row)
}

/// The rates of a transfer and of a computation, each alone, and the rounds of both together beside the lower of them.
#[derive(Default)]
struct Parts {
    transfer: Vec<f64>,
    computation: Vec<f64>,
    rounds: Vec<Vec<Round>>,
}

impl Parts {
    fn slower(&self) -> &'static str {
        let rate = |rates: &[f64]| median(rates.iter().copied());
        if rate(&self.computation) < rate(&self.transfer) { "computation" } else { "transfer" }
    }
}

fn rounds_of_parts(
    bench: &mut Bench<'_>,
    subject: &mut dyn Subject,
    alone: &Load,
    both: &Load,
) -> anyhow::Result<Parts> {
    let (budget, bytes) = (bench.plan.budget, alone.bytes);
    let mut parts = Parts { rounds: vec![Vec::new()], ..Parts::default() };
    while bench.wants_round(&parts.rounds, Unit::MibPerS) {
        let transfer = bench.run_subject(subject, alone, budget)?.mib_per_s(bytes);
        let computation = computed(both.compute_ns.unwrap_or(0), budget).mib_per_s(bytes);
        let work = bench.run_subject(subject, both, budget)?;
        // Nobody finishes a step before both its parts are over.
        let limit = Figure { value: transfer.min(computation), cpu_ns: f64::NAN };
        parts.rounds[0].push(bench.round(work, both, Unit::MibPerS, limit)?);
        parts.transfer.push(transfer);
        parts.computation.push(computation);
        bench.progress.step();
    }
    Ok(parts)
}

/// Computes again and again, and does nothing else.
fn computed(compute_ns: u64, budget: Budget) -> Work {
    let deadline = budget.start();
    let mut ops = 0;
    loop {
        compute(compute_ns);
        ops += 1;
        let now = Instant::now();
        if deadline.over(now, ops) {
            return Work { ops, elapsed: now - deadline.start };
        }
    }
}

fn mib_per_s(bytes: usize, us: f64) -> f64 {
    bytes as f64 / (1 << 20) as f64 / (us / 1e6)
}

fn title(op: Op, bytes: usize) -> String {
    format!("{op} of {} KiB", bytes as f64 / 1024.0)
}

fn empty_panel(op: Op, bytes: usize) -> Panel {
    Panel {
        title: title(op, bytes),
        x: Axis { label: "CPU fraction, T/(T + Tio)".to_owned(), scale: Scale::Linear },
        y: Axis { label: "bandwidth (MiB/s)".to_owned(), scale: Scale::Linear },
        curves: Vec::new(),
        marks: Vec::new(),
        remarks: Vec::new(),
    }
}

/// The measured curve, and what it would be with perfect overlap and with none at all.
fn draw(panel: &mut Panel, transport: &str, bytes: usize, rows: &[Row]) {
    let points: Vec<(f64, f64)> =
        rows.iter().filter_map(|row| Some((row.cpu_fraction?, row.mib_per_s?))).collect();
    let Some(&(_, alone)) = points.first() else { return };
    let io_us = mib_per_s(bytes, 1.0) / alone;
    // Each step would take Tio + T, and Tio/(Tio + T) is 1 - fraction.
    let serial =
        points.iter().map(|(fraction, _)| (*fraction, mib_per_s(bytes, io_us) * (1.0 - fraction))).collect();
    // Of the first the transfer alone is all of it; of the others the slower of transfer and computation, each alone in the same rounds.
    let perfect = |row: &Row| {
        let fraction = row.cpu_fraction?;
        Some((fraction, if fraction == 0.0 { row.mib_per_s? } else { row.limit_value? }))
    };
    let perfect = rows.iter().filter_map(perfect).collect();
    let band = rows.iter().filter_map(|row| Some((row.cpu_fraction?, row.low?, row.high?))).collect();
    panel.curves.push(Curve { name: transport.to_owned(), points, reference: false, band });
    panel.curves.push(Curve {
        name: format!("{transport}, perfect overlap"),
        points: perfect,
        reference: true,
        band: Vec::new(),
    });
    panel.curves.push(Curve {
        name: format!("{transport}, no overlap"),
        points: serial,
        reference: true,
        band: Vec::new(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfect_overlap_is_the_slower_of_its_parts_alone() {
        // 64 KiB in 1 ms, 62.5 MiB/s. What a local program moves is above all, or below.
        let row = |cpu_fraction, mib_per_s, limit_value| Row {
            cpu_fraction: Some(cpu_fraction),
            mib_per_s: Some(mib_per_s),
            limit_value: Some(limit_value),
            ..Row::default()
        };
        for raw in [20.0, 125.0] {
            let mut panel = empty_panel(Op::Read, 64 << 10);
            let rows = [row(0.0, 62.5, raw), row(0.5, 60.0, 62.5), row(0.9, 6.9, 6.94)];
            draw(&mut panel, "tcp", 64 << 10, &rows);
            let [measured, perfect, serial] = &panel.curves[..] else { panic!("{:?}", panel.curves) };
            assert_eq!(measured.points, [(0.0, 62.5), (0.5, 60.0), (0.9, 6.9)]);
            assert_eq!(perfect.points, [(0.0, 62.5), (0.5, 62.5), (0.9, 6.94)]);
            for (point, expected) in serial.points.iter().zip([62.5, 31.25, 6.25]) {
                assert!((point.1 - expected).abs() < 1e-6, "{point:?}");
            }
            assert_eq!([measured, perfect, serial].map(|curve| curve.reference), [false, true, true]);
        }
    }

    #[test]
    fn slower_part_has_the_lower_rate() {
        let parts = |transfer, computation| Parts {
            transfer: vec![transfer; 3],
            computation: vec![computation; 3],
            rounds: Vec::new(),
        };
        assert_eq!(parts(2.0, 1.0).slower(), "computation");
        assert_eq!(parts(1.0, 2.0).slower(), "transfer");
    }

    #[test]
    fn computation_alone_takes_what_was_asked_for() {
        let budget = Budget { duration: std::time::Duration::from_millis(1), ops_min: 20, ops_slow_min: 20 };
        let work = computed(100_000, budget);
        assert!(work.ops >= 20 && work.elapsed.as_nanos() >= 100_000 * u128::from(work.ops), "{work:?}");
    }
}
