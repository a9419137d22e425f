//! Transfer buffers: memory of the server that data passes through when storage and network cannot meet in the client's memory.
//!
//! Buffers come in *zones*, one for each size, under one budget of bytes that eager buffers count in as well. Free ones are kept for reuse,
//! up to a part of the budget, so memory follows the operations in flight. Every buffer that is lent has an owner: a session and one of its
//! operations. If the fitting zone has no free buffer, a larger one is lent; if there is none, a smaller one, and the transfer is cut. How
//! much a session may have is `shares`' (`spec/design/scheduling.md`).
//!
//! The pool does no I/O and never waits: who gets nothing puts itself in the queue ([`BufferPool::wait`]) and is handed its buffers by
//! [`BufferPool::serve`] when they are there.

mod shares;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use dafs_proto::transport::{HeapMemory, Memory, MemoryRef, OpToken};
use dafs_proto::wire::ZoneStatistics;
use slab::Slab;

use crate::worker::ids::SessionKey;
use shares::{Shares, Want};

/// Sizes of buffers where nothing else is configured, bytes, ascending.
pub const BUFFER_SIZES: [usize; 4] = [16 * 1024, 128 * 1024, 256 * 1024, 1024 * 1024];

/// Zones of a pool at most.
pub const ZONES_MAX: usize = 8;

/// Appends take all their buffers at once, at most this part of the budget, so that they get them however many others there are.
const AT_ONCE_PART: usize = 4;

/// Eager buffers take at most this part of the budget, all sessions together.
const EAGER_BUFFERS_PART: usize = 2;

/// What a pool has.
#[derive(Clone, Debug)]
pub struct BufferConfig {
    /// Sizes of buffers, bytes, ascending; at least one, at most [`ZONES_MAX`].
    pub sizes: Vec<usize>,
    /// All of them together, and eager buffers, bytes; never less than one of the largest.
    pub size_max: usize,
    /// Free buffers kept in each zone, bytes.
    pub kept_size_max: usize,
}

impl BufferConfig {
    /// The usual sizes under a budget.
    pub fn with_budget(size_max: usize) -> Self {
        Self { sizes: BUFFER_SIZES.to_vec(), size_max, kept_size_max: 32 << 20 }
    }
}

impl BufferConfig {
    /// The same with a part of the memory, as `part` says; never less than one of the largest.
    pub(crate) fn part(&self, part: impl Fn(usize) -> usize) -> Self {
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        Self {
            sizes: self.sizes.clone(),
            size_max: part(self.size_max).max(largest),
            kept_size_max: part(self.kept_size_max),
        }
    }
}

/// Whose a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The session; [`NOBODY`] when it has ended and storage or RDMA still holds the memory.
    pub session: SessionKey,
    /// The operation.
    pub operation: OpToken,
}

/// Owns what a session left that has ended.
pub const NOBODY: SessionKey = SessionKey(usize::MAX);

/// A pool of buffers.
#[derive(Debug)]
pub struct BufferPool {
    zones: Vec<Zone>,
    config: BufferConfig,
    /// Of all buffers that there are, bytes. Invariant: with `eager_buffers_size` <= `config.size_max`.
    buffers_size: usize,
    eager_buffers_size: usize,
    /// Of those lent, bytes.
    lent_size: usize,
    lent: Slab<Lent>,
    /// Given back while somebody still held their memory: a provider that has not let go of it yet.
    held: Vec<Idle>,
    shares: Shares,
}

struct Zone {
    size: usize,
    free: Vec<Arc<dyn Memory>>,
    /// But for how many are free.
    counted: ZoneStatistics,
}

impl std::fmt::Debug for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Zone({}: {} of {} lent)", self.size, self.counted.lent, self.counted.total)
    }
}

#[derive(Debug)]
struct Lent {
    owner: Owner,
    zone: usize,
}

struct Idle {
    zone: usize,
    memory: Arc<dyn Memory>,
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Idle({})", self.zone)
    }
}

/// A buffer on loan from the pool; goes back with [`BufferPool::release`].
pub struct Buffer {
    memory: Arc<dyn Memory>,
    size: usize,
    place: usize,
}

impl Buffer {
    /// Its memory.
    pub fn memory(&self) -> MemoryRef {
        MemoryRef::new(Arc::clone(&self.memory))
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({})", self.size)
    }
}

