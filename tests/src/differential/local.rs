//! Operations on a local directory, by the kernel. Where dafs differs from it on purpose, this says so.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RawDir, RenameFlags, SeekFrom, XattrFlags,
};
use rustix::io::{Errno, Result};

use super::operation::{Answer, Driver, Op, SLOTS, attributes_answer, data, sum_of_names};

pub struct Local {
    root: PathBuf,
    slots: [Option<OwnedFd>; SLOTS],
}

impl Local {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), slots: Default::default() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn file(&self, slot: usize) -> Result<&OwnedFd> {
        self.slots[slot].as_ref().ok_or(Errno::BADF)
    }

    fn open(&self, path: &str, flags: i32, mode: u32) -> Result<OwnedFd> {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned()) | OFlags::CLOEXEC;
        rustix::fs::open(self.at(path), flags, Mode::from_raw_mode(mode))
    }
}

fn read(file: &OwnedFd, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut count = 0;
    while count < len {
        match rustix::io::pread(file, &mut bytes[count..], offset + count as u64)? {
            0 => break,
            more => count += more,
        }
    }
    bytes.truncate(count);
    Ok(bytes)
}

fn write(file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let count = rustix::io::pwrite(file, bytes, offset)?;
        (bytes, offset) = (&bytes[count..], offset + count as u64);
    }
    Ok(())
}

impl Driver for Local {
    fn apply(&mut self, operation: &Op) -> Answer {
        let answer = match operation {
            Op::Open { slot, path, flags, mode } => {
                self.slots[*slot] = None;
                self.open(path, *flags, *mode).map(|file| {
                    self.slots[*slot] = Some(file);
                    Answer::value(0)
                })
            }
            Op::Close { slot } => self.slots[*slot].take().map(|_| Answer::value(0)).ok_or(Errno::BADF),
            operation => match self.apply_to_file(operation) {
                Some(answer) => answer,
                None => self.apply_to_names(operation),
            },
        };
        answer.unwrap_or_else(|error| Answer::failed(error.raw_os_error()))
    }
}

impl Local {
    fn apply_to_file(&self, operation: &Op) -> Option<Result<Answer>> {
        let with = |slot: usize, body: &dyn Fn(&OwnedFd) -> Result<Answer>| self.file(slot).and_then(body);
        Some(match operation {
            Op::Read { slot, offset, len } => {
                with(*slot, &|file| Ok(Answer::bytes(&read(file, *offset, *len)?)))
            }
            Op::Write { slot, offset, len, seed } => with(*slot, &|file| {
                write(file, *offset, &data(*seed, *len)).map(|()| Answer::value(*len as u64))
            }),
            Op::ReadList { slot, extents, .. } => with(*slot, &|file| {
                let mut bytes = Vec::new();
                for (offset, len) in extents {
                    let found = read(file, *offset, *len as usize)?;
                    bytes.extend_from_slice(&found);
                    if (found.len() as u64) < *len {
                        break;
                    }
                }
                Ok(Answer::bytes(&bytes))
            }),
            Op::WriteList { slot, extents, seed, .. } => with(*slot, &|file| {
                let total: u64 = extents.iter().map(|(_, len)| len).sum();
                let bytes = data(*seed, total as usize);
                let mut at = 0;
                for (offset, len) in extents {
                    write(file, *offset, &bytes[at..at + *len as usize])?;
                    at += *len as usize;
                }
                Ok(Answer::value(total))
            }),
            Op::Append { slot, len, seed } => with(*slot, &|file| {
                let size = rustix::fs::fstat(file)?.st_size.cast_unsigned();
                write(file, size, &data(*seed, *len)).map(|()| Answer::value(size))
            }),
            Op::Truncate { slot, size } => with(*slot, &|file| match rustix::fs::ftruncate(file, *size) {
                // The server says of a file that was opened to read what it says of a write to it.
                Err(Errno::INVAL) => Err(Errno::BADF),
                truncated => truncated.map(|()| Answer::value(0)),
            }),
            Op::Allocate { slot, mode, offset, len } => with(*slot, &|file| {
                let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
                rustix::fs::fallocate(file, mode, *offset, *len).map(|()| Answer::value(0))
            }),
            Op::Seek { slot, offset, whence } => with(*slot, &|file| {
                let stat = rustix::fs::fstat(file)?;
                if stat.st_mode & libc::S_IFMT == libc::S_IFDIR && *whence != libc::SEEK_END {
                    // The kernel answers something, which is no place in any data.
                    return Err(Errno::INVAL);
                }
                Ok(Answer::value(match *whence {
                    libc::SEEK_DATA => rustix::fs::seek(file, SeekFrom::Data(*offset))?,
                    libc::SEEK_HOLE => rustix::fs::seek(file, SeekFrom::Hole(*offset))?,
                    _ => stat.st_size.cast_unsigned() + offset,
                }))
            }),
            Op::Sync { slot } => with(*slot, &|file| rustix::fs::fsync(file).map(|()| Answer::value(0))),
            Op::Fstat { slot } => with(*slot, &|file| Ok(attributes(&rustix::fs::fstat(file)?))),
            Op::Copy { from, offset, to, target, len } => {
                let copied =
                    self.file(*to).and_then(|to| copy(self.file(*from)?, *offset, to, *target, *len));
                copied.map(Answer::value)
            }
            _ => return None,
        })
    }

