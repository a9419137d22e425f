//! What the requests of a hostile client say: nearly always something that a server has to look at twice.

use dafs_proto::extent::Extent;
use dafs_proto::wire::{
    AllocateRequest, BatchFlags, BatchOperation, BatchRequest, CHAIN_HANDLE, CommitRequest, CopyRequest,
    Crossovers, Existing, FenceChange, FenceList, HEADER_SIZE, HintRequest, ListFlags, ListRequest, Lists,
    LockFlags, LockKind, LockRequest, Method, MknodRequest, NameRequest, NodeKind, Opcode, OpenFlags,
    OpenRequest, ReadRequest, ReaddirRequest, RemoveRequest, RenameRequest, SeekRequest, SeekWhat,
    SetAttributes, ShareRequest, Sieve, Stability, TOKEN_SIZE, TwoNames, UnlockRequest, VerifyFlags,
    VerifyMask, VerifyRequest, ViewDropRequest, ViewRequest, ViewSetRequest, WriteRequest, XattrNames,
    encode_datatype, encode_lists, encode_message_pack, encode_segments, lists_size,
};

use super::super::input::Input;
use super::super::storage::FAULTY;
use super::Peer;
use crate::suite::Numbers;

impl Peer {
    pub(super) fn segment(&self, input: &mut Input<'_>, len: u64) -> [u64; 3] {
        let region = self.regions.get(input.below(self.regions.len().max(1)));
        match (input.byte(), region) {
            (0..=15, _) | (_, None) => [input.number(), input.number(), len],
            (16..=31, Some(region)) => [region.range().key.0, input.number(), len],
            (_, Some(region)) => [region.range().key.0, region.range().offset, len],
        }
    }

    /// A batch that is nearly always good, into `body`; its payload.
    fn batch(&self, input: &mut Input<'_>, stability: Stability, body: &mut [u8]) -> Vec<u8> {
        let count = input.below(6);
        let (mut payload, mut written) = (Vec::new(), 0);
        for _ in 0..count {
            let handle = self.handles.get(input.below(self.handles.len().max(1))).copied();
            let len = u64::from(input.number32() % 5000);
            let kind = input.byte();
            let write = kind.is_multiple_of(2);
            let method = if kind < 128 { Method::Direct } else { Method::Inline };
            let segments = match method {
                Method::Inline => Vec::new(),
                _ => vec![self.segment(input, len)],
            };
            let lists = Lists { extents: vec![Extent::new(input.number() % (1 << 20), len)], segments };
            let stability = if write { stability } else { Stability::Unstable };
            let handle = handle.filter(|_| input.byte() >= 16).unwrap_or(CHAIN_HANDLE);
            written += if write && method == Method::Inline { len as usize } else { 0 };
            BatchOperation { handle, write, method, stability, lists: lists.into() }.encode(&mut payload);
        }
        let flags = BatchFlags::from_bits_truncate(u32::from(input.byte()));
        let notify = u32::from(flags.contains(BatchFlags::NOTIFY));
        let mut lie = || if input.byte() < 16 { input.number32() } else { 0 };
        let (operations, data) = (count as u32 ^ lie(), written as u32 ^ lie());
        payload.resize(payload.len() + written, 0x5a);
        let request = BatchRequest {
            operations,
            flags,
            window_us: notify * input.number32(),
            completions: notify * input.number32(),
            data,
        };
        request.encode(body);
        if input.byte() < 8 {
            payload.truncate(input.below(payload.len() + 1));
        }
        payload.truncate(16 * 1024);
        payload
    }

    /// A list request that is nearly always good, into `body`; its payload.
    fn list(&self, input: &mut Input<'_>, writes: bool, stability: Stability, body: &mut [u8]) -> Vec<u8> {
        let count = input.below(9);
        let extents: Vec<Extent> = (0..count)
            .map(|_| Extent::new(input.number() % (1 << 20), u64::from(input.number32() % 5000)))
            .collect();
        let len = extents.iter().map(|extent| extent.len).sum::<u64>() as u32;
        let inline = input.byte().is_multiple_of(2);
        let mut segments = Vec::new();
        if !inline {
            let first = u64::from(len).min(input.number() % 10_000);
            segments = vec![self.segment(input, first), self.segment(input, u64::from(len) - first)];
        }
        let lie = if input.byte() < 16 { input.number32() } else { 0 };
        let request = ListRequest {
            len: len ^ if lie % 3 == 1 { lie } else { 0 },
            method: if inline { Method::Inline } else { Method::Direct },
            stability,
            sieve: Sieve::ALL[usize::from(lie as u8 % 3)],
            flags: ListFlags::from_bits_truncate((lie >> 8) as u8),
            extent_count: extents.len() as u32 ^ if lie % 3 == 2 { lie } else { 0 },
            segment_count: segments.len() as u32,
        };
        request.encode(body);
        let mut payload = vec![0; lists_size(extents.len(), segments.len())];
        encode_lists(extents.iter().copied(), &segments, &mut payload);
        if inline && writes {
            payload.resize(payload.len() + len as usize, 5);
        }
        payload.truncate(16 * 1024);
        payload
    }

