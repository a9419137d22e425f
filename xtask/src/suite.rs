//! What can be run: test targets, found by asking cargo, and the providers that tests belong to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::guest::VERBS;

/// A column of the table.
#[derive(Debug)]
pub(crate) struct Provider {
    /// The module name that its tests carry.
    pub(crate) name: &'static str,
}

/// The columns, in order. The first stands for tests that need no provider.
pub(crate) const PROVIDERS: &[Provider] = &[
    Provider { name: "-" },
    Provider { name: "tcp" },
    Provider { name: "shm" },
    Provider { name: "sim" },
    Provider { name: VERBS },
];

/// Pairs of suite and provider that have no tests on purpose, with the reason.
const LEFT_OUT: &[(&str, &str, &str)] = &[
    ("access", "sim", REAL_SYSTEM),
    ("c", "sim", "no second process can reach it"),
    ("c", "verbs", "the guest has no compiler"),
    ("cli", "sim", "no second process can reach it"),
    ("examples", "sim", "no second process can reach it"),
    ("examples", "verbs", "a provider for RDMA may have threads"),
    ("files", "sim", REAL_SYSTEM),
    ("fio", "sim", "no second process can reach it"),
    ("fio", "verbs", "the guest has no fio"),
    ("hostile", "sim", REAL_SYSTEM),
    ("independent", "shm", OVER_TCP),
    ("independent", "sim", OVER_TCP),
    ("independent", "verbs", OVER_TCP),
    ("eager", "sim", REAL_SYSTEM),
    ("limits", "sim", REAL_SYSTEM),
    ("locks", "sim", REAL_SYSTEM),
    ("mixture", "sim", REAL_SYSTEM),
    ("real_input", "sim", REAL_SYSTEM),
    ("scribble", "tcp", "it has no rings in shared memory"),
    ("scribble", "sim", "it has no rings in shared memory"),
    ("rdma", "tcp", NO_RDMA),
    ("rdma", "shm", NO_RDMA),
    ("rdma", "sim", NO_RDMA),
    ("device_removal", "tcp", NO_RDMA),
    ("device_removal", "shm", NO_RDMA),
    ("device_removal", "sim", NO_RDMA),
    ("scribble", "verbs", "it has no rings in shared memory"),
    ("session", "sim", REAL_SYSTEM),
    ("storage_faults", "sim", REAL_SYSTEM),
    ("client", "tcp", VIRTUAL_TIME),
    ("client", "shm", VIRTUAL_TIME),
    ("client", "verbs", VIRTUAL_TIME),
    ("simulation", "tcp", VIRTUAL_TIME),
    ("simulation", "shm", VIRTUAL_TIME),
    ("simulation", "verbs", VIRTUAL_TIME),
    ("stripe", "sim", REAL_SYSTEM),
];
/// Suites whose tests wait for leases, time limits and programs more than they compute: more of them run at once.
const WAITING: &[&str] = &["access", "cli", "faults", "limits", "locks", "session", "views"];
/// So many for each processor.
const WAITING_PER_PROCESSOR: usize = 4;

const REAL_SYSTEM: &str = "runs on the real system; client and simulation are the suites on sim";
const OVER_TCP: &str = "plain Python reaches tcp only";
const NO_RDMA: &str = "it has no device";
const VIRTUAL_TIME: &str = "runs on virtual time; session is the suite on real connections";

/// Index into [`PROVIDERS`].
pub(crate) type Column = usize;

/// The column of a test: the first module on its path that is named as a provider.
pub(crate) fn column_of(test: &str) -> Column {
    let modules = test.rsplit_once("::").map_or("", |(modules, _)| modules);
    modules
        .split("::")
        .find_map(|module| PROVIDERS.iter().skip(1).position(|provider| provider.name == module))
        .map_or(0, |index| index + 1)
}

/// Why a suite that is split by provider has no test in `column`.
pub(crate) fn reason_not_run(suite: &str, column: Column) -> String {
    let provider = &PROVIDERS[column];
    LEFT_OUT
        .iter()
        .find(|(of, on, _)| *of == suite && *on == provider.name)
        .map_or_else(|| "it has no such tests".to_owned(), |(_, _, why)| (*why).to_owned())
}

/// Whether a suite has tests on verbs and on no other provider.
pub(crate) fn is_of_verbs_alone(suite: &str) -> bool {
    let is_left_out =
        |provider: &Provider| LEFT_OUT.iter().any(|(of, on, _)| *of == suite && *on == provider.name);
    PROVIDERS.iter().skip(1).all(|provider| is_left_out(provider) == (provider.name != VERBS))
}

/// One cargo target that holds tests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TargetId {
    /// Package name, such as `dafs-proto`.
    pub(crate) package: String,
    /// `lib`, `bin` or `test`.
    pub(crate) kind: String,
    /// Target name.
    pub(crate) name: String,
}

