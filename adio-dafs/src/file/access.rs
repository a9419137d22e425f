//! Blocking transfers: which method and which memory mode, and the run of it.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use dafs_client::{Direction, RegistrationCounters};

use super::account::{Chosen, Why};
use super::counters::Count;
use super::view::Forgotten;
use super::{File, Transfer, raw};
use crate::error::{Class, Error, Result};
use crate::hint::{Collective, MemoryMode, Method, Settings};
use crate::layout::{GroupLimits, Segment, Segments, Source, Stretch, next_group};
use crate::memory::{Cell, Timed};

/// What goes in one call of the client library at most: so much is described at once.
pub(super) const CALL_ENTRIES_MAX: usize = 1 << 16;
pub(super) const CALL_SIZE_MAX: u64 = 1 << 30;

/// What a transfer has moved, from its beginning without a gap, and what ended it early.
pub(super) type Moved = (u64, Result<()>);

impl File {
    /// Moves data. Returns the bytes moved, with an error too; a read beyond the end of the file is short. Blocks.
    pub fn run(&self, transfer: Transfer<'_>) -> Moved {
        match self.begin(&transfer) {
            Ok(()) => self.run_begun(transfer),
            Err(error) => {
                self.counters.add(Count::Failures, 1);
                (0, Err(error))
            }
        }
    }

    /// The same, of a transfer that has begun.
    #[inline]
    fn run_begun(&self, transfer: Transfer<'_>) -> Moved {
        let direction = transfer.direction();
        let moved = match (self.is_atomic(), self.collective_group(&transfer)) {
            (true, _) => self.run_atomic(transfer),
            (false, Some(group)) => self.run_segments(transfer, Some(group)),
            (false, None) => match transfer.single() {
                Ok(Some(segment)) if segment.len == 0 => (0, Ok(())),
                Ok(Some(segment)) => self.run_single(direction, &segment),
                Ok(None) => self.run_segments(transfer, None),
                Err(error) => (0, Err(error)),
            },
        };
        self.counted(direction, moved)
    }

    /// The same, of one that has begun in atomic mode, whether that goes on or not.
    pub(super) fn run_begun_atomic(&self, transfer: Transfer<'_>) -> Moved {
        let direction = transfer.direction();
        let moved = self.run_atomic(transfer);
        self.counted(direction, moved)
    }

    #[inline]
    fn counted(&self, direction: Direction, moved: Moved) -> Moved {
        self.on_moved(direction);
        self.counters.on_moved(direction, moved.0);
        if moved.1.is_err() {
            self.counters.add(Count::Failures, 1);
        }
        moved
    }

    /// A transfer begins: it is counted, where the file was opened for it.
    pub(super) fn begin(&self, transfer: &Transfer<'_>) -> Result<()> {
        let direction = transfer.direction();
        self.counters.on_transfer(direction, transfer.is_collective());
        match direction {
            Direction::Read if !self.mode.reads() => {
                let what = Error::new(Class::Access, "the file was opened with MPI_MODE_WRONLY");
                Err(what.cannot("read", &self.place.shown))
            }
            Direction::Read => Ok(()),
            Direction::Write => self.check_writes("write"),
        }
    }

    #[inline]
    pub(super) fn run_single(&self, direction: Direction, segment: &Segment) -> Moved {
        let settings = self.settings.load();
        let (mode, timed) = self.choose_mode(&settings, direction, segment.len, true);
        self.counters.on_call(Method::Multiple, mode);
        let chosen = Chosen { direction, method: None, mode, why: Why::OnePiece };
        self.note(&settings, chosen, 1, segment.len);
        let before = self.registered_now(&settings);
        let moved = self.move_segment(direction, segment, mode);
        self.tell(timed, segment.len, &moved);
        self.note_registered(before, chosen);
        moved
    }

    /// All of one segment.
    fn move_segment(&self, direction: Direction, segment: &Segment, mode: MemoryMode) -> Moved {
        let outcome = move_all(direction, *segment, |segment| raw::run(self.by(mode), direction, segment));
        self.ended(direction, segment.len, outcome)
    }

    /// What became of so many bytes.
    pub(super) fn ended(
        &self,
        direction: Direction,
        len: u64,
        (moved, result): (u64, dafs_client::Result<()>),
    ) -> Moved {
        let result = match result {
            Err(error) => Err(self.failed(direction, error)),
            Ok(()) if moved < len && direction == Direction::Write => Err(self.short(direction)),
            Ok(()) => Ok(()),
        };
        (moved, result)
    }

