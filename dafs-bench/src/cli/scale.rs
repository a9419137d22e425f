//! The options of `scale`.

use clap::Args;
use serde::Serialize;

/// Workers at most, as those of a server.
const WORKERS_MAX: usize = 64;

/// What `scale` varies.
#[derive(Debug, Clone, Args, Serialize)]
pub struct ScaleOptions {
    /// Serve by this many workers, 1 to 64, separated by commas. The first is what the others are compared with.
    #[arg(long, default_value = "1,2", value_delimiter = ',', value_parser = parse_count, value_name = "LIST")]
    pub workers: Vec<usize>,
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if (1..=WORKERS_MAX).contains(&count) => Ok(count),
        _ => Err(format!("from 1 to {WORKERS_MAX}")),
    }
}
