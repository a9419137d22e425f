//! `dafs ln` and `dafs readlink`.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dafs_client::{Attributes, Error, FileKind, Status};

use crate::flags::{Ln, Urls};
use crate::output::Output;
use crate::remote::{Remotes, Target, is_one_name, join, sure};
use crate::report::{Failure, Failures, Result};

pub(crate) fn ln(flags: &Ln, remotes: &Remotes) -> Result<ExitCode> {
    let link = remotes.target(&flags.link)?;
    let first = match flags.symbolic {
        true => None,
        false => {
            let first = remotes.target(&flags.target)?;
            let one_session = first.session.agreed().session == link.session.agreed().session;
            if !one_session && first.export.name() == link.export.name() {
                return Err(Failure::text(
                    "cannot make the link: the addresses differ; for one server, write both addresses alike",
                ));
            }
            if first.export.name() != link.export.name() {
                return Err(Failure::text(
                    "cannot make the link: the file is in another export; a symbolic link, with -s, may point anywhere",
                ));
            }
            Some(first)
        }
    };
    let make = |path: &Path| match &first {
        None => link.export.symlink(Path::new(&flags.target), path).map(drop),
        Some(first) => first.export.link(&first.path, &link.export, path).map(drop),
    };
    let is_made = |path: &Path| is_link(&link, path, first.as_ref(), flags);
    match made_once(|| make(&link.path), || is_made(&link.path)) {
        Err(error) if error.already_exists() && flags.force => {
            // A symbolic link may point outside, and what it points to need not be there.
            let pointed =
                || link.at(join(link.path.parent().unwrap_or(Path::new("")), Path::new(&flags.target)));
            let first_metadata = match &first {
                Some(first) => {
                    let looked = first.export.symlink_metadata(&first.path);
                    Some((first.clone(), looked.map_err(|error| first.failed("look at", &error))?))
                }
                None if Path::new(&flags.target).is_absolute() => None,
                None => link.export.metadata(&pointed().path).ok().map(|found| (pointed(), found)),
            };
            replace(&link, first_metadata, flags.symbolic, make, is_made)?;
        }
        result => result.map_err(|error| link.failed("make the link", &error))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a link that a restart of the server may have left in doubt. What is there then was there before, unless it is that link.
fn made_once(
    make: impl Fn() -> dafs_client::Result<()>,
    is_made: impl Fn() -> bool,
) -> dafs_client::Result<()> {
    sure(make(), || match make() {
        Err(error) if error.already_exists() && is_made() => Ok(()),
        result => result,
    })
}

/// Whether a path is that link: to `first`, or symbolic.
fn is_link(link: &Target, path: &Path, first: Option<&Target>, flags: &Ln) -> bool {
    let id = |target: &Target, path: &Path| {
        target.export.symlink_metadata(path).map(|found| (found.fs_id, found.file_id))
    };
    match first {
        Some(first) => {
            matches!((id(first, &first.path), id(link, path)), (Ok(one), Ok(other)) if one == other)
        }
        None => link.export.read_link(path).is_ok_and(|target| target == flags.target.as_bytes()),
    }
}

/// Puts the link in the place of what has its name, which is lost only when the link is there. `first` is what it stands for.
fn replace(
    link: &Target,
    first: Option<(Target, Attributes)>,
    is_symbolic: bool,
    make: impl Fn(&Path) -> dafs_client::Result<()>,
    is_made: impl Fn(&Path) -> bool,
) -> Result<()> {
    let failed = |error: &Error| link.failed("replace", error);
    let existing = link.export.symlink_metadata(&link.path).map_err(|error| failed(&error))?;
    if let Some((first, attributes)) = first
        && (attributes.fs_id, attributes.file_id) == (existing.fs_id, existing.file_id)
    {
        if existing.links == 1 || is_one_name(&first, link) {
            return Err(Failure::text(format!(
                "cannot make the link '{}': it and '{}' are the same file",
                link.url(),
                first.url()
            )));
        }
        if !is_symbolic {
            // It stands for that file already.
            return Ok(());
        }
    }
    if existing.kind == FileKind::Directory {
        return Err(Failure::text(format!("cannot replace '{}': is a directory", link.url())));
    }
    let temporary = make_beside(link, make, is_made)?;
    let rename = || link.export.rename(&temporary, &link.export, &link.path, true);
    let renamed = sure(rename(), || match rename() {
        // It was renamed before the server was restarted.
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    });
    renamed.map_err(|error| {
        // What cannot be done about it now is said by what failed before.
        let _ = link.export.remove_file(&temporary);
        failed(&error)
    })
}

/// Makes the link under a name of its own in the directory where it shall be.
fn make_beside(
    link: &Target,
    make: impl Fn(&Path) -> dafs_client::Result<()>,
    is_made: impl Fn(&Path) -> bool,
) -> Result<PathBuf> {
    let directory = link.path.parent().unwrap_or(Path::new(""));
    let mut number = RandomState::new().build_hasher().finish();
    loop {
        let temporary = join(directory, Path::new(&format!(".dafs-ln-{number:016x}")));
        match made_once(|| make(&temporary), || is_made(&temporary)) {
            Ok(()) => return Ok(temporary),
            Err(error) if error.already_exists() => number = number.wrapping_add(1),
            Err(error) => return Err(link.failed("make the link", &error)),
        }
    }
}

pub(crate) fn readlink(flags: &Urls, remotes: &Remotes) -> Result<ExitCode> {
    let (mut out, failures) = (Output::new(), Failures::default());
    remotes.each(&flags.urls, &failures, |target| {
        let points_to = target.export.read_link(&target.path).map_err(|error| match error.status() {
            Some(Status::INVALID) => Failure::text(format!(
                "cannot read the symbolic link '{}': not a symbolic link",
                target.url()
            )),
            _ => target.failed("read the symbolic link", &error),
        })?;
        out.name(&points_to)?;
        out.line("")
    })?;
    out.flush()?;
    Ok(failures.exit())
}
