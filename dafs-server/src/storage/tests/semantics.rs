//! What every backend does alike.

use dafs_proto::wire::{FileKind, OpenFlags, SeekWhat, Stability, Status};

use super::harness::*;
use crate::storage::*;

/// Runs a test on every backend.
fn each(test: impl Fn(&mut Fixture)) {
    for kind in kinds() {
        eprintln!("{kind:?}");
        test(&mut Fixture::new(kind));
    }
}

// [STOR-9]
#[test]
fn file_written_is_read_back() {
    each(|f| {
        let node = f.open("a", RWC).unwrap();
        assert_eq!(f.write(node, 0, b"hello"), Ok(5));
        assert_eq!(f.read(node, 0, 5).unwrap(), b"hello");
        assert_eq!(f.read(node, 1, 100).unwrap(), b"ello", "short at the end of the file");
        assert_eq!(f.read(node, 5, 100).unwrap(), b"");
        assert_eq!(f.read(node, 500, 100).unwrap(), b"");
        assert_eq!(f.read(node, 0, 0).unwrap(), b"");
        assert_eq!(f.write(node, 9, b""), Ok(0));
        assert_eq!(f.stat("a").unwrap().size, 5, "a write of nothing changes nothing");
        f.storage.close(node);
        assert_eq!(f.read(node, 0, 5), Err(Status::BAD_HANDLE));
        assert_eq!(f.storage.open_count(ExportId(0)), 0);
    });
}

// [STOR-9] [STOR-12] [STOR-59] [STOR-89]
#[test]
fn large_write_in_many_parts_is_whole() {
    each(|f| {
        let node = f.open("a", RWC).unwrap();
        // More parts than one system call takes.
        let parts: Vec<Vec<u8>> = (0..2500u32).map(|i| vec![i as u8; (i % 7) as usize * 300]).collect();
        let views: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let whole = parts.concat();
        for stability in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
            assert_eq!(f.write_submitted(node, 4096, &views, stability), Ok(whole.len()));
        }
        let lens = vec![1000; whole.len() / 1000 + 2];
        assert_eq!(f.read_submitted(node, 4096, &lens).unwrap(), whole);
        assert_eq!(f.read(node, 4096, whole.len()).unwrap(), whole);
    });
}

// [STOR-44] [STOR-46] [STOR-81] [STOR-82]
#[test]
fn directory_made_lists_what_is_in_it() {
    each(|f| {
        assert_eq!(f.mkdir("d/").unwrap().kind, FileKind::Directory);
        assert_eq!(f.mkdir("d"), Err(Status::EXISTS));
        assert_eq!(f.mkdir("x/y"), Err(Status::NOT_FOUND));
        for name in [&b"plain"[..], b"\xff\xfe", b" ", b"-"] {
            let node = f.open([b"d/", name].concat(), RWC).unwrap();
            f.storage.close(node);
        }
        let directory = f.open("d", OpenFlags::READ).unwrap();
        let mut expected: Vec<Vec<u8>> =
            [&b"plain"[..], b"\xff\xfe", b" ", b"-"].iter().map(|name| name.to_vec()).collect();
        expected.sort();
        for size_max in [20, 40, 4096] {
            assert_eq!(f.names(directory, size_max), expected);
        }
        assert_eq!(f.readdir(directory, 0, 8, false), Err(Status::RANGE));
        assert_eq!(f.remove("d", true), Err(Status::NOT_EMPTY));
    });
}

