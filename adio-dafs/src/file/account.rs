//! What was chosen for a file's transfers, and why: for the hint `dafs_explain`.

use std::fmt::Write;

use dafs_client::{Direction, Registration};

use super::File;
use super::counters::COUNTERS;
use crate::hint::{MemoryMode, Method};
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
}

impl Why {
    fn words(self) -> &'static str {
        match self {
            Self::OnePiece => "in one piece",
            Self::Hint => "as the hints say",
            Self::SieveNeedsLocks => "data sieving was asked for, but gaps that are written would need locks",
            Self::ViewNeedsTypes => "a view was asked for, but the MPI library named no file type",
            Self::ViewRefused => "a view was asked for, but the server has none for this file type",
            Self::SieveWaits => "data sieving was asked for, but does not go on while nobody waits",
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
}

/// What was chosen, how often.
#[derive(Debug, Default)]
pub struct Account {
    // As many as there are combinations, at most.
    lines: Vec<Line>,
}

impl Account {
    pub(super) fn note(&mut self, chosen: Chosen, segments: usize, len: u64) {
        let line = match self.lines.iter_mut().find(|line| line.chosen == chosen) {
            Some(line) => line,
            None => {
                let in_one_piece = chosen.method != Some(Method::List);
                self.lines.push(Line { chosen, calls: 0, segments: 0, bytes: 0, largest: 0, in_one_piece });
                let last = self.lines.len() - 1;
                &mut self.lines[last]
            }
        };
        line.calls += 1;
        line.segments += segments as u64;
        line.bytes += len;
        line.largest = line.largest.max(len);
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
        for line in &self.lines {
            line.write(file, &mut text);
        }
        let counters = COUNTERS.iter().zip(totals).filter(|(_, value)| **value > 0);
        let counters: Vec<String> = counters.map(|(name, value)| format!("{name} {value}")).collect();
        let _ = writeln!(text, "dafs:   all ranks: {}", counters.join(", "));
        text
    }
}

impl Line {
    fn write(&self, file: &File, text: &mut String) {
        let Chosen { direction, method, mode, why } = self.chosen;
        let what = if direction == Direction::Read { "read" } else { "write" };
        let method = method.map_or_else(|| "plain".to_owned(), |method| method.to_string());
        let _ = writeln!(
            text,
            "dafs:   {what}: {} calls, {} bytes, {} segments: {method}, {}; memory mode {mode}",
            self.calls,
            self.bytes,
            self.segments,
            why.words()
        );
        let session = &file.server.session;
        let _ = writeln!(
            text,
            "dafs:     largest: {}",
            session.explain(direction, self.largest, Registration::Ordinary)
        );
        let trials = file.trials.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((times, best)) = trials.known(Cell::of(direction, self.largest, self.in_one_piece)) {
            let times: Vec<String> = times.iter().map(|(mode, ns)| format!("{mode} {ns:.3}")).collect();
            let _ = writeln!(text, "dafs:     measured, ns a byte: {}; quickest: {best}", times.join(", "));
        }
    }
}
