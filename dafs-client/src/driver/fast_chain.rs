//! The fast path of a chain in a session that one thread has to itself: like that of a single request ([`super::fast_path`]), for all
//! links.

use std::sync::Arc;

use dafs_proto::session::Sent;
use dafs_proto::transport::{Head, Interrupt, Received};
use dafs_proto::wire::{FileHandle, Flags, Header, Status};
use smallvec::SmallVec;

use crate::driver::driven::Driven;
use crate::driver::fast_path::Came;
use crate::driver::{EndOnUnwind, Guard, SharedSession};
use crate::error::Result;
use crate::handle::node::Node;
use crate::op::Op;
use crate::op::chain::ChainWork;
use crate::op::named::Reply;
use crate::op::request::Request;

/// What is in flight of a chain.
#[derive(Default)]
struct Flight {
    /// By the number of the request.
    sent: SmallVec<[Sent; 4]>,
    answered: usize,
}

impl SharedSession {
    /// Runs a chain to its end. Blocks.
    pub(crate) fn run_chain(
        &self,
        core: Guard<'_>,
        node: &Arc<Node>,
        mut work: ChainWork,
    ) -> (ChainWork, Result<()>) {
        let is_in_the_way = self.config.operation_timeout.is_some() || self.is_shared_or_has_closes();
        let is_stale = node.is_stale() || work.seconds().any(|node| node.is_stale());
        if is_in_the_way || !core.is_idle() || is_stale {
            return self.run_locked(core, Op::chain(Arc::clone(node), work)).into_chain();
        }
        let unwinding = EndOnUnwind { shared: self };
        // Given back before that takes the lock.
        let mut core = core;
        let mut flight = core.send_chain(node, &mut work);
        let done = match core.await_chain(&mut work, &mut flight, &self.calls.holder) {
            Ok(()) => (work, Ok(())),
            Err(came) => self.end_chain_generally(core, Op::chain(Arc::clone(node), work), &flight, *came),
        };
        std::mem::forget(unwinding);
        done
    }

    /// The general path takes over, with what is in flight.
    #[cold]
    fn end_chain_generally(
        &self,
        mut core: Guard<'_>,
        mut op: Op,
        flight: &Flight,
        came: Came,
    ) -> (ChainWork, Result<()>) {
        let index = core.ops.vacant_key();
        for (at, sent) in flight.sent.iter().enumerate().skip(flight.answered) {
            let (opcode, order) = (op.request_opcode(at, 0), sent.order);
            let request = Request { op: index, opcode, order, at, len: 0, bounce: None, eager_buffer: None };
            core.note_request(sent.slot, request);
            op.outstanding += 1;
        }
        op.queued = op.has_more();
        if op.queued {
            core.queue.push_back(index);
        }
        core.ops.insert(op);
        self.end_as(core, index, came).into_chain()
    }
}

impl Driven {
    /// Sends the requests of a chain, as many as there is room for.
    fn send_chain(&mut self, node: &Node, work: &mut ChainWork) -> Flight {
        let mut flight = Flight::default();
        let Self { core, endpoint: Some(endpoint), .. } = self else { return flight };
        let wanted = core.demand.note(work.links.len());
        for at in 0..work.links.len() {
            let opcode = work.links[at].opcode;
            let mut header = Header::request(opcode, if at == 0 { node.handle() } else { FileHandle(0) });
            let Some(sent) = core.session.begin(&mut header, wanted) else { break };
            if work.send(endpoint, header, at).is_err() {
                core.session.take_back(sent.slot);
                break;
            }
            (core.signs.spoke, core.signs.heard) = (true, true);
            flight.sent.push(sent);
            work.sent = at + 1;
        }
        flight
    }

