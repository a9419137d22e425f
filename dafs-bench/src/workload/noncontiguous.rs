//! Noncontiguous data: the methods side by side, beside one contiguous transfer (`noncontiguous`: memory in pieces) and beside local calls
//! (`listio`: file and memory in pieces). After Wu, Wyckoff and Panda (2003), Figures 3 and 4.

use crate::interrupt;
use crate::load::FILE_BYTES;
use crate::record::{Axis, Chart, Curve, Method, Op, Panel, Row, Scale, Unit};
use crate::stats::median;
use crate::subject::list::{Lists, Local, Shape};
use crate::workload::Bench;

const METHODS: [Method; 5] = [Method::Multiple, Method::Pack, Method::Gather, Method::Auto, Method::Batch];

/// The paper's hybrid scheme switches at this many bytes in all, of 128 pieces.
const PAPER_SWITCH_BYTES: f64 = 64.0 * 1024.0;

pub(super) fn run(bench: &mut Bench<'_>, scattered_file: bool) -> anyhow::Result<()> {
    let cold = bench.plan.cold;
    anyhow::ensure!(
        !cold || scattered_file && bench.plan.ops.iter().all(|op| *op == Op::Read),
        "--cold is for reads of listio: add --op read"
    );
    let mut panels = Vec::new();
    let sizes = fitting(bench)?;
    for transport in bench.plan.transports.clone() {
        bench.progress.doing(format!("starting dafs over {}", transport.name()));
        bench.pins.be_client();
        let mut lists = bench.subjects.lists(transport, bench.plan.poll())?;
        for op in bench.plan.ops.clone() {
            for registered in bench.plan.registered.clone() {
                let (mut rows, mut halves) = (Vec::new(), Vec::new());
                for &bytes in &sizes {
                    let segments = bench.plan.segments;
                    let shape = Shape { op, segments, bytes, registered, scattered_file, cold };
                    let (of_shape, half) = compare(bench, &mut lists, transport.name(), &shape)?;
                    rows.extend(of_shape);
                    halves.extend(half);
                }
                bench.outcome.notes.extend(shape_note(transport.name(), op, registered, &rows));
                bench.outcome.notes.extend(auto_note(transport.name(), op, registered, &halves));
                panels.push(panel(transport.name(), op, registered, &rows));
                bench.outcome.rows.extend(rows);
            }
        }
    }
    let title = if scattered_file { "List I/O: file and memory in pieces" } else { "Memory in pieces" };
    let columns = bench.plan.ops.len() * bench.plan.registered.len();
    bench.outcome.chart = Some(Chart { title: title.to_owned(), panels, columns });
    Ok(())
}

/// Sizes whose pieces fit the file, with gaps as large between them. A note names the others.
fn fitting(bench: &mut Bench<'_>) -> anyhow::Result<Vec<usize>> {
    let segments = bench.plan.segments;
    let (fit, other): (Vec<usize>, Vec<usize>) =
        bench.plan.sizes.iter().partition(|&&bytes| 2 * (segments * bytes) as u64 <= FILE_BYTES);
    let room = format!("{segments} pieces, and gaps as large, are to lie within {} MiB", FILE_BYTES >> 20);
    anyhow::ensure!(!fit.is_empty(), "cannot measure: {room}; lower --segments or --sizes");
    let other = other.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let note = format!("no rows for pieces of {other} bytes: {room}");
    bench.outcome.notes.extend((!other.is_empty()).then_some(note));
    Ok(fit)
}

