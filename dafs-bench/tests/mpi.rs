//! `dafs-bench mpi` as a user runs it, with the driver installed as `cargo xtask mpi install` does it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

/// The smallest run with these arguments, on the driver in `prefix`.
fn mpi(prefix: &Path, arguments: &[&str]) -> Output {
    run("mpi", prefix, arguments)
}

fn run(benchmark: &str, prefix: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dafs-bench"));
    command
        .args([benchmark, "--repeats", "1", "--seconds", "0.001", "--json", "-", "--mpi-prefix"])
        .arg(prefix);
    // Where the server was built with this test, as `cargo xtask test` does it, there is no need to build it again.
    if std::env::var_os("DAFS_PROGRAMS_BUILT").is_some() {
        let server = Path::new(env!("CARGO_BIN_EXE_dafs-bench")).with_file_name("dafs-server");
        command.arg("--server-program").arg(server);
    }
    command.args(arguments).output().unwrap()
}

fn rows(output: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(["mpi", "views", "stripe"].iter().any(|name| document["benchmark"] == *name));
    document["rows"].as_array().unwrap().clone()
}

/// Where the driver is: installed once, from what was built with the tests where that is there.
fn installed() -> &'static Path {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    HOME.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let profile = Path::new(env!("CARGO_BIN_EXE_dafs-bench")).parent().unwrap();
        let prefix = profile.join("mpi-bench");
        let mut command = match Some(profile.join("xtask")).filter(|xtask| xtask.exists()) {
            Some(xtask) => Command::new(xtask),
            None => {
                let mut cargo = Command::new(env!("CARGO"));
                cargo.args(["run", "--quiet", "--package", "xtask", "--"]);
                cargo
            }
        };
        command.args(["mpi", "install", "--prefix"]).arg(&prefix);
        let drivers = ["deps/libadio_dafs.so", "libadio_dafs.so"].map(|name| profile.join(name));
        match drivers.iter().find(|driver| driver.exists()) {
            Some(driver) => command.arg("--driver").arg(driver),
            None => command.arg("--dev"),
        };
        let output =
            command.env("CARGO_MANIFEST_DIR", root.join("xtask")).current_dir(root).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        prefix
    })
}

#[test]
#[ignore = "needs open-mpi"]
fn mpi_on_one_process_has_dafs_rows_and_local_rows() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("mpi.svg");
    let cases = ["memory", "latency", "bandwidth", "overlap"];
    let output = mpi(
        installed(),
        &[
            "--transport",
            "shm",
            "--case",
            &cases.join(","),
            "--sizes",
            "4KiB",
            "--plot",
            plot.to_str().unwrap(),
        ],
    );
    let rows = rows(&output);
    for case in cases {
        for (subject, way) in
            [("dafs", "client"), ("dafs", "ompio"), ("dafs", "romio"), ("local", "ompio"), ("local", "romio")]
        {
            // Memory modes are the driver's.
            if (case, subject) == ("memory", "local") {
                continue;
            }
            for op in ["read", "write"] {
                let wanted = |row: &&Value| {
                    (&row["case"], &row["subject"], &row["way"], &row["op"])
                        == (&case.into(), &subject.into(), &way.into(), &op.into())
                };
                let row = rows.iter().find(wanted);
                let row = row.unwrap_or_else(|| panic!("no {op} in {case} of {subject} by {way}"));
                assert!(row["mean_us"].as_f64().unwrap() > 0.0 && row["bytes"] == 4096, "{row}");
            }
        }
    }
    let counted = rows.iter().filter(|row| row["case"] == "memory" && row["way"] == "romio");
    assert!(counted.into_iter().all(|row| row["registrations"].is_number()));
    let fractions = rows.iter().filter(|row| row["case"] == "overlap" && row["way"] == "ompio");
    assert_eq!(fractions.filter(|row| row["cpu_fraction"] == 0.4).count(), 4);
    assert!(std::fs::read_to_string(plot).unwrap().contains("CPU fraction"));
}

