//! Views against the definition of datatypes, told byte by byte. `DAFS_VIEW_CASES=n` runs that many.

use std::num::NonZeroU64;

use dafs_proto::extent::Extent;
use dafs_proto::view::{
    ArrayOrder, Block, DarrayDimension, Datatype, Distribution, Node, SubarrayDimension, View, ViewError,
};
use dafs_proto::wire::{VIEW_DESCRIPTION_SIZE_MAX, encode_datatype};
use dafs_tests::suite::Numbers;

/// A datatype, told byte by byte as MPI defines it: where each byte of the data lies, lower and upper bound.
#[derive(Clone, Default)]
struct Told {
    bytes: Vec<i64>,
    lower: i64,
    upper: i64,
}

impl Told {
    fn extent(&self) -> i64 {
        self.upper - self.lower
    }

    fn of(datatype: &Datatype) -> Self {
        let mut told: Vec<Self> = Vec::new();
        for node in datatype.nodes() {
            let child = |of: &u32| told[*of as usize].clone();
            let next = match node {
                Node::Bytes { len } => {
                    let len = *len as i64;
                    Self { bytes: (0..len).collect(), lower: 0, upper: len }
                }
                Node::Contiguous { count, of } => Self::placed(&child(of), &[(*count, 0)]),
                Node::Vector { count, block_len, stride, in_bytes, of } => {
                    let child = child(of);
                    let unit = if *in_bytes { 1 } else { child.extent() };
                    let at = |block: u64| (*block_len, block as i64 * stride * unit);
                    Self::placed(&child, &(0..*count).map(at).collect::<Vec<_>>())
                }
                Node::Indexed { blocks, in_bytes, of } => {
                    let child = child(of);
                    let unit = if *in_bytes { 1 } else { child.extent() };
                    let at = |block: &Block| (block.len, block.displacement * unit);
                    Self::placed(&child, &blocks.iter().map(at).collect::<Vec<_>>())
                }
                Node::IndexedBlock { block_len, displacements, in_bytes, of } => {
                    let child = child(of);
                    let unit = if *in_bytes { 1 } else { child.extent() };
                    let at = |displacement: &i64| (*block_len, displacement * unit);
                    Self::placed(&child, &displacements.iter().map(at).collect::<Vec<_>>())
                }
                Node::Struct { blocks } => {
                    let copies = blocks.iter().flat_map(|block| {
                        let child = child(&block.of);
                        (0..block.len).map(move |copy| (child.clone(), block.displacement, copy))
                    });
                    let copies = copies.map(|(child, at, copy)| {
                        let at = at + copy as i64 * child.extent();
                        (child, at)
                    });
                    Self::together(copies)
                }
                Node::Subarray { order, dimensions, of } => {
                    let sizes: Vec<u64> = dimensions.iter().map(|dimension| dimension.size).collect();
                    Self::array(&child(of), *order, &sizes, |dimension, element| {
                        let SubarrayDimension { subsize, start, .. } = dimensions[dimension];
                        (start..start + subsize).contains(&element)
                    })
                }
                Node::Darray { size, rank, order, dimensions, of } => {
                    let sizes: Vec<u64> = dimensions.iter().map(|dimension| dimension.size).collect();
                    let mut coordinates = Vec::new();
                    let (mut left, mut rest) = (*size, *rank);
                    for dimension in dimensions {
                        left /= dimension.processes;
                        coordinates.push(u64::from(rest / left));
                        rest %= left;
                    }
                    Self::array(&child(of), *order, &sizes, |number, element| {
                        let DarrayDimension { size, distribution, processes } = dimensions[number];
                        let block = match distribution {
                            Distribution::None => size,
                            Distribution::Block(len) => {
                                len.map_or(size.div_ceil(processes.into()), NonZeroU64::get)
                            }
                            Distribution::Cyclic(len) => len.map_or(1, NonZeroU64::get),
                        };
                        element / block % u64::from(processes) == coordinates[number]
                    })
                }
                Node::Resized { lower, extent, of } => {
                    Self { lower: *lower, upper: lower + extent, ..child(of) }
                }
            };
            told.push(next);
        }
        told.pop().unwrap()
    }

    fn placed(child: &Self, blocks: &[(u64, i64)]) -> Self {
        let copies = blocks.iter().flat_map(|(len, at)| {
            (0..*len).map(move |copy| (child.clone(), at + copy as i64 * child.extent()))
        });
        Self::together(copies)
    }

