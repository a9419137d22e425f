//! Where a copy is until it is complete: under a temporary name in the same directory.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dafs_client::{FileKind, Pending};
use dafs_proto::wire::SessionId;
use dafs_stripe::Doomed;

use super::at::At;
use super::item::{Item, Roots};
use super::meta::{Cause, Later, Meta};
use super::names::{Above, Names};
use super::open_file::OpenFile;
use super::tree_root::TreeRoot;
use crate::report::lock;
use crate::signals::Patience;

/// How the name of what is not whole begins.
const PREFIX: &str = ".dafs-cp-";

/// Names that are told to the user one by one, when they stay behind.
const NAMED_MAX: usize = 4;

/// So long the end of the command waits for servers to remove temporary names.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(1);

/// How often it is looked meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Temporary names that there are now, of the whole command.
pub(super) struct Drafts {
    state: Mutex<DraftNames>,
    /// What they were renamed to; `None` where that is not made durable.
    pub(super) names: Option<Names>,
}

#[derive(Default)]
struct DraftNames {
    next: u64,
    open: BTreeMap<u64, (At, String)>,
    left: Vec<String>,
    /// The command ends now: what is begun from here on nobody would remove.
    is_over: bool,
}

/// A temporary name, for as long as what it names is not whole. Dropped, it removes what has the name.
pub(super) struct Draft {
    roots: Arc<Roots>,
    number: u64,
    /// In the directory of the copy, which is held as long as this is there.
    own: At,
    target: PathBuf,
    above: Option<Above>,
    shown: String,
    /// The session in which it began.
    session: Option<SessionId>,
    /// What lies on other servers of the file that has the temporary name.
    pieces: Option<Doomed>,
    is_gone: bool,
    /// It may come to be yet: that it is not there now says nothing.
    is_in_doubt: bool,
}

/// How a copy comes to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Under a temporary name, renamed when it is whole.
    Beside,
    /// Written where it shall be.
    InPlace,
}

impl Manner {
    /// How an item is copied to a name where that stands already. What is written in place: files with several names, which stay
    /// one; what a symbolic link stands for that the user named; and what is no file, such as a device.
    pub(super) fn of(item: &Item, existing: Option<&Meta>) -> Self {
        let kept = existing.is_some_and(|existing| match existing.kind {
            FileKind::File => existing.links > 1,
            FileKind::Symlink => item.follow,
            _ => true,
        });
        if kept || item.roots.in_place { Self::InPlace } else { Self::Beside }
    }
}

impl Drafts {
    /// None yet. Names that are made `sync` are made durable.
    pub(super) fn new(sync: bool) -> Self {
        Self { state: Mutex::default(), names: sync.then(Names::default) }
    }

    /// A name was made on the server of this session, in that or a later one.
    pub(super) fn made(&self, session: Option<SessionId>, item: &Item) {
        let destination = &item.roots.destination;
        let own = match &item.copy.folder {
            Some(_) => item.copy.name.clone(),
            None => destination.path(&item.copy.name),
        };
        self.renamed(session, Above::of(destination, &item.copy).as_ref(), &own, None);
    }

    fn renamed(&self, session: Option<SessionId>, above: Option<&Above>, own: &Path, draft: Option<&Path>) {
        if let (Some(names), Some(session), Some(above)) = (&self.names, session, above) {
            names.add(session, above, own, draft);
        }
    }

    /// The command ends now: removes what is on this machine, and on servers what they remove in a moment where there is some patience.
    /// Returns what is left behind, for people.
    pub(super) fn abandon(&self, patience: Patience) -> Vec<String> {
        let open = {
            let mut state = lock(&self.state);
            state.is_over = true;
            std::mem::take(&mut state.open)
        };
        let (mut removing, mut left) = (Vec::new(), Vec::new());
        for (own, shown) in open.into_values() {
            match own.remote() {
                None if is_removed(own.remove_file()) => {}
                Some((dir, name)) if patience == Patience::Some => {
                    removing.push((dir.submit_remove_file(name), shown));
                }
                _ => left.push(shown),
            }
        }
        let until = Instant::now() + REMOVAL_TIME_MAX;
        for (pending, shown) in removing {
            if !is_done_by(pending, until) {
                left.push(shown);
            }
        }
        lock(&self.state).left.extend(left);
        self.left()
    }

    /// What could not be removed, for people.
    pub(super) fn left(&self) -> Vec<String> {
        let left = std::mem::take(&mut lock(&self.state).left);
        let more = left.len().saturating_sub(NAMED_MAX);
        let mut said: Vec<_> = left.into_iter().take(NAMED_MAX).collect();
        said.iter_mut().for_each(|name| *name = format!("{name} remains: remove it"));
        if more > 0 {
            said.push(format!("{more} more files remain: remove those whose names begin with {PREFIX}"));
        }
        said
    }
}

