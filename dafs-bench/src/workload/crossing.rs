//! Where Direct starts to pay, and how certain that is: figures in, an interval out.

use crate::stats::median;

/// Differences below this logarithm, one percent, count as none.
const LEAD_MIN: f64 = 0.01;

/// Who is faster at one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Winner {
    Inline,
    Direct,
    /// The two differ by no more than their spread.
    Unclear,
    /// Direct, for Inline cannot carry so much.
    OnlyDirect,
}

/// What is known of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Compared {
    pub(super) bytes: u64,
    pub(super) winner: Winner,
    /// How much Direct is ahead: the logarithm of the ratio of the times, median over the rounds.
    lead: f64,
}

impl Compared {
    /// Compares the times of the same rounds; there are none of Inline where it cannot carry so much.
    pub(super) fn of(bytes: u64, inline_us: &[f64], direct_us: &[f64]) -> Self {
        if inline_us.is_empty() {
            return Self { bytes, winner: Winner::OnlyDirect, lead: f64::INFINITY };
        }
        let leads = inline_us.iter().zip(direct_us).map(|(inline, direct)| (inline / direct).ln());
        let mut leads: Vec<f64> = leads.filter(|lead| lead.is_finite()).collect();
        leads.sort_unstable_by(f64::total_cmp);
        let (low, high) = interval(&leads);
        let winner = match () {
            () if low > LEAD_MIN => Winner::Direct,
            () if high < -LEAD_MIN => Winner::Inline,
            () => Winner::Unclear,
        };
        Self { bytes, winner, lead: median(leads).unwrap_or(0.0) }
    }
}

/// Where the median of what `sorted` is a sample of lies, at some 95 %. From six values on these are two of them (the sign test). Of fewer,
/// it is all that they cover, and as much again on both sides; of less than three, anything.
fn interval(sorted: &[f64]) -> (f64, f64) {
    let count = sorted.len();
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else {
        return (f64::NEG_INFINITY, f64::INFINITY);
    };
    match count {
        0..3 => (f64::NEG_INFINITY, f64::INFINITY),
        3..6 => (first - (last - first), last + (last - first)),
        // The same by the normal distribution: with so many, the sum below starts with nothing.
        200.. => {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below count")]
            let left_out = (count as f64 / 2.0 - 0.98 * (count as f64).sqrt() - 1.0) as usize;
            (sorted[left_out], sorted[count - 1 - left_out])
        }
        _ => {
            // The most values that can be left out at each end: the probability of so few on one side stays below 2.5 %.
            let (mut below, mut term, mut left_out) = (0.0, 0.5_f64.powf(count as f64), 0);
            while left_out < count / 2 {
                below += term;
                if below > 0.025 {
                    break;
                }
                term *= (count - left_out) as f64 / (left_out + 1) as f64;
                left_out += 1;
            }
            let left_out = left_out.saturating_sub(1);
            (sorted[left_out], sorted[count - 1 - left_out])
        }
    }
}

/// Between which sizes the two methods cross.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The last size at which Inline is certainly faster; `None` where it is at none.
    pub(super) inline_until: Option<u64>,
    /// The first size after it at which Direct is; `None` where it is at none.
    pub(super) direct_from: Option<u64>,
    /// Inline cannot carry `direct_from`.
    pub(super) inline_ends: bool,
    /// The size at which the curves cross, where no size between the two is unclear; both axes are logarithmic.
    pub(super) exact: Option<u64>,
}

/// Looks for the crossing in `sizes`, in ascending order.
pub(super) fn crossing(sizes: &[Compared]) -> Found {
    let (inline, direct) = ends(sizes);
    let size = |index: Option<usize>| index.map(|index| sizes[index]);
    let (before, after) = (size(inline), size(direct));
    let adjacent = inline.zip(direct).is_some_and(|(inline, direct)| inline + 1 == direct);
    let exact = before.zip(after).filter(|(_, after)| adjacent && after.winner == Winner::Direct);
    Found {
        inline_until: before.map(|size| size.bytes),
        direct_from: after.map(|size| size.bytes),
        inline_ends: after.is_some_and(|size| size.winner == Winner::OnlyDirect),
        exact: exact.map(|(before, after)| between(before, after)),
    }
}

/// The sizes whose further rounds would narrow the crossing: those that are unclear, and those beside them.
pub(super) fn near(sizes: &[Compared]) -> Vec<usize> {
    let (inline, direct) = ends(sizes);
    let all = inline.unwrap_or(0)..direct.map_or(sizes.len(), |direct| direct + 1);
    let unclear = |index: &usize| sizes[*index].winner == Winner::Unclear;
    if !all.clone().any(|index| unclear(&index)) {
        return Vec::new();
    }
    all.filter(|&index| sizes[index].winner != Winner::OnlyDirect).collect()
}

/// The last size of Inline, and the first of Direct after it.
fn ends(sizes: &[Compared]) -> (Option<usize>, Option<usize>) {
    let inline = sizes.iter().rposition(|size| size.winner == Winner::Inline);
    let after = inline.map_or(0, |inline| inline + 1);
    let is_direct = |size: &Compared| matches!(size.winner, Winner::Direct | Winner::OnlyDirect);
    let direct = sizes[after..].iter().position(is_direct);
    (inline, direct.map(|direct| after + direct))
}

