//! The short way of one blocking operation that is alone in its session.
//!
//! A small read or write, or an empty request, needs neither a place among the operations nor a queue while the session
//! has nothing else to do: its request is written into the endpoint, and the thread that waits takes its reply. Whatever
//! is unusual is left to the general way: before the request is sent, by not beginning; afterwards, by making the
//! operation that the general way would have made, with its request in flight. From there on replay, doubt and the end
//! of the session are what they always are.

use std::sync::Arc;

use dafs_proto::session::Sent;
use dafs_proto::transport::{HEAD_SIZE_MAX, Head, PostError, Received, RemoteRange, TransportError};
use dafs_proto::wire::{
    FileHandle, Flags, HEADER_SIZE, Header, Method, Opcode, ReadReply, ReadRequest, Stability, Status,
    WriteReply, WriteRequest,
};
use smallvec::SmallVec;

use crate::config::Config;
use crate::driver::transfer::check_extent;
use crate::driver::{EndOnUnwind, Guard, SLICE, Shared};
use crate::engine::core::Core;
use crate::handle::node::Node;
use crate::memory::RawMemory;
use crate::memory::registration::RegistrationPolicy;
use crate::method::io_path::{Direction, IoPath, Registration, decide};
use crate::op::named::Named;
use crate::op::pieces::void;
use crate::op::request::{Broken, Request};
use crate::op::transfer::{Transfer, TransferKind};
use crate::op::{Op, Work};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Nothing: an empty request.
    Null,
    /// File data, into the memory.
    Read,
    /// File data, out of the memory.
    Write(Stability),
}

/// One operation, by reference: it ends before its caller goes on.
pub(crate) struct LoneRequest<'a> {
    pub(crate) ask: Ask,
    /// Of which file.
    pub(crate) node: Option<&'a Arc<Node>>,
    pub(crate) offset: u64,
    pub(crate) memory: RawMemory,
    /// Where the server reaches the memory, when it is registered.
    pub(crate) range: Option<RemoteRange>,
    /// Of the file.
    pub(crate) policy: RegistrationPolicy,
}

/// What became of it.
pub(crate) enum Lone {
    /// It was not begun: the general way does it.
    NotBegun,
    /// Done; bytes moved.
    Done(usize),
    /// It ended in the general way.
    Ended(Box<Op>),
}

impl Shared {
    /// Runs an operation to its end, if it can go the short way. Blocks.
    #[inline]
    pub(crate) fn run_lone(&self, request: &LoneRequest<'_>) -> Lone {
        let is_special = self.config.operation_timeout.is_some() || !self.home.is_here();
        if is_special || self.is_shared_or_has_closes() {
            return Lone::NotBegun;
        }
        let unwinding = EndOnUnwind { shared: self };
        let outcome = match self.core.try_lock() {
            Ok(core) => self.run_lone_locked(core, request),
            Err(_) => Lone::NotBegun,
        };
        std::mem::forget(unwinding);
        outcome
    }

    #[inline]
    fn run_lone_locked(&self, mut core: Guard<'_>, request: &LoneRequest<'_>) -> Lone {
        let Some(path) = core.lone_path(&self.config, request) else { return Lone::NotBegun };
        let (sent, was_sent) = match core.send_lone(request, path) {
            LoneSend::NotBegun => return Lone::NotBegun,
            LoneSend::Sent(sent) => (sent, true),
            LoneSend::Lost(sent) => (sent, false),
        };
        let outcome = if was_sent { core.await_lone(request, path, &sent) } else { Await::Unusual };
        let message = match outcome {
            Await::Done(count) => return Lone::Done(count),
            Await::Unusual => None,
            Await::Message(head, payload_len) => Some(Ok((head, payload_len))),
            Await::Broken(error) => Some(Err(error)),
        };
        self.end_generally(core, request, path, sent, message)
    }

    /// The general way takes over, with what came last.
    #[cold]
    fn end_generally(
        &self,
        mut core: Guard<'_>,
        request: &LoneRequest<'_>,
        path: IoPath,
        sent: Sent,
        last: Option<Result<(Head, u32), TransportError>>,
    ) -> Lone {
        let index = core.adopt(request, path, sent);
        let outcome = match last {
            None => Ok(()),
            Some(Ok((head, payload_len))) => core.on_message(&head, payload_len),
            Some(Err(error)) => Err(Broken::Lost(error)),
        };
        if let Err(broken) = outcome {
            self.on_broken(&mut core, broken);
        }
        let mut core = self.wait_until(core, |core| core.has_ended(index));
        Lone::Ended(Box::new(core.collect(index)))
    }
}

