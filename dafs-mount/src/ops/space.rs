//! Space of files: reserved, given back, looked for.

use crate::kernel::errno::{Answer, Errno};
use crate::kernel::reply::Fields;
use crate::volume::Volume;

impl Volume {
    pub(super) async fn allocate(&self, file: u64, (offset, len): (u64, u64), mode: u32) -> Answer<()> {
        const PUNCH: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).cast_unsigned();
        let open = self.open.file(file)?;
        self.nodes.borrow_mut().changed_here(open.node);
        match mode {
            0 => Ok(open.file.submit_allocate(offset, len).await?),
            PUNCH => Ok(open.file.submit_punch_hole(offset, len).await?),
            _ => Err(Errno::NOT_SUPPORTED),
        }
    }

    pub(super) async fn seek(&self, file: u64, offset: u64, whence: u32) -> Answer<Vec<u8>> {
        let file = self.open.file(file)?;
        let found = match whence.cast_signed() {
            libc::SEEK_DATA => file.file.submit_seek_data(offset).await?,
            libc::SEEK_HOLE => file.file.submit_seek_hole(offset).await?,
            _ => return Err(Errno::INVALID),
        };
        Ok(Fields::new().u64(found).into_bytes())
    }
}