/// All methods in alternation with what they are compared with: a row for each, and what became of auto.
fn compare(
    bench: &mut Bench<'_>,
    lists: &mut Lists,
    transport: &str,
    shape: &Shape,
) -> anyhow::Result<(Vec<Row>, Option<Halves>)> {
    // Without pieces of the file a batch is as many requests' worth of the same.
    let possible = METHODS.into_iter().filter(|m| shape.scattered_file || *m != Method::Batch);
    let methods = chosen(&bench.plan.methods, possible.collect())?;
    let locals = if shape.scattered_file { locals(bench, shape) } else { &[] };
    let mut times: Vec<Vec<[f64; 2]>> = vec![Vec::new(); methods.len()];
    let mut limits: Vec<Vec<f64>> = Vec::new();
    for round in 0..=bench.plan.repeats {
        interrupt::check()?;
        // The first is to warm up.
        let mut budget = bench.plan.budget;
        if round == 0 {
            budget.duration /= 10;
        }
        let limit = limit_times(bench, lists, shape, locals, budget)?;
        for (method, times) in methods.iter().zip(&mut times) {
            bench.samples.clear();
            bench.pins.be_client();
            lists.run(*method, shape, bench.file, budget, &mut bench.samples)?;
            let p50 = bench.samples.quantile_us(0.5).unwrap_or(f64::NAN);
            let p99 = bench.samples.quantile_us(0.99).unwrap_or(f64::NAN);
            if round > 0 {
                times.push([p50, p99]);
            }
            bench.progress.step();
        }
        if round > 0 {
            limits.push(limit);
        }
        bench.progress.step();
    }
    let best = best_limit(&limits);
    let rows = methods.iter().zip(&times).map(|(method, times)| {
        let p50 = median(times.iter().map(|time| time[0]));
        let ratios = || times.iter().zip(&limits).map(|(time, limit)| time[0] / limit[best]);
        Row {
            transport: transport.to_owned(),
            op: Some(shape.op),
            method: Some(*method),
            registered: Some(shape.registered),
            segments: Some(shape.segments),
            bytes: shape.bytes,
            cache: Some(bench.plan.cache()),
            queue_depth: 1,
            p50_us: p50,
            p99_us: median(times.iter().map(|time| time[1])),
            mib_per_s: p50.map(|us| mib_per_s(shape.total(), us)),
            ops_per_s: p50.map(|us| 1e6 / us),
            limit: Some(limit_name(shape, locals, best).to_owned()),
            limit_value: median(limits.iter().map(|limit| limit[best])),
            limit_unit: Some(Unit::Us),
            ratio: median(ratios()),
            ratio_min: ratios().reduce(f64::min),
            ratio_max: ratios().reduce(f64::max),
            ..Row::default()
        }
        .known_by(times.iter().map(|time| time[0]))
    });
    Ok((rows.collect(), Halves::of(shape.bytes, &methods, &times)))
}

/// Auto beside the better of the two methods that it chooses from.
struct Halves {
    /// Of a piece.
    bytes: usize,
    /// Its time over that of the better.
    ratio: f64,
    /// The slower of the better one's odd and even rounds over the quicker: what the machine makes of one and the same thing.
    noise: f64,
}

impl Halves {
    fn of(bytes: usize, methods: &[Method], times: &[Vec<[f64; 2]>]) -> Option<Self> {
        let rounds = |of: Method| Some(&times[methods.iter().position(|method| *method == of)?]);
        let p50 = |rounds: &[[f64; 2]]| median(rounds.iter().map(|time| time[0]));
        let (pack, gather) = (rounds(Method::Pack)?, rounds(Method::Gather)?);
        let better = if p50(pack)? <= p50(gather)? { pack } else { gather };
        let ratio = p50(rounds(Method::Auto)?)? / p50(better)?;
        let every_other = |first: usize| median(better.iter().skip(first).step_by(2).map(|time| time[0]));
        let (odd, even) = (every_other(0)?, every_other(1)?);
        Some(Self { bytes, ratio, noise: odd.max(even) / odd.min(even) })
    }
}

/// As good as the better of its halves is auto within this.
const AS_GOOD: f64 = 1.1;

/// How often auto was as good as the better of its halves, and how often that was as good as itself.
fn auto_note(transport: &str, op: Op, registered: bool, halves: &[Halves]) -> Option<String> {
    let worst = halves.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio))?;
    let noise = halves.iter().map(|half| half.noise).fold(1.0, f64::max);
    let count = |as_good: fn(&Halves) -> f64| halves.iter().filter(|half| as_good(half) <= AS_GOOD).count();
    let memory = if registered { "registered" } else { "ordinary" };
    Some(format!(
        "{transport}, {op}, {memory} memory: auto takes at most {AS_GOOD} of the better of packing and gathering at {} of {} sizes, \
         {:.2} at worst ({} bytes a piece); the better one's odd rounds are as near to its even ones at {}, {noise:.2} at worst",
        count(|half| half.ratio),
        halves.len(),
        worst.ratio,
        worst.bytes,
        count(|half| half.noise),
    ))
}

/// The methods that were asked for, each of which must be possible; all of them where the choice was left open.
fn chosen(asked: &[Method], possible: Vec<Method>) -> anyhow::Result<Vec<Method>> {
    if asked.is_empty() {
        return Ok(possible);
    }
    if let Some(other) = asked.iter().find(|method| !possible.contains(method)) {
        anyhow::bail!(
            "cannot use --method {other} here; choose multiple, pack, gather, auto or batch (listio)"
        );
    }
    Ok(possible.into_iter().filter(|method| asked.contains(method)).collect())
}

