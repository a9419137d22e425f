//! The fuzz targets without a fuzzer: the committed corpus, and generated inputs from seeds. `DAFS_FUZZ_CASES=n` runs
//! that many for each decoder, a hundredth of it for each side of the session; a failing input is printed, to be put
//! in the corpus.
// [WIRE-2] [SESS-13] [SESS-45]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fmt::Write;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use dafs_tests::fuzz::{Generator, TARGETS, Target};

const CASES: usize = 20_000;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no seed", directory.display());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Prints an input on which the target panics, which may end the process before the test harness says anything.
fn run(target: Target, input: &[u8]) {
    let (name, function) = target;
    if std::panic::catch_unwind(AssertUnwindSafe(|| function(input))).is_err() {
        let mut hex = String::new();
        input.iter().for_each(|byte| write!(hex, "{byte:02x}").unwrap());
        panic!("{name} panicked on the {} bytes {hex}", input.len());
    }
}

fn generated(name: &str, cases: usize, size_max: usize) {
    let target = *TARGETS.iter().find(|target| target.0 == name).unwrap();
    let corpus = corpus(name);
    let mut generator = Generator::new(name.len() as u64, &corpus, size_max);
    for _ in 0..cases {
        run(target, &generator.input());
    }
}

fn cases() -> usize {
    std::env::var("DAFS_FUZZ_CASES").map_or(CASES, |count| count.parse().expect("a number of cases"))
}

#[test]
fn corpus_of_every_target_is_survived() {
    for target in TARGETS {
        for input in corpus(target.0) {
            run(*target, &input);
        }
    }
}

#[test]
fn targets_of_the_fuzzer_are_these() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
    let mut files: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let mut names: Vec<&str> = TARGETS.iter().map(|target| target.0).collect();
    // Needs what this build does without.
    files.retain(|file| cfg!(feature = "verbs") || file != "verbs_messages");
    files.sort();
    names.sort_unstable();
    assert_eq!(files, names);
}

#[test]
fn decoders_given_generated_bytes_refuse_or_round_trip() {
    for (name, _) in TARGETS.iter().filter(|target| !target.0.ends_with("_session")) {
        let cases = match *name {
            // Looking at the directory of an export takes system calls.
            "config" | "export_flag" => cases() / 10,
            _ => cases(),
        };
        generated(name, cases, 400);
    }
}

#[test]
fn server_given_hostile_conversations_goes_on() {
    generated("server_session", cases() / 40, 600);
}

#[test]
fn client_given_hostile_replies_ends_every_call() {
    generated("client_session", cases() / 40, 300);
}
