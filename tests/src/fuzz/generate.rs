//! Inputs for the targets without a fuzzer: random bytes, and corpus files with seeded changes.

use dafs_proto::transport::sim::Random;

/// Generates inputs from a seed and examples.
pub struct Generator<'a> {
    random: Random,
    examples: &'a [Vec<u8>],
    size_max: usize,
}

impl<'a> Generator<'a> {
    /// Inputs of at most `size_max` bytes.
    pub fn new(seed: u64, examples: &'a [Vec<u8>], size_max: usize) -> Self {
        Self { random: Random::new(seed), examples, size_max }
    }

    /// The next input.
    pub fn input(&mut self) -> Vec<u8> {
        let mut bytes = match self.examples {
            [] => self.bytes(),
            _ if self.random.chance(300_000) => self.bytes(),
            examples => examples[self.random.index(examples.len())].clone(),
        };
        for _ in 0..self.random.index(5) {
            self.change(&mut bytes);
        }
        bytes.truncate(self.size_max);
        bytes
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.random.index(self.size_max + 1);
        (0..len).map(|_| self.byte()).collect()
    }

    fn byte(&mut self) -> u8 {
        self.random.number().to_le_bytes()[0]
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let place = self.random.index(bytes.len());
        match self.random.index(7) {
            0 if !bytes.is_empty() => bytes[place] = self.byte(),
            1 if !bytes.is_empty() => bytes[place] ^= 1 << self.random.index(8),
            2 => bytes.insert(place, self.byte()),
            3 => bytes.truncate(place),
            4 if !bytes.is_empty() => bytes[place] = [0, 1, 0x7f, 0x80, 0xff][self.random.index(5)],
            5 => {
                let end = place + self.random.index(bytes.len() - place + 1);
                let copied = bytes[place..end].to_vec();
                bytes.splice(place..place, copied);
            }
            6 if !self.examples.is_empty() => {
                let other = &self.examples[self.random.index(self.examples.len())];
                let from = self.random.index(other.len());
                bytes.truncate(place);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {}
        }
    }
}
