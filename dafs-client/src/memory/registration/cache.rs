//! Registrations that are kept: found by the memory they cover, the least recently used giving way.

use std::collections::BTreeMap;
use std::sync::Arc;

use slab::Slab;

use super::Extent;

/// Kept registrations, of type `R`. A registration that somebody else holds too is in use, and does not give way.
pub(crate) struct Cache<R> {
    entries: Slab<Entry<R>>,
    by_start: BTreeMap<(usize, usize), ()>,
    // Least and most recently used.
    oldest: Option<usize>,
    newest: Option<usize>,
    size: u64,
    // No entry is longer: bounds how far before an address an entry that covers it may begin.
    longest: usize,
}

struct Entry<R> {
    extent: Extent,
    registration: Arc<R>,
    older: Option<usize>,
    newer: Option<usize>,
}

/// Entries that are looked at for one that covers a range.
const CANDIDATES_MAX: usize = 16;

/// Entries in use that are passed over to find some that may give way.
const IN_USE_MAX: usize = 256;

impl<R> Cache<R> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Slab::new(),
            by_start: BTreeMap::new(),
            oldest: None,
            newest: None,
            size: 0,
            longest: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes that the entries cover, counted once for each.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The registration that covers the extent and `serves`, which counts as used now.
    pub(crate) fn find(&mut self, extent: Extent, serves: impl Fn(&R) -> bool) -> Option<&Arc<R>> {
        let first = extent.start.saturating_sub(self.longest);
        let candidates = self.by_start.range((first, 0)..=(extent.start, usize::MAX)).rev();
        let index = candidates.take(CANDIDATES_MAX).map(|((_, index), ())| *index).find(|index| {
            let entry = &self.entries[*index];
            entry.extent.contains(&extent) && serves(&entry.registration)
        })?;
        if self.newest != Some(index) {
            self.unlink(index);
            self.link(index);
        }
        Some(&self.entries[index].registration)
    }

    /// Keeps a registration. Of those that it covers and `replaces` are answered, for the caller to end.
    pub(crate) fn insert(
        &mut self,
        extent: Extent,
        registration: Arc<R>,
        replaces: impl Fn(&R) -> bool,
    ) -> Vec<Arc<R>> {
        let covered =
            self.indexes(extent, |other| extent.contains(&other.extent) && replaces(&other.registration));
        let superfluous = covered.into_iter().map(|index| self.remove(index)).collect();
        let index = self.entries.insert(Entry { extent, registration, older: None, newer: None });
        self.by_start.insert((extent.start, index), ());
        self.longest = self.longest.max(extent.len());
        self.size += extent.len() as u64;
        self.link(index);
        superfluous
    }

    /// Takes out the least recently used `count` that nobody uses, or fewer.
    pub(crate) fn evict(&mut self, count: usize) -> Vec<Arc<R>> {
        let mut victims = Vec::with_capacity(count.min(self.len()));
        let mut next = self.oldest;
        let mut passed = 0;
        while let Some(index) = next
            && victims.len() < count
            && passed < IN_USE_MAX
        {
            next = self.entries[index].newer;
            if Arc::strong_count(&self.entries[index].registration) == 1 {
                victims.push(self.remove(index));
            } else {
                passed += 1;
            }
        }
        victims
    }

    /// Takes out the least recently used until `count` are left, those in use too: they end with their last use.
    pub(crate) fn shrink_to(&mut self, count: usize) -> Vec<Arc<R>> {
        let mut victims = Vec::new();
        while self.len() > count
            && let Some(index) = self.oldest
        {
            victims.push(self.remove(index));
        }
        victims
    }

    /// Takes out all that cover any byte of the extent.
    pub(crate) fn take_overlapping(&mut self, extent: Extent) -> Vec<Arc<R>> {
        let overlapping = self.indexes(extent, |other| extent.overlaps(&other.extent));
        overlapping.into_iter().map(|index| self.remove(index)).collect()
    }

    /// All that cover any byte of the extent, left where they are.
    pub(crate) fn overlapping(&self, extent: Extent) -> Vec<Extent> {
        let overlapping = self.indexes(extent, |other| extent.overlaps(&other.extent));
        overlapping.into_iter().map(|index| self.entries[index].extent).collect()
    }

    fn indexes(&self, extent: Extent, matches: impl Fn(&Entry<R>) -> bool) -> Vec<usize> {
        let first = extent.start.saturating_sub(self.longest);
        let near = self.by_start.range((first, 0)..(extent.end.max(extent.start.saturating_add(1)), 0));
        near.map(|((_, index), ())| *index).filter(|index| matches(&self.entries[*index])).collect()
    }

    fn remove(&mut self, index: usize) -> Arc<R> {
        self.unlink(index);
        let Entry { extent, registration, .. } = self.entries.remove(index);
        self.by_start.remove(&(extent.start, index));
        self.size -= extent.len() as u64;
        if self.entries.is_empty() {
            self.longest = 0;
        }
        registration
    }

    fn link(&mut self, index: usize) {
        let before = self.newest.replace(index);
        self.entries[index].older = before;
        self.entries[index].newer = None;
        match before {
            Some(before) => self.entries[before].newer = Some(index),
            None => self.oldest = Some(index),
        }
    }

    fn unlink(&mut self, index: usize) {
        let Entry { older, newer, .. } = self.entries[index];
        match older {
            Some(older) => self.entries[older].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.entries[newer].older = older,
            None => self.newest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: usize, len: usize) -> Extent {
        Extent::new(start, len)
    }

    fn cache(extents: &[(usize, usize)]) -> Cache<usize> {
        let mut cache = Cache::new();
        for (number, (start, len)) in extents.iter().enumerate() {
            cache.insert(extent(*start, *len), Arc::new(number), |_| true);
        }
        cache
    }

    fn found(cache: &mut Cache<usize>, start: usize, len: usize) -> Option<usize> {
        cache.find(extent(start, len), |_| true).map(|number| **number)
    }

    #[test]
    fn range_is_found_where_one_entry_covers_all_of_it() {
        let mut cache = cache(&[(100, 100), (200, 100), (250, 1000)]);
        assert_eq!(found(&mut cache, 100, 100), Some(0));
        assert_eq!(found(&mut cache, 199, 1), Some(0));
        assert_eq!(found(&mut cache, 199, 2), None, "two entries cover it, none alone");
        assert_eq!(found(&mut cache, 99, 1), None);
        assert_eq!(found(&mut cache, 1249, 1), Some(2));
        assert_eq!(found(&mut cache, 1249, 2), None);
    }

    // [CLI-80] [CLI-81]
    #[test]
    fn least_recently_used_gives_way_unless_in_use() {
        let mut cache = cache(&[(0, 10), (10, 10), (20, 10), (30, 10)]);
        assert_eq!(found(&mut cache, 0, 10), Some(0));
        let used = cache.find(extent(10, 10), |_| true).map(Arc::clone);
        // By use, oldest first: 2, 3, 0, 1.
        let victims: Vec<usize> = cache.evict(2).iter().map(|number| **number).collect();
        assert_eq!(victims, [2, 3]);
        let victims: Vec<usize> = cache.evict(2).iter().map(|number| **number).collect();
        assert_eq!(victims, [0], "one is in use");
        drop(used);
        assert_eq!(cache.evict(2).len(), 1);
        assert_eq!((cache.len(), cache.size()), (0, 0));
    }

    #[test]
    fn entry_that_covers_others_replaces_them() {
        let mut cache = cache(&[(0, 10), (10, 10), (25, 10)]);
        let superfluous = cache.insert(extent(0, 30), Arc::new(9), |other| *other != 0);
        assert_eq!(superfluous.len(), 1, "the other is of a kind that it does not replace");
        assert_eq!((cache.len(), cache.size()), (3, 50));
        assert_eq!(found(&mut cache, 5, 10), Some(9));
        assert_eq!(found(&mut cache, 30, 5), Some(2));
    }

    #[test]
    fn all_that_overlap_are_taken_and_no_neighbour() {
        let mut cache = cache(&[(5, 100), (0, 10), (10, 10), (20, 10)]);
        let mut taken: Vec<usize> =
            cache.take_overlapping(extent(10, 10)).iter().map(|number| **number).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 2]);
        assert_eq!(cache.overlapping(extent(9, 12)), [extent(0, 10), extent(20, 10)]);
        assert_eq!(cache.take_overlapping(extent(10, 10)).len(), 0);
        assert_eq!(cache.len(), 2);
    }

    /// Against a plain list, which cannot be wrong.
    #[test]
    fn random_use_agrees_with_a_list() {
        let mut seed = 7u64;
        let mut random = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % bound
        };
        let mut cache = Cache::new();
        let mut list: Vec<(Extent, usize)> = Vec::new();
        for number in 0..20_000 {
            let about = extent(random(1000), 1 + random(30));
            match random(4) {
                0 => {
                    list.retain(|(other, _)| !about.contains(other));
                    list.push((about, number));
                    cache.insert(about, Arc::new(number), |_| true);
                }
                1 => {
                    list.retain(|(other, _)| !about.overlaps(other));
                    cache.take_overlapping(about);
                }
                2 if list.len() > 20 => {
                    list.drain(..3);
                    assert_eq!(cache.evict(3).len(), 3);
                }
                _ => match cache.find(about, |_| true).map(|number| **number) {
                    Some(number) => {
                        let place = list.iter().position(|(_, other)| *other == number).expect("it is there");
                        let used = list.remove(place);
                        assert!(used.0.contains(&about));
                        list.push(used);
                    }
                    None => {
                        let covering = list.iter().filter(|(other, _)| other.contains(&about)).count();
                        let near = list.iter().filter(|(other, _)| other.start <= about.start).count();
                        assert!(covering == 0 || near > CANDIDATES_MAX);
                    }
                },
            }
            assert_eq!(cache.len(), list.len());
            assert_eq!(cache.size(), list.iter().map(|(extent, _)| extent.len() as u64).sum::<u64>());
        }
    }
}
