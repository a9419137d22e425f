//! What was chosen for a file's transfers, and why: for the hint `dafs_explain`.

use std::fmt::Write;
use std::sync::PoisonError;

use dafs_client::{Direction, RegistrationCounters};

use super::File;
use super::counters::COUNTERS;
use crate::hint::{Collective, MemoryMode, Method, Settings};
use crate::memory::Cell;

/// How one call of the client library was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) direction: Direction,
    /// `None` where there was nothing to choose.
    pub(super) method: Option<Method>,
    pub(super) mode: MemoryMode,
    pub(super) why: Why,
}

/// Why a method was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It is in one piece in memory and file.
    OnePiece,
    /// The hint, or its default.
    Hint,
    /// Data sieving was asked for; gaps that are written need locks, for others may write too.
    SieveNeedsLocks,
    /// Data sieving was asked for; it does not go on by itself.
    SieveWaits,
    /// A view was asked for; the MPI library named segments, not a file type.
    ViewNeedsTypes,
    /// A view was asked for; the server has none for the file type.
    ViewRefused,
    /// A view was asked for; no server has all of the file.
    Striped,
}

impl Why {
    fn words(self) -> &'static str {
        match self {
            Self::OnePiece => "in one piece",
            Self::Hint => "as the hints say",
            Self::SieveNeedsLocks => "data sieving was asked for, but gaps that are written would need locks",
            Self::ViewNeedsTypes => "a view was asked for, but the MPI library named no file type",
            Self::ViewRefused => "a view was asked for, but the server has none for this file type",
            Self::Striped => "a view was asked for, but the file lies over several servers",
            Self::SieveWaits => "data sieving was asked for, but a nonblocking call cannot do it",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Line {
    chosen: Chosen,
    calls: u64,
    segments: u64,
    bytes: u64,
    /// The largest call, bytes.
    largest: u64,
    in_one_piece: bool,
    /// Registrations made, and found made, in calls that were waited for.
    registered: [u64; 2],
    waited: bool,
}

/// How the processes moved data in a collective call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveWay {
    /// They exchanged it (two-phase I/O).
    Exchanged,
    /// Each its own.
    Alone,
    /// Each its own, through views in the server that belong together.
    Views,
}

impl CollectiveWay {
    /// The same, where the MPI library does not tell views in the server apart.
    pub(super) fn of(self, settings: &Settings, direction: Direction) -> Self {
        let by_views =
            settings.collective == Collective::Server && settings.method(direction) == Method::View;
        if self == Self::Alone && by_views { Self::Views } else { self }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Exchanged => "exchanged, by two-phase I/O of",
            Self::Alone => "not exchanged, each rank moved its own:",
            Self::Views => "not exchanged, by views in the server:",
        }
    }
}

/// Kinds of collective calls that are told apart at most: `by` comes from outside.
const COLLECTIVES_MAX: usize = 64;

/// What was chosen, how often.
#[derive(Debug, Default)]
pub struct Account {
    // As many as there are combinations, at most.
    lines: Vec<Line>,
    collectives: Vec<CollectiveLine>,
}

/// Collective calls of one kind.
#[derive(Debug)]
struct CollectiveLine {
    direction: Direction,
    way: CollectiveWay,
    by: String,
    calls: u64,
}

impl Account {
    pub(super) fn note(&mut self, chosen: Chosen, segments: usize, len: u64) {
        let line = self.line(chosen);
        line.calls += 1;
        line.segments += segments as u64;
        line.bytes += len;
        line.largest = line.largest.max(len);
    }

    /// What became of the memory of a call that was waited for. What other threads registered meanwhile is counted too.
    pub(super) fn note_registered(
        &mut self,
        chosen: Chosen,
        before: &RegistrationCounters,
        now: &RegistrationCounters,
    ) {
        let line = self.line(chosen);
        line.waited = true;
        line.registered[0] += now.registrations.saturating_sub(before.registrations);
        line.registered[1] += now.hits.saturating_sub(before.hits);
    }

    fn line(&mut self, chosen: Chosen) -> &mut Line {
        let known = self.lines.iter().position(|line| line.chosen == chosen);
        let place = known.unwrap_or_else(|| {
            self.lines.push(Line::new(chosen));
            self.lines.len() - 1
        });
        &mut self.lines[place]
    }

