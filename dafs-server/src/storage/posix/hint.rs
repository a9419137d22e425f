//! Advice about future use: what is read ahead, and what is dropped from the page cache.

use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

use dafs_proto::wire::{AccessPattern, Status};
use rustix::fs::{Advice, fadvise};

use super::super::paths::OFFSET_MAX;
use super::data::note_loss;
use super::resolve::Scope;
use super::{Node, sys};

/// Bytes that are read ahead for one hint at most.
const READ_AHEAD_MAX: u64 = 64 << 20;

/// Bytes that the kernel is asked for at a time: of more it reads only the beginning.
const READ_AHEAD_STEP: u64 = 128 << 10;

/// Follows a hint as far as the file system does. It cannot fail; that writing out failed is what the verifier tells.
pub(super) fn advise(scope: &Scope<'_>, node: &Node, offset: u64, len: u64, pattern: AccessPattern) {
    if offset > OFFSET_MAX || len > OFFSET_MAX {
        return;
    }
    let fd = node.buffered_fd();
    let tell = |advice| {
        let _ = fadvise(fd, offset, NonZeroU64::new(len), advice);
    };
    match pattern {
        AccessPattern::Normal => tell(Advice::Normal),
        AccessPattern::Sequential => tell(Advice::Sequential),
        AccessPattern::Random => tell(Advice::Random),
        AccessPattern::Once => {
            tell(Advice::Sequential);
            tell(Advice::NoReuse);
        }
        AccessPattern::WillNeed => read_ahead(fd, offset, len),
        AccessPattern::WillNotNeed => {
            // Pages that are not written out yet stay otherwise.
            let written = sys::write_out(fd, offset, len).map_err(Status::from);
            if matches!(written, Err(Status::IO | Status::NO_SPACE | Status::QUOTA)) {
                note_loss(scope.shared);
            }
            tell(Advice::DontNeed);
        }
    }
}

/// Has the kernel begin to read a range. That may wait: for what tells where the range is on the disk, and for room in its queue.
fn read_ahead(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    let Ok(size) = sys::fstat(fd).map(|found| found.size) else { return };
    let asked = if len == 0 { size } else { offset.saturating_add(len).min(size) };
    let end = asked.min(offset.saturating_add(READ_AHEAD_MAX));
    let mut at = offset;
    while at < end {
        let step = READ_AHEAD_STEP.min(end - at);
        if fadvise(fd, at, NonZeroU64::new(step), Advice::WillNeed).is_err() {
            return;
        }
        at += step;
    }
}
