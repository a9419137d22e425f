//! What lints cannot see: layers, sizes, leftovers, unsafe code, words that were given up, and requirements without a test.
//!
//! The rules are pure functions over text, in `rules.rs`, `spec_ids.rs` and `words.rs`, with tests of their own on bad samples; here
//! they meet the tree. To allow an exception, add it to the list beside its rule, with the reason.
#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]

mod calls;
mod graph;
mod kinds;
mod layers;
mod limits;
mod pages;
mod rules;
mod source;
mod spec_ids;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use graph::Graph;
use layers::{FLOORS, LAYERS};
use rules::Exception;

/// Files that may cross a layer.
const LAYER_EXCEPTIONS: &[Exception] = &[(
    "proto/src/wire/status.rs",
    "statuses have the numbers of errno, of which libc is the table and rustix has the type; it calls nothing there",
)];

/// Files that may be longer than the rest.
const LONG_FILES: &[Exception] = &[];

/// Files that may hold unsafe code. Each says why at its top, in its `allow(unsafe_code, reason = ...)`.
#[rustfmt::skip]
const UNSAFE_FILES: &[&str] = &[
    "adio-dafs/src/ffi/mod.rs",
    "adio-dafs/src/ffi/types.rs",
    "adio-dafs/src/file/raw.rs",
    "adio-dafs/src/file/transfer.rs",
    "adio-dafs/src/server/exit.rs",
    "bindings/c/src/attr.rs",
    "bindings/c/src/batch.rs",
    "bindings/c/src/call.rs",
    "bindings/c/src/chain.rs",
    "bindings/c/src/dir.rs",
    "bindings/c/src/file.rs",
    "bindings/c/src/lock.rs",
    "bindings/c/src/memory.rs",
    "bindings/c/src/op.rs",
    "bindings/c/src/session.rs",
    "bindings/c/src/submit.rs",
    "bindings/c/src/view.rs",
    "bindings/ffi/src/pointers.rs",
    "dafs-bench/src/peer/libnfs.rs",
    "dafs-bench/src/subject/libdafs.rs",
    "dafs-bench/src/sys.rs",
    "dafs-cli/src/closed.rs",
    "dafs-client/src/api/batch/raw.rs",
    "dafs-client/src/api/chain.rs",
    "dafs-client/src/api/file/raw.rs",
    "dafs-client/src/api/file/submit.rs",
    "dafs-client/src/api/drive.rs",
    "dafs-client/src/driver/fork.rs",
    "dafs-client/src/driver/watch.rs",
    "dafs-client/src/memory/mod.rs",
    "dafs-client/src/memory/registration/holes.rs",
    "dafs-client/src/api/pin.rs",
    "dafs-client/src/memory/registration/registrar.rs",
    "dafs-client/src/memory/registration/tests.rs",
    "dafs-client/src/memory/registration/watch.rs",
    "dafs-client/src/memory/registration/watch/tests.rs",
    "dafs-mount/src/kernel/backing.rs",
    "dafs-server/src/calibrate/file.rs",
    "dafs-server/src/storage/posix/data.rs",
    "dafs-server/src/storage/credentials.rs",
    "dafs-server/src/storage/posix/map/mapping.rs",
    "dafs-server/src/storage/posix/sys.rs",
    "dafs-server/src/storage/posix/ring_op.rs",
    "dafs-server/src/storage/tests/harness.rs",
    "dafs-server/src/storage/tests/leases.rs",
    "dafs-server/src/storage/uring.rs",
    "proto/benches/shm_ring.rs",
    "dafs-stripe/src/file/flight.rs",
    "dafs-stripe/src/file/pending.rs",
    "dafs-stripe/src/file/raw.rs",
    "proto/src/transport/conformance/mapped.rs",
    "proto/src/transport/conformance/rdma.rs",
    "proto/src/transport/memory.rs",
    "proto/src/transport/shm/cma.rs",
    "proto/src/transport/shm/map.rs",
    "proto/src/transport/shm/sock.rs",
    "proto/src/transport/shm/tests/handshakes.rs",
    "proto/src/transport/shm/tests/hostile.rs",
    "proto/src/transport/shm/tests/regions.rs",
    "proto/src/transport/sim/gather.rs",
    "proto/src/transport/tcp/sys.rs",
    "proto/src/transport/tcp/tests/listening.rs",
    "proto/src/transport/util/cpu.rs",
    "proto/src/transport/util/fault.rs",
    "proto/src/transport/util/home.rs",
    "proto/src/transport/verbs/abort.rs",
    "proto/src/transport/verbs/cm.rs",
    "proto/src/transport/verbs/connect.rs",
    "proto/src/transport/verbs/core.rs",
    "proto/src/transport/verbs/device.rs",
    "proto/src/transport/verbs/endpoint.rs",
    "proto/src/transport/verbs/events.rs",
    "proto/src/transport/verbs/post.rs",
    "proto/src/transport/verbs/queue.rs",
    "proto/src/transport/verbs/raw.rs",
    "proto/src/transport/verbs/sys.rs",
    "proto/src/transport/verbs/tests/counts.rs",
    "proto/src/transport/verbs/tests/faults.rs",
    "proto/src/transport/verbs/tests/layout.rs",
    "tests/src/area.rs",
    "tests/src/forbidden.rs",
    "tests/tests/adio/c_interface.rs",
    "tests/tests/adio/support.rs",
    "tests/tests/cli/closing.rs",
    "tests/tests/cli/terminal.rs",
    "tests/tests/files/policy.rs",
    "tests/tests/files/registration.rs",
    "tests/tests/files/unreadable.rs",
    "tests/tests/mount/random.rs",
    "tests/tests/session/ending.rs",
    "xtask/src/probe.rs",
];

