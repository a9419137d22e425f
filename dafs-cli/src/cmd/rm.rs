//! `dafs rm`. Never follows a symbolic link below what was named: each directory is opened, and removed, by its one name in the directory
//! that listed it. If another user may rename parts of the tree, a path could change its meaning.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use dafs_client::{Attributes, Dir, Error, FileKind, Pending, ReadDir, Status};

use dafs_stripe::Doomed;

use crate::flags::Rm;
use crate::folder::{Folder, Held};
use crate::remote::{
    Remotes, Target, ends_session, ends_with_slash, entry_name, join, normal, parse_path, sure,
    without_slashes,
};
use crate::report::{Failure, Failures, Result};
use crate::signals::{Interrupt, progressed};

/// Removals in flight.
const DEPTH: usize = 64;

/// Directories of one that are opened ahead; in deep trees one alone, for they stay open on the server while others are emptied.
const AHEAD: usize = 16;
const AHEAD_LEVELS: usize = 4;

/// Directories that are held open on the server, beside those opened ahead.
const HELD_MAX: usize = 64;

/// Directories of one that are known and not emptied yet, at most: then these are emptied before more is listed, for nothing says that the
/// list ends.
const BELOW_MAX: usize = 4096;

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

/// Removals that have begun, by the name of what is to be removed.
type Removing = Vec<(PathBuf, Pending<dafs_client::Result<()>>)>;

/// A directory that is being opened.
type Opening = Pending<dafs_client::Result<(Dir, Attributes)>>;

/// A directory on the way from the top to what is being emptied.
struct Level {
    folder: Arc<Folder<Dir>>,
    /// Its name in the one above.
    name: PathBuf,
    /// Behind which entry it is to be listed on; `None` where nothing is left.
    rest: Option<u64>,
    /// Directories in what was listed, by name.
    below: Vec<PathBuf>,
    opening: VecDeque<(PathBuf, Opening)>,
    /// Of those that are empty.
    removing: Removing,
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

