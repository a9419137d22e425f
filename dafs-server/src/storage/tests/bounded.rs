//! What the loop does itself costs no more because a client likes it to, and hangs with nothing.

use dafs_proto::transport::Span;
use dafs_proto::wire::{OpenFlags, SeekWhat, Stability, Status};

use super::harness::*;
use super::sieve_steps::serve;
use crate::storage::file_system::{Attempt, FileSystem};
use crate::storage::posix::open_for_tests;
use crate::storage::*;

/// Steps of one operation at most: all of a long path, or all nodes on both edges of a range.
const STEPS_MAX: usize = 5000;

fn limited(size_max: u64) -> Fixture {
    let kind = ExportKind::Memory { size_max };
    Fixture::with(Kind::Mem, |export| export.kind = kind, &StorageConfig::default())
}

/// Runs it, all of it at once and in few steps.
fn quick(f: &mut Fixture, op: FsOp) -> FsResult {
    let told = format!("{op:?}");
    work::take();
    let identity = f.identity.clone();
    let Submitted::Done(result) = f.storage.submit(OpToken(0), &identity, op) else { panic!("{told} waits") };
    let steps = work::take();
    assert!(steps <= STEPS_MAX, "{told} takes {steps} steps");
    result
}

fn allocated(f: &mut Fixture, path: &str) -> u64 {
    f.stat(path).unwrap().allocated
}

// [STOR-29] [BUF-25]
#[test]
fn memory_file_operations_take_few_steps_at_any_size() {
    const SIZE: u64 = 1 << 44;
    let mut f = limited(SIZE + (1 << 20));
    let node = f.open("f", RWC).unwrap();
    for (offset, len) in [(0, SIZE), (5, SIZE - 5), (SIZE / 3, SIZE / 3 + 7), (1 << 40, 1)] {
        quick(&mut f, FsOp::Allocate { node, offset, len }).unwrap();
        assert!(allocated(&mut f, "f") >= len);
        f.write(node, offset + len / 2, b"data").unwrap();
        let seek = |f: &mut Fixture, offset, what| quick(f, FsOp::Seek { node, offset, what });
        let data = (offset + len / 2) / (64 << 10) * (64 << 10);
        assert!(matches!(seek(&mut f, 0, SeekWhat::Data), Ok(FsReply::Offset(at)) if at == data));
        assert!(matches!(seek(&mut f, data, SeekWhat::Hole), Ok(FsReply::Offset(at)) if at > data));
        quick(&mut f, FsOp::Punch { node, offset: 1000, len: SIZE / 2 }).unwrap();
        let at = f.at("f");
        quick(&mut f, FsOp::Getattr { at, follow: true }).unwrap();
        quick(&mut f, FsOp::Truncate { node, size: 0 }).unwrap();
        assert_eq!(allocated(&mut f, "f"), 0);
    }
    assert!(matches!(
        quick(&mut f, FsOp::Allocate { node, offset: 0, len: SIZE * 2 }),
        Err(Status::NO_SPACE)
    ));
    assert_eq!(allocated(&mut f, "f"), 0);
}

// [STOR-25] [STOR-29]
#[test]
fn space_that_was_reserved_is_there_when_it_is_written() {
    let mut f = limited(1 << 20);
    let (first, second) = (f.open("first", RWC).unwrap(), f.open("second", RWC).unwrap());
    f.run(FsOp::Allocate { node: first, offset: 0, len: 512 << 10 }).unwrap();
    assert_eq!(f.read(first, 1000, 10).unwrap(), [0; 10]);
    let data = vec![7; 1 << 20];
    let written = f.write(second, 0, &data).unwrap();
    assert!(written < 512 << 10, "{written} beside what is reserved");
    assert_eq!(f.write(second, written as u64, &data), Err(Status::NO_SPACE));
    assert_eq!(f.write(first, 0, &data[..512 << 10]), Ok(512 << 10));
    assert_eq!(allocated(&mut f, "first"), 512 << 10);
    f.run(FsOp::Punch { node: first, offset: 0, len: 256 << 10 }).unwrap();
    assert_eq!(allocated(&mut f, "first"), 256 << 10);
    assert!(f.write(second, written as u64, &data[..192 << 10]).is_ok());
}

