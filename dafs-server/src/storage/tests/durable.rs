//! What is made durable, as the kernel is asked for it: many file systems make more durable than they are asked to, and no crash of theirs
//! would show what was forgotten.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::Arc;

use dafs_proto::wire::{OpenFlags, Stability, Status};
use rustix::io::Errno;

use super::harness::*;
use super::sieve_steps::{act, directories, serve};
use crate::storage::file_system::{Attempt, FileSystem, RingNext, Run};
use crate::storage::posix::steps::{Call, Course, watched};
use crate::storage::*;

/// What the kernel was asked to make durable meanwhile, by its number. On tmpfs this thread does it all.
fn synced(work: impl FnOnce()) -> Vec<u64> {
    let calls = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&calls);
    let watch = move |call| {
        if let Call::Sync(number) = call {
            seen.borrow_mut().push(number);
        }
        Course::Go
    };
    watched(watch, work).unwrap();
    calls.take()
}

/// The same, and whether that was all of a file system.
fn all_synced(work: impl FnOnce()) -> Vec<Call> {
    let calls = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&calls);
    let watch = move |call| {
        seen.borrow_mut().extend(matches!(call, Call::Sync(_) | Call::SyncAll).then_some(call));
        Course::Go
    };
    watched(watch, work).unwrap();
    calls.take()
}

fn number_of(f: &Fixture, path: &str) -> u64 {
    std::fs::metadata(f.directory.as_ref().unwrap().path().join("root").join(path)).unwrap().ino()
}

fn commit(f: &mut Fixture, node: NodeId, stability: Stability) {
    f.run(FsOp::Commit { node, offset: 0, len: 0, stability }).unwrap();
}

// [STOR-74] [STOR-75]
#[test]
#[ignore = "needs dev-shm"]
fn first_full_commit_of_new_file_covers_its_name() {
    let mut f = Fixture::new(Kind::Tmpfs);
    f.mkdir("d").unwrap();
    let directory = number_of(&f, "d");
    for (name, writes) in [("d/committed", false), ("d/written", true)] {
        let node = f.open(name, RWC).unwrap();
        let file = number_of(&f, name);
        f.write(node, 0, b"data").unwrap();
        assert_eq!(synced(|| commit(&mut f, node, Stability::DataSync)), [file], "{name}: of the data alone");
        let found = synced(|| match writes {
            true => drop(f.write_submitted(node, 0, &[b"data"], Stability::FileSync).unwrap()),
            false => commit(&mut f, node, Stability::FileSync),
        });
        // The write itself is made durable by its flags.
        assert_eq!(found, if writes { vec![directory] } else { vec![file, directory] }, "{name}");
        assert_eq!(
            synced(|| commit(&mut f, node, Stability::FileSync)),
            [file],
            "{name}: its name is durable"
        );
        // It is the name that it has by then.
        let moved = f.open(format!("{name}-moved"), RWC).unwrap();
        f.rename(format!("{name}-moved"), name.trim_start_matches("d/"), true).unwrap();
        let found = synced(|| commit(&mut f, moved, Stability::FileSync));
        assert_eq!(found[1..], [number_of(&f, "")], "{name}: renamed");
    }
    let node = f.lookup("d").unwrap();
    assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)), [directory]);
}

// [STOR-173]
#[test]
#[ignore = "needs dev-shm"]
fn full_commit_of_newly_linked_file_covers_its_name() {
    let mut f = Fixture::new(Kind::Tmpfs);
    f.mkdir("d").unwrap();
    f.open("d/old", RWC).unwrap();
    let directory = number_of(&f, "d");
    for (name, replace) in [("d/new", false), ("d/old", true)] {
        let node = f.open("", OpenFlags::READ | OpenFlags::WRITE | OpenFlags::UNNAMED).unwrap();
        f.write(node, 0, b"data").unwrap();
        assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)).len(), 1, "{name}: it has no name");
        let from = At { node, path: Vec::new() };
        let to = f.at(name);
        let found = synced(|| drop(f.run(FsOp::Link { from, to, replace }).unwrap()));
        assert_eq!(found, Vec::<u64>::new(), "{name}");
        let found = synced(|| commit(&mut f, node, Stability::FileSync));
        assert_eq!(found, [number_of(&f, name), directory], "{name}");
    }
}

