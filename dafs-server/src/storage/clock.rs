//! The clock of exports that keep times themselves.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use dafs_proto::wire::Timestamp;

/// Tells the time of exports that have no clock of their own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timestamp {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: since.subsec_nanos(),
            }
        })
    }

    /// A clock that asks `now`.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// What it says.
    pub(super) fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}
