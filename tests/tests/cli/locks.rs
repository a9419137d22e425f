//! `dafs lock`.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use dafs_tests::harness::On;
use dafs_tests::on_each_provider;

use crate::programs::{World, command, dafs};

on_each_provider! {
    program_runs_while_the_file_is_locked,
    program_that_ends_badly_is_told_of,
}

// [CMD-70] [CMD-72]
fn program_runs_while_the_file_is_locked(on: On) {
    let world = World::start(on);
    let url = world.url("data/lock");
    // It says that it runs, and waits to be told to end.
    let mut holder = command(["lock", &url, "sh", "-c", "echo runs; read line; echo over"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "runs");
    let id = "0b".repeat(16);
    let refused = dafs(["--client-id", &id, "lock", "-n", &url, "false"]);
    refused.failed(1, &["cannot lock", "client ", "(alone) has it", "leave --no-wait out"]);
    dafs(["--client-id", &id, "lock", "-n", "-s", &url, "false"]).failed(1, &["has it"]);
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    // Whoever waits gets it then.
    assert_eq!(dafs(["--client-id", &id, "lock", &url, "echo", "-n", "mine"]).succeeded().text(), "mine");
    assert_eq!(said.next().unwrap().unwrap(), "over");
    assert!(holder.wait().unwrap().success());
}

// [CMD-71]
fn program_that_ends_badly_is_told_of(on: On) {
    let world = World::start(on);
    let url = world.url("data/lock");
    dafs(["lock", &url, "sh", "-c", "exit 7"]).failed(7, &[]);
    dafs(["lock", &url, "sh", "-c", "kill -TERM $$"]).failed(128 + 15, &[]);
    dafs(["lock", &url, "/no/such/program"]).failed(127, &["cannot run", "/no/such/program", "no such file"]);
    dafs(["lock", "-s", &world.url("data/missing"), "true"]).failed(1, &["cannot open", "no such file"]);
    dafs(["lock", "-n", &url, "true"]).succeeded();
}
