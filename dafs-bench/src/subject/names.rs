//! Calls on names: a file is made, looked at and removed, again and again, and one of the three is timed.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use crate::clock::nanoseconds;
use crate::load::{Budget, Work};
use crate::record::NameOp;
use crate::stats::Samples;

/// Names that a run goes round, so that no two calls in a row are about the same.
const NAMES: u64 = 64;

/// Calls `each` with the three plain calls in turn and a name, until the budget is used up. The time is that of the calls of `op` alone.
pub fn cycle(
    op: NameOp,
    budget: Budget,
    samples: &mut Samples,
    mut each: impl FnMut(NameOp, &str) -> anyhow::Result<()>,
) -> anyhow::Result<Work> {
    let deadline = budget.start();
    let (mut ops, mut spent) = (0, std::time::Duration::ZERO);
    loop {
        let name = format!("dafs-bench.name-{}", ops % NAMES);
        let mut now = Instant::now();
        for call in NameOp::PLAIN {
            let before = now;
            each(call, &name)?;
            now = Instant::now();
            if call == op {
                samples.record(nanoseconds(before, now));
                spent += now - before;
            }
        }
        ops += 1;
        if deadline.over(now, ops) {
            return Ok(Work { ops, elapsed: spent });
        }
    }
}

/// The same by system calls in a directory.
pub fn names_in(directory: &Path, op: NameOp, budget: Budget, samples: &mut Samples) -> anyhow::Result<Work> {
    cycle(op, budget, samples, |call, name| {
        let path = directory.join(name);
        match call {
            NameOp::Create => drop(File::create(path)?),
            NameOp::Stat => {
                fs::metadata(path)?;
            }
            NameOp::Remove => fs::remove_file(path)?,
            NameOp::Open | NameOp::Rename | NameOp::List => {
                anyhow::bail!("no {} of a single name", call.name())
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_on_names_leave_nothing_and_are_all_counted() {
        let directory = tempfile::tempdir().unwrap();
        let budget = Budget { duration: std::time::Duration::ZERO, ops_min: 100, ops_slow_min: 100 };
        for op in NameOp::PLAIN {
            let mut samples = Samples::with_capacity(1000);
            let work = names_in(directory.path(), op, budget, &mut samples).unwrap();
            assert!(work.ops >= 100 && samples.len() as u64 == work.ops, "{work:?}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn call_that_fails_ends_the_run() {
        let budget = Budget { duration: std::time::Duration::ZERO, ops_min: 1, ops_slow_min: 1 };
        let missing = Path::new("/nonexistent/directory");
        assert!(names_in(missing, NameOp::Stat, budget, &mut Samples::with_capacity(10)).is_err());
    }
}
