//! The types and numbers of the header.
#![allow(non_camel_case_types, missing_docs, reason = "names of C; fields say what they are")]

use std::ffi::{c_char, c_int, c_void};

use crate::error::Class;
use crate::file::AccessModeBits;

/// Changes when this interface does: compare with adio_dafs_abi_version().
pub const ADIO_DAFS_ABI_VERSION: c_int = 5;

/// Room for any ticket, bytes.
pub const ADIO_DAFS_TICKET_SIZE_MAX: usize = 16384;

/// Room for all counters.
pub const ADIO_DAFS_COUNTERS_MAX: usize = 64;

/// How a file is opened; the numbers are those of ROMIO's and Open MPI's MPI_MODE_*.
pub const ADIO_DAFS_CREATE: c_int = 1;
pub const ADIO_DAFS_RDONLY: c_int = 2;
pub const ADIO_DAFS_WRONLY: c_int = 4;
pub const ADIO_DAFS_RDWR: c_int = 8;
pub const ADIO_DAFS_DELETE_ON_CLOSE: c_int = 16;
pub const ADIO_DAFS_UNIQUE_OPEN: c_int = 32;
pub const ADIO_DAFS_EXCL: c_int = 64;
pub const ADIO_DAFS_APPEND: c_int = 128;
pub const ADIO_DAFS_SEQUENTIAL: c_int = 256;

/// From the file to memory.
pub const ADIO_DAFS_READ: c_int = 0;
/// From memory to the file.
pub const ADIO_DAFS_WRITE: c_int = 1;

/// In a collective call the processes exchanged data; or each moved its own.
pub const ADIO_DAFS_EXCHANGED: c_int = 0;
pub const ADIO_DAFS_ALONE: c_int = 1;

const _: () = assert!(
    ADIO_DAFS_CREATE == AccessModeBits::CREATE
        && ADIO_DAFS_RDONLY == AccessModeBits::RDONLY
        && ADIO_DAFS_WRONLY == AccessModeBits::WRONLY
        && ADIO_DAFS_RDWR == AccessModeBits::RDWR
        && ADIO_DAFS_DELETE_ON_CLOSE == AccessModeBits::DELETE_ON_CLOSE
        && ADIO_DAFS_UNIQUE_OPEN == AccessModeBits::UNIQUE_OPEN
        && ADIO_DAFS_EXCL == AccessModeBits::EXCL
        && ADIO_DAFS_APPEND == AccessModeBits::APPEND
        && ADIO_DAFS_SEQUENTIAL == AccessModeBits::SEQUENTIAL
);

/// Outcomes. Each error has an MPI error class of the same name.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum adio_dafs_status {
    ADIO_DAFS_OK = 0,
    ADIO_DAFS_ERR_ARG = 1,
    ADIO_DAFS_ERR_AMODE = 2,
    ADIO_DAFS_ERR_NO_SUCH_FILE = 3,
    ADIO_DAFS_ERR_FILE_EXISTS = 4,
    ADIO_DAFS_ERR_BAD_FILE = 5,
    ADIO_DAFS_ERR_ACCESS = 6,
    ADIO_DAFS_ERR_READ_ONLY = 7,
    ADIO_DAFS_ERR_NO_SPACE = 8,
    ADIO_DAFS_ERR_QUOTA = 9,
    ADIO_DAFS_ERR_FILE_IN_USE = 10,
    ADIO_DAFS_ERR_NO_MEMORY = 11,
    ADIO_DAFS_ERR_UNSUPPORTED = 12,
    ADIO_DAFS_ERR_IO = 13,
    ADIO_DAFS_ERR_INTERNAL = 14,
}

impl From<Class> for adio_dafs_status {
    fn from(class: Class) -> Self {
        match class {
            Class::Argument => Self::ADIO_DAFS_ERR_ARG,
            Class::AccessMode => Self::ADIO_DAFS_ERR_AMODE,
            Class::NoSuchFile => Self::ADIO_DAFS_ERR_NO_SUCH_FILE,
            Class::FileExists => Self::ADIO_DAFS_ERR_FILE_EXISTS,
            Class::BadFile => Self::ADIO_DAFS_ERR_BAD_FILE,
            Class::Access => Self::ADIO_DAFS_ERR_ACCESS,
            Class::ReadOnly => Self::ADIO_DAFS_ERR_READ_ONLY,
            Class::NoSpace => Self::ADIO_DAFS_ERR_NO_SPACE,
            Class::Quota => Self::ADIO_DAFS_ERR_QUOTA,
            Class::FileInUse => Self::ADIO_DAFS_ERR_FILE_IN_USE,
            Class::NoMemory => Self::ADIO_DAFS_ERR_NO_MEMORY,
            Class::Unsupported => Self::ADIO_DAFS_ERR_UNSUPPORTED,
            Class::Io => Self::ADIO_DAFS_ERR_IO,
            Class::Internal => Self::ADIO_DAFS_ERR_INTERNAL,
        }
    }
}

/// A hint: a key and its value.
#[repr(C)]
pub struct adio_dafs_hint {
    pub key: *const c_char,
    pub value: *const c_char,
}

/// A piece of memory and the extent of the file that it belongs to, of the same length in bytes.
#[repr(C)]
pub struct adio_dafs_segment {
    pub memory: *mut c_void,
    pub offset: u64,
    pub len: u64,
}

/// A flattened datatype: blocks in the order of its typemap, and what lies from one instance to the next, bytes. Blocks may be
/// without bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct adio_dafs_type {
    pub offsets: *const i64,
    pub lens: *const i64,
    pub count: usize,
    pub extent: i64,
}

/// Instances of a type in memory.
#[repr(C)]
pub struct adio_dafs_memory {
    pub base: *mut c_void,
    pub count: u64,
    pub r#type: adio_dafs_type,
}

/// What a process sees of a file: from the displacement on, instances of a type.
#[repr(C)]
pub struct adio_dafs_view {
    pub displacement: u64,
    pub r#type: adio_dafs_type,
}

/// What is to be moved: segments, or, where segments is NULL, memory by a view.
#[repr(C)]
pub struct adio_dafs_transfer {
    /// ADIO_DAFS_READ or ADIO_DAFS_WRITE.
    pub direction: c_int,
    /// It is part of a collective call: counted apart.
    pub collective: c_int,
    pub segments: *const adio_dafs_segment,
    pub segment_count: usize,
    pub memory: *const adio_dafs_memory,
    pub view: *const adio_dafs_view,
    /// Bytes of the view's data before the first that is moved.
    pub position: u64,
}
