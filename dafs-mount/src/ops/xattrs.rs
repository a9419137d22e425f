//! Extended attributes, and access control lists, which are two of them.

use dafs_client::{Error, Status, XattrSetMode};

use crate::kernel::errno::{Answer, Errno};
use crate::kernel::reply::Fields;
use crate::kernel::request::{Header, Name};
use crate::volume::Volume;

/// Flags of setxattr(2).
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

/// What names of access control lists begin with.
const ACCESS_LISTS: &str = "system.posix_acl_";

impl Volume {
    pub(super) async fn xattr(&self, asks: &Header, name: &Name, size: u32) -> Answer<Vec<u8>> {
        let name = text(name)?;
        let value = match self.directory(asks).await?.submit_xattr("", name).await {
            // To look for one that is root's alone is no mistake: programs do so with each file.
            Err(Error::Status { status: Status::PERMISSION, .. }) => return Err(Errno::NO_DATA),
            // The kernel looks for lists before it lets anybody in, and takes an error for his.
            Err(Error::Status { status: Status::NOT_SUPPORTED, .. }) if name.starts_with(ACCESS_LISTS) => {
                return Err(Errno::NO_DATA);
            }
            value => value?,
        };
        sized(value, size)
    }

    pub(super) async fn xattrs(&self, asks: &Header, size: u32) -> Answer<Vec<u8>> {
        let names = self.directory(asks).await?.submit_xattrs("").await?;
        let list = names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
        sized(list, size)
    }

    pub(super) async fn set_xattr(&self, asks: &Header, name: &Name, value: &[u8], flags: u32) -> Answer<()> {
        let mode = match flags & (CREATE | REPLACE) {
            CREATE => XattrSetMode::Create,
            REPLACE => XattrSetMode::Replace,
            _ => XattrSetMode::Any,
        };
        self.directory(asks).await?.submit_set_xattr("", text(name)?, value, mode).await?;
        self.nodes.borrow_mut().forget_default_list(asks.node);
        self.ahead.forget(asks.node);
        Ok(())
    }

    pub(super) async fn remove_xattr(&self, asks: &Header, name: &Name) -> Answer<()> {
        self.directory(asks).await?.submit_remove_xattr("", text(name)?).await?;
        self.nodes.borrow_mut().forget_default_list(asks.node);
        self.ahead.forget(asks.node);
        Ok(())
    }
}

/// A name as the protocol carries it.
fn text(name: &Name) -> Answer<&str> {
    std::str::from_utf8(name).map_err(|_| Errno::NOT_SUPPORTED)
}

/// A value for a program that has room for `size` bytes; with 0 it asks how much it needs.
fn sized(value: Vec<u8>, size: u32) -> Answer<Vec<u8>> {
    let len = u32::try_from(value.len()).map_err(|_| Errno::OUT_OF_RANGE)?;
    match size {
        0 => Ok(Fields::new().u32(len).u32(0).into_bytes()),
        size if size < len => Err(Errno::OUT_OF_RANGE),
        _ => Ok(value),
    }
}