    /// A description of a view, or a part of one, that is nearly always good, into `body`; its payload.
    fn description(input: &mut Input<'_>, body: &mut [u8]) -> Vec<u8> {
        let depth = u64::from(input.byte() % 4);
        let mut description = encode_datatype(&Numbers::new(input.number()).datatype(depth));
        if input.byte() < 32 {
            let place = input.below(description.len());
            description[place] = input.byte();
        }
        let lie = if input.byte() < 16 { input.number32() } else { 0 };
        let half = description.len() / 2;
        let (offset, part) = match input.byte() {
            0..192 => (0, &description[..]),
            192..224 => (0, &description[..half]),
            _ => (half, &description[half..]),
        };
        let description_len = description.len() as u32 ^ lie;
        ViewSetRequest { view: view(input), description_len, offset: offset as u32 }.encode(body);
        let mut part = part.to_vec();
        part.truncate(16 * 1024);
        part
    }

    /// A request of a view that is nearly always good, into `body`; its payload.
    fn shown(&self, input: &mut Input<'_>, writes: bool, stability: Stability, body: &mut [u8]) -> Vec<u8> {
        let len = input.number32() % if input.byte() < 8 { u32::MAX } else { 20_000 };
        let inline = input.byte().is_multiple_of(2);
        let mut segments = Vec::new();
        if !inline {
            let first = u64::from(len).min(input.number() % 10_000);
            segments = vec![self.segment(input, first), self.segment(input, u64::from(len) - first)];
        }
        let lie = if input.byte() < 16 { input.number32() } else { 0 };
        let bound = if input.byte() < 8 { u64::MAX } else { 1 << 20 };
        let request = ViewRequest {
            displacement: input.number() % bound,
            place: input.number() % bound,
            group: u64::from(input.byte() % 3),
            group_size: u32::from(input.byte() % 4),
            view: view(input),
            len: len ^ if lie % 3 == 1 { lie } else { 0 },
            method: if inline { Method::Inline } else { Method::Direct },
            stability: if writes || lie != 0 { stability } else { Stability::Unstable },
            sieve: Sieve::ALL[input.below(3)],
            flags: ListFlags::from_bits_truncate((lie >> 8) as u8),
            segment_count: segments.len() as u32 ^ if lie % 3 == 2 { lie } else { 0 },
        };
        request.encode(body);
        let mut payload = vec![0; lists_size(0, segments.len())];
        encode_segments(&segments, &mut payload);
        if inline && writes {
            payload.resize((len as usize).min(16 * 1024), 6);
        }
        payload
    }

    /// Length, method, segments and payload of a read or write.
    fn transfer(&self, input: &mut Input<'_>, writes: bool) -> (u32, Method, u16, [u64; 3], Vec<u8>) {
        let len = input.number32().min(if input.byte() < 8 { u32::MAX } else { 1 << 20 });
        match input.byte() % 4 {
            0 => {
                let inline = len.min(16 * 1024);
                (
                    inline,
                    Method::Inline,
                    0,
                    [0; 3],
                    if writes { vec![5; inline as usize] } else { Vec::new() },
                )
            }
            1 => {
                let count = 2 + input.below(6) as u64;
                let each = u64::from(len) / count;
                let mut segments: Vec<[u64; 3]> = (0..count).map(|_| self.segment(input, each)).collect();
                if let Some(last) = segments.last_mut() {
                    last[2] = u64::from(len) - each * (count - 1);
                }
                let mut payload = vec![0; 24 * segments.len()];
                encode_segments(&segments, &mut payload);
                (len, Method::Direct, count as u16, [0; 3], payload)
            }
            _ => (len, Method::Direct, 1, self.segment(input, len.into()), Vec::new()),
        }
    }

