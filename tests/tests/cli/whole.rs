//! `dafs cp`: what has a name is whole. A copy that is interrupted or fails leaves what stood there before, and nothing beside it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use dafs_proto::wire::Status;
use dafs_tests::faulty::{Fault, Faults, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::program::{Signal, signal};
use dafs_tests::suite::{assert_same, bytes};

use crate::programs::{World, command, dafs, program};

// Nothing of this depends on how the data travels.
on_sockets! {
    copy_up_that_is_interrupted_leaves_what_was_there,
    copy_down_that_is_interrupted_in_silence_leaves_what_was_there,
    interrupted_copy_of_a_pipe_leaves_what_was_there,
    copy_of_a_silent_pipe_that_is_interrupted_leaves_nothing_behind,
    copy_goes_on_through_signals_that_it_was_started_to_ignore,
    copy_that_is_interrupted_twice_removes_its_name_or_tells_it,
    copy_that_is_terminated_twice_cleans_up_as_one_that_is_once,
    copy_whose_name_was_made_too_late_tells_it,
    copy_whose_source_goes_away_gives_directories_their_modes,
    copy_that_is_begun_again_gives_directories_of_the_first_their_modes,
    copy_that_finds_no_room_leaves_what_was_there,
    copy_of_a_file_that_gives_less_than_it_claims_fails,
    copy_of_a_file_that_shrinks_meanwhile_fails_and_says_so,
    copy_of_a_file_shrinking_in_a_hole_fails,
    copy_of_a_file_that_became_stale_is_made_once_more,
    copy_of_a_pipe_to_a_file_that_became_stale_fails,
    copy_to_a_pipe_of_a_file_that_became_stale_fails,
    copy_whose_name_may_exist_is_checked_and_complete,
    link_whose_name_was_there_is_not_made_over_a_restart,
    copy_whose_rename_a_crash_of_the_machine_undoes_is_renamed_again,
    copy_unable_to_check_after_a_crash_is_whole_or_fails,
    copy_whose_name_a_crash_of_the_machine_loses_fails,
    copy_in_place_keeps_links_and_reaches_devices,
    listing_without_end_ends,
}

/// More than one message carries, less than is copied in one piece; and a large file.
const SIZES: [usize; 2] = [200_000, 3_000_000];

fn url(harness: &Harness, path: &str) -> String {
    let (server, on_socket) = (harness.url(), harness.url().starts_with("dafs+shm"));
    format!("{server}{}/{path}", if on_socket { ":" } else { "" })
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn begin<const N: usize>(words: [&str; N]) -> Child {
    command(words).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(copy: &Child) {
    signal(copy.id(), Signal::INT).unwrap();
}

/// A copy of what comes through a pipe, of which it has read the beginning: more was written than the pipe holds.
fn begin_piped(copy: &mut Command) -> (Child, ChildStdin) {
    let mut copy = copy.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut source = copy.stdin.take().unwrap();
    source.write_all(&bytes(1, SIZES[1])).unwrap();
    (copy, source)
}

/// A signal is on its way to it.
fn is_signal_waiting(copy: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", copy.id())).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or("0");
    mask.trim().contains(|digit| digit != '0') && !status.contains("State:\tZ")
}

/// Waits until it waits for more of a pipe.
fn wait_for_reader(copy: &Child) {
    let process = Path::new("/proc").join(copy.id().to_string());
    let waits = |task: &Path| {
        // What a thread sleeps in, by its number, and the first argument.
        // Nothing of one that has ended meanwhile.
        let call = fs::read_to_string(task.join("syscall")).unwrap_or_default();
        let mut words = call.split_whitespace();
        let is_read = words.next() == Some(&libc::SYS_read.to_string());
        let descriptor = words.next().and_then(|word| u32::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        is_read
            && descriptor.is_some_and(|descriptor| {
                let open = fs::read_link(process.join("fd").join(descriptor.to_string()));
                open.is_ok_and(|open| text(&open).starts_with("pipe:"))
            })
    };
    while !fs::read_dir(process.join("task")).unwrap().any(|task| waits(&task.unwrap().path())) {}
}

/// Waits until it has ended, and returns its exit status and what it said.
fn ended(copy: Child) -> (Option<i32>, String) {
    let output = copy.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

// [CMD-1] [CMD-2] [CMD-11]
fn copy_up_that_is_interrupted_leaves_what_was_there(on: On) {
    for size in SIZES {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        let (source, there) = (harness.scratch().join("source"), harness.data().join("f"));
        fs::write(&source, bytes(1, size)).unwrap();
        fs::write(&there, "old").unwrap();
        faults.next(Kind::Write, Fault::Hold, usize::MAX);
        let copy = begin(["cp", text(&source), &url(&harness, "data/f")]);
        faults.wait_for_held(1);
        assert_eq!(fs::read(&there).unwrap(), b"old");
        let found = names(harness.data().as_path());
        let [temporary, _] = &found[..] else { panic!("{found:?}") };
        let digits = temporary.strip_prefix(".dafs-cp-").unwrap();
        assert!(digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{temporary}");
        interrupt(&copy);
        faults.release();
        let (code, said) = ended(copy);
        assert_eq!(code, Some(130), "{said}");
        // Small files that have begun are ended: either is whole.
        let found = fs::read(&there).unwrap();
        assert!(found == b"old" || size == SIZES[0] && found == bytes(1, size), "{} bytes", found.len());
        assert_eq!(names(harness.data().as_path()), ["f"], "{said}");
    }
}

// [CMD-1] [CMD-2]
fn copy_down_that_is_interrupted_in_silence_leaves_what_was_there(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let directory = harness.scratch().join("down");
    fs::create_dir(&directory).unwrap();
    fs::write(harness.data().join("f"), bytes(1, SIZES[1])).unwrap();
    fs::write(directory.join("f"), "old").unwrap();
    faults.next(Kind::Read, Fault::Hold, usize::MAX);
    let copy = begin(["cp", &url(&harness, "data/f"), text(&directory.join("f"))]);
    faults.wait_for_held(1);
    assert_eq!(names(&directory).len(), 2);
    interrupt(&copy);
    let (code, said) = ended(copy);
    faults.release();
    assert_eq!(code, Some(130), "{said}");
    assert_eq!(names(&directory), ["f"], "{said}");
    assert_eq!(fs::read(directory.join("f")).unwrap(), b"old");
}

// [CMD-1] [CMD-2] [CMD-27] [CMD-30]
fn interrupted_copy_of_a_pipe_leaves_what_was_there(on: On) {
    let world = World::start(on);
    for last in [Signal::INT, Signal::TERM, Signal::HUP] {
        fs::write(world.data().join("f"), "old").unwrap();
        let (copy, source) = begin_piped(&mut command(["cp", "/dev/stdin", &world.url("data/f")]));
        wait_for_reader(&copy);
        signal(copy.id(), last).unwrap();
        while is_signal_waiting(&copy) {}
        drop(source);
        let (code, said) = ended(copy);
        assert_eq!(code, Some(130), "{said}");
        assert_same(&fs::read(world.data().join("f")).unwrap(), b"old", "what was there");
        assert_eq!(names(&world.data()), ["f"], "{said}");
    }
}

// [CMD-2] Takes the two seconds of silence.
fn copy_of_a_silent_pipe_that_is_interrupted_leaves_nothing_behind(on: On) {
    let world = World::start(on);
    fs::write(world.data().join("f"), "old").unwrap();
    let (copy, source) = begin_piped(&mut command(["cp", "/dev/stdin", &world.url("data/f")]));
    wait_for_reader(&copy);
    interrupt(&copy);
    let (code, said) = ended(copy);
    drop(source);
    assert_eq!(code, Some(130), "{said}");
    assert!(!said.contains("remains"), "{said}");
    assert_eq!(names(&world.data()), ["f"], "{said}");
    assert_same(&fs::read(world.data().join("f")).unwrap(), b"old", "what was there");
}

// [CMD-31]
fn copy_goes_on_through_signals_that_it_was_started_to_ignore(on: On) {
    let world = World::start(on);
    let (copy, source) =
        begin_piped(
            Command::new("sh")
                .args(["-c", "trap '' HUP INT; exec \"$@\"", "sh", text(&program("dafs"))])
                .args(["cp", "/dev/stdin", &world.url("data/f")]),
        );
    for ignored in [Signal::HUP, Signal::INT] {
        signal(copy.id(), ignored).unwrap();
        while is_signal_waiting(&copy) {}
    }
    drop(source);
    let (code, said) = ended(copy);
    assert_eq!((code, &*said), (Some(0), ""));
    assert_same(&fs::read(world.data().join("f")).unwrap(), &bytes(1, SIZES[1]), "the copy");
}

// [CMD-2] [CMD-26]
fn copy_that_is_interrupted_twice_removes_its_name_or_tells_it(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let directory = harness.scratch().join("down");
    fs::create_dir(&directory).unwrap();
    fs::write(harness.data().join("f"), bytes(1, SIZES[1])).unwrap();
    faults.next(Kind::Read, Fault::Hold, usize::MAX);
    let twice = |copy: &Child| {
        for _ in 0..2 {
            interrupt(copy);
            // Two that wait are one.
            while is_signal_waiting(copy) {}
        }
    };
    let copy = begin(["cp", &url(&harness, "data/f"), text(&directory.join("f"))]);
    faults.wait_for_held(1);
    assert_eq!(names(&directory).len(), 1);
    twice(&copy);
    let (code, said) = ended(copy);
    assert_eq!((code, names(&directory).len()), (Some(130), 0), "{said}");
    faults.release();
    while faults.held() > 0 {}
    // The server keeps what is there, and the user is told its name.
    faults.next(Kind::Write, Fault::Hold, usize::MAX);
    let source = harness.scratch().join("source");
    fs::write(&source, bytes(1, SIZES[1])).unwrap();
    let copy = begin(["cp", text(&source), &url(&harness, "data/g")]);
    faults.wait_for_held(1);
    twice(&copy);
    let (code, said) = ended(copy);
    faults.release();
    let left = names(&harness.data()).into_iter().find(|name| name.starts_with(".dafs-cp-")).unwrap();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains(&format!("{left}' remains: remove it")), "{said}");
}

// [CMD-2] [CMD-96] timeout(1) sends SIGTERM to the program, and then to its group.
fn copy_that_is_terminated_twice_cleans_up_as_one_that_is_once(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let source = harness.scratch().join("source");
    fs::write(&source, bytes(1, SIZES[1])).unwrap();
    faults.next(Kind::Write, Fault::Hold, usize::MAX);
    let copy = begin(["cp", text(&source), &url(&harness, "data/g")]);
    faults.wait_for_held(1);
    for name in [Signal::TERM, Signal::TERM, Signal::HUP] {
        signal(copy.id(), name).unwrap();
        while is_signal_waiting(&copy) {}
    }
    faults.release();
    let (code, said) = ended(copy);
    assert_eq!((code, names(&harness.data()).len()), (Some(130), 0), "{said}");
}

// [CMD-2] [CMD-13] The server makes the name after the command has given up.
fn copy_whose_name_was_made_too_late_tells_it(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let source = harness.scratch().join("source");
    fs::write(&source, bytes(1, SIZES[1])).unwrap();
    faults.next(Kind::Open, Fault::Hold, 1);
    let copy = begin(["--timeout=5", "cp", text(&source), &url(&harness, "data/g")]);
    let (code, said) = ended(copy);
    faults.release();
    while names(&harness.data()).is_empty() {}
    let left = names(&harness.data()).remove(0);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("{left}' remains: remove it")), "{said}");
}

// [CMD-34]
fn copy_whose_source_goes_away_gives_directories_their_modes(on: On) {
    let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 1);
    let world = World::start(on);
    let below = harness.data().join("tree/below");
    fs::create_dir_all(&below).unwrap();
    for name in ["one", "two", "three"] {
        fs::write(below.join(name), bytes(1, SIZES[1])).unwrap();
    }
    faults.next(Kind::Read, Fault::Hold, usize::MAX);
    // One after the other: what the first waits for may end before the session does.
    let (from, to) = (url(&harness, "data/tree"), world.url("data/copy"));
    let copy = begin(["cp", "-r", "--jobs=1", "--timeout=6", &from, &to]);
    faults.wait_for_held(1);
    harness.stop();
    let (code, said) = ended(copy);
    assert!(code == Some(1) && said.contains("the rest was not copied"), "{said}");
    for name in ["copy", "copy/below"] {
        let mode = fs::metadata(world.data().join(name)).unwrap().mode() & 0o777;
        assert_eq!(mode, fs::metadata(&below).unwrap().mode() & 0o777, "{name}: {said}");
    }
}

// [CMD-91] [CMD-92]
fn copy_that_is_begun_again_gives_directories_of_the_first_their_modes(on: On) {
    // In a directory that gives its group to what is made in it, too.
    for given in [0, 0o2000] {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        let below = harness.scratch().join("tree/below");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("file"), bytes(1, SIZES[1])).unwrap();
        let mode = |name: &str| fs::metadata(harness.data().join(name)).unwrap().mode() & 0o7777;
        let own = fs::metadata(&below).unwrap().mode() & 0o7777;
        // One that was there stays as it is.
        fs::create_dir_all(harness.data().join("copy")).unwrap();
        fs::set_permissions(harness.data().join("copy"), fs::Permissions::from_mode(0o700 | given)).unwrap();
        let (from, to) = (harness.scratch().join("tree/."), url(&harness, "data/copy"));
        faults.next(Kind::Write, Fault::Hold, 1);
        let mut copy = begin(["cp", "-r", text(&from), &to]);
        faults.wait_for_held(1);
        copy.kill().unwrap();
        copy.wait().unwrap();
        faults.release();
        assert_eq!(mode("copy/below"), 0o1700 | given);
        dafs(["cp", "-r", text(&from), &to]).succeeded();
        assert_eq!((mode("copy"), mode("copy/below")), (0o700 | given, own | given));
        let copied = fs::read(harness.data().join("copy/below/file")).unwrap();
        assert_same(&copied, &bytes(1, SIZES[1]), "copied");
        // The other way, and below what was made as well.
        let to_local = harness.scratch().join("local");
        fs::create_dir(&to_local).unwrap();
        fs::set_permissions(&to_local, fs::Permissions::from_mode(0o700 | given)).unwrap();
        dafs(["cp", "-r", &url(&harness, "data/copy"), text(&to_local)]).succeeded();
        let made = fs::metadata(to_local.join("copy/below")).unwrap().mode() & 0o7777;
        assert_eq!(made, own | given);
    }
}

// [CMD-1] [CMD-2]
fn copy_that_finds_no_room_leaves_what_was_there(on: On) {
    for size in SIZES {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        let (source, there) = (harness.scratch().join("source"), harness.data().join("f"));
        fs::write(&source, bytes(1, size)).unwrap();
        fs::write(&there, "old").unwrap();
        faults.next(Kind::Write, Fault::Fail(Status::NO_SPACE), usize::MAX);
        dafs(["cp", text(&source), &url(&harness, "data/f")]).failed(1, &["cannot write", "no space"]);
        assert_eq!(fs::read(&there).unwrap(), b"old");
        assert_eq!(names(harness.data().as_path()), ["f"]);
    }
}

// [CMD-3]
fn copy_of_a_file_that_gives_less_than_it_claims_fails(on: On) {
    let down = tempfile::tempdir().unwrap();
    for claimed in [1 << 62, 3 << 20, 100] {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        fs::write(harness.data().join("f"), "12345").unwrap();
        fs::write(down.path().join("f"), "old").unwrap();
        faults.claim_size(claimed);
        let words = format!("size is {claimed} bytes, but only 5 could be read");
        dafs(["cp", &url(&harness, "data/f"), text(down.path())]).failed(1, &["cannot copy", &words]);
        assert_eq!(fs::read(down.path().join("f")).unwrap(), b"old");
        assert_eq!(names(down.path()), ["f"]);
    }
}

// [CMD-3] [CMD-14]
fn copy_of_a_file_that_shrinks_meanwhile_fails_and_says_so(on: On) {
    for size in SIZES {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        let (source, down) = (harness.data().join("f"), harness.scratch().join("down"));
        fs::write(&source, bytes(1, size)).unwrap();
        faults.next(Kind::Read, Fault::Hold, usize::MAX);
        let copy = begin(["cp", &url(&harness, "data/f"), text(&down)]);
        faults.wait_for_held(1);
        fs::File::options().write(true).open(&source).unwrap().set_len(1000).unwrap();
        faults.release();
        let (code, said) = ended(copy);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&format!("it shrank from {size} to 1000 bytes")), "{said}");
        assert!(!down.exists());
    }
}

