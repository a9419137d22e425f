//! Operations through the Rust API.

use std::io::{IoSlice, IoSliceMut};

use dafs_client::{
    Dir, Error, Export, Extent, File, FileKind, OpenOptions, Result, SetAttributes, Stability, XattrSetMode,
};

use dafs_tests::differential::operation::{
    Answer, Driver, Op, SLOTS, attributes_answer, data, sum, sum_of_names,
};

pub(crate) struct Api {
    root: Dir,
    slots: [Option<File>; SLOTS],
}

impl Api {
    pub(crate) fn new(export: &Export, root: &str) -> Self {
        Self { root: export.open_dir(root).unwrap(), slots: Default::default() }
    }

    fn open(&self, path: &str, flags: i32, mode: u32) -> Result<File> {
        let has = |flag: i32| flags & flag == flag;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let mut options = OpenOptions::new();
        options
            .read(flags & libc::O_ACCMODE != libc::O_WRONLY)
            .write(writes)
            .no_follow(has(libc::O_NOFOLLOW));
        options.truncate(has(libc::O_TRUNC)).mode(mode);
        options.stability(if has(libc::O_DSYNC) { Stability::DataSync } else { Stability::Unstable });
        if writes || !has(libc::O_CREAT) {
            options.create(has(libc::O_CREAT)).create_new(has(libc::O_CREAT | libc::O_EXCL));
            return self.root.open_with(path, &options);
        }
        if !has(libc::O_EXCL) {
            match self.root.open_with(path, &options) {
                Err(error) if error.is_not_found() => {}
                // To make one where a directory is.
                Ok(file) if file.attributes_at_open().kind == FileKind::Directory => {
                    return self.root.open_with(path, options.write(true).create(true));
                }
                opened => return opened,
            }
        }
        let mut to_make = OpenOptions::new();
        to_make
            .write(true)
            .create(true)
            .create_new(has(libc::O_EXCL))
            .no_follow(has(libc::O_NOFOLLOW))
            .mode(mode);
        drop(self.root.open_with(path, &to_make)?);
        self.root.open_with(path, &options)
    }

    fn file(&self, slot: usize) -> std::result::Result<&File, Answer> {
        self.slots[slot].as_ref().ok_or_else(|| Answer::failed(libc::EBADF))
    }

    /// An operation of an open file.
    fn with(&self, slot: usize, body: impl FnOnce(&File) -> Result<Answer>) -> Answer {
        self.file(slot).map_or_else(|answer| answer, |file| answered(body(file)))
    }
}

fn answered(result: Result<Answer>) -> Answer {
    result.unwrap_or_else(|error: Error| Answer::failed(error.errno()))
}

fn kind_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => libc::DT_REG,
        FileKind::Directory => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
        other => panic!("the test makes no {other:?}"),
    }
}

fn attributes(of: &dafs_client::Attributes) -> Answer {
    let kind = u32::from(kind_of(of.kind)) << 12;
    attributes_answer(kind | of.mode, of.links.into(), of.size)
}

fn extents_of(extents: &[(u64, u64)]) -> (Vec<Extent>, usize) {
    let total: u64 = extents.iter().map(|(_, len)| len).sum();
    (extents.iter().map(|(offset, len)| Extent::new(*offset, *len)).collect(), total as usize)
}

impl Driver for Api {
    fn apply(&mut self, operation: &Op) -> Answer {
        match operation {
            Op::Open { slot, path, flags, mode } => {
                self.slots[*slot] = None;
                answered(self.open(path, *flags, *mode).map(|file| {
                    self.slots[*slot] = Some(file);
                    Answer::value(0)
                }))
            }
            Op::Close { slot } => {
                let closed = self.slots[*slot].take();
                closed.map_or_else(|| Answer::failed(libc::EBADF), |_| Answer::value(0))
            }
            operation => match self.apply_to_file(operation) {
                Some(answer) => answer,
                None => answered(self.apply_to_names(operation)),
            },
        }
    }
}

