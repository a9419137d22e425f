//! Options that fit a benchmark, and those that would do nothing there.

use std::path::PathBuf;

use anyhow::bail;
use serde_json::Value;

use crate::cli::{Benchmark, Options, Registered};
use crate::load::DIRECT_BYTES;
use crate::machine::available_memory;
use crate::plan::Plan;
use crate::record::Method;
use crate::sys;
use crate::workload::registration::BUFFERS_ALIVE;

/// Refuses what would do nothing, and rows with names of what was not done.
pub(crate) fn check_options(benchmark: &Benchmark, name: &str, options: &Options) -> anyhow::Result<()> {
    let lists = matches!(benchmark, Benchmark::Noncontiguous(_) | Benchmark::Listio(_));
    for method in options.method.iter().flatten() {
        if matches!(method, Method::Multiple | Method::Pack | Method::Gather | Method::Batch) && !lists {
            bail!("cannot use --method {method}: it is for memory in pieces: noncontiguous and listio");
        }
    }
    let can_be_cold =
        matches!(benchmark, Benchmark::Listio(_) | Benchmark::Sieve { .. } | Benchmark::Views { .. });
    if options.cold && !can_be_cold {
        bail!("cannot use --cold: it is for sieve, and for reads of listio and views");
    }
    check_uses(benchmark, name, options)?;
    check_server(benchmark, options)?;
    check_memory(benchmark, options, available_memory())?;
    // A directory that is not there is told where it is first used.
    let in_memory = |dir: &PathBuf| sys::room(dir).is_ok_and(|(in_memory, _)| in_memory);
    if (options.cold || options.direct_io)
        && options.dir.as_ref().is_none_or(in_memory)
        // The limits of --direct-io are of a file of this host, whoever serves the other.
        && (options.direct_io || options.server.is_none())
    {
        let flag = if options.cold { "--cold" } else { "--direct-io" };
        bail!("cannot use {flag}: the file is in memory; name a --dir on a disk");
    }
    let odd = |bytes: &&usize| !bytes.is_multiple_of(DIRECT_BYTES);
    if let Some(bytes) = options.sizes.iter().flatten().find(odd).filter(|_| options.direct_io) {
        bail!(
            "cannot use --sizes {bytes} with --direct-io: O_DIRECT takes multiples of {DIRECT_BYTES} bytes"
        );
    }
    if options.peer_only && options.peer.is_empty() && options.peer_mount.is_empty() {
        bail!("cannot use --peer-only: there is no --peer and no --peer-mount");
    }
    Ok(())
}

/// Limits are of this machine alone.
fn check_server(benchmark: &Benchmark, options: &Options) -> anyhow::Result<()> {
    let given = [
        ("--server", options.server.is_some()),
        ("--key-file", options.key_file.is_some()),
        ("--server-program", options.server_program.is_some()),
        ("--verbs-address", options.verbs_address.is_some()),
    ];
    let unused = given.iter().find(|(_, given)| *given && matches!(benchmark, Benchmark::Limits(_)));
    match unused {
        Some((flag, _)) => bail!("cannot use {flag}: limits starts no server; leave it out"),
        None => Ok(()),
    }
}

/// All buffers of `registration` are there at once: of memory that is not there the kernel would end some process.
fn check_memory(benchmark: &Benchmark, options: &Options, available: u64) -> anyhow::Result<()> {
    let Benchmark::Registration(_) = benchmark else { return Ok(()) };
    let largest = options.sizes.iter().flatten().copied().max().unwrap_or(0) as u64;
    let needed = largest.saturating_mul(BUFFERS_ALIVE);
    if needed > available {
        bail!(
            "cannot use --sizes {largest}: registration has {BUFFERS_ALIVE} buffers of it, {} MiB, and {} MiB are available",
            needed >> 20,
            available >> 20
        );
    }
    Ok(())
}