// [CMD-3] [CMD-14]
fn copy_of_a_file_shrinking_in_a_hole_fails(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (source, down) = (harness.data().join("f"), harness.scratch().join("down"));
    let file = fs::File::create(&source).unwrap();
    for offset in [0, 4 << 20] {
        file.write_all_at(&bytes(1, SIZES[0]), offset).unwrap();
    }
    file.set_len(8 << 20).unwrap();
    faults.next(Kind::Read, Fault::Hold, usize::MAX);
    let copy = begin(["cp", &url(&harness, "data/f"), text(&down)]);
    faults.wait_for_held(1);
    // All that was asked for is still there.
    file.set_len(1 << 20).unwrap();
    faults.release();
    let (code, said) = ended(copy);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("it shrank from 8388608 to 1048576 bytes"), "{said}");
    assert!(!down.exists());
}

// [CMD-18]
fn copy_of_a_file_that_became_stale_is_made_once_more(on: On) {
    let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 100);
    let (source, down) = (harness.data().join("f"), harness.scratch().join("down"));
    fs::write(&source, bytes(1, SIZES[1])).unwrap();
    faults.next(Kind::Read, Fault::Hold, usize::MAX);
    let copy = begin(["cp", &url(&harness, "data/f"), text(&down)]);
    faults.wait_for_held(1);
    let other = harness.scratch().join("other");
    fs::write(&other, bytes(2, SIZES[1])).unwrap();
    fs::rename(&other, &source).unwrap();
    harness.restart();
    let (code, said) = ended(copy);
    assert_eq!(code, Some(0), "{said}");
    assert_same(&fs::read(down).unwrap(), &bytes(2, SIZES[1]), "the file that is there now");
}

