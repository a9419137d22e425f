#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::num::NonZeroU64;

use super::*;
use crate::extent::{Extent, OFFSET_MAX};

#[test]
fn view_of_many_segments_costs_what_it_touches() {
    // A thousand million integers, and as many again between them.
    let view = View::new(&Datatype::bytes(4).vector(1_000_000_000, 1, 2)).unwrap();
    assert_eq!((view.size(), view.segment_count()), (4_000_000_000, 1_000_000_000));
    assert!(view.memory_size() < 4096, "{}", view.memory_size());
    let place = 3_999_999_998;
    let segments: Vec<Extent> = view.segments(0, place, 6).collect();
    let (last, second) = (8 * 999_999_999, 8 * 1_000_000_000 - 4);
    assert_eq!(segments, [Extent::new(last + 2, 2), Extent::new(second, 4)]);
    assert_eq!(view.fit(0, u64::MAX / 4, VIEW_SEGMENTS_MAX), 4 * VIEW_SEGMENTS_MAX);
}

#[test]
fn lists_that_are_regular_take_no_memory_for_each_entry() {
    let regular: Vec<i64> = (0..VIEW_ENTRIES_MAX as i64).map(|i| i * 12).collect();
    let view = View::new(&Datatype::bytes(4).hindexed_block(1, &regular)).unwrap();
    assert!(view.memory_size() < 4096, "{}", view.memory_size());
    let neighbours: Vec<i64> = (0..1000).map(|i| i * 4).collect();
    let view = View::new(&Datatype::bytes(4).hindexed_block(1, &neighbours)).unwrap();
    assert!(view.is_contiguous());
    assert_eq!(view.segments(10, 3, 10_000).collect::<Vec<_>>(), [Extent::new(13, 10_000)]);
}

// [VIEW-4] one less, exact, one more
#[test]
fn description_beyond_a_bound_is_refused() {
    let chain = |count: usize| {
        let mut nodes = vec![Node::Bytes { len: 1 }];
        nodes.extend((1..count).map(|node| Node::Contiguous { count: 1, of: node as u32 - 1 }));
        View::new(&Datatype::from_nodes(nodes))
    };
    assert!(chain(VIEW_NODES_MAX - 1).is_ok() && chain(VIEW_NODES_MAX).is_ok());
    assert_eq!(chain(VIEW_NODES_MAX + 1).unwrap_err(), ViewError::Nodes { count: VIEW_NODES_MAX + 1 });
    assert_eq!(chain(0).map(drop), Ok(()), "one node is the least");
    assert_eq!(View::new(&Datatype::default()).unwrap_err(), ViewError::Nodes { count: 0 });
    let deep = |levels: u32| {
        let deeper = |datatype: Datatype, level| {
            Datatype::structure(&[(1, 0, &datatype), (1, 100 * (i64::from(level) + 1), &Datatype::bytes(1))])
        };
        View::new(&(0..levels).fold(Datatype::bytes(1), deeper)).map(drop)
    };
    assert_eq!((deep(VIEW_DEPTH_MAX - 1), deep(VIEW_DEPTH_MAX)), (Ok(()), Ok(())));
    let depth = VIEW_DEPTH_MAX + 1;
    assert!(matches!(deep(depth), Err(ViewError::Depth { depth: found, .. }) if found == depth));
    let listed = |count: usize| {
        let blocks = vec![Block { len: 1, displacement: 0 }; count - 1];
        View::new(&Datatype::bytes(1).hindexed(&blocks).hindexed_block(1, &[3])).map(drop)
    };
    let (max, count) = (VIEW_ENTRIES_MAX, VIEW_ENTRIES_MAX + 1);
    assert_eq!((listed(max - 1), listed(max)), (Ok(()), Ok(())));
    assert_eq!(listed(count), Err(ViewError::Entries { count }));
    for of in [1, 2, u32::MAX] {
        let nodes = vec![Node::Bytes { len: 1 }, Node::Contiguous { count: 2, of }];
        assert_eq!(View::new(&Datatype::from_nodes(nodes)).unwrap_err(), ViewError::Child { node: 1, of });
    }
    let far = |len: u64| View::new(&Datatype::bytes(len)).map(drop);
    assert_eq!(far(OFFSET_MAX / 2), Ok(()));
    assert_eq!(far(OFFSET_MAX / 2 + 1), Err(ViewError::Range { node: 0 }));
    for datatype in [
        Datatype::bytes(1).contiguous(u64::MAX),
        Datatype::bytes(1).hvector(3, 1, i64::MAX),
        Datatype::bytes(1).hvector(u64::MAX, 1, i64::MIN),
        Datatype::bytes(8).vector(2, u64::MAX / 8, i64::MIN),
        Datatype::bytes(8).indexed(&[Block { len: u64::MAX, displacement: i64::MIN }]),
        Datatype::bytes(8).hindexed(&[Block { len: 1, displacement: i64::MIN }]),
        Datatype::bytes(1).resized(i64::MIN, i64::MAX),
        Datatype::bytes(1).resized(1, i64::MAX),
    ] {
        let error = View::new(&datatype).unwrap_err();
        assert!(matches!(error, ViewError::Range { .. }), "{datatype:?}: {error}");
    }
}

