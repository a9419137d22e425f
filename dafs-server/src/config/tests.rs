use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use clap::Parser;
use dafs_proto::transport::{Address, WaitPolicy};
use tempfile::TempDir;

use super::*;
use crate::cli::{Cli, Settings};
use crate::storage::Identity;

const SECRET: &str = "000102030405060708090a0b0c0d0e0f";

/// A server with a directory and a key file of its own.
struct Fixture {
    directory: TempDir,
    environment: Environment,
}

impl Fixture {
    fn new(privileged: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("data")).unwrap();
        let keys = directory.path().join("keys");
        std::fs::write(&keys, format!("alpha:{SECRET}\nbeta:{SECRET}")).unwrap();
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let identity = Identity { uid, gid: 1000, groups: Arc::from([]) };
        let environment = Environment {
            server: ServerIdentity { identity, privileged },
            default_socket: Some("/run/dafs/dafs.sock".into()),
            memory_size: 8 << 30,
            swap_size: 1 << 30,
        };
        Self { directory, environment }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// `DATA` and `KEYS` stand for the directory and the key file.
    fn config(&self, arguments: &[&str]) -> Result<Config, String> {
        self.config_over(arguments, &Config::default())
    }

    /// As [`Fixture::config`], for a server that serves what `began` says.
    fn config_over(&self, arguments: &[&str], began: &Config) -> Result<Config, String> {
        let fill = |text: &&str| text.replace("DATA", &self.path("data")).replace("KEYS", &self.path("keys"));
        let arguments = std::iter::once("dafs-server".to_owned()).chain(arguments.iter().map(fill));
        let settings = Cli::try_parse_from(arguments).map_err(|error| error.to_string())?.settings;
        Config::from_settings_over(settings, &self.environment, began).map_err(|error| error.to_string())
    }

    fn export(&self, flag: &str) -> Result<ExportConfig, String> {
        self.config(&["--key-file", "KEYS", "--export", flag]).map(|config| config.exports[0].clone())
    }

    fn file(&self, text: &str) -> Result<Config, String> {
        let text = text.replace("DATA", &self.path("data")).replace("KEYS", &self.path("keys"));
        let settings = Settings::from_toml(&text, "--config /f").map_err(|error| error.to_string())?;
        Config::from_settings(settings, &self.environment).map_err(|error| error.to_string())
    }
}

fn assert_says(error: Result<impl std::fmt::Debug, String>, needs: &[&str], input: &str) {
    let error = error.expect_err(input);
    for need in needs {
        assert!(error.contains(need), "{input}: {need:?} is missing in: {error}");
    }
}

fn tcp(text: &str) -> Address {
    Address::Tcp(text.parse().unwrap())
}

// [ACC-154]
#[test]
fn settings_are_read_again_without_a_look_at_what_is_served() {
    let place = Fixture::new(true);
    let arguments = ["--export", "data=DATA", "--listen", "tcp://127.0.0.1:7"];
    let mut began = place.config(&arguments).unwrap();
    // As if the name were not known any more.
    began.listen[0].text = "tcp://here.invalid:7".to_owned();
    std::fs::remove_dir(place.path("data")).unwrap();
    let again = ["--export", "other=DATA,ro", "--listen", "tcp://here.invalid:7"];
    let config = place.config_over(&again, &began).unwrap();
    assert_eq!((&config.exports[0].kind, &config.listeners), (&began.exports[0].kind, &began.listeners));
    assert!(config.exports[0].read_only);
    // What it does not serve, it looks at.
    for new in [["--export", "other=DATA/x"], ["--export=other=DATA", "--listen=tcp://there.invalid:7"]] {
        place.config_over(&new, &began).unwrap_err();
    }
}