    fn together(copies: impl Iterator<Item = (Self, i64)>) -> Self {
        let mut all: Option<Self> = None;
        for (child, at) in copies {
            let moved = Self {
                bytes: child.bytes.iter().map(|byte| byte + at).collect(),
                lower: child.lower + at,
                upper: child.upper + at,
            };
            all = Some(match all {
                None => moved,
                Some(mut all) => {
                    all.bytes.extend(moved.bytes);
                    (all.lower, all.upper) = (all.lower.min(moved.lower), all.upper.max(moved.upper));
                    all
                }
            });
        }
        all.unwrap_or_default()
    }

    fn array(child: &Self, order: ArrayOrder, sizes: &[u64], has: impl Fn(usize, u64) -> bool) -> Self {
        let fastest_first: Vec<usize> = match order {
            ArrayOrder::C => (0..sizes.len()).rev().collect(),
            ArrayOrder::Fortran => (0..sizes.len()).collect(),
        };
        let all: u64 = sizes.iter().product();
        let elements = (0..all).filter(|element| {
            let mut rest = *element;
            fastest_first.iter().all(|dimension| {
                let index = rest % sizes[*dimension];
                rest /= sizes[*dimension];
                has(*dimension, index)
            })
        });
        let placed = Self::placed(
            child,
            &elements.map(|element| (1, element as i64 * child.extent())).collect::<Vec<_>>(),
        );
        Self { lower: 0, upper: all as i64 * child.extent(), ..placed }
    }

    /// Where the byte at a place lies, in all tiles.
    fn offset(&self, displacement: i64, place: u64) -> i64 {
        let size = self.bytes.len() as u64;
        displacement + (place / size) as i64 * self.extent() + self.bytes[(place % size) as usize]
    }
}

fn bytes_of(extents: impl Iterator<Item = Extent>) -> Vec<i64> {
    extents.flat_map(|extent| (extent.offset..extent.offset + extent.len).map(|byte| byte as i64)).collect()
}