/// A row of the table: one or more test targets.
#[derive(Debug)]
pub(crate) struct Suite {
    /// Such as `proto/unit`, `proto/conformance` or `session`.
    pub(crate) name: String,
    /// Directory of the package, in which its tests run.
    pub(crate) directory: PathBuf,
    /// Version of the package, which cargo would tell its tests.
    pub(crate) version: String,
    /// The test programs, once built.
    pub(crate) targets: Vec<TargetId>,
}

impl Suite {
    /// Whether it runs the whole of dafs.
    pub(crate) fn is_system(&self) -> bool {
        !self.is_unit() && self.targets.iter().any(|target| target.package == SYSTEM_TESTS)
    }

    /// How many of its tests run at once, where that is not one for each processor.
    pub(crate) fn threads(&self) -> Option<usize> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        match self.name.as_str() {
            // Programs of several ranks, which wait for each other a third of the time.
            "mpi" => Some(processors + processors.div_ceil(2)),
            // Servers that wait for terms to end; some run a whole Ceph.
            "cluster" => Some(2 * processors),
            name => WAITING.contains(&name).then_some(WAITING_PER_PROCESSOR * processors),
        }
    }

    /// Whether these are a crate's unit tests.
    pub(crate) fn is_unit(&self) -> bool {
        self.name.ends_with("/unit")
    }
}

/// The workspace as cargo sees it.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Directory of the root manifest.
    pub(crate) root: PathBuf,
    /// The one directory that every step builds into.
    pub(crate) target_directory: PathBuf,
    /// The feature `verbs` of every package that has it, as cargo's `--features` takes them.
    pub(crate) verbs_features: String,
    /// Unit tests first, then the rest, by name.
    pub(crate) suites: Vec<Suite>,
}

/// Package whose test files are whole-system suites, named without their package.
const SYSTEM_TESTS: &str = "dafs-tests";

/// A command that runs the cargo which runs us.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The root of the workspace. Asked at run time: two checkouts may share a target directory, and with it this program.
pub(crate) fn root() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("xtask"), PathBuf::from);
    own.parent().map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Asks cargo for the workspace that holds `directory`.
pub(crate) fn discover(directory: &Path) -> Result<Workspace> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked"])
        .current_dir(directory)
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    workspace_from(&serde_json::from_slice(&output.stdout)?)
}

/// The test programs in the messages of `cargo build --message-format json`.
pub(crate) fn executables_from(messages: &str) -> BTreeMap<TargetId, PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact" && message["profile"]["test"] == true)
        .filter_map(|message| {
            let package = package_name(message["manifest_path"].as_str()?, message["package_id"].as_str()?);
            let target = target_from(&package, &message["target"])?;
            Some((target, PathBuf::from(message["executable"].as_str()?)))
        })
        .collect()
}

fn workspace_from(metadata: &Value) -> Result<Workspace> {
    let path = |key: &str| {
        metadata[key].as_str().map(PathBuf::from).with_context(|| format!("cargo metadata has no {key}"))
    };
    let mut suites = BTreeMap::new();
    for package in metadata["packages"].as_array().context("cargo metadata has no packages")? {
        add_suites_of(package, &mut suites)?;
    }
    let (units, others): (Vec<_>, Vec<_>) = suites.into_values().partition(Suite::is_unit);
    Ok(Workspace {
        root: path("workspace_root")?,
        target_directory: path("target_directory")?,
        verbs_features: verbs_features_in(metadata),
        suites: units.into_iter().chain(others).collect(),
    })
}

fn verbs_features_in(metadata: &Value) -> String {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let features = packages
        .filter(|package| package["features"].get(VERBS).is_some())
        .filter_map(|package| Some(format!("{}/{VERBS}", package["name"].as_str()?)));
    features.collect::<Vec<_>>().join(",")
}

fn add_suites_of(package: &Value, suites: &mut BTreeMap<String, Suite>) -> Result<()> {
    let name = package["name"].as_str().context("package without name")?;
    let manifest = package["manifest_path"].as_str().context("package without manifest")?;
    for target in package["targets"].as_array().context("package without targets")? {
        if target["test"] != true {
            continue;
        }
        let Some(id) = target_from(name, target) else { continue };
        let suite_name = suite_name(&id);
        let suite = suites.entry(suite_name.clone()).or_insert_with(|| Suite {
            name: suite_name,
            directory: Path::new(manifest).parent().unwrap_or(Path::new(".")).to_owned(),
            version: package["version"].as_str().unwrap_or_default().to_owned(),
            targets: Vec::new(),
        });
        suite.targets.push(id);
    }
    Ok(())
}

fn suite_name(target: &TargetId) -> String {
    let package = target.package.strip_prefix("dafs-").unwrap_or(&target.package);
    match target.kind.as_str() {
        "test" if target.package == SYSTEM_TESTS => target.name.clone(),
        "test" => format!("{package}/{}", target.name),
        _ => format!("{package}/unit"),
    }
}

