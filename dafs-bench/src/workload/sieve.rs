//! Lists of small pieces of a file, with what lies between them and without: each mode of the server beside every plan that a local program
//! has, by size and density. After Wu, Wyckoff and Panda (2003), Figures 6 and 7, and the plans of their equations.

use dafs_client::Sieve;

use crate::interrupt;
use crate::load::{Budget, FILE_BYTES};
use crate::record::{Axis, Chart, Curve, Method, Op, Panel, Row, Scale, Unit};
use crate::stats::median;
use crate::subject::list::{Lists, evicting};
use crate::subject::pieces::{Naming, Pieces, Plan};
use crate::workload::Bench;

/// Bytes of a piece over bytes from one to the next: one in so many.
const SPARSITIES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

const MODES: [(Method, Sieve); 3] =
    [(Method::Auto, Sieve::Auto), (Method::On, Sieve::On), (Method::Off, Sieve::Off)];

/// What is measured of dafs; local plans come behind it.
const OURS: [(Method, Naming); 4] = [
    (Method::Auto, Naming::List(Sieve::Auto)),
    (Method::On, Naming::List(Sieve::On)),
    (Method::Off, Naming::List(Sieve::Off)),
    (Method::View, Naming::View),
];

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let fits = fitting(bench)?;
    let (mut panels, mut comparisons) = (Vec::new(), Vec::new());
    for transport in bench.plan.transports.clone() {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        bench.pins.be_client();
        let mut lists = bench.subjects.lists(transport, bench.plan.poll())?;
        for op in bench.plan.ops.clone() {
            for registered in bench.plan.registered.clone() {
                for bytes in bench.plan.sizes.clone() {
                    let mut rows = Vec::new();
                    for &(_, sparsity) in fits.iter().filter(|(fitting, _)| *fitting == bytes) {
                        let crate::plan::Plan { segments, cold, direct_io, .. } = *bench.plan;
                        let pieces = Pieces { op, segments, bytes, sparsity, cold, direct_io, registered };
                        let compared = compare(bench, &mut lists, transport.name(), &pieces)?;
                        rows.extend_from_slice(&compared);
                        comparisons.push(compared);
                    }
                    panels.push(panel(transport.name(), op, bytes, registered, &rows));
                    bench.outcome.rows.extend(rows);
                }
            }
        }
    }
    bench.outcome.notes.extend(verdicts(&comparisons));
    let columns = bench.plan.sizes.len();
    bench.outcome.chart = Some(Chart { title: "Lists of small pieces".to_owned(), panels, columns });
    Ok(())
}

/// Sizes and sparsities whose lists fit into half of the file. A note names the others.
fn fitting(bench: &mut Bench<'_>) -> anyhow::Result<Vec<(usize, usize)>> {
    const SPAN_MAX: u64 = FILE_BYTES / 2;
    let segments = bench.plan.segments;
    let all = bench.plan.sizes.iter().flat_map(|&bytes| SPARSITIES.map(|sparsity| (bytes, sparsity)));
    let (fit, other): (Vec<_>, Vec<_>) =
        all.partition(|(bytes, sparsity)| (segments * bytes * sparsity) as u64 <= SPAN_MAX);
    let room = format!("a list of {segments} pieces is to lie within {} MiB", SPAN_MAX >> 20);
    anyhow::ensure!(!fit.is_empty(), "cannot measure: {room}; lower --segments or --sizes");
    if !other.is_empty() {
        let other = other.iter().map(|(bytes, sparsity)| format!("{bytes} bytes, one in {sparsity}"));
        let other = other.collect::<Vec<_>>().join("; ");
        bench.outcome.notes.push(format!("no rows for pieces of {other}: {room}"));
    }
    Ok(fit)
}

