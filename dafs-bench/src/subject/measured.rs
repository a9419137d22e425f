//! What is measured, one client of it.

use crate::load::{Budget, Load, Work};
use crate::record::{NameOp, Op};
use crate::stats::Samples;
use crate::subject::files::Batch;

/// A client with a file open, ready to be given work. Blocking; used by one thread.
pub trait Subject {
    /// The value of `transport` in its rows.
    fn transport(&self) -> &str;

    /// Whether it spins rather than waits in the kernel, always.
    fn spins(&self) -> bool {
        false
    }

    /// Whether it spins at least for a while before it waits in the kernel.
    fn spins_first(&self) -> bool {
        self.spins()
    }

    /// Whether requests and replies that come together travel together.
    fn coalesces(&self) -> bool {
        true
    }

    /// Whether it can do `load`; what it cannot do gets no row.
    fn supports(&self, load: &Load) -> bool;

    /// Why it has no row for a load of another size than it takes.
    fn refusal(&self, _load: &Load) -> Option<String> {
        None
    }

    /// Whether it knows Inline and Direct, and registered memory.
    fn has_methods(&self) -> bool {
        false
    }

    /// Keeps `load.queue_depth` operations in flight until `budget` is used up, then waits for the last, and records
    /// the time of each from submission to completion. With `load.compute_ns` it computes after each submission.
    ///
    /// Every operation must have moved all of its bytes: a short one is an error.
    fn run(&mut self, load: &Load, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work>;

    /// The size from which the session would choose Direct, as the server exported it.
    fn exported_threshold(&self, op: Op, registered: bool) -> Option<u64> {
        let _ = (op, registered);
        None
    }

    /// Has the server export these crossings from now on; in words what it exports. `None` is a method that never pays.
    fn publish(&mut self, found: &[(Op, bool, Option<u64>)]) -> anyhow::Result<String> {
        let _ = found;
        anyhow::bail!("cannot publish crossovers of {}: only dafs exports them", self.transport())
    }

    /// Makes, looks at and removes files until `budget` is used up, and records the times of `op`; `None` where it has no such calls.
    fn names(&mut self, op: NameOp, budget: Budget, samples: &mut Samples) -> anyhow::Result<Option<Work>> {
        let _ = (op, budget, samples);
        Ok(None)
    }

    /// Does `op` to each file of `batch`, in a directory of its own, and records the time of each, but for listings. The calls come in the
    /// order of [`NameOp::ALL`]: they make and remove files and directory. `None` where it has no such calls, or not so many at once.
    fn files(&mut self, op: NameOp, batch: Batch, samples: &mut Samples) -> anyhow::Result<Option<Work>> {
        let _ = (op, batch, samples);
        Ok(None)
    }

    /// Time that its server has spent on CPUs, in nanoseconds; `None` where that cannot be told.
    fn server_cpu_ns(&self) -> Option<u64> {
        None
    }

    /// Stops using CPU until [`Subject::wake`], so that a limit has the machine for itself.
    fn rest(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Ends [`Subject::rest`].
    fn wake(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