/// How many cases: `DAFS_VIEW_CASES`, else a million.
fn cases() -> u64 {
    std::env::var("DAFS_VIEW_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000_000)
}

// [VIEW-1] [VIEW-2] [VIEW-3]
#[test]
fn view_is_the_list_that_its_definition_tells() {
    let mut numbers = Numbers::new(7);
    let mut with_data = 0;
    for case in 0..cases() {
        let depth = numbers.below(4);
        let datatype = numbers.datatype(depth);
        let told = Told::of(&datatype);
        let view = View::new(&datatype).unwrap();
        assert_eq!(view.size(), told.bytes.len() as u64, "{case}: {datatype:?}");
        assert_eq!(view.extent(), told.extent(), "{case}: {datatype:?}");
        if told.bytes.is_empty() {
            assert_eq!(view.check(5, 0, 1), Err(ViewError::Empty { len: 1 }));
            assert_eq!(view.segments(5, 0, 9).count(), 0);
            continue;
        }
        with_data += 1;
        let (place, len) = (numbers.below(3 * view.size()), 1 + numbers.below(2 * view.size() + 3));
        let displacement = numbers.below(301) as i64;
        let expected: Vec<i64> = (place..place + len).map(|place| told.offset(displacement, place)).collect();
        let is_inside = expected.iter().all(|byte| *byte >= 0);
        let checked = view.check(displacement as u64, place, len);
        assert_eq!(checked.is_ok(), is_inside, "{case}: {place} {len} at {displacement} of {datatype:?}");
        if !is_inside {
            continue;
        }
        let segments: Vec<Extent> = view.segments(displacement as u64, place, len).collect();
        let found = bytes_of(segments.iter().copied());
        assert_eq!(found, expected, "{case}: {place} {len} at {displacement} of {datatype:?}");
        assert!(segments.iter().all(|segment| segment.len > 0));
        let ascends = expected.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(ascends || !view.is_ascending(), "{case}: {datatype:?}");
        for max in 1..=segments.len() as u64 + 1 {
            let fit = view.fit(place, len, max);
            let all: u64 = segments.iter().take(max as usize).map(|segment| segment.len).sum();
            assert_eq!(fit, all, "{case}: {max} segments from {place} of {datatype:?}");
        }
    }
    assert!(with_data > cases() / 4, "{with_data} of {} had data", cases());
}

// [VIEW-3] Distances between blocks are as large as their programs like, where there are no two blocks.
#[test]
fn distance_that_is_never_gone_is_not_looked_at() {
    let int = || Datatype::bytes(4);
    for count in [0, 1] {
        for stride in [i64::MAX, i64::MIN] {
            for datatype in [int().vector(count, 3, stride), int().hvector(count, 3, stride)] {
                let view = View::new(&datatype).unwrap_or_else(|error| panic!("{datatype:?}: {error}"));
                assert_eq!((view.size(), view.extent()), (12 * count, 12 * count as i64), "{datatype:?}");
            }
        }
    }
    let empty = int().vector(9, 0, i64::MAX);
    assert_eq!(View::new(&empty).unwrap().size(), 0);
    // All of an array in one block, in rows of a GiB: the first process has it.
    for len in [1 << 31, u64::MAX] {
        for (rank, size) in [(0, 10 << 30), (3, 0)] {
            let rows = DarrayDimension {
                size: 10,
                distribution: Distribution::Cyclic(NonZeroU64::new(len)),
                processes: 4,
            };
            let dealt = Datatype::bytes(1 << 30).darray(4, rank, ArrayOrder::C, &[rows]);
            let view = View::new(&dealt).unwrap_or_else(|error| panic!("{dealt:?}: {error}"));
            assert_eq!((view.size(), view.extent()), (size, 10 << 30), "{dealt:?}");
            if size > 0 {
                assert_eq!(view.segments(7, 0, size).collect::<Vec<_>>(), [Extent::new(7, size)]);
            }
        }
    }
}

// [MPI-73]
#[test]
fn file_type_that_an_mpi_library_flattened_is_described_as_it_is() {
    let mut numbers = Numbers::new(11);
    for case in 0..20_000 {
        // Blocks anywhere, some in runs at equal distances, some without bytes.
        let (mut offsets, mut lens) = (Vec::new(), Vec::new());
        for _ in 0..1 + numbers.below(4) {
            let (len, stride) = (numbers.below(4) as i64, numbers.below(20) as i64 - 5);
            let from = numbers.below(60) as i64;
            for index in 0..1 + numbers.below(6) as i64 {
                offsets.push(from + index * stride);
                lens.push(len);
            }
        }
        let extent = numbers.below(90) as i64;
        let told = |tile: i64| {
            let blocks = offsets.iter().zip(&lens);
            blocks.flat_map(move |(offset, len)| (0..*len).map(move |byte| tile * extent + offset + byte))
        };
        let file_type = adio_dafs::layout::Type::new(offsets.clone(), lens.clone(), extent).unwrap();
        let view = View::new(&file_type.datatype()).unwrap();
        assert_eq!(view.size(), file_type.size(), "{case}: {offsets:?} {lens:?}");
        if view.size() == 0 {
            continue;
        }
        let expected: Vec<i64> = (0..3).flat_map(told).map(|byte| byte + 100).collect();
        let found = bytes_of(view.segments(100, 0, 3 * view.size()));
        assert_eq!(found, expected, "{case}: {offsets:?} {lens:?} {extent}");
    }
}

// [MPI-73] [MPI-77] As many as a description may have entries of, be their lengths alike or not.
#[test]
fn file_type_of_many_blocks_without_order_is_a_view() {
    let mut numbers = Numbers::new(12);
    for count in [1_364, 1_365, 3_000, 60_000, 65_536] {
        // Of one length; alike by twos, so that half of the blocks begin a run; and mixed.
        for (lens_max, alike) in [(1, 1), (3, 2), (3, 1)] {
            let mut end = 0;
            let (mut offsets, mut lens) = (Vec::new(), Vec::new());
            for index in 0..count {
                let before = *lens.last().unwrap_or(&1);
                let len = if index % alike == 0 { 1 + numbers.below(lens_max) as i64 } else { before };
                offsets.push(end);
                lens.push(len);
                end += len + 1 + numbers.below(9) as i64;
            }
            let file_type = adio_dafs::layout::Type::new(offsets.clone(), lens.clone(), end).unwrap();
            let datatype = file_type.datatype();
            let what = format!("{count} blocks of 1 to {lens_max}");
            let view = View::new(&datatype).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(encode_datatype(&datatype).len() <= VIEW_DESCRIPTION_SIZE_MAX as usize, "{what}");
            let blocks = offsets.iter().zip(&lens);
            let expected: Vec<i64> = blocks.flat_map(|(offset, len)| *offset..offset + len).collect();
            assert!(bytes_of(view.segments(0, 0, view.size())) == expected, "{what}");
        }
    }
    // Many blocks in few runs are described by these.
    let (offsets, lens): (Vec<i64>, Vec<i64>) =
        (0..100_000).map(|index| (index / 1000 * 9000 + index % 1000 * 7, 3)).unzip();
    let file_type = adio_dafs::layout::Type::new(offsets, lens, 1_000_000).unwrap();
    assert!(encode_datatype(&file_type.datatype()).len() < 16_000);
    assert_eq!(View::new(&file_type.datatype()).unwrap().size(), 300_000);
}
