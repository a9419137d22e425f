//! Memory of messages: buffers that the connections of a domain share, posted receives, and slots that messages are built in.

use std::io;
use std::sync::{Arc, Mutex};

use slab::Slab;

use super::super::util::lock;
use super::super::{MemoryRef, Span};
use super::device::{Device, MemoryRegion, Rights};
use super::frame::{NOTE_SIZE, PREFIX_SIZE};
use super::handshake::Hello;
use super::memory::{VerbsDomainParts, registered_buffer};
use super::queue::Segment;

/// Marks the ids of receives; the rest of the id is the buffer.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Sizes of buffers, bytes: of payload, and room for what stands before it. The third holds the least that every peer takes.
const SIZES: [usize; 7] = [
    512,
    (4 << 10) + 512,
    (8 << 10) + 512,
    (16 << 10) + 512,
    (64 << 10) + 512,
    (256 << 10) + 512,
    (1 << 20) + 512,
];

/// Memory that is registered at once, at least; one buffer, where that is more. Bytes.
const CHUNK_SIZE_MIN: usize = 64 << 10;

/// The same for the smallest buffers, which every connection has some of.
const CHUNK_SIZE_SMALL: usize = 8 << 10;

/// Free buffers that a domain keeps, bytes.
const FREE_KEPT_MAX: usize = 4 << 20;

/// Receives beside those for messages of the session: for the note that closes it, or for what is being looked at.
const RECEIVES_SPARE: u32 = 1;

/// Slots of this class and those above count as memory that a peer takes: the largest that most peers ask for is below.
const CLASS_LARGE: usize = 4;

/// Free slots that a connection keeps while it sleeps, each of a size no larger than the second.
const SLOTS_KEPT: usize = 2;

/// Memory registered at once, cut into equal buffers.
struct Chunk {
    memory: MemoryRef,
    region: MemoryRegion,
}

/// A registered buffer. Its chunk lives as long as any buffer of it.
pub(super) struct Buffer {
    chunk: Arc<Chunk>,
    offset: usize,
    class: usize,
}

impl Buffer {
    pub(super) fn span(&self) -> Span<'_> {
        self.chunk.memory.span().slice(self.offset, SIZES[self.class]).unwrap_or(Span::EMPTY)
    }

    /// A part of it, as the device names it.
    pub(super) fn segment(&self, offset: usize, len: usize) -> Segment {
        let Some(span) = self.span().slice(offset, len) else {
            return Segment::EMPTY;
        };
        // Buffers are messages, far below 4 GiB.
        let len = u32::try_from(span.len()).unwrap_or(u32::MAX);
        Segment { address: span.as_ptr() as u64, len, key: self.chunk.region.local_key() }
    }
}

/// The free buffers of a domain, by size. What one connection had goes to the next that needs it.
#[derive(Default)]
pub(super) struct BufferPool {
    free: [Mutex<Vec<Buffer>>; SIZES.len()],
}

impl BufferPool {
    /// A buffer of this class. More are made when there is none.
    fn take(&self, device: &Arc<Device>, class: usize) -> io::Result<Buffer> {
        if let Some(buffer) = lock(&self.free[class]).pop() {
            return Ok(buffer);
        }
        let size = SIZES[class];
        let count = if class == 0 { CHUNK_SIZE_SMALL / size } else { CHUNK_SIZE_MIN.div_ceil(size) };
        let mut made = match make(device, class, count) {
            // Under a limit of locked memory one may fit.
            Err(_) if count > 1 => make(device, class, 1)?,
            made => made?,
        };
        let first = made.next().ok_or(io::ErrorKind::OutOfMemory)?;
        lock(&self.free[class]).extend(made);
        Ok(first)
    }

    /// So many buffers of this class, what is missing of them in one registration; fewer where that cannot be.
    fn take_together(&self, device: &Arc<Device>, class: usize, count: usize) -> Vec<Buffer> {
        let mut free = lock(&self.free[class]);
        let left = free.len().saturating_sub(count);
        let mut taken = free.split_off(left);
        drop(free);
        let missing = count - taken.len();
        if missing > 1 {
            match make(device, class, missing) {
                Ok(made) => taken.extend(made),
                Err(error) => tracing::debug!(%error, "receive buffers are registered in parts"),
            }
        }
        taken
    }

    fn give_back(&self, buffer: Buffer) {
        let class = buffer.class;
        let mut free = lock(&self.free[class]);
        if (free.len() + 1) * SIZES[class] <= FREE_KEPT_MAX {
            free.push(buffer);
        }
    }

    /// Gives free buffers back to the system. Tells whether there were any.
    pub(super) fn shrink(&self) -> bool {
        let mut any = false;
        for class in 0..SIZES.len() {
            let gone = std::mem::take(&mut *lock(&self.free[class]));
            any |= !gone.is_empty();
        }
        any
    }
}

