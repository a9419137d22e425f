//! Small datatypes that look random, of every kind that there is.

use std::num::NonZeroU64;

use dafs_proto::view::{ArrayOrder, Block, DarrayDimension, Datatype, Distribution, SubarrayDimension};

use crate::suite::Numbers;

impl Numbers {
    fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as u64) as i64
    }

    fn order(&mut self) -> ArrayOrder {
        [ArrayOrder::C, ArrayOrder::Fortran][self.below(2) as usize]
    }

    /// A small datatype of any kind, so many levels deep.
    pub fn datatype(&mut self, depth: u64) -> Datatype {
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
