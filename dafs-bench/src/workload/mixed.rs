//! One client in the page cache, another on the disk: whether waiting for the disk holds up those who need not wait.

use std::sync::Barrier;

use crate::interrupt;
use crate::limit::{Limit, Stage};
use crate::load::{Budget, Load, Work};
use crate::record::{Op, Row, Unit};
use crate::stats::{Samples, median};
use crate::subject::Pair;
use crate::workload::Bench;

/// What one round gave, in operations per second.
struct Round {
    pread_direct: f64,
    disk_alone: f64,
    cached_alone: f64,
    disk_beside: f64,
    cached_beside: f64,
}

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for transport in bench.plan.transports.clone() {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        bench.pins.be_client();
        let mut pair = bench.subjects.pair(transport, bench.plan.poll())?;
        for bytes in bench.plan.sizes.clone() {
            for depth in bench.plan.queue_depths.clone() {
                let rows = compare(bench, &mut pair, bytes, depth)?;
                bench.outcome.rows.extend(rows);
            }
        }
    }
    Ok(())
}

/// Every round takes all five figures, so that a machine that is busy for a while spoils one round only.
fn compare(
    bench: &mut Bench<'_>,
    pair: &mut Pair,
    bytes: usize,
    queue_depth: usize,
) -> anyhow::Result<[Row; 4]> {
    let budget = bench.plan.budget;
    let on_disk = bench.load(Op::Read, bytes, queue_depth);
    let in_cache = Load { queue_depth: 1, ..on_disk };
    bench.run_subject(pair.cached.as_mut(), &in_cache, budget)?;
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.repeats {
        pair.cached.rest()?;
        let stage = Stage { file: &pair.disk_file, pins: bench.pins, verbs: None, budget };
        let alone = Load { queue_depth: 1, ..on_disk };
        let pread_direct = Limit::FileDirect.measure(&alone, Unit::OpsPerS, &stage, &mut bench.samples);
        pair.cached.wake()?;
        let disk_alone = bench.run_subject(pair.disk.as_mut(), &on_disk, budget)?;
        let cached_alone = bench.run_subject(pair.cached.as_mut(), &in_cache, budget)?;
        let (disk_beside, cached_beside) = both(bench, pair, &on_disk, &in_cache, budget)?;
        rounds.push(Round {
            pread_direct: pread_direct?.value,
            disk_alone: disk_alone.ops_per_s(),
            cached_alone: cached_alone.ops_per_s(),
            disk_beside: disk_beside.ops_per_s(),
            cached_beside: cached_beside.ops_per_s(),
        });
        bench.progress.step();
    }
    let transport = pair.cached.transport();
    let row = |case, load: &Load, limit: &str, ours: fn(&Round) -> f64, bound: fn(&Round) -> f64| {
        Row {
            transport: transport.to_owned(),
            case: Some(case),
            op: Some(load.op),
            method: Some(load.method),
            registered: Some(load.registered),
            bytes,
            queue_depth: load.queue_depth,
            ops_per_s: median(rounds.iter().map(ours)),
            limit: Some(limit.to_owned()),
            limit_value: median(rounds.iter().map(bound)),
            ratio: median(rounds.iter().map(|round| Unit::OpsPerS.ratio(ours(round), bound(round)))),
            limit_unit: Some(Unit::OpsPerS),
            ..Row::default()
        }
        .known_by(rounds.iter().map(ours))
    };
    let cached_row =
        |case, ours: fn(&Round) -> f64| row(case, &in_cache, "alone", ours, |round| round.cached_alone);
    Ok([
        row("disk", &on_disk, "pread_direct", |round| round.disk_alone, |round| round.pread_direct),
        row("disk, beside cached", &on_disk, "alone", |round| round.disk_beside, |round| round.disk_alone),
        cached_row("cached", |round| round.cached_alone),
        cached_row("cached, beside disk", |round| round.cached_beside),
    ])
}

/// Runs both clients at once, each in a thread of its own; the work of the disk's and of the cache's.
fn both(
    bench: &mut Bench<'_>,
    pair: &mut Pair,
    on_disk: &Load,
    in_cache: &Load,
    budget: Budget,
) -> anyhow::Result<(Work, Work)> {
    interrupt::check()?;
    let Pair { disk, cached, .. } = pair;
    let (pins, start) = (bench.pins, Barrier::new(2));
    bench.samples.clear();
    std::thread::scope(|scope| {
        let disk = scope.spawn(|| {
            pins.be_client();
            start.wait();
            disk.run(on_disk, budget, &mut Samples::default())
        });
        pins.be_client();
        start.wait();
        let cached = cached.run(in_cache, budget, &mut bench.samples);
        let disk = disk.join().map_err(|_| anyhow::anyhow!("the thread of the disk's client panicked"))?;
        Ok((disk?, cached?))
    })
}