// [CMD-18]
fn copy_of_a_pipe_to_a_file_that_became_stale_fails(on: On) {
    let mut world = World::start(on);
    let (copy, mut source) = begin_piped(&mut command(["cp", "/dev/stdin", &world.url("data/f")]));
    world.kill();
    let [draft] = &names(&world.data())[..] else { panic!("{:?}", names(&world.data())) };
    fs::remove_file(world.data().join(draft)).unwrap();
    world.restart();
    // Nobody reads this any more, when the copy has failed by then.
    let _ = source.write_all(&bytes(2, SIZES[1]));
    drop(source);
    let (code, said) = ended(copy);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot ") && said.contains("the server forgot the session"), "{said}");
    assert_eq!(names(&world.data()), [""; 0], "{said}");
}

// [CMD-18]
fn copy_to_a_pipe_of_a_file_that_became_stale_fails(on: On) {
    let mut world = World::start(on);
    // More than is read ahead.
    let size = 8 * SIZES[1];
    fs::write(world.data().join("f"), bytes(1, size)).unwrap();
    let mut copy = command(["cp", &world.url("data/f"), "/dev/stdout"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = vec![0];
    copy.stdout.as_mut().unwrap().read_exact(&mut shown).unwrap();
    fs::write(world.local("other"), bytes(2, size)).unwrap();
    fs::rename(world.local("other"), world.data().join("f")).unwrap();
    world.crash_and_restart();
    copy.stdout.take().unwrap().read_to_end(&mut shown).unwrap();
    let (code, said) = ended(copy);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot ") && said.contains("the server forgot the session"), "{said}");
    assert!(shown.len() < size, "{} bytes", shown.len());
    assert_same(&shown, &bytes(1, size)[..shown.len()], "the beginning");
}

// [CMD-18]
fn copy_whose_name_may_exist_is_checked_and_complete(on: On) {
    for size in SIZES {
        let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 100);
        let (source, there) = (harness.scratch().join("source"), harness.data().join("f"));
        fs::write(&source, bytes(1, size)).unwrap();
        // The name is made, and nobody is told.
        faults.next(Kind::Open, Fault::Late, 1);
        let copy = begin(["cp", text(&source), &url(&harness, "data/f")]);
        faults.wait_for_held(1);
        harness.restart();
        let (code, said) = ended(copy);
        assert_eq!(code, Some(0), "{said}");
        assert_same(&fs::read(&there).unwrap(), &bytes(1, size), "the copy");
        assert_eq!(names(harness.data().as_path()), ["f"], "{said}");
    }
}

// [CMD-44]
fn link_whose_name_was_there_is_not_made_over_a_restart(on: On) {
    for words in [&["ln", "-s", "new"][..], &["ln"]] {
        // Whichever operation the server makes the link by is held once.
        for passed in 0.. {
            let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 1);
            let there = harness.data().join("link");
            fs::write(harness.data().join("f"), "").unwrap();
            symlink("old", &there).unwrap();
            faults.next(Kind::Other, Fault::Pass, passed);
            faults.next(Kind::Other, Fault::Hold, 1);
            let (file, link) = (url(&harness, "data/f"), url(&harness, "data/link"));
            let file = (words.len() == 1).then_some(file);
            let words = words.iter().copied().chain(file.as_deref()).chain([&*link]);
            let mut ln = command(words).stderr(Stdio::piped()).spawn().unwrap();
            let is_held = loop {
                if faults.held() > 0 {
                    break true;
                }
                if ln.try_wait().unwrap().is_some() {
                    break false;
                }
            };
            if is_held {
                harness.restart();
            }
            let (code, said) = ended(ln);
            assert!(code == Some(1) && said.contains("file exists"), "{passed}: {code:?} {said}");
            assert_eq!(fs::read_link(&there).unwrap(), Path::new("old"));
            if !is_held {
                break;
            }
        }
    }
}

