//! The fast path of a blocking operation that has the session for itself.
//!
//! It is the general path with nothing in the way: the decision, the bodies and what a reply says are the same, but a request that is one
//! message each way needs neither a place among the operations nor the queue. It is written into the endpoint, and the thread that waits
//! takes its reply. If anything else arrives, the call becomes the operation that the general path would have made, with its request in
//! flight. From then on the usual rules apply for replay, doubt and the end of the session.

use std::sync::Arc;

use dafs_proto::session::Sent;
use dafs_proto::transport::{Head, Interrupt, Received, RemoteRange, Span, TransportError};
use dafs_proto::wire::{FileHandle, Flags, HEADER_SIZE, Header, LockRequest, Opcode, Status};
use smallvec::SmallVec;

use crate::driver::driven::Driven;
use crate::driver::{EndOnUnwind, Guard, SharedSession};
use crate::handle::node::Node;
use crate::memory::RawMemory;
use crate::method::io_path::{Direction, IoPath};
use crate::op::Op;
use crate::op::body::{Body, DataReply, wire};
use crate::op::draft::{Draft, HEAD_ROOM, HeadRoom, Outlet};
use crate::op::named::Named;
use crate::op::request::{Broken, Request};
use crate::op::transfer::{Transfer, TransferKind};

/// One request, by reference: it ends before its caller goes on.
pub(crate) struct Single<'a> {
    pub(crate) wish: Wish<'a>,
    /// Of which file.
    pub(crate) node: Option<&'a Arc<Node>>,
    pub(crate) offset: u64,
    pub(crate) memory: RawMemory,
    /// Where the server reaches the memory, when it is registered.
    pub(crate) range: Option<RemoteRange>,
    /// How the data travels.
    pub(crate) path: IoPath,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish<'a> {
    /// Nothing: an empty request.
    Null,
    /// Data moves.
    Move(TransferKind),
    /// What takes a few bytes to say, and to which a good reply says nothing; and what is locked by it.
    Plain(Opcode, &'a [u8], Option<&'a LockRequest>),
}

