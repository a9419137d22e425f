//! Where the bytes of a striped file are: arithmetic.

use dafs_proto::extent::OFFSET_MAX;

/// The smallest unit of striping, bytes, of which each unit is a multiple: a page.
pub const UNIT_MIN: u64 = 4096;

/// The largest unit of striping, bytes.
pub(crate) const UNIT_MAX: u64 = 1 << 30;

/// Pieces of one file at most.
pub const FACTOR_MAX: usize = 64;

/// Stripes of `unit` bytes, dealt out to `factor` pieces in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) unit: u64,
    pub(crate) factor: u64,
}

/// Something contiguous in the file and in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub(crate) piece: usize,
    /// Where it is in the piece.
    pub(crate) local: u64,
    /// Where it is in the file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl Geometry {
    /// The stripes of a range of the file, in order; `offset + len` does not overflow.
    pub(crate) fn stripes(self, offset: u64, len: u64) -> impl Iterator<Item = Stripe> {
        let end = offset + len;
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (number, within) = (at / self.unit, at % self.unit);
            let len = (self.unit - within).min(end - at);
            let local = number / self.factor * self.unit + within;
            let piece = usize::try_from(number % self.factor).unwrap_or(0);
            let stripe = Stripe { piece, local, offset: at, len };
            at += len;
            Some(stripe)
        })
    }

    /// Bytes of a piece that lie before `offset` of the file: where the piece goes on from there, and its size if the file ends there.
    pub(crate) fn local(self, piece: usize, offset: u64) -> u64 {
        let (row, within) = (offset / self.row(), offset % self.row());
        row * self.unit + within.saturating_sub(piece as u64 * self.unit).min(self.unit)
    }

    /// Where byte `local` of a piece is in the file; `None` where that is beyond the largest file.
    pub(crate) fn offset(self, piece: usize, local: u64) -> Option<u64> {
        let (row, within) = (local / self.unit, local % self.unit);
        let begin = row.checked_mul(self.row())?.checked_add(piece as u64 * self.unit)?;
        begin.checked_add(within).filter(|offset| *offset <= OFFSET_MAX)
    }

    /// The size of a file whose piece has this size and whose other pieces end before; `None` as of [`Geometry::offset`].
    pub(crate) fn end(self, piece: usize, size: u64) -> Option<u64> {
        match size.checked_sub(1) {
            None => Some(0),
            Some(last) => self.offset(piece, last)?.checked_add(1).filter(|end| *end <= OFFSET_MAX),
        }
    }

    fn row(self) -> u64 {
        self.unit * self.factor
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn geometry() -> impl Strategy<Value = Geometry> {
        (1..=4u64, 1..=FACTOR_MAX as u64)
            .prop_map(|(pages, factor)| Geometry { unit: pages * UNIT_MIN, factor })
    }

    proptest! {
        // [STRIPE-8]
        #[test]
        fn stripes_cover_a_range_once_and_agree_with_both_directions(
            geometry in geometry(), offset in 0..1u64 << 40, len in 0..1u64 << 22,
        ) {
            let mut at = offset;
            for stripe in geometry.stripes(offset, len) {
                prop_assert_eq!(stripe.offset, at);
                prop_assert!(stripe.len > 0 && stripe.len <= geometry.unit);
                prop_assert_eq!(geometry.offset(stripe.piece, stripe.local), Some(at));
                prop_assert_eq!(geometry.local(stripe.piece, at), stripe.local);
                at += stripe.len;
            }
            prop_assert_eq!(at, offset + len);
        }

        // [STRIPE-9]
        #[test]
        fn pieces_cut_at_a_size_have_that_size_together(geometry in geometry(), size in 0..1u64 << 40) {
            let ends = (0..geometry.factor as usize).map(|piece| geometry.end(piece, geometry.local(piece, size)));
            prop_assert_eq!(ends.map(Option::unwrap).max(), Some(size));
            let bytes: u64 = (0..geometry.factor as usize).map(|piece| geometry.local(piece, size)).sum();
            prop_assert_eq!(bytes, size);
        }
    }

    // [STRIPE-9]
    #[test]
    fn piece_of_an_impossible_size_is_beyond_every_file() {
        let geometry = Geometry { unit: UNIT_MIN, factor: 4 };
        assert_eq!(geometry.end(0, OFFSET_MAX), None);
        assert_eq!(geometry.end(0, u64::MAX), None);
        assert_eq!(geometry.end(3, 0), Some(0));
        assert_eq!(geometry.end(3, 1), Some(3 * UNIT_MIN + 1));
    }
}
