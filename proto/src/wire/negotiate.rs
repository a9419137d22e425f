use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

/// The version that this code speaks.
pub const PROTOCOL_VERSION: u16 = 1;
/// The oldest version it accepts.
pub const PROTOCOL_VERSION_MIN: u16 = 1;
/// Bytes of a proof: HMAC-SHA-256.
pub const KEY_PROOF_SIZE: usize = 32;
/// A random number used once.
pub type Nonce = [u8; 32];

/// Names a session; not a secret, but resuming one also needs the resume proof of its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

bitflags::bitflags! {
    /// Optional abilities. What both sides name holds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Requests may be chained.
        const CHAINS = 0x1;
        /// The server sends callbacks.
        const CALLBACKS = 0x2;
        /// A session survives a broken connection.
        const RESUME = 0x4;
        /// The server grants eager buffers.
        const EAGER_BUFFERS = 0x8;
        /// Lists of extents in one request; where they pay is in [`Welcome::gather`].
        const LISTS = 0x10;
        /// Many operations in one request.
        const BATCHES = 0x20;
        /// One session opens a file for others.
        const TOKENS = 0x40;
        /// Byte-range locks.
        const LOCKS = 0x80;
        /// Views in the server.
        const VIEWS = 0x100;
        /// Replies to lists say how they were moved, when asked.
        const EXPLAIN = 0x200;
        /// A server on the client's host hands over descriptors of files.
        const LOCAL_FILES = 0x400;
        /// Several servers export the same files: [`Welcome::cluster`].
        const CLUSTER = 0x800;
    }
}

impl Features {
    /// What every client may use, whatever it names.
    pub const BASE: Self = Self::empty();
}

/// First message of a client: payload of `Hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest version it speaks.
    pub version_min: u16,
    /// Newest version it speaks.
    pub version_max: u16,
    /// [`Features`] it offers.
    pub features: u64,
    /// Its nonce.
    pub nonce: Nonce,
    /// Name of the key it will prove; empty for none.
    pub key_name: String,
    /// Who it says it is: 16 random bytes, chosen once per client. Fencing goes by it.
    pub client_id: [u8; 16],
    /// For people: program and host.
    pub client_name: String,
    /// User and group it acts as; counts only as far as the server trusts the connection.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// Supplementary groups, at most 32.
    pub groups: Vec<u32>,
    /// Slots it would like.
    pub slots: u16,
    /// The session to take up again.
    pub resume: Option<Resume>,
}

/// Proof that a session is the client's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The session.
    pub session: SessionId,
    /// The secret of its [`Welcome`].
    pub secret: [u8; 16],
}

/// Payload of the answer to `Hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloReply {
    /// The version that will be spoken.
    pub version: u16,
    /// The server's nonce.
    pub nonce: Nonce,
    /// A proof of the key is demanded before anything else.
    pub key_required: bool,
    /// For people: program and version, at most 256 bytes.
    pub server_name: String,
}

/// Payload of `Authenticate`: `HMAC-SHA-256(key, "dafs client" ‖ client nonce ‖ server nonce ‖ hello payload)`; empty
/// where no key is demanded or offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authenticate {
    /// The client's proof.
    #[serde(with = "serde_bytes")]
    pub proof: Vec<u8>,
}

/// Payload of the answer to `Authenticate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthenticateReply {
    /// The server's proof: `HMAC-SHA-256(key, "dafs server" ‖ client nonce ‖ server nonce ‖ hello payload)`; empty without a key.
    #[serde(with = "serde_bytes")]
    pub proof: Vec<u8>,
    /// What was agreed.
    pub welcome: Welcome,
}