/// All modes and plans in alternation: a row for each, beside the quickest plan.
fn compare(
    bench: &mut Bench<'_>,
    lists: &mut Lists,
    transport: &str,
    pieces: &Pieces,
) -> anyhow::Result<Vec<Row>> {
    let has_ring = bench.has_io_uring(pieces.segments);
    let plans =
        Plan::of(pieces.op, pieces.sparsity).iter().filter(|(_, plan)| has_ring || *plan != Plan::IoUring);
    let plans: Vec<_> = plans.collect();
    let mut clear = evicting(pieces.direct_io, bench.file)?;
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    for round in 0..=bench.plan.repeats {
        interrupt::check()?;
        let subjects = OURS.len() + plans.len();
        let mut times = vec![f64::NAN; subjects];
        for step in 0..subjects {
            // Each comes behind another in each round: who comes behind local calls finds a server that has fallen asleep.
            let turn = (round as usize + step) % subjects;
            // What was written through the page cache slows down whoever bypasses it.
            clear()?;
            // To warm up: the caches are those of whoever was measured before.
            let parts: &[u32] = if round > 0 { &[10, 1] } else { &[10] };
            for part in parts {
                let budget = Budget { duration: bench.plan.budget.duration / *part, ..bench.plan.budget };
                bench.samples.clear();
                match OURS.get(turn) {
                    Some((_, naming)) => {
                        bench.pins.be_client();
                        lists.run_pieces(*naming, pieces, bench.file, budget, &mut bench.samples)?;
                    }
                    None => {
                        plans[turn - OURS.len()].1.run(pieces, bench.file, budget, &mut bench.samples)?;
                    }
                }
            }
            times[turn] = bench.samples.quantile_us(0.5).unwrap_or(f64::NAN);
        }
        if round > 0 {
            rounds.push(times);
        }
        bench.progress.step();
    }
    if bench.plan.explain {
        for (mode, sieve) in MODES {
            let told = lists.explain(sieve, pieces, bench.file)?;
            let Pieces { op, segments, bytes, sparsity, .. } = *pieces;
            let what =
                format!("{transport}, {op}, {segments} pieces of {bytes} B, one byte in {sparsity}, {mode}");
            bench.outcome.notes.push(format!("{what}: {told}"));
        }
    }
    let p50 = |index: usize| median(rounds.iter().map(|times| times[index]));
    let methods: Vec<Method> =
        OURS.iter().map(|(method, _)| *method).chain(plans.iter().map(|(method, _)| *method)).collect();
    let best = (OURS.len()..methods.len())
        .min_by(|a, b| p50(*a).unwrap_or(f64::MAX).total_cmp(&p50(*b).unwrap_or(f64::MAX)));
    let Some(best) = best else { return Ok(Vec::new()) };
    let row = |(index, method): (usize, &Method)| {
        let ratios = || rounds.iter().map(|times| times[index] / times[best]);
        Row {
            transport: if index < OURS.len() { transport.to_owned() } else { "raw".to_owned() },
            op: Some(pieces.op),
            method: Some(*method),
            registered: (index < OURS.len()).then_some(pieces.registered),
            segments: Some(pieces.segments),
            bytes: pieces.bytes,
            segment_bytes: Some(pieces.bytes),
            density: Some(1.0 / pieces.sparsity as f64),
            cache: Some(bench.plan.cache()),
            queue_depth: 1,
            p50_us: p50(index),
            limit: Some(methods[best].to_string()),
            limit_value: p50(best),
            limit_unit: Some(Unit::Us),
            ratio: median(ratios()),
            ratio_min: ratios().reduce(f64::min),
            ratio_max: ratios().reduce(f64::max),
            ..Row::default()
        }
        .known_by(rounds.iter().map(|times| times[index]))
    };
    Ok(methods.iter().enumerate().map(row).collect())
}

/// What one comparison says of auto: all of the same rounds.
struct Judged<'r> {
    auto: &'r Row,
    /// The quicker of on and off.
    forced_us: Option<f64>,
    /// A local call for each piece.
    separate_us: Option<f64>,
    /// A view of the same pieces.
    view_us: Option<f64>,
}

impl<'r> Judged<'r> {
    fn of(rows: &'r [Row]) -> Option<Self> {
        let row = |method: Method| rows.iter().find(|row| row.method == Some(method));
        let us = |method: Method| row(method)?.p50_us;
        let forced_us = [Method::On, Method::Off].into_iter().filter_map(us).reduce(f64::min);
        Some(Self {
            auto: row(Method::Auto)?,
            forced_us,
            separate_us: us(Method::Separate),
            view_us: us(Method::View),
        })
    }

    fn who(&self) -> String {
        let op = self.auto.op.map_or_else(String::new, |op| op.to_string());
        format!("{}, {op}, {}", self.auto.transport, self.auto.cache.unwrap_or_default())
    }
}

