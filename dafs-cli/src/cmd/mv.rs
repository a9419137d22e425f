//! `dafs mv`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use dafs_client::{Error, FileKind, Status};
use dafs_stripe::Doomed;

use crate::flags::Mv;
use crate::remote::{
    Remotes, Target, are_in_one_directory, check_paths, ends_with_slash, is_one_name, join, normal, sure,
    without_slashes,
};
use crate::report::{Failure, Failures, Result};

pub(crate) fn run(flags: &Mv, remotes: &Remotes) -> Result<ExitCode> {
    let Some((destination, sources @ [_, ..])) = flags.operands.split_last() else {
        return Err(Failure::usage("give what to move, and where to: dafs mv SOURCE... DESTINATION"));
    };
    check_paths(&flags.operands)?;
    let failures = Failures::default();
    let destination = remotes.target(destination)?;
    let is_directory = match destination.export.metadata(&destination.path) {
        Ok(attributes) => attributes.kind == FileKind::Directory,
        Err(error) if error.is_not_found() => false,
        Err(error) => return Err(destination.failed("look at", &error)),
    };
    if sources.len() > 1 && !is_directory {
        return Err(Failure::usage(format!(
            "cannot move several files to {}: not a directory",
            destination.url()
        )));
    }
    let mut names = HashSet::new();
    for source in sources {
        let moved = remotes.target(source).and_then(|mut source| {
            let mut to = destination.clone();
            if let (true, Some(name)) = (is_directory, source.path.file_name()) {
                to = destination.at(join(&destination.path, name.as_ref()));
                if names.contains(name) {
                    return Err(Failure::text(format!(
                        "cannot move '{}': will not replace '{}', which was just moved there",
                        source.url(),
                        to.url()
                    )));
                }
            }
            strip_slashes(&mut source, &mut to);
            rename(flags, &source, &to)?;
            names.extend(to.path.file_name().map(OsStr::to_owned));
            Ok(())
        });
        failures.keep_going(moved)?;
    }
    Ok(failures.exit())
}

/// A directory is the same with a slash at its end, which no server takes in a name that it is to move. What is none stays as it was
/// written: the server then says that it is no directory.
fn strip_slashes(from: &mut Target, to: &mut Target) {
    if !ends_with_slash(&from.path) && !ends_with_slash(&to.path) {
        return;
    }
    let source = without_slashes(&from.path);
    if matches!(from.export.symlink_metadata(&source), Ok(found) if found.kind == FileKind::Directory) {
        (from.path, to.path) = (source, without_slashes(&to.path));
    }
}

fn rename(flags: &Mv, from: &Target, to: &Target) -> Result<()> {
    let failed = |error: &Error| not_moved(from, to, &crate::report::explain(error));
    let one_session = from.session.agreed().session == to.session.agreed().session;
    if !one_session && from.export.name() == to.export.name() {
        return Err(not_moved(
            from,
            to,
            "their addresses differ: for one server, write both addresses alike; between servers, use `dafs cp -r`",
        ));
    }
    if from.export.name() != to.export.name() {
        return Err(not_moved(
            from,
            to,
            "they are in different exports; copy it with `dafs cp -r`, then remove it with `dafs rm -r`",
        ));
    }
    refuse_to_lose(from, to)?;
    let rename = || from.export.rename(&from.path, &to.export, &to.path, !flags.no_clobber);
    // Done, if what was to be moved is gone and something is there.
    let is_done = || {
        let gone = matches!(from.export.symlink_metadata(&from.path), Err(error) if error.is_not_found());
        gone && to.export.symlink_metadata(&to.path).is_ok()
    };
    // What lies over other servers of a file that is replaced goes with it.
    let replaced = if flags.no_clobber { Ok(None) } else { to.volume.doomed(&to.export, &to.path) };
    let replaced = replaced.map_err(|error| to.failed_striped("replace", &error))?;
    match sure(rename(), || if is_done() { Ok(()) } else { rename() }) {
        Ok(()) => {
            let removed = remove_second_name(from, to);
            replaced.into_iter().for_each(Doomed::settle);
            removed
        }
        Err(error) if error.status() == Some(Status::CROSS_DEVICE) => Err(not_moved(
            from,
            to,
            "they are on different file systems of the server; \
             copy it with `dafs cp -r`, then remove it with `dafs rm -r`",
        )),
        Err(error) if error.status() == Some(Status::INVALID) => {
            Err(not_moved(from, to, invalid(flags, from, to)))
        }
        Err(error) => Err(failed(&error)),
    }
}

