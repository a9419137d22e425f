//! Requests of one group that wait for each other, to be moved together: who has come, and what each learns of what is done for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use dafs_proto::session::Moment;
use dafs_proto::transport::{MemoryRef, OpToken};
use dafs_proto::wire::Sieve;
use smallvec::SmallVec;

use super::layout::Layout;
use super::list::{List, Segment};
use crate::storage::{Identity, LockKey};

/// Members of a group that is waited for.
pub(crate) const MEMBERS_MAX: u32 = 64;
/// Segments of a member's transfer that is worth waiting for: below, being woken costs more than one call for all saves (measured, four
/// processes on two CPUs).
pub(crate) const SEGMENTS_MIN: u64 = 4096;
/// How long the first of a group waits for the others.
const PATIENCE: Duration = Duration::from_millis(20);
/// After a group that did not become complete, so many groups are not waited for.
const GROUPS_NOT_AWAITED: u32 = 32;

/// What belongs together: requests of one group in one direction, of one file, of clients that act as one user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub(crate) number: u64,
    pub(crate) size: u32,
    pub(crate) file: LockKey,
    pub(crate) writes: bool,
}

/// What is done for a member of a group by another.
#[derive(Debug)]
pub(crate) struct Progress {
    state: AtomicU8,
    done: AtomicU64,
    end: AtomicU64,
}

/// It waits for others.
const GATHERS: u8 = 0;
/// One of them moves its data.
const MOVES: u8 = 1;
/// It goes on by itself.
const PARTED: u8 = 2;

impl Default for Progress {
    fn default() -> Self {
        Self { state: AtomicU8::new(GATHERS), done: AtomicU64::new(0), end: AtomicU64::new(u64::MAX) }
    }
}

impl Progress {
    /// Storage may have its memory.
    pub(crate) fn is_moved(&self) -> bool {
        self.state.load(Ordering::Relaxed) == MOVES
    }

    pub(crate) fn has_parted(&self) -> bool {
        self.state.load(Ordering::Relaxed) == PARTED
    }

    /// Bytes of it that are done with.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Where the file ended, as far as that was met.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    fn be(&self, state: u8) {
        self.state.store(state, Ordering::Relaxed);
    }
}

/// A member's part in what is moved together.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) token: OpToken,
    pub(crate) progress: Arc<Progress>,
    pub(crate) layout: Layout,
    pub(crate) len: u64,
    pub(crate) sieve: Sieve,
    pub(crate) memory: SmallVec<[MemoryRef; 1]>,
    /// What is not moved yet.
    segments: SmallVec<[Segment; 1]>,
    first: usize,
    identity: Identity,
}

impl Share {
    /// Of a list that has all of its memory and of which `done` bytes are done.
    pub(crate) fn of(list: &List, token: OpToken, identity: Identity) -> Self {
        let progress = Arc::new(Progress::default());
        progress.done.store(list.done, Ordering::Relaxed);
        let mut share = Self {
            token,
            progress,
            layout: list.request.layout.clone(),
            len: list.request.len,
            sieve: list.request.sieve,
            memory: list.data.memory.clone(),
            segments: list.data.segments.clone(),
            first: 0,
            identity,
        };
        share.take_segments(list.done, 0, &mut SmallVec::new());
        share
    }

    /// Bytes that come next, at most so many segments.
    pub(crate) fn next_len(&self, segments_max: u64) -> u64 {
        let done = self.progress.done();
        self.layout.fit(done, self.len - done, segments_max)
    }

    /// Takes the memory of the next `len` bytes; the first memory of its own has number `base` there.
    #[allow(clippy::cast_possible_truncation, reason = "bounded by a segment's length")]
    pub(crate) fn take_segments(&mut self, mut len: u64, base: usize, into: &mut SmallVec<[Segment; 1]>) {
        while len > 0
            && let Some(next) = self.segments.get_mut(self.first)
        {
            let taken = (next.len as u64).min(len) as usize;
            into.push(Segment { memory: base + next.memory, offset: next.offset, len: taken });
            (next.offset, next.len) = (next.offset + taken, next.len - taken);
            self.first += usize::from(next.len == 0);
            len -= taken as u64;
        }
    }

    /// So many bytes more are done, of a file that ends there or behind.
    pub(crate) fn on_moved(&self, len: u64, end: u64) {
        self.progress.done.fetch_add(len, Ordering::Relaxed);
        self.progress.end.fetch_min(end, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self) {
        self.progress.be(MOVES);
    }

    /// It goes on by itself, once somebody looks at it.
    pub(crate) fn part(&self) {
        self.progress.be(PARTED);
    }
}

#[derive(Debug)]
struct Meeting {
    until: Moment,
    shares: Vec<Share>,
}

/// The groups of which some are here.
#[derive(Debug, Default)]
pub(crate) struct Meetings {
    open: HashMap<Group, Meeting>,
    /// Members that another moves.
    moved: Vec<(OpToken, Arc<Progress>)>,
    /// So many groups are not waited for.
    not_awaited: u32,
    /// Those that lately were not, and how many members of each are still to come. Never more than [`GROUPS_NOT_AWAITED`].
    let_by: VecDeque<(Group, u32)>,
}

impl Meetings {
    /// Members are here that may have to be woken.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.moved.is_empty()
    }

    /// Whether a request of a group is to wait for the others, or is the last of them.
    pub(crate) fn awaits(&mut self, group: &Group, identity: &Identity) -> bool {
        let is_one = |share: &Share| share.identity == *identity;
        match self.open.get(group) {
            Some(meeting) => meeting.shares.first().is_none_or(is_one),
            None => !self.lets_by(group),
        }
    }

