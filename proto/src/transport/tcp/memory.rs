//! Buffers for staging and outgoing messages, shared by the connections of a domain.

use std::sync::Mutex;

use super::super::util::lock;
use super::super::{HeapMemory, Memory, Span};

/// Sizes are powers of two from this, bytes.
const SIZE_MIN: usize = 1 << 10;
/// Number of sizes: up to 2 MiB.
const CLASSES: usize = 12;
/// Free memory kept per size, bytes. What is given back beyond it is freed.
const KEPT_PER_CLASS_MAX: usize = 2 << 20;

/// Memory of one message or staging area.
pub(super) struct Buffer {
    memory: HeapMemory,
}

impl Buffer {
    pub(super) fn span(&self) -> Span<'_> {
        self.memory.span()
    }

    pub(super) fn size(&self) -> usize {
        self.memory.span().len()
    }
}

/// Free buffers by size.
pub(super) struct BufferPool {
    free: Mutex<[Vec<Buffer>; CLASSES]>,
    /// There is no memory.
    #[cfg(test)]
    pub(super) is_exhausted: std::sync::atomic::AtomicBool,
}

impl BufferPool {
    pub(super) fn new() -> Self {
        Self {
            free: Mutex::new(std::array::from_fn(|_| Vec::new())),
            #[cfg(test)]
            is_exhausted: false.into(),
        }
    }

    /// The size of the buffer that [`BufferPool::take`] returns for `len` bytes.
    pub(super) fn size_for(len: usize) -> usize {
        len.max(SIZE_MIN).next_power_of_two()
    }

    /// A buffer of [`BufferPool::size_for`] `len` bytes; `None` when there is no memory. Its content is left over from the last use.
    pub(super) fn take(&self, len: usize) -> Option<Buffer> {
        let size = Self::size_for(len);
        #[cfg(test)]
        if self.is_exhausted.load(std::sync::atomic::Ordering::Relaxed) {
            return None;
        }
        let kept = class(size).and_then(|class| lock(&self.free)[class].pop());
        kept.or_else(|| HeapMemory::allocate(size).map(|memory| Buffer { memory }))
    }

    pub(super) fn give_back(&self, buffer: Buffer) {
        let size = buffer.size();
        if let Some(class) = class(size) {
            let mut free = lock(&self.free);
            if (free[class].len() + 1) * size <= KEPT_PER_CLASS_MAX {
                free[class].push(buffer);
            }
        }
    }
}

fn class(size: usize) -> Option<usize> {
    let class = (size / SIZE_MIN).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

/// Free buffers of one connection, so that traffic in a steady state takes no lock.
pub(super) struct BufferCache {
    free: Vec<Buffer>,
    // Invariant: the sum of the sizes in `free`.
    bytes: usize,
}

/// Kept while the connection is busy, bytes.
const CACHED_MAX: usize = 256 << 10;
/// Kept while it is idle, bytes.
const CACHED_IDLE_MAX: usize = 8 << 10;

impl BufferCache {
    pub(super) fn new() -> Self {
        Self { free: Vec::new(), bytes: 0 }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn take(&mut self, pool: &BufferPool, len: usize) -> Option<Buffer> {
        let size = BufferPool::size_for(len);
        match self.free.iter().rposition(|buffer| buffer.size() == size) {
            Some(index) => {
                self.bytes -= size;
                Some(self.free.swap_remove(index))
            }
            None => pool.take(len),
        }
    }

    pub(super) fn give_back(&mut self, pool: &BufferPool, buffer: Buffer) {
        if self.bytes + buffer.size() > CACHED_MAX {
            pool.give_back(buffer);
            return;
        }
        self.bytes += buffer.size();
        self.free.push(buffer);
    }

    /// The connection goes idle.
    pub(super) fn trim(&mut self, pool: &BufferPool) {
        self.trim_to(pool, CACHED_IDLE_MAX);
    }

    /// The connection ends.
    pub(super) fn clear(&mut self, pool: &BufferPool) {
        self.trim_to(pool, 0);
    }

    fn trim_to(&mut self, pool: &BufferPool, bytes_max: usize) {
        while self.bytes > bytes_max {
            let Some(buffer) = self.free.pop() else { return };
            self.bytes -= buffer.size();
            pool.give_back(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_keeps_more_while_it_is_busy_than_while_it_is_idle() {
        for size in (0..CLASSES).map(|class| SIZE_MIN << class) {
            let (pool, mut cache) = (BufferPool::new(), BufferCache::new());
            let kept_of = |max: usize| max / size * size;
            let buffers: Vec<Buffer> =
                (0..=CACHED_MAX / size).map(|_| cache.take(&pool, size).unwrap()).collect();
            buffers.into_iter().for_each(|buffer| cache.give_back(&pool, buffer));
            assert_eq!(cache.bytes(), kept_of(CACHED_MAX), "busy: of {size} bytes each");
            cache.trim(&pool);
            assert_eq!(cache.bytes(), kept_of(CACHED_IDLE_MAX), "idle: of {size} bytes each");
            cache.clear(&pool);
            assert_eq!(cache.bytes(), 0, "ended: of {size} bytes each");
        }
    }
}
