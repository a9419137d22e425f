//! From settings as written to a [`Config`].

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use dafs_proto::address::{DEFAULT_PORT, ListenUrl, Location, SOCKET_PATH_SIZE_MAX, Scheme};
use dafs_proto::small_file::{SmallFile, SmallFileError};
use dafs_proto::transport::{Address, WaitPolicy};

use super::cpus;
use super::export::{check, parse_flag};
use super::store::store_of;
use super::workers::worker_count;
use super::{Config, ConfigError, EXPORTS_MAX, Environment, ExportConfig, Listen, Origin, Size};
use crate::access::{AccessConfig, Keyring};
use crate::cli::{Poll, Settings};
use crate::cluster::{ClusterConfig, TERM_MAX_MS, TERM_MIN_MS};
use crate::logging::LogConfig;
use crate::worker::buffers::ZONES_MAX;
use crate::worker::sched::PIPELINE_DEPTH_MAX;

/// Bytes of a settings file at most.
pub const CONFIG_FILE_SIZE_MAX: u64 = 1 << 20;
/// The most locks that can be set.
const LOCKS_MOST: u32 = 1 << 24;
/// Listeners of one server at most.
pub const LISTENERS_MAX: usize = 64;

impl Settings {
    /// Reads a settings file. Blocking.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let place = format!("--config {}", path.display());
        let text =
            SmallFile::open(path).and_then(|file| file.read(CONFIG_FILE_SIZE_MAX)).map_err(|error| {
                let remedy = match error {
                    SmallFileError::Changed => "read it again (SIGHUP) when it is written",
                    _ => "give the path of a TOML file",
                };
                ConfigError::new(&place, error.to_string(), remedy)
            })?;
        Self::from_toml(&text, &place)
    }

    /// Reads the text of a settings file; `place` is for messages.
    pub fn from_toml(text: &str, place: &str) -> Result<Self, ConfigError> {
        let mut settings: Self = toml::from_str(text).map_err(|error| {
            // The error itself repeats the line, which is a secret where the file is one of keys.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            ConfigError::new(
                place,
                format!("line {line}: {}", error.message()),
                "use the names of the flags, lists for flags that may be repeated, and tables for exports: \
                 `dafs-server --help` ends with an example",
            )
        })?;
        settings.origin = Origin::of(text, place);
        Ok(settings)
    }
}

/// Bytes of a server's name, and of what its fence command is told, at most.
const CLUSTER_TEXT_SIZE_MAX: usize = 1024;

