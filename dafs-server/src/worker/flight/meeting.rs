//! Requests of one group that wait for each other, to be moved together: who has come, and what each learns of what is done for it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_proto::session::Moment;
use dafs_proto::transport::util::lock;
use dafs_proto::transport::{MemoryRef, OpToken};
use dafs_proto::wire::Sieve;
use smallvec::SmallVec;

use super::layout::Layout;
use super::list::{List, Segment};
use crate::shared::mail::Mail;
use crate::shared::{ServerState, WorkerId};
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

/// What is done for a member of a group by another, perhaps by another worker.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Whoever sees that it has parted sees the rest, and what was done to its memory.
    state: AtomicU8,
    done: AtomicU64,
    end: AtomicU64,
    /// Its worker is to look at its members: one waits no more.
    news: Arc<AtomicBool>,
}

/// It waits for others.
const GATHERS: u8 = 0;
/// One of them moves its data.
const MOVES: u8 = 1;
/// The same, and its client has gone.
const MISSED: u8 = 2;
/// It goes on by itself.
const PARTED: u8 = 3;
/// Its client went before anybody moved its data.
const GONE: u8 = 4;

impl Progress {
    fn new(done: u64, news: Arc<AtomicBool>) -> Self {
        let (state, end) = (AtomicU8::new(GATHERS), AtomicU64::new(u64::MAX));
        Self { state, done: AtomicU64::new(done), end, news }
    }

    /// Storage may have its memory.
    pub(crate) fn is_moved(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), MOVES | MISSED)
    }

    pub(crate) fn has_parted(&self) -> bool {
        self.state.load(Ordering::Acquire) == PARTED
    }

    /// Its client went while its data was moved.
    pub(crate) fn is_missed(&self) -> bool {
        self.state.load(Ordering::Acquire) == MISSED
    }

    /// Its client has gone. Whether nobody has its memory, and nobody gets it any more: else it has to stay until it has parted.
    pub(crate) fn lets_go(&self) -> bool {
        if self.turns(GATHERS, GONE) {
            self.news.store(true, Ordering::Release);
            return true;
        }
        !(self.turns(MOVES, MISSED) || self.is_moved())
    }

    /// Bytes of it that are done with.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Where the file ended, as far as that was met.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    fn has_gone(&self) -> bool {
        self.state.load(Ordering::Acquire) == GONE
    }

    fn gathers(&self) -> bool {
        self.state.load(Ordering::Acquire) == GATHERS
    }

    fn turns(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn part(&self) {
        self.state.store(PARTED, Ordering::Release);
        self.news.store(true, Ordering::Release);
    }
}

/// The worker of a member.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) shared: Arc<ServerState>,
    pub(crate) worker: WorkerId,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.worker.fmt(f)
    }
}

/// A member's part in what is moved together.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) progress: Arc<Progress>,
    pub(crate) layout: Layout,
    pub(crate) len: u64,
    pub(crate) sieve: Sieve,
    pub(crate) memory: SmallVec<[MemoryRef; 1]>,
    /// What is not moved yet.
    segments: SmallVec<[Segment; 1]>,
    first: usize,
    identity: Identity,
    home: Home,
}

