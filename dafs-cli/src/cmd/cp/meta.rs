//! What is kept of a file, and why a step failed; steps that have begun.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::{Attributes, Error, FileKind, Pending, SetAttributes, SetTime, Status, Timestamp};
use rustix::io::Errno;

use crate::remote::{ends_session, sure};
use crate::report::{explain, system_message};
use crate::signals::progressed;

/// Something in a directory: its name and what it is, or why that is not known.
pub(super) type Entry = (PathBuf, Result<Meta, Cause>);

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

/// Gives a directory's group, and itself, to what is made in it.
pub(super) const SET_GROUP_ID: u32 = 0o2000;

/// User and group.
pub(super) type Owner = (u32, u32);

/// What had the name of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Nothing,
    /// A file of this mode, in whose place the copy comes.
    Replaced(u32),
    /// A file that is written itself.
    Written,
}

/// Whether copies get the owners of what is copied, and all else. Clones are the same: what one of them notes all know.
#[derive(Clone)]
pub(super) struct KeepOwner {
    is_set: bool,
    /// All attributes were asked for: one that cannot be set is a failure.
    preserves: bool,
    /// The bits that new names do not get where that was not asked for.
    umask: u32,
    is_refused: Arc<AtomicBool>,
    lacks_attributes: Arc<AtomicBool>,
    lacks_extras: Arc<AtomicBool>,
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

    pub(super) fn errno(&self) -> i32 {
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

impl From<Errno> for Cause {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

impl From<Error> for Cause {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl From<dafs_stripe::Error> for Cause {
    fn from(error: dafs_stripe::Error) -> Self {
        match error {
            dafs_stripe::Error::Client(error) => Self::Client(error),
            error => Self::Text(error.to_string()),
        }
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
    /// What new names get otherwise goes by the umask of this process.
    pub(super) fn new(is_set: bool, preserves: bool) -> Self {
        Self {
            is_set,
            preserves,
            umask: crate::cmd::mkdir::umask(),
            is_refused: Arc::default(),
            lacks_attributes: Arc::default(),
            lacks_extras: Arc::default(),
        }
    }

    /// The mode that a copy gets; `None` where it keeps its own. Symbolic links have none.
    pub(super) fn mode(&self, meta: &Meta, is_kept: bool, before: &Before) -> Option<u32> {
        let is_directory = meta.kind == FileKind::Directory;
        let inherited = if meta.inherits_group { SET_GROUP_ID } else { 0 };
        match before {
            _ if meta.kind == FileKind::Symlink => None,
            _ if is_kept => Some(meta.mode & 0o7777),
            // A file of another owner is no program that runs as its owner, and nothing that is made in a directory is of its group, unless
            // the directory above wants that.
            _ if self.preserves => Some(meta.mode & 0o1777 | inherited),
            Before::Written => None,
            Before::Replaced(mode) => Some(mode & 0o1777),
            // As cp(1).
            Before::Nothing if is_directory => Some(meta.mode & 0o1777 & !self.umask | inherited),
            Before::Nothing => Some(meta.mode & 0o777 & !self.umask),
        }
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

    /// Whether some copies did not get their access control lists or extended attributes.
    pub(super) fn lacks_extras(&self) -> bool {
        self.lacks_extras.load(Ordering::Relaxed)
    }

    pub(super) fn note_lost_extras(&self) {
        self.lacks_extras.store(true, Ordering::Relaxed);
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
        before: &Before,
        submit: impl Fn(&SetAttributes) -> Pending<Result<Attributes, Error>> + 'static,
    ) -> Later<()> {
        let is_kept = self.is_set();
        let owner = if is_kept { Some((meta.uid, meta.gid)) } else { owner };
        let (with_owner, set) = (owner.is_some(), self.to_set(meta, is_kept, owner, before));
        let (pending, keep, without) = (submit(&set), self.clone(), self.to_set(meta, false, None, before));
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

    /// As [`KeepOwner::begin_set`], by a call that sets them at once.
    pub(super) fn set_now(
        &self,
        meta: &Meta,
        before: &Before,
        set: impl Fn(&SetAttributes) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let is_kept = self.is_set();
        let owner = is_kept.then_some((meta.uid, meta.gid));
        match set(&self.to_set(meta, is_kept, owner, before)) {
            Err(Cause::Client(error)) if is_kept && error.status().is_some_and(refuses_owner) => {
                set(&self.to_set(meta, false, None, before))?;
                self.note(!is_kept);
                Ok(())
            }
            result => result,
        }
    }

    /// The attributes that a copy gets, and its owner.
    fn to_set(&self, meta: &Meta, is_kept: bool, owner: Option<Owner>, before: &Before) -> SetAttributes {
        SetAttributes {
            mode: self.mode(meta, is_kept, before),
            uid: owner.map(|(uid, _)| uid),
            gid: owner.map(|(_, gid)| gid),
            atime: Some(SetTime::At(meta.atime)),
            mtime: Some(SetTime::At(meta.mtime)),
        }
    }
}

fn refuses_owner(status: Status) -> bool {
    matches!(status, Status::PERMISSION | Status::INVALID | Status::NOT_SUPPORTED)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Some file.
    pub(in crate::cmd::cp) fn file() -> Meta {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        Meta {
            kind: FileKind::File,
            mode: 0o666,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            links: 1,
            id: (0, 0),
            atime: time,
            mtime: time,
            ctime: time,
            inherits_group: false,
        }
    }

    // [CMD-5] [CMD-98] [CMD-99]
    #[test]
    fn mode_of_a_copy_goes_by_umask_and_what_was_there() {
        let keep = |preserves| KeepOwner { umask: 0o027, ..KeepOwner::new(false, preserves) };
        let file = |mode| Meta { mode, ..file() };
        let directory =
            |mode, inherits_group| Meta { kind: FileKind::Directory, inherits_group, ..file(mode) };
        let (plain, preserving) = (keep(false), keep(true));
        assert_eq!(plain.mode(&file(0o7777), false, &Before::Nothing), Some(0o750));
        assert_eq!(plain.mode(&directory(0o7777, false), false, &Before::Nothing), Some(0o1750));
        assert_eq!(plain.mode(&directory(0o777, true), false, &Before::Nothing), Some(0o2750));
        assert_eq!(plain.mode(&file(0o777), false, &Before::Replaced(0o4606)), Some(0o606));
        assert_eq!(plain.mode(&file(0o777), false, &Before::Written), None);
        for before in [Before::Nothing, Before::Replaced(0o600), Before::Written] {
            assert_eq!(preserving.mode(&file(0o6777), false, &before), Some(0o777));
            assert_eq!(preserving.mode(&file(0o6777), true, &before), Some(0o6777));
        }
    }
}