fn cluster(
    settings: &Settings,
    config: &Config,
    server_uid: u32,
) -> Result<Option<ClusterConfig>, ConfigError> {
    let Some(text) = &settings.cluster else {
        let alone = [
            ("--server-name", settings.server_name.is_some()),
            ("--cluster-address", !settings.cluster_addresses.is_empty()),
            ("--term-ms", settings.term_ms.is_some()),
            ("--fence-command", settings.fence_command.is_some()),
            ("--fence-detail", settings.fence_detail.is_some()),
            ("--etcd-ca-file", settings.etcd_ca_file.is_some()),
            ("--etcd-certificate-file", settings.etcd_certificate_file.is_some()),
            ("--etcd-key-file", settings.etcd_key_file.is_some()),
            ("--etcd-user", settings.etcd_user.is_some()),
            ("--etcd-password-file", settings.etcd_password_file.is_some()),
        ];
        return match alone.iter().find(|(_, is_set)| *is_set) {
            Some((flag, _)) => Err(ConfigError::new(
                flag,
                "it is for servers of a cluster",
                "name the cluster: --cluster etcd://HOST/NAME",
            )),
            None => Ok(None),
        };
    };
    let (address, access) = store_of(text, &settings.store(), server_uid)?;
    if config.state_file.is_some() {
        let problem = "a server of a cluster keeps its state in the cluster's store";
        return Err(ConfigError::new("--state-file", problem, "leave it out"));
    }
    let mut term_ms = 5_000;
    let range = TERM_MIN_MS..=TERM_MAX_MS;
    set(&mut term_ms, "--term-ms", settings.term_ms, range, "milliseconds")?;
    if term_ms % 1000 != 0 {
        return Err(ConfigError::new(
            "--term-ms",
            "the store counts whole seconds",
            "write a multiple of 1000",
        ));
    }
    let mut addresses = Vec::new();
    for text in &settings.cluster_addresses {
        let listen = ListenUrl::parse(text.as_ref()).map_err(|error| {
            ConfigError::new("--cluster-address", error.to_string(), "name a host of this server")
        })?;
        let is_remote = matches!(listen.scheme, Scheme::Tcp | Scheme::Verbs);
        match listen.location {
            Location::Host { host, port } if is_remote && port != 0 => {
                let host = if host.contains(':') { format!("[{host}]") } else { host };
                addresses.push(format!("{}://{host}:{port}", listen.scheme));
            }
            _ => {
                let problem = format!("other hosts cannot connect to {text}");
                return Err(ConfigError::new(
                    "--cluster-address",
                    problem,
                    "write tcp://HOST[:PORT] or verbs://HOST[:PORT]",
                ));
            }
        }
    }
    let own_name = || {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{name}-{}", std::process::id())
    };
    let server_name = settings.server_name.clone().unwrap_or_else(own_name);
    let fence_detail = settings.fence_detail.clone().unwrap_or_default();
    for (flag, text) in [("--server-name", &server_name), ("--fence-detail", &fence_detail)] {
        if text.len() > CLUSTER_TEXT_SIZE_MAX || text.contains(char::is_control) {
            return Err(ConfigError::new(
                flag,
                "it is too long or has control characters",
                "write a line of at most 1,024 bytes",
            ));
        }
    }
    let fence_command = settings.fence_command.clone();
    let lease_ms = config.lease_ms;
    Ok(Some(ClusterConfig {
        address,
        access,
        term_ms,
        server_name,
        addresses,
        fence_command,
        fence_detail,
        lease_ms,
        buckets: crate::cluster::BUCKETS,
    }))
}

impl Config {
    /// Checks settings. Looks up host names, reads the key file and looks at the exported directories: blocking.
    pub fn from_settings(settings: Settings, environment: &Environment) -> Result<Self, ConfigError> {
        Self::from_settings_over(settings, environment, &Self::default())
    }

    /// As [`Config::from_settings`], for a server that serves what `began` says: it neither looks at directories that are served nor looks
    /// up names of listeners that it has, which may hang, or be gone.
    pub fn from_settings_over(
        settings: Settings,
        environment: &Environment,
        began: &Self,
    ) -> Result<Self, ConfigError> {
        let origin = settings.origin.clone();
        Self::check_settings(settings, environment, began).map_err(|error| origin.locate(error))
    }