    pub(super) fn run_segments(&self, transfer: Transfer<'_>, group: Option<(u64, u32)>) -> Moved {
        let (direction, settings) = (transfer.direction(), self.settings());
        let (mut method, mut why) = self.method(&settings, direction);
        let source = transfer.into_source();
        let mut done = 0;
        if method == Method::View {
            match self.viewed(&source, group).map(|viewed| self.run_viewed(direction, &settings, viewed)) {
                Ok(Ok(moved)) => return moved,
                Ok(Err(Forgotten { moved })) => {
                    self.forget(&source);
                    (done, method, why) = (moved, Method::List, Why::ViewRefused);
                }
                Err(reason) => (method, why) = (Method::List, reason),
            }
        }
        let segments = match Segments::resumed(source, done) {
            Ok(segments) => segments,
            Err(error) => return (done, Err(error.into())),
        };
        let (moved, result) = match (method, why) {
            (Method::List | Method::View, why) => self.run_lists(direction, &settings, segments, why),
            (Method::Multiple, why) => self.run_multiple(direction, &settings, segments, why),
            (Method::Sieve, why) => self.run_sieved(&settings, segments, why),
        };
        (done + moved, result)
    }

    /// What the transfers of a collective call have in common, and how many there are, where the server is to know.
    fn collective_group(&self, transfer: &Transfer<'_>) -> Option<(u64, u32)> {
        if !transfer.is_collective() || self.ranks < 2 {
            return None;
        }
        let settings = self.settings.load();
        if self.striped.is_some() {
            return None;
        }
        let number = self.collectives.number(&settings, transfer.direction(), transfer.source())?;
        // The key is random: no other open has the number.
        let group = self.key.wrapping_add(number).max(1);
        Some((group, u32::try_from(self.ranks).ok()?))
    }

    /// The method for many segments, and why.
    pub(super) fn method(&self, settings: &Settings, direction: Direction) -> (Method, Why) {
        match (settings.method(direction), direction) {
            // No server has all of it.
            (Method::View, _) if self.striped.is_some() => (Method::List, Why::Striped),
            // Without locks, what others write in the gaps meanwhile would be undone: by another open, another thread, another request.
            (Method::Sieve, Direction::Write) => (Method::Multiple, Why::SieveNeedsLocks),
            (method, _) => (method, Why::Hint),
        }
    }

    fn run_lists(
        &self,
        direction: Direction,
        settings: &Settings,
        mut segments: Segments<'_>,
        why: Why,
    ) -> Moved {
        let (mut moved, limits) = (0, call_limits(settings));
        while let Some(group) = next_group(&mut segments, limits) {
            let group = match group {
                Ok(group) => group,
                Err(error) => return (moved, Err(error.into())),
            };
            let (mode, timed) = self.choose_mode(settings, direction, group.len, false);
            self.counters.add(Count::Segments, group.segments as u64);
            self.counters.on_call(Method::List, mode);
            let chosen = Chosen { direction, method: Some(Method::List), mode, why };
            self.note(settings, chosen, group.segments, group.len);
            let before = self.registered_now(settings);
            let len = group.len;
            let outcome = move_all(direction, group, |group| raw::run_list(self.by(mode), direction, group));
            let done = self.ended(direction, len, outcome);
            self.tell(timed, len, &done);
            self.note_registered(before, chosen);
            moved += done.0;
            // Also where the file ends.
            if done.0 < len {
                return (moved, done.1);
            }
        }
        (moved, Ok(()))
    }

    pub(super) fn run_multiple(
        &self,
        direction: Direction,
        settings: &Settings,
        mut segments: Segments<'_>,
        why: Why,
    ) -> Moved {
        let mut moved = 0;
        while let Some(next) = segments.next_segment() {
            let segment = match next {
                Ok(segment) => segment,
                Err(error) => return (moved, Err(error.into())),
            };
            let (mode, timed) = self.choose_mode(settings, direction, segment.len, true);
            self.counters.add(Count::Segments, 1);
            self.counters.on_call(Method::Multiple, mode);
            let chosen = Chosen { direction, method: Some(Method::Multiple), mode, why };
            self.note(settings, chosen, 1, segment.len);
            let before = self.registered_now(settings);
            let done = self.move_segment(direction, &segment, mode);
            self.tell(timed, segment.len, &done);
            self.note_registered(before, chosen);
            moved += done.0;
            if done.1.is_err() || done.0 < segment.len {
                return (moved, done.1);
            }
        }
        (moved, Ok(()))
    }

    /// The memory mode for one call, and what to tell its end where it is measured.
    #[inline]
    pub(super) fn choose_mode(
        &self,
        settings: &Settings,
        direction: Direction,
        len: u64,
        in_one_piece: bool,
    ) -> (MemoryMode, Option<Timed>) {
        match settings.memory {
            // Nothing is registered in any mode.
            MemoryMode::Auto if len < self.direct_size_min(direction) => (MemoryMode::Dafs, None),
            MemoryMode::Auto => {
                let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
                let (mode, timed) = trials.begin(Cell::of(direction, len, in_one_piece));
                (mode, Some(timed))
            }
            mode => (mode, None),
        }
    }

    /// As [`File::choose_mode`], for a call that nobody waits for.
    pub(super) fn choose_mode_unmeasured(
        &self,
        settings: &Settings,
        direction: Direction,
        len: u64,
        in_one_piece: bool,
    ) -> MemoryMode {
        match settings.memory {
            MemoryMode::Auto if len < self.direct_size_min(direction) => MemoryMode::Dafs,
            MemoryMode::Auto => {
                let trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
                trials.best(Cell::of(direction, len, in_one_piece))
            }
            mode => mode,
        }
    }