/// Directories at any depth that hold nothing of ours to check.
fn is_foreign(name: &str) -> bool {
    name == ".git"
        || name == "target"
        || name.starts_with("target-")
        || name == "corpus"
        || name == "artifacts"
}

#[test]
fn layers_name_only_what_they_may() {
    let faults = faults_in_sources(|path, text| {
        if is_listed(path, LAYER_EXCEPTIONS) || is_test_file(path) {
            return Vec::new();
        }
        LAYERS
            .iter()
            .filter(|layer| path.starts_with(layer.under))
            .flat_map(|layer| rules::forbidden_imports(text, layer))
            .collect()
    });
    assert_none(&faults);
}

#[test]
fn kinds_are_asked_for_capabilities_and_not_compared() {
    let faults = faults_in_sources(|path, text| match is_test_file(path) {
        true => Vec::new(),
        false => kinds::KINDS.iter().flat_map(|kind| kinds::named(path, text, kind)).collect(),
    });
    assert_none(&faults);
}

/// What imports what in a crate, but for its tests.
fn graph_of(name: &str) -> Graph {
    let under = format!("{name}/src/");
    let is_test = |path: &str| {
        path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "testing.rs" | "conformance"))
    };
    let is_own = |path: &str| is_source(path) && path.strip_prefix(&under).is_some_and(|path| !is_test(path));
    let own: BTreeMap<String, String> =
        files(is_own).into_iter().map(|(path, text)| (path[under.len()..].to_owned(), text)).collect();
    assert!(!own.is_empty(), "{name} has no sources");
    Graph::new(&own)
}

#[test]
fn no_more_than_three_files_import_each_other() {
    let crates = ["adio-dafs", "dafs-bench", "dafs-cli", "dafs-client", "dafs-server", "proto", "xtask"];
    let of =
        |name: &&str| graph_of(name).circles().into_iter().map(|fault| format!("{name}: {fault}")).collect();
    assert_none(&crates.iter().flat_map(|name| -> Vec<String> { of(name) }).collect::<Vec<_>>());
}