// [CLUS-15]
#[test]
fn server_of_a_cluster_has_a_term_of_whole_seconds() {
    let fixture = Fixture::new(true);
    let with = |more: &[&str]| {
        let flags = [&["--export", "data=DATA", "--cluster", "etcd://store/main"], more].concat();
        fixture.config(&flags).map(|config| config.cluster.unwrap())
    };
    let usual = with(&[]).unwrap();
    assert_eq!((usual.term_ms, usual.fence_command, usual.addresses), (5000, None, Vec::new()));
    for term_ms in [2000, 60_000] {
        assert_eq!(with(&["--term-ms", &term_ms.to_string()]).unwrap().term_ms, term_ms);
    }
    for term_ms in ["1000", "2500", "61000"] {
        with(&["--term-ms", term_ms]).unwrap_err();
    }
    let named = with(&["--cluster-address", "tcp://node1", "--cluster-address", "verbs://[::1]:7"]).unwrap();
    assert_eq!(named.addresses, ["dafs+tcp://node1:12049", "dafs+verbs://[::1]:7"]);
    for refused in [
        &["--cluster-address", "shm:///run/socket"][..],
        &["--cluster-address", "tcp://node1:0"],
        &["--server-name", "a\nb"],
        &["--state-file", "/var/lib/dafs/state"],
    ] {
        with(refused).unwrap_err();
    }
    for flag in ["--fence-command", "--etcd-user"] {
        let alone = fixture.config(&["--export", "data=DATA", flag, "true"]).unwrap_err();
        assert!(alone.contains("it is for servers of a cluster"), "{alone}");
    }
    fixture.config(&["--export", "data=DATA", "--cluster", "etcd://store"]).unwrap_err();
}

// [ACC-43] [ACC-99]
#[test]
fn config_of_the_smallest_command_has_the_defaults() {
    let config = Fixture::new(true).config(&["--export", "data=DATA"]).unwrap();
    let defaults = Config::default();
    assert_eq!(config.listeners, [tcp("127.0.0.1:12049"), Address::Shm("/run/dafs/dafs.sock".into())]);
    assert_eq!(config.poll, WaitPolicy::Adaptive);
    assert_eq!((config.slots_max, config.operations_max, config.inline_max), (256, 4096, 16_384));
    assert_eq!(config.transfer_size_max, defaults.transfer_size_max);
    assert_eq!(config.metrics_address, None);
    assert!(config.calibrate && !config.direct_io);
    assert_eq!(config.log, LogConfig::default());
    assert_eq!(config.exports.len(), 1);
}

#[test]
fn config_of_every_flag_is_as_written() {
    let config = Fixture::new(true)
        .config(&[
            "--export",
            "data=DATA",
            "--export",
            "s=mem:4G",
            "--listen",
            "tcp://127.0.0.1:0",
            "--listen",
            "tcp://127.0.0.1:0",
            "--listen",
            "shm:///tmp/d.sock",
            "--listen",
            "shm:///tmp/d.sock",
            "--workers",
            "3",
            "--poll",
            "event",
            "--storage-engine",
            "pool",
            "--direct-io",
            "--no-calibrate",
            "--metrics",
            "[::1]:0",
            "--log",
            "debug",
            "--log-format",
            "json",
            "--sessions-max",
            "1",
            "--slots-max",
            "1024",
            "--operations-max",
            "2",
            "--inline-max",
            "1K",
            "--transfer-size-max",
            "1G",
            "--buffers-size-max",
            "1M",
            "--lease-ms",
            "200",
            "--keep-alive-ms",
            "100",
            "--handshake-ms",
            "50",
            "--drain-ms",
            "0",
            "--identity-share",
            "31",
            "--handshakes-max",
            "32",
            "--descriptors-max",
            "33",
            "--mappings-max",
            "34",
            "--mapped-size-max",
            "35M",
            "--sparse-size-max",
            "36M",
            "--unsent-size-max",
            "37M",
            "--views-size-max",
            "38M",
            "--storage-threads",
            "39",
            "--handles-max",
            "40",
            "--views-max",
            "41",
            "--tokens-max",
            "42",
            "--session-locks-max",
            "43",
            "--locks-max",
            "44",
        ])
        .unwrap();
    assert_eq!(
        config.listeners,
        [tcp("127.0.0.1:0"), tcp("127.0.0.1:0"), Address::Shm("/tmp/d.sock".into())]
    );
    assert_eq!((config.poll, config.storage_engine), (WaitPolicy::Event, Engine::Pool));
    assert!(config.direct_io && !config.calibrate && config.workers == 3);
    assert_eq!(config.metrics_address, Some("[::1]:0".parse().unwrap()));
    assert_eq!(
        config.log,
        LogConfig { filter: "debug".into(), format: crate::logging::LogFormat::Json, ..LogConfig::default() }
    );
    assert_eq!((config.sessions_max, config.slots_max, config.operations_max), (1, 1024, 2));
    assert_eq!(
        (config.inline_max, config.transfer_size_max, config.buffers_size_max),
        (1024, 1 << 30, 1 << 20)
    );
    let times = (config.lease_ms, config.keep_alive_ms, config.handshake_ms, config.drain_ms);
    assert_eq!(times, (200, 100, 50, 0));
    assert_eq!(config.exports[1].kind, ExportKind::Memory { size_max: 4 << 30 });
    let limits = &config.limits;
    assert_eq!((limits.identity_share_percent, limits.handshakes_max), (31, 32));
    assert_eq!((limits.descriptors_max, limits.mappings_max), (Some(33), Some(34)));
    assert_eq!((limits.mapped_size_max, limits.sparse_size_max), (Some(35 << 20), Some(36 << 20)));
    assert_eq!((limits.unsent_size_max, limits.views_size_max), (37 << 20, 38 << 20));
    assert_eq!((config.storage_threads, config.handles_max), (39, 40));
    assert_eq!((limits.views_max, limits.tokens_max), (41, 42));
    assert_eq!((limits.session_locks_max, limits.locks_max), (43, 44));
}