/// What came of sending.
enum LoneSend {
    /// There was no room, or nobody to send to: nothing has happened.
    NotBegun,
    /// It is on its way.
    Sent(Sent),
    /// It has its number and counts as sent, but the connection is closed.
    Lost(Sent),
}

/// What came of waiting.
enum Await {
    Done(usize),
    /// Something else than the one reply.
    Message(Head, u32),
    Broken(TransportError),
    /// Nothing, for long.
    Unusual,
}

impl Ask {
    pub(crate) fn opcode(self) -> Opcode {
        match self {
            Self::Null => Opcode::Null,
            Self::Read => Opcode::Read,
            Self::Write(_) => Opcode::Write,
        }
    }

    /// The transfer that it is; an empty request moves nothing, like a read of nothing.
    pub(crate) fn kind(self) -> TransferKind {
        match self {
            Self::Write(stability) => TransferKind::Write(stability),
            Self::Read | Self::Null => TransferKind::Read,
        }
    }
}

impl Core {
    /// How the data would travel; `None` where the operation cannot go the short way.
    #[inline]
    fn lone_path(&self, config: &Config, request: &LoneRequest<'_>) -> Option<IoPath> {
        let is_free = self.endpoint.is_some()
            && self.dead.is_none()
            && !self.leader
            && self.followers == 0
            && self.deadlines == 0
            && self.queue.is_empty()
            && self.resend.is_empty()
            && self.session.outstanding() == 0;
        if !is_free || request.node.is_some_and(|node| node.is_stale()) {
            return None;
        }
        let len = request.memory.len();
        let (direction, inline_max) = match request.ask {
            Ask::Null => return Some(IoPath::Inline),
            Ask::Read => (Direction::Read, self.terms.read_inline_max),
            Ask::Write(_) => (Direction::Write, self.terms.write_inline_max),
        };
        if len == 0 || check_extent(request.offset, len).is_err() {
            return None;
        }
        let registration = match request.range {
            Some(_) => Registration::Registered,
            None => Registration::Ordinary,
        };
        let circumstances = self.circumstances(config, direction, len as u64, registration);
        match decide(&circumstances.under(request.policy)).path {
            IoPath::Inline if len <= inline_max as usize => Some(IoPath::Inline),
            IoPath::Direct if len <= self.terms.welcome.transfer_size_max as usize => Some(IoPath::Direct),
            _ => None,
        }
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "lengths were checked against limits of 32 bits")]
    fn send_lone(&mut self, request: &LoneRequest<'_>, path: IoPath) -> LoneSend {
        let wanted = self.note_wanted(1);
        let Some(endpoint) = self.endpoint.as_mut() else { return LoneSend::NotBegun };
        let len = request.memory.len();
        let payload_len = match (request.ask, path) {
            (Ask::Write(_), IoPath::Inline) => len,
            _ => 0,
        };
        let gathered = if payload_len == 0 { Ok(false) } else { endpoint.prefers_gathered(payload_len) };
        let room = match gathered {
            Ok(true) => None,
            Ok(false) => match endpoint.reserve(payload_len) {
                Ok(room) => Some(room),
                Err(_) => return LoneSend::NotBegun,
            },
            Err(_) => return LoneSend::NotBegun,
        };
        let handle = request.node.map_or(FileHandle(0), |node| node.handle());
        let mut header = Header::request(request.ask.opcode(), handle);
        let Some(sent) = self.session.begin(&mut header, wanted) else {
            if let Some(room) = room {
                endpoint.cancel_send(room);
            }
            return LoneSend::NotBegun;
        };
        if payload_len > 0
            && let Some(room) = &room
            && let Some(target) = endpoint.slot_payload(room).slice(0, len)
        {
            target.copy_from(request.memory.span());
        }
        let mut head = [0; HEAD_SIZE_MAX];
        let head_len = encode_lone(request, path, &mut head);
        header.head_len = head_len as u16;
        header.payload_len = payload_len as u32;
        header.encode(&mut head);
        self.spoke = true;
        self.heard = true;
        let posted = match room {
            Some(room) => endpoint.send(room, &head[..head_len], payload_len),
            None => endpoint.send_gathered(&head[..head_len], &[request.memory.span()]),
        };
        match posted {
            Ok(()) => LoneSend::Sent(sent),
            Err(PostError::Closed) => LoneSend::Lost(sent),
            Err(PostError::Full | PostError::Invalid(_) | PostError::Faulted) => {
                self.session.take_back(sent.slot);
                LoneSend::NotBegun
            }
        }
    }

    /// Waits for the reply, once.
    #[inline]
    fn await_lone(&mut self, request: &LoneRequest<'_>, path: IoPath, sent: &Sent) -> Await {
        let Some(endpoint) = self.endpoint.as_mut() else { return Await::Unusual };
        self.unflushed = false;
        if let Err(error) = endpoint.wait(Some(SLICE)) {
            return Await::Broken(error);
        }
        match endpoint.recv() {
            Ok(Some(Received::Message { ref head, payload_len })) => {
                match self.take_lone(request, path, sent, head, payload_len) {
                    Some(count) => {
                        // A message that is still being looked at is in the way of the next wait.
                        if let Some(endpoint) = self.endpoint.as_mut() {
                            endpoint.recv_done();
                        }
                        Await::Done(count)
                    }
                    None => Await::Message(*head, payload_len),
                }
            }
            Ok(_) => Await::Unusual,
            Err(error) => Await::Broken(error),
        }
    }

    /// Takes the reply; `None`, and nothing done, when the message is anything but a good one.
    #[inline]
    fn take_lone(
        &mut self,
        request: &LoneRequest<'_>,
        path: IoPath,
        sent: &Sent,
        head: &Head,
        payload_len: u32,
    ) -> Option<usize> {
        let (header, body) = Header::decode(head.as_bytes(), payload_len).ok()?;
        if header.flags != Flags::REPLY || header.status != Status::OK || header.slot != sent.slot {
            return None;
        }
        let payload = self.endpoint.as_ref().map(|endpoint| endpoint.payload())?;
        let len = request.memory.len();
        match request.ask {
            Ask::Null => {
                self.session.on_reply(&header).ok()?;
                Some(0)
            }
            Ask::Read => {
                let count = ReadReply::decode(body).ok()?.count as usize;
                let in_payload = if path == IoPath::Inline { count } else { 0 };
                if count > len || payload.len() != in_payload {
                    return None;
                }
                let target = request.memory.span().slice(0, in_payload)?;
                self.session.on_reply(&header).ok()?;
                target.copy_from(payload);
                Some(count)
            }
            Ask::Write(_) => {
                let reply = WriteReply::decode(body).ok()?;
                let count = reply.count as usize;
                if count > len {
                    return None;
                }
                self.session.on_reply(&header).ok()?;
                if let (Stability::Unstable, Some(node)) = (reply.stability, request.node) {
                    let end = request.offset.saturating_add(count as u64);
                    node.unstable().add(reply.verifier, request.offset..end);
                }
                Some(count)
            }
        }
    }

    /// Makes the operation that the general way would have made, its one request in flight.
    fn adopt(&mut self, request: &LoneRequest<'_>, path: IoPath, sent: Sent) -> usize {
        let len = request.memory.len();
        let transfer = |kind| {
            Work::Data(Transfer {
                kind,
                path,
                offset: request.offset,
                len,
                cut: len,
                memory: SmallVec::from_buf([request.memory]),
                ranges: request.range.into_iter().collect(),
                discard: false,
                trial: None,
                ..void()
            })
        };
        let work = match request.ask {
            Ask::Null => Work::Named(Box::new(Named { sent: true, ..Named::default() })),
            Ask::Read => transfer(TransferKind::Read),
            Ask::Write(stability) => transfer(TransferKind::Write(stability)),
        };
        let mut op = Op::new(request.ask.opcode(), request.node.map(Arc::clone), work);
        op.outstanding = 1;
        let index = self.ops.insert(op);
        self.note_request(
            sent.slot,
            Request {
                op: index,
                opcode: request.ask.opcode(),
                order: sent.order,
                at: 0,
                len,
                staging: None,
                lane: None,
            },
        );
        index
    }
}

