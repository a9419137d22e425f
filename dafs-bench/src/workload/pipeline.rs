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
    chunk: usize,
    depth: usize,
}

pub(super) fn run(bench: &mut Bench<'_>, options: &PipelineOptions) -> anyhow::Result<()> {
    let mut panels = Vec::new();
    for transport in bench.plan.transports.clone() {
        let mut found = Vec::new();
        for &chunk in &options.chunk_sizes {
            for &depth in &options.depths {
                bench.progress.doing(format!("starting dafs over {}", transport.name()));
                bench.pins.be_client();
                let setup = BulkSetup {
                    transport,
                    poll: bench.plan.poll(),
                    file_bytes: options.file_size,
                    pipeline: Some((chunk, depth)),
                };
                let bulk = bench.subjects.bulk(&setup)?;
                for op in bench.plan.ops.clone() {
                    for bytes in bench.plan.sizes.clone() {
                        for queue_depth in bench.plan.queue_depths.clone() {
                            let case = Case { op, bytes, queue_depth, chunk, depth };
                            found.push((case, compare(bench, &bulk, case, options.file_size)?));
                        }
                    }
                }
            }
        }
        found.sort_by_key(|(case, _)| (case.op as u8, case.bytes, case.queue_depth, case.depth, case.chunk));
        for (case, rounds) in &found {
            let rows = rows(transport.name(), *case, rounds, options.file_size);
            bench.outcome.rows.extend(rows);
        }
        panels.extend(draw(transport.name(), &found, options.file_size));
    }
    let title = "Pipelined bulk transfer between disk and client".to_owned();
    bench.outcome.chart = Some(Chart { title, panels, columns: bench.plan.ops.len() });
    Ok(())
}

/// Every round takes all three figures, so that a machine that is busy for a while spoils one round only.
fn compare(bench: &mut Bench<'_>, bulk: &Bulk, case: Case, total: u64) -> anyhow::Result<Vec<Round>> {
    let Case { op, bytes, queue_depth, .. } = case;
    let total = total - total % bytes as u64;
    let (disk, memory) = (Mover::of(&bulk.disk, queue_depth)?, Mover::of(&bulk.memory, queue_depth)?);
    bench.progress.expect(bench.plan.repeats as usize);
    bench.pins.be_client();
    memory.move_all(op, bytes, queue_depth, total / 8)?;
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.repeats {
        interrupt::check()?;
        bench.progress.doing(format!("{op}, chunks of {} KiB, {} at once", case.chunk >> 10, case.depth));
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

fn rows(transport: &str, case: Case, rounds: &[Round], total: u64) -> [Row; 3] {
    let mib = (total - total % case.bytes as u64) as f64 / (1 << 20) as f64;
    let over = |of: fn(&Round) -> f64| median(rounds.iter().map(of));
    let base = |name: &'static str, of: fn(&Round) -> f64| Row {
        transport: transport.to_owned(),
        case: Some(name),
        op: Some(case.op),
        bytes: case.bytes,
        queue_depth: case.queue_depth,
        chunk_bytes: Some(case.chunk),
        pipeline_depth: Some(case.depth),
        mib_per_s: over(of).map(|seconds| mib / seconds),
        ..Row::default()
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
fn draw(transport: &str, found: &[(Case, Vec<Round>)], total: u64) -> Vec<Panel> {
    let mib = total as f64 / (1 << 20) as f64;
    let mut panels: Vec<Panel> = Vec::new();
    for (case, rounds) in found {
        let title = format!(
            "{transport}, {} of {} MiB in operations of {} MiB, {} at once",
            case.op,
            total >> 20,
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
            });
            panels.len() - 1
        });
        let mut add = |name: String, reference, of: fn(&Round) -> f64| {
            let Some(seconds) = median(rounds.iter().map(of)) else { return };
            let point = (case.chunk as f64, mib / seconds);
            let curves = &mut panels[place].curves;
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) if !curve.points.iter().any(|(x, _)| *x == point.0) => curve.points.push(point),
                Some(_) => {}
                None => curves.push(Curve { name, points: vec![point], reference }),
            }
        };
        add(format!("depth {}", case.depth), false, |round| round.both);
        add("disk alone".to_owned(), true, |round| round.disk);
        add("network alone".to_owned(), true, |round| round.network);
    }
    panels
}
