//! A hostile server against the real client library: the bytes say what is wrong with each reply. When they are used
//! up, replies are honest.

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

use dafs_client::{
    Config, Datatype, Export, Extent, File, ListRead, LockKind, MethodOverride, OpenOptions, Session,
};
use dafs_proto::session::{ServerHandshake, ServerTerms};
use dafs_proto::transport::sim::{FaultPlan, NodeId, SimDomain, SimNet};
use dafs_proto::transport::{
    ConnectParams, Domain, Endpoint, LocalSegments, MemoryRef, OpToken, Received, RegionKey, RemoteRange,
    WaitPolicy,
};
use dafs_proto::wire::{
    Attributes, AuthenticateReply, BATCH_RESULT_SIZE, BatchNotice, BatchReply, BatchRequest, BatchResult,
    ClusterTerms, CommitReply, DirEntry, Features, FenceList, FileHandle, FileKind, FsStatistics,
    HEAD_SIZE_MAX, HEADER_SIZE, Header, LimitsReply, ListReadReply, ListRequest, LockTurn, Method,
    MountReply, Opcode, OutcomeReply, ReadReply, ReadRequest, ReaddirReply, ReaddirRequest, Recall,
    SeekReply, SessionId, ShareReply, SlotOutcome, Statistics, Status, TOKEN_SIZE, Thresholds, Timestamp,
    Verifier, ViewRequest, Welcome, WriteReply, WriteRequest, encode_dir_entry, encode_message_pack,
};
use dafs_server::access::Keyring;

use super::input::Input;
use super::stage::{Actor, PORT, Stage, client_config};
use crate::sim::serve::thresholds;

/// Virtual time that a conversation may take: each call has its own limit.
const TIME_MAX: Duration = Duration::from_secs(3600);
const FILE_SIZE: u64 = 20_000;
const FILL: u8 = 0xee;

/// Runs a fixed program against the server. No call may panic, wait for ever, or touch memory beside what it was given.
pub fn client_session(data: &[u8]) {
    let mut input = Input::new(data);
    let (rough, config) = (input.byte(), input.byte());
    let plan = FaultPlan {
        remote_mapped: rough & 1 != 0,
        done_ppm: u32::from(rough & 2) * 250_000,
        ..FaultPlan::calm()
    };
    let script = data.get(2..).unwrap_or_default().to_vec();
    let stage = Stage::new(u64::from(rough), plan, |net| HostileServer::new(net, script));
    let config = Config {
        operation_timeout: Some(Duration::from_secs(1)),
        method: [
            MethodOverride::Auto,
            MethodOverride::Inline,
            MethodOverride::Direct,
            MethodOverride::Bounced,
        ][usize::from(config % 4)],
        ..client_config(1)
    };
    let domain: Arc<dyn Domain> = Arc::new(stage.net.domain(NodeId(1)));
    if let Ok(session) = Session::connect_with(domain, PORT, &config, stage.clock()) {
        // Every error is an answer.
        let _ = session.ping();
        let _ = (session.limits(), session.statistics(), session.exports());
        let _ = session.publish(session.agreed().thresholds.crossovers);
        if let Ok(export) = session.mount("data") {
            use_names(&export);
            use_file(&session, &export);
        }
        session.close();
    }
    assert!(stage.net.now() < TIME_MAX, "the program took {:?} of virtual time", stage.net.now());
}

fn use_names(export: &Export) {
    let _ = export.metadata("a");
    let _ = export.create_dir_all("a/b/c", 0o755);
    let _ = export.read_link("link");
    let _ = (export.xattrs("a"), export.statfs(""));
    if let Ok(entries) = export.read_dir("", true) {
        for entry in entries.take(200).flatten() {
            assert!(entry.name.len() <= 255);
        }
    }
    let _ = export.remove_file("a");
    let _ = export.fence_list();
}