    /// A tree: directories are listed on the way down, and removed on the way up.
    fn tree(&self, target: &Target) -> Result<()> {
        let mut levels = Vec::new();
        match target.export.directory(&target.path) {
            Ok((dir, id)) => {
                levels.push(Level::new(Folder::top(dir, id, HELD_MAX), PathBuf::new()));
            }
            // It may be empty all the same.
            Err(error) => self.failed(target, "list", Path::new(""), &error)?,
        }
        while let Some(mut level) = levels.pop() {
            self.check_interrupt(target)?;
            let dir = match level.folder.held() {
                Ok(dir) => dir,
                // What is in it cannot be reached any more.
                Err(error) => {
                    self.failed(target, "list", &level.folder.path(), &error)?;
                    continue;
                }
            };
            if level.is_emptied() {
                self.list(target, &dir, &mut level)?;
            }
            level.open_ahead(&dir, if levels.len() < AHEAD_LEVELS { AHEAD } else { 1 });
            if let Some((name, opening)) = level.opening.pop_front() {
                let below = self.opened(target, &dir, &mut level, name, opening)?;
                levels.push(level);
                levels.extend(below);
                continue;
            }
            if level.rest.is_some() {
                levels.push(level);
                continue;
            }
            let Level { folder, name, removing, .. } = level;
            self.collect(target, &folder, removing, |name| dir.remove_dir(name))?;
            if let Some(above) = levels.last_mut() {
                match above.folder.held() {
                    Ok(dir) => self.remove(target, &dir, above, name)?,
                    Err(error) => self.failed(target, "remove", &folder.path(), &error)?,
                }
            }
        }
        let remove = || target.export.remove_dir(&target.path);
        match sure(remove(), remove) {
            Err(error) if !error.is_not_found() => self.failed(target, "remove", Path::new(""), &error),
            _ => Ok(()),
        }
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

    /// The next level, where a directory could be opened.
    fn opened(
        &self,
        target: &Target,
        dir: &Dir,
        above: &mut Level,
        name: PathBuf,
        opening: Opening,
    ) -> Result<Option<Level>> {
        let opened = sure(opening.wait(), || dir.lookup(&name, false));
        progressed();
        match opened {
            Ok((held, found)) if found.kind == FileKind::Directory => {
                let folder = above.folder.below(&name, held, (found.fs_id, found.file_id));
                return Ok(Some(Level::new(folder, name)));
            }
            // Somebody else was faster.
            Err(error) if error.is_not_found() => {}
            opened => {
                let error = opened.err().unwrap_or_else(Dir::replaced);
                self.failed(target, "list", &above.folder.path_of(&name), &error)?;
                // It may be empty all the same.
                self.remove(target, dir, above, name)?;
            }
        }
        Ok(None)
    }

    /// Begins to remove a directory that should be empty.
    fn remove(&self, target: &Target, dir: &Dir, above: &mut Level, name: PathBuf) -> Result<()> {
        let pending = dir.submit_remove_dir(&name);
        above.removing.push((name, pending));
        if above.removing.len() >= DEPTH {
            let group = std::mem::take(&mut above.removing);
            self.collect(target, &above.folder, group, |name| dir.remove_dir(name))?;
        }
        Ok(())
    }

    /// Removes what is in a directory and is none, and finds those that are: all, or so many that they are emptied first.
    fn list(&self, target: &Target, dir: &Dir, level: &mut Level) -> Result<()> {
        let Level { folder, rest, below, .. } = level;
        let Some(cookie) = rest.take() else { return Ok(()) };
        let mut removing = Removing::new();
        let again = |name: &Path| dir.remove_file(name);
        let open = || dir.open_dir_no_follow("");
        let mut entries: ReadDir = match sure(open(), open) {
            Ok(opened) => opened.entries_from(true, cookie),
            // It may be empty all the same.
            Err(error) => return self.failed(target, "list", &folder.path(), &error),
        };
        loop {
            self.check_interrupt(target)?;
            let entry = match entries.next() {
                None => break,
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    self.failed(target, "list", &folder.path(), &error)?;
                    break;
                }
            };
            let Some(name) = entry_name(&entry.name) else { continue };
            match dir.entry_metadata(&entry) {
                Ok(attributes) if attributes.kind == FileKind::Directory => below.push(name.to_owned()),
                Ok(attributes) => {
                    let doomed = self.doomed(target, dir, folder, name, &attributes)?;
                    removing.push((name.to_owned(), dir.submit_remove_file(name)));
                    if doomed.is_some() {
                        self.collect(target, folder, std::mem::take(&mut removing), again)?;
                    }
                    doomed.into_iter().for_each(Doomed::settle);
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => self.failed(target, "look at", &folder.path_of(name), &error)?,
            }
            if removing.len() >= DEPTH {
                self.collect(target, folder, std::mem::take(&mut removing), again)?;
            }
            if below.len() >= BELOW_MAX {
                *rest = Some(entries.cookie());
                break;
            }
        }
        self.collect(target, folder, removing, again)
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

    fn collect(
        &self,
        target: &Target,
        folder: &Folder<Dir>,
        removing: Removing,
        again: impl Fn(&Path) -> dafs_client::Result<()>,
    ) -> Result<()> {
        for (name, pending) in removing {
            let waited = pending.wait();
            progressed();
            match sure(waited, || again(&name)) {
                Ok(()) => {}
                // Somebody else was faster: what was asked for is so.
                Err(error) if error.is_not_found() => {}
                Err(error) => self.failed(target, "remove", &folder.path_of(&name), &error)?,
            }
        }
        Ok(())
    }

    fn check_interrupt(&self, target: &Target) -> Result<()> {
        if self.interrupt.is_set() {
            self.failures.say(&format!("interrupted: '{}' is partly removed", target.url()));
            return Err(Failure::Interrupted);
        }
        Ok(())
    }
}

impl Level {
    fn new(folder: Arc<Folder<Dir>>, name: PathBuf) -> Self {
        let (below, opening, removing) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { folder, name, rest: Some(0), below, opening, removing }
    }

    /// Nothing is known to be in it.
    fn is_emptied(&self) -> bool {
        self.below.is_empty() && self.opening.is_empty()
    }

    /// Begins to open the directories that are next, `count` of them.
    fn open_ahead(&mut self, dir: &Dir, count: usize) {
        while self.opening.len() < count
            && let Some(name) = self.below.pop()
        {
            let pending = dir.submit_lookup(&name, false);
            self.opening.push_back((name, pending));
        }
    }
}

/// Not by its components: those of `a/.` are those of `a`.
fn ends_with_dots(path: &Path) -> bool {
    let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next();
    matches!(last, Some(b"." | b".."))
}
