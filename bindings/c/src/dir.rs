//! Names: directories, their entries, links, attributes of paths. Each path begins at the handle of a directory or an export; a leading
//! slash changes nothing, the empty path is that directory itself, and no path leaves the export.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::sync::Mutex;

use dafs_client::{AccessMode, DirEntry, FileKind, SetAttributes, XattrSetMode};
use dafs_ffi::{bytes_out, put, slice, text};

use crate::abi::{DAFS_RENAME_NOREPLACE, dafs_dirent};
use crate::call::{Failure, Result, alone, bad_handle, done, handle_of, invalid, run, sized, with_dir};
use crate::file::{count_of, owners, stat_of, times_of, umask};
use crate::object::{self, Object};

/// Opens a directory, for paths that begin there. Returns its handle, or -1. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_opendirat(dir: i64, path: *const c_char) -> i64 {
    run(|| {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?;
        handle_of(Object::Dir(with_dir(dir, |dir| Ok(dir.open_dir(path)?))?))
    })
}

/// Opens the listing of a directory, from its beginning (cookie 0) or behind an entry. Returns its handle, or -1. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_listat(dir: i64, path: *const c_char, cookie: u64) -> i64 {
    run(|| {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?;
        let listing = with_dir(dir, |dir| Ok(dir.read_dir_from(path, true, cookie)?))?;
        handle_of(Object::Listing(Mutex::new(listing)))
    })
}

/// The next entry of a listing: 1, and the entry; 0 at the end; -1 for an error. Without "." and "..". Blocks while entries are fetched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_readdir(listing: i64, entry: *mut dafs_dirent) -> c_int {
    run(|| {
        // SAFETY: a struct of the caller's, by the contract.
        let place = unsafe { sized(entry, "DAFS_DIRENT_INIT") }?;
        let found = object::find(listing);
        let Some(Object::Listing(listing)) = found.as_deref() else {
            return Err(bad_handle(listing, "a listing"));
        };
        let next = alone(listing, "the listing")?.next();
        let Some(next) = next.transpose()? else { return Ok(0) };
        *place = entry_of(&next, place.size)?;
        Ok(1)
    })
}

fn entry_of(of: &DirEntry, size: u32) -> Result<dafs_dirent> {
    let mut entry =
        dafs_dirent { size, kind: libc::DT_UNKNOWN.into(), ino: 0, cookie: of.cookie, name: [0; 256] };
    if of.name.len() >= entry.name.len() {
        return Err(Failure::Caller(libc::ENAMETOOLONG, "an entry has a name of more than 255 bytes".into()));
    }
    for (place, byte) in entry.name.iter_mut().zip(&of.name) {
        *place = c_char::from_ne_bytes([*byte]);
    }
    if let Some(attributes) = &of.attributes {
        entry.ino = attributes.file_id;
        let kind = match attributes.kind {
            FileKind::File => libc::DT_REG,
            FileKind::Directory => libc::DT_DIR,
            FileKind::Symlink => libc::DT_LNK,
            FileKind::BlockDevice => libc::DT_BLK,
            FileKind::CharDevice => libc::DT_CHR,
            FileKind::Fifo => libc::DT_FIFO,
            FileKind::Socket => libc::DT_SOCK,
        };
        entry.kind = kind.into();
    }
    Ok(entry)
}

/// The attributes of a path, as fstatat(2) fills them; flags: 0 or AT_SYMLINK_NOFOLLOW. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_fstatat(
    dir: i64,
    path: *const c_char,
    attributes: *mut libc::stat,
    flags: c_int,
) -> c_int {
    done(|| {
        // SAFETY: a string of the caller's and room for attributes, by the contract.
        let (path, place) = unsafe { (text(path)?, put(attributes)?) };
        let found = with_dir(dir, |dir| match follows(flags)? {
            true => Ok(dir.metadata(path)?),
            false => Ok(dir.symlink_metadata(path)?),
        })?;
        *place = stat_of(&found);
        Ok(())
    })
}

pub(crate) fn follows(flags: c_int) -> Result<bool> {
    match flags {
        0 => Ok(true),
        libc::AT_SYMLINK_NOFOLLOW => Ok(false),
        other => Err(invalid(format!("flags {other:#x}: 0 or AT_SYMLINK_NOFOLLOW"))),
    }
}

/// Makes a directory with mode less the umask. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_mkdirat(dir: i64, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: a string of the caller's, by the contract.
    unsafe { at(dir, path, |dir, path| Ok(dir.create_dir(path, mode & 0o7777 & !umask())?)) }
}

/// Removes a file or a symbolic link, or with AT_REMOVEDIR an empty directory. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_unlinkat(dir: i64, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: a string of the caller's, by the contract.
    unsafe {
        at(dir, path, |dir, path| match removes_dir(flags)? {
            false => Ok(dir.remove_file(path)?),
            true => Ok(dir.remove_dir(path)?),
        })
    }
}

