//! What both halves of a connection use.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;

use super::super::{Completion, OpToken, RegionFault, RegionKey, TransportError};
use super::domain_parts::TcpDomainParts;

/// What a connection has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// System calls that send.
    pub sends: u64,
    /// System calls that receive.
    pub recvs: u64,
    /// System calls that wait.
    pub polls: u64,
    /// RDMA data copied from staging to its place, bytes.
    pub bytes_copied: u64,
    /// Sent, bytes, headers included.
    pub bytes_sent: u64,
    /// Received, bytes, headers included.
    pub bytes_received: u64,
    /// Of both, data of RDMA.
    pub bytes_of_rdma: u64,
}

/// The socket, and what has happened on it.
pub(super) struct Link {
    pub(super) socket: TcpStream,
    pub(super) shared: Arc<TcpDomainParts>,
    pub(super) completions: VecDeque<Completion>,
    pub(super) counters: Counters,
    /// The only regions that the peer reaches; `None` for all of the domain.
    pub(super) own: Option<Vec<RegionKey>>,
}

/// Keys of a connection's own regions among which ended ones are not looked for yet. More than a connection has eager buffers.
const OWN_UNSWEPT: usize = 64;

impl Link {
    /// The peer may name this region.
    #[inline]
    pub(super) fn check_reach(&self, key: RegionKey) -> Result<(), RegionFault> {
        match &self.own {
            Some(own) if !own.contains(&key) => Err(RegionFault::UnknownKey(key)),
            _ => Ok(()),
        }
    }

    /// The region is this connection's.
    pub(super) fn add_own(&mut self, key: RegionKey) {
        let regions = &self.shared.regions;
        let Some(own) = &mut self.own else { return };
        if own.len() >= OWN_UNSWEPT {
            own.retain(|key| regions.is_live(*key));
        }
        own.push(key);
    }

    pub(super) fn complete(&mut self, token: OpToken, result: Result<(), TransportError>) {
        self.completions.push_back(Completion { token, result });
    }
}