#[test]
#[ignore = "needs open-mpi"]
fn mpi_on_four_processes_counts_the_requests_of_each_method() {
    let arguments =
        ["--transport", "tcp", "--case", "block-column,tiled,btio", "--class", "S", "--columns", "512,514"];
    let output = mpi(installed(), &arguments);
    let rows = rows(&output);
    let requests = |case: &str, way: &str, op: &str, mode: &str| {
        let wanted = |row: &&Value| {
            (&row["case"], &row["way"], &row["op"], &row["mode"])
                == (&case.into(), &way.into(), &op.into(), &mode.into())
                && row["subject"] == "dafs"
        };
        let row = rows.iter().find(wanted).unwrap_or_else(|| panic!("no {op} by {mode} in {case} by {way}"));
        row["requests"].as_f64().unwrap()
    };
    for way in ["ompio", "romio"] {
        for op in ["read", "write"] {
            // Two cells of 6 x 6 x 6 points for each of 4 ranks, in rows of 6, ten times.
            assert_eq!(requests("btio", way, op, "multiple"), 2.0 * 36.0 * 4.0 * 10.0);
            assert_eq!(requests("btio", way, op, "list"), 4.0 * 10.0);
            assert_eq!(requests("block-column", way, op, "multiple"), 512.0 * 4.0);
            assert_eq!(requests("tiled", way, op, "multiple"), 768.0 * 4.0);
            assert!(requests("tiled", way, op, "list") < 768.0);
        }
        assert!(requests("btio", way, "read", "sieve") < requests("btio", way, "write", "sieve"));
    }
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let notes = document["notes"].to_string();
    assert!(notes.contains("[514] columns") && notes.contains("Table 6, tcp by romio"), "{notes}");
}

#[test]
#[ignore = "needs open-mpi"]
fn views_draws_each_figure_and_table_with_a_note() {
    let directory = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    let plot = directory.path().join("views.svg");
    let arguments =
        ["--transport", "shm", "--way", "romio", "--columns", "512", "--integers", "4000,8000,8001"];
    let in_directory =
        ["--dir", directory.path().to_str().unwrap(), "--plot", plot.to_str().unwrap(), "--cold"];
    let output = run("views", installed(), &[&arguments[..], &in_directory[..]].concat());
    let rows = rows(&output);
    let count = |case: &str, key: &str, value: Value| {
        rows.iter().filter(|row| row["case"] == case && row["subject"] == "dafs" && row[key] == value).count()
    };
    for mode in ["list_ads", "view", "ecio", "two_phase"] {
        // Written and read, at two sizes, by two processes and by four; and read from the disk.
        assert_eq!(count("mesh", "mode", mode.into()), 2 * 2 * 2 + 2 * 2, "{mode}");
    }
    assert_eq!([2, 4].map(|ranks| count("mesh", "ranks", ranks.into())), [24, 24]);
    for mode in ["multiple", "sieve", "list", "list_ads", "view"] {
        for case in ["block-column", "tiled"] {
            assert_eq!(count(case, "mode", mode.into()), 4, "{case} by {mode}");
        }
    }
    assert_eq!(count("tiled", "cache", "cold".into()), 6);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let notes = document["notes"].to_string();
    for name in ["Figure 6", "Figure 7", "Figure 8", "Figure 9", "Table 1", "Table 2", "Table 3", "Table 4"] {
        assert!(notes.contains(&format!("{name}, shm by romio: ")), "{name}: {notes}");
    }
    assert!(notes.contains("writes by view take"), "{notes}");
    assert!(
        notes.contains("no rows for mesh of [8001] integers: 4 ranks cannot share them evenly"),
        "{notes}"
    );
    assert!(!notes.contains("not measured"), "{notes}");
    let drawn = std::fs::read_to_string(plot).unwrap();
    assert!(drawn.contains("tiled, read, cold") && drawn.contains("mesh of 2 ranks"));
}

#[test]
#[ignore = "needs own-network-open-mpi"]
fn stripe_has_rows_of_ranks_by_each_way() {
    let prefix = installed();
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", env!("CARGO_BIN_EXE_dafs-bench"), "stripe", "--servers", "2"]);
    command.args(["--clients", "1,2", "--repeats", "1", "--seconds", "0.001", "--json", "-"]);
    command.arg("--mpi-prefix").arg(prefix).arg("--dir").arg(directory.path());
    let rows = rows(&command.output().unwrap());
    for case in ["mpi-ompio", "mpi-romio"] {
        let own: Vec<&Value> = rows.iter().filter(|row| row["case"] == case).collect();
        // One rank and two, each writes and reads.
        assert_eq!(own.len(), 4, "{case}: {rows:?}");
        assert!(own.iter().all(|row| row["mib_per_s"].as_f64().unwrap() > 0.0), "{own:?}");
        assert!(own.iter().all(|row| row["cpu_percent"].as_f64().unwrap() > 0.0), "{own:?}");
    }
}

#[test]
#[ignore = "needs open-mpi"]
fn mpi_without_the_driver_names_the_command_that_installs_it() {
    let directory = tempfile::tempdir().unwrap();
    let output = mpi(directory.path(), &["--case", "latency"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cargo xtask mpi install --prefix") && said.contains("--mpi-prefix"), "{said}");
}
