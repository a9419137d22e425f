#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroU64;

use super::*;
use crate::extent::{Extent, OFFSET_MAX};

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
                Node::Vector { count, block_len, stride, of } => {
                    let child = child(of);
                    let at = |block: u64| (*block_len, block as i64 * stride * child.extent());
                    Self::placed(&child, &(0..*count).map(at).collect::<Vec<_>>())
                }
                Node::Hvector { count, block_len, stride, of } => {
                    let at = |block: u64| (*block_len, block as i64 * stride);
                    Self::placed(&child(of), &(0..*count).map(at).collect::<Vec<_>>())
                }
                Node::Indexed { blocks, of } => {
                    let child = child(of);
                    let at = |block: &Block| (block.len, block.displacement * child.extent());
                    Self::placed(&child, &blocks.iter().map(at).collect::<Vec<_>>())
                }
                Node::Hindexed { blocks, of } => {
                    let at = |block: &Block| (block.len, block.displacement);
                    Self::placed(&child(of), &blocks.iter().map(at).collect::<Vec<_>>())
                }
                Node::IndexedBlock { block_len, displacements, of } => {
                    let child = child(of);
                    let at = |displacement: &i64| (*block_len, displacement * child.extent());
                    Self::placed(&child, &displacements.iter().map(at).collect::<Vec<_>>())
                }
                Node::HindexedBlock { block_len, displacements, of } => {
                    let at = |displacement: &i64| (*block_len, *displacement);
                    Self::placed(&child(of), &displacements.iter().map(at).collect::<Vec<_>>())
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

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as u64) as i64
    }

    fn order(&mut self) -> ArrayOrder {
        [ArrayOrder::C, ArrayOrder::Fortran][self.below(2) as usize]
    }

    /// A small datatype of any kind.
    fn datatype(&mut self, depth: u64) -> Datatype {
        if depth == 0 {
            return Datatype::bytes(self.below(5));
        }
        let child = self.datatype(depth - 1);
        let blocks = |numbers: &mut Self| -> Vec<Block> {
            let block =
                |numbers: &mut Self| Block { len: numbers.below(3), displacement: numbers.between(-6, 12) };
            (0..numbers.below(5)).map(|_| block(numbers)).collect()
        };
        let displacements = |numbers: &mut Self| -> Vec<i64> {
            let step = numbers.between(-3, 9);
            let is_regular = numbers.below(2) == 0;
            let count = numbers.below(5) as i64;
            (0..count).map(|i| if is_regular { i * step } else { numbers.between(-6, 12) }).collect()
        };
        match self.below(12) {
            0 => child.contiguous(self.below(4)),
            1 => child.vector(self.below(4), self.below(3), self.between(-3, 5)),
            2 => child.hvector(self.below(4), self.below(3), self.between(-9, 15)),
            3 => child.indexed(&blocks(self)),
            4 => child.hindexed(&blocks(self)),
            5 => child.indexed_block(self.below(3), &displacements(self)),
            6 => child.hindexed_block(self.below(3), &displacements(self)),
            7 | 8 => {
                let depth = self.below(2);
                let other = self.datatype(depth);
                let blocks: Vec<(u64, i64, &Datatype)> = (0..self.below(4))
                    .map(|i| (self.below(3), self.between(-8, 16), if i % 2 == 0 { &child } else { &other }))
                    .collect();
                Datatype::structure(&blocks)
            }
            9 => {
                let dimension = |numbers: &mut Self| {
                    let size = 1 + numbers.below(4);
                    let start = numbers.below(size);
                    SubarrayDimension { size, start, subsize: numbers.below(size - start + 1) }
                };
                let dimensions: Vec<_> = (0..1 + self.below(3)).map(|_| dimension(self)).collect();
                child.subarray(self.order(), &dimensions)
            }
            10 => {
                let dimension = |numbers: &mut Self| {
                    let (size, processes) = (1 + numbers.below(6), 1 + numbers.below(3) as u32);
                    let distribution = match numbers.below(5) {
                        0 if processes == 1 => Distribution::None,
                        0 | 1 => Distribution::Block(None),
                        2 => Distribution::Block(NonZeroU64::new(
                            size.div_ceil(processes.into()) + numbers.below(2),
                        )),
                        3 => Distribution::Cyclic(None),
                        _ => Distribution::Cyclic(NonZeroU64::new(1 + numbers.below(3))),
                    };
                    DarrayDimension { size, distribution, processes }
                };
                let dimensions: Vec<_> = (0..1 + self.below(3)).map(|_| dimension(self)).collect();
                let size = dimensions.iter().map(|dimension| dimension.processes).product();
                child.darray(size, self.below(u64::from(size)) as u32, self.order(), &dimensions)
            }
            _ => child.resized(self.between(-4, 4), self.between(-6, 24)),
        }
    }
}

fn bytes_of(extents: impl Iterator<Item = Extent>) -> Vec<i64> {
    extents.flat_map(|extent| (extent.offset..extent.offset + extent.len).map(|byte| byte as i64)).collect()
}

/// How many cases: `DAFS_VIEW_CASES`, else some that take a second.
fn cases() -> u64 {
    std::env::var("DAFS_VIEW_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(30_000)
}

// [VIEW-1] [VIEW-2] [VIEW-3]
#[test]
fn view_is_the_list_that_its_definition_tells() {
    let mut numbers = Numbers(7);
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
        let displacement = numbers.between(0, 300);
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