pub(crate) fn removes_dir(flags: c_int) -> Result<bool> {
    match flags {
        0 => Ok(false),
        libc::AT_REMOVEDIR => Ok(true),
        other => Err(invalid(format!("flags {other:#x}: 0 or AT_REMOVEDIR"))),
    }
}

/// Renames a path below a directory to a path below another of the same export. flags: 0, or DAFS_RENAME_NOREPLACE. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_renameat(
    from_dir: i64,
    from: *const c_char,
    to_dir: i64,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: strings of the caller's, by the contract.
    unsafe {
        two((from_dir, from), (to_dir, to), |from_dir, from, to_dir, to| {
            Ok(from_dir.rename(from, to_dir, to, replaces(flags)?)?)
        })
    }
}

/// Whether a rename replaces what has the name.
pub(crate) fn replaces(flags: c_int) -> Result<bool> {
    match flags {
        0 => Ok(true),
        DAFS_RENAME_NOREPLACE => Ok(false),
        other => Err(invalid(format!("flags {other:#x}: 0 or DAFS_RENAME_NOREPLACE"))),
    }
}

/// Puts a file with this content, and mode less the umask, in place of whatever file has the name. Until it is whole and durable the old
/// one stays, and whoever opens the path gets all of the one or all of the other. Data and name are durable when it returns. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_replaceat(
    dir: i64,
    path: *const c_char,
    data: *const c_void,
    size: usize,
    mode: u32,
) -> c_int {
    // SAFETY: a string and bytes of the caller's, by the contract.
    unsafe {
        at(dir, path, |dir, path| {
            let data = slice(data.cast::<u8>(), size)?;
            Ok(dir.replace(path, data, mode & 0o7777 & !umask())?)
        })
    }
}

/// Gives a file another name, in the same export. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_linkat(
    from_dir: i64,
    from: *const c_char,
    to_dir: i64,
    to: *const c_char,
) -> c_int {
    // SAFETY: strings of the caller's, by the contract.
    unsafe {
        two((from_dir, from), (to_dir, to), |from_dir, from, to_dir, to| Ok(from_dir.link(from, to_dir, to)?))
    }
}

/// Makes a symbolic link at path to target. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_symlinkat(target: *const c_char, dir: i64, path: *const c_char) -> c_int {
    done(|| {
        // SAFETY: strings of the caller's, by the contract.
        let (target, path) = unsafe { (text(target)?, text(path)?) };
        with_dir(dir, |dir| Ok(dir.symlink(target, path)?)).map(|_| ())
    })
}

/// The target of a symbolic link, as readlinkat(2): without an ending zero, and cut at size bytes. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_readlinkat(
    dir: i64,
    path: *const c_char,
    target: *mut c_char,
    size: usize,
) -> isize {
    run(|| {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?;
        let mut found = with_dir(dir, |dir| Ok(dir.read_link(path)?))?;
        found.truncate(size);
        // SAFETY: room for size bytes, by the contract.
        unsafe { bytes_out(&found, target.cast::<u8>()) }?;
        count_of(found.len())
    })
}

/// Whether the caller may do all that mode says (R_OK, W_OK, X_OK, or F_OK), as access(2). Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_accessat(dir: i64, path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: a string of the caller's, by the contract.
    unsafe {
        at(dir, path, |dir, path| {
            let wanted = u32::try_from(mode).ok().and_then(AccessMode::from_bits);
            let wanted = wanted.ok_or_else(|| invalid(format!("mode {mode} of access")))?;
            match wanted.is_empty() {
                true => Ok(dir.metadata(path).map(|_| ())?),
                false => Ok(dir.access(path, wanted)?),
            }
        })
    }
}

/// As fchmodat(2). Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_fchmodat(dir: i64, path: *const c_char, mode: u32) -> c_int {
    let set = SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() };
    // SAFETY: a string of the caller's, by the contract.
    unsafe { at(dir, path, |dir, path| Ok(dir.set_attributes(path, true, &set)?)) }
}

/// As fchownat(2); (uint32_t)-1 leaves one as it is. flags: 0 or AT_SYMLINK_NOFOLLOW. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_fchownat(
    dir: i64,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: c_int,
) -> c_int {
    let set = owners(uid, gid);
    // SAFETY: a string of the caller's, by the contract.
    unsafe { at(dir, path, |dir, path| Ok(dir.set_attributes(path, follows(flags)?, &set)?)) }
}

/// As utimensat(2): two times, or NULL for now. flags: 0 or AT_SYMLINK_NOFOLLOW. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_utimensat(
    dir: i64,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: a string and times of the caller's, by the contract.
    unsafe { at(dir, path, |dir, path| Ok(dir.set_attributes(path, follows(flags)?, &times_of(times)?)?)) }
}

/// Makes the names of a directory durable: what was created, renamed and removed there before. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_fsyncdir(dir: i64) -> c_int {
    done(|| with_dir(dir, |dir| Ok(dir.commit()?)))
}