    fn check_settings(
        settings: Settings,
        environment: &Environment,
        began: &Self,
    ) -> Result<Self, ConfigError> {
        let keys = match &settings.key_file {
            Some(path) => Keyring::load(path, environment.server.identity.uid).map_err(|error| {
                ConfigError { place: "--key-file".to_owned(), message: error.to_string() }
            })?,
            None => Keyring::default(),
        };
        refuse_former(&settings)?;
        let listen = listen(&settings, &keys, &began.listen)?;
        let mut config = Self {
            exports: exports(&settings, &keys, (environment, &began.exports))?,
            listeners: listeners(&listen, environment)?,
            listen,
            access: AccessConfig { keys, server: environment.server.clone() },
            state_file: settings.state_file.clone(),
            ..Self::default()
        };
        config.set_times(&settings)?;
        config.set_buffers(&settings)?;
        config.set_limits(&settings)?;
        set(&mut config.sessions_max, "--sessions-max", settings.sessions_max, 1..=1_000_000, "")?;
        let mut slots_max = u32::from(config.slots_max);
        set(&mut slots_max, "--slots-max", settings.slots_max, 1..=1024, "")?;
        if settings.slots_max.is_some() {
            config.slots_max = u16::try_from(slots_max).unwrap_or(u16::MAX);
            config.buffered_slots_max = config.slots_max;
        }
        set(&mut config.handles_max, "--handles-max", settings.handles_max, 1..=1_000_000, "")?;
        set(&mut config.operations_max, "--operations-max", settings.operations_max, 1..=1_000_000, "")?;
        set(&mut config.inline_max, "--inline-max", bytes(settings.inline_max), 1024..=1 << 20, "bytes")?;
        let (place, most) = (&mut config.transfer_size_max, bytes(settings.transfer_size_max));
        set(place, "--transfer-size-max", most, 64 << 10..=1 << 30, "bytes")?;
        config.metrics_address = metrics_address(&settings)?;
        config.log = log_config(&settings)?;
        config.workers = worker_count(settings.workers, settings.worker_cpus.as_ref())?;
        let usable = cpus::usable();
        config.worker_cpus = cpus::worker_cpus(settings.worker_cpus.as_ref(), config.workers, &usable)?;
        config.poll = settings.poll.map_or(config.poll, wait_policy);
        config.storage_engine = settings.storage_engine.unwrap_or_default();
        let (threads, range) = (&mut config.storage_threads, 4..=1024);
        set(threads, "--storage-threads", settings.storage_threads, range, "threads")?;
        config.coalesce_replies = !settings.no_coalescing;
        config.direct_io = settings.direct_io;
        config.calibrate = !settings.no_calibrate;
        config.cluster = cluster(&settings, &config, environment.server.identity.uid)?;
        Ok(config)
    }

    fn set_times(&mut self, settings: &Settings) -> Result<(), ConfigError> {
        for (place, flag, value, least) in [
            (&mut self.keep_alive_ms, "--keep-alive-ms", settings.keep_alive_ms, 10),
            (&mut self.lease_ms, "--lease-ms", settings.lease_ms, 10),
            (&mut self.handshake_ms, "--handshake-ms", settings.handshake_ms, 10),
            (&mut self.drain_ms, "--drain-ms", settings.drain_ms, 0),
        ] {
            set(place, flag, value, least..=86_400_000, "milliseconds")?;
        }
        let (lease_ms, keep_alive_ms) = (self.lease_ms, self.keep_alive_ms);
        if lease_ms / 2 < keep_alive_ms {
            let problem = format!(
                "a lease of {lease_ms} ms is shorter than two keep-alive intervals of {keep_alive_ms} ms"
            );
            let least = keep_alive_ms.saturating_mul(2);
            let remedy = format!("write --lease-ms {least} or more, or a smaller --keep-alive-ms");
            return Err(ConfigError::new("--lease-ms", problem, remedy));
        }
        Ok(())
    }

    fn set_limits(&mut self, settings: &Settings) -> Result<(), ConfigError> {
        let limits = &mut self.limits;
        let share = &mut limits.identity_share_percent;
        set(share, "--identity-share", settings.identity_share, 1..=100, "percent")?;
        for (place, flag, value, most) in [
            (&mut limits.handshakes_max, "--handshakes-max", settings.handshakes_max, 1_000_000),
            (&mut limits.views_max, "--views-max", settings.views_max, 1_000_000),
            (&mut limits.tokens_max, "--tokens-max", settings.tokens_max, 65_536),
            (&mut limits.session_locks_max, "--session-locks-max", settings.session_locks_max, LOCKS_MOST),
            (&mut limits.locks_max, "--locks-max", settings.locks_max, LOCKS_MOST),
        ] {
            set(place, flag, value, 1..=most, "")?;
        }
        for (place, flag, value) in [
            (&mut limits.descriptors_max, "--descriptors-max", settings.descriptors_max),
            (&mut limits.mappings_max, "--mappings-max", settings.mappings_max),
            (&mut limits.mapped_size_max, "--mapped-size-max", bytes(settings.mapped_size_max)),
            (&mut limits.sparse_size_max, "--sparse-size-max", bytes(settings.sparse_size_max)),
        ] {
            if value == Some(0) {
                let problem = "0 leaves clients nothing";
                return Err(ConfigError::new(flag, problem, "write a larger number, or leave it out"));
            }
            *place = value.or(*place);
        }
        for (place, flag, value) in [
            (&mut limits.unsent_size_max, "--unsent-size-max", bytes(settings.unsent_size_max)),
            (&mut limits.views_size_max, "--views-size-max", bytes(settings.views_size_max)),
        ] {
            let size = value.unwrap_or(*place);
            if size < 1 << 20 {
                let problem = format!("{size} bytes are too few");
                return Err(ConfigError::new(flag, problem, "write a size from 1M"));
            }
            *place = size;
        }
        Ok(())
    }