    pub(super) fn note_collective(&mut self, direction: Direction, way: CollectiveWay, by: &str) {
        let is_same =
            |line: &&mut CollectiveLine| (line.direction, line.way, &*line.by) == (direction, way, by);
        if let Some(line) = self.collectives.iter_mut().find(is_same) {
            line.calls += 1;
        } else if self.collectives.len() < COLLECTIVES_MAX {
            self.collectives.push(CollectiveLine { direction, way, by: by.to_owned(), calls: 1 });
        }
    }

    /// In words, of this process; the counters of all.
    pub(super) fn explain(&self, file: &File, totals: &[u64]) -> String {
        let mut text = String::new();
        let session = &file.server.session;
        let way = if file.joined { "joined by a token" } else { "opened by its path" };
        let _ = writeln!(
            text,
            "dafs: {} over {} ({}), {} ranks, {way} at rank 0",
            file.place.shown,
            session.provider().name(),
            session.provider_reason(),
            file.ranks
        );
        if self.lines.is_empty() {
            let _ = writeln!(text, "dafs:   rank 0 moved no data while dafs_explain was set");
        }
        if file.is_atomic() {
            let _ =
                writeln!(text, "dafs:   atomic mode: each call locks all from its first byte to its last");
        }
        for line in &self.collectives {
            let CollectiveLine { direction, way, by, calls } = line;
            let (what, way) = (verb(*direction), way.words());
            let _ = writeln!(text, "dafs:   collective {what}: {calls} calls, {way} {by}");
        }
        for line in &self.lines {
            line.write(file, &mut text);
        }
        self.write_trials(file, &mut text);
        let counters = COUNTERS.iter().zip(totals).filter(|(_, value)| **value > 0);
        let counters: Vec<String> = counters.map(|(name, value)| format!("{name} {value}")).collect();
        let _ = writeln!(text, "dafs:   all ranks: {}", counters.join(", "));
        text
    }
}

impl Account {
    /// What was measured of each kind of transfer, once, whichever modes it went by.
    fn write_trials(&self, file: &File, text: &mut String) {
        let trials = file.trials.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told: Vec<Cell> = Vec::new();
        for line in &self.lines {
            let cell = line.cell();
            if told.contains(&cell) {
                continue;
            }
            told.push(cell);
            let Some((times, best)) = trials.known(cell) else { continue };
            let times: Vec<String> = times.iter().map(|(mode, ns)| format!("{mode} {ns:.3}")).collect();
            let (what, sizes) = (verb(line.chosen.direction), cell.sizes());
            let pieces = if line.in_one_piece { "one piece" } else { "many pieces" };
            let _ = writeln!(
                text,
                "dafs:   measured, {what} of {} to {} bytes in {pieces}, ns a byte: {}; quickest: {best}",
                sizes.start(),
                sizes.end(),
                times.join(", ")
            );
        }
    }
}

fn verb(direction: Direction) -> &'static str {
    if direction == Direction::Read { "read" } else { "write" }
}

impl Line {
    fn new(chosen: Chosen) -> Self {
        let in_one_piece = chosen.method != Some(Method::List);
        let (calls, segments, bytes, largest) = (0, 0, 0, 0);
        Self { chosen, calls, segments, bytes, largest, in_one_piece, registered: [0; 2], waited: false }
    }

    fn cell(&self) -> Cell {
        Cell::of(self.chosen.direction, self.largest, self.in_one_piece)
    }

    fn write(&self, file: &File, text: &mut String) {
        let Chosen { direction, method, mode, why } = self.chosen;
        let what = verb(direction);
        let method = method.map_or_else(|| "plain".to_owned(), |method| method.to_string());
        let _ = writeln!(
            text,
            "dafs:   {what}: {} calls, {} bytes, {} segments: {method}, {}; memory mode {mode}",
            self.calls,
            self.bytes,
            self.segments,
            why.words()
        );
        match self.registered {
            _ if !self.waited => {}
            [0, 0] => {
                let _ = writeln!(
                    text,
                    "dafs:     its memory was not registered: the data went in messages or was copied"
                );
            }
            [made, found] => {
                let _ = writeln!(
                    text,
                    "dafs:     its memory was registered {made} times, and found registered {found} times"
                );
            }
        }
        // Lists and views go their own way.
        if !matches!(self.chosen.method, Some(Method::List | Method::View)) {
            // As the transfers of this mode go: the session has no policy.
            let largest = file.plain(mode).explain(direction, self.largest);
            let _ = writeln!(text, "dafs:     largest: {largest}");
        }
    }
}
