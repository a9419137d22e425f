//! How much one connection may have moved before the others get their turn.

use std::time::Duration;

use dafs_proto::session::Moment;

use super::{ALONE_SIZE, CONTENDED_SIZE, STEP_SIZE, STORAGE_STEPS_MAX, TURN_SIZE_MAX, TURN_STEPS_MAX};
use crate::worker::ids::ConnectionKey;

/// After requests of two connections so long there may be more of both.
const CONTENDED_FOR: Duration = Duration::from_millis(10);

/// The turn of a connection, and whether there are others.
#[derive(Debug)]
pub(crate) struct Turns {
    last: Option<ConnectionKey>,
    contended_until: Moment,
    /// Sessions whose operations wait for something.
    waiting_sessions: usize,
    moved: usize,
    size_max: usize,
    steps: usize,
    /// More than this no turn moves, whatever a client asks for.
    possible_size: usize,
}

#[cfg(test)]
impl Default for Turns {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Turns {
    /// Of a server whose clients may move so many bytes with a request.
    pub(crate) fn new(transfer_size_max: usize) -> Self {
        Self {
            last: None,
            contended_until: Moment::default(),
            waiting_sessions: 0,
            moved: 0,
            size_max: 0,
            steps: 0,
            possible_size: TURN_SIZE_MAX.max(transfer_size_max.saturating_mul(2)),
        }
    }

    /// A turn begins.
    #[inline]
    pub(crate) fn begin(&mut self, now: Moment) {
        self.moved = 0;
        self.steps = 0;
        self.size_max = if self.is_contended(now) { CONTENDED_SIZE } else { ALONE_SIZE };
    }

    /// The turn of a connection begins that has moved `debt` bytes too many in earlier ones, and pays for them. The turn is over at once
    /// where they are as many as a whole turn's. Nobody pays while nobody else is there.
    #[inline]
    pub(crate) fn begin_with(&mut self, now: Moment, debt: &mut usize) {
        self.begin(now);
        if *debt > 0 {
            let paid = if self.size_max == CONTENDED_SIZE { (*debt).min(CONTENDED_SIZE) } else { 0 };
            self.moved = paid;
            *debt = if self.size_max == CONTENDED_SIZE { *debt - paid } else { 0 };
        }
    }

    /// What the turn that ends now has moved beyond its size.
    #[inline]
    pub(crate) fn overdraft(&self) -> usize {
        self.moved.saturating_sub(self.size_max)
    }

    /// A connection has sent a message, while operations of so many sessions wait beside its own. If that is how the server learns that
    /// it is not alone, its turn is short at once.
    #[inline]
    pub(crate) fn on_message(&mut self, key: ConnectionKey, now: Moment, others_waiting: usize) {
        let before = self.last.replace(key);
        if before.is_some_and(|before| before != key) || others_waiting > 0 {
            self.contended_until = now.after(CONTENDED_FOR);
            self.size_max = CONTENDED_SIZE;
        }
    }

    /// Sessions whose operations wait for something.
    #[inline]
    pub(crate) fn waiting_sessions(&self) -> usize {
        self.waiting_sessions
    }

    /// Several connections send requests at about this time, or operations of several sessions wait: who waits long sends nothing.
    #[inline]
    pub(crate) fn is_contended(&self, now: Moment) -> bool {
        now < self.contended_until || self.waiting_sessions > 1
    }

    /// An operation of a session waits, the first. If another's waits as well, the turn is short at once.
    pub(crate) fn session_waits(&mut self) {
        self.waiting_sessions += 1;
        if self.waiting_sessions > 1 {
            self.size_max = CONTENDED_SIZE;
        }
    }

    /// No operation of a session waits any more.
    pub(crate) fn session_waits_no_more(&mut self) {
        self.waiting_sessions = self.waiting_sessions.saturating_sub(1);
    }

    /// So many bytes were copied.
    #[inline]
    pub(crate) fn on_moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
        // What a client sends cannot ask for more at once.
        debug_assert!(self.moved <= self.possible_size, "{} bytes in one turn", self.moved);
    }

    /// So many steps were done that moved nothing: see [`crate::storage::work`].
    #[inline]
    pub(crate) fn on_steps(&mut self, steps: usize) {
        if steps > 0 {
            self.steps += steps;
            self.moved = self.moved.saturating_add(steps * STEP_SIZE);
            debug_assert!(self.steps <= TURN_STEPS_MAX, "{} steps in one turn", self.steps);
        }
    }

    /// A turn of storage has taken so many steps that the rest of what it has finished waits for the next.
    #[inline]
    pub(crate) fn is_storage_turn_over(&self) -> bool {
        self.steps >= STORAGE_STEPS_MAX
    }

