use crate::error::{Class, Error, Result};

/// Bits of an access mode, with the numbers of ROMIO and Open MPI.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AccessModeBits;

#[expect(missing_docs, reason = "they are named as in MPI 3.1, §13.2.1")]
impl AccessModeBits {
    pub const CREATE: i32 = 1;
    pub const RDONLY: i32 = 2;
    pub const WRONLY: i32 = 4;
    pub const RDWR: i32 = 8;
    pub const DELETE_ON_CLOSE: i32 = 16;
    pub const UNIQUE_OPEN: i32 = 32;
    pub const EXCL: i32 = 64;
    pub const APPEND: i32 = 128;
    pub const SEQUENTIAL: i32 = 256;
    const ALL: i32 = 511;
}

/// How a file is opened: checked against MPI 3.1, §13.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessMode(i32);

impl AccessMode {
    /// A mode of these bits.
    ///
    /// # Errors
    /// [`Class::AccessMode`], with the rule that is broken.
    pub fn new(bits: i32) -> Result<Self> {
        use AccessModeBits as A;
        let fault = |what: &str| Err(Error::new(Class::AccessMode, format!("access mode {bits:#x}: {what}")));
        let has = |bit| bits & bit != 0;
        if bits & !A::ALL != 0 {
            return fault("it has bits that MPI does not define");
        }
        if [A::RDONLY, A::WRONLY, A::RDWR].iter().filter(|bit| has(**bit)).count() != 1 {
            return fault("give exactly one of MPI_MODE_RDONLY, MPI_MODE_WRONLY and MPI_MODE_RDWR");
        }
        if has(A::RDONLY) && (has(A::CREATE) || has(A::EXCL)) {
            return fault("MPI_MODE_CREATE and MPI_MODE_EXCL cannot be combined with MPI_MODE_RDONLY");
        }
        if has(A::RDWR) && has(A::SEQUENTIAL) {
            return fault("MPI_MODE_SEQUENTIAL cannot be combined with MPI_MODE_RDWR");
        }
        Ok(Self(bits))
    }

    /// Data may be read.
    pub fn reads(self) -> bool {
        self.0 & (AccessModeBits::RDONLY | AccessModeBits::RDWR) != 0
    }

    /// Data may be written.
    pub fn writes(self) -> bool {
        self.0 & (AccessModeBits::WRONLY | AccessModeBits::RDWR) != 0
    }

    /// A file that is not there is made.
    pub fn creates(self) -> bool {
        self.0 & AccessModeBits::CREATE != 0
    }

    /// It must not be there.
    pub fn is_exclusive(self) -> bool {
        self.creates() && self.0 & AccessModeBits::EXCL != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [MPI-6]
    #[test]
    fn access_mode_has_one_of_three_ways_and_no_bits_that_contradict() {
        for (bits, is_mode) in [
            (2, true),
            (4 | 1, true),
            (8 | 1 | 64, true),
            (8 | 128 | 32 | 16, true),
            (2 | 256, true),
            (4 | 256, true),
        ] {
            assert_eq!(AccessMode::new(bits).is_ok(), is_mode, "{bits:#x}");
        }
        for bits in [0, 1, 2 | 4, 4 | 8, 2 | 1, 2 | 64, 8 | 256, 2 | 512, -1, i32::MIN | 2] {
            assert_eq!(AccessMode::new(bits).unwrap_err().class, Class::AccessMode, "{bits:#x}");
        }
        // As in ROMIO, EXCL without CREATE is no more than nothing.
        assert!(!AccessMode::new(8 | 64).unwrap().is_exclusive());
    }
}
