//! libdafs, loaded at run time as a C program loads it, so that what is measured is what such a program gets.
#![allow(unsafe_code, reason = "calls into a C library loaded at run time")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use libloading::Library;

/// The functions used, of one loaded library.
struct Api {
    dafs_error: unsafe extern "C" fn() -> *const c_char,
    dafs_connect: unsafe extern "C" fn(*const c_char, *const c_void) -> i64,
    dafs_disconnect: unsafe extern "C" fn(i64) -> c_int,
    dafs_mount: unsafe extern "C" fn(i64, *const c_char) -> i64,
    dafs_openat: unsafe extern "C" fn(i64, *const c_char, c_int, u32) -> i64,
    dafs_close: unsafe extern "C" fn(i64) -> c_int,
    dafs_pread: unsafe extern "C" fn(i64, *mut c_void, usize, i64) -> isize,
    dafs_pwrite: unsafe extern "C" fn(i64, *const c_void, usize, i64) -> isize,
    // Last, so that the functions above never outlive it.
    _library: Library,
}

/// A session by libdafs with the settings that a program gets, and a file open over it.
pub(crate) struct CFile {
    api: Api,
    session: i64,
    root: i64,
    file: i64,
}

impl Api {
    fn load(path: &Path) -> anyhow::Result<Self> {
        // SAFETY: libdafs runs no code of consequence when loaded.
        let library = unsafe { Library::new(path) }.with_context(|| {
            format!(
                "cannot load {}; install it (cargo xtask c install), and name it by --library",
                path.display()
            )
        })?;
        Self::bind(library).with_context(|| format!("{} lacks a function", path.display()))
    }

    fn bind(library: Library) -> Result<Self, libloading::Error> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the type of the field is the function's in dafs.h.
                *unsafe { library.get($name) }?
            };
        }
        Ok(Self {
            dafs_error: symbol!(b"dafs_error\0"),
            dafs_connect: symbol!(b"dafs_connect\0"),
            dafs_disconnect: symbol!(b"dafs_disconnect\0"),
            dafs_mount: symbol!(b"dafs_mount\0"),
            dafs_openat: symbol!(b"dafs_openat\0"),
            dafs_close: symbol!(b"dafs_close\0"),
            dafs_pread: symbol!(b"dafs_pread\0"),
            dafs_pwrite: symbol!(b"dafs_pwrite\0"),
            _library: library,
        })
    }

    /// What a call returned, if it is no error.
    fn checked(&self, value: i64) -> anyhow::Result<i64> {
        // SAFETY: never null, and valid until this thread's next error.
        let words = || unsafe { CStr::from_ptr((self.dafs_error)()) }.to_string_lossy().into_owned();
        if value < 0 { Err(anyhow!(words())) } else { Ok(value) }
    }
}

impl CFile {
    /// Opens a file of an export of a server, by the library at `path`.
    pub(crate) fn open(path: &Path, url: &str, export: &str, file: &str) -> anyhow::Result<Self> {
        let api = Api::load(path)?;
        let (url, export, name) = (CString::new(url)?, CString::new(export)?, CString::new(file)?);
        let mut opened = Self { api, session: 0, root: 0, file: 0 };
        // SAFETY: strings that live as long as the calls.
        unsafe {
            let api = &opened.api;
            opened.session = api.checked((api.dafs_connect)(url.as_ptr(), std::ptr::null()))?;
            opened.root = api.checked((api.dafs_mount)(opened.session, export.as_ptr()))?;
            opened.file = api.checked((api.dafs_openat)(opened.root, name.as_ptr(), libc::O_RDWR, 0))?;
        }
        Ok(opened)
    }

    /// Reads all of a buffer at the beginning of the file.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> anyhow::Result<()> {
        // SAFETY: a buffer of that size, for the time of the call.
        let count = unsafe { (self.api.dafs_pread)(self.file, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        self.moved(count, buffer.len())
    }

    /// Writes all of a buffer at the beginning of the file.
    pub(crate) fn write(&self, buffer: &[u8]) -> anyhow::Result<()> {
        // SAFETY: a buffer of that size, for the time of the call.
        let count = unsafe { (self.api.dafs_pwrite)(self.file, buffer.as_ptr().cast(), buffer.len(), 0) };
        self.moved(count, buffer.len())
    }

    fn moved(&self, count: isize, wanted: usize) -> anyhow::Result<()> {
        let count = self.api.checked(count as i64)?;
        ensure!(usize::try_from(count) == Ok(wanted), "{count} bytes were moved, not {wanted}");
        Ok(())
    }
}

impl Drop for CFile {
    fn drop(&mut self) {
        // SAFETY: handles, or 0, which is none.
        unsafe {
            (self.api.dafs_close)(self.file);
            (self.api.dafs_close)(self.root);
            (self.api.dafs_disconnect)(self.session);
        }
    }
}