/// What was agreed for the session.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Welcome {
    /// The session.
    pub session: SessionId,
    /// Secret that resumes it.
    pub secret: [u8; 16],
    /// It is the session that was to be resumed; else a new one.
    pub resumed: bool,
    /// Identity of this run of the server; another one means that sessions, handles and cached replies of before are gone.
    pub server_epoch: u64,
    /// [`Features`] that hold.
    pub features: u64,
    /// Slots: requests outstanding at most, ever.
    pub slots: u16,
    /// Credits to begin with.
    pub credits: u16,
    /// Silence after which the client sends `Null`, milliseconds.
    pub keep_alive_ms: u32,
    /// The server keeps the session of a client it does not hear from for this long, milliseconds.
    pub lease_ms: u32,
    /// Inline limits and crossovers.
    pub thresholds: Thresholds,
    /// Largest single read or write, bytes.
    pub transfer_size_max: u32,
    /// Open handles per session.
    pub handles_max: u32,
    /// For a resumed session: what became of each slot's last request.
    pub slot_reports: Vec<SlotReport>,
    /// With [`Features::LISTS`]: where gathering begins to beat packing.
    #[serde(default)]
    pub gather: Option<GatherSwitches>,
    /// With [`Features::CLUSTER`].
    #[serde(default)]
    pub cluster: Option<ClusterTerms>,
}

impl Serialize for Welcome {
    /// What is not there at the end is left out; before something that is there, it is nil.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let has_cluster = self.cluster.is_some();
        let has_gather = has_cluster || self.gather.is_some();
        let count = 13 + usize::from(has_gather) + usize::from(has_cluster);
        let mut fields = serializer.serialize_struct("Welcome", count)?;
        macro_rules! write {
            ($($field:ident)*) => { $(fields.serialize_field(stringify!($field), &self.$field)?;)* };
        }
        write!(session secret resumed server_epoch features slots credits keep_alive_ms lease_ms thresholds transfer_size_max
            handles_max slot_reports);
        if has_gather {
            write!(gather);
        }
        if has_cluster {
            write!(cluster);
        }
        fields.end()
    }
}

/// Where else the files of a session can be reached, and what became of a session that cannot be resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterTerms {
    /// A server of the cluster that is silent for this long may have been replaced: its client asks the others, milliseconds.
    pub term_ms: u32,
    /// Addresses of the other servers, such as `dafs+tcp://192.0.2.2:12049`.
    pub servers: Vec<String>,
    /// For a new session in place of one that was to be resumed: what that has carried out. Nothing of it will be carried out any more.
    /// A request that is not here had no effect, or one that it may have again.
    pub outcomes: Option<Vec<SlotOutcome>>,
}

/// What became of the last request of a slot, which is of an opcode whose repetition would do harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotOutcome {
    /// The slot.
    pub slot: u32,
    /// Sequence number of the request.
    pub sequence: u32,
    /// What it was answered, or would have been; `None`: that is not known.
    pub reply: Option<OutcomeReply>,
}

/// A reply to a request of a session that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeReply {
    /// Its status.
    pub status: u32,
    /// Of an append: where it begins. Otherwise 0.
    pub offset: u64,
    /// The payload: attributes, where the opcode returns them.
    #[serde(with = "serde_bytes")]
    pub payload: Vec<u8>,
}

/// Bytes of a segment of memory, on average, from which RDMA that gathers or scatters the segments of a noncontiguous
/// transfer is faster than packing them into one; measured by the provider, `spec/protocol/lists.md`.
pub type GatherSwitches = Crossovers;

/// The last request that the server knows of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotReport {
    /// The slot.
    pub slot: u32,
    /// Sequence number of the last request that arrived.
    pub sequence: u32,
    /// It has been executed.
    pub executed: bool,
}

/// Where Inline must end and Direct begins to pay, measured by the provider; `spec/protocol/session.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Largest inline read that the server advises, bytes.
    pub read_inline_max: u32,
    /// Largest inline write, bytes: the hard limit.
    pub write_inline_max: u32,
    /// Sizes from which Direct is faster.
    pub crossovers: Crossovers,
}

/// Sizes in bytes from which Direct is faster than Inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossovers {
    /// Reads into memory registered already.
    pub read_registered: u32,
    /// Reads into memory that is registered for the operation.
    pub read_unregistered: u32,
    /// Writes from memory registered already.
    pub write_registered: u32,
    /// Writes from memory that is registered for the operation.
    pub write_unregistered: u32,
}

/// Payload of the answer to `Mount`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountReply {
    /// Nothing may be changed.
    pub read_only: bool,
    /// Attributes of the root.
    pub attributes: super::Attributes,
}