/// Buffers for an operation that waited for them.
#[derive(Debug)]
pub struct Grant {
    /// The operation.
    pub owner: Owner,
    /// What it waited for: one, perhaps smaller than wanted, or all that it asked for.
    pub buffers: Vec<Buffer>,
}

impl BufferPool {
    /// A pool; it lends at least one of its largest buffers, whatever the budget.
    pub fn new(mut config: BufferConfig) -> Self {
        config.sizes.truncate(ZONES_MAX);
        let largest = config.sizes.last().copied().unwrap_or(0);
        config.size_max = config.size_max.max(largest);
        let zone = |size: &usize| Zone {
            size: *size,
            free: Vec::new(),
            counted: ZoneStatistics { size: *size as u64, ..ZoneStatistics::default() },
        };
        Self {
            zones: config.sizes.iter().map(zone).collect(),
            config,
            buffers_size: 0,
            eager_buffers_size: 0,
            lent_size: 0,
            lent: Slab::new(),
            held: Vec::new(),
            shares: Shares::default(),
        }
    }

    /// A buffer of at least `size` bytes, or a smaller one when that is all there is; `None` when the owner has to wait.
    #[inline]
    pub fn acquire(&mut self, owner: Owner, size: usize) -> Option<Buffer> {
        if self.shares.has_waiting(owner.session) {
            return None;
        }
        let room = self.room(owner.session);
        self.lend_one(owner, size, room)
    }

    /// A buffer of at least each of these sizes, or none; see [`BufferPool::can_ever_lend`].
    pub fn acquire_all(&mut self, owner: Owner, sizes: &[usize]) -> Option<Vec<Buffer>> {
        if self.shares.has_waiting(owner.session) {
            return None;
        }
        let room = self.room(owner.session);
        self.lend_all(owner, sizes, room)
    }

    /// So many bytes are few enough to be lent at once to anybody.
    pub fn can_ever_lend(&self, sizes: &[usize]) -> bool {
        self.fitting_size(sizes) <= self.config.size_max / AT_ONCE_PART
    }

    /// Queues an operation for a buffer of at least `size` bytes, or smaller ones.
    pub fn wait(&mut self, owner: Owner, size: usize) {
        let zone = self.fitting(size);
        self.zones[zone].counted.waits += 1;
        self.shares.wait(owner, Want::One(size));
    }

    /// Queues an operation for buffers of all these sizes.
    pub fn wait_for_all(&mut self, owner: Owner, sizes: Vec<usize>) {
        let zone = self.fitting(sizes.iter().copied().max().unwrap_or(0));
        self.zones[zone].counted.waits += 1;
        self.shares.wait(owner, Want::All(sizes));
    }

    /// Takes an operation out of the queue.
    pub fn stop_waiting(&mut self, owner: Owner) {
        self.shares.stop_waiting(owner);
    }

