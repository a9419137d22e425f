//! What is known of the other side: when it was heard, and how many requests it is asked to take.

use std::time::Duration;

use dafs_proto::session::{KeepAlive, Moment};
use dafs_proto::wire::Welcome;

/// Replies after which the remembered peak of wanted credits falls by one.
const PEAK_DECAY_REPLIES: u32 = 64;

/// Signs of life, of both sides.
pub(crate) struct Signs {
    alive: KeepAlive,
    // Longest time without a look that counts as the server's silence.
    unseen_max: Duration,
    looked: Moment,
    // Noted where no clock is read, dated by the next who reads one.
    pub(crate) heard: bool,
    pub(crate) spoke: bool,
}

impl Signs {
    /// Of a connection that was made now.
    pub(crate) fn new(welcome: &Welcome, now: Moment) -> Self {
        let time = |ms: u32| Duration::from_millis(u64::from(ms.max(1)));
        let alive = KeepAlive::new(time(welcome.keep_alive_ms), time(welcome.lease_ms), now);
        let unseen_max = time(welcome.lease_ms) / 2;
        Self { alive, unseen_max, looked: now, heard: false, spoke: false }
    }

    /// What was noted gets its date.
    pub(crate) fn dated(&mut self, now: Moment) -> &KeepAlive {
        // Nobody has looked for what the server may have said long ago.
        let unseen = now.since(std::mem::replace(&mut self.looked, now)) > self.unseen_max;
        if std::mem::take(&mut self.heard) || unseen {
            self.alive.on_heard(now);
        }
        if std::mem::take(&mut self.spoke) {
            self.alive.on_sent(now);
        }
        &self.alive
    }
}

/// How many requests this client would like outstanding.
pub(crate) struct Demand {
    pub(crate) credits_max: u16,
    peak: u16,
    peak_replies: u32,
}

impl Demand {
    pub(crate) fn new(credits_max: u16) -> Self {
        Self { credits_max, peak: 1, peak_replies: 0 }
    }

    /// As many requests could be outstanding now; answers how many to ask for.
    #[inline]
    pub(crate) fn note(&mut self, now: usize) -> u16 {
        let now = u16::try_from(now).unwrap_or(u16::MAX).min(self.credits_max);
        self.peak_replies += 1;
        if now >= self.peak {
            self.peak = now;
            self.peak_replies = 0;
        } else if self.peak_replies >= PEAK_DECAY_REPLIES {
            self.peak -= 1;
            self.peak_replies = 0;
        }
        self.peak.max(1)
    }
}
