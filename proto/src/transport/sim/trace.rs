//! What happened in a simulated network: counts, and the last events in words.

use std::collections::VecDeque;
use std::fmt;

/// Events kept.
const TRACE_LEN_MAX: usize = 2_000;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections made.
    pub connections: u64,
    /// Connects refused or timed out.
    pub connects_failed: u64,
    /// Packets (messages and RDMA writes) that left.
    pub packets_sent: u64,
    /// Packets that arrived.
    pub packets_arrived: u64,
    /// Packets lost with their connection.
    pub packets_lost: u64,
    /// RDMA reads served.
    pub reads_served: u64,
    /// Bytes moved by RDMA.
    pub rdma_bytes: u64,
    /// Accesses that no region allowed.
    pub region_faults: u64,
    /// Connections cut by a fault.
    pub cuts: u64,
    /// Posts answered full although there was room.
    pub false_full: u64,
}

/// The last events, oldest first.
#[derive(Debug, Default)]
pub(super) struct Trace {
    entries: VecDeque<Entry>,
    forgotten: u64,
}

#[derive(Debug)]
struct Entry {
    at_ns: u64,
    /// The connection, or the node.
    subject: u64,
    what: &'static str,
    detail: u64,
}

impl Trace {
    pub(super) fn add(&mut self, at_ns: u64, subject: u64, what: &'static str, detail: u64) {
        if self.entries.len() == TRACE_LEN_MAX {
            self.entries.pop_front();
            self.forgotten += 1;
        }
        self.entries.push_back(Entry { at_ns, subject, what, detail });
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} earlier events not kept", self.forgotten)?;
        for entry in &self.entries {
            writeln!(f, "{:>14} ns  {:>4}  {} {}", entry.at_ns, entry.subject, entry.what, entry.detail)?;
        }
        Ok(())
    }
}
