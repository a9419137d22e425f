//! What registering ordinary memory costs, and what keeping and grouping registrations saves.
//!
//! Three parts: the rows of an array in one operation (Wu, Wyckoff, Panda, "Supporting efficient noncontiguous access in
//! PVFS over InfiniBand", Table 4), a pin-down cache against registering anew ("PVFS over InfiniBand", Figure 8), and what a
//! hit and a miss of the cache add to an operation.

use std::collections::VecDeque;
use std::io::IoSlice;

use anyhow::{Context, ensure};
use dafs_client::{File, PinnedBuf, RegistrationConfig, Session};

use crate::interrupt;
use crate::load::{FILE_BYTES, Work};
use crate::record::{Axis, Chart, Curve, Method, Op, Panel, Row, Scale, Unit};
use crate::stats::median;
use crate::subject::dafs::{Dafs, repeat, whole};
use crate::sys::Mapping;
use crate::workload::Bench;

const ROWS: usize = 1024;
const ROW_BYTES: usize = 4096;
const ROW_STRIDE: usize = 2 * ROW_BYTES;
const HOLES: usize = 10;

const BUFFERS: usize = 1000;
/// Those of all cases.
pub(crate) const BUFFERS_ALIVE: u64 = 4 * BUFFERS as u64;
const ENTRIES: usize = 100;
const BATCH: usize = 16;
/// Shares of hits; the paper's are 0.2 and 0.8.
const HIT_RATIOS: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
/// Look-ups that are timed together: one is shorter than reading the clock.
const LOOKUPS: usize = 1000;
/// A hit is one of so many used last: fewer than are left after a batch was given up.
const RECENT: usize = ENTRIES / 2;

/// One way to do the same operation.
struct Case<'a> {
    name: &'static str,
    session: Session,
    step: Box<dyn FnMut() -> anyhow::Result<()> + 'a>,
}

/// What a case gave, medians over the rounds.
struct Figures {
    name: &'static str,
    p50_us: f64,
    mib_per_s: f64,
    registrations: f64,
    hit_ratio: Option<f64>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut panels = Vec::new();
    for transport in bench.plan.transports.clone() {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        bench.pins.be_client();
        let crowd = bench.subjects.crowd(transport, bench.plan.poll(), 1)?;
        let dafs = crowd.clients.first().context("no session")?;
        rows_of_an_array(bench, dafs, transport.name())?;
        for bytes in bench.plan.sizes.clone() {
            let panel = cache(bench, dafs, transport.name(), bytes)?;
            bench.outcome.notes.extend(cache_note(&panel));
            panels.push(panel);
            hit_and_miss(bench, dafs, transport.name(), bytes)?;
        }
    }
    let title = "Keeping registrations: bandwidth beside memory that is registered already".to_owned();
    bench.outcome.chart = Some(Chart { title, panels, columns: bench.plan.transports.len() });
    Ok(())
}

/// How what the rows cost compares with the paper's Table 4, of these figures.
fn rows_note(transport: &str, figures: &[Figures]) -> Option<String> {
    let bandwidth = |name: &str| {
        Some(figures.iter().find(|figures| figures.name == name)?.mib_per_s).filter(|mib| *mib > 0.0)
    };
    let registered = bandwidth("rows-registered")?;
    let lost = |name: &str| Some(100.0 * (1.0 - bandwidth(name)? / registered));
    let (individual, group, holes) =
        (lost("rows-individual")?, lost("rows-group")?, lost("rows-group-holes")?);
    Some(format!(
        "{transport}, rows: registered one by one they lose {individual:.0} % of the bandwidth, as one group {group:.0} %, \
         with {HOLES} holes {holes:.0} %; the paper's (Table 4) lost 57 % one by one, where its cards took 5 us for each: \
         here that is what an entry in a table and a longer list cost, except with RDMA devices"
    ))
}

