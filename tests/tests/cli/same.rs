//! `dafs cp` where source and destination may be one: the export is a directory of this machine. And sources whose size
//! says nothing, and commands that are interrupted.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use dafs_tests::harness::On;
use dafs_tests::program::{Signal, signal};
use dafs_tests::{on_sockets, suite};

use crate::programs::{World, command, dafs};

// Nothing of this depends on how the data travels.
on_sockets! {
    copy_of_a_file_onto_itself_through_the_server_is_refused,
    link_that_would_replace_the_file_that_it_leads_to_is_refused,
    link_that_would_replace_itself_is_refused,
    copy_of_a_tree_into_itself_through_the_server_ends,
    copy_over_a_longer_file_replaces_it,
    copy_of_a_pseudo_file_is_its_content,
    copy_of_a_pipe_is_what_comes_out_of_it,
    copy_of_a_socket_is_a_failure,
    copy_interrupted_while_the_server_is_silent_ends,
    copy_to_a_name_with_a_slash_needs_a_directory,
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn copy_of_a_file_onto_itself_through_the_server_is_refused(on: On) {
    let world = World::start(on);
    // By one message, by several, and with holes.
    for (name, size) in [("small", 100), ("large", 3_000_000), ("sparse", 4_000_000)] {
        let file = world.data().join(name);
        let data = match name {
            "sparse" => {
                fs::File::create(&file).unwrap().set_len(size as u64).unwrap();
                vec![0; size]
            }
            _ => suite::bytes(7, size),
        };
        if name != "sparse" {
            fs::write(&file, &data).unwrap();
        }
        fs::hard_link(&file, world.local(name)).unwrap();
        let url = world.url(&format!("data/{name}"));
        dafs(["cp", text(&file), &url]).failed(1, &["are the same file"]);
        dafs(["cp", text(&file), &world.url("data")]).failed(1, &["are the same file"]);
        dafs(["cp", &url, text(&file)]).failed(1, &["are the same file"]);
        dafs(["cp", text(&world.local(name)), &url]).failed(1, &["are the same file"]);
        dafs(["cp", "-r", text(&file), &url]).failed(1, &["are the same file"]);
        if on == On::Tcp {
            // Another address of the server: another session.
            let other = url.replace("127.0.0.1", "localhost");
            dafs(["cp", &url, &other]).failed(1, &["are the same file"]);
        }
        suite::assert_same(&fs::read(&file).unwrap(), &data, name);
    }
}

// [CMD-94]
fn link_that_would_replace_the_file_that_it_leads_to_is_refused(on: On) {
    let world = World::start(on);
    let (archive, here) = (world.data().join("archive"), world.local("here"));
    fs::create_dir(&archive).unwrap();
    fs::create_dir(&here).unwrap();
    fs::write(archive.join("f"), "content").unwrap();
    fs::write(archive.join("g"), "other").unwrap();
    symlink("archive/f", world.data().join("f")).unwrap();
    symlink(archive.join("f"), here.join("f")).unwrap();
    let url = |name: &str| world.url(&format!("data/{name}"));
    for to in ["archive", "archive/f"] {
        dafs(["mv", &url("f"), &url(to)]).failed(1, &["are the same file"]);
        dafs(["cp", "-r", &url("f"), &url(to)]).failed(1, &["are the same file"]);
        dafs(["cp", "-r", text(&here.join("f")), &url(to)]).failed(1, &["are the same file"]);
    }
    // In a tree.
    dafs(["cp", "-r", &format!("{}/.", text(&here)), &url("archive")]).failed(1, &["are the same file"]);
    assert_eq!(fs::read(archive.join("f")).unwrap(), b"content");
    assert!(fs::symlink_metadata(archive.join("f")).unwrap().is_file());
    // Any other file is replaced, and so is a link.
    dafs(["cp", "-r", &url("f"), &url("archive/g")]).succeeded();
    dafs(["cp", "-r", &url("f"), &url("archive/g")]).succeeded();
    assert_eq!(fs::read_link(archive.join("g")).unwrap(), Path::new("archive/f"));
    fs::write(archive.join("h"), "other").unwrap();
    dafs(["mv", &url("f"), &url("archive/h")]).succeeded();
    assert_eq!(fs::read_link(archive.join("h")).unwrap(), Path::new("archive/f"));
}

fn copy_of_a_tree_into_itself_through_the_server_ends(on: On) {
    let world = World::start(on);
    let tree = world.data().join("tree");
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("below/file"), "content").unwrap();
    dafs(["cp", "-r", text(&tree), &world.url("data")]).failed(1, &["are the same directory"]);
    dafs(["cp", "-r", text(&tree), &world.url("data/tree")]).failed(1, &["into itself"]);
    dafs(["cp", "-r", text(&tree), &world.url("data/tree/below/new")]).failed(1, &["into itself"]);
    let new = tree.join("new");
    dafs(["cp", "-r", &world.url("data/tree"), text(&new)]).failed(1, &["into itself"]);
    assert!(!tree.join("tree").exists() && !tree.join("below/new").exists() && !new.exists());
    // The directory that is copied is above the export: nobody can see that in paths.
    let above = world.data().parent().unwrap().to_owned();
    dafs(["cp", "-r", text(&above.join("data/.")), &world.url("data/copy")]).failed(1, &["into itself"]);
    dafs(["cp", "-r", text(&above), &world.url("data/copy")]).failed(1, &["it is the copy itself"]);
    assert!(world.data().join("copy/data/tree/below/file").is_file());
    assert!(!world.data().join("copy/data/copy").exists());
    assert_eq!(fs::read(tree.join("below/file")).unwrap(), b"content");
}