#[test]
fn rooms_import_from_floors_below() {
    let faults = FLOORS.iter().flat_map(|(name, floors)| {
        graph_of(name).upward(floors).into_iter().map(move |fault| format!("{name}: {fault}"))
    });
    assert_none(&faults.collect::<Vec<_>>());
}

#[test]
fn methods_are_called_from_their_own_floor_or_from_above() {
    let faults = FLOORS.iter().flat_map(|(name, floors)| {
        graph_of(name).calls_upward(floors).into_iter().map(move |fault| format!("{name}: {fault}"))
    });
    assert_none(&faults.collect::<Vec<_>>());
}

#[test]
fn server_and_client_do_not_depend_on_each_other() {
    for (package, other) in
        [("dafs-server", "dafs-client"), ("dafs-client", "dafs-server"), ("dafs-cli", "dafs-server")]
    {
        let manifest = fs::read_to_string(root().join(package).join("Cargo.toml")).unwrap();
        let faults = rules::forbidden_dependency(&manifest, other);
        assert!(faults.is_empty(), "{package}/Cargo.toml:{}", faults.join("\n"));
    }
}

#[test]
fn limits_that_the_page_names_are_there() {
    let text = |wanted: &str| files(|path| path == wanted).swap_remove(0).1;
    let functions = files(is_source).iter().flat_map(|(_, text)| limits::functions(text)).collect();
    let named = ["metrics.rs", "shared/budget.rs", "shared/locks/limits.rs"];
    let there = limits::There {
        functions,
        flags: limits::flags(&text("dafs-server/src/cli.rs")),
        metrics: named
            .iter()
            .flat_map(|file| limits::names(&text(&format!("dafs-server/src/{file}"))))
            .collect(),
    };
    assert_none(&limits::faults(&text("spec/design/limits.md"), &there));
}

#[test]
fn files_are_short_enough_to_read() {
    let faults =
        faults_in_sources(
            |path, text| {
                if is_listed(path, LONG_FILES) { Vec::new() } else { rules::too_many_lines(text) }
            },
        );
    assert_none(&faults);
}

#[test]
fn lines_are_short_enough_to_read() {
    assert_none(&faults_in(is_code, |_, text| rules::long_lines(text)));
}

#[test]
fn names_of_functions_are_short_enough_to_read() {
    assert_none(&faults_in_sources(|_, text| rules::long_names(text)));
}

#[test]
fn nothing_is_left_unfinished() {
    assert_none(&faults_in_sources(|_, text| rules::leftover_markers(text)));
}

#[test]
fn tests_that_are_ignored_need_what_the_test_command_knows() {
    let table = files(|path| path == "xtask/src/packages.rs").swap_remove(0).1;
    let known = rules::known_needs(&table);
    assert!(known.contains("root") && known.contains("rdma-device"), "{known:?}");
    assert_none(&faults_in_sources(|_, text| rules::unknown_needs(text, &known)));
}

#[test]
fn nothing_names_a_workplace() {
    assert_none(&faults_in(
        |path| is_code(path) || path.ends_with(".md"),
        |_, text| rules::workplace_paths(text),
    ));
}

#[test]
fn unsafe_stays_in_the_listed_files_and_is_explained() {
    let faults = faults_in_sources(|path, text| {
        let mut faults = rules::unexplained_unsafe(text);
        if rules::has_unsafe(text) && !UNSAFE_FILES.contains(&path) {
            faults.push(
                "1: has unsafe code; move it to a listed file, or list it in tests/tests/tidy/main.rs"
                    .to_owned(),
            );
        }
        if ["/src/lib.rs", "/src/main.rs"].iter().any(|end| path.ends_with(end)) {
            faults.extend(rules::unguarded_root(text));
        }
        faults
    });
    assert_none(&faults);
}

