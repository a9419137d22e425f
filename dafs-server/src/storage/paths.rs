//! Checks of clients' arguments that do not depend on the file system.

use dafs_proto::wire::{NAME_SIZE_MAX, OpenFlags, PATH_SIZE_MAX, SetAttributes, SetTime, Status};

use super::Identity;

/// Bytes, no zero byte, not absolute, no part longer than a name may be.
pub(super) fn check_path(path: &[u8]) -> Result<(), Status> {
    if path.first() == Some(&b'/') {
        return Err(Status::CROSS_DEVICE);
    }
    if path.contains(&0) {
        return Err(Status::INVALID);
    }
    // The kernel counts the terminating zero byte.
    if path.len() >= PATH_SIZE_MAX || path.split(|b| *b == b'/').any(|part| part.len() > NAME_SIZE_MAX) {
        return Err(Status::NAME_TOO_LONG);
    }
    Ok(())
}

/// A checked path as the directory part (empty for where the path begins) and a plain last name: not empty, `.` or
/// `..`. A slash at the end is accepted where
/// `directory` is meant.
pub(super) fn split_last(path: &[u8], directory: bool) -> Result<(&[u8], &[u8]), Status> {
    check_path(path)?;
    let mut path = path;
    while directory && path.last() == Some(&b'/') {
        path = &path[..path.len() - 1];
    }
    let (parent, last) = match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&path[..0], path),
    };
    match last {
        b"" | b"." | b".." => Err(Status::INVALID),
        _ => Ok((parent, last)),
    }
}

/// The largest file offset.
pub(super) const OFFSET_MAX: u64 = i64::MAX as u64;

/// The end of a range that is read.
pub(super) fn check_read_range(offset: u64, len: usize) -> Result<(), Status> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= OFFSET_MAX => Ok(()),
        _ => Err(Status::INVALID),
    }
}

/// The end of a range that is written.
pub(super) fn check_write_range(offset: u64, len: usize) -> Result<(), Status> {
    check_read_range(offset, len).map_err(|_| Status::TOO_LARGE)
}

/// A range to allocate or punch.
pub(super) fn check_len(offset: u64, len: u64) -> Result<(), Status> {
    if len == 0 {
        return Err(Status::INVALID);
    }
    match offset.checked_add(len) {
        Some(end) if end <= OFFSET_MAX => Ok(()),
        _ => Err(Status::TOO_LARGE),
    }
}

/// What holds for files that have names.
const OF_NAMES: OpenFlags = OpenFlags::CREATE
    .union(OpenFlags::EXCLUSIVE)
    .union(OpenFlags::TRUNCATE)
    .union(OpenFlags::NO_FOLLOW)
    .union(OpenFlags::DIRECTORY);

/// Flags that contradict each other, or ask for no access.
pub(super) fn check_open_flags(flags: OpenFlags) -> Result<(), Status> {
    let wrong = !flags.intersects(OpenFlags::READ | OpenFlags::WRITE | OpenFlags::DIRECTORY)
        || flags.contains(OpenFlags::EXCLUSIVE) && !flags.contains(OpenFlags::CREATE)
        || flags.contains(OpenFlags::TRUNCATE) && !flags.contains(OpenFlags::WRITE)
        || flags.contains(OpenFlags::DIRECTORY)
            && flags.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE | OpenFlags::WRITE)
        || flags.contains(OpenFlags::UNNAMED)
            && (!flags.contains(OpenFlags::WRITE) || flags.intersects(OF_NAMES));
    if wrong { Err(Status::INVALID) } else { Ok(()) }
}

/// Values that no file system takes.
pub(super) fn check_set_attributes(set: &SetAttributes) -> Result<(), Status> {
    let wrong_time = [set.atime, set.mtime]
        .into_iter()
        .flatten()
        .any(|time| matches!(time, SetTime::At(at) if at.nanoseconds >= 1_000_000_000));
    // The kernel takes this number for "leave it as it is".
    let wrong = wrong_time || set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX);
    if wrong { Err(Status::INVALID) } else { Ok(()) }
}

/// Other namespaces than `user.` change what the server's kernel does with a file: for root, as the kernel permits.
pub(super) fn check_xattr_name(name: &[u8], identity: &Identity) -> Result<(), Status> {
    if name.is_empty() || name == b"user." || name.contains(&0) {
        return Err(Status::INVALID);
    }
    if name.len() > NAME_SIZE_MAX {
        return Err(Status::NAME_TOO_LONG);
    }
    if identity.uid != 0 && !is_of_users(name) {
        return Err(Status::PERMISSION);
    }
    Ok(())
}

/// Whether an extended attribute is one that users other than 0 may see and set, where the kernel lets them: their own, and access control
/// lists, which anybody may read who reaches the file, and its owner sets as he sets the mode.
pub(super) fn is_of_users(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == b"system.posix_acl_access" || name == b"system.posix_acl_default"
}

#[cfg(test)]
mod tests {
    use super::*;

    // [STOR-46]
    #[test]
    fn split_last_of_a_plain_path_gives_parent_and_name() {
        assert_eq!(split_last(b"a", false), Ok((&b""[..], &b"a"[..])));
        assert_eq!(split_last(b"a/b//c", false), Ok((&b"a/b/"[..], &b"c"[..])));
        assert_eq!(split_last(b"a/b//", true), Ok((&b"a"[..], &b"b"[..])));
    }

    #[test]
    fn split_last_of_a_path_without_a_plain_last_name_is_invalid() {
        for path in [&b""[..], b".", b"..", b"a/..", b"a/.", b"a/", b"a\0b"] {
            assert_eq!(split_last(path, false), Err(Status::INVALID), "{path:?}");
        }
        assert_eq!(split_last(b"/a", false), Err(Status::CROSS_DEVICE));
        assert_eq!(split_last(b"/", true), Err(Status::CROSS_DEVICE));
    }

    // [WIRE-5]
    #[test]
    fn check_path_at_its_limits_changes_exactly_there() {
        for (len, fits) in [(NAME_SIZE_MAX - 1, true), (NAME_SIZE_MAX, true), (NAME_SIZE_MAX + 1, false)] {
            assert_eq!(check_path(&vec![b'x'; len]).is_ok(), fits, "name of {len}");
        }
        for (len, fits) in [(PATH_SIZE_MAX - 2, true), (PATH_SIZE_MAX - 1, true), (PATH_SIZE_MAX, false)] {
            let path: Vec<u8> = b"a/".iter().copied().cycle().take(len).collect();
            assert_eq!(check_path(&path).is_ok(), fits, "path of {len}");
        }
    }
}
