//! A name in an open directory, or a path, and the operations on the file with that name.
//!
//! A step that takes a round trip to a server begins here and is waited for later, so a group of files has its requests in flight together.
//! On this machine it is executed at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dafs_client::{Dir, FileKind, OpenOptions, ReadDir, SetAttributes};

use super::local;
use super::meta::{Cause, Entry, KeepOwner, Later, Meta};
use super::open_file::OpenFile;
use crate::folder::{Folder, Held, Id, Opening};
use crate::remote::{entry_name, normal, sure};

/// The mode of a directory until all of it is there, for nobody else to use. The sticky bit, which nobody needs with it, marks it: who
/// copies again gives it the mode that it is to have.
pub(super) const UNFINISHED_MODE: u32 = 0o1700;

/// A directory of either side that is held open.
#[derive(Clone)]
pub(super) enum Base {
    /// Where this process is.
    Here,
    Local(Arc<OwnedFd>),
    Remote(Dir),
}

/// Where something is.
#[derive(Clone)]
pub(super) struct At {
    pub(super) base: Base,
    /// One name, unless the user wrote it.
    pub(super) name: PathBuf,
}

/// The same, where the directory need not be held now.
#[derive(Clone, Default)]
pub(super) struct Spot {
    /// `None` for the top of a tree.
    pub(super) folder: Option<Arc<Folder<Base>>>,
    /// Empty for the top.
    pub(super) name: PathBuf,
}

/// A directory that is being listed.
pub(super) enum Entries {
    Local(Arc<OwnedFd>, rustix::fs::Dir),
    Remote(Box<ReadDir>),
}

/// Whether a directory was made, or something had its name.
pub(super) struct MadeDir {
    pub(super) is_new: bool,
}

impl Spot {
    pub(super) fn below(folder: &Arc<Folder<Base>>, name: PathBuf) -> Self {
        Self { folder: Some(Arc::clone(folder)), name }
    }

    /// Its path below the top.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.as_ref().map_or_else(PathBuf::new, |folder| folder.path_of(&self.name))
    }

    /// How many directories of the tree it is in.
    pub(super) fn depth(&self) -> usize {
        self.folder.as_ref().map_or(0, |folder| folder.depth() + 1)
    }
}

impl Base {
    /// For system calls of this machine.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Here => Some(rustix::fs::CWD),
            Self::Local(fd) => Some(fd.as_fd()),
            Self::Remote(_) => None,
        }
    }

    /// Itself, as it is found in itself.
    pub(super) fn itself(&self) -> At {
        let name = if matches!(self, Self::Remote(_)) { "" } else { "." };
        At { base: self.clone(), name: name.into() }
    }

    /// Begins to list it.
    pub(super) fn entries(&self) -> Result<Entries, Cause> {
        match self {
            Self::Remote(dir) => {
                let open = || dir.open_dir_no_follow("");
                Ok(Entries::Remote(Box::new(sure(open(), open)?.entries(true))))
            }
            local => {
                let (held, list) = local::list(local.fd().unwrap_or(rustix::fs::CWD))?;
                Ok(Entries::Local(Arc::new(held), list))
            }
        }
    }
}

impl Held for Base {
    type Error = Cause;

    fn directory(&self, path: &Path) -> Result<(Self, Id), Cause> {
        Held::begin_directory(self, path)()
    }

    fn begin_directory(&self, path: &Path) -> Opening<Self, Cause> {
        let opening = At { base: self.clone(), name: path.to_owned() }.begin_directory();
        Box::new(move || match opening.wait()? {
            (base, meta) if meta.kind == FileKind::Directory => Ok((base, meta.id)),
            _ => Err(Self::replaced()),
        })
    }

    fn replaced() -> Cause {
        Cause::Text("it was replaced while the tree was copied".into())
    }

    fn is_lost(&self) -> bool {
        matches!(self, Self::Remote(dir) if dir.is_stale())
    }

    fn is_full(cause: &Cause) -> bool {
        cause.errno() == libc::EMFILE
    }
}

impl Entries {
    /// The next entry of the directory. Its name is checked: none leads out of the directory. After an error of the listing itself nothing
    /// follows.
    pub(super) fn next(&mut self) -> Option<Result<Entry, Cause>> {
        match self {
            Self::Local(held, list) => local::next_entry(list, held.as_fd()),
            Self::Remote(entries) => {
                let entry = match entries.next()? {
                    Ok(entry) => entry,
                    Err(error) => return Some(Err(error.into())),
                };
                let Some(name) = entry_name(&entry.name) else {
                    let name = crate::quote::quoted(&entry.name);
                    let cause = Cause::Text(format!(
                        "the server listed the entry {name}, which is not a valid name; it is skipped"
                    ));
                    return Some(Ok((PathBuf::new(), Err(cause))));
                };
                let meta = entries.dir().entry_metadata(&entry).map(|attributes| (&attributes).into());
                Some(Ok((name.to_owned(), meta.map_err(Cause::from))))
            }
        }
    }
}

