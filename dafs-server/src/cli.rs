//! Flags, as written; [`crate::config::Config::from_settings`] checks them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Deserialize;

use crate::config::{Cpus, ExportTable, Origin, Size, Workers};
use crate::logging::LogFormat;
use crate::storage::Engine;

/// Serve directories and memory to dafs clients, over TCP, shared memory and (in builds with it) RDMA.
#[derive(Debug, Parser)]
#[command(name = "dafs-server", version, args_conflicts_with_subcommands = true, after_long_help = EXAMPLES)]
pub struct Cli {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Read settings from this TOML file; flags add to it and override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How to serve.
    #[command(flatten)]
    pub settings: Settings,
}

/// Something other than serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print a line for a key file, with a new secret from the system's random source
    #[command(after_help = "Example: (umask 077; dafs-server keygen alpha >> /etc/dafs/keys)")]
    Keygen {
        /// Name of the key: who will hold it
        name: String,
    },
    /// Tell a cluster that a server can write no more, so that others take over from it
    ///
    /// Make sure first that it is so: that its host is off, or has no way to the file system any more. Else data may be lost.
    #[command(after_help = "Example: dafs-server cut-off etcd://host1,host2,host3/main 7")]
    CutOff {
        /// Address of the cluster, as of --cluster
        cluster: String,
        /// Number of the server, as the log of another tells it
        server: u32,
        /// How etcd is reached.
        #[command(flatten)]
        store: StoreSettings,
    },
    /// Print a script with which a shell completes words of dafs-server
    #[command(
        after_help = "Example: dafs-server completions bash > ~/.local/share/bash-completion/completions/dafs-server"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of dafs-server to a directory
    #[command(
        after_help = "Example: mkdir -p ~/.local/share/man/man8 && dafs-server man ~/.local/share/man/man8"
    )]
    Man {
        /// The directory; existing pages are replaced
        directory: PathBuf,
    },
}

/// How etcd is reached, as of the settings of these names.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs, reason = "the settings of these names say it")]
pub struct StoreSettings {
    #[arg(long, value_name = "FILE")]
    pub etcd_ca_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub etcd_certificate_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub etcd_key_file: Option<PathBuf>,
    #[arg(long, value_name = "NAME")]
    pub etcd_user: Option<String>,
    #[arg(long, value_name = "FILE")]
    pub etcd_password_file: Option<PathBuf>,
}

impl Settings {
    /// Those of them that say how etcd is reached.
    pub fn store(&self) -> StoreSettings {
        StoreSettings {
            etcd_ca_file: self.etcd_ca_file.clone(),
            etcd_certificate_file: self.etcd_certificate_file.clone(),
            etcd_key_file: self.etcd_key_file.clone(),
            etcd_user: self.etcd_user.clone(),
            etcd_password_file: self.etcd_password_file.clone(),
        }
    }
}

