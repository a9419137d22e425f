//! The status of a call for C.

use std::ffi::c_int;

use dafs_ffi::{BadPointer, caught, keep_error};

use super::abi::adio_dafs_status;
use crate::error::{Class, Error, Result};

/// Runs the body of a function: its status for C. A panic becomes `ADIO_DAFS_ERR_INTERNAL`.
pub(super) fn guard(body: impl FnOnce() -> Result<()>) -> c_int {
    let result = caught("adio-dafs", body).unwrap_or_else(|words| Err(Error::new(Class::Internal, words)));
    match result {
        Ok(()) => adio_dafs_status::ADIO_DAFS_OK as c_int,
        Err(error) => {
            keep_error(&error.message);
            adio_dafs_status::from(error.class) as c_int
        }
    }
}

pub(super) fn argument(what: impl Into<String>) -> Error {
    Error::new(Class::Argument, what)
}

impl From<BadPointer> for Error {
    fn from(pointer: BadPointer) -> Self {
        argument(pointer.0)
    }
}