/// A file that has no name, opened in the export's root, and what its `Link` is to be.
fn nameless(f: &mut Fixture, to: &str) -> (NodeId, FsOp) {
    let node = f.open("", OpenFlags::READ | OpenFlags::WRITE | OpenFlags::UNNAMED).unwrap();
    f.write(node, 0, b"data").unwrap();
    let from = At { node, path: Vec::new() };
    (node, FsOp::Link { from, to: f.at(to), replace: false })
}

// [STOR-173]
#[test]
#[ignore = "needs dev-shm"]
fn name_whose_directory_could_not_be_synced_is_not_durable_yet() {
    let mut f = Fixture::new(Kind::Tmpfs);
    f.mkdir("d").unwrap();
    f.mkdir("e").unwrap();
    let directory = number_of(&f, "d");
    let (node, link) = nameless(&mut f, "d/f");
    f.run(link).unwrap();
    // A further name does not make one forget the first.
    f.run(FsOp::Link { from: At { node, path: Vec::new() }, to: f.at("e/f"), replace: false }).unwrap();
    let fails = move |call| match call {
        Call::Sync(number) if number == directory => Course::Fail(Errno::IO),
        _ => Course::Go,
    };
    let op = || FsOp::Commit { node, offset: 0, len: 0, stability: Stability::FileSync };
    for _ in 0..2 {
        let result = watched(fails, || f.run(op())).unwrap();
        assert!(matches!(result, Err(Status::IO)), "{result:?}");
    }
    assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)), [number_of(&f, "d/f"), directory]);
    assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)), [number_of(&f, "d/f")]);
}

// [STOR-173] The first of two full commits fails at the name: the second one, which came meanwhile, does not rely on it.
#[test]
fn full_commit_beside_another_that_fails_makes_the_name_durable_itself() {
    let directory = tempfile::tempdir().unwrap();
    let [(mut server, _), _] = serve(directory.path());
    std::fs::create_dir(directory.path().join("d")).unwrap();
    let at = |path: &str| At { node: server.root(), path: path.into() };
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::UNNAMED;
    let (unnamed, named, below) = (at(""), at("d/f"), directory.path().join("d"));
    let opened = act(&mut *server, FsOp::Open { at: unnamed, flags, mode: 0o644, admission: None });
    let node = match opened {
        Ok(FsReply::Node(node, _)) => node,
        other => panic!("{other:?}"),
    };
    let from = At { node, path: Vec::new() };
    act(&mut *server, FsOp::Link { from, to: named, replace: false }).unwrap();
    let [file, below] = [below.join("f"), below].map(|path| std::fs::metadata(path).unwrap().ino());
    let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
    let [first, second] = [(); 2].map(|()| {
        let op = FsOp::Commit { node, offset: 0, len: 0, stability: Stability::FileSync };
        match server.attempt(&identity, op) {
            Attempt::Job(job) => job,
            _ => panic!("it waits"),
        }
    });
    let (came, has_come) = std::sync::mpsc::channel();
    let (mut second, beside) = (Some(second), Rc::new(RefCell::new(None)));
    let started = Rc::clone(&beside);
    let watch = move |call| match (call, second.take_if(|_| call == Call::Sync(below))) {
        (_, Some(second)) => {
            let came = came.clone();
            let run = move || {
                let found = synced(|| {
                    // Its file is synced first, and then it asks for the name.
                    came.send(()).unwrap();
                    assert!(matches!(second.run(), Run::Done(Ok(_))));
                });
                assert_eq!(found, [file, below]);
            };
            started.replace(Some(std::thread::spawn(run)));
            has_come.recv().unwrap();
            Course::Fail(Errno::IO)
        }
        _ => Course::Go,
    };
    assert!(matches!(watched(watch, || first.run()).unwrap(), Run::Done(Err(Status::IO))));
    beside.take().unwrap().join().unwrap();
}

