//! The bytes of the protocol: `spec/protocol/wire.md` in code.
//!
//! A message is a *head* (the [`Header`] and an operation's fixed-layout body, at most [`HEAD_SIZE_MAX`] bytes) and a
//! *payload*: file data, names, or MessagePack for what is rare and grows (negotiation, attributes, statistics).
//! Everything is little-endian; reserved bytes are zero and checked. All decoding goes through [`Reader`], all
//! encoding through [`Writer`]: no over-reads, no allocation before a length has been checked.

mod attr;
mod batch;
mod body;
mod codec;
mod copy;
mod eager;
mod fence;
mod header;
mod list;
mod local;
mod lock;
mod message_pack;
mod namespace;
mod negotiate;
mod opcode;
mod readwrite;
mod status;
mod token;
mod verify;
mod view;

pub use attr::{
    Attributes, DirEntry, FileIdentity, FileKind, FsStatistics, SetAttributes, SetTime, Timestamp,
    XATTR_VALUE_SIZE_MAX, decode_dir_entries, encode_dir_entry,
};
pub use batch::{
    BATCH_MAX, BATCH_NOTICE_RESULT_SIZE, BATCH_OPERATION_SIZE, BATCH_RESULT_SIZE, BatchError, BatchFlags,
    BatchLimits, BatchNotice, BatchOperation, BatchReply, BatchRequest, BatchResult, decode_batch,
    decode_batch_results, decode_noticed_results, encode_noticed_result,
};
pub use codec::{Reader, WireError, Writer};
pub use copy::{CopyReply, CopyRequest};
pub use eager::{
    EAGER_BUFFER_ROOM, EAGER_BUFFER_SIZE_MAX, EAGER_BUFFERS_MAX, EAGER_REPLY_HEAD_SIZE,
    EAGER_REQUEST_HEAD_SIZE, EagerBufferTerms, eager_frame_data,
};
pub use fence::{Fence, FenceChange, FenceList, FenceMode};
pub use header::{CHAIN_HANDLE, FileHandle, Flags, HEADER_SIZE, Header, Slot};
pub use list::{
    EXTENT_SIZE, Explanation, LIST_MAX, ListError, ListFlags, ListReadReply, ListRequest, Lists, ShortLists,
    Sieve, decode_lists, encode_lists, lists_size,
};
pub use local::Recall;
pub use lock::{LOCK_BROKEN_KIND, LockFlags, LockKind, LockRequest, LockTestReply, LockTurn, UnlockRequest};
pub use message_pack::{decode_message_pack, encode_message_pack};
pub use namespace::{
    AccessMode, AccessPattern, AllocateRequest, Existing, HintRequest, MknodRequest, NameRequest, NodeKind,
    OpenFlags, OpenRequest, ReaddirReply, ReaddirRequest, RemoveRequest, RenameRequest, SeekReply,
    SeekRequest, SeekWhat, TwoNames, XattrNames, XattrSetMode,
};
pub use negotiate::{
    Authenticate, AuthenticateReply, ClientStatistics, ClusterTerms, Crossovers, ExportStatistics, Features,
    GatherSwitches, Hello, HelloReply, KEY_PROOF_SIZE, LimitsReply, MountReply, Nonce, NoticeKind,
    OutcomeReply, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, PipelineStatistics, Resume, SessionId, SlotOutcome,
    SlotReport, Statistics, Thresholds, Welcome, ZoneStatistics,
};
pub use opcode::{Anew, Class, Opcode, Replay, Sender};
pub use readwrite::{
    CommitReply, CommitRequest, Method, REMOTE_RANGE_SIZE, ReadReply, ReadRequest, SEGMENTS_MAX, Stability,
    Verifier, WireRange, WriteReply, WriteRequest, decode_segments, encode_segments,
};
pub use status::Status;
pub use token::{ShareReply, ShareRequest, TOKEN_SIZE, Token};
pub use verify::{VerifyFlags, VerifyMask, VerifyRequest};
pub use view::{
    VIEW_DESCRIPTION_SIZE_MAX, ViewDropRequest, ViewRequest, ViewSetRequest, decode_datatype, encode_datatype,
};

/// The largest head, bytes.
pub const HEAD_SIZE_MAX: usize = 112;

/// The largest name of one path component, bytes.
pub const NAME_SIZE_MAX: usize = 255;

/// The largest path in one request, bytes.
pub const PATH_SIZE_MAX: usize = 4096;

/// The smallest payload that every peer must accept, bytes: two paths and what surrounds them.
pub const PAYLOAD_SIZE_MIN: usize = 2 * PATH_SIZE_MAX + 64;