#[test]
fn exceptions_are_still_needed() {
    let unneeded = |path: &str, is_needed: &dyn Fn(&str) -> bool| {
        fs::read_to_string(root().join(path)).map_or(true, |text| !is_needed(&text))
    };
    let mut stale: Vec<&str> = Vec::new();
    let is_long: &dyn Fn(&str) -> bool = &|text| !rules::too_many_lines(text).is_empty();
    stale.extend(LONG_FILES.iter().map(|(path, _)| *path).filter(|path| unneeded(path, is_long)));
    stale.extend(UNSAFE_FILES.iter().copied().filter(|path| unneeded(path, &|text| rules::has_unsafe(text))));
    stale.extend(LAYER_EXCEPTIONS.iter().map(|(path, _)| *path).filter(|path| {
        let layers = || LAYERS.iter().filter(|layer| path.starts_with(layer.under));
        unneeded(path, &|text| layers().any(|layer| !rules::forbidden_imports(text, layer).is_empty()))
    }));
    assert!(stale.is_empty(), "listed as exceptions without need: {}", stale.join(", "));
}

#[test]
fn links_between_pages_lead_somewhere() {
    let dead = |path: &str, text: &str| {
        let directory = root().join(path).parent().unwrap().to_owned();
        let leads = |link: &str, anchor: &str| {
            let target = if link.is_empty() { root().join(path) } else { directory.join(link) };
            let has_anchor =
                || fs::read_to_string(&target).is_ok_and(|text| pages::anchors(&text).contains(anchor));
            target.exists() && (anchor.is_empty() || has_anchor())
        };
        let links = pages::links(text).into_iter().filter(|(_, link, anchor)| !leads(link, anchor));
        links.map(|(line, link, anchor)| format!("{line}: {link}#{anchor} leads nowhere")).collect()
    };
    assert_none(&faults_in(|path| path.ends_with(".md"), dead));
}

#[test]
fn pages_are_short_enough_to_use() {
    assert_none(&faults_in(|path| path.ends_with(".md"), pages::too_many_words));
}

#[test]
fn guide_has_each_of_its_pages_in_its_contents() {
    let mut named: Vec<String> = Vec::new();
    let mut there: Vec<String> = Vec::new();
    for (path, text) in files(|path| path.starts_with("docs/src/") && path.ends_with(".md")) {
        match path.strip_prefix("docs/src/").unwrap() {
            "SUMMARY.md" => {
                named.extend(pages::links(&text).into_iter().map(|(_, link, _)| link.to_owned()));
            }
            page => there.push(page.to_owned()),
        }
    }
    named.sort();
    assert_eq!(named, there);
}

#[test]
fn requirements_are_each_cited_by_a_test_or_excepted_with_a_reason() {
    let mut defined: BTreeMap<String, String> = BTreeMap::new();
    let mut faults = Vec::new();
    for (path, text) in files(is_page) {
        for spec_ids::Requirement { line, id, .. } in spec_ids::requirements(&text) {
            let place = format!("{path}:{line}");
            if let Some(first) = defined.insert(id.clone(), place.clone()) {
                faults.push(format!("{place}: [{id}] is defined in {first} too"));
            }
        }
    }
    let exceptions = fs::read_to_string(root().join("spec/exceptions.md")).unwrap_or_default();
    let excepted = spec_ids::excepted_ids(&exceptions);
    for (id, reason) in &excepted {
        if !defined.contains_key(id) {
            faults.push(format!("spec/exceptions.md: [{id}] is defined nowhere"));
        } else if reason.split_whitespace().count() < 3 {
            faults.push(format!("spec/exceptions.md: [{id}] has no reason"));
        }
    }
    let mut cited = BTreeSet::new();
    for (path, text) in files(is_source) {
        // The samples of the rules' own tests are no citations.
        if path.starts_with("tests/tests/tidy/") {
            continue;
        }
        for id in spec_ids::cited_ids(&text, is_test_file(&path)) {
            if !defined.contains_key(&id) {
                faults.push(format!("{path}: cites [{id}], which is defined nowhere"));
            }
            cited.insert(id);
        }
    }
    for (id, place) in &defined {
        if !cited.contains(id) && !excepted.contains_key(id) {
            faults.push(format!("{place}: no test cites [{id}]"));
        }
    }
    assert!(!defined.is_empty(), "spec/ defines no requirement");
    assert_none(&faults);
}

