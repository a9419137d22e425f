//! Ordinary memory for transfers.

use std::io;
use std::sync::Arc;

use super::super::{HeapMemory, Memory, MemoryRef, Provider, RegionError};

/// As [`Domain::allocate`](super::super::Domain::allocate), where ordinary memory is as good as any.
pub fn allocate_heap(len: usize) -> Result<Arc<dyn Memory>, RegionError> {
    match HeapMemory::allocate(len) {
        Some(memory) => Ok(Arc::new(memory)),
        None => Err(RegionError::System {
            what: "allocate memory for transfers",
            source: io::ErrorKind::OutOfMemory.into(),
        }),
    }
}

/// Peers of this provider cannot reach memory that may fault.
pub fn refuse_faulting(provider: Provider, memory: &MemoryRef) -> Result<(), RegionError> {
    match memory.memory().may_fault() {
        true => Err(RegionError::Unsupported { provider, what: "memory that may fault" }),
        false => Ok(()),
    }
}
