//! The serving side of a calibration: each request as a server would serve it, without the session around it.

use std::time::Instant;

use smallvec::SmallVec;

use super::file::File;
use super::{CalibrateError, GATHER_SEGMENTS, Kind, Request, SIZE_MAX, decode_ranges, wait};
use crate::transport::{
    Access, Domain, Endpoint, Listener, MemoryRef, OpToken, Posted, Received, RegionError, RegionKey,
    RemoteRange, Span, TransportError,
};

/// Accepts one connection and serves it until the client closes it, or is `gone`.
pub(super) fn run(
    domain: &dyn Domain,
    mut listener: Box<dyn Listener>,
    deadline: Instant,
    gone: impl Fn() -> bool,
) -> Result<(), CalibrateError> {
    let buffer = MemoryRef::new(domain.allocate(SIZE_MAX as usize)?);
    let file = File::new(SIZE_MAX as usize)?;
    let endpoint = loop {
        if let Some(endpoint) = listener.accept()? {
            break endpoint;
        }
        if gone() {
            return Err(CalibrateError::Unexpected("end of the client"));
        }
        if Instant::now() >= deadline {
            return Err(CalibrateError::Timeout);
        }
        std::thread::yield_now();
    };
    // Nobody else is to connect.
    drop(listener);
    let mut server = Server { endpoint, file, buffer, deadline };
    loop {
        match server.endpoint.recv() {
            Ok(Some(Received::Message { head, payload_len })) => {
                let request = Request::decode(head.as_bytes())
                    .ok_or(CalibrateError::Unexpected("request of somebody else"))?;
                server.serve(&request, payload_len)?;
                // What is left to do for this operation costs the next one, as in a server.
                while server.endpoint.poll_completion().is_some() {}
            }
            Ok(Some(Received::Immediate { .. })) => return Err(CalibrateError::Unexpected("immediate")),
            Ok(None) => match wait(&mut *server.endpoint, deadline) {
                Err(CalibrateError::Transport(TransportError::Closed)) => return Ok(()),
                waited => waited?,
            },
            Err(TransportError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// From this size up a server sends from a mapping of the file, bytes; below, copying is cheaper than faulting pages in.
const MAP_SIZE_MIN: u64 = 32 << 10;

/// RDMA into the client's memory, and out of it.
const WRITE: OpToken = OpToken(0);
const READ: OpToken = OpToken(1);

struct Server {
    endpoint: Box<dyn Endpoint>,
    file: File,
    /// Of the server's domain, as its buffers are.
    buffer: MemoryRef,
    deadline: Instant,
}

impl Server {
    fn serve(&mut self, request: &Request, payload_len: u32) -> Result<(), CalibrateError> {
        let size = request.size as usize;
        match (request.kind, request.range) {
            (Kind::ReadInline, _) => {
                let slot = self.endpoint.reserve(size)?;
                let payload = self.endpoint.slot_payload(&slot).slice(0, size);
                self.file.read(payload.ok_or(CalibrateError::Unexpected("slot size"))?)?;
                self.endpoint.send(slot, &[1], size)?;
            }
            (Kind::WriteInline, _) => {
                if payload_len != request.size {
                    return Err(CalibrateError::Unexpected("payload size"));
                }
                self.file.write(self.endpoint.payload())?;
                self.answer()?;
            }
            (Kind::ReadDirect, Some(range)) => {
                match self.mapped(&range, Access::REMOTE_WRITE)? {
                    Some(memory) => self.file.read(memory.span())?,
                    None => self.write_remote(range)?,
                }
                self.answer()?;
            }
            (Kind::WriteDirect, Some(range)) => {
                match self.mapped(&range, Access::REMOTE_READ)? {
                    Some(memory) => self.file.write(memory.span())?,
                    None => self.read_then_write(range)?,
                }
                self.answer()?;
            }
            (Kind::ReadGather, _) => {
                let ranges = self.ranges(request.size)?;
                match self.mapped_all(&ranges, Access::REMOTE_WRITE)? {
                    Some(memory) => {
                        let spans: SmallVec<[Span<'_>; GATHER_SEGMENTS]> =
                            memory.iter().map(MemoryRef::span).collect();
                        self.file.read_all(&spans)?;
                    }
                    None => self.scatter_remote(&ranges, request.size)?,
                }
                self.answer()?;
            }
            (Kind::WriteGather, _) => {
                let ranges = self.ranges(request.size)?;
                match self.mapped_all(&ranges, Access::REMOTE_READ)? {
                    Some(memory) => {
                        let spans: SmallVec<[Span<'_>; GATHER_SEGMENTS]> =
                            memory.iter().map(MemoryRef::span).collect();
                        self.file.write_all(&spans)?;
                    }
                    None => self.gather_then_write(&ranges, request.size)?,
                }
                self.answer()?;
            }
            (Kind::ReadDirect | Kind::WriteDirect, None) => {
                return Err(CalibrateError::Unexpected("missing range"));
            }
        }
        Ok(self.endpoint.flush()?)
    }

    fn ranges(&self, size: u32) -> Result<Vec<RemoteRange>, CalibrateError> {
        let payload = self.endpoint.payload().to_vec();
        decode_ranges(&payload, size).ok_or(CalibrateError::Unexpected("ranges"))
    }

    fn mapped_all(
        &mut self,
        ranges: &[RemoteRange],
        access: Access,
    ) -> Result<Option<Vec<MemoryRef>>, RegionError> {
        ranges.iter().map(|range| self.mapped(range, access)).collect()
    }

    /// The file into many ranges, one write for each.
    fn scatter_remote(&mut self, ranges: &[RemoteRange], size: u32) -> Result<(), CalibrateError> {
        let whole = RemoteRange { key: RegionKey(0), offset: 0, len: u64::from(size) };
        let local = if whole.len < MAP_SIZE_MIN {
            let buffer = part(&self.buffer, whole)?;
            self.file.read(buffer.span())?;
            buffer
        } else {
            part(self.file.mapping(), whole)?
        };
        self.post_all(&local, ranges, true)?;
        Ok(())
    }

    /// Posts RDMA for all ranges, as the server does; how many completions follow.
    fn post_all(
        &mut self,
        local: &MemoryRef,
        ranges: &[RemoteRange],
        write: bool,
    ) -> Result<u32, CalibrateError> {
        let (mut rest, mut at, mut pending) = (ranges, 0, 0);
        while !rest.is_empty() {
            let memory = local.slice(at, local.len().saturating_sub(at));
            let memory = memory.ok_or(CalibrateError::Unexpected("size"))?;
            let posted = match write {
                true => self.endpoint.rdma_write_list(WRITE, &memory, rest)?,
                false => self.endpoint.rdma_read_list(READ, &memory, rest)?,
            };
            let (taken, left) = rest.split_at(posted.ranges);
            at += usize::try_from(taken.iter().map(|range| range.len).sum::<u64>()).unwrap_or(usize::MAX);
            (rest, pending) = (left, pending + posted.pending);
        }
        Ok(pending)
    }

    /// Many ranges into the file, one read for each.
    fn gather_then_write(&mut self, ranges: &[RemoteRange], size: u32) -> Result<(), CalibrateError> {
        let local = part(&self.buffer, RemoteRange { key: RegionKey(0), offset: 0, len: u64::from(size) })?;
        let mut pending = self.post_all(&local, ranges, false)?;
        self.endpoint.flush()?;
        while pending > 0 {
            self.await_read()?;
            pending -= 1;
        }
        self.file.write(local.span())
    }

    /// Waits until a read of the client's memory is complete. Writes of requests before, for which nobody waits, may complete meanwhile.
    fn await_read(&mut self) -> Result<(), CalibrateError> {
        loop {
            if self.took_read()? {
                return Ok(());
            }
            // Moves the incoming data along; the client sends nothing meanwhile.
            if self.endpoint.recv()?.is_some() {
                return Err(CalibrateError::Unexpected("message"));
            }
            if self.took_read()? {
                return Ok(());
            }
            wait(&mut *self.endpoint, self.deadline)?;
        }
    }

    /// Takes completions, up to that of a read.
    fn took_read(&mut self) -> Result<bool, CalibrateError> {
        while let Some(completion) = self.endpoint.poll_completion() {
            completion.result?;
            if completion.token == READ {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn answer(&mut self) -> Result<(), CalibrateError> {
        Ok(self.endpoint.send_copy(&[1], &[])?)
    }

    fn mapped(&mut self, range: &RemoteRange, access: Access) -> Result<Option<MemoryRef>, RegionError> {
        match self.endpoint.capabilities().remote_mapped {
            true => self.endpoint.remote_memory(range, access),
            false => Ok(None),
        }
    }

    /// The reply follows the write in order, so nobody waits for its completion.
    fn write_remote(&mut self, range: RemoteRange) -> Result<(), CalibrateError> {
        let local = if range.len < MAP_SIZE_MIN {
            let buffer = part(&self.buffer, range)?;
            self.file.read(buffer.span())?;
            buffer
        } else {
            part(self.file.mapping(), range)?
        };
        self.endpoint.rdma_write(WRITE, [local].into_iter().collect(), range, None)?;
        Ok(())
    }

    fn read_then_write(&mut self, range: RemoteRange) -> Result<(), CalibrateError> {
        let local = part(&self.buffer, range)?;
        let posted = self.endpoint.rdma_read(READ, [local.clone()].into_iter().collect(), range)?;
        if posted == Posted::Pending {
            self.endpoint.flush()?;
            self.await_read()?;
        }
        self.file.write(local.span())
    }
}

fn part(memory: &MemoryRef, range: RemoteRange) -> Result<MemoryRef, CalibrateError> {
    let len = usize::try_from(range.len).ok();
    len.and_then(|len| memory.slice(0, len)).ok_or(CalibrateError::Unexpected("size"))
}
