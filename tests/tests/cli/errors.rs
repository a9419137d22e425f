//! Wrong usage, wrong servers, keys, closed pipes, and a server that is restarted.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use dafs_tests::harness::On;
use dafs_tests::program::{Signal, signal};
use dafs_tests::{on_sockets, on_verbs};

use crate::programs::{World, command, dafs};

on_sockets! {
    export_that_demands_a_key_is_there_only_for_its_holders,
    output_that_nobody_reads_ends_the_command_quietly,
    server_that_is_killed_ends_the_command_with_a_reason,
    path_out_of_the_export_is_refused,
    what_cannot_be_is_said_in_words,
    nothing_is_done_where_one_of_several_is_no_url,
    ping_that_is_interrupted_tells_so,
}

on_verbs! {
    server_that_is_killed_ends_the_command_with_a_reason,
}

#[test]
fn help_teaches_with_examples() {
    let help = dafs(["--help"]).succeeded().text();
    for words in ["dafs+shm:///", "dafs cp -r ./tree", "Exit status", "--key-file"] {
        assert!(help.contains(words), "{words:?}: {help}");
    }
    for name in [
        "ls", "stat", "cat", "cp", "mkdir", "rm", "mv", "ln", "readlink", "df", "exports", "ping", "info",
        "stats",
    ] {
        assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}");
        let own = dafs([name, "--help"]).succeeded().text();
        assert!(own.contains("Usage: dafs ") && own.contains("URL") || own.contains("SOURCE"), "{own}");
    }
}

// [CMD-20]
#[test]
fn wrong_usage_exits_with_2_and_says_what_to_write() {
    for (arguments, words) in [
        (&["ls"][..], &["<URL>"][..]),
        (&["frobnicate"], &["frobnicate"]),
        (&["ls", "data/tree"], &["data/tree", "dafs://"]),
        (&["ls", "http://host/x"], &["http"]),
        (&["ls", "dafs://localhost"], &["names no export", "dafs exports"]),
        (
            &["ls", "dafs+shm:///run/s"],
            &["write dafs+shm:///run/s:/EXPORT/PATH", "`dafs exports dafs+shm:///run/s`"],
        ),
        (&["cat", "--offset", "1Q", "dafs://localhost/x"], &["64K"]),
        (&["mkdir", "-m", "999", "dafs://localhost/x"], &["octal"]),
        (&["ls", "--timeout=-1", "dafs://localhost/x"], &["--timeout"]),
        (&["ls", "--timeout=0", "dafs://localhost/x"], &["seconds above 0"]),
        (&["cp", "only-one"], &["SOURCE"]),
        (&["ping", "-c", "0", "dafs://localhost"], &["0"]),
    ] {
        dafs(arguments).failed(2, words);
    }
}

#[test]
fn server_that_is_not_there_is_reported_with_advice() {
    // Bound, so that no other process takes it, and nobody listens there.
    let closed = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    closed.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = closed.local_addr().unwrap().as_socket().unwrap();
    dafs(["ls", &format!("dafs+tcp://{address}/data")])
        .failed(1, &["dafs: cannot connect to", "onnection refused", "dafs-server is running"]);
    dafs(["ls", "dafs+shm:///nowhere/socket:/data"])
        .failed(1, &["cannot connect to", "dafs-server is running"]);
    dafs(["ls", "dafs+tcp://name.invalid/data"]).failed(1, &["name.invalid"]);
}

