//! Names that copies got on a server and that no commit of their directory covers yet. When the server's machine crashes, it may forget
//! them, and a copy have its temporary name again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use dafs_proto::wire::SessionId;

use super::at::{At, Base, Spot};
use super::meta::Cause;
use super::tree_root::TreeRoot;
use crate::folder::Folder;
use crate::report::lock;

/// Names of a directory that are remembered: then it is committed, for nothing says that it ends.
const NAMES_MAX: usize = 4096;

/// Of the whole command, by directory.
#[derive(Default)]
pub(super) struct Names(Mutex<HashMap<Key, (Above, Made)>>);

/// A directory in which names are made.
#[derive(Clone)]
pub(super) enum Above {
    /// As the place has it.
    Path(PathBuf),
    Folder(Arc<Folder<Base>>),
}

/// Which it is. A folder stays where it is as long as it is kept.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Path(PathBuf),
    Folder(usize),
}

impl Above {
    /// That of a copy, where it has one.
    pub(super) fn of(place: &TreeRoot, copy: &Spot) -> Option<Self> {
        match &copy.folder {
            Some(folder) => Some(Self::Folder(Arc::clone(folder))),
            None => Some(Self::Path(place.path(&copy.name).parent()?.to_owned())),
        }
    }

    fn key(&self) -> Key {
        match self {
            Self::Path(path) => Key::Path(path.clone()),
            Self::Folder(folder) => Key::Folder(Arc::as_ptr(folder) as usize),
        }
    }

    /// Where a name in it is.
    pub(super) fn at(&self, place: &TreeRoot, name: &Path) -> Result<At, Cause> {
        match self {
            Self::Path(_) => Ok(place.at_own(name.to_owned())),
            Self::Folder(folder) => place.at(&Spot::below(folder, name.to_owned())),
        }
    }

    /// Itself.
    pub(super) fn itself(&self, place: &TreeRoot) -> Result<At, Cause> {
        match self {
            Self::Path(path) => Ok(place.at_own(path.clone())),
            Self::Folder(folder) => Ok(folder.held()?.itself()),
        }
    }

    /// Itself, or the name in it, for people.
    pub(super) fn shown(&self, place: &TreeRoot, name: Option<&Path>) -> PathBuf {
        match (self, name) {
            (Self::Path(path), None) => path.clone(),
            (Self::Path(_), Some(own)) => own.to_owned(),
            (Self::Folder(folder), None) => place.path(&folder.path()),
            (Self::Folder(folder), Some(name)) => place.path(&folder.path_of(name)),
        }
    }
}

/// Names that were made in one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    /// The session in which all of them were made; `None` where that is not sure. A server that was restarted has none of before.
    pub(super) session: Option<SessionId>,
    pub(super) names: Vec<Name>,
}

/// A name, and the temporary name that was renamed to it: as the directory has them, or the place, where the user wrote the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) own: PathBuf,
    pub(super) draft: Option<PathBuf>,
}

impl Made {
    pub(super) fn nothing(session: SessionId) -> Self {
        Self { session: Some(session), names: Vec::new() }
    }
}

impl Names {
    /// Remembers a name that was made in this session, or in one that followed it.
    pub(super) fn add(&self, session: SessionId, above: &Above, own: &Path, draft: Option<&Path>) {
        let mut made = lock(&self.0);
        let (_, made) = made.entry(above.key()).or_insert_with(|| (above.clone(), Made::nothing(session)));
        if made.session != Some(session) {
            made.session = None;
        }
        made.names.push(Name { own: own.to_owned(), draft: draft.map(Path::to_owned) });
    }

    /// Forgets the names of a directory, which is committed now.
    pub(super) fn take(&self, directory: &Above) -> Option<Made> {
        lock(&self.0).remove(&directory.key()).map(|(_, made)| made)
    }

    /// As [`Names::take`], where there are too many to remember more.
    pub(super) fn take_full(&self, directory: &Above) -> Option<Made> {
        let mut made = lock(&self.0);
        let is_full = made.get(&directory.key()).is_some_and(|(_, made)| made.names.len() >= NAMES_MAX);
        if is_full { made.remove(&directory.key()).map(|(_, made)| made) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_their_directory_until_it_is_committed() {
        let (names, directory, other) = (Names::default(), Above::Path("a".into()), Above::Path("".into()));
        for number in 1..=NAMES_MAX {
            assert_eq!(names.take_full(&directory), None);
            names.add(SessionId(1), &directory, Path::new(&number.to_string()), None);
            names.add(SessionId(1), &other, Path::new("b"), Some(Path::new("draft")));
        }
        let made = names.take_full(&directory).unwrap();
        assert_eq!((made.session, made.names.len()), (Some(SessionId(1)), NAMES_MAX));
        assert_eq!(names.take(&directory), None);
        let made = names.take(&other).unwrap();
        assert_eq!(made.names[0], Name { own: "b".into(), draft: Some("draft".into()) });
    }

    #[test]
    fn names_of_two_sessions_are_of_none() {
        let names = Names::default();
        let directory = Above::Path("".into());
        for session in [2, 1, 1] {
            names.add(SessionId(session), &directory, Path::new("a"), None);
        }
        assert_eq!(names.take(&directory).unwrap().session, None);
    }
}
