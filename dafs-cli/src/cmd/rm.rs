//! `dafs rm`. Never follows a symbolic link below what was named: each directory is opened, and removed, by its one name in the directory
//! that listed it. If another user may rename parts of the tree, a path could change its meaning.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use dafs_client::{Attributes, Dir, Error, FileKind, Pending, Status};
use dafs_stripe::Doomed;
use slab::Slab;

use crate::flags::Rm;
use crate::folder::{Folder, Held};
use crate::remote::{
    Remotes, Target, ends_session, ends_with_slash, entry_name, join, normal, parse_path, sure,
    without_slashes,
};
use crate::report::{Failure, Failures, Result};
use crate::signals::{Interrupt, progressed};
use crate::walk::{Listed, Order, Step, Walk, Wanted};

/// Removals in flight.
const DEPTH: usize = 64;

/// Directories of one that are known and not emptied yet, at most: then these are emptied before more is listed, for nothing says that the
/// list ends.
const BELOW_MAX: usize = 4096;

const WANTED: Wanted =
    Wanted { recursive: true, hidden: true, order: Order::Any, attributes: true, link_targets: false };

pub(crate) fn run(flags: &Rm, remotes: &Remotes) -> Result<ExitCode> {
    // Before any of them is removed.
    for url in &flags.urls {
        let (url, _) = parse_path(url)?;
        if normal(Path::new(OsStr::from_bytes(&url.path))).as_os_str().is_empty() {
            return Err(Failure::usage(format!(
                "cannot remove '{url}': it is the root of an export; remove what is in it"
            )));
        }
    }
    let remover = Remover { flags, failures: Failures::default(), interrupt: Interrupt::catch(|_| {}) };
    remotes.each(&flags.urls, &remover.failures, |target| remover.operand(&target))?;
    Ok(remover.failures.exit())
}

/// A directory that is emptied, and then removed.
struct Level {
    folder: Arc<Folder<Dir>>,
    /// What it is in; `None` for the top, which is removed last.
    above: Option<usize>,
    name: PathBuf,
    /// What is to go before it does: its entries, and the listing.
    left: usize,
}

/// What is removed from a directory.
enum Removal {
    File { from: usize, name: PathBuf },
    Directory(Level),
}

/// A removal that has begun.
struct Removing {
    removal: Removal,
    pending: Pending<dafs_client::Result<()>>,
}

/// A tree that is removed: directories are listed on the way down, and removed when they are empty.
struct Tree<'a> {
    target: &'a Target,
    levels: Slab<Level>,
    /// Which level a directory is, by the address of its folder.
    known: HashMap<*const Folder<Dir>, usize>,
    removing: VecDeque<Removing>,
}

struct Remover<'a> {
    flags: &'a Rm,
    failures: Failures,
    interrupt: Interrupt,
}

