//! The operations of the small server that move data, inline and by RDMA.

use std::sync::Arc;

use dafs_proto::transport::sim::SimNet;
use dafs_proto::transport::{
    Endpoint, HeapMemory, MemoryRef, OpToken, PostError, Posted, RegionKey, RemoteRange,
};
use dafs_proto::wire::*;

use super::{INLINE_MAX, Server, TRANSFER_MAX, attributes};

impl Server {
    pub(super) fn read(
        &mut self,
        number: usize,
        path: &[u8],
        body: &[u8],
        payload: &[u8],
    ) -> Result<(u64, Vec<u8>, Vec<u8>), Status> {
        let request = ReadRequest::decode(body).unwrap();
        let data = &self.nodes.get(path).ok_or(Status::STALE)?.data;
        let start = (request.offset as usize).min(data.len());
        let end = (start + request.len as usize).min(data.len());
        let bytes = data[start..end].to_vec();
        let mut reply = vec![0; 8];
        ReadReply { count: bytes.len() as u32, end_of_file: end == data.len() }.encode(&mut reply);
        if request.method == Method::Inline {
            assert!(request.len <= INLINE_MAX);
            return Ok((0, reply, bytes));
        }
        assert!(request.len <= TRANSFER_MAX);
        self.rdma_write(number, &bytes, &segments(request.segment, request.segment_count, payload))?;
        Ok((0, reply, vec![]))
    }

    pub(super) fn write(
        &mut self,
        number: usize,
        opcode: Opcode,
        path: &[u8],
        body: &[u8],
        payload: &[u8],
    ) -> Result<(u64, Vec<u8>, Vec<u8>), Status> {
        let request = WriteRequest::decode(body).unwrap();
        let bytes = match request.method {
            Method::Inline => payload.to_vec(),
            Method::Direct => {
                self.rdma_read(number, &segments(request.segment, request.segment_count, payload))?
            }
            // It lends nothing.
            Method::Fast | Method::Client => return Err(Status::REMOTE_ACCESS),
        };
        assert_eq!(bytes.len(), request.len as usize);
        let verifier = Verifier(self.verifier);
        let node = self.nodes.get_mut(path).ok_or(Status::STALE)?;
        let start = match opcode {
            Opcode::Append => node.data.len(),
            _ => request.offset as usize,
        };
        let end = start + bytes.len();
        if node.data.len() < end {
            node.data.resize(end, 0);
        }
        node.data[start..end].copy_from_slice(&bytes);
        if request.stability != Stability::Unstable {
            self.durable = self.nodes.clone();
        }
        let mut reply = vec![0; 24];
        WriteReply { offset: start as u64, count: request.len, stability: request.stability, verifier }
            .encode(&mut reply);
        Ok((0, reply, vec![]))
    }

    pub(super) fn readdir(
        &mut self,
        number: usize,
        path: &[u8],
        body: &[u8],
    ) -> Result<(u64, Vec<u8>, Vec<u8>), Status> {
        let request = ReaddirRequest::decode(body).unwrap();
        let prefix = if path.is_empty() { vec![] } else { [path, b"/"].concat() };
        let entries = self.nodes.iter().filter(|(name, _)| {
            name.len() > prefix.len() && name.starts_with(&prefix) && !name[prefix.len()..].contains(&b'/')
        });
        let (mut bytes, mut last, mut end) = (vec![], request.cookie, true);
        let mut entries: Vec<_> = entries.filter(|(_, node)| node.id > request.cookie).collect();
        entries.sort_by_key(|(_, node)| node.id);
        for (name, node) in entries {
            let mut entry = vec![];
            encode_dir_entry(
                &DirEntry {
                    cookie: node.id,
                    name: name[prefix.len()..].to_vec(),
                    attributes: request.attributes.then(|| attributes(node)),
                },
                &mut entry,
            );
            if bytes.len() + entry.len() > request.len as usize {
                end = false;
                break;
            }
            bytes.extend(entry);
            last = node.id;
        }
        let mut reply = vec![0; 16];
        ReaddirReply { count: bytes.len() as u32, end, cookie: last }.encode(&mut reply);
        if request.segment[2] == 0 {
            return Ok((0, reply, bytes));
        }
        self.rdma_write(number, &bytes, &[range(request.segment)])?;
        Ok((0, reply, vec![]))
    }

    fn rdma_write(&mut self, number: usize, bytes: &[u8], ranges: &[RemoteRange]) -> Result<(), Status> {
        let mut rest = bytes;
        for range in ranges {
            let len = rest.len().min(range.len as usize);
            if len == 0 {
                break;
            }
            let memory = memory(len);
            memory.span().write_from(0, &rest[..len]);
            rest = &rest[len..];
            let place = self.place(number).unwrap();
            let endpoint = &mut self.connections[place].endpoint;
            let remote = range.slice(0, len as u64).unwrap();
            let posted = retry(|| {
                endpoint.rdma_write(OpToken(1), [memory.clone()].into_iter().collect(), remote, None)
            })?;
            let net = self.net.clone();
            finish(&net, &mut **endpoint, posted)?;
        }
        Ok(())
    }

    fn rdma_read(&mut self, number: usize, ranges: &[RemoteRange]) -> Result<Vec<u8>, Status> {
        let mut bytes = vec![];
        for range in ranges.iter().filter(|range| range.len > 0) {
            let memory = memory(range.len as usize);
            let place = self.place(number).unwrap();
            let endpoint = &mut self.connections[place].endpoint;
            let posted =
                retry(|| endpoint.rdma_read(OpToken(2), [memory.clone()].into_iter().collect(), *range))?;
            let net = self.net.clone();
            finish(&net, &mut **endpoint, posted)?;
            bytes.extend(memory.span().to_vec());
        }
        Ok(bytes)
    }
}

fn retry(mut post: impl FnMut() -> Result<Posted, PostError>) -> Result<Posted, Status> {
    for _ in 0..1000 {
        match post() {
            Ok(posted) => return Ok(posted),
            Err(PostError::Full) => {}
            Err(_) => return Err(Status::REMOTE_ACCESS),
        }
    }
    Err(Status::AGAIN)
}

/// Lets time pass until the operation has completed.
fn finish(net: &SimNet, endpoint: &mut dyn Endpoint, posted: Posted) -> Result<(), Status> {
    let _ = endpoint.flush();
    if posted == Posted::Done {
        return Ok(());
    }
    loop {
        if let Some(completion) = endpoint.poll_completion() {
            return completion.result.map_err(|_| Status::REMOTE_ACCESS);
        }
        if !net.step() {
            return Err(Status::IO);
        }
    }
}

fn memory(len: usize) -> MemoryRef {
    MemoryRef::new(Arc::new(HeapMemory::allocate(len).unwrap())).slice(0, len).unwrap()
}

fn range(segment: WireRange) -> RemoteRange {
    RemoteRange { key: RegionKey(segment[0]), offset: segment[1], len: segment[2] }
}

fn segments(segment: WireRange, count: u16, payload: &[u8]) -> Vec<RemoteRange> {
    match count {
        1 => vec![range(segment)],
        count => decode_segments(payload, count).unwrap().into_iter().map(range).collect(),
    }
}