impl Draft {
    /// A name in the directory where the copy of an item shall be. Does not return any more once the command is abandoned.
    ///
    /// # Errors
    /// The directory is not there any more.
    pub(super) fn new(item: &Item) -> Result<Self, Cause> {
        let roots = Arc::clone(&item.roots);
        let target = roots.destination.at(&item.copy)?;
        let above = Above::of(&roots.destination, &item.copy);
        let mut state = lock(&roots.drafts.state);
        while state.is_over {
            // The process ends in a moment.
            drop(state);
            std::thread::park();
            state = lock(&roots.drafts.state);
        }
        let number = state.next;
        state.next += 1;
        // Nobody can have taken it before.
        let mut chance = RandomState::new().build_hasher();
        chance.write_u64(number);
        let own = target.named(beside(&target.name, &format!("{PREFIX}{:016x}", chance.finish())));
        let shown = match &item.copy.folder {
            Some(folder) => roots.destination.shown(&folder.path_of(&own.name)),
            None => roots.destination.shown_own(&own.name),
        };
        state.open.insert(number, (own.clone(), shown.clone()));
        drop(state);
        let (session, target) = (roots.destination.session(), target.name);
        Ok(Self {
            roots,
            number,
            own,
            target,
            above,
            shown,
            session,
            pieces: None,
            is_gone: false,
            is_in_doubt: false,
        })
    }

    /// The temporary name.
    pub(super) fn own(&self) -> &At {
        &self.own
    }

    /// The file that has the name is this one: where it lies on other servers too, that goes with the name.
    pub(super) fn with_pieces(mut self, file: &OpenFile) -> Self {
        if let (OpenFile::Striped(file), TreeRoot::Remote(target)) = (file, &self.roots.destination) {
            self.pieces = target.volume.doomed_of(file);
        }
        self
    }

    /// Begins to give the copy its name, in the place of whatever has it.
    pub(super) fn begin_place(mut self) -> Later<()> {
        let replaced = match (&self.roots.destination, self.own.remote()) {
            (TreeRoot::Remote(target), Some((dir, _))) => target.volume.doomed(dir, &self.target),
            _ => Ok(None),
        };
        let replaced = match replaced {
            Ok(replaced) => replaced,
            Err(error) => return Later::Now(Err(error.into())),
        };
        let renaming = self.own.begin_rename_to(&self.target);
        Later::Wait(Box::new(move || {
            let renamed = renaming.wait();
            match renamed {
                Ok(()) => {
                    self.pieces = None;
                    replaced.into_iter().for_each(Doomed::settle);
                    self.note_placed();
                    self.forget();
                }
                Err(_) => drop(self),
            }
            renamed
        }))
    }

    /// As [`Draft::begin_place`], of a name of a file that may have the other name already: then there is one to remove.
    pub(super) fn place_name(self) -> Result<(), Cause> {
        // It is removed, where it is still there.
        self.own.begin_rename_to(&self.target).wait()?;
        self.note_placed();
        Ok(())
    }

    fn note_placed(&self) {
        let draft = Some(self.own.name.as_path());
        self.roots.drafts.renamed(self.session, self.above.as_ref(), &self.target, draft);
    }

    /// There is nothing that has the name.
    pub(super) fn forget(mut self) {
        self.is_gone = true;
    }

    /// What was to have the name could not be made: nothing has it, unless the server may have made it, or may make it yet.
    pub(super) fn not_made(mut self, cause: &Cause) {
        self.is_gone = !cause.leaves_open();
        self.is_in_doubt = cause.leaves_open();
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let removed = match self.is_gone {
            true => Ok(()),
            false => self.own.remove_file(),
        };
        if removed.is_ok() && !self.is_gone {
            self.pieces.take().into_iter().for_each(Doomed::settle);
        }
        let mut state = lock(&self.roots.drafts.state);
        if state.open.remove(&self.number).is_some()
            && let Err(cause) = removed
            && (self.is_in_doubt || !cause.is_not_found())
        {
            state.left.push(std::mem::take(&mut self.shown));
        }
    }
}

/// It is not there any more, or was not yet.
fn is_removed(removed: Result<(), Cause>) -> bool {
    removed.is_ok() || removed.is_err_and(|cause| cause.is_not_found())
}

/// Whether a removal succeeds until then.
fn is_done_by(mut pending: Pending<dafs_client::Result<()>>, until: Instant) -> bool {
    while !pending.test() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    match pending.wait() {
        Err(error) => error.is_not_found(),
        Ok(()) => true,
    }
}

/// Another name in the directory of a path.
fn beside(path: &Path, name: &str) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let directory = bytes[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let mut other = bytes[..directory].to_vec();
    other.extend_from_slice(name.as_bytes());
    PathBuf::from(OsStr::from_bytes(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_name_is_in_the_directory_of_the_copy() {
        for (path, expected) in [("a", "t"), ("a/b", "a/t"), ("/a", "/t"), ("a/b/", "a/t"), ("../a", "../t")]
        {
            assert_eq!(beside(Path::new(path), "t"), Path::new(expected));
        }
    }
}