impl Api {
    fn apply_to_file(&self, operation: &Op) -> Option<Answer> {
        Some(match operation {
            Op::Read { slot, offset, len } => self.with(*slot, |file| {
                let mut bytes = vec![0; *len];
                let count = file.read_at(&mut bytes, *offset)?;
                Ok(Answer::bytes(&bytes[..count]))
            }),
            Op::Write { slot, offset, len, seed } => {
                self.with(*slot, |file| Ok(Answer::value(file.write_at(&data(*seed, *len), *offset)? as u64)))
            }
            Op::ReadList { slot, extents, cut } => self.with(*slot, |file| {
                let (extents, total) = extents_of(extents);
                let mut bytes = vec![0; total];
                let (left, right) = bytes.split_at_mut(*cut.min(&total));
                let read = file.read_list(&extents, &mut [IoSliceMut::new(left), IoSliceMut::new(right)])?;
                Ok(Answer::bytes(&bytes[..read.count]))
            }),
            Op::WriteList { slot, extents, cut, seed } => self.with(*slot, |file| {
                let (extents, total) = extents_of(extents);
                let bytes = data(*seed, total);
                let (left, right) = bytes.split_at(*cut.min(&total));
                let written = file.write_list(&extents, &[IoSlice::new(left), IoSlice::new(right)])?;
                Ok(Answer::value(written as u64))
            }),
            Op::Append { slot, len, seed } => {
                self.with(*slot, |file| Ok(Answer::value(file.append(&data(*seed, *len))?)))
            }
            Op::Truncate { slot, size } => {
                self.with(*slot, |file| file.truncate(*size).map(|()| Answer::value(0)))
            }
            Op::Allocate { slot, mode, offset, len } => self.with(*slot, |file| {
                match mode {
                    0 => file.allocate(*offset, *len)?,
                    _ => file.punch_hole(*offset, *len)?,
                }
                Ok(Answer::value(0))
            }),
            Op::Seek { slot, offset, whence } => self.with(*slot, |file| {
                Ok(Answer::value(match *whence {
                    libc::SEEK_DATA => file.seek_data(*offset)?,
                    libc::SEEK_HOLE => file.seek_hole(*offset)?,
                    _ => file.metadata()?.size + offset,
                }))
            }),
            Op::Sync { slot } => self.with(*slot, |file| file.commit().map(|()| Answer::value(0))),
            Op::Fstat { slot } => self.with(*slot, |file| Ok(attributes(&file.metadata()?))),
            Op::Copy { from, offset, to, target, len } => match self.file(*to) {
                Ok(to) => {
                    self.with(*from, |from| Ok(Answer::value(from.copy_range(*offset, *len, to, *target)?)))
                }
                Err(answer) => answer,
            },
            _ => return None,
        })
    }

    fn apply_to_names(&self, operation: &Op) -> Result<Answer> {
        let root = &self.root;
        match operation {
            Op::Stat { path, follow: true } => return Ok(attributes(&root.metadata(path)?)),
            Op::Stat { path, follow: false } => return Ok(attributes(&root.symlink_metadata(path)?)),
            Op::Rename { from, to, replace } => root.rename(from, root, to, *replace)?,
            Op::Link { from, to } => {
                root.link(from, root, to)?;
            }
            Op::Symlink { target, path } => {
                root.symlink(target, path)?;
            }
            Op::Readlink { path } => return Ok(Answer::bytes(&root.read_link(path)?)),
            Op::Unlink { path, directory: true } => root.remove_dir(path)?,
            Op::Unlink { path, directory: false } => root.remove_file(path)?,
            Op::Mkdir { path, mode } => {
                root.create_dir(path, *mode)?;
            }
            Op::SetXattr { path, name, len, seed, flags } => {
                let mode = match *flags {
                    0 => XattrSetMode::Any,
                    libc::XATTR_CREATE => XattrSetMode::Create,
                    _ => XattrSetMode::Replace,
                };
                root.set_xattr(path, name, &data(*seed, *len), mode)?;
            }
            Op::GetXattr { path, name } => return Ok(Answer::bytes(&root.xattr(path, name)?)),
            Op::ListXattr { path } => {
                let names = root.xattrs(path)?;
                let (value, sum) = sum_of_names(names.iter().map(|name| (&name[..], 0)));
                return Ok(Answer { sum, ..Answer::value(value) });
            }
            Op::RemoveXattr { path, name } => root.remove_xattr(path, name)?,
            Op::List { path } => {
                let entries: Vec<_> = root.read_dir(path, true)?.collect::<Result<_>>()?;
                let kind = |entry: &dafs_client::DirEntry| {
                    entry.attributes.as_ref().map_or(0, |attributes| u64::from(kind_of(attributes.kind)))
                };
                let (value, sum) = sum_of_names(entries.iter().map(|entry| (&entry.name[..], kind(entry))));
                return Ok(Answer { sum, ..Answer::value(value) });
            }
            Op::Chmod { path, mode } => {
                let set = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                root.set_attributes(path, true, &set)?;
            }
            Op::Head { path, len } => {
                let mut bytes = vec![0; *len];
                let to_read = OpenOptions::new().read(true).clone();
                let done = root.chain().open(path, &to_read).read_at(&mut bytes, 0).close().run()?;
                let count = done.counts[0];
                return Ok(Answer { sum: sum(&bytes[..count]), ..Answer::value(count as u64) });
            }
            other => panic!("{other:?} is of a file"),
        }
        Ok(Answer::value(0))
    }
}