// [STOR-74] A directory on the way to the file gets another name, and another one its own.
#[test]
#[ignore = "needs dev-shm"]
fn name_below_a_directory_that_is_renamed_meanwhile_is_made_durable() {
    for another in [false, true] {
        let mut f = Fixture::new(Kind::Tmpfs);
        f.mkdir("d").unwrap();
        let node = f.open("d/f", RWC).unwrap();
        let [file, directory] = ["d/f", "d"].map(|path| number_of(&f, path));
        let root = f.directory.as_ref().unwrap().path().join("root");
        let (calls, mut is_renamed) = (Rc::new(RefCell::new(Vec::new())), false);
        let seen = Rc::clone(&calls);
        let watch = move |call| {
            if call == Call::OpenDirectory && !std::mem::replace(&mut is_renamed, true) {
                std::fs::rename(root.join("d"), root.join("e")).unwrap();
                if another {
                    std::fs::create_dir(root.join("d")).unwrap();
                }
            }
            if let Call::Sync(number) = call {
                seen.borrow_mut().push(number);
            }
            Course::Go
        };
        watched(watch, || commit(&mut f, node, Stability::FileSync)).unwrap();
        let found = calls.take();
        assert_eq!((found.first(), found.last()), (Some(&file), Some(&directory)), "{found:?}");
        assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)), [file], "its name is durable");
    }
}

// [STOR-74] A directory has the name of the file's for a while: it was not what the file is in.
#[test]
#[ignore = "needs dev-shm"]
fn name_below_a_directory_whose_name_another_has_meanwhile_is_made_durable() {
    let mut f = Fixture::new(Kind::Tmpfs);
    f.mkdir("d").unwrap();
    let node = f.open("d/f", RWC).unwrap();
    let [file, directory] = ["d/f", "d"].map(|path| number_of(&f, path));
    let root = f.directory.as_ref().unwrap().path().join("root");
    let (calls, mut is_renamed) = (Rc::new(RefCell::new(Vec::new())), false);
    let seen = Rc::clone(&calls);
    let watch = move |call| {
        match call {
            Call::OpenDirectory if !std::mem::replace(&mut is_renamed, true) => {
                std::fs::rename(root.join("d"), root.join("e")).unwrap();
                std::fs::create_dir(root.join("d")).unwrap();
            }
            Call::Sync(number) if ![file, directory].contains(&number) => {
                std::fs::remove_dir(root.join("d")).unwrap();
                std::fs::rename(root.join("e"), root.join("d")).unwrap();
            }
            _ => {}
        }
        if let Call::Sync(number) = call {
            seen.borrow_mut().push(number);
        }
        Course::Go
    };
    watched(watch, || commit(&mut f, node, Stability::FileSync)).unwrap();
    assert!(calls.take().contains(&directory));
    assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)), [file], "its name is durable");
}

// [STOR-74]
#[test]
#[ignore = "needs dev-shm"]
fn name_that_is_gone_needs_not_be_durable() {
    let mut f = Fixture::new(Kind::Tmpfs);
    let node = f.open("f", RWC).unwrap();
    let file = number_of(&f, "f");
    f.remove("f", false).unwrap();
    for _ in 0..2 {
        assert_eq!(all_synced(|| commit(&mut f, node, Stability::FileSync)), [Call::Sync(file)]);
    }
}

// [STOR-74] No path leads to its directory.
#[test]
#[ignore = "needs mount"]
fn name_below_a_hidden_directory_is_made_durable() {
    let mut f = Fixture::new(Kind::Tmpfs);
    f.mkdir("d").unwrap();
    let node = f.open("d/f", RWC).unwrap();
    let file = number_of(&f, "d/f");
    let hidden = f.directory.as_ref().unwrap().path().join("root/d");
    let run = |command: &mut std::process::Command| assert!(command.arg(&hidden).status().unwrap().success());
    run(std::process::Command::new("mount").args(["-t", "tmpfs", "tmpfs"]));
    let found = all_synced(|| commit(&mut f, node, Stability::FileSync));
    run(std::process::Command::new("umount").arg("-l"));
    assert_eq!(found, [Call::Sync(file), Call::SyncAll]);
    assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)), [file], "its name is durable");
}

// [STOR-179] An append that is answered with an error is not in the file because of its name.
#[test]
#[ignore = "needs dev-shm"]
fn file_sync_append_without_durable_name_is_not_written() {
    let mut f = Fixture::new(Kind::Tmpfs);
    let node = f.open("log", RWC).unwrap();
    let directory = number_of(&f, "");
    let op = || FsOp::Append { node, from: vec![memory_of(b"record")], stability: Stability::FileSync };
    let fails = move |call| match call {
        Call::Sync(number) if number == directory => Course::Fail(Errno::IO),
        _ => Course::Go,
    };
    let result = watched(fails, || f.run(op())).unwrap();
    assert!(matches!(result, Err(Status::IO)), "{result:?}");
    assert_eq!(f.stat("log").unwrap().size, 0);
    assert_eq!(synced(|| drop(f.run(op()).unwrap())), [directory]);
    assert_eq!(f.stat("log").unwrap().size, 6);
}