// [STOR-6] [STOR-51]
#[test]
fn open_with_contradicting_flags_is_invalid() {
    each(|f| {
        for flags in [
            OpenFlags::empty(),
            OpenFlags::READ | OpenFlags::TRUNCATE,
            RW | OpenFlags::EXCLUSIVE,
            RWC | OpenFlags::DIRECTORY,
        ] {
            assert_eq!(f.open("a", flags), Err(Status::INVALID), "{flags:?}");
        }
        assert_eq!(f.open("a", RW), Err(Status::NOT_FOUND));
        f.open("a", RWC | OpenFlags::EXCLUSIVE).unwrap();
        assert_eq!(f.open("a", RWC | OpenFlags::EXCLUSIVE), Err(Status::EXISTS));
        assert_eq!(f.open("a", OpenFlags::READ | OpenFlags::DIRECTORY), Err(Status::NOT_DIRECTORY));
        f.mkdir("d").unwrap();
        assert_eq!(f.open("d", RW), Err(Status::IS_DIRECTORY));
        assert_eq!(f.open("d", RWC), Err(Status::IS_DIRECTORY));
        f.symlink("a", "l").unwrap();
        assert_eq!(f.open("l", RW | OpenFlags::NO_FOLLOW), Err(Status::LOOP));
        f.symlink("loop", "loop").unwrap();
        assert_eq!(f.open("loop", RW), Err(Status::LOOP));
        // No file is made where a link's slash asks for a directory, whatever is there.
        for (index, (target, create, open)) in [
            ("missing/", Status::IS_DIRECTORY, Status::NOT_FOUND),
            ("missing/x/", Status::NOT_FOUND, Status::NOT_FOUND),
            ("a/", Status::IS_DIRECTORY, Status::NOT_DIRECTORY),
            ("a/x/", Status::NOT_DIRECTORY, Status::NOT_DIRECTORY),
            ("d/", Status::IS_DIRECTORY, Status::IS_DIRECTORY),
            ("d/missing/", Status::IS_DIRECTORY, Status::NOT_FOUND),
            ("./", Status::IS_DIRECTORY, Status::IS_DIRECTORY),
            ("d/../", Status::IS_DIRECTORY, Status::IS_DIRECTORY),
            ("loop/", Status::IS_DIRECTORY, Status::LOOP),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("slash{index}");
            f.symlink(target, &name).unwrap();
            assert_eq!(f.open(&name, RWC), Err(create), "{target}");
            assert_eq!(f.open(&name, RW), Err(open), "{target}");
            assert_eq!(f.open(&name, RWC | OpenFlags::EXCLUSIVE), Err(Status::EXISTS), "{target}");
        }
        let reader = f.open("a", OpenFlags::READ).unwrap();
        assert_eq!(f.write(reader, 0, b"x"), Err(Status::BAD_HANDLE));
        let writer = f.open("a", OpenFlags::WRITE).unwrap();
        assert_eq!(f.read(writer, 0, 1), Err(Status::BAD_HANDLE));
        let path = f.lookup("a").unwrap();
        assert_eq!(f.read(path, 0, 1), Err(Status::BAD_HANDLE));
        assert_eq!(f.write(path, 0, b"x"), Err(Status::BAD_HANDLE));
        assert!(matches!(f.run(FsOp::Truncate { node: path, size: 0 }), Err(Status::BAD_HANDLE)));
    });
}

// [STOR-11] [STOR-61]
#[test]
fn append_of_several_nodes_keeps_every_piece_whole() {
    each(|f| {
        let nodes: Vec<NodeId> = (0..4).map(|_| f.open("log", RWC).unwrap()).collect();
        let piece = |n: usize| vec![b'a' + (n % 26) as u8; 100 + n * 37];
        let tokens: Vec<(usize, u64)> = (0..100)
            .map(|n| {
                let from = piece(n).chunks(64).map(memory_of).collect();
                let op = FsOp::Append { node: nodes[n % 4], from, stability: Stability::Unstable };
                (n, f.start(op))
            })
            .collect();
        let mut end = 0;
        for (n, token) in tokens {
            let Ok(FsReply::Appended(offset, count)) = f.finish(token) else { panic!("append {n}") };
            assert_eq!(count, piece(n).len());
            assert_eq!(f.read(nodes[0], offset, count).unwrap(), piece(n), "append {n} at {offset}");
            end += count as u64;
        }
        assert_eq!(f.stat("log").unwrap().size, end);
        assert_eq!(f.append(nodes[0], b""), Ok((end, 0)));
    });
}

// [STOR-11] [STOR-61] All of these use the position of the file's descriptor.
#[test]
fn append_beside_seeks_and_writes_says_where_it_went() {
    const ROUNDS: usize = 300;
    each(|f| {
        let node = f.open("log", RWC).unwrap();
        f.write(node, 0, &[7; 100]).unwrap();
        for round in 0..ROUNDS {
            let piece = |n: usize| vec![(round + n) as u8; 1 + n];
            let mut appends = Vec::new();
            let mut seeks = Vec::new();
            for n in 0..8 {
                let (from, stability) = (vec![memory_of(&piece(n))], Stability::Unstable);
                appends.push((n, f.start(FsOp::Append { node, from, stability })));
                for what in [SeekWhat::Data, SeekWhat::Hole] {
                    seeks.push(f.start(FsOp::Seek { node, offset: 0, what }));
                }
                f.write(node, 3, b"x").unwrap();
            }
            for (n, token) in appends {
                let result = f.finish(token);
                let Ok(FsReply::Appended(offset, count)) = result else { panic!("append {n}: {result:?}") };
                assert_eq!(f.read(node, offset, count).unwrap(), piece(n), "append {n} at {offset}");
            }
            seeks.into_iter().for_each(|token| drop(f.finish(token).unwrap()));
        }
        assert_eq!(f.stat("log").unwrap().size, 100 + ROUNDS as u64 * 36);
    });
}

