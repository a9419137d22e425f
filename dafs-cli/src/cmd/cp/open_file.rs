//! Open files of either side.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use dafs_client::{Error, File, FileKind, OpenOptions, Stability, Status};

use super::item::{Item, SMALL_SIZE_MAX};
use super::local;
use super::place::{Cause, KeepOwner, Later, Meta, Place};
use super::same;
use crate::remote::sure;

/// How often data that a restart of the server lost is written again before the copy is given up.
pub(super) const ROUNDS_MAX: u32 = 8;

/// A file that is copied from or to.
pub(super) enum OpenFile {
    Local(fs::File),
    Remote(Arc<File>),
}

/// What is done with files that are copied from.
impl OpenFile {
    /// Begins to open a file, and answers what it is by then.
    pub(super) fn begin_open(place: &Place, path: &Path, follow: bool) -> Later<(Self, Meta)> {
        let own = place.path(path);
        match place {
            Place::Local(_) => Later::Now(open_local(&own, follow)),
            Place::Remote(target) => {
                let mut options = OpenOptions::new();
                options.read(true).no_follow(!follow);
                let pending = target.export.submit_open_with(&own, &options);
                let export = target.export.clone();
                Later::Wait(Box::new(move || {
                    let file = sure(pending.wait(), || export.open_with(&own, &options))?;
                    let meta = file.attributes_at_open().into();
                    Ok((Self::Remote(Arc::new(file)), meta))
                }))
            }
        }
    }

    /// Opens a pipe or a device of this machine, and answers what it is by then. Blocks until a pipe has another end.
    pub(super) fn open_stream(place: &Place, path: &Path) -> Result<(Self, Meta), Cause> {
        let file = fs::File::open(place.path(path))?;
        let meta = local::meta(&file.metadata()?);
        // No size that it may have says how much comes.
        Ok((Self::Local(file), Meta { size: 0, allocated: 0, ..meta }))
    }

    /// Begins to read the first `size` bytes; answers fewer where the file ends before. A file of this machine is read to its end,
    /// wherever that is, at most one byte beyond [`SMALL_SIZE_MAX`].
    pub(super) fn begin_read(&self, size: usize) -> Later<Vec<u8>> {
        match self {
            Self::Local(file) => Later::Now(read_small(file, size).map_err(Cause::from)),
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
            Self::Local(file) => Ok(local::meta(&file.metadata()?)),
            Self::Remote(file) => Ok((&file.metadata()?).into()),
        }
    }

