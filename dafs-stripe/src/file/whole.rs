//! What concerns a file as a whole: its size, attributes, durability, space.

use std::ops::Range;
use std::sync::Arc;

use dafs_client::{
    Attributes, Error as ClientError, File as PlainFile, LockKind, LockOptions, SetAttributes, Status,
};
use dafs_proto::extent::OFFSET_MAX;

use crate::error::{Error, Result};
use crate::file::striped::Striped;
use crate::file::{File, Kind};
use crate::layout::STRIPED_BIT;
use crate::names::StripeId;

/// Ranges of one piece that are told one by one; more are told as one.
const LOST_RANGES_MAX: u64 = 4096;

impl File {
    /// Appends a slice and returns its offset. Appends of all clients follow each other without a gap or an overlap; one that spans servers
    /// may be seen in part before this returns.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.append(data)?),
            Kind::Striped(striped) => striped.with_size_locked(|| {
                let offset = striped.size()?;
                self.write_all_at(data, offset)?;
                Ok(offset)
            }),
        }
    }

    /// Makes everything written so far durable on every server. [`ClientError::WritesLost`] names what a restart of a server has lost.
    pub fn commit(&self) -> Result<()> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.commit()?),
            Kind::Striped(striped) => striped.commit(),
        }
    }

    /// Attributes now. Of a striped file all servers are asked.
    pub fn metadata(&self) -> Result<Attributes> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.metadata()?),
            Kind::Striped(striped) => striped.metadata(),
        }
    }

    /// Changes attributes, on every server, and returns the new ones.
    pub fn set_attributes(&self, set: &SetAttributes) -> Result<Attributes> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.set_attributes(set)?),
            Kind::Striped(striped) => striped.set_attributes(set),
        }
    }

    /// Sets the size: truncates the file, or extends it by a hole.
    pub fn truncate(&self, size: u64) -> Result<()> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.truncate(size)?),
            Kind::Striped(_) if size > OFFSET_MAX => {
                Err(Error::Invalid(format!("a size of {size} bytes: beyond the largest file")))
            }
            Kind::Striped(striped) => striped.with_size_locked(|| {
                // Where a server is away nothing is cut.
                striped.size()?;
                let local = |index| striped.geometry.local(index, size);
                striped.all(|index, file| Some(file.submit_truncate(local(index)))).map(drop)
            }),
        }
    }

    /// Reserves space for a range; the file grows to cover it.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.allocate(offset, len)?),
            Kind::Striped(striped) => {
                striped.on_parts(offset, len, |file, offset, len| file.submit_allocate(offset, len))
            }
        }
    }

    /// Punches a hole: gives the space of a range back, which then reads as zeros. The size stays.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.punch_hole(offset, len)?),
            Kind::Striped(striped) => {
                striped.on_parts(offset, len, |file, offset, len| file.submit_punch_hole(offset, len))
            }
        }
    }

    /// Where the next data at or after `offset` begins; the status `NO_DEVICE` when none follows.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.seek_data(offset)?),
            Kind::Striped(striped) => striped.seek_data(offset),
        }
    }

    /// Where the next hole at or after `offset` begins; the end of the file is one.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.seek_hole(offset)?),
            Kind::Striped(striped) => striped.seek_hole(offset),
        }
    }
}

impl Striped {
    /// Keeps out others who set the size, or write where the file ends: a lock of the first piece, which is locked for nothing else.
    fn with_size_locked<T>(&self, then: impl FnOnce() -> Result<T>) -> Result<T> {
        let first = &self.pieces[0];
        let file = first.file()?;
        let mut owner = [0; 8];
        owner.copy_from_slice(&StripeId::random()?.0[..8]);
        let options = LockOptions { owner: Some(u64::from_le_bytes(owner)), ..LockOptions::default() };
        let held =
            file.hold_with(0..1, LockKind::Exclusive, options).map_err(|error| first.failed_with(error))?;
        let done = then()?;
        held.unlock().map_err(|error| first.failed_with(error))?;
        Ok(done)
    }

