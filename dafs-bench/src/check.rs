//! Options that fit a benchmark, and those that would do nothing there.

use std::path::PathBuf;

use anyhow::bail;

use crate::cli::{Benchmark, Options, Registered};
use crate::load::DIRECT_BYTES;
use crate::record::Method;
use crate::sys;

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
    // A directory that is not there is told where it is first used.
    let in_memory = |dir: &PathBuf| sys::room(dir).is_ok_and(|(in_memory, _)| in_memory);
    if (options.cold || options.direct_io)
        && options.dir.as_ref().is_none_or(in_memory)
        && options.server.is_none()
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
        Benchmark::Latency(_) | Benchmark::Crossover(_) => Uses { queue_depth: Nothing, ..all },
        Benchmark::Bandwidth(_) | Benchmark::Iops(_) => all,
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
