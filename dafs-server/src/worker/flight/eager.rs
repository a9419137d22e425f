//! The eager buffers of a connection, and operations that use them.
#![allow(clippy::cast_possible_truncation, reason = "lengths within an eager buffer")]

use dafs_proto::transport::{Head, MemoryRef, Region, RemoteRange};
use dafs_proto::wire::{EAGER_BUFFER_ROOM, EAGER_REQUEST_HEAD_SIZE, eager_frame_data};

/// The eager buffers of a connection.
#[derive(Debug, Default)]
pub(crate) struct EagerBuffers {
    pub(crate) eager_buffers: Vec<EagerBuffer>,
    pub(crate) size: u32,
}

#[derive(Debug)]
pub(crate) struct EagerBuffer {
    /// This side's buffer.
    pub(crate) memory: MemoryRef,
    /// As long as it lives, the client reaches the buffer.
    pub(crate) region: Region,
    /// The client's.
    pub(crate) remote: RemoteRange,
}

/// A frame that found the provider's queue full.
#[derive(Debug)]
pub(crate) struct EagerFrame {
    pub(crate) eager_buffer: u32,
    pub(crate) from: MemoryRef,
    pub(crate) to: RemoteRange,
}

impl EagerBuffers {
    /// Memory that they take, bytes.
    pub(crate) fn memory_size(&self) -> usize {
        self.eager_buffers.len() * (EAGER_BUFFER_ROOM + self.size as usize)
    }

    pub(crate) fn eager_buffer(&self, eager_buffer: u64) -> Option<&EagerBuffer> {
        self.eager_buffers.get(usize::try_from(eager_buffer).ok()?)
    }

    /// Where the data of a request is, or goes.
    pub(crate) fn data(&self, eager_buffer: u64, len: u32) -> Option<MemoryRef> {
        if len > self.size {
            return None;
        }
        self.eager_buffer(eager_buffer)?.memory.slice(EAGER_BUFFER_ROOM, len as usize)
    }

    /// The head of a frame that the client wrote, copied, and the length of the data behind it.
    pub(crate) fn frame(&self, eager_buffer: u32, written: u32) -> Option<(Head, u32)> {
        let eager_buffer = self.eager_buffer(eager_buffer.into())?;
        let data = eager_frame_data(written, EAGER_REQUEST_HEAD_SIZE, self.size)?;
        let mut head = [0; EAGER_REQUEST_HEAD_SIZE];
        eager_buffer.memory.span().read_into(EAGER_BUFFER_ROOM - EAGER_REQUEST_HEAD_SIZE, &mut head);
        Some((Head::copy_of(&head)?, data as u32))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dafs_proto::transport::tcp::TcpDomain;
    use dafs_proto::transport::{Access, Domain, HeapMemory};

    use super::*;

    // [SESS-103]
    #[test]
    fn frame_head_and_length_come_from_one_copy() {
        let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(EAGER_BUFFER_ROOM + 4096).unwrap()));
        let region = TcpDomain::new().register(memory.clone(), Access::REMOTE_WRITE).unwrap();
        let remote = region.range();
        let buffers = EagerBuffers {
            eager_buffers: vec![EagerBuffer { memory: memory.clone(), region, remote }],
            size: 4096,
        };
        let at = EAGER_BUFFER_ROOM - EAGER_REQUEST_HEAD_SIZE;
        memory.span().write_from(at, &[1; EAGER_REQUEST_HEAD_SIZE]);
        let written = u32::try_from(EAGER_REQUEST_HEAD_SIZE + 10).unwrap();
        let (head, len) = buffers.frame(0, written).unwrap();
        // The client is not done with the buffer.
        memory.span().write_from(at, &[2; EAGER_REQUEST_HEAD_SIZE]);
        assert_eq!((head.as_bytes(), len), (&[1; EAGER_REQUEST_HEAD_SIZE][..], 10));
    }
}
