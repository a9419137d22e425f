//! Payloads that are verified: the ends of one read of so many, and what the last write of a run left in the file.

use std::cell::Cell;

use anyhow::{bail, ensure};

use crate::record::Op;

/// One read of so many is looked at.
const READS_EACH: u64 = 64;
/// Bytes at either end of it.
const END_BYTES: usize = 64;
/// What limits and peers write into the file, and no run of dafs.
const FOREIGN: u8 = 0x5a;
/// What runs write: never in the file before.
const STAMPS: [u8; 4] = [252, 253, 254, 255];

/// The byte that the file has at this place before anything is written: every block of a MiB counts to 250 again and again.
fn original(offset: u64) -> u8 {
    ((offset % (1 << 20)) % 251).to_le_bytes()[0]
}

/// What one run has moved.
#[derive(Debug)]
pub(crate) struct Checks {
    /// What it writes: not what the run before wrote.
    pub(crate) stamp: u8,
    /// Where the last operation was.
    pub(crate) last: u64,
    count: u64,
}

impl Checks {
    /// Of a run that follows the one with the stamp `before`, which becomes its own.
    pub(crate) fn new(before: &Cell<u8>) -> Self {
        let place = STAMPS.iter().position(|stamp| *stamp == before.get()).map_or(0, |place| place + 1);
        let stamp = STAMPS[place % STAMPS.len()];
        before.set(stamp);
        Self { stamp, last: 0, count: 0 }
    }

    /// An operation has moved these bytes.
    #[inline]
    pub(crate) fn moved(&mut self, op: Op, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        self.last = offset;
        self.count += 1;
        if op == Op::Read && self.count % READS_EACH == 1 {
            check_ends(offset, bytes)?;
        }
        Ok(())
    }

    /// The file has these bytes where the last write was.
    pub(crate) fn written(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let wrong = bytes.iter().position(|byte| *byte != self.stamp);
        ensure!(
            wrong.is_none(),
            "the file has other bytes than were written to it at {}",
            self.last + wrong.unwrap_or(0) as u64
        );
        Ok(())
    }
}

#[cold]
fn check_ends(offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
    let tail = bytes.len().saturating_sub(END_BYTES);
    let ends = (0..bytes.len().min(END_BYTES)).chain(tail.max(END_BYTES)..bytes.len());
    for (byte, at) in ends.map(|index| (bytes[index], offset + index as u64)) {
        if byte != original(at) && byte != FOREIGN && !STAMPS.contains(&byte) {
            bail!(
                "a read returned {byte:#04x} at {at}, which is neither what the file had there nor what was written"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(offset: u64, len: usize) -> Vec<u8> {
        (offset..offset + len as u64).map(original).collect()
    }

    #[test]
    fn read_of_what_the_file_had_or_what_was_written_is_right() {
        for (offset, len) in [(0, 4), ((1 << 20) - 3, 200), (4096, 1 << 20), (8192, 64), (8192, 65)] {
            let mut bytes = file(offset, len);
            check_ends(offset, &bytes).unwrap();
            bytes.fill(STAMPS[1]);
            check_ends(offset, &bytes).unwrap();
            bytes.fill(FOREIGN);
            check_ends(offset, &bytes).unwrap();
        }
    }

    #[test]
    fn read_of_another_place_or_of_nothing_is_found_out() {
        for len in [4, 64, 200, 4096] {
            assert!(check_ends(4096, &file(4097, len)).is_err());
            let mut bytes = file(4096, len);
            bytes[len - 1] = 251;
            assert!(check_ends(4096, &bytes).is_err(), "the last of {len}");
        }
        assert!(check_ends(1, &[0; 64]).is_err());
    }

    #[test]
    fn one_read_of_many_is_looked_at_and_no_write() {
        let before = Cell::default();
        let mut checks = Checks::new(&before);
        checks.moved(Op::Write, 4096, &[1; 8]).unwrap();
        let mut checks = Checks::new(&before);
        assert!(checks.moved(Op::Read, 1, &[0; 8]).is_err());
        for _ in 1..READS_EACH {
            checks.moved(Op::Read, 1, &[0; 8]).unwrap();
        }
        assert!(checks.moved(Op::Read, 1, &[0; 8]).is_err());
    }

    #[test]
    fn what_an_earlier_run_wrote_is_found_out() {
        let before = Cell::default();
        let stamps: Vec<u8> = (0..5).map(|_| Checks::new(&before).stamp).collect();
        assert!(stamps.windows(2).all(|two| two[0] != two[1]), "{stamps:?}");
        let checks = Checks::new(&before);
        checks.written(&[checks.stamp; 9]).unwrap();
        assert!(checks.written(&[stamps[4]; 9]).is_err());
        assert!(checks.written(&[checks.stamp, FOREIGN]).is_err());
    }
}
