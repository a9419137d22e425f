//! How a list is moved, for a client that asks.

use std::time::{Duration, Instant};

use dafs_proto::extent::Part;
use dafs_proto::wire::Explanation;

use crate::worker::sched::costs::{Costs, Tally};

/// What is told of a list. What is done again counts again.
#[derive(Debug, Default)]
pub(crate) struct Account {
    explanation: Explanation,
    /// Storage has calls that are waited for, since then.
    waits_since: Option<Instant>,
}

impl Account {
    /// These parts were moved at once.
    #[allow(clippy::cast_precision_loss, reason = "estimates")]
    pub(crate) fn on_moved(&mut self, parts: &[Part], tally: &Tally, costs: Costs) {
        let told = &mut self.explanation;
        let bytes: usize = parts.iter().map(|part| part.len).sum();
        let called = count(parts.len()).saturating_sub(tally.pieces);
        told.parts = told.parts.saturating_add(count(parts.len()));
        told.copied = told.copied.saturating_add(tally.pieces);
        told.calls = told.calls.saturating_add(tally.calls);
        told.windows = told.windows.saturating_add(tally.windows);
        told.window_bytes = told.window_bytes.saturating_add(tally.window_bytes);
        (told.gap_max, told.call_ns, told.byte_ps) = costs.told();
        told.predicted_ns = told.predicted_ns.saturating_add(costs.predicted_ns(tally));
        let apart =
            if called == 0 { 0 } else { costs.apart_ns(called, bytes.saturating_sub(tally.piece_bytes)) };
        told.apart_ns = told.apart_ns.saturating_add(apart);
        self.measured(tally.time);
    }

    /// A part leaves out of a file in memory.
    pub(crate) fn on_mapped(&mut self) {
        self.explanation.parts = self.explanation.parts.saturating_add(1);
        self.explanation.copied = self.explanation.copied.saturating_add(1);
    }

    /// Storage has a call for so many parts, of so many bytes where they have gaps between them.
    pub(crate) fn on_submitted(&mut self, parts: usize, window: Option<u64>) {
        let told = &mut self.explanation;
        told.parts = told.parts.saturating_add(count(parts));
        told.waited = told.waited.saturating_add(1);
        match window {
            None => told.calls = told.calls.saturating_add(1),
            Some(bytes) => {
                told.windows = told.windows.saturating_add(1);
                told.window_bytes = told.window_bytes.saturating_add(bytes);
            }
        }
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// Storage has none of its calls any more.
    pub(crate) fn on_idle(&mut self) {
        if let Some(since) = self.waits_since.take() {
            self.measured(since.elapsed());
        }
    }

    fn measured(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.explanation.measured_ns = self.explanation.measured_ns.saturating_add(ns);
    }

    /// As it travels.
    pub(crate) fn bytes(&self) -> [u8; Explanation::SIZE] {
        self.explanation.bytes()
    }
}

fn count(parts: usize) -> u32 {
    u32::try_from(parts).unwrap_or(u32::MAX)
}
