//! Since when a worker serves, and the time after a start in which locks of before it are taken again.

use std::time::Duration;

use dafs_proto::session::Moment;

/// When a worker began, and what of the time before it is still to come.
#[derive(Debug)]
pub(crate) struct Lifetime {
    began: Moment,
    /// Nobody has taken a lock of before a restart again since then; time in which nothing was read does not count.
    reclaims_since: Moment,
    /// How many were taken again by then.
    reclaims_seen: u64,
    /// Whoever waited for the end of the time after a restart is served.
    serves_after_restart: bool,
}

impl Lifetime {
    /// It begins now.
    pub(crate) fn new(now: Moment) -> Self {
        Self { began: now, reclaims_since: now, reclaims_seen: 0, serves_after_restart: false }
    }

    /// How long that is ago.
    pub(crate) fn uptime(&self, now: Moment) -> Duration {
        now.since(self.began)
    }

    /// For so long this server did not run.
    pub(crate) fn on_stall(&mut self, later: impl Fn(Moment) -> Moment) {
        self.reclaims_since = later(self.reclaims_since);
    }

    /// Whoever takes its locks again takes long for many of them: while it goes on, the time does, but no longer than `time_max`.
    pub(crate) fn note_reclaims(&mut self, reclaims: u64, time_max: Duration, now: Moment) {
        if reclaims != self.reclaims_seen && now < self.began.after(time_max) {
            (self.reclaims_seen, self.reclaims_since) = (reclaims, now);
        }
    }

    /// None was taken again for so long.
    pub(crate) fn have_reclaims_rested(&self, time: Duration, now: Moment) -> bool {
        now >= self.reclaims_since.after(time)
    }

    /// The time in which locks are taken again is over: whoever waits for that is to be served.
    pub(crate) fn end_restart(&mut self) {
        self.serves_after_restart = true;
    }

    /// Some are still to be served.
    pub(crate) fn serves_after_restart(&self) -> bool {
        self.serves_after_restart
    }

    /// All are served.
    pub(crate) fn served_after_restart(&mut self) {
        self.serves_after_restart = false;
    }
}
