//! The serving side of a calibration: each request as a server would serve it, without the session around it.

use std::time::Instant;

use anyhow::{Context, bail, ensure};
use dafs_proto::transport::{
    Access, Domain, Endpoint, Listener, MemoryRef, OpToken, Received, RegionKey, RemoteRange, Span,
    TransportError,
};
use dafs_proto::wire::{Method, WriteRequest, decode_segments};

use super::file::File;
use super::{Apart, List, SIZE_MAX, check_time, decode_request, wait};

/// Accepts one connection and serves it until the client closes it, or is `gone`.
pub(super) fn run(
    domain: &dyn Domain,
    mut listener: Box<dyn Listener>,
    deadline: Instant,
    apart: Option<Apart>,
    gone: impl Fn() -> bool,
) -> anyhow::Result<()> {
    let buffer = MemoryRef::new(domain.allocate(SIZE_MAX as usize)?);
    let file = File::new(SIZE_MAX as usize)?;
    let endpoint = loop {
        if let Some(endpoint) = listener.accept()? {
            break endpoint;
        }
        ensure!(!gone(), "the timing thread has ended");
        check_time(deadline)?;
        std::thread::yield_now();
    };
    // Nobody else is to connect.
    drop(listener);
    let mut server = Server { endpoint, file, buffer, deadline };
    let held = apart.and_then(|apart| apart.serve());
    let ended = server.serve_all();
    drop(held);
    match ended {
        Err(error) if matches!(error.downcast_ref(), Some(TransportError::Closed)) => Ok(()),
        ended => ended,
    }
}

/// From this size up a server sends from a mapping of the file, bytes; below, copying is cheaper than faulting pages in.
const MAP_SIZE_MIN: usize = 32 << 10;

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
    /// Until the connection ends, which is an error.
    fn serve_all(&mut self) -> anyhow::Result<()> {
        loop {
            match self.endpoint.recv()? {
                Some(Received::Message { head, payload_len }) => {
                    let (write, request) = decode_request(head.as_bytes())?;
                    self.serve(write, &request, payload_len)?;
                    self.endpoint.flush()?;
                    // What is left to do for this operation costs the next one, as in a server.
                    while self.endpoint.poll_completion().is_some() {}
                }
                Some(Received::Immediate { .. }) => bail!("an immediate of somebody else"),
                None => wait(&mut *self.endpoint, self.deadline)?,
            }
        }
    }

    fn serve(&mut self, write: bool, request: &WriteRequest, payload_len: u32) -> anyhow::Result<()> {
        let size = request.len as usize;
        match (request.method, write) {
            (Method::Inline, false) => {
                let slot = self.endpoint.reserve(size)?;
                let payload = self.endpoint.slot_payload(&slot).slice(0, size);
                self.file.read(&[payload.context("no room for a reply")?])?;
                return Ok(self.endpoint.send(slot, &[1], size)?);
            }
            (Method::Inline, true) => {
                ensure!(payload_len == request.len, "a payload of another size");
                self.file.write(&[self.endpoint.payload()])?;
            }
            _ => {
                let range = |&[key, offset, len]: &[u64; 3]| RemoteRange { key: RegionKey(key), offset, len };
                let ranges: List<RemoteRange> = match request.segment_count {
                    1 => [range(&request.segment)].into_iter().collect(),
                    count => {
                        decode_segments(&self.endpoint.payload().to_vec(), count)?.iter().map(range).collect()
                    }
                };
                self.direct(write, &ranges, size)?;
            }
        }
        Ok(self.endpoint.send_copy(&[1], &[])?)
    }

    fn direct(&mut self, write: bool, ranges: &[RemoteRange], size: usize) -> anyhow::Result<()> {
        if self.endpoint.capabilities().remote_mapped {
            let access = if write { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
            let mapped = ranges.iter().map(|range| self.endpoint.remote_memory(range, access));
            if let Some(memory) = mapped.collect::<Result<Option<List<MemoryRef>>, _>>()? {
                let spans: List<Span<'_>> = memory.iter().map(MemoryRef::span).collect();
                return if write { self.file.write(&spans) } else { self.file.read(&spans) };
            }
        }
        let from_file = !write && size >= MAP_SIZE_MIN;
        let local = if from_file { self.file.mapping() } else { &self.buffer };
        let local = local.slice(0, size).context("a transfer beyond the file")?;
        if !write {
            if !from_file {
                self.file.read(&[local.span()])?;
            }
            // The reply follows the writes in order, so nobody waits for their completion.
            return self.post_all(&local, ranges, false).map(drop);
        }
        let pending = self.post_all(&local, ranges, true)?;
        self.endpoint.flush()?;
        for _ in 0..pending {
            self.await_read()?;
        }
        self.file.write(&[local.span()])
    }

    /// Posts RDMA for all ranges, as the server does; how many completions follow.
    fn post_all(&mut self, local: &MemoryRef, ranges: &[RemoteRange], fetch: bool) -> anyhow::Result<u32> {
        let (mut rest, mut at, mut pending) = (ranges, 0, 0);
        while !rest.is_empty() {
            let memory =
                local.slice(at, local.len().saturating_sub(at)).context("more ranges than memory")?;
            let posted = match fetch {
                true => self.endpoint.rdma_read_list(READ, &memory, rest)?,
                false => self.endpoint.rdma_write_list(WRITE, &memory, rest)?,
            };
            let (taken, left) = rest.split_at(posted.ranges);
            at += usize::try_from(taken.iter().map(|range| range.len).sum::<u64>())?;
            (rest, pending) = (left, pending + posted.pending);
        }
        Ok(pending)
    }

    /// Waits until a read of the client's memory is complete. Writes of requests before, for which nobody waits, may complete meanwhile.
    fn await_read(&mut self) -> anyhow::Result<()> {
        loop {
            while let Some(completion) = self.endpoint.poll_completion() {
                completion.result?;
                if completion.token == READ {
                    return Ok(());
                }
            }
            // Moves the incoming data along; the client sends nothing meanwhile. With a completion here the wait ends at once.
            ensure!(self.endpoint.recv()?.is_none(), "a message of somebody else");
            wait(&mut *self.endpoint, self.deadline)?;
        }
    }
}