/// The same of the cache, Figure 8: what is lost where nothing is found in it, and at most hits.
fn cache_note(panel: &Panel) -> Option<String> {
    let curve = |name: &str| panel.curves.iter().find(|curve| curve.name == name);
    let (without, cache) = (curve("none")?, curve("cache")?);
    let lost = 100.0 * (1.0 - median(without.points.iter().map(|(_, share)| *share))?);
    let at_best = 100.0 * (1.0 - cache.points.last()?.1);
    Some(format!(
        "{}: without a cache {lost:.0} % of the bandwidth is lost, with one and all hits {at_best:.0} %; the paper's curve without one \
         (Figure 8) lies 35 % below, where registering pinned pages; where it pins none (tcp, shm) the curves nearly meet",
        panel.title
    ))
}

/// Table 4: one operation over the rows of an array.
fn rows_of_an_array(bench: &mut Bench<'_>, dafs: &Dafs, transport: &str) -> anyhow::Result<()> {
    let bytes = ROWS * ROW_BYTES;
    let whole_array = Mapping::new(ROWS * ROW_STRIDE)?;
    let mut holed = Mapping::new(ROWS * ROW_STRIDE)?;
    let holes: Vec<_> = (1..=HOLES)
        .map(|hole| hole * (ROWS / (HOLES + 1)) * ROW_STRIDE + ROW_BYTES)
        .map(|start| (start, start + ROW_BYTES))
        .collect();
    for (start, end) in &holes {
        holed.make_hole(*start, end - start)?;
    }
    let (session, file) = dafs.registering(RegistrationConfig::default())?;
    let array: PinnedBuf = session.pin(vec![0x5a; ROWS * ROW_STRIDE]);
    let rows = array.chunks(ROW_STRIDE).map(|row| &row[..ROW_BYTES]).collect();
    let mut cases = vec![Case { name: "rows-registered", session, step: write_rows(file, rows) }];
    for (name, group, memory, holes) in [
        ("rows-individual", false, &whole_array, &[][..]),
        ("rows-group", true, &whole_array, &[]),
        ("rows-group-holes", true, &holed, &holes),
    ] {
        let config = RegistrationConfig { group, ..RegistrationConfig::default() };
        let (session, file) = dafs.registering(config)?;
        let rows = memory.rows(ROWS, ROW_STRIDE, ROW_BYTES, holes);
        cases.push(Case { name, session, step: write_rows(file, rows) });
    }
    let figures = alternate(bench, bytes, &mut cases)?;
    report(bench, transport, bytes, &figures, "rows-registered");
    bench.outcome.notes.extend(rows_note(transport, &figures));
    Ok(())
}

fn write_rows<'a>(file: File, rows: Vec<&'a [u8]>) -> Box<dyn FnMut() -> anyhow::Result<()> + 'a> {
    let rows: Vec<IoSlice<'a>> = rows.into_iter().map(IoSlice::new).collect();
    Box::new(move || whole(file.write_vectored_at(&rows, 0)?, ROWS * ROW_BYTES))
}