/// Everything that can be set, by a flag or, under the flag's name without dashes in front, in the file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Export a directory, or memory (mem: or mem:4G); may be repeated
    #[arg(long = "export", value_name = "NAME=DIR[,OPTION...]", long_help = EXPORT_HELP)]
    #[serde(skip)]
    pub exports: Vec<OsString>,
    /// Exports of the file.
    #[arg(skip)]
    #[serde(default, rename = "export")]
    pub export_tables: Vec<ExportTable>,
    #[allow(rustdoc::broken_intra_doc_links, reason = "[:PORT] is shown by --help as it is, and is no link")]
    /// Listen here: tcp://HOST[:PORT] (0 takes any free port), shm:///SOCKET/PATH or verbs://HOST[:PORT]; may be repeated
    ///
    /// Default: tcp://127.0.0.1:12049, and shared memory at /run/dafs/dafs.sock, else at $XDG_RUNTIME_DIR/dafs.sock.
    /// An address that other hosts can reach needs --key-file.
    #[arg(long, value_name = "ADDRESS")]
    #[serde(default)]
    pub listen: Vec<String>,
    /// File of the keys that clients may prove: lines name:secret, as `dafs-server keygen NAME` prints them
    ///
    /// A third field, name:secret:uid=1000,gid=1000, makes all holders of the key act as that user. The word publish there,
    /// alone or after a comma, lets them publish crossovers (`dafs-bench crossover --publish`). Only the server's
    /// user may have access to the file.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Keep fences, locks and published crossovers in this file, so that they outlive the server; created if missing
    ///
    /// After a restart, clients reclaim their locks; until they have, but at most for --lease-ms, nobody else gets a lock. Without a state
    /// file, fences and locks end with the server, and persistent locks are refused. The server does not start with a damaged file.
    #[arg(long, value_name = "FILE")]
    pub state_file: Option<PathBuf>,
    #[allow(rustdoc::broken_intra_doc_links, reason = "[:PORT] is shown by --help as it is, and is no link")]
    /// Be one of several servers of the same file systems, which share what they must through etcd
    ///
    /// etcd://HOST[:PORT],HOST.../NAME names the servers of etcd and the cluster; etcds:// reaches them over TLS. All servers of a cluster
    /// export the same directories, of a file system that each of them mounts, under the same names. A client whose server is gone goes on
    /// at another one.
    #[arg(long, value_name = "ADDRESS", help_heading = CLUSTER)]
    pub cluster: Option<String>,
    /// Certificates of the authorities that have signed those of etcd, in PEM; etcds:// needs them
    #[arg(long, value_name = "FILE", help_heading = CLUSTER)]
    pub etcd_ca_file: Option<PathBuf>,
    /// This server's certificate for etcd, in PEM, with those between it and its authority
    #[arg(long, value_name = "FILE", help_heading = CLUSTER)]
    pub etcd_certificate_file: Option<PathBuf>,
    /// The private key of that certificate, in PEM; nobody else may be able to read it
    #[arg(long, value_name = "FILE", help_heading = CLUSTER)]
    pub etcd_key_file: Option<PathBuf>,
    /// User of etcd
    #[arg(long, value_name = "NAME", help_heading = CLUSTER)]
    pub etcd_user: Option<String>,
    /// A file with that user's password, on one line; nobody else may be able to read it
    #[arg(long, value_name = "FILE", help_heading = CLUSTER)]
    pub etcd_password_file: Option<PathBuf>,
    /// Name of this server in the cluster, for people and the fence command [default: the host's name]
    #[arg(long, value_name = "NAME", help_heading = CLUSTER)]
    pub server_name: Option<String>,
    /// Where clients of the cluster find this server, such as tcp://node1; may be repeated [default: where it listens]
    #[arg(long = "cluster-address", value_name = "ADDRESS", help_heading = CLUSTER)]
    #[serde(default, rename = "cluster-address")]
    pub cluster_addresses: Vec<String>,
    /// A server of the cluster that is silent for this long may be taken over, from 2000 to 60000 [default: 5000]
    #[arg(long, value_name = "MILLISECONDS", help_heading = CLUSTER)]
    pub term_ms: Option<u64>,
    /// Shell command that cuts another server off before it is taken over; it returns 0 once that server can write no more
    ///
    /// It finds in its environment DAFS_FENCE_NAME, the server's name, DAFS_FENCE_SERVER, its number in the cluster, DAFS_FENCE_PID,
    /// DAFS_FENCE_ADDRESSES and DAFS_FENCE_DETAIL. Without such a command, only servers whose process has ended on this very host are
    /// taken over by themselves; for others an operator says so: `dafs-server cut-off`.
    #[arg(long, value_name = "COMMAND", help_heading = CLUSTER)]
    pub fence_command: Option<String>,
    /// What the fence command of other servers is told of this one, such as how to reach its power switch
    #[arg(long, value_name = "TEXT", help_heading = CLUSTER)]
    pub fence_detail: Option<String>,
    /// What earlier versions kept fences in.
    #[arg(long, value_name = "FILE", hide = true)]
    pub fence_file: Option<PathBuf>,
    /// What earlier versions kept locks in.
    #[arg(long, value_name = "FILE", hide = true)]
    pub lock_file: Option<PathBuf>,
    /// Serve on this many threads, 1 to 64, each with its part of connections; `auto` is one for every two CPUs, at most 8 [default: auto]
    #[arg(long, value_name = "COUNT")]
    pub workers: Option<Workers>,
    /// Run each worker on a CPU of its own: the first worker on the first of these, and so on, such as 0,2 or 0-3
    ///
    /// With `--workers auto` there is one worker for each of them. Threads for storage run on all CPUs.
    #[arg(long, value_name = "LIST")]
    pub worker_cpus: Option<Cpus>,
    /// How to wait for work [default: adaptive]
    #[arg(long, value_name = "POLICY")]
    pub poll: Option<Poll>,
    /// How to carry out storage operations that would block [default: auto]
    #[arg(long, value_name = "ENGINE")]
    pub storage_engine: Option<Engine>,
    /// Most threads for storage operations that may block [default: 16]
    #[arg(long, value_name = "COUNT")]
    pub storage_threads: Option<u64>,
    /// Bypass the page cache (O_DIRECT) for the files of all exports
    #[arg(long, alias = "direct")]
    #[serde(default, alias = "direct")]
    pub direct_io: bool,
    /// Send each reply separately (for measurements of what sending several together gains)
    #[arg(long)]
    #[serde(default)]
    pub no_coalescing: bool,
    /// Do not measure at start from which size direct transfers are faster than inline ones
    #[arg(long)]
    #[serde(default)]
    pub no_calibrate: bool,
    /// Serve Prometheus metrics at http://ADDRESS/metrics, for example 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Let --metrics listen where other hosts can reach it
    #[arg(long)]
    #[serde(default)]
    pub metrics_anywhere: bool,
    /// Log level: error, warn, info, debug, trace, or directives such as info,dafs_server::access=debug [default: info]
    #[arg(long, value_name = "FILTER", env = "DAFS_LOG")]
    pub log: Option<String>,
    /// Format of log lines, on standard error [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Sessions at once [default: 4096]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub sessions_max: Option<u64>,
    /// Outstanding requests of one session [default: 256; over shm and RDMA, where each has a buffer, 64]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub slots_max: Option<u64>,
    /// Open handles of one session [default: 65536]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub handles_max: Option<u64>,
    /// Operations in flight, of all sessions [default: 4096]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub operations_max: Option<u64>,
    /// Largest inline read [default: 16K]. The largest inline write is the same over shm, four times that over tcp, half over RDMA
    #[arg(long, value_name = "SIZE", help_heading = LIMITS)]
    pub inline_max: Option<Size>,
    /// Largest single read or write [default: 64M]
    #[arg(long, value_name = "SIZE", help_heading = LIMITS)]
    pub transfer_size_max: Option<Size>,
    /// Memory for transfer buffers, including those lent to clients [default: 256M]
    #[arg(long, value_name = "SIZE", help_heading = LIMITS)]
    pub buffers_size_max: Option<Size>,
    /// Sizes of transfer buffers, the smallest first [default: 16K,128K,256K,1M]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', help_heading = LIMITS)]
    #[serde(default)]
    pub buffer_sizes: Vec<Size>,
    /// Memory kept in free transfer buffers of each size [default: 32M]
    #[arg(long, value_name = "SIZE", help_heading = LIMITS)]
    pub buffers_kept_max: Option<Size>,
    /// Chunks of one large transfer in progress at once [default: 4]
    #[arg(long, value_name = "COUNT")]
    pub pipeline_depth: Option<u64>,
    /// Size of a chunk, at most the largest of --buffer-sizes [default: 256K; 128K in transfers of 512K and less]
    #[arg(long, value_name = "SIZE")]
    pub chunk_size: Option<Size>,
    /// Lease: keep the session of a silent or disconnected client for this long [default: 30000]
    #[arg(long, value_name = "MILLISECONDS", help_heading = LIMITS)]
    pub lease_ms: Option<u64>,
    /// Keep-alive interval: an idle client sends a message after this long [default: 10000]
    #[arg(long, value_name = "MILLISECONDS", help_heading = LIMITS)]
    pub keep_alive_ms: Option<u64>,
    /// Close a connection that has no session after this long [default: 10000]
    #[arg(long, value_name = "MILLISECONDS", help_heading = LIMITS)]
    pub handshake_ms: Option<u64>,
    /// Percentage of each limit that one user, key or address may take; root and the server's user may take all [default: 50]
    #[arg(long, value_name = "PERCENT", help_heading = LIMITS)]
    pub identity_share: Option<u64>,
    /// Files of directories that are open at once [default: three quarters of `ulimit -n`]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub descriptors_max: Option<u64>,
    /// Mappings of clients' memory at once [default: half of vm.max_map_count]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub mappings_max: Option<u64>,
    /// Address space for mappings of clients' memory [default: 32T]
    #[arg(long, value_name = "SIZE", help_heading = LIMITS)]
    pub mapped_size_max: Option<Size>,
    /// Registered client memory that has no pages yet; the server's first access allocates them [default: half of the machine's memory]
    #[arg(long, value_name = "SIZE", help_heading = LIMITS)]
    pub sparse_size_max: Option<Size>,
    /// Memory for replies that clients have not received yet [default: 512M]
    #[arg(long, value_name = "SIZE", help_heading = LIMITS)]
    pub unsent_size_max: Option<Size>,
    /// Memory for views and their descriptions [default: 256M]
    #[arg(long, value_name = "SIZE", help_heading = LIMITS)]
    pub views_size_max: Option<Size>,
    /// Views of one session [default: 1024]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub views_max: Option<u64>,
    /// Tokens of one session, with which others can open its files [default: 64]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub tokens_max: Option<u64>,
    /// Byte ranges that one session has locked or waits for [default: 65536]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub session_locks_max: Option<u64>,
    /// Byte ranges that all sessions have locked or wait for [default: 1048576]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub locks_max: Option<u64>,
    /// Connections of a listener that have no session yet [default: 1024]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub handshakes_max: Option<u64>,
    /// Log lines of one kind per second; more are only counted [default: 100]
    #[arg(long, value_name = "COUNT", help_heading = LIMITS)]
    pub log_lines_max: Option<u64>,
    /// Drain time: after SIGTERM, exit after this long even if operations are in flight [default: 10000]
    #[arg(long, value_name = "MILLISECONDS", help_heading = LIMITS)]
    pub drain_ms: Option<u64>,
    /// Where in the file each setting stands.
    #[arg(skip)]
    #[serde(skip)]
    pub origin: Origin,
}

