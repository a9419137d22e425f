//! Open files: transfers here, what concerns the file as a whole in `whole`, views in `view`, nonblocking transfers in `pending`.

pub(crate) mod flight;
pub(crate) mod pending;
pub(crate) mod piece;
pub(crate) mod raw;
pub(crate) mod striped;
pub(crate) mod transfer;
pub(crate) mod view;
mod whole;

use std::sync::Arc;

use dafs_client::{Extent, File as PlainFile, IoBuffer, ListRead};

use crate::error::{Error, Result};
use crate::file::flight::Memory;
use crate::file::pending::PendingTransfer;
use crate::file::striped::Striped;
use crate::layout::Layout;

/// An open file, striped or not. Dropping it closes it, without waiting. Clones are cheap, and are the same open file.
///
/// Methods may be called from any thread, and block, unless they say otherwise. A transfer that meets a server that is not there moves what
/// lies before, and says how much that is; where that is nothing it fails with [`Error::Server`], which names the server and what it has.
#[derive(Clone)]
pub struct File {
    pub(crate) kind: Kind,
}

#[derive(Clone)]
pub(crate) enum Kind {
    Plain(Arc<PlainFile>),
    Striped(Arc<Striped>),
}

impl File {
    pub(crate) fn plain(file: PlainFile) -> Self {
        Self { kind: Kind::Plain(Arc::new(file)) }
    }

    /// How it is striped; `None` where it is not.
    pub fn layout(&self) -> Option<&Layout> {
        match &self.kind {
            Kind::Plain(_) => None,
            Kind::Striped(striped) => Some(&striped.layout),
        }
    }

    /// The file on the metadata server: all of it where the file is not striped. Its locks and extended attributes are those of the file.
    pub fn metadata_file(&self) -> &Arc<PlainFile> {
        match &self.kind {
            Kind::Plain(file) => file,
            Kind::Striped(striped) => &striped.metadata_file,
        }
    }

    /// Reads at `offset` into a slice and returns the number of bytes: fewer than the slice holds only at the end of the file, or where a
    /// server is not there.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.read_at(buffer, offset)?),
            Kind::Striped(striped) => striped.read_at(buffer, offset),
        }
    }

    /// Reads exactly as many bytes as the slice holds, or fails with why it cannot.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> Result<()> {
        while !buffer.is_empty() {
            let count = self.read_at(buffer, offset)?;
            if count == 0 {
                let (path, missing) = (self.metadata_file().path().to_vec(), buffer.len() as u64);
                return Err(dafs_client::Error::UnexpectedEnd { path, missing }.into());
            }
            buffer = &mut buffer[count..];
            offset += count as u64;
        }
        Ok(())
    }

    /// Writes a slice at `offset` and returns the number of bytes: fewer than the slice holds only when an error was met behind them.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.write_at(data, offset)?),
            Kind::Striped(striped) => striped.write_at(data, offset),
        }
    }

    /// Writes all of a slice at `offset`, or fails with the reason. A part may then have been written.
    pub fn write_all_at(&self, mut data: &[u8], mut offset: u64) -> Result<()> {
        while !data.is_empty() {
            let count = self.write_at(data, offset)?;
            if count == 0 {
                return Err(Error::Invalid("a server wrote nothing and gave no reason".to_owned()));
            }
            data = &data[count..];
            offset += count as u64;
        }
        Ok(())
    }

    /// Reads a list of extents into a slice, one after the other: as [`PlainFile::read_list`].
    pub fn read_list(&self, extents: &[Extent], buffer: &mut [u8]) -> Result<ListRead> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.read_list(extents, &mut [std::io::IoSliceMut::new(buffer)])?),
            Kind::Striped(striped) => striped.read_list(extents, Memory::to_fill(buffer)),
        }
    }

    /// Writes a slice to a list of extents, one after the other: as [`PlainFile::write_list`].
    pub fn write_list(&self, extents: &[Extent], data: &[u8]) -> Result<usize> {
        match &self.kind {
            Kind::Plain(file) => Ok(file.write_list(extents, &[std::io::IoSlice::new(data)])?),
            Kind::Striped(striped) => striped.write_list(extents, Memory::to_send(data)),
        }
    }

    /// Nonblocking form of [`File::read_at`]: the operation owns the buffer until it is collected. All of its `len` bytes take part.
    pub fn submit_read_at<B>(&self, buffer: B, offset: u64) -> PendingTransfer<B>
    where
        B: IoBuffer + std::ops::DerefMut<Target = [u8]>,
    {
        PendingTransfer::read(self, buffer, offset)
    }

    /// Nonblocking form of [`File::write_at`]: the operation owns the buffer until it is collected.
    pub fn submit_write_at<B>(&self, buffer: B, offset: u64) -> PendingTransfer<B>
    where
        B: IoBuffer + std::ops::DerefMut<Target = [u8]>,
    {
        PendingTransfer::write(self, buffer, offset)
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pieces = self.layout().map_or(1, |layout| layout.servers.len());
        write!(f, "{:?} in {pieces} piece(s)", self.metadata_file())
    }
}
