//! `dafs mkdir`.

use std::path::Path;
use std::process::ExitCode;

use dafs_client::{Error, FileKind};

use crate::flags::Mkdir;
use crate::remote::{Remotes, Target};
use crate::report::{Failures, Result};

pub(crate) fn run(flags: &Mkdir, remotes: &Remotes) -> Result<ExitCode> {
    let failures = Failures::default();
    let mode = flags.mode.unwrap_or_else(|| 0o777 & !umask());
    for url in &flags.urls {
        let made = remotes.target(url).and_then(|target| make(flags, &target, mode));
        failures.keep_going(made)?;
    }
    Ok(failures.exit())
}

fn make(flags: &Mkdir, target: &Target, mode: u32) -> Result<()> {
    let export = &target.export;
    let failed = |error| target.failed("make the directory", &error);
    let is_directory =
        || matches!(export.metadata(&target.path), Ok(found) if found.kind == FileKind::Directory);
    if !flags.parents {
        return match export.create_dir(&target.path, mode) {
            // It was made before the server was restarted, or is made now.
            Err(Error::InDoubt { .. }) => match export.create_dir(&target.path, mode) {
                Err(error) if error.already_exists() && is_directory() => Ok(()),
                result => result.map(drop).map_err(failed),
            },
            result => result.map(drop).map_err(failed),
        };
    }
    let make_all = |path: &Path, mode| match export.create_dir_all(path, mode) {
        Err(Error::InDoubt { .. }) => export.create_dir_all(path, mode),
        result => result,
    };
    // Bits that were asked for are those of the last: the others are made so that something can be made in them.
    let above = target.path.parent().filter(|parent| flags.mode.is_some() && !parent.as_os_str().is_empty());
    let made = match above.map(|above| make_all(above, 0o777 & !umask() | 0o300)) {
        Some(Err(error)) => Err(error),
        _ => make_all(&target.path, mode),
    };
    if let Err(error) = made {
        // Where nothing may be made, what exists is enough as well.
        return if is_directory() { Ok(()) } else { Err(failed(error)) };
    }
    // "It exists" is success only for a directory.
    let found = export.metadata(&target.path).map_err(failed)?;
    match found.kind {
        FileKind::Directory => Ok(()),
        kind => Err(crate::report::Failure::text(format!(
            "cannot make the directory '{}': a {} with that name is in the way",
            target.url(),
            crate::format::kind_name(kind)
        ))),
    }
}

/// The user's umask: the server has none.
fn umask() -> u32 {
    use rustix::process::umask;
    let mask = umask(0o077.into());
    umask(mask);
    mask.bits()
}
