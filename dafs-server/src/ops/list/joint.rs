//! Transfers of a group, moved together by the one that came last: round by round, each member gives its next segments, and what lies
//! side by side in the file goes in one call. After Hong, You and Chung, "An Efficient MPI-IO for Noncontiguous Data Access over
//! InfiniBand", whose servers redistribute.
//!
//! Each member has its own reply. An error, a short write, a mandatory lock or a missing member ends the joint transfer. Each request then
//! continues alone. What a round has written is not written again: others may have changed it since.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use std::sync::Arc;

use dafs_proto::session::Effect;
use dafs_proto::transport::TransportError;
use dafs_proto::wire::{Lists, Sieve, Stability, Status};
use smallvec::SmallVec;

use super::{Progress, Worker};
use crate::shared::WorkerId;
use crate::storage::{FsResult, work};
use crate::worker::buffers::Buffer;
use crate::worker::flight::Call;
use crate::worker::flight::layout::WALKED_IN_A_STEP;
use crate::worker::flight::list::{CHUNK_PARTS_MAX, DataSide, List, Step};
use crate::worker::flight::meeting::{Group, Home, Met, Share};
use crate::worker::flight::transfer::TransferKind;
use crate::worker::operations::WaitsFor;
use crate::worker::requests::work::{Context, Fate, Work};
use crate::worker::sched::plans::PlanRoom;

/// Bytes of a round.
const ROUND_SIZE_MAX: u64 = 16 << 20;

#[derive(Debug)]
struct Joint {
    /// The list of the one that moves all.
    own: Box<List>,
    /// Its share, and those of the others; none once they have parted.
    shares: Vec<Share>,
    round: Option<Box<Round>>,
}

/// What is moved at once.
#[derive(Debug)]
struct Round {
    list: List,
    /// Bytes of each member.
    lens: SmallVec<[u64; 8]>,
    _plan: PlanRoom,
}

impl Worker {
    /// Begins a transfer of a group: it waits for the others, or is moved with them.
    pub(crate) fn begin_member(&mut self, call: &Call, mut list: Box<List>, group: &Group) {
        let identity = match self.identity(call) {
            Ok(identity) if list.data.side != DataSide::Buffers => identity,
            _ => return self.begin_work(call, list),
        };
        let home = Home { shared: Arc::clone(&self.shared), worker: self.id };
        let share = Share::of(&list, identity, home, self.operations.members());
        match self.operations.meetings().come(group, share, self.now) {
            Met::Alone => self.begin_work(call, list),
            Met::Waits(progress) => {
                list.step = Step::Joined;
                list.joined = Some(Arc::clone(&progress));
                let token = self.park(*call, WaitsFor::Work(list));
                // If it has parted already, its worker hears of that by mail.
                self.operations.members().wait(token, progress);
            }
            Met::Last(shares) => self.begin_work(call, Box::new(Joint { own: list, shares, round: None })),
        }
    }

    /// Members that go on by themselves are told.
    pub(crate) fn wake_parted(&mut self) {
        for token in self.operations.members().parted() {
            let Some(index) = self.operations.index_of(token) else { continue };
            let connection = self.operations[index].call.connection;
            if self.operations[index].forgotten || self.connections.find_mut(connection).is_none() {
                let operation = self.unpark(index);
                self.abandon(operation);
                continue;
            }
            self.connections.mark_dirty(connection);
            self.work_on(index, |work, at| work.on_turn(at));
        }
    }
}

impl Joint {
    /// The first is this one's.
    fn mover(&self) -> WorkerId {
        self.shares.first().map_or(WorkerId(0), Share::worker)
    }

    fn is_alone(&self) -> bool {
        self.shares.is_empty()
    }

    fn go_on(&mut self, at: &mut Context<'_>) -> Fate {
        loop {
            // Locks that keep one of them out may not do so to the others: each asks for itself.
            let is_locked = at.locks().are_mandatory();
            if self.round.is_none() && !is_locked && !self.misses_one() {
                let plan = at.plan_room();
                self.round = plan.and_then(|plan| self.next_round(plan)).map(Box::new);
            }
            let Some(round) = &mut self.round else { return self.part(at) };
            if is_locked && round.list.step == Step::Begin {
                // Its turn was over when it was planned: nothing of it has begun.
                return self.part(at);
            }
            if is_locked && !round.list.work.calls.has_stopped() {
                round.list.stop_before_next(Status::LOCKED);
            }
            match round.list.run(at) {
                Progress::Wait => return Fate::Waits,
                Progress::End(Ok(())) if round.list.done == round.list.request.len => self.end_round(),
                _ => return self.part(at),
            }
        }
    }

    /// A member has gone: nothing more is done with its memory.
    fn misses_one(&self) -> bool {
        // The first is this one's.
        self.shares.iter().skip(1).any(|share| share.progress.is_missed())
    }

