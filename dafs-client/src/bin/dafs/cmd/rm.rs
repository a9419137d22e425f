//! `dafs rm`. Never follows a symbolic link: names are removed in directories that were listed as such.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dafs_client::{Error, FileKind, Pending};

use crate::flags::Rm;
use crate::remote::{Remotes, Target, entry_name, join, normal};
use crate::report::{Failure, Failures, Result};
use crate::signals::{Interrupt, progressed};

/// Removals in flight.
const DEPTH: usize = 64;

pub(crate) fn run(flags: &Rm, remotes: &Remotes) -> Result<ExitCode> {
    let remover = Remover { flags, failures: Failures::default(), interrupt: Interrupt::catch(|| {}) };
    for url in &flags.urls {
        let removed = remotes.target(url).and_then(|target| remover.operand(&target));
        remover.failures.keep_going(removed)?;
    }
    Ok(remover.failures.exit())
}

struct Remover<'a> {
    flags: &'a Rm,
    failures: Failures,
    interrupt: Interrupt,
}

impl Remover<'_> {
    fn operand(&self, target: &Target) -> Result<()> {
        let failed = |error| target.failed("remove", &error);
        let attributes = match target.export.symlink_metadata(&target.path) {
            Err(error) if error.is_not_found() && self.flags.force => return Ok(()),
            result => result.map_err(failed)?,
        };
        if attributes.kind != FileKind::Directory {
            let remove = || target.export.remove_file(&target.path);
            return match remove() {
                Err(error) if error.is_not_found() && self.flags.force => Ok(()),
                Err(Error::InDoubt { .. }) => match remove() {
                    // It was removed before the server was restarted.
                    Err(error) if error.is_not_found() => Ok(()),
                    result => result.map_err(failed),
                },
                result => result.map_err(failed),
            };
        }
        if normal(&target.path).as_os_str().is_empty() {
            return Err(Failure::usage(format!(
                "'{}' is the root of an export, which is not removed: remove what is in it",
                target.url()
            )));
        }
        if !self.flags.recursive {
            return Err(Failure::text(format!(
                "cannot remove '{}': it is a directory (remove it and all that is in it with -r)",
                target.url()
            )));
        }
        self.tree(target)
    }

    /// A tree: directories are listed from the top, and removed from the bottom.
    fn tree(&self, target: &Target) -> Result<()> {
        let mut to_list = vec![target.path.clone()];
        let mut directories = Vec::new();
        while let Some(directory) = to_list.pop() {
            if let Err(failure) = self.content(target, &directory, &mut to_list) {
                self.failures.keep_going(Err(failure))?;
            }
            directories.push(directory);
        }
        // Each after all that are in it: those of one depth have nothing to do with each other.
        let depth = |path: &PathBuf| path.components().count();
        directories.sort_by_key(|path| std::cmp::Reverse(depth(path)));
        for level in directories.chunk_by(|one, other| depth(one) == depth(other)) {
            for chunk in level.chunks(DEPTH) {
                self.check_interrupt(target)?;
                let removing: Vec<_> =
                    chunk.iter().map(|path| (path.clone(), target.export.submit_remove_dir(path))).collect();
                self.collect(target, removing, |path| target.export.remove_dir(path));
            }
        }
        Ok(())
    }

    /// Removes what is in a directory and is none, and finds those that are.
    fn content(&self, target: &Target, directory: &Path, below: &mut Vec<PathBuf>) -> Result<()> {
        let failed = |error| target.failed_at("list", directory, &error);
        let mut removing = Vec::new();
        let entries = target.export.read_dir(directory, true).map_err(failed)?;
        // Not through its path: that could have come to lead elsewhere.
        let dir = entries.dir().clone();
        for entry in entries {
            self.check_interrupt(target)?;
            let entry = entry.map_err(failed)?;
            let Some(name) = entry_name(&entry.name) else { continue };
            let kind = match dir.entry_metadata(&entry) {
                Ok(attributes) => attributes.kind,
                Err(error) if error.is_not_found() => continue,
                Err(error) => {
                    self.failures.report(&target.failed_at("look at", &join(directory, name), &error));
                    continue;
                }
            };
            let path = join(directory, name);
            if kind == FileKind::Directory {
                below.push(path);
                continue;
            }
            let pending = dir.submit_remove_file(name);
            removing.push((path, pending));
            if removing.len() >= DEPTH {
                let batch = std::mem::take(&mut removing);
                self.collect(target, batch, |path| target.export.remove_file(path));
            }
        }
        self.collect(target, removing, |path| target.export.remove_file(path));
        Ok(())
    }

    fn collect(
        &self,
        target: &Target,
        removing: Vec<(PathBuf, Pending<dafs_client::Result<()>>)>,
        again: impl Fn(&Path) -> dafs_client::Result<()>,
    ) {
        for (path, pending) in removing {
            let waited = pending.wait();
            progressed();
            let removed = match waited {
                Err(Error::InDoubt { .. }) => match again(&path) {
                    Err(error) if error.is_not_found() => Ok(()),
                    result => result,
                },
                result => result,
            };
            match removed {
                Ok(()) => {}
                // Somebody else was faster: what was asked for is so.
                Err(error) if error.is_not_found() => {}
                Err(error) => self.failures.report(&target.failed_at("remove", &path, &error)),
            }
        }
    }

    fn check_interrupt(&self, target: &Target) -> Result<()> {
        if self.interrupt.is_set() {
            self.failures.say(&format!("interrupted: '{}' is partly removed", target.url()));
            return Err(Failure::Interrupted);
        }
        Ok(())
    }
}