#[test]
fn limit_that_leaves_clients_nothing_is_refused() {
    let place = Fixture::new(true);
    for (flag, least) in [
        ("--identity-share", "1"),
        ("--handshakes-max", "1"),
        ("--descriptors-max", "1"),
        ("--mappings-max", "1"),
        ("--mapped-size-max", "1"),
        ("--sparse-size-max", "1"),
        ("--unsent-size-max", "1M"),
        ("--views-size-max", "1M"),
        ("--storage-threads", "4"),
    ] {
        assert!(place.config(&["--export", "d=DATA", flag, least]).is_ok(), "{flag} {least}");
        assert_says(place.config(&["--export", "d=DATA", flag, "0"]), &[flag], flag);
    }
}

#[test]
fn config_number_out_of_range_names_flag_and_range() {
    let place = Fixture::new(true);
    let cases = [
        ("--sessions-max", "1", "1000000", ["0", "1000001"]),
        ("--slots-max", "1", "1024", ["0", "1025"]),
        ("--operations-max", "1", "1000000", ["0", "1000001"]),
        ("--handles-max", "1", "1000000", ["0", "1000001"]),
        ("--handshakes-max", "1", "1000000", ["0", "1000001"]),
        ("--views-max", "1", "1000000", ["0", "1000001"]),
        ("--tokens-max", "1", "65536", ["0", "65537"]),
        ("--session-locks-max", "1", "16777216", ["0", "16777217"]),
        ("--locks-max", "1", "16777216", ["0", "16777217"]),
        ("--inline-max", "1024", "1048576", ["1023", "1048577"]),
        ("--transfer-size-max", "65536", "1073741824", ["65535", "1073741825"]),
        ("--handshake-ms", "10", "86400000", ["9", "86400001"]),
        ("--drain-ms", "0", "86400000", ["86400001", "18446744073709551615"]),
    ];
    for (flag, low, high, outside) in cases {
        for value in [low, high] {
            assert!(place.config(&["--export", "d=DATA", flag, value]).is_ok(), "{flag} {value}");
        }
        for value in outside {
            let error = place.config(&["--export", "d=DATA", flag, value]);
            assert_says(error, &[flag, value, &format!("from {low} to {high}")], flag);
        }
    }
    for (value, fits) in [("1048575", false), ("1M", true), ("16T", true), ("17592186044417", false)] {
        assert_eq!(
            place.config(&["--export", "d=DATA", "--buffers-size-max", value]).is_ok(),
            fits,
            "{value}"
        );
    }
    let lease = |ms: &str| place.config(&["--export", "d=DATA", "--keep-alive-ms", "1000", "--lease-ms", ms]);
    assert_says(lease("1999"), &["--lease-ms 2000", "--keep-alive-ms"], "lease");
    assert!(lease("2000").is_ok());
}

