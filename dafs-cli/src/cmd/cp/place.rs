//! Where a tree is read from or written to: a directory of this machine, or one of an export.
//!
//! Every step that costs a round trip on a server begins here and is waited for later, so that a group of files has
//! its requests in flight together; on this machine it is carried out at once.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::{Attributes, Error, FileKind, Pending, ReadDir, SetAttributes, SetTime, Status, Timestamp};
use dafs_proto::wire::SessionId;

use super::local;
use crate::remote::{Target, ends_session, entry_name, join, normal, sure};
use crate::report::{Failure, explain, system_message};
use crate::signals::progressed;

/// The root of a tree that is copied from or to.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "there are two for each operand")]
pub(super) enum Place {
    Local(PathBuf),
    Remote(Target),
}

/// Something in a directory: where it is, and what, or why that is not known.
pub(super) type Entry = (PathBuf, Result<Meta, Cause>);

/// A directory that is being listed.
pub(super) enum Entries {
    Local(std::fs::ReadDir),
    Remote(Box<ReadDir>),
}

/// Why a step failed, on either side.
#[derive(Debug)]
pub(super) enum Cause {
    System(io::Error),
    Client(Error),
    Text(String),
}

/// What is kept of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) allocated: u64,
    pub(super) links: u64,
    /// File system and number in it.
    pub(super) id: (u64, u64),
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    /// The last change of anything about it.
    pub(super) ctime: Timestamp,
    /// Of a directory to be made: what it is made in has the set-group-id bit, and gives it its group and that bit.
    pub(super) inherits_group: bool,
}

/// What came of making a directory.
pub(super) struct MadeDir {
    /// It was there, and no copy left it unfinished.
    pub(super) was_there: bool,
    /// The mode of one that was found.
    pub(super) found_mode: Option<u32>,
}

/// Gives a directory's group, and itself, to what is made in it.
pub(super) const SET_GROUP_ID: u32 = 0o2000;

/// The mode of a directory until all of it is there, for nobody else to use. The sticky bit, which nobody needs with it, marks it: who
/// copies again gives it the mode that it is to have.
const UNFINISHED_MODE: u32 = 0o1700;

/// User and group.
pub(super) type Owner = (u32, u32);

/// Whether copies get the owners of what is copied. Clones are the same: what one of them notes all know.
#[derive(Clone)]
pub(super) struct KeepOwner {
    is_set: bool,
    /// All attributes were asked for: one that cannot be set is a failure.
    preserves: bool,
    is_refused: Arc<AtomicBool>,
    lacks_attributes: Arc<AtomicBool>,
}

/// A step that has begun.
pub(super) enum Later<T> {
    Now(Result<T, Cause>),
    Wait(Box<dyn FnOnce() -> Result<T, Cause>>),
}

impl Later<()> {
    /// A request of which only the success matters; `again` repeats it when a restart of the server leaves open
    /// whether it was executed, which must do no harm then.
    pub(super) fn request<R: 'static>(
        pending: Pending<Result<R, Error>>,
        again: impl FnMut() -> Result<R, Error> + 'static,
    ) -> Self {
        Self::Wait(Box::new(move || Ok(sure(pending.wait(), again).map(drop)?)))
    }
}

impl<T> Later<T> {
    pub(super) fn wait(self) -> Result<T, Cause> {
        match self {
            Self::Now(result) => {
                progressed();
                result
            }
            Self::Wait(wait) => {
                let result = wait();
                progressed();
                result
            }
        }
    }
}

impl Cause {
    pub(super) fn already_exists(&self) -> bool {
        self.errno() == libc::EEXIST
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.errno() == libc::ENOENT
            && !matches!(self, Self::Client(error) if error.status() == Some(Status::NO_EXPORT))
    }

    /// The server may have done it, or may do it yet.
    pub(super) fn leaves_open(&self) -> bool {
        matches!(self, Self::Client(error) if error.status().is_none() && !matches!(error, Error::Invalid(_)))
    }

