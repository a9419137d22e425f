//! A striped file that is open: its pieces, and how large it is.

use std::sync::Arc;

use dafs_client::{Attributes, Error as ClientError, File, Pending, wait_all};

use crate::error::{Error, Result};
use crate::file::piece::Piece;
use crate::geometry::Geometry;
use crate::layout::{Layout, STRIPED_BIT};

/// A file in pieces.
pub(crate) struct Striped {
    pub(crate) layout: Layout,
    pub(crate) geometry: Geometry,
    pub(crate) metadata_file: Arc<File>,
    pub(crate) pieces: Vec<Piece>,
}

/// What is known of a file's size.
pub(crate) struct Sizes {
    /// Of each piece.
    pub(crate) pieces: Vec<Option<u64>>,
    /// The file is no smaller.
    pub(crate) at_least: u64,
    /// Why that is not all: a piece cannot be asked.
    pub(crate) unknown: Option<Error>,
}

impl Striped {
    /// Does the same to all pieces at once, and says what became of each. Blocks.
    pub(crate) fn each<T: Send + 'static>(
        &self,
        submit: impl Fn(usize, &Arc<File>) -> Option<Pending<std::result::Result<T, ClientError>>>,
    ) -> Vec<Option<Result<T>>> {
        let mut results: Vec<Option<Result<T>>> = Vec::with_capacity(self.pieces.len());
        let mut pendings = Vec::with_capacity(self.pieces.len());
        for (index, piece) in self.pieces.iter().enumerate() {
            results.push(match piece.file() {
                Ok(file) => {
                    pendings.extend(
                        submit(index, &file).map(|pending| pending.map(move |result| (index, result))),
                    );
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        for (index, result) in wait_all(pendings) {
            results[index] = Some(result.map_err(|error| self.pieces[index].failed_with(error)));
        }
        results
    }

    /// As [`Striped::each`], where all must succeed; the error is the first.
    pub(crate) fn all<T: Send + 'static>(
        &self,
        submit: impl Fn(usize, &Arc<File>) -> Option<Pending<std::result::Result<T, ClientError>>>,
    ) -> Result<Vec<T>> {
        self.each(submit).into_iter().flatten().collect()
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let mut sizes = Sizes { pieces: Vec::new(), at_least: 0, unknown: None };
        for (index, asked) in self.each(|_, file| Some(file.submit_metadata())).into_iter().enumerate() {
            let end = asked.transpose().and_then(|attributes| self.end_of(index, attributes.as_ref()));
            match end {
                Ok((size, end)) => {
                    sizes.pieces.push(Some(size));
                    sizes.at_least = sizes.at_least.max(end);
                }
                Err(error) => {
                    sizes.pieces.push(None);
                    sizes.unknown.get_or_insert(error);
                }
            }
        }
        sizes
    }

    /// The size of a piece, and where it ends in the file.
    fn end_of(&self, index: usize, attributes: Option<&Attributes>) -> Result<(u64, u64)> {
        let size = attributes.map_or(0, |attributes| attributes.size);
        match self.geometry.end(index, size) {
            Some(end) => Ok((size, end)),
            None => Err(self.pieces[index]
                .wrong(format!("it says that its piece has {size} bytes, which no file has"))),
        }
    }

    /// The size of the file. It is an error where a piece cannot be asked.
    pub(crate) fn size(&self) -> Result<u64> {
        let sizes = self.sizes();
        sizes.unknown.map_or(Ok(sizes.at_least), Err)
    }

    /// The attributes of the file: names, owner and mode are those of the metadata file, size, space and times those of the pieces.
    pub(crate) fn metadata(&self) -> Result<Attributes> {
        let mut own = self.metadata_file.metadata()?;
        let pieces = self.all(|_, file| Some(file.submit_metadata()))?;
        for (index, piece) in pieces.iter().enumerate() {
            let (_, end) = self.end_of(index, Some(piece))?;
            own.size = own.size.max(end);
            own.allocated = own.allocated.saturating_add(piece.allocated);
            own.mtime = own.mtime.max(piece.mtime);
            own.ctime = own.ctime.max(piece.ctime);
            own.atime = own.atime.max(piece.atime);
            own.change = own.change.wrapping_add(piece.change);
        }
        own.mode &= !STRIPED_BIT;
        Ok(own)
    }
}