fn use_file(session: &Session, export: &Export) {
    let Ok(file) = export.open_with("file", OpenOptions::new().read(true).write(true)) else { return };
    for (size, offset) in [(100, 0), (4096, 3), (50_000, 0)] {
        let mut memory = vec![FILL; size + 200];
        if let Ok(count) = file.read_at(&mut memory[100..100 + size], offset) {
            assert!(count <= size, "more was read than asked for");
        }
        let beside = memory[..100].iter().chain(&memory[100 + size..]);
        assert!(beside.copied().all(|byte| byte == FILL), "memory beside the buffer was written");
        let data = vec![1; size];
        if let Ok(count) = file.write_at(&data, offset) {
            assert!(count <= size, "more was written than given");
        }
        let _ = file.append(&data[..size.min(5000)]);
    }
    if let Ok(mut buffer) = session.buffer(30_000) {
        if let Ok(count) = file.read_buf_at(&mut buffer, 5) {
            assert!(count <= 30_000);
        }
        let pending: Vec<_> = (0..6).map(|part| file.submit_read_at(vec![0; 6000], part * 6000)).collect();
        for pending in pending {
            if let Ok((count, buffer)) = pending.wait().into_result() {
                assert!(count <= buffer.len());
            }
        }
    }
    if let Ok(token) = file.share(true, true, Duration::from_secs(1)) {
        let _ = export.open_token(&token, "file", OpenOptions::new().read(true));
    }
    use_parts(session, &file);
    let _ = file.seek_hole(0);
    let _ = (file.commit(), file.metadata(), file.truncate(10));
}

