//! Files whose data lies on other servers: how a program that cannot stripe knows them ([STRIPE-18] of `spec/protocol/striping.md`).

use dafs_proto::wire::{Attributes, FileKind};

/// The extended attribute of a file that has its layout.
pub const LAYOUT_XATTR: &str = "user.dafs.layout";

/// The mode bit of files that have a layout.
pub const STRIPED_BIT: u32 = 0o1000;

/// Whether a file with these attributes may be striped; one that has [`LAYOUT_XATTR`] then is. It looks empty, its data is in pieces on
/// other servers, and nobody would see what is written to it: such a file is opened by the crate `dafs-stripe`.
pub fn may_be_striped(attributes: &Attributes) -> bool {
    attributes.kind == FileKind::File && attributes.mode & STRIPED_BIT != 0
}