    /// After a group that stayed incomplete whole groups go alone: with some of its members gone the others would wait in vain.
    fn lets_by(&mut self, group: &Group) -> bool {
        if let Some(place) = self.let_by.iter().position(|(known, _)| known == group) {
            let (_, to_come) = &mut self.let_by[place];
            *to_come -= 1;
            if *to_come == 0 {
                self.let_by.remove(place);
            }
            return true;
        }
        if self.not_awaited == 0 {
            return false;
        }
        self.not_awaited -= 1;
        if self.let_by.len() == GROUPS_NOT_AWAITED as usize {
            self.let_by.pop_front();
        }
        if group.size > 1 {
            self.let_by.push_back((group.clone(), group.size - 1));
        }
        true
    }

    /// Those who wait, with those taken out of whom nobody is there any more.
    pub(crate) fn present(&mut self, group: &Group, is_live: impl Fn(OpToken) -> bool) -> usize {
        let Some(meeting) = self.open.get_mut(group) else { return 0 };
        meeting.shares.retain(|share| is_live(share.token));
        let count = meeting.shares.len();
        if count == 0 {
            // Who comes next is the first, and waits as long.
            self.open.remove(group);
        }
        count
    }

    /// One comes and waits.
    pub(crate) fn wait(&mut self, group: Group, share: Share, now: Moment) {
        let until = now.after(PATIENCE);
        self.open.entry(group).or_insert_with(|| Meeting { until, shares: Vec::new() }).shares.push(share);
    }

    /// The last has come: the others are moved with it.
    pub(crate) fn begin(&mut self, group: &Group) -> Vec<Share> {
        let shares = self.open.remove(group).map(|meeting| meeting.shares).unwrap_or_default();
        for share in &shares {
            share.begin();
            self.moved.push((share.token, Arc::clone(&share.progress)));
        }
        shares
    }

    /// When the first of those who wait has waited long enough.
    pub(crate) fn due(&self) -> Option<Moment> {
        self.open.values().map(|meeting| meeting.until).min()
    }

    /// Gives up groups that are not complete.
    pub(crate) fn end_overdue(&mut self, now: Moment) {
        let (moved, not_awaited) = (&mut self.moved, &mut self.not_awaited);
        self.open.retain(|group, meeting| {
            let is_over = meeting.until <= now || meeting.shares.is_empty();
            if is_over && !meeting.shares.is_empty() {
                *not_awaited = GROUPS_NOT_AWAITED;
                tracing::debug!(
                    group.number,
                    group.size,
                    here = meeting.shares.len(),
                    "a group is incomplete"
                );
            }
            for share in meeting.shares.iter().filter(|_| is_over) {
                share.part();
                moved.push((share.token, Arc::clone(&share.progress)));
            }
            !is_over
        });
    }

    /// Those who go on by themselves, once each.
    pub(crate) fn parted(&mut self) -> Vec<OpToken> {
        let gone = self.moved.extract_if(.., |(_, progress)| progress.has_parted());
        gone.map(|(token, _)| token).collect()
    }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::{Lists, Stability};

    use super::*;
    use crate::storage::{ExportId, NodeId};
    use crate::worker::flight::transfer::TransferKind;

    fn group(number: u32, size: u32) -> Group {
        let file = LockKey { fs: 1, file: 1, generation: 0 };
        Group { number: number.into(), size, file, writes: true }
    }

    fn share(token: u64, identity: &Identity) -> Share {
        let node = NodeId { export: ExportId(0), index: 0, generation: 0 };
        let list = List::new(TransferKind::Write, node, Lists::default(), Stability::Unstable);
        Share::of(&list, OpToken(token), identity.clone())
    }

    // [VIEW-13] Sizes of the first are not multiples of each other.
    #[test]
    fn whole_groups_go_alone_after_one_that_stayed_incomplete() {
        let identity = Identity { uid: 1, gid: 1, groups: Arc::new([]) };
        for size in [1, 2, 3, 5, 64] {
            let mut meetings = Meetings::default();
            let group = |number| group(number, size);
            let (incomplete, now) = (u32::MAX, Moment::default());
            assert!(meetings.awaits(&group(incomplete), &identity));
            meetings.wait(group(incomplete), share(0, &identity), now);
            meetings.end_overdue(now.after(PATIENCE));
            let mut awaited = |number| meetings.awaits(&group(number), &identity);
            // Their members come one after the other, and those of two groups in turn.
            for number in (0..GROUPS_NOT_AWAITED).step_by(2) {
                for member in 0..size {
                    assert!(!awaited(number) && !awaited(number + 1), "member {member} of {number}, {size}");
                }
            }
            for number in [GROUPS_NOT_AWAITED, GROUPS_NOT_AWAITED + 1, 0] {
                assert!(awaited(number), "group {number} of {size}");
            }
        }
    }

    // [VIEW-13]
    #[test]
    fn group_restarts_its_wait_when_all_members_have_gone() {
        let identity = |uid| Identity { uid, gid: 1, groups: Arc::new([]) };
        let mut meetings = Meetings::default();
        let (group, now) = (group(1, 2), Moment::default());
        let after = |ms| now.after(Duration::from_millis(ms));
        meetings.wait(group.clone(), share(0, &identity(1)), now);
        assert_eq!(meetings.present(&group, |_| false), 0);
        assert!(meetings.is_empty());
        assert!(meetings.awaits(&group, &identity(2)), "who has gone was somebody else");
        meetings.wait(group.clone(), share(1, &identity(2)), after(19));
        meetings.end_overdue(after(38));
        assert_eq!((meetings.parted().len(), meetings.present(&group, |_| true)), (0, 1));
        meetings.end_overdue(after(39));
        assert_eq!(meetings.parted(), [OpToken(1)]);
    }
}
