use std::collections::VecDeque;
use std::ops::Range;

use crate::api::file::File;
use crate::error::{Error, Result};

/// How often lost data is written again before the writer gives up.
const ROUNDS_MAX: u32 = 8;

/// Writes that survive a restart of the server: keeps a copy of what is not yet committed, and writes again what the server lost.
///
/// The copies are bounded: when they exceed the limit, the writer commits by itself. Call [`DurableWriter::commit`]
/// at the end; what is dropped uncommitted is as unstable as any write.
#[derive(Debug)]
pub struct DurableWriter<'a> {
    file: &'a File,
    held: VecDeque<(u64, Vec<u8>)>,
    held_size: usize,
    limit: usize,
    /// What is held is to be written again before it is committed: what of it was lost has been told.
    all_lost: bool,
}

impl<'a> DurableWriter<'a> {
    /// Writes to `file`, holding copies of at most `limit` bytes (and of one write).
    pub fn new(file: &'a File, limit: usize) -> Self {
        Self { file, held: VecDeque::new(), held_size: 0, limit, all_lost: false }
    }

    /// Writes all of `data` at `offset`. Blocks; commits first when too much is held. What is refused is not held, and not written again.
    pub fn write_all_at(&mut self, data: &[u8], offset: u64) -> Result<()> {
        if self.held_size + data.len() > self.limit && !self.held.is_empty() {
            self.commit()?;
        }
        let written = self.file.write_all_at(data, offset);
        let is_refused =
            matches!(written, Err(Error::Invalid(_) | Error::Status { .. } | Error::Stale { .. }));
        if !is_refused {
            // Also what may be written or not, in a session that goes on.
            self.held.push_back((offset, data.to_vec()));
            self.held_size += data.len();
        }
        written
    }

    /// Makes everything durable, writing again what was lost. Blocks. Fails with [`Error::WritesLost`] where the size or attributes of the
    /// file were changed too, since its last commit: set them again, and call this again, which writes all that is held.
    pub fn commit(&mut self) -> Result<()> {
        let mut rounds = 0;
        loop {
            if self.all_lost {
                self.write_again(std::slice::from_ref(&(0..u64::MAX)))?;
                self.all_lost = false;
            }
            match self.file.commit() {
                Ok(()) => {
                    self.held.clear();
                    self.held_size = 0;
                    return Ok(());
                }
                // What size and attributes were to be, the caller knows.
                Err(Error::WritesLost { ranges, attributes: false, .. }) if rounds < ROUNDS_MAX => {
                    rounds += 1;
                    tracing::warn!(rounds, "the server lost uncommitted writes; writing them again");
                    // Told of once: where this is not all written again now, the next commit has to.
                    self.all_lost = true;
                    self.write_again(&ranges)?;
                    self.all_lost = false;
                }
                Err(error) => {
                    self.all_lost = matches!(error, Error::WritesLost { .. });
                    return Err(error);
                }
            }
        }
    }

    /// Writes again, in the order of writing, what touches a lost range: later writes over earlier ones win again.
    fn write_again(&self, lost: &[Range<u64>]) -> Result<()> {
        for (offset, data) in &self.held {
            let end = offset.saturating_add(data.len() as u64);
            if lost.iter().any(|range| range.start < end && *offset < range.end) {
                self.file.write_all_at(data, *offset)?;
            }
        }
        Ok(())
    }
}
