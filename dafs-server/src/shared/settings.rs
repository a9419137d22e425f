//! Numbers that bound and time a server, and what it knows of its listeners.

use std::time::Duration;

use dafs_proto::transport::Address;
use dafs_proto::wire::{Features, GatherSwitches, Thresholds};

use crate::worker::buffers::BufferConfig;

/// Numbers that bound and time a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Slots of a session at most.
    pub slots_max: u16,
    /// Operations in flight, shared by all sessions.
    pub operations_max: u32,
    /// Sessions at once.
    pub sessions_max: usize,
    /// Open handles of a session.
    pub handles_max: u32,
    /// Largest payload of a message, bytes.
    pub inline_max: u32,
    /// Replies to requests that came together leave together.
    pub batch_replies: bool,
    /// Largest read or write, bytes.
    pub transfer_size_max: u32,
    /// Transfer buffers.
    pub buffers: BufferConfig,
    /// A session is kept this long without a sign of life.
    pub lease: Duration,
    /// Clients speak at least this often.
    pub keep_alive: Duration,
    /// A handshake takes this long at most.
    pub handshake: Duration,
    /// Identity of this run: random.
    pub epoch: u64,
    /// Of the protocol's optional features those that clients are offered.
    pub features: Features,
}

/// A place to listen and what its provider measured.
#[derive(Clone, Debug)]
pub struct ListenerInfo {
    /// Where it listens.
    pub address: Address,
    /// Exported to every session that comes in here.
    pub thresholds: Thresholds,
    /// As the thresholds; `None` where it was not measured.
    pub gather: Option<GatherSwitches>,
    /// How transfers through buffers are cut.
    pub pipelining: Pipelining,
}

/// How a transfer through buffers is cut into chunks, and how many of them are in progress at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipelining {
    /// Bytes of a chunk; never more than the largest buffer.
    pub chunk_size: u64,
    /// Chunks in progress: 1 moves one after the other.
    pub depth: usize,
    /// The chunk size is as it was set; else transfers of few chunks are cut into smaller ones.
    pub is_set: bool,
}

impl Default for Pipelining {
    /// What does well with most disks and networks.
    fn default() -> Self {
        Self { chunk_size: 256 << 10, depth: 4, is_set: false }
    }
}
