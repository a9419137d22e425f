//! `dafs cat`.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::slice::from_ref;

use dafs_client::{Extent, File, FileKind, OpenOptions, Pending, RegisteredBuf, Status, Transferred};

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
    let striped = target.volume.may_be_striped(file.attributes_at_open());
    if striped.map_err(|error| target.failed_striped("open", &error))? {
        return write_striped(flags, target, file, out);
    }
    write_plain(flags, target, &file, out)
}

/// As [`write_plain`], of what may lie over several servers.
fn write_striped(flags: &Cat, target: &Target, file: File, out: &mut Output) -> Result<()> {
    let options = OpenOptions::new().read(true).clone();
    let file = target.volume.adopt(file, &target.path, &options);
    let file = file.map_err(|error| target.failed_striped("open", &error))?;
    let end = flags
        .length
        .map_or(u64::MAX, |length| flags.offset.saturating_add(length))
        .min(i64::MAX.unsigned_abs());
    let mut offset = flags.offset;
    let mut reading = VecDeque::new();
    loop {
        while offset < end && (reading.len() as u64) < DEPTH {
            let len = usize::try_from(end - offset).unwrap_or(usize::MAX).min(CHUNK_SIZE);
            reading.push_back((offset, file.submit_read_at(vec![0; len], offset)));
            offset += len as u64;
        }
        let Some((begin, pending)) = reading.pop_front() else { return Ok(()) };
        let (mut buffer, count) = pending.wait();
        let mut count = count.map_err(|error| target.failed_striped("read", &error))?;
        while count < buffer.len() {
            // The end of the file, or what keeps from going on.
            let more = file.read_at(&mut buffer[count..], begin + count as u64);
            match more.map_err(|error| target.failed_striped("read", &error)) {
                Ok(0) => return out.bytes(&buffer[..count]),
                Ok(more) => count += more,
                Err(failure) => {
                    out.bytes(&buffer[..count])?;
                    return Err(failure);
                }
            }
        }
        out.bytes(&buffer)?;
    }
}

fn write_plain(flags: &Cat, target: &Target, file: &File, out: &mut Output) -> Result<()> {
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