fn between(before: Compared, after: Compared) -> u64 {
    // Their leads are of opposite signs, for their winners are certain.
    let part = (-before.lead / (after.lead - before.lead)).clamp(0.0, 1.0);
    let (low, high) = (before.bytes as f64, after.bytes as f64);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between two sizes that are u64"
    )]
    let bytes = (low * (high / low).powf(part)).round() as u64;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A size at which Inline takes `inline` µs and Direct `direct`, each round up to `spread` more.
    fn size(bytes: u64, inline: f64, direct: f64, spread: f64) -> Compared {
        let rounds = |us: f64, phase: usize| -> Vec<f64> {
            (0..5).map(|round| us + spread * ((round + phase) % 5) as f64 / 4.0).collect()
        };
        Compared::of(bytes, &rounds(inline, 0), &rounds(direct, 2))
    }

    #[test]
    fn curves_that_cross_have_an_interval_and_a_point_in_it() {
        let sizes = [size(1024, 1.0, 2.0, 0.01), size(4096, 4.0, 2.0, 0.01), size(16384, 16.0, 2.0, 0.01)];
        let found = crossing(&sizes);
        assert_eq!((found.inline_until, found.direct_from), (Some(1024), Some(4096)));
        assert!(found.exact.is_some_and(|bytes| (2000..2100).contains(&bytes)), "{found:?}");
        assert!(near(&sizes).is_empty());
    }

    #[test]
    fn curves_within_their_spread_have_an_interval_without_a_point() {
        let sizes = [
            size(512, 1.0, 2.0, 0.01),
            size(1024, 1.9, 2.0, 1.0),
            size(2048, 2.1, 2.0, 1.0),
            size(4096, 4.0, 2.0, 0.01),
        ];
        let found = crossing(&sizes);
        assert_eq!((found.inline_until, found.direct_from, found.exact), (Some(512), Some(4096), None));
        assert_eq!(near(&sizes), [0, 1, 2, 3]);
    }

    #[test]
    fn curves_that_are_one_within_their_spread_do_not_cross() {
        let sizes = [size(512, 1.9, 2.0, 1.0), size(1024, 2.1, 2.0, 1.0)];
        assert_eq!(crossing(&sizes), Found::default());
        assert_eq!(near(&sizes), [0, 1]);
        // Nor do they where they differ by less than anybody would notice, always by the same.
        assert_eq!(size(512, 2.0, 2.01, 0.0).winner, Winner::Unclear);
    }

    #[test]
    fn direct_that_never_wins_has_no_crossing() {
        let sizes = [size(512, 1.0, 2.0, 0.01), size(1024, 1.0, 2.0, 0.01)];
        let found = crossing(&sizes);
        assert_eq!((found.inline_until, found.direct_from, found.exact), (Some(1024), None, None));
        assert!(near(&sizes).is_empty());
    }

    #[test]
    fn crossing_at_the_edges_of_the_sizes() {
        // Direct wins at the smallest already: the crossing is not above it.
        let found = crossing(&[size(512, 2.0, 1.0, 0.01), size(1024, 2.0, 1.0, 0.01)]);
        assert_eq!((found.inline_until, found.direct_from, found.exact), (None, Some(512), None));
        // Unclear up to the last.
        let sizes = [size(512, 1.9, 2.0, 1.0), size(1024, 4.0, 2.0, 0.01)];
        assert_eq!((crossing(&sizes).inline_until, crossing(&sizes).direct_from), (None, Some(1024)));
        assert_eq!(near(&sizes), [0, 1]);
        // Inline wins for as long as it can.
        let sizes = [size(512, 1.0, 2.0, 0.01), Compared::of(1024, &[], &[2.0; 5])];
        let found = crossing(&sizes);
        assert_eq!((found.inline_until, found.direct_from, found.exact), (Some(512), Some(1024), None));
        assert!(found.inline_ends && near(&sizes).is_empty());
        assert_eq!(crossing(&[]), Found::default());
        assert!(near(&[]).is_empty());
    }

    #[test]
    fn crossing_is_after_the_last_size_where_inline_is_faster() {
        let sizes: Vec<_> = [(1, 1.0), (2, 3.0), (4, 1.0), (8, 4.0)]
            .map(|(bytes, inline)| size(bytes, inline, 2.0, 0.0))
            .to_vec();
        let found = crossing(&sizes);
        assert_eq!((found.inline_until, found.direct_from, found.exact), (Some(4), Some(8), Some(6)));
    }

    #[test]
    fn interval_narrows_with_the_rounds_and_needs_three() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(interval(&values(2)), (f64::NEG_INFINITY, f64::INFINITY));
        assert_eq!(interval(&values(3)), (-1.0, 5.0));
        // As tables of the sign test have it.
        for (count, ends) in
            [(6, (1.0, 6.0)), (8, (1.0, 8.0)), (9, (2.0, 8.0)), (12, (3.0, 10.0)), (20, (6.0, 15.0))]
        {
            assert_eq!(interval(&values(count)), ends, "{count}");
        }
    }
}