fn copy_over_a_longer_file_replaces_it(on: On) {
    let world = World::start(on);
    for (old, new) in [(100, 10), (100, 0), (1_000_000, 10), (2_000_000, 600_000), (10, 600_000)] {
        fs::write(world.local("new"), suite::bytes(1, new)).unwrap();
        fs::write(world.data().join("old"), suite::bytes(2, old)).unwrap();
        fs::write(world.local("old"), suite::bytes(2, old)).unwrap();
        dafs(["cp", text(&world.local("new")), &world.url("data/old")]).succeeded();
        suite::assert_same(&fs::read(world.data().join("old")).unwrap(), &suite::bytes(1, new), "up");
        dafs(["cp", &world.url("data/old"), text(&world.local("old"))]).succeeded();
        suite::assert_same(&fs::read(world.local("old")).unwrap(), &suite::bytes(1, new), "down");
    }
}

// [CMD-15]
fn copy_of_a_pseudo_file_is_its_content(on: On) {
    let world = World::start(on);
    // Of no size; as long as a page, though it holds less; readable in one piece only.
    for file in ["/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/sys/kernel/ostype"] {
        let Ok(content) = fs::read(file) else { continue };
        assert_ne!(content.len() as u64, fs::metadata(file).unwrap().len(), "{file}");
        dafs(["cp", file, &world.url("data/copy")]).succeeded();
        assert_eq!(fs::read(world.data().join("copy")).unwrap(), content, "{file}");
    }
}

fn copy_of_a_pipe_is_what_comes_out_of_it(on: On) {
    let world = World::start(on);
    for size in [0, 3, 3_000_000] {
        let data = suite::bytes(5, size);
        let mut copy = command(["cp", "/dev/stdin", &world.url("data/pipe")])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        copy.stdin.take().unwrap().write_all(&data).unwrap();
        let output = copy.wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
        suite::assert_same(&fs::read(world.data().join("pipe")).unwrap(), &data, "what came out");
    }
}

