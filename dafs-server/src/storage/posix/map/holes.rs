//! Where a file has no holes, and where it is in memory, at a cost that its size does not decide.

use super::super::{Node, sys};

const PAGE_SIZE: u64 = 4096;

/// Files up to this size are searched by the kernel where it cannot count pages (before Linux 6.5), bytes.
const SEARCHED_SIZE_MAX: u64 = 64 << 20;

/// Bytes from `start`, the beginning of a page, that are in memory without a hole, at most `wanted`, on a file system that lives in memory.
/// Pages that were swapped out count as holes.
pub(super) fn held_from(node: &Node, start: u64, wanted: u64, file_size: u64) -> Option<u64> {
    let pages = wanted.div_ceil(PAGE_SIZE);
    let cached = |pages: u64| sys::cached_pages(node.buffered_fd(), start, pages * PAGE_SIZE).ok();
    let whole = |pages: u64| Some(cached(pages)? == pages);
    match whole(pages) {
        Some(true) => return Some(wanted),
        Some(false) => {}
        None if file_size <= SEARCHED_SIZE_MAX => {
            return Some(node.hole_now(start)?.checked_sub(start)?.min(wanted));
        }
        None => return None,
    }
    // As many pages as are there from the first on.
    let (mut held, mut missing) = (0, pages);
    while held + 1 < missing {
        let middle = held + (missing - held) / 2;
        if whole(middle)? { held = middle } else { missing = middle }
    }
    Some(held * PAGE_SIZE)
}

/// As many bytes from `start`, the beginning of a page, on a disk, if all of them are in memory.
pub(super) fn cached_from(node: &Node, start: u64, wanted: u64) -> Option<u64> {
    let pages = wanted.div_ceil(PAGE_SIZE);
    let cached = sys::cached_pages(node.buffered_fd(), start, pages * PAGE_SIZE).ok()?;
    (cached == pages && pages > 0).then_some(wanted)
}