impl Remover<'_> {
    fn operand(&self, target: &Target) -> Result<()> {
        if self.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        let removed = self.remove_operand(target);
        progressed();
        removed
    }

    fn remove_operand(&self, target: &Target) -> Result<()> {
        let (had_slash, target) = (ends_with_slash(&target.path), &target.at(without_slashes(&target.path)));
        let failed = |error| target.failed("remove", &error);
        let attributes = match target.export.symlink_metadata(&target.path) {
            // As good as missing is what would lie below a file.
            Err(error)
                if self.flags.force
                    && (error.is_not_found() || error.status() == Some(Status::NOT_DIRECTORY)) =>
            {
                return Ok(());
            }
            result => result.map_err(failed)?,
        };
        if attributes.kind != FileKind::Directory && had_slash {
            return Err(Failure::text(format!("cannot remove '{}/': not a directory", target.url())));
        }
        if attributes.kind != FileKind::Directory {
            let doomed = target.volume.may_be_striped(&attributes).and_then(|may_be| match may_be {
                true => target.volume.doomed(&target.export, &target.path),
                false => Ok(None),
            });
            let doomed = doomed.map_err(|error| target.failed_striped("remove", &error))?;
            let remove = || target.export.remove_file(&target.path);
            let mut goes_missing = self.flags.force;
            let removed = sure(remove(), || {
                // It was removed before the server was restarted.
                goes_missing = true;
                remove()
            });
            return match removed {
                Err(error) if error.is_not_found() && goes_missing => Ok(()),
                result => result.map_err(failed).inspect(|()| doomed.into_iter().for_each(Doomed::settle)),
            };
        }
        // It may be what a link leads to.
        if ends_with_dots(&target.path) {
            return Err(Failure::text(format!(
                "cannot remove '{}': its path ends with . or ..; give the directory's own name",
                target.url()
            )));
        }
        if !self.flags.recursive {
            return Err(Failure::text(format!(
                "cannot remove '{}': is a directory; remove it and all that is in it with -r",
                target.url()
            )));
        }
        self.tree(target)
    }

    /// A tree.
    fn tree(&self, target: &Target) -> Result<()> {
        let found = target.export.lookup(&target.path, false);
        let look = || target.export.lookup(&target.path, false);
        match sure(found, look) {
            Ok((dir, found)) if found.kind == FileKind::Directory => {
                let inline = target.session.agreed().read_inline_max;
                let mut tree = Tree::new(target);
                let mut walk = Walk::new(dir, &found, inline, WANTED);
                while let Some(step) = walk.next() {
                    self.check_interrupt(target)?;
                    self.step(&mut tree, step, &mut walk)?;
                }
                while let Some(removing) = tree.removing.pop_front() {
                    self.check_interrupt(target)?;
                    self.collect(&mut tree, removing)?;
                }
            }
            // It may be empty all the same.
            Err(error) => self.failed(target, "list", Path::new(""), &error)?,
            Ok(_) => self.failed(target, "list", Path::new(""), &Dir::replaced())?,
        }
        let remove = || target.export.remove_dir(&target.path);
        match sure(remove(), remove) {
            Err(error) if !error.is_not_found() => self.failed(target, "remove", Path::new(""), &error),
            _ => Ok(()),
        }
    }

    /// A directory whose turn it is: begins to remove what is in it and is no directory.
    fn step(&self, tree: &mut Tree<'_>, step: Step, walk: &mut Walk) -> Result<()> {
        let Step { above, name, listed } = step;
        progressed();
        let parent = tree.find(&above);
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) => {
                // Somebody else was faster, or it may be empty all the same.
                if !error.is_not_found() || parent.is_none() {
                    self.failed(tree.target, "list", &above.path_of(&name), &error)?;
                }
                let Some(parent) = parent else { return Ok(()) };
                let level = Level { folder: above, above: Some(parent), name, left: 0 };
                return self.remove(tree, level);
            }
        };
        let level = match (parent, name.as_os_str().is_empty()) {
            // It is come back to.
            (Some(level), true) => level,
            (above, _) => tree.enter(Level { folder: Arc::clone(&listed.folder), above, name, left: 1 }),
        };
        let is_listed = self.list(tree, level, listed, walk)?;
        match is_listed {
            true => self.is_gone(tree, level),
            false => Ok(()),
        }
    }

    /// Begins to remove what is in a directory. Returns false where it is come back to, when the directories in it are empty.
    fn list(
        &self,
        tree: &mut Tree<'_>,
        level: usize,
        mut listed: Box<Listed>,
        walk: &mut Walk,
    ) -> Result<bool> {
        let folder = Arc::clone(&listed.folder);
        let rest = listed.rest(true);
        let dir = match listed.dir.clone().map_or_else(|| folder.held(), Ok) {
            Ok(dir) => dir,
            // What is in it cannot be reached any more.
            Err(error) => return self.failed(tree.target, "list", &folder.path(), &error).map(|()| true),
        };
        let mut below = Vec::new();
        if let Some(count) = listed.below {
            tree.levels[level].left += count;
        }
        let known = std::mem::take(&mut listed.entries);
        for entry in known.into_iter().map(Ok).chain(rest.into_iter().flatten()) {
            self.check_interrupt(tree.target)?;
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.failed(tree.target, "list", &folder.path(), &error)?;
                    break;
                }
            };
            let Some(name) = entry_name(&entry.name) else { continue };
            match dir.entry_metadata(&entry) {
                Ok(attributes) if attributes.kind == FileKind::Directory => {
                    if listed.below.is_none() {
                        below.push(name.to_owned());
                    }
                }
                Ok(attributes) => self.remove_file(tree, level, &dir, name, &attributes)?,
                Err(error) if error.is_not_found() => {}
                Err(error) => self.failed(tree.target, "look at", &folder.path_of(name), &error)?,
            }
            if below.len() >= BELOW_MAX {
                tree.levels[level].left += below.len();
                walk.come_back(listed, entry.cookie);
                walk.enter(&folder, below);
                return Ok(false);
            }
        }
        tree.levels[level].left += below.len();
        walk.enter(&folder, below);
        Ok(true)
    }

    /// Begins to remove a file.
    fn remove_file(
        &self,
        tree: &mut Tree<'_>,
        level: usize,
        dir: &Dir,
        name: &Path,
        attributes: &Attributes,
    ) -> Result<()> {
        let doomed = self.doomed(tree.target, dir, &tree.levels[level].folder, name, attributes)?;
        tree.levels[level].left += 1;
        let removing = Removing {
            removal: Removal::File { from: level, name: name.to_owned() },
            pending: dir.submit_remove_file(name),
        };
        match doomed {
            None => self.begun(tree, removing),
            // Its pieces go when it is gone.
            Some(doomed) => {
                self.collect(tree, removing)?;
                doomed.settle();
                Ok(())
            }
        }
    }

    /// Begins to remove a directory that should be empty. Of its `folder` only what it is in is used.
    fn remove(&self, tree: &mut Tree<'_>, level: Level) -> Result<()> {
        let Some(above) = level.above.map(|above| Arc::clone(&tree.levels[above].folder)) else {
            return Ok(());
        };
        match above.held() {
            Ok(dir) => {
                let pending = dir.submit_remove_dir(&level.name);
                self.begun(tree, Removing { removal: Removal::Directory(level), pending })
            }
            Err(error) => {
                self.failed(tree.target, "remove", &above.path_of(&level.name), &error)?;
                level.above.map_or(Ok(()), |above| self.is_gone(tree, above))
            }
        }
    }

    /// A removal has begun; waits for the first where there are enough.
    fn begun(&self, tree: &mut Tree<'_>, removing: Removing) -> Result<()> {
        tree.removing.push_back(removing);
        match tree.removing.len() > DEPTH {
            true => tree.removing.pop_front().map_or(Ok(()), |first| self.collect(tree, first)),
            false => Ok(()),
        }
    }

    /// Something of a directory is gone, or all is listed; the directory goes with the last.
    fn is_gone(&self, tree: &mut Tree<'_>, level: usize) -> Result<()> {
        let left = &mut tree.levels[level].left;
        *left = left.saturating_sub(1);
        if *left > 0 {
            return Ok(());
        }
        let level = tree.leave(level);
        self.remove(tree, level)
    }

    /// Reports what could not be done, and goes on. The end of the session ends the operand: all that follows would fail for it.
    fn failed(&self, target: &Target, action: &str, path: &Path, error: &Error) -> Result<()> {
        let failure = target.failed_at(action, &join(&target.path, path), error);
        if ends_session(error) {
            return Err(failure);
        }
        self.failures.report(&failure);
        Ok(())
    }

    /// What lies over several servers of a file that is about to go.
    fn doomed(
        &self,
        target: &Target,
        dir: &Dir,
        folder: &Folder<Dir>,
        name: &Path,
        attributes: &Attributes,
    ) -> Result<Option<Doomed>> {
        let doomed = target.volume.may_be_striped(attributes).and_then(|may_be| match may_be {
            true => target.volume.doomed(dir, name),
            false => Ok(None),
        });
        doomed.or_else(|error| {
            let at = target.at(join(&target.path, &folder.path_of(name)));
            self.failures.report(&at.failed_striped("look at", &error));
            Ok(None)
        })
    }

    /// Waits for the end of a removal.
    fn collect(&self, tree: &mut Tree<'_>, removing: Removing) -> Result<()> {
        let Removing { removal, pending } = removing;
        let (from, name) = match &removal {
            Removal::File { from, name } => (Some(*from), name),
            Removal::Directory(level) => (level.above, &level.name),
        };
        let Some(from) = from else { return Ok(()) };
        let waited = pending.wait();
        progressed();
        let folder = Arc::clone(&tree.levels[from].folder);
        let again = || match &removal {
            Removal::File { .. } => folder.held()?.remove_file(name),
            Removal::Directory(_) => folder.held()?.remove_dir(name),
        };
        match sure(waited, again) {
            Ok(()) => {}
            // Somebody else was faster: what was asked for is so.
            Err(error) if error.is_not_found() => {}
            Err(error) => self.failed(tree.target, "remove", &folder.path_of(name), &error)?,
        }
        self.is_gone(tree, from)
    }

    fn check_interrupt(&self, target: &Target) -> Result<()> {
        if self.interrupt.is_set() {
            self.failures.say(&format!("interrupted: '{}' is partly removed", target.url()));
            return Err(Failure::Interrupted);
        }
        Ok(())
    }
}

impl<'a> Tree<'a> {
    fn new(target: &'a Target) -> Self {
        Self { target, levels: Slab::new(), known: HashMap::new(), removing: VecDeque::new() }
    }

    /// The level of a directory.
    fn find(&self, folder: &Arc<Folder<Dir>>) -> Option<usize> {
        self.known.get(&Arc::as_ptr(folder)).copied()
    }

    fn enter(&mut self, level: Level) -> usize {
        // Held as long as it is known: no other folder has the address.
        let address = Arc::as_ptr(&level.folder);
        let number = self.levels.insert(level);
        self.known.insert(address, number);
        number
    }

    fn leave(&mut self, number: usize) -> Level {
        let level = self.levels.remove(number);
        self.known.remove(&Arc::as_ptr(&level.folder));
        level
    }
}

/// Not by its components: those of `a/.` are those of `a`.
fn ends_with_dots(path: &Path) -> bool {
    let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next();
    matches!(last, Some(b"." | b".."))
}