/// A symbolic link that took the place of the very file that it leads to would lead to itself, and the file would be gone.
fn refuse_to_lose(from: &Target, to: &Target) -> Result<()> {
    let is_link =
        matches!(from.export.symlink_metadata(&from.path), Ok(found) if found.kind == FileKind::Symlink);
    if !is_link {
        return Ok(());
    }
    match (from.export.metadata(&from.path), to.export.symlink_metadata(&to.path)) {
        (Ok(led_to), Ok(there)) if (led_to.fs_id, led_to.file_id) == (there.fs_id, there.file_id) => {
            Err(not_moved(from, to, "they are the same file"))
        }
        _ => Ok(()),
    }
}

/// A rename between two names of one file does nothing. What is moved has the other name alone, as with mv(1).
fn remove_second_name(from: &Target, to: &Target) -> Result<()> {
    let failed = |error: &Error| not_moved(from, to, &crate::report::explain(error));
    let look = |target: &Target| match target.export.symlink_metadata(&target.path) {
        Err(error) if error.is_not_found() => Ok(None),
        found => found.map(Some).map_err(|error| failed(&error)),
    };
    // Nearly always it is gone.
    let Some(left) = look(from)? else { return Ok(()) };
    match look(to)? {
        Some(moved) if (moved.fs_id, moved.file_id) == (left.fs_id, left.file_id) => {}
        // Somebody else has made a name since.
        _ => return Ok(()),
    }
    if is_one_name(from, to) {
        return Err(not_moved(from, to, "they are the same file"));
    }
    if !has_more_names(left.kind, left.links) {
        return Ok(());
    }
    // Where upper and lower case are one, the other name is found under this one too.
    if are_in_one_directory(from, to) && !has_entry(from).map_err(|error| failed(&error))? {
        return Ok(());
    }
    let remove = || from.export.remove_file(&from.path);
    match sure(remove(), remove) {
        Err(error) if !error.is_not_found() => Err(failed(&error)),
        _ => Ok(()),
    }
}

/// Else a file system finds the only name in two ways: in upper and lower case, short and long, composed and not.
fn has_more_names(kind: FileKind, links: u32) -> bool {
    kind != FileKind::Directory && links > 1
}

/// Whether the directory has an entry of that very name, byte for byte.
fn has_entry(target: &Target) -> dafs_client::Result<bool> {
    let Some(name) = target.path.file_name() else { return Ok(false) };
    for entry in target.export.read_dir(target.path.parent().unwrap_or(Path::new("")), false)? {
        if entry?.name == name.as_bytes() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn not_moved(from: &Target, to: &Target, why: &str) -> Failure {
    Failure::text(format!("cannot move '{}' to '{}': {why}", from.url(), to.url()))
}

/// Why a server takes no part in a move: it has one status for all of this.
fn invalid(flags: &Mv, from: &Target, to: &Target) -> &'static str {
    if normal(&to.path).starts_with(normal(&from.path)) {
        return "a directory cannot be moved into itself";
    }
    match (ends_with_slash(&from.path) || ends_with_slash(&to.path), flags.no_clobber) {
        (true, _) => "only a directory can have a name that ends with a slash",
        (false, true) => {
            "a directory cannot be moved into itself, and some file systems cannot move without replacing; try it without -n"
        }
        (false, false) => "it is the root, or a directory that would be moved into itself",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CMD-90]
    #[test]
    fn only_name_of_a_file_is_not_taken_for_its_second() {
        assert!(!has_more_names(FileKind::File, 1));
        assert!(has_more_names(FileKind::File, 2));
        assert!(!has_more_names(FileKind::Directory, 2));
    }
}