    fn set_buffers(&mut self, settings: &Settings) -> Result<(), ConfigError> {
        self.buffers_size_max = bytes(settings.buffers_size_max).unwrap_or(self.buffers_size_max);
        if !(1 << 20..=1 << 44).contains(&self.buffers_size_max) {
            let problem = format!("{} bytes are out of range", self.buffers_size_max);
            return Err(ConfigError::new("--buffers-size-max", problem, "write a size from 1M to 16T"));
        }
        self.buffers_kept_max = bytes(settings.buffers_kept_max).unwrap_or(self.buffers_kept_max);
        if !settings.buffer_sizes.is_empty() {
            self.buffer_sizes = buffer_sizes(&settings.buffer_sizes)?;
        }
        let mut largest = self.buffer_sizes.last().map_or(0, |size| u32::try_from(*size).unwrap_or(u32::MAX));
        let (range, unit) = (SECTOR_SIZE..=largest, "bytes, the largest of --buffer-sizes");
        set(&mut largest, "--chunk-size", bytes(settings.chunk_size), range, unit)?;
        self.chunk_size = settings.chunk_size.map(|_| largest);
        let (place, range) = (&mut self.pipeline_depth, 1..=PIPELINE_DEPTH_MAX);
        set(place, "--pipeline-depth", settings.pipeline_depth, range, "")
    }
}

/// Smallest buffer and chunk, bytes: what direct I/O of most disks is aligned to.
const SECTOR_SIZE: u32 = 4096;
/// Largest buffer, bytes.
const BUFFER_SIZE_MAX: u64 = 16 << 20;

fn buffer_sizes(sizes: &[Size]) -> Result<Vec<usize>, ConfigError> {
    let sizes: Vec<u64> = sizes.iter().map(|size| size.0).collect();
    let in_range = |size: &u64| (u64::from(SECTOR_SIZE)..=BUFFER_SIZE_MAX).contains(size);
    let fits = |size: &u64| in_range(size) && size.is_multiple_of(SECTOR_SIZE.into());
    if sizes.len() > ZONES_MAX || !sizes.iter().all(fits) || !sizes.is_sorted_by(|one, next| one < next) {
        let problem = format!("{sizes:?} bytes are out of range or order");
        let remedy =
            format!("write at most {ZONES_MAX} sizes from 4K to 16M, multiples of 4K, the smallest first");
        return Err(ConfigError::new("--buffer-sizes", problem, remedy));
    }
    Ok(sizes.into_iter().filter_map(|size| usize::try_from(size).ok()).collect())
}

