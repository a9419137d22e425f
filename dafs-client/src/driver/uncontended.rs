//! Whether the threads that share a session still meet in it.

/// Operations without another thread in sight after which a shared session is one thread's again: at first, and at most.
const UNCONTENDED_MIN: u32 = 128;
const UNCONTENDED_MAX: u32 = 1 << 16;

/// How long a session has been used by one thread at a time, in operations.
#[derive(Debug)]
pub(crate) struct Uncontended {
    operations: u32,
    /// So many are enough.
    enough: u32,
}

impl Default for Uncontended {
    fn default() -> Self {
        Self { operations: 0, enough: UNCONTENDED_MIN }
    }
}

impl Uncontended {
    /// Two threads met: next time it takes longer to believe that they do not.
    pub(crate) fn on_collision(&mut self) {
        self.operations = 0;
        self.enough = (self.enough * 2).min(UNCONTENDED_MAX);
    }

    /// Another thread waits for its operation.
    pub(crate) fn on_company(&mut self) {
        self.operations = 0;
    }

    /// Another operation ended; whether that has gone on for long enough.
    pub(crate) fn lasts(&mut self) -> bool {
        self.operations += 1;
        let lasts = self.operations >= self.enough;
        if lasts {
            self.operations = 0;
        }
        lasts
    }
}
