//! A command that may lock little memory, over RDMA.

use std::fs;
use std::process::Command;

use dafs_tests::harness::On;
use dafs_tests::suite::{assert_same, bytes};

use crate::programs::{World, command};

/// The provider's name stands in the path of each test.
mod verbs {
    #[test]
    #[ignore = "needs rdma-device"]
    fn copy_with_little_locked_memory_completes_and_says_why_it_is_slow() {
        super::copy_with_little_locked_memory(dafs_tests::harness::On::Verbs);
    }

    #[test]
    #[ignore = "needs rdma-device"]
    fn command_without_locked_memory_fails_and_says_what_to_do() {
        super::command_without_locked_memory(dafs_tests::harness::On::Verbs);
    }
}

/// `dafs` with these words, without the privilege to lock more than so much.
fn limited(limit_kib: u32, words: &[&str]) -> (Option<i32>, String) {
    let whole = command(words);
    let script = format!("ulimit -l {limit_kib} && exec \"$0\" \"$@\"");
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set", "-ipc_lock", "bash", "-c", &script]).arg(whole.get_program());
    limited.args(whole.get_args());
    limited.envs(whole.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

const REMEDIES: [&str; 4] = ["locked memory", "ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK"];

// [VERBS-33] [VERBS-70]
fn copy_with_little_locked_memory(on: On) {
    let world = World::start(on);
    let data = bytes(1, 1_500_000);
    fs::write(world.local("file"), &data).unwrap();
    let (from, back) = (world.local("file"), world.local("back"));
    let (from, back) = (from.to_str().unwrap(), back.to_str().unwrap());
    // From hardly enough to connect, to nearly enough for all.
    for (limit_kib, methods) in [(256, &["auto", "direct", "eager"][..]), (2048, &["auto"])] {
        for method in methods {
            let url = world.url(&format!("data/{limit_kib}{method}"));
            for (source, destination) in [(from, url.as_str()), (url.as_str(), back)] {
                let (code, said) = limited(limit_kib, &["cp", "--method", method, source, destination]);
                assert_eq!(code, Some(0), "{limit_kib} KiB, {method}: {said}");
                assert!(said.lines().count() <= 1, "{limit_kib} KiB, {method}: {said}");
                if limit_kib == 256 {
                    assert!(REMEDIES.iter().all(|word| said.contains(word)), "{said}");
                }
            }
            assert_same(&fs::read(back).unwrap(), &data, method);
        }
    }
}

// [VERBS-33] [VERBS-71]
fn command_without_locked_memory(on: On) {
    let world = World::start(on);
    let (code, said) = limited(16, &["ls", &world.url("data")]);
    assert_eq!(code, Some(1), "{said}");
    assert!(REMEDIES.iter().all(|word| said.contains(word)) && said.contains("cannot connect"), "{said}");
}
