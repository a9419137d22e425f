//! Hot windows: parts of files that are read often, mapped and read without a system call.
//!
//! Most of the time of a read of cached data is the system call and the kernel's way of copying. Mapping has its price too, about what two
//! reads of the window save; so a window is mapped when reads have taken twice its size from it, and one that is read once never is.
//!
//! # The end of the file
//! Anybody may cut the file short, and bytes of its last page beyond the end read as zeroes. So before and after every few pages that are
//! copied the file is proved to reach beyond them: a later page of the window, never the one where the copy ends, is still there.
//! Truncating a file unmaps the pages beyond its new end before it clears the rest of the last one. So if the copy met zeroes, a later page
//! is missing, unless the file was truncated and grown again meanwhile. A `pread` is no better: it looks at the size before each page. Near
//! the end of the file there is no later page, and the kernel is asked for the size. What cannot be proved is read again by a system call.
//!
//! # Holes
//! Touching a hole of a mapped file fills it. Only windows without holes are mapped; they are given up when the file is punched or
//! cut, and looked after now and then for what other processes do.
//!
//! # Disks
//! Touching a page that is not in memory waits for the disk. So of a file on a disk only a window that is wholly in memory is mapped, and
//! it is locked there. What is left: after another process bypasses the page cache (O_DIRECT) to write such a file, the next reads wait.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use dafs_proto::transport::Span;
use dafs_proto::wire::FileKind;
use smallvec::SmallVec;

use super::super::busy::{FileKey, cuts_of};
use super::super::{Node, sys};
use super::holes::{cached_from, held_from};
use super::mapping::{Mapping, prepare};
use crate::storage::NodeId;

/// Bytes of a file in a window.
const WINDOW_SIZE: usize = 1 << 20;
/// Windows of an export, mapped or becoming hot: 512 MiB of addresses.
pub(super) const WINDOWS_MAX: usize = 512;
/// Bytes that are read from a window before it is mapped: the first time, and at most, after its file has changed again and again.
const PATIENCE_MIN: u64 = 2 * WINDOW_SIZE as u64;
const PATIENCE_MAX: u64 = 64 * PATIENCE_MIN;
/// What a read counts at least: copying that much takes as long as the system call.
const READ_WEIGHT_MIN: u64 = 4096;
/// Reads served between two looks at how much of the file is allocated.
const READS_BETWEEN_LOOKS: u32 = 64;
/// Bytes copied between two proofs that the file still reaches beyond them.
const COPY_SIZE_MAX: usize = 16 * 1024;
/// From this size up a copy is larger than what the caches of its reader keep, bytes.
const BULK_MIN: usize = 256 * 1024;
const PAGE_SIZE: usize = 4096;
/// Pieces whose first bytes are asked of memory together. To wait for those of one after the other takes longer than copying.
const PIECES_AHEAD: usize = 16;

/// The hot windows of an export: a table where each window of each file has one slot.
#[derive(Default)]
pub(super) struct HotWindows {
    // Empty, or of WINDOWS_MAX.
    slots: Vec<HotSlot>,
    mapped_count: usize,
}

/// Who has a slot, and how much it is read.
struct HotSlot {
    node: NodeId,
    number: u64,
    /// Bytes read by system calls since it was last mapped.
    missed: u64,
    /// It is mapped when `missed` reaches this.
    patience: u64,
    /// What others must read before they take the slot.
    worth: u64,
    window: Option<Window>,
}

struct Window {
    mapping: Mapping,
    /// Bytes from the window's beginning without a hole, the first page of the next window with them.
    // Invariant: 0 < held <= mapping's length
    held: usize,
    /// Where in the window the last page of `held` begins.
    last_page: usize,
    /// The file's size when it was mapped.
    file_size: u64,
    /// It was held to the end of the file.
    to_end: bool,
    /// What was allocated to the file.
    allocated: u64,
    reads_until_look: u32,
    file: FileKey,
    /// How often the file was cut or punched through the server, and how often when it was mapped.
    cuts: &'static AtomicU64,
    cuts_before: u64,
}

