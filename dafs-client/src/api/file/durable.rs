use std::collections::VecDeque;
use std::ops::Range;

use rangemap::RangeSet;

use crate::api::file::File;
use crate::error::{Error, Result};
use crate::handle::unstable::RANGES_MAX;

/// How often lost data is written again before the writer gives up.
const ROUNDS_MAX: u32 = 8;

/// With so many pieces of a file written and no others, what is lost is told to the byte.
const EXACT_MAX: usize = RANGES_MAX / 2;

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
    /// Lost, and not held: written by others, or before.
    others_lost: RangeSet<u64>,
}

impl<'a> DurableWriter<'a> {
    /// Writes to `file`, holding copies of at most `limit` bytes (and of one write).
    pub fn new(file: &'a File, limit: usize) -> Self {
        Self {
            file,
            held: VecDeque::new(),
            held_size: 0,
            limit,
            all_lost: false,
            others_lost: RangeSet::new(),
        }
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
    /// file were changed too, since its last commit: set them again, and call this again, which writes all that is held. So it does, once
    /// all that is held is durable, where writes by [`File`] itself were lost: it names what is to be written again.
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
                    let ranges: Vec<_> = std::mem::take(&mut self.others_lost).into_iter().collect();
                    let path = self.file.node.path.clone();
                    return match ranges.is_empty() {
                        true => Ok(()),
                        false => Err(Error::WritesLost { path, ranges, attributes: false }),
                    };
                }
                // What size and attributes were to be, the caller knows.
                Err(Error::WritesLost { ranges, attributes: false, .. }) if rounds < ROUNDS_MAX => {
                    rounds += 1;
                    tracing::warn!(rounds, "the server lost uncommitted writes; writing them again");
                    self.others_lost.extend(self.not_held(&ranges));
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

    /// Writes again, in the order of writing, what lies in a lost range: later writes over earlier ones win again. What was not lost may
    /// be of a later one.
    fn write_again(&self, lost: &[Range<u64>]) -> Result<()> {
        for (offset, data) in &self.held {
            for range in lost {
                let from = range.start.max(*offset);
                let to = range.end.min(offset.saturating_add(data.len() as u64));
                let within = |at: u64| usize::try_from(at.saturating_sub(*offset)).unwrap_or(usize::MAX);
                if let Some(piece) = data.get(within(from)..within(to)).filter(|piece| !piece.is_empty()) {
                    self.file.write_all_at(piece, from)?;
                }
            }
        }
        Ok(())
    }

    /// What of these ranges no held write covers. Nothing where so many are held apart that a loss may be told too large.
    fn not_held(&self, lost: &[Range<u64>]) -> RangeSet<u64> {
        let held = self.held.iter().filter(|(_, data)| !data.is_empty());
        let held: RangeSet<u64> = held.map(|(at, data)| *at..at + data.len() as u64).collect();
        if held.iter().count() >= EXACT_MAX {
            return RangeSet::new();
        }
        let mut found: RangeSet<u64> = lost.iter().cloned().collect();
        held.into_iter().for_each(|range| found.remove(range));
        found
    }
}
