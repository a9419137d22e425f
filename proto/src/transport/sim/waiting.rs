//! Who waits in a network whose time somebody else moves.

use std::time::Duration;

use super::connection::Link;
use super::{SimNet, nanos};

/// A call that waits, see [`SimNet::on_wait`].
#[derive(Clone)]
pub struct Waiting {
    net: SimNet,
    /// For something on this side of a connection; else for the time alone.
    link: Option<Link>,
    until: Option<Duration>,
}

impl Waiting {
    pub(super) fn new(net: &SimNet, link: Option<Link>, until_ns: Option<u64>) -> Self {
        Self { net: net.clone(), link, until: until_ns.map(Duration::from_nanos) }
    }

    /// The time from which on it waits no longer.
    pub fn until(&self) -> Option<Duration> {
        self.until
    }

    /// It waits no longer.
    pub fn is_over(&self) -> bool {
        let mut state = self.net.lock();
        self.until.is_some_and(|until| state.now_ns() >= nanos(until))
            || self.link.is_some_and(|link| state.has_news(link))
    }
}
