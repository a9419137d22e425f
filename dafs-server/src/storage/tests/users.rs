//! The same seeded operations of several users on a directory and on memory: who may do what, and what becomes of modes, owners, groups,
//! links and extended attributes. The kernel says what is right; where ext4 and tmpfs differ, ext4 does. `DAFS_SEED=n` repeats one seed,
//! `DAFS_STEPS=n` takes so many steps of each.

use dafs_proto::transport::sim::Random;
use dafs_proto::wire::{AccessMode, FileKind, SetAttributes, SetTime, Timestamp, XattrSetMode};

use super::harness::*;
use crate::storage::*;

const SEEDS: u64 = 6;
const STEPS: usize = 2000;
/// After so many steps the trees are compared.
const STEPS_BETWEEN: usize = 500;
const NODES: usize = 8;
/// User, group, and further groups.
const PEOPLE: [(u32, u32, &[u32]); 7] = [
    (0, 0, &[]),
    (0, 61_101, &[61_102]),
    (61_001, 61_101, &[61_101, 61_200]),
    (61_002, 61_102, &[61_200]),
    (61_003, 61_101, &[]),
    (61_001, 61_103, &[]),
    (61_004, 61_104, &[61_101, 61_102, 61_103, 0]),
];
const USERS: [u32; 5] = [0, 61_001, 61_002, 61_003, 61_004];
const GROUPS: [u32; 6] = [0, 61_101, 61_102, 61_103, 61_104, 61_200];
const MODES: [u32; 16] = [
    0o777, 0o755, 0o700, 0o1777, 0o1770, 0o2775, 0o2777, 0o3777, 0o644, 0o666, 0o600, 0o4755, 0o2755, 0o6775,
    0o2644, 0o7777,
];

/// Both backends, and what is open in both.
struct World {
    sides: [Fixture; 2],
    open: Vec<Option<([NodeId; 2], FileKind)>>,
    /// The directory has extended attributes of users.
    has_xattrs: bool,
    /// Not tmpfs, whose ways are others in places.
    is_ext4: bool,
    random: Random,
    seed: u64,
    steps: usize,
    // What was done last, for a failure.
    log: Vec<String>,
    difference: Option<String>,
}

