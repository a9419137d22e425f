//! What locks cost: by themselves, in a chain, beside ten thousands of others, and where two sessions want the same one.

use std::time::{Duration, Instant};

use anyhow::Context;
use dafs_client::{File, LockKind, LockOptions, Session};

use crate::interrupt;
use crate::record::{Axis, Chart, Curve, Panel, Row, Scale};
use crate::stats::median;
use crate::workload::Bench;

/// Bytes that are written under a lock, and that it covers.
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
}

const CASES: [Case; 5] = [
    Case { name: "empty", limit: None },
    Case { name: "uncontended", limit: Some(("empty", 2.0)) },
    Case { name: "write", limit: None },
    Case { name: "chain", limit: Some(("write", 1.0)) },
    Case { name: "contended", limit: Some(("empty", 2.0)) },
];

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut panels = Vec::new();
    for transport in bench.plan.transports.clone() {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        bench.pins.be_client();
        let crowd = bench.subjects.crowd(transport, bench.plan.poll(), 1)?;
        let dafs = crowd.clients.first().context("no session")?;
        let links: Vec<(Session, File)> = (0..3).map(|_| dafs.plain()).collect::<anyhow::Result<_>>()?;
        costs(bench, transport.name(), &links)?;
        panels.push(held(bench, transport.name(), &links)?);
    }
    let title = "A lock and its end while others hold ranges of the same file".to_owned();
    bench.outcome.chart = Some(Chart { title, panels, columns: bench.plan.transports.len() });
    Ok(())
}

/// All cases in alternation.
fn costs(bench: &mut Bench<'_>, transport: &str, links: &[(Session, File)]) -> anyhow::Result<()> {
    let mut rounds: Vec<Vec<[f64; 2]>> = vec![Vec::new(); CASES.len()];
    bench.progress.expect((bench.plan.repeats as usize + 1) * CASES.len());
    for round in 0..=bench.plan.repeats {
        for (case, times) in CASES.iter().zip(&mut rounds) {
            interrupt::check()?;
            let time = time(case.name, links, bench.plan.budget.duration)?;
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
        bench.outcome.rows.push(Row {
            transport: transport.to_owned(),
            case: Some(case.name),
            bytes: BYTES,
            queue_depth: 1,
            p50_us: median(times.iter().map(|time| time[0])),
            p99_us: median(times.iter().map(|time| time[1])),
            limit: beside
                .map(|(name, count, _)| if count > 1.0 { format!("2 × {name}") } else { name.to_owned() }),
            limit_value: beside
                .and_then(|(_, count, limits)| Some(count * median(limits.iter().map(|t| t[0]))?)),
            ratio: median(ratios.iter().copied()),
            ratio_min: ratios.iter().copied().reduce(f64::min),
            ratio_max: ratios.iter().copied().reduce(f64::max),
            ..Row::default()
        });
    }
    Ok(())
}

/// Median and 99th percentile of one step of a case, microseconds.
fn time(case: &str, links: &[(Session, File)], budget: Duration) -> anyhow::Result<[f64; 2]> {
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
        _ => contended(links, budget),
    }
}

/// Two sessions hand one lock to and fro: the time from one's wish to its end of the lock.
fn contended(links: &[(Session, File)], budget: Duration) -> anyhow::Result<[f64; 2]> {
    let hand = |file: &File| {
        steps(budget, || {
            file.lock(AT..AT + 1, LockKind::Exclusive)?;
            Ok(file.unlock(AT..AT + 1)?)
        })
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| hand(&links[1].1));
        let own = hand(&links[2].1)?;
        other.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        Ok(own)
    })
}

fn steps(budget: Duration, mut step: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<[f64; 2]> {
    let end = Instant::now() + budget;
    let mut times = Vec::new();
    loop {
        let begin = Instant::now();
        step()?;
        let now = Instant::now();
        times.push((now - begin).as_secs_f64() * 1e6);
        if now >= end {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok([times[times.len() / 2], times[times.len() * 99 / 100]])
}

/// A lock and its end, while another session holds more and more ranges.
fn held(bench: &mut Bench<'_>, transport: &str, links: &[(Session, File)]) -> anyhow::Result<Panel> {
    let (_, other) = &links[1];
    let (mut points, mut count) = (Vec::new(), 0);
    bench.progress.expect(HELD.len());
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
            rounds.push(time("uncontended", links, bench.plan.budget.duration)?);
        }
        let p50 = median(rounds.iter().map(|round| round[0]));
        points.extend(p50.map(|us| (more as f64, us)));
        bench.outcome.rows.push(Row {
            transport: transport.to_owned(),
            case: Some("held"),
            segments: usize::try_from(more).ok(),
            bytes: BYTES,
            queue_depth: 1,
            p50_us: p50,
            p99_us: median(rounds.iter().map(|round| round[1])),
            ..Row::default()
        });
        bench.progress.step();
    }
    other.unlock(0..u64::MAX)?;
    Ok(Panel {
        title: transport.to_owned(),
        x: Axis { label: "ranges that another session holds".to_owned(), scale: Scale::Linear },
        y: Axis { label: "lock and unlock, us".to_owned(), scale: Scale::Linear },
        curves: vec![Curve { name: "uncontended".to_owned(), points, reference: false }],
        marks: Vec::new(),
    })
}