/// The target if its kind is one that can hold tests of ours; a library may be of several kinds (cdylib, staticlib).
fn target_from(package: &str, target: &Value) -> Option<TargetId> {
    let kinds: Vec<&str> = target["kind"].as_array()?.iter().filter_map(Value::as_str).collect();
    let kind = match kinds.as_slice() {
        ["test"] => "test",
        ["bin"] => "bin",
        [kind, ..] if kind.ends_with("lib") || *kind == "proc-macro" => "lib",
        _ => return None,
    };
    Some(TargetId {
        package: package.to_owned(),
        kind: kind.to_owned(),
        name: target["name"].as_str()?.to_owned(),
    })
}

/// The package's name out of its id, whose form is `path+file:///dir#name@version`, or `path+file:///dir/name#version`
/// when the directory is named as the package.
fn package_name(manifest_path: &str, package_id: &str) -> String {
    let fragment = package_id.rsplit_once('#').map_or("", |(_, fragment)| fragment);
    if let Some((name, _)) = fragment.split_once('@') {
        return name.to_owned();
    }
    let directory = Path::new(manifest_path).parent().and_then(Path::file_name);
    directory.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn column_is_the_first_module_named_as_a_provider() {
        let name = |test| PROVIDERS[column_of(test)].name;
        assert_eq!(name("tcp::read_works"), "tcp");
        assert_eq!(name("transport::shm::ring::tests::wraps"), "shm");
        assert_eq!(name("sim::tcp::odd"), "sim");
        assert_eq!(name("header_too_short_is_refused"), "-");
        // The test's own name does not count.
        assert_eq!(name("address::tcp"), "-");
        assert_eq!(name("shmem::x"), "-");
    }

    #[test]
    fn suites_that_wait_are_there_and_run_more_tests_at_once() {
        let workspace = discover(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        let threads =
            |name: &str| workspace.suites.iter().find(|suite| suite.name == name).unwrap().threads();
        assert!(
            WAITING.iter().all(|name| threads(name).is_some_and(|threads| threads >= WAITING_PER_PROCESSOR))
        );
        assert!(threads("mpi").is_some_and(|threads| threads >= 2));
        assert_eq!(threads("files"), None);
    }

    #[test]
    fn missing_cell_has_a_reason() {
        let sim = PROVIDERS.iter().position(|provider| provider.name == "sim").unwrap();
        assert_eq!(reason_not_run("proto/vectors", sim), "it has no such tests");
        assert_ne!(reason_not_run("cli", sim), "it has no such tests");
    }

    #[test]
    fn workspace_units_are_merged_and_come_first() {
        let target = |kind: &str, name: &str| json!({"kind": [kind], "name": name, "test": true});
        let metadata = json!({
            "workspace_root": "/w", "target_directory": "/w/target",
            "packages": [
                {"name": "dafs-tests", "version": "1.0.0", "manifest_path": "/w/tests/Cargo.toml",
                 "features": {"verbs": ["dafs-server/verbs"]},
                 "targets": [target("lib", "dafs_tests"), target("test", "session")]},
                {"name": "dafs-server", "version": "1.0.0", "manifest_path": "/w/dafs-server/Cargo.toml",
                 "targets": [target("lib", "dafs_server"), target("bin", "dafs-server"), target("test", "own"),
                             {"kind": ["example"], "name": "hello", "test": false}]},
            ]
        });
        let workspace = workspace_from(&metadata).unwrap();
        let names: Vec<&str> = workspace.suites.iter().map(|suite| suite.name.as_str()).collect();
        assert_eq!(names, ["server/unit", "tests/unit", "server/own", "session"]);
        assert_eq!(workspace.suites[0].targets.len(), 2);
        assert_eq!(workspace.verbs_features, "dafs-tests/verbs");
        assert_eq!(workspace.suites[0].directory, Path::new("/w/dafs-server"));
    }

    #[test]
    fn executables_are_matched_to_targets() {
        let artifact = |id: &str, test: bool| {
            json!({"reason": "compiler-artifact", "package_id": id, "manifest_path": "/w/xtask/Cargo.toml",
                   "target": {"kind": ["bin"], "name": "xtask"}, "profile": {"test": test},
                   "executable": "/w/target/debug/deps/xtask-1"})
            .to_string()
        };
        let messages = format!(
            "{}\nnot json\n{}\n{}\n",
            artifact("path+file:///w/xtask#1.0.0", true),
            artifact("path+file:///w/xtask#1.0.0", false),
            artifact("path+file:///w/xtask#other@1.0.0", true),
        );
        let found = executables_from(&messages);
        let packages: Vec<&str> = found.keys().map(|target| target.package.as_str()).collect();
        assert_eq!(packages, ["other", "xtask"]);
    }
}