/// Times in µs of what the methods are compared with.
fn limit_times(
    bench: &mut Bench<'_>,
    lists: &mut Lists,
    shape: &Shape,
    locals: &[Local],
    budget: crate::load::Budget,
) -> anyhow::Result<Vec<f64>> {
    bench.pins.be_client();
    let mut times = Vec::new();
    if !shape.scattered_file {
        bench.samples.clear();
        lists.run_contiguous(shape, budget, &mut bench.samples)?;
        times.push(bench.samples.quantile_us(0.5).unwrap_or(f64::NAN));
        return Ok(times);
    }
    for local in locals {
        bench.samples.clear();
        local.run(shape, bench.file, budget, &mut bench.samples)?;
        times.push(bench.samples.quantile_us(0.5).unwrap_or(f64::NAN));
    }
    Ok(times)
}

/// What the methods are compared with, where the file is in pieces.
fn locals(bench: &mut Bench<'_>, shape: &Shape) -> &'static [Local] {
    match shape.op {
        // A sieved write would read first, and lock.
        Op::Write => &[Local::Each],
        _ if bench.has_io_uring(shape.segments) => &[Local::Each, Local::Sieved, Local::Ring],
        _ => &[Local::Each, Local::Sieved],
    }
}

fn limit_name(shape: &Shape, locals: &[Local], index: usize) -> &'static str {
    match shape.scattered_file {
        false => "contiguous",
        true => locals[index].name(shape.op),
    }
}

/// The quickest of the limits.
fn best_limit(limits: &[Vec<f64>]) -> usize {
    let count = limits.first().map_or(0, Vec::len);
    let time = |index: usize| median(limits.iter().map(|limit| limit[index])).unwrap_or(f64::INFINITY);
    (0..count).min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap_or(0)
}

fn mib_per_s(bytes: usize, us: f64) -> f64 {
    bytes as f64 / f64::from(1 << 20) / (us / 1e6)
}

fn points(rows: &[Row], method: Method) -> Vec<(f64, f64)> {
    let rows = rows.iter().filter(|row| row.method == Some(method));
    rows.filter_map(|row| Some((row.bytes as f64, row.mib_per_s?))).collect()
}

/// How the shape compares with the paper's: there packing wins below 64 KiB in all, and gathering above.
fn shape_note(transport: &str, op: Op, registered: bool, rows: &[Row]) -> Option<String> {
    let (pack, gather) = (points(rows, Method::Pack), points(rows, Method::Gather));
    if pack.is_empty() || gather.is_empty() {
        return None;
    }
    let segments = rows.first()?.segments? as f64;
    let paper = PAPER_SWITCH_BYTES / segments;
    // Behind the last size at which packing wins.
    let behind = pack.iter().zip(&gather).rposition(|(pack, gather)| pack.1 > gather.1);
    let found = match behind {
        None => "gathering wins at every size measured".to_owned(),
        Some(last) if last + 1 == pack.len() => "packing wins at every size up to the largest".to_owned(),
        Some(last) => format!("gathering wins from {} bytes a piece on", gather[last + 1].0),
    };
    let memory = if registered { "registered" } else { "ordinary" };
    // Why it is otherwise here.
    let here = match transport {
        "verbs" => "",
        _ => {
            "; here what stands for the network is a copy by a CPU itself, so that packing is one more of two or three, and describing \
              a piece costs what copying some hundred bytes does"
        }
    };
    Some(format!(
        "{transport}, {op}, {memory} memory: {found}; in the paper (Figure 4) from {paper:.0} bytes a piece, where a copy cost \
         0.6 of the network's time for a byte and registration was cached{here}"
    ))
}

/// Where the medians of one method are: a short time is a high bandwidth.
fn band(rows: &[Row], method: Method) -> Vec<(f64, f64, f64)> {
    let rows = rows.iter().filter(|row| row.method == Some(method));
    let one = |row: &Row| {
        let of = |us: f64| mib_per_s(row.bytes * row.segments.unwrap_or(1), us);
        Some((row.bytes as f64, of(row.high?), of(row.low?)))
    };
    rows.filter_map(one).collect()
}

