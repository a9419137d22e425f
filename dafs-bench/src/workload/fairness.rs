//! Small reads of one client while another has a great many large ones outstanding; and many sessions that all want the same.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;
use dafs_client::{File, Pending, Session, Transferred};

use crate::interrupt;
use crate::load::{Budget, Load};
use crate::record::{Op, Row, Unit};
use crate::stats::{Samples, median};
use crate::subject::Subject;
use crate::subject::bulk::{Bulk, BulkSetup, Mover};
use crate::subject::dafs::{Dafs, whole};
use crate::workload::Bench;

/// Bytes of each file: every large read in flight may have a place of its own, and there is memory for it.
const FILE_BYTES: u64 = 256 << 20;
/// Bytes of a large read.
const BULK_BYTES: usize = 1 << 20;

/// Times of small reads in microseconds, median and 99th percentile, alone and beside large ones, and what the large ones moved.
struct Round {
    alone: [f64; 2],
    beside: [f64; 2],
    bulk_mib_per_s: f64,
}

pub(super) fn run(bench: &mut Bench<'_>, outstanding: usize) -> anyhow::Result<()> {
    for transport in bench.plan.transports.clone() {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        bench.pins.be_client();
        let setup = BulkSetup { transport, poll: bench.plan.poll(), file_bytes: FILE_BYTES, pipeline: None };
        let mut bulk = bench.subjects.bulk(&setup)?;
        for bytes in bench.plan.sizes.clone() {
            for on_disk in [false, true] {
                let rows = compare(bench, &mut bulk, bytes, on_disk, outstanding)?;
                bench.outcome.rows.extend(rows);
            }
        }
    }
    Ok(())
}

fn compare(
    bench: &mut Bench<'_>,
    bulk: &mut Bulk,
    bytes: usize,
    on_disk: bool,
    outstanding: usize,
) -> anyhow::Result<[Row; 2]> {
    let load = bench.load(Op::Read, bytes, 1);
    let subject = if on_disk { &mut bulk.disk } else { &mut bulk.memory };
    let other = Mover::of(subject, outstanding)?;
    bench.run_subject(subject, &load, bench.plan.budget)?;
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.repeats {
        bench.run_subject(subject, &load, bench.plan.budget)?;
        let alone = times(&mut bench.samples)?;
        let mib = beside(bench, subject, &other, &load, outstanding)?;
        rounds.push(Round { alone, beside: times(&mut bench.samples)?, bulk_mib_per_s: mib });
        bench.progress.step();
    }
    let cases =
        if on_disk { ["disk, alone", "disk, beside bulk"] } else { ["cached, alone", "cached, beside bulk"] };
    let row = |case, of: fn(&Round) -> [f64; 2]| Row {
        transport: subject.transport().to_owned(),
        case: Some(case),
        op: Some(Op::Read),
        method: Some(load.method),
        registered: Some(load.registered),
        bytes,
        queue_depth: 1,
        p50_us: median(rounds.iter().map(|round| of(round)[0])),
        p99_us: median(rounds.iter().map(|round| of(round)[1])),
        ..Row::default()
    };
    let ratios = || rounds.iter().map(|round| round.beside[0] / round.alone[0]);
    Ok([
        row(cases[0], |round| round.alone).known_by(rounds.iter().map(|round| round.alone[0])),
        Row {
            limit: Some("alone".to_owned()),
            limit_value: median(rounds.iter().map(|round| round.alone[0])),
            limit_unit: Some(Unit::Us),
            ratio: median(ratios()),
            ratio_min: ratios().reduce(f64::min),
            ratio_max: ratios().reduce(f64::max),
            mib_per_s: median(rounds.iter().map(|round| round.bulk_mib_per_s)),
            ..row(cases[1], |round| round.beside)
        }
        .known_by(rounds.iter().map(|round| round.beside[0])),
    ])
}

fn times(samples: &mut Samples) -> anyhow::Result<[f64; 2]> {
    match (samples.quantile_us(0.5), samples.quantile_us(0.99)) {
        (Some(p50), Some(p99)) => Ok([p50, p99]),
        _ => anyhow::bail!("cannot measure: no read ended in time; raise --seconds"),
    }
}

/// Small reads while the other client keeps its many large ones outstanding; what those moved, in MiB/s.
fn beside(
    bench: &mut Bench<'_>,
    subject: &mut Dafs,
    other: &Mover,
    load: &Load,
    outstanding: usize,
) -> anyhow::Result<f64> {
    interrupt::check()?;
    let (pins, started, stop) = (bench.pins, AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            pins.be_client();
            let ops = other.flood(BULK_BYTES, outstanding, FILE_BYTES, &started, &stop);
            // Whoever waits for its start must not wait for ever.
            started.store(true, Ordering::Release);
            ops
        });
        pins.be_client();
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let began = Instant::now();
        bench.samples.clear();
        let budget = Budget { ops_min: 100, ops_slow_min: 100, ..bench.plan.budget };
        let small = subject.run(load, budget, &mut bench.samples);
        let elapsed = began.elapsed();
        stop.store(true, Ordering::Release);
        let ops = flood.join().map_err(|_| anyhow::anyhow!("the thread of the other client panicked"))??;
        small?;
        // Its last ones are collected after the small ones have ended: not counted here.
        let moved = ops.saturating_sub(2 * outstanding as u64) as f64;
        Ok(moved * BULK_BYTES as f64 / (1 << 20) as f64 / elapsed.as_secs_f64().max(1e-9))
    })
}

