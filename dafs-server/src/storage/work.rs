//! What the loop's thread has had to do that is neither data nor a system call: entries listed, parts of paths, nodes of trees.
//!
//! Work is counted where it is done, and charged to the turn of its request. So a test also notices work whose cost a client can choose
//! ([BUF-25]). A structure counts by itself what is looked at in it: its iterators are [`looked`].

use std::cell::Cell;

thread_local! {
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// Entries of a table in memory that are looked at in the time of one step: it goes from one to the next, and does nothing else.
const LOOKS_IN_A_STEP: usize = 16;

/// So many entries of a table were looked at on this thread.
#[inline]
pub(crate) fn add_looks(looks: usize) {
    LOOKS.set(LOOKS.get().saturating_add(looks));
}

/// So many steps were done on this thread.
pub(crate) fn add(steps: usize) {
    add_looks(steps.saturating_mul(LOOKS_IN_A_STEP));
}

/// The steps done on this thread since the last call.
#[inline]
pub(crate) fn take() -> usize {
    LOOKS.replace(0) / LOOKS_IN_A_STEP
}

/// Items of a table, each of which counts as looked at on this thread when it has been passed.
#[inline]
pub(crate) fn looked<I: IntoIterator>(items: I) -> Looked<I::IntoIter> {
    Looked { items: items.into_iter(), looks: 0 }
}

/// See [`looked`].
#[derive(Debug)]
pub(crate) struct Looked<I> {
    items: I,
    looks: usize,
}

impl<I: Iterator> Iterator for Looked<I> {
    type Item = I::Item;

    #[inline]
    fn next(&mut self) -> Option<I::Item> {
        let item = self.items.next();
        self.looks += usize::from(item.is_some());
        item
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<I: DoubleEndedIterator> DoubleEndedIterator for Looked<I> {
    #[inline]
    fn next_back(&mut self) -> Option<I::Item> {
        let item = self.items.next_back();
        self.looks += usize::from(item.is_some());
        item
    }
}

impl<I> Drop for Looked<I> {
    #[inline]
    fn drop(&mut self) {
        if self.looks > 0 {
            add_looks(self.looks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_count_as_far_as_they_were_passed() {
        take();
        assert_eq!(looked(0..100).find(|item| *item == 31), Some(31));
        assert_eq!(take(), 2);
        // Each little counts.
        (0..16).for_each(|_| assert_eq!(looked([7]).next_back(), Some(7)));
        assert_eq!((take(), take()), (1, 0));
    }
}