    /// Bytes that the turn may still move: one at least, so that nothing stands still.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.size_max.saturating_sub(self.moved).max(1)
    }

    /// Enough for this turn.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.moved >= self.size_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: usize) -> ConnectionKey {
        ConnectionKey { index, generation: 1 }
    }

    fn contended() -> (Turns, Moment) {
        let mut turns = Turns::default();
        let start = Moment::default().after(Duration::from_secs(1));
        turns.on_message(key(1), start, 0);
        turns.on_message(key(2), start, 0);
        (turns, start)
    }

    // [BUF-20] [BUF-50]
    #[test]
    fn turn_is_short_while_several_connections_send_and_long_for_one() {
        let mut turns = Turns::default();
        let start = Moment::default().after(Duration::from_secs(1));
        let size = |turns: &mut Turns, now| {
            turns.begin(now);
            (1..).find(|_| {
                turns.on_moved(1024);
                turns.is_over()
            })
        };
        for _ in 0..10 {
            turns.on_message(key(1), start, 0);
            assert_eq!(size(&mut turns, start), Some(1024));
        }
        turns.on_message(key(2), start, 0);
        assert_eq!(size(&mut turns, start), Some(32));
        let last = start.after(CONTENDED_FOR - Duration::from_nanos(1));
        assert_eq!(size(&mut turns, last), Some(32));
        turns.on_message(key(2), last, 0);
        assert_eq!(size(&mut turns, start.after(CONTENDED_FOR)), Some(1024), "the other has fallen silent");
    }

    // [BUF-20] Who waits for long sends nothing, and between two requests the other does not wait.
    #[test]
    fn turn_is_short_while_one_sends_and_operations_of_another_wait() {
        let (mut turns, start) = (Turns::default(), Moment::default());
        turns.session_waits();
        turns.on_message(key(1), start, 0);
        assert!(!turns.is_contended(start), "the operations that wait are its own");
        turns.on_message(key(1), start, 1);
        assert!(turns.is_contended(start.after(CONTENDED_FOR - Duration::from_nanos(1))));
        assert!(!turns.is_contended(start.after(CONTENDED_FOR)));
    }

    // [BUF-20]
    #[test]
    fn turn_is_short_while_operations_of_several_sessions_wait() {
        let (mut turns, now) = (Turns::default(), Moment::default());
        turns.begin(now);
        turns.session_waits();
        turns.on_moved(CONTENDED_SIZE);
        assert!(!turns.is_contended(now) && !turns.is_over());
        turns.session_waits();
        assert!(turns.is_contended(now) && turns.is_over());
        turns.session_waits_no_more();
        assert!(!turns.is_contended(now));
    }

    // [BUF-25]
    #[test]
    fn turn_ends_after_many_steps() {
        let (mut turns, now) = contended();
        turns.begin(now);
        turns.on_steps(CONTENDED_SIZE / STEP_SIZE - 1);
        assert!(!turns.is_over());
        turns.on_steps(1);
        assert!(turns.is_over());
    }

    // [BUF-56]
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "steps in one turn")]
    fn turn_of_more_work_than_any_request_may_ask_for_panics() {
        let mut turns = Turns::default();
        turns.begin(Moment::default());
        turns.on_steps(TURN_STEPS_MAX);
        turns.on_steps(1);
    }

    // [BUF-56]
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "bytes in one turn")]
    fn turn_that_moves_more_than_any_request_may_ask_for_panics() {
        let mut turns = Turns::default();
        turns.begin(Moment::default());
        turns.on_moved(TURN_SIZE_MAX);
        turns.on_moved(1);
    }

    // [BUF-56]
    #[test]
    fn turn_moves_what_a_client_may_ask_for_at_once() {
        let mut turns = Turns::new(4 * TURN_SIZE_MAX);
        turns.begin(Moment::default());
        turns.on_moved(4 * TURN_SIZE_MAX);
        assert!(turns.is_over());
    }

    // [BUF-22]
    #[test]
    fn turn_pays_for_what_earlier_ones_moved_too_much() {
        let (mut turns, now) = contended();
        let mut debt = 0;
        turns.begin_with(now, &mut debt);
        turns.on_moved(CONTENDED_SIZE - 1);
        assert_eq!((turns.is_over(), turns.overdraft()), (false, 0));
        turns.on_moved(2 * CONTENDED_SIZE + 101);
        debt += turns.overdraft();
        assert_eq!((turns.is_over(), debt), (true, 2 * CONTENDED_SIZE + 100));
        for left in [CONTENDED_SIZE + 100, 100] {
            turns.begin_with(now, &mut debt);
            assert_eq!((turns.is_over(), turns.overdraft(), debt), (true, 0, left));
        }
        turns.begin_with(now, &mut debt);
        assert!(!turns.is_over());
        turns.on_moved(CONTENDED_SIZE - 100);
        assert_eq!((turns.is_over(), turns.overdraft(), debt), (true, 0, 0));
    }

    // [BUF-53]
    #[test]
    fn debt_is_forgiven_when_nobody_else_is_there() {
        let (mut turns, now) = contended();
        let mut debt = 10 * CONTENDED_SIZE;
        turns.begin_with(now.after(CONTENDED_FOR), &mut debt);
        assert_eq!((turns.is_over(), debt), (false, 0));
        turns.on_moved(ALONE_SIZE - 1);
        assert!(!turns.is_over());
    }
}
