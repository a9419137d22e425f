use std::time::Duration;

use dafs_proto::session::Key;
use dafs_proto::transport::WaitPolicy;
use dafs_proto::wire::Sieve;

use crate::memory::registration::RegistrationConfig;
use crate::method::io_path::MethodOverride;
use crate::method::noncontiguous::Noncontiguous;

/// Who the client says it is. The server believes it only as far as it trusts the connection. Over shared memory the kernel's word counts
/// instead.
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
    /// Attempts to connect again before the session ends; with 0 it ends when its connection breaks.
    pub attempts_max: u32,
    /// Time for all attempts together, pauses included. Then the session ends too, and its operations fail with the error of the last
    /// attempt. `Duration::MAX` is no bound.
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
    /// No thread that stays: only calls move the session along. The server may end a session that is idle for longer than its lease; its
    /// files are then opened again. Where [`crate::Pending::test`] finds the connection broken, it starts a thread that connects again and
    /// ends.
    None,
    /// A thread that keeps an idle session alive. It nearly always sleeps.
    #[default]
    KeepAlive,
    /// A thread that also receives replies and sends queued requests, so that nonblocking operations advance without calls. For TCP.
    Progress,
}

/// Settings of a session. `Config::default()` is right for most.
#[derive(Clone, Debug)]
pub struct Config {
    /// How calls wait for replies.
    pub wait: WaitPolicy,
    /// Requests outstanding at most, 1 to 4096. The server may grant fewer.
    pub credits: u16,
    /// The pre-shared key, where the server demands one.
    pub key: Option<Key>,
    /// Whom to act as; `None` for the user of this process.
    pub identity: Option<Identity>,
    /// Name for the server's operator, 64 characters at most; `None` for the program's name and process id.
    pub client_name: Option<String>,
    /// Names this client, for fencing; `None` for the id of this host, which is made of `/etc/machine-id` and the same for all its
    /// programs, or a random one where there is none.
    pub client_id: Option<[u8; 16]>,
    /// Time for one attempt to connect, handshake included.
    pub connect_timeout: Duration,
    /// Time for each operation; `None` waits as long as the server lives. When it is over, the operation ends with
    /// [`crate::Error::TimedOut`]: at once, but where the server may be moving data by RDMA it is waited for.
    pub operation_timeout: Option<Duration>,
    /// What happens when the connection breaks.
    pub reconnect: ReconnectPolicy,
    /// The transfer method.
    pub method: MethodOverride,
    /// How data travels whose memory is in several pieces, where `method` is [`MethodOverride::Auto`].
    pub noncontiguous: Noncontiguous,
    /// What the server does with what lies between the extents of lists: [`crate::File::set_sieve`]. Another program of the server's host
    /// that writes there meanwhile, without locks (fcntl(2)), may lose what it wrote, unless this is [`Sieve::Off`].
    pub sieve: Sieve,
    /// Payload of the largest message that this side receives, bytes, at least 8,256 (`PAYLOAD_SIZE_MIN`). It bounds inline reads;
    /// over shm those of the server (`--inline-max`) bound them as well.
    pub inline_max: u32,
    /// Bounce buffers for transfers of memory that cannot be registered, bytes in all; allocated when first needed. 0 for none.
    pub bounce_size: usize,
    /// How ordinary memory is registered.
    pub registration: RegistrationConfig,
    /// Eager buffers to ask of the server, for the methods that need them: as many transfers go through them at once. 32 at most; the
    /// server may lend fewer.
    pub eager_buffer_count: u16,
    /// Data that one eager buffer carries, bytes, at most 256 KiB. Larger transfers are cut.
    pub eager_buffer_size: u32,
    /// Threads of the library's own.
    pub background: Background,
    /// Send nonblocking requests together while ended operations wait to be collected, which saves system calls.
    /// [`crate::Session::flush`] sends at once. This matters only where sending takes a system call (TCP).
    pub coalesce_submits: bool,
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
            sieve: Sieve::default(),
            inline_max: 16 * 1024,
            bounce_size: 4 << 20,
            registration: RegistrationConfig::default(),
            eager_buffer_count: 8,
            eager_buffer_size: 256 * 1024,
            background: Background::default(),
            coalesce_submits: true,
        }
    }
}

/// Most credits that can be asked for.
pub(crate) const CREDITS_MAX: u16 = 4096;

/// Receives kept for callbacks, beyond those for replies.
pub(crate) const CALLBACK_RECEIVES: u16 = 16;
