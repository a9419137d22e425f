//! The operations of the differential test, and how they are made and told.

use std::collections::BTreeMap;

use crate::suite::Numbers;

/// Files that are open at once.
pub const SLOTS: usize = 6;
/// No file becomes much larger.
const SIZE_MAX: u64 = 1 << 20;

/// What an operation answers: what its call in C would return, its errno, and a sum of what it brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub value: i64,
    pub errno: i32,
    pub sum: u64,
}

impl Answer {
    pub fn of(line: &str) -> Self {
        let mut words = line.split(' ');
        let mut next = || words.next().expect("three numbers");
        Self { value: next().parse().unwrap(), errno: next().parse().unwrap(), sum: next().parse().unwrap() }
    }

    pub fn value(value: u64) -> Self {
        Self { value: i64::try_from(value).unwrap(), errno: 0, sum: 0 }
    }

    pub fn bytes(bytes: &[u8]) -> Self {
        Self { sum: sum(bytes), ..Self::value(bytes.len() as u64) }
    }

    pub fn failed(errno: i32) -> Self {
        Self { value: -1, errno, sum: 0 }
    }
}

/// Whoever executes operations.
pub trait Driver {
    fn apply(&mut self, operation: &Op) -> Answer;
}

/// An operation. Paths begin at the test's own directory, which is the empty one; numbers are those of C.
#[derive(Clone, Debug)]
pub enum Op {
    Open {
        slot: usize,
        path: String,
        flags: i32,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        offset: u64,
        len: usize,
    },
    Write {
        slot: usize,
        offset: u64,
        len: usize,
        seed: u64,
    },
    ReadList {
        slot: usize,
        extents: Vec<(u64, u64)>,
        cut: usize,
    },
    WriteList {
        slot: usize,
        extents: Vec<(u64, u64)>,
        cut: usize,
        seed: u64,
    },
    Append {
        slot: usize,
        len: usize,
        seed: u64,
    },
    Truncate {
        slot: usize,
        size: u64,
    },
    Allocate {
        slot: usize,
        mode: i32,
        offset: u64,
        len: u64,
    },
    Seek {
        slot: usize,
        offset: u64,
        whence: i32,
    },
    Sync {
        slot: usize,
    },
    Fstat {
        slot: usize,
    },
    Stat {
        path: String,
        follow: bool,
    },
    Rename {
        from: String,
        to: String,
        replace: bool,
    },
    Link {
        from: String,
        to: String,
    },
    Symlink {
        target: String,
        path: String,
    },
    Readlink {
        path: String,
    },
    Unlink {
        path: String,
        directory: bool,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    SetXattr {
        path: String,
        name: String,
        len: usize,
        seed: u64,
        flags: i32,
    },
    GetXattr {
        path: String,
        name: String,
    },
    ListXattr {
        path: String,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    List {
        path: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Copy {
        from: usize,
        offset: u64,
        to: usize,
        target: u64,
        len: u64,
    },
    /// Opens, reads and closes: a chain.
    Head {
        path: String,
        len: usize,
    },
}

impl Op {
    /// As the program in C reads it. The empty path is a dot there.
    pub fn line(&self) -> String {
        let name = |path: &String| if path.is_empty() { ".".to_owned() } else { path.clone() };
        let list = |extents: &[(u64, u64)]| {
            let each: String = extents.iter().map(|(offset, len)| format!(" {offset} {len}")).collect();
            format!("{}{each}", extents.len())
        };
        match self {
            Self::Open { slot, path, flags, mode } => format!("open {slot} {} {flags} {mode}", name(path)),
            Self::Close { slot } => format!("close {slot}"),
            Self::Read { slot, offset, len } => format!("read {slot} {offset} {len}"),
            Self::Write { slot, offset, len, seed } => format!("write {slot} {offset} {len} {seed}"),
            Self::ReadList { slot, extents, cut } => format!("readlist {slot} {cut} {}", list(extents)),
            Self::WriteList { slot, extents, cut, seed } => {
                format!("writelist {slot} {cut} {seed} {}", list(extents))
            }
            Self::Append { slot, len, seed } => format!("append {slot} {len} {seed}"),
            Self::Truncate { slot, size } => format!("truncate {slot} {size}"),
            Self::Allocate { slot, mode, offset, len } => format!("allocate {slot} {mode} {offset} {len}"),
            Self::Seek { slot, offset, whence } => format!("seek {slot} {offset} {whence}"),
            Self::Sync { slot } => format!("sync {slot}"),
            Self::Fstat { slot } => format!("fstat {slot}"),
            Self::Stat { path, follow } => format!("stat {} {}", name(path), i32::from(*follow)),
            Self::Rename { from, to, replace } => format!("rename {from} {to} {}", i32::from(*replace)),
            Self::Link { from, to } => format!("link {from} {to}"),
            Self::Symlink { target, path } => format!("symlink {target} {path}"),
            Self::Readlink { path } => format!("readlink {path}"),
            Self::Unlink { path, directory } => format!("unlink {path} {}", i32::from(*directory)),
            Self::Mkdir { path, mode } => format!("mkdir {path} {mode}"),
            Self::SetXattr { path, name, len, seed, flags } => {
                format!("setxattr {path} {name} {len} {seed} {flags}")
            }
            Self::GetXattr { path, name } => format!("getxattr {path} {name}"),
            Self::ListXattr { path } => format!("listxattr {}", name(path)),
            Self::RemoveXattr { path, name } => format!("removexattr {path} {name}"),
            Self::List { path } => format!("list {}", name(path)),
            Self::Chmod { path, mode } => format!("chmod {path} {mode}"),
            Self::Copy { from, offset, to, target, len } => {
                format!("copy {from} {offset} {to} {target} {len}")
            }
            Self::Head { path, len } => format!("head {} {len}", name(path)),
        }
    }
}

/// The bytes that a write with this seed writes.
pub fn data(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_mul(31) + at * 7 + at / 251).to_le_bytes()[0]).collect()
}

/// FNV-1a, of words and the bytes that are left.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let all = words.chain(rest.iter().map(|byte| u64::from(*byte)));
    all.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
}