// [ACC-40]
#[test]
fn export_flag_of_every_form_is_read() {
    let place = Fixture::new(true);
    let data = ExportKind::Directory(place.path("data").into());
    let base = ExportConfig::new("d", data);
    let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    let memory = ExportConfig::new("d", ExportKind::Memory { size_max: 4096 });
    let root = |uid, gid, mode| MemoryRoot { uid, gid, mode };
    let cases = [
        ("d=DATA", base.clone()),
        ("d=DATA,ro", ExportConfig { read_only: true, ..base.clone() }),
        ("d=DATA,direct_io", ExportConfig { direct_io: true, ..base.clone() }),
        ("d=DATA,local_open", ExportConfig { local_open: true, ..base.clone() }),
        ("d=DATA,local_locks", ExportConfig { local_locks: true, ..base.clone() }),
        (
            "d=DATA,squash=5:6",
            ExportConfig { squash: IdentityMapping::Fixed { uid: 5, gid: 6 }, ..base.clone() },
        ),
        ("d=DATA,squash=server", ExportConfig { squash: IdentityMapping::Server, ..base.clone() }),
        ("d=DATA,map=client", ExportConfig { squash: IdentityMapping::Client, ..base.clone() }),
        ("d=DATA,no_root_squash", ExportConfig { no_root_squash: true, ..base.clone() }),
        (
            "d=DATA,clients=10.0.0.0/8;::1;local,keys=alpha;beta,ro",
            ExportConfig {
                clients: ranges(&["10.0.0.0/8", "::1", "local"]),
                keys: vec!["alpha".into(), "beta".into()],
                read_only: true,
                ..base.clone()
            },
        ),
        ("d=mem:", ExportConfig::new("d", ExportKind::Memory { size_max: 4 << 30 })),
        ("d=mem:9G", ExportConfig::new("d", ExportKind::Memory { size_max: 9 << 30 })),
        ("d=mem:4K", ExportConfig::new("d", ExportKind::Memory { size_max: 4096 })),
        ("d=mem:4K,owner=5:6,mode=2750", ExportConfig { root: root(5, 6, 0o2750), ..memory.clone() }),
        ("d=mem:4K,owner=5:6", ExportConfig { root: root(5, 6, 0o1777), ..memory.clone() }),
        ("d=mem:4K,mode=0", ExportConfig { root: root(0, 0, 0), ..memory }),
    ];
    for (flag, expected) in cases {
        assert_eq!(format!("{:?}", place.export(flag).expect(flag)), format!("{expected:?}"), "{flag}");
    }
}

// [ACC-170]
#[test]
fn root_of_memory_is_the_user_s_whose_server_is_unprivileged() {
    let place = Fixture::new(false);
    let root = |flag| place.export(flag).unwrap().root;
    let server = &place.environment.server;
    let (uid, gid) = (server.identity.uid, server.identity.gid);
    assert_eq!(root("d=mem:4K"), MemoryRoot { uid, gid, mode: 0o755 });
    assert_eq!(root("d=mem:4K,mode=700"), MemoryRoot { uid, gid, mode: 0o700 });
    assert_eq!(root("d=mem:4K,owner=5:6"), MemoryRoot { uid: 5, gid: 6, mode: 0o755 });
}

// [ACC-170]
#[test]
fn owner_and_mode_that_are_none_are_refused() {
    let place = Fixture::new(true);
    for (flag, words) in [
        ("d=mem:4K,owner=5", "owner=5 is not a user and a group"),
        ("d=mem:4K,owner=root:root", "not a user and a group"),
        ("d=mem:4K,owner=4294967295:0", "not a user and a group"),
        ("d=mem:4K,mode=10000", "not a mode"),
        ("d=mem:4K,mode=8", "not a mode"),
        ("d=mem:4K,mode=", "not a mode"),
        ("d=mem:4K,mode=+7", "not a mode"),
        ("d=DATA,owner=5:6", "a directory has its own"),
        ("d=DATA,mode=755", "a directory has its own"),
    ] {
        assert_says(place.export(flag), &[words], flag);
    }
}