    /// Where data begins at or after `offset`, and where it ends; `None` when only a hole follows.
    pub(super) fn data_range(&self, offset: u64, size: u64) -> Result<Option<(u64, u64)>, Cause> {
        let file = match self {
            Self::Local(file) => return Ok(local::data_range(file, offset, size)?),
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

/// What is done with files that are copied to.
impl OpenFile {
    /// Begins to open the copy of an item, made where there is none; with its final mode less what others may do, until
    /// its attributes are set. Answers the size of what was there, which is still all there. `original` is what is copied: a copy
    /// that is the same file is refused.
    pub(super) fn begin_create(item: &Item, original: &Meta) -> Later<(Self, u64)> {
        let (place, follow) = (&item.roots.destination, item.follow);
        let own = place.path(&item.path);
        match place {
            Place::Local(_) => Later::Now(create_local(item, original)),
            Place::Remote(target) => {
                let mut options = OpenOptions::new();
                options.write(true).create(true).no_follow(!follow).mode(0o600);
                let pending = target.export.submit_open_with(&own, &options);
                let (item, original, export) = (item.clone(), original.clone(), target.export.clone());
                Later::Wait(Box::new(move || {
                    let open = || export.open_with(&own, &options);
                    let file = match sure(pending.wait(), open).map_err(Cause::from) {
                        Err(cause) if cause.is_link() && !follow => {
                            item.roots.destination.remove_file(&item.path)?;
                            open()?
                        }
                        result => result?,
                    };
                    let found = Meta::from(file.attributes_at_open());
                    let sink = Self::Remote(Arc::new(file));
                    same::refuse(&item, &original, &found, || sink.metadata())?;
                    Ok((sink, found.size))
                }))
            }
        }
    }

    /// Begins to cut the file, of `size` bytes, to none.
    pub(super) fn begin_empty(&self, size: u64) -> Later<()> {
        match self {
            _ if size == 0 => Later::Now(Ok(())),
            Self::Local(file) => Later::Now(file.set_len(0).map_err(Cause::from)),
            Self::Remote(file) => {
                let (pending, file) = (file.submit_truncate(0), Arc::clone(file));
                Later::request(pending, move || file.truncate(0))
            }
        }
    }

    /// Writes all of it there. Blocks until it is done; on a server it is not durable yet.
    pub(super) fn write_all_at(&self, data: &[u8], offset: u64) -> Result<(), Cause> {
        match self {
            Self::Local(file) => Ok(file.write_all_at(data, offset)?),
            Self::Remote(file) => Ok(file.write_all_at(data, offset)?),
        }
    }

    /// Begins to write all of a small file, whose data comes back: a restart of the server may lose it until it is committed.
    pub(super) fn begin_write(&self, data: Vec<u8>) -> Later<Vec<u8>> {
        match self {
            _ if data.is_empty() => Later::Now(Ok(data)),
            Self::Local(file) => Later::Now(file.write_all_at(&data, 0).map(|()| data).map_err(Cause::from)),
            Self::Remote(file) => {
                let len = data.len();
                let pending = file.submit_write_at_with(data, 0, Stability::Unstable);
                Later::Wait(Box::new(move || match pending.wait().into_result()? {
                    (count, data) if count == len => Ok(data),
                    (count, _) => Err(Cause::Text(format!(
                        "only {count} of {len} bytes could be written: is the server's storage full?"
                    ))),
                }))
            }
        }
    }

    /// Begins to set the attributes.
    pub(super) fn begin_set_attributes(&self, meta: &Meta, keep_owner: &KeepOwner) -> Later<()> {
        match self {
            Self::Local(file) => {
                Later::Now(local::set_file_attributes(file, meta, keep_owner.is_set()).map_err(Cause::from))
            }
            Self::Remote(file) => {
                let file = Arc::clone(file);
                keep_owner.begin_set(meta, move |set| file.submit_set_attributes(set))
            }
        }
    }

    /// Begins to make data, attributes and name durable, on a server; files of this machine are left to its page cache.
    pub(super) fn begin_commit(&self) -> Later<()> {
        match self {
            Self::Local(_) => Later::Now(Ok(())),
            Self::Remote(file) => {
                let (pending, file) = (file.submit_commit(), Arc::clone(file));
                Later::request(pending, move || file.commit())
            }
        }
    }

    /// Writes a small file again, attributes included, as often as restarts of the server lose it. What was there before may be back too,
    /// where the machine was restarted as well.
    pub(super) fn restore(&self, data: &[u8], meta: &Meta, keep_owner: &KeepOwner) -> Result<(), Cause> {
        let Self::Remote(file) = self else { return Ok(()) };
        for _ in 0..ROUNDS_MAX {
            self.begin_empty(u64::MAX).wait()?;
            file.write_all_at(data, 0)?;
            self.begin_set_attributes(meta, keep_owner).wait()?;
            match file.commit() {
                Err(Error::WritesLost { .. }) => {}
                result => return Ok(result?),
            }
        }
        Err(Cause::Text("the server was restarted again and again".into()))
    }

    /// Sets the size.
    pub(super) fn truncate(&self, size: u64) -> Result<(), Cause> {
        match self {
            Self::Local(file) => Ok(file.set_len(size)?),
            Self::Remote(file) => Ok(sure(file.truncate(size), || file.truncate(size))?),
        }
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

fn open_local(path: &Path, follow: bool) -> Result<(OpenFile, Meta), Cause> {
    let file = local::open(path, follow)?;
    let meta = local::meta(&file.metadata()?);
    Ok((OpenFile::Local(file), meta))
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

fn create_local(item: &Item, original: &Meta) -> Result<(OpenFile, u64), Cause> {
    let (place, path, follow) = (&item.roots.destination, &item.path, item.follow);
    let own = place.path(path);
    let file = match local::create(&own, follow).map_err(Cause::from) {
        Err(cause) if cause.is_link() && !follow => {
            place.remove_file(path)?;
            local::create(&own, false)?
        }
        result => result?,
    };
    let found = local::meta(&file.metadata()?);
    if found.kind != FileKind::File {
        return Err(Cause::Text("something that is no regular file is in the way".into()));
    }
    let sink = OpenFile::Local(file);
    same::refuse(item, original, &found, || sink.metadata())?;
    Ok((sink, found.size))
}
