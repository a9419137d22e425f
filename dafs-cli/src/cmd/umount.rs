//! `dafs umount`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::mount_flags::Umount;
use crate::quote::quoted;
use crate::report::{Failure, Result};

pub(crate) fn run(flags: &Umount) -> Result<ExitCode> {
    let failed = |cause: &str| {
        Failure::text(format!("cannot unmount {}: {cause}", quoted(flags.directory.as_os_str().as_bytes())))
    };
    let Some(directory) = mounted_at(&flags.directory) else {
        return Err(failed("no dafs export is mounted there; /proc/self/mountinfo lists what is mounted"));
    };
    match dafs_mount::unmount(&directory, flags.lazy) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            Err(failed("programs use it; end them, or use --lazy to let them finish"))
        }
        Err(error) => Err(failed(&error.to_string())),
    }
}

/// The mount point of a dafs export that a user means by a path. Nothing of the mount itself is looked at: its server may be away.
pub(crate) fn mounted_at(path: &Path) -> Option<PathBuf> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let absolute = std::path::absolute(path).ok()?;
    let absolute: PathBuf = absolute.components().collect();
    // The kernel's list has no links.
    let name = absolute.file_name().unwrap_or_default();
    let resolved =
        absolute.parent().and_then(|parent| parent.canonicalize().ok()).map(|parent| parent.join(name));
    [Some(absolute), resolved].into_iter().flatten().find(|candidate| is_dafs(&mounts, candidate))
}

/// A directory is the mount point of a dafs export, by the kernel's list of mounts.
fn is_dafs(mounts: &[u8], directory: &Path) -> bool {
    mounts.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let point = fields.nth(4).map(unescaped);
        let mut about = fields.skip_while(|field| *field != b"-").skip(1);
        about.next() == Some(b"fuse.dafs")
            && point.as_deref().is_some_and(|point| OsStr::from_bytes(point) == directory)
    })
}

/// A field as it was before the kernel wrote blanks in it as `\040`.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_point_with_blanks_is_found_and_another_kind_is_not() {
        let mounts = b"22 1 0:20 / /proc rw - proc proc rw\n\
            40 1 0:44 / /mnt/my\\040data rw,nosuid shared:1 - fuse.dafs dafs://h/e rw\n\
            41 1 0:45 / /mnt/other rw - fuse.sshfs h: rw\n";
        assert!(is_dafs(mounts, Path::new("/mnt/my data")));
        assert!(!is_dafs(mounts, Path::new("/mnt/other")));
        assert!(!is_dafs(mounts, Path::new("/proc")));
    }
}