fn exports(
    settings: &Settings,
    keys: &Keyring,
    (environment, served): (&Environment, &[ExportConfig]),
) -> Result<Vec<ExportConfig>, ConfigError> {
    let mut exports: Vec<ExportConfig> = Vec::new();
    let mut add = |table, place: &str| {
        let export = check(table, place, keys, (environment, served))?;
        if exports.iter().any(|other| other.name == export.name) {
            let problem = format!("the name \"{}\" is taken by another export", export.name);
            return Err(ConfigError::new(place, problem, "give each export a name of its own"));
        }
        if exports.len() == EXPORTS_MAX {
            let problem = format!("more than {EXPORTS_MAX} exports");
            return Err(ConfigError::new(place, problem, "export a directory above several of them"));
        }
        exports.push(export);
        Ok(())
    };
    for (index, table) in settings.export_tables.iter().enumerate() {
        add(table.clone(), &settings.origin.export(index, &table.name))?;
    }
    for flag in &settings.exports {
        add(parse_flag(flag)?, &format!("--export {}", flag.display()))?;
    }
    match exports.is_empty() {
        true => Err(ConfigError::new(
            "--export",
            "nothing is exported",
            "write --export NAME=DIRECTORY, such as --export data=/srv/data, or --export scratch=mem:",
        )),
        false => Ok(exports),
    }
}

/// What `--listen` names. What is among `known` is not looked up again.
fn listen(settings: &Settings, keys: &Keyring, known: &[Listen]) -> Result<Vec<Listen>, ConfigError> {
    let mut all = Vec::new();
    for text in &settings.listen {
        let place = format!("--listen {text}");
        let url = ListenUrl::parse(text.as_ref())
            .map_err(|error| ConfigError { place: "--listen".to_owned(), message: error.to_string() })?;
        if url.scheme == Scheme::Sim {
            let problem = "unknown transport";
            return Err(ConfigError::new(&place, problem, "write tcp://HOST:PORT or shm:///SOCKET/PATH"));
        }
        if url.scheme == Scheme::Verbs && cfg!(not(feature = "verbs")) {
            let remedy = "install libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config, and build it with --features verbs";
            return Err(ConfigError::new(&place, "this server was built without RDMA", remedy));
        }
        let remedy = "write an address of this host, such as tcp://127.0.0.1:12049";
        let addresses = match known.iter().find(|known| known.text == *text) {
            Some(known) => known.addresses.clone(),
            None => url.resolve().map_err(|error| ConfigError::new(&place, error.to_string(), remedy))?,
        };
        addresses.iter().try_for_each(|address| require_keys(&place, address, keys))?;
        all.push(Listen { text: text.clone(), addresses });
    }
    Ok(all)
}

fn listeners(listen: &[Listen], environment: &Environment) -> Result<Vec<Address>, ConfigError> {
    let mut listeners = Vec::new();
    for address in listen.iter().flat_map(|named| &named.addresses) {
        // Two listeners on any free port are two listeners.
        if !listeners.contains(address)
            || matches!(address, Address::Tcp(ip) | Address::Verbs(ip) if ip.port() == 0)
        {
            listeners.push(address.clone());
        }
    }
    if listen.is_empty() {
        listeners.push(Address::Tcp(([127, 0, 0, 1], DEFAULT_PORT).into()));
        listeners.extend(environment.default_socket.clone().map(Address::Shm));
    }
    match listeners.len() > LISTENERS_MAX {
        true => {
            let problem = format!("{} addresses, over {LISTENERS_MAX}", listeners.len());
            let remedy = "listen on tcp://0.0.0.0 for all addresses of this host";
            Err(ConfigError::new("--listen", problem, remedy))
        }
        false => Ok(listeners),
    }
}

fn require_keys(place: &str, address: &Address, keys: &Keyring) -> Result<(), ConfigError> {
    let (Address::Tcp(tcp) | Address::Verbs(tcp)) = address else { return Ok(()) };
    if !keys.is_empty() || tcp.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let loopback = if tcp.is_ipv4() { "127.0.0.1" } else { "[::1]" };
    Err(ConfigError::new(
        place,
        "other hosts can reach this address, and no keys are given",
        format!(
            "make a key with `(umask 077; dafs-server keygen NAME >> FILE)` and add --key-file FILE; \
             or serve this host only with --listen tcp://{loopback}:{}",
            tcp.port()
        ),
    ))
}