/// A sum of names and what stands beside each, in whatever order they come.
pub fn sum_of_names<'a>(names: impl Iterator<Item = (&'a [u8], u64)>) -> (u64, u64) {
    names.fold((0, 0), |(count, all), (name, beside)| {
        (count + 1, all.wrapping_add(sum(name).wrapping_mul(2 * beside + 1)))
    })
}

/// What an answer says of attributes: what differs from one directory to another is left out.
pub fn attributes_answer(mode: u32, links: u64, size: u64) -> Answer {
    let is_directory = mode & libc::S_IFMT == libc::S_IFDIR;
    let (links, size) = if is_directory { (0, 0) } else { (links, size) };
    Answer { value: i64::from(mode), errno: 0, sum: size.wrapping_mul(1_000_003).wrapping_add(links) }
}

/// Makes operations that mostly succeed.
pub struct Generator {
    numbers: Numbers,
    /// How the slots were opened, as far as that is known without executing anything.
    open: BTreeMap<usize, i32>,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self { numbers: Numbers::new(seed), open: BTreeMap::new() }
    }

    #[allow(clippy::should_implement_trait, reason = "operations without end are no iteration")]
    pub fn next(&mut self) -> Op {
        match self.numbers.below(100) {
            0..12 => self.open(),
            12..14 => Op::Close { slot: self.slot() },
            14..62 => self.data(),
            _ => self.name(),
        }
    }

    fn open(&mut self) -> Op {
        let slot = self.numbers.below(SLOTS as u64) as usize;
        let access = self.numbers.one_of(&[libc::O_RDWR, libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY]);
        let mut flags = access;
        if self.numbers.below(4) > 0 {
            flags |= libc::O_CREAT;
        }
        for flag in [libc::O_EXCL | libc::O_CREAT, libc::O_NOFOLLOW, libc::O_DSYNC] {
            if self.numbers.below(10) == 0 {
                flags |= flag;
            }
        }
        if access != libc::O_RDONLY && self.numbers.below(10) == 0 {
            flags |= libc::O_TRUNC;
        }
        self.open.insert(slot, flags);
        Op::Open { slot, path: self.path(), flags, mode: self.numbers.one_of(&[0o600, 0o640, 0o755]) }
    }

    fn data(&mut self) -> Op {
        let (slot, seed) = (self.slot(), self.numbers.below(1 << 20));
        let (offset, len) = (self.offset(), self.len());
        let cut = self.numbers.below(len as u64 + 1) as usize;
        match self.numbers.below(24) {
            0..6 => Op::Read { slot, offset, len },
            6..11 => Op::Write { slot, offset, len, seed },
            11..13 => Op::ReadList { slot, extents: self.extents(), cut },
            13..15 => Op::WriteList { slot, extents: self.extents(), cut, seed },
            15 => Op::Append { slot, len: len.min(4000), seed },
            16 => Op::Truncate { slot, size: offset / 2 },
            17 => Op::Allocate {
                slot,
                mode: self.numbers.one_of(&[0, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE]),
                offset,
                len: len as u64,
            },
            18..20 => {
                let whence = self.numbers.one_of(&[libc::SEEK_DATA, libc::SEEK_HOLE, libc::SEEK_END]);
                Op::Seek { slot, offset, whence }
            }
            20 => Op::Sync { slot },
            21 => {
                Op::Copy { from: slot, offset, to: self.slot(), target: SIZE_MAX + offset, len: len as u64 }
            }
            _ => Op::Fstat { slot },
        }
    }

    fn name(&mut self) -> Op {
        let (path, other) = (self.path(), self.path());
        let name = self.numbers.one_of(&["user.a", "user.b"]).to_owned();
        match self.numbers.below(26) {
            0..3 => Op::Stat { path, follow: self.numbers.below(2) == 0 },
            3..6 => Op::Rename { from: path, to: other, replace: self.numbers.below(3) > 0 },
            6..8 => Op::Link { from: path, to: other },
            8 => Op::Symlink { target: self.numbers.one_of(&NAMES).to_owned(), path },
            9 => Op::Readlink { path },
            10 => Op::Unlink { path, directory: self.numbers.below(3) == 0 },
            11..13 => Op::Mkdir { path: self.numbers.one_of(&DIRECTORIES).to_owned(), mode: 0o755 },
            13..15 => {
                let flags = self.numbers.one_of(&[0, libc::XATTR_CREATE, libc::XATTR_REPLACE]);
                Op::SetXattr {
                    path,
                    name,
                    len: self.numbers.below(100) as usize,
                    seed: self.numbers.below(99),
                    flags,
                }
            }
            15 => Op::GetXattr { path, name },
            16 => Op::ListXattr { path },
            17 => Op::RemoveXattr { path, name },
            18..20 => Op::List { path: self.numbers.one_of(&["", "", "d", "e", "d/s"]).to_owned() },
            20 => Op::Chmod { path, mode: self.numbers.one_of(&[0o600, 0o644, 0o700]) },
            _ => Op::Head { path, len: self.len().min(4000) },
        }
    }

    /// Mostly one that is open.
    fn slot(&mut self) -> usize {
        let open: Vec<usize> = self.open.keys().copied().collect();
        match open.is_empty() {
            true => 0,
            false => self.numbers.one_of(&open),
        }
    }

    fn path(&mut self) -> String {
        let directory = self.numbers.one_of(&["", "", "", "", "", "", "d/", "e/", "d/s/"]);
        directory.to_owned() + self.numbers.one_of(&NAMES)
    }

    fn offset(&mut self) -> u64 {
        let most = self.numbers.one_of(&[100, 10_000, 100_000, SIZE_MAX]);
        self.numbers.below(most)
    }

    fn len(&mut self) -> usize {
        let most = self.numbers.one_of(&[10, 1000, 1000, 5000, 5000, 20_000, 20_000, 200_000]);
        1 + self.numbers.below(most) as usize
    }

    fn extents(&mut self) -> Vec<(u64, u64)> {
        let mut at = self.offset();
        (0..1 + self.numbers.below(20))
            .map(|_| {
                let extent = (at, 1 + self.numbers.below(300));
                at += extent.1 + self.numbers.below(3000);
                extent
            })
            .collect()
    }
}

const NAMES: [&str; 7] = ["a", "b", "c", "f", "g", "d", "e"];
const DIRECTORIES: [&str; 4] = ["d", "e", "d/s", "f"];
