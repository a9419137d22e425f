//! Inline against Direct, by size: where Direct starts to pay.

use crate::plan::Plan;
use crate::record::{Axis, Chart, Crossing, Curve, Mark, Method, Op, Panel, Row, Scale, Unit};
use crate::subject::Subject;
use crate::workload::Bench;

/// What a panel has curves of.
const METHODS: [Method; 6] =
    [Method::Inline, Method::Direct, Method::Auto, Method::Eager, Method::ClientInitiated, Method::Hybrid];

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut crossings = Vec::new();
    let mut panels = Vec::new();
    bench.each_subject(
        |plan, _| vec![plan.poll()],
        |bench, subject| {
            for &op in &bench.plan.ops {
                let mut rows = Vec::new();
                for &bytes in &bench.plan.sizes {
                    let limit = bench.latency_limit(subject, bytes);
                    let load = bench.load(op, bytes, 1);
                    // All in the same rounds, for it is their difference that counts.
                    let loads = bench.variants(&load);
                    rows.extend(bench.compare(subject, limit, Unit::Us, &loads)?);
                }
                let found = crossings_of(subject, op, bench.plan, &rows);
                panels.push(panel(subject, op, &rows, &found));
                crossings.extend(found);
            }
            Ok(())
        },
    )?;
    bench.outcome.crossings = (!crossings.is_empty()).then_some(crossings);
    let title = "Inline and Direct: latency by size".to_owned();
    bench.outcome.chart = Some(Chart { title, panels, columns: bench.plan.ops.len() });
    Ok(())
}

/// Where the two methods cross, if both were measured.
fn crossings_of(subject: &dyn Subject, op: Op, plan: &Plan, rows: &[Row]) -> Vec<Crossing> {
    if !subject.has_methods()
        || ![Method::Inline, Method::Direct].iter().all(|both| plan.methods.contains(both))
    {
        return Vec::new();
    }
    let one = |&registered: &bool| Crossing {
        transport: subject.transport().to_owned(),
        case: None,
        op,
        registered,
        measured_bytes: crossing(
            &times(rows, Method::Inline, Some(registered)),
            &times(rows, Method::Direct, Some(registered)),
        ),
        exported_bytes: subject.exported_threshold(op, registered),
    };
    plan.registered.iter().map(one).collect()
}

/// Size and median time of the rows of one method.
fn times(rows: &[Row], method: Method, registered: Option<bool>) -> Vec<(f64, f64)> {
    let rows = rows.iter().filter(|row| row.method == Some(method) && row.registered == registered);
    rows.filter_map(|row| Some((row.bytes as f64, row.p50_us?))).collect()
}

/// The size from which `direct` stays at or below `inline`. Between two sizes measured it is interpolated, both axes
/// logarithmic. Past the largest size that Inline can carry, Direct wins by default. `None` when Direct never wins.
fn crossing(inline: &[(f64, f64)], direct: &[(f64, f64)]) -> Option<u64> {
    let inline_us = |bytes: f64| inline.iter().find(|(size, _)| *size == bytes).map(|(_, us)| *us);
    // How much Direct is ahead, as a logarithm; infinitely where Inline cannot go.
    let lead =
        |(bytes, us): &(f64, f64)| inline_us(*bytes).map_or(f64::INFINITY, |inline| (inline / us).ln());
    let leads: Vec<(f64, f64)> = direct.iter().map(|point| (point.0, lead(point))).collect();
    let first = leads.iter().rposition(|(_, lead)| *lead < 0.0).map_or(0, |last_behind| last_behind + 1);
    let (bytes, ahead) = *leads.get(first)?;
    let exact = match first.checked_sub(1).map(|before| leads[before]) {
        Some((before, behind)) if ahead.is_finite() => {
            let part = -behind / (ahead - behind);
            before * (bytes / before).powf(part)
        }
        _ => bytes,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between two sizes that are usize"
    )]
    Some(exact.round() as u64)
}