#[test]
fn export_flag_with_fault_names_it_and_the_remedy() {
    let place = Fixture::new(true);
    let long = format!("{}=DATA", "n".repeat(EXPORT_NAME_SIZE_MAX + 1));
    let cases: &[(&str, &[&str])] = &[
        ("DATA", &["name is missing", "--export data=/srv/data"]),
        ("=DATA", &["name is empty", "such as data"]),
        ("a/b=DATA", &["\"a/b\"", "choose a name"]),
        (".=DATA", &["\".\""]),
        ("..=DATA", &["\"..\""]),
        ("a\tb=DATA", &["\"a\\tb\""]),
        (&long, &["256 bytes", "255"]),
        ("d=", &["directory is empty", "NAME=DIRECTORY"]),
        ("d=DATA/none", &["No such file or directory", "mkdir -p"]),
        ("d=KEYS", &["Not a directory"]),
        ("d=mem:much", &["\"much\"", "mem:4G"]),
        ("d=mem:0", &["a size above 0", "mem:4G"]),
        ("d=mem:999999T", &["999999T is more memory", "has (9G)", "mem:"]),
        ("d=mem:9663676417", &["9663676417 is more memory", "has (9G)"]),
        ("d=mem:99999999T", &["\"99999999T\"", "at most 16777215T"]),
        ("d=DATA,rw", &["unknown option \"rw\"", "ro, clients=", "--config FILE"]),
        ("d=DATA,b/c", &["\"b/c\"", "comma", "[[export]]"]),
        ("d=DATA,ro=yes", &["\"ro=yes\""]),
        ("d=DATA,squash=root", &["squash=root", "squash=1000:1000"]),
        ("d=DATA,squash=4294967295:1", &["squash=4294967295:1", "squash=1000:1000"]),
        ("d=DATA,map=server", &["map=server", "map=client"]),
        ("d=DATA,map=client,squash=1:1", &["both map and squash", "choose one"]),
        ("d=DATA,root=squash", &["\"root=squash\"", "no_root_squash"]),
        ("d=DATA,clients=10.0.0.1/8", &["10.0.0.1/8", "10.0.0.0/8"]),
        ("d=DATA,clients=", &["clients", "10.0.0.7"]),
        ("d=DATA,clients=host", &["\"host\"", "semicolons"]),
        ("d=DATA,keys=gamma", &["\"gamma\"", "keygen gamma", "--key-file"]),
    ];
    for (flag, needs) in cases {
        let error = place.export(flag);
        assert_says(error.clone(), needs, flag);
        assert_says(error, &["--export"], flag);
    }
}

// [ACC-40]
#[test]
fn export_directory_may_have_any_bytes_but_a_comma() {
    let place = Fixture::new(true);
    let directory = place.directory.path().join(OsStr::from_bytes(b"a=b:\xff;c"));
    std::fs::create_dir(&directory).unwrap();
    let mut flag = OsString::from("d=");
    flag.push(&directory);
    let settings = Settings { exports: vec![flag], ..Settings::default() };
    let config = Config::from_settings(settings, &place.environment).unwrap();
    assert_eq!(config.exports[0].kind, ExportKind::Directory(directory));

    std::fs::create_dir(place.directory.path().join("a,b")).unwrap();
    let config = place.file(&format!("[[export]]\nname='d'\npath='{}'", place.path("a,b"))).unwrap();
    assert_eq!(config.exports[0].kind, ExportKind::Directory(place.path("a,b").into()));
}

// [ACC-41]
#[test]
fn export_of_relative_directory_becomes_absolute() {
    let settings = Settings { exports: vec!["d=.".into()], ..Settings::default() };
    let config = Config::from_settings(settings, &Fixture::new(true).environment).unwrap();
    let ExportKind::Directory(path) = &config.exports[0].kind else { panic!("no directory") };
    assert!(path.is_absolute(), "{path:?}");
}

// [ACC-33]
#[test]
fn export_that_needs_privileges_is_refused_without_them() {
    let place = Fixture::new(false);
    let own = format!("d=DATA,squash={}:1000", place.environment.server.identity.uid);
    for flag in ["d=DATA", "d=DATA,squash=server", own.as_str(), "d=mem:,map=client", "d=mem:,squash=5:6"] {
        assert!(place.export(flag).is_ok(), "{flag}");
    }
    for flag in ["d=DATA,map=client", "d=DATA,squash=77:1000", own.replace(":1000", ":1001").as_str()] {
        assert_says(place.export(flag), &["not privileged", "as root", "squash=server"], flag);
    }
}

