//! What a post must keep to, whatever carries it.

use super::super::{Capabilities, HEAD_SIZE_MAX, MemoryRef, PostError, RemoteRange};

/// Whether a message may have this head and so much payload, in room for `capacity` bytes of it.
#[inline]
pub fn check_message(head: &[u8], payload_len: usize, capacity: u32) -> Result<(), PostError> {
    if !(1..=HEAD_SIZE_MAX).contains(&head.len()) {
        return Err(PostError::Invalid("the head is empty or too long"));
    }
    if payload_len > capacity as usize {
        return Err(PostError::Invalid("the payload is longer than its slot"));
    }
    Ok(())
}

/// Whether memory can be the destination of an RDMA read.
#[inline]
pub fn check_destination(local: &[MemoryRef]) -> Result<(), PostError> {
    match local.iter().any(|segment| segment.memory().may_fault()) {
        true => Err(PostError::Invalid("a read cannot go to memory that may fault")),
        false => Ok(()),
    }
}

/// Whether an RDMA operation is within the capabilities; its bytes.
#[inline]
pub fn check_rdma(
    capabilities: &Capabilities,
    local: &[MemoryRef],
    remote: &RemoteRange,
) -> Result<usize, PostError> {
    if local.len() > usize::from(capabilities.segments_max) {
        return Err(PostError::Invalid("more segments than segments_max"));
    }
    let len: usize = local.iter().map(MemoryRef::len).sum();
    if len as u64 != remote.len {
        return Err(PostError::Invalid("the segments do not add up to the remote range"));
    }
    if remote.len > u64::from(capabilities.rdma_size_max) {
        return Err(PostError::Invalid("the operation exceeds rdma_size_max"));
    }
    Ok(len)
}