impl Share {
    /// Of a list that has all of its memory and of which `done` bytes are done.
    pub(crate) fn of(list: &List, identity: Identity, home: Home, members: &Members) -> Self {
        let mut share = Self {
            progress: Arc::new(Progress::new(list.done, Arc::clone(&members.news))),
            layout: list.request.layout.clone(),
            len: list.request.len,
            sieve: list.request.sieve,
            memory: list.data.memory.clone(),
            segments: list.data.segments.clone(),
            first: 0,
            identity,
            home,
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

    /// Whether its data may be moved from now on: its client may have gone.
    fn begin(&self) -> bool {
        self.progress.turns(GATHERS, MOVES)
    }

    /// Who has it.
    pub(crate) fn worker(&self) -> WorkerId {
        self.home.worker
    }

    /// It goes on by itself, once its worker looks at it. Who has moved it is another worker than that, or the same.
    pub(crate) fn part(&self, mover: WorkerId) {
        self.progress.part();
        if mover != self.home.worker {
            self.home.shared.send(self.home.worker, Mail::Parted);
        }
    }
}

/// What becomes of a member that comes.
pub(crate) enum Met {
    /// It goes on by itself.
    Alone,
    /// It waits for others.
    Waits(Arc<Progress>),
    /// It is the last: it moves these, of whom it is the first.
    Last(Vec<Share>),
}

#[derive(Debug)]
struct Meeting {
    until: Moment,
    shares: Vec<Share>,
}

/// The groups of which some are here, of all workers.
#[derive(Debug, Default)]
pub struct Meetings {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<Group, Meeting>,
    /// So many groups are not waited for.
    not_awaited: u32,
    /// Those that lately were not, and how many members of each are still to come. Never more than [`GROUPS_NOT_AWAITED`].
    let_by: VecDeque<(Group, u32)>,
}

impl Meetings {
    /// A member comes.
    pub(crate) fn come(&self, group: &Group, share: Share, now: Moment) -> Met {
        let mut table = lock(&self.table);
        let present = table.present(group);
        if !table.awaits(group, &share.identity) {
            return Met::Alone;
        }
        if present + 1 < group.size as usize {
            let progress = Arc::clone(&share.progress);
            table.wait(group.clone(), share, now);
            return Met::Waits(progress);
        }
        let others = table.open.remove(group).map(|meeting| meeting.shares).unwrap_or_default();
        Met::Last(std::iter::once(share).chain(others.into_iter().filter(Share::begin)).collect())
    }

    /// When the first of those who wait has waited long enough.
    pub(crate) fn due(&self) -> Option<Moment> {
        lock(&self.table).open.values().map(|meeting| meeting.until).min()
    }

    /// Gives up groups that are not complete. This worker has looked.
    pub(crate) fn end_overdue(&self, now: Moment, worker: WorkerId) {
        let mut table = lock(&self.table);
        let Table { open, not_awaited, .. } = &mut *table;
        open.retain(|group, meeting| {
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
            // One that has gone is nobody's.
            for share in meeting.shares.iter().filter(|share| is_over && share.begin()) {
                share.part(worker);
            }
            !is_over
        });
    }
}

impl Table {
    /// Whether a request of a group is to wait for the others, or is the last of them.
    fn awaits(&mut self, group: &Group, identity: &Identity) -> bool {
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

    /// One comes and waits.
    fn wait(&mut self, group: Group, share: Share, now: Moment) {
        let until = now.after(PATIENCE);
        self.open.entry(group).or_insert_with(|| Meeting { until, shares: Vec::new() }).shares.push(share);
    }

    /// Those who wait, with those taken out of whom nobody is there any more.
    fn present(&mut self, group: &Group) -> usize {
        let Some(meeting) = self.open.get_mut(group) else { return 0 };
        meeting.shares.retain(|share| share.progress.gathers());
        let count = meeting.shares.len();
        if count == 0 {
            // Who comes next is the first, and waits as long.
            self.open.remove(group);
        }
        count
    }
}

/// The members of one worker, which wait or are moved.
#[derive(Debug, Default)]
pub(crate) struct Members {
    all: Vec<(OpToken, Arc<Progress>)>,
    news: Arc<AtomicBool>,
}

impl Members {
    /// One waits, under this token.
    pub(crate) fn wait(&mut self, token: OpToken, progress: Arc<Progress>) {
        self.all.push((token, progress));
    }

    /// None.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Some of them wait no more.
    #[inline]
    pub(crate) fn have_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// Those who go on by themselves, once each.
    pub(crate) fn parted(&mut self) -> Vec<OpToken> {
        // Before they are looked at: one that parts meanwhile is seen now, or is news again.
        self.news.swap(false, Ordering::AcqRel);
        let mut parted = Vec::new();
        self.all.retain(|(token, progress)| {
            let has_parted = progress.has_parted();
            parted.extend(has_parted.then_some(*token));
            !(has_parted || progress.has_gone())
        });
        parted
    }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::{Lists, Stability};

    use super::*;
    use crate::config::Config;
    use crate::storage::{ExportId, NodeId};
    use crate::worker::flight::transfer::TransferKind;

    fn group(number: u32, size: u32) -> Group {
        let file = LockKey { fs: 1, file: 1, generation: 0 };
        Group { number: number.into(), size, file, writes: true }
    }

    fn user(uid: u32) -> Identity {
        Identity { uid, gid: 1, groups: Arc::new([]) }
    }

    /// Two workers with their members, and what they share.
    struct Two {
        meetings: Meetings,
        members: [Members; 2],
        state: Arc<ServerState>,
    }

    impl Two {
        fn new() -> Self {
            let state = ServerState::new(Config::default(), 1, 2);
            Self { meetings: Meetings::default(), members: Default::default(), state }
        }

        fn share(&self, worker: usize, user: Identity) -> Share {
            let node = NodeId { export: ExportId(0), index: 0, generation: 0 };
            let list = List::new(TransferKind::Write, node, Lists::default(), Stability::Unstable);
            let home = Home { shared: Arc::clone(&self.state), worker: WorkerId(worker) };
            Share::of(&list, user, home, &self.members[worker])
        }

        /// A member of a worker comes, as its first user, and waits under this token.
        fn waits(&mut self, group: &Group, worker: usize, token: u64, now: Moment) -> Arc<Progress> {
            match self.meetings.come(group, self.share(worker, user(1)), now) {
                Met::Waits(progress) => {
                    self.members[worker].wait(OpToken(token), Arc::clone(&progress));
                    progress
                }
                _ => panic!("it does not wait"),
            }
        }

        fn comes_last(&self, group: &Group, worker: usize) -> Vec<Share> {
            match self.meetings.come(group, self.share(worker, user(1)), Moment::default()) {
                Met::Last(shares) => shares,
                _ => panic!("it is not the last"),
            }
        }

        fn mails(&self, worker: usize) -> usize {
            let inbox = self.state.inbox(WorkerId(worker));
            std::iter::from_fn(|| inbox.take()).filter(|mail| matches!(mail, Mail::Parted)).count()
        }
    }

    // [VIEW-13] Sizes of the first are not multiples of each other.
    #[test]
    fn whole_groups_go_alone_after_one_that_stayed_incomplete() {
        for size in [1, 2, 3, 5, 64] {
            let two = Two::new();
            let group = |number| group(number, size);
            let (incomplete, now) = (u32::MAX, Moment::default());
            let awaits = |number| lock(&two.meetings.table).awaits(&group(number), &user(1));
            assert!(awaits(incomplete));
            lock(&two.meetings.table).wait(group(incomplete), two.share(0, user(1)), now);
            two.meetings.end_overdue(now.after(PATIENCE), WorkerId(1));
            // Their members come one after the other, and those of two groups in turn.
            for number in (0..GROUPS_NOT_AWAITED).step_by(2) {
                for member in 0..size {
                    assert!(!awaits(number) && !awaits(number + 1), "member {member} of {number}, {size}");
                }
            }
            for number in [GROUPS_NOT_AWAITED, GROUPS_NOT_AWAITED + 1, 0] {
                assert!(awaits(number), "group {number} of {size}");
            }
        }
    }

    // [VIEW-13]
    #[test]
    fn group_restarts_its_wait_when_all_members_have_gone() {
        let mut two = Two::new();
        let (group, now) = (group(1, 2), Moment::default());
        let after = |ms| now.after(Duration::from_millis(ms));
        assert!(two.waits(&group, 0, 0, now).lets_go());
        assert!(two.members[0].have_news() && two.members[0].parted().is_empty());
        assert!(two.members[0].is_empty());
        let another = two.share(0, user(2));
        let Met::Waits(progress) = two.meetings.come(&group, another, after(19)) else {
            panic!("who has gone was somebody else")
        };
        two.members[0].wait(OpToken(1), progress);
        two.meetings.end_overdue(after(38), WorkerId(0));
        assert_eq!(two.members[0].parted(), []);
        assert_eq!(two.meetings.due(), Some(after(39)));
        two.meetings.end_overdue(after(39), WorkerId(0));
        assert_eq!((two.members[0].parted(), two.meetings.due()), (vec![OpToken(1)], None));
    }

    // [VIEW-15] Its worker hears of it by mail, for which it may sleep; the mover's own looks without.
    #[test]
    fn members_of_another_worker_hear_by_mail_when_they_part() {
        let mut two = Two::new();
        let (group, now) = (group(1, 3), Moment::default());
        let near = two.waits(&group, 0, 1, now);
        let far = two.waits(&group, 1, 2, now);
        let shares = two.comes_last(&group, 0);
        assert_eq!(shares.len(), 3);
        assert!(near.is_moved() && far.is_moved());
        assert!([0, 1].iter().all(|worker| !two.members[*worker].have_news()));
        shares.into_iter().for_each(|share| share.part(WorkerId(0)));
        assert_eq!([0, 1].map(|worker| two.mails(worker)), [0, 1]);
        for (worker, token) in [(0, 1), (1, 2)] {
            assert!(two.members[worker].have_news());
            assert_eq!(two.members[worker].parted(), [OpToken(token)]);
            assert!(two.members[worker].is_empty() && !two.members[worker].have_news());
        }
    }

    // [VIEW-13]
    #[test]
    fn client_that_goes_keeps_its_memory_there_while_another_moves_it() {
        let mut two = Two::new();
        let (group, now) = (group(1, 3), Moment::default());
        let gone = two.waits(&group, 1, 1, now);
        let stays = two.waits(&group, 1, 2, now);
        assert!(gone.lets_go());
        let late = two.waits(&group, 0, 3, now);
        // Nobody counts one that has gone: the next is the third.
        let shares = two.comes_last(&group, 0);
        assert_eq!(shares.len(), 3);
        assert!(!gone.is_moved() && stays.is_moved() && late.is_moved());
        assert!(!stays.lets_go() && stays.is_missed() && stays.is_moved() && !late.is_missed());
        assert!(!stays.lets_go(), "however often it is asked");
        shares.into_iter().for_each(|share| share.part(WorkerId(0)));
        assert!(stays.lets_go() && stays.has_parted());
        assert_eq!(two.members[1].parted(), [OpToken(2)]);
        assert!(two.members[1].is_empty());
    }

    // [VIEW-13] A client goes between the count of those who are here and the beginning.
    #[test]
    fn member_that_goes_at_the_last_moment_is_not_moved() {
        for worker in [0, 1] {
            let mut two = Two::new();
            let group = group(1, 2);
            let gone = two.waits(&group, worker, 1, Moment::default());
            let shares = lock(&two.meetings.table).open.remove(&group).unwrap().shares;
            assert!(gone.lets_go());
            assert!(!shares[0].begin(), "its memory is gone");
        }
    }
}
