//! Open files of either side, and what is done with those that are copied from.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use dafs_client::{File, OpenOptions, Status};
use dafs_stripe::Volume;

use super::local;
use super::meta::{Cause, Later, Meta};

/// Largest file that is read and written in one piece, bytes.
pub(super) const SMALL_SIZE_MAX: u64 = 256 * 1024;

/// How often data that a restart of the server lost is written again before the copy is given up.
pub(super) const ROUNDS_MAX: u32 = 8;

/// A file that is copied from or to.
pub(super) enum OpenFile {
    Local(fs::File),
    /// A pipe or device of this machine that is copied to: what is written goes to its end, and it has neither size nor attributes.
    Stream(fs::File),
    Remote(Arc<File>),
    /// A file over several servers.
    Striped(dafs_stripe::File),
}

impl OpenFile {
    /// The same file, as what it is: one of a server may be striped. `path` is for messages.
    pub(super) fn adopted(self, volume: &Volume, path: &Path, options: &OpenOptions) -> Result<Self, Cause> {
        let file = match self {
            Self::Remote(file) if volume.may_be_striped(file.attributes_at_open())? => file,
            file => return Ok(file),
        };
        let file = Arc::try_unwrap(file).map_err(|_| Cause::Text("it is in use".into()))?;
        let adopted = volume.adopt(file, path, options)?;
        match adopted.layout() {
            Some(_) => Ok(Self::Striped(adopted)),
            None => Ok(Self::Remote(Arc::clone(adopted.metadata_file()))),
        }
    }

    /// Begins to read the first `size` bytes; returns fewer where the file ends before. A file of this machine is read to its end,
    /// wherever that is, at most one byte beyond [`SMALL_SIZE_MAX`].
    pub(super) fn begin_read(&self, size: usize) -> Later<Vec<u8>> {
        match self {
            Self::Local(file) | Self::Stream(file) => Later::Now(read_small(file, size).map_err(Cause::from)),
            Self::Striped(file) => {
                let pending = file.submit_read_at(vec![0; size], 0);
                Later::Wait(Box::new(move || {
                    let (mut data, count) = pending.wait();
                    data.truncate(count?);
                    Ok(data)
                }))
            }
            Self::Remote(_) if size == 0 => Later::Now(Ok(Vec::new())),
            Self::Remote(file) => {
                let pending = file.submit_read_at(vec![0; size], 0);
                Later::Wait(Box::new(move || {
                    let (count, mut data) = pending.wait().into_result()?;
                    data.truncate(count);
                    Ok(data)
                }))
            }
        }
    }

    /// What the file is now. A round trip, on a server.
    pub(super) fn metadata(&self) -> Result<Meta, Cause> {
        match self {
            Self::Local(file) | Self::Stream(file) => local::meta_of(file),
            Self::Remote(file) => Ok((&file.metadata()?).into()),
            Self::Striped(file) => Ok((&file.metadata()?).into()),
        }
    }

    /// Where data begins at or after `offset`, and where it ends; `None` when only a hole follows.
    pub(super) fn data_range(&self, offset: u64, size: u64) -> Result<Option<(u64, u64)>, Cause> {
        let file = match self {
            Self::Local(file) | Self::Stream(file) => return Ok(local::data_range(file, offset, size)?),
            Self::Striped(file) => return striped_data_range(file, offset),
            Self::Remote(file) => file,
        };
        let all = (offset < size).then_some((offset, size));
        let start = match file.seek_data(offset) {
            Ok(start) => start,
            Err(error) => {
                return match error.status() {
                    Some(Status::NO_DEVICE) => Ok(None),
                    Some(Status::NOT_SUPPORTED | Status::INVALID) => Ok(all),
                    _ => Err(error.into()),
                };
            }
        };
        match file.seek_hole(start) {
            Ok(end) => Ok(Some((start, end))),
            Err(error) if error.status().is_some() => Ok(Some((start, size))),
            Err(error) => Err(error.into()),
        }
    }
}

fn striped_data_range(file: &dafs_stripe::File, offset: u64) -> Result<Option<(u64, u64)>, Cause> {
    match file.seek_data(offset) {
        Ok(start) => Ok(Some((start, file.seek_hole(start)?))),
        Err(error) if error.errno() == libc::ENXIO => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads until the slice is full or the file ends.
pub(super) fn read_full(file: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads a file to its end, at most one byte beyond [`SMALL_SIZE_MAX`].
fn read_small(file: &fs::File, size: usize) -> io::Result<Vec<u8>> {
    #[allow(clippy::cast_possible_truncation, reason = "a small constant")]
    const LIMIT: usize = SMALL_SIZE_MAX as usize + 1;
    // One byte more than there should be, to see the end. Some files of /proc give all they have in one read, or nothing.
    let mut data = vec![0; if size == 0 { 16 << 10 } else { size + 1 }.min(LIMIT)];
    let mut filled = 0;
    loop {
        filled += read_full(file, &mut data[filled..], filled as u64)?;
        if filled < data.len() || filled >= LIMIT {
            data.truncate(filled);
            return Ok(data);
        }
        data.resize((2 * filled).clamp(4096, LIMIT), 0);
    }
}
