//! Servers that do not answer: later opens do not wait for them each time.

use std::time::{Duration, Instant};

use crate::error::Error;

/// Time for an attempt to connect to a server that did not answer before.
const TIMEOUT: Duration = Duration::from_secs(1);
/// For so many times as long as an attempt took there is no other, and for no longer than this.
const PAUSE_FACTOR: u32 = 10;
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A server whose session was lost, or that was asked for a session in vain.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    /// Of the last attempt.
    error: Error,
    again: Instant,
}

impl Gone {
    /// Its session has ended. There is a new one at once, if the server is there.
    pub(super) fn lost(error: Error, now: Instant) -> Self {
        Self { error, again: now }
    }

    /// An attempt to connect began at a time and failed now.
    pub(super) fn failed(error: Error, began: Instant, now: Instant) -> Self {
        let pause = now.saturating_duration_since(began).saturating_mul(PAUSE_FACTOR).min(PAUSE_MAX);
        Self { error, again: now + pause }
    }

    /// Time for another attempt; the error of the last one where it is too early for that.
    pub(super) fn timeout(&self, now: Instant) -> Result<Duration, Error> {
        if now < self.again { Err(self.error.clone()) } else { Ok(TIMEOUT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Class;

    fn error() -> Error {
        Error::new(Class::Io, "no answer")
    }

    // [MPI-92]
    #[test]
    fn next_calls_do_not_ask_a_server_that_hung() {
        let began = Instant::now();
        for (took_ms, pause_ms) in [(10_000, 10_000), (1000, 10_000), (900, 9000), (0, 0)] {
            let now = began + Duration::from_millis(took_ms);
            let gone = Gone::failed(error(), began, now);
            let at = |ms| gone.timeout(now + Duration::from_millis(ms));
            if pause_ms > 0 {
                assert_eq!([at(0), at(pause_ms - 1)], [Err(error()), Err(error())], "{took_ms}");
            }
            assert_eq!(at(pause_ms), Ok(TIMEOUT), "{took_ms}");
        }
        assert_eq!(Gone::lost(error(), began).timeout(began), Ok(TIMEOUT));
    }
}
