//! Where a tree is read from or written to: a directory of this machine, or one of an export. What is done with names is in `at`.

use std::path::{Path, PathBuf};

use dafs_proto::wire::SessionId;

use super::at::{At, Base, Spot};
use super::meta::{Cause, Later, Meta};
use crate::remote::{Target, join};
use crate::report::Failure;

/// The root of a tree that is copied from or to.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "there are two for each operand")]
pub(super) enum TreeRoot {
    Local(PathBuf),
    Remote(Target),
}

impl TreeRoot {
    /// Where a name of a tree is. Opens the directory that it is in, where that was closed.
    pub(super) fn at(&self, spot: &Spot) -> Result<At, Cause> {
        match &spot.folder {
            Some(folder) => Ok(At { base: folder.held()?, name: spot.name.clone() }),
            None => Ok(self.at_own(self.path(&spot.name))),
        }
    }

    /// Where a path of its own is.
    pub(super) fn at_own(&self, own: PathBuf) -> At {
        let base = match self {
            Self::Local(_) => Base::Here,
            Self::Remote(target) => Base::Remote(target.export.root().clone()),
        };
        At { base, name: own }
    }

    /// A step about a name of a tree.
    pub(super) fn begin<T>(&self, spot: &Spot, step: impl FnOnce(&At) -> Later<T>) -> Later<T> {
        match self.at(spot) {
            Ok(at) => step(&at),
            Err(cause) => Later::Now(Err(cause)),
        }
    }

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

    /// As [`TreeRoot::shown`], of a path that does not begin at this root.
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

    /// What is at its top.
    pub(super) fn metadata(&self, follow: bool) -> Result<Meta, Cause> {
        self.at_own(self.path(Path::new(""))).metadata(follow)
    }
}
