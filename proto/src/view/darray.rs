//! Arrays that are dealt out to a grid of processes: which elements of each dimension a process has.

use std::num::NonZeroU64;

use super::VIEW_DIMENSIONS_MAX;
use super::datatype::{DarrayDimension, Distribution};
use super::error::ViewError;

/// The elements of a dimension that a process has: `blocks` of `block_len`, each `distance` behind the one before, and a shorter one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dealt {
    pub(super) start: u64,
    pub(super) block_len: u64,
    pub(super) blocks: u64,
    pub(super) distance: u64,
    pub(super) rest_start: u64,
    pub(super) rest_len: u64,
}

/// What process `rank` has of each dimension.
pub(super) fn parts(
    node: usize,
    (size, rank): (u32, u32),
    dimensions: &[DarrayDimension],
) -> Result<Vec<Dealt>, ViewError> {
    if dimensions.is_empty() || dimensions.len() > VIEW_DIMENSIONS_MAX {
        return Err(ViewError::Dimensions { node, count: dimensions.len() });
    }
    let grid = dimensions.iter().fold(1u64, |grid, d| grid.saturating_mul(d.processes.into()));
    if rank >= size || grid != u64::from(size) {
        return Err(ViewError::Grid { node, rank, size, grid });
    }
    // The grid is in the order of C.
    let (mut left, mut rest) = (size, rank);
    let mut dealt = Vec::with_capacity(dimensions.len());
    for (number, dimension) in dimensions.iter().enumerate() {
        left /= dimension.processes.max(1);
        let coordinate = rest / left.max(1);
        rest %= left.max(1);
        let wrong = |what| ViewError::Dimension { node, dimension: number, what };
        dealt.push(of_dimension(dimension, coordinate.into()).map_err(wrong)?);
    }
    Ok(dealt)
}

fn of_dimension(dimension: &DarrayDimension, coordinate: u64) -> Result<Dealt, &'static str> {
    let (size, processes) = (dimension.size, u64::from(dimension.processes));
    match dimension.distribution {
        Distribution::None if processes == 1 => Ok(Dealt { block_len: size, blocks: 1, ..Dealt::default() }),
        Distribution::None => Err("it is not distributed, but has more than one process"),
        Distribution::Block(len) => {
            let len = len.map_or(size.div_ceil(processes), NonZeroU64::get);
            if len.checked_mul(processes).is_some_and(|covered| covered < size) {
                return Err("a block for each process does not cover it");
            }
            let start = len.saturating_mul(coordinate).min(size);
            Ok(Dealt { start, block_len: len.min(size - start), blocks: 1, ..Dealt::default() })
        }
        Distribution::Cyclic(len) => {
            let len = len.map_or(1, NonZeroU64::get);
            let distance = len.saturating_mul(processes);
            let start = len.saturating_mul(coordinate).min(size);
            let behind = size - start;
            let blocks = if behind < len { 0 } else { (behind - len) / distance + 1 };
            let rest_start = start.saturating_add(blocks.saturating_mul(distance));
            let rest_len = size.saturating_sub(rest_start).min(len);
            Ok(Dealt { start, block_len: len, blocks, distance, rest_start, rest_len })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements of each process, told one by one as MPI defines them (MPI 4.1, §5.1.4).
    fn told(dimension: &DarrayDimension, coordinate: u64) -> Vec<u64> {
        let processes = u64::from(dimension.processes);
        let len = match dimension.distribution {
            Distribution::None => dimension.size.max(1),
            Distribution::Block(len) => {
                len.map_or(dimension.size.div_ceil(processes), NonZeroU64::get).max(1)
            }
            Distribution::Cyclic(len) => len.map_or(1, NonZeroU64::get),
        };
        (0..dimension.size).filter(|element| element / len % processes == coordinate).collect()
    }

    #[test]
    fn processes_have_what_the_definition_deals_them() {
        for size in (0..20).step_by(if cfg!(miri) { 9 } else { 1 }) {
            for processes in 1..5 {
                let mut distributions = vec![Distribution::Block(None), Distribution::Cyclic(None)];
                distributions.extend((1..7).map(|len| Distribution::Cyclic(NonZeroU64::new(len))));
                distributions.extend((1..20).map(|len| Distribution::Block(NonZeroU64::new(len))));
                for distribution in distributions {
                    let dimension = DarrayDimension { size, distribution, processes };
                    for coordinate in 0..u64::from(processes) {
                        let Ok(dealt) = of_dimension(&dimension, coordinate) else {
                            let Distribution::Block(Some(len)) = distribution else {
                                panic!("{dimension:?}")
                            };
                            assert!(len.get() * u64::from(processes) < size);
                            continue;
                        };
                        let blocks = (0..dealt.blocks).flat_map(|block| {
                            let from = dealt.start + block * dealt.distance;
                            from..from + dealt.block_len
                        });
                        let rest = dealt.rest_start..dealt.rest_start + dealt.rest_len;
                        let found: Vec<u64> = blocks.chain(rest).collect();
                        assert_eq!(found, told(&dimension, coordinate), "{dimension:?} {coordinate}");
                    }
                }
            }
        }
    }
}
