//! The options of `stripe`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

/// Servers and clients at most: each is a namespace or a thread, and some sessions.
const COUNT_MAX: u32 = 32;

/// What `stripe` varies.
#[derive(Debug, Clone, Args, Serialize)]
pub struct StripeOptions {
    /// Lay the file over this many servers, 1 to 32, separated by commas.
    #[arg(long, default_value = "1,2,3,4", value_delimiter = ',', value_parser = parse_count, value_name = "LIST")]
    pub servers: Vec<usize>,
    /// Move data by this many clients at once, 1 to 32, separated by commas.
    #[arg(long, default_value = "1,2,3,4", value_delimiter = ',', value_parser = parse_count, value_name = "LIST")]
    pub clients: Vec<usize>,
    /// Hold the link of each server to this many MB/s (10⁶ bytes) in each direction; 0 for no limit.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100_000), value_name = "MB/S")]
    pub link_rate: u32,
    /// Bytes on one server before the next one follows, in KiB, a multiple of 4, 4 to 1048576.
    #[arg(long, default_value_t = 256, value_parser = parse_unit, value_name = "KIB")]
    pub striping_unit: u64,
    /// Directory where `cargo xtask mpi install` put the driver, for rows of MPI-IO.
    #[arg(long, env = "DAFS_MPI_HOME", default_value = "target/mpi", value_name = "DIR")]
    #[serde(skip)]
    pub mpi_prefix: PathBuf,
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if (1..=COUNT_MAX).contains(&count) => Ok(count as usize),
        _ => Err(format!("from 1 to {COUNT_MAX}")),
    }
}

fn parse_unit(text: &str) -> Result<u64, String> {
    match text.trim().parse::<u64>() {
        Ok(kib) if (4..=1 << 20).contains(&kib) && kib.is_multiple_of(4) => Ok(kib),
        _ => Err("a unit is a multiple of 4 KiB, from 4 to 1048576".to_owned()),
    }
}