#[test]
fn programs_of_strangers_name_rules_of_the_protocol_alone() {
    let ids_of = |under: &str| -> BTreeSet<String> {
        let pages = files(|path| path.starts_with(under) && is_page(path));
        pages.iter().flat_map(|(_, text)| spec_ids::requirements(text)).map(|rule| rule.id).collect()
    };
    let (protocol, all) = (ids_of("spec/protocol/"), ids_of("spec/"));
    let areas = all.iter().filter_map(|id| Some(id.rsplit_once('-')?.0)).collect();
    let faults = |_: &str, text: &str| {
        let strange = spec_ids::named_ids(text, &areas).into_iter().filter(|id| !protocol.contains(id));
        strange.map(|id| format!(" {id} is no rule of spec/protocol/")).collect()
    };
    assert_none(&faults_in(|path| path.starts_with("tests/independent/"), faults));
}

#[test]
fn requirements_are_short_and_one_rule_each() {
    let faults = |path: &str, text: &str| spec_ids::requirement_faults(text, spec_ids::Part::of(path));
    assert_none(&faults_in(is_page, faults));
}

#[test]
fn words_that_were_given_up_do_not_come_back() {
    let is_prose = |path: &str| [".md", ".py", ".txt"].iter().any(|end| path.ends_with(end));
    let has_words = |path: &str| (is_code(path) || is_prose(path)) && path != "tests/tests/tidy/words.rs";
    assert_none(&faults_in(has_words, |_, text| words::retired_words(text, words::RETIRED)));
}

#[test]
fn golden_messages_exist_and_are_read() {
    let golden = files(|path| path.starts_with("spec/vectors/"));
    assert!(!golden.is_empty(), "spec/vectors/ is empty");
    let sources = files(|path| is_source(path) && !path.starts_with("tests/tests/tidy/"));
    for (path, _) in golden {
        assert!(sources.iter().any(|(_, text)| text.contains(&path)), "no test reads {path}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn is_source(path: &str) -> bool {
    path.ends_with(".rs")
}

/// A page of the specification that has requirements.
fn is_page(path: &str) -> bool {
    path.starts_with("spec/") && path.ends_with(".md") && path != "spec/exceptions.md"
}

fn is_code(path: &str) -> bool {
    is_source(path)
        || [".toml", ".yml", ".sh", ".c", ".h", ".lua", "justfile", ".ci/run"]
            .iter()
            .any(|end| path.ends_with(end))
}

/// Whether a whole file is test code.
fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests")
        || path.contains("/conformance")
        || path.ends_with("/tests.rs")
        || path.ends_with("/testing.rs")
}

fn is_listed(path: &str, exceptions: &[Exception]) -> bool {
    exceptions.iter().any(|(listed, _)| *listed == path)
}

fn faults_in_sources(rule: impl Fn(&str, &str) -> Vec<String>) -> Vec<String> {
    faults_in(is_source, rule)
}

fn faults_in(is_wanted: impl Fn(&str) -> bool, rule: impl Fn(&str, &str) -> Vec<String>) -> Vec<String> {
    let found = files(is_wanted);
    assert!(!found.is_empty(), "found no file to check");
    found
        .iter()
        .flat_map(|(path, text)| rule(path, text).into_iter().map(move |fault| format!("{path}:{fault}")))
        .collect()
}

/// Files of the tree by path, with `/` between its parts; those that are no UTF-8 are left out.
fn files(is_wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            let path = entry.path();
            let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            if kind.is_dir() && !is_foreign(&entry.file_name().to_string_lossy()) {
                directories.push(path);
            } else if kind.is_file()
                && is_wanted(&name)
                && let Ok(text) = fs::read_to_string(&path)
            {
                found.push((name, text));
            }
        }
    }
    found.sort();
    found
}

#[track_caller]
fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