    /// Nothing more can be asked of that server.
    pub(super) fn ends_session(&self) -> bool {
        matches!(self, Self::Client(error) if ends_session(error))
    }

    /// A restart of the server lost what was written and not yet committed.
    pub(super) fn lost_writes(&self) -> bool {
        matches!(self, Self::Client(Error::WritesLost { .. }))
    }

    /// A restart of the server came between: the copy of the file is to be made once more.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Client(Error::Stale { .. } | Error::InDoubt { .. }))
    }

    /// This user may not do it, nor anybody.
    pub(super) fn is_denied(&self) -> bool {
        matches!(self.errno(), libc::EACCES | libc::EPERM | libc::EROFS)
    }

    /// It belongs to somebody else.
    pub(super) fn is_of_another(&self) -> bool {
        self.errno() == libc::EPERM
    }

    /// The file system there has nothing of the kind.
    pub(super) fn is_not_supported(&self) -> bool {
        matches!(self.errno(), libc::EOPNOTSUPP | libc::ENOSYS)
    }

    /// A symbolic link stands where none is followed.
    pub(super) fn is_link(&self) -> bool {
        self.errno() == libc::ELOOP
    }

    /// Nobody reads the pipe of this machine that was written to.
    pub(super) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::System(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    fn errno(&self) -> i32 {
        match self {
            Self::System(error) => error.raw_os_error().unwrap_or(0),
            Self::Client(error) => error.errno(),
            Self::Text(_) => 0,
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(error) if self.errno() == libc::EMFILE => write!(
                f,
                "{}; copy fewer files at once with --jobs 1, or raise the limit of open files (ulimit -n)",
                system_message(error)
            ),
            Self::System(error) => f.write_str(&system_message(error)),
            Self::Client(error) => f.write_str(&explain(error)),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<Error> for Cause {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl From<&Attributes> for Meta {
    fn from(attributes: &Attributes) -> Self {
        Self {
            kind: attributes.kind,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            allocated: attributes.allocated,
            links: attributes.links.into(),
            id: (attributes.fs_id, attributes.file_id),
            atime: attributes.atime,
            mtime: attributes.mtime,
            ctime: attributes.ctime,
            inherits_group: false,
        }
    }
}

impl KeepOwner {
    pub(super) fn new(is_set: bool, preserves: bool) -> Self {
        Self { is_set, preserves, is_refused: Arc::default(), lacks_attributes: Arc::default() }
    }

    pub(super) fn preserves(&self) -> bool {
        self.preserves
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set
    }

    /// Whether some copies did not get their owners, for want of a right.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Whether some copies did not get their modes or times.
    pub(super) fn lacks_attributes(&self) -> bool {
        self.lacks_attributes.load(Ordering::Relaxed)
    }

    /// Modes and times that the destination does not let anybody set are no failure, where all attributes were not asked for.
    pub(super) fn where_possible(&self, setting: Later<()>) -> Later<()> {
        if self.preserves {
            return setting;
        }
        let keep = self.clone();
        Later::Wait(Box::new(move || match setting.wait() {
            Err(cause) if cause.is_of_another() || cause.is_not_supported() => {
                keep.lacks_attributes.store(true, Ordering::Relaxed);
                Ok(())
            }
            result => result,
        }))
    }

    /// Notes whether a copy got its owner, and returns it.
    pub(super) fn note(&self, is_given: bool) -> bool {
        self.is_refused.fetch_or(!is_given, Ordering::Relaxed);
        is_given
    }

    /// Begins to set the attributes of a copy on a server, with those requests. Where owners may not be given, all else is set. `owner` is
    /// whom it gets where owners are not kept.
    pub(super) fn begin_set(
        &self,
        meta: &Meta,
        owner: Option<Owner>,
        submit: impl Fn(&SetAttributes) -> Pending<Result<Attributes, Error>> + 'static,
    ) -> Later<()> {
        let is_kept = self.is_set();
        let owner = if is_kept { Some((meta.uid, meta.gid)) } else { owner };
        let (with_owner, set) = (owner.is_some(), meta.to_set(is_kept, owner));
        let (pending, keep, without) = (submit(&set), self.clone(), meta.to_set(false, None));
        Later::Wait(Box::new(move || {
            // Setting them twice does no harm.
            let settled = |pending: Pending<Result<Attributes, Error>>, set: &SetAttributes| {
                sure(pending.wait(), || submit(set).wait())
            };
            match settled(pending, &set) {
                // Some file systems know no owners, and some users none but a few. What else is wrong the rest tells.
                Err(error) if with_owner && error.status().is_some_and(refuses_owner) => {
                    settled(submit(&without), &without)?;
                    keep.note(!is_kept);
                    Ok(())
                }
                result => Ok(result.map(drop)?),
            }
        }))
    }
}

fn refuses_owner(status: Status) -> bool {
    matches!(status, Status::PERMISSION | Status::INVALID | Status::NOT_SUPPORTED)
}

impl Meta {
    /// The mode of the copy of a file or directory. A file of another owner is no program that runs as its owner, and nothing that is made
    /// in a directory is of its group, unless the directory above wants that.
    pub(super) fn mode_of_copy(&self, keep_owner: bool) -> u32 {
        match keep_owner {
            true => self.mode & 0o7777,
            false => self.mode & 0o1777 | if self.inherits_group { SET_GROUP_ID } else { 0 },
        }
    }

    /// The attributes that a copy gets, and its owner. Symbolic links have no mode of their own.
    fn to_set(&self, is_kept: bool, owner: Option<Owner>) -> SetAttributes {
        SetAttributes {
            mode: (self.kind != FileKind::Symlink).then_some(self.mode_of_copy(is_kept)),
            uid: owner.map(|(uid, _)| uid),
            gid: owner.map(|(_, gid)| gid),
            atime: Some(SetTime::At(self.atime)),
            mtime: Some(SetTime::At(self.mtime)),
        }
    }
}

impl Entries {
    /// The next entry of the directory at `path`: its own path and what it is, or a path to tell why not. Its name is checked: none leads
    /// out of the directory. After an error of the listing itself nothing follows.
    pub(super) fn next(&mut self, path: &Path) -> Option<Result<Entry, Cause>> {
        match self {
            Self::Local(entries) => Some(entries.next()?.map_err(Cause::from).map(|entry| {
                let meta = entry.metadata().map(|metadata| local::meta(&metadata)).map_err(Cause::from);
                (join(path, Path::new(&entry.file_name())), meta)
            })),
            Self::Remote(entries) => {
                let entry = match entries.next()? {
                    Ok(entry) => entry,
                    Err(error) => return Some(Err(error.into())),
                };
                let Some(name) = entry_name(&entry.name) else {
                    let name = crate::quote::quoted(&entry.name);
                    let cause = Cause::Text(format!(
                        "the server answered the entry {name}, which is no name: it is left out"
                    ));
                    return Some(Ok((path.to_owned(), Err(cause))));
                };
                let meta = entries.dir().entry_metadata(&entry).map(|attributes| (&attributes).into());
                Some(Ok((join(path, name), meta.map_err(Cause::from))))
            }
        }
    }
}

impl Place {
    /// Where `path` below this root is.
    pub(super) fn path(&self, path: &Path) -> PathBuf {
        match self {
            Self::Local(root) => join(root, path),
            Self::Remote(target) => join(&target.path, path),
        }
    }

    /// The root of its export, where it is on a server: paths of that are the place's own.
    pub(super) fn export(&self) -> Self {
        match self {
            Self::Local(root) => Self::Local(root.clone()),
            Self::Remote(target) => Self::Remote(target.at(PathBuf::new())),
        }
    }

    /// The session with its server, another one after a restart of that; `None` for this machine.
    pub(super) fn session(&self) -> Option<SessionId> {
        match self {
            Self::Local(_) => None,
            Self::Remote(target) => Some(target.session.agreed().session),
        }
    }

    /// The path, or URL, of `path` below this root, for people.
    pub(super) fn shown(&self, path: &Path) -> String {
        self.shown_own(&self.path(path))
    }

    /// As [`Place::shown`], of a path that does not begin at this root.
    pub(super) fn shown_own(&self, own: &Path) -> String {
        match self {
            Self::Local(_) => crate::quote::shown_path(own),
            Self::Remote(target) => {
                use std::os::unix::ffi::OsStrExt;
                crate::quote::quoted(target.url_of(own).to_os_string().as_bytes())
            }
        }
    }

    pub(super) fn failed(&self, action: &str, path: &Path, cause: &Cause) -> Failure {
        Failure::text(format!("cannot {action} {}: {cause}", self.shown(path)))
    }

    pub(super) fn metadata(&self, path: &Path, follow: bool) -> Result<Meta, Cause> {
        let own = self.path(path);
        match self {
            Self::Local(_) => local::metadata(&own, follow),
            Self::Remote(target) if follow => Ok((&target.export.metadata(&own)?).into()),
            Self::Remote(target) => Ok((&target.export.symlink_metadata(&own)?).into()),
        }
    }

    /// Begins to look at what has a name; a symbolic link is not followed.
    pub(super) fn begin_symlink_metadata(&self, path: &Path) -> Later<Meta> {
        let own = self.path(path);
        match self {
            Self::Local(_) => Later::Now(local::metadata(&own, false)),
            Self::Remote(target) => {
                let pending = target.export.submit_symlink_metadata(&own);
                Later::Wait(Box::new(move || Ok((&pending.wait()?).into())))
            }
        }
    }

    /// Begins to rename what does not begin at this root, to a name that is replaced.
    pub(super) fn begin_rename_own(&self, from: &Path, to: &Path) -> Later<()> {
        match self {
            Self::Local(_) => Later::Now(std::fs::rename(from, to).map_err(Cause::from)),
            Self::Remote(target) => {
                let (export, from, to) = (target.export.clone(), from.to_owned(), to.to_owned());
                let pending = export.submit_rename(&from, &export, &to, true);
                Later::request(pending, move || match export.rename(&from, &export, &to, true) {
                    // It was renamed before the server was restarted.
                    Err(error) if error.is_not_found() => Ok(()),
                    result => result,
                })
            }
        }
    }

    /// Begins to list a directory.
    pub(super) fn entries(&self, path: &Path) -> Result<Entries, Cause> {
        let own = self.path(path);
        match self {
            Self::Local(_) => Ok(Entries::Local(std::fs::read_dir(&own)?)),
            Self::Remote(target) => Ok(Entries::Remote(Box::new(target.export.read_dir(&own, true)?))),
        }
    }

    /// Begins to make a directory.
    pub(super) fn begin_make_dir(&self, path: &Path) -> Later<MadeDir> {
        let (own, mode) = (self.path(path), UNFINISHED_MODE);
        let (place, path) = (self.clone(), path.to_owned());
        // Whatever is there: a link to a directory is none, for it may lead elsewhere.
        let existing = move |result: Result<(), Cause>| match result {
            Err(cause) if cause.already_exists() => match place.metadata(&path, false)? {
                Meta { kind: FileKind::Directory, mode: found, .. } => {
                    let is_unfinished = found & 0o7777 & !SET_GROUP_ID == mode;
                    Ok(MadeDir { was_there: !is_unfinished, found_mode: Some(found) })
                }
                Meta { kind, .. } => Err(Cause::Text(format!(
                    "a {} with that name is in the way",
                    crate::format::kind_name(kind)
                ))),
            },
            result => result.map(|()| MadeDir { was_there: false, found_mode: None }),
        };
        match self {
            Self::Local(_) => {
                Later::Now(existing(std::fs::DirBuilder::new().mode(mode).create(&own).map_err(Cause::from)))
            }
            // The root of the export: no server takes a request to make it.
            Self::Remote(_) if normal(&own).as_os_str().is_empty() => {
                Later::Now(Ok(MadeDir { was_there: true, found_mode: None }))
            }
            Self::Remote(target) => {
                let pending = target.export.submit_create_dir(&own, mode);
                let export = target.export.clone();
                Later::Wait(Box::new(move || {
                    let mut was_in_doubt = false;
                    let result = sure(pending.wait(), || {
                        was_in_doubt = true;
                        export.create_dir(&own, mode)
                    });
                    let made = existing(result.map(drop).map_err(Cause::from))?;
                    // The request in doubt may have made it.
                    Ok(MadeDir { was_there: made.was_there && !was_in_doubt, ..made })
                }))
            }
        }
    }

    /// Begins to set the attributes of a directory or symbolic link.
    pub(super) fn begin_set_attributes(&self, path: &Path, meta: &Meta, keep_owner: &KeepOwner) -> Later<()> {
        let own = self.path(path);
        match self {
            Self::Local(_) => {
                keep_owner.where_possible(Later::Now(local::set_attributes(&own, meta, keep_owner)))
            }
            Self::Remote(target) => {
                let export = target.export.clone();
                let submit = move |set: &SetAttributes| export.submit_set_attributes(&own, false, set);
                keep_owner.where_possible(keep_owner.begin_set(meta, None, submit))
            }
        }
    }

    pub(super) fn begin_read_link(&self, path: &Path) -> Later<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        let own = self.path(path);
        match self {
            Self::Local(_) => Later::Now(std::fs::read_link(own).map_err(Cause::from)),
            Self::Remote(target) => {
                let pending = target.export.submit_read_link(&own);
                Later::Wait(Box::new(move || {
                    Ok(PathBuf::from(std::ffi::OsString::from_vec(pending.wait()?)))
                }))
            }
        }
    }

    /// Begins to make a symbolic link, at a path that does not begin at this root.
    pub(super) fn begin_symlink_own(&self, points_to: &Path, own: &Path) -> Later<()> {
        match self {
            Self::Local(_) => Later::Now(std::os::unix::fs::symlink(points_to, own).map_err(Cause::from)),
            Self::Remote(target) => {
                let (export, points_to, own) = (target.export.clone(), points_to.to_owned(), own.to_owned());
                let pending = export.submit_symlink(&points_to, &own);
                Later::request(pending, move || export.symlink(&points_to, &own))
            }
        }
    }

    /// Begins to make a path, that does not begin at this root, another name of `first`, which does.
    pub(super) fn begin_link_own(&self, first: &Path, own: &Path) -> Later<()> {
        let first = self.path(first);
        match self {
            Self::Local(_) => Later::Now(std::fs::hard_link(&first, own).map_err(Cause::from)),
            Self::Remote(target) => {
                let (export, own) = (target.export.clone(), own.to_owned());
                let pending = export.submit_link(&first, &export, &own);
                Later::request(pending, move || export.link(&first, &export, &own))
            }
        }
    }

    /// Removes a name that is no directory.
    pub(super) fn remove_file(&self, path: &Path) -> Result<(), Cause> {
        self.remove_own(&self.path(path))
    }

    /// As [`Place::remove_file`], of a path that does not begin at this root.
    pub(super) fn remove_own(&self, own: &Path) -> Result<(), Cause> {
        let Self::Remote(target) = self else { return Ok(std::fs::remove_file(own)?) };
        let remove = || target.export.remove_file(own);
        let removed = sure(remove(), || match remove() {
            // It was removed before the server was restarted.
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        });
        Ok(removed?)
    }
}
