//! `dafs cat`.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::slice::from_ref;

use dafs_client::{Extent, FileKind, Pending, RegisteredBuf, Status, Transferred};

use crate::flags::Cat;
use crate::output::Output;
use crate::remote::{Remotes, Target};
use crate::report::{Failure, Failures, Result};

/// Bytes of a read.
const CHUNK_SIZE: usize = 1 << 20;
/// Reads in flight.
const DEPTH: u64 = 8;

pub(crate) fn run(flags: &Cat, remotes: &Remotes) -> Result<ExitCode> {
    let (mut out, failures) = (Output::new(), Failures::default());
    remotes.each(&flags.urls, &failures, |target| write(flags, &target, &mut out))?;
    out.flush()?;
    Ok(failures.exit())
}

fn write(flags: &Cat, target: &Target, out: &mut Output) -> Result<()> {
    let file =
        target.export.open(&target.path).map_err(|error| match target.export.metadata(&target.path) {
            Ok(found) if error.status() == Some(Status::NOT_SUPPORTED) && found.kind != FileKind::File => {
                let kind = crate::format::kind_name(found.kind);
                Failure::text(format!("cannot open '{}': it is a {kind}, not a regular file", target.url()))
            }
            _ => target.failed("open", &error),
        })?;
    let failed = |error| target.failed("read", &error);
    let known = file.attributes_at_open().size;
    let end = flags.length.map_or(u64::MAX, |length| flags.offset.saturating_add(length));
    // Read ahead as far as the file reached when it was opened; beyond that, one by one until it ends: it may grow.
    let ahead = known.min(end).saturating_sub(flags.offset).div_ceil(CHUNK_SIZE as u64).clamp(1, DEPTH);
    let mut reading: VecDeque<(usize, Pending<Transferred<RegisteredBuf>>)> = VecDeque::new();
    let mut offset = flags.offset;
    // Behind the last byte that any file can have there is nothing, as behind the end of this one.
    let end = end.min(i64::MAX.unsigned_abs());
    let mut begin = |buffer: RegisteredBuf, reading: &mut VecDeque<_>| -> Option<RegisteredBuf> {
        if offset >= end || (offset >= known && !reading.is_empty()) {
            return Some(buffer);
        }
        let len = usize::try_from(end - offset).unwrap_or(usize::MAX).min(buffer.len());
        let extent = Extent::new(offset, len as u64);
        reading.push_back((len, file.submit_read_list_buf(&[extent], buffer, from_ref(&(0..len)))));
        offset += len as u64;
        None
    };
    for _ in 0..ahead {
        drop(begin(target.session.buffer(CHUNK_SIZE).map_err(failed)?, &mut reading));
    }
    while let Some((len, pending)) = reading.pop_front() {
        let (count, buffer) = pending.wait().into_result().map_err(failed)?;
        out.bytes(&buffer[..count])?;
        if count < len {
            return Ok(());
        }
        drop(begin(buffer, &mut reading));
    }
    Ok(())
}