fn panel(subject: &dyn Subject, op: Op, rows: &[Row], crossings: &[Crossing]) -> Panel {
    let memory = |registered| if registered { "registered" } else { "ordinary memory" };
    let mut curves = Vec::new();
    for registered in [true, false] {
        for method in METHODS {
            let points = times(rows, method, Some(registered));
            let name = format!("{method}, {}", memory(registered));
            curves.push(Curve { name, points, reference: false });
        }
    }
    if !subject.has_methods() {
        let points = rows.iter().filter_map(|row| Some((row.bytes as f64, row.p50_us?))).collect();
        curves.push(Curve { name: subject.transport().to_owned(), points, reference: false });
    }
    // The limits of one panel may differ in kind from size to size; together they are the floor.
    let mut floor: Vec<_> =
        rows.iter().filter_map(|row| Some((row.bytes as f64, row.limit_value?))).collect();
    floor.dedup_by_key(|(bytes, _)| *bytes);
    curves.push(Curve { name: "raw limit".to_owned(), points: floor, reference: true });
    curves.retain(|curve| !curve.points.is_empty());
    let mut marks = Vec::new();
    for crossing in crossings {
        let mut mark = |bytes: Option<u64>, kind: &str, dashed| {
            if let Some(bytes) = bytes {
                let name = format!("{kind} crossing, {}", memory(crossing.registered));
                marks.push(Mark { name, x: bytes as f64, dashed });
            }
        };
        mark(crossing.measured_bytes, "measured", false);
        mark(crossing.exported_bytes, "exported", true);
    }
    Panel {
        title: format!("{}, {op}", subject.transport()),
        x: Axis { label: "size of one operation".to_owned(), scale: Scale::LogBytes },
        y: Axis { label: "median latency (µs)".to_owned(), scale: Scale::Log },
        curves,
        marks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Budget, Load, Work};
    use crate::stats::Samples;

    struct Both;

    impl Subject for Both {
        fn transport(&self) -> &str {
            "shm"
        }

        fn supports(&self, _: &Load) -> bool {
            true
        }

        fn has_methods(&self) -> bool {
            true
        }

        fn run(&mut self, _: &Load, _: Budget, _: &mut Samples) -> anyhow::Result<Work> {
            anyhow::bail!("only looked at")
        }
    }

    #[test]
    fn crossings_need_both_methods_and_the_panel_has_every_method_measured() {
        use clap::Parser;
        let row = |method| Row {
            method: Some(method),
            registered: Some(true),
            bytes: 4096,
            p50_us: Some(1.0),
            ..Row::default()
        };
        let rows = METHODS.map(row);
        for (methods, crossings) in [("direct,auto", 0), ("inline", 0), ("inline,direct", 1)] {
            let arguments = ["dafs-bench", "crossover", "--registered", "yes", "--method", methods];
            let plan = Plan::of(&crate::cli::Cli::parse_from(arguments).benchmark);
            assert_eq!(crossings_of(&Both, Op::Read, &plan, &rows).len(), crossings, "{methods}");
        }
        let curves = panel(&Both, Op::Read, &rows, &[]).curves;
        assert_eq!(curves.iter().filter(|curve| !curve.reference).count(), METHODS.len());
    }

    #[test]
    fn crossing_between_sizes_is_interpolated() {
        let inline = [(1024.0, 1.0), (4096.0, 4.0)];
        let direct = [(1024.0, 2.0), (4096.0, 2.0)];
        assert_eq!(crossing(&inline, &direct), Some(2048));
    }

    #[test]
    fn crossing_is_after_the_last_size_where_direct_is_behind() {
        let inline = [(1.0, 1.0), (2.0, 3.0), (4.0, 1.0), (8.0, 4.0)];
        let direct = [(1.0, 2.0), (2.0, 2.0), (4.0, 2.0), (8.0, 2.0)];
        assert_eq!(crossing(&inline, &direct), Some(6));
    }

    #[test]
    fn crossing_is_the_smallest_size_when_direct_always_wins() {
        assert_eq!(crossing(&[(4.0, 2.0), (8.0, 2.0)], &[(4.0, 1.0), (8.0, 1.0)]), Some(4));
    }

    #[test]
    fn crossing_is_none_when_direct_never_wins() {
        assert_eq!(crossing(&[(4.0, 1.0), (8.0, 1.0)], &[(4.0, 2.0), (8.0, 2.0)]), None);
    }

    #[test]
    fn crossing_is_where_inline_ends_when_it_wins_until_there() {
        assert_eq!(crossing(&[(4.0, 1.0)], &[(4.0, 2.0), (8.0, 2.0)]), Some(8));
    }
}
