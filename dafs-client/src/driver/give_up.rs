//! When connecting again is given up.

/// Connections in a row that break before they bring a reply to any of the requests in flight; then the session is given up. Each was made,
/// so the server is there: what is sent again ends them, memory that is gone for instance. So many that who cuts connections from outside
/// as fast as can be is outlasted.
pub(crate) const GIVE_UP_AFTER: u32 = 1000;

/// Connections that brought no reply.
#[derive(Debug, Default)]
pub(crate) struct GiveUp {
    /// In a row, up to now.
    connections: u32,
    /// Replies of the session when the last connection was taken into use.
    replies: u64,
}

impl GiveUp {
    /// A connection broke, with so many replies of the session so far: whether it was one too many of those that brought none to what was
    /// sent.
    pub(crate) fn on_broken(&mut self, replies: u64, outstanding: bool) -> bool {
        let brought = replies != self.replies;
        self.connections = match brought || !outstanding {
            true => 0,
            false => self.connections + 1,
        };
        self.connections >= GIVE_UP_AFTER
    }

    /// A connection is taken into use.
    pub(crate) fn on_connected(&mut self, replies: u64) {
        self.replies = replies;
    }
}
