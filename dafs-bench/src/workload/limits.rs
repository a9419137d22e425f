//! The raw limits by themselves.

use crate::interrupt;
use crate::limit::{Limit, Stage};
use crate::load::Load;
use crate::record::{CpuRow, Op, Row, Unit};
use crate::stats::{is_known, median, median_interval};
use crate::workload::Bench;

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let cases = cases(bench);
    for (limit, unit, load) in cases {
        interrupt::check()?;
        bench.progress.doing(format!("{} {} bytes", limit.name(load.op), load.bytes));
        match measure(bench, limit, unit, &load) {
            Ok(row) => bench.outcome.rows.push(row),
            // One that the system does not permit leaves the others standing.
            Err(error) => bench.outcome.notes.push(format!("no row for {}: {error:#}", limit.name(load.op))),
        }
        bench.progress.step();
    }
    Ok(())
}

fn cases(bench: &Bench<'_>) -> Vec<(Limit, Unit, Load)> {
    let mut cases = Vec::new();
    let empty = Load { op: Op::Ping, ..bench.load(Op::Read, 0, 1) };
    for limit in [Limit::Ring, Limit::Doorbell, Limit::TcpRr, Limit::TcpRrSpin] {
        cases.push((limit, Unit::Us, empty));
    }
    for &bytes in &bench.plan.sizes {
        for &op in &bench.plan.ops {
            for limit in [bench.file_limit(), Limit::TcpRr, Limit::TcpRrSpin] {
                cases.push((limit, Unit::Us, bench.load(op, bytes, 1)));
            }
        }
        let copy = bench.load(Op::Copy, bytes, 1);
        cases.extend([Limit::Memcpy, Limit::CrossMemory].map(|limit| (limit, Unit::MibPerS, copy)));
        for &depth in &bench.plan.queue_depths {
            let read = bench.load(Op::Read, bytes, depth);
            for limit in [bench.file_limit(), Limit::TcpStream, Limit::TcpUncoalesced] {
                let unit = if bytes < 64 << 10 { Unit::OpsPerS } else { Unit::MibPerS };
                cases.push((limit, unit, read));
            }
        }
    }
    // Two ends that spin on one CPU only wait for the scheduler.
    cases.retain(|(limit, ..)| !bench.plan.same_cpu || !matches!(limit, Limit::Ring | Limit::TcpRrSpin));
    cases
}

fn measure(bench: &mut Bench<'_>, limit: Limit, unit: Unit, load: &Load) -> anyhow::Result<Row> {
    let stage = Stage { file: bench.file, pins: bench.pins, verbs: bench.verbs, budget: bench.plan.budget };
    let mut values = Vec::new();
    let (mut p99_us, mut cpu_ns) = (Vec::new(), Vec::new());
    for _ in 0..bench.plan.repeats {
        let figure = limit.measure(load, unit, &stage, &mut bench.samples)?;
        values.push(figure.value);
        cpu_ns.push(figure.cpu_ns);
        p99_us.extend(bench.samples.quantile_us(0.99));
    }
    let interval = median_interval(values.iter().copied());
    let is_known = is_known(values.iter().copied());
    let value = median(values);
    let only = |wanted: Unit| value.filter(|_| unit == wanted);
    Ok(Row {
        transport: "raw".to_owned(),
        op: Some(load.op),
        bytes: load.bytes,
        queue_depth: load.queue_depth,
        p50_us: only(Unit::Us),
        p99_us: median(p99_us).filter(|_| unit == Unit::Us),
        mib_per_s: only(Unit::MibPerS),
        ops_per_s: only(Unit::OpsPerS),
        limit: Some(limit.name(load.op).to_owned()),
        limit_value: value,
        limit_unit: Some(unit),
        low: interval.map(|(low, _)| low),
        high: interval.map(|(_, high)| high),
        unsettled: !is_known,
        cpu: CpuRow::of(load.bytes, None, None, median(cpu_ns)),
        ..Row::default()
    })
}
