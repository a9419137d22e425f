//! Programs written from `spec/protocol/` alone, by somebody who has not seen the source: a client in plain Python, and
//! `dafs_conform.py`, which tests a server requirement by requirement. What they need to know and cannot find is a fault of the
//! specification.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dafs_tests::harness::On;
use dafs_tests::program::{Program, program};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Runs one of the programs; leaves no compiled files in the source tree.
fn python(program_file: &str, arguments: &[&str]) -> (Output, String) {
    let output = Command::new("python3")
        .arg("-B")
        .arg(root().join("tests/independent").join(program_file))
        .args(arguments)
        .env("DAFS_SERVER", program())
        .env("DAFS_SPEC", root().join("spec/protocol"))
        .output()
        .expect("python3 runs");
    let printed = [output.stdout.as_slice(), &output.stderr].concat();
    (output, String::from_utf8_lossy(&printed).into_owned())
}

mod tcp {
    use super::*;

    #[test]
    #[ignore = "needs python3"]
    fn client_written_from_the_specification_works() {
        let (output, printed) = python("test_client.py", &[]);
        assert!(output.status.success(), "{printed}");
        assert!(printed.contains("Ran ") && !printed.contains("Ran 0"), "{printed}");
    }

    #[test]
    #[ignore = "needs python3"]
    fn server_fails_no_requirement_that_can_be_tested_from_outside() {
        conforms(false);
    }

    #[test]
    #[ignore = "needs python3"]
    fn server_with_keys_and_state_file_fails_no_requirement() {
        conforms(true);
    }
}

/// Mostly it waits for what the server does by itself, so that the tests of both kinds of server go beside each other.
fn conforms(with_key: bool) {
    let keys = tempfile::tempdir().unwrap();
    let mut flags = vec!["--no-calibrate", "--lease-ms", "3000", "--keep-alive-ms", "500"];
    let file = dafs_tests::program::key_file(keys.path());
    let file = file.to_str().unwrap();
    let state = keys.path().join("state");
    if with_key {
        flags.extend(["--key-file", file, "--state-file", state.to_str().unwrap()]);
    }
    let server = Program::start(On::Tcp, &flags);
    let url = format!("dafs+tcp://{}/data", server.address().to_string().rsplit('/').next().unwrap());
    let results = keys.path().join("results.json");
    let mut arguments = vec![url.as_str(), "--json", results.to_str().unwrap()];
    if with_key {
        arguments.extend(["--key", file]);
    }
    let (output, printed) = python("dafs_conform.py", &arguments);
    let failed: Vec<&str> = printed.lines().filter(|line| line.starts_with("failed")).collect();
    assert!(output.status.success() && failed.is_empty(), "{failed:#?}\n{printed}");
    let passed = printed.lines().filter(|line| line.starts_with("passed ")).count();
    assert!(passed > 250, "{passed} passed:\n{printed}");
    assert!(std::fs::read_dir(server.data()).unwrap().next().is_none(), "it removes what it made");
}
