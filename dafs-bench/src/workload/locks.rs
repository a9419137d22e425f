//! What locks cost: by themselves, in a chain, beside ten thousands of others, and where two sessions want the same one.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use dafs_client::{File, LockKind, LockOptions, Session};

use crate::interrupt;
use crate::machine::Pins;
use crate::record::{Axis, Chart, Curve, Panel, Row, Scale, Unit};
use crate::stats::median;
use crate::workload::Bench;

/// Bytes that `write` and `chain` move.
const BYTES: usize = 4096;

/// Where the locked range begins: behind all that are held beside it.
const AT: u64 = 1 << 40;

/// Ranges that others hold meanwhile; a session may hold 65,536.
const HELD: [u64; 4] = [0, 100, 10_000, 60_000];

/// A case, and what it is compared with.
struct Case {
    name: &'static str,
    /// Name and number of times of what stands beside it.
    limit: Option<(&'static str, f64)>,
    /// Bytes of the file that it moves.
    bytes: usize,
}

const CASES: [Case; 5] = [
    Case { name: "empty", limit: None, bytes: 0 },
    Case { name: "uncontended", limit: Some(("empty", 2.0)), bytes: 0 },
    Case { name: "write", limit: None, bytes: BYTES },
    Case { name: "chain", limit: Some(("write", 1.0)), bytes: BYTES },
    Case { name: "contended", limit: Some(("empty", 2.0)), bytes: 0 },
];

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut panels = Vec::new();
    for transport in bench.plan.transports.clone() {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        bench.pins.be_client();
        let crowd = bench.subjects.crowd(transport, bench.plan.poll(), 1)?;
        let dafs = crowd.clients.first().context("no session")?;
        let links: Vec<(Session, File)> = (0..3).map(|_| dafs.plain()).collect::<anyhow::Result<_>>()?;
        let first = bench.outcome.rows.len();
        costs(bench, transport.name(), &links)?;
        held(bench, transport.name(), &links)?;
        panels.push(panel(transport.name(), &bench.outcome.rows[first..]));
    }
    let title = "Byte-range locks".to_owned();
    bench.outcome.chart = Some(Chart { title, panels, columns: bench.plan.transports.len() });
    Ok(())
}

/// All cases in alternation.
fn costs(bench: &mut Bench<'_>, transport: &str, links: &[(Session, File)]) -> anyhow::Result<()> {
    let mut rounds: Vec<Vec<[f64; 2]>> = vec![Vec::new(); CASES.len()];
    for round in 0..=bench.plan.repeats {
        for (case, times) in CASES.iter().zip(&mut rounds) {
            interrupt::check()?;
            let time = time(case.name, links, bench.pins, bench.plan.budget.duration)?;
            // The first is to warm up.
            if round > 0 {
                times.push(time);
            }
            bench.progress.step();
        }
    }
    let p50 = |name: &str| CASES.iter().position(|case| case.name == name).map(|at| &rounds[at]);
    for (case, times) in CASES.iter().zip(&rounds) {
        let beside = case.limit.and_then(|(name, times)| Some((name, times, p50(name)?)));
        let ratios: Vec<f64> = beside.map_or_else(Vec::new, |(_, count, limits)| {
            times.iter().zip(limits).map(|(own, limit)| own[0] / (count * limit[0])).collect()
        });
        let row = Row {
            transport: transport.to_owned(),
            case: Some(case.name),
            bytes: case.bytes,
            queue_depth: 1,
            p50_us: median(times.iter().map(|time| time[0])),
            p99_us: median(times.iter().map(|time| time[1])),
            limit: beside
                .map(|(name, count, _)| if count > 1.0 { format!("2 × {name}") } else { name.to_owned() }),
            limit_value: beside
                .and_then(|(_, count, limits)| Some(count * median(limits.iter().map(|t| t[0]))?)),
            limit_unit: Some(Unit::Us),
            ratio: median(ratios.iter().copied()),
            ratio_min: ratios.iter().copied().reduce(f64::min),
            ratio_max: ratios.iter().copied().reduce(f64::max),
            ..Row::default()
        };
        bench.outcome.rows.push(row.known_by(times.iter().map(|time| time[0])));
    }
    Ok(())
}

/// Median and 99th percentile of one step of a case, microseconds.
fn time(case: &str, links: &[(Session, File)], pins: &Pins, budget: Duration) -> anyhow::Result<[f64; 2]> {
    let (session, file) = &links[0];
    let (data, range) = ([0x5a; BYTES], AT..AT + BYTES as u64);
    let lock = || anyhow::Ok(file.lock(range.clone(), LockKind::Exclusive)?);
    match case {
        "empty" => steps(budget, || Ok(session.ping().map(drop)?)),
        "uncontended" => steps(budget, || lock().and_then(|()| Ok(file.unlock(range.clone())?))),
        "write" => steps(budget, || Ok(file.write_all_at(&data, 0)?)),
        "chain" => steps(budget, || {
            let chain = file.chain().lock(0..BYTES as u64, LockKind::Exclusive).write_at(&data, 0);
            Ok(chain.unlock(0..BYTES as u64).run().map(drop)?)
        }),
        _ => contended(links, pins, budget),
    }
}

