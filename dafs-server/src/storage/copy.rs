//! What a copy from one file to another is, whichever kind of export carries it out.

use std::fmt;

use dafs_proto::wire::Status;

use super::file_system::SharedFile;
use super::paths::OFFSET_MAX;

/// Bytes that one request copies at most where blocks are not shared.
pub(super) const COPY_SIZE_MAX: u64 = 64 << 20;

/// The file that a copy reads: [`super::Storage::share`] of its node.
#[derive(Clone)]
pub struct CopySource(pub SharedFile);

impl fmt::Debug for CopySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CopySource(…)")
    }
}

/// What is copied where, as the client has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyRange {
    pub(super) source_offset: u64,
    pub(super) offset: u64,
    /// 0 for all that follow.
    pub(super) len: u64,
}

/// What there is to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) len: u64,
    /// The source ends with it, before all that was asked for.
    pub(super) ends: bool,
}

impl CopyRange {
    /// What there is to copy of a source of this size. `is_one`: source and target are one file.
    pub(super) fn wanted(&self, size: u64, is_one: bool) -> Result<Wanted, Status> {
        let end = self.source_offset.checked_add(self.len).filter(|end| *end <= OFFSET_MAX);
        end.ok_or(Status::INVALID)?;
        let left = size.saturating_sub(self.source_offset);
        let ends = self.len == 0 || self.len > left;
        let len = if ends { left } else { self.len };
        let end = self.offset.checked_add(if self.len == 0 { len } else { self.len });
        end.filter(|end| *end <= OFFSET_MAX).ok_or(Status::TOO_LARGE)?;
        let overlaps = self.offset < self.source_offset + len && self.source_offset < self.offset + len;
        if is_one && overlaps { Err(Status::INVALID) } else { Ok(Wanted { len, ends }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(source_offset: u64, offset: u64, len: u64, size: u64) -> Result<Wanted, Status> {
        CopyRange { source_offset, offset, len }.wanted(size, false)
    }

    // [STOR-141] [STOR-143]
    #[test]
    fn copy_ends_where_its_source_does() {
        assert_eq!(wanted(0, 0, 9, 10), Ok(Wanted { len: 9, ends: false }));
        assert_eq!(wanted(0, 0, 10, 10), Ok(Wanted { len: 10, ends: false }));
        assert_eq!(wanted(0, 0, 11, 10), Ok(Wanted { len: 10, ends: true }));
        assert_eq!(wanted(3, 0, 0, 10), Ok(Wanted { len: 7, ends: true }));
        assert_eq!(wanted(10, 0, 1, 10), Ok(Wanted { len: 0, ends: true }));
        assert_eq!(wanted(u64::MAX, 0, 0, 10), Err(Status::INVALID));
        assert_eq!(wanted(OFFSET_MAX, 0, 0, 10), Ok(Wanted { len: 0, ends: true }));
    }

    // [STOR-140]
    #[test]
    fn copy_beyond_the_largest_offset_is_refused_exactly_there() {
        assert_eq!(wanted(0, OFFSET_MAX - 5, 5, 5).map(|wanted| wanted.len), Ok(5));
        assert_eq!(wanted(0, OFFSET_MAX - 5, 6, 6), Err(Status::TOO_LARGE));
        assert_eq!(wanted(0, OFFSET_MAX - 5, 0, 6), Err(Status::TOO_LARGE));
        assert_eq!(wanted(OFFSET_MAX - 5, 0, 6, 10), Err(Status::INVALID));
        assert_eq!(wanted(OFFSET_MAX - 5, 0, 5, 10).map(|wanted| wanted.len), Ok(0));
        assert_eq!(wanted(1, 0, u64::MAX, 10), Err(Status::INVALID));
    }

    // [STOR-142]
    #[test]
    fn ranges_of_one_file_may_touch_and_not_overlap() {
        let within = |source_offset, offset, len| {
            CopyRange { source_offset, offset, len }.wanted(100, true).map(|wanted| wanted.len)
        };
        assert_eq!(within(0, 10, 10), Ok(10));
        assert_eq!(within(10, 0, 10), Ok(10));
        assert_eq!(within(0, 9, 10), Err(Status::INVALID));
        assert_eq!(within(9, 0, 10), Err(Status::INVALID));
        assert_eq!(within(5, 5, 1), Err(Status::INVALID));
        // Behind the end of the source nothing is copied.
        assert_eq!(within(95, 100, 10), Ok(5));
        assert_eq!(within(100, 100, 10), Ok(0));
        assert_eq!(within(0, 50, 0), Err(Status::INVALID));
    }
}
