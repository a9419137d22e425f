//! The engine for fio, built for the fio of this machine: its job files, by processes and by threads; what reaches the server's files; and
//! what it says when something is wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use dafs_tests::harness::On;
use dafs_tests::program::{Program, beside_this_test, write_script, xtask};

dafs_tests::on_sockets! {
    #[ignore = "needs fio"] job_files_run,
    #[ignore = "needs fio"] job_that_verifies_passes_by_processes_and_threads,
    #[ignore = "needs fio"] job_writes_trims_and_reads_the_files_of_the_server,
    #[ignore = "needs fio"] mistakes_are_told_in_words,
}

fn jobs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings/fio/jobs").canonicalize().unwrap()
}

/// Builds the engine in a directory, with these options too.
fn install(prefix: &Path, options: &[&str]) -> Output {
    let library = beside_this_test("libdafs.a", &["--package", "dafs-c", "--lib"], "dafs-c/verbs");
    let mut command = xtask();
    command.args(["fio", "install", "--prefix"]).arg(prefix).arg("--library").arg(library);
    command.args(options).args(cfg!(feature = "verbs").then_some("--verbs"));
    command.output().unwrap()
}

/// The engine, built once.
fn engine() -> &'static Path {
    static ENGINE: OnceLock<PathBuf> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let prefix = std::env::current_exe().unwrap().parent().unwrap().join("../fio");
        let installed = install(&prefix, &[]);
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        prefix.join("lib/dafs-fio.so").canonicalize().unwrap()
    })
}

/// fio with these options, and the engine and the address in the variables of the job files.
fn fio(server: &Program, export: &str, options: &[&str]) -> Output {
    // The path of a socket ends with a colon.
    let colon = if server.url().starts_with("dafs+shm:") { ":" } else { "" };
    let url = format!("{}{colon}/{export}", server.url());
    let mut command = Command::new("fio");
    command.env("DAFS_FIO", engine()).env("DAFS_URL", url).current_dir(server.scratch());
    command.arg("--eta=never").args(options).output().unwrap()
}