// [STOR-5] [STOR-7] [STOR-8] [STOR-24] [STOR-52] [STOR-53] [STOR-54] [STOR-190]
#[test]
#[ignore = "needs root"]
fn random_operations_of_several_users_on_a_directory_and_on_memory_agree() {
    let number = |name| std::env::var(name).ok().map(|text: String| text.parse::<u64>().unwrap());
    let seeds = number("DAFS_SEED").map_or(0..SEEDS, |seed| seed..seed + 1);
    let steps = number("DAFS_STEPS").map_or(STEPS, |steps| steps as usize);
    let mut differences = Vec::new();
    for kind in [Kind::Disk(Engine::Pool), Kind::Tmpfs].into_iter().filter(|kind| kinds().contains(kind)) {
        for seed in seeds.clone() {
            let mut world = World::new(kind, seed);
            while world.steps < steps && world.difference.is_none() {
                world.step();
                if world.steps.is_multiple_of(STEPS_BETWEEN) {
                    world.compare_trees(b"");
                }
            }
            differences.extend(world.difference.map(|difference| format!("{kind:?}, {difference}")));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

// [STOR-190]
#[test]
fn link_of_another_in_a_sticky_directory_is_not_followed_if_protected() {
    // What is simulated guards it.
    let mut files = Fixture::with(Kind::Mem, |_| {}, &StorageConfig { seed: Some(1), ..Default::default() });
    let set = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    files.mkdir("all").unwrap();
    files.run(FsOp::Setattr { at: files.at("all"), follow: false, set: set(0o1777) }).unwrap();
    files.mkdir("target").unwrap();
    files.identity = identity(PEOPLE[2]);
    files.symlink("../target", "all/link").unwrap();
    let mut look = |who: usize, path: &str| {
        files.identity = identity(PEOPLE[who]);
        files.run(FsOp::Getattr { at: files.at(path), follow: true }).map(drop)
    };
    assert_eq!(
        [look(2, "all/link"), look(3, "all/link"), look(0, "all/link")],
        [Ok(()), Err(Status::ACCESS), Err(Status::ACCESS)]
    );
    // In the middle of a path everybody may pass.
    assert_eq!(look(3, "all/link/."), Ok(()));
}

fn identity((uid, gid, groups): (u32, u32, &[u32])) -> Identity {
    Identity { uid, gid, groups: groups.into() }
}

impl World {
    fn new(kind: Kind, seed: u64) -> Self {
        let mut world = Self {
            sides: [Fixture::new(kind), Fixture::new(Kind::Mem)],
            open: vec![None; NODES],
            has_xattrs: true,
            is_ext4: kind != Kind::Tmpfs,
            random: Random::new(seed),
            seed,
            steps: 0,
            log: Vec::new(),
            difference: None,
        };
        let list = FsOp::XattrRead { at: world.sides[0].at(""), name: b"user.none".to_vec() };
        world.has_xattrs = !matches!(world.sides[0].run(list), Err(Status::NOT_SUPPORTED));
        let set = SetAttributes { mode: Some(0o777), uid: Some(0), gid: Some(0), ..SetAttributes::default() };
        world.set_attributes_of(None, b"", false, &set);
        world
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.index(of.len())]
    }

    fn act_as(&mut self, who: usize) {
        for side in &mut self.sides {
            side.identity = identity(PEOPLE[who]);
        }
    }

    /// The same on both sides; the results must agree.
    fn both(&mut self, what: String, op: impl Fn(&Fixture, usize) -> FsOp) -> Option<[FsReply; 2]> {
        let who = &self.sides[0].identity;
        self.log.push(format!("{}:{} {:?} {what}", who.uid, who.gid, who.groups));
        if self.difference.is_some() {
            return None;
        }
        let results: Vec<FsResult> = (0..2)
            .map(|side| {
                let op = op(&self.sides[side], side);
                self.sides[side].run(op)
            })
            .collect();
        let told: Vec<String> = results.iter().map(told).collect();
        if told[0] != told[1] {
            let recent = &self.log[self.log.len().saturating_sub(40)..];
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
        let [first, second] = <[FsResult; 2]>::try_from(results).ok()?;
        Some([first.ok()?, second.ok()?])
    }

    fn step(&mut self) {
        self.steps += 1;
        let who = self.random.index(PEOPLE.len());
        self.act_as(who);
        match self.random.below(100) {
            0..22 => self.open(),
            22..34 => self.move_data(),
            34..46 => self.make(),
            46..52 => self.remove(),
            52..60 => self.rename(),
            60..67 => self.link(),
            67..82 => self.set_attributes(),
            82..90 => self.xattr(),
            90..93 => self.list(),
            93..98 => self.look(),
            98 => self.lookup(),
            _ => self.open_up(),
        }
        if self.log.len() > 4000 {
            self.log.drain(..2000);
        }
    }

    /// A place to begin at, and a name some levels below.
    fn place(&mut self) -> (Option<usize>, Vec<u8>) {
        const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
        let base = (self.random.below(5) == 0).then(|| self.random.index(NODES));
        let base = base.filter(|slot| self.open[*slot].is_some());
        if self.random.below(12) == 0 {
            return (base, Vec::new());
        }
        let depth = 1 + self.random.index(3);
        let parts: Vec<&[u8]> = (0..depth).map(|_| NAMES[self.random.index(4)]).collect();
        (base, parts.join(&b'/'))
    }

    fn at(&self, base: Option<usize>, path: &[u8]) -> impl Fn(&Fixture, usize) -> At + use<> {
        let nodes = base.and_then(|slot| self.open[slot]).map(|(nodes, _)| nodes);
        let path = path.to_vec();
        move |side, index| At { node: nodes.map_or(side.root(), |nodes| nodes[index]), path: path.clone() }
    }

    fn keep(&mut self, opened: Option<[FsReply; 2]>) {
        let Some([FsReply::Node(first, attributes), FsReply::Node(second, _)]) = opened else { return };
        let slot = self.random.index(NODES);
        if let Some((old, _)) = self.open[slot].replace(([first, second], attributes.kind)) {
            for (side, node) in self.sides.iter_mut().zip(old) {
                side.storage.close(node);
            }
        }
    }

    /// What became of a place and of its directory.
    fn check(&mut self, base: Option<usize>, path: &[u8]) {
        let before = self.sides[0].identity.clone();
        self.act_as(0);
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        for path in [path, &path[..end]] {
            let at = self.at(base, path);
            self.both(format!("stat {}", shown(base, path)), |side, index| FsOp::Getattr {
                at: at(side, index),
                follow: false,
            });
        }
        self.sides.iter_mut().for_each(|side| side.identity = before.clone());
    }

    fn open(&mut self) {
        let flags = [
            OpenFlags::READ,
            OpenFlags::WRITE,
            RW,
            RWC,
            RWC,
            RWC | OpenFlags::EXCLUSIVE,
            RWC | OpenFlags::TRUNCATE,
            OpenFlags::WRITE | OpenFlags::TRUNCATE,
            OpenFlags::WRITE | OpenFlags::CREATE,
            OpenFlags::READ | OpenFlags::CREATE,
            OpenFlags::READ | OpenFlags::DIRECTORY,
            OpenFlags::READ | OpenFlags::NO_FOLLOW,
            OpenFlags::WRITE | OpenFlags::UNNAMED,
        ];
        let ((base, path), flags, mode) = (self.place(), self.pick(&flags), self.pick(&MODES));
        // tmpfs makes them in directories that were removed, too.
        let base = base.filter(|_| self.is_ext4 || !flags.contains(OpenFlags::UNNAMED));
        let at = self.at(base, &path);
        let told = format!("open {} {flags:?} {mode:o}", shown(base, &path));
        let opened =
            self.both(told, |side, index| FsOp::Open { at: at(side, index), flags, mode, admission: None });
        self.check(base, &path);
        self.keep(opened);
    }

    fn lookup(&mut self) {
        let ((base, path), follow) = (self.place(), self.random.below(2) == 0);
        let at = self.at(base, &path);
        let told = format!("lookup {} {follow}", shown(base, &path));
        let opened = self.both(told, |side, index| FsOp::Lookup { at: at(side, index), follow });
        self.keep(opened);
    }

    fn move_data(&mut self) {
        let slot = self.random.index(NODES);
        let Some((nodes, FileKind::File)) = self.open[slot] else { return };
        let (what, offset) = (self.random.below(6), self.random.below(5000));
        // tmpfs keeps set-user-id and set-group-id bits where space is allocated or punched.
        if (3..5).contains(&what) && !self.is_ext4 {
            return;
        }
        self.both(format!("move data {what} of node {slot} at {offset}"), |_, index| {
            let (node, len) = (nodes[index], 100);
            match what {
                0 => FsOp::Write {
                    node,
                    offset,
                    from: vec![memory_of(&[7; 10])],
                    stability: Stability::Unstable,
                },
                1 => FsOp::Append { node, from: vec![memory_of(&[8; 10])], stability: Stability::Unstable },
                2 => FsOp::Truncate { node, size: offset },
                3 => FsOp::Allocate { node, offset, len },
                4 => FsOp::Punch { node, offset, len },
                _ => FsOp::Read { node, offset, into: vec![memory(10)] },
            }
        });
        self.check(Some(slot), b"");
    }

    fn make(&mut self) {
        let ((base, path), mode) = (self.place(), self.pick(&MODES));
        let at = self.at(base, &path);
        if self.random.below(4) > 0 {
            let told = format!("mkdir {} {mode:o}", shown(base, &path));
            self.both(told, |side, index| FsOp::Mkdir { at: at(side, index), mode });
        } else {
            // None leads above the node where a path begins. Such a path is resolved from the root of a directory, which takes rights to
            // what lies between.
            let target = self.pick(&[&b"a"[..], b"b", b"./a", b"c/d", b"b/../c", b"d"]).to_vec();
            let told = format!("symlink {} to {}", shown(base, &path), target.escape_ascii());
            self.both(told, |side, index| FsOp::Symlink { target: target.clone(), at: at(side, index) });
        }
        self.check(base, &path);
    }

    fn remove(&mut self) {
        let ((base, path), directory) = (self.place(), self.random.below(2) == 0);
        let at = self.at(base, &path);
        let told = format!("remove {} {directory}", shown(base, &path));
        self.both(told, |side, index| FsOp::Remove { at: at(side, index), directory });
        self.check(base, &path);
    }

    fn rename(&mut self) {
        let ((base, path), (other, to), replace) = (self.place(), self.place(), self.random.below(3) > 0);
        let (from_at, to_at) = (self.at(base, &path), self.at(other, &to));
        let told = format!("rename {} to {} {replace}", shown(base, &path), shown(other, &to));
        self.both(told, |side, index| FsOp::Rename {
            from: from_at(side, index),
            to: to_at(side, index),
            replace,
        });
        self.check(base, &path);
        self.check(other, &to);
    }

    fn link(&mut self) {
        let ((base, path), (other, to), replace) = (self.place(), self.place(), self.random.below(2) > 0);
        let (from_at, to_at) = (self.at(base, &path), self.at(other, &to));
        let told = format!("link {} as {} {replace}", shown(base, &path), shown(other, &to));
        self.both(told, |side, index| FsOp::Link {
            from: from_at(side, index),
            to: to_at(side, index),
            replace,
        });
        self.check(base, &path);
        self.check(other, &to);
    }

    fn set_attributes(&mut self) {
        let ((base, path), follow) = (self.place(), self.random.below(2) == 0);
        let half = |world: &mut Self| world.random.below(2) == 0;
        let mode = if half(self) { Some(self.pick(&MODES)) } else { None };
        let uid = if self.random.below(4) == 0 { Some(self.pick(&USERS)) } else { None };
        let gid = if self.random.below(3) == 0 { Some(self.pick(&GROUPS)) } else { None };
        let time = |world: &mut Self| match world.random.below(6) {
            0 => Some(SetTime::Now),
            1 => Some(SetTime::At(Timestamp { seconds: 1_000_000_000, nanoseconds: 1 })),
            _ => None,
        };
        let (atime, mtime) = match self.random.below(4) {
            0 => (Some(SetTime::Now), Some(SetTime::Now)),
            _ => (time(self), time(self)),
        };
        let set = SetAttributes { mode, uid, gid, atime, mtime };
        self.set_attributes_of(base, &path, follow, &set);
        self.check(base, &path);
    }

    fn set_attributes_of(&mut self, base: Option<usize>, path: &[u8], follow: bool, set: &SetAttributes) {
        let at = self.at(base, path);
        let told = format!("setattr {} {follow} {set:?}", shown(base, path));
        self.both(told, |side, index| FsOp::Setattr { at: at(side, index), follow, set: set.clone() });
    }

    /// So that not all is closed to everybody in the end.
    fn open_up(&mut self) {
        self.act_as(0);
        let (base, path) = if self.random.below(3) == 0 { (None, Vec::new()) } else { self.place() };
        let set = SetAttributes {
            mode: Some(self.pick(&[0o777, 0o1777, 0o2777, 0o3777, 0o775])),
            ..SetAttributes::default()
        };
        self.set_attributes_of(base, &path, false, &set);
    }

    fn xattr(&mut self) {
        if !self.has_xattrs {
            return;
        }
        let (base, path) = self.place();
        let is_root = self.sides[0].identity.uid == 0;
        let names: &[&[u8]] = match is_root {
            // What the kernel lets root have outside `user.` memory has not, nor access control lists.
            true => &[b"user.x", b"user.y", b"user."],
            false => &[b"user.x", b"user.y", b"user.", b"trusted.x", b"security.x", b"system.x", b"other.x"],
        };
        let name = self.pick(names).to_vec();
        let (what, mode) = (
            self.random.below(5),
            self.pick(&[XattrSetMode::Any, XattrSetMode::Any, XattrSetMode::Create, XattrSetMode::Replace]),
        );
        let size = self.pick(&[0, 1, 50, 300, 65_537]);
        let at = self.at(base, &path);
        let told =
            format!("xattr {what} {} of {}, {mode:?} {size} bytes", name.escape_ascii(), shown(base, &path));
        self.both(told, |side, index| {
            let (at, name) = (at(side, index), name.clone());
            match what {
                0 | 1 => FsOp::XattrWrite { at, name, value: vec![b'v'; size], mode },
                2 => FsOp::XattrRead { at, name },
                3 => FsOp::XattrRemove { at, name },
                _ => FsOp::XattrRead { at, name: b"user.x".to_vec() },
            }
        });
        self.list_xattrs(base, &path);
    }

    fn list_xattrs(&mut self, base: Option<usize>, path: &[u8]) {
        let at = self.at(base, path);
        let told = format!("xattrs of {}", shown(base, path));
        let lists: Vec<_> = (0..2)
            .map(|side| {
                let at = at(&self.sides[side], side);
                self.sides[side].run(FsOp::XattrList { at }).map(|reply| match reply {
                    FsReply::Bytes(names) => {
                        let names = names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
                        let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
                        names.sort();
                        names
                    }
                    other => panic!("{other:?}"),
                })
            })
            .collect();
        if lists[0] != lists[1] && self.difference.is_none() {
            self.difference = Some(format!(
                "DAFS_SEED={}, step {}: {told}: {lists:?}; lately:\n{}",
                self.seed,
                self.steps,
                self.log[self.log.len().saturating_sub(40)..].join("\n")
            ));
        }
    }

    fn list(&mut self) {
        let slot = self.random.index(NODES);
        let Some((nodes, _)) = self.open[slot] else { return };
        self.both(format!("list node {slot}"), |_, index| FsOp::Readdir {
            node: nodes[index],
            cookie: 0,
            size_max: 16_384,
            attributes: true,
        });
    }

    fn look(&mut self) {
        let ((base, path), follow) = (self.place(), self.random.below(2) == 0);
        let (at, name) = (self.at(base, &path), shown(base, &path));
        self.both(format!("stat {name} {follow}"), |side, index| FsOp::Getattr {
            at: at(side, index),
            follow,
        });
        let mode = AccessMode::from_bits_truncate(self.random.below(8) as u32);
        self.both(format!("access {name} {follow} {mode:?}"), |side, index| FsOp::AccessCheck {
            at: at(side, index),
            follow,
            mode,
        });
        self.both(format!("readlink {name}"), |side, index| FsOp::Readlink { at: at(side, index) });
    }

    /// Everything below a directory, as user 0 sees it.
    fn compare_trees(&mut self, path: &[u8]) {
        self.act_as(0);
        let name = shown(None, path);
        let at = self.at(None, path);
        self.both(format!("stat {name}"), |side, index| FsOp::Getattr { at: at(side, index), follow: false });
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        let opened = self.both(format!("open {name}"), |side, index| FsOp::Open {
            at: at(side, index),
            flags,
            mode: 0,
            admission: None,
        });
        let Some([FsReply::Node(first, _), FsReply::Node(second, _)]) = opened else { return };
        let nodes = [first, second];
        self.both(format!("list {name}"), |_, index| FsOp::Readdir {
            node: nodes[index],
            cookie: 0,
            size_max: 16_384,
            attributes: true,
        });
        let names = self.sides[0].names(first, 16_384);
        for (side, node) in self.sides.iter_mut().zip(nodes) {
            side.storage.close(node);
        }
        for below in names {
            let below = if path.is_empty() { below } else { [path, b"/", &below].concat() };
            if self.has_xattrs {
                self.list_xattrs(None, &below);
            }
            if self.sides[0].stat(&below).is_ok_and(|found| found.kind == FileKind::Directory) {
                self.compare_trees(&below);
            }
        }
    }
}

fn shown(base: Option<usize>, path: &[u8]) -> String {
    let base = base.map_or_else(String::new, |slot| format!("node {slot} "));
    format!("{base}{:?}", path.escape_ascii().to_string())
}

/// What is compared of a result.
fn told(result: &FsResult) -> String {
    match result {
        Err(status) => format!("{status:?}"),
        Ok(FsReply::Node(_, attributes) | FsReply::Attributes(attributes)) => attributes_told(attributes),
        Ok(FsReply::Entries(entries)) => {
            let entries = dafs_proto::wire::decode_dir_entries(&entries.bytes).unwrap();
            let mut told: Vec<String> = entries
                .iter()
                .map(|entry| {
                    let attributes = entry.attributes.as_ref().map(attributes_told);
                    format!("{} {attributes:?}", entry.name.escape_ascii())
                })
                .collect();
            told.sort();
            told.join(", ")
        }
        Ok(FsReply::Bytes(bytes)) => bytes.escape_ascii().to_string(),
        Ok(other) => format!("{other:?}"),
    }
}

fn attributes_told(attributes: &Attributes) -> String {
    // File systems measure directories as they like.
    let size = (attributes.kind != FileKind::Directory).then_some(attributes.size);
    let Attributes { kind, mode, uid, gid, links, .. } = attributes;
    format!("{kind:?} {mode:o} {uid}:{gid} {links} links {size:?}")
}