    pub(super) fn body(&self, opcode: Opcode, input: &mut Input<'_>) -> (Vec<u8>, Vec<u8>) {
        let mut body = vec![0; 72];
        let stability = [Stability::Unstable, Stability::DataSync, Stability::FileSync][input.below(3)];
        let (len, payload) = match opcode {
            Opcode::Read => {
                let (len, method, segment_count, segment, payload) = self.transfer(input, false);
                let offset = input.number();
                ReadRequest { offset, len, method, segment_count, segment }.encode(&mut body);
                (ReadRequest::HEAD_SIZE, payload)
            }
            Opcode::Write | Opcode::Append => {
                let (len, method, segment_count, segment, payload) = self.transfer(input, true);
                let offset = if opcode == Opcode::Append { 0 } else { input.number() };
                WriteRequest { offset, len, method, stability, segment_count, segment }.encode(&mut body);
                (WriteRequest::HEAD_SIZE, payload)
            }
            Opcode::ReadList | Opcode::WriteList => {
                let payload = self.list(input, opcode == Opcode::WriteList, stability, &mut body);
                (ListRequest::HEAD_SIZE, payload)
            }
            Opcode::ReadView | Opcode::WriteView => {
                let payload = self.shown(input, opcode == Opcode::WriteView, stability, &mut body);
                (ViewRequest::HEAD_SIZE, payload)
            }
            Opcode::ViewSet => (ViewSetRequest::HEAD_SIZE, Self::description(input, &mut body)),
            Opcode::ViewDrop => {
                ViewDropRequest { view: view(input) }.encode(&mut body);
                (ViewDropRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Batch => {
                let payload = self.batch(input, stability, &mut body);
                (BatchRequest::HEAD_SIZE, payload)
            }
            Opcode::Open => {
                let flags = OpenFlags::from_bits_truncate(u32::from(input.byte()));
                OpenRequest { flags, mode: 0o644 }.encode(&mut body);
                (OpenRequest::HEAD_SIZE, path(input))
            }
            Opcode::Share => {
                let rights = OpenFlags::from_bits_truncate(u32::from(input.byte() % 5));
                ShareRequest { rights, ttl_ms: input.number32() }.encode(&mut body);
                (ShareRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::OpenToken => (HEADER_SIZE, self.token(input)),
            Opcode::Readdir => {
                let len = input.number32();
                let segment =
                    if input.byte().is_multiple_of(2) { [0; 3] } else { self.segment(input, len.into()) };
                ReaddirRequest { cookie: input.number(), len, segment, attributes: true }.encode(&mut body);
                (ReaddirRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Commit => {
                CommitRequest { offset: input.number(), len: input.number(), stability }.encode(&mut body);
                (CommitRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Truncate | Opcode::Allocate | Opcode::Punch => {
                let len = if opcode == Opcode::Truncate { 0 } else { input.number() };
                AllocateRequest { offset: input.number(), len }.encode(&mut body);
                (AllocateRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Seek => {
                let what = [SeekWhat::Data, SeekWhat::Hole][input.below(2)];
                SeekRequest { offset: input.number(), what }.encode(&mut body);
                (SeekRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Hint => {
                let (offset, len, pattern) = (input.number(), input.number(), input.number32());
                let likelihood = input.number32() % 101;
                HintRequest { offset, len, pattern, likelihood }.encode(&mut body);
                (HintRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::CopyRange => {
                let source = self.handles.get(input.below(self.handles.len().max(1)));
                let source = source.map_or(input.number(), |handle| handle.0);
                let [source_offset, offset, len] = [0; 3].map(|_| input.number());
                CopyRequest { source, source_offset, offset, len }.encode(&mut body);
                (CopyRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Lock | Opcode::LockTest => {
                let kind =
                    if input.byte().is_multiple_of(2) { LockKind::Shared } else { LockKind::Exclusive };
                let flags = LockFlags::from_bits_truncate(input.byte().into());
                let (offset, len) = (u64::from(input.byte()), u64::from(input.byte()));
                let owner = u64::from(input.byte() % 4);
                LockRequest { offset, len, owner, kind, flags }.encode(&mut body);
                (LockRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Unlock => {
                let (offset, len) = (u64::from(input.byte()), u64::from(input.byte()));
                UnlockRequest { offset, len, owner: u64::from(input.byte() % 4) }.encode(&mut body);
                (UnlockRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Verify => {
                let mask = VerifyMask::from_bits_truncate(input.number32());
                let flags = VerifyFlags::from_bits_truncate(input.number32());
                let value = |bit, value| if mask.contains(bit) { value } else { 0 };
                let (change, size) =
                    (value(VerifyMask::CHANGE, input.number()), value(VerifyMask::SIZE, input.number()));
                let request = VerifyRequest { mask, flags, change, size, ..VerifyRequest::default() };
                request.encode(&mut body);
                (VerifyRequest::HEAD_SIZE, path(input))
            }
            Opcode::Rename | Opcode::Link => {
                let second_handle = self.handles.first().map_or(0, |handle| handle.0);
                let replace = [Existing::Kept, Existing::Replaced, Existing::Exchanged][input.below(3)];
                RenameRequest { second_handle, replace }.encode(&mut body);
                (RenameRequest::HEAD_SIZE, two_names(input))
            }
            Opcode::Mknod => {
                // No devices: the fuzzer may run as root.
                let kind = if input.byte().is_multiple_of(2) { NodeKind::Fifo } else { NodeKind::Socket };
                MknodRequest { kind, mode: input.number32() & 0o777, device: 0 }.encode(&mut body);
                (MknodRequest::HEAD_SIZE, path(input))
            }
            Opcode::Remove => {
                RemoveRequest { directory: input.byte().is_multiple_of(2) }.encode(&mut body);
                (RemoveRequest::HEAD_SIZE, path(input))
            }
            _ => return self.name_body(opcode, input),
        };
        body.truncate(len - HEADER_SIZE);
        (body, payload)
    }

    /// A token, nearly always one that was given.
    fn token(&self, input: &mut Input<'_>) -> Vec<u8> {
        let tokens = self.tokens.borrow();
        match (input.byte(), tokens.get(input.below(tokens.len().max(1)))) {
            (16.., Some(token)) => token.clone(),
            (8.., Some(token)) => token[..input.below(token.len() + 1)].to_vec(),
            _ => vec![input.byte(); TOKEN_SIZE],
        }
    }

    fn name_body(&self, opcode: Opcode, input: &mut Input<'_>) -> (Vec<u8>, Vec<u8>) {
        let mut body = vec![0; NameRequest::HEAD_SIZE - HEADER_SIZE];
        let follow = input.byte().is_multiple_of(2);
        let follows = matches!(opcode, Opcode::Lookup | Opcode::Getattr | Opcode::Setattr | Opcode::Statfs);
        NameRequest { follow: follow && follows, mode: 0 }.encode(&mut body);
        match opcode {
            Opcode::Lookup | Opcode::Getattr | Opcode::Mkdir | Opcode::Readlink => (body, path(input)),
            Opcode::AccessCheck => {
                NameRequest { follow: true, mode: input.number32() % 16 }.encode(&mut body);
                (body, path(input))
            }
            Opcode::Symlink => (body, two_names(input)),
            Opcode::Setattr => {
                let set = SetAttributes { mode: Some(input.number32()), ..SetAttributes::default() };
                let mut payload = path(input);
                payload.extend(encode_message_pack(&set));
                (body, payload)
            }
            Opcode::XattrRead | Opcode::XattrWrite | Opcode::XattrList | Opcode::XattrRemove => {
                let (path, value) = (path(input), vec![1; input.number32().min(8000) as usize]);
                let name: &[u8] = [&b"user.a"[..], b"", b"system.b"][input.below(3)];
                let value: &[u8] = if opcode == Opcode::XattrWrite { &value } else { &[] };
                let names = XattrNames { path: &path, name, value };
                let mut payload = vec![0; names.size()];
                names.encode(&mut payload);
                (body, payload)
            }
            Opcode::Mount => (Vec::new(), FAULTY.as_bytes().to_vec()),
            Opcode::Publish => {
                let size = input.number32() % (128 << 10);
                let crossovers = Crossovers {
                    read_registered: size,
                    read_unregistered: size,
                    write_registered: size,
                    write_unregistered: 1,
                };
                (Vec::new(), encode_message_pack(&crossovers))
            }
            Opcode::FenceWrite => {
                let list = FenceList::of_clients(&[[100 + self.index; 16]]);
                let before = [None, Some(FenceList::default()), Some(list.clone())];
                let change = FenceChange::new(list, before[input.below(3)].as_ref().map(FenceList::sum));
                (Vec::new(), encode_message_pack(&change))
            }
            _ => (Vec::new(), Vec::new()),
        }
    }
}

/// A number of a view: one of a few.
fn view(input: &mut Input<'_>) -> u32 {
    u32::from(input.byte() % 4)
}

fn path(input: &mut Input<'_>) -> Vec<u8> {
    const PATHS: [&[u8]; 12] = [
        b"file",
        b"dir",
        b"dir/x",
        b"",
        b"..",
        b"../../etc/passwd",
        b"/",
        b"link",
        b"a\0b",
        b"file/x",
        b"./file",
        b"dir/..",
    ];
    match input.byte() {
        choice if choice < 200 => PATHS[usize::from(choice) % PATHS.len()].to_vec(),
        choice if choice < 240 => input.take(12).to_vec(),
        _ => vec![b'n'; input.number32().min(8000) as usize],
    }
}

fn two_names(input: &mut Input<'_>) -> Vec<u8> {
    let (first, second) = (path(input), path(input));
    let names = TwoNames { first: &first, second: &second };
    let mut payload = vec![0; names.size()];
    names.encode(&mut payload);
    payload
}
