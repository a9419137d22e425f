//! libdafs, by programs in C and C++: each call and what it says of wrong arguments, many threads in one session whose connection breaks,
//! and the examples, compiled as a user would and with sanitizers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use dafs_tests::harness::On;
use dafs_tests::program::{Program, beside_this_test};
use dafs_tests::suite::{EXPORTS, bytes};

dafs_tests::on_sockets! {
    every_call_does_and_refuses_as_the_header_says,
    examples_do_what_they_say,
    threads_share_a_session_whose_connection_breaks,
}

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
const SANITIZERS: [&str; 3] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The static library beside the tests; built when it is not there.
fn archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| beside_this_test("libdafs.a", &["--package", "dafs-c", "--lib"], "dafs-c/verbs"))
}

/// Compiles a program against the header and the static library.
fn compile(compiler: &str, source: &Path, flags: &[&str], to: &Path) {
    let mut command = Command::new(compiler);
    command.args(flags).args(WARNINGS).arg("-I").arg(root().join("bindings/c/include")).arg(source);
    command.arg(archive()).args(["-lpthread", "-lm", "-ldl", "-lgcc_s"]);
    command.args(if cfg!(feature = "verbs") { &["-libverbs", "-lrdmacm"][..] } else { &[] });
    let done = command.arg("-o").arg(to).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn run(program: &Path, arguments: &[&str]) -> Output {
    // What the library keeps until the end of the process is no leak.
    let ran = Command::new(program).args(arguments).env("ASAN_OPTIONS", "detect_leaks=0").output().unwrap();
    assert!(ran.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&ran.stderr));
    ran
}

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

fn check_program(on: On, name: &str) {
    let server = Program::start(on, &[]);
    let directory = tempfile::tempdir().unwrap();
    let url = server.url().to_owned();
    for (number, flags) in [&["-std=gnu11", "-O2"][..], &[&["-std=gnu11", "-g"][..], &SANITIZERS].concat()]
        .into_iter()
        .enumerate()
    {
        let program = directory.path().join(format!("{name}-{number}"));
        compile("cc", &own(&format!("{name}.c")), flags, &program);
        let export = EXPORTS[number];
        assert_eq!(String::from_utf8_lossy(&run(&program, &[&url, export]).stdout), "passed\n");
    }
}

fn every_call_does_and_refuses_as_the_header_says(on: On) {
    check_program(on, "calls");
}

fn threads_share_a_session_whose_connection_breaks(on: On) {
    check_program(on, "threads");
}

fn examples_do_what_they_say(on: On) {
    let server = Program::start(on, &[]);
    let directory = tempfile::tempdir().unwrap();
    let url = server.url().to_owned();
    let example = |name: &str| {
        let program = directory.path().join(name);
        let source = root().join("bindings/c/examples").join(format!("{name}.c"));
        compile("cc", &source, &["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2"], &program);
        program
    };
    let hello = run(&example("hello"), &[&url, "data"]);
    assert_eq!(String::from_utf8_lossy(&hello.stdout), "Hello from C.\n");
    assert_eq!(std::fs::read_to_string(server.data().join("hello.txt")).unwrap(), "Hello from C.\n");
    let data = bytes(7, 1_234_567);
    std::fs::write(server.data().join("big"), &data).unwrap();
    let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
    let polled = run(&example("poll"), &[&url, "data", "big"]);
    assert_eq!(String::from_utf8_lossy(&polled.stdout), format!("1234567 bytes, sum {sum}\n"));
}

#[test]
fn header_and_its_initialisers_are_c_and_cxx() {
    let directory = tempfile::tempdir().unwrap();
    for (compiler, standard) in [("c++", "-std=c++17"), ("c++", "-std=c++20")] {
        let program = directory.path().join("initialisers");
        compile(compiler, &own("initialisers.cc"), &[standard], &program);
        run(&program, &[]);
    }
}
