//! One large transfer between a disk and a client: whether disk and network work at the same time, by chunk size and depth.

use std::time::Duration;

use crate::cli::PipelineOptions;
use crate::interrupt;
use crate::record::{Axis, Chart, Curve, Op, Panel, Row, Scale, Unit};
use crate::stats::median;
use crate::subject::bulk::{Bulk, BulkSetup, Mover, disk_alone};
use crate::workload::Bench;

/// Seconds that one round took each.
struct Round {
    disk: f64,
    network: f64,
    both: f64,
}

impl Round {
    fn slower(&self) -> f64 {
        self.disk.max(self.network)
    }
}

/// One case: a transport, an operation, its sizes.
#[derive(Clone, Copy)]
struct Case {
    op: Op,
    bytes: usize,
    queue_depth: usize,
    /// Bytes of a chunk, and chunks at once; `None`: as the server chooses.
    chunks: Option<(usize, usize)>,
    /// Bytes of the file.
    total: u64,
}

pub(super) fn run(bench: &mut Bench<'_>, options: &PipelineOptions) -> anyhow::Result<()> {
    let mut panels = Vec::new();
    let sizes = options.chunk_sizes.iter();
    let chosen = sizes.flat_map(|&chunk| options.depths.iter().map(move |&depth| Some((chunk, depth))));
    let mut setups: Vec<(Option<(usize, usize)>, u64)> =
        chosen.map(|chunks| (chunks, options.file_size)).collect();
    // Last: the file in memory is made anew for it.
    setups.push((None, options.whole_size));
    for transport in bench.plan.transports.clone() {
        let mut found = Vec::new();
        for &(chunks, total) in &setups {
            bench.progress.doing(format!("starting dafs over {}", transport.name()));
            bench.pins.be_client();
            let setup = BulkSetup { transport, poll: bench.plan.poll(), file_bytes: total, pipeline: chunks };
            let bulk = bench.subjects.bulk(&setup)?;
            for op in bench.plan.ops.clone() {
                // All of the large file is only read: writing it as often would take minutes.
                let total = if op == Op::Write { options.file_size.min(total) } else { total };
                for bytes in bench.plan.sizes.clone() {
                    for queue_depth in bench.plan.queue_depths.clone() {
                        let case = Case { op, bytes, queue_depth, chunks, total };
                        found.push((case, compare(bench, &bulk, case)?));
                    }
                }
            }
        }
        found.sort_by_key(|(case, _)| {
            let chunks = case.chunks.map(|(chunk, depth)| (depth, chunk));
            (case.op as u8, case.bytes, case.queue_depth, chunks)
        });
        for (case, rounds) in &found {
            bench.outcome.rows.extend(rows(transport.name(), *case, rounds));
            if case.chunks.is_none() {
                bench.outcome.notes.extend(note(transport.name(), case, rounds));
            }
        }
        panels.extend(draw(transport.name(), &found));
    }
    let title = "Pipelined bulk transfer between disk and client".to_owned();
    bench.outcome.chart = Some(Chart { title, panels, columns: bench.plan.ops.len() });
    Ok(())
}

/// What a user gets who sets nothing.
fn note(transport: &str, case: &Case, rounds: &[Round]) -> Option<String> {
    let ratio = median(rounds.iter().map(|round| round.both / round.slower()))?;
    let disk = median(rounds.iter().map(|round| round.disk))?;
    let network = median(rounds.iter().map(|round| round.network))?;
    let both = median(rounds.iter().map(|round| round.both))?;
    // Of the time that the quicker of the two needs, how much passed beside the slower.
    let hidden = ((disk + network - both) / disk.min(network)).clamp(0.0, 1.0);
    Some(format!(
        "{transport}, {} of {} MiB, {} at once, chunks of the server's choice: {ratio:.2} x the time of the slower of disk and network; \
         {:.0} % of the time of the quicker is hidden behind it",
        case.op,
        case.total >> 20,
        case.queue_depth,
        100.0 * hidden
    ))
}