/// Two sessions hand one lock to and fro: the time from one's wish to its end of the lock. Neither is pinned: on one CPU they would
/// wait for each other's turn on it as well.
fn contended(links: &[(Session, File)], pins: &Pins, budget: Duration) -> anyhow::Result<[f64; 2]> {
    let hand = |file: &File| {
        file.lock(AT..AT + 1, LockKind::Exclusive)?;
        anyhow::Ok(file.unlock(AT..AT + 1)?)
    };
    let (start, stop) = (Barrier::new(2), AtomicBool::new(false));
    pins.be_anywhere();
    let own = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            start.wait();
            while !stop.load(Ordering::Relaxed) {
                hand(&links[1].1)?;
            }
            anyhow::Ok(())
        });
        start.wait();
        let own = steps(budget, || hand(&links[2].1));
        stop.store(true, Ordering::Relaxed);
        other.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        own
    });
    pins.be_client();
    own
}

/// Steps one after the other until the budget is used up: median and 99th percentile, microseconds.
pub(super) fn steps(
    budget: Duration,
    mut step: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<[f64; 2]> {
    let end = Instant::now() + budget;
    let mut times = Vec::new();
    loop {
        let begin = Instant::now();
        step()?;
        let now = Instant::now();
        times.push((now - begin).as_secs_f64() * 1e6);
        if now >= end || interrupt::requested() {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok([times[times.len() / 2], times[times.len() * 99 / 100]])
}

/// A lock and its end, while another session holds more and more ranges.
fn held(bench: &mut Bench<'_>, transport: &str, links: &[(Session, File)]) -> anyhow::Result<()> {
    let (_, other) = &links[1];
    let mut count = 0;
    for more in HELD {
        bench.progress.doing(format!("{more} ranges are held"));
        while count < more {
            interrupt::check()?;
            let many = (count..more.min(count + 64)).map(|at| {
                let options = LockOptions::default();
                other.submit_try_lock_with(2 * at..2 * at + 1, LockKind::Exclusive, options)
            });
            for pending in many.collect::<Vec<_>>() {
                pending.wait()?;
                count += 1;
            }
        }
        let mut rounds = Vec::new();
        for _ in 0..bench.plan.repeats {
            rounds.push(time("uncontended", links, bench.pins, bench.plan.budget.duration)?);
        }
        bench.outcome.rows.push(Row {
            transport: transport.to_owned(),
            case: Some("held"),
            held: Some(more),
            queue_depth: 1,
            p50_us: median(rounds.iter().map(|round| round[0])),
            p99_us: median(rounds.iter().map(|round| round[1])),
            ..Row::default()
        });
        bench.progress.step();
    }
    other.unlock(0..u64::MAX)?;
    Ok(())
}

/// Time by the ranges that another session holds, and of the cases that know none of these, as levels.
fn panel(transport: &str, rows: &[Row]) -> Panel {
    // A logarithmic axis has no place for none.
    let held = rows.iter().filter_map(|row| Some((row.held?.max(1) as f64, row.p50_us?)));
    let last = HELD[HELD.len() - 1] as f64;
    let level = |case: &Case| {
        let row = rows.iter().find(|row| row.case == Some(case.name));
        let us = row.and_then(|row| row.p50_us);
        let points = us.map_or_else(Vec::new, |us| vec![(1.0, us), (last, us)]);
        Curve { name: case.name.to_owned(), points, reference: case.limit.is_none(), band: Vec::new() }
    };
    let curve = Curve { name: "held".to_owned(), points: held.collect(), reference: false, band: Vec::new() };
    Panel {
        title: transport.to_owned(),
        x: Axis { label: "ranges that another session holds (none at 1)".to_owned(), scale: Scale::Log },
        y: Axis { label: "one step (µs)".to_owned(), scale: Scale::Log },
        curves: std::iter::once(curve).chain(CASES.iter().map(level)).collect(),
        marks: Vec::new(),
        remarks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_every_case_and_the_ranges_held() {
        let row = |case, held, us| Row { case: Some(case), held, p50_us: Some(us), ..Row::default() };
        let mut rows: Vec<Row> = CASES.iter().map(|case| row(case.name, None, 2.0)).collect();
        rows.extend([row("held", Some(0), 3.0), row("held", Some(100), 4.0)]);
        let panel = panel("shm", &rows);
        let names: Vec<&str> = panel.curves.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["held", "empty", "uncontended", "write", "chain", "contended"]);
        assert_eq!(panel.curves[0].points, [(1.0, 3.0), (100.0, 4.0)]);
        assert_eq!(panel.curves[5].points, [(1.0, 2.0), (60_000.0, 2.0)]);
    }
}