    fn commit(&self) -> Result<()> {
        let committed = self.each(|_, file| Some(file.submit_commit()));
        let mut lost: Vec<Range<u64>> = Vec::new();
        let (mut is_lost, mut lost_attributes) = (false, false);
        let mut failed = self.metadata_file.commit().map_err(Error::from).err();
        for (index, committed) in committed.into_iter().enumerate() {
            match committed.transpose() {
                Err(Error::Server { source: ClientError::WritesLost { ranges, attributes, .. }, .. }) => {
                    is_lost = true;
                    lost_attributes |= attributes;
                    ranges.iter().for_each(|range| self.in_file(index, range, &mut lost));
                }
                Err(error) => failed = failed.or(Some(error)),
                Ok(_) => {}
            }
        }
        match failed {
            Some(error) => Err(error),
            None if is_lost => {
                lost.sort_by_key(|range| range.start);
                let path = self.metadata_file.path().to_vec();
                Err(ClientError::WritesLost { path, ranges: lost, attributes: lost_attributes }.into())
            }
            None => Ok(()),
        }
    }

    /// Where a range of a piece is in the file.
    fn in_file(&self, index: usize, range: &Range<u64>, ranges: &mut Vec<Range<u64>>) {
        let unit = self.geometry.unit;
        let begin = self.geometry.offset(index, range.start).unwrap_or(OFFSET_MAX);
        let last = range.end.saturating_sub(1);
        let end = self.geometry.end(index, last.saturating_add(1)).unwrap_or(OFFSET_MAX);
        if last / unit - range.start / unit > LOST_RANGES_MAX {
            ranges.push(begin..end);
            return;
        }
        let mut at = range.start;
        while at < range.end {
            let next = ((at / unit + 1).saturating_mul(unit)).min(range.end);
            if let Some(offset) = self.geometry.offset(index, at) {
                ranges.push(offset..offset.saturating_add(next - at));
            }
            at = next;
        }
    }

    pub(crate) fn set_attributes(&self, set: &SetAttributes) -> Result<Attributes> {
        let own = SetAttributes { mode: set.mode.map(|mode| mode | STRIPED_BIT), ..*set };
        self.metadata_file.set_attributes(&own)?;
        let of_pieces = SetAttributes { mode: set.mode.map(|mode| mode & 0o777), ..*set };
        self.all(|_, file| Some(file.submit_set_attributes(&of_pieces)))?;
        self.metadata()
    }

    /// Does something with the part of a range that each piece has.
    fn on_parts(
        &self,
        offset: u64,
        len: u64,
        submit: impl Fn(&Arc<PlainFile>, u64, u64) -> dafs_client::Pending<std::result::Result<(), ClientError>>,
    ) -> Result<()> {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= OFFSET_MAX && len > 0) else {
            return Err(Error::Invalid(format!("{len} bytes at {offset}: no range of a file")));
        };
        self.all(|index, file| {
            let (from, to) = (self.geometry.local(index, offset), self.geometry.local(index, end));
            (from < to).then(|| submit(file, from, to - from))
        })
        .map(drop)
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        let found = self.each(|index, file| Some(file.submit_seek_data(self.geometry.local(index, offset))));
        let mut nearest: Option<u64> = None;
        let mut none = None;
        for (index, found) in found.into_iter().enumerate() {
            match found.transpose() {
                Ok(local) => {
                    let at = local.and_then(|local| self.geometry.offset(index, local));
                    nearest = nearest.into_iter().chain(at).min();
                }
                Err(Error::Server { source, .. }) if source.status() == Some(Status::NO_DEVICE) => {
                    none = Some(source)
                }
                Err(error) => return Err(error),
            }
        }
        match (nearest, none) {
            (Some(nearest), _) => Ok(nearest.max(offset)),
            (None, Some(none)) => Err(none.into()),
            (None, None) => Err(Error::Unsupported("find data")),
        }
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        let size = self.size()?;
        if offset >= size {
            // As the system has it of a file that ends before.
            return Ok(self.metadata_file.seek_hole(offset.max(1))?);
        }
        let found = self.each(|index, file| Some(file.submit_seek_hole(self.geometry.local(index, offset))));
        let mut nearest = size;
        for (index, found) in found.into_iter().enumerate() {
            let at = match found.transpose() {
                Ok(local) => local.and_then(|local| self.geometry.offset(index, local)),
                // It has nothing there: a hole begins with the first stripe that it would have.
                Err(Error::Server { source, .. }) if source.status() == Some(Status::NO_DEVICE) => {
                    self.geometry.offset(index, self.geometry.local(index, offset))
                }
                Err(error) => return Err(error),
            };
            nearest = nearest.min(at.unwrap_or(size));
        }
        Ok(nearest.max(offset))
    }
}