/// Payload of the answer to `Limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsReply {
    /// As in [`Welcome`].
    pub thresholds: Thresholds,
    /// As in [`Welcome`].
    pub transfer_size_max: u32,
    /// As in [`Welcome`].
    pub handles_max: u32,
    /// Slots of this session.
    pub slots: u16,
    /// The server's target of credits for this session now.
    pub credits: u16,
    /// User of the session's identity; an export may map it.
    pub uid: u32,
    /// Group that this session acts as.
    pub gid: u32,
}

/// Payload of the answer to `Statistics`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Milliseconds since the server began.
    pub uptime_ms: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Connections now.
    pub connections: u64,
    /// Operations in flight now.
    pub in_flight: u64,
    /// Open handles now.
    pub handles: u64,
    /// Requests answered, by opcode name.
    pub operations: Vec<(String, u64)>,
    /// Bytes read by clients inline, then direct.
    pub bytes_read: [u64; 2],
    /// Bytes written by clients inline, then direct.
    pub bytes_written: [u64; 2],
    /// Replies sent again from the cache.
    pub replies_replayed: u64,
    /// Sessions ended because the client broke the protocol.
    pub protocol_errors: u64,
    /// Reads and writes that had to wait for storage.
    pub storage_waits: u64,
    /// Per export.
    pub exports: Vec<ExportStatistics>,
    /// Bytes read, then written, by the method eager.
    #[serde(default)]
    pub bytes_eager: [u64; 2],
    /// Bytes read, then written, by the method client-initiated.
    #[serde(default)]
    pub bytes_client_initiated: [u64; 2],
    /// Memory lent to clients as eager buffers now, bytes.
    #[serde(default)]
    pub eager_buffers_size: u64,
    /// Transfer buffers, by size.
    #[serde(default)]
    pub zones: Vec<ZoneStatistics>,
    /// Transfers through buffers, by listener.
    #[serde(default)]
    pub pipelines: Vec<PipelineStatistics>,
    /// Clients that have sessions now: for whoever may fence them off; empty for others. As many as the reply has room for.
    #[serde(default)]
    pub clients: Vec<ClientStatistics>,
    /// Windows of files that were written in place of small parts of lists.
    #[serde(default)]
    pub sieved_windows: u64,
}

/// A client that has sessions, as fences name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientStatistics {
    /// Its id.
    pub client_id: [u8; 16],
    /// What it calls itself.
    pub name: String,
    /// Its address, without the port; empty for this host.
    pub address: String,
    /// Its key; empty for none.
    pub key: String,
    /// How many sessions it has.
    pub sessions: u64,
}

/// The transfer buffers of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneStatistics {
    /// Of one, bytes.
    pub size: u64,
    /// How many there are.
    pub total: u64,
    /// How many of them nobody has.
    pub free: u64,
    /// How many are lent.
    pub lent: u64,
    /// Times that a bigger one was lent in place of one of these.
    pub lent_from_bigger: u64,
    /// Times that a smaller one was lent in place of one of these, and the transfer chopped.
    pub chops: u64,
    /// Times that an operation had to wait for one.
    pub waits: u64,
}

/// How transfers through buffers are cut where a listener's provider carries them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineStatistics {
    /// Where it listens.
    pub listener: String,
    /// Bytes of a chunk.
    pub chunk_size: u64,
    /// Chunks of one transfer in progress at once.
    pub depth: u64,
    /// Chunks that began while another of the same transfer was in progress.
    pub overlaps: u64,
    /// Chunks moved.
    pub chunks: u64,
}

/// Counters of one export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStatistics {
    /// Its name.
    pub name: String,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// What a `Notice` callback says: body of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// The server is shutting down: finish and go.
    Draining = 1,
    /// The server ends this session because of a protocol error: the payload says which, as text.
    ProtocolError = 2,
}

impl NoticeKind {
    /// The number on the wire.
    pub fn value(self) -> u32 {
        self as u32
    }

    /// The notice with this number; `None` for those of later versions, which are ignored.
    pub fn from_value(value: u32) -> Option<Self> {
        [Self::Draining, Self::ProtocolError].into_iter().find(|notice| notice.value() == value)
    }
}