fn copy_of_a_socket_is_a_failure(on: On) {
    let world = World::start(on);
    let _socket = std::os::unix::net::UnixListener::bind(world.local("plug")).unwrap();
    let ran = dafs(["cp", text(&world.local("plug")), &world.url("data/copy")]);
    ran.failed(1, &["skipping", "a socket is not copied", "; 1 skipped"]);
    assert!(!world.data().join("copy").exists());
}

// [CMD-13] [CMD-20]
fn copy_interrupted_while_the_server_is_silent_ends(on: On) {
    let world = World::start(on);
    let mut copy = command(["cp", "/dev/stdin", &world.url("data/file")])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut source = copy.stdin.take().unwrap();
    source.write_all(&[7; 100]).unwrap();
    // It has begun: it catches signals.
    while fs::read_dir(world.data()).unwrap().count() == 0 {
        assert!(copy.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    signal(world.server_id(), Signal::STOP).unwrap();
    source.write_all(&[7; 100]).unwrap();
    signal(copy.id(), Signal::INT).unwrap();
    let mut said = String::new();
    BufReader::new(copy.stderr.take().unwrap()).read_to_string(&mut said).unwrap();
    let status = copy.wait().unwrap();
    signal(world.server_id(), Signal::CONT).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("data/file' is not copied"), "{said}");
    // A signal that comes between two steps needs no silence to be noticed.
    assert!(said.contains("nothing has moved") || said.contains("complete copies remain"), "{said}");
    // What the server does not answer for stays behind, and has a name.
    assert!(!said.contains("nothing has moved") || said.contains("remains: remove it"), "{said}");
    assert!(!world.data().join("file").exists());
    drop(source);
}

fn copy_to_a_name_with_a_slash_needs_a_directory(on: On) {
    let world = World::start(on);
    fs::write(world.local("file"), "x").unwrap();
    dafs(["cp", text(&world.local("file")), &world.url("data/nothere/")]).failed(2, &["not a directory"]);
    fs::create_dir(world.local("tree")).unwrap();
    dafs(["cp", "-r", text(&world.local("tree")), &world.url("data/new/")]).succeeded();
    assert!(world.data().join("new").is_dir());
}

/// The first line of what a server says on its standard error that begins so.
fn first_line(mut said: impl BufRead, begin: &str) -> Option<String> {
    let mut line = String::new();
    while said.read_line(&mut line).ok()? > 0 {
        if line.starts_with(begin) {
            return Some(line);
        }
        line.clear();
    }
    None
}

#[test]
fn server_says_how_to_reach_it_where_it_listens_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let keys = dafs_tests::program::key_file(directory.path());
    let mut server = Command::new(crate::programs::program("dafs-server"))
        .args(["--export", "data=mem:1M", "--no-calibrate", "--listen", "tcp://0.0.0.0:0", "--key-file"])
        .arg(&keys)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let line = first_line(BufReader::new(server.stderr.take().unwrap()), "try:");
    server.kill().unwrap();
    server.wait().unwrap();
    let line = line.expect("a command to try");
    assert!(
        line.contains(&format!("--key-file {}", text(&keys))) && line.contains("dafs+tcp://127.0.0.1:"),
        "{line}"
    );
}

