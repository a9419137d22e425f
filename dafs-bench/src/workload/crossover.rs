//! Inline against Direct, by size: where Direct starts to pay.

use std::time::Instant;

use crate::limit::Limit;
use crate::load::Load;
use crate::plan::Plan;
use crate::record::{Axis, Chart, Crossing, Curve, Mark, Method, Op, Panel, Row, SPREAD_MAX, Scale, Unit};
use crate::report;
use crate::subject::Subject;
use crate::workload::crossing::{self, Compared};
use crate::workload::{Bench, Round, worst_spread};

/// What a panel has curves of.
const METHODS: [Method; 6] =
    [Method::Inline, Method::Direct, Method::Auto, Method::Eager, Method::ClientInitiated, Method::Hybrid];

pub(super) fn run(bench: &mut Bench<'_>, publish: bool) -> anyhow::Result<()> {
    let plan = bench.plan;
    let subjects = plan.transports.len() + plan.peers.len() + plan.mounts.len();
    let mut parts_left = subjects * plan.ops.len() * plan.directories;
    bench.progress.announce(parts_left * plan.sizes.len(), parts_left, plan.until);
    let mut crossings = Vec::new();
    let mut panels = Vec::new();
    bench.each_subject(
        |plan, _| vec![plan.poll()],
        |bench, subject| {
            let before = crossings.len();
            for &op in &bench.plan.ops {
                let share = bench.plan.until.map(|until| share(Instant::now(), until, parts_left));
                let points = measure(bench, subject, op, share)?;
                parts_left = parts_left.saturating_sub(1);
                let found = crossings_of(subject, op, bench.plan, &points);
                let mut rows = Vec::new();
                for point in points {
                    rows.extend(bench.rows(subject, point.limit, Unit::Us, &point.loads, &point.rounds));
                }
                panels.push(panel(subject, op, &rows, &found));
                crossings.extend(found);
            }
            if publish && can_cross(subject, bench.plan) {
                let found: Vec<_> = crossings[before..].iter().map(to_publish).collect();
                bench.outcome.notes.push(subject.publish(&found)?);
            }
            Ok(())
        },
    )?;
    bench.outcome.crossings = (!crossings.is_empty()).then_some(crossings);
    let title = "Inline and Direct: latency by size".to_owned();
    bench.outcome.chart = Some(Chart { title, panels, columns: bench.plan.ops.len() });
    Ok(())
}

/// All that was measured at one size.
struct Point {
    bytes: usize,
    limit: Limit,
    loads: Vec<Load>,
    rounds: Vec<Vec<Round>>,
}

/// When a part ends that begins at `now`, where as many as `parts` have until `until`: what one leaves is for the others.
fn share(now: Instant, until: Instant, parts: usize) -> Instant {
    let parts = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
    now + until.saturating_duration_since(now) / parts
}

/// A pass over all sizes. Then, until `end`, those that were disturbed once more, and those near a crossing again and again.
fn measure(
    bench: &mut Bench<'_>,
    subject: &mut dyn Subject,
    op: Op,
    end: Option<Instant>,
) -> anyhow::Result<Vec<Point>> {
    let mut points = Vec::new();
    for &bytes in &bench.plan.sizes {
        let start = Instant::now();
        let limit = bench.latency_limit(subject, bytes);
        let load = bench.load(op, bytes, 1);
        // All in the same rounds, for it is their difference that counts.
        let loads = bench.variants(&load);
        let loads = bench.ready(subject, &loads)?;
        if !loads.is_empty() {
            let rounds = bench.rounds(subject, limit, Unit::Us, &loads)?;
            points.push(Point { bytes, limit, loads, rounds });
        }
        bench.progress.pass(start.elapsed());
    }
    let time_left = || end.is_some_and(|end| Instant::now() < end);
    for point in &mut points {
        if worst_spread(&point.rounds) > SPREAD_MAX && time_left() {
            let again = bench.rounds(subject, point.limit, Unit::Us, &point.loads)?;
            if worst_spread(&again) < worst_spread(&point.rounds) {
                point.rounds = again;
            }
        }
    }
    let memories = if can_cross(subject, bench.plan) { &bench.plan.registered[..] } else { &[] };
    while time_left() {
        let near = |&registered: &bool| crossing::near(&compared(&points, registered));
        let mut near: Vec<usize> = memories.iter().flat_map(near).collect();
        near.sort_unstable();
        near.dedup();
        if near.is_empty() {
            break;
        }
        for index in near {
            let Point { limit, loads, rounds, .. } = &mut points[index];
            bench.one_round(subject, *limit, Unit::Us, loads, rounds)?;
            if !time_left() {
                break;
            }
        }
    }
    bench.progress.part();
    Ok(points)
}