/// `--poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// Sleep at once; the kernel wakes the server
    Event,
    /// Spin: the lowest latency, one CPU always busy
    Busy,
    /// Spin for a short time if that has paid off, then sleep
    Adaptive,
}

impl Settings {
    /// Merges these settings with those of a file. Lists are joined, the file's first. If both set a value, this one counts.
    pub fn over(mut self, file: Self) -> Self {
        macro_rules! join {
            (or: $($value:ident)*; append: $($list:ident)*; any: $($flag:ident)*;) => {
                // Naming every field makes a forgotten one an error.
                let Self { $($value,)* $($list,)* $($flag,)* mut origin } = file;
                $(
                    if self.$value.is_some() {
                        origin.forget(stringify!($value));
                    }
                    self.$value = self.$value.or($value);
                )*
                $(
                    // Which of them an error is about nobody can tell.
                    if !self.$list.is_empty() {
                        origin.forget(stringify!($list));
                    }
                    self.$list = $list.into_iter().chain(self.$list).collect();
                )*
                $(self.$flag |= $flag;)*
                self.origin = origin;
            };
        }
        join! {
            or: key_file state_file fence_file lock_file workers worker_cpus poll storage_engine storage_threads metrics log log_format
                cluster server_name term_ms fence_command fence_detail
                etcd_ca_file etcd_certificate_file etcd_key_file etcd_user etcd_password_file
                sessions_max slots_max operations_max inline_max transfer_size_max buffers_size_max buffers_kept_max pipeline_depth
                chunk_size lease_ms keep_alive_ms handshake_ms drain_ms identity_share descriptors_max mappings_max mapped_size_max
                sparse_size_max unsent_size_max views_size_max handshakes_max log_lines_max handles_max views_max tokens_max
                session_locks_max locks_max;
            append: exports export_tables listen buffer_sizes cluster_addresses;
            any: direct_io no_coalescing no_calibrate metrics_anywhere;
        }
        self
    }
}

