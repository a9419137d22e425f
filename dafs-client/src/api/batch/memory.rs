//! Where the server reaches the memory of a batch.

use dafs_proto::transport::{Access, RegionError, RemoteRange};
use smallvec::SmallVec;

use crate::api::batch::part::Part;
use crate::driver::SharedSession;
use crate::engine::core::Core;
use crate::memory::registration::{Hold, RegistrationPolicy};
use crate::memory::{RawMemory, RegisteredBuf, tell_of_refusal, tell_once};
use crate::op::batch::Bounce;

/// Memory that is copied is kept for the next batch up to this many bytes: making and registering it anew costs more than a batch.
pub(crate) const BOUNCE_KEPT_MAX: usize = 4 << 20;

/// Ordinary memory of a batch that is copied at most, bytes, where it can be registered: what is more is worth the server's reaching for
/// it. Where it turns out that it cannot be, more than this is not worth a buffer of its size either.
const COPIED_SIZE_MAX: usize = 16 << 20;

/// The memory of a batch.
pub(crate) struct BatchMemory {
    /// Of each operation.
    pub(crate) ranges: Vec<SmallVec<[RemoteRange; 1]>>,
    pub(crate) holds: SmallVec<[Hold; 1]>,
    pub(crate) bounce: Option<Bounce>,
}

/// Registered for one batch: the ranges of all that is read into, and of all that is written.
struct Registered {
    ranges: [std::vec::IntoIter<RemoteRange>; 2],
    holds: SmallVec<[Hold; 1]>,
}

/// Where the server reaches the memory of each operation: registered already, registered for the batch, or copied. What the server has
/// mapped it reaches best, and copying is cheaper there than having it reach into this process. `None`: the system lets nothing of it be
/// registered, nor memory to copy it to.
pub(crate) fn memory_of(shared: &SharedSession, core: &mut Core, operations: &[Part]) -> Option<BatchMemory> {
    let ordinary = operations.iter().filter(|part| needs_memory(part));
    let size: usize = ordinary.flat_map(|part| &part.memory).map(RawMemory::len).sum();
    let registers = core.terms.registers_ordinary_memory;
    let copies = !registers || (core.terms.bounce_overlaps && size <= COPIED_SIZE_MAX);
    let mut registered = None;
    if size > 0 && !copies {
        registered = register(shared, operations).inspect_err(tell_of_refusal).ok();
    }
    let mut bounce = None;
    if size > 0 && registered.is_none() {
        if registers && size > COPIED_SIZE_MAX {
            return None;
        }
        let buffer = bounce_buffer(core, size).inspect_err(tell_once).ok()?;
        let range = buffer.range_in(&shared.domain)?;
        bounce = Some(Bounce { buffer, range, pieces: Vec::new() });
    }
    let mut memory =
        BatchMemory { ranges: Vec::with_capacity(operations.len()), holds: SmallVec::new(), bounce: None };
    let mut ranges = Default::default();
    if let Some(registered) = registered {
        (ranges, memory.holds) = (registered.ranges, registered.holds);
    }
    let mut at = 0;
    for part in operations {
        if !needs_memory(part) {
            memory.ranges.push(part.range.into_iter().collect());
            continue;
        }
        let Some(bounce) = &mut bounce else {
            let count = part.memory.iter().filter(|memory| memory.len() > 0).count();
            memory.ranges.push(ranges[usize::from(part.write)].by_ref().take(count).collect());
            continue;
        };
        let mut ranges = SmallVec::new();
        for piece in part.memory.iter().filter(|piece| piece.len() > 0) {
            ranges.push(bounce.range.slice(at as u64, piece.len() as u64)?);
            bounce.pieces.push((at, *piece));
            at += piece.len();
        }
        memory.ranges.push(ranges);
    }
    memory.bounce = bounce;
    Some(memory)
}

/// The server is to reach its memory, and cannot yet.
fn needs_memory(part: &Part) -> bool {
    part.range.is_none() && !part.inline
}

/// Registers what is not registered yet, for the time of the batch.
fn register(shared: &SharedSession, operations: &[Part]) -> Result<Registered, RegionError> {
    let mut registered = Registered { ranges: Default::default(), holds: SmallVec::new() };
    for write in [false, true] {
        let parts = operations.iter().filter(|part| needs_memory(part) && part.write == write);
        let raw: Vec<RawMemory> =
            parts.flat_map(|part| &part.memory).filter(|memory| memory.len() > 0).copied().collect();
        if raw.is_empty() {
            continue;
        }
        let access = if write { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let made = shared.registrar.register(&raw, access, RegistrationPolicy::Library)?;
        registered.holds.extend(made.holds);
        registered.ranges[usize::from(write)] = made.ranges.into_vec().into_iter();
    }
    Ok(registered)
}

/// Registered memory of at least `size` bytes: what an earlier batch left, or new.
fn bounce_buffer(core: &mut Core, size: usize) -> Result<RegisteredBuf, RegionError> {
    if let Some(buffer) = core.buffers.batch_bounce.take_if(|buffer| buffer.len() >= size) {
        return Ok(buffer);
    }
    let size = if size <= BOUNCE_KEPT_MAX { size.next_power_of_two() } else { size };
    RegisteredBuf::allocate(&core.buffers.domain, size)
}