    pub(super) fn direct_size_min(&self, direction: Direction) -> u64 {
        self.direct_sizes_min[usize::from(direction == Direction::Write)]
    }

    pub(super) fn tell(&self, timed: Option<Timed>, len: u64, moved: &Moved) {
        if let Some(timed) = timed
            && moved.1.is_ok()
            && moved.0 == len
        {
            self.trials.lock().unwrap_or_else(PoisonError::into_inner).end(timed, len);
        }
    }

    pub(super) fn note(&self, settings: &Settings, chosen: Chosen, segments: usize, len: u64) {
        if settings.explain {
            self.account.lock().unwrap_or_else(PoisonError::into_inner).note(chosen, segments, len);
        }
    }

    /// What was registered so far, where that is to be told.
    pub(super) fn registered_now(&self, settings: &Settings) -> Option<RegistrationCounters> {
        settings.explain.then(|| self.server.session.registration_counters())
    }

    /// A call was waited for, before which so much was registered.
    pub(super) fn note_registered(&self, before: Option<RegistrationCounters>, chosen: Chosen) {
        if let Some(before) = before {
            let now = self.server.session.registration_counters();
            let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
            account.note_registered(chosen, &before, &now);
        }
    }

    pub(super) fn failed(&self, direction: Direction, error: dafs_client::Error) -> Error {
        self.cannot(if direction == Direction::Read { "read" } else { "write" }, error)
    }

    /// A list was written in part, and the server gave no reason.
    pub(super) fn short(&self, direction: Direction) -> Error {
        debug_assert_eq!(direction, Direction::Write);
        Error::new(Class::NoSpace, "only a part was written; space may have run out")
            .cannot("write", &self.place.shown)
    }
}

/// Collective calls of a file that the server is to know, counted by each process for itself.
#[derive(Debug, Default)]
pub(super) struct Collectives(AtomicU64);

impl Collectives {
    /// The number of the call that a transfer belongs to; `None` where the server is not to know. Only transfers through views count, for
    /// each process makes one, also without data. By segments it makes none without data, or several.
    fn number(&self, settings: &Settings, direction: Direction, source: &Source<'_>) -> Option<u64> {
        let joins = settings.collective == Collective::Server
            && settings.method(direction) == Method::View
            && matches!(source, Source::Typed { .. });
        joins.then(|| self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Moves all of a stretch. A write that came short is tried again from there: the first call that moves nothing tells the reason.
pub(super) fn move_all<S: Stretch>(
    direction: Direction,
    mut stretch: S,
    run: impl Fn(&S) -> dafs_client::Result<usize>,
) -> (u64, dafs_client::Result<()>) {
    let mut moved = 0;
    loop {
        match run(&stretch) {
            Ok(count) => {
                moved += count as u64;
                let is_whole = count as u64 >= stretch.size();
                if is_whole || count == 0 || direction == Direction::Read {
                    return (moved, Ok(()));
                }
                stretch.advance(count as u64);
            }
            Err(error) => return (moved, Err(error)),
        }
    }
}

pub(super) fn call_limits(settings: &Settings) -> GroupLimits {
    let entries = match settings.list_max {
        0 => CALL_ENTRIES_MAX,
        max => max.min(CALL_ENTRIES_MAX),
    };
    GroupLimits { entries, counts_bounds: settings.list_bounds, len: CALL_SIZE_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Instances, Type, View};

    fn typed() -> Source<'static> {
        let memory = Instances { base: 0, count: 0, of: Type::contiguous(1).unwrap() };
        let view = View { displacement: 0, of: Type::contiguous(1).unwrap() };
        Source::Typed { memory, view, position: 0 }
    }

    // [MPI-75] One process has no data in a call by segments, another moves its own in two parts.
    #[test]
    fn only_transfers_through_views_are_counted_as_collective_calls() {
        let mut settings = Settings::default();
        settings.take([("dafs_collective", "server"), ("dafs_write_method", "list")]);
        let numbers = |segments: usize, writes: usize| {
            let collectives = Collectives::default();
            let number = |direction, source| collectives.number(&settings, direction, &source);
            let first = number(Direction::Read, typed());
            for _ in 0..segments {
                assert_eq!(number(Direction::Read, Source::Segments(<_>::default())), None);
            }
            for _ in 0..writes {
                assert_eq!(number(Direction::Write, typed()), None);
            }
            [first, number(Direction::Read, typed())]
        };
        assert_eq!([numbers(0, 0), numbers(2, 0), numbers(0, 1)], [[Some(0), Some(1)]; 3]);
        settings.take([("dafs_collective", "independent"), ("dafs_method", "view")]);
        assert_eq!(Collectives::default().number(&settings, Direction::Read, &typed()), None);
    }
}