/// So many new buffers of a class, in one registration.
fn make(device: &Arc<Device>, class: usize, count: usize) -> io::Result<impl Iterator<Item = Buffer>> {
    let size = SIZES[class];
    let (memory, region) = registered_buffer(device, count * size, Rights::Destination)?;
    let chunk = Arc::new(Chunk { memory, region });
    Ok((0..count).map(move |part| Buffer { chunk: Arc::clone(&chunk), offset: part * size, class }))
}

/// The class of buffers for payloads of this size.
fn class_of(payload_len: usize) -> usize {
    let len = (PREFIX_SIZE + payload_len).max(NOTE_SIZE);
    SIZES.iter().position(|size| *size >= len).unwrap_or(SIZES.len() - 1)
}

fn take(shared: &VerbsDomainParts, device: &Arc<Device>, class: usize) -> io::Result<Buffer> {
    let taken = shared.buffers.take(device, class);
    match taken {
        // What is only kept for later may stand in the way.
        Err(_) if shared.shrink() => shared.buffers.take(device, class),
        taken => taken,
    }
}

/// The posted receives of a connection, and those that its consumer looks at.
///
/// One that connects posts all. One that was accepted begins with few: its consumer says how many messages it is going to allow the
/// peer at once, before it does, so that the peer never finds none. What is not needed any more is given up when it comes back.
pub(super) struct Receives {
    buffers: Slab<Buffer>,
    class: usize,
    len: usize,
    /// How many there are to be.
    target: u32,
    count_max: u32,
    /// Their number follows what is expected.
    follows: bool,
    shared: Arc<VerbsDomainParts>,
    device: Arc<Device>,
}

impl Receives {
    /// The first receives of a connection that agreed on `count_max`: few where they shall follow what is expected and the device can
    /// make peers wait, or as many as there is memory for. They are to be posted: see [`Receives::all`].
    pub(super) fn new(
        shared: &Arc<VerbsDomainParts>,
        device: &Arc<Device>,
        count_max: u32,
        payload_max: u32,
        follows: bool,
    ) -> io::Result<Self> {
        // Where peers do not wait, a message without a receive ends the connection.
        let follows = follows && device.limits.peers_wait;
        let target = if follows { (1 + RECEIVES_SPARE).min(count_max) } else { count_max };
        let mut receives = Self {
            buffers: Slab::new(),
            class: class_of(payload_max as usize),
            len: (PREFIX_SIZE + payload_max as usize).max(NOTE_SIZE),
            target,
            count_max,
            follows,
            shared: Arc::clone(shared),
            device: Arc::clone(device),
        };
        if !follows {
            // They stay as long as the connection does: memory of one does not wait for the last of many to be given up.
            let together = shared.buffers.take_together(device, receives.class, target as usize);
            for buffer in together {
                receives.buffers.insert(buffer);
            }
        }
        for count in id_of(receives.buffers.len())..target {
            match receives.add() {
                Ok(_) => {}
                // One for a message and one for a note are enough to go on with.
                Err(error) if count < 2 || !device.limits.peers_wait => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "no memory for more receives: the peer waits for those there are");
                    receives.leave_room();
                    break;
                }
            }
        }
        Ok(receives)
    }

    /// Ids of all receives.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.buffers.iter().map(|(id, _)| id_of(id))
    }

    pub(super) fn span(&self, id: u32) -> Span<'_> {
        self.buffers.get(id as usize).map_or(Span::EMPTY, Buffer::span)
    }

    pub(super) fn segment(&self, id: u32) -> Segment {
        self.buffers.get(id as usize).map_or(Segment::EMPTY, |buffer| buffer.segment(0, self.len))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.buffers.len()
    }

    /// Messages that the peer may send at once.
    pub(super) fn expected(&self) -> u16 {
        let count = self.target.min(id_of(self.buffers.len())).saturating_sub(RECEIVES_SPARE);
        u16::try_from(count.max(1)).unwrap_or(u16::MAX)
    }

    /// As many are to be there as so many messages at once take, if their number follows that. Returns which are to be posted: fewer
    /// with too little memory.
    pub(super) fn expect(&mut self, messages: u16) -> Vec<u32> {
        let mut added = Vec::new();
        if !self.follows {
            return added;
        }
        self.target = (u32::from(messages.max(1)) + RECEIVES_SPARE).min(self.count_max);
        for _ in self.buffers.len()..self.target as usize {
            match self.add() {
                Ok(id) => added.push(id),
                Err(error) => {
                    tracing::debug!(%error, "no memory for more receives: the peer is granted what there are");
                    break;
                }
            }
        }
        added
    }

    /// A receive comes back; `true` when it is to be posted again, otherwise it is gone.
    pub(super) fn given_back(&mut self, id: u32) -> bool {
        if self.buffers.len() <= self.target as usize {
            return true;
        }
        if let Some(buffer) = self.buffers.try_remove(id as usize) {
            self.shared.buffers.give_back(buffer);
        }
        false
    }

    /// Memory was used up: half of it, which is not posted yet, is for what else a session needs.
    fn leave_room(&mut self) {
        self.target = (id_of(self.buffers.len()) / 2).max(2);
        self.count_max = self.target;
        while self.buffers.len() > self.target as usize {
            drop(self.buffers.try_remove(self.buffers.len() - 1));
        }
        self.shared.buffers.shrink();
    }

    fn add(&mut self) -> io::Result<u32> {
        let buffer = take(&self.shared, &self.device, self.class)?;
        Ok(id_of(self.buffers.insert(buffer)))
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        // The queue pair is gone: see `Core`.
        self.buffers.drain().for_each(|buffer| self.shared.buffers.give_back(buffer));
    }
}

