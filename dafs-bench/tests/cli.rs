//! The program as a user runs it: what it prints, what it refuses, and what it leaves behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn dafs_bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dafs-bench")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The shortest run of every raw limit.
fn limits(directory: &Path, more: &[&str]) -> Output {
    let directory = directory.to_str().unwrap();
    let mut arguments = vec!["limits", "--sizes", "4,64KiB", "--queue-depth", "3", "--repeats", "1"];
    arguments.extend(["--seconds", "0.001", "--dir", directory]);
    arguments.extend(more);
    dafs_bench(&arguments)
}

#[test]
fn limits_on_standard_output_are_json_with_a_row_for_each_limit() {
    let directory = tempfile::tempdir().unwrap();
    let output = limits(directory.path(), &["--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["benchmark"], "limits");
    assert!(document["machine"]["cores"].as_u64().unwrap() >= 1);
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["command"][1], "limits");
    assert_eq!(document["options"]["repeats"], 1);
    let rows = document["rows"].as_array().unwrap();
    for limit in [
        "ring",
        "doorbell",
        "pread",
        "pwrite",
        "tcp_rr",
        "tcp_rr_spin",
        "tcp_stream",
        "tcp_uncoalesced",
        "memcpy",
    ] {
        let row =
            rows.iter().find(|row| row["limit"] == limit).unwrap_or_else(|| panic!("no row for {limit}"));
        assert!(row["limit_value"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn limits_leave_nothing_in_their_directory() {
    let directory = tempfile::tempdir().unwrap();
    let output = limits(directory.path(), &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("pread"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn results_are_in_their_file_when_nobody_reads_standard_output() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let results = directory.path().join("results.json");
    let place = directory.path().to_str().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dafs-bench"));
    command.args([
        "limits",
        "--sizes",
        "4",
        "--repeats",
        "1",
        "--seconds",
        "0.001",
        "--dir",
        place,
        "--json",
    ]);
    let output = command.arg(&results).stdout(writer).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(results).unwrap()).unwrap();
    assert_eq!(document["benchmark"], "limits");
}

#[test]
fn results_are_shown_where_their_file_has_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let output = limits(directory.path(), &["--json", "/dev/full"]);
    assert!(text(&output.stdout).contains("pread"));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write /dev/full"), "{}", text(&output.stderr));
}

#[test]
fn benchmark_that_is_terminated_twice_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dafs-bench"));
    command.args(["limits", "--seconds", "60", "--dir"]).arg(directory.path());
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Its file is there once signals are caught.
    while std::fs::read_dir(directory.path()).unwrap().count() == 0 {}
    let pid = Pid::from_child(&running);
    for signal in [Signal::TERM, Signal::TERM, Signal::HUP] {
        kill_process(pid, signal).unwrap();
        // Two that wait are one.
        while is_waiting(running.id()) {}
    }
    assert_eq!(running.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A signal to a process waits to be taken.
fn is_waiting(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or("0");
    mask.trim().contains(|digit| digit != '0') && !status.contains("State:\tZ")
}

#[test]
fn output_into_a_directory_is_refused_before_measuring() {
    let directory = tempfile::tempdir().unwrap();
    let output = limits(directory.path(), &["--json", directory.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("it is a directory"), "{}", text(&output.stderr));
}

#[test]
fn output_into_a_missing_folder_is_refused_before_measuring() {
    let output = dafs_bench(&["limits", "--json", "/nonexistent/folder/out.json"]);
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    assert!(text(&output.stderr).contains("/nonexistent/folder"), "{}", text(&output.stderr));
}

#[test]
fn plot_of_a_benchmark_without_one_is_refused() {
    let output = dafs_bench(&["latency", "--plot", "out.svg"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("--plot"), "{}", text(&output.stderr));
}

#[test]
fn directory_that_is_missing_is_named() {
    let output = dafs_bench(&["limits", "--dir", "/nonexistent/place"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("/nonexistent/place"), "{}", text(&output.stderr));
}

#[test]
fn wrong_size_transport_and_depth_are_refused_with_their_reason() {
    for (arguments, reason) in [
        (["latency", "--sizes", "4KB"], "not a unit"),
        (["latency", "--transport", "udp"], "tcp"),
        (["iops", "--queue-depth", "0"], "1 to"),
        (["iops", "--seconds", "0"], "seconds"),
    ] {
        let output = dafs_bench(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(reason), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn option_that_would_change_nothing_is_refused_before_measuring() {
    for (arguments, reason) in [
        ("latency --queue-depth 4", "cannot use --queue-depth: latency does without"),
        ("limits --server-program /bin/true", "cannot use --server-program: limits starts no server"),
        ("limits --server dafs+tcp://127.0.0.1:1/x", "cannot use --server: limits starts no server"),
        ("crossover --queue-depth 4", "cannot use --queue-depth: crossover does without"),
        ("latency --segments 4", "cannot use --segments"),
        ("overlap --queue-depth 1", "cannot use --queue-depth: overlap does without"),
        ("overlap --peer-mount a=/tmp", "cannot use --peer-mount: overlap does without"),
        ("overlap --registered both", "values of --registered: overlap takes one"),
        ("transfer --pattern random", "cannot use --pattern"),
        ("mixed --method inline,direct", "values of --method: mixed takes one"),
        ("listio --peer nfs", "cannot use --peer: listio does without"),
        ("sieve --method inline", "cannot use --method: sieve does without"),
        ("sieve --queue-depth 4", "cannot use --queue-depth: sieve does without"),
        ("metadata --sizes 4", "cannot use --sizes: metadata does without"),
        ("metadata --op write", "cannot use --op: metadata does without"),
        ("mixed --op write", "cannot use --op: mixed does without"),
        ("idle --sizes 4", "cannot use --sizes: idle does without"),
        ("registration --op read", "cannot use --op: registration does without"),
        ("pipeline --method inline", "cannot use --method: pipeline does without"),
        ("fairness --queue-depth 4", "cannot use --queue-depth: fairness does without"),
        ("fairness --sessions 4 --registered no", "cannot use --registered: fairness does without"),
        ("views --sizes 4", "cannot use --sizes: views does without"),
        ("views --cold", "cannot use --cold: the file is in memory"),
        ("views --cold --dir /dev/shm", "cannot use --cold: the file is in memory"),
        ("sieve --cold --direct-io", "cannot be used with"),
        ("sieve --direct-io", "cannot use --direct-io: the file is in memory"),
        (
            "latency --direct-io --server dafs+tcp://127.0.0.1:1/data",
            "cannot use --direct-io: the file is in memory",
        ),
        ("listio --segments 65536 --sizes 16KiB", "cannot measure: 65536 pieces"),
        ("pipeline --whole-size 1TiB", "cannot write 1048576 MiB to"),
        ("sieve --direct-io --dir . --sizes 4KiB,6000", "cannot use --sizes 6000 with --direct-io"),
        ("listio --direct-io --dir .", "cannot use --direct-io: listio does without"),
        ("mpi --direct-io --dir .", "cannot use --direct-io: mpi does without"),
        ("views --direct-io --dir .", "cannot use --direct-io: views does without"),
        ("mixed --dir /dev/shm", "cannot use --dir /dev/shm: it is in memory"),
        ("crossover --plot -", "cannot use --plot -"),
        ("compare --html -", "cannot use --html -"),
        ("mpi --cold", "cannot use --cold: it is for sieve, and for reads of listio and views"),
        ("mpi --queue-depth 4", "cannot use --queue-depth: mpi does without"),
        ("mpi --poll event", "cannot use --poll: mpi does without"),
        ("views --poll event", "cannot use --poll: views does without"),
        ("mpi --peer nfs", "cannot use --peer: mpi does without"),
        ("mpi --case tiled --sizes 4", "cannot use --sizes"),
        ("limits --transport tcp", "cannot use --transport: limits does without"),
        ("limits --peer-mount a=/tmp", "cannot use --peer-mount: limits does without"),
        ("latency --server dafs+tcp://127.0.0.1:1/x --transport shm", "--transport"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = dafs_bench(&arguments);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(text(&output.stderr).contains(reason), "{arguments:?}: {}", text(&output.stderr));
    }
    let output = dafs_bench(&["fairness", "--sessions", "4", "--outstanding", "4"]);
    assert!(text(&output.stderr).contains("cannot be used with"), "{}", text(&output.stderr));
}

#[test]
fn failing_peer_becomes_a_note_and_leaves_nothing() {
    // O_DIRECT takes no 4 bytes on a disk.
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let full = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", full.path().join("dafs-bench.data")).unwrap();
    let mounts = format!("m={},full={}", directory.path().display(), full.path().display());
    let arguments =
        ["latency", "--peer-only", "--peer-mount", &mounts, "--sizes", "4,4096", "--repeats", "1"];
    let output = dafs_bench(&[&arguments[..], &["--seconds", "0.001", "--json", "-"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["notes"].to_string().contains("no rows for m of 4 bytes: O_DIRECT"), "{document}");
    assert!(document["notes"].to_string().contains("no more rows for full: "), "{document}");
    assert!(document["rows"].as_array().unwrap().iter().any(|row| row["bytes"] == 4096), "{document}");
    assert_eq!(document["options"]["mounts"][0]["name"], "m");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn help_explains_the_ratio_and_gives_examples() {
    let help = text(&dafs_bench(&["--help"]).stdout);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("At 1.0 dafs equals the limit") && help.contains("Examples:"), "{help}");
}

#[test]
#[ignore = "needs nfs-ganesha"]
fn latency_beside_the_nfs_peer_has_rows_of_both() {
    let mut arguments: Vec<&str> =
        "latency --transport tcp --peer nfs --sizes 4096 --repeats 1 --seconds 0.01 --json -"
            .split(' ')
            .collect();
    // Where the server was built with this test, as `cargo xtask test` does it, there is no need to build it again.
    let server = Path::new(env!("CARGO_BIN_EXE_dafs-bench")).with_file_name("dafs-server");
    if std::env::var_os("DAFS_PROGRAMS_BUILT").is_some() {
        arguments.extend(["--server-program", server.to_str().unwrap()]);
    }
    let output = dafs_bench(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    for transport in ["tcp", "nfs"] {
        for op in ["read", "write"] {
            let row = rows.iter().find(|row| row["transport"] == transport && row["op"] == op);
            let row = row.unwrap_or_else(|| panic!("no {op} over {transport}: {document}"));
            assert_eq!(row["bytes"], 4096);
            assert!(row["p50_us"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

/// The server of this build, made if it is not there.
fn server_program() -> std::path::PathBuf {
    let server = Path::new(env!("CARGO_BIN_EXE_dafs-bench")).with_file_name("dafs-server");
    if std::env::var_os("DAFS_PROGRAMS_BUILT").is_none() {
        let built = Command::new(env!("CARGO")).args(["build", "-p", "dafs-server"]).status().unwrap();
        assert!(built.success());
    }
    server
}

/// The calls on names, in the order of their rows.
const NAME_OPS: [&str; 6] = ["create", "open", "stat", "rename", "list", "remove"];

#[test]
fn metadata_has_a_row_for_each_call_and_depth_and_leaves_nothing() {
    let (server, directory, mount) =
        (server_program(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let plot = mount.path().join("metadata.svg");
    let mounted = format!("other={}", directory.path().display());
    let mut arguments = vec!["metadata", "--queue-depth", "1,7", "--repeats", "1", "--seconds", "0.001"];
    arguments.extend([
        "--server-program",
        server.to_str().unwrap(),
        "--dir",
        directory.path().to_str().unwrap(),
    ]);
    arguments.extend(["--peer-mount", &mounted, "--json", "-", "--plot", plot.to_str().unwrap()]);
    let output = dafs_bench(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    for (who, depth) in [("tcp", 1), ("tcp", 7), ("shm", 1), ("shm", 7), ("other", 1)] {
        for op in NAME_OPS {
            let is = |row: &&serde_json::Value| {
                row["transport"] == who && row["queue_depth"] == depth && row["name_op"] == op
            };
            let row = rows.iter().find(is).unwrap_or_else(|| panic!("no {op} of {who}: {document}"));
            assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row["limit"] == "local", "{row}");
            assert!(who == "other" || row["server_cpu_ns"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    assert_eq!(rows.len(), 5 * NAME_OPS.len(), "{document}");
    assert!(document["notes"].to_string().contains("no rows for other of 7 requests"), "{document}");
    assert!(std::fs::read_to_string(&plot).unwrap().contains("requests in flight"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
#[ignore = "needs fuse"]
fn mounts_and_a_bare_fuse_program_have_rows_and_leave_nothing() {
    if std::env::var_os("DAFS_PROGRAMS_BUILT").is_none() {
        let built = Command::new(env!("CARGO")).args(["build", "-p", "dafs-cli"]).status().unwrap();
        assert!(built.success());
    }
    let (server, directory) = (server_program(), tempfile::tempdir().unwrap());
    let begin = |what: &'static str| {
        let mut arguments: Vec<&str> = what.split(' ').collect();
        arguments.extend(["--peer-only", "--peer", "mount-shm,mount-tcp,fuse", "--repeats", "1"]);
        arguments.extend(["--seconds", "0.001", "--json", "-", "--server-program", server.to_str().unwrap()]);
        arguments.extend(["--dir", directory.path().to_str().unwrap()]);
        let output = dafs_bench(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let names = begin("metadata --queue-depth 1");
    let data = begin("latency --sizes 4096,1MiB");
    for who in ["mount-shm", "mount-tcp", "fuse"] {
        let rows = |of: &serde_json::Value| {
            let rows = of["rows"].as_array().unwrap().iter().filter(|row| row["transport"] == who);
            rows.cloned().collect::<Vec<_>>()
        };
        let named: Vec<_> =
            rows(&names).iter().map(|row| row["name_op"].as_str().unwrap().to_owned()).collect();
        assert_eq!(named, NAME_OPS, "{names}");
        assert_eq!(rows(&data).len(), 4, "{data}");
        for row in rows(&names).iter().chain(&rows(&data)) {
            let is_mount = row["server_cpu_ns"].as_f64().is_some_and(|ns| ns > 0.0);
            assert!(is_mount == (who != "fuse"), "{row}");
        }
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A server that ends with its test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn compare_writes_a_page_and_leaves_nothing_else() {
    let (server, directory, out) =
        (server_program(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let page = out.path().join("compare.html");
    let mut arguments =
        vec!["compare", "--time", "0.1", "--seconds", "0.005", "--html", page.to_str().unwrap()];
    arguments.extend([
        "--server-program",
        server.to_str().unwrap(),
        "--dir",
        directory.path().to_str().unwrap(),
    ]);
    let output = dafs_bench(&[&arguments[..], &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    for (who, axis) in [
        ("local", "latency"),
        ("sockets", "latency"),
        ("tcp", "latency"),
        ("shm", "latency"),
        ("tcp", "bandwidth"),
        ("shm", "rate"),
        ("local", "names"),
        ("tcp", "names"),
    ] {
        let row = rows.iter().find(|row| row["transport"] == who && row["case"] == axis);
        let row = row.unwrap_or_else(|| panic!("no {axis} of {who}: {document}"));
        assert!(row["rounds"].as_u64().unwrap() >= 3 && row["low"].as_f64() <= row["high"].as_f64(), "{row}");
    }
    let tcp = rows.iter().find(|row| row["transport"] == "tcp" && row["case"] == "bandwidth").unwrap();
    for what in ["client_cpu_ns", "server_cpu_ns", "client_cpu_ns_per_mib", "cpu_percent"] {
        assert!(tcp[what].as_f64().is_some_and(|figure| figure > 0.0), "{what}: {tcp}");
    }
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("91 %") && html.ends_with("</html>\n"));
    // NFS takes part, or a note says why it does not.
    let has_nfs = rows.iter().any(|row| row["transport"] == "nfs");
    assert!(has_nfs || document["notes"].to_string().contains("no rows for nfs: "), "{document}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1);
}

#[test]
fn comparison_is_shown_where_its_page_has_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let (server, place) = (server_program(), directory.path().to_str().unwrap());
    let mut arguments = vec!["compare", "--time", "0.1", "--seconds", "0.001", "--html"];
    // A link, so that a fault of this program harms no device.
    let out = tempfile::tempdir().unwrap();
    let page = out.path().join("page");
    std::os::unix::fs::symlink("/dev/full", &page).unwrap();
    arguments.extend([
        page.to_str().unwrap(),
        "--server-program",
        server.to_str().unwrap(),
        "--dir",
        place,
        "--transport",
        "shm",
    ]);
    let output = dafs_bench(&arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write the report to "), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("sockets"), "{}", text(&output.stdout));
}

#[test]
fn crossover_of_a_server_that_runs_takes_its_time_and_publishes() {
    use std::io::{BufRead, BufReader};
    let directory = tempfile::tempdir().unwrap();
    let export = format!("data={}", directory.path().display());
    let mut server = Command::new(server_program());
    server.args(["--export", &export, "--listen", "tcp://127.0.0.1:0", "--no-calibrate", "--log", "warn"]);
    let mut server = Running(server.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("listening ").map(str::to_owned)).unwrap();
    let address = format!("{}/data", address.trim());
    let run = |time: &str, more: &[&str]| {
        let arguments =
            ["crossover", "--server", &address, "--time", time, "--sizes", "1024,8192", "--json", "-"];
        let arguments = [&arguments[..], &["--repeats", "1", "--seconds", "0.001"], more].concat();
        let output = dafs_bench(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let rounds = |document: &serde_json::Value| -> u64 {
        document["rows"].as_array().unwrap().iter().map(|row| row["rounds"].as_u64().unwrap()).sum()
    };
    // Without time each is measured once; with time more often, unless all is certain.
    let brief = run("0", &[]);
    assert_eq!(rounds(&brief), brief["rows"].as_array().unwrap().len() as u64);
    assert_eq!(brief["options"]["time"], 0.0);
    let published = run("1", &["--publish"]);
    assert!(rounds(&published) >= rounds(&brief));
    assert!(
        published["notes"].to_string().contains("published for tcp: new sessions use direct for reads "),
        "{published}"
    );
    // What was published is what the next session is told, as far as it was found for certain.
    let told = run("0", &[]);
    for (found, told) in
        published["crossings"].as_array().unwrap().iter().zip(told["crossings"].as_array().unwrap())
    {
        if let Some(measured) = found["measured_bytes"].as_u64() {
            assert_eq!(told["exported_bytes"].as_u64(), Some(measured), "{found} {told}");
        }
    }
    drop(server);
    let output = dafs_bench(&["crossover", "--publish"]);
    assert!(
        !output.status.success() && text(&output.stderr).contains("--server"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn distance_copies_lists_and_removes_a_tree_over_a_long_line() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("distance.svg");
    let words =
        ["--round-trip-ms", "0,4", "--files", "60", "--directories", "20", "--repeats", "1", "--json", "-"];
    let mut words = [&["distance", "--plot", plot.to_str().unwrap()], &words[..]].concat();
    // A build of the workspace has made it; another would wait for the suites.
    let command = Path::new(env!("CARGO_BIN_EXE_dafs-bench")).with_file_name("dafs");
    if command.exists() {
        words.extend(["--command", command.to_str().unwrap()]);
    }
    let output = dafs_bench(&words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["options"]["round_trip_ms"], serde_json::json!([0.0, 4.0]));
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 4, "{rows:?}");
    for row in rows {
        let has_limit = row["round_trip_ms"].as_f64().unwrap() > 0.0;
        assert_eq!(row["limit_value"].is_f64(), has_limit, "{row}");
        // No request is faster than the line.
        assert!(!has_limit || row["ratio"].as_f64().unwrap() > 1.0, "{row}");
    }
    let drawn = std::fs::read_to_string(&plot).unwrap();
    assert!(["copy-to", "list", "copy-from", "remove"].iter().all(|case| drawn.contains(case)));
}

#[test]
fn scale_measures_servers_with_one_worker_and_with_more() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("scale.svg");
    let words =
        ["--workers", "1,3", "--transport", "shm", "--repeats", "1", "--seconds", "0.01", "--json", "-"];
    let output = dafs_bench(&[&["scale", "--plot", plot.to_str().unwrap()], &words[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["options"]["workers"], serde_json::json!([1, 3]));
    let rows = document["rows"].as_array().unwrap();
    let cases = ["list", "view", "sleepers", "hot lock", "hot file"];
    assert_eq!(rows.len(), 2 * cases.len(), "{rows:?}");
    for (row, at) in rows.iter().zip(0..) {
        assert_eq!(
            (row["case"].as_str(), row["workers"].as_u64()),
            (Some(cases[at / 2]), Some([1, 3][at % 2]))
        );
        let is_known = |name: &str| row[name].as_f64().is_some_and(|value| value > 0.0);
        let known = ["ops_per_s", "least_ops_per_s", "limit_value", "client_cpu_ns", "server_cpu_ns"];
        assert!(known.into_iter().all(is_known), "{row}");
        let compared = at % 2 == 1;
        assert!(["gain", "least_gain"].into_iter().all(|name| is_known(name) == compared), "{row}");
        // What CPUs can give is known where the work is the workers' own.
        assert_eq!(is_known("bound") && is_known("reached"), compared && at < 4, "{row}");
        assert!(!is_known("bound") || row["bound"].as_f64().unwrap() < 3.0, "{row}");
    }
    let drawn = std::fs::read_to_string(&plot).unwrap();
    assert!(cases.iter().all(|case| drawn.contains(case)));
}

#[test]
#[ignore = "needs etcd"]
fn cluster_measures_a_server_alone_and_in_a_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("cluster.svg");
    let words = ["--repeats", "1", "--seconds", "0.01", "--json", "-"];
    let output = dafs_bench(&[&["cluster", "--plot", plot.to_str().unwrap()], &words[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    let cases = ["read", "write", "open", "append", "create", "rename", "remove", "lock, unlock"];
    assert_eq!(rows.len(), cases.len(), "{rows:?}");
    for (row, case) in rows.iter().zip(cases) {
        assert_eq!((row["case"].as_str(), row["limit"].as_str()), (Some(case), Some("alone")));
        let is_known = |name: &str| row[name].as_f64().is_some_and(|value| value > 0.0);
        assert!(["p50_us", "limit_value", "ratio"].into_iter().all(is_known), "{row}");
    }
    let drawn = std::fs::read_to_string(&plot).unwrap();
    assert!(cases.iter().all(|case| drawn.contains(case)));
    let refused = dafs_bench(&[&["cluster", "--store", "etcd://nobody.invalid"], &words[..]].concat());
    assert!(!refused.status.success());
}

#[test]
#[ignore = "needs own-network"]
fn stripe_measures_servers_behind_links_without_leaving_anything() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", env!("CARGO_BIN_EXE_dafs-bench"), "stripe"]);
    command.args(["--servers", "1,2", "--clients", "1,4", "--repeats", "1", "--seconds", "0.001"]);
    let plot = directory.path().join("stripe.svg");
    command.args(["--json", "-", "--plot"]).arg(&plot).arg("--dir").arg(directory.path());
    // Rows of MPI programs are tested where there is MPI.
    command.arg("--mpi-prefix").arg(directory.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["notes"].to_string().contains("no rows for MPI-IO"), "{}", document["notes"]);
    assert_eq!(document["options"]["link_rate"], 100);
    let rows = document["rows"].as_array().unwrap();
    // Two numbers of servers and of clients, and two ways for tiles, each written and read.
    assert_eq!(rows.len(), 2 * (2 * 2 + 2), "{rows:?}");
    assert!(rows.iter().all(|row| row["mib_per_s"].as_f64().unwrap() > 0.0), "{rows:?}");
    assert!(std::fs::read_to_string(&plot).unwrap().contains("2N, 4 MiB"));
    std::fs::remove_file(plot).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
