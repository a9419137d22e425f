//! The time of one operation after the other.

use crate::cli::{Poll, Transport};
use crate::load::Load;
use crate::plan::Plan;
use crate::record::{Op, Unit};
use crate::workload::Bench;

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.each_subject(polls, |bench, subject| {
        let ping = Load { op: Op::Ping, bytes: 0, ..bench.load(Op::Read, 0, 1) };
        let limit = bench.latency_limit(subject, 0);
        bench.compare(subject, limit, Unit::Us, &[ping])?;
        for &bytes in &bench.plan.sizes {
            let limit = bench.latency_limit(subject, bytes);
            for &op in &bench.plan.ops {
                let load = bench.load(op, bytes, 1);
                let loads = bench.variants(&load);
                bench.compare(subject, limit, Unit::Us, &loads)?;
            }
        }
        Ok(())
    })
}

/// Over TCP and RDMA, waiting and spinning have a limit each; with one CPU for both ends, spinning is no way to wait.
fn polls(plan: &Plan, transport: Transport) -> Vec<Poll> {
    match transport {
        Transport::Tcp | Transport::Verbs if plan.poll.is_none() && !plan.same_cpu => {
            vec![Poll::Event, Poll::Busy]
        }
        Transport::Tcp | Transport::Shm | Transport::Verbs => vec![plan.poll()],
    }
}