#[test]
fn config_without_or_with_repeated_exports_is_refused() {
    let place = Fixture::new(true);
    assert_says(place.config(&[]), &["--export", "--export data=/srv/data"], "none");
    let twice = place.config(&["--export", "d=DATA", "--export", "d=mem:"]);
    assert_says(twice, &["--export d=mem:", "\"d\" is taken"], "twice");
}

// [SESS-3] [ACC-75] [ACC-76]
#[test]
fn listener_beyond_loopback_needs_keys() {
    let place = Fixture::new(true);
    let listen = |address: &str, more: &[&str]| {
        place
            .config(&[&["--export", "d=mem:", "--listen", address], more].concat())
            .map(|config| config.listeners)
    };
    for address in ["tcp://0.0.0.0:7", "tcp://[::]:7", "tcp://192.0.2.1:7", "tcp://[::ffff:192.0.2.1]:7"] {
        assert_says(listen(address, &[]), &["--listen", address, "keygen", "--key-file", ":7"], address);
        assert!(listen(address, &["--key-file", "KEYS"]).is_ok(), "{address}");
    }
    for address in
        ["tcp://127.0.0.1:0", "tcp://127.9.9.9:0", "tcp://[::1]:0", "tcp://[::ffff:127.0.0.1]:0", "shm:///s"]
    {
        assert!(listen(address, &[]).is_ok(), "{address}");
    }
}

#[test]
fn listener_that_is_no_address_is_refused() {
    let place = Fixture::new(true);
    for (address, need) in [
        ("127.0.0.1:0", "tcp://127.0.0.1:12049"),
        ("sim://1", "tcp://HOST:PORT"),
        #[cfg(not(feature = "verbs"))]
        ("verbs://h", "--features verbs"),
        ("shm://s", "shm:///"),
    ] {
        let error = place.config(&["--export", "d=mem:", "--listen", address]);
        assert_says(error, &["--listen", address, need], address);
    }
}

// [ACC-50]
#[test]
fn metrics_beyond_loopback_need_a_word() {
    let place = Fixture::new(true);
    let metrics = |address: &str, more: &[&str]| {
        place
            .config(&[&["--export", "d=mem:", "--metrics", address], more].concat())
            .map(|config| config.metrics_address)
    };
    assert!(metrics("127.0.0.1:9464", &[]).unwrap().is_some());
    assert_says(
        metrics("0.0.0.0:9464", &[]),
        &["--metrics 0.0.0.0:9464", "127.0.0.1:9464", "--metrics-anywhere"],
        "all",
    );
    assert!(metrics("0.0.0.0:9464", &["--metrics-anywhere"]).is_ok());
    assert_says(metrics("9464", &[]), &["--metrics 9464", "127.0.0.1:9464"], "port");
}

#[test]
fn log_filter_that_is_none_is_refused() {
    let error = Fixture::new(true).config(&["--export", "d=mem:", "--log", "dafs_server=loud"]);
    assert_says(error, &["--log dafs_server=loud", "error, warn, info"], "log");
}

#[test]
fn key_file_that_is_missing_names_the_flag() {
    let error = Fixture::new(true).config(&["--export", "d=mem:", "--key-file", "/nowhere/keys"]);
    assert_says(error, &["--key-file", "/nowhere/keys", "keygen"], "keys");
}

// [ACC-42]
#[test]
fn file_says_what_flags_say() {
    let config = Fixture::new(true)
        .file(
            "listen = ['tcp://0.0.0.0:12049', 'shm:///run/x.sock']\nkey-file = 'KEYS'\nworkers = 64\npoll = 'busy'\n\
             inline-max = '8K'\ntransfer-size-max = 1048576\n\
             no-calibrate = true\n[[export]]\nname = 'data'\npath = 'DATA'\n\
             ro = true\nclients = ['10.0.0.0/8', 'local']\nkeys = ['alpha']\n\
             squash = '1:2'\nno_root_squash = true\ndirect = true\n[[export]]\nname = 's'\nmemory = '4G'\n",
        )
        .unwrap();
    assert_eq!(config.listeners, [tcp("0.0.0.0:12049"), Address::Shm("/run/x.sock".into())]);
    assert_eq!((config.poll, config.inline_max, config.transfer_size_max), (WaitPolicy::Busy, 8192, 1 << 20));
    assert!(!config.calibrate && config.workers == 64);
    let export = &config.exports[0];
    assert!(export.read_only && export.no_root_squash && export.direct_io);
    assert_eq!((export.clients.len(), export.keys.as_slice()), (2, &["alpha".to_owned()][..]));
    assert_eq!(export.squash, IdentityMapping::Fixed { uid: 1, gid: 2 });
    assert_eq!(config.exports[1].kind, ExportKind::Memory { size_max: 4 << 30 });
}

