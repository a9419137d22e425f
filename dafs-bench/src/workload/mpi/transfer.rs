//! Blocking transfers by size: their time in sequence and at random (Figure 6), and their rate (Figure 7).

use crate::cli::MpiCase;
use crate::workload::mpi::client::{Load, Memory};
use crate::workload::mpi::single::{Actor, Compare, Entry, Single};

pub(super) fn run(single: &mut Single<'_, '_, '_>, case: MpiCase) -> anyhow::Result<()> {
    let entries = entries(single);
    let plan = single.bench.plan;
    let (orders, compare): (&[bool], _) = match case {
        MpiCase::Latency => (&[false, true], Compare::Median),
        _ => (&[false], Compare::Bandwidth),
    };
    for &op in &plan.ops {
        for &random in orders {
            for &bytes in &plan.sizes {
                let load = Load { op, bytes, random, reuse: 100, fresh: 0 };
                let rounds = single.alternate(&entries, &load)?;
                single.report(case.name(), (&entries, &rounds), &load, compare);
            }
        }
    }
    Ok(())
}

/// Local calls; the client API beside them; MPI programs on dafs beside the client API, and the others beside local calls.
fn entries(single: &Single<'_, '_, '_>) -> Vec<Entry> {
    let mut entries = vec![Entry { actor: Actor::Local, beside: None }];
    let first_client = entries.len();
    let client = |client| Entry { actor: Actor::Client(client, Memory::Ordinary), beside: Some(0) };
    entries.extend((0..single.clients.len()).map(client));
    for contender in single.arena.contenders() {
        let beside = single.client_of(&contender).map_or(0, |client| first_client + client);
        entries.push(Entry { actor: Actor::Program(contender, None), beside: Some(beside) });
    }
    entries
}
