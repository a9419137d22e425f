//! The chunks of a file in memory and the space reserved for it: a tree that counts.
//!
//! Every node knows what lies below it, so a range of any length is counted, reserved, taken out or searched at the cost of a few nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use dafs_proto::transport::{HeapMemory, Memory};

use super::super::work;

/// Bytes of file that a chunk stands for.
pub(super) const CHUNK_SIZE: u64 = 64 * 1024;

/// Names and values of extended attributes.
pub(super) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Bytes that a node counts for.
pub(super) const NODE_SIZE: u64 = 1024;

/// What freeing an extended attribute counts at least, bytes.
const XATTR_WEIGHT: u64 = 64;

/// A node has a child for each bit of a word.
const FANOUT_BITS: u32 = 6;
const FANOUT: usize = 1 << FANOUT_BITS;

/// Bytes that a chunk holds: less than it stands for where nothing was written to its end.
pub(super) fn capacity(chunk: &HeapMemory) -> u64 {
    chunk.span().len() as u64
}

/// Chunks below a place of this level.
fn chunks_below(level: u32) -> u64 {
    1 << (FANOUT_BITS * level)
}

/// What there is in a part of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Bytes held, or reserved.
    pub(super) charged: u64,
    /// Bytes held in chunks.
    held: u64,
    nodes: u64,
}

impl Counts {
    /// Bytes that it takes of the export's space.
    pub(super) fn cost(&self) -> u64 {
        self.charged + self.nodes * NODE_SIZE
    }
}

/// A place in the tree.
#[derive(Clone, Default)]
pub(super) enum Slot {
    #[default]
    Empty,
    Chunk(Arc<HeapMemory>),
    Node(Box<Node>),
}

#[derive(Clone)]
pub(super) struct Node {
    /// Children all of which is reserved, whatever they hold and say themselves: a bit for each.
    reserved: u64,
    // Invariant: the sum of the children's, this node added.
    counts: Counts,
    children: [Slot; FANOUT],
}

impl Slot {
    fn counts(&self, reserved: bool, level: u32) -> Counts {
        let own = match self {
            Self::Empty => Counts::default(),
            Self::Chunk(chunk) => Counts { charged: capacity(chunk), held: capacity(chunk), nodes: 0 },
            Self::Node(node) => node.counts,
        };
        if reserved { Counts { charged: chunks_below(level) * CHUNK_SIZE, ..own } } else { own }
    }

    fn held(&self) -> u64 {
        self.counts(false, 0).held
    }

    fn node(&mut self) -> &mut Node {
        if !matches!(self, Self::Node(_)) {
            *self = Self::Node(Box::default());
        }
        match self {
            Self::Node(node) => node,
            _ => unreachable!("it was just made one"),
        }
    }

    /// What is reserved as a whole becomes reserved child by child.
    fn divide(&mut self, reserved: &mut bool, level: u32) {
        if std::mem::take(reserved) {
            let node = self.node();
            node.reserved = u64::MAX;
            node.counts.charged = chunks_below(level) * CHUNK_SIZE;
        }
    }
}

impl Default for Node {
    fn default() -> Self {
        let counts = Counts { nodes: 1, ..Counts::default() };
        Self { reserved: 0, counts, children: [const { Slot::Empty }; FANOUT] }
    }
}

impl Node {
    fn is_reserved(&self, child: usize) -> bool {
        self.reserved >> child & 1 != 0
    }

    /// Changes a child of this level, and counts anew.
    fn change<R>(&mut self, child: usize, level: u32, change: impl FnOnce(&mut Slot, &mut bool) -> R) -> R {
        work::add(1);
        let mut reserved = self.is_reserved(child);
        let slot = &mut self.children[child];
        let before = slot.counts(reserved, level);
        let result = change(slot, &mut reserved);
        let after = slot.counts(reserved, level);
        self.reserved = self.reserved & !(1 << child) | u64::from(reserved) << child;
        let counts = &mut self.counts;
        counts.charged = counts.charged - before.charged + after.charged;
        counts.held = counts.held - before.held + after.held;
        counts.nodes = counts.nodes - before.nodes + after.nodes;
        result
    }

    /// The children of this level that a range of chunks touches, with the range in each.
    fn touched(level: u32, first: u64, end: u64) -> impl Iterator<Item = (usize, u64, u64)> {
        let size = chunks_below(level);
        (first / size..end.div_ceil(size)).map(move |child| {
            let begin = child * size;
            // Less than FANOUT.
            let index = usize::try_from(child).unwrap_or(0);
            (index, first.saturating_sub(begin), (end - begin).min(size))
        })
    }
}

