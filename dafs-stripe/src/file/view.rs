//! Views of striped files: walked here, and moved as lists.

use dafs_client::{Datatype, Extent, ListRead};
use dafs_proto::view::View as Compiled;

use crate::error::{Error, Result};
use crate::file::File;

/// Extents that go in one list.
const EXTENTS_MAX: usize = 16_384;

/// What a description shows of a file, tile after tile: as [`dafs_client::View`], for files over several servers.
#[derive(Clone, Debug)]
pub struct View {
    compiled: Compiled,
}

impl View {
    /// Checks a description. Asks no server.
    pub fn new(datatype: &Datatype) -> Result<Self> {
        let compiled = Compiled::new(datatype).map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(Self { compiled })
    }

    /// Bytes of data in one tile.
    pub fn size(&self) -> u64 {
        self.compiled.size()
    }

    /// The lists that `len` bytes from `place` on are, and where each begins in the memory.
    fn lists(
        &self,
        displacement: u64,
        place: u64,
        len: usize,
    ) -> Result<impl Iterator<Item = (usize, Vec<Extent>)>> {
        let invalid = |error: dafs_client::ViewError| Error::Invalid(error.to_string());
        self.compiled.check(displacement, place, len as u64).map_err(invalid)?;
        let mut segments = self.compiled.segments(displacement, place, len as u64);
        let mut at = 0;
        Ok(std::iter::from_fn(move || {
            let extents: Vec<Extent> = segments.by_ref().take(EXTENTS_MAX).collect();
            let begin = at;
            at +=
                extents.iter().map(|extent| usize::try_from(extent.len).unwrap_or(usize::MAX)).sum::<usize>();
            (!extents.is_empty()).then_some((begin, extents))
        }))
    }
}

impl File {
    /// Reads what a view shows whose first tile begins at `displacement`, from byte `place` of its data on, into a slice.
    pub fn read_view(
        &self,
        view: &View,
        displacement: u64,
        place: u64,
        buffer: &mut [u8],
    ) -> Result<ListRead> {
        let mut read = ListRead { count: 0, end: None };
        for (begin, extents) in view.lists(displacement, place, buffer.len())? {
            let len: u64 = extents.iter().map(|extent| extent.len).sum();
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let list = self.read_list(&extents, &mut buffer[begin..begin + len])?;
            // What lies behind a gap is read too: the end of the file may come early in a view that goes back and forth.
            if read.count == begin {
                read.count += list.count;
            }
            read.end = read.end.or(list.end);
        }
        Ok(read)
    }

    /// Writes a slice to what a view shows: as [`File::read_view`]. Returns the bytes written without a gap from the beginning.
    pub fn write_view(&self, view: &View, displacement: u64, place: u64, data: &[u8]) -> Result<usize> {
        let mut count = 0;
        for (begin, extents) in view.lists(displacement, place, data.len())? {
            let len: u64 = extents.iter().map(|extent| extent.len).sum();
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            count += self.write_list(&extents, &data[begin..begin + len])?;
            if count < begin + len {
                break;
            }
        }
        Ok(count)
    }
}
