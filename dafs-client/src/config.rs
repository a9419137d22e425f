use std::time::Duration;

use dafs_proto::session::Key;
use dafs_proto::transport::WaitPolicy;
use dafs_proto::wire::Sieve;

use crate::memory::registration::RegistrationConfig;
use crate::method::io_path::MethodOverride;
use crate::method::noncontiguous::Noncontiguous;
use crate::method::refined::Refinement;

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
    /// Default: `40`.
    pub attempts_max: u32,
    /// Time for all attempts together, pauses included. Then the session ends too, and its operations fail with the error of the last
    /// attempt. `Duration::MAX` is no bound.
    /// Default: `60s`.
    pub time_max: Duration,
    /// Pause after the first failed attempt; doubles with each.
    /// Default: `10ms`.
    pub backoff_min: Duration,
    /// Longest pause between attempts.
    /// Default: `1s`.
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

/// Settings of a session. `Config::default()` is right for most; each field says its default, sizes in bytes.
#[derive(Clone, Debug)]
pub struct Config {
    /// How calls wait for replies.
    /// Default: `Adaptive`.
    pub wait: WaitPolicy,
    /// Requests outstanding at most, 1 to 4096. The server may grant fewer.
    /// Default: `64`.
    pub credits: u16,
    /// The pre-shared key, where the server demands one.
    /// Default: `None`.
    pub key: Option<Key>,
    /// Whom to act as; `None` for the user of this process.
    /// Default: `None`.
    pub identity: Option<Identity>,
    /// Name for the server's operator, 64 characters at most; `None` for the program's name and process id.
    /// Default: `None`.
    pub client_name: Option<String>,
    /// Names this client, for fencing; `None` for the id of this host, which is made of `/etc/machine-id` and the same for all its
    /// programs, or a random one where there is none.
    /// Default: `None`.
    pub client_id: Option<[u8; 16]>,
    /// Time for one attempt to connect, handshake included.
    /// Default: `10s`.
    pub connect_timeout: Duration,
    /// Time for each operation; `None` waits as long as the server lives. When it is over, the operation ends with
    /// [`crate::Error::TimedOut`]: at once, but where the server may be moving data by RDMA it is waited for.
    /// Default: `None`.
    pub operation_timeout: Option<Duration>,
    /// What happens when the connection breaks.
    /// Default: [`ReconnectPolicy::default`].
    pub reconnect: ReconnectPolicy,
    /// The transfer method.
    /// Default: `Auto`.
    pub method: MethodOverride,
    /// Which sessions refine the crossovers between inline and direct that the server exports, by their own first transfers, where `method`
    /// is [`MethodOverride::Auto`].
    /// Default: `Remote`.
    pub refinement: Refinement,
    /// How data travels whose memory is in several pieces, where `method` is [`MethodOverride::Auto`].
    /// Default: `Auto`.
    pub noncontiguous: Noncontiguous,
    /// What the server does with what lies between the extents of lists: [`crate::File::set_sieve`]. Another program of the server's host
    /// that writes there meanwhile, without locks (fcntl(2)), may lose what it wrote, unless this is [`Sieve::Off`].
    /// Default: `Auto`.
    pub sieve: Sieve,
    /// Payload of the largest message that this side receives, bytes, at least 8,256 (`PAYLOAD_SIZE_MIN`). It bounds inline reads;
    /// over shm those of the server (`--inline-max`) bound them as well.
    /// Default: `16384`.
    pub inline_max: u32,
    /// Bounce buffers for transfers of memory that cannot be registered, bytes in all; allocated when first needed. 0 for none.
    /// Default: `4194304`.
    pub bounce_size: usize,
    /// How ordinary memory is registered.
    /// Default: [`RegistrationConfig::default`].
    pub registration: RegistrationConfig,
    /// Eager buffers to ask of the server, for the methods that need them: as many transfers go through them at once. 32 at most; the
    /// server may lend fewer.
    /// Default: `8`.
    pub eager_buffer_count: u16,
    /// Data that one eager buffer carries, bytes, at most 256 KiB. Larger transfers are cut.
    /// Default: `262144`.
    pub eager_buffer_size: u32,
    /// Threads of the library's own.
    /// Default: `KeepAlive`.
    pub background: Background,
    /// Send nonblocking requests together while ended operations wait to be collected, which saves system calls.
    /// [`crate::Session::flush`] sends at once. This matters only where sending takes a system call (TCP).
    /// Default: `true`.
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
            refinement: Refinement::default(),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Debug;

    use super::*;

    /// What the fields of a struct say is their default, by their names.
    fn documented(source: &str, name: &str) -> BTreeMap<String, String> {
        let (_, behind) = source.split_once(&format!("pub struct {name} {{\n")).unwrap();
        let (fields, _) = behind.split_once("\n}\n").unwrap();
        let mut said = None;
        let mut found = BTreeMap::new();
        for line in fields.lines().map(str::trim) {
            if let Some(words) = line.strip_prefix("/// Default: ") {
                said = words.split('`').nth(1).map(str::to_owned);
            } else if let Some((field, _)) = line.strip_prefix("pub ").and_then(|rest| rest.split_once(':')) {
                let default =
                    said.take().unwrap_or_else(|| panic!("{name}::{field} does not say its default"));
                found.insert(field.to_owned(), default);
            }
        }
        found
    }

    /// What they are; nested structs as their name.
    fn actual(default: &impl Debug) -> BTreeMap<String, String> {
        let shown = format!("{default:#?}");
        let fields = shown
            .lines()
            .filter_map(|line| line.strip_prefix("    ").filter(|line| !line.starts_with([' ', '}'])));
        let pairs = fields.filter_map(|line| line.split_once(": "));
        let value = |value: &str| match value.strip_suffix(" {") {
            Some(name) => format!("{name}::default"),
            None => value.trim_end_matches(',').to_owned(),
        };
        pairs.map(|(field, shown)| (field.to_owned(), value(shown))).collect()
    }

    #[test]
    fn fields_say_their_defaults() {
        let here = include_str!("config.rs");
        assert_eq!(documented(here, "Config"), actual(&Config::default()));
        assert_eq!(documented(here, "ReconnectPolicy"), actual(&ReconnectPolicy::default()));
        let registration = include_str!("memory/registration/mod.rs");
        assert_eq!(documented(registration, "RegistrationConfig"), actual(&RegistrationConfig::default()));
        assert!(documented(here, "Config").len() > 15);
    }
}