/// Space of the file system that a path is on, as statvfs(3) fills it. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_statvfsat(dir: i64, path: *const c_char, space: *mut libc::statvfs) -> c_int {
    done(|| {
        // SAFETY: a string of the caller's and room for the result, by the contract.
        let (path, place) = unsafe { (text(path)?, put(space)?) };
        let found = with_dir(dir, |dir| Ok(dir.statfs(path)?))?;
        // SAFETY: numbers alone, for which zeros are values.
        let mut space: libc::statvfs = unsafe { std::mem::zeroed() };
        (space.f_bsize, space.f_frsize) = (found.block_size, found.block_size);
        (space.f_blocks, space.f_bfree, space.f_bavail) =
            (found.blocks, found.blocks_free, found.blocks_available);
        (space.f_files, space.f_ffree, space.f_favail) = (found.files, found.files_free, found.files_free);
        space.f_namemax = found.name_size_max.into();
        *place = space;
        Ok(())
    })
}

/// The value of an extended attribute, as getxattr(2): its size, and the value where size is large enough; with size 0 only its size.
/// Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_getxattrat(
    dir: i64,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> isize {
    run(|| {
        // SAFETY: strings of the caller's, by the contract.
        let (path, name) = unsafe { (text(path)?, attribute(name)?) };
        let found = with_dir(dir, |dir| Ok(dir.xattr(path, name)?))?;
        // SAFETY: room for size bytes, by the contract.
        unsafe { whole_out(&found, value.cast(), size) }
    })
}

/// Sets an extended attribute; flags: 0, XATTR_CREATE or XATTR_REPLACE. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_setxattrat(
    dir: i64,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    done(|| {
        // SAFETY: strings and bytes of the caller's, by the contract.
        let (path, name, value) =
            unsafe { (text(path)?, attribute(name)?, slice(value.cast::<u8>(), size)?) };
        with_dir(dir, |dir| Ok(dir.set_xattr(path, name, value, set_mode_of(flags)?)?))
    })
}

pub(crate) fn set_mode_of(flags: c_int) -> Result<XattrSetMode> {
    match flags {
        0 => Ok(XattrSetMode::Any),
        libc::XATTR_CREATE => Ok(XattrSetMode::Create),
        libc::XATTR_REPLACE => Ok(XattrSetMode::Replace),
        other => Err(invalid(format!("flags {other:#x}: 0, XATTR_CREATE or XATTR_REPLACE"))),
    }
}

/// The names of the extended attributes, each with an ending zero, as listxattr(2). Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_listxattrat(
    dir: i64,
    path: *const c_char,
    names: *mut c_char,
    size: usize,
) -> isize {
    run(|| {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?;
        let all = names_of(with_dir(dir, |dir| Ok(dir.xattrs(path)?))?);
        // SAFETY: room for size bytes, by the contract.
        unsafe { whole_out(&all, names.cast(), size) }
    })
}

/// Names, each with an ending zero.
pub(crate) fn names_of(names: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect()
}

/// Removes an extended attribute. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_removexattrat(dir: i64, path: *const c_char, name: *const c_char) -> c_int {
    done(|| {
        // SAFETY: strings of the caller's, by the contract.
        let (path, name) = unsafe { (text(path)?, attribute(name)?) };
        with_dir(dir, |dir| Ok(dir.remove_xattr(path, name)?))
    })
}

/// # Safety
/// As of [`text`].
pub(crate) unsafe fn attribute<'a>(name: *const c_char) -> Result<&'a str> {
    // SAFETY: promised by the caller.
    let name = unsafe { text(name) }?;
    name.to_str().ok_or_else(|| invalid("the name of an extended attribute is UTF-8"))
}

/// # Safety
/// There is room for size bytes.
pub(crate) unsafe fn whole_out(from: &[u8], to: *mut u8, size: usize) -> Result<isize> {
    if size != 0 && from.len() > size {
        return Err(Failure::Caller(libc::ERANGE, format!("{} bytes are needed", from.len())));
    }
    if size != 0 {
        // SAFETY: promised by the caller.
        unsafe { bytes_out(from, to) }?;
    }
    count_of(from.len())
}

/// # Safety
/// The path is null or a string.
unsafe fn at<T>(
    dir: i64,
    path: *const c_char,
    body: impl FnOnce(&dafs_client::Dir, &OsStr) -> Result<T>,
) -> c_int {
    done(|| {
        // SAFETY: promised by the caller.
        let path = unsafe { text(path) }?;
        with_dir(dir, |dir| body(dir, path)).map(|_| ())
    })
}

/// # Safety
/// The paths are null or strings.
unsafe fn two<T>(
    (from_dir, from): (i64, *const c_char),
    (to_dir, to): (i64, *const c_char),
    body: impl FnOnce(&dafs_client::Dir, &OsStr, &dafs_client::Dir, &OsStr) -> Result<T>,
) -> c_int {
    done(|| {
        // SAFETY: promised by the caller.
        let (from, to): (&OsStr, &OsStr) = unsafe { (text(from)?, text(to)?) };
        with_dir(from_dir, |from_dir| with_dir(to_dir, |to_dir| body(from_dir, from, to_dir, to))).map(|_| ())
    })
}