/// What was measured, for programs: the options that the benchmark has a use for, with its defaults.
pub(crate) fn settings(benchmark: &Benchmark, plan: &Plan) -> serde_json::Result<Value> {
    let mut all = serde_json::to_value(plan)?;
    let own = match benchmark {
        Benchmark::Pipeline { pipeline, .. } => serde_json::to_value(pipeline)?,
        Benchmark::Mpi { mpi, .. } => serde_json::to_value(mpi)?,
        Benchmark::Views { views, .. } => serde_json::to_value(views)?,
        Benchmark::Stripe { stripe, .. } => serde_json::to_value(stripe)?,
        Benchmark::Distance { distance, .. } => serde_json::to_value(distance)?,
        Benchmark::Scale { scale, .. } => serde_json::to_value(scale)?,
        Benchmark::Cluster { cluster, .. } => serde_json::to_value(cluster)?,
        Benchmark::Fairness { sessions: Some(count), .. } => serde_json::json!({ "sessions": count }),
        Benchmark::Fairness { outstanding, .. } => serde_json::json!({ "outstanding": outstanding }),
        Benchmark::Idle { sessions, .. } => serde_json::json!({ "sessions": sessions }),
        Benchmark::Compare { time, .. } => serde_json::json!({ "time": time }),
        Benchmark::Crossover { time, publish, .. } => serde_json::json!({ "time": time, "publish": publish }),
        _ => Value::Null,
    };
    let uses = uses(benchmark);
    if let Value::Object(all) = &mut all {
        for (key, takes) in [
            ("transports", uses.transport),
            ("sizes", uses.sizes),
            ("queue_depths", uses.queue_depth),
            ("ops", uses.op),
            ("methods", uses.method),
            ("registered", uses.registered),
            ("pattern", uses.pattern),
            ("poll", uses.poll),
            ("segments", uses.segments),
            ("direct_io", uses.direct_io),
            ("peers", uses.peers),
            ("mounts", uses.mounts),
        ] {
            if takes == Takes::Nothing {
                all.remove(key);
            }
        }
        // Each of its programs has sizes of its own.
        if matches!(benchmark, Benchmark::Mpi { options, .. } if options.sizes.is_none()) {
            all.remove("sizes");
        }
        all.extend(own.as_object().cloned().unwrap_or_default());
    }
    Ok(all)
}

/// How many values of an option a benchmark has a use for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    One,
    Many,
}

/// What a benchmark does with the options that say what is measured.
struct Uses {
    transport: Takes,
    sizes: Takes,
    queue_depth: Takes,
    op: Takes,
    method: Takes,
    registered: Takes,
    pattern: Takes,
    poll: Takes,
    segments: Takes,
    direct_io: Takes,
    peers: Takes,
    mounts: Takes,
}

fn uses(benchmark: &Benchmark) -> Uses {
    use Takes::{Many, Nothing, One};
    let all = Uses {
        transport: Many,
        sizes: Many,
        queue_depth: Many,
        op: Many,
        method: Many,
        registered: Many,
        pattern: Many,
        poll: Many,
        segments: Nothing,
        direct_io: One,
        peers: Many,
        mounts: Many,
    };
    let own = Uses {
        method: Nothing,
        registered: Nothing,
        pattern: Nothing,
        direct_io: Nothing,
        peers: Nothing,
        mounts: Nothing,
        ..all
    };
    let lists = Uses { queue_depth: Nothing, method: Many, registered: Many, segments: Many, ..own };
    match benchmark {
        Benchmark::Latency(_) | Benchmark::Crossover { .. } => Uses { queue_depth: Nothing, ..all },
        Benchmark::Bandwidth(_) | Benchmark::Iops(_) => all,
        Benchmark::Compare { .. } => {
            Uses { sizes: Nothing, queue_depth: Nothing, op: Nothing, mounts: Many, ..own }
        }
        Benchmark::Overlap(_) => {
            // A mount has no call that begins a transfer and returns.
            Uses { queue_depth: Nothing, method: One, registered: One, mounts: Nothing, ..all }
        }
        Benchmark::Noncontiguous(_) => Uses { direct_io: One, ..lists },
        Benchmark::Listio(_) => lists,
        Benchmark::Mixed(_) => Uses { op: Nothing, method: One, registered: One, pattern: Many, ..own },
        Benchmark::Sieve { .. } => {
            Uses { queue_depth: Nothing, registered: Many, segments: Many, direct_io: One, ..own }
        }
        Benchmark::C { .. } => Uses { queue_depth: Nothing, ..own },
        Benchmark::Metadata(_) => Uses { sizes: Nothing, op: Nothing, peers: Many, mounts: Many, ..own },
        Benchmark::Locks(_) => Uses { sizes: Nothing, queue_depth: Nothing, op: Nothing, ..own },
        Benchmark::Idle { .. } => Uses { sizes: Nothing, queue_depth: Nothing, op: Nothing, ..own },
        Benchmark::Registration(_) | Benchmark::Fairness { sessions: Some(_), .. } => {
            Uses { queue_depth: Nothing, op: Nothing, ..own }
        }
        Benchmark::Fairness { sessions: None, .. } => {
            Uses { queue_depth: Nothing, op: Nothing, method: One, registered: One, pattern: Many, ..own }
        }
        Benchmark::Pipeline { .. } => own,
        Benchmark::Views { .. } => {
            Uses { sizes: Nothing, queue_depth: Nothing, poll: Nothing, mounts: Many, ..own }
        }
        Benchmark::Mpi { .. } => Uses { queue_depth: Nothing, poll: Nothing, mounts: Many, ..own },
        Benchmark::Stripe { .. } => {
            Uses { transport: Nothing, sizes: Nothing, queue_depth: Nothing, poll: Nothing, ..own }
        }
        Benchmark::Distance { .. } => Uses {
            transport: Nothing,
            sizes: Nothing,
            queue_depth: Nothing,
            poll: Nothing,
            op: Nothing,
            ..own
        },
        Benchmark::Scale { .. } | Benchmark::Cluster { .. } => {
            Uses { sizes: Nothing, queue_depth: Nothing, poll: Nothing, op: Nothing, ..own }
        }
        Benchmark::Limits(_) => {
            Uses { transport: Nothing, poll: Nothing, pattern: Many, direct_io: One, ..own }
        }
    }
}

