//! The explanation of a list.

use std::time::{Duration, Instant};

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
    pub(crate) fn on_moved(&mut self, parts: usize, tally: &Tally, costs: Costs) {
        let told = &mut self.explanation;
        told.parts = told.parts.saturating_add(count(parts));
        told.copied = told.copied.saturating_add(tally.pieces);
        told.calls = told.calls.saturating_add(tally.calls);
        told.windows = told.windows.saturating_add(tally.windows);
        told.window_bytes = told.window_bytes.saturating_add(tally.window_bytes);
        (told.gap_max, told.call_ns, told.byte_ps) = costs.told();
        told.predicted_ns = told.predicted_ns.saturating_add(costs.predicted_ns(tally));
        told.apart_ns = told.apart_ns.saturating_add(costs.apart_ns(tally.apart));
        self.measured(tally.time);
    }

    /// A part leaves out of a file in memory.
    pub(crate) fn on_mapped(&mut self) {
        self.explanation.parts = self.explanation.parts.saturating_add(1);
        self.explanation.copied = self.explanation.copied.saturating_add(1);
    }

    /// Storage has a call for so many parts.
    pub(crate) fn on_submitted(&mut self, parts: usize) {
        self.explanation.parts = self.explanation.parts.saturating_add(count(parts));
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// Storage has made so many calls of it, without what lies between parts.
    pub(crate) fn on_waited(&mut self, calls: usize) {
        let told = &mut self.explanation;
        told.waited = told.waited.saturating_add(count(calls));
        told.calls = told.calls.saturating_add(count(calls));
    }

    /// Storage has moved a window of so many bytes.
    pub(crate) fn on_waited_window(&mut self, bytes: u64) {
        let told = &mut self.explanation;
        told.waited = told.waited.saturating_add(1);
        told.windows = told.windows.saturating_add(1);
        told.window_bytes = told.window_bytes.saturating_add(bytes);
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
