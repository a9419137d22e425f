//! How many plans of views exist at a time. A plan stays as long as its request waits, and takes 40 bytes for each segment. Clients choose
//! how many requests wait, so the number needs a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Plans of a worker at most.
const ALL_MAX: usize = 64;

/// Plans of one session at most.
const SESSION_MAX: usize = 8;

/// Segments that are planned at once by a request that gets no [`PlanRoom`].
pub(crate) const FEW_PARTS_MAX: u64 = 256;

/// The plans of a worker, or of a session.
#[derive(Clone, Debug, Default)]
pub struct Plans(Arc<AtomicUsize>);

impl Plans {
    /// Room for one plan of a session, unless it has, or all have, too many.
    pub(crate) fn room(&self, session: &Self) -> Option<PlanRoom> {
        let count = |plans: &Self| plans.0.load(Ordering::Relaxed);
        if count(self) >= ALL_MAX || count(session) >= SESSION_MAX {
            return None;
        }
        let room = PlanRoom([self.clone(), session.clone()]);
        for plans in &room.0 {
            plans.0.fetch_add(1, Ordering::Relaxed);
        }
        Some(room)
    }
}

/// The room of one plan, until it is dropped.
#[derive(Debug)]
pub(crate) struct PlanRoom([Plans; 2]);

impl Drop for PlanRoom {
    fn drop(&mut self) {
        for plans in &self.0 {
            plans.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_bounded_for_a_session_and_for_all() {
        let (all, sessions) = (Plans::default(), [0; 9].map(|_| Plans::default()));
        let mut taken = Vec::new();
        for session in &sessions[..8] {
            taken.extend((0..SESSION_MAX).map(|_| all.room(session).expect("its share")));
            assert!(all.room(session).is_none(), "of a session");
        }
        assert_eq!(taken.len(), ALL_MAX);
        assert!(all.room(&sessions[8]).is_none(), "of all");
        taken.pop();
        let last = all.room(&sessions[8]);
        assert!(last.is_some() && all.room(&sessions[8]).is_none());
        taken.clear();
        drop(last);
        assert!(sessions.iter().chain([&all]).all(|plans| plans.0.load(Ordering::Relaxed) == 0));
    }
}