/// Reads eight bytes of parts into memory that something lies around.
fn guarded(read: impl FnOnce(&mut [IoSliceMut<'_>]) -> dafs_client::Result<ListRead>) {
    let mut memory = [FILL; 40];
    let (first, second) = memory.split_at_mut(20);
    let mut slices = [IoSliceMut::new(&mut first[8..12]), IoSliceMut::new(&mut second[8..12])];
    if let Ok(found) = read(&mut slices) {
        assert!(found.count <= 8, "more was read than asked for");
    }
    let beside = [&memory[..8], &memory[12..28], &memory[32..]].concat();
    assert!(beside.iter().all(|byte| *byte == FILL), "memory beside the parts was written");
}

fn use_parts(session: &Session, file: &File) {
    let extents = [Extent::new(3, 5), Extent::new(100, 3)];
    guarded(|slices| file.read_list(&extents, slices));
    if let Ok(view) = session.view(&Datatype::bytes(4).resized(0, 10)) {
        guarded(|slices| file.read_view_vectored(&view.at(0, 0), slices));
    }
    guarded(|slices| {
        let mut batch = session.batch_io();
        for slice in slices {
            batch.read_at(file, slice, 1);
        }
        batch.run().map(drop)?;
        Ok(ListRead { count: 0, end: None })
    });
    let _ = file.try_lock(0..10, LockKind::Exclusive);
    let _ = file.submit_lock(5..20, LockKind::Exclusive).cancel();
    let _ = (file.test_lock(0..10, LockKind::Shared), file.unlock(0..20));
}

/// What is answered to a request of parts: body and payload.
fn parts_reply(opcode: Opcode, body: &[u8]) -> (Vec<u8>, Vec<u8>) {
    const HONEST: &str = "the client keeps the protocol";
    let (len, method) = match opcode {
        Opcode::ReadList => {
            let asked = ListRequest::decode(body).expect(HONEST);
            (asked.len, asked.method)
        }
        Opcode::ReadView => {
            let asked = ViewRequest::decode(body).expect(HONEST);
            (asked.len, asked.method)
        }
        _ => {
            let operations = BatchRequest::decode(body).expect(HONEST).operations;
            let mut failed = [0; BATCH_RESULT_SIZE];
            BatchResult::failed(Status::IO).encode(&mut failed);
            let results = failed.repeat(operations as usize);
            return (BatchReply { operations, data: 0 }.bytes().to_vec(), results);
        }
    };
    let payload = if method == Method::Inline { vec![2; len as usize] } else { Vec::new() };
    (ListReadReply { count: len, end: None }.bytes().to_vec(), payload)
}

struct HostileServer {
    domain: SimDomain,
    listener: Box<dyn dafs_proto::transport::Listener>,
    peers: Vec<Peer>,
    script: Vec<u8>,
    at: usize,
    handles: u64,
}

struct Peer {
    endpoint: Box<dyn Endpoint>,
    handshake: Option<ServerHandshake>,
    callbacks: u32,
    held: Option<Reply>,
}

#[derive(Clone)]
struct Reply {
    header: Header,
    body: Vec<u8>,
    payload: Vec<u8>,
}

impl HostileServer {
    fn new(net: &SimNet, script: Vec<u8>) -> Self {
        let domain = net.domain(NodeId(0));
        let params = ConnectParams { recv_depth: 64, wait: WaitPolicy::Event, ..ConnectParams::default() };
        let listener = domain.listen(&PORT, &params).expect("the port is free");
        Self { domain, listener, peers: Vec::new(), script, at: 0, handles: 0 }
    }

    /// The next choices of the script.
    fn choose<T>(&mut self, choose: impl FnOnce(&mut Input<'_>) -> T) -> T {
        let before = &self.script[self.at..];
        let mut input = Input::new(before);
        let chosen = choose(&mut input);
        self.at = self.script.len() - input.left();
        chosen
    }

    fn byte(&mut self) -> u8 {
        self.choose(|input| input.byte())
    }

    /// Handles what has arrived on a connection; `false` when it is over.
    fn serve(&mut self, peer: &mut Peer) -> bool {
        loop {
            match peer.endpoint.recv() {
                Ok(None) => break,
                Ok(Some(Received::Message { head, payload_len })) => {
                    let decoded = Header::decode(head.as_bytes(), payload_len);
                    let (header, body) = decoded.expect("the client keeps the protocol");
                    let payload = peer.endpoint.payload().to_vec();
                    if !self.answer(peer, &header, body, &payload) {
                        return false;
                    }
                }
                Ok(Some(Received::Immediate { .. })) => panic!("the client sends no immediates"),
                Err(_) => return false,
            }
        }
        while peer.endpoint.poll_completion().is_some() {}
        peer.endpoint.flush().is_ok()
    }

    fn answer(&mut self, peer: &mut Peer, request: &Header, body: &[u8], payload: &[u8]) -> bool {
        let Some(mut reply) = self.honest(peer, request, body, payload) else { return false };
        match self.byte() {
            0..=150 => put(peer, &reply),
            151..=160 => {
                reply.header.status = self.choose(|input| Status::from_value(input.number32() % 0x1010));
                put(peer, &reply);
            }
            161..=180 => self.garble(peer, reply),
            181..=185 => {
                put(peer, &reply);
                put(peer, &reply);
            }
            186..=195 => {
                let earlier = peer.held.replace(reply);
                if let Some(earlier) = earlier {
                    put(peer, &earlier);
                }
            }
            196..=200 => {}
            201..=205 => return false,
            206..=215 => {
                self.callback(peer);
                put(peer, &reply);
            }
            216..=230 => {
                self.rdma(peer, body);
                put(peer, &reply);
            }
            _ => {
                reply.payload = self.choose(|input| {
                    let mut payload = input.take(40).to_vec();
                    payload.resize(input.number32().min(16 * 1024) as usize, 1);
                    payload
                });
                put(peer, &reply);
            }
        }
        true
    }

    /// A reply with changed bytes.
    fn garble(&mut self, peer: &mut Peer, reply: Reply) {
        let mut head = encoded(&reply);
        let mut payload = reply.payload;
        for _ in 0..1 + self.byte() % 3 {
            let (place, value) = self.choose(|input| (input.below(HEAD_SIZE_MAX), input.byte()));
            if let Some(byte) = head.get_mut(place) {
                *byte = value;
            } else if let Some(byte) = payload.get_mut(place - head.len().min(place)) {
                *byte = value;
            }
        }
        let _ = peer.endpoint.send_copy(&head, &payload);
    }

    fn callback(&mut self, peer: &mut Peer) {
        let (opcode, credits, skip, mut body) = self.choose(|input| {
            let opcode =
                [Opcode::Notice, Opcode::CreditTarget, Opcode::LockTurn, Opcode::BatchDone, Opcode::Recall];
            let opcode = opcode[input.below(5)];
            let size = match opcode {
                Opcode::LockTurn => LockTurn::HEAD_SIZE,
                Opcode::Recall => Recall::HEAD_SIZE,
                Opcode::BatchDone => BatchNotice::HEAD_SIZE,
                _ => HEADER_SIZE,
            };
            let credits = input.number32();
            let skip = u32::from(input.byte() < 20);
            let mut body = input.take(size - HEADER_SIZE).to_vec();
            body.resize(size - HEADER_SIZE, 0);
            (opcode, credits, skip, body)
        });
        peer.callbacks += 1 + skip;
        let mut header = Header::callback(opcode, peer.callbacks);
        header.credits = u16::try_from(credits).unwrap_or(u16::MAX).max(1);
        if opcode == Opcode::Notice {
            body = vec![1 + (credits % 3) as u8, 0, 0, 0];
        }
        put(peer, &Reply { header, body, payload: b"because".to_vec() });
    }

    /// RDMA that the client did not ask for: near the segment it named, or anywhere.
    fn rdma(&mut self, peer: &mut Peer, body: &[u8]) {
        let (key, offset, len, kind) =
            self.choose(|input| (input.number(), input.number(), input.number() % 70_000, input.byte()));
        let named = ReadRequest::decode(body).ok().filter(|request| request.segment_count == 1);
        let remote = match named {
            Some(request) if kind & 4 != 0 => {
                let [key, start, _] = request.segment;
                RemoteRange { key: RegionKey(key), offset: start.wrapping_add(offset), len }
            }
            _ => RemoteRange { key: RegionKey(key), offset, len },
        };
        let Ok(memory) = self.domain.allocate(len.max(1) as usize) else { return };
        let Some(memory) = MemoryRef::new(memory).slice(0, len as usize) else { return };
        let local = LocalSegments::from_iter([memory]);
        // A bad range breaks the connection, which the next receive tells.
        let _ = match kind & 3 {
            0 => peer.endpoint.rdma_read(OpToken(1), local, remote),
            1 => peer.endpoint.rdma_write(OpToken(1), local, remote, Some(1)),
            _ => peer.endpoint.rdma_write(OpToken(1), local, remote, None),
        };
    }

    fn honest(&mut self, peer: &mut Peer, request: &Header, body: &[u8], payload: &[u8]) -> Option<Reply> {
        let mut reply = Reply { header: request.reply(Status::OK), body: Vec::new(), payload: Vec::new() };
        let mut encode = |size: usize, encode: &dyn Fn(&mut [u8])| {
            reply.body.resize(size - HEADER_SIZE, 0);
            encode(&mut reply.body);
        };
        match request.opcode {
            Opcode::Hello => {
                let terms = ServerTerms { key_required: false };
                let answer =
                    ServerHandshake::on_hello(payload, terms, &Keyring::default(), [4; 32], "hostile")
                        .ok()?;
                peer.handshake = Some(answer.0);
                reply.payload = answer.1;
            }
            Opcode::Authenticate => {
                let (_, _, proof) = peer.handshake.take()?.on_authenticate(payload).ok()?;
                reply.payload = encode_message_pack(&AuthenticateReply { proof, welcome: self.welcome() });
            }
            Opcode::Mount | Opcode::Open | Opcode::OpenToken | Opcode::Lookup => {
                self.handles += 1;
                reply.header.handle = FileHandle(1 << 32 | self.handles);
                let attributes = attributes(matches!(request.opcode, Opcode::Mount | Opcode::Lookup));
                reply.payload = match request.opcode {
                    Opcode::Mount => encode_message_pack(&MountReply { read_only: false, attributes }),
                    _ => encode_message_pack(&attributes),
                };
            }
            Opcode::Share => {
                encode(ShareReply::HEAD_SIZE, &|out| ShareReply { ttl_ms: 5 }.encode(out));
                reply.payload = vec![6; TOKEN_SIZE];
            }
            Opcode::Getattr
            | Opcode::Setattr
            | Opcode::Mkdir
            | Opcode::Mknod
            | Opcode::Link
            | Opcode::Symlink => {
                reply.payload = encode_message_pack(&attributes(false));
            }
            Opcode::Read => {
                let asked = ReadRequest::decode(body).expect("the client keeps the protocol");
                let left = FILE_SIZE.saturating_sub(asked.offset);
                let count = u32::try_from(left.min(asked.len.into())).expect("bounded by the length");
                let answer = ReadReply { count, end_of_file: count < asked.len };
                encode(ReadReply::HEAD_SIZE, &|out| answer.encode(out));
                match asked.method {
                    Method::Inline => reply.payload = vec![2; count as usize],
                    Method::Direct if asked.segment_count == 1 => self.place(peer, asked.segment, count),
                    // The fuzzed client asks for no eager buffers.
                    Method::Direct | Method::Eager | Method::ClientInitiated => {}
                }
            }
            Opcode::ReadList | Opcode::ReadView | Opcode::Batch => {
                (reply.body, reply.payload) = parts_reply(request.opcode, body);
            }
            Opcode::Write | Opcode::Append => {
                let asked = WriteRequest::decode(body).expect("the client keeps the protocol");
                let (offset, count, stability) = (asked.offset, asked.len, asked.stability);
                let answer = WriteReply { offset, count, stability, verifier: Verifier(5) };
                encode(WriteReply::HEAD_SIZE, &|out| answer.encode(out));
            }
            Opcode::Readdir => {
                let asked = ReaddirRequest::decode(body).expect("the client keeps the protocol");
                let mut entries = Vec::new();
                for cookie in asked.cookie.wrapping_add(1)..=3 {
                    let name = format!("entry {cookie}").into_bytes();
                    encode_dir_entry(
                        &DirEntry { cookie, name, attributes: Some(attributes(false)) },
                        &mut entries,
                    );
                }
                let count = u32::try_from(entries.len()).expect("three entries");
                let answer = ReaddirReply { count, end: true, cookie: 3 };
                encode(ReaddirReply::HEAD_SIZE, &|out| answer.encode(out));
                if asked.segment[2] == 0 {
                    reply.payload = entries;
                }
            }
            Opcode::Commit => {
                encode(CommitReply::HEAD_SIZE, &|out| CommitReply { verifier: Verifier(5) }.encode(out));
            }
            Opcode::Seek => encode(SeekReply::HEAD_SIZE, &|out| SeekReply { offset: 7 }.encode(out)),
            _ => reply.payload = rare(request.opcode),
        }
        Some(reply)
    }

    fn place(&self, peer: &mut Peer, [key, offset, _]: [u64; 3], count: u32) {
        let Ok(memory) = self.domain.allocate(count.max(1) as usize) else { return };
        let Some(memory) = MemoryRef::new(memory).slice(0, count as usize) else { return };
        let remote = RemoteRange { key: RegionKey(key), offset, len: count.into() };
        let _ = peer.endpoint.rdma_write(OpToken(0), LocalSegments::from_iter([memory]), remote, None);
    }

    fn welcome(&mut self) -> Welcome {
        let mut welcome = Welcome {
            session: SessionId(1),
            secret: [1; 16],
            resumed: false,
            server_epoch: 1,
            features: Features::all().bits(),
            slots: 8,
            credits: 8,
            keep_alive_ms: 10_000,
            lease_ms: 30_000,
            thresholds: thresholds(),
            transfer_size_max: 1 << 20,
            handles_max: 100,
            slot_reports: Vec::new(),
            gather: None,
            cluster: None,
        };
        if self.byte() > 200 {
            self.choose(|input| {
                let mut number = || input.number32();
                welcome.slots = number() as u16;
                welcome.credits = number() as u16;
                welcome.keep_alive_ms = number();
                welcome.lease_ms = number();
                welcome.transfer_size_max = number();
                welcome.resumed = number() % 2 == 1;
                welcome.thresholds.read_inline_max = number();
                welcome.thresholds.write_inline_max = number();
                welcome.thresholds.crossovers.read_registered = number();
                welcome.thresholds.crossovers.write_unregistered = number();
                let outcome = |number: u32| SlotOutcome {
                    slot: number % 8,
                    sequence: number >> 8 & 0xff,
                    reply: (number & 0x10 != 0).then(|| OutcomeReply {
                        status: number >> 16 & 0xf,
                        offset: number.into(),
                        payload: vec![0x90; number as usize >> 28],
                    }),
                };
                welcome.cluster = (number() & 1 == 1).then(|| ClusterTerms {
                    term_ms: number(),
                    servers: vec![format!("dafs+sim://{}", number() % 4), "dafs+shm:///run/it".to_owned()],
                    outcomes: (number() & 1 == 1)
                        .then(|| (0..number() % 8).map(|_| outcome(number())).collect()),
                });
            });
        }
        welcome
    }
}

impl Actor for HostileServer {
    fn step(&mut self, net: &SimNet) {
        let _ = net;
        while let Ok(Some(endpoint)) = self.listener.accept() {
            self.peers.push(Peer { endpoint, handshake: None, callbacks: 0, held: None });
        }
        let mut peers = std::mem::take(&mut self.peers);
        peers.retain_mut(|peer| {
            let goes_on = self.serve(peer);
            if !goes_on {
                peer.endpoint.close();
            }
            goes_on
        });
        self.peers = peers;
    }
}

fn encoded(reply: &Reply) -> Vec<u8> {
    let mut head = vec![0; HEADER_SIZE + reply.body.len()];
    let header =
        Header { head_len: head.len() as u16, payload_len: reply.payload.len() as u32, ..reply.header };
    header.encode(&mut head);
    head[HEADER_SIZE..].copy_from_slice(&reply.body);
    head
}

fn put(peer: &mut Peer, reply: &Reply) {
    // What finds no room is lost.
    let _ = peer.endpoint.send_copy(&encoded(reply), &reply.payload);
}

fn rare(opcode: Opcode) -> Vec<u8> {
    match opcode {
        Opcode::Limits => encode_message_pack(&LimitsReply {
            thresholds: Thresholds { ..thresholds() },
            transfer_size_max: 1 << 20,
            handles_max: 100,
            slots: 8,
            credits: 8,
            uid: 0,
            gid: 0,
        }),
        Opcode::Statistics => encode_message_pack(&Statistics::default()),
        Opcode::Exports => encode_message_pack(&vec!["data".to_owned()]),
        Opcode::Statfs => encode_message_pack(&FsStatistics {
            block_size: 4096,
            blocks: 9,
            blocks_free: 9,
            blocks_available: 9,
            files: 9,
            files_free: 9,
            name_size_max: 255,
        }),
        Opcode::FenceRead => encode_message_pack(&FenceList::of_clients(&[[1; 16]])),
        Opcode::Readlink => b"target".to_vec(),
        Opcode::XattrList => b"user.a\0user.b\0".to_vec(),
        _ => Vec::new(),
    }
}

fn attributes(directory: bool) -> Attributes {
    let time = Timestamp { seconds: 1, nanoseconds: 2 };
    Attributes {
        kind: if directory { FileKind::Directory } else { FileKind::File },
        mode: 0o644,
        links: 1,
        uid: 0,
        gid: 0,
        size: FILE_SIZE,
        allocated: FILE_SIZE,
        file_id: 3,
        fs_id: 4,
        atime: time,
        mtime: time,
        ctime: time,
        device: 0,
        generation: 9,
        change: 11,
    }
}