    /// Takes the replies, in their order; what came instead of one. Nothing, where another thread wants the session.
    fn await_chain(
        &mut self,
        work: &mut ChainWork,
        flight: &mut Flight,
        interrupt: &Interrupt,
    ) -> std::result::Result<(), Box<Came>> {
        if flight.sent.len() < work.links.len() {
            return Err(Came::Nothing.boxed());
        }
        self.unflushed = false;
        let longest = self.signs.undated_sleep_max();
        let mut must_wait = true;
        while let Some(sent) = flight.sent.get(flight.answered) {
            let Some(endpoint) = self.endpoint.as_mut() else { return Err(Came::Nothing.boxed()) };
            if must_wait && let Err(error) = endpoint.wait_or(Some(longest), Some(interrupt)) {
                return Err(Came::Broken(error).boxed());
            }
            match endpoint.recv() {
                Ok(Some(Received::Message { ref head, payload_len })) => {
                    if self.take_link_reply(work, flight.answered, sent, head, payload_len).is_none() {
                        return Err(Came::message(head, payload_len));
                    }
                    flight.answered += 1;
                    // Perhaps the next is there already.
                    must_wait = false;
                }
                // A message that was looked at is in the way of the next wait.
                Ok(None) if !must_wait => {
                    endpoint.recv_done();
                    must_wait = true;
                }
                Ok(_) => return Err(Came::Nothing.boxed()),
                Err(error) => return Err(Came::Broken(error).boxed()),
            }
        }
        if let Some(endpoint) = self.endpoint.as_mut() {
            endpoint.recv_done();
        }
        Ok(())
    }

