//! Numbers that nobody can guess.

use std::io;

use super::super::RegionError;

/// Drawn from the system at once: one system call for so many.
const DRAWN_AT_ONCE: usize = 32;

/// Random numbers of the system, drawn many at once.
#[derive(Default)]
pub struct RandomNumbers(Vec<u64>);

impl RandomNumbers {
    /// The next one.
    pub fn draw(&mut self) -> Result<u64, RegionError> {
        if self.0.is_empty() {
            let mut bytes = [0u8; DRAWN_AT_ONCE * 8];
            getrandom::fill(&mut bytes).map_err(|error| RegionError::System {
                what: "draw a region key",
                source: io::Error::other(error),
            })?;
            self.0.extend(bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_ne_bytes(*chunk)));
        }
        Ok(self.0.pop().unwrap_or_default())
    }
}
