//! Which memory is registered together: Optimistic Group Registration (Wu, Wyckoff, Panda, "Supporting efficient
//! noncontiguous access in PVFS over InfiniBand", §4.2).
//!
//! Registering costs `page_ns` for every page and `call_ns` for every call. Two segments are registered together if the pages between them
//! cost less than a second call. That those pages exist is not known; it is found out by trying, or by asking the system
//! ([`super::holes`]). Nothing here touches memory.

use super::Extent;

/// What registering costs: `call_ns + page_ns × pages`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegistrationCost {
    /// Nanoseconds for each page.
    pub page_ns: f64,
    /// Nanoseconds for each registration, its end included.
    pub call_ns: f64,
}

impl RegistrationCost {
    /// The pages between two segments that are worth registering to save a call.
    fn gap_pages_max(&self) -> f64 {
        if self.page_ns <= 0.0 { f64::INFINITY } else { self.call_ns / self.page_ns }
    }
}

/// Joins segments, in ascending order, into the groups that are registered with one call each: those that overlap or
/// touch, and those whose gaps are worth it, up to `gap_size_max` bytes.
pub(crate) fn group(ascending: &[Extent], cost: &RegistrationCost, gap_size_max: usize) -> Vec<Extent> {
    let pages_max = cost.gap_pages_max();
    join(ascending, |before, next| {
        let gap = next.start.saturating_sub(before.end);
        gap <= gap_size_max && (Extent::between(before, next).pages() as f64) < pages_max.max(1.0)
    })
}

/// Divides one group at the parts of it that are not `accessible` (ascending): segments that lie in one accessible
/// part stay together, and one that lies in none is by itself, for registering it to say what is wrong.
pub(crate) fn divide(ascending: &[Extent], accessible: &[Extent]) -> Vec<Extent> {
    let part_of = |segment: &Extent| {
        let after = accessible.partition_point(|part| part.start <= segment.start);
        after.checked_sub(1).filter(|index| segment.end <= accessible[*index].end)
    };
    join(ascending, |before, next| match (part_of(before), part_of(next)) {
        (Some(before), Some(next)) => before == next,
        _ => false,
    })
}

fn join(ascending: &[Extent], together: impl Fn(&Extent, &Extent) -> bool) -> Vec<Extent> {
    let mut groups: Vec<Extent> = Vec::new();
    for segment in ascending {
        match groups.last_mut() {
            Some(group) if segment.start <= group.end || together(group, segment) => {
                group.end = group.end.max(segment.end);
            }
            _ => groups.push(*segment),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn rows(count: usize, stride: usize, len: usize) -> Vec<Extent> {
        (0..count).map(|row| Extent::new(row * stride, len)).collect()
    }

    // [CLI-15]
    #[test]
    fn array_rows_form_one_group_up_to_the_gap_limit() {
        let cost = RegistrationCost { page_ns: 100.0, call_ns: 1000.0 };
        // Nine pages between rows cost less than a call, ten do not.
        for (gap, groups) in [(9, 1), (10, 1024), (11, 1024)] {
            let rows = rows(1024, (gap + 1) * PAGE, PAGE);
            assert_eq!(group(&rows, &cost, usize::MAX).len(), groups, "{gap} pages");
        }
    }

    #[test]
    fn gap_within_pages_that_are_registered_anyway_costs_nothing() {
        let cost = RegistrationCost { page_ns: 1000.0, call_ns: 1.0 };
        assert_eq!(group(&rows(1024, 128, 64), &cost, usize::MAX).len(), 1);
    }

    // [CLI-15]
    #[test]
    fn gap_beyond_the_bound_is_never_registered() {
        let free = RegistrationCost { page_ns: 0.0, call_ns: 1.0 };
        for (gap, groups) in [(99, 1), (100, 1), (101, 2)] {
            assert_eq!(group(&rows(2, 8 + gap, 8), &free, 100).len(), groups, "{gap} bytes");
        }
    }

    #[test]
    fn overlapping_and_nested_segments_are_one() {
        let cost = RegistrationCost { page_ns: 1.0, call_ns: 0.0 };
        let segments = [Extent::new(0, 100), Extent::new(10, 20), Extent::new(50, 100)];
        assert_eq!(group(&segments, &cost, 0), [Extent::new(0, 150)]);
    }

    // [CLI-89]
    #[test]
    fn group_with_ten_holes_is_divided_into_eleven() {
        let rows = rows(1024, 2 * PAGE, PAGE);
        let holes: Vec<usize> = (1..=10).map(|hole| (hole * 93) * 2 * PAGE + PAGE).collect();
        let mut accessible = Vec::new();
        let mut start = 0;
        for hole in holes {
            accessible.push(Extent { start, end: hole });
            start = hole + PAGE;
        }
        accessible.push(Extent { start, end: 1024 * 2 * PAGE });
        assert_eq!(divide(&rows, &accessible).len(), 11);
    }

    // [CLI-91]
    #[test]
    fn segment_that_is_not_accessible_is_alone() {
        let segments = rows(4, 2 * PAGE, PAGE);
        let accessible = [Extent::new(0, PAGE), Extent::new(4 * PAGE, 8 * PAGE)];
        let divided = divide(&segments, &accessible);
        assert_eq!(divided, [segments[0], segments[1], Extent { start: 4 * PAGE, end: 7 * PAGE }]);
    }
}
