//! Atomic mode: each transfer locks the range from its first byte to its last while it runs, so overlapping transfers happen one after the
//! other.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use dafs_client::{Direction, LockKind, LockOptions, Status};

use super::access::Moved;
use super::account::{Chosen, Why};
use super::counters::Count;
use super::{File, Transfer, raw};
use crate::error::Result;
use crate::hint::{MemoryMode, Method};
use crate::layout::{Segment, Segments};

/// An owner for each lock: those of one owner would not keep each other out, and threads must.
pub(super) fn next_owner() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl File {
    /// Turns atomic mode on or off, for transfers that begin after this. Fails where the server knows no locks. Blocks.
    pub fn set_atomic(&self, atomic: bool) -> Result<()> {
        if atomic {
            self.check_locks().map_err(|error| self.cannot("set atomic mode of", error))?;
        }
        self.atomic.store(atomic, Ordering::Release);
        Ok(())
    }

    /// The server knows locks. Blocks.
    pub(super) fn check_locks(&self) -> dafs_client::Result<()> {
        // What is found does not matter, only that it can say.
        let kind = if self.mode.reads() { LockKind::Shared } else { LockKind::Exclusive };
        self.inner.test_lock(0..1, kind).map(drop)
    }

    #[inline]
    pub(super) fn is_atomic(&self) -> bool {
        self.atomic.load(Ordering::Acquire)
    }

    /// A transfer in atomic mode, which has begun. Blocks.
    pub(super) fn run_atomic(&self, transfer: Transfer<'_>) -> Moved {
        let direction = transfer.direction();
        let extent = match extent_of(&transfer) {
            Ok(Some(extent)) => extent,
            Ok(None) => return (0, Ok(())),
            Err(error) => return (0, Err(error)),
        };
        let single = match transfer.single() {
            Ok(single) => single,
            Err(error) => return (0, Err(error)),
        };
        self.counters.add(Count::Locks, 1);
        if let Some(segment) = single
            && let Some(moved) = self.run_chain(direction, &segment)
        {
            return moved;
        }
        self.under_lock(direction, extent, || match single {
            Some(segment) => self.run_single(direction, &segment),
            None => self.run_segments(transfer, None),
        })
    }

    /// The lock, a small transfer and the unlock in one round trip; `None` where that cannot be, or may not have been done.
    fn run_chain(&self, direction: Direction, segment: &Segment) -> Option<Moved> {
        let is_large = segment.len > self.inline_sizes_max[usize::from(direction == Direction::Write)];
        // Lock and data of a striped file are on different servers.
        if is_large || self.striped.is_some() {
            return None;
        }
        let done = raw::run_locked(&self.inner, direction, segment, kind_of(direction));
        let moved = match done {
            Ok(count) if direction == Direction::Read || count as u64 == segment.len => count as u64,
            // A chain that waits keeps slots, and whoever has the lock, in this session or another, may need them to give it back.
            Err(error) if has_to_wait(&error) => return None,
            Err(error @ dafs_client::Error::Status { .. }) => {
                return Some((0, Err(self.failed(direction, error))));
            }
            // It may be done, and others may have written since.
            Err(error @ dafs_client::Error::InDoubt { .. }) if direction == Direction::Write => {
                return Some((0, Err(self.failed(direction, error))));
            }
            // Of another size than this connection takes, in doubt, or in part: done again under a lock, it is what it should be.
            _ => return None,
        };
        self.counters.on_call(Method::Multiple, MemoryMode::Dafs);
        let chosen = Chosen { direction, method: None, mode: MemoryMode::Dafs, why: Why::OnePiece };
        self.note(&self.settings.load(), chosen, 1, segment.len);
        Some((moved, Ok(())))
    }

    fn under_lock(&self, direction: Direction, extent: Range<u64>, run: impl FnOnce() -> Moved) -> Moved {
        let owner = next_owner();
        let options = LockOptions { owner: Some(owner), ..LockOptions::default() };
        if let Err(error) = self.inner.lock_with(extent.clone(), kind_of(direction), options) {
            return (0, Err(self.failed(direction, error)));
        }
        let moved = run();
        // Nobody waits for it. Should it be lost, the lock ends with the session.
        drop(self.inner.submit_unlock_with(extent, owner));
        moved
    }
}

/// Another has the lock, or may take it again after a restart of the server.
fn has_to_wait(error: &dafs_client::Error) -> bool {
    matches!(error.status(), Some(Status::LOCKED | Status::GRACE))
}

fn kind_of(direction: Direction) -> LockKind {
    match direction {
        Direction::Read => LockKind::Shared,
        Direction::Write => LockKind::Exclusive,
    }
}

/// From the first byte of the file to behind the last; `None` without any.
fn extent_of(transfer: &Transfer<'_>) -> Result<Option<Range<u64>>> {
    let mut extent: Option<Range<u64>> = None;
    let mut segments = Segments::new(transfer.source().borrowed())?;
    while let Some(segment) = segments.next_segment() {
        let segment = segment?;
        let (start, end) = (segment.offset, segment.offset + segment.len);
        extent = Some(match extent {
            Some(known) => known.start.min(start)..known.end.max(end),
            None => start..end,
        });
    }
    Ok(extent)
}
