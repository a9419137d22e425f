//! `std::io` for files: a position that reads and writes move along.

use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};

use crate::api::file::File;
use crate::error::Error;

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position();
        let count = self.read_at(buffer, *position)?;
        *position += count as u64;
        Ok(count)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut position = self.position();
        let count = self.read_vectored_at(buffers, *position)?;
        *position += count as u64;
        Ok(count)
    }
}

/// Writes at the position, or at the end where the file was opened for appending. `flush` does nothing: data is not
/// held back; see [`File::commit`] for durability.
impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut position = self.position();
        if self.appends {
            // Larger appends are not atomic; std's helpers write the rest.
            let (max, inline_max) = {
                let terms = &self.owner.shared.lock().terms;
                (terms.append_size_max(), terms.write_inline_max as usize)
            };
            let data = &data[..data.len().min(max)];
            let (appended, count) = match self.append(data) {
                // By the way that it would have to take, less goes in one request.
                Err(Error::Invalid(_)) if data.len() > inline_max => {
                    (self.append(&data[..inline_max]), inline_max)
                }
                appended => (appended, data.len()),
            };
            *position = appended?.saturating_add(count as u64);
            return Ok(count);
        }
        let count = self.write_at(data, *position)?;
        *position += count as u64;
        Ok(count)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.appends {
            return match buffers.iter().find(|buffer| !buffer.is_empty()) {
                Some(buffer) => self.write(buffer),
                None => Ok(0),
            };
        }
        let mut position = self.position();
        let count = self.write_vectored_at(buffers, *position)?;
        *position += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    /// Moves the position. [`SeekFrom::End`] asks the server for the size.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position();
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.size.checked_add_signed(by),
        };
        *position = target.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "seek to before the beginning or beyond the end of any file",
            )
        })?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