    fn apply_to_names(&self, operation: &Op) -> Result<Answer> {
        match operation {
            Op::Stat { path, follow } => {
                let flags = if *follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
                return Ok(attributes(&rustix::fs::statat(CWD, self.at(path), flags)?));
            }
            Op::Rename { from, to, replace } => {
                let flags = if *replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)?;
            }
            Op::Link { from, to } => {
                rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty())?;
            }
            Op::Symlink { target, path } => rustix::fs::symlinkat(target, CWD, self.at(path))?,
            Op::Readlink { path } => {
                let target = rustix::fs::readlinkat(CWD, self.at(path), Vec::new())?;
                return Ok(Answer::bytes(target.as_bytes()));
            }
            Op::Unlink { path, directory } => {
                let flags = if *directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                rustix::fs::unlinkat(CWD, self.at(path), flags)?;
            }
            Op::Mkdir { path, mode } => {
                rustix::fs::mkdirat(CWD, self.at(path), Mode::from_raw_mode(*mode))?;
            }
            Op::SetXattr { path, name, len, seed, flags } => {
                let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
                rustix::fs::lsetxattr(self.at(path), name, &data(*seed, *len), flags)?;
            }
            Op::GetXattr { path, name } => {
                let mut value = vec![0; 1000];
                let count = rustix::fs::lgetxattr(self.at(path), name, &mut value[..])?;
                return Ok(Answer::bytes(&value[..count]));
            }
            Op::ListXattr { path } => {
                let mut names = vec![0; 1000];
                let count = rustix::fs::llistxattr(self.at(path), &mut names[..])?;
                let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
                let (value, sum) = sum_of_names(names.map(|name| (name, 0)));
                return Ok(Answer { sum, ..Answer::value(value) });
            }
            Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(self.at(path), name)?,
            Op::List { path } => return self.list(path),
            Op::Chmod { path, mode } => {
                let mode = Mode::from_raw_mode(*mode);
                rustix::fs::chmodat(CWD, self.at(path), mode, AtFlags::empty())?;
            }
            Op::Head { path, len } => {
                return Ok(Answer::bytes(&read(&self.open(path, libc::O_RDONLY, 0)?, 0, *len)?));
            }
            other => panic!("{other:?} is of a file"),
        }
        Ok(Answer::value(0))
    }

    fn list(&self, path: &str) -> Result<Answer> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(self.at(path), flags, Mode::empty())?;
        let mut found = Vec::new();
        let mut buffer = Vec::with_capacity(1 << 16);
        let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let kind = match entry.file_type() {
                FileType::RegularFile => libc::DT_REG,
                FileType::Directory => libc::DT_DIR,
                FileType::Symlink => libc::DT_LNK,
                other => panic!("the test makes no {other:?}"),
            };
            let name = entry.file_name().to_bytes().to_vec();
            found.extend((name != b"." && name != b"..").then_some((name, u64::from(kind))));
        }
        let (value, sum) = sum_of_names(found.iter().map(|(name, kind)| (&name[..], *kind)));
        Ok(Answer { sum, ..Answer::value(value) })
    }
}

fn attributes(of: &rustix::fs::Stat) -> Answer {
    #[allow(clippy::useless_conversion, reason = "of another width on other machines")]
    attributes_answer(of.st_mode, of.st_nlink.into(), of.st_size.cast_unsigned())
}

fn copy(from: &OwnedFd, offset: u64, to: &OwnedFd, target: u64, len: u64) -> Result<u64> {
    // A copy within one file ends where that ended before.
    let len = match rustix::fs::fstat(from)? {
        stat if stat.st_mode & libc::S_IFMT == libc::S_IFDIR => len,
        stat => len.min(stat.st_size.cast_unsigned().saturating_sub(offset)).max(1),
    };
    let (mut offset, mut target, mut done) = (offset, target, 0);
    while done < len {
        let left = (len - done) as usize;
        match rustix::fs::copy_file_range(from, Some(&mut offset), to, Some(&mut target), left)? {
            0 => break,
            count => done += count as u64,
        }
    }
    Ok(done)
}

/// All below a directory: paths, kinds, modes, names, sizes, sums, targets and extended attributes.
pub fn tree_of(root: &Path) -> Vec<String> {
    let mut local = Local::new(root);
    let mut found = Vec::new();
    let mut left = vec![String::new()];
    while let Some(directory) = left.pop() {
        let mut names: Vec<_> =
            std::fs::read_dir(root.join(&directory)).unwrap().map(|entry| entry.unwrap()).collect();
        names.sort_by_key(|entry| entry.file_name());
        for entry in names {
            let path = Path::new(&directory).join(entry.file_name()).to_str().unwrap().to_owned();
            let stat = local.apply(&Op::Stat { path: path.clone(), follow: false });
            let xattrs = local.apply(&Op::ListXattr { path: path.clone() });
            let kind = entry.file_type().unwrap();
            let content = match (kind.is_symlink(), kind.is_dir()) {
                (true, _) => local.apply(&Op::Readlink { path: path.clone() }),
                (_, true) => stat.clone(),
                _ => local.apply(&Op::Head { path: path.clone(), len: 8 << 20 }),
            };
            found.push(format!("{path} {stat:?} {xattrs:?} {content:?}"));
            left.extend(kind.is_dir().then_some(path));
        }
    }
    found.sort();
    found
}