// [STOR-29] What is reserved is there already.
#[test]
fn space_that_was_reserved_can_be_allocated_again_when_none_is_left() {
    let mut f = limited(1 << 20);
    let (first, second) = (f.open("first", RWC).unwrap(), f.open("second", RWC).unwrap());
    let allocate = |offset, len| FsOp::Allocate { node: first, offset, len };
    f.run(allocate(0, 512 << 10)).unwrap();
    let written = f.write(second, 0, &vec![7; 1 << 20]).unwrap();
    let data = vec![7; 1 << 20];
    assert_eq!(f.write(second, written as u64, &data), Err(Status::NO_SPACE));
    for (offset, len) in [(0, 100 << 10), (1, 1), (70_000, 10), (5, (512 << 10) - 5)] {
        let result = f.run(allocate(offset, len));
        assert!(matches!(result, Ok(FsReply::Done)), "{len} at {offset}: {result:?}");
        assert_eq!(allocated(&mut f, "first"), 512 << 10);
    }
    assert!(matches!(f.run(allocate(0, 600 << 10)), Err(Status::NO_SPACE)));
}

// [STOR-30] [STOR-78]
#[test]
fn memory_given_back_is_freed_a_part_at_a_time() {
    let mut f = limited(64 << 20);
    let data = vec![1; 48 << 20];
    for way in 0..4 {
        let node = f.open("f", RWC).unwrap();
        assert_eq!(f.write(node, 0, &data), Ok(data.len()));
        work::take();
        match way {
            0 => drop(quick(&mut f, FsOp::Truncate { node, size: 0 }).unwrap()),
            1 => drop(quick(&mut f, FsOp::Punch { node, offset: 0, len: 1 << 40 }).unwrap()),
            2 => {
                let flags = RW.union(OpenFlags::TRUNCATE);
                let at = f.at("f");
                let opened = quick(&mut f, FsOp::Open { at, flags, mode: 0, admission: None });
                let Ok(FsReply::Node(again, _)) = opened else { panic!("{opened:?}") };
                f.storage.close(again);
            }
            _ => {}
        }
        f.remove("f", false).unwrap();
        f.storage.close(node);
        assert!(work::take() <= STEPS_MAX);
        let mut parts = 0;
        while f.storage.tidy() {
            parts += 1;
            assert!(work::take() <= STEPS_MAX);
        }
        assert!(parts >= 40, "{parts} parts of 48 MiB");
        work::take();
    }
}

// [STOR-30] [STOR-79]
#[test]
fn memory_is_made_only_while_as_much_is_freed() {
    let mut f = limited(64 << 20);
    let node = f.open("f", RWC).unwrap();
    let data = vec![1; 32 << 20];
    f.write(node, 0, &data).unwrap();
    f.run(FsOp::Truncate { node, size: 0 }).unwrap();
    f.write(node, 0, &data).unwrap();
    assert!(!f.storage.tidy(), "what was written took the place of what was cut");
}

// [STOR-83]
#[test]
fn listing_is_answered_with_a_bounded_number_of_entries() {
    const COUNT: usize = 3000;
    for kind in kinds() {
        let mut f = Fixture::new(kind);
        f.open("0", RWC).unwrap();
        for index in 1..COUNT {
            f.run(FsOp::Link { from: f.at("0"), to: f.at(index.to_string()), replace: false }).unwrap();
        }
        let root = f.open("", OpenFlags::READ.union(OpenFlags::DIRECTORY)).unwrap();
        let (mut cookie, mut seen, mut end) = (0, 0, false);
        while !end {
            let (entries, ends) = f.readdir(root, cookie, 1 << 20, true).unwrap();
            assert!((1..=1024).contains(&entries.len()), "{kind:?}: {} entries", entries.len());
            cookie = entries.last().unwrap().cookie;
            seen += entries.len();
            end = ends;
        }
        assert_eq!(seen, COUNT, "{kind:?}");
    }
}