// [ACC-42] What a flag sets, its name in the file sets.
#[test]
fn file_takes_the_names_of_all_flags() {
    use clap::{ArgAction, CommandFactory};
    let settings = |flags: &[String]| {
        let flags = flags.iter().map(String::as_str);
        Cli::try_parse_from(std::iter::once("dafs-server").chain(flags)).map(|cli| cli.settings)
    };
    // Of exports tables stand there; and `config` names the file.
    let elsewhere = |name: &&str| !["config", "export", "help", "version"].contains(name);
    let mut count = 0;
    for flag in Cli::command().get_arguments() {
        let Some(name) = flag.get_long().filter(elsewhere) else { continue };
        let choice = flag.get_possible_values().first().map(|choice| choice.get_name().to_owned());
        let text = choice.as_deref().unwrap_or("1");
        let (flags, values) = match flag.get_action() {
            ArgAction::SetTrue => (vec![format!("--{name}")], vec!["true".to_owned()]),
            _ => (
                vec![format!("--{name}={text}")],
                vec![text.to_owned(), format!("'{text}'"), format!("[{text}]"), format!("['{text}']")],
            ),
        };
        let expected = format!("{:?}", settings(&flags).unwrap());
        let found = values.iter().filter_map(|value| {
            let file = Settings::from_toml(&format!("{name} = {value}"), "f").ok()?;
            Some(format!("{:?}", Settings { origin: Origin::default(), ..file }))
        });
        assert!(found.into_iter().any(|found| found == expected), "{name}: no value means {expected}");
        count += 1;
    }
    assert!(count > 30, "{count}");
}

#[test]
fn file_with_fault_names_place_and_remedy() {
    let place = Fixture::new(true);
    let cases: &[(&str, &[&str])] = &[
        ("listen = 7", &["--config /f", "line 1", "--help"]),
        ("lisen = []", &["unknown field `lisen`"]),
        ("[[export]]\nname = 'd'\nmemory = 1\nkeys = []", &["line 4: an empty list", "leave it out"]), // [ACC-148]
        ("[[export]]\nname = 'd'\nmemory = 1\nclients = []", &["line 4: an empty list", "leave it out"]),
        ("poll = 'often'", &["often", "adaptive"]),
        ("inline-max = -1", &["negative"]),
        ("inline-max = '8X'", &["8X", "64K"]),
        ("[[export]]\npath = '/'", &["name"]),
        ("[[export]]\nname = 'd'\npath = '/'\nrw = true", &["unknown field `rw`"]),
        ("[[export]]\nname = 'd'", &["[[export]] \"d\"", "path =", "memory ="]),
        ("[[export]]\nname = 'd'\npath = '/'\nmemory = 1", &["[[export]] \"d\"", "both path and memory"]),
        ("[[export]]\nname = 'd'\npath = '/none/x'", &["[[export]] \"d\"", "mkdir -p /none/x"]),
        (
            "# one\n[[export]]\nname = 'c'\nmemory = 0\n\n[[export]]\nname = 'd'\nmemory = '10G'",
            &["--config /f, line 6, [[export]] \"d\"", "10G is more memory"],
        ),
        ("\nlease-ms = 5\n[[export]]\nname = 'd'\nmemory = 0", &["--config /f, line 2, lease-ms: 5 is out"]),
        ("log = 'a=b=c'\nlease-ms = 50000", &["nothing is exported"]),
        ("[[export]]\nname = 'd'\nmemory = 0\n[other]", &["--config /f", "line 4", "unknown field `other`"]),
    ];
    for (text, needs) in cases {
        assert_says(place.file(text), needs, text);
    }
}

