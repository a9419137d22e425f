//! What sessions cost that do nothing: CPU of both ends, memory of the server.

use std::time::{Duration, Instant};

use crate::cli::Transport;
use crate::interrupt;
use crate::record::Row;
use crate::stats::median;
use crate::subject::Crowd;
use crate::sys;
use crate::workload::Bench;

pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let count = bench.plan.sessions;
    for transport in bench.plan.transports.clone() {
        bench.progress.doing(format!("opening {count} sessions over {}", transport.name()));
        bench.pins.be_client();
        let crowd = bench.subjects.crowd(transport, bench.plan.poll(), count)?;
        let rows = watch(bench, transport, &crowd)?;
        bench.outcome.rows.extend(rows);
    }
    Ok(())
}

fn watch(bench: &Bench<'_>, transport: Transport, crowd: &Crowd) -> anyhow::Result<[Row; 2]> {
    bench.progress.doing("doing nothing");
    let (mut server, mut client) = (Vec::new(), Vec::new());
    for _ in 0..bench.plan.repeats {
        interrupt::check()?;
        let (start, server_before, client_before) =
            (Instant::now(), crowd.server.usage()?, sys::usage("self")?);
        // Whoever looks up oftener than once a second is not idle.
        while let Some(left) = bench.plan.budget.duration.checked_sub(start.elapsed()) {
            interrupt::check()?;
            std::thread::sleep(left.min(Duration::from_secs(1)));
        }
        let (server_after, client_after) = (crowd.server.usage()?, sys::usage("self")?);
        let elapsed_ns = start.elapsed().as_secs_f64() * 1e9;
        let percent = |before: u64, after: u64| 100.0 * after.saturating_sub(before) as f64 / elapsed_ns;
        server.push(percent(server_before.cpu_ns, server_after.cpu_ns));
        client.push(percent(client_before.cpu_ns, client_after.cpu_ns));
        bench.progress.step();
    }
    let count = crowd.clients.len();
    let grown_kib = crowd.server.usage()?.memory_kib.saturating_sub(crowd.before.memory_kib);
    let row = |case, percents: Vec<f64>| Row {
        transport: transport.name().to_owned(),
        case: Some(case),
        sessions: Some(count),
        cpu_percent: median(percents),
        ..Row::default()
    };
    let kib_per_session = Some(grown_kib as f64 / count as f64);
    Ok([Row { kib_per_session, ..row("server", server) }, row("client", client)])
}