#[test]
fn key_file_that_others_may_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    fs::write(&file, "alpha:000102030405060708090a0b0c0d0e0f\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let path = file.to_str().unwrap();
    dafs(["exports", "--key-file", path, "dafs://localhost"]).failed(1, &["others may read it", "chmod 600"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "nonsense\n").unwrap();
    dafs(["exports", "--key-file", path, "dafs://localhost"]).failed(1, &["key"]);
    fs::write(&file, "\n").unwrap();
    dafs(["exports", "--key-file", path, "dafs://localhost"]).failed(1, &["no key in", "dafs-server keygen"]);
    dafs(["exports", "--key-file", "/no/such/file", "dafs://localhost"])
        .failed(1, &["cannot read the key file"]);
}

fn export_that_demands_a_key_is_there_only_for_its_holders(on: On) {
    let write = |path: &std::path::Path, last: &str| {
        fs::write(path, format!("alpha:000102030405060708090a0b0c0d0e{last}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let world = World::start_with(on, |command, directory| {
        write(&directory.join("alpha"), "0f");
        // A server that other hosts could reach has one already.
        let has_keys = command.get_args().any(|word| word == "--key-file");
        let mut keys =
            if has_keys { fs::read_to_string(directory.join("keys")).unwrap() } else { String::new() };
        keys.push_str(&fs::read_to_string(directory.join("alpha")).unwrap());
        if !has_keys {
            write(&directory.join("keys"), "0f");
            command.arg("--key-file").arg(directory.join("keys"));
        }
        fs::write(directory.join("keys"), keys).unwrap();
        command.args(["--export", "private=mem:1M,keys=alpha"]);
    });
    let wrong = world.local("wrong");
    write(&wrong, "10");
    let url = world.url("private");
    let with = |key: &std::path::Path| dafs(["ls", "--key-file", key.to_str().unwrap(), &url]);
    with(&world.local("alpha")).succeeded();
    with(&wrong).failed(1, &["cannot connect to", "key"]);
    dafs(["ls", &url]).failed(1, &["cannot mount", "no such export", "`dafs exports`"]);
    // The environment names a key as well.
    let output =
        command(["exports", world.server()]).env("DAFS_KEY_FILE", world.local("alpha")).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("private"), "{output:?}");
}

// [CMD-20]
fn output_that_nobody_reads_ends_the_command_quietly(on: On) {
    let world = World::start(on);
    fs::write(world.data().join("file"), vec![7; on.rounds(30 << 20).max(8 << 20) as usize]).unwrap();
    let url = world.url("data/file");
    // Not every machine has /dev/stdout.
    for words in [&["cat", &url][..], &["cp", &url, "/proc/self/fd/1"]] {
        let mut child = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(0), ""), "{words:?}");
    }
}

fn server_that_is_killed_ends_the_command_with_a_reason(on: On) {
    let mut world = World::start(on);
    fs::write(world.data().join("file"), vec![7; 8 << 20]).unwrap();
    let url = world.url("data/file");
    // Long enough to connect on a busy machine.
    let mut child = command(["cat", "--timeout", "4", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0; 10];
    out.read_exact(&mut first).unwrap();
    // Most of the file is not sent yet: nobody has read more than a pipe holds.
    world.kill();
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        // All of it was on its way already.
        Some(0) => assert_eq!(rest.len() + 10, 8 << 20),
        code => assert!(code == Some(1) && words.contains("dafs: cannot read"), "{code:?} {words}"),
    }
}