fn panel(transport: &str, op: Op, registered: bool, rows: &[Row]) -> Panel {
    let mut curves: Vec<Curve> = METHODS
        .into_iter()
        .map(|method| Curve {
            name: method.to_string(),
            points: points(rows, method),
            reference: false,
            band: band(rows, method),
        })
        .filter(|curve| !curve.points.is_empty())
        .collect();
    let mut limit: Vec<(f64, f64)> = rows
        .iter()
        .filter_map(|row| Some((row.bytes as f64, mib_per_s(row.bytes * row.segments?, row.limit_value?))))
        .collect();
    limit.dedup_by_key(|point| point.0);
    let contiguous = rows.iter().any(|row| row.limit.as_deref() == Some("contiguous"));
    let name = if contiguous { "one contiguous transfer" } else { "best of local calls" };
    curves.push(Curve { name: name.to_owned(), points: limit, reference: true, band: Vec::new() });
    let memory = if registered { "registered memory" } else { "ordinary memory" };
    Panel {
        title: format!("{transport}, {op}, {memory}"),
        x: Axis { label: "size of one piece".to_owned(), scale: Scale::LogBytes },
        y: Axis { label: "bandwidth (MiB/s)".to_owned(), scale: Scale::Log },
        curves,
        marks: Vec::new(),
        remarks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(method: Method, bytes: usize, mib_per_s: f64) -> Row {
        Row { method: Some(method), bytes, segments: Some(128), mib_per_s: Some(mib_per_s), ..Row::default() }
    }

    #[test]
    fn note_names_the_size_behind_the_last_that_packing_wins() {
        let note = |packed: [f64; 3]| {
            let mut rows = Vec::new();
            for (bytes, pack) in [128, 256, 512].into_iter().zip(packed) {
                rows.push(row(Method::Pack, bytes, pack));
                rows.push(row(Method::Gather, bytes, 10.0));
            }
            shape_note("shm", Op::Read, true, &rows).unwrap_or_default()
        };
        assert!(note([20.0, 5.0, 5.0]).contains("from 256 bytes"), "{}", note([20.0, 5.0, 5.0]));
        assert!(note([5.0, 20.0, 5.0]).contains("from 512 bytes"));
        assert!(note([5.0, 5.0, 5.0]).contains("gathering wins at every size"));
        assert!(note([20.0, 20.0, 20.0]).contains("packing wins at every size"));
        assert!(note([5.0; 3]).contains("from 512 bytes a piece"), "the paper's switch");
        let auto = [row(Method::Auto, 128, 1.0)];
        assert_eq!(shape_note("shm", Op::Read, true, &auto), None, "there is nothing to compare");
    }

    #[test]
    fn auto_is_held_against_the_better_half_and_that_against_itself() {
        let rounds = |p50: [f64; 4]| p50.map(|p50| [p50, 99.0]).to_vec();
        let methods = [Method::Pack, Method::Gather, Method::Auto];
        let times = [rounds([20.0; 4]), rounds([10.0, 12.0, 10.0, 12.0]), rounds([22.0; 4])];
        let half = Halves::of(512, &methods, &times).unwrap();
        assert_eq!((half.bytes, half.ratio, half.noise), (512, 2.0, 1.2));
        assert!(Halves::of(512, &methods[..2], &times[..2]).is_none(), "without auto");
        assert!(Halves::of(512, &methods, &times.map(|rounds| rounds[..1].to_vec())).is_none(), "one round");
        let halves = [half, Halves { bytes: 1024, ratio: 1.0, noise: 1.0 }];
        let note = auto_note("shm", Op::Read, true, &halves).unwrap();
        assert!(note.contains("at 1 of 2 sizes, 2.00 at worst (512 bytes"), "{note}");
        assert!(note.ends_with("even ones at 1, 1.20 at worst"), "{note}");
        assert_eq!(auto_note("shm", Op::Read, true, &[]), None);
    }

    #[test]
    fn requested_methods_are_taken_or_the_impossible_one_refused() {
        use Method::{Auto, Batch, Direct, Gather, Pack};
        let possible = || vec![Pack, Gather, Auto];
        let chosen = |asked: &[Method]| chosen(asked, possible()).ok();
        assert_eq!(chosen(&[]), Some(possible()));
        assert_eq!(chosen(&[Auto, Pack]), Some(vec![Pack, Auto]));
        assert_eq!(chosen(&[Pack, Direct]), None);
        assert_eq!(chosen(&[Batch]), None);
    }

    #[test]
    fn best_limit_is_the_quickest_by_its_median() {
        assert_eq!(best_limit(&[vec![3.0, 2.0], vec![1.0, 2.0], vec![3.0, 2.0]]), 1);
        assert_eq!(best_limit(&[]), 0);
    }
}