impl At {
    /// Another name in the directory that this one is in.
    pub(super) fn named(&self, name: PathBuf) -> Self {
        Self { base: self.base.clone(), name }
    }

    pub(super) fn metadata(&self, follow: bool) -> Result<Meta, Cause> {
        match (&self.base, self.base.fd()) {
            (Base::Remote(dir), _) if follow => Ok((&dir.metadata(&self.name)?).into()),
            (Base::Remote(dir), _) => Ok((&dir.symlink_metadata(&self.name)?).into()),
            (_, fd) => local::metadata(fd.unwrap_or(rustix::fs::CWD), &self.name, follow),
        }
    }

    /// Does something with a name of this machine, or begins to do it with one of a server.
    fn either<T: 'static>(
        &self,
        local: impl FnOnce(BorrowedFd<'_>, &Path) -> Result<T, Cause>,
        remote: impl FnOnce(Dir, PathBuf) -> Later<T>,
    ) -> Later<T> {
        match &self.base {
            Base::Remote(dir) => remote(dir.clone(), self.name.clone()),
            local_base => Later::Now(local(local_base.fd().unwrap_or(rustix::fs::CWD), &self.name)),
        }
    }

    /// Begins to look at what has the name; a symbolic link is not followed.
    pub(super) fn begin_symlink_metadata(&self) -> Later<Meta> {
        self.either(
            |fd, name| local::metadata(fd, name, false),
            |dir, name| {
                let pending = dir.submit_symlink_metadata(&name);
                Later::Wait(Box::new(move || Ok((&pending.wait()?).into())))
            },
        )
    }

    /// Begins to open a directory, to reach what is in it; no link is followed. Says what it is: it may be none.
    pub(super) fn begin_directory(&self) -> Later<(Base, Meta)> {
        self.either(
            |fd, name| {
                let (held, meta) = local::directory(fd, name)?;
                Ok((Base::Local(Arc::new(held)), meta))
            },
            |dir, name| {
                let pending = dir.submit_lookup(&name, false);
                Later::Wait(Box::new(move || {
                    let (held, attributes) = sure(pending.wait(), || dir.lookup(&name, false))?;
                    Ok((Base::Remote(held), (&attributes).into()))
                }))
            },
        )
    }

    /// Begins to open a file for reading, and returns what it is by then.
    pub(super) fn begin_open(&self, follow: bool) -> Later<(OpenFile, Meta)> {
        self.either(
            |fd, name| {
                let file = local::open(fd, name, follow)?;
                let meta = local::meta_of(&file)?;
                Ok((OpenFile::Local(file), meta))
            },
            |dir, name| {
                let mut options = OpenOptions::new();
                options.read(true).no_follow(!follow);
                let pending = dir.submit_open_with(&name, &options);
                Later::Wait(Box::new(move || {
                    let file = sure(pending.wait(), || dir.open_with(&name, &options))?;
                    let meta = file.attributes_at_open().into();
                    Ok((OpenFile::Remote(Arc::new(file)), meta))
                }))
            },
        )
    }

