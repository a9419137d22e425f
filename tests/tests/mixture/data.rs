//! What the clients ask for, drawn from numbers that are the same in every run.

use dafs_client::Extent;
use dafs_tests::suite::Numbers;

/// Files stay below this size, bytes.
pub(crate) const FILE_SIZE_MAX: u64 = 3 << 20;

/// The length of a transfer: around the sizes at which its way changes, and any other.
pub(crate) fn len(numbers: &mut Numbers) -> u64 {
    match numbers.below(8) {
        0 => numbers.below(10),
        1 => numbers.below(600),
        2 => 4096,
        3 => 16_000 + numbers.below(1000),
        4 => numbers.below(70_000),
        5 => 65_000 + numbers.below(1500),
        6 => numbers.below(400_000),
        _ => numbers.below(1_500_000),
    }
}

/// A range of a file: offset and length.
pub(crate) fn range(numbers: &mut Numbers) -> (u64, usize) {
    let len = len(numbers);
    (numbers.below(FILE_SIZE_MAX - len), len as usize)
}

/// Extents of a file: strided and in order, or anywhere, overlaps included.
pub(crate) fn extents(numbers: &mut Numbers) -> Vec<Extent> {
    let count = match numbers.below(8) {
        0 => numbers.below(1500),
        _ => numbers.below(40),
    };
    let len_max = if count > 100 { 400 } else { numbers.one_of(&[16, 200, 4096, 9000]) };
    let (is_strided, stride) = (numbers.below(2) == 0, 1 + numbers.below(2 * len_max));
    let (first, strided_len) = (numbers.below(FILE_SIZE_MAX / 4), (1 + numbers.below(len_max)).min(stride));
    (0..=count)
        .map(|index| match is_strided {
            true => Extent::new(first + index * stride, strided_len),
            false => Extent::new(numbers.below(FILE_SIZE_MAX - len_max), 1 + numbers.below(len_max)),
        })
        .take_while(|extent| extent.offset + extent.len <= FILE_SIZE_MAX)
        .collect()
}

/// Where memory of so many bytes is cut into pieces, some of them empty: the bounds, both ends included.
pub(crate) fn cuts(numbers: &mut Numbers, len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> =
        (0..numbers.below(20)).map(|_| numbers.below(len as u64 + 1) as usize).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts
}
