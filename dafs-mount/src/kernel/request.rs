//! Requests of the kernel, decoded.
//!
//! Layouts are those of `linux/fuse.h`, in the host's byte order. The kernel is trusted, and its words are checked all the same: one that
//! is too short is an error, and no panic.

use byteorder::{ByteOrder, NativeEndian};

/// Bytes before the arguments.
pub(crate) const HEADER_SIZE: usize = 40;

/// Bytes in front of the data of a write.
pub(crate) const WRITE_HEAD_SIZE: usize = HEADER_SIZE + 40;

/// A name in a directory, or a target: bytes without a zero.
pub(crate) type Name = Box<[u8]>;

/// Who asks, what for, and of which node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    /// Names the request, for its reply and for an interrupt.
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

impl Header {
    pub(crate) fn decode(bytes: &[u8; HEADER_SIZE]) -> Self {
        let (u32_at, u64_at) = (
            |at: usize| NativeEndian::read_u32(&bytes[at..]),
            |at: usize| NativeEndian::read_u64(&bytes[at..]),
        );
        Self {
            opcode: u32_at(4),
            unique: u64_at(8),
            node: u64_at(16),
            uid: u32_at(24),
            gid: u32_at(28),
            pid: u32_at(32),
        }
    }

    /// The request carries data behind its arguments.
    pub(crate) fn is_write(&self) -> bool {
        self.opcode == opcode::WRITE
    }
}

/// Numbers of requests.
pub(crate) mod opcode {
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
}

/// A lock, or a question about one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockAsked {
    pub(crate) file: u64,
    pub(crate) owner: u64,
    pub(crate) start: u64,
    /// The last byte; `i64::MAX` for all that follows.
    pub(crate) last: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: u32,
    /// By flock(2), not by fcntl(2).
    pub(crate) is_flock: bool,
}

/// Attributes to be set; a time without a moment is now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttributesAsked {
    pub(crate) file: Option<u64>,
    pub(crate) size: Option<u64>,
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) atime: Option<Option<(i64, u32)>>,
    pub(crate) mtime: Option<Option<(i64, u32)>>,
}

/// The mode of what is made, and the umask of whoever makes it. A directory's default access control list takes the umask's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) asked: u32,
    pub(crate) umask: u32,
}

/// A read, of data or of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAsked {
    pub(crate) file: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
}

/// A copy from one open file to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyAsked {
    pub(crate) source: u64,
    pub(crate) source_offset: u64,
    pub(crate) target: u64,
    pub(crate) target_offset: u64,
    pub(crate) len: u64,
}

