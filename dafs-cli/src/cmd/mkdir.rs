//! `dafs mkdir`.

use std::path::{Component, Path};
use std::process::ExitCode;

use dafs_client::FileKind;

use crate::flags::Mkdir;
use crate::remote::{Remotes, Target, sure};
use crate::report::{Failure, Failures, Result};

pub(crate) fn run(flags: &Mkdir, remotes: &Remotes) -> Result<ExitCode> {
    let failures = Failures::default();
    let mode = flags.mode.unwrap_or_else(|| 0o777 & !umask());
    remotes.each(&flags.urls, &failures, |target| make(flags, &target, mode))?;
    Ok(failures.exit())
}

fn make(flags: &Mkdir, target: &Target, mode: u32) -> Result<()> {
    let export = &target.export;
    let is_root = target.path.components().all(|part| matches!(part, Component::CurDir | Component::RootDir));
    if is_root && !flags.parents {
        return Err(Failure::text(format!(
            "cannot make the directory '{}': it is the root of an export, which always exists",
            target.url()
        )));
    }
    let failed = |error| target.failed("make the directory", &error);
    let is_directory =
        || matches!(export.metadata(&target.path), Ok(found) if found.kind == FileKind::Directory);
    if !flags.parents {
        let make = || export.create_dir(&target.path, mode).map(drop);
        // It was made before the server was restarted, or is made now.
        let made = sure(make(), || match make() {
            Err(error) if error.already_exists() && is_directory() => Ok(()),
            result => result,
        });
        return made.map_err(failed);
    }
    let make_all = |path: &Path, mode| {
        let make = || export.create_dir_all(path, mode);
        sure(make(), make)
    };
    // Bits that were asked for are those of the last: the others are made so that something can be made in them.
    let above = target.path.parent().filter(|parent| flags.mode.is_some() && !parent.as_os_str().is_empty());
    let made = match above.map(|above| make_all(above, 0o777 & !umask() | 0o300)) {
        Some(Err(error)) => Err(error),
        _ => make_all(&target.path, mode),
    };
    let Err(error) = made else { return Ok(()) };
    match export.metadata(&target.path) {
        // Where nothing may be made, what exists is enough as well.
        Ok(found) if found.kind == FileKind::Directory => Ok(()),
        Ok(found) if error.already_exists() => Err(Failure::text(format!(
            "cannot make the directory '{}': a {} with that name is in the way",
            target.url(),
            crate::format::kind_name(found.kind)
        ))),
        _ => Err(failed(error)),
    }
}

/// The user's umask: the server has none.
pub(crate) fn umask() -> u32 {
    use rustix::process::umask;
    // To ask by setting it would give another mask to files that a thread makes meanwhile.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    umask_in(&status).unwrap_or_else(|| {
        let mask = umask(0o077.into());
        umask(mask);
        mask.bits()
    })
}

fn umask_in(status: &str) -> Option<u32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(mask.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn umask_is_what_the_kernel_says() {
        assert_eq!(umask_in("Name:\tdafs\nUmask:\t0027\nState:\tR\n"), Some(0o027));
        assert_eq!(umask_in("Name:\tdafs\n"), None);
        let mask = rustix::process::umask(0o022.into());
        rustix::process::umask(mask);
        assert_eq!(umask(), mask.bits());
    }
}