const LIMITS: &str = "Limits";
const CLUSTER: &str = "Cluster";

const EXPORT_HELP: &str = "\
Export a directory, or memory (mem: or mem:4G); may be repeated

Clients find it as dafs://HOST/NAME. Options, after commas:
  ro                        read-only
  clients=RANGE[;RANGE...]  only from these addresses: 10.0.0.0/8, ::1, or local for this host
  keys=NAME[;NAME...]       only clients that proved one of these keys (--key-file)
  map=client                each client acts as its own user; the default if privileged
  squash=UID:GID            all clients act as this user
  squash=server             all clients act as the server's user
  no_root_squash            a remote client that claims to be root acts as root, not as nobody
  direct_io                 bypass the page cache (O_DIRECT)
  local_locks               locks also conflict with those of this host's processes (fcntl)
  local_open                root on this host may open files past the server: dafs mount reads and writes them itself
  owner=UID:GID             memory only: owner of its root directory [default: the server's user]
  mode=OCTAL                memory only: mode of its root directory [default: 755; 1777 if privileged]

Export a directory with a comma in its name from a file (--config):
  [[export]]
  name = \"data\"
  path = \"/srv/a,b\"";

const EXAMPLES: &str = "\
Examples:
  A directory and some memory, for this host:
    dafs-server --export data=/srv/data --export scratch=mem:4G
    dafs ls -l dafs://localhost/data

  For a network, read-only, with a key:
    (umask 077; dafs-server keygen alpha >> /etc/dafs/keys)
    dafs-server --export data=/srv/data,ro,clients=10.0.0.0/8 --listen tcp://0.0.0.0 --key-file /etc/dafs/keys

  Over RDMA as well (in builds with the feature verbs; `dafs info --devices` lists the devices):
    dafs-server --export data=/srv/data --listen verbs://192.0.2.7 --listen tcp://192.0.2.7 --key-file /etc/dafs/keys

  From a file:
    dafs-server --config /etc/dafs/server.toml
      listen = [\"tcp://0.0.0.0:12049\", \"shm:///run/dafs/dafs.sock\"]
      key-file = \"/etc/dafs/keys\"
      [[export]]
      name = \"data\"
      path = \"/srv/data\"
      clients = [\"10.0.0.0/8\", \"local\"]
      squash = \"1000:1000\"
      [[export]]
      name = \"scratch\"
      memory = \"4G\"

When the server is ready, it prints one line per listener: listening dafs+tcp://127.0.0.1:12049

Signals:
  SIGTERM, SIGINT  drain: finish the operations in flight, then exit
  SIGHUP           reload keys and the options of exports; sessions continue

If a setting is wrong at SIGHUP, the server logs that and changes nothing. Changes of listeners, new exports and other settings need \
a restart. For systemd: ExecReload=/bin/kill -HUP $MAINPID

Exit status:
  0  ended by a signal
  1  cannot serve: a setting is wrong, or the system does not permit it
  2  usage error";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(arguments: &[&str]) -> Result<Cli, String> {
        Cli::try_parse_from([&["dafs-server"], arguments].concat()).map_err(|error| error.to_string())
    }

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_are_read() {
        let cli = parse(&[
            "--export",
            "data=/srv",
            "--export",
            "s=mem:",
            "--listen",
            "tcp://127.0.0.1:0",
            "--poll",
            "busy",
            "--inline-max",
            "8K",
            "--slots-max",
            "7",
            "--log-format",
            "json",
            "--no-calibrate",
        ])
        .unwrap();
        let settings = cli.settings;
        assert_eq!(settings.exports, ["data=/srv", "s=mem:"]);
        assert_eq!(settings.listen, ["tcp://127.0.0.1:0"]);
        assert_eq!(settings.poll, Some(Poll::Busy));
        assert_eq!(settings.inline_max, Some(Size(8192)));
        assert_eq!(settings.slots_max, Some(7));
        assert_eq!(settings.log_format, Some(LogFormat::Json));
        assert!(settings.no_calibrate && !settings.direct_io);
    }

    #[test]
    fn wrong_flag_value_is_refused_with_flag_and_choices() {
        for (arguments, needs) in [
            (["--poll", "often"], ["--poll", "adaptive"]),
            (["--inline-max", "8X"], ["--inline-max", "64K"]),
            (["--slots-max", "many"], ["--slots-max", "many"]),
            (["--storage-engine", "disk"], ["--storage-engine", "uring"]),
        ] {
            let error = parse(&arguments).unwrap_err();
            assert!(needs.iter().all(|need| error.contains(need)), "{error}");
        }
    }

    #[test]
    fn keygen_takes_a_name_and_no_flags() {
        assert!(
            matches!(parse(&["keygen", "alpha"]).unwrap().command, Some(Command::Keygen { name }) if name == "alpha")
        );
        assert!(parse(&["--direct-io", "keygen", "alpha"]).is_err());
        assert!(parse(&["keygen"]).unwrap_err().contains("<NAME>"));
    }

    #[test]
    fn settings_over_a_file_win_and_lists_join() {
        let file = Settings {
            listen: vec!["a".into()],
            lease_ms: Some(1),
            drain_ms: Some(2),
            direct_io: true,
            ..Settings::default()
        };
        let flags = Settings { listen: vec!["b".into()], lease_ms: Some(3), ..Settings::default() };
        let joined = flags.over(file);
        assert_eq!(joined.listen, ["a", "b"]);
        assert_eq!((joined.lease_ms, joined.drain_ms, joined.direct_io), (Some(3), Some(2), true));
    }
}
