//! The memory of a connection's client, and what its messages bring: as far as this process reaches it.
#![allow(clippy::cast_possible_truncation, reason = "lengths within an eager buffer")]

use dafs_proto::transport::{Access, MemoryRef, RegionError, RemoteRange, Span};
use dafs_proto::wire::{Status, WireError};

use super::Connections;
use super::connection::Connection;
use crate::worker::flight::Call;
use crate::worker::flight::after::Reading;
use crate::worker::flight::answer::{Payload, Problem};

impl Connections {
    /// A private copy of the request's payload; bounded by what the connection may receive.
    pub(crate) fn copied_payload(&self, call: &Call, payload: Payload<'_>) -> Vec<u8> {
        self.payload_of(call, payload).to_vec()
    }

    /// The request has no payload.
    pub(crate) fn no_payload(&self, call: &Call, payload: Payload<'_>) -> Result<(), WireError> {
        match self.payload_of(call, payload).len() {
            0 => Ok(()),
            extra => Err(WireError::TrailingBytes { what: "request without a payload", extra }),
        }
    }

    /// The client's memory as memory of this process, where the provider can.
    #[inline]
    pub(crate) fn remote_memory(
        &mut self,
        call: &Call,
        range: &RemoteRange,
        access: Access,
    ) -> Result<Option<MemoryRef>, Problem> {
        let Some(connection) = self.find_mut(call.connection) else { return Ok(None) };
        if !connection.endpoint.capabilities().remote_mapped {
            return Ok(None);
        }
        connection.endpoint.remote_memory(range, access).or_else(unreachable_memory)
    }

    pub(crate) fn eager_buffer_data(
        &mut self,
        call: &Call,
        eager_buffer: u64,
        len: u32,
    ) -> Result<MemoryRef, Problem> {
        let connection = self.find_mut(call.connection).ok_or(Status::NO_SESSION)?;
        Ok(connection.eager_buffers.data(eager_buffer, len).ok_or(Status::REMOTE_ACCESS)?)
    }

    /// The client has got others on the connection since: it looks for the data of a read where that is not.
    pub(crate) fn is_eager_buffer_replaced(&self, read: &Reading) -> bool {
        let (of, eager_buffer) = read.eager_buffer;
        self.find(of).is_some_and(|connection| {
            let now = connection.eager_buffers.data(eager_buffer.into(), read.memory.len() as u32);
            now.is_none_or(|now| now.span().as_ptr() != read.memory.span().as_ptr())
        })
    }
}

/// Calls `use_now` with the client's memory where the provider maps it; `None` where it does not.
#[inline]
pub(crate) fn with_remote_memory<T>(
    connection: Option<&mut Connection>,
    range: &RemoteRange,
    access: Access,
    mut use_now: impl FnMut(Span<'_>) -> T,
) -> Result<Option<T>, Problem> {
    let Some(connection) = connection else { return Ok(None) };
    if !connection.endpoint.capabilities().remote_mapped {
        return Ok(None);
    }
    let mut result = None;
    let used =
        connection.endpoint.with_remote_memory(range, access, &mut |span| result = Some(use_now(span)));
    used.or_else(|error| unreachable_memory::<()>(error).map(|_| false))?;
    Ok(result)
}

/// Memory of a client whose connection is over is reached by RDMA no more than so, and nothing is answered: an answer would be
/// kept, and the client's next connection be told that its good memory is bad.
#[cold]
fn unreachable_memory<T>(error: RegionError) -> Result<Option<T>, Problem> {
    match error {
        RegionError::System { ref source, .. } if source.kind() == std::io::ErrorKind::NotConnected => {
            Ok(None)
        }
        error => {
            // Its client is told, and could fill the log.
            tracing::debug!(%error, "remote memory refused");
            Err(Problem::Status(Status::REMOTE_ACCESS))
        }
    }
}