/// Every round takes all three figures, so that a machine that is busy for a while spoils one round only.
fn compare(bench: &mut Bench<'_>, bulk: &Bulk, case: Case) -> anyhow::Result<Vec<Round>> {
    let Case { op, bytes, queue_depth, .. } = case;
    let total = case.total - case.total % bytes as u64;
    let (disk, memory) = (Mover::of(&bulk.disk, queue_depth)?, Mover::of(&bulk.memory, queue_depth)?);
    bench.pins.be_client();
    memory.move_all(op, bytes, queue_depth, total / 8)?;
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.repeats {
        interrupt::check()?;
        bench.progress.doing(match case.chunks {
            Some((chunk, depth)) => format!("{op}, chunks of {} KiB, {depth} at once", chunk >> 10),
            None => format!("{op}, chunks of the server's choice"),
        });
        rounds.push(Round {
            disk: seconds(disk_alone(&bulk.disk_file, op, total)?),
            network: seconds(memory.move_all(op, bytes, queue_depth, total)?),
            both: seconds(disk.move_all(op, bytes, queue_depth, total)?),
        });
        bench.progress.step();
    }
    Ok(rounds)
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64().max(1e-9)
}

fn rows(transport: &str, case: Case, rounds: &[Round]) -> [Row; 3] {
    let mib = (case.total - case.total % case.bytes as u64) as f64 / (1 << 20) as f64;
    let over = |of: fn(&Round) -> f64| median(rounds.iter().map(of));
    let base = |name: &'static str, of: fn(&Round) -> f64| {
        Row {
            transport: transport.to_owned(),
            case: Some(name),
            op: Some(case.op),
            bytes: case.bytes,
            queue_depth: case.queue_depth,
            chunk_bytes: case.chunks.map(|(chunk, _)| chunk),
            pipeline_depth: case.chunks.map(|(_, depth)| depth),
            mib_per_s: over(of).map(|seconds| mib / seconds),
            ..Row::default()
        }
        .known_by(rounds.iter().map(|round| mib / of(round)))
    };
    let ratios = || rounds.iter().map(|round| round.both / round.slower());
    let disk_is_slower = over(|round| round.disk) > over(|round| round.network);
    [
        base("disk alone", |round| round.disk),
        base("network alone", |round| round.network),
        Row {
            limit: Some(if disk_is_slower { "disk alone" } else { "network alone" }.to_owned()),
            limit_value: over(Round::slower).map(|seconds| mib / seconds),
            limit_unit: Some(Unit::MibPerS),
            ratio: median(ratios()),
            ratio_min: ratios().reduce(f64::min),
            ratio_max: ratios().reduce(f64::max),
            ..base("disk and network", |round| round.both)
        },
    ]
}

/// Bandwidth by chunk size, a curve for each depth, beside what each of the two does alone.
fn draw(transport: &str, found: &[(Case, Vec<Round>)]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for (case, rounds) in found {
        let Some((chunk, depth)) = case.chunks else { continue };
        let mib = case.total as f64 / (1 << 20) as f64;
        let title = format!(
            "{transport}, {} of {} MiB in operations of {} MiB, {} at once",
            case.op,
            case.total >> 20,
            case.bytes as f64 / (1 << 20) as f64,
            case.queue_depth
        );
        let place = panels.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
            panels.push(Panel {
                title,
                x: Axis { label: "chunk".to_owned(), scale: Scale::LogBytes },
                y: Axis { label: "bandwidth (MiB/s)".to_owned(), scale: Scale::Linear },
                curves: Vec::new(),
                marks: Vec::new(),
                remarks: Vec::new(),
            });
            panels.len() - 1
        });
        let mut add = |name: String, reference, of: fn(&Round) -> f64| {
            let Some(seconds) = median(rounds.iter().map(of)) else { return };
            let point = (chunk as f64, mib / seconds);
            let curves = &mut panels[place].curves;
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) if !curve.points.iter().any(|(x, _)| *x == point.0) => curve.points.push(point),
                Some(_) => {}
                None => curves.push(Curve { name, points: vec![point], reference, band: Vec::new() }),
            }
        };
        add(format!("depth {depth}"), false, |round| round.both);
        add("disk alone".to_owned(), true, |round| round.disk);
        add("network alone".to_owned(), true, |round| round.network);
    }
    panels
}
