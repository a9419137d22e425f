//! Bandwidth against the share of computation: how far transfers go on while the client computes.

use crate::load::Load;
use crate::record::{Axis, Chart, Curve, Op, Panel, Row, Scale, Unit};
use crate::subject::Subject;
use crate::workload::Bench;
use crate::workload::bandwidth::rate_limit;

/// Shares of computation, T/(T + Tio).
const FRACTIONS: [f64; 10] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut panels: Vec<Panel> = Vec::new();
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
    let mut io_us = 0.0;
    let mut rows = Vec::new();
    for fraction in FRACTIONS {
        let compute_us = io_us * fraction / (1.0 - fraction);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and below an hour"
        )]
        let compute_ns = (compute_us * 1e3) as u64;
        let load = Load { compute_ns: Some(compute_ns), ..bench.load(op, bytes, 1) };
        // Nobody finishes a step before its computation is over.
        bench.limit_max = (compute_us > 0.0).then(|| mib_per_s(bytes, compute_us));
        let compared = bench.compare(subject, limit, Unit::MibPerS, &[load]);
        let most = bench.limit_max.take();
        let Some(mut row) = compared?.pop() else { continue };
        if fraction == 0.0 {
            // Tio is the time of the operation alone, waited for at once.
            io_us = row.p50_us.unwrap_or(0.0);
        }
        row.cpu_fraction = Some(fraction);
        if most.is_some() && row.limit_value == most {
            row.limit = Some("computation".to_owned());
        }
        // `compare` has added the row as it was.
        if let Some(last) = bench.outcome.rows.last_mut() {
            last.clone_from(&row);
        }
        rows.push(row);
    }
    Ok(rows)
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
    }
}

/// The measured curve, and what it would be with no overlap at all.
fn draw(panel: &mut Panel, transport: &str, bytes: usize, rows: &[Row]) {
    let points: Vec<(f64, f64)> =
        rows.iter().filter_map(|row| Some((row.cpu_fraction?, row.mib_per_s?))).collect();
    let Some(&(_, alone)) = points.first() else { return };
    let io_us = mib_per_s(bytes, 1.0) / alone;
    // Each step would take Tio + T, and Tio/(Tio + T) is 1 - fraction.
    let serial =
        points.iter().map(|(fraction, _)| (*fraction, mib_per_s(bytes, io_us) * (1.0 - fraction))).collect();
    // The limit, or the computation, whichever takes longer. Not the time of one that is waited for: most of that is waiting.
    let perfect = rows.iter().filter_map(|row| Some((row.cpu_fraction?, row.limit_value?))).collect();
    panel.curves.push(Curve { name: transport.to_owned(), points, reference: false });
    panel.curves.push(Curve {
        name: format!("{transport}, perfect overlap"),
        points: perfect,
        reference: true,
    });
    panel.curves.push(Curve { name: format!("{transport}, no overlap"), points: serial, reference: true });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfect_overlap_is_what_bounds_each_point_and_not_what_waiting_takes() {
        // 64 KiB in 1 ms, 62.5 MiB/s, of which the limit moves twice as many.
        let row = |cpu_fraction, mib_per_s, limit_value| Row {
            cpu_fraction: Some(cpu_fraction),
            mib_per_s: Some(mib_per_s),
            limit_value: Some(limit_value),
            ..Row::default()
        };
        let mut panel = empty_panel(Op::Read, 64 << 10);
        draw(
            &mut panel,
            "tcp",
            64 << 10,
            &[row(0.0, 62.5, 125.0), row(0.5, 60.0, 62.5), row(0.9, 6.9, 6.94)],
        );
        let [measured, perfect, serial] = &panel.curves[..] else { panic!("{:?}", panel.curves) };
        assert_eq!(measured.points, [(0.0, 62.5), (0.5, 60.0), (0.9, 6.9)]);
        assert_eq!(perfect.points, [(0.0, 125.0), (0.5, 62.5), (0.9, 6.94)]);
        for (point, expected) in serial.points.iter().zip([62.5, 31.25, 6.25]) {
            assert!((point.1 - expected).abs() < 1e-6, "{point:?}");
        }
        assert_eq!([measured, perfect, serial].map(|curve| curve.reference), [false, true, true]);
    }
}
