//! Nonblocking transfers while the program computes (Figure 8).

use crate::cli::Transport;
use crate::interrupt;
use crate::mpi::Step;
use crate::record::{MpiRow, Row, Unit};
use crate::stats::median;
use crate::workload::mpi::arena::Contender;
use crate::workload::mpi::client::{Client, Load};
use crate::workload::mpi::single::{Single, command, mib_per_s};
use crate::workload::turns;

/// Shares of computation T/(T + Tio), percent.
const FRACTIONS: [u32; 10] = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90];
const SIZES: [usize; 2] = [64 << 10, 1 << 20];

/// What one round gave: the time of a blocking transfer, and a step for each share of computation.
#[derive(Debug, Clone)]
struct Round {
    io_us: f64,
    steps: Vec<Step>,
}

/// Who transfers: the client API over a transport, or an MPI program.
enum Actor {
    Client(Box<Client>),
    Program(Contender),
}

pub(super) fn run(single: &mut Single<'_, '_, '_>, sizes: Option<&[usize]>) -> anyhow::Result<()> {
    let mut actors = Vec::new();
    if let Some(server) = &single.arena.server {
        for &transport in &single.bench.plan.transports {
            actors.push(Actor::Client(Box::new(Client::connect(
                server,
                transport,
                needs_thread(transport),
            )?)));
        }
    }
    actors.extend(single.arena.contenders().into_iter().map(Actor::Program));
    let repeats = single.bench.plan.repeats as usize;
    for &bytes in sizes.unwrap_or(&SIZES) {
        for op in single.bench.plan.ops.clone() {
            let load = Load { op, bytes, random: false, reuse: 100, fresh: 0 };
            let mut rounds: Vec<Vec<Round>> = actors.iter().map(|_| Vec::new()).collect();
            for round in 0..repeats {
                for place in turns(round, actors.len()) {
                    let (actor, rounds) = (&mut actors[place], &mut rounds[place]);
                    interrupt::check()?;
                    single.bench.progress.doing(format!("overlap, {op} of {bytes} bytes"));
                    rounds.extend(measure(single, actor, &load)?);
                    single.bench.progress.step();
                }
            }
            for (actor, rounds) in actors.iter().zip(&rounds).filter(|(_, rounds)| !rounds.is_empty()) {
                single.bench.outcome.rows.extend(rows(actor, &load, rounds));
            }
        }
    }
    Ok(())
}

/// A byte stream needs somebody to read it; over shared memory and RDMA the server finishes transfers by itself.
fn needs_thread(transport: Transport) -> bool {
    transport == Transport::Tcp
}

fn measure(single: &mut Single<'_, '_, '_>, actor: &mut Actor, load: &Load) -> anyhow::Result<Option<Round>> {
    let bench = &mut *single.bench;
    bench.pins.be_client();
    match actor {
        Actor::Client(client) => {
            let (io_us, steps) = client.overlap(load, &FRACTIONS, bench.plan.budget, &mut bench.samples)?;
            Ok(Some(Round { io_us, steps }))
        }
        Actor::Program(contender) => {
            let fractions = FRACTIONS.map(|percent| percent.to_string()).join(",");
            let command =
                single.arena.data(contender, command("overlap", load, bench)).with("fractions", fractions);
            let thread = contender.dafs.is_some_and(needs_thread);
            let reply = single.arena.ask(bench, contender, thread, &command)?;
            Ok(reply.map(|reply| Round { io_us: reply.io_us, steps: reply.steps }))
        }
    }
}

/// One row for each share of computation, with the bandwidth of both together; the limit is perfect overlap.
fn rows(actor: &Actor, load: &Load, rounds: &[Round]) -> Vec<Row> {
    let (transport, subject, way) = match actor {
        Actor::Client(client) => (client.transport.name(), "dafs", "client"),
        Actor::Program(contender) => {
            (contender.transport(), contender.subject.as_str(), contender.way.name())
        }
    };
    let bandwidth = |us: f64| mib_per_s(load.bytes as f64, us);
    let row = |place: usize, percent: &u32| {
        let fraction = f64::from(*percent) / 100.0;
        // What is to be computed takes its time, and the transfer too.
        let perfect_us = |round: &Round| {
            let alone_us = round.steps.first().map_or(0.0, |alone| alone.mean_us);
            alone_us.max(round.io_us * fraction / (1.0 - fraction))
        };
        let steps = || rounds.iter().filter_map(move |round| Some((*round.steps.get(place)?, round)));
        let ratio = |(step, round): (Step, &Round)| step.mean_us / perfect_us(round);
        Row {
            transport: transport.to_owned(),
            case: Some("overlap"),
            op: Some(load.op),
            bytes: load.bytes,
            queue_depth: 1,
            cpu_fraction: Some(fraction),
            p50_us: median(steps().map(|(step, _)| step.p50_us)),
            mib_per_s: median(steps().map(|(step, _)| bandwidth(step.mean_us))),
            limit: Some("perfect".to_owned()),
            limit_value: median(steps().map(|(_, round)| bandwidth(perfect_us(round)))),
            limit_unit: Some(Unit::MibPerS),
            ratio: median(steps().map(ratio)),
            ratio_min: steps().map(ratio).reduce(f64::min),
            ratio_max: steps().map(ratio).reduce(f64::max),
            mpi: Some(MpiRow {
                subject: subject.to_owned(),
                way,
                ranks: 1,
                mean_us: median(steps().map(|(step, _)| step.mean_us)),
                min_us: median(steps().map(|(step, _)| step.min_us)),
                ..MpiRow::default()
            }),
            ..Row::default()
        }
        .known_by(steps().map(|(step, _)| bandwidth(step.mean_us)))
    };
    FRACTIONS.iter().enumerate().map(|(place, percent)| row(place, percent)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Way;
    use crate::record::Op;

    #[test]
    fn overlap_rows_stand_beside_perfect_overlap_of_their_own_round() {
        let step = |fraction, us| Step { fraction, p50_us: us, mean_us: us, min_us: us };
        // Perfect until half of the time is computation, then none at all.
        let round = |io_us: f64| {
            let us = |fraction: f64| if fraction < 0.5 { io_us } else { io_us / (1.0 - fraction) };
            let steps = FRACTIONS.iter().map(|percent| f64::from(*percent) / 100.0).map(|f| step(f, us(f)));
            Round { io_us, steps: steps.collect() }
        };
        let contender = crate::workload::mpi::arena::stock("local", std::path::Path::new("/x"), Way::Romio);
        let load = Load { op: Op::Read, bytes: 1 << 20, random: false, reuse: 100, fresh: 0 };
        let rows = rows(&Actor::Program(contender), &load, &[round(100.0), round(1000.0), round(200.0)]);
        assert_eq!(rows.len(), FRACTIONS.len());
        let near =
            |value: Option<f64>, wanted: f64| assert!((value.unwrap() - wanted).abs() < 1e-6, "{value:?}");
        near(rows[4].mib_per_s, 1e6 / 200.0);
        near(rows[4].ratio, 1.0);
        // T is as long as the transfer, and both are done one after the other.
        near(rows[5].ratio, 2.0);
        near(rows[9].ratio, 10.0 / 9.0);
        near(rows[9].limit_value, 1e6 / 200.0 / 9.0);
    }
}
