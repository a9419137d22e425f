//! Attributes that a file is expected to have, compared by the server.

use std::path::Path;

use dafs_proto::wire::{Attributes, FileIdentity, Opcode, Timestamp, VerifyFlags, VerifyMask, VerifyRequest};

use crate::api::dir::{Dir, clean, forms};
use crate::api::file::File;
use crate::api::reply::done;
use crate::driver::pending::{Call, Pending};
use crate::error::{Error, Result};
use crate::op::named::Named;

/// Attributes that a file is expected to have: what is set is compared by the server, at the time of the request.
///
/// [`crate::Chain::verify`] shows how to change a file only if nobody else has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    request: VerifyRequest,
}

impl Expected {
    /// Nothing is compared yet; one attribute must be.
    pub fn new() -> Self {
        Self::default()
    }

    /// Expects the very file with these attributes, unchanged in data and attributes: [`Attributes::change`], [`Attributes::file_id`] and
    /// [`Attributes::generation`].
    pub fn unchanged(attributes: &Attributes) -> Self {
        Self::new().change(attributes.change).identity(attributes.identity())
    }

    /// Expects this [`Attributes::change`].
    pub fn change(mut self, change: u64) -> Self {
        self.request.mask |= VerifyMask::CHANGE;
        self.request.change = change;
        self
    }

    /// Expects so many bytes.
    pub fn size(mut self, size: u64) -> Self {
        self.request.mask |= VerifyMask::SIZE;
        self.request.size = size;
        self
    }

    /// Expects this time of the last change of the data, with less than 10⁹ nanoseconds.
    pub fn mtime(mut self, mtime: Timestamp) -> Self {
        self.request.mask |= VerifyMask::MTIME;
        self.request.mtime_seconds = mtime.seconds.cast_unsigned();
        self.request.mtime_nanoseconds = mtime.nanoseconds;
        self
    }

    /// Expects this file and no other.
    pub fn identity(mut self, identity: FileIdentity) -> Self {
        self.request.mask |= VerifyMask::IDENTITY;
        (self.request.file_id, self.request.generation) = (identity.file_id, identity.generation);
        self
    }

    /// The request about a path; with `differ` one attribute at least must be another.
    pub(crate) fn named(&self, path: &Path, follow: bool, differ: bool) -> Result<Named> {
        let mut request = self.request;
        request.flags.set(VerifyFlags::DIFFER, differ);
        request.flags.set(VerifyFlags::FOLLOW, follow);
        if request.mask.is_empty() {
            return Err(Error::Invalid("nothing is expected: set an attribute to compare".into()));
        }
        if request.mtime_nanoseconds >= 1_000_000_000 {
            return Err(Error::Invalid("a time has less than 1,000,000,000 nanoseconds".into()));
        }
        Ok(Named::of(&request.bytes()).about(clean(path)?))
    }
}

impl Dir {
    forms! {
        /// Checks that what a path leads to has the expected attributes; `follow` follows a symbolic link at the end. Fails with the status
        /// `NOT_SAME` when one differs.
        verify, submit_verify, verify_call, (&self, path: impl AsRef<Path>, follow: bool, expected: &Expected) -> () {
            Ok(Call::plain(Some(&self.node), Opcode::Verify, expected.named(path.as_ref(), follow, false)?, done))
        }

        /// Checks that one at least of the expected attributes is another now. Fails with the status `SAME` when none is.
        verify_differs, submit_verify_differs, verify_differs_call,
        (&self, path: impl AsRef<Path>, follow: bool, expected: &Expected) -> () {
            Ok(Call::plain(Some(&self.node), Opcode::Verify, expected.named(path.as_ref(), follow, true)?, done))
        }
    }
}

impl File {
    forms! {
        /// Checks that the file has the expected attributes. Fails with the status `NOT_SAME` when one differs.
        verify, submit_verify, verify_call, (&self, expected: &Expected) -> () {
            Ok(Call::plain(Some(&self.node), Opcode::Verify, expected.named(Path::new(""), true, false)?, done))
        }

        /// Checks that one at least of the expected attributes is another now. Fails with the status `SAME` when none is.
        verify_differs, submit_verify_differs, verify_differs_call, (&self, expected: &Expected) -> () {
            Ok(Call::plain(Some(&self.node), Opcode::Verify, expected.named(Path::new(""), true, true)?, done))
        }
    }
}