/// What became of it.
pub(crate) enum Attempt<'a> {
    /// Nothing: the general path does it.
    NotBegun(Guard<'a>),
    /// Done; bytes moved.
    Done(usize),
    /// It is in flight, and something else than its reply came, or nothing for long. Boxed, since it is large and rare.
    InFlight(Guard<'a>, Sent, Box<Came>),
}

/// What came instead of the reply.
pub(crate) enum Came {
    Nothing,
    Message(Head, u32),
    Broken(TransportError),
}

impl Came {
    #[cold]
    pub(super) fn boxed(self) -> Box<Self> {
        Box::new(self)
    }

    #[cold]
    pub(super) fn message(head: &Head, payload_len: u32) -> Box<Self> {
        Box::new(Self::Message(*head, payload_len))
    }
}

impl SharedSession {
    /// Runs a request to its end, if nothing is in the way. Blocks.
    #[inline]
    pub(crate) fn attempt<'a>(&'a self, mut core: Guard<'a>, single: &Single<'_>) -> Attempt<'a> {
        let is_in_the_way = self.config.operation_timeout.is_some() || self.is_shared_or_has_closes();
        if is_in_the_way || !core.is_idle() || !core.is_one_request(single) {
            return Attempt::NotBegun(core);
        }
        let Some(sent) = core.send_single(single) else { return Attempt::NotBegun(core) };
        match core.await_single(single, &sent, &self.calls.holder) {
            Ok(count) => Attempt::Done(count),
            Err(came) => Attempt::InFlight(core, sent, came),
        }
    }

    /// Runs an empty request. Returns the operation where it did not end well on the fast path. Blocks.
    #[inline]
    pub(crate) fn run_null(&self) -> Option<Op> {
        self.run_small(Wish::Null, None, || Op::named(Opcode::Null, None, Named::default()))
    }

    /// Runs a request of which a good reply says nothing. Returns the operation where it did not end well on the fast path. Blocks.
    #[inline]
    pub(crate) fn run_plain(
        &self,
        opcode: Opcode,
        node: &Arc<Node>,
        (body, locks): (&[u8], Option<&LockRequest>),
    ) -> Option<Op> {
        self.run_small(Wish::Plain(opcode, body, locks), Some(node), || {
            Op::named(opcode, Some(Arc::clone(node)), Named::of(body))
        })
    }

    #[inline]
    fn run_small(&self, wish: Wish<'_>, node: Option<&Arc<Node>>, op: impl Fn() -> Op) -> Option<Op> {
        let memory = RawMemory::of(&[]);
        let single = Single { wish, node, offset: 0, memory, range: None, path: IoPath::Inline };
        let unwinding = EndOnUnwind { shared: self };
        let op = match self.attempt(self.lock(), &single) {
            Attempt::Done(_) => {
                self.send_closes_left();
                None
            }
            Attempt::NotBegun(core) => Some(self.run_locked(core, op())),
            Attempt::InFlight(core, sent, came) => Some(self.end_generally(core, op(), (sent, came))),
        };
        std::mem::forget(unwinding);
        op
    }

    /// The general path takes over: `op` is what it would have made of the request.
    #[cold]
    pub(crate) fn end_generally(
        &self,
        mut core: Guard<'_>,
        mut op: Op,
        (sent, came): (Sent, Box<Came>),
    ) -> Op {
        let (opcode, len) = (op.opcode, op.transfer().map_or(0, |transfer| transfer.len));
        op.stop();
        op.outstanding = 1;
        let index = core.insert(op);
        let request =
            Request { op: index, opcode, order: sent.order, at: 0, len, bounce: None, eager_buffer: None };
        core.note_request(sent.slot, request);
        self.end_as(core, index, *came)
    }

    /// Waits for the end of what is in flight now as an operation, of which this came so far.
    pub(super) fn end_as(&self, mut core: Guard<'_>, index: usize, came: Came) -> Op {
        let outcome = match came {
            Came::Nothing => Ok(()),
            Came::Message(head, payload_len) => core.take_message(&head, payload_len),
            Came::Broken(error) => Err(Broken::Lost(error)),
        };
        self.check(&mut core, outcome);
        let mut core = self.wait_until(core, |core| core.has_ended(index));
        core.collect(index)
    }
}

impl Single<'_> {
    #[inline]
    fn opcode(&self) -> Opcode {
        match self.wish {
            Wish::Null => Opcode::Null,
            Wish::Move(kind) => kind.opcode(),
            Wish::Plain(opcode, ..) => opcode,
        }
    }

    /// The transfer that the general path would have made of it.
    pub(crate) fn transfer(&self, kind: TransferKind) -> Transfer {
        let ranges = self.range.into_iter().collect();
        Transfer::new(kind, self.path, self.offset, SmallVec::from_buf([self.memory]), ranges)
    }

    /// Data that goes in the request.
    #[inline]
    fn payload(&self) -> Span<'_> {
        match (self.wish, self.path) {
            (Wish::Move(TransferKind::Write(_)), IoPath::Inline) => self.memory.span(),
            _ => Span::EMPTY,
        }
    }

    #[inline]
    fn header(&self) -> Header {
        Header::request(self.opcode(), self.node.map_or(FileHandle(0), |node| node.handle()))
    }

    #[inline]
    fn draft<'a>(&self, head: &'a mut HeadRoom, header: Header) -> Draft<'a> {
        Draft::new(head, header, |head| {
            let kind = match self.wish {
                Wish::Move(kind) => kind,
                Wish::Null => return HEADER_SIZE,
                Wish::Plain(_, body, _) => {
                    head[..body.len()].copy_from_slice(body);
                    return HEADER_SIZE + body.len();
                }
            };
            let (offset, len) = (self.offset, self.memory.len());
            let body = match (self.path, self.range) {
                (IoPath::Direct, Some(range)) => Body::direct(kind, offset, len, &[wire(range)]),
                _ => Body::inline(kind, offset, len),
            };
            body.encode(head)
        })
    }
}

