//! The fuzz targets without a fuzzer: the committed corpus, and generated inputs from seeds. `DAFS_FUZZ_CASES=n` runs
//! that many for each decoder, a fortieth of it for each side of the session, and `DAFS_SEED=n` others than the usual ones; a failing
//! input is printed, to be put in the corpus.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fmt::Write;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use dafs_tests::fuzz::{BODIES, Generator, TARGETS, Target};

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
    let mut generator = Generator::new(seed_of(name), &corpus, size_max);
    for _ in 0..cases {
        run(target, &generator.input());
    }
}

/// No two targets begin alike (FNV-1a).
fn seed_of(name: &str) -> u64 {
    let begin = std::env::var("DAFS_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ begin, mix)
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

/// Whoever adds a body adds it there too.
#[test]
fn bodies_that_are_decoded_are_all_that_there_are() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/src/wire");
    let mut there = Vec::from(["EagerBufferTerms".to_owned()]);
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    for file in files.filter(|file| file.extension().is_some_and(|end| end == "rs")) {
        let text = std::fs::read_to_string(file).unwrap();
        let bodies = text.split("\nbody! {").skip(1);
        there.extend(bodies.map(|body| {
            let name = body.split_once("pub struct ").expect("a body").1;
            name.split_once('(').expect("its name in reports").0.to_owned()
        }));
    }
    let mut decoded = BODIES.to_vec();
    there.sort();
    decoded.sort_unstable();
    assert_eq!(decoded, there);
}

// [WIRE-2]
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

// [SESS-13] [SESS-45]
#[test]
fn server_given_hostile_conversations_goes_on() {
    generated("server_session", cases() / 40, 600);
}

#[test]
fn client_given_hostile_replies_ends_every_call() {
    generated("client_session", cases() / 40, 300);
}
