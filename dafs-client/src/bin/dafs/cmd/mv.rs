//! `dafs mv`.

use std::process::ExitCode;

use dafs_client::{Error, FileKind, Status};

use crate::flags::Mv;
use crate::remote::{Remotes, Target, join};
use crate::report::{Failure, Failures, Result};

pub(crate) fn run(flags: &Mv, remotes: &Remotes) -> Result<ExitCode> {
    let Some((destination, sources)) = flags.operands.split_last() else {
        return Err(Failure::usage("give what to move and where to"));
    };
    let failures = Failures::default();
    let destination = remotes.target(destination)?;
    let is_directory = match destination.export.metadata(&destination.path) {
        Ok(attributes) => attributes.kind == FileKind::Directory,
        Err(error) if error.is_not_found() => false,
        Err(error) => return Err(destination.failed("look at", &error)),
    };
    if sources.len() > 1 && !is_directory {
        return Err(Failure::usage(format!(
            "{} is no directory: several things are moved only into one",
            destination.url()
        )));
    }
    for source in sources {
        let moved = remotes.target(source).and_then(|source| {
            let to = match (is_directory, source.path.file_name()) {
                (true, Some(name)) => destination.at(join(&destination.path, name.as_ref())),
                _ => destination.clone(),
            };
            rename(flags, &source, &to)
        });
        failures.keep_going(moved)?;
    }
    Ok(failures.exit())
}

fn rename(flags: &Mv, from: &Target, to: &Target) -> Result<()> {
    let failed = |error: &Error| {
        let (from, to, why) = (from.url(), to.url(), crate::report::explain(error));
        Failure::text(format!("cannot move '{from}' to '{to}': {why}"))
    };
    let one_session = from.session.agreed().session == to.session.agreed().session;
    if !one_session || from.export.name() != to.export.name() {
        return Err(Failure::text(format!(
            "cannot move '{}' to '{}': they are in different exports (copy it with `dafs cp -r`, then remove it with `dafs rm -r`)",
            from.url(),
            to.url()
        )));
    }
    match from.export.rename(&from.path, &to.export, &to.path, !flags.no_clobber) {
        Ok(()) => Ok(()),
        // Done, if what was to be moved is gone and something is there.
        Err(Error::InDoubt { .. }) => {
            let gone = matches!(from.export.symlink_metadata(&from.path), Err(error) if error.is_not_found());
            match gone && to.export.symlink_metadata(&to.path).is_ok() {
                true => Ok(()),
                false => from
                    .export
                    .rename(&from.path, &to.export, &to.path, !flags.no_clobber)
                    .map_err(|error| failed(&error)),
            }
        }
        Err(error) if error.status() == Some(Status::CROSS_DEVICE) => Err(Failure::text(format!(
            "cannot move '{}' to '{}': they are on different file systems of the server \
             (copy it with `dafs cp -r`, then remove it with `dafs rm -r`)",
            from.url(),
            to.url()
        ))),
        Err(error) if error.status() == Some(Status::INVALID) => Err(Failure::text(format!(
            "cannot move '{}' to '{}': a directory cannot be moved into itself",
            from.url(),
            to.url()
        ))),
        Err(error) => Err(failed(&error)),
    }
}
