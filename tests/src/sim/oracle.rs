//! What a server owes its clients: every acknowledged byte.

use std::collections::{BTreeMap, BTreeSet};

/// Blocks of one file. Each write fills a block with a number of its own, so that what is read tells which write it is from.
///
/// While the server has not died, a block is exactly what was last acknowledged. When it has, it may also be an older
/// value: any since the last commit that covered it.
#[derive(Debug, Default)]
pub struct BlockOracle {
    blocks: BTreeMap<usize, Block>,
}

#[derive(Debug, Default, Clone)]
struct Block {
    last: u64,
    // What a crash may have brought back: the durable value and every unstable one since.
    possible: Vec<u64>,
    // The server may have died since the last write.
    doubtful: bool,
    // Whose the last write was.
    client: usize,
}

impl BlockOracle {
    /// A write of a client was acknowledged. `durable` when it is stable already; `crashed` when the server died
    /// between its submission and now.
    pub fn on_write(&mut self, client: usize, block: usize, value: u64, durable: bool, crashed: bool) {
        let block = self.blocks.entry(block).or_default();
        if durable {
            block.possible = vec![value];
        } else {
            if block.possible.is_empty() {
                block.possible.push(0);
            }
            block.possible.push(value);
        }
        block.last = value;
        block.client = client;
        block.doubtful = crashed && !durable;
    }

    /// The server died.
    pub fn on_crash(&mut self) {
        for block in self.blocks.values_mut() {
            block.doubtful |= block.possible.len() > 1;
        }
    }

    /// A commit of a client was acknowledged and said that nothing was lost: what it wrote last is durable.
    pub fn on_commit(&mut self, client: usize) {
        for block in self.blocks.values_mut().filter(|block| block.client == client) {
            block.possible = vec![block.last];
            block.doubtful = false;
        }
    }

    /// Checks what was read of a block.
    pub fn check(&self, index: usize, value: u64) {
        let block = self.blocks.get(&index).cloned().unwrap_or_default();
        if block.doubtful {
            assert!(
                block.possible.contains(&value),
                "block {index} holds {value}, possible are {:?}",
                block.possible
            );
        } else {
            assert_eq!(value, block.last, "block {index}: acknowledged data changed or was lost");
        }
    }

    /// The last acknowledged value of a block.
    pub fn last(&self, index: usize) -> u64 {
        self.blocks.get(&index).map_or(0, |block| block.last)
    }
}

/// A record that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub number: u64,
    /// Where the server said it is; `None` when its outcome is not known.
    pub offset: Option<u64>,
}

/// Records appended to one file by all clients: each acknowledged one is there once, where the reply said; none is there twice.
#[derive(Debug, Default)]
pub struct RecordOracle {
    records: Vec<Record>,
}

impl RecordOracle {
    /// An append ended.
    pub fn on_append(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Checks the whole file; records are `size` bytes, `whole` makes one of its number, and it begins with that.
    pub fn check(&self, content: &[u8], size: usize, whole: impl Fn(u64) -> Vec<u8>) {
        let mut found: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (place, record) in content.chunks(size).enumerate() {
            let number = record.first_chunk().map(|number| u64::from_le_bytes(*number));
            let number = number.expect("whole records");
            assert!(record == whole(number), "record {number}, at {}, is torn", place * size);
            found.entry(number).or_default().push(place);
        }
        for Record { number, offset } in &self.records {
            let places = found.remove(number).unwrap_or_default();
            match offset {
                Some(offset) => {
                    let place = usize::try_from(*offset).expect("small files") / size;
                    assert_eq!(places, [place], "record {number} was acknowledged at {offset}");
                }
                None => assert!(places.len() <= 1, "record {number} was appended {} times", places.len()),
            }
        }
        assert!(found.is_empty(), "nobody appended these records, at these places: {found:?}");
    }
}

/// Blocks whose writes overlap in time: a write that was submitted happens once, at some moment until it is answered, and what is read says
/// when it has. One such write a block at a time; those of others happen between their submission and their answer, which nothing else
/// comes between.
#[derive(Debug, Default)]
pub struct ConcurrentOracle {
    blocks: BTreeMap<usize, Register>,
}

#[derive(Debug)]
struct Register {
    /// What it may hold, and whether the pending write has happened then.
    states: BTreeSet<(u64, bool)>,
    pending: Option<u64>,
}

impl Default for Register {
    fn default() -> Self {
        Self { states: BTreeSet::from([(0, false)]), pending: None }
    }
}

impl Register {
    /// The pending write may have happened by now.
    fn advance(&mut self) {
        if let Some(value) = self.pending
            && self.states.iter().any(|(_, happened)| !happened)
        {
            self.states.insert((value, true));
        }
    }

    fn end(&mut self, happened: bool) {
        self.advance();
        self.pending = None;
        let ends = self.states.iter().filter(|state| state.1 || !happened);
        self.states = ends.map(|(value, _)| (*value, false)).collect();
    }
}

impl ConcurrentOracle {
    /// A write of the block is pending.
    pub fn is_pending(&self, block: usize) -> bool {
        self.blocks.get(&block).is_some_and(|register| register.pending.is_some())
    }

    /// A write was submitted.
    pub fn on_submitted(&mut self, block: usize, value: u64) {
        let register = self.blocks.entry(block).or_default();
        assert!(register.pending.replace(value).is_none(), "one pending write a block");
    }

    /// It was answered.
    pub fn on_done(&mut self, block: usize) {
        self.blocks.entry(block).or_default().end(true);
    }

    /// It ended, and whether it had happened is not known. It will not any more.
    pub fn on_doubt(&mut self, block: usize) {
        self.blocks.entry(block).or_default().end(false);
    }

    /// Another write was submitted and answered.
    pub fn on_written(&mut self, block: usize, value: u64) {
        let register = self.blocks.entry(block).or_default();
        register.advance();
        register.states = register.states.iter().map(|(_, happened)| (value, *happened)).collect();
    }

    /// Checks what was read.
    pub fn check(&mut self, block: usize, value: u64) {
        let register = self.blocks.entry(block).or_default();
        register.advance();
        let before = register.states.clone();
        register.states.retain(|(possible, _)| *possible == value);
        let pending = register.pending;
        assert!(
            !register.states.is_empty(),
            "block {block} holds {value}; possible, and whether the pending {pending:?} has happened: {before:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_write_that_was_seen_does_not_happen_again() {
        let mut oracle = ConcurrentOracle::default();
        oracle.on_submitted(0, 1);
        oracle.check(0, 0);
        oracle.check(0, 1);
        oracle.on_written(0, 2);
        oracle.check(0, 2);
        oracle.on_done(0);
        oracle.check(0, 2);
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| oracle.check(0, 1)));
        assert!(again.is_err());
    }
}
