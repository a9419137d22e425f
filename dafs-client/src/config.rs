use std::time::Duration;

use dafs_proto::session::Key;
use dafs_proto::transport::WaitPolicy;

use crate::memory::registration::RegistrationConfig;
use crate::method::io_path::MethodOverride;
use crate::method::noncontiguous::Noncontiguous;

/// Who the client says it is. Counts only as far as the server trusts the connection; over shared memory the kernel's word counts instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups; the first 32 are sent.
    pub groups: Vec<u32>,
}

/// How a broken connection is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectPolicy {
    /// Attempts before the session is given up; 0 makes one.
    pub attempts_max: u32,
    /// Time for all attempts together, pauses included; the last is cut short by its end. The session is then given up as well, and its
    /// operations fail with what the last attempt failed with. `Duration::MAX` is no bound.
    pub time_max: Duration,
    /// Pause after the first failed attempt; doubles with each.
    pub backoff_min: Duration,
    /// Longest pause between attempts.
    pub backoff_max: Duration,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 40,
            time_max: Duration::from_secs(60),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(1),
        }
    }
}

/// What moves a session along while the application does not call into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// No thread that stays: the session is moved along by calls alone. The server may end a session that is idle for longer
    /// than its lease; files are then opened again. A thread is started where [`crate::Pending::test`] finds the connection broken, and
    /// ends when it is made again.
    None,
    /// A thread that sleeps nearly always and keeps an idle session alive.
    #[default]
    KeepAlive,
    /// A thread that also receives replies and sends queued requests: nonblocking operations progress without calls. Worth it over TCP.
    Progress,
}

/// Settings of a session. `Config::default()` is right for most.
#[derive(Clone, Debug)]
pub struct Config {
    /// How calls wait for replies.
    pub wait: WaitPolicy,
    /// Requests outstanding at most; the server may grant fewer. 1 to 4096.
    pub credits: u16,
    /// The pre-shared key, where the server demands one.
    pub key: Option<Key>,
    /// Whom to act as; `None` for the user of this process.
    pub identity: Option<Identity>,
    /// Shown to the server's operator; `None` for the program's name.
    pub client_name: Option<String>,
    /// Names this client, for fencing; `None` for a random one.
    pub client_id: Option<[u8; 16]>,
    /// Time for one attempt to connect, handshake included.
    pub connect_timeout: Duration,
    /// Time for each operation; `None` waits as long as the server lives. When it is over, an operation that was not
    /// sent is withdrawn, one that moves data by RDMA is waited for, and any other ends at once.
    pub operation_timeout: Option<Duration>,
    /// What happens when the connection breaks.
    pub reconnect: ReconnectPolicy,
    /// The transfer method.
    pub method: MethodOverride,
    /// How data travels whose memory is in several pieces, where `method` is [`MethodOverride::Auto`].
    pub noncontiguous: Noncontiguous,
    /// Payload of a message that this side is ready to receive, bytes: bounds inline reads. 8,256 at least (`PAYLOAD_SIZE_MIN`).
    pub inline_max: u32,
    /// Registered memory of the library for transfers of memory that cannot be registered, bytes; allocated when first needed.
    pub staging_size: usize,
    /// How ordinary memory is registered.
    pub registration: RegistrationConfig,
    /// Buffers asked of the server for the methods that need them: transfers of this session that they carry at once, at most 32. The
    /// server may lend fewer.
    pub lane_count: u16,
    /// Data that each of them carries, bytes; at most 256 KiB. Larger transfers are cut.
    pub lane_size: u32,
    /// Threads of the library's own.
    pub background: Background,
    /// Nonblocking requests are sent together while finished operations wait to be collected, instead of one by one:
    /// fewer system calls. [`crate::Session::flush`] sends at once. Only matters where sending costs a system call.
    pub batch_submits: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            wait: WaitPolicy::Adaptive,
            credits: 64,
            key: None,
            identity: None,
            client_name: None,
            client_id: None,
            connect_timeout: Duration::from_secs(10),
            operation_timeout: None,
            reconnect: ReconnectPolicy::default(),
            method: MethodOverride::Auto,
            noncontiguous: Noncontiguous::default(),
            inline_max: 16 * 1024,
            staging_size: 4 << 20,
            registration: RegistrationConfig::default(),
            lane_count: 8,
            lane_size: 256 * 1024,
            background: Background::default(),
            batch_submits: true,
        }
    }
}

/// Most credits that can be asked for.
pub(crate) const CREDITS_MAX: u16 = 4096;

/// Receives kept for callbacks, beyond those for replies.
pub(crate) const CALLBACK_RECEIVES: u16 = 16;
