//! Rates with many operations in flight: of bytes (`bandwidth`) or of operations (`iops`).

use crate::cli::Transport;
use crate::limit::Limit;
use crate::record::{Op, Unit};
use crate::subject::Subject;
use crate::workload::{Bench, rdma_limit};

pub(super) fn run(bench: &mut Bench<'_>, unit: Unit) -> anyhow::Result<()> {
    let depths = bench.plan.queue_depths.clone();
    bench.each_subject(|plan, _| vec![plan.poll()], |bench, subject| rates(bench, subject, unit, &depths))?;
    let compares = bench.plan.own_server && bench.plan.transports.contains(&Transport::Tcp);
    if unit == Unit::OpsPerS && compares {
        // What the coalescing is worth: the same programs without it.
        let depths: Vec<usize> = depths.into_iter().filter(|&depth| depth > 1).collect();
        bench.pins.be_client();
        let mut subject = bench.subjects.dafs(Transport::Tcp, bench.plan.poll(), false)?;
        rates(bench, subject.as_mut(), unit, &depths)?;
    }
    Ok(())
}

fn rates(
    bench: &mut Bench<'_>,
    subject: &mut dyn Subject,
    unit: Unit,
    queue_depths: &[usize],
) -> anyhow::Result<()> {
    for &queue_depth in queue_depths {
        for &bytes in &bench.plan.sizes {
            for &op in &bench.plan.ops {
                let limit = rate_limit(bench, subject, op, unit);
                let load = bench.load(op, bytes, queue_depth);
                let loads = bench.variants(&load);
                bench.compare(subject, limit, unit, &loads)?;
            }
        }
    }
    Ok(())
}

/// The rate that the machine allows.
pub(super) fn rate_limit(bench: &Bench<'_>, subject: &dyn Subject, op: Op, unit: Unit) -> Limit {
    match subject.transport() {
        _ if bench.plan.direct_io => Limit::FileDirect,
        "shm" => Limit::File,
        _ if bench.over_rdma(subject) => rdma_limit(op),
        _ => stream_limit(subject.coalesces(), op, unit),
    }
}

/// The limit over TCP, which coalesces where its subject does.
fn stream_limit(coalesces: bool, op: Op, unit: Unit) -> Limit {
    match unit {
        Unit::OpsPerS if !coalesces => Limit::TcpUncoalesced,
        _ if op == Op::Write => Limit::TcpStreamFile,
        _ => Limit::TcpStream,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_many_operations_coalesces_where_its_subject_does() {
        for (op, stream) in [(Op::Read, Limit::TcpStream), (Op::Write, Limit::TcpStreamFile)] {
            assert_eq!(stream_limit(false, op, Unit::OpsPerS), Limit::TcpUncoalesced);
            assert_eq!(stream_limit(true, op, Unit::OpsPerS), stream);
            assert_eq!(stream_limit(false, op, Unit::MibPerS), stream);
        }
    }
}