// [STOR-91] [STOR-92]
#[test]
fn path_of_many_parts_is_refused_or_runs_on_a_thread() {
    let long = "./".repeat(2000);
    for kind in kinds() {
        let mut f = Fixture::new(kind);
        f.mkdir("d").unwrap();
        f.symlink(format!("{long}d"), "link0").unwrap();
        for index in 1..30 {
            f.symlink(format!("{long}link{}", index - 1), format!("link{index}")).unwrap();
        }
        let identity = f.identity.clone();
        for path in [format!("{long}d"), format!("{long}link29"), "link29".to_owned(), "link0".to_owned()] {
            let op = FsOp::Getattr { at: f.at(&path), follow: true };
            work::take();
            match f.storage.submit(OpToken(1 << 40), &identity, op) {
                Submitted::Pending => assert_ne!(kind, Kind::Mem),
                Submitted::Done(result) => {
                    assert_eq!(kind, Kind::Mem, "the loop walks along {} bytes", path.len());
                    assert_eq!(result.is_ok(), !path.ends_with("link29"), "{result:?}");
                }
            }
            assert!(work::take() <= STEPS_MAX);
        }
    }
}

// [STOR-93]
#[test]
fn directory_in_memory_is_not_renamed_below_more_than_4096_others() {
    let mut f = Fixture::new(Kind::Mem);
    f.mkdir("moved").unwrap();
    let mut node = f.root();
    // The export's root is one of those above.
    for above in 1..=4097 {
        let to = At { node, path: b"moved".to_vec() };
        if above >= 4096 {
            let result = f.run(FsOp::Rename { from: f.at("moved"), to: to.clone(), replace: false });
            match above {
                4096 => assert!(result.is_ok(), "{result:?}"),
                _ => assert!(matches!(result, Err(Status::LOOP)), "{result:?}"),
            }
        }
        if above == 4096 {
            f.run(FsOp::Rename { from: to, to: f.at("moved"), replace: false }).unwrap();
        }
        let at = At { node, path: b"d".to_vec() };
        f.run(FsOp::Mkdir { at: at.clone(), mode: 0o755 }).unwrap();
        let found = f.run(FsOp::Lookup { at, follow: false });
        let Ok(FsReply::Node(below, _)) = found else { panic!("{found:?}") };
        node = below;
    }
}

// [STOR-31]
#[test]
fn what_takes_as_long_as_a_client_likes_is_left_to_threads() {
    for kind in kinds().into_iter().filter(|kind| *kind != Kind::Mem) {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        f.write(node, 0, &[7; 5000]).unwrap();
        f.open("g", RWC).unwrap();
        let other = f.open("h", RWC).unwrap();
        let root = f.open("", OpenFlags::READ.union(OpenFlags::DIRECTORY)).unwrap();
        let cut = RW.union(OpenFlags::TRUNCATE);
        let ops = [
            FsOp::Allocate { node, offset: 0, len: 1 << 20 },
            FsOp::Punch { node, offset: 0, len: 1 << 20 },
            FsOp::Seek { node, offset: 0, what: SeekWhat::Hole },
            FsOp::Truncate { node, size: 100 },
            FsOp::Read { node, offset: 0, into: vec![memory((1 << 20) + 1)] },
            FsOp::Write {
                node,
                offset: 0,
                from: vec![memory((1 << 20) + 1)],
                stability: Stability::Unstable,
            },
            FsOp::Append { node, from: vec![memory((1 << 20) + 1)], stability: Stability::Unstable },
            FsOp::Open { at: f.at("f"), flags: cut, mode: 0, admission: None },
            FsOp::Readdir { node: root, cookie: 0, size_max: 4096, attributes: true },
            FsOp::Allocate { node, offset: 0, len: 2 << 20 },
            FsOp::Rename { from: f.at("g"), to: f.at("f"), replace: true },
            FsOp::Allocate { node: other, offset: 0, len: 2 << 20 },
            FsOp::Remove { at: f.at("h"), directory: false },
        ];
        let identity = f.identity.clone();
        for (index, op) in ops.into_iter().enumerate() {
            let told = format!("{kind:?} {op:?}");
            let submitted = f.storage.submit(OpToken((1 << 40) + index as u64), &identity, op);
            assert!(matches!(submitted, Submitted::Pending), "{told}");
            while f.storage.pending() > 0 {
                f.storage.flush();
                f.storage.poll(&mut Vec::new());
                std::thread::yield_now();
            }
        }
    }
}

