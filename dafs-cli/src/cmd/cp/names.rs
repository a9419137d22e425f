//! Names that copies got on a server and that no commit of their directory covers yet. When the server's machine crashes, it may forget
//! them, and a copy have its temporary name again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use dafs_proto::wire::SessionId;

use crate::report::lock;

/// Names of a directory that are remembered: then it is committed, for nothing says that it ends.
const NAMES_MAX: usize = 4096;

/// Of the whole command, by directory, as the place has it.
#[derive(Default)]
pub(super) struct Names(Mutex<HashMap<PathBuf, Made>>);

/// Names that were made in one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    /// The session in which all of them were made; `None` where that is not sure. A server that was restarted has none of before.
    pub(super) session: Option<SessionId>,
    pub(super) names: Vec<Name>,
}

/// A name, and the temporary name that was renamed to it.
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
    pub(super) fn add(&self, session: SessionId, own: &Path, draft: Option<&Path>) {
        let Some(directory) = own.parent() else { return };
        let mut made = lock(&self.0);
        let made = made.entry(directory.to_owned()).or_insert_with(|| Made::nothing(session));
        if made.session != Some(session) {
            made.session = None;
        }
        made.names.push(Name { own: own.to_owned(), draft: draft.map(Path::to_owned) });
    }

    /// Forgets the names of a directory, which is committed now.
    pub(super) fn take(&self, directory: &Path) -> Option<Made> {
        lock(&self.0).remove(directory)
    }

    /// As [`Names::take`], where there are too many to remember more.
    pub(super) fn take_full(&self, directory: &Path) -> Option<Made> {
        let mut made = lock(&self.0);
        let is_full = made.get(directory).is_some_and(|made| made.names.len() >= NAMES_MAX);
        if is_full { made.remove(directory) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_their_directory_until_it_is_committed() {
        let (names, directory) = (Names::default(), Path::new("a"));
        for number in 1..=NAMES_MAX {
            assert_eq!(names.take_full(directory), None);
            names.add(SessionId(1), &directory.join(number.to_string()), None);
            names.add(SessionId(1), Path::new("b"), Some(Path::new("draft")));
        }
        let made = names.take_full(directory).unwrap();
        assert_eq!((made.session, made.names.len()), (Some(SessionId(1)), NAMES_MAX));
        assert_eq!(names.take(directory), None);
        let made = names.take(Path::new("")).unwrap();
        assert_eq!(made.names[0], Name { own: "b".into(), draft: Some("draft".into()) });
    }

    #[test]
    fn names_of_two_sessions_are_of_none() {
        let names = Names::default();
        for session in [2, 1, 1] {
            names.add(SessionId(session), Path::new("a"), None);
        }
        assert_eq!(names.take(Path::new("")).unwrap().session, None);
    }
}
