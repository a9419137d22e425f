//! Access control lists, and the extended attributes of users, which are extended attributes both: what a file has, and that given to its
//! copy. Where a copy does not get its list, its group gets no more than the list gives it: the mode that is seen of a file with a list
//! says what the list gives anybody.

use std::os::fd::AsFd;
use std::sync::Arc;

use dafs_client::{Pending, Status, XattrSetMode};
use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::at::{At, Base};
use super::local;
use super::meta::{Cause, KeepOwner, Later, Meta};
use super::open_file::OpenFile;

/// The list that says who may use a file, and the one that what is made in a directory gets.
const LIST: &str = "system.posix_acl_access";
const LIST_OF_NEW: &str = "system.posix_acl_default";

/// Bytes of the names, and of a value, at most: so much the kernel has.
const SIZE_MAX: usize = 65_536;

/// What is kept beside attributes.
#[derive(Clone, Debug, Default)]
pub(super) struct Extras {
    /// Names and values.
    all: Vec<(String, Vec<u8>)>,
    /// There are more, which could not be read.
    lacks_some: bool,
    /// One of these is the list that says who may use it.
    lacks_list: bool,
}

/// What has them: an open file, or a directory, or a name.
#[derive(Clone)]
pub(super) enum Having<'a> {
    File(&'a OpenFile),
    At(&'a At),
}

/// The same, held for later.
enum Held {
    Local(std::fs::File),
    File(Arc<dafs_client::File>),
    Name(dafs_client::Dir, std::path::PathBuf),
}

/// Whether it is kept.
fn is_kept(name: &str) -> bool {
    // What is laid over servers is so by its own attributes.
    let is_users = name.starts_with("user.") && !name.starts_with("user.dafs.");
    is_users || name == LIST || name == LIST_OF_NEW
}

/// Nothing of the kind is there, or can be.
fn is_none(cause: &Cause) -> bool {
    match cause {
        Cause::System(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            [Errno::NODATA, Errno::NOTSUP, Errno::NOSYS].iter().any(|none| none.raw_os_error() == errno)
        }
        Cause::Client(error) => {
            matches!(error.status(), Some(Status::NO_DATA | Status::NOT_SUPPORTED))
        }
        Cause::Text(_) => false,
    }
}

impl Extras {
    /// Begins to read those of a file or directory.
    pub(super) fn begin_read(having: &Having<'_>) -> Later<Self> {
        let held = match having.hold() {
            Ok(held) => held,
            Err(cause) => return Later::Now(Err(cause)),
        };
        let listing = held.begin_list();
        Later::Wait(Box::new(move || {
            let names = match listing.wait() {
                Err(cause) if is_none(&cause) => return Ok(Self::default()),
                names => names?,
            };
            let mut extras = Self::default();
            for name in names.into_iter().filter(|name| is_kept(name)) {
                match held.read(&name) {
                    Ok(value) => extras.all.push((name, value)),
                    Err(cause) if is_none(&cause) => {}
                    Err(cause) if cause.leaves_open() => return Err(cause),
                    Err(_) => {
                        extras.lacks_some = true;
                        extras.lacks_list |= name == LIST;
                    }
                }
            }
            Ok(extras)
        }))
    }

    fn list(&self) -> Option<&[u8]> {
        self.all.iter().find(|(name, _)| name == LIST).map(|(_, value)| value.as_slice())
    }

    /// Begins to give them to a copy, which else has none of its own: not the list that the directory gives what is made in it. Returns
    /// whether it has all of them, and what its group may do at most.
    pub(super) fn begin_write(self, having: &Having<'_>) -> Later<Given> {
        let held = match having.hold() {
            Ok(held) => held,
            // It may be that it cannot be read; that matters where there is something to be kept.
            Err(_) => return Later::Now(Ok(self.given(self.all.is_empty() && !self.lacks_some, false))),
        };
        let mut removing = Vec::new();
        for name in [LIST, LIST_OF_NEW] {
            let is_there = self.all.iter().any(|(own, _)| own == name);
            if !is_there && (name == LIST || having.is_directory()) {
                removing.push(held.begin_remove(name));
            }
        }
        let setting: Vec<_> =
            self.all.iter().map(|(name, value)| (name == LIST, held.begin_set(name, value))).collect();
        Later::Wait(Box::new(move || {
            let (mut is_whole, mut has_list) = (!self.lacks_some, true);
            for removed in removing {
                match removed.wait() {
                    Err(cause) if cause.leaves_open() => return Err(cause),
                    // Where it may not be removed there is none that others gave it, as far as can be told.
                    _ => {}
                }
            }
            for (is_list, set) in setting {
                match set.wait() {
                    Ok(()) => {}
                    Err(cause) if cause.leaves_open() => return Err(cause),
                    Err(_) => {
                        is_whole = false;
                        has_list &= !is_list;
                    }
                }
            }
            drop(held);
            Ok(self.given(is_whole, has_list))
        }))
    }

    fn given(&self, is_whole: bool, has_list: bool) -> Given {
        let group = match self.list() {
            _ if self.lacks_list => 0,
            Some(list) if !has_list => group_of(list),
            _ => 7,
        };
        Given { is_whole, group }
    }
}

/// What became of it.
pub(super) struct Given {
    /// All of it is there.
    pub(super) is_whole: bool,
    /// What the group may do at most, as three bits.
    group: u32,
}

impl Given {
    /// The attributes of a copy that has this.
    pub(super) fn attributes(&self, meta: &Meta, keep: &KeepOwner) -> Meta {
        if !self.is_whole {
            keep.note_lost_extras();
        }
        Meta { mode: meta.mode & !(0o070 & !(self.group << 3)), ..meta.clone() }
    }
}

/// What a list gives the group that owns the file. It has a version and entries, each a kind, what may be done, and a user or group:
/// 16, 16 and 32 bits, little-endian.
fn group_of(list: &[u8]) -> u32 {
    const GROUP: u16 = 4;
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8);
    let half = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let mut group = entries.filter(|entry| half(entry, 0) == GROUP).map(|entry| half(entry, 2));
    group.next().map_or(0, |bits| u32::from(bits & 7))
}