/// Figure 8: writes from many buffers, some of which are found in the cache.
fn cache(bench: &mut Bench<'_>, dafs: &Dafs, transport: &str, bytes: usize) -> anyhow::Result<Panel> {
    let keeping = |entries_max, evict_count| RegistrationConfig {
        entries_max,
        evict_count,
        ..RegistrationConfig::default()
    };
    let schemes =
        [("none", keeping(0, 1)), ("cache", keeping(ENTRIES, 1)), ("batch", keeping(ENTRIES, BATCH))];
    let mut curves: Vec<Curve> = schemes
        .iter()
        .map(|(name, _)| Curve {
            name: (*name).to_owned(),
            points: Vec::new(),
            reference: false,
            band: Vec::new(),
        })
        .collect();
    for hit_ratio in HIT_RATIOS {
        let mut cases = Vec::new();
        for (name, config) in [("registered", keeping(BUFFERS, 1))].into_iter().chain(schemes) {
            let (session, file) = dafs.registering(config)?;
            let buffers: Vec<PinnedBuf> = (0..BUFFERS).map(|_| session.pin(vec![0x5a; bytes])).collect();
            // What fits is registered before, so that the first round is like the others.
            buffers.iter().take(config.entries_max).for_each(|buffer| {
                session.preregister(buffer);
            });
            let mut order = Order::new(hit_ratio);
            let mut offset = 0;
            let step = Box::new(move || {
                offset = (offset + bytes as u64) % (FILE_BYTES - bytes as u64 + 1);
                whole(file.write_at(&buffers[order.next()], offset)?, bytes)
            });
            cases.push(Case { name, session, step });
        }
        let mut figures = alternate(bench, bytes, &mut cases)?;
        let limit = figures[0].mib_per_s;
        for (figures, curve) in figures[1..].iter_mut().zip(&mut curves) {
            if figures.name == "none" {
                figures.hit_ratio = Some(0.0);
            }
            curve.points.push((hit_ratio, figures.mib_per_s / limit));
        }
        report(bench, transport, bytes, &figures, "registered");
    }
    Ok(Panel {
        title: format!("{transport}, writes of {} KiB", bytes >> 10),
        x: Axis { label: "share of hits".to_owned(), scale: Scale::Linear },
        y: Axis { label: "bandwidth beside registered memory".to_owned(), scale: Scale::Linear },
        curves,
        marks: Vec::new(),
        remarks: Vec::new(),
    })
}

/// What a hit and a miss of the cache cost by themselves: a miss beyond the cost of registering.
fn hit_and_miss(bench: &mut Bench<'_>, dafs: &Dafs, transport: &str, bytes: usize) -> anyhow::Result<()> {
    let mut cases = Vec::new();
    for (name, entries_max) in [("hit", ENTRIES), ("miss", 1)] {
        let config = RegistrationConfig { entries_max, evict_count: 1, ..RegistrationConfig::default() };
        let (session, file) = dafs.registering(config)?;
        let buffers: Vec<PinnedBuf> = (0..ENTRIES).map(|_| session.pin(vec![0x5a; bytes])).collect();
        let asked = session.clone();
        let mut turn = 0;
        let step = Box::new(move || {
            let _ = &file;
            for _ in 0..LOOKUPS {
                turn = (turn + 1) % ENTRIES;
                ensure!(asked.preregister(&buffers[turn]), "the registration was refused");
            }
            Ok(())
        });
        cases.push(Case { name, session, step });
    }
    let cost = cases[0].session.registration_cost()?;
    let pages = (bytes.div_ceil(4096) + 1) as f64;
    let register_us = (cost.call_ns + cost.page_ns * pages) / 1e3;
    let figures = alternate(bench, bytes, &mut cases)?;
    for figures in &figures {
        let (us, beside) =
            (figures.p50_us / LOOKUPS as f64, if figures.name == "miss" { register_us } else { 0.0 });
        bench.outcome.rows.push(Row {
            transport: transport.to_owned(),
            case: Some(figures.name),
            bytes,
            p50_us: Some(us),
            registrations: Some(figures.registrations / LOOKUPS as f64),
            hit_ratio: figures.hit_ratio,
            limit: (beside > 0.0).then(|| "registering".to_owned()),
            limit_value: (beside > 0.0).then_some(beside),
            limit_unit: Some(Unit::Us),
            added_us: Some(us - beside),
            ..Row::default()
        });
    }
    bench.outcome.notes.push(format!(
        "{transport}: registering costs {:.0} ns and {:.0} ns for each page; what a miss adds does not count it",
        cost.call_ns, cost.page_ns
    ));
    Ok(())
}

