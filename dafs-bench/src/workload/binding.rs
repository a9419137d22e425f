//! What the C interface costs: small reads and writes by libdafs, beside the same by the client's library.

use std::path::Path;

use anyhow::{Context, ensure};

use crate::cli::Transport;
use crate::interrupt;
use crate::record::{Op, Row, Unit};
use crate::stats::median;
use crate::workload::{Bench, locks};

/// Median and 99th percentile of each round, by Rust and by C.
type Rounds = [Vec<[f64; 2]>; 2];

const SIDES: [&str; 2] = ["rust", "c"];

pub(super) fn run(bench: &mut Bench<'_>, library: &Path) -> anyhow::Result<()> {
    let transport = Transport::Shm;
    let only_shm = bench.plan.transports == [transport];
    ensure!(only_shm, "cannot use --transport: c is measured over shm; leave it out");
    bench.progress.doing("starting dafs over shm".to_owned());
    bench.pins.be_client();
    let crowd = bench.subjects.crowd(transport, bench.plan.poll(), 1)?;
    let dafs = crowd.clients.first().context("no session")?;
    let rust = dafs.with_defaults()?;
    let c = dafs.by_libdafs(library)?;
    let sizes = bench.plan.sizes.clone();
    let loads: Vec<(Op, usize)> =
        bench.plan.ops.iter().flat_map(|op| sizes.iter().map(|size| (*op, *size))).collect();
    let mut all: Vec<Rounds> = vec![Rounds::default(); loads.len()];
    for round in 0..=bench.plan.repeats {
        for ((op, size), rounds) in loads.iter().zip(&mut all) {
            let (mut buffer, budget) = (vec![0x5a; *size], bench.plan.budget.duration);
            // Each is the first as often as the second.
            for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                interrupt::check()?;
                let time = match (SIDES[side], op) {
                    ("rust", Op::Write) => {
                        locks::steps(budget, || Ok(rust.1.write_at(&buffer, 0).map(drop)?))
                    }
                    ("rust", _) => locks::steps(budget, || Ok(rust.1.read_at(&mut buffer, 0).map(drop)?)),
                    (_, Op::Write) => locks::steps(budget, || c.write(&buffer)),
                    _ => locks::steps(budget, || c.read(&mut buffer)),
                }?;
                // The first is to warm up.
                if round > 0 {
                    rounds[side].push(time);
                }
            }
            bench.progress.step();
        }
    }
    for ((op, size), rounds) in loads.into_iter().zip(&all) {
        bench.outcome.rows.extend((0..SIDES.len()).map(|side| row(op, size, rounds, side)));
    }
    Ok(())
}

fn row(op: Op, bytes: usize, rounds: &Rounds, side: usize) -> Row {
    let [rust, own] = [&rounds[0], &rounds[side]];
    let ratios: Vec<f64> = match side {
        0 => Vec::new(),
        _ => own.iter().zip(rust).map(|(own, rust)| own[0] / rust[0]).collect(),
    };
    Row {
        transport: Transport::Shm.name().to_owned(),
        case: Some(SIDES[side]),
        op: Some(op),
        bytes,
        queue_depth: 1,
        p50_us: median(own.iter().map(|time| time[0])),
        p99_us: median(own.iter().map(|time| time[1])),
        limit: (side > 0).then(|| SIDES[0].to_owned()),
        limit_value: median(rust.iter().map(|time| time[0])).filter(|_| side > 0),
        limit_unit: Some(Unit::Us),
        ratio: median(ratios.iter().copied()),
        ratio_min: ratios.iter().copied().reduce(f64::min),
        ratio_max: ratios.iter().copied().reduce(f64::max),
        ..Row::default()
    }
    .known_by(own.iter().map(|time| time[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_c_has_the_ratio_of_each_round() {
        let rounds = [vec![[2.0, 9.0], [4.0, 9.0], [2.0, 9.0]], vec![[2.1, 9.0], [4.4, 9.0], [2.0, 9.0]]];
        let [rust, c] = [0, 1].map(|side| row(Op::Read, 4, &rounds, side));
        assert_eq!((rust.p50_us, rust.ratio, rust.limit), (Some(2.0), None, None));
        assert_eq!((c.p50_us, c.limit_value, c.limit.as_deref()), (Some(2.1), Some(2.0), Some("rust")));
        assert_eq!(c.ratio, Some(1.05));
        assert_eq!((c.ratio_min, c.ratio_max.map(|most| (most * 100.0).round())), (Some(1.0), Some(110.0)));
    }
}