/// Whether auto is near the quickest plan wherever it was measured, and what a call for each piece would take where none is between.
fn verdicts(comparisons: &[Vec<Row>]) -> Vec<String> {
    let judged: Vec<Judged<'_>> = comparisons.iter().filter_map(|rows| Judged::of(rows)).collect();
    let mut all: Vec<String> = judged.iter().map(Judged::who).collect();
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|who| seen.insert(who.clone()));
    let each = all.into_iter().flat_map(|who| {
        let mine: Vec<&Judged<'_>> = judged.iter().filter(|one| one.who() == who).collect();
        [chosen(&mine, &who), near(&mine, &who), dense(&mine, &who), typed(&mine, &who)]
    });
    each.flatten().collect()
}

/// What the server chooses beside what it can be told to do, over all sizes and densities.
fn chosen(mine: &[&Judged<'_>], who: &str) -> Option<String> {
    let ratios = mine.iter().filter_map(|one| Some((one.auto, one.auto.p50_us? / one.forced_us?)));
    at_most("auto", &ratios.collect::<Vec<_>>(), ("the quicker of on and off", 1.15), who)
}

/// A view of the pieces beside the list of them.
fn typed(mine: &[&Judged<'_>], who: &str) -> Option<String> {
    let ratios = mine.iter().filter_map(|one| Some((one.auto, one.view_us? / one.auto.p50_us?)));
    at_most("a view", &ratios.collect::<Vec<_>>(), ("auto", 1.0), who)
}

/// Auto beside the quickest local plan, which asks nobody, over all sizes and densities.
fn near(mine: &[&Judged<'_>], who: &str) -> Option<String> {
    let ratios: Vec<_> = mine.iter().filter_map(|one| Some((one.auto, one.auto.ratio?))).collect();
    at_most("auto", &ratios, ("the quickest local plan", 1.15), who)
}

fn at_most(what: &str, ratios: &[(&Row, f64)], (of, target): (&str, f64), who: &str) -> Option<String> {
    let (row, worst) = ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let met = ratios.iter().filter(|(_, ratio)| *ratio <= target).count();
    Some(format!(
        "{who}: {what} takes at most {worst:.2} times {of}, most with pieces of {} bytes, one byte in {:.0} (target {target}: {}, at {met} \
         of {})",
        row.bytes,
        1.0 / row.density?,
        verdict(met == ratios.len()),
        ratios.len()
    ))
}

/// A call for each piece beside auto, without gaps and with pieces of 128 bytes.
fn dense(mine: &[&Judged<'_>], who: &str) -> Option<String> {
    const TARGET: f64 = 5.0;
    const BYTES: usize = 128;
    let is_dense = |one: &&&Judged<'_>| one.auto.bytes == BYTES && one.auto.density == Some(1.0);
    let times = mine.iter().filter(is_dense).filter_map(|one| Some(one.separate_us? / one.auto.p50_us?));
    let times = times.reduce(f64::min)?;
    Some(format!(
        "{who}: a call for each of dense pieces of {BYTES} bytes takes {times:.2} times as long as auto (target {TARGET}: {})",
        verdict(times >= TARGET)
    ))
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn panel(transport: &str, op: Op, bytes: usize, registered: bool, rows: &[Row]) -> Panel {
    let methods =
        OURS.iter().map(|(method, _)| *method).chain(Plan::of(op, 1).iter().map(|(method, _)| *method));
    let curve = |method: Method| {
        let own = rows.iter().filter(|row| row.method == Some(method));
        let band = own.clone().filter_map(|row| Some((1.0 / row.density?, row.low?, row.high?))).collect();
        let points = own.filter_map(|row| Some((1.0 / row.density?, row.p50_us?))).collect();
        let reference = !OURS.iter().any(|(ours, _)| *ours == method);
        Curve { name: method.to_string(), points, reference, band }
    };
    let memory = if registered { "registered" } else { "ordinary memory" };
    Panel {
        title: format!("{transport}, {op}, pieces of {bytes} bytes, {memory}"),
        x: Axis { label: "one byte in so many is wanted".to_owned(), scale: Scale::Log },
        y: Axis { label: "one list, us".to_owned(), scale: Scale::Linear },
        curves: methods.map(curve).collect(),
        marks: Vec::new(),
        remarks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(method: Method, sparsity: f64, us: f64, ratio: f64) -> Row {
        Row {
            transport: if method == Method::Separate { "raw" } else { "shm" }.to_owned(),
            op: Some(Op::Read),
            method: Some(method),
            bytes: 128,
            segments: Some(128),
            density: Some(1.0 / sparsity),
            cache: Some("warm"),
            p50_us: Some(us),
            ratio: Some(ratio),
            ..Row::default()
        }
    }

    #[test]
    fn auto_is_judged_by_its_worst_density_and_by_separate_calls() {
        for (ratio, us, near, dense) in
            [(1.15, 50.0, "met, at 2 of 2", "met"), (1.16, 49.9, "missed, at 1 of 2", "missed")]
        {
            let notes = verdicts(&[
                vec![row(Method::Auto, 1.0, 10.0, 0.5), row(Method::Separate, 1.0, us, 3.0)],
                vec![row(Method::Auto, 8.0, 10.0, ratio), row(Method::Separate, 8.0, 1.0, 3.0)],
            ]);
            assert_eq!(notes.len(), 2, "{notes:?}");
            assert!(notes[0].ends_with(&format!("one byte in 8 (target 1.15: {near})")), "{notes:?}");
            assert!(notes[1].ends_with(&format!("(target 5: {dense})")), "{notes:?}");
        }
    }

    #[test]
    fn choice_is_judged_beside_the_quicker_that_was_forced() {
        for (us, says) in [(11.5, "met, at 2 of 2"), (11.6, "missed, at 1 of 2")] {
            let compared = |sparsity, auto, on, off| {
                let row = |method, us| row(method, sparsity, us, 0.5);
                vec![row(Method::Auto, auto), row(Method::On, on), row(Method::Off, off)]
            };
            let notes = verdicts(&[compared(1.0, 4.0, 5.0, 50.0), compared(8.0, us, 30.0, 10.0)]);
            let ends =
                format!("on and off, most with pieces of 128 bytes, one byte in 8 (target 1.15: {says})");
            assert!(notes[0].ends_with(&ends), "{notes:?}");
        }
    }

    #[test]
    fn view_is_judged_beside_the_list_of_its_pieces() {
        for (us, says) in [(10.0, "1.00 times auto"), (10.1, "1.01 times auto")] {
            let compared = |sparsity, view| {
                vec![row(Method::Auto, sparsity, 10.0, 0.5), row(Method::View, sparsity, view, 0.5)]
            };
            let notes = verdicts(&[compared(1.0, 5.0), compared(8.0, us)]);
            assert!(notes[1].contains(&format!("a view takes at most {says}")), "{notes:?}");
            let verdict = if us > 10.0 { "missed, at 1 of 2" } else { "met, at 2 of 2" };
            assert!(notes[1].ends_with(&format!("one byte in 8 (target 1: {verdict})")), "{notes:?}");
        }
    }

    #[test]
    fn rows_of_other_directions_and_caches_are_judged_apart() {
        let mut cold = row(Method::Auto, 1.0, 10.0, 2.0);
        cold.cache = Some("cold");
        let warm = vec![row(Method::Auto, 1.0, 10.0, 0.5), row(Method::Separate, 1.0, 60.0, 3.0)];
        let notes = verdicts(&[warm, vec![cold]]);
        let begins: Vec<&str> = notes.iter().map(|note| &note[..note.find(':').unwrap()]).collect();
        assert_eq!(begins, ["shm, read, warm", "shm, read, warm", "shm, read, cold"]);
        assert!(notes[2].contains("2.00 times") && notes[2].contains("missed"), "{notes:?}");
    }

    #[test]
    fn dense_pieces_are_judged_beside_calls_of_the_same_rounds() {
        // Ordinary memory after registered: whoever takes the first call of all would find 10 times.
        let compared = |us| vec![row(Method::Auto, 1.0, 10.0, 0.5), row(Method::Separate, 1.0, us, 3.0)];
        let notes = verdicts(&[compared(100.0), compared(40.0)]);
        assert!(notes[1].contains("takes 4.00 times as long as auto (target 5: missed)"), "{notes:?}");
    }
}
