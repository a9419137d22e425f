//! What both halves of a connection use.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;

use super::super::{Completion, OpToken, TransportError};
use super::shared::Shared;

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
}

/// The socket, and what has happened on it.
pub(super) struct Link {
    pub(super) socket: TcpStream,
    pub(super) shared: Arc<Shared>,
    pub(super) completions: VecDeque<Completion>,
    pub(super) counters: Counters,
}

impl Link {
    pub(super) fn complete(&mut self, token: OpToken, result: Result<(), TransportError>) {
        self.completions.push_back(Completion { token, result });
    }
}