impl HotWindows {
    /// Reads from mapped windows; `None`, with the memory filled in part or not at all, when a system call has to.
    #[inline]
    pub(super) fn read(&mut self, id: NodeId, node: &Node, offset: u64, into: &[Span<'_>]) -> Option<usize> {
        let [into] = into else { return self.read_several(id, node, offset, into) };
        if !is_mappable(node) || into.is_empty() {
            return None;
        }
        let end = offset.checked_add(into.len() as u64)?;
        let number = offset / WINDOW_SIZE as u64;
        if end <= (number + 1) * WINDOW_SIZE as u64 {
            return self.read_part(id, node, offset, *into, true);
        }
        self.read_parts(id, node, offset, *into)
    }

    /// A range in several windows.
    fn read_parts(&mut self, id: NodeId, node: &Node, offset: u64, into: Span<'_>) -> Option<usize> {
        let (mut done, mut complete) = (0, true);
        // At most one window is mapped in a call.
        let mut may_map = true;
        while done < into.len() {
            let at = offset + done as u64;
            let len = (into.len() - done).min(WINDOW_SIZE - within(at));
            let part = into.slice(done, len)?;
            let mapped_count = self.mapped_count;
            let count = self.read_part(id, node, at, part, may_map);
            may_map &= self.mapped_count == mapped_count;
            complete &= count.is_some();
            done += len;
            // The end of the file ends the range, if all before it was there.
            if let Some(count) = count.filter(|count| *count < len) {
                return complete.then_some(done - len + count);
            }
        }
        // The last window's proof holds for those before it.
        complete.then_some(into.len())
    }

    #[inline]
    fn read_part(
        &mut self,
        id: NodeId,
        node: &Node,
        offset: u64,
        into: Span<'_>,
        may_map: bool,
    ) -> Option<usize> {
        let number = offset / WINDOW_SIZE as u64;
        if let Some(slot) = self.slots.get_mut(slot_of(id, number))
            && slot.number == number
            && slot.node == id
            && let Some(window) = &mut slot.window
            && let Some(count) = window.read(node, within(offset), into)
        {
            slot.worth = PATIENCE_MAX;
            return Some(count);
        }
        self.note_miss(id, node, number, into.len() as u64, may_map);
        None
    }

    /// A read that a system call does: the window becomes hotter, or its rival does.
    #[inline(never)]
    fn note_miss(&mut self, id: NodeId, node: &Node, number: u64, len: u64, may_map: bool) {
        if self.slots.is_empty() {
            self.slots.resize_with(WINDOWS_MAX, || HotSlot::new(id, u64::MAX));
        }
        let weight = len.max(READ_WEIGHT_MIN);
        let slot = &mut self.slots[slot_of(id, number)];
        if (slot.node, slot.number) != (id, number) {
            slot.worth = slot.worth.saturating_sub(weight);
            if slot.worth > 0 {
                return;
            }
            self.mapped_count -= usize::from(slot.window.is_some());
            *slot = HotSlot::new(id, number);
        }
        slot.missed += weight;
        slot.worth = slot.worth.max(slot.missed.min(PATIENCE_MAX));
        if slot.missed < slot.patience || !may_map {
            return;
        }
        // Whatever was mapped is out of date.
        self.mapped_count -= usize::from(slot.window.take().is_some());
        slot.missed = 0;
        slot.window = Window::map(node, number);
        // What is not in memory yet may soon be.
        if slot.window.is_some() || node.class.memory {
            slot.patience = (slot.patience * 2).min(PATIENCE_MAX);
        }
        if slot.window.is_some() {
            self.mapped_count += 1;
            node.hot.store(true, Ordering::Relaxed);
        }
    }

    /// The same of each window of a range.
    fn note_misses(&mut self, id: NodeId, node: &Node, mut range: Range<u64>) {
        while range.start < range.end {
            let number = range.start / WINDOW_SIZE as u64;
            let end = range.end.min((number + 1) * WINDOW_SIZE as u64);
            self.note_miss(id, node, number, end - range.start, false);
            range.start = end;
        }
    }

    /// The file was punched or cut: its windows may have holes.
    pub(super) fn forget_file(&mut self, node: &Node) {
        self.forget(|slot| slot.window.as_ref().is_some_and(|window| window.file == node.key()));
    }

    /// Spans one after the other, as far as the file reaches; `None` when any of them has to be read otherwise.
    fn read_several(&mut self, id: NodeId, node: &Node, offset: u64, into: &[Span<'_>]) -> Option<usize> {
        let mut pieces: SmallVec<[(u64, Span<'_>); 128]> = SmallVec::new();
        let mut end = offset;
        for span in into.iter().filter(|span| !span.is_empty()) {
            pieces.push((end, *span));
            end = end.checked_add(span.len() as u64)?;
        }
        let total = usize::try_from(end - offset).ok()?;
        let (mut done, mut next) = (0, 0);
        while next < pieces.len() {
            let whole = self.read_pieces(id, node, total, &|index| pieces.get(next + index).copied());
            done += pieces[next..next + whole].iter().map(|(_, span)| span.len()).sum::<usize>();
            next += whole;
            // What lies in two windows, or at the end of the file.
            let Some((at, span)) = pieces.get(next) else { break };
            let Some(count) = self.read(id, node, *at, std::slice::from_ref(span)) else {
                self.note_misses(id, node, at + span.len() as u64..end);
                return None;
            };
            done += count;
            next += 1;
            if count < span.len() {
                break;
            }
        }
        (done > 0).then_some(done)
    }

    /// See [`crate::storage::Storage::read_pieces`].
    pub(super) fn read_pieces<'a>(
        &mut self,
        id: NodeId,
        node: &Node,
        total: usize,
        piece: &dyn Fn(usize) -> Option<(u64, Span<'a>)>,
    ) -> usize {
        if !is_mappable(node) || self.mapped_count == 0 {
            return 0;
        }
        let mut count = 0;
        while let Some((offset, _)) = piece(count) {
            let number = offset / WINDOW_SIZE as u64;
            let slot = self.slots.get_mut(slot_of(id, number));
            let slot = slot.filter(|slot| slot.number == number && slot.node == id);
            let Some(slot) = slot else { return count };
            let Some(window) = &mut slot.window else { return count };
            let whole = window.read_pieces(node, number, total >= BULK_MIN, &|index| piece(count + index));
            if whole == 0 {
                return count;
            }
            slot.worth = PATIENCE_MAX;
            count += whole;
        }
        count
    }

    /// The node is closed: nothing of it stays mapped.
    pub(super) fn close(&mut self, id: NodeId) {
        self.forget(|slot| slot.node == id);
    }

    fn forget(&mut self, which: impl Fn(&HotSlot) -> bool) {
        if self.mapped_count == 0 {
            return;
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.window.is_some()) {
            if which(slot) {
                slot.window = None;
                self.mapped_count -= 1;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn mapped_count(&self) -> usize {
        self.mapped_count
    }
}

impl HotSlot {
    fn new(node: NodeId, number: u64) -> Self {
        Self { node, number, missed: 0, patience: PATIENCE_MIN, worth: 0, window: None }
    }
}

impl Window {
    /// Maps what the window holds up to its first hole; `None` when it begins with one.
    fn map(node: &Node, number: u64) -> Option<Self> {
        if !prepare() {
            return None;
        }
        let fd = node.buffered_fd();
        let cuts = cuts_of(node.key());
        let cuts_before = cuts.load(Ordering::Acquire);
        let start = number.checked_mul(WINDOW_SIZE as u64)?;
        let file_size = node.end_now()?;
        let rest = file_size.checked_sub(start)?;
        let wanted = rest.min((WINDOW_SIZE + PAGE_SIZE) as u64);
        let attributes = sys::fstat(fd).ok()?;
        let held = match node.class.memory {
            true => held_from(node, start, wanted, file_size)?,
            false => cached_from(node, start, wanted)?,
        };
        let held = usize::try_from(held).ok()?;
        let last_page = held.checked_sub(1)? / PAGE_SIZE * PAGE_SIZE;
        let mut mapping = Mapping::new(fd, start, held)?;
        match node.class.memory {
            true => mapping.populate(),
            false if mapping.lock() => {}
            false => return None,
        }
        Some(Self {
            mapping,
            held,
            last_page,
            file_size,
            to_end: held as u64 == rest,
            allocated: attributes.allocated,
            reads_until_look: READS_BETWEEN_LOOKS,
            file: node.key(),
            cuts,
            cuts_before,
        })
    }

    /// Reads at `at` in the window; `None` when it cannot be told what the file has there.
    #[inline]
    fn read(&mut self, node: &Node, at: usize, into: Span<'_>) -> Option<usize> {
        if self.may_have_holes() {
            return None;
        }
        self.reads_until_look -= 1;
        if self.reads_until_look == 0 && !self.still_whole(node) {
            return None;
        }
        if at + into.len() <= self.last_page {
            return self.copy_whole(at, into, into.len() >= BULK_MIN).then_some(into.len());
        }
        self.read_at_end(node, at, into)
    }

    /// Reads pieces as long as they lie in this window before its last page; returns how many.
    fn read_pieces<'a>(
        &mut self,
        node: &Node,
        number: u64,
        bulk: bool,
        piece: &dyn Fn(usize) -> Option<(u64, Span<'a>)>,
    ) -> usize {
        if self.may_have_holes() {
            return 0;
        }
        self.reads_until_look -= 1;
        if self.reads_until_look == 0 && !self.still_whole(node) || !self.mapping.has_byte(self.last_page) {
            return 0;
        }
        // How many are copied, how many of them are proved to be, and bytes of the others.
        let (mut count, mut proved, mut unproved) = (0, 0, 0);
        'copying: loop {
            let ahead = self.fetched(number, &|index| piece(count + index));
            if ahead.is_empty() {
                break;
            }
            for (at, into) in ahead {
                let copied = match into.len() {
                    ..=COPY_SIZE_MAX => self.mapping.copy_out(at, into, bulk),
                    _ => self.copy_whole(at, into, bulk),
                };
                if !copied {
                    break 'copying;
                }
                count += 1;
                unproved += into.len();
                if unproved >= COPY_SIZE_MAX {
                    if !self.mapping.has_byte(self.last_page) {
                        return proved;
                    }
                    (proved, unproved) = (count, 0);
                }
            }
        }
        if self.mapping.has_byte(self.last_page) { count } else { proved }
    }

    /// The first pieces, as far as they lie before the last page: their places in the window. They are on their way from memory.
    fn fetched<'a>(
        &self,
        number: u64,
        piece: &dyn Fn(usize) -> Option<(u64, Span<'a>)>,
    ) -> SmallVec<[(usize, Span<'a>); PIECES_AHEAD]> {
        let ahead = (0..PIECES_AHEAD).map_while(|index| {
            let (offset, into) = piece(index)?;
            let at = within(offset);
            let is_here =
                offset / WINDOW_SIZE as u64 == number && into.len() <= self.last_page.saturating_sub(at);
            is_here.then_some((at, into))
        });
        ahead.inspect(|(at, into)| self.mapping.prefetch(*at, into.len())).collect()
    }

    /// Copies what lies before the last page.
    #[inline]
    fn copy_whole(&self, at: usize, into: Span<'_>, bulk: bool) -> bool {
        let mut done = 0;
        let mut whole = self.mapping.has_byte(self.last_page);
        while whole && done < into.len() {
            let len = (into.len() - done).min(COPY_SIZE_MAX);
            let copied =
                into.slice(done, len).is_some_and(|part| self.mapping.copy_out(at + done, part, bulk));
            whole = copied && self.mapping.has_byte(self.last_page);
            done += len;
        }
        whole
    }

    /// In the last page that is held, or beyond.
    fn read_at_end(&self, node: &Node, at: usize, into: Span<'_>) -> Option<usize> {
        let count = self.held.saturating_sub(at).min(into.len());
        if count < into.len() && !self.to_end {
            return None;
        }
        let unchanged = || Some(node.end_now()? == self.file_size);
        let copied = unchanged()?
            && (count == 0
                || self.mapping.copy_out(at, into.slice(0, count)?, count >= BULK_MIN) && unchanged()?);
        copied.then_some(count)
    }

    /// It was cut or punched since, by whichever worker or export: what was mapped before is not read any more.
    #[inline]
    fn may_have_holes(&self) -> bool {
        self.cuts.load(Ordering::Acquire) != self.cuts_before
    }

    /// Nothing of the file was given back since it was mapped, as far as its allocation tells.
    #[cold]
    fn still_whole(&mut self, node: &Node) -> bool {
        let whole = sys::fstat(node.buffered_fd()).is_ok_and(|now| now.allocated >= self.allocated);
        self.reads_until_look = if whole { READS_BETWEEN_LOOKS } else { 1 };
        whole
    }
}

fn is_mappable(node: &Node) -> bool {
    node.readable && node.kind == FileKind::File && node.direct_io.is_none()
}

/// Windows of a file that follow each other have slots that follow each other.
fn slot_of(id: NodeId, number: u64) -> usize {
    let file = u64::from(id.index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // Less than WINDOWS_MAX.
    usize::try_from(number.wrapping_add(file) % WINDOWS_MAX as u64).unwrap_or(0)
}

fn within(offset: u64) -> usize {
    // Less than WINDOW_SIZE.
    usize::try_from(offset % WINDOW_SIZE as u64).unwrap_or(0)
}
