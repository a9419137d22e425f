//! Extended attributes of open files.

use dafs_proto::wire::{Opcode, XattrSetMode};

use super::File;
use crate::api::dir::{forms, xattr_names, xattr_request};
use crate::api::reply::{bytes, done};
use crate::driver::pending::{Call, Pending};
use crate::error::Result;

impl File {
    forms! {
        /// The value of an extended attribute.
        xattr, submit_xattr, xattr_call, (&self, name: &str) -> Vec<u8> {
            let named = xattr_request("".as_ref(), name, &[], 0)?;
            Ok(Call::plain(Some(&self.node), Opcode::XattrRead, named, bytes))
        }

        /// Sets an extended attribute. Its value must fit a message ([`crate::Agreed::write_inline_max`] or a little more).
        set_xattr, submit_set_xattr, set_xattr_call,
        (&self, name: &str, value: &[u8], mode: XattrSetMode) -> () {
            let named = xattr_request("".as_ref(), name, value, mode as u32)?;
            Ok(Call::plain(Some(&self.node), Opcode::XattrWrite, named, done))
        }

        /// Names of the extended attributes.
        xattrs, submit_xattrs, xattrs_call, (&self) -> Vec<Vec<u8>> {
            let named = xattr_request("".as_ref(), "", &[], 0)?;
            Ok(Call::plain(Some(&self.node), Opcode::XattrList, named, xattr_names))
        }

        /// Removes an extended attribute.
        remove_xattr, submit_remove_xattr, remove_xattr_call, (&self, name: &str) -> () {
            let named = xattr_request("".as_ref(), name, &[], 0)?;
            Ok(Call::plain(Some(&self.node), Opcode::XattrRemove, named, done))
        }
    }
}
