//! `dafs rm`. Never follows a symbolic link below what was named: each directory is opened, and removed, by its one name in the directory
//! that listed it, which stays open. A path could come to lead elsewhere, where another user may rename what is in the tree.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dafs_client::{Dir, Error, FileKind, Pending, ReadDir, Status};

use crate::flags::Rm;
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
const AHEAD_LEVELS: usize = 32;

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

/// Removals that have begun, by what is to be removed.
type Removing = Vec<(PathBuf, Pending<dafs_client::Result<()>>)>;

/// A directory on the way from the top to what is being emptied.
struct Level {
    dir: Dir,
    /// For people.
    path: PathBuf,
    /// What of it is not listed yet.
    rest: Option<ReadDir>,
    /// Directories in what is.
    below: Vec<PathBuf>,
    opening: VecDeque<(PathBuf, Pending<dafs_client::Result<Dir>>)>,
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
            let remove = || target.export.remove_file(&target.path);
            let mut goes_missing = self.flags.force;
            let removed = sure(remove(), || {
                // It was removed before the server was restarted.
                goes_missing = true;
                remove()
            });
            return match removed {
                Err(error) if error.is_not_found() && goes_missing => Ok(()),
                result => result.map_err(failed),
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
        let open = || target.export.open_dir_no_follow(&target.path);
        let opened = sure(open(), open);
        let mut levels = Vec::new();
        match opened {
            Ok(dir) => levels.push(Level::new(dir, target.path.clone())),
            // It may be empty all the same.
            Err(error) => self.failed(target, "list", &target.path, &error)?,
        }
        while let Some(mut level) = levels.pop() {
            self.check_interrupt(target)?;
            if level.is_emptied() {
                self.list(target, &mut level)?;
            }
            level.open_ahead(if levels.len() < AHEAD_LEVELS { AHEAD } else { 1 });
            if let Some((path, opening)) = level.opening.pop_front() {
                let below = self.opened(target, &mut level, path, opening)?;
                levels.push(level);
                levels.extend(below);
                continue;
            }
            if level.rest.is_some() {
                levels.push(level);
                continue;
            }
            let Level { dir, path, removing, .. } = level;
            self.collect(target, removing, |path| remove_dir(&dir, path).wait())?;
            if let Some(above) = levels.last_mut() {
                self.remove(target, above, path)?;
            }
        }
        let removing = vec![(target.path.clone(), target.export.submit_remove_dir(&target.path))];
        self.collect(target, removing, |path| target.export.remove_dir(path))
    }

    /// Reports what could not be done, and goes on. The end of the session ends the operand: all that follows would fail for it.
    fn failed(&self, target: &Target, action: &str, path: &Path, error: &Error) -> Result<()> {
        let failure = target.failed_at(action, path, error);
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
        above: &mut Level,
        path: PathBuf,
        opening: Pending<dafs_client::Result<Dir>>,
    ) -> Result<Option<Level>> {
        let opened = sure(opening.wait(), || open(&above.dir, &path).wait());
        progressed();
        match opened {
            Ok(dir) => return Ok(Some(Level::new(dir, path))),
            // Somebody else was faster.
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                self.failed(target, "list", &path, &error)?;
                // It may be empty all the same.
                self.remove(target, above, path)?;
            }
        }
        Ok(None)
    }

    /// Begins to remove a directory that should be empty.
    fn remove(&self, target: &Target, above: &mut Level, path: PathBuf) -> Result<()> {
        let pending = remove_dir(&above.dir, &path);
        above.removing.push((path, pending));
        if above.removing.len() >= DEPTH {
            let group = std::mem::take(&mut above.removing);
            self.collect(target, group, |path| remove_dir(&above.dir, path).wait())?;
        }
        Ok(())
    }

    /// Removes what is in a directory and is none, and finds those that are: all, or so many that they are emptied first.
    fn list(&self, target: &Target, level: &mut Level) -> Result<()> {
        let Level { dir, path, rest, below, .. } = level;
        let Some(entries) = rest else { return Ok(()) };
        let mut removing = Removing::new();
        let again = |path: &Path| remove_file(dir, path).wait();
        let is_all = loop {
            self.check_interrupt(target)?;
            let entry = match entries.next() {
                None => break true,
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    self.failed(target, "list", path, &error)?;
                    break true;
                }
            };
            let Some(name) = entry_name(&entry.name) else { continue };
            let own = join(path, name);
            match dir.entry_metadata(&entry) {
                Ok(attributes) if attributes.kind == FileKind::Directory => below.push(own),
                Ok(_) => removing.push((own.clone(), remove_file(dir, &own))),
                Err(error) if error.is_not_found() => {}
                Err(error) => self.failed(target, "look at", &own, &error)?,
            }
            if removing.len() >= DEPTH {
                self.collect(target, std::mem::take(&mut removing), again)?;
            }
            if below.len() >= BELOW_MAX {
                break false;
            }
        };
        self.collect(target, removing, again)?;
        if is_all {
            *rest = None;
        }
        Ok(())
    }

    fn collect(
        &self,
        target: &Target,
        removing: Removing,
        again: impl Fn(&Path) -> dafs_client::Result<()>,
    ) -> Result<()> {
        for (path, pending) in removing {
            let waited = pending.wait();
            progressed();
            match sure(waited, || again(&path)) {
                Ok(()) => {}
                // Somebody else was faster: what was asked for is so.
                Err(error) if error.is_not_found() => {}
                Err(error) => self.failed(target, "remove", &path, &error)?,
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
    fn new(dir: Dir, path: PathBuf) -> Self {
        let rest = Some(dir.entries(true));
        Self { dir, path, rest, below: Vec::new(), opening: VecDeque::new(), removing: Vec::new() }
    }

    /// Nothing is known to be in it.
    fn is_emptied(&self) -> bool {
        self.below.is_empty() && self.opening.is_empty()
    }

    /// Begins to open the directories that are next, `count` of them.
    fn open_ahead(&mut self, count: usize) {
        while self.opening.len() < count
            && let Some(path) = self.below.pop()
        {
            let pending = open(&self.dir, &path);
            self.opening.push_back((path, pending));
        }
    }
}

/// Not by its components: those of `a/.` are those of `a`.
fn ends_with_dots(path: &Path) -> bool {
    let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next();
    matches!(last, Some(b"." | b".."))
}

// In the directory that listed it, by its name alone.

fn open(dir: &Dir, path: &Path) -> Pending<dafs_client::Result<Dir>> {
    dir.submit_open_dir_no_follow(name(path))
}

fn remove_dir(dir: &Dir, path: &Path) -> Pending<dafs_client::Result<()>> {
    dir.submit_remove_dir(name(path))
}

fn remove_file(dir: &Dir, path: &Path) -> Pending<dafs_client::Result<()>> {
    dir.submit_remove_file(name(path))
}

fn name(path: &Path) -> &Path {
    path.file_name().map_or(Path::new(""), Path::new)
}
