//! Rates with many operations in flight: of bytes (`bandwidth`) or of operations (`iops`).

use crate::limit::Limit;
use crate::load::Load;
use crate::record::{Op, Unit};
use crate::subject::Subject;
use crate::workload::Bench;

pub(super) fn run(bench: &mut Bench<'_>, unit: Unit) -> anyhow::Result<()> {
    bench.each_subject(
        |plan, _| vec![plan.poll()],
        |bench, subject| {
            for &queue_depth in &bench.plan.queue_depths {
                for &bytes in &bench.plan.sizes {
                    for &op in &bench.plan.ops {
                        let limit = rate_limit(bench, subject, op, unit);
                        let load = bench.load(op, bytes, queue_depth);
                        let loads: Vec<_> = bench
                            .plan
                            .registered
                            .iter()
                            .map(|&registered| Load { registered, ..load })
                            .collect();
                        bench.compare(subject, limit, unit, &loads)?;
                    }
                }
            }
            Ok(())
        },
    )
}

fn rate_limit(bench: &Bench<'_>, subject: &dyn Subject, op: Op, unit: Unit) -> Limit {
    match (subject.transport(), unit) {
        _ if bench.plan.direct_io => Limit::FileDirect,
        ("shm", _) => Limit::File,
        (_, Unit::OpsPerS) => Limit::TcpUnbatched,
        _ if op == Op::Write => Limit::TcpStreamFile,
        _ => Limit::TcpStream,
    }
}