/// The tree.
#[derive(Clone, Default)]
pub(super) struct Chunks {
    root: Slot,
    reserved: bool,
    level: u32,
}

impl Chunks {
    /// What there is.
    pub(super) fn counts(&self) -> Counts {
        self.root.counts(self.reserved, self.level)
    }

    /// The chunk of this number.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<&Arc<HeapMemory>> {
        let (mut slot, mut level) = (&self.root, self.level);
        if number >= chunks_below(level) {
            return None;
        }
        loop {
            match slot {
                Slot::Empty => return None,
                Slot::Chunk(chunk) => return Some(chunk),
                Slot::Node(node) => {
                    level -= 1;
                    slot = &node.children[child_of(number, level)];
                }
            }
        }
    }

    /// Bytes that the chunk of this number holds.
    pub(super) fn held(&self, number: u64) -> u64 {
        self.get(number).map_or(0, |chunk| capacity(chunk))
    }

    /// Space for all of this chunk is reserved.
    pub(super) fn is_reserved(&self, number: u64) -> bool {
        let (mut slot, mut level, mut reserved) = (&self.root, self.level, self.reserved);
        if number >= chunks_below(level) {
            return false;
        }
        while let (false, Slot::Node(node)) = (reserved, slot) {
            level -= 1;
            let child = child_of(number, level);
            (slot, reserved) = (&node.children[child], node.is_reserved(child));
        }
        reserved
    }

    /// Puts a chunk in its place.
    pub(super) fn insert(&mut self, number: u64, chunk: Arc<HeapMemory>) {
        fn put(slot: &mut Slot, level: u32, number: u64, chunk: Arc<HeapMemory>) {
            match level {
                0 => *slot = Slot::Chunk(chunk),
                _ => slot.node().change(child_of(number, level - 1), level - 1, |slot, _| {
                    put(slot, level - 1, number, chunk);
                }),
            }
        }
        self.grow(number);
        put(&mut self.root, self.level, number, chunk);
    }

    /// Bytes that are charged for chunks from `first` to before `end`.
    pub(super) fn charged(&self, first: u64, end: u64) -> u64 {
        fn count(slot: &Slot, reserved: bool, level: u32, first: u64, end: u64) -> u64 {
            work::add(1);
            if reserved {
                return (end - first) * CHUNK_SIZE;
            }
            match slot {
                Slot::Node(node) if first > 0 || end < chunks_below(level) => {
                    let touched = Node::touched(level - 1, first, end);
                    let parts = touched.map(|(child, first, end)| {
                        count(&node.children[child], node.is_reserved(child), level - 1, first, end)
                    });
                    parts.sum()
                }
                _ => slot.counts(false, level).charged,
            }
        }
        let end = end.min(chunks_below(self.level));
        if first < end { count(&self.root, self.reserved, self.level, first, end) } else { 0 }
    }

    /// Reserves the space of chunks from `first` to before `end`.
    pub(super) fn reserve(&mut self, first: u64, end: u64) {
        fn mark(slot: &mut Slot, reserved: &mut bool, level: u32, first: u64, end: u64) {
            if *reserved || first == 0 && end == chunks_below(level) {
                *reserved = true;
                return;
            }
            let node = slot.node();
            for (child, first, end) in Node::touched(level - 1, first, end) {
                node.change(child, level - 1, |slot, reserved| mark(slot, reserved, level - 1, first, end));
            }
        }
        if first < end {
            self.grow(end - 1);
            mark(&mut self.root, &mut self.reserved, self.level, first, end);
        }
    }

    /// Takes out chunks from `first` to before `end`, and what is reserved for them. What is taken out is big: see [`Garbage`].
    pub(super) fn remove(&mut self, first: u64, end: u64, garbage: &mut Garbage) {
        fn cut(
            slot: &mut Slot,
            reserved: &mut bool,
            level: u32,
            (first, end): (u64, u64),
            garbage: &mut Garbage,
        ) {
            if first == 0 && end == chunks_below(level) {
                *reserved = false;
                garbage.add(std::mem::take(slot));
                return;
            }
            slot.divide(reserved, level);
            let Slot::Node(node) = slot else { return };
            for (child, first, end) in Node::touched(level - 1, first, end) {
                if node.is_reserved(child) || !matches!(node.children[child], Slot::Empty) {
                    node.change(child, level - 1, |slot, reserved| {
                        cut(slot, reserved, level - 1, (first, end), garbage);
                    });
                }
            }
            if (node.counts.nodes, node.counts.charged) == (1, 0) {
                *slot = Slot::Empty;
            }
        }
        let end = end.min(chunks_below(self.level));
        if first < end {
            cut(&mut self.root, &mut self.reserved, self.level, (first, end), garbage);
        }
        if matches!(self.root, Slot::Empty) && !self.reserved {
            self.level = 0;
        }
    }

    /// Takes out all of it.
    pub(super) fn clear(&mut self, garbage: &mut Garbage) {
        garbage.add(std::mem::take(self).root);
    }

    /// The first chunk from `from` on that holds something.
    pub(super) fn next_held(&self, from: u64) -> Option<u64> {
        self.next(from, &|slot, _| slot.held() > 0)
    }

    /// The first chunk from `from` on that does not hold all that it stands for.
    pub(super) fn next_with_hole(&self, from: u64) -> u64 {
        // That all that there may be is held is more than 64 bits can say.
        let is_full = |slot: &Slot, level| {
            chunks_below(level).checked_mul(CHUNK_SIZE).is_some_and(|all| slot.held() >= all)
        };
        let found = self.next(from, &|slot, level| !is_full(slot, level));
        found.unwrap_or_else(|| from.max(chunks_below(self.level)))
    }

    /// The first chunk from `from` on in a place that `wanted` says yes to; it does of a node where it does of anything below.
    fn next(&self, from: u64, wanted: &dyn Fn(&Slot, u32) -> bool) -> Option<u64> {
        fn find(slot: &Slot, level: u32, from: u64, wanted: &dyn Fn(&Slot, u32) -> bool) -> Option<u64> {
            work::add(1);
            if !wanted(slot, level) {
                return None;
            }
            let Slot::Node(node) = slot else { return Some(from) };
            let size = chunks_below(level - 1);
            Node::touched(level - 1, from, chunks_below(level)).find_map(|(child, from, _)| {
                Some(child as u64 * size + find(&node.children[child], level - 1, from, wanted)?)
            })
        }
        if from < chunks_below(self.level) { find(&self.root, self.level, from, wanted) } else { None }
    }

    /// Makes the tree high enough.
    fn grow(&mut self, number: u64) {
        while number >= chunks_below(self.level) {
            if self.reserved || !matches!(self.root, Slot::Empty) {
                let (below, was_reserved) =
                    (std::mem::take(&mut self.root), std::mem::take(&mut self.reserved));
                self.root.node().change(0, self.level, |slot, reserved| {
                    (*slot, *reserved) = (below, was_reserved);
                });
            }
            self.level += 1;
        }
    }
}