/// Writes the body behind the header's place; the length of both.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "lengths were checked against limits of 32 bits")]
fn encode_lone(request: &LoneRequest<'_>, path: IoPath, head: &mut [u8; HEAD_SIZE_MAX]) -> usize {
    let body = &mut head[HEADER_SIZE..];
    let (offset, len) = (request.offset, request.memory.len() as u32);
    let (method, segment_count, segment) = match (path, request.range) {
        (IoPath::Direct, Some(range)) => (Method::Direct, 1, [range.key.0, range.offset, range.len]),
        _ => (Method::Inline, 0, [0; 3]),
    };
    match request.ask {
        Ask::Null => HEADER_SIZE,
        Ask::Read => {
            ReadRequest { offset, len, method, segment_count, segment }.encode(body);
            ReadRequest::HEAD_SIZE
        }
        Ask::Write(stability) => {
            WriteRequest { offset, len, method, stability, segment_count, segment }.encode(body);
            WriteRequest::HEAD_SIZE
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use dafs_tests::sim::Action;

    use super::*;
    use crate::testing::{World, config};
    use crate::{Config, Error, Export, File, OpenOptions, Session};

    // The export is given as well: dropping it would have its handle closed, by a request.
    fn opened(world: &World) -> (Session, Export, File) {
        world.put("f", b"12345678");
        let session = world.session();
        let export = session.mount("data").unwrap();
        let file = export.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
        (session, export, file)
    }

    fn run(session: &Session, file: &File, ask: Ask, bytes: &mut [u8]) -> Lone {
        let memory = RawMemory::of_mut(bytes);
        let request = LoneRequest {
            ask,
            node: Some(&file.node),
            offset: 0,
            memory,
            range: None,
            policy: RegistrationPolicy::Library,
        };
        session.owner.shared.run_lone(&request)
    }

    fn places_used(session: &Session) -> (usize, usize) {
        let core = session.owner.shared.lock();
        (core.ops.len(), core.requests.iter().flatten().count())
    }

    // Behind each test in which the short way ends generally: without this they would not be about it.
    #[test]
    fn lone_operations_of_a_free_session_leave_nothing_behind() {
        let world = World::new(1);
        let (session, _export, file) = opened(&world);
        let mut bytes = [0; 16];
        assert!(matches!(run(&session, &file, Ask::Read, &mut bytes), Lone::Done(8)));
        assert_eq!(&bytes[..9], b"12345678\0");
        let write = Ask::Write(Stability::Unstable);
        assert!(matches!(run(&session, &file, write, &mut bytes[..3]), Lone::Done(3)));
        assert!(matches!(run(&session, &file, Ask::Null, &mut []), Lone::Done(0)));
        assert_eq!(places_used(&session), (0, 0));
        assert_eq!(session.owner.shared.lock().session.outstanding(), 0);
    }

    // [CLI-20] what was written the short way is remembered as unstable
    #[test]
    fn lone_write_lost_by_a_restart_is_named_by_the_commit() {
        let world = World::new(2);
        let (session, _export, file) = opened(&world);
        let write = Ask::Write(Stability::Unstable);
        assert!(matches!(run(&session, &file, write, &mut [7; 5]), Lone::Done(5)));
        world.restart();
        match file.commit() {
            Err(Error::WritesLost { ranges, .. }) => assert_eq!(ranges, std::slice::from_ref(&(0..5))),
            other => panic!("{other:?}"),
        }
    }

    // [CLI-30] [SESS-51]
    #[test]
    fn lone_request_cut_off_before_or_after_it_was_executed_is_sent_again() {
        for before in [true, false] {
            for ask in [Ask::Null, Ask::Read, Ask::Write(Stability::Unstable)] {
                let world = World::new(3 + u64::from(before));
                let (session, _export, file) = opened(&world);
                world.once(ask.opcode(), move |_| if before { Action::CutBefore } else { Action::CutAfter });
                let mut bytes = *b"abcdefgh";
                let Lone::Ended(op) = run(&session, &file, ask, &mut bytes) else { panic!("{ask:?}") };
                assert!(op.error.is_none(), "{ask:?}: {:?}", op.error);
                assert!(world.log().contains(&(ask.opcode(), Flags::REPLAY)), "{ask:?}");
                assert_eq!(session.reconnects(), 1);
                match ask {
                    Ask::Read => assert_eq!(&bytes, b"12345678"),
                    Ask::Write(_) => assert_eq!(world.content("f"), b"abcdefgh"),
                    Ask::Null => {}
                }
                assert_eq!(places_used(&session), (0, 0));
                assert!(matches!(run(&session, &file, ask, &mut bytes), Lone::Done(_)), "{ask:?} afterwards");
            }
        }
    }

    // [CLI-31] a write is idempotent, so a new session repeats it
    #[test]
    fn lone_request_in_a_session_that_the_server_lost_is_repeated_in_the_new_one() {
        for ask in [Ask::Null, Ask::Read, Ask::Write(Stability::Unstable)] {
            let world = World::new(5);
            let (session, _export, file) = opened(&world);
            world.once(ask.opcode(), |_| Action::CrashBefore);
            let mut bytes = *b"abcdefgh";
            let Lone::Ended(op) = run(&session, &file, ask, &mut bytes) else { panic!("{ask:?}") };
            assert!(op.error.is_none(), "{ask:?}: {:?}", op.error);
            assert_eq!(places_used(&session), (0, 0));
        }
    }

    #[test]
    fn lone_request_that_the_server_refuses_ends_with_its_status() {
        let world = World::new(6);
        let (session, _export, file) = opened(&world);
        world.once(Opcode::Read, |header| {
            let mut head = [0; HEADER_SIZE];
            header.reply(Status::IO).encode(&mut head);
            Action::Say(head.to_vec(), Vec::new())
        });
        let Lone::Ended(op) = run(&session, &file, Ask::Read, &mut [0; 8]) else { panic!() };
        assert!(matches!(op.error.as_deref(), Some(Error::Status { status: Status::IO, .. })));
        assert_eq!(places_used(&session), (0, 0));
    }

    // [CLI-40] in every byte of the reply's head
    #[test]
    fn lone_reply_that_is_broken_anywhere_is_judged_by_the_general_way() {
        for place in 0..ReadReply::HEAD_SIZE {
            let world = World::new(7);
            let (session, _export, file) = opened(&world);
            world.once(Opcode::Read, move |header| {
                let mut reply = header.reply(Status::OK);
                (reply.head_len, reply.payload_len) = (48, 8);
                let mut head = [0; ReadReply::HEAD_SIZE];
                reply.encode(&mut head);
                ReadReply { count: 8, end_of_file: false }.encode(&mut head[HEADER_SIZE..]);
                head[place] ^= 0x40;
                Action::Say(head.to_vec(), b"abcdefgh".to_vec())
            });
            let mut bytes = [0; 8];
            // The handle, the credits and the deadline of a reply to a read mean nothing, or anything.
            let harmless = matches!(place, 12 | 13 | 24..36);
            match run(&session, &file, Ask::Read, &mut bytes) {
                Lone::Done(8) => assert!(harmless && &bytes == b"abcdefgh", "byte {place}"),
                Lone::Ended(op) => assert!(op.error.is_some() && !harmless, "byte {place}: {:?}", op.error),
                _ => panic!("byte {place}"),
            }
        }
    }

    #[test]
    fn lone_request_is_not_begun_where_it_would_not_be_alone() {
        let world = World::new(8);
        let (session, _export, file) = opened(&world);
        let begins = || !matches!(run(&session, &file, Ask::Null, &mut []), Lone::NotBegun);
        assert!(begins());
        let in_flight = file.submit_read_at(vec![0; 8], 0);
        assert!(!begins(), "a request is in flight");
        in_flight.wait().into_result().unwrap();
        assert!(begins());
        let guard = session.owner.shared.lock();
        assert!(!begins(), "another thread has the lock");
        drop(guard);
        session.owner.shared.contended.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(!begins(), "several threads use the session");
    }

    #[test]
    fn lone_request_with_a_time_limit_goes_the_general_way() {
        let world = World::new(9);
        let limited = Config { operation_timeout: Some(Duration::from_secs(1)), ..config() };
        let session = world.connect(&limited).unwrap();
        let memory = RawMemory::of(&[]);
        let request = LoneRequest {
            ask: Ask::Null,
            node: None,
            offset: 0,
            memory,
            range: None,
            policy: RegistrationPolicy::Library,
        };
        assert!(matches!(session.owner.shared.run_lone(&request), Lone::NotBegun));
        session.ping().unwrap();
    }

    #[test]
    fn lone_transfer_that_needs_cutting_or_registering_is_not_begun() {
        let world = World::new(10);
        let (session, _export, file) = opened(&world);
        let crossover = crate::testing::CROSSOVER as usize;
        let mut bytes = vec![0; crossover + 1];
        assert!(matches!(run(&session, &file, Ask::Read, &mut bytes[..crossover - 1]), Lone::Done(8)));
        for len in [0, crossover, crossover + 1] {
            assert!(matches!(run(&session, &file, Ask::Read, &mut bytes[..len]), Lone::NotBegun), "{len}");
        }
    }

    // A session that two threads used becomes one thread's again, and not too soon.
    #[test]
    fn session_shared_once_is_lone_again_after_calm() {
        let world = World::new(11);
        let (session, _export, file) = opened(&world);
        session.owner.shared.contended.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut bytes = [0; 8];
        let mut operations = 0;
        while matches!(run(&session, &file, Ask::Read, &mut bytes), Lone::NotBegun) {
            file.read_at(&mut bytes, 0).unwrap();
            operations += 1;
            assert!(operations <= 128, "never");
        }
        assert_eq!(operations, 128);
    }
}