/// A job file of one job: what the command line says would not have variables.
fn job(server: &Program, name: &str, lines: &[&str]) -> String {
    let path = server.scratch().join(format!("{name}.fio"));
    let common = format!("[{name}]\nioengine=external:${{DAFS_FIO}}\nurl=${{DAFS_URL}}\nfilename={name}\n");
    std::fs::write(&path, common + &lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[track_caller]
fn passed(output: &Output) -> String {
    let said = words(output);
    assert!(output.status.success() && !said.contains("dafs:"), "{said}");
    said
}

fn job_that_verifies_passes_by_processes_and_threads(on: On) {
    let server = Program::start(on, &[]);
    let said = passed(&fio(&server, "data/made/by/fio", &[jobs().join("verify.fio").to_str().unwrap()]));
    for job in ["process-1", "process-16", "thread-1", "thread-16", "ordinary-memory"] {
        assert!(said.contains(&format!("\n{job}: (groupid=")), "{said}");
    }
    // `unlink`, in the directory that the url names.
    assert_eq!(std::fs::read_dir(server.data().join("made/by/fio")).unwrap().count(), 0);
    let log = server.log();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

fn job_files_run(on: On) {
    let server = Program::start(on, &[]);
    let mut count = 0;
    for entry in std::fs::read_dir(jobs()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        // As they are, but shorter.
        let short = text.replace("runtime=10\n", "runtime=100ms\n").replace("size=256m", "size=8m");
        assert!(name == "verify.fio" || short.contains("size="), "{name}");
        let short_path = server.scratch().join(name);
        std::fs::write(&short_path, short).unwrap();
        passed(&fio(&server, "data", &[short_path.to_str().unwrap()]));
        count += 1;
    }
    assert!(count >= 6, "{count} job files");
}

fn job_writes_trims_and_reads_the_files_of_the_server(on: On) {
    const SIZE: usize = 1 << 20;
    let server = Program::start(on, &[]);
    for depth in ["1", "8"] {
        let depth = format!("iodepth={depth}");
        let of = |name: &str, lines: &[&str]| {
            let lines = [&["size=1m", "bs=64k", &depth], lines].concat();
            fio(&server, "data", &[&job(&server, name, &lines)])
        };
        passed(&of("a", &["rw=randwrite", "buffer_pattern=0x5a", "end_fsync=1", "fdatasync=4"]));
        assert_eq!(std::fs::read(server.data().join("a")).unwrap(), vec![0x5a; SIZE]);
        passed(&of("a", &["rw=trim", "io_size=512k"]));
        let [trimmed, kept] = [(0, 0), (SIZE / 2, 0x5a)];
        let found = std::fs::read(server.data().join("a")).unwrap();
        assert!(found[trimmed.0..SIZE / 2].iter().all(|&byte| byte == trimmed.1));
        assert!(found[kept.0..].iter().all(|&byte| byte == kept.1) && found.len() == SIZE);
        // A file that is not there is laid out, and one that the server's own programs changed is found to be wrong.
        passed(&of("b", &["rw=read"]));
        assert_eq!(std::fs::metadata(server.data().join("b")).unwrap().len(), SIZE as u64);
        passed(&of("c", &["rw=write", "verify=crc32c", "do_verify=0"]));
        let reads = ["rw=read", "verify=crc32c"];
        passed(&of("c", &reads));
        let mut bytes = std::fs::read(server.data().join("c")).unwrap();
        bytes[SIZE / 2 + 100] ^= 1;
        std::fs::write(server.data().join("c"), bytes).unwrap();
        let wrong = of("c", &reads);
        assert!(!wrong.status.success() && words(&wrong).contains("verify failed"), "{}", words(&wrong));
    }
}

fn mistakes_are_told_in_words(on: On) {
    let server = Program::start(on, &["--export", "small=mem:1M"]);
    let refused = |export: &str, lines: &[&str], expected: &str| {
        let output = fio(&server, export, &[&job(&server, "x", &[&["size=2m", "bs=64k"], lines].concat())]);
        let said = words(&output);
        assert!(!output.status.success() && said.contains(expected), "{expected} is not in: {said}");
    };
    refused("", &["rw=read"], "dafs: cannot find the export: the url names none");
    refused("nothing", &["rw=read"], "dafs: cannot mount nothing: no such export");
    refused("data", &["rw=read", "method=telepathy"], "no method is telepathy");
    refused("data", &["rw=write", "allow_file_create=0"], "dafs: cannot make x: allow_file_create=0");
    refused("data", &["rw=read", "key_file=/nowhere/at/all"], "/nowhere/at/all");
    std::fs::create_dir(server.data().join("x")).unwrap();
    refused("data", &["rw=read"], "dafs: cannot use x: it is no regular file");
    for depth in ["iodepth=1", "iodepth=8"] {
        refused("small", &["rw=write", depth], "No space left on device");
    }
}

#[test]
#[ignore = "needs fio"]
fn engine_for_another_fio_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("fio");
    write_script(&other, "#!/bin/sh\necho fio-3.33-17-gabcdef\n");
    let built = install(directory.path(), &["--fio", other.to_str().unwrap()]);
    let said = words(&built);
    assert!(!built.status.success() && said.contains("is not the fio of Debian's package"), "{said}");
    // Its structures may be others, of which fio asks nothing.
    let profile = std::env::current_exe().unwrap().parent().unwrap().join("../..").canonicalize().unwrap();
    engine();
    let sources = std::fs::read_dir(profile.join("fio-source")).unwrap().map(|entry| entry.unwrap().path());
    let source = sources.into_iter().find(|path| path.join("config-host.h").exists()).unwrap();
    let options = ["--fio", other.to_str().unwrap(), "--source", source.to_str().unwrap()];
    let built = install(directory.path(), &options);
    assert!(built.status.success(), "{}", words(&built));
    let engine = format!("--ioengine=external:{}", directory.path().join("lib/dafs-fio.so").display());
    let options = ["--name=x", "--size=4k", &engine, "--url=dafs+tcp://127.0.0.1:1/x"];
    let ran = Command::new("fio").args(options).current_dir(directory.path()).output().unwrap();
    let said = words(&ran);
    assert!(!ran.status.success() && said.contains("was compiled for fio-3.33-17-gabcdef"), "{said}");
}
