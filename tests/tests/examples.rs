//! The example programs of the client library do what they say; those for event loops have no thread of the library's.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::process::{Command, Output};

use dafs_tests::forbidden::kill_at;
use dafs_tests::harness::On;
use dafs_tests::program::{Program, beside_this_test};
use dafs_tests::suite::bytes;

dafs_tests::on_sockets! {
    event_loops_read_files_without_a_thread,
    examples_do_what_they_say,
}

const SIZE: usize = 3_000_001;

/// An example with its arguments.
fn example(name: &str, arguments: &[&str]) -> Command {
    let what = ["--package", "dafs-client", "--example", name, "--features", "dafs-client/tokio"];
    let mut command = Command::new(beside_this_test(&format!("examples/{name}"), &what, "dafs-client/verbs"));
    command.args(arguments);
    command
}

#[track_caller]
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A file of a server, and its URL.
fn url_of(server: &Program, path: &str) -> String {
    let colon = if server.url().starts_with("dafs+shm:") { ":" } else { "" };
    format!("{}{colon}/data/{path}", server.url())
}

fn event_loops_read_files_without_a_thread(on: On) {
    let server = Program::start(on, &[]);
    for name in ["a", "b"] {
        std::fs::write(server.data().join(name), bytes(1, SIZE)).unwrap();
    }
    let threads = [libc::SYS_clone, libc::SYS_clone3];
    let alone = |name, arguments: &[&str]| {
        let arguments = [&[server.url(), "data"], arguments].concat();
        kill_at(&mut example(name, &arguments), &threads).output().unwrap()
    };
    let all = format!("{SIZE} bytes read, {SIZE} in the file\n");
    assert_eq!(said(&alone("poll", &["a"])), all);
    assert_eq!(said(&alone("mio", &["a"])), all);
    assert_eq!(said(&alone("tokio", &["a", "b"])), format!("a: {SIZE} bytes\nb: {SIZE} bytes\n"));
    // By default a thread keeps the session alive.
    let kept = kill_at(&mut example("hello", &[&url_of(&server, "hello")]), &threads).output().unwrap();
    assert!(!kept.status.success(), "a thread was to be made: {kept:?}");
}

fn examples_do_what_they_say(on: On) {
    let server = Program::start(on, &[]);
    let hello = said(&example("hello", &[&url_of(&server, "hello")]).output().unwrap());
    assert!(hello.ends_with("read back: hello, world\n"), "{hello}");
    let data = bytes(2, SIZE);
    let source = server.scratch().join("source");
    std::fs::write(&source, &data).unwrap();
    let copied = example("copy", &[source.to_str().unwrap(), &url_of(&server, "copied")]).output().unwrap();
    assert_eq!(said(&copied), format!("{SIZE} bytes copied\n"));
    assert_eq!(std::fs::read(server.data().join("copied")).unwrap(), data);
    let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
    let read = example("nonblocking", &[&url_of(&server, "copied")]).output().unwrap();
    assert_eq!(said(&read), format!("{SIZE} bytes, sum {sum}\n"));
}