    /// Somebody waits.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.shares.has_waiters()
    }

    /// The operations that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = OpToken> {
        self.shares.waiting()
    }

    /// The session has some of what another waits for.
    pub fn keeps_from_others(&self, session: SessionKey) -> bool {
        self.shares.held_by(session) > 0 && self.shares.others_wait(session)
    }

    /// The next operation that can be given what it waits for, sessions in turn; it is taken out of the queue.
    pub fn serve(&mut self) -> Option<Grant> {
        for _ in 0..self.shares.waiting_sessions() {
            let Some((owner, want)) = self.shares.turn() else { break };
            let room = self.room(owner.session);
            let buffers = match &want {
                Want::One(size) => self.lend_one(owner, *size, room).map(|buffer| vec![buffer]),
                Want::All(sizes) => self.lend_all(owner, sizes, room),
            };
            if let Some(buffers) = buffers {
                self.shares.stop_waiting(owner);
                return Some(Grant { owner, buffers });
            }
            if let Want::All(sizes) = &want {
                let size = self.fitting_size(sizes);
                self.shares.pass_over(owner, size);
            }
        }
        None
    }

    /// Takes a buffer back.
    pub fn release(&mut self, buffer: Buffer) {
        let Some(lent) = self.lent.try_remove(buffer.place) else {
            debug_assert!(false, "a buffer that was not lent came back");
            return;
        };
        let zone = &mut self.zones[lent.zone];
        zone.counted.lent -= 1;
        self.lent_size -= zone.size;
        self.shares.on_returned(lent.owner.session, zone.size);
        let idle = Idle { zone: lent.zone, memory: buffer.memory };
        if Arc::strong_count(&idle.memory) == 1 {
            self.keep(idle);
        } else {
            self.held.push(idle);
        }
    }

    /// A session has ended: its operations wait no more, and what storage or RDMA still hold is nobody's until it comes back.
    pub fn end_session(&mut self, session: SessionKey) {
        for (_, lent) in &mut self.lent {
            if lent.owner.session == session {
                lent.owner.session = NOBODY;
            }
        }
        self.shares.end_session(session, NOBODY);
    }

    /// Lends memory of other kinds under the budget, for eager buffers: `false` when there is no room for so many bytes.
    pub fn charge_eager_buffers(&mut self, size: usize) -> bool {
        if size > self.eager_buffers_room() {
            return false;
        }
        self.make_room(size, usize::MAX);
        if self.buffers_size + self.eager_buffers_size + size > self.config.size_max {
            return false;
        }
        self.eager_buffers_size += size;
        true
    }

    /// Takes that back.
    pub fn discharge_eager_buffers(&mut self, size: usize) {
        self.eager_buffers_size = self.eager_buffers_size.saturating_sub(size);
    }

    /// Bytes that may still be lent as eager buffers.
    pub fn eager_buffers_room(&self) -> usize {
        let unlent = self.unlent_size().saturating_sub(self.reserve());
        // With less than a buffer left nobody could be lent one for as long as the eager buffers are.
        let eager_buffers_max =
            (self.config.size_max / EAGER_BUFFERS_PART).min(self.config.size_max - self.smallest());
        eager_buffers_max.saturating_sub(self.eager_buffers_size).min(unlent)
    }

    /// Bytes lent as eager buffers.
    pub fn eager_buffers_size(&self) -> usize {
        self.eager_buffers_size
    }

    /// Bytes of buffers lent now.
    pub fn lent_size(&self) -> usize {
        self.lent_size
    }

    /// Bytes of buffers that there are, lent or free.
    pub fn size(&self) -> usize {
        self.buffers_size
    }

    /// The most that there may be, eager buffers included, bytes.
    pub fn size_max(&self) -> usize {
        self.config.size_max
    }

    /// Size of the largest buffer, bytes.
    pub fn largest(&self) -> usize {
        self.zones.last().map_or(0, |zone| zone.size)
    }

    /// Size of the smallest buffer, bytes.
    pub fn smallest(&self) -> usize {
        self.zones.first().map_or(0, |zone| zone.size)
    }

    /// Who has buffers now, and how large each is, bytes.
    pub fn owners(&self) -> impl Iterator<Item = (Owner, usize)> {
        self.lent.iter().map(|(_, lent)| (lent.owner, self.zones[lent.zone].size))
    }

    /// Bytes that a session has.
    pub fn held_by(&self, session: SessionKey) -> usize {
        self.shares.held_by(session)
    }

    /// Counters, by zone.
    pub fn statistics(&self) -> Vec<ZoneStatistics> {
        let of = |zone: &Zone| ZoneStatistics { free: zone.free.len() as u64, ..zone.counted.clone() };
        self.zones.iter().map(of).collect()
    }

    /// Bytes kept for sessions that have nothing.
    fn reserve(&self) -> usize {
        self.config.size_max / shares::RESERVE_PART
    }

    /// Bytes of the budget that are not lent, as buffers or eager buffers.
    fn unlent_size(&self) -> usize {
        let held: usize = self.held.iter().map(|idle| self.zones[idle.zone].size).sum();
        self.config.size_max.saturating_sub(self.lent_size + held + self.eager_buffers_size)
    }

    /// Bytes that a session may take now.
    fn room(&mut self, session: SessionKey) -> usize {
        if !self.held.is_empty() {
            self.reclaim();
        }
        let unlent = self.unlent_size();
        let budget = self.config.size_max - self.eager_buffers_size;
        self.shares.room(session, unlent, budget, self.reserve(), self.zones[0].size)
    }

    /// The zone with the smallest buffers that hold `size` bytes, or the largest there are.
    fn fitting(&self, size: usize) -> usize {
        self.zones.iter().position(|zone| zone.size >= size).unwrap_or(self.zones.len() - 1)
    }

    fn fitting_size(&self, sizes: &[usize]) -> usize {
        sizes.iter().map(|size| self.zones[self.fitting(*size)].size).sum()
    }

    fn lend_one(&mut self, owner: Owner, size: usize, room: usize) -> Option<Buffer> {
        let fitting = self.fitting(size);
        if self.zones[fitting].size <= room
            && let Some(buffer) = self.lend_fitting(owner, fitting)
        {
            return Some(buffer);
        }
        let smaller = (0..fitting).rev().find_map(|zone| {
            (self.zones[zone].size <= room).then(|| self.lend_fitting(owner, zone)).flatten()
        })?;
        self.zones[fitting].counted.chops += 1;
        Some(smaller)
    }

    fn lend_all(&mut self, owner: Owner, sizes: &[usize], room: usize) -> Option<Vec<Buffer>> {
        if self.fitting_size(sizes) > room {
            return None;
        }
        let mut buffers = Vec::with_capacity(sizes.len());
        for size in sizes {
            match self.lend_fitting(owner, self.fitting(*size)) {
                Some(buffer) => buffers.push(buffer),
                None => {
                    buffers.into_iter().for_each(|buffer| self.release(buffer));
                    return None;
                }
            }
        }
        Some(buffers)
    }

    /// A buffer of this zone, or, when it has none and the budget is used up, of a bigger one.
    fn lend_fitting(&mut self, owner: Owner, zone: usize) -> Option<Buffer> {
        if let Some(memory) = self.zones[zone].free.pop() {
            return Some(self.lend(owner, zone, memory));
        }
        let size = self.zones[zone].size;
        if self.buffers_size + self.eager_buffers_size + size > self.config.size_max {
            // Only where the whole budget may be lent is a bigger one's loss nobody else's: its bytes are accounted for as they are.
            let bigger = (zone + 1..self.zones.len()).find(|bigger| !self.zones[*bigger].free.is_empty());
            let fits = bigger.filter(|bigger| self.zones[*bigger].size <= self.room(owner.session));
            if let Some(bigger) = fits
                && let Some(memory) = self.zones[bigger].free.pop()
            {
                self.zones[zone].counted.lent_from_bigger += 1;
                return Some(self.lend(owner, bigger, memory));
            }
            self.make_room(size, zone);
        }
        if self.buffers_size + self.eager_buffers_size + size > self.config.size_max {
            return None;
        }
        let memory = Arc::new(HeapMemory::allocate(size)?);
        self.zones[zone].counted.total += 1;
        self.buffers_size += size;
        Some(self.lend(owner, zone, memory))
    }

    fn lend(&mut self, owner: Owner, zone: usize, memory: Arc<dyn Memory>) -> Buffer {
        let size = self.zones[zone].size;
        self.zones[zone].counted.lent += 1;
        self.lent_size += size;
        self.shares.on_lent(owner, size);
        let place = self.lent.insert(Lent { owner, zone });
        Buffer { memory, size, place }
    }

    /// Gives free buffers of other zones back to the system until there is room for `size` bytes more.
    #[cold]
    fn make_room(&mut self, size: usize, for_zone: usize) {
        self.reclaim();
        for (index, zone) in self.zones.iter_mut().enumerate().filter(|(index, _)| *index != for_zone) {
            debug_assert_ne!(index, for_zone);
            while self.buffers_size + self.eager_buffers_size + size > self.config.size_max {
                if zone.free.pop().is_none() {
                    break;
                }
                zone.counted.total -= 1;
                self.buffers_size -= zone.size;
            }
        }
    }

    fn reclaim(&mut self) {
        let mut place = 0;
        while place < self.held.len() {
            if Arc::strong_count(&self.held[place].memory) == 1 {
                let idle = self.held.swap_remove(place);
                self.keep(idle);
            } else {
                place += 1;
            }
        }
    }

    fn keep(&mut self, idle: Idle) {
        let zone = &mut self.zones[idle.zone];
        if (zone.free.len() + 1) * zone.size <= self.config.kept_size_max {
            zone.free.push(idle.memory);
        } else {
            zone.counted.total -= 1;
            self.buffers_size -= zone.size;
        }
    }
}
