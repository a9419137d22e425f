//! The same seeded operations on a directory and on memory: results, errors, attributes and contents must be the same.
//! `DAFS_SEED=n` repeats one seed.

use dafs_proto::transport::MemoryRef;
use dafs_proto::transport::sim::Random;
use dafs_proto::wire::{AccessMode, FileKind, SetAttributes, SetTime, Timestamp};

use super::harness::*;
use crate::storage::*;

const SEEDS: u64 = 5;
/// Where the engine and the page cache are all that differs.
const SEEDS_MORE: u64 = 2;
const STEPS: usize = 2500;
const NODES: usize = 6;
const SIZE_MAX: u64 = 60_000;

/// Both backends, and what is open in both.
struct Pair {
    sides: [Fixture; 2],
    open: Vec<Option<([NodeId; 2], FileKind)>>,
    random: Random,
    seed: u64,
    steps: usize,
    // What was done last, for a failure.
    log: Vec<String>,
    difference: Option<String>,
}

// [STOR-12]
#[test]
#[ignore = "needs root: memory lets a client that is root do all, and a directory the user of the server"]
fn random_operations_on_a_directory_and_on_memory_agree() {
    let seeds = |kind: Kind| match (std::env::var("DAFS_SEED"), kind) {
        (Ok(seed), _) => vec![seed.parse().unwrap()],
        (Err(_), Kind::Disk(Engine::Pool) | Kind::Tmpfs) => (0..SEEDS).collect::<Vec<u64>>(),
        (Err(_), _) => (SEEDS..SEEDS + SEEDS_MORE).collect(),
    };
    let mut differences = Vec::new();
    for kind in kinds().into_iter().filter(|kind| *kind != Kind::Mem) {
        for seed in seeds(kind) {
            let mut pair = Pair::new(kind, seed);
            while pair.steps < STEPS && pair.difference.is_none() {
                pair.step();
            }
            if pair.difference.is_none() {
                pair.compare_trees(b"");
            }
            differences.extend(pair.difference.map(|difference| format!("{kind:?}, {difference}")));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

impl Pair {
    fn new(kind: Kind, seed: u64) -> Self {
        let sides = [Fixture::new(kind), Fixture::new(Kind::Mem)];
        Self {
            sides,
            open: vec![None; NODES],
            random: Random::new(seed),
            seed,
            steps: 0,
            log: Vec::new(),
            difference: None,
        }
    }

    /// The same on both sides; the results must agree.
    fn both<T>(
        &mut self,
        what: String,
        run: impl Fn(&mut Fixture, usize) -> Result<T, Status>,
    ) -> Option<[T; 2]>
    where
        T: Outcome,
    {
        self.log.push(what);
        let results: Vec<_> =
            self.sides.iter_mut().enumerate().map(|(side, fixture)| run(fixture, side)).collect();
        let told: Vec<String> = results
            .iter()
            .map(|result| match result {
                Ok(outcome) => outcome.told(),
                Err(status) => format!("{status:?}"),
            })
            .collect();
        if told[0] != told[1] {
            let recent = &self.log[self.log.len().saturating_sub(12)..];
            self.difference = Some(format!(
                "DAFS_SEED={}, step {}: a directory answers {}, memory {}; lately:\n{}",
                self.seed,
                self.steps,
                told[0],
                told[1],
                recent.join("\n")
            ));
            return None;
        }
        let [first, second] = <[Result<T, Status>; 2]>::try_from(results).ok()?;
        Some([first.ok()?, second.ok()?])
    }

    fn step(&mut self) {
        self.steps += 1;
        match self.random.below(34) {
            0..5 => self.open(),
            5..10 => self.read(),
            10..15 => self.write(),
            15..17 => self.append(),
            17..19 => self.resize(),
            19..25 => self.make(),
            25..28 => self.remove(),
            28..31 => self.rename(),
            31 => self.set_attributes(),
            32 => self.list(),
            _ => self.look(),
        }
    }

    /// A name, some levels down; now and then one that cannot be.
    fn path(&mut self) -> Vec<u8> {
        const ODD: [&[u8]; 7] = [b"", b".", b"..", b"a/..", b"a/./b", b"/a", b"a/"];
        if self.random.below(25) == 0 {
            return ODD[self.random.index(ODD.len())].to_vec();
        }
        let depth = 1 + self.random.index(3);
        let parts: Vec<&[u8]> =
            (0..depth).map(|_| [&b"a"[..], b"b", b"c", b"\xff"][self.random.index(4)]).collect();
        parts.join(&b'/')
    }

    fn node(&mut self) -> Option<(usize, [NodeId; 2])> {
        let slot = self.random.index(NODES);
        self.open[slot].map(|(nodes, _)| (slot, nodes))
    }

    /// Kernels differ in whether moving no bytes of what is no file fails.
    fn is_file(&self, slot: usize) -> bool {
        self.open[slot].is_some_and(|(_, kind)| kind == FileKind::File)
    }

    fn open(&mut self) {
        let flags = [
            OpenFlags::READ,
            RW,
            RWC,
            RWC,
            RWC | OpenFlags::EXCLUSIVE,
            RWC | OpenFlags::TRUNCATE,
            RW | OpenFlags::TRUNCATE,
            OpenFlags::WRITE | OpenFlags::CREATE,
            OpenFlags::READ | OpenFlags::DIRECTORY,
            OpenFlags::READ | OpenFlags::NO_FOLLOW,
        ];
        let (path, flags) = (self.path(), flags[self.random.index(flags.len())]);
        let mode = [0o644, 0o600, 0o4755][self.random.index(3)];
        let told = format!("open {:?} {flags:?}", path.escape_ascii().to_string());
        let opened = self.both(told, |side, _| {
            match side.run(FsOp::Open { at: side.at(&path), flags, mode, admission: None })? {
                FsReply::Node(node, attributes) => Ok((node, attributes)),
                other => panic!("{other:?}"),
            }
        });
        let Some(opened) = opened else { return };
        let slot = self.random.index(NODES);
        let kind = opened[0].1.kind;
        if let Some((old, _)) = self.open[slot].replace((opened.map(|(node, _)| node), kind)) {
            for (side, node) in self.sides.iter_mut().zip(old) {
                side.storage.close(node);
            }
        }
    }

    /// Any number, or one of the blocks that direct I/O asks for, or one beside it.
    fn number(&mut self, max: u64) -> u64 {
        let block = [1, 512, 4096][self.random.index(3)];
        let number = self.random.below(max / block + 1) * block;
        match self.random.below(6) {
            0 => number + 1,
            1 => number.saturating_sub(1),
            _ => number,
        }
    }

    fn range(&mut self) -> (u64, usize) {
        let len = [0, 1, 100, 4096, 10_000][self.random.index(5)];
        let len = if self.random.below(2) == 0 { self.number(16_384) } else { len };
        (self.number(SIZE_MAX), len as usize)
    }

    /// Memory for so many bytes: in one part or in two, and how far behind the beginning of a page each begins.
    fn parts(&mut self, len: usize) -> [(usize, usize); 2] {
        let first = match self.random.below(2) {
            0 => len,
            _ => (self.number(len as u64) as usize).min(len),
        };
        [first, len - first].map(|len| ([0, 0, 1, 512][self.random.index(4)], len))
    }

    fn data(&mut self, len: usize) -> Vec<u8> {
        let first = self.random.number() as u8;
        (0..len).map(|index| first.wrapping_add((index % 251) as u8)).collect()
    }

    fn read(&mut self) {
        let Some((slot, nodes)) = self.node() else { return };
        let (offset, len) = self.range();
        let len = if self.is_file(slot) { len } else { len.max(1) };
        let (parts, submitted) = (self.parts(len), self.random.below(2) == 0);
        self.both(format!("read node {slot} {offset} {len} {parts:?}"), |side, index| match submitted {
            true => {
                let into: Vec<MemoryRef> = parts.iter().map(|(skip, len)| part(*skip, *len)).collect();
                let read = count(side.run(FsOp::Read { node: nodes[index], offset, into: into.clone() }))?;
                let bytes: Vec<u8> = into.iter().flat_map(|part| part.span().to_vec()).collect();
                Ok(bytes[..read].to_vec())
            }
            false => side.read(nodes[index], offset, len),
        });
    }

    fn write(&mut self) {
        let Some((slot, nodes)) = self.node() else { return };
        let (offset, len) = self.range();
        let len = if self.is_file(slot) { len } else { len.max(1) };
        let (data, submitted, parts) = (self.data(len), self.random.below(2) == 0, self.parts(len));
        self.both(format!("write node {slot} {offset} {len} {parts:?}"), |side, index| match submitted {
            true => {
                let (first, second) = data.split_at(parts[0].1);
                let from = [(parts[0].0, first), (parts[1].0, second)].map(|(skip, bytes)| {
                    let memory = part(skip, bytes.len());
                    memory.span().write_from(0, bytes);
                    memory
                });
                let (node, stability) = (nodes[index], Stability::FileSync);
                count(side.run(FsOp::Write { node, offset, from: from.into(), stability }))
            }
            false => side.write(nodes[index], offset, &data),
        });
    }

    fn append(&mut self) {
        let Some((slot, nodes)) = self.node() else { return };
        let len = 1 + self.random.index(5000);
        let data = self.data(len);
        self.both(format!("append node {slot} {len}"), |side, index| side.append(nodes[index], &data));
    }

    fn resize(&mut self) {
        let Some((slot, nodes)) = self.node() else { return };
        let ((offset, len), what) = (self.range(), self.random.below(4));
        let len = len as u64;
        self.both(format!("resize {what} node {slot} {offset} {len}"), |side, index| {
            let node = nodes[index];
            done(side.run(match what {
                0 => FsOp::Punch { node, offset, len },
                1 => FsOp::Allocate { node, offset, len },
                2 => FsOp::Commit { node, offset, len, stability: Stability::DataSync },
                _ => FsOp::Truncate { node, size: offset },
            }))
        });
    }

    fn make(&mut self) {
        let (path, other) = (self.path(), self.path());
        let names = [&path, &other].map(|path| path.escape_ascii().to_string());
        match self.random.below(5) {
            0..3 => {
                let told = format!("mkdir {:?}", names[0]);
                self.both(told, |side, _| side.mkdir(&path));
            }
            3 => {
                let told = format!("symlink {:?} to {:?}", names[0], names[1]);
                self.both(told, |side, _| side.symlink(&other, &path));
            }
            _ => {
                let told = format!("link {:?} as {:?}", names[0], names[1]);
                self.both(told, |side, _| {
                    attributes(side.run(FsOp::Link {
                        from: side.at(&path),
                        to: side.at(&other),
                        replace: false,
                    }))
                });
            }
        }
    }

    fn remove(&mut self) {
        let (path, directory) = (self.path(), self.random.below(2) == 0);
        let told = format!("remove {:?} {directory}", path.escape_ascii().to_string());
        self.both(told, |side, _| side.remove(&path, directory));
    }

    fn rename(&mut self) {
        let (from, to, replace) = (self.path(), self.path(), self.random.below(3) > 0);
        let names = [&from, &to].map(|path| path.escape_ascii().to_string());
        self.both(format!("rename {names:?} {replace}"), |side, _| side.rename(&from, &to, replace));
    }

    fn set_attributes(&mut self) {
        let (path, follow) = (self.path(), self.random.below(2) == 0);
        let time = Timestamp { seconds: self.random.below(2_000_000_000) as i64, nanoseconds: 123_456_789 };
        let set = SetAttributes {
            mode: (follow && self.random.below(2) == 0).then_some(self.random.below(0o1000) as u32),
            mtime: (self.random.below(2) == 0).then_some(SetTime::At(time)),
            ..SetAttributes::default()
        };
        let timed = set.mtime.is_some();
        let told = format!("setattr {:?} {follow} {set:?}", path.escape_ascii().to_string());
        let changed = self.both(told, |side, _| {
            attributes(side.run(FsOp::Setattr { at: side.at(&path), follow, set: set.clone() }))
        });
        if let (Some(changed), true) = (changed, timed) {
            assert_eq!(changed.map(|attributes| attributes.mtime), [time; 2]);
        }
    }

    fn list(&mut self) {
        let Some((slot, nodes)) = self.node() else { return };
        let size_max = [300, 4096][self.random.index(2)];
        self.both(format!("list node {slot}"), |side, index| {
            side.readdir(nodes[index], 0, size_max, false)?;
            Ok(side.names(nodes[index], size_max))
        });
    }

    fn look(&mut self) {
        let (path, follow) = (self.path(), self.random.below(2) == 0);
        let name = path.escape_ascii().to_string();
        self.both(format!("stat {name:?} {follow}"), |side, _| {
            attributes(side.run(FsOp::Getattr { at: side.at(&path), follow }))
        });
        let mode = AccessMode::from_bits_truncate(self.random.below(8) as u32);
        self.both(format!("access {name:?} {follow} {mode:?}"), |side, _| {
            side.run(FsOp::AccessCheck { at: side.at(&path), follow, mode }).map(drop)
        });
        self.both(format!("readlink {name:?}"), |side, _| {
            match side.run(FsOp::Readlink { at: side.at(&path) })? {
                FsReply::Bytes(bytes) => Ok(bytes),
                other => panic!("{other:?}"),
            }
        });
    }

    /// Everything below a directory.
    fn compare_trees(&mut self, path: &[u8]) {
        let name = path.escape_ascii().to_string();
        let directory = OpenFlags::READ | OpenFlags::DIRECTORY;
        let listed = self.both(format!("list {name:?}"), |side, _| {
            let node = side.open(path, directory)?;
            let names = side.names(node, 4096);
            side.storage.close(node);
            Ok(names)
        });
        let Some([names, _]) = listed else { return };
        for below in names {
            let below = if path.is_empty() { below } else { [path, b"/", &below].concat() };
            let name = below.escape_ascii().to_string();
            let found = self.both(format!("stat {name:?}"), |side, _| side.stat(&below));
            match found.map(|[found, _]| found.kind) {
                Some(FileKind::Directory) => self.compare_trees(&below),
                Some(FileKind::File) => {
                    self.both(format!("content of {name:?}"), |side, _| {
                        let node = side.open(&below, OpenFlags::READ)?;
                        let content = side.read(node, 0, 2 * SIZE_MAX as usize);
                        side.storage.close(node);
                        content
                    });
                }
                _ => {}
            }
        }
    }
}

/// Memory of this length that begins so far behind the beginning of a page.
fn part(skip: usize, len: usize) -> MemoryRef {
    memory(skip + len).slice(skip, len).unwrap()
}

fn done(result: FsResult) -> Result<(), Status> {
    match result? {
        FsReply::Done => Ok(()),
        other => panic!("{other:?}"),
    }
}

/// What is compared of a result.
trait Outcome {
    fn told(&self) -> String;
}

impl Outcome for () {
    fn told(&self) -> String {
        "done".into()
    }
}

impl Outcome for usize {
    fn told(&self) -> String {
        self.to_string()
    }
}

impl Outcome for (u64, usize) {
    fn told(&self) -> String {
        format!("{self:?}")
    }
}

impl Outcome for Vec<u8> {
    fn told(&self) -> String {
        // Long contents are told by where they change.
        let runs = self.chunk_by(|a, b| b.wrapping_sub(*a) <= 1).map(|run| (run.len(), run[0]));
        format!("{} bytes {:?}", self.len(), runs.collect::<Vec<_>>())
    }
}

impl Outcome for Vec<Vec<u8>> {
    fn told(&self) -> String {
        self.iter().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
    }
}

impl Outcome for Attributes {
    fn told(&self) -> String {
        // File systems count and measure directories as they like.
        let directory = self.kind == FileKind::Directory;
        let counted = (!directory).then_some((self.links, self.size));
        format!("{:?} {:o} {}:{} {counted:?}", self.kind, self.mode, self.uid, self.gid)
    }
}

impl Outcome for (NodeId, Attributes) {
    fn told(&self) -> String {
        self.1.told()
    }
}
