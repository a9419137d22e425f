//! Transfer buffers: memory of the server that data passes through when storage and network cannot meet in the client's memory.
//!
//! Buffers come in size classes and under one budget of bytes. Free ones are kept for reuse, up to a part of the
//! budget, so memory follows the operations in flight. A buffer that somebody still holds when its operation gives it
//! up is reused once that has let go of it.

use std::sync::Arc;

use dafs_proto::transport::{HeapMemory, Memory, MemoryRef};

/// Sizes of buffers, bytes, ascending.
pub const BUFFER_SIZES: [usize; 3] = [16 * 1024, 128 * 1024, 1024 * 1024];

/// Free buffers kept of each class, bytes.
const KEPT_SIZE_MAX: usize = 32 * 1024 * 1024;

/// Buffers remembered that somebody still holds; beyond it the last holder frees them.
const HELD_MAX: usize = 64;

/// A pool of buffers.
#[derive(Debug)]
pub struct BufferPool {
    free: [Vec<Buffer>; BUFFER_SIZES.len()],
    // Given back while somebody still held their memory.
    held: Vec<Buffer>,
    size_max: usize,
    lent_size: usize,
}

/// A buffer on loan from the pool; goes back with [`BufferPool::release`].
pub struct Buffer {
    memory: Arc<dyn Memory>,
    class: usize,
}

impl Buffer {
    /// Its memory.
    pub fn memory(&self) -> MemoryRef {
        MemoryRef::new(Arc::clone(&self.memory))
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        BUFFER_SIZES[self.class]
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({})", self.size())
    }
}

impl BufferPool {
    /// A pool that lends at most `size_max` bytes at once, but always at least one of the largest buffers.
    pub fn new(size_max: usize) -> Self {
        Self {
            free: Default::default(),
            held: Vec::new(),
            size_max: size_max.max(BUFFER_SIZES[BUFFER_SIZES.len() - 1]),
            lent_size: 0,
        }
    }

    /// The smallest buffer that holds `size` bytes, or the largest there is; `None` when the budget is lent out or there is no memory.
    pub fn acquire(&mut self, size: usize) -> Option<Buffer> {
        let class =
            BUFFER_SIZES.iter().position(|class_size| *class_size >= size).unwrap_or(BUFFER_SIZES.len() - 1);
        if self.lent_size + BUFFER_SIZES[class] > self.size_max {
            return None;
        }
        self.reclaim();
        let buffer = match self.free[class].pop() {
            Some(buffer) => buffer,
            None => Buffer { memory: Arc::new(HeapMemory::allocate(BUFFER_SIZES[class])?), class },
        };
        self.lent_size += buffer.size();
        Some(buffer)
    }

    /// Takes a buffer back.
    pub fn release(&mut self, buffer: Buffer) {
        self.lent_size -= buffer.size();
        if Arc::strong_count(&buffer.memory) == 1 {
            self.keep(buffer);
        } else if self.held.len() < HELD_MAX {
            self.held.push(buffer);
        }
    }

    fn reclaim(&mut self) {
        let mut place = 0;
        while place < self.held.len() {
            if Arc::strong_count(&self.held[place].memory) == 1 {
                let buffer = self.held.swap_remove(place);
                self.keep(buffer);
            } else {
                place += 1;
            }
        }
    }

    fn keep(&mut self, buffer: Buffer) {
        let kept = self.free[buffer.class].len() * buffer.size();
        if kept < KEPT_SIZE_MAX {
            self.free[buffer.class].push(buffer);
        }
    }

    /// Bytes lent now.
    pub fn lent_size(&self) -> usize {
        self.lent_size
    }

    /// The most that may ever be lent, bytes.
    pub fn size_max(&self) -> usize {
        self.size_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_with_budget_lent_answers_none_until_a_buffer_is_back() {
        let mut pool = BufferPool::new(0);
        let buffer = pool.acquire(1 << 20).unwrap();
        assert!(pool.acquire(1).is_none());
        pool.release(buffer);
        assert_eq!(pool.lent_size(), 0);
        assert!(pool.acquire(1).is_some());
    }

    #[test]
    fn pool_gives_the_smallest_class_that_fits() {
        let mut pool = BufferPool::new(1 << 30);
        for (index, size) in BUFFER_SIZES.into_iter().enumerate() {
            assert_eq!(pool.acquire(size - 1).unwrap().size(), size);
            assert_eq!(pool.acquire(size).unwrap().size(), size);
            let above = BUFFER_SIZES.get(index + 1).copied().unwrap_or(size);
            assert_eq!(pool.acquire(size + 1).unwrap().size(), above);
        }
    }

    #[test]
    fn pool_does_not_reuse_a_buffer_that_somebody_still_holds() {
        let mut pool = BufferPool::new(1 << 30);
        let buffer = pool.acquire(1).unwrap();
        let held = buffer.memory();
        pool.release(buffer);
        let other = pool.acquire(1).unwrap();
        let address = held.span().as_ptr();
        assert_ne!(other.memory().span().as_ptr(), address);
        drop(held);
        assert_eq!(pool.acquire(1).unwrap().memory().span().as_ptr(), address, "let go of, it is used again");
    }
}