fn check_uses(benchmark: &Benchmark, name: &str, options: &Options) -> anyhow::Result<()> {
    if let (Some(address), Some(_)) = (&options.server, &options.transport) {
        bail!("cannot use --transport: the address {address} names the transport; leave one of them out");
    }
    let uses = uses(benchmark);
    let count = |list: Option<usize>| list.unwrap_or(0);
    let registered = options.registered.map_or(0, |which| if which == Registered::Both { 2 } else { 1 });
    for (flag, given, takes) in [
        ("--transport", count(options.transport.as_ref().map(Vec::len)), uses.transport),
        ("--sizes", count(options.sizes.as_ref().map(Vec::len)), uses.sizes),
        ("--queue-depth", count(options.queue_depth.as_ref().map(Vec::len)), uses.queue_depth),
        ("--op", count(options.op.as_ref().map(Vec::len)), uses.op),
        ("--method", count(options.method.as_ref().map(Vec::len)), uses.method),
        ("--registered", registered, uses.registered),
        ("--pattern", usize::from(options.pattern.is_some()), uses.pattern),
        ("--poll", usize::from(options.poll.is_some()), uses.poll),
        ("--segments", usize::from(options.segments.is_some()), uses.segments),
        ("--direct-io", usize::from(options.direct_io), uses.direct_io),
        ("--peer", options.peer.len(), uses.peers),
        ("--peer-mount", options.peer_mount.len(), uses.mounts),
    ] {
        match takes {
            Takes::Nothing if given > 0 => {
                bail!("cannot use {flag}: {name} does without; leave it out")
            }
            Takes::One if given > 1 => bail!("cannot use {given} values of {flag}: {name} takes one"),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn buffers_for_which_there_is_no_memory_are_refused() {
        let cli = Cli::try_parse_from("dafs-bench registration --sizes 4096,8192".split(' ')).unwrap();
        let check = |available| check_memory(&cli.benchmark, cli.benchmark.options(), available);
        assert!(check(8192 * BUFFERS_ALIVE).is_ok());
        assert!(check(8192 * BUFFERS_ALIVE - 1).is_err());
    }

    fn settings_of(arguments: &str) -> Value {
        let cli = Cli::try_parse_from(arguments.split(' ')).unwrap();
        settings(&cli.benchmark, &Plan::of(&cli.benchmark)).unwrap()
    }

    #[test]
    fn settings_are_what_was_asked_for_and_defaults_and_nothing_unused() {
        let iops = settings_of("dafs-bench iops --poll event --seconds 0.5 --direct-io");
        for (key, value) in [
            ("poll", "\"event\""),
            ("pattern", "\"random\""),
            ("seconds", "0.5"),
            ("repeats", "5"),
            ("sizes", "[4096]"),
            ("queue_depths", "[1,16,64]"),
            ("direct_io", "true"),
            ("cold", "false"),
        ] {
            assert_eq!(iops[key].to_string(), value, "{key}");
        }
        let mpi = settings_of("dafs-bench mpi --class w --ranks 9 --case btio");
        assert_eq!((&mpi["class"], &mpi["ranks"], &mpi["case"][0]), (&"W".into(), &9.into(), &"btio".into()));
        assert!(["direct_io", "methods", "sizes"].iter().all(|key| mpi.get(key).is_none()), "{mpi}");
        assert_eq!(settings_of("dafs-bench mpi --case latency --sizes 4")["sizes"][0], 4);
        assert_eq!(settings_of("dafs-bench fairness --sessions 7")["sessions"], 7);
        assert_eq!(settings_of("dafs-bench pipeline")["chunk_sizes"][0], 128 << 10);
    }
}