/// Copies `size` bytes over an old file, while a crash of the machine undoes the rename of the copy. Returns what came of the copy.
fn copy_over_a_crash(on: On, size: usize, restart: impl Fn(&mut Harness)) -> (Harness, Option<i32>, String) {
    loop {
        let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 100);
        let (source, there) = (harness.scratch().join("source"), harness.data().join("f"));
        fs::write(&source, bytes(1, size)).unwrap();
        // That of the file; the next is of its directory.
        faults.next(Kind::Commit, Fault::Pass, 1);
        faults.next(Kind::Commit, Fault::Hold, usize::MAX);
        let copy = begin(["cp", text(&source), &url(&harness, "data/f")]);
        let mut draft = None;
        while faults.held() == 0 {
            draft = names(&harness.data()).into_iter().find(|name| name.starts_with(".dafs-")).or(draft);
        }
        let Some(draft) = draft else {
            // It was there too shortly to be seen.
            faults.release();
            ended(copy);
            continue;
        };
        harness.stop();
        fs::rename(&there, harness.data().join(draft)).unwrap();
        fs::write(&there, "old").unwrap();
        restart(&mut harness);
        let (code, said) = ended(copy);
        return (harness, code, said);
    }
}

// [CMD-12] [CMD-77]
fn copy_whose_rename_a_crash_of_the_machine_undoes_is_renamed_again(on: On) {
    for size in SIZES {
        let (harness, code, said) = copy_over_a_crash(on, size, Harness::restart);
        assert_eq!(code, Some(0), "{said}");
        assert_same(&fs::read(harness.data().join("f")).unwrap(), &bytes(1, size), "the copy");
        assert_eq!(names(&harness.data()), ["f"], "{said}");
    }
}

