//! What is left to do when storage has answered.

use dafs_proto::transport::{MemoryRef, RemoteRange};
use dafs_proto::wire::{Method, Stability, Verifier, VerifyRequest};

use crate::storage::{ExportId, NodeId};
use crate::worker::ids::ConnectionKey;
use crate::worker::sessions::handles::{OpenHandle, Reserved};

/// How the reply is made from what storage returns.
#[derive(Debug)]
pub(crate) enum After {
    /// No body.
    Plain,
    /// Attributes in the payload.
    Attributes,
    /// A comparison with the attributes.
    Verify(VerifyRequest),
    /// A new handle; attributes in the payload. The node is not known yet, but there is room for it.
    Node {
        like: OpenHandle,
        reserved: Option<Reserved>,
        /// The request, body and payload, of one with a deny mode: others may have to give the file back first.
        denies: Option<Box<(Vec<u8>, Vec<u8>)>>,
    },
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
    /// A copy into this file.
    Copied(Target),
    /// A read into memory of this process.
    Read(Reading),
    /// A write of so many bytes that are already in the file and become durable.
    Written(Writing, u32),
    /// A write by storage itself.
    Write(Writing),
}

/// A read into memory of this process: the reply carries it, or it is in an eager buffer.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) memory: MemoryRef,
    pub(crate) method: Method,
    pub(crate) export: ExportId,
    /// The eager buffer, which is this connection's.
    pub(crate) eager_buffer: (ConnectionKey, u32),
}

/// A write of data that is in one piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writing {
    pub(crate) target: Target,
    /// At the end of the file, wherever that is.
    pub(crate) appends: bool,
    pub(crate) offset: u64,
    /// Bytes that were asked for.
    pub(crate) len: u64,
    pub(crate) stability: Stability,
    pub(crate) method: Method,
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
    /// The client's memory; in the payload where there is none.
    pub(crate) remote: Option<RemoteRange>,
}