// [STOR-62]
#[test]
fn append_that_fails_after_a_part_tells_of_the_part() {
    const LEN: usize = 128 * 1024;
    let tested = std::cell::Cell::new(0);
    each(|f| {
        let Some(directory) = &f.directory else { return };
        let path = directory.path().join("root/source");
        let source = f.open("source", RWC).unwrap();
        f.write(source, 0, &[7; LEN]).unwrap();
        f.read(source, 0, LEN).unwrap();
        let from = f.storage.map(source, 0, LEN, 1);
        // Nothing is mapped where the page cache is not used.
        if from.is_empty() {
            return;
        }
        // Half of the memory is gone.
        std::fs::File::options().write(true).open(path).unwrap().set_len(LEN as u64 / 2).unwrap();
        let log = f.open("log", RWC).unwrap();
        f.write(log, 0, b"begun").unwrap();
        let op = FsOp::Append { node: log, from: from.into_vec(), stability: Stability::Unstable };
        let result = f.run(op);
        let Ok(FsReply::Appended(5, count)) = result else { panic!("{result:?}") };
        assert_eq!(f.stat("log").unwrap().size, 5 + count as u64);
        assert_eq!(f.append(log, b"end"), Ok((5 + count as u64, 3)));
        tested.set(tested.get() + 1);
    });
    assert!(tested.get() > 0, "no window of any file was mapped");
}

// [STOR-14] [STOR-63] [STOR-64] [STOR-65]
#[test]
fn hole_punched_and_sought_stays_a_hole() {
    const CHUNK: u64 = 64 * 1024;
    each(|f| {
        let node = f.open("sparse", RWC).unwrap();
        let data = vec![7u8; CHUNK as usize];
        f.write(node, 4 * CHUNK, &data).unwrap();
        f.write_submitted(node, 8 * CHUNK, &[&data], Stability::DataSync).unwrap();
        let seek = |f: &mut Fixture, offset, what| match f.run(FsOp::Seek { node, offset, what }) {
            Ok(FsReply::Offset(at)) => Ok(at),
            Err(status) => Err(status),
            other => panic!("{other:?}"),
        };
        use SeekWhat::{Data, Hole};
        assert_eq!(seek(f, 0, Data), Ok(4 * CHUNK));
        assert_eq!(seek(f, 4 * CHUNK, Hole), Ok(5 * CHUNK));
        assert_eq!(seek(f, 5 * CHUNK, Data), Ok(8 * CHUNK));
        assert_eq!(seek(f, 8 * CHUNK, Hole), Ok(9 * CHUNK), "the end of the file is a hole");
        assert_eq!(seek(f, 9 * CHUNK, Data), Err(Status::NO_DEVICE));
        assert_eq!(f.read(node, 5 * CHUNK, 10).unwrap(), [0; 10]);
        assert!(f.stat("sparse").unwrap().allocated <= 3 * CHUNK);
        f.run(FsOp::Punch { node, offset: 4 * CHUNK, len: CHUNK }).unwrap();
        assert_eq!(seek(f, 0, Data), Ok(8 * CHUNK));
        assert_eq!(f.stat("sparse").unwrap().size, 9 * CHUNK, "the size stays");
        f.run(FsOp::Allocate { node, offset: 9 * CHUNK, len: CHUNK }).unwrap();
        assert_eq!(f.stat("sparse").unwrap().size, 10 * CHUNK);
        f.run(FsOp::Truncate { node, size: 8 * CHUNK + 5 }).unwrap();
        f.run(FsOp::Truncate { node, size: 10 * CHUNK }).unwrap();
        assert_eq!(f.read(node, 8 * CHUNK, 10).unwrap(), [7, 7, 7, 7, 7, 0, 0, 0, 0, 0]);
        assert!(matches!(f.run(FsOp::Punch { node, offset: 0, len: 0 }), Err(Status::INVALID)));
    });
}

// [STOR-67]
#[test]
fn window_mapped_shows_the_file() {
    each(|f| {
        let node = f.open("a", RWC).unwrap();
        let data: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
        f.write(node, 0, &data).unwrap();
        assert_eq!(f.read(node, 0, data.len()).unwrap(), data);
        for (offset, len) in [(0, 40_000), (65_536, 65_536), (150_000, 100_000), (10, 190_000)] {
            for parts_max in 1..5 {
                let window = f.storage.map(node, offset, len, parts_max);
                assert!(window.len() <= parts_max);
                let end = (offset as usize + len).min(data.len());
                // Nobody truncates the file here, so it does not fault.
                let shown: Vec<u8> = window.iter().flat_map(|part| part.span().to_vec()).collect();
                assert!(window.is_empty() || shown == data[offset as usize..end], "{offset} {len}");
            }
        }
        assert!(f.storage.map(node, 300_000, 65_536, 4).is_empty(), "nothing after the end");
    });
}