    /// The next segments of every member, in one list; `None` when all is done.
    fn next_round(&mut self, plan: PlanRoom) -> Option<Round> {
        let members = self.shares.len() as u64;
        let (mut extents, mut lens) = (Vec::new(), SmallVec::new());
        let (mut memory, mut segments) = (SmallVec::new(), SmallVec::new());
        let mut sieve = self.own.request.sieve;
        for share in &mut self.shares {
            let done = share.progress.done();
            let len = share.next_len(CHUNK_PARTS_MAX / members).min(ROUND_SIZE_MAX / members);
            extents.extend(share.layout.slice(done, len));
            share.take_segments(len, memory.len(), &mut segments);
            memory.extend(share.memory.iter().cloned());
            lens.push(len);
            // What lies between its extents may belong to nobody of the group.
            sieve = if share.sieve == Sieve::Off { Sieve::Off } else { sieve };
        }
        if lens.iter().all(|len| *len == 0) {
            return None;
        }
        work::add(extents.len() / WALKED_IN_A_STEP);
        let (kind, node) = (self.own.request.kind, self.own.request.node);
        let lists = Lists { extents, segments: Vec::new() };
        let mut list = List::new(kind, node, lists, Stability::Unstable);
        (list.data.memory, list.data.segments, list.data.side) = (memory, segments, DataSide::Mapped);
        (list.request.sieve, list.gaps.account) = (sieve, self.own.gaps.account.take());
        Some(Round { list, lens, _plan: plan })
    }

    fn end_round(&mut self) {
        let Some(round) = self.round.take() else { return };
        for (share, len) in self.shares.iter().zip(&round.lens) {
            share.on_moved(*len, round.list.end);
        }
        self.own.gaps.account = round.list.gaps.account;
        if let Some(share) = self.shares.first() {
            (self.own.done, self.own.end) = (share.progress.done(), share.progress.end());
        }
    }

    /// All is done, or cannot be done together: each goes on by itself.
    fn part(&mut self, at: &mut Context<'_>) -> Fate {
        self.disperse();
        self.own.advance(at)
    }

    fn disperse(&mut self) {
        if let Some(round) = self.round.take() {
            for (share, written) in self.shares.iter().zip(round.written()) {
                share.on_moved(written, u64::MAX);
            }
            if let Some(share) = self.shares.first() {
                self.own.done = share.progress.done();
            }
            self.own.gaps.account = round.list.gaps.account;
        }
        let mover = self.mover();
        self.shares.drain(..).for_each(|share| share.part(mover));
    }
}

impl Round {
    /// Writes: bytes of each member that are in the file without a gap, once storage has nothing of it.
    fn written(&self) -> SmallVec<[u64; 8]> {
        if self.list.request.kind == TransferKind::Read || !self.list.work.calls.is_empty() {
            return SmallVec::new();
        }
        let mut from = 0;
        let of_member = |len: &u64| {
            let range = from..from + len;
            from = range.end;
            self.list.written_of(&range)
        };
        self.lens.iter().map(of_member).collect()
    }
}

impl Drop for Joint {
    fn drop(&mut self) {
        self.disperse();
    }
}

impl Work for Joint {
    fn advance(&mut self, at: &mut Context<'_>) -> Fate {
        if self.is_alone() { self.own.advance(at) } else { self.go_on(at) }
    }

    fn begin_again(&mut self, at: &mut Context<'_>) -> Fate {
        self.own.begin_again(at)
    }

    fn on_storage(&mut self, at: &mut Context<'_>, slot: u8, result: FsResult) -> Fate {
        let Some(round) = &mut self.round else { return self.own.on_storage(at, slot, result) };
        if let Some(len) = round.list.call_ended(slot, &result) {
            at.leaves_storage(len);
        }
        if at.connection().is_none() {
            if !round.list.work.calls.is_empty() {
                return Fate::Waits;
            }
            self.disperse();
            return Fate::Abandoned;
        }
        if round.list.step == Step::Storage {
            // It goes on in its turn.
            return Fate::Waits;
        }
        round.list.step = Step::Storage;
        self.go_on(at)
    }

    fn on_forgotten_step(&mut self, slot: u8, result: &FsResult) {
        match &mut self.round {
            // The others go on from what is written.
            Some(round) => drop(round.list.call_ended(slot, result)),
            None => self.own.on_forgotten_step(slot, result),
        }
    }

    fn on_rdma(&mut self, at: &mut Context<'_>, slot: u8, result: Result<(), TransportError>) -> Fate {
        self.own.on_rdma(at, slot, result)
    }

    fn on_buffers(&mut self, at: &mut Context<'_>, buffers: Vec<Buffer>, expired: bool) -> Fate {
        self.own.on_buffers(at, buffers, expired)
    }

    fn on_post_room(&mut self, at: &mut Context<'_>) -> Fate {
        if self.is_alone() { self.own.on_post_room(at) } else { Fate::Waits }
    }

    fn waits_for_storage(&self) -> bool {
        match &self.round {
            Some(round) => round.list.step == Step::Room,
            None => self.own.waits_for_storage(),
        }
    }

    fn on_storage_room(&mut self, at: &mut Context<'_>) -> Fate {
        let Some(round) = &mut self.round else { return self.own.on_storage_room(at) };
        round.list.step = Step::Storage;
        self.go_on(at)
    }

    fn in_storage(&self) -> bool {
        match &self.round {
            Some(round) => !round.list.work.calls.is_empty(),
            None => self.own.in_storage(),
        }
    }

    fn on_disconnected(&mut self) {
        match &mut self.round {
            // If its turn was to come, that went with the connection.
            Some(round) => round.list.step = Step::Submitted,
            None => self.own.on_disconnected(),
        }
    }

    fn effect(&self) -> Option<Effect> {
        let written = self.round.as_ref().and_then(|round| round.written().first().copied()).unwrap_or(0);
        match self.own.written() + written {
            0 => None,
            count => Some(Effect::Bytes(count, self.own.request.verifier)),
        }
    }

    fn into_buffers(mut self: Box<Self>) -> Vec<Buffer> {
        self.own.take_buffers()
    }
}