/// Whether both methods are measured.
fn can_cross(subject: &dyn Subject, plan: &Plan) -> bool {
    subject.has_methods() && [Method::Inline, Method::Direct].iter().all(|both| plan.methods.contains(both))
}

/// The two methods at each size of which there is anything with this memory.
fn compared(points: &[Point], registered: bool) -> Vec<Compared> {
    let times = |point: &Point, method| -> Vec<f64> {
        let loads = point.loads.iter().zip(&point.rounds);
        let rounds = loads.filter(|(load, _)| load.method == method && load.registered == registered);
        rounds.flat_map(|(_, rounds)| rounds.iter().filter_map(|round| round.p50_us)).collect()
    };
    let one = |point: &Point| {
        let (inline, direct) = (times(point, Method::Inline), times(point, Method::Direct));
        Compared::of(point.bytes as u64, &inline, &direct)
    };
    points.iter().map(one).collect()
}

/// Where the two methods cross, if both were measured.
fn crossings_of(subject: &dyn Subject, op: Op, plan: &Plan, points: &[Point]) -> Vec<Crossing> {
    if !can_cross(subject, plan) {
        return Vec::new();
    }
    let one = |&registered: &bool| {
        let found = crossing::crossing(&compared(points, registered));
        Crossing {
            transport: subject.transport().to_owned(),
            case: None,
            op,
            registered,
            inline_until_bytes: found.inline_until,
            direct_from_bytes: found.direct_from,
            inline_ends: found.inline_ends,
            measured_bytes: found.exact,
            exported_bytes: subject.exported_threshold(op, registered),
        }
    };
    plan.registered.iter().map(one).collect()
}

/// The size from which a server should have clients use direct transfers; `None` is never. Where both are one within their spread, it stays
/// as it is.
fn to_publish(crossing: &Crossing) -> (Op, bool, Option<u64>) {
    let (until, from) = (crossing.inline_until_bytes.unwrap_or(0), crossing.direct_from_bytes);
    let is_one = |bytes: &u64| *bytes > until && from.is_some_and(|from| *bytes <= from);
    let size = match (crossing.exported_bytes.filter(is_one), crossing.measured_bytes) {
        _ if crossing.inline_ends => None,
        (Some(exported), None) => Some(exported),
        (_, Some(measured)) => Some(measured),
        (None, None) => from,
    };
    (crossing.op, crossing.registered, size)
}

/// Size and median time of the rows of one method.
fn times(rows: &[Row], method: Method, registered: Option<bool>) -> Vec<(f64, f64)> {
    let rows = rows.iter().filter(|row| row.method == Some(method) && row.registered == registered);
    rows.filter_map(|row| Some((row.bytes as f64, row.p50_us?))).collect()
}

/// Where the medians of one method are.
fn intervals(rows: &[Row], method: Method, registered: bool) -> Vec<(f64, f64, f64)> {
    let rows = rows.iter().filter(|row| row.method == Some(method) && row.registered == Some(registered));
    rows.filter_map(|row| Some((row.bytes as f64, row.low?, row.high?))).collect()
}

