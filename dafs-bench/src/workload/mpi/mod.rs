//! MPI-IO, as the papers measured it: Wu and Panda, "MPI-IO on DAFS over VIA" (memory, latency, bandwidth, overlap), and Wu, Wyckoff and
//! Panda, "Supporting Efficient Noncontiguous Access in PVFS over InfiniBand" (block-column, tiled, btio).
//!
//! [`arena`] holds MPI jobs and [`client`] the client API and local calls, in whose places [`single`] takes measurements of one process;
//! [`figures`] and [`targets`] look at the rows alone.

mod arena;
mod client;
mod figures;
mod memory;
mod overlap;
mod papers;
mod pattern;
mod single;
mod targets;
mod transfer;

use anyhow::bail;

use self::arena::Arena;
use self::single::Single;
use crate::cli::{MpiCase, MpiOptions, ViewsOptions};
use crate::mpi::Kit;
use crate::sys;
use crate::workload::Bench;

pub(super) fn run(
    bench: &mut Bench<'_>,
    options: &MpiOptions,
    sizes: Option<&[usize]>,
) -> anyhow::Result<()> {
    use clap::ValueEnum;
    let cases = options.case.clone().unwrap_or_else(|| MpiCase::value_variants().to_vec());
    let (together, alone): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| case.has_ranks());
    if sizes.is_some() && alone.is_empty() {
        bail!("cannot use --sizes: it is for memory, latency, bandwidth and overlap");
    }
    bench.progress.doing("compiling the MPI program");
    let kit = Kit::build(&options.mpi_prefix)?;
    if bench.plan.mounts.is_empty() {
        bench.outcome.notes.push(no_nfs());
    }
    if !alone.is_empty() {
        let arena = Arena::new(bench, &kit, options, 1)?;
        let mut single = Single::new(bench, arena)?;
        for case in alone {
            match case {
                MpiCase::Memory => memory::run(&mut single, sizes)?,
                MpiCase::Overlap => overlap::run(&mut single, sizes)?,
                _ => transfer::run(&mut single, case)?,
            }
        }
    }
    if !together.is_empty() {
        let mut arena = Arena::new(bench, &kit, options, options.ranks as usize)?;
        for case in together {
            pattern::run(bench, &mut arena, options, case)?;
        }
    }
    let rows = &bench.outcome.rows;
    bench.outcome.chart = Some(figures::chart(rows));
    bench.outcome.notes.extend(targets::notes(rows));
    Ok(())
}

/// The figures and tables about noncontiguous data, on their axes.
pub(super) fn run_views(bench: &mut Bench<'_>, options: &ViewsOptions) -> anyhow::Result<()> {
    bench.progress.doing("compiling the MPI program");
    let kit = Kit::build(&options.mpi_prefix)?;
    let of_figures: &[MpiCase] = &[MpiCase::BlockColumn, MpiCase::Tiled, MpiCase::Mesh];
    for (ranks, cases) in [(4, of_figures), (2, &[MpiCase::Mesh])] {
        let options = MpiOptions { ranks, ..options.of_mpi() };
        let mut arena = Arena::new(bench, &kit, &options, ranks as usize)?;
        for case in cases {
            pattern::run(bench, &mut arena, &options, *case)?;
        }
    }
    let rows = &bench.outcome.rows;
    bench.outcome.chart = Some(figures::chart(rows));
    let lacks = papers::Lacks { durable: sys::room(bench.file)?.0, cold: !bench.plan.cold };
    bench.outcome.notes.extend(papers::notes(rows, lacks));
    bench.outcome.notes.extend(targets::typed_notes(rows));
    Ok(())
}

/// Why there are no rows for NFS.
fn no_nfs() -> String {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let has_client = known.lines().any(|line| matches!(line.split_whitespace().last(), Some("nfs" | "nfs4")));
    let why = if has_client { "none is named" } else { "this kernel has no NFS client loaded" };
    format!(
        "no rows for NFS: {why}; mount one (mpi wants the option noac) and add --peer-mount nfs=DIR; \
         its page cache is not bypassed here"
    )
}