/// Reads that each of many sessions keeps in flight.
const READS_EACH: usize = 4;

/// One of many sessions, its reads in flight, and how many have ended.
struct Member {
    // Before the session that they belong to.
    in_flight: VecDeque<Pending<Transferred<Vec<u8>>>>,
    file: File,
    session: Session,
    ended: u64,
}

/// `count` sessions at once: what the one gets that gets least.
pub(super) fn run_many(bench: &mut Bench<'_>, count: usize) -> anyhow::Result<()> {
    for transport in bench.plan.transports.clone() {
        bench.progress.doing(format!("opening {count} sessions over {}", transport.name()));
        bench.pins.be_client();
        let crowd = bench.subjects.crowd(transport, bench.plan.poll(), 1)?;
        let first = crowd.clients.first().context("no session")?;
        let members = (0..count).map(|_| {
            interrupt::check()?;
            let (session, file) = first.one_of_many()?;
            Ok(Member { in_flight: VecDeque::new(), file, session, ended: 0 })
        });
        let mut members = members.collect::<anyhow::Result<Vec<_>>>()?;
        for bytes in bench.plan.sizes.clone() {
            let rows = share(bench, transport.name(), &mut members, bytes)?;
            bench.outcome.rows.extend(rows);
        }
    }
    Ok(())
}

fn share(
    bench: &mut Bench<'_>,
    transport: &str,
    members: &mut [Member],
    bytes: usize,
) -> anyhow::Result<[Row; 2]> {
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.repeats {
        interrupt::check()?;
        let began = Instant::now();
        read_all_at_once(members, bytes, bench.plan.budget)?;
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        let all: u64 = members.iter().map(|member| member.ended).sum();
        let least = members.iter().map(|member| member.ended).min().unwrap_or(0);
        rounds.push((all as f64 / seconds, least as f64 / seconds));
        drain(members)?;
        bench.progress.step();
    }
    let count = members.len();
    let row = |case, ops_per_s| Row {
        transport: transport.to_owned(),
        case: Some(case),
        op: Some(Op::Read),
        bytes,
        queue_depth: READS_EACH,
        sessions: Some(count),
        ops_per_s,
        ..Row::default()
    };
    let ratios = || rounds.iter().map(|(all, least)| all / count as f64 / least.max(1e-9));
    Ok([
        row("many, all", median(rounds.iter().map(|(all, _)| *all))),
        Row {
            limit: Some("equal share".to_owned()),
            limit_value: median(rounds.iter().map(|(all, _)| all / count as f64)),
            limit_unit: Some(Unit::OpsPerS),
            ratio: median(ratios()),
            ratio_min: ratios().reduce(f64::min),
            ratio_max: ratios().reduce(f64::max),
            ..row("many, least", median(rounds.iter().map(|(_, least)| *least)))
        },
    ])
}

/// Every member keeps its reads in flight until each has had some, on average as many as `budget` says, and its time is over.
fn read_all_at_once(members: &mut [Member], bytes: usize, budget: Budget) -> anyhow::Result<()> {
    let places = crate::load::FILE_BYTES / bytes as u64;
    let submit = |member: &mut Member, buffer: Vec<u8>, at: u64| {
        let place = at.wrapping_mul(7919) % places;
        member.in_flight.push_back(member.file.submit_read_at(buffer, place * bytes as u64));
    };
    for (at, member) in (0..).zip(members.iter_mut()) {
        member.ended = 0;
        (0..READS_EACH).for_each(|_| submit(member, vec![0x5a; bytes], at));
        member.session.flush();
    }
    let (began, mut all) = (Instant::now(), 0);
    let wanted = budget.ops_min * members.len() as u64;
    while all < wanted || began.elapsed() < budget.duration {
        interrupt::check()?;
        for member in members.iter_mut() {
            let before = member.ended;
            while member.in_flight.front_mut().is_some_and(Pending::test) {
                let Some(pending) = member.in_flight.pop_front() else { break };
                let (moved, buffer) = pending.wait().into_result()?;
                whole(moved, bytes)?;
                (member.ended, all) = (member.ended + 1, all + 1);
                submit(member, buffer, all);
            }
            if member.ended > before {
                member.session.flush();
            }
        }
    }
    Ok(())
}

fn drain(members: &mut [Member]) -> anyhow::Result<()> {
    for pending in members.iter_mut().flat_map(|member| member.in_flight.drain(..)) {
        pending.wait().into_result()?;
    }
    Ok(())
}