// [STOR-194] [STOR-31]
#[test]
#[ignore = "needs dev-shm"]
fn loop_changes_names_in_memory_where_that_frees_little() {
    const ALLOCATED_MAX: usize = 1 << 20;
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut files = open_for_tests(directory.path(), false);
    let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
    let root = files.root();
    let at = |name: &str| At { node: root, path: name.into() };
    let path = |name: &str| directory.path().join(name);
    let mut is_at_once = |op: FsOp| {
        work::take();
        match files.attempt(&identity, op) {
            Attempt::Done(result) => result.map(|_| true),
            Attempt::Job(_) | Attempt::Data(_) => Ok(false),
        }
    };
    let remove = |name| FsOp::Remove { at: at(name), directory: false };
    let rename = |from, to| FsOp::Rename { from: at(from), to: at(to), replace: true };
    let create = |name| {
        let flags = RWC.union(OpenFlags::TRUNCATE);
        FsOp::Open { at: at(name), flags, mode: 0o644, admission: None }
    };
    assert_eq!(is_at_once(create("a")), Ok(true));
    assert_eq!(is_at_once(rename("a", "b")), Ok(true));
    assert!(path("b").exists() && !path("a").exists());
    std::fs::write(path("most"), vec![1; ALLOCATED_MAX]).unwrap();
    std::fs::write(path("more"), vec![1; ALLOCATED_MAX + 1]).unwrap();
    // Nothing was done yet of what a thread is to do.
    assert_eq!([is_at_once(remove("more")), is_at_once(rename("b", "more"))], [Ok(false); 2]);
    assert_eq!([is_at_once(create("more")), is_at_once(create("b"))], [Ok(false); 2], "to cut is a thread's");
    assert_eq!(std::fs::metadata(path("more")).unwrap().len(), ALLOCATED_MAX as u64 + 1);
    assert_eq!(is_at_once(rename("b", "most")), Ok(true));
    assert!(work::take() >= ALLOCATED_MAX / 4096, "what it frees counts");
    let exchange = FsOp::Exchange { from: at("most"), to: at("more") };
    assert_eq!(is_at_once(exchange), Ok(true), "that frees nothing");
    assert_eq!(is_at_once(remove("more")), Ok(true));
    assert_eq!(is_at_once(remove("more")), Err(Status::NOT_FOUND));
    let mut names = std::fs::read_dir(directory.path()).unwrap();
    assert!(names.next().is_some_and(|name| name.unwrap().file_name() == "most") && names.next().is_none());
}

// [STOR-20] The kernel keeps everybody from a file while it is cut, by whichever export.
#[test]
#[ignore = "needs dev-shm"]
fn loop_spares_a_file_that_a_thread_holds() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let [(mut here, node), _] = serve(directory.path());
    let [(mut there, other), _] = serve(directory.path());
    here.write_now(node, 0, &[Span::from_mut(&mut [7; 5000])]).unwrap();
    let mut now = || {
        let written = there.write_now(other, 0, &[Span::from_mut(&mut [7; 10])]);
        (written, there.read_now(other, 0, &[Span::from_mut(&mut [0; 10])]))
    };
    assert_eq!(now(), (Ok(10), Ok(10)));
    // While there is the job, it may run.
    let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
    let Attempt::Job(job) = here.attempt(&identity, FsOp::Punch { node, offset: 0, len: 4096 }) else {
        panic!("it may take long")
    };
    assert_eq!(now(), (Err(NowError::WouldBlock), Err(NowError::WouldBlock)));
    drop(job);
    assert_eq!(now(), (Ok(10), Ok(10)));
}

