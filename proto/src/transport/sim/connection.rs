//! One simulated connection: two sides, and what is on its way between them.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::NodeId;
use super::world::DomainId;
use crate::transport::{
    Completion, ConnectParams, Head, LocalSegments, OpToken, PeerFault, RemoteRange, TransportError,
};

/// One side of a connection. Side 0 connected, side 1 accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) connection: u64,
    pub(super) side: usize,
}

impl Link {
    pub(super) fn peer(self) -> Self {
        Self { side: 1 - self.side, ..self }
    }
}

pub(super) struct Connection {
    pub(super) nodes: [NodeId; 2],
    pub(super) sides: [Side; 2],
    /// What left side `i` and has not arrived.
    pub(super) ways: [Way; 2],
    /// A fault has cut it: nothing more gets through, though the sides may not know yet.
    pub(super) cut: bool,
}

#[derive(Default)]
pub(super) struct Way {
    pub(super) packets: VecDeque<Packet>,
    /// No packet may arrive earlier than this.
    pub(super) last_at_ns: u64,
}

pub(super) struct Side {
    pub(super) domain: DomainId,
    /// What it asked for, within the limits.
    pub(super) params: ConnectParams,
    /// Posted, not flushed.
    pub(super) outbox: VecDeque<Packet>,
    pub(super) inbox: VecDeque<Arrived>,
    /// Receives of the peer that this side's messages occupy: reserved, on their way, or not yet taken. At most the peer's `recv_depth`,
    /// or as many as can always be reserved.
    pub(super) receives_used: u16,
    /// RDMA operations in flight; at most `rdma_depth`.
    pub(super) ops: BTreeMap<u64, Op>,
    pub(super) completions: VecDeque<Completion>,
    /// Why it is over, once it is.
    pub(super) end: Option<End>,
    /// Full was answered; the next receive the peer frees sets `room`.
    pub(super) wants_room: bool,
    /// There may be room again; not yet noticed by a wait.
    pub(super) room: bool,
    /// The endpoint was closed.
    pub(super) closed: bool,
    /// The endpoint was dropped: nobody will ask for the completions that are left.
    pub(super) released: bool,
}

/// Largest payload, bytes.
const PAYLOAD_MAX: u32 = 1 << 20;
/// Largest depth, of messages and of RDMA.
const DEPTH_MAX: u16 = 4096;

impl Side {
    pub(super) fn new(domain: DomainId, params: ConnectParams) -> Self {
        let params = ConnectParams {
            recv_payload_max: params.recv_payload_max.min(PAYLOAD_MAX),
            recv_depth: params.recv_depth.clamp(1, DEPTH_MAX),
            rdma_depth: params.rdma_depth.clamp(1, DEPTH_MAX),
            ..params
        };
        Self {
            domain,
            params,
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            receives_used: 0,
            ops: BTreeMap::new(),
            completions: VecDeque::new(),
            end: None,
            wants_room: false,
            room: false,
            closed: false,
            released: false,
        }
    }

    /// Ends it, if it has not ended: what was posted completes as failed, what was not flushed is lost.
    pub(super) fn finish(&mut self, end: End) {
        if self.end.is_some() {
            return;
        }
        for op in std::mem::take(&mut self.ops).into_values() {
            self.completions.push_back(Completion { token: op.token, result: Err(end.error()) });
        }
        self.outbox.clear();
        self.room = true;
        self.end = Some(end);
    }

    pub(super) fn complete(&mut self, id: u64, result: Result<(), TransportError>) {
        if let Some(op) = self.ops.remove(&id) {
            self.completions.push_back(Completion { token: op.token, result });
        }
    }
}

/// An RDMA operation in flight.
pub(super) struct Op {
    pub(super) token: OpToken,
    pub(super) local: LocalSegments,
    pub(super) remote: RemoteRange,
}

/// What travels in order.
pub(super) enum Packet {
    Message { head: Head, payload: Vec<u8> },
    Write { source: Source, remote: RemoteRange, immediate: Option<u32> },
    Read { op: u64 },
    Close,
}

impl Packet {
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Message { payload, .. } => payload.len() as u64,
            Self::Write { remote, .. } => remote.len,
            Self::Read { .. } | Self::Close => 0,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Message { .. } => "message",
            Self::Write { .. } => "write",
            Self::Read { .. } => "read",
            Self::Close => "close",
        }
    }
}

/// Where a write's bytes come from when it arrives.
pub(super) enum Source {
    /// The memory of an operation in flight.
    Op(u64),
    /// A copy: nobody waits for the completion.
    Copied(Vec<u8>),
}

pub(super) enum Arrived {
    Message { head: Head, payload: Vec<u8> },
    Immediate { data: u32, size: u32 },
}

/// Why a side is over.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// One of the two closed it.
    Closed,
    /// A fault cut it.
    Reset,
    /// This side's own node crashed.
    Crashed,
    /// The peer broke a rule.
    Peer(PeerFault),
}

impl End {
    pub(super) fn error(&self) -> TransportError {
        match self {
            Self::Closed => TransportError::Closed,
            Self::Reset => TransportError::system("simulated network", io::ErrorKind::ConnectionReset.into()),
            Self::Crashed => {
                TransportError::system("simulated crash", io::ErrorKind::ConnectionAborted.into())
            }
            Self::Peer(fault) => TransportError::Peer(fault.clone()),
        }
    }
}