    /// Begins to make a file that nobody else has made, which until its attributes are set only the user may use.
    pub(super) fn begin_create_new(&self) -> Later<OpenFile> {
        self.either(
            |fd, name| Ok(OpenFile::Local(local::create_new(fd, name)?)),
            |dir, name| {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).no_follow(true).mode(0o600);
                let pending = dir.submit_open_with(&name, &options);
                Later::Wait(Box::new(move || {
                    let mut was_in_doubt = false;
                    let made = sure(pending.wait(), || {
                        was_in_doubt = true;
                        dir.open_with(&name, &options)
                    });
                    let file = match made {
                        // Made by the request that was in doubt: the name is nobody else's.
                        Err(error) if was_in_doubt && error.already_exists() => {
                            options.create_new(false);
                            let open = || dir.open_with(&name, &options);
                            sure(open(), open)?
                        }
                        made => made?,
                    };
                    Ok(OpenFile::Remote(Arc::new(file)))
                }))
            },
        )
    }

    /// Begins to make a directory.
    pub(super) fn begin_make_dir(&self) -> Later<MadeDir> {
        let made = |result: Result<(), Cause>| match result {
            Err(cause) if cause.already_exists() => Ok(MadeDir { is_new: false }),
            result => result.map(|()| MadeDir { is_new: true }),
        };
        // The root of an export: no server takes a request to make it.
        if matches!(self.base, Base::Remote(_)) && normal(&self.name).as_os_str().is_empty() {
            return Later::Now(Ok(MadeDir { is_new: false }));
        }
        self.either(
            |fd, name| made(local::make_dir(fd, name, UNFINISHED_MODE)),
            |dir, name| {
                let pending = dir.submit_create_dir(&name, UNFINISHED_MODE);
                Later::Wait(Box::new(move || {
                    let mut was_in_doubt = false;
                    let result = sure(pending.wait(), || {
                        was_in_doubt = true;
                        dir.create_dir(&name, UNFINISHED_MODE)
                    });
                    let made = made(result.map(drop).map_err(Cause::from))?;
                    // The request in doubt may have made it.
                    Ok(MadeDir { is_new: made.is_new || was_in_doubt })
                }))
            },
        )
    }

    /// Begins to set the attributes of a directory or symbolic link.
    pub(super) fn begin_set_attributes(&self, meta: &Meta, keep_owner: &KeepOwner) -> Later<()> {
        let setting = self.either(
            |fd, name| local::set_attributes(fd, name, meta, keep_owner),
            |dir, name| {
                let submit = move |set: &SetAttributes| dir.submit_set_attributes(&name, false, set);
                keep_owner.begin_set(meta, None, &super::meta::Before::Nothing, submit)
            },
        );
        keep_owner.where_possible(setting)
    }

    pub(super) fn begin_read_link(&self) -> Later<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        self.either(local::read_link, |dir, name| {
            let pending = dir.submit_read_link(&name);
            Later::Wait(Box::new(move || Ok(PathBuf::from(std::ffi::OsString::from_vec(pending.wait()?)))))
        })
    }

    /// Begins to make a symbolic link.
    pub(super) fn begin_symlink(&self, points_to: &Path) -> Later<()> {
        self.either(
            |fd, name| Ok(rustix::fs::symlinkat(points_to, fd, name)?),
            |dir, name| {
                let points_to = points_to.to_owned();
                let pending = dir.submit_symlink(&points_to, &name);
                Later::request(pending, move || dir.symlink(&points_to, &name))
            },
        )
    }

    /// Begins to make this another name of a file of the same place.
    pub(super) fn begin_link_of(&self, first: &Self) -> Later<()> {
        match (&self.base, &first.base) {
            (Base::Remote(dir), Base::Remote(from)) => {
                let (dir, from) = (dir.clone(), from.clone());
                let (name, first) = (self.name.clone(), first.name.clone());
                let pending = from.submit_link(&first, &dir, &name);
                Later::request(pending, move || from.link(&first, &dir, &name))
            }
            (to, from) => Later::Now(match (from.fd(), to.fd()) {
                (Some(from), Some(to)) => local::link((from, &first.name), (to, &self.name)),
                _ => Err(Cause::Text("its first name is on another machine".into())),
            }),
        }
    }

    /// Begins to give what has the name another one in the same directory, in the place of whatever has that.
    pub(super) fn begin_rename_to(&self, to: &Path) -> Later<()> {
        self.either(
            |fd, name| Ok(rustix::fs::renameat(fd, name, fd, to)?),
            |dir, name| {
                let to = to.to_owned();
                let pending = dir.submit_rename(&name, &dir, &to, true);
                Later::request(pending, move || match dir.rename(&name, &dir, &to, true) {
                    // It was renamed before the server was restarted.
                    Err(error) if error.is_not_found() => Ok(()),
                    result => result,
                })
            },
        )
    }

    /// Removes a name that is no directory.
    pub(super) fn remove_file(&self) -> Result<(), Cause> {
        let Base::Remote(dir) = &self.base else {
            let fd = self.base.fd().unwrap_or(rustix::fs::CWD);
            return Ok(rustix::fs::unlinkat(fd, &self.name, rustix::fs::AtFlags::empty())?);
        };
        let remove = || dir.remove_file(&self.name);
        let removed = sure(remove(), || match remove() {
            // It was removed before the server was restarted.
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        });
        Ok(removed?)
    }

    /// Begins to make the names in a directory durable; the directory is opened at once, before its mode may forbid that.
    pub(super) fn begin_open_dir(&self) -> Option<Later<Dir>> {
        let Base::Remote(dir) = &self.base else { return None };
        let (dir, name) = (dir.clone(), self.name.clone());
        let pending = dir.submit_open_dir(&name);
        Some(Later::Wait(Box::new(move || Ok(sure(pending.wait(), || dir.open_dir(&name))?))))
    }

    /// For system calls about a name of this machine.
    pub(super) fn local(&self) -> Option<(BorrowedFd<'_>, &Path)> {
        self.base.fd().map(|fd| (fd, self.name.as_path()))
    }

    /// Of a server.
    pub(super) fn remote(&self) -> Option<(&Dir, &Path)> {
        match &self.base {
            Base::Remote(dir) => Some((dir, &self.name)),
            _ => None,
        }
    }
}