#[test]
fn array_that_contradicts_itself_is_refused() {
    let part = |size, subsize, start| {
        View::new(&Datatype::bytes(1).subarray(ArrayOrder::C, &[SubarrayDimension { size, subsize, start }]))
            .map(drop)
    };
    assert_eq!(part(4, 3, 1), Ok(()));
    for (size, subsize, start) in [(4, 4, 1), (4, 3, 2), (4, 5, 0), (4, u64::MAX, 1), (4, 1, u64::MAX)] {
        assert!(matches!(part(size, subsize, start), Err(ViewError::Dimension { .. })));
    }
    let array = |count: usize| {
        let dimensions = vec![SubarrayDimension { size: 1, subsize: 1, start: 0 }; count];
        View::new(&Datatype::bytes(1).subarray(ArrayOrder::C, &dimensions)).map(drop)
    };
    assert!(array(VIEW_DIMENSIONS_MAX).is_ok());
    for count in [0, VIEW_DIMENSIONS_MAX + 1] {
        assert_eq!(array(count), Err(ViewError::Dimensions { node: 1, count }));
    }
    let grid = |size, rank, processes| {
        let dimension = DarrayDimension { size: 9, distribution: Distribution::Block(None), processes };
        View::new(&Datatype::bytes(1).darray(size, rank, ArrayOrder::C, &[dimension])).map(drop)
    };
    assert_eq!(grid(3, 2, 3), Ok(()));
    for (size, rank, processes) in [(3, 3, 3), (3, 0, 2), (0, 0, 0), (1, 0, 0)] {
        assert!(matches!(grid(size, rank, processes), Err(ViewError::Grid { .. })), "{size} {processes}");
    }
    let dealt = |distribution, processes| {
        let dimension = DarrayDimension { size: 9, distribution, processes };
        View::new(&Datatype::bytes(1).darray(processes, 0, ArrayOrder::C, &[dimension])).map(drop)
    };
    let too_short = Distribution::Block(NonZeroU64::new(4));
    assert!(matches!(dealt(too_short, 2), Err(ViewError::Dimension { .. })));
    assert!(matches!(dealt(Distribution::None, 2), Err(ViewError::Dimension { .. })));
    assert!(
        dealt(Distribution::None, 1).is_ok() && dealt(Distribution::Block(NonZeroU64::new(5)), 2).is_ok()
    );
}