/// Which child of a node whose children have this level.
fn child_of(number: u64, level: u32) -> usize {
    // Less than FANOUT.
    usize::try_from(number >> (FANOUT_BITS * level)).unwrap_or(0) % FANOUT
}

/// What was taken out and is still to be freed, which takes long: a part at a time, and always as much as is newly made.
#[derive(Default)]
pub(super) struct Garbage {
    slots: Vec<Slot>,
    xattrs: Vec<Xattrs>,
}

impl Garbage {
    fn add(&mut self, slot: Slot) {
        if !matches!(slot, Slot::Empty) {
            self.slots.push(slot);
        }
    }

    /// Extended attributes of what is gone.
    pub(super) fn add_xattrs(&mut self, xattrs: Xattrs) {
        if !xattrs.is_empty() {
            self.xattrs.push(xattrs);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.xattrs.is_empty()
    }

    /// Frees so many bytes, or a little more.
    pub(super) fn free(&mut self, bytes: u64) {
        let mut freed = 0;
        while freed < bytes {
            work::add(1);
            freed += match self.slots.pop() {
                Some(Slot::Chunk(chunk)) => capacity(&chunk),
                Some(Slot::Node(node)) => {
                    self.slots.extend(node.children.into_iter().filter(|slot| !matches!(slot, Slot::Empty)));
                    NODE_SIZE
                }
                Some(Slot::Empty) => 0,
                None => {
                    let Some(last) = self.xattrs.last_mut() else { return };
                    match last.pop_first() {
                        Some((name, value)) => ((name.len() + value.len()) as u64).max(XATTR_WEIGHT),
                        None => drop_last(&mut self.xattrs),
                    }
                }
            };
        }
    }
}

/// An empty one frees nothing.
fn drop_last(xattrs: &mut Vec<Xattrs>) -> u64 {
    xattrs.pop();
    0
}