/// What the kernel asks for.
#[derive(Debug)]
pub(crate) enum Request {
    Lookup {
        name: Name,
    },
    Forget {
        of: Vec<(u64, u64)>,
    },
    Getattr {
        file: Option<u64>,
    },
    Setattr(AttributesAsked),
    Readlink,
    Symlink {
        name: Name,
        target: Name,
    },
    Mknod {
        name: Name,
        mode: Mode,
        device: u32,
    },
    Mkdir {
        name: Name,
        mode: Mode,
    },
    Unlink {
        name: Name,
    },
    Rmdir {
        name: Name,
    },
    Rename {
        from: Name,
        directory: u64,
        to: Name,
        flags: u32,
    },
    Link {
        of: u64,
        name: Name,
    },
    Open {
        flags: u32,
    },
    Create {
        name: Name,
        flags: u32,
        mode: Mode,
    },
    Tmpfile {
        mode: Mode,
    },
    Read(ReadAsked),
    Write {
        file: u64,
        offset: u64,
        size: u32,
        flags: u32,
    },
    Statfs,
    Release {
        file: u64,
    },
    Flush {
        file: u64,
        owner: u64,
    },
    Fsync {
        file: u64,
        data_only: bool,
    },
    Setxattr {
        name: Name,
        value: Box<[u8]>,
        flags: u32,
    },
    Getxattr {
        name: Name,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: Name,
    },
    Opendir,
    Readdir {
        of: ReadAsked,
        with_attributes: bool,
    },
    Releasedir {
        directory: u64,
    },
    Fsyncdir {
        directory: u64,
    },
    TestLock(LockAsked),
    Lock {
        lock: LockAsked,
        waits: bool,
    },
    Access {
        mask: u32,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl,
    Allocate {
        file: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    Seek {
        file: u64,
        offset: u64,
        whence: u32,
    },
    Copy(CopyAsked),
    Syncfs,
    /// One that this program does not know.
    Unknown,
}

/// The kernel sent fewer bytes than the request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {opcode} of the kernel is cut short")]
pub(crate) struct Short {
    opcode: u32,
}

/// Reads arguments one after the other.
struct Arguments<'a> {
    opcode: u32,
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let short = Short { opcode: self.opcode };
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, Short> {
        self.take(4).map(NativeEndian::read_u32)
    }

    fn u64(&mut self) -> Result<u64, Short> {
        self.take(8).map(NativeEndian::read_u64)
    }

    fn i64(&mut self) -> Result<i64, Short> {
        self.take(8).map(NativeEndian::read_i64)
    }

    fn skip(&mut self, len: usize) -> Result<(), Short> {
        self.take(len).map(drop)
    }

    /// A name, and the zero behind it.
    fn name(&mut self) -> Result<Name, Short> {
        let len = self.rest.iter().position(|byte| *byte == 0).ok_or(Short { opcode: self.opcode })?;
        let name = self.take(len)?.into();
        self.skip(1)?;
        Ok(name)
    }
}

impl Request {
    /// What a request with this opcode and these arguments, without the data of a write, asks for.
    #[allow(clippy::too_many_lines, reason = "a table: one row a request")]
    pub(crate) fn decode(header: &Header, arguments: &[u8]) -> Result<Self, Short> {
        let mut from = Arguments { opcode: header.opcode, rest: arguments };
        Ok(match header.opcode {
            1 => Self::Lookup { name: from.name()? },
            2 => Self::Forget { of: vec![(header.node, from.u64()?)] },
            3 => {
                let flags = from.u32()?;
                from.skip(4)?;
                let file = from.u64()?;
                Self::Getattr { file: (flags & GETATTR_FILE != 0).then_some(file) }
            }
            4 => Self::Setattr(attributes(&mut from)?),
            5 => Self::Readlink,
            6 => Self::Symlink { name: from.name()?, target: from.name()? },
            8 => {
                let (asked, device, umask) = (from.u32()?, from.u32()?, from.u32()?);
                from.skip(4)?;
                Self::Mknod { name: from.name()?, mode: Mode { asked, umask }, device }
            }
            9 => {
                let mode = Mode { asked: from.u32()?, umask: from.u32()? };
                Self::Mkdir { name: from.name()?, mode }
            }
            10 => Self::Unlink { name: from.name()? },
            11 => Self::Rmdir { name: from.name()? },
            12 => {
                let directory = from.u64()?;
                Self::Rename { from: from.name()?, directory, to: from.name()?, flags: 0 }
            }
            13 => Self::Link { of: from.u64()?, name: from.name()? },
            14 => Self::Open { flags: from.u32()? },
            15 => Self::Read(read(&mut from)?),
            opcode::WRITE => {
                let ReadAsked { file, offset, size } = read(&mut from)?;
                from.skip(12)?;
                Self::Write { file, offset, size, flags: from.u32()? }
            }
            17 => Self::Statfs,
            18 => Self::Release { file: from.u64()? },
            20 => Self::Fsync { file: from.u64()?, data_only: from.u32()? & FSYNC_DATA != 0 },
            21 => {
                let (size, flags) = (from.u32()?, from.u32()?);
                Self::Setxattr { name: from.name()?, value: from.take(size as usize)?.into(), flags }
            }
            22 => {
                let size = from.u32()?;
                from.skip(4)?;
                Self::Getxattr { name: from.name()?, size }
            }
            23 => Self::Listxattr { size: from.u32()? },
            24 => Self::Removexattr { name: from.name()? },
            25 => {
                let file = from.u64()?;
                from.skip(8)?;
                Self::Flush { file, owner: from.u64()? }
            }
            27 => Self::Opendir,
            28 => Self::Readdir { of: read(&mut from)?, with_attributes: false },
            29 => Self::Releasedir { directory: from.u64()? },
            30 => Self::Fsyncdir { directory: from.u64()? },
            31 => Self::TestLock(lock(&mut from)?),
            32 => Self::Lock { lock: lock(&mut from)?, waits: false },
            33 => Self::Lock { lock: lock(&mut from)?, waits: true },
            34 => Self::Access { mask: from.u32()? },
            35 => {
                let (flags, asked, umask) = (from.u32()?, from.u32()?, from.u32()?);
                from.skip(4)?;
                Self::Create { name: from.name()?, flags, mode: Mode { asked, umask } }
            }
            opcode::INTERRUPT => Self::Interrupt { unique: from.u64()? },
            opcode::DESTROY => Self::Destroy,
            39 => Self::Ioctl,
            42 => {
                let count = from.u32()?;
                from.skip(4)?;
                Self::Forget {
                    of: (0..count).map(|_| Ok((from.u64()?, from.u64()?))).collect::<Result<_, _>>()?,
                }
            }
            43 => {
                let (file, offset, len) = (from.u64()?, from.u64()?, from.u64()?);
                Self::Allocate { file, offset, len, mode: from.u32()? }
            }
            44 => Self::Readdir { of: read(&mut from)?, with_attributes: true },
            45 => {
                let (directory, flags) = (from.u64()?, from.u32()?);
                from.skip(4)?;
                Self::Rename { from: from.name()?, directory, to: from.name()?, flags }
            }
            46 => Self::Seek { file: from.u64()?, offset: from.u64()?, whence: from.u32()? },
            47 => {
                let (source, source_offset) = (from.u64()?, from.u64()?);
                from.skip(8)?;
                let (target, target_offset, len) = (from.u64()?, from.u64()?, from.u64()?);
                Self::Copy(CopyAsked { source, source_offset, target, target_offset, len })
            }
            50 => Self::Syncfs,
            51 => {
                from.skip(4)?;
                Self::Tmpfile { mode: Mode { asked: from.u32()?, umask: from.u32()? } }
            }
            _ => Self::Unknown,
        })
    }
}

const GETATTR_FILE: u32 = 1;
const FSYNC_DATA: u32 = 1;
const LOCK_FLOCK: u32 = 1;

fn read(from: &mut Arguments<'_>) -> Result<ReadAsked, Short> {
    Ok(ReadAsked { file: from.u64()?, offset: from.u64()?, size: from.u32()? })
}

fn lock(from: &mut Arguments<'_>) -> Result<LockAsked, Short> {
    let (file, owner, start, last) = (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
    let kind = from.u32()?;
    from.skip(4)?;
    Ok(LockAsked { file, owner, start, last, kind, is_flock: from.u32()? & LOCK_FLOCK != 0 })
}

fn attributes(from: &mut Arguments<'_>) -> Result<AttributesAsked, Short> {
    let valid = from.u32()?;
    from.skip(4)?;
    let (file, size) = (from.u64()?, from.u64()?);
    from.skip(8)?;
    let (atime, mtime) = (from.i64()?, from.i64()?);
    from.skip(8)?;
    let (atime_ns, mtime_ns) = (from.u32()?, from.u32()?);
    from.skip(4)?;
    let mode = from.u32()?;
    from.skip(4)?;
    let (uid, gid) = (from.u32()?, from.u32()?);
    let has = |bit: u32| valid & 1 << bit != 0;
    let time = |set, now, at| has(set).then_some((!has(now)).then_some(at));
    Ok(AttributesAsked {
        mode: has(0).then_some(mode),
        uid: has(1).then_some(uid),
        gid: has(2).then_some(gid),
        size: has(3).then_some(size),
        atime: time(4, 7, (atime, atime_ns)),
        mtime: time(5, 8, (mtime, mtime_ns)),
        file: has(6).then_some(file),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: u32) -> Header {
        Header { opcode, unique: 7, node: 3, uid: 1, gid: 2, pid: 4 }
    }

    #[test]
    fn request_that_is_cut_short_is_an_error() {
        for opcode in 0..=60 {
            for len in 0..200 {
                let _ = Request::decode(&header(opcode), &vec![1; len]);
            }
        }
        assert!(Request::decode(&header(1), b"no zero").is_err());
        assert!(Request::decode(&header(42), &u32::MAX.to_ne_bytes()).is_err());
    }

    #[test]
    fn rename_is_decoded_with_and_without_flags() {
        let mut old = 9u64.to_ne_bytes().to_vec();
        old.extend(b"a\0bc\0");
        let decoded = Request::decode(&header(12), &old).unwrap();
        assert!(
            matches!(&decoded, Request::Rename { from, directory: 9, to, flags: 0 } if **from == *b"a" && **to == *b"bc")
        );
        let mut new = 9u64.to_ne_bytes().to_vec();
        new.extend(2u32.to_ne_bytes());
        new.extend(b"\0\0\0\0a\0bc\0");
        let decoded = Request::decode(&header(45), &new).unwrap();
        assert!(matches!(&decoded, Request::Rename { directory: 9, flags: 2, .. }));
    }
}
