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
use crate::storage::file_system::{Attempt, FileSystem};
use crate::storage::posix::RingNext;
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

fn number_of(f: &Fixture, path: &str) -> u64 {
    std::fs::metadata(f.directory.as_ref().unwrap().path().join("root").join(path)).unwrap().ino()
}

fn commit(f: &mut Fixture, node: NodeId, stability: Stability) {
    f.run(FsOp::Commit { node, offset: 0, len: 0, stability }).unwrap();
}

// [STOR-74] [STOR-75]
#[test]
#[ignore = "needs dev-shm"]
fn first_full_commit_of_a_file_that_was_made_is_of_its_name_too() {
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
fn full_commit_of_a_file_that_was_given_a_name_is_of_that_too() {
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
fn durable_write_that_finds_no_room_where_there_is_some_takes_others_with_it() {
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
fn durable_append_that_grew_the_file_and_found_no_room_takes_others_with_it() {
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
fn durable_write_in_the_ring_that_finds_no_room_is_written_again_to_learn_why() {
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