impl Driven {
    /// Nobody uses the session now, and nothing is left to send.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.endpoint.is_some()
            && self.dead.is_none()
            && !self.leader
            && self.followers == 0
            && self.armed_watches == 0
            && self.deadlines == 0
            && self.queue.is_empty()
            && self.resend.is_empty()
            && self.session.outstanding() == 0
    }

    /// All of it goes in one request, and needs no buffer of the library's.
    #[inline]
    fn is_one_request(&self, single: &Single<'_>) -> bool {
        if single.node.is_some_and(|node| node.is_stale()) {
            return false;
        }
        let Wish::Move(kind) = single.wish else { return true };
        let len_max = match single.path {
            IoPath::Inline => self.terms.inline_max(kind.direction()),
            IoPath::Direct => self.terms.welcome.transfer_size_max,
            _ => return false,
        };
        single.memory.len() <= len_max as usize
    }

    /// Sends the request; `None` when there is no room, and nothing has happened.
    #[inline]
    fn send_single(&mut self, single: &Single<'_>) -> Option<Sent> {
        let Self { core, endpoint: Some(endpoint), .. } = self else { return None };
        let wanted = core.demand.note(1);
        let (mut header, payload) = (single.header(), single.payload());
        let gathers = !payload.is_empty() && Outlet::prefers_gathered(endpoint, payload.len()).ok()?;
        let sent = core.session.begin(&mut header, wanted)?;
        let mut head = HEAD_ROOM;
        let draft = single.draft(&mut head, header);
        let fill = |room: Span<'_>| {
            if let Some(room) = room.slice(0, payload.len()).filter(|_| !payload.is_empty()) {
                room.copy_from(payload);
            }
        };
        let posted = match gathers {
            true => Outlet::send_gathered(endpoint, draft, &[payload]),
            false => Outlet::send(endpoint, draft, payload.len(), fill),
        };
        if posted.is_err() {
            core.session.take_back(sent.slot);
            return None;
        }
        (core.signs.spoke, core.signs.heard) = (true, true);
        Some(sent)
    }

    /// Waits for the reply, once, unless another thread wants the session.
    #[inline]
    fn await_single(
        &mut self,
        single: &Single<'_>,
        sent: &Sent,
        interrupt: &Interrupt,
    ) -> Result<usize, Box<Came>> {
        let longest = self.signs.undated_sleep_max();
        let Some(endpoint) = self.endpoint.as_mut() else { return Err(Came::Nothing.boxed()) };
        self.unflushed = false;
        if let Err(error) = endpoint.wait_or(Some(longest), Some(interrupt)) {
            return Err(Came::Broken(error).boxed());
        }
        // Looked at where it is: a head is large to move.
        let count = match endpoint.recv() {
            Ok(Some(Received::Message { ref head, payload_len })) => {
                match self.take_reply(single, sent, head, payload_len) {
                    Some(count) => count,
                    None => return Err(Came::message(head, payload_len)),
                }
            }
            Ok(_) => return Err(Came::Nothing.boxed()),
            Err(error) => return Err(Came::Broken(error).boxed()),
        };
        // A message that is still being looked at is in the way of the next wait.
        if let Some(endpoint) = self.endpoint.as_mut() {
            endpoint.recv_done();
        }
        Ok(count)
    }

    /// The engine takes the message that came.
    fn take_message(&mut self, head: &Head, payload_len: u32) -> Result<(), Broken> {
        let Self { core, endpoint: Some(endpoint), .. } = self else { return Ok(()) };
        core.handle_message(head, payload_len, endpoint.payload())
    }

    /// Takes the reply; `None`, and nothing done, when the message is anything but a good one.
    #[inline]
    fn take_reply(
        &mut self,
        single: &Single<'_>,
        sent: &Sent,
        head: &Head,
        payload_len: u32,
    ) -> Option<usize> {
        let (header, body) = Header::decode(head.as_bytes(), payload_len).ok()?;
        if header.flags != Flags::REPLY || header.status != Status::OK || header.slot != sent.slot {
            return None;
        }
        let Self { core, endpoint: Some(endpoint), .. } = self else { return None };
        let kind = match single.wish {
            Wish::Move(kind) => kind,
            Wish::Plain(..) if !body.is_empty() || payload_len > 0 => return None,
            Wish::Null | Wish::Plain(..) => {
                core.session.on_reply(&header).ok()?;
                if let (Wish::Plain(_, _, Some(request)), Some(node)) = (single.wish, single.node) {
                    node.locks().lock(request);
                }
                return Some(0);
            }
        };
        let payload = endpoint.payload();
        let reply = DataReply::decode(kind, body).ok()?;
        reply.check(kind, single.memory.len(), payload.len(), single.path == IoPath::Inline).ok()?;
        core.session.on_reply(&header).ok()?;
        if kind.direction() == Direction::Read && !payload.is_empty() {
            single.memory.span().slice(0, payload.len())?.copy_from(payload);
        }
        if let (Some(verifier), Some(node)) = (reply.unstable, single.node) {
            node.wrote(verifier, single.offset, reply.count);
        }
        Some(reply.count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use dafs_proto::wire::{ReadReply, Stability};
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

    const NULL: Wish<'static> = Wish::Null;
    const READ: Wish<'static> = Wish::Move(TransferKind::Read);
    const WRITE: Wish<'static> = Wish::Move(TransferKind::Write(Stability::Unstable));
    /// Of the first byte, exclusively, for owner 7.
    const LOCK: Wish<'static> = Wish::Plain(
        Opcode::Lock,
        &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
        None,
    );

    /// What became of a request that goes in messages: done, bytes moved; else how it ended generally, if it was begun.
    enum Ran {
        Done(usize),
        Ended(Box<Op>),
        NotBegun,
    }

    fn run(session: &Session, file: &File, wish: Wish<'_>, bytes: &mut [u8]) -> Ran {
        let (shared, single) = (&session.owner.shared, single(file, wish, bytes, IoPath::Inline));
        match shared.attempt(shared.lock(), &single) {
            Attempt::Done(count) => Ran::Done(count),
            Attempt::NotBegun(_) => Ran::NotBegun,
            Attempt::InFlight(core, sent, came) => {
                let op = match wish {
                    Wish::Null => Op::named(Opcode::Null, None, Named::default()),
                    Wish::Move(kind) => {
                        Op::moving(kind.opcode(), Arc::clone(&file.node), single.transfer(kind))
                    }
                    Wish::Plain(opcode, body, _) => {
                        Op::named(opcode, Some(Arc::clone(&file.node)), Named::of(body))
                    }
                };
                Ran::Ended(Box::new(shared.end_generally(core, op, (sent, came))))
            }
        }
    }

    fn single<'a>(file: &'a File, wish: Wish<'a>, bytes: &mut [u8], path: IoPath) -> Single<'a> {
        let node = (!matches!(wish, Wish::Null)).then_some(&file.node);
        Single { wish, node, offset: 0, memory: RawMemory::of_mut(bytes), range: None, path }
    }

    fn opcode(wish: Wish<'_>) -> Opcode {
        let single = Single {
            wish,
            node: None,
            offset: 0,
            memory: RawMemory::of(&[]),
            range: None,
            path: IoPath::Inline,
        };
        single.opcode()
    }

    fn places_used(session: &Session) -> (usize, usize) {
        let core = session.owner.shared.lock();
        (core.ops.len(), core.requests.iter().flatten().count())
    }

    // Behind each test in which the fast path ends generally: without this they would not be about it.
    #[test]
    fn requests_of_an_idle_session_leave_nothing_behind() {
        let world = World::new(1);
        let (session, _export, file) = opened(&world);
        let mut bytes = [0; 16];
        assert!(matches!(run(&session, &file, READ, &mut bytes), Ran::Done(8)));
        assert_eq!(&bytes[..9], b"12345678\0");
        assert!(matches!(run(&session, &file, WRITE, &mut bytes[..3]), Ran::Done(3)));
        assert!(matches!(run(&session, &file, NULL, &mut []), Ran::Done(0)));
        assert!(matches!(run(&session, &file, LOCK, &mut []), Ran::Done(0)));
        assert_eq!(places_used(&session), (0, 0));
        assert_eq!(session.owner.shared.lock().session.outstanding(), 0);
    }

    // [CLI-20] [CLI-96] what was written on the fast path is remembered as unstable
    #[test]
    fn fast_write_lost_by_a_restart_is_named_by_the_commit() {
        let world = World::new(2);
        let (session, _export, file) = opened(&world);
        assert!(matches!(run(&session, &file, WRITE, &mut [7; 5]), Ran::Done(5)));
        world.restart();
        match file.commit() {
            Err(Error::WritesLost { ranges, .. }) => assert_eq!(ranges, std::slice::from_ref(&(0..5))),
            other => panic!("{other:?}"),
        }
    }

    // [CLI-30] [SESS-51]
    #[test]
    fn fast_request_cut_off_at_any_point_is_resent() {
        for before in [true, false] {
            for kind in [NULL, READ, WRITE, LOCK] {
                let world = World::new(3 + u64::from(before));
                let (session, _export, file) = opened(&world);
                world.once(opcode(kind), move |_| if before { Action::CutBefore } else { Action::CutAfter });
                let mut bytes = *b"abcdefgh";
                let Ran::Ended(op) = run(&session, &file, kind, &mut bytes) else { panic!("{kind:?}") };
                assert!(op.error.is_none(), "{kind:?}: {:?}", op.error);
                assert!(world.log().contains(&(opcode(kind), Flags::REPLAY)), "{kind:?}");
                assert_eq!(session.reconnects(), 1);
                match kind {
                    Wish::Move(TransferKind::Read) => assert_eq!(&bytes, b"12345678"),
                    Wish::Move(_) => assert_eq!(world.content("f"), b"abcdefgh"),
                    _ => {}
                }
                assert_eq!(places_used(&session), (0, 0));
                assert!(
                    matches!(run(&session, &file, kind, &mut bytes), Ran::Done(_)),
                    "{kind:?} afterwards"
                );
            }
        }
    }

    // [CLI-103] a write is idempotent, so a new session repeats it
    #[test]
    fn fast_request_of_a_lost_session_is_repeated() {
        for kind in [NULL, READ, WRITE, LOCK] {
            let world = World::new(5);
            let (session, _export, file) = opened(&world);
            world.once(opcode(kind), |_| Action::CrashBefore);
            let mut bytes = *b"abcdefgh";
            let Ran::Ended(op) = run(&session, &file, kind, &mut bytes) else { panic!("{kind:?}") };
            assert!(op.error.is_none(), "{kind:?}: {:?}", op.error);
            assert_eq!(places_used(&session), (0, 0));
        }
    }

    #[test]
    fn fast_request_that_the_server_refuses_ends_with_its_status() {
        let world = World::new(6);
        let (session, _export, file) = opened(&world);
        world.once(Opcode::Read, |header| {
            let mut head = [0; HEADER_SIZE];
            header.reply(Status::IO).encode(&mut head);
            Action::Say(head.to_vec(), Vec::new())
        });
        let Ran::Ended(op) = run(&session, &file, READ, &mut [0; 8]) else { panic!() };
        assert!(matches!(op.error.as_deref(), Some(Error::Status { status: Status::IO, .. })));
        assert_eq!(places_used(&session), (0, 0));
    }

    // [WIRE-139] in every byte of the reply's head
    #[test]
    fn fast_reply_that_is_broken_anywhere_is_judged_by_the_general_path() {
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
            match run(&session, &file, READ, &mut bytes) {
                Ran::Done(8) => assert!(harmless && &bytes == b"abcdefgh", "byte {place}"),
                Ran::Ended(op) => assert!(op.error.is_some() && !harmless, "byte {place}: {:?}", op.error),
                _ => panic!("byte {place}"),
            }
        }
    }

    #[test]
    fn fast_request_is_not_begun_where_it_would_not_be_alone() {
        let world = World::new(8);
        let (session, _export, file) = opened(&world);
        let begins = || !matches!(run(&session, &file, NULL, &mut []), Ran::NotBegun);
        assert!(begins());
        let in_flight = file.submit_read_at(vec![0; 8], 0);
        assert!(!begins(), "a request is in flight");
        in_flight.wait().into_result().unwrap();
        assert!(begins());
        session.owner.shared.contended.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(!begins(), "several threads use the session");
    }

    #[test]
    fn fast_request_with_a_time_limit_goes_the_general_path() {
        let world = World::new(9);
        let limited = Config { operation_timeout: Some(Duration::from_secs(1)), ..config() };
        let session = world.connect(&limited).unwrap();
        let (shared, memory) = (&session.owner.shared, RawMemory::of(&[]));
        let single = Single { wish: NULL, node: None, offset: 0, memory, range: None, path: IoPath::Inline };
        assert!(matches!(shared.attempt(shared.lock(), &single), Attempt::NotBegun(_)));
        session.ping().unwrap();
    }

    #[test]
    fn unanswered_fast_request_yields_the_session_to_another_thread() {
        let world = World::new(12);
        let (session, _export, file) = opened(&world);
        let (shared, before) = (&session.owner.shared, world.net().now());
        let caller = Arc::clone(shared);
        world.once(Opcode::Null, move |_| {
            caller.calls.holder.raise();
            Action::Ignore
        });
        let longest = shared.lock().signs.undated_sleep_max();
        match shared.attempt(shared.lock(), &single(&file, NULL, &mut [], IoPath::Inline)) {
            Attempt::InFlight(core, _, came) if matches!(*came, Came::Nothing) => drop(core),
            _ => panic!("it was answered, or not begun"),
        }
        let kept = world.net().now().saturating_sub(before);
        assert!(kept < longest, "{kept:?} of virtual time");
    }

    #[test]
    fn transfer_that_needs_cutting_or_a_buffer_is_not_begun() {
        let world = World::new(10);
        let (session, _export, file) = opened(&world);
        let max = session.agreed().read_inline_max as usize;
        let mut bytes = vec![0; max + 1];
        for (len, path, begins) in [
            (0, IoPath::Inline, true),
            (max, IoPath::Inline, true),
            (max + 1, IoPath::Inline, false),
            (8, IoPath::Bounced, false),
            (8, IoPath::DirectRegister, false),
        ] {
            let single = single(&file, READ, &mut bytes[..len], path);
            assert_eq!(session.owner.shared.lock().is_one_request(&single), begins, "{len} {path:?}");
        }
    }

    // A session that two threads used becomes one thread's again, and not too soon.
    #[test]
    fn session_shared_once_is_one_thread_s_again_after_many_operations_uncontended() {
        let world = World::new(11);
        let (session, _export, file) = opened(&world);
        session.owner.shared.contended.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut bytes = [0; 8];
        let mut operations = 0;
        while matches!(run(&session, &file, READ, &mut bytes), Ran::NotBegun) {
            file.read_at(&mut bytes, 0).unwrap();
            operations += 1;
            assert!(operations <= 128, "never");
        }
        assert_eq!(operations, 128);
    }

    // It has to have the lock to see its reply.
    #[test]
    fn session_stays_shared_while_another_thread_waits_for_its_operation() {
        let world = World::new(12);
        let (session, _export, file) = opened(&world);
        let shared = &session.owner.shared;
        shared.contended.store(true, std::sync::atomic::Ordering::Relaxed);
        shared.lock().followers = 1;
        let mut bytes = [0; 8];
        for _ in 0..1000 {
            file.read_at(&mut bytes, 0).unwrap();
        }
        assert!(shared.contended.load(std::sync::atomic::Ordering::Relaxed));
        shared.lock().followers = 0;
    }

    // Who the process is by then does not matter: the session is one user's.
    #[test]
    fn session_that_connects_again_is_of_who_began_it() {
        let world = World::new(13);
        let (session, _export, _file) = opened(&world);
        assert!(session.owner.shared.config.identity.is_some());
    }
}
