//! Reads a whole file with 16 requests in flight, into registered memory, and prints its length and a checksum.
//!
//! ```text
//! cargo run --example nonblocking -- dafs+tcp://127.0.0.1:12049/data/file
//! ```

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use dafs_client::{Config, Session, Url, wait_any};

const DEPTH: usize = 16;
const BLOCK: usize = 256 * 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args_os().nth(1).ok_or("usage: nonblocking dafs://host/export/file")?;
    let url = Url::parse(&argument)?;
    let export = std::str::from_utf8(url.export.as_deref().ok_or("the address names no export")?)?;
    let session = Session::connect_url(&url, &Config::default())?;
    let file = session.mount(export)?.open(OsStr::from_bytes(&url.path))?;
    let size = file.metadata()?.size;

    // One registration, cut into a buffer for each request.
    let mut rest = session.buffer(DEPTH * BLOCK)?;
    let mut next = 0;
    let mut pendings = Vec::new();
    while pendings.len() < DEPTH && next < size {
        let tail = rest.split_off(BLOCK);
        pendings.push(file.submit_read_at(std::mem::replace(&mut rest, tail), next));
        next += BLOCK as u64;
    }
    let (mut bytes, mut sum) = (0, 0u64);
    while let Some(place) = wait_any(&mut pendings) {
        let (count, buffer) = pendings.swap_remove(place).wait().into_result()?;
        bytes += count;
        sum = buffer[..count].iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)));
        // The buffer came back with the result: use it for the next block.
        if next < size {
            pendings.push(file.submit_read_at(buffer, next));
            next += BLOCK as u64;
        }
    }
    println!("{bytes} bytes, sum {sum}");
    Ok(())
}