    /// Takes the reply to a request of a chain; `None`, and nothing done, when the message is anything but a good one.
    fn take_link_reply(
        &mut self,
        work: &mut ChainWork,
        at: usize,
        sent: &Sent,
        head: &Head,
        payload_len: u32,
    ) -> Option<()> {
        let (header, body) = Header::decode(head.as_bytes(), payload_len).ok()?;
        if header.flags != Flags::REPLY || header.status != Status::OK || header.slot != sent.slot {
            return None;
        }
        let Self { core, endpoint: Some(endpoint), .. } = self else { return None };
        let (epoch, server_epoch) = (core.epoch, core.terms.loss_epoch);
        let reply = Reply { epoch, server_epoch, header: &header, head, body, payload: endpoint.payload() };
        work.on_reply(at, &reply).ok()?;
        core.session.on_reply(&header).ok()?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use dafs_proto::wire::{HEADER_SIZE, LockKind, Opcode};
    use dafs_tests::sim::Action;

    use crate::testing::World;
    use crate::{Chained, Error, Export, File, OpenOptions, Result, Session};

    use super::*;

    const LINKS: [Opcode; 4] = [Opcode::Lock, Opcode::Write, Opcode::Read, Opcode::Unlock];

    fn opened(session: &Session) -> (Export, File) {
        let export = session.mount("data").unwrap();
        let file = export.open_with("f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
        (export, file)
    }

    /// A request for each of [`LINKS`].
    fn run(file: &File, read: &mut [u8]) -> Result<Chained> {
        let chain = file.chain().lock(0..8, LockKind::Exclusive).write_at(b"abcdefgh", 0);
        chain.read_at(read, 4).unlock(0..8).run()
    }

    fn is_in_place(session: &Session) -> bool {
        let core = session.owner.shared.lock();
        core.ops.is_empty() && core.requests.iter().flatten().count() == 0 && core.session.outstanding() == 0
    }

    // Behind each test below: without this they would not be about the fast path.
    #[test]
    fn chain_of_an_idle_session_needs_no_place_among_the_operations() {
        let world = World::new(1);
        let session = world.session();
        let (_export, file) = opened(&session);
        // The first asks for as many credits as it needs.
        run(&file, &mut [0; 4]).unwrap();
        let mut read = [0; 4];
        let chain = file.chain().lock(0..8, LockKind::Exclusive).write_at(b"ABCDEFGH", 0);
        let mut work = ChainWork::new(chain.read_at(&mut read, 4).unlock(0..8).into_links());
        let mut core = session.owner.shared.lock();
        assert!(core.is_idle());
        let mut flight = core.send_chain(&file.node, &mut work);
        assert!(core.await_chain(&mut work, &mut flight, &session.owner.shared.calls.holder).is_ok());
        assert_eq!((flight.sent.len(), flight.answered), (4, 4));
        drop(core);
        assert_eq!((&read, world.content("f")), (b"EFGH", b"ABCDEFGH".to_vec()));
        assert!(is_in_place(&session));
    }

    // [CLI-30] [SESS-51] [SESS-139]
    #[test]
    fn chain_cut_off_at_any_request_is_completed() {
        for opcode in LINKS {
            for before in [true, false] {
                let world = World::new(3 + u64::from(before));
                let session = world.session();
                let (_export, file) = opened(&session);
                run(&file, &mut [0; 4]).unwrap();
                file.write_at(&[0; 8], 0).unwrap();
                world.once(opcode, move |_| if before { Action::CutBefore } else { Action::CutAfter });
                let mut read = [0; 4];
                let done = run(&file, &mut read).unwrap();
                assert_eq!((done.counts, &read), (vec![8, 4], b"efgh"), "{opcode:?} {before}");
                assert_eq!(world.content("f"), b"abcdefgh");
                assert_eq!(session.reconnects(), 1, "{opcode:?} {before}");
                assert!(
                    is_in_place(&session) && file.test_lock(0..8, LockKind::Exclusive).unwrap().is_none()
                );
                run(&file, &mut read).unwrap();
            }
        }
    }

    // [CLI-103] a lock and a read are repeated in the new session
    #[test]
    fn chain_in_a_session_that_the_server_lost_is_run_again() {
        for opcode in [Opcode::Lock, Opcode::Read, Opcode::Unlock] {
            let world = World::new(5);
            let session = world.session();
            let (_export, file) = opened(&session);
            run(&file, &mut [0; 4]).unwrap();
            file.commit().unwrap();
            world.once(opcode, |_| Action::CrashBefore);
            let mut read = [0; 4];
            file.chain().lock(0..8, LockKind::Shared).read_at(&mut read, 4).unlock(0..8).run().unwrap();
            assert_eq!(&read, b"efgh", "{opcode:?}");
            assert!(is_in_place(&session));
        }
    }

    // [SESS-140] [CLI-125]
    #[test]
    fn chain_that_may_have_changed_what_it_locked_is_not_run_again() {
        for opcode in LINKS {
            let world = World::new(10);
            let (session, other) = (world.session(), world.session());
            let ((_export, file), (_other, shared)) = (opened(&session), opened(&other));
            run(&file, &mut [0; 4]).unwrap();
            world.once(opcode, |_| Action::CrashBefore);
            let outcome = run(&file, &mut [0; 4]);
            assert!(matches!(outcome, Err(Error::InDoubt { .. })), "{opcode:?}: {outcome:?}");
            shared
                .chain()
                .lock(0..8, LockKind::Exclusive)
                .write_at(b"another!", 0)
                .unlock(0..8)
                .run()
                .unwrap();
            file.test_lock(0..8, LockKind::Exclusive).unwrap();
            assert_eq!(world.content("f"), b"another!", "{opcode:?}");
            assert!(is_in_place(&session));
        }
    }

    #[test]
    fn chain_of_which_a_request_is_refused_ends_with_its_status() {
        for opcode in LINKS {
            let world = World::new(6);
            let session = world.session();
            let (_export, file) = opened(&session);
            run(&file, &mut [0; 4]).unwrap();
            world.once(opcode, |header| {
                let mut head = [0; HEADER_SIZE];
                header.reply(Status::IO).encode(&mut head);
                Action::Say(head.to_vec(), Vec::new())
            });
            let refused = run(&file, &mut [0; 4]);
            assert!(
                matches!(refused, Err(Error::Status { status: Status::IO, .. })),
                "{opcode:?}: {refused:?}"
            );
            assert!(is_in_place(&session));
        }
    }

    // [WIRE-139] in every byte of a reply's head
    #[test]
    fn broken_chain_reply_is_judged_by_the_general_path() {
        for place in 0..HEADER_SIZE {
            let world = World::new(7);
            let session = world.session();
            let (_export, file) = opened(&session);
            run(&file, &mut [0; 4]).unwrap();
            world.once(Opcode::Unlock, move |header| {
                let mut head = [0; HEADER_SIZE];
                header.reply(Status::OK).encode(&mut head);
                head[place] ^= 0x40;
                Action::Say(head.to_vec(), Vec::new())
            });
            // The handle, the credits and the deadline of a reply mean nothing, or anything.
            let harmless = matches!(place, 12 | 13 | 24..36);
            let outcome = run(&file, &mut [0; 4]);
            assert_eq!(outcome.is_ok(), harmless, "byte {place}: {outcome:?}");
        }
    }

    #[test]
    fn chain_short_of_credits_continues_after_the_fast_path() {
        let world = World::new(8);
        let session = world.session();
        let (_export, file) = opened(&session);
        run(&file, &mut [0; 4]).unwrap();
        let (shared, mut read) = (&session.owner.shared, [0; 4]);
        let chain = file.chain().lock(0..8, LockKind::Exclusive).write_at(b"abcdefgh", 0);
        let mut work = ChainWork::new(chain.read_at(&mut read, 4).unlock(0..8).into_links());
        let mut core = shared.lock();
        let null = || Header::request(Opcode::Null, FileHandle(0));
        let mut taken: Vec<Sent> = std::iter::from_fn(|| core.session.begin(&mut null(), 1)).collect();
        taken.drain(..2).for_each(|sent| core.session.take_back(sent.slot));
        let mut flight = core.send_chain(&file.node, &mut work);
        assert!(core.await_chain(&mut work, &mut flight, &shared.calls.holder).is_err());
        assert_eq!((flight.sent.len(), flight.answered, work.sent), (2, 0, 2));
        taken.iter().for_each(|sent| core.session.take_back(sent.slot));
        let op = Op::chain(Arc::clone(&file.node), work);
        let (work, ended) = shared.end_chain_generally(core, op, &flight, Came::Nothing);
        ended.unwrap();
        assert!(work.links.iter().all(|link| link.answer.is_some()) && is_in_place(&session));
        assert_eq!(&read, b"efgh");
    }

    #[test]
    fn chain_that_waits_gives_the_session_back_when_another_thread_wants_it() {
        let world = World::new(9);
        let (holder, session) = (world.session(), world.session());
        let ((_export, held), (_other, file)) = (opened(&holder), opened(&session));
        run(&file, &mut [0; 4]).unwrap();
        held.lock(0..1, LockKind::Shared).unwrap();
        let (shared, node) = (&session.owner.shared, &file.node);
        let lock = file.chain().lock(0..8, LockKind::Exclusive).unlock(0..8);
        let mut work = ChainWork::new(lock.into_links());
        let before = world.net().now();
        let caller = Arc::clone(shared);
        world.once(Opcode::Lock, move |_| {
            caller.calls.holder.raise();
            Action::Serve
        });
        let mut core = shared.lock();
        let mut flight = core.send_chain(node, &mut work);
        let came = core.await_chain(&mut work, &mut flight, &shared.calls.holder);
        assert!(came.is_err_and(|came| matches!(*came, Came::Nothing)) && flight.answered == 0);
        let kept = world.net().now().saturating_sub(before);
        assert!(kept < core.signs.undated_sleep_max(), "{kept:?} of virtual time");
        held.unlock(0..1).unwrap();
        let op = Op::chain(Arc::clone(node), work);
        let (_, ended) = shared.end_chain_generally(core, op, &flight, Came::Nothing);
        ended.unwrap();
        assert!(is_in_place(&session));
    }
}