// [ACC-23]
#[test]
fn key_file_given_as_settings_is_refused_without_quoting_it() {
    let place = Fixture::new(true);
    for text in [
        format!("# keys\nalpha:{SECRET}\n"),
        format!("# keys\n{SECRET}"),
        format!("# keys\nalpha:{SECRET}=="),
        format!("# keys\nalpha = {SECRET}"),
    ] {
        let error = place.file(&text).unwrap_err();
        assert!(error.contains("line 2: ") && error.contains("--help"), "{error}");
        assert!((0..SECRET.len() - 3).all(|at| !error.contains(&SECRET[at..at + 4])), "{error}");
    }
}

// [ACC-97] [ACC-98]
#[test]
fn faulty_file_value_is_located_unless_a_flag_replaced_it() {
    let place = Fixture::new(true);
    let with_flags = |text: &str, flags: &[&str]| {
        let flags = Cli::try_parse_from([&["dafs-server", "--export", "d=mem:"], flags].concat()).unwrap();
        let settings = flags.settings.over(Settings::from_toml(text, "--config /f").unwrap());
        Config::from_settings(settings, &place.environment).map_err(|error| error.to_string())
    };
    let file = "slots-max = 9\nlease-ms = 5\nlisten = ['tcp://192.0.2.1']\nlog = 'dafs_server=loud'";
    assert_says(with_flags(file, &[]), &["--config /f, line 3, listen tcp://192.0.2.1: "], "listen");
    assert_says(with_flags(file, &["--key-file", &place.path("keys")]), &["/f, line 2, lease-ms: "], "file");
    let flags = ["--key-file", &place.path("keys"), "--lease-ms", "6"];
    let error = with_flags(file, &flags).unwrap_err();
    assert!(error.starts_with("cannot use --lease-ms: 6 is out of range"), "{error}");
    let flags = ["--key-file", &place.path("keys"), "--lease-ms", "60000"];
    assert_says(with_flags(file, &flags), &["/f, line 4, log dafs_server=loud: "], "log");
    let error = with_flags(file, &["--listen", "tcp://192.0.2.2"]).unwrap_err();
    assert!(error.starts_with("cannot use --listen tcp://192.0.2.1: "), "{error}");
}

#[test]
fn file_that_cannot_be_read_names_the_flag() {
    let load = |path: &Path| Settings::load(path).map_err(|error| error.to_string());
    assert_says(load(Path::new("/nowhere")), &["--config /nowhere", "No such file", "TOML"], "missing");
    let place = Fixture::new(true);
    let path = place.directory.path().join("f");
    let limit = usize::try_from(CONFIG_FILE_SIZE_MAX).unwrap();
    std::fs::write(&path, " ".repeat(limit)).unwrap();
    assert!(load(&path).is_ok());
    std::fs::write(&path, " ".repeat(limit + 1)).unwrap();
    assert_says(load(&path), &["larger than"], "large");
}

#[test]
fn example_of_help_is_a_valid_file() {
    use clap::CommandFactory;
    let help = Cli::command().render_long_help().to_string();
    let example = help.split("From a file:").nth(1).unwrap();
    let lines = example.lines().skip(2).take_while(|line| !line.trim().is_empty());
    let text: String = lines.map(|line| format!("{}\n", line.trim())).collect();
    let settings = Settings::from_toml(&text, "help").unwrap();
    assert_eq!((settings.listen.len(), settings.export_tables.len()), (2, 2));
}

#[test]
fn memory_size_is_read_in_kibibytes() {
    let meminfo = "MemFree: 1 kB\nMemTotal:       16314120 kB\nSwapTotal: 8 kB\n";
    assert_eq!(kibibytes(meminfo, "MemTotal:"), Some(16_314_120 * 1024));
    assert_eq!(kibibytes(meminfo, "SwapTotal:"), Some(8192));
    for text in ["", "MemTotal: x kB", "MemTotal: 7", "MemTotal: 18446744073709551615 kB"] {
        assert_eq!(kibibytes(text, "MemTotal:"), None, "{text}");
    }
    assert!(Environment::of_process(false).unwrap().memory_size > 0);
}