fn panel(subject: &dyn Subject, op: Op, rows: &[Row], crossings: &[Crossing]) -> Panel {
    let memory = |registered| if registered { "registered" } else { "ordinary memory" };
    let mut curves = Vec::new();
    for registered in [true, false] {
        for method in METHODS {
            let points = times(rows, method, Some(registered));
            let band = intervals(rows, method, registered);
            let name = format!("{method}, {}", memory(registered));
            curves.push(Curve { name, points, reference: false, band });
        }
    }
    if !subject.has_methods() {
        let points = rows.iter().filter_map(|row| Some((row.bytes as f64, row.p50_us?))).collect();
        curves.push(Curve {
            name: subject.transport().to_owned(),
            points,
            reference: false,
            band: Vec::new(),
        });
    }
    // The limits of one panel may differ in kind from size to size; together they are the floor.
    let mut floor: Vec<_> =
        rows.iter().filter_map(|row| Some((row.bytes as f64, row.limit_value?))).collect();
    floor.dedup_by_key(|(bytes, _)| *bytes);
    curves.push(Curve { name: "raw limit".to_owned(), points: floor, reference: true, band: Vec::new() });
    curves.retain(|curve| !curve.points.is_empty());
    let mut marks = Vec::new();
    let mut remarks = Vec::new();
    for crossing in crossings {
        let memory = memory(crossing.registered);
        let mut mark = |kind: &str, x: Option<u64>, to: Option<u64>, dashed| {
            let to = to.map(|bytes| bytes as f64);
            marks.extend(x.map(|x| Mark {
                name: format!("{kind} crossing, {memory}"),
                x: x as f64,
                to,
                dashed,
            }));
        };
        mark("measured", crossing.measured_bytes, None, false);
        if crossing.direct_from_bytes.is_some() {
            mark("measured", crossing.inline_until_bytes, crossing.direct_from_bytes, false);
        }
        mark("exported", crossing.exported_bytes, None, true);
        let (faster, used) = (report::crossing(crossing), report::threshold(crossing.exported_bytes));
        remarks.push(format!("{memory}: direct is faster: {faster}; is used: {used}"));
    }
    Panel {
        title: format!("{}, {op}", subject.transport()),
        x: Axis { label: "size of one operation".to_owned(), scale: Scale::LogBytes },
        y: Axis { label: "median latency (µs)".to_owned(), scale: Scale::Log },
        curves,
        marks,
        remarks,
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
            assert_eq!(crossings_of(&Both, Op::Read, &plan, &[]).len(), crossings, "{methods}");
        }
        let curves = panel(&Both, Op::Read, &rows, &[]).curves;
        assert_eq!(curves.iter().filter(|curve| !curve.reference).count(), METHODS.len());
    }

    #[test]
    fn published_size_is_the_crossing_or_stays_where_both_are_one() {
        let crossing = |inline_until_bytes, direct_from_bytes, measured_bytes, exported_bytes| Crossing {
            transport: "tcp".into(),
            case: None,
            op: Op::Write,
            registered: false,
            inline_until_bytes,
            direct_from_bytes,
            inline_ends: false,
            measured_bytes,
            exported_bytes,
        };
        for (found, size) in [
            (crossing(Some(1024), Some(4096), Some(1500), Some(3000)), Some(1500)),
            (crossing(Some(1024), Some(4096), None, Some(3000)), Some(3000)),
            (crossing(Some(1024), Some(4096), None, Some(1024)), Some(4096)),
            (crossing(Some(1024), Some(4096), None, None), Some(4096)),
            (crossing(None, Some(512), None, Some(4096)), Some(512)),
            (crossing(Some(4096), None, None, Some(512)), None),
            (Crossing { inline_ends: true, ..crossing(Some(4096), Some(8192), None, Some(512)) }, None),
        ] {
            assert_eq!(to_publish(&found), (Op::Write, false, size), "{found:?}");
        }
    }

    #[test]
    fn part_has_its_share_of_the_time_that_is_left() {
        let now = Instant::now();
        let second = std::time::Duration::from_secs(1);
        assert_eq!(share(now, now + 8 * second, 4), now + 2 * second);
        assert_eq!(share(now, now + 8 * second, 0), now + 8 * second);
        assert_eq!(share(now + second, now, 4), now + second);
    }

    #[test]
    fn picture_says_in_words_and_draws_only_what_is_certain() {
        let crossing = |measured_bytes, direct_from_bytes, exported_bytes| Crossing {
            transport: "shm".into(),
            case: None,
            op: Op::Read,
            registered: true,
            inline_until_bytes: Some(4096),
            direct_from_bytes,
            inline_ends: false,
            measured_bytes,
            exported_bytes,
        };
        let drawn = panel(&Both, Op::Read, &[], &[crossing(None, None, None)]);
        assert!(drawn.marks.is_empty());
        assert_eq!(drawn.remarks, ["registered: direct is faster: never; is used: never"]);
        let drawn = panel(&Both, Op::Read, &[], &[crossing(None, Some(16_384), Some(16_385))]);
        let marks: Vec<_> = drawn.marks.iter().map(|mark| (mark.x, mark.to, mark.dashed)).collect();
        assert_eq!(marks, [(4096.0, Some(16_384.0), false), (16_385.0, None, true)]);
        assert_eq!(
            drawn.remarks,
            ["registered: direct is faster: between 4 KiB and 16 KiB; is used: above 16 KiB"]
        );
        let drawn = panel(&Both, Op::Read, &[], &[crossing(Some(5000), Some(8192), None)]);
        assert_eq!(drawn.marks.iter().map(|mark| mark.to).collect::<Vec<_>>(), [None, Some(8192.0)]);
    }
}