// [CMD-104]
fn link_that_would_replace_itself_is_refused(on: On) {
    let world = World::start_with(on, |server, directory| {
        server.arg("--export").arg(format!("twin={}", directory.join("data").display()));
    });
    let (data, other) = (world.data(), if on == On::Tcp { On::Shm } else { On::Tcp });
    let elsewhere = World::start(other);
    fs::create_dir(data.join("d")).unwrap();
    fs::write(data.join("file"), "content").unwrap();
    symlink("d", data.join("link to d")).unwrap();
    for target in ["nowhere", "file"] {
        let link = data.join("d/l");
        let _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
        let number = fs::symlink_metadata(&link).unwrap().ino();
        let local = link.to_str().unwrap().to_owned();
        let url = |path: &str| world.url(path);
        for (from, to) in [
            (url("data/d/l"), url("data/d/l")),
            (url("data/d/l"), url("data/d")),
            (url("data/d/l"), url("data/d/./l")),
            (url("data/d/l"), url("data/link to d/l")),
            (url("data/d/l"), url("twin/d/l")),
            (url("data/d/l"), local.clone()),
            (local.clone(), url("data/d/l")),
            (local.clone(), url("twin/d")),
        ] {
            dafs(["cp", "-r", &from, &to]).failed(1, &["are the same file"]);
            assert_eq!(fs::symlink_metadata(&link).unwrap().ino(), number, "{from} {to}");
        }
        let cp = Command::new("cp").args(["-r", &local, &local]).output().unwrap();
        assert_eq!(cp.status.code(), Some(1), "so does cp(1)");
        // Another link is replaced.
        symlink("else", elsewhere.data().join("l")).unwrap();
        dafs(["cp", "-r", &url("data/d/l"), &elsewhere.url("data/l")]).succeeded();
        assert_eq!(fs::read_link(elsewhere.data().join("l")).unwrap(), Path::new(target));
        fs::remove_file(elsewhere.data().join("l")).unwrap();
    }
}

// [CMD-105]
#[test]
fn help_that_cannot_be_written_and_output_that_is_closed_are_errors() {
    let program = crate::programs::program("dafs");
    for words in ["--help", "help", "--version", "cp --help", "info --devices", "dissector"] {
        for shell in ["exec \"$0\" $1 >/dev/full", "exec \"$0\" $1 >&-"] {
            let ran = Command::new("sh").args(["-c", shell]).arg(&program).arg(words).output().unwrap();
            let said = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(1), "{words} {shell}: {said}");
            assert!(said.starts_with("dafs: cannot write to standard output: "), "{words} {shell}: {said}");
        }
        let ran = Command::new(&program).args(words.split(' ')).stdout(Stdio::null()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{words}");
    }
    let ran = Command::new(&program).args(["--timeout", "abc", "ls", "dafs://localhost/d"]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(2) && said.contains("\"abc\" is not a time"), "{said}");
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for (program, arguments) in [("dafs-server", &["keygen", "alpha"][..]), ("dafs", &["info", "--devices"])]
    {
        let ran = Command::new(crate::programs::program(program))
            .args(arguments)
            .stdout(full())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{program}: {said}");
        assert!(said.contains("cannot write") && !said.contains("panicked"), "{program}: {said}");
    }
    for (program, code) in [("dafs-server", 1), ("dafs", 2)] {
        let ran = Command::new(crate::programs::program(program))
            .args(if code == 1 { &["--export", "nothing"][..] } else { &["ls", "nothing"] })
            .stderr(full())
            .output()
            .unwrap();
        assert_eq!(ran.status.code(), Some(code), "{program}");
    }
}

#[test]
fn server_that_cannot_listen_says_once_why_and_what_to_do() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let serve = |arguments: &[&str]| {
        let output = Command::new(crate::programs::program("dafs-server"))
            .args(["--export", "data=mem:1M", "--no-calibrate"])
            .args(arguments)
            .env("DAFS_LOG", "error")
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let tcp = format!("tcp://{taken}");
    for (arguments, reason, advice) in [
        (&["--listen", &tcp][..], "in use", "another port"),
        (&["--listen", "shm:///nonexistent/x.sock"], "No such file", "make the directory"),
        (&["--listen", "shm:///etc/passwd"], "in use", "another path"),
        (&["--listen", "tcp://127.0.0.1:0", "--metrics", &taken], "in use", "free port"),
    ] {
        let (code, said) = serve(arguments);
        assert_eq!(code, Some(1), "{said}");
        assert_eq!(said.matches(reason).count(), 1, "{said}");
        assert!(said.contains(advice) && !said.contains("Some(") && !said.contains("dafs+"), "{said}");
    }
}