fn path_out_of_the_export_is_refused(on: On) {
    let world = World::start(on);
    fs::write(world.local("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(world.local("secret"), world.data().join("link")).unwrap();
    for path in ["data/../secret", "data/link", "data/x/../../secret"] {
        let ran = dafs(["cat", &world.url(path)]);
        assert_eq!((ran.code, ran.stdout.as_slice()), (1, &b""[..]), "{path}: {}", ran.stderr);
    }
    dafs(["ls", &world.url("nothing")]).failed(1, &["no such export", "dafs exports"]);
}

fn what_cannot_be_is_said_in_words(on: On) {
    let world = World::start_with(on, |command, directory| {
        command.arg("--export").arg(format!("ro={},ro", directory.join("data").display()));
    });
    fs::create_dir_all(world.data().join("tree/below")).unwrap();
    fs::write(world.data().join("file"), "x").unwrap();
    dafs(["mkdir", "-p", &world.url("ro/tree/below")]).succeeded();
    dafs(["mkdir", "-p", &world.url("ro/tree/new")]).failed(1, &["read-only"]);
    dafs(["mkdir", "-p", &world.url("ro/file")]).failed(1, &["cannot make the directory"]);
    dafs(["readlink", &world.url("data/file")]).failed(1, &["not a symbolic link"]);
    dafs(["mv", &world.url("data/tree"), &world.url("data/tree/below/new")]).failed(1, &["into itself"]);
    dafs(["cat", &world.url("data/tree")]).failed(1, &["directory"]);
}

// [CMD-20]
fn nothing_is_done_where_one_of_several_is_no_url(on: On) {
    let world = World::start(on);
    for name in ["a", "b"] {
        fs::write(world.data().join(name), name).unwrap();
    }
    fs::create_dir(world.data().join("dir")).unwrap();
    let [a, b, dir, new] = ["a", "b", "dir", "new"].map(|name| world.url(&format!("data/{name}")));
    for wrong in ["data/c", world.server()] {
        for words in [
            &["rm", &a, wrong, &b][..],
            &["mv", &a, wrong, &b, &dir],
            &["mkdir", &new, wrong],
            &["cat", &a, wrong],
            &["stat", &a, wrong],
            &["ls", &a, wrong],
            &["cp", &a, "dafs://h", &b, &dir],
        ] {
            let ran = dafs(words).failed(2, &["dafs"]);
            assert_eq!(ran.text(), "", "{words:?}");
        }
    }
    dafs(["rm", "-r", &a, &world.url("data/."), &b]).failed(2, &["the root of an export"]);
    for name in ["a", "b"] {
        assert_eq!(fs::read(world.data().join(name)).unwrap(), name.as_bytes());
    }
    assert!(
        !world.data().join("new").exists()
            && fs::read_dir(world.data().join("dir")).unwrap().next().is_none()
    );
}

// [CMD-20]
fn ping_that_is_interrupted_tells_so(on: On) {
    let world = World::start(on);
    // Far more than come before the signal.
    let ping = command(["ping", "-c", "4294967295", world.server()]).stdout(Stdio::piped()).spawn().unwrap();
    let catches_signals = || {
        let status = fs::read_to_string(format!("/proc/{}/status", ping.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        // SIGTERM, which is the last.
        u64::from_str_radix(caught, 16).unwrap() & (1 << 14) != 0
    };
    while !catches_signals() {
        std::thread::yield_now();
    }
    signal(ping.id(), Signal::INT).unwrap();
    let output = ping.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
}

// [CMD-45]
#[test]
fn empty_variables_count_as_not_set() {
    let world = World::start(On::Tcp);
    let mut exports = command(["exports", world.server()]);
    let output = exports.env("DAFS_KEY_FILE", "").env("DAFS_CLIENT_ID", "").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "data\nmem\n");
    // On the command line nothing may be empty.
    dafs(["exports", "--key-file", "", world.server()]).failed(2, &["--key-file"]);
}

/// Passes on what both sides say, but for these words of the server's.
fn other_words(server: SocketAddr, words: &'static [u8], others: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let client = listener.accept().unwrap().0;
        let server = TcpStream::connect(server).unwrap();
        let (mut says, mut hears) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut says, &mut hears);
            let _ = hears.shutdown(Shutdown::Write);
        });
        let (mut server, mut client, mut bytes) = (server, client, vec![0; 1 << 16]);
        while let Ok(len @ 1..) = server.read(&mut bytes) {
            let told = &mut bytes[..len];
            while let Some(at) = told.windows(words.len()).position(|window| window == words) {
                told[at..at + words.len()].copy_from_slice(others);
            }
            if client.write_all(told).is_err() {
                return;
            }
        }
    });
    address
}

#[test]
fn server_words_cannot_control_the_terminal_or_forge_lines() {
    let world = World::start(On::Tcp);
    let server = world.server().trim_start_matches("dafs+tcp://").parse().unwrap();
    let proxy = other_words(server, b"o state file; ", b"\x1b[31m\r\nforged!");
    let refused = dafs(["lock", "--persistent", &format!("dafs+tcp://{proxy}/data/lock"), "true"]);
    let refused = refused.failed(1, &["cannot lock", "forged!", "\\u001b[31m"]);
    let harmful = |character: char| character.is_control() && character != '\n';
    assert!(!refused.stderr.contains(harmful) && refused.stderr.lines().count() == 1, "{refused:?}");
}