/// Runs the cases in turn, round by round, as often as the plan says.
fn alternate(bench: &mut Bench<'_>, bytes: usize, cases: &mut [Case<'_>]) -> anyhow::Result<Vec<Figures>> {
    let mut rounds = vec![Vec::new(); cases.len()];
    let before: Vec<_> = cases.iter().map(|case| case.session.registration_counters()).collect();
    let mut ops = vec![0u64; cases.len()];
    for _ in 0..bench.plan.repeats {
        for (index, case) in cases.iter_mut().enumerate() {
            interrupt::check()?;
            bench.progress.doing(format!("{} {bytes} bytes", case.name));
            bench.samples.clear();
            let work: Work = repeat(bench.plan.budget, &mut bench.samples, &mut case.step)?;
            ops[index] += work.ops;
            rounds[index].push((bench.samples.quantile_us(0.5).unwrap_or(f64::NAN), work.mib_per_s(bytes)));
            bench.progress.step();
        }
    }
    let figures = cases.iter().enumerate().map(|(index, case)| {
        let now = case.session.registration_counters();
        let (hits, misses) = (now.hits - before[index].hits, now.misses - before[index].misses);
        Figures {
            name: case.name,
            p50_us: median(rounds[index].iter().map(|round| round.0)).unwrap_or(f64::NAN),
            mib_per_s: median(rounds[index].iter().map(|round| round.1)).unwrap_or(f64::NAN),
            registrations: (now.registrations - before[index].registrations) as f64 / ops[index] as f64,
            hit_ratio: (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64),
        }
    });
    Ok(figures.collect())
}

fn report(bench: &mut Bench<'_>, transport: &str, bytes: usize, figures: &[Figures], limit: &'static str) {
    let beside = &figures[0];
    let rows = figures.iter().map(|figures| Row {
        transport: transport.to_owned(),
        case: Some(figures.name),
        op: Some(Op::Write),
        method: Some(Method::Direct),
        registered: Some(figures.name == limit),
        bytes,
        queue_depth: 1,
        p50_us: Some(figures.p50_us),
        mib_per_s: Some(figures.mib_per_s),
        registrations: Some(figures.registrations),
        hit_ratio: figures.hit_ratio,
        added_us: Some(figures.p50_us - beside.p50_us),
        limit: Some(limit.to_owned()),
        limit_value: Some(beside.p50_us),
        limit_unit: Some(Unit::Us),
        ratio: Some(figures.p50_us / beside.p50_us),
        ..Row::default()
    });
    bench.outcome.rows.extend(rows);
}

/// Which buffer comes next, so that a share of them is in a cache of [`ENTRIES`].
struct Order {
    // Buffers by use, the last first.
    by_use: VecDeque<usize>,
    hit_ratio: f64,
    owed: f64,
    random: u64,
}

impl Order {
    fn new(hit_ratio: f64) -> Self {
        Self { by_use: (0..BUFFERS).collect(), hit_ratio, owed: 0.0, random: 1 }
    }

    fn next(&mut self) -> usize {
        self.owed += self.hit_ratio;
        let place = if self.owed >= 1.0 {
            self.owed -= 1.0;
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(self.random >> 33).unwrap_or(0) % RECENT
        } else {
            BUFFERS - 1
        };
        let buffer = self.by_use.remove(place).expect("the places are those of all buffers");
        self.by_use.push_front(buffer);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_order_reaches_the_requested_hit_ratio() {
        for hit_ratio in HIT_RATIOS {
            let mut order = Order::new(hit_ratio);
            let mut cached: VecDeque<usize> = VecDeque::new();
            let (mut hits, count) = (0, 10_000);
            for _ in 0..count {
                let buffer = order.next();
                match cached.iter().position(|other| *other == buffer) {
                    Some(place) => {
                        hits += 1;
                        cached.remove(place);
                    }
                    None if cached.len() == ENTRIES => cached.truncate(ENTRIES - BATCH),
                    None => {}
                }
                cached.push_front(buffer);
            }
            let found = f64::from(hits) / f64::from(count);
            assert!((found - hit_ratio).abs() < 0.01, "{found} for {hit_ratio}");
        }
    }
}