// [VIEW-4]
#[test]
fn description_of_too_many_levels_in_all_is_refused() {
    let dealt = |nodes: usize| {
        let dimension =
            DarrayDimension { size: 5, distribution: Distribution::Cyclic(NonZeroU64::new(2)), processes: 1 };
        let darray = || Node::Darray {
            size: 1,
            rank: 0,
            order: ArrayOrder::C,
            dimensions: vec![dimension; 16],
            of: 0,
        };
        let nodes = std::iter::once(Node::Bytes { len: 1 }).chain((0..nodes).map(|_| darray())).collect();
        View::new(&Datatype::from_nodes(nodes))
    };
    let one = dealt(1).unwrap().level_count() - 1;
    let most = (VIEW_LEVELS_MAX - 1) / one;
    assert!(most < VIEW_NODES_MAX - 1, "{one} levels each");
    assert_eq!(dealt(most).unwrap().level_count(), 1 + most * one);
    assert_eq!(dealt(most + 1).unwrap_err(), ViewError::Levels { node: most + 1 });
}

#[test]
fn bounds_of_a_range_are_those_of_its_segments() {
    let runs = Datatype::bytes(2).hindexed_block(1, &[7, 0, 30, 11]);
    let mixed = Datatype::structure(&[(2, 40, &runs), (1, -3, &Datatype::bytes(3)), (3, 200, &runs)]);
    let views = [
        Datatype::bytes(3),
        Datatype::bytes(2).resized(0, 5),
        Datatype::bytes(2).resized(0, 1),
        Datatype::bytes(3).vector(4, 2, -3),
        runs.clone().resized(-2, 9),
        runs.vector(3, 2, 5),
        mixed.clone(),
        mixed.clone().resized(0, -100),
        Datatype::structure(&[(1, 500, &mixed), (2, 0, &mixed.clone().vector(2, 1, 3))]),
    ];
    // For Miri the first are enough: the others take minutes.
    for datatype in views.into_iter().take(if cfg!(miri) { 5 } else { usize::MAX }) {
        let view = View::new(&datatype).unwrap();
        let size = view.size();
        for place in (0..2 * size + 1).step_by(if cfg!(miri) { 13 } else { 1 }) {
            for len in (1..20).chain([size, size + 1, 2 * size + 3, 5 * size]) {
                let segments = view.segments(1 << 40, place, len);
                let ends = segments.map(|extent| (extent.offset, extent.end().unwrap()));
                let walked = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap();
                let walked = (i128::from(walked.0), i128::from(walked.1));
                assert_eq!(view.bounds(1 << 40, place, len), Some(walked), "{datatype:?} {place} {len}");
                let count = if view.is_contiguous() { 1 } else { view.segments(1 << 40, place, len).count() };
                assert_eq!(view.segment_count_of(place, len), count as u64, "{datatype:?} {place} {len}");
            }
        }
        assert_eq!((view.bounds(9, 3, 0), view.segment_count_of(3, 0)), (None, 0));
        assert_eq!(view.segment_count_of(3, u64::MAX), u64::MAX);
    }
}

// [VIEW-5] one less, exact, one more
#[test]
fn range_beyond_the_file_is_refused_exactly_at_its_edges() {
    // One byte before the displacement, and one far behind it.
    let datatype = Datatype::bytes(1).hindexed_block(1, &[0, -4, 1000]).resized(0, 1);
    let view = View::new(&datatype).unwrap();
    assert!(view.check(3, 0, 1).is_ok() && view.check(4, 0, 2).is_ok());
    assert_eq!(view.check(3, 0, 2), Err(ViewError::Outside { place: 0, end: 2 }));
    let last = OFFSET_MAX - 1001;
    assert!(view.check(last, 0, 3).is_ok() && view.check(last + 1, 0, 2).is_ok());
    assert!(view.check(last + 1, 0, 3).is_err() && view.check(last, 0, 6).is_err());
    assert!(view.check(u64::MAX, 0, 1).is_err() && view.check(0, u64::MAX, 1).is_err());
    assert!(view.check(0, OFFSET_MAX, 1).is_err() && view.check(0, 2, u64::MAX).is_err());
    assert!(view.check(0, OFFSET_MAX, 0).is_ok(), "nothing is nowhere");
}
