//! The options of `distance`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

/// What `distance` varies.
#[derive(Debug, Clone, Args, Serialize)]
pub struct DistanceOptions {
    /// Let round trips take this long, in milliseconds, 0 to 1000, separated by commas.
    #[arg(long, default_value = "1,4,11", value_delimiter = ',', value_parser = parse_ms, value_name = "LIST")]
    pub round_trip_ms: Vec<f64>,
    /// Files of the tree.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "COUNT")]
    pub files: u32,
    /// Directories of the tree.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "COUNT")]
    pub directories: u32,
    /// Measure this `dafs` [default: the one beside this program, brought up to date].
    #[arg(long, value_name = "FILE")]
    pub command: Option<PathBuf>,
}

fn parse_ms(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(ms) if (0.0..=1000.0).contains(&ms) => Ok(ms),
        _ => Err("a time from 0 to 1000 milliseconds".to_owned()),
    }
}
