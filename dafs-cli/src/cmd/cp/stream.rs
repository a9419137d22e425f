//! What is read to its end because its size says nothing: pipes and devices that the user named, and what follows the
//! end of a file whose size is not that of its content, as in /proc.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use super::account::Account;
use super::large::Fault;
use super::open_file::OpenFile;
use crate::signals::progressed;

/// Bytes of one read.
const CHUNK_SIZE: usize = 1 << 20;

/// Appends to the copy, which has `end` bytes, what the source has from there on; where it cannot seek, all that it has to give.
/// Answers where the copy ends now, `None` when interrupted.
pub(super) fn copy_rest(
    account: &Account,
    source: &fs::File,
    seeks: bool,
    sink: &OpenFile,
    mut end: u64,
) -> Result<Option<u64>, Fault> {
    // Nearly always nothing follows.
    let mut buffer = vec![0; 4096];
    loop {
        if account.interrupt.is_set() {
            return Ok(None);
        }
        let read = if seeks { source.read_at(&mut buffer, end) } else { (&mut &*source).read(&mut buffer) };
        let count = match read {
            Ok(0) => return Ok(Some(end)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Fault::Source("read", error.into())),
        };
        sink.write_all_at(&buffer[..count], end).map_err(|cause| Fault::Sink("write", cause))?;
        progressed();
        account.tally.bytes(count as u64);
        end += count as u64;
        if count == buffer.len() && count < CHUNK_SIZE {
            buffer.resize(CHUNK_SIZE, 0);
        }
    }
}
