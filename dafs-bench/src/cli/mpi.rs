//! The options of `mpi`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::parse_size;

/// What `mpi` measures, besides what all benchmarks share.
#[derive(Debug, Clone, Args, Serialize)]
pub struct MpiOptions {
    /// Measure these cases, separated by commas [default: all].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub case: Option<Vec<MpiCase>>,
    /// Use these MPI-IO implementations of Open MPI, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "ompio,romio", value_name = "LIST")]
    pub way: Vec<Way>,
    /// Run block-column, tiled, mesh and btio on this many processes, 1 to 64; a square number for btio.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "COUNT")]
    pub ranks: u32,
    /// Columns and rows of the arrays of block-column, 1 to 16384, multiples of --ranks, separated by commas.
    #[arg(long, default_value = "512,1024,2048,4096", value_delimiter = ',', value_parser = parse_columns, value_name = "LIST")]
    pub columns: Vec<usize>,
    /// Integers of all ranks together in mesh, 1 to 16777216, multiples of --ranks, separated by commas.
    #[arg(long, default_value = "4000,16000,128000,1024000", value_delimiter = ',', value_parser = parse_integers, value_name = "LIST")]
    pub integers: Vec<usize>,
    /// Size of BT in btio: a cube of 12, 24 or 64 points; only A stands beside figures of the paper.
    #[arg(long, value_enum, ignore_case = true, default_value_t = Class::A)]
    pub class: Class,
    /// Directory where `cargo xtask mpi install` put the driver.
    #[arg(long, env = "DAFS_MPI_HOME", default_value = "target/mpi", value_name = "DIR")]
    #[serde(skip)]
    pub mpi_prefix: PathBuf,
}

/// What `views` measures, besides what all benchmarks share.
#[derive(Debug, Clone, Args, Serialize)]
pub struct ViewsOptions {
    /// Use these MPI-IO implementations of Open MPI, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "ompio,romio", value_name = "LIST")]
    pub way: Vec<Way>,
    /// Columns and rows of the arrays of Figures 6 and 7, 1 to 16384, multiples of 4, separated by commas.
    #[arg(long, default_value = "512,1024,2048,4096,8192", value_delimiter = ',', value_parser = parse_columns, value_name = "LIST")]
    pub columns: Vec<usize>,
    /// Integers of all ranks together in Tables 1 to 4, 1 to 16777216, multiples of 4, separated by commas.
    #[arg(
        long,
        default_value = "4000,8000,16000,32000,64000,128000,256000,512000,1024000",
        value_delimiter = ',',
        value_parser = parse_integers,
        value_name = "LIST"
    )]
    pub integers: Vec<usize>,
    /// Directory where `cargo xtask mpi install` put the driver.
    #[arg(long, env = "DAFS_MPI_HOME", default_value = "target/mpi", value_name = "DIR")]
    #[serde(skip)]
    pub mpi_prefix: PathBuf,
}

impl ViewsOptions {
    /// The same, as options of `mpi`.
    pub fn of_mpi(&self) -> MpiOptions {
        MpiOptions {
            case: None,
            way: self.way.clone(),
            ranks: 4,
            columns: self.columns.clone(),
            integers: self.integers.clone(),
            class: Class::A,
            mpi_prefix: self.mpi_prefix.clone(),
        }
    }
}

/// A case of `mpi`, named like what it measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MpiCase {
    /// Blocking transfers by memory mode and buffer reuse (MPI-IO on DAFS over VIA, Figures 4 and 5).
    Memory,
    /// Time of blocking transfers by size, in sequence and at random (Figure 6).
    Latency,
    /// Rate of the same in sequence (Figure 7).
    Bandwidth,
    /// Rate of nonblocking transfers while the program computes (Figure 8).
    Overlap,
    /// A block of columns of an array for each rank, by method (PVFS over InfiniBand, Figures 5 to 7).
    BlockColumn,
    /// A display of 1024 x 768 pixels for each rank, by method (Figures 8 and 9).
    Tiled,
    /// Integers of all ranks in turn, by the exchange of MPI and by views in the server (ECIO, Tables 1 to 4).
    Mesh,
    /// The arrays that BT writes, by method, with counts of requests and registrations (Tables 5 and 6).
    Btio,
}

impl MpiCase {
    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Overlap => "overlap",
            Self::BlockColumn => "block-column",
            Self::Tiled => "tiled",
            Self::Mesh => "mesh",
            Self::Btio => "btio",
        }
    }

    /// Whether it runs on `--ranks` processes; else on one.
    pub fn has_ranks(self) -> bool {
        matches!(self, Self::BlockColumn | Self::Tiled | Self::Mesh | Self::Btio)
    }
}

/// An implementation of MPI-IO in Open MPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Open MPI's own; dafs by its components.
    Ompio,
    /// ROMIO; dafs by a driver that is preloaded.
    Romio,
}

impl Way {
    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ompio => "ompio",
            Self::Romio => "romio",
        }
    }
}

/// Sizes of NAS BT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Class {
    /// 12 points.
    #[value(name = "S")]
    S,
    /// 24 points.
    #[value(name = "W")]
    W,
    /// 64 points.
    #[value(name = "A")]
    A,
}

impl Class {
    /// Points of a side of the cube.
    pub fn points(self) -> usize {
        match self {
            Self::S => 12,
            Self::W => 24,
            Self::A => 64,
        }
    }
}

/// Each is a piece of its own.
fn parse_integers(text: &str) -> Result<usize, String> {
    match parse_size(text) {
        Ok(count @ 1..=16_777_216) => Ok(count),
        _ => Err("there are from 1 to 16777216 integers".to_owned()),
    }
}

/// Arrays up to 1 GiB.
fn parse_columns(text: &str) -> Result<usize, String> {
    match parse_size(text) {
        Ok(columns @ 1..=16384) => Ok(columns),
        _ => Err("columns go from 1 to 16384".to_owned()),
    }
}
