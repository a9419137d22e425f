//! Who gets how much of the loop, and in what order.
//!
//! The loop is one thread: while it works for one client, all others wait. Some work takes long. Copying a megabyte takes as long as
//! answering a hundred small requests. Handing one read to a disk and taking it back takes as long as five reads from the page cache. This
//! module only decides: it is told the time and what was moved, and the loop, the worker and storage ask it.
//!
//! **Alone.** None of this applies to a client that is alone. The loop is *contended* while messages of several connections arrive within
//! 10 ms of each other, or operations of several sessions wait. Everything below holds only then. Nothing rests and nothing is divided for
//! clients that are not there.
//!
//! **Rounds.** Every connection that may have something to do has one turn in each round ([`Turns`]). A turn ends after [`CONTENDED_SIZE`]
//! bytes, in the middle of a large transfer if need be; the rest follows in the next turn. This is deficit round robin (Shreedhar and
//! Varghese, 1995). If a turn moved more than its size because a step could not be divided, the excess is a *debt*, and the connection
//! misses turns until the debt is paid. A connection that the kernel has just woken is first in the next round. While turns end because
//! their size is used up, the loop asks the kernel after each round which other connections are ready.
//!
//! **Light clients.** A client that sends one request after the other comes back a moment after each answer. If the large transfers
//! continued at once, this client would find the loop busy for a whole turn each time, and get far less than its share. So before they
//! continue, the loop checks whether the client is back, unless earlier checks were in vain. It serves the client until the client has had
//! as much as the large transfers had in their turn. This is anticipatory scheduling (Iyer and Druschel, 2001), for memory in place of
//! disks. If the check needs a system call, the loop does not make it.
//!
//! **Storage.** In a contended loop, transfers that wait for a disk have a part of the time ([`StorageTurns`]), and rest for the
//! remainder. Operations on names never rest. A session has only as much in storage as keeps a disk busy ([`CONTENDED_STORAGE_SIZE`]), in
//! chunks of [`CONTENDED_CHUNK_SIZE`]. So a small request of another session finds no long queue at the disk either.
//!
//! The loop never sleeps while something is put off.

pub(crate) mod costs;
pub(crate) mod plans;
pub(crate) mod sieve;
mod storage;
mod turn;

use dafs_proto::session::Moment;

use self::costs::SieveCosts;
use self::plans::{PlanRoom, Plans};
pub(crate) use self::storage::StorageTurns;
pub(crate) use self::turn::Turns;

/// Looks at the rings of light clients before large transfers go on: about as long as a client takes from an answer to its next request.
pub(crate) const LOOKS_LIGHT: u32 = 512;
/// How often a light client is served before large transfers go on: as many small requests as take about as long as a turn of theirs.
pub(crate) const LIGHT_ROUNDS: usize = 3;
/// Answers without such a look, where looking did not pay: at first, and at most.
pub(crate) const LIGHT_PAUSES: [u32; 2] = [16, 1024];

/// Bytes that a connection has moved in a turn when nobody else is there.
const ALONE_SIZE: usize = 1 << 20;
/// The same beside others: about as long as two or three small requests take.
pub(crate) const CONTENDED_SIZE: usize = 32 << 10;
/// Chunks of one transfer in progress at once, at most.
pub(crate) const PIPELINE_DEPTH_MAX: u32 = 32;
/// Bytes of a chunk that storage or the network move by themselves, beside others.
pub(crate) const CONTENDED_CHUNK_SIZE: u64 = 64 << 10;
/// Bytes that a session has with storage when nobody else is there, before its next chunk waits: who comes finds no longer queue than this.
pub(crate) const ALONE_STORAGE_SIZE: usize = 4 << 20;
/// The same beside others.
pub(crate) const CONTENDED_STORAGE_SIZE: usize = 64 << 10;
/// Bytes that a step counts for in a turn, such as an entry of a listing or a part of a path: about what is copied in the same time.
const STEP_SIZE: usize = 64;
/// Steps of a turn of storage, beyond which the rest of its results wait: those of two listings.
const STORAGE_STEPS_MAX: usize = 2048;
/// More than this no turn does, whatever a client asks for; a turn that does panics in debug builds.
const TURN_STEPS_MAX: usize = 1 << 16;
/// The same of bytes: twice the largest transfer of the default configuration, where the largest is no larger.
const TURN_SIZE_MAX: usize = 128 << 20;
/// Reading ahead that storage has at once at most: of more it does not hear.
const READ_AHEADS_MAX: usize = 16;

/// How a worker's time is divided, and what it has learned for that. Of all listeners: what it learns about is storage.
#[derive(Debug)]
pub(crate) struct Scheduler {
    turns: Turns,
    /// Plans of views that wait.
    plans: Plans,
    read_costs: SieveCosts,
    write_costs: SieveCosts,
    /// Reading ahead that storage has.
    read_aheads: usize,
}

impl Scheduler {
    /// Of a server whose clients may move so many bytes with a request.
    pub(crate) fn new(transfer_size_max: usize) -> Self {
        Self {
            turns: Turns::new(transfer_size_max),
            plans: Plans::default(),
            read_costs: SieveCosts::of_reads(),
            write_costs: SieveCosts::of_writes(),
            read_aheads: 0,
        }
    }

    /// The turn that is under way.
    #[inline]
    pub(crate) fn turn(&mut self) -> &mut Turns {
        &mut self.turns
    }

    /// Sessions whose operations wait for something.
    #[inline]
    pub(crate) fn waiting_sessions(&self) -> usize {
        self.turns.waiting_sessions()
    }

    /// The worker is contended: several clients want its time.
    #[inline]
    pub(crate) fn is_contended(&self, now: Moment) -> bool {
        self.turns.is_contended(now)
    }

    /// Enough for this turn.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.turns.is_over()
    }

    /// A transfer of so many bytes is moved in several turns, because others are there.
    #[inline]
    pub(crate) fn is_divided(&self, len: u64, now: Moment) -> bool {
        len > CONTENDED_SIZE as u64 && self.is_contended(now)
    }

    /// How much of so many bytes that are at hand is moved in one step.
    #[inline]
    pub(crate) fn at_once(&self, len: usize, now: Moment) -> usize {
        if self.is_contended(now) { len.min(CONTENDED_SIZE) } else { len }
    }

    /// Bytes that a session may have with storage, unless one call is more.
    #[inline]
    pub(crate) fn storage_size_max(&self, now: Moment) -> usize {
        if self.is_contended(now) { CONTENDED_STORAGE_SIZE } else { ALONE_STORAGE_SIZE }
    }

    /// What lists of reads, or of writes, have cost.
    #[inline]
    pub(crate) fn costs(&mut self, writes: bool) -> &mut SieveCosts {
        if writes { &mut self.write_costs } else { &mut self.read_costs }
    }

    /// Room for a plan of a request, of a session with these plans, that may wait with it.
    pub(crate) fn plan_room(&self, of_session: &Plans) -> Option<PlanRoom> {
        self.plans.room(of_session)
    }

    /// Storage may be asked to read ahead.
    pub(crate) fn may_read_ahead(&self) -> bool {
        self.read_aheads < READ_AHEADS_MAX
    }

    /// Storage reads ahead.
    pub(crate) fn read_ahead_begun(&mut self) {
        self.read_aheads += 1;
    }

    /// It has done so.
    pub(crate) fn read_ahead_ended(&mut self) {
        self.read_aheads = self.read_aheads.saturating_sub(1);
    }
}