// [CMD-12] [CMD-77] Whichever operation of those that follow the crash it is.
fn copy_unable_to_check_after_a_crash_is_whole_or_fails(on: On) {
    for before in 0..6 {
        let (harness, code, said) = copy_over_a_crash(on, SIZES[0], |harness| {
            let (faults, wrap) = Faults::new();
            faults.next(Kind::Other, Fault::Pass, before);
            faults.next(Kind::Other, Fault::Fail(Status::IO), 1);
            harness.restart_over(wrap);
        });
        let is_whole = fs::read(harness.data().join("f")).unwrap() == bytes(1, SIZES[0]);
        assert!(if code == Some(0) { is_whole } else { said.contains("cannot ") }, "{before}: {said}");
    }
}

// [CMD-12] [CMD-77]
fn copy_whose_name_a_crash_of_the_machine_loses_fails(on: On) {
    for lost in ["f", "link", "below"] {
        let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 100);
        let (tree, there) = (harness.scratch().join("tree"), harness.data().join("tree"));
        fs::create_dir_all(tree.join("below")).unwrap();
        fs::write(tree.join("f"), "content").unwrap();
        symlink("nowhere", tree.join("link")).unwrap();
        // Those of the file, and of the directory below; the next is of the tree.
        faults.next(Kind::Commit, Fault::Pass, 2);
        faults.next(Kind::Commit, Fault::Hold, usize::MAX);
        let copy = begin(["cp", "-r", text(&tree), &url(&harness, "data/tree")]);
        faults.wait_for_held(1);
        harness.stop();
        let path = there.join(lost);
        let removed = if lost == "below" { fs::remove_dir(path) } else { fs::remove_file(path) };
        removed.unwrap();
        harness.restart();
        let (code, said) = ended(copy);
        assert_eq!(code, Some(1), "{said}");
        let words = format!("tree/{lost}': a restart of the server lost it: copy it again");
        assert!(said.contains(&words), "{said}");
    }
}

