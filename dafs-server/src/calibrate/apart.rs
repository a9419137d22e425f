//! The two ends of a calibration on different CPUs, as a server and its clients are. On one CPU, where the scheduler puts both if other
//! programs take the rest, or if the server may run on one only, data is still in that CPU's caches and each message costs a switch of
//! threads: inline would seem the faster.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Which CPU the serving end keeps.
#[derive(Clone, Copy)]
pub(super) struct Apart {
    /// The CPUs of this process.
    own: CpuSet,
    serving: usize,
}

/// A thread that is kept on some CPUs until this is dropped.
pub(super) struct Held(CpuSet);

impl Apart {
    /// The serving end on the CPU of the calling thread; `None` where there is no other CPU, or the system does not let threads choose.
    pub(super) fn from_here() -> Option<Self> {
        let apart = Self { own: sched_getaffinity(None).ok()?, serving: sched_getcpu() };
        // Whether there is another CPU is known once a thread may run there.
        (apart.serving < CpuSet::MAX_CPU && apart.time().is_some()).then_some(apart)
    }

    /// Keeps the calling thread, which serves, on its CPU. Threads that are made meanwhile stay there too.
    pub(super) fn serve(&self) -> Option<Held> {
        let mut one = CpuSet::new();
        one.set(self.serving);
        self.hold(&one)
    }

    /// Keeps the calling thread, which times, away from there: also on CPUs that are not for this process, for those may be its clients'.
    pub(super) fn time(&self) -> Option<Held> {
        let mut others = CpuSet::new();
        (0..CpuSet::MAX_CPU).filter(|cpu| *cpu != self.serving).for_each(|cpu| others.set(cpu));
        self.hold(&others)
    }

    /// Where the system refuses, threads stay as they are.
    fn hold(&self, cpus: &CpuSet) -> Option<Held> {
        sched_setaffinity(None, cpus).ok()?;
        Some(Held(self.own))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    // [PROV-95]
    #[test]
    fn ends_share_no_cpu_and_are_free_afterwards() {
        let before = sched_getaffinity(None).unwrap();
        let Some(apart) = Apart::from_here() else { return };
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        let while_held = |held: Option<Held>| held.map(|_held| sched_getaffinity(None).unwrap()).unwrap();
        // A thread of a process that is kept on one CPU times on another.
        for own in [apart, Apart { own: while_held(apart.serve()), ..apart }] {
            let (serving, timing) = (while_held(own.serve()), while_held(own.time()));
            assert!(serving.count() == 1 && serving.is_set(apart.serving));
            assert!(timing.count() >= 1 && !timing.is_set(apart.serving));
            assert_eq!(sched_getaffinity(None).unwrap(), own.own);
        }
        sched_setaffinity(None, &before).unwrap();
    }
}
