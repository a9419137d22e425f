//! Space of files: reserved, given back, looked for.

use crate::kernel::errno::{Answer, Errno};
use crate::kernel::reply::Fields;
use crate::volume::Volume;

/// Modes of fallocate(2) that are carried out, and what they are made of.
const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE.cast_unsigned();
const PUNCH: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).cast_unsigned();
const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE.cast_unsigned();
const ZERO_INSIDE: u32 = ZERO | KEEP_SIZE;

impl Volume {
    /// What moves data behind the range is refused, as by most file systems.
    pub(super) async fn allocate(&self, file: u64, (offset, len): (u64, u64), mode: u32) -> Answer<()> {
        let open = self.opened_file(file).await?;
        if !matches!(mode, 0 | KEEP_SIZE | PUNCH | ZERO | ZERO_INSIDE) {
            return Err(Errno::NOT_SUPPORTED);
        }
        self.nodes.borrow_mut().changed_here(open.node);
        let keeps_size = matches!(mode, KEEP_SIZE | ZERO_INSIDE);
        // The server reserves nothing behind the end.
        if keeps_size && offset.saturating_add(len) > open.file.submit_metadata().await?.size {
            return Err(Errno::NOT_SUPPORTED);
        }
        if matches!(mode, PUNCH | ZERO | ZERO_INSIDE) {
            open.file.submit_punch_hole(offset, len).await?;
        }
        if mode != PUNCH {
            open.file.submit_allocate(offset, len).await?;
        }
        Ok(())
    }

    pub(super) async fn seek(&self, file: u64, offset: u64, whence: u32) -> Answer<Vec<u8>> {
        let file = self.opened_file(file).await?;
        let found = match whence.cast_signed() {
            libc::SEEK_DATA => file.file.submit_seek_data(offset).await?,
            libc::SEEK_HOLE => file.file.submit_seek_hole(offset).await?,
            _ => return Err(Errno::INVALID),
        };
        Ok(Fields::new().u64(found).into_bytes())
    }
}
