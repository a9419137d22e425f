//! What the connections of a domain share.

use std::sync::Arc;
use std::time::Duration;

use super::super::util::RegionTable;
use super::memory::BufferPool;

/// Settings of a [`super::TcpDomain`].
#[derive(Clone, Copy, Debug)]
pub struct TcpSettings {
    /// Send and receive buffer of sockets whose peer is on this host, bytes each. Between hosts the kernel's own
    /// tuning is left alone: the size needed depends on the path, and a fixed one switches that tuning off.
    pub loopback_buffer_size: usize,
    /// A peer that has not sent its hello by then is dropped.
    pub handshake_timeout: Duration,
    /// Handshakes in progress per listener. Beyond them one is dropped, of the address that has most, or the new one.
    pub handshakes_max: usize,
    /// A handshake lasts this long before it is dropped for a new one of an address that has as many.
    pub handshake_age_min: Duration,
    /// Regions registered at once.
    pub regions_max: usize,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            loopback_buffer_size: 256 << 10,
            handshake_timeout: Duration::from_secs(5),
            handshakes_max: 256,
            handshake_age_min: Duration::from_millis(250),
            regions_max: 1 << 20,
        }
    }
}

/// Memory and settings.
pub(super) struct TcpDomainParts {
    pub(super) regions: Arc<RegionTable>,
    pub(super) pool: BufferPool,
    pub(super) settings: TcpSettings,
}