/// What earlier versions knew, and how that is said now.
fn refuse_former(settings: &Settings) -> Result<(), ConfigError> {
    let refused = |flag, remedy| Err(ConfigError::new(flag, "one file keeps fences and locks now", remedy));
    if settings.lock_file.is_some() {
        return refused("--lock-file", "write --state-file instead, with the same file: it keeps the locks");
    }
    if settings.fence_file.is_some() {
        return refused(
            "--fence-file",
            "write --state-file with a new file, and add the entries of this one again with `dafs fence add`",
        );
    }
    Ok(())
}

fn metrics_address(settings: &Settings) -> Result<Option<SocketAddr>, ConfigError> {
    let wrong = |place: &str, problem: &str, remedy: &str| Err(ConfigError::new(place, problem, remedy));
    let Some(text) = &settings.metrics else {
        return match settings.metrics_anywhere {
            true => {
                wrong("--metrics-anywhere", "no metrics are served", "add --metrics ADDRESS, or leave it out")
            }
            false => Ok(None),
        };
    };
    let place = format!("--metrics {text}");
    let Ok(address) = text.parse::<SocketAddr>() else {
        let remedy = "write one such as 127.0.0.1:9464 or [::1]:9464";
        return wrong(&place, "not an address with a port", remedy);
    };
    if settings.metrics_anywhere || address.ip().to_canonical().is_loopback() {
        return Ok(Some(address));
    }
    let problem = "other hosts can reach this address, and anybody who connects can read the metrics";
    wrong(
        &place,
        problem,
        &format!("write --metrics 127.0.0.1:{}, or add --metrics-anywhere", address.port()),
    )
}

fn log_config(settings: &Settings) -> Result<LogConfig, ConfigError> {
    let filter = settings.log.clone().unwrap_or(LogConfig::default().filter);
    let format = settings.log_format.unwrap_or_default();
    let mut config = LogConfig { filter, format, ..LogConfig::default() };
    set(&mut config.lines_max, "--log-lines-max", settings.log_lines_max, 1..=1_000_000, "")?;
    match config.check() {
        Ok(()) => Ok(config),
        Err(problem) => Err(ConfigError::new(
            &format!("--log {}", config.filter),
            problem,
            "write error, warn, info, debug or trace, or directives such as info,dafs_server::access=debug",
        )),
    }
}

/// Sets a number, where it is given, within its range.
fn set(
    place: &mut u32,
    flag: &str,
    value: Option<u64>,
    range: RangeInclusive<u32>,
    unit: &str,
) -> Result<(), ConfigError> {
    let Some(value) = value else { return Ok(()) };
    *place = u32::try_from(value).ok().filter(|value| range.contains(value)).ok_or_else(|| {
        let remedy = format!("write a number from {} to {} {unit}", range.start(), range.end());
        ConfigError::new(flag, format!("{value} is out of range"), remedy.trim_end())
    })?;
    Ok(())
}

fn bytes(size: Option<Size>) -> Option<u64> {
    size.map(|size| size.0)
}

fn wait_policy(poll: Poll) -> WaitPolicy {
    match poll {
        Poll::Event => WaitPolicy::Event,
        Poll::Busy => WaitPolicy::Busy,
        Poll::Adaptive => WaitPolicy::Adaptive,
    }
}

/// The default socket, where clients of this host look for a server: in `/run/dafs` where the server may write there, else in the user's
/// runtime directory.
pub(super) fn default_socket(runtime_directory: Option<&Path>) -> Option<PathBuf> {
    use rustix::fs::{Access, access};
    let system = Path::new("/run/dafs");
    // Only who may write in /run can make it; others find out below whether it is there for them.
    let _ = std::fs::create_dir(system);
    let usable = |directory: &Path| access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    [Some(system), runtime_directory]
        .into_iter()
        .flatten()
        .filter(|directory| usable(directory))
        .map(|directory| directory.join("dafs.sock"))
        .find(|path| path.is_absolute() && path.as_os_str().len() <= SOCKET_PATH_SIZE_MAX)
}
