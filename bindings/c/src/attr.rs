//! Attributes beyond those of POSIX, and extended attributes of open files.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::{c_char, c_int, c_void};

use dafs_client::Attributes;
use dafs_ffi::{slice, text};

use crate::abi::dafs_attributes;
use crate::call::{done, run, sized, with_dir, with_file};
use crate::dir::{attribute, follows, names_of, set_mode_of, whole_out};
use crate::file::stat_of;

/// All attributes of a path; flags: 0 or AT_SYMLINK_NOFOLLOW. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_getattrat(
    dir: i64,
    path: *const c_char,
    attributes: *mut dafs_attributes,
    flags: c_int,
) -> c_int {
    done(|| {
        // SAFETY: a string and a struct of the caller's, by the contract.
        let (path, place) = unsafe { (text(path)?, sized(attributes, "DAFS_ATTRIBUTES_INIT")?) };
        let found = with_dir(dir, |dir| match follows(flags)? {
            true => Ok(dir.metadata(path)?),
            false => Ok(dir.symlink_metadata(path)?),
        })?;
        *place = attributes_of(&found, place.size);
        Ok(())
    })
}

/// All attributes of the file. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_fgetattr(file: i64, attributes: *mut dafs_attributes) -> c_int {
    done(|| {
        // SAFETY: a struct of the caller's, by the contract.
        let place = unsafe { sized(attributes, "DAFS_ATTRIBUTES_INIT") }?;
        *place = attributes_of(&with_file(file, |file| Ok(file.metadata()?))?, place.size);
        Ok(())
    })
}

/// As dafs_getxattrat(), of an open file. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_fgetxattr(
    file: i64,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> isize {
    run(|| {
        // SAFETY: a string of the caller's, by the contract.
        let name = unsafe { attribute(name) }?;
        let found = with_file(file, |file| Ok(file.xattr(name)?))?;
        // SAFETY: room for size bytes, by the contract.
        unsafe { whole_out(&found, value.cast(), size) }
    })
}

/// As dafs_setxattrat(), of an open file. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_fsetxattr(
    file: i64,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    done(|| {
        // SAFETY: a string and bytes of the caller's, by the contract.
        let (name, value) = unsafe { (attribute(name)?, slice(value.cast::<u8>(), size)?) };
        with_file(file, |file| Ok(file.set_xattr(name, value, set_mode_of(flags)?)?))
    })
}

/// As dafs_listxattrat(), of an open file. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_flistxattr(file: i64, names: *mut c_char, size: usize) -> isize {
    run(|| {
        let found = names_of(with_file(file, |file| Ok(file.xattrs()?))?);
        // SAFETY: room for size bytes, by the contract.
        unsafe { whole_out(&found, names.cast(), size) }
    })
}

/// As dafs_removexattrat(), of an open file. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_fremovexattr(file: i64, name: *const c_char) -> c_int {
    done(|| {
        // SAFETY: a string of the caller's, by the contract.
        let name = unsafe { attribute(name) }?;
        with_file(file, |file| Ok(file.remove_xattr(name)?))
    })
}

/// As the caller has them, in a struct of the size that he said.
pub(crate) fn attributes_of(of: &Attributes, size: u32) -> dafs_attributes {
    let stat = stat_of(of);
    let time = |seconds, nanoseconds: i64| libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    dafs_attributes {
        size,
        mode: stat.st_mode,
        nlink: of.links,
        uid: of.uid,
        gid: of.gid,
        reserved: 0,
        bytes: of.size,
        allocated: of.allocated,
        ino: of.file_id,
        dev: of.fs_id,
        rdev: of.device,
        generation: of.generation,
        change: of.change,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}
