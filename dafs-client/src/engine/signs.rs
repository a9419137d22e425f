//! What is known of the other side: when it was heard, and how many requests it is asked to take.

use std::time::Duration;

use dafs_proto::session::{KeepAlive, Moment};
use dafs_proto::wire::Welcome;

/// Longest time without a look at the clock.
pub(crate) const LOOK_MAX: Duration = Duration::from_secs(1);
/// Replies after which the remembered peak of wanted credits falls by one.
const PEAK_DECAY_REPLIES: u32 = 64;

/// Signs of life, of both sides.
pub(crate) struct Signs {
    alive: KeepAlive,
    // Longest time without a look that counts as the server's silence.
    unseen_max: Duration,
    // Who waits looks at the time at least this often.
    look_max: Duration,
    // Who has just said something may wait for this long without a look at the time.
    undated_max: Duration,
    looked: Moment,
    // Noted where no clock is read, dated by the next who reads one.
    pub(crate) heard: bool,
    pub(crate) spoke: bool,
    // Bytes of the connection that had come when this was last asked.
    received: u64,
}

impl Signs {
    /// Of a connection that was made now.
    pub(crate) fn new(welcome: &Welcome, now: Moment) -> Self {
        let time = |ms: u32| Duration::from_millis(u64::from(ms.max(1)));
        let (keep_alive, lease) = (time(welcome.keep_alive_ms), time(welcome.lease_ms));
        match &welcome.cluster {
            // A server of several may have been replaced after a term: others wait for whoever notices that late.
            Some(cluster) => Self::with(keep_alive, time(cluster.term_ms).min(lease), 8, now),
            None => Self::with(keep_alive, lease, 4, now),
        }
    }

    /// The server is given up after so much silence, in which who waits looks at the time so often.
    fn with(keep_alive: Duration, silence_max: Duration, looks: u32, now: Moment) -> Self {
        let alive = KeepAlive::new(keep_alive, silence_max, now);
        let (unseen_max, look_max) = (silence_max / 2, LOOK_MAX.min(silence_max / looks));
        let undated_max = look_max.min(keep_alive);
        Self {
            alive,
            unseen_max,
            look_max,
            undated_max,
            looked: now,
            heard: false,
            spoke: false,
            received: 0,
        }
    }

    /// How long who waits may sleep that has just said something: no clock is read for it.
    #[inline]
    pub(crate) fn undated_sleep_max(&self) -> Duration {
        self.undated_max
    }

    /// How long who waits may sleep: until this side must say something, or the other is given up. That it does not, or cannot, may keep
    /// either in the past.
    pub(crate) fn sleep_max(&self, now: Moment) -> Duration {
        let longest = self.look_max;
        Some(self.alive.next_timeout().since(now))
            .filter(|left| !left.is_zero())
            .map_or(longest, |left| left.min(longest))
    }

    /// So many bytes have come over the connection: also those of a transfer in which no message comes.
    pub(crate) fn on_received(&mut self, bytes: u64) {
        self.heard |= std::mem::replace(&mut self.received, bytes) != bytes;
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

    /// As many requests could be outstanding now; returns how many to ask for.
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

#[cfg(test)]
mod tests {
    use super::*;

    // [SESS-47]
    #[test]
    fn time_in_which_nobody_looked_is_not_the_servers_silence() {
        let at = |seconds| Moment::default().after(Duration::from_secs(seconds));
        let signs = || Signs::with(Duration::from_secs(20), Duration::from_secs(60), 4, at(0));
        let gives_up = |signs: &mut Signs, seconds| signs.dated(at(seconds)).gives_up(at(seconds));
        let mut looks = signs();
        assert!((1..60).all(|second| !gives_up(&mut looks, second)));
        assert!(gives_up(&mut looks, 60), "a server that is silent while somebody looks");
        let mut stopped = signs();
        assert!(!gives_up(&mut stopped, 20));
        assert!(!gives_up(&mut stopped, 500), "this process did not run");
        assert!((501..560).all(|second| !gives_up(&mut stopped, second)));
        assert!(gives_up(&mut stopped, 560));
        for stop in 1..200 {
            let mut stopped = signs();
            assert!((1..=59).all(|second| !gives_up(&mut stopped, second)));
            assert_eq!(gives_up(&mut stopped, 59 + stop), stop <= 30, "{stop} s without a look");
        }
    }
}