#[test]
fn last_close_of_unnamed_file_runs_on_a_thread() {
    for kind in kinds().into_iter().filter(|kind| *kind != Kind::Mem) {
        let mut f = Fixture::new(kind);
        let slow = |f: &mut Fixture, node: NodeId| {
            let before = f.storage.disposals();
            f.storage.close(node);
            f.storage.disposals() > before
        };
        let writer = f.open("f", RWC).unwrap();
        // More than a loop frees at once where files live in memory.
        f.run(FsOp::Allocate { node: writer, offset: 0, len: 2 << 20 }).unwrap();
        let reader = f.open("f", OpenFlags::READ).unwrap();
        assert!(!slow(&mut f, reader), "{kind:?}: of what has a name");
        let nameless = f.open("f", OpenFlags::READ).unwrap();
        let at = f.at("f");
        f.run(FsOp::Remove { at, directory: false }).unwrap();
        assert!(slow(&mut f, nameless), "{kind:?}: of what may go with it");
        assert!(slow(&mut f, writer), "{kind:?}");
        // A handle that only names a file keeps all of it, too.
        let long = f.open("g", RWC).unwrap();
        f.run(FsOp::Allocate { node: long, offset: 0, len: 2 << 20 }).unwrap();
        let [named, nameless] = [(); 2].map(|()| f.lookup("g").unwrap());
        assert!(!slow(&mut f, named), "{kind:?}: of what has a name");
        let at = f.at("g");
        f.run(FsOp::Remove { at, directory: false }).unwrap();
        assert!(slow(&mut f, nameless), "{kind:?}: looked up");
    }
}

// [STOR-87]
#[test]
fn operation_beyond_the_thread_queue_is_answered_again() {
    let mut f = Fixture::new(Kind::Disk(Engine::Pool));
    let node = f.open("f", RWC).unwrap();
    let identity = f.identity.clone();
    let mut submit = |index| {
        let op = FsOp::Seek { node, offset: 0, what: SeekWhat::Hole };
        f.storage.submit(OpToken(index), &identity, op)
    };
    for index in 0..16_384 {
        assert!(matches!(submit(index), Submitted::Pending), "{index}");
    }
    assert!(matches!(submit(16_384), Submitted::Done(Err(Status::AGAIN))));
}

// [STOR-32] [STOR-34]
#[test]
fn file_system_that_hangs_below_an_export_keeps_nobody_else_waiting() {
    for kind in kinds().into_iter().filter(|kind| *kind != Kind::Mem) {
        let mut f = Fixture::new(kind);
        f.mkdir("mnt").unwrap();
        f.mkdir("d").unwrap();
        let path = f.directory.as_ref().unwrap().path().join("root/mnt");
        let Some(mount) = HungMount::new(&path) else { return };
        let at = |f: &Fixture| f.at("d/../mnt");
        let mut hanging = Vec::new();
        for round in 0..30 {
            let below = f.at("mnt/below");
            let root = f.root();
            let ops = [
                FsOp::Getattr { at: f.at("mnt"), follow: true },
                FsOp::Getattr { at: at(&f), follow: false },
                FsOp::Lookup { at: f.at("mnt"), follow: true },
                FsOp::Open {
                    at: f.at("mnt"),
                    flags: OpenFlags::READ.union(OpenFlags::DIRECTORY),
                    mode: 0,
                    admission: None,
                },
                FsOp::Statfs { at: f.at("mnt"), follow: true },
                FsOp::Mkdir { at: below.clone(), mode: 0o755 },
                FsOp::Remove { at: below, directory: false },
                FsOp::Readdir { node: root, cookie: 0, size_max: 4096, attributes: true },
            ];
            f.storage.for_client(round);
            hanging.extend(ops.map(|op| f.start(op)));
        }
        f.storage.for_client(100);
        f.mkdir("e").unwrap();
        let node = f.open("file", RWC).unwrap();
        f.write(node, 0, b"served").unwrap();
        f.run(FsOp::Commit { node, offset: 0, len: 0, stability: Stability::FileSync }).unwrap();
        assert!(f.stat("d").is_ok());
        f.remove("e", true).unwrap();
        mount.end();
        for token in hanging {
            let _ = f.finish(token);
        }
    }
}