// [STOR-74] Its directory cannot be found by a path: all of the file system is made durable.
#[test]
#[ignore = "needs dev-shm"]
fn name_below_an_overlong_path_is_made_durable() {
    let mut f = Fixture::new(Kind::Tmpfs);
    let mut node = f.root();
    for _ in 0..20 {
        let at = At { node, path: vec![b'd'; 250] };
        f.run(FsOp::Mkdir { at: at.clone(), mode: 0o755 }).unwrap();
        node = match f.run(FsOp::Lookup { at, follow: false }) {
            Ok(FsReply::Node(node, _)) => node,
            other => panic!("{other:?}"),
        };
    }
    let node = f.open_at(At { node, path: b"f".to_vec() }, RWC).unwrap();
    let calls = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&calls);
    let watch = move |call| {
        seen.borrow_mut().push(call);
        Course::Go
    };
    watched(watch, || commit(&mut f, node, Stability::FileSync)).unwrap();
    assert!(matches!(calls.take()[..], [Call::Sync(_), Call::SyncAll]));
    assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)).len(), 1, "its name is durable");
}

// [STOR-76] Whichever export the kernel tells, the data was written through another.
#[test]
#[ignore = "needs dev-shm"]
fn write_back_that_failed_is_told_to_every_export_of_the_directory() {
    let mut f = Fixture::new(Kind::Tmpfs).twice();
    let verifiers = |f: &Fixture| [0, 1].map(|export| f.storage.verifier(ExportId(export)));
    f.open("f", RWC).unwrap();
    let node = f.open_again("f", RW);
    let before = verifiers(&f);
    let fails = |call| if matches!(call, Call::Sync(_)) { Course::Fail(Errno::IO) } else { Course::Go };
    let op = FsOp::Commit { node, offset: 0, len: 0, stability: Stability::DataSync };
    let result = watched(fails, || f.run(op)).unwrap();
    assert!(matches!(result, Err(Status::IO)), "{result:?}");
    for (before, now) in before.into_iter().zip(verifiers(&f)) {
        assert!(was_lost(before, now), "{before:x} and {now:x}");
    }
    // What may have been lost is told so as well.
    let before = verifiers(&f);
    let full = |call| if call == Call::Write { Course::Fail(Errno::NOSPC) } else { Course::Go };
    let result = watched(full, || f.run(write_of(node, Stability::DataSync))).unwrap();
    assert!(matches!(result, Err(Status::NO_SPACE)), "{result:?}");
    for (before, now) in before.into_iter().zip(verifiers(&f)) {
        assert!(now != before && !was_lost(before, now), "{before:x} and {now:x}");
    }
}

/// A thread of this process waits, and not for a disk.
fn is_asleep(thread: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

// [STOR-76] The kernel tells an open file once: another commit of it hears of nothing, and ends when the first has told.
#[test]
fn commit_beside_another_that_meets_a_loss_ends_when_that_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let [(mut server, node), (worker, _)] = serve(directory.path());
    let before = server.verifier();
    let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
    let [first, second] = [(); 2].map(|()| {
        let op = FsOp::Commit { node, offset: 0, len: 0, stability: Stability::DataSync };
        match server.attempt(&identity, op) {
            Attempt::Job(job) => job,
            _ => panic!("it waits"),
        }
    });
    let mut others = Some((second, worker));
    let beside = Rc::new(RefCell::new(None));
    let started = Rc::clone(&beside);
    let watch = move |call| {
        if let (Call::Sync(_), Some((second, worker))) = (call, others.take()) {
            let (begins, has_begun) = std::sync::mpsc::channel();
            let beside = std::thread::spawn(move || {
                begins.send(rustix::thread::gettid()).unwrap();
                assert!(matches!(second.run(), Run::Done(Ok(_))));
                assert!(was_lost(before, worker.verifier()), "it is answered as if all was kept");
            });
            let id = has_begun.recv().unwrap().as_raw_nonzero();
            // It waits for this one, or is over.
            while !beside.is_finished() && !is_asleep(id.get()) {
                std::thread::yield_now();
            }
            started.replace(Some(beside));
        }
        Course::Fail(Errno::IO)
    };
    assert!(matches!(watched(watch, || first.run()).unwrap(), Run::Done(Err(Status::IO))));
    beside.take().unwrap().join().unwrap();
}

