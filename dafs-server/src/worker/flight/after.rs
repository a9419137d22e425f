//! What is left to do when storage has answered.

use dafs_proto::transport::RemoteRange;
use dafs_proto::wire::{Method, Stability, Verifier};

use crate::storage::{ExportId, NodeId};
use crate::worker::session::handles::OpenHandle;

/// How the reply is made from what storage answers.
#[derive(Debug)]
pub(crate) enum After {
    /// No body.
    Plain,
    /// Attributes in the payload.
    Attributes,
    /// A new handle; attributes in the payload. The node is not known yet.
    Node { like: OpenHandle },
    /// A new handle of a node that is open and held for it; attributes in the payload.
    Held { open: OpenHandle },
    /// The root of an export.
    Mount { root: OpenHandle },
    /// Bytes in the payload; at most this many.
    Bytes { max: usize },
    /// An offset.
    Seek,
    /// Statistics in the payload.
    Statfs,
    /// Directory entries.
    Entries(Wanted),
    /// A commit's verifier.
    Commit { export: ExportId },
    /// A write that is already in the file and becomes durable.
    Written { verifier: Verifier, offset: u64, count: u32, stability: Stability },
    /// A write by storage itself. The memory is kept until it is done by the operation.
    Write { target: Target, offset: u64, stability: Stability, method: Method },
}

/// What is about to be written: its file, and the verifier from before anything of it is. What is written while the verifier changes may
/// be lost already, so the one from afterwards would vouch for too much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) node: NodeId,
    pub(crate) verifier: Verifier,
}

/// Where the entries go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) cookie: u64,
    pub(crate) size_max: usize,
    /// The client's memory; in the payload where there is none.
    pub(crate) remote: Option<RemoteRange>,
}