// Where this does not run, the report says that no file system was mounted that hangs.
#[test]
#[ignore = "needs fuse"]
fn file_systems_that_hang_can_be_mounted() {
    let directory = tempfile::tempdir().unwrap();
    HungMount::new(directory.path()).expect("a mount").end();
}

// [STOR-35] [STOR-49]
#[test]
fn file_systems_of_the_kernel_are_not_served() {
    let root = |export: &mut ExportConfig| export.kind = ExportKind::Directory("/".into());
    let mut f = Fixture::with(Kind::Disk(Engine::Pool), root, &StorageConfig::default());
    for path in
        ["proc", "proc/self/mem", "proc/version", "proc/../proc/self/environ", "sys/kernel", "dev/pts"]
    {
        assert_eq!(f.lookup(path), Err(Status::NOT_SUPPORTED), "{path}");
        assert_eq!(f.open(path, OpenFlags::READ), Err(Status::NOT_SUPPORTED), "{path}");
        assert_eq!(f.stat(path).err(), Some(Status::NOT_SUPPORTED), "{path}");
    }
    let (at, name) = (f.at("proc/self/mem"), b"user.x".to_vec());
    let result = f.run(FsOp::XattrRead { at, name });
    assert!(matches!(result, Err(Status::NOT_SUPPORTED)), "{result:?}");
    assert!(f.stat("usr").is_ok());
    let export = ExportConfig {
        name: "proc".into(),
        kind: ExportKind::Directory("/proc".into()),
        read_only: true,
        direct_io: false,
        local_locks: false,
        root: MemoryRoot::default(),
    };
    let refused = Exports::new(vec![export], &StorageConfig::default()).err().expect("it is the kernel's");
    assert!(matches!(refused, StorageError::Kernel { .. }), "{refused}");
}

// [STOR-29] A file with more places than 64 bits can count bytes.
#[test]
fn holes_of_a_file_with_data_at_its_farthest_end_are_found() {
    let mut f = limited(1 << 20);
    let node = f.open("f", RWC).unwrap();
    for offset in [0, 1 << 58, 1 << 62] {
        f.write(node, offset, b"x").unwrap();
    }
    for (from, what, at) in [
        (0, SeekWhat::Hole, 4096),
        (4096, SeekWhat::Data, 1 << 58),
        (1 << 58, SeekWhat::Hole, (1 << 58) + 4096),
        (1 << 62, SeekWhat::Hole, (1 << 62) + 1),
    ] {
        let found = quick(&mut f, FsOp::Seek { node, offset: from, what });
        assert!(
            matches!(found, Ok(FsReply::Offset(found)) if found == at),
            "{what:?} from {from}: {found:?}"
        );
    }
}

// [STOR-25] The last chunk is made where it is covered in part, and may be one too many.
#[test]
fn space_that_is_not_all_there_is_not_set_aside_in_part() {
    const CHUNK: u64 = 64 << 10;
    let mut refused = 0;
    for left in (0..8192).step_by(64) {
        let mut f = limited(6 * CHUNK + left);
        let Ok(node) = f.open("f", RWC) else { continue };
        if f.run(FsOp::Allocate { node, offset: 0, len: 6 * CHUNK + 1 }).is_err() {
            refused += 1;
            assert_eq!(allocated(&mut f, "f"), 0, "{left} bytes beside six chunks");
        }
    }
    assert!(refused > 64, "{refused}");
}
