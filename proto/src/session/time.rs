use std::time::Duration;

/// A point in time, microseconds since the driver's own beginning. Drivers read a clock; tests make it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Microseconds.
    pub micros: u64,
}

impl Moment {
    /// This long after the beginning.
    pub fn from_millis(millis: u64) -> Self {
        Self { micros: millis.saturating_mul(1000) }
    }

    /// `duration` later; the end of time when that is too far.
    #[inline]
    pub fn after(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self { micros: self.micros.saturating_add(micros) }
    }

    /// Time since `earlier`; zero when that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.micros.saturating_sub(earlier.micros))
    }
}

/// A side speaks after so much silence of its own, milliseconds, whatever was agreed: the other may wait for twice as long at most.
pub const KEEP_ALIVE_MAX_MS: u32 = 30_000;

/// When a client must speak, and when either side gives the other up.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    speak_after: Duration,
    give_up_after: Duration,
    last_sent: Moment,
    last_heard: Moment,
}

impl KeepAlive {
    /// Speak after `speak_after` of one's own silence; give up after `give_up_after` of the other's.
    pub fn new(speak_after: Duration, give_up_after: Duration, now: Moment) -> Self {
        Self { speak_after, give_up_after, last_sent: now, last_heard: now }
    }

    /// Something was sent.
    pub fn on_sent(&mut self, now: Moment) {
        self.last_sent = now;
    }

    /// Something arrived.
    pub fn on_heard(&mut self, now: Moment) {
        self.last_heard = now;
    }

    /// It is time to send `Null`.
    pub fn must_speak(&self, now: Moment) -> bool {
        now >= self.last_sent.after(self.speak_after)
    }

    /// The other side has been silent for too long.
    pub fn gives_up(&self, now: Moment) -> bool {
        now >= self.last_heard.after(self.give_up_after)
    }

    /// When one of the two comes true.
    pub fn next_timeout(&self) -> Moment {
        self.last_sent.after(self.speak_after).min(self.last_heard.after(self.give_up_after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_one_microsecond_early_on_time_and_late() {
        let mut alive =
            KeepAlive::new(Duration::from_millis(10), Duration::from_millis(30), Moment::default());
        let at = |micros| Moment { micros };
        assert!(!alive.must_speak(at(9_999)) && alive.must_speak(at(10_000)) && alive.must_speak(at(10_001)));
        alive.on_sent(at(10_000));
        assert_eq!(alive.next_timeout(), at(20_000));
        alive.on_sent(at(25_000));
        assert_eq!(alive.next_timeout(), at(30_000));
        assert!(!alive.gives_up(at(29_999)) && alive.gives_up(at(30_000)));
        alive.on_heard(at(29_999));
        assert!(!alive.gives_up(at(59_998)) && alive.gives_up(at(59_999)));
    }
}