/// The slots of outgoing messages: buffers that are taken as they are needed. Few are kept.
pub(super) struct Slots {
    buffers: Slab<Buffer>,
    // Free ones by size; the one that was freed last is taken first.
    free: [Vec<u32>; SIZES.len()],
    in_use: u32,
    large_bytes: usize,
    pub(super) count_max: u32,
    shared: Arc<VerbsDomainParts>,
    device: Arc<Device>,
}

impl Slots {
    /// At most `count_max` slots at once.
    pub(super) fn new(shared: &Arc<VerbsDomainParts>, device: &Arc<Device>, count_max: u32) -> Self {
        Self {
            buffers: Slab::new(),
            free: Default::default(),
            in_use: 0,
            large_bytes: 0,
            count_max,
            shared: Arc::clone(shared),
            device: Arc::clone(device),
        }
    }

    /// Fails where there is no memory for a message of this size: better now than in the middle of something.
    pub(super) fn make_sure(&self, payload_len: usize) -> io::Result<()> {
        let buffer = take(&self.shared, &self.device, class_of(payload_len))?;
        self.shared.buffers.give_back(buffer);
        Ok(())
    }

    /// A slot with room for so much payload. `None`: all are in use, or there is no memory until one comes back.
    ///
    /// # Errors
    /// No memory, and none will come back.
    pub(super) fn take(&mut self, payload_len: usize) -> io::Result<Option<u32>> {
        if self.in_use >= self.count_max {
            return Ok(None);
        }
        let class = class_of(payload_len);
        let id = match self.free[class].pop() {
            Some(id) => id,
            None => match take(&self.shared, &self.device, class) {
                Ok(buffer) => id_of(self.buffers.insert(buffer)),
                Err(error) if self.in_use == 0 => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "no memory for more messages at once");
                    return Ok(None);
                }
            },
        };
        self.in_use += 1;
        self.large_bytes += large_size(class);
        Ok(Some(id))
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        if let Some(buffer) = self.buffers.get(slot as usize) {
            self.free[buffer.class].push(slot);
            self.in_use -= 1;
            self.large_bytes -= large_size(buffer.class);
        }
    }

    /// Bytes of the large ones that are in use.
    pub(super) fn large_bytes(&self) -> usize {
        self.large_bytes
    }

    pub(super) fn has_free(&self) -> bool {
        self.in_use < self.count_max
    }

    /// Gives up what is not needed before the next sleep.
    pub(super) fn trim(&mut self) {
        for (class, free) in self.free.iter_mut().enumerate() {
            let kept = if class < 2 { SLOTS_KEPT } else { 0 };
            while free.len() > kept {
                if let Some(buffer) = free.pop().and_then(|id| self.buffers.try_remove(id as usize)) {
                    self.shared.buffers.give_back(buffer);
                }
            }
        }
    }

    pub(super) fn span(&self, slot: u32) -> Span<'_> {
        self.buffers.get(slot as usize).map_or(Span::EMPTY, Buffer::span)
    }

    /// The part of a slot that leaves.
    pub(super) fn segment(&self, slot: u32, offset: usize, len: usize) -> Segment {
        self.buffers.get(slot as usize).map_or(Segment::EMPTY, |buffer| buffer.segment(offset, len))
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.buffers.drain().for_each(|buffer| self.shared.buffers.give_back(buffer));
    }
}

fn large_size(class: usize) -> usize {
    if class < CLASS_LARGE { 0 } else { SIZES[class] }
}

/// Slabs of a connection have at most thousands of entries.
fn id_of(key: usize) -> u32 {
    u32::try_from(key).unwrap_or(u32::MAX)
}

/// Messages that a side has on their way at once: as many as it expects answers to.
pub(super) fn slots_max(own: &Hello) -> u32 {
    u32::from(own.recv_depth).clamp(super::SLOTS_MIN, super::SLOTS_MAX)
}
