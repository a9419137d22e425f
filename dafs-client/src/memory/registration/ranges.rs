//! A set of addresses, as extents that do not touch.

use std::collections::BTreeMap;

use super::Extent;

/// Addresses. Extents that touch become one.
#[derive(Default)]
pub(crate) struct Ranges {
    // Start and end. Invariant: not empty, and apart from each other.
    by_start: BTreeMap<usize, usize>,
}

impl Ranges {
    /// Extents that it consists of.
    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Extent> {
        self.by_start.iter().map(|(start, end)| Extent { start: *start, end: *end })
    }

    /// All of the extent is in it.
    pub(crate) fn contains(&self, extent: Extent) -> bool {
        let at_or_before = self.by_start.range(..=extent.start).next_back();
        extent.len() == 0 || at_or_before.is_some_and(|(_, end)| *end >= extent.end)
    }

    /// Any of the extent is in it.
    pub(crate) fn overlaps(&self, extent: Extent) -> bool {
        let before = self.by_start.range(..extent.end).next_back();
        extent.len() > 0 && before.is_some_and(|(_, end)| *end > extent.start)
    }

    pub(crate) fn insert(&mut self, extent: Extent) {
        if extent.len() == 0 {
            return;
        }
        let Extent { mut start, mut end } = extent;
        while let Some((other_start, other_end)) =
            self.by_start.range(..=end).next_back().map(|(start, end)| (*start, *end))
            && other_end >= start
        {
            self.by_start.remove(&other_start);
            (start, end) = (start.min(other_start), end.max(other_end));
        }
        self.by_start.insert(start, end);
    }

    pub(crate) fn remove(&mut self, extent: Extent) {
        if extent.len() == 0 {
            return;
        }
        while let Some((start, end)) =
            self.by_start.range(..extent.end).next_back().map(|(start, end)| (*start, *end))
            && end > extent.start
        {
            self.by_start.remove(&start);
            if start < extent.start {
                self.by_start.insert(start, extent.start);
            }
            if end > extent.end {
                self.by_start.insert(extent.end, end);
            }
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