// [CMD-4]
fn copy_in_place_keeps_links_and_reaches_devices(on: On) {
    let world = World::start(on);
    for size in SIZES {
        let data = bytes(size as u64, size);
        fs::write(world.data().join("f"), &data).unwrap();
        let url = world.url("data/f");
        let shown = command(["cp", &url, "/dev/stdout"]).output().unwrap();
        assert_eq!((shown.status.code(), shown.stderr.len()), (Some(0), 0));
        assert_same(&shown.stdout, &data, "a pipe");
        let file = fs::File::create(world.local("redirected")).unwrap();
        assert!(command(["cp", &url, "/dev/stdout"]).stdout(file).status().unwrap().success());
        assert_same(&fs::read(world.local("redirected")).unwrap(), &data, "what standard output is");
        dafs(["cp", &url, "/dev/null"]).succeeded();
        // On this machine and on the server alike.
        for directory in [world.local("here"), world.data().join("there")] {
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("one"), "old").unwrap();
            let _ = fs::remove_file(directory.join("two"));
            fs::hard_link(directory.join("one"), directory.join("two")).unwrap();
            fs::write(directory.join("behind"), "old").unwrap();
            let _ = fs::remove_file(directory.join("link"));
            symlink("behind", directory.join("link")).unwrap();
            fs::write(directory.join("kept"), "old").unwrap();
            let inode = fs::metadata(directory.join("kept")).unwrap().ino();
            let to = |name: &str| match directory.ends_with("here") {
                true => text(&directory.join(name)).to_owned(),
                false => world.url(&format!("data/there/{name}")),
            };
            dafs(["cp", &url, &to("one")]).succeeded();
            dafs(["cp", &url, &to("link")]).succeeded();
            dafs(["cp", "--inplace", &url, &to("kept")]).succeeded();
            for name in ["one", "two", "behind", "kept"] {
                assert_same(&fs::read(directory.join(name)).unwrap(), &data, name);
            }
            assert_eq!(fs::metadata(directory.join("two")).unwrap().nlink(), 2);
            assert!(fs::symlink_metadata(directory.join("link")).unwrap().is_symlink());
            assert_eq!(fs::metadata(directory.join("kept")).unwrap().ino(), inode);
        }
    }
}

// [CMD-6] [CMD-19]
fn listing_without_end_ends(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    for number in 0..2000 {
        fs::write(harness.data().join(format!("{number:08}")), "").unwrap();
    }
    faults.list_without_end();
    let url = url(&harness, "data");
    dafs(["ls", "-l", &url]).failed(1, &["more entries than 128 MiB hold", "-U"]);
    // As it comes it costs no memory, however long it lasts.
    let mut listing = command(["ls", "-lU", &url]).stdout(Stdio::piped()).spawn().unwrap();
    let mut some = vec![0; 1 << 20];
    listing.stdout.take().unwrap().read_exact(&mut some).unwrap();
    // Nobody reads the rest.
    assert!(listing.wait().unwrap().success());
}