impl Having<'_> {
    fn is_directory(&self) -> bool {
        matches!(self, Self::At(_))
    }

    fn hold(&self) -> Result<Held, Cause> {
        match self {
            Self::File(OpenFile::Local(file) | OpenFile::Stream(file)) => Ok(Held::Local(file.try_clone()?)),
            Self::File(OpenFile::Remote(file)) => Ok(Held::File(Arc::clone(file))),
            Self::File(OpenFile::Striped(file)) => Ok(Held::File(Arc::clone(file.metadata_file()))),
            Self::At(At { base: Base::Remote(dir), name }) => Ok(Held::Name(dir.clone(), name.clone())),
            Self::At(at) => {
                let (fd, name) = at.local().ok_or_else(|| Cause::Text("it is on a server".into()))?;
                Ok(Held::Local(local::open_any(fd, name)?))
            }
        }
    }
}

/// A request about them, which may be sent again: it does no harm.
fn begin<T: 'static>(
    pending: Pending<dafs_client::Result<T>>,
    again: impl FnMut() -> dafs_client::Result<T> + 'static,
) -> Later<T> {
    Later::Wait(Box::new(move || Ok(crate::remote::sure(pending.wait(), again)?)))
}

impl Held {
    fn begin_list(&self) -> Later<Vec<String>> {
        // What is no text is none of those that are kept.
        let texts = |names: Vec<Vec<u8>>| names.into_iter().filter_map(|name| String::from_utf8(name).ok());
        let later = match self {
            Self::Local(file) => return Later::Now(list_of(file)),
            Self::File(file) => {
                let (pending, file) = (file.submit_xattrs(), Arc::clone(file));
                begin(pending, move || file.xattrs())
            }
            Self::Name(dir, name) => {
                let (pending, dir, name) = (dir.submit_xattrs(name), dir.clone(), name.clone());
                begin(pending, move || dir.xattrs(&name))
            }
        };
        Later::Wait(Box::new(move || Ok(texts(later.wait()?).collect())))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Cause> {
        match self {
            Self::Local(file) => {
                let mut value = Vec::with_capacity(SIZE_MAX);
                fgetxattr(file, name, spare_capacity(&mut value))?;
                Ok(value)
            }
            Self::File(file) => Ok(file.xattr(name)?),
            Self::Name(dir, path) => Ok(dir.xattr(path, name)?),
        }
    }

    fn begin_set(&self, name: &str, value: &[u8]) -> Later<()> {
        let (any, value, name) = (XattrSetMode::Any, value.to_vec(), name.to_owned());
        match self {
            Self::Local(file) => {
                Later::Now(fsetxattr(file, &name, &value, XattrFlags::empty()).map_err(Cause::from))
            }
            Self::File(file) => {
                let (pending, file) = (file.submit_set_xattr(&name, &value, any), Arc::clone(file));
                begin(pending, move || file.set_xattr(&name, &value, any))
            }
            Self::Name(dir, path) => {
                let (pending, dir, path) =
                    (dir.submit_set_xattr(path, &name, &value, any), dir.clone(), path.clone());
                begin(pending, move || dir.set_xattr(&path, &name, &value, any))
            }
        }
    }

    fn begin_remove(&self, name: &'static str) -> Later<()> {
        match self {
            Self::Local(file) => Later::Now(fremovexattr(file, name).map_err(Cause::from)),
            Self::File(file) => {
                let (pending, file) = (file.submit_remove_xattr(name), Arc::clone(file));
                begin(pending, move || file.remove_xattr(name))
            }
            Self::Name(dir, path) => {
                let (pending, dir, path) = (dir.submit_remove_xattr(path, name), dir.clone(), path.clone());
                begin(pending, move || dir.remove_xattr(&path, name))
            }
        }
    }
}

fn list_of(file: impl AsFd) -> Result<Vec<String>, Cause> {
    let mut names = Vec::with_capacity(SIZE_MAX);
    flistxattr(file, spare_capacity(&mut names))?;
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_of_the_owning_group_is_found_in_a_list() {
        let list = |entries: &[(u16, u16)]| {
            let mut bytes = 2_u32.to_le_bytes().to_vec();
            for (kind, bits) in entries {
                bytes.extend(kind.to_le_bytes());
                bytes.extend(bits.to_le_bytes());
                bytes.extend(u32::MAX.to_le_bytes());
            }
            bytes
        };
        assert_eq!(group_of(&list(&[(1, 6), (2, 7), (4, 4), (16, 7), (32, 1)])), 4);
        assert_eq!(group_of(&list(&[(1, 6)])), 0);
        for cut in 0..list(&[(4, 7)]).len() {
            assert_eq!(group_of(&list(&[(4, 7)])[..cut]), 0);
        }
        let meta = |mode| Meta { mode, ..crate::cmd::cp::meta::tests::file() };
        let keep = KeepOwner::new(false, true);
        let given = Given { is_whole: false, group: 4 };
        assert_eq!(given.attributes(&meta(0o664), &keep).mode, 0o644);
        assert!(keep.lacks_extras());
    }
}
