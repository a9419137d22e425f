//! A set of addresses, as extents that do not touch.

use rangemap::RangeSet;

use super::Extent;

/// Addresses. Extents that touch become one. An empty one is in all of them, and overlaps none.
#[derive(Default)]
pub(crate) struct Ranges(RangeSet<usize>);

impl Ranges {
    /// Extents that it consists of.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Extent> {
        self.0.iter().map(|range| Extent { start: range.start, end: range.end })
    }

    /// All of the extent is in it.
    pub(crate) fn contains(&self, extent: Extent) -> bool {
        extent.len() == 0 || self.0.get(&extent.start).is_some_and(|range| range.end >= extent.end)
    }

    /// Any of the extent is in it.
    pub(crate) fn overlaps(&self, extent: Extent) -> bool {
        extent.len() > 0 && self.0.overlaps(&(extent.start..extent.end))
    }

    pub(crate) fn insert(&mut self, extent: Extent) {
        if extent.len() > 0 {
            self.0.insert(extent.start..extent.end);
        }
    }

    pub(crate) fn remove(&mut self, extent: Extent) {
        if extent.len() > 0 {
            self.0.remove(extent.start..extent.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against one mark for each address, which cannot be wrong.
    #[test]
    fn random_use_agrees_with_marks() {
        let mut seed = 5u64;
        let mut random = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % bound
        };
        let (mut ranges, mut marks) = (Ranges::default(), [false; 120]);
        for _ in 0..20_000 {
            let extent = Extent::new(random(100), random(20));
            let all = marks[extent.start..extent.end].iter().all(|mark| *mark);
            let any = marks[extent.start..extent.end].iter().any(|mark| *mark);
            assert_eq!((ranges.contains(extent), ranges.overlaps(extent)), (all, any), "{extent:?}");
            match random(2) {
                0 => {
                    ranges.insert(extent);
                    marks[extent.start..extent.end].fill(true);
                }
                _ => {
                    ranges.remove(extent);
                    marks[extent.start..extent.end].fill(false);
                }
            }
            let begins = (0..120).filter(|at| marks[*at] && (*at == 0 || !marks[at - 1])).count();
            assert_eq!(ranges.len(), begins, "joined where they touch");
            assert_eq!(
                ranges.iter().map(|extent| extent.len()).sum::<usize>(),
                marks.iter().filter(|mark| **mark).count()
            );
        }
    }
}