const DURABLE: [Stability; 2] = [Stability::DataSync, Stability::FileSync];

fn write_of(node: NodeId, stability: Stability) -> FsOp {
    FsOp::Write { node, offset: 0, from: vec![memory_of(b"data")], stability }
}

/// Whether data was lost meanwhile: other durable writes that are under way are not answered as written then.
fn loses(server: &mut Box<dyn FileSystem>, work: impl FnOnce(&mut Box<dyn FileSystem>)) -> bool {
    let before = server.verifier();
    work(server);
    assert_ne!(server.verifier(), before, "unstable data may be lost in either case");
    was_lost(before, server.verifier())
}

// [STOR-72] [STOR-76] The kernel tells an open file once what write-back met: whichever of several writes hears of it tells the others.
#[test]
fn durable_write_misreporting_no_room_fails_concurrent_ones() {
    for directory in directories() {
        let directory = tempfile::tempdir_in(directory).unwrap();
        let [(mut server, node), _] = serve(directory.path());
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            for (again, is_lost) in [(Course::Go, true), (Course::Cut(1), true), (Course::Fail(errno), false)]
            {
                for stability in DURABLE {
                    let found = loses(&mut server, |server| {
                        let mut courses = [Course::Fail(errno), again].into_iter();
                        let watch = move |call| match call {
                            Call::Write => courses.next().expect("it is written twice at most"),
                            _ => Course::Go,
                        };
                        let result = watched(watch, || act(&mut **server, write_of(node, stability)));
                        assert_eq!(count(result.unwrap()), Err(errno.into()));
                    });
                    assert_eq!(found, is_lost, "{errno:?} {again:?} {stability:?}");
                }
            }
        }
    }
}

// [STOR-72] [STOR-76] Nothing is appended twice to find out.
#[test]
fn durable_append_without_room_fails_concurrent_durable_writes() {
    for directory in directories() {
        let directory = tempfile::tempdir_in(directory).unwrap();
        let [(mut server, node), _] = serve(directory.path());
        for (grows, stability) in [false, true].into_iter().flat_map(|grows| DURABLE.map(|way| (grows, way)))
        {
            let file = std::fs::OpenOptions::new().write(true).open(directory.path().join("f")).unwrap();
            let found = loses(&mut server, |server| {
                let watch = move |call| match call {
                    Call::Write => {
                        file.set_len(file.metadata().unwrap().len() + u64::from(grows)).unwrap();
                        Course::Fail(Errno::NOSPC)
                    }
                    _ => Course::Go,
                };
                let op = FsOp::Append { node, from: vec![memory_of(b"data")], stability };
                let result = watched(watch, || act(&mut **server, op)).unwrap();
                assert!(matches!(result, Err(Status::NO_SPACE)), "{result:?}");
            });
            assert_eq!(found, grows, "{stability:?}");
        }
    }
}

// [STOR-72] [STOR-76] The same of the ring.
#[test]
fn durable_ring_write_without_room_is_retried_for_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    let [(mut server, node), _] = serve(directory.path());
    let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
    let ended = |next| match next {
        RingNext::Continue => None,
        RingNext::End(result) => Some(result),
    };
    let full = Some(Err(Status::NO_SPACE));
    for (results, expected, is_lost) in [
        (&[-libc::ENOSPC, 4][..], full, true),
        (&[-libc::ENOSPC, -libc::EINTR, 1], full, true),
        (&[-libc::ENOSPC, -libc::ENOSPC], full, false),
        (&[2, -libc::ENOSPC, 1], Some(Ok(2)), true),
        (&[2, -libc::ENOSPC, -libc::ENOSPC], Some(Ok(2)), false),
    ] {
        let found = loses(&mut server, |server| {
            let job = match server.attempt(&identity, write_of(node, Stability::DataSync)) {
                Attempt::Data(job) => job,
                _ => panic!("it waits"),
            };
            let mut op = job.into_ring_op().ok().expect("it is for the ring");
            let (last, before) = results.split_last().unwrap();
            before.iter().for_each(|result| assert_eq!(ended(op.complete(*result)), None));
            assert_eq!(ended(op.complete(*last)), expected);
        });
        assert_eq!(found, is_lost, "{results:?}");
    }
}
