//! libdafs, by programs in C and C++: each call and what it says of wrong arguments, many threads in one session whose connection breaks,
//! and the examples, compiled as a user would and with sanitizers.
#![allow(clippy::cast_possible_truncation, reason = "sizes that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use dafs_tests::harness::On;
use dafs_tests::program::{Program, beside_this_test};
use dafs_tests::suite::{EXPORTS, bytes};
use differential::rust_c_and_kernel_do_the_same;

mod api;
mod differential;

dafs_tests::on_sockets! {
    every_call_does_and_refuses_as_the_header_says,
    calls_beyond_posix_do_and_refuse_as_the_header_says,
    chains_batches_and_views_do_and_refuse_as_the_header_says,
    examples_do_what_they_say,
    rust_c_and_kernel_do_the_same,
    #[ignore = "needs gfortran"]
    fortran_reads_what_it_wrote,
    threads_share_a_session_whose_connection_breaks,
    wrong_arguments_are_errors_and_never_more,
    child_of_a_fork_is_refused_and_its_parent_goes_on,
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
    // `-pedantic` has another spelling for Fortran.
    let warnings =
        if compiler == "gfortran" { &["-Wall", "-Wextra", "-pedantic", "-Werror"] } else { &WARNINGS };
    command.args(flags).args(warnings).arg("-I").arg(root().join("bindings/c/include")).arg(source);
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

/// Runs a program of these tests: optimized, and with sanitizers, on both exports. With clang too where that is.
fn check_program(on: On, name: &str) {
    check_program_with(on, name, &SANITIZERS);
}

fn check_program_with(on: On, name: &str, sanitizers: &[&'static str]) {
    let server = Program::start(on, &[]);
    let directory = tempfile::tempdir().unwrap();
    let url = server.url().to_owned();
    let mut ways =
        vec![("cc", vec!["-std=gnu11", "-O2"]), ("cc", [&["-std=gnu11", "-g"][..], sanitizers].concat())];
    ways.extend(has("clang").then(|| ("clang", vec!["-std=gnu11", "-O2"])));
    for (number, (compiler, flags)) in ways.into_iter().enumerate() {
        let program = directory.path().join(format!("{name}-{number}"));
        compile(compiler, &own(&format!("{name}.c")), &flags, &program);
        // A server that is new for it, where both exports were used.
        let fresh = (number >= EXPORTS.len()).then(|| Program::start(on, &[]));
        let url = fresh.as_ref().map_or(&*url, |server| server.url());
        assert_eq!(String::from_utf8_lossy(&run(&program, &[url, EXPORTS[number % 2]]).stdout), "passed\n");
    }
}

/// Whether a program can be run.
fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|done| done.status.success())
}

fn every_call_does_and_refuses_as_the_header_says(on: On) {
    check_program(on, "calls");
}

fn calls_beyond_posix_do_and_refuse_as_the_header_says(on: On) {
    check_program(on, "more");
}

fn chains_batches_and_views_do_and_refuse_as_the_header_says(on: On) {
    check_program(on, "groups");
}

fn wrong_arguments_are_errors_and_never_more(on: On) {
    check_program(on, "wrong");
}

// [CLI-43]
fn child_of_a_fork_is_refused_and_its_parent_goes_on(on: On) {
    // GCC 12's address sanitizer takes none of its own locks over a fork: a child of any program with threads may hang in malloc.
    check_program_with(on, "forks", &["-fsanitize=undefined", "-fno-sanitize-recover=all"]);
}

fn threads_share_a_session_whose_connection_breaks(on: On) {
    check_program(on, "threads");
}

fn examples_do_what_they_say(on: On) {
    let server = Program::start(on, &[]);
    let directory = tempfile::tempdir().unwrap();
    let url = server.url().to_owned();
    let example = |name: &str, compiler: &str, flags: &[&str]| {
        let program = directory.path().join(name);
        compile(compiler, &root().join("bindings/c/examples").join(name), flags, &program);
        program
    };
    let in_c = |name: &str| example(name, "cc", &["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2"]);
    let said = |program: &Path, arguments: &[&str]| {
        let arguments = [&[&url, "data"][..], arguments].concat();
        String::from_utf8(run(program, &arguments).stdout).unwrap()
    };
    assert_eq!(said(&in_c("hello.c"), &[]), "Hello from C.\n");
    assert_eq!(std::fs::read_to_string(server.data().join("hello.txt")).unwrap(), "Hello from C.\n");

    let data = bytes(7, 1_234_567);
    std::fs::write(server.data().join("big"), &data).unwrap();
    let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
    assert_eq!(said(&in_c("poll.c"), &["big"]), format!("1234567 bytes, sum {sum}\n"));

    std::fs::write(server.data().join("state"), "the old one").unwrap();
    assert_eq!(said(&in_c("checkpoint.c"), &["state", "19"]), "19922944 bytes in state\n");
    let state = std::fs::read(server.data().join("state")).unwrap();
    assert!(state.iter().zip(0_u64..).all(|(byte, at)| *byte == (at * 7 + (at >> 20)).to_le_bytes()[0]));
    assert_eq!((state.len(), server.data().join("state.new").exists()), (19 << 20, false));

    let matrix: Vec<u8> = (0..1000 * 300).flat_map(|cell| f64::from(cell).to_le_bytes()).collect();
    std::fs::write(server.data().join("matrix"), matrix).unwrap();
    let sum: f64 = (0..1000).map(|row| f64::from(row * 300 + 7)).sum();
    assert_eq!(said(&in_c("column.c"), &["matrix", "300", "7"]), format!("1000 rows, sum {sum:.1}\n"));

    let missing =
        "as expected: cannot open missing.txt: no such file or directory: No such file or directory";
    let raii = said(&example("raii.cc", "c++", &["-std=c++17", "-O2"]), &[]);
    assert_eq!(raii, format!("Hello from C++.\n{missing}\n"));
}

fn fortran_reads_what_it_wrote(on: On) {
    let server = Program::start(on, &[]);
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("hello_f90");
    let source = root().join("bindings/c/examples/hello.f90");
    let modules = directory.path().to_str().unwrap().to_owned();
    compile("gfortran", &source, &["-std=f2018", "-J", &modules], &program);
    let ran = run(&program, &[server.url(), "data"]);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "1000 numbers, the same: T\n");
    assert_eq!(std::fs::metadata(server.data().join("hello.bin")).unwrap().len(), 8000);
}

#[test]
fn header_and_its_initialisers_are_c_and_cxx() {
    let directory = tempfile::tempdir().unwrap();
    for compiler in ["c++", "clang++"].into_iter().filter(|compiler| has(compiler)) {
        for standard in ["-std=c++17", "-std=c++20"] {
            let program = directory.path().join("initialisers");
            compile(compiler, &own("initialisers.cc"), &[standard], &program);
            run(&program, &[]);
        }
    }
    for compiler in ["cc", "clang"].into_iter().filter(|compiler| has(compiler)) {
        let program = directory.path().join("initialisers");
        compile(compiler, &own("initialisers.c"), &["-std=c99"], &program);
        run(&program, &[]);
    }
}
