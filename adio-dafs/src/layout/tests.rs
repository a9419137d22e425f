#![allow(clippy::cast_possible_truncation, reason = "small numbers that the tests choose")]

use dafs_client::Extent;
use proptest::prelude::*;

use super::*;

/// Every byte of a type's first instances, in order, as a plain loop finds it.
fn bytes_of(offsets: &[i64], lens: &[i64], extent: i64, instances: i64) -> Vec<i64> {
    let mut bytes = Vec::new();
    for instance in 0..instances {
        for (offset, len) in offsets.iter().zip(lens) {
            bytes.extend((0..*len).map(|byte| instance * extent + offset + byte));
        }
    }
    bytes
}

fn all_segments(source: Source<'_>) -> Result<Vec<Segment>, LayoutError> {
    let mut segments = Segments::new(source)?;
    std::iter::from_fn(|| segments.next_segment()).collect()
}

fn all_groups(source: Source<'_>, limits: GroupLimits) -> Vec<Group> {
    let mut segments = Segments::new(source).unwrap();
    std::iter::from_fn(|| next_group(&mut segments, limits)).collect::<Result<_, _>>().unwrap()
}

const NO_LIMITS: GroupLimits = GroupLimits { entries: usize::MAX, counts_bounds: false, len: u64::MAX };

/// Blocks that ascend without overlapping, as file types have them, some without bytes; and an extent that holds them all.
fn ascending() -> impl Strategy<Value = (Vec<i64>, Vec<i64>, i64)> {
    (proptest::collection::vec((0i64..5, 0i64..7), 1..6), 0i64..9).prop_map(|(blocks, behind)| {
        let (mut at, mut offsets, mut lens) = (0, Vec::new(), Vec::new());
        for (gap, len) in blocks {
            offsets.push(at + gap);
            lens.push(len);
            at += gap + len;
        }
        (offsets, lens, at + behind)
    })
}

/// The same, with each block so many extents away from where it would lie, before the first byte of the type too.
fn beyond() -> impl Strategy<Value = (Vec<i64>, Vec<i64>, i64)> {
    (ascending(), proptest::collection::vec(-2i64..4, 6)).prop_map(|((mut offsets, lens, extent), away)| {
        offsets.iter_mut().zip(away).for_each(|(offset, away)| *offset += away * extent);
        (offsets, lens, extent)
    })
}

/// Blocks that overlap those of other instances.
fn overlapping() -> impl Strategy<Value = (Vec<i64>, Vec<i64>, i64)> {
    (ascending(), 1i64..9).prop_map(|((offsets, lens, _), extent)| (offsets, lens, extent))
}

/// Blocks anywhere, as types of memory may have them.
fn anywhere() -> impl Strategy<Value = (Vec<i64>, Vec<i64>, i64)> {
    let blocks = proptest::collection::vec((-40i64..40, 0i64..7), 1..6);
    (blocks, -50i64..50).prop_map(|(blocks, extent)| {
        let (offsets, lens) = blocks.into_iter().unzip();
        (offsets, lens, extent)
    })
}

