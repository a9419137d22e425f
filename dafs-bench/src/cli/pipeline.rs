//! The options of `pipeline`.

use clap::Args;
use serde::Serialize;

use super::{parse_file_size, parse_size};

/// What `pipeline` varies.
#[derive(Debug, Clone, Args, Serialize)]
pub struct PipelineOptions {
    /// Size of the file that each case moves, 16MiB to 1TiB.
    #[arg(long, default_value = "128MiB", value_parser = parse_file_size, value_name = "SIZE")]
    pub file_size: u64,
    /// Size of the file that is read with the server's own chunk size, from the disk, 16MiB to 1TiB.
    #[arg(long, default_value = "1024MiB", value_parser = parse_file_size, value_name = "SIZE")]
    pub whole_size: u64,
    /// Chunk sizes, 4KiB to 1MiB, separated by commas.
    #[arg(long, default_value = "128KiB,256KiB,1MiB", value_delimiter = ',', value_parser = parse_chunk_size, value_name = "LIST")]
    pub chunk_sizes: Vec<usize>,
    /// Chunks in progress at once, 1 to 32, separated by commas.
    #[arg(long, default_value = "1,4", value_delimiter = ',', value_parser = parse_chunk_count, value_name = "LIST")]
    pub depths: Vec<usize>,
}

/// A server's largest buffer is 1 MiB where it is not told otherwise.
fn parse_chunk_size(text: &str) -> Result<usize, String> {
    parse_size(text).and_then(|bytes| match bytes {
        4096..=0x10_0000 => Ok(bytes),
        _ => Err("chunks go from 4 KiB to 1 MiB".to_owned()),
    })
}

fn parse_chunk_count(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if (1..=32).contains(&count) => Ok(count),
        _ => Err("from 1 to 32 chunks at once".to_owned()),
    }
}