proptest! {
    #[test]
    fn pieces_of_memory_are_those_of_a_plain_loop(
        memory in anywhere(), count in 0u64..5, pieces_max in 1usize..4, len_max in 1u64..30,
    ) {
        let base = 1 << 20;
        let of = Type::new(&memory.0[..], &memory.1[..], memory.2).unwrap();
        let mut pieces = Pieces::new(Instances { base, count, of }).unwrap();
        let mut found = Vec::new();
        while let Some(group) = pieces.next_group(pieces_max, len_max) {
            let group = group.unwrap();
            prop_assert_eq!(group.position, found.len() as u64);
            prop_assert!(group.memory.len() <= pieces_max && group.len <= len_max);
            found.extend(group.memory.iter().flat_map(|part| part.address..part.address + part.len));
            prop_assert_eq!(group.position + group.len, found.len() as u64);
        }
        let expected = bytes_of(&memory.0, &memory.1, memory.2, count as i64);
        let expected: Vec<usize> = expected.iter().map(|address| (base as i64 + address) as usize).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn segments_of_memory_by_a_view_are_those_of_a_plain_loop(
        memory in anywhere(), view in ascending(), count in 0u64..5, displacement in 0u64..100, position in 0u64..60,
    ) {
        let base = 1 << 20;
        let file = Type::new(&view.0[..], &view.1[..], view.2).unwrap();
        let source = Source::Typed {
            memory: Instances { base, count, of: Type::new(&memory.0[..], &memory.1[..], memory.2).unwrap() },
            view: View { displacement, of: file.clone() },
            position,
        };
        let addresses = bytes_of(&memory.0, &memory.1, memory.2, count as i64);
        if file.size() == 0 {
            let found = all_segments(source);
            prop_assert_eq!(found.is_err(), !addresses.is_empty());
            return Ok(());
        }
        let instances = (position + addresses.len() as u64) / file.size() + 1;
        let places = bytes_of(&view.0, &view.1, view.2, instances as i64);
        let expected: Vec<(usize, u64)> = addresses.iter().zip(&places[position as usize..])
            .map(|(address, place)| ((base as i64 + address) as usize, displacement + *place as u64)).collect();
        let found: Vec<(usize, u64)> = all_segments(source.clone()).unwrap().iter()
            .flat_map(|s| (0..s.len).map(|byte| (s.address + byte as usize, s.offset + byte))).collect();
        prop_assert_eq!(&found, &expected);
        // Groups of any size hold the same bytes, and join what touches.
        for entries in [1, 3, usize::MAX] {
            let groups = all_groups(source.clone(), GroupLimits { entries, counts_bounds: false, len: u64::MAX });
            let offsets = groups.iter().flat_map(|b| &b.extents).flat_map(|e| e.offset..e.offset + e.len);
            let addresses = groups.iter().flat_map(|b| &b.memory).flat_map(|p| p.address..p.address + p.len);
            prop_assert_eq!(addresses.zip(offsets).collect::<Vec<_>>(), expected.clone());
            for group in &groups {
                prop_assert!(group.extents.windows(2).all(|pair| pair[0].offset + pair[0].len != pair[1].offset));
                prop_assert!(group.memory.windows(2).all(|pair| pair[0].address + pair[0].len != pair[1].address));
                prop_assert!(group.segments <= entries);
            }
        }
    }

    #[test]
    fn position_and_offset_of_a_view_are_those_of_a_plain_loop(
        view in prop_oneof![ascending(), beyond(), overlapping()], displacement in 120u64..220, at in 0u64..400,
    ) {
        let of = Type::new(&view.0[..], &view.1[..], view.2).unwrap();
        prop_assume!(of.size() > 0);
        let instances = (at / of.size().min(view.2 as u64) + 4) as i64;
        let places = bytes_of(&view.0, &view.1, view.2, instances);
        let view = View { displacement, of };
        let places: Vec<u64> =
            places.iter().map(|place| displacement.checked_add_signed(*place).unwrap()).collect();
        prop_assert_eq!(view.offset_of(at).unwrap(), places[at as usize]);
        // What lies before the displacement is not asked for.
        let before = places.iter().filter(|place| **place < at).count();
        prop_assert_eq!(view.position_of(at), if at < displacement { 0 } else { before as u64 });
    }
}

#[test]
fn position_in_a_view_is_found_for_distant_blocks() {
    let view = |displacement, start, len, extent| View {
        displacement,
        of: Type::new(vec![start], vec![len], extent).unwrap(),
    };
    let far = view(0, 1 << 20, 4, 8);
    assert_eq!([0, 1 << 20, (1 << 20) + 3, (1 << 20) + 17].map(|at| far.position_of(at)), [0, 0, 3, 9]);
    let farther = view(7, 1 << 60, 4, 8);
    assert_eq!([1 << 60, (1 << 60) + 7 + (8 << 40)].map(|at| farther.position_of(at)), [0, 4 << 40]);
    let before = view(1 << 40, -(1 << 40), 4, 8);
    assert_eq!(before.position_of(1 << 40), 1 << 39);
    // At the ends of all numbers.
    let large = view(0, i64::MIN, i64::MAX, 1);
    assert_eq!(large.position_of(u64::MAX), u64::MAX);
}

#[test]
fn segments_of_contiguous_memory_by_a_contiguous_view_are_one() {
    let source = Source::Typed {
        memory: Instances { base: 4096, count: 1 << 30, of: Type::contiguous(8).unwrap() },
        view: View { displacement: 100, of: Type::contiguous(1).unwrap() },
        position: 5 << 40,
    };
    let segment = Segment { address: 4096, offset: 100 + (5 << 40), len: 8 << 30 };
    assert_eq!(all_segments(source).unwrap(), [segment]);
}

#[test]
fn group_counts_the_bounds_of_the_file_type_where_asked_to() {
    // As ROMIO flattens a struct of subarrays: a marker, rows, a marker.
    let rows = 2048;
    let mut offsets = vec![0];
    offsets.extend((0..rows).map(|row| row * 100));
    offsets.push(rows * 100);
    let mut lens = vec![0];
    lens.extend((0..rows).map(|_| 10));
    lens.push(0);
    let memory = Type::contiguous(1).unwrap();
    let size = (rows * 10) as u64;
    let source = |position| Source::Typed {
        memory: Instances { base: 4096, count: size, of: memory.clone() },
        view: View { displacement: 0, of: Type::new(&offsets[..], &lens[..], rows * 100).unwrap() },
        position,
    };
    // Of the second instance too.
    for position in [0, size] {
        for (counts_bounds, expected) in
            [(false, vec![128; 16]), (true, [vec![127], vec![128; 15], vec![1]].concat())]
        {
            let limits = GroupLimits { entries: 128, counts_bounds, len: u64::MAX };
            let groups = all_groups(source(position), limits);
            assert_eq!(groups.iter().map(|group| group.segments).collect::<Vec<_>>(), expected);
        }
        assert_eq!(all_groups(source(position), NO_LIMITS).len(), 1);
    }
}

#[test]
fn group_ends_behind_the_segment_that_fills_it() {
    let segments: Vec<Segment> =
        (0..10).map(|n| Segment { address: 1000 * n, offset: 50 * n as u64, len: 10 }).collect();
    let lens = |len| -> Vec<u64> {
        let groups = all_groups(
            Source::Segments((&segments[..]).into()),
            GroupLimits { entries: usize::MAX, counts_bounds: false, len },
        );
        groups.iter().map(|group| group.len).collect()
    };
    assert_eq!(lens(29), [30, 30, 30, 10]);
    assert_eq!(lens(30), [30, 30, 30, 10]);
    assert_eq!(lens(31), [40, 40, 20]);
}

#[test]
fn group_joins_the_file_and_memory_apart() {
    let segments = [
        Segment { address: 100, offset: 0, len: 10 },
        Segment { address: 200, offset: 10, len: 0 },
        Segment { address: 300, offset: 10, len: 10 },
        Segment { address: 310, offset: 40, len: 10 },
    ];
    let [group] = &all_groups(Source::Segments((&segments[..]).into()), NO_LIMITS)[..] else {
        panic!("one group")
    };
    assert_eq!(group.extents, [Extent::new(0, 20), Extent::new(40, 10)]);
    assert_eq!(group.memory, [MemoryPart { address: 100, len: 10 }, MemoryPart { address: 300, len: 20 }]);
}

#[test]
fn layouts_beyond_all_numbers_are_errors() {
    assert!(matches!(Type::new(vec![0], vec![-1], 1), Err(LayoutError::Len { index: 0, len: -1 })));
    assert!(matches!(Type::new(vec![0, 0], vec![i64::MAX, 1], 1), Err(LayoutError::Size)));
    let typed = |count, base, displacement, blocks: [i64; 2], position| {
        all_segments(Source::Typed {
            memory: Instances { base, count, of: Type::contiguous(8).unwrap() },
            view: View { displacement, of: Type::new(vec![blocks[0]], vec![4], blocks[1]).unwrap() },
            position,
        })
    };
    assert_eq!(typed(u64::MAX, 0, 0, [0, 4], 0), Err(LayoutError::Size));
    // Before the file, and behind the last byte that one can have.
    assert_eq!(typed(1, 4096, 9, [-10, 8], 0), Err(LayoutError::Offset { position: 0 }));
    assert_eq!(typed(1, 4096, i64::MAX as u64 - 3, [0, 8], 0), Err(LayoutError::Offset { position: 0 }));
    assert_eq!(typed(1, 4096, 0, [0, i64::MAX], 1 << 40), Err(LayoutError::Offset { position: 1 << 40 }));
    assert_eq!(typed(1, usize::MAX - 7, 0, [0, 4], 0), Err(LayoutError::Address { position: 0 }));
    // Counted from below 0, as memory that stands in for addresses is.
    let memory = Instances {
        base: 4096usize.wrapping_sub(1 << 40),
        count: 1,
        of: Type::new(vec![1 << 40], vec![4], 4).unwrap(),
    };
    let view = View { displacement: 0, of: Type::contiguous(4).unwrap() };
    let found = all_segments(Source::Typed { memory, view, position: 0 });
    assert_eq!(found, Ok(vec![Segment { address: 4096, offset: 0, len: 4 }]));
    let segments = [Segment { address: 0, offset: u64::MAX, len: 1 }];
    assert!(all_segments(Source::Segments((&segments[..]).into())).is_err());
    let view = View { displacement: 0, of: Type::new(vec![3], vec![0], 8).unwrap() };
    assert_eq!(view.offset_of(0), Err(LayoutError::EmptyView));
    assert_eq!(view.position_of(100), 0);
}
