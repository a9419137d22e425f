//! From a description to what can be walked: few kinds of levels, sizes known, what is contiguous joined.

use crate::extent::OFFSET_MAX;

use super::datatype::{ArrayOrder, Block, Datatype, Node, StructBlock, SubarrayDimension};
use super::error::ViewError;
use super::{VIEW_DEPTH_MAX, VIEW_DIMENSIONS_MAX, VIEW_ENTRIES_MAX, VIEW_LEVELS_MAX, VIEW_NODES_MAX, darray};

/// A compiled [`Datatype`], repeated without end: where in a file the bytes of its data lie.
#[derive(Clone, Debug)]
pub struct View {
    pub(super) levels: Vec<Level>,
    /// The tile.
    pub(super) tile: Laid,
}

/// A level: what it is of, without where it lies.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) shape: Shape,
    /// Bytes of data.
    pub(super) size: u64,
    /// The first byte that it touches, and the one behind the last.
    pub(super) low: i64,
    pub(super) high: i64,
    /// Contiguous pieces.
    pub(super) segments: u64,
    /// No segment begins before the end of the one before it.
    ascends: bool,
    depth: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// Contiguous.
    Run,
    /// The same, at regular distances.
    Repeat { count: u64, stride: i64, base: i64, of: u32 },
    /// Runs anywhere.
    Runs(Box<[Run]>),
    /// Anything anywhere.
    Parts(Box<[Part]>),
}

/// A contiguous piece of a list of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) offset: i64,
    /// Bytes of data before it.
    pub(super) place: u64,
}

/// Copies of a level, `stride` bytes apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) offset: i64,
    /// Bytes of data before it.
    pub(super) place: u64,
    /// Segments before it.
    pub(super) segments: u64,
    pub(super) stride: i64,
    pub(super) of: u32,
}

/// A level at a place of its own, with the bounds that count where copies stand side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Laid {
    /// `None`: no data.
    pub(super) level: Option<u32>,
    pub(super) shift: i64,
    lower: i64,
    upper: i64,
}

impl Laid {
    pub(super) fn extent(&self) -> i64 {
        self.upper - self.lower
    }
}

impl View {
    /// Checks and compiles a description.
    pub fn new(datatype: &Datatype) -> Result<Self, ViewError> {
        let nodes = datatype.nodes();
        if nodes.is_empty() || nodes.len() > VIEW_NODES_MAX {
            return Err(ViewError::Nodes { count: nodes.len() });
        }
        let count = nodes.iter().map(Node::entry_count).sum();
        if count > VIEW_ENTRIES_MAX {
            return Err(ViewError::Entries { count });
        }
        let mut compiler = Compiler { levels: Vec::new(), laid: Vec::with_capacity(nodes.len()), node: 0 };
        for (number, node) in nodes.iter().enumerate() {
            compiler.node = number;
            let laid = compiler.compile(node)?;
            compiler.laid.push(laid);
        }
        let tile = *compiler.laid.last().ok_or(ViewError::Nodes { count: 0 })?;
        Ok(Self { levels: compiler.levels, tile })
    }

    /// Bytes of data in a tile.
    pub fn size(&self) -> u64 {
        self.tile.level.map_or(0, |level| self.level(level).size)
    }

    /// From one tile to the next, bytes.
    pub fn extent(&self) -> i64 {
        self.tile.extent()
    }

    /// Contiguous pieces of a tile.
    pub fn segment_count(&self) -> u64 {
        self.tile.level.map_or(0, |level| self.level(level).segments)
    }

    /// No segment begins before the end of the one before it, in all tiles together.
    pub fn is_ascending(&self) -> bool {
        self.tile.level.is_none_or(|level| {
            let level = self.level(level);
            level.ascends && i128::from(self.extent()) >= i128::from(level.high) - i128::from(level.low)
        })
    }

    /// All bytes from the displacement on, one after the other: the view of a file that has none.
    pub fn is_contiguous(&self) -> bool {
        self.tile.level.is_some_and(|level| {
            let level = self.level(level);
            matches!(level.shape, Shape::Run) && i64::try_from(level.size) == Ok(self.extent())
        })
    }

    /// Levels: what it took to compile it.
    pub fn level_count(&self) -> usize {
        self.levels.len()
    }

    /// Entries of the lists of all levels.
    pub fn list_len(&self) -> usize {
        let lists = self.levels.iter().map(|level| match &level.shape {
            Shape::Run | Shape::Repeat { .. } => 0,
            Shape::Runs(runs) => runs.len(),
            Shape::Parts(parts) => parts.len(),
        });
        lists.sum()
    }

    /// Bytes of memory that it takes.
    pub fn memory_size(&self) -> usize {
        let lists = self.levels.iter().map(|level| match &level.shape {
            Shape::Run | Shape::Repeat { .. } => 0,
            Shape::Runs(runs) => size_of_val(&**runs),
            Shape::Parts(parts) => size_of_val(&**parts),
        });
        size_of::<Self>() + self.levels.capacity() * size_of::<Level>() + lists.sum::<usize>()
    }

    #[inline]
    pub(super) fn level(&self, number: u32) -> &Level {
        &self.levels[number as usize]
    }
}

struct Compiler {
    levels: Vec<Level>,
    /// What each node became.
    laid: Vec<Laid>,
    /// The node that is compiled, for errors.
    node: usize,
}

/// Copies of something side by side, somewhere: a block of a list of them.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    pub(super) offset: i64,
    pub(super) len: u64,
    pub(super) of: Laid,
}

impl Compiler {
    fn compile(&mut self, node: &Node) -> Result<Laid, ViewError> {
        match node {
            Node::Bytes { len } => self.run(*len),
            Node::Contiguous { count, of } => {
                let of = self.child(*of)?;
                self.repeat(of, *count, of.extent())
            }
            Node::Vector { count, block_len, stride, in_bytes, of } => {
                let of = self.child(*of)?;
                let stride = match (*in_bytes, *count > 1 && *block_len > 0) {
                    (_, false) => 0,
                    (true, true) => *stride,
                    (false, true) => self.times(*stride, of.extent())?,
                };
                self.blocks_apart(of, *count, *block_len, stride)
            }
            Node::Indexed { blocks, in_bytes, of } => self.indexed(blocks.iter().copied(), *in_bytes, *of),
            Node::IndexedBlock { block_len, displacements, in_bytes, of } => {
                let block = |displacement: &i64| Block { len: *block_len, displacement: *displacement };
                self.indexed(displacements.iter().map(block), *in_bytes, *of)
            }
            Node::Struct { blocks } => {
                let placed = |block: &StructBlock| {
                    let of = self.child(block.of)?;
                    Ok(Placed { offset: block.displacement, len: block.len, of })
                };
                let placed = blocks.iter().map(placed).collect::<Result<Vec<_>, ViewError>>()?;
                self.place(&placed)
            }
            Node::Subarray { order, dimensions, of } => self.subarray(*order, dimensions, *of),
            Node::Darray { size, rank, order, dimensions, of } => {
                let parts = darray::parts(self.node, (*size, *rank), dimensions)?;
                let of = self.child(*of)?;
                let sizes: Vec<u64> = dimensions.iter().map(|dimension| dimension.size).collect();
                self.array(*order, &sizes, of, |compiler, dimension, of, stride| {
                    compiler.dealt(&parts[dimension], of, stride)
                })
            }
            Node::Resized { lower, extent, of } => {
                let of = self.child(*of)?;
                let upper = self.fit(i128::from(*lower) + i128::from(*extent))?;
                Ok(Laid { lower: self.fit(i128::from(*lower))?, upper, ..of })
            }
        }
    }

    fn child(&self, of: u32) -> Result<Laid, ViewError> {
        self.laid.get(of as usize).copied().ok_or(ViewError::Child { node: self.node, of })
    }

    /// A position in a tile: what is further than a file is long is refused before anything overflows.
    fn fit(&self, position: i128) -> Result<i64, ViewError> {
        let max = i128::from(OFFSET_MAX) / 2;
        if position.abs() > max {
            return Err(ViewError::Range { node: self.node });
        }
        i64::try_from(position).map_err(|_| ViewError::Range { node: self.node })
    }

    fn fit_size(&self, size: u128) -> Result<u64, ViewError> {
        let size = i128::try_from(size).unwrap_or(i128::MAX);
        Ok(self.fit(size)?.unsigned_abs())
    }

    fn times(&self, a: i64, b: i64) -> Result<i64, ViewError> {
        self.fit(i128::from(a) * i128::from(b))
    }

    fn add(&mut self, level: Level) -> Result<u32, ViewError> {
        if level.depth > VIEW_DEPTH_MAX {
            return Err(ViewError::Depth { node: self.node, depth: level.depth });
        }
        if self.levels.len() >= VIEW_LEVELS_MAX {
            return Err(ViewError::Levels { node: self.node });
        }
        self.levels.push(level);
        u32::try_from(self.levels.len() - 1).map_err(|_| ViewError::Range { node: self.node })
    }

    fn level(&self, number: u32) -> &Level {
        &self.levels[number as usize]
    }

    fn run(&mut self, len: u64) -> Result<Laid, ViewError> {
        let high = self.fit(i128::from(len))?;
        if len == 0 {
            return Ok(Laid { level: None, shift: 0, lower: 0, upper: 0 });
        }
        let level =
            Level { shape: Shape::Run, size: len, low: 0, high, segments: 1, ascends: true, depth: 0 };
        let level = Some(self.add(level)?);
        Ok(Laid { level, shift: 0, lower: 0, upper: high })
    }

    /// The bytes of something contiguous; `None` where it is not, or has none.
    fn run_len(&self, of: &Laid) -> Option<u64> {
        let level = self.level(of.level?);
        matches!(level.shape, Shape::Run).then_some(level.size)
    }

    /// `count` copies, `stride` bytes apart.
    fn repeat(&mut self, of: Laid, count: u64, stride: i64) -> Result<Laid, ViewError> {
        let Some(last) = count.checked_sub(1) else {
            return Ok(Laid { level: None, shift: 0, lower: 0, upper: 0 });
        };
        let span = self.fit(i128::from(last) * i128::from(stride))?;
        let lower = self.fit(i128::from(of.lower) + i128::from(span.min(0)))?;
        let upper = self.fit(i128::from(of.upper) + i128::from(span.max(0)))?;
        let (Some(number), false) = (of.level, count == 1) else {
            return Ok(Laid { lower, upper, ..of });
        };
        let child = self.level(number);
        if let Some(len) = self.run_len(&of).filter(|len| i64::try_from(*len) == Ok(stride)) {
            let run = self.run(self.fit_size(u128::from(len) * u128::from(count))?)?;
            return Ok(Laid { level: run.level, shift: of.shift, lower, upper });
        }
        let (low, high) = (i128::from(child.low), i128::from(child.high));
        let level = Level {
            size: self.fit_size(u128::from(child.size) * u128::from(count))?,
            low: self.fit(i128::from(of.shift) + low + i128::from(span.min(0)))?,
            high: self.fit(i128::from(of.shift) + high + i128::from(span.max(0)))?,
            segments: child.segments.saturating_mul(count),
            ascends: child.ascends && i128::from(stride) >= high - low,
            depth: child.depth + 1,
            shape: Shape::Repeat { count, stride, base: of.shift, of: number },
        };
        let level = Some(self.add(level)?);
        Ok(Laid { level, shift: 0, lower, upper })
    }

    /// `count` blocks, `stride` bytes apart.
    fn blocks_apart(&mut self, of: Laid, count: u64, block_len: u64, stride: i64) -> Result<Laid, ViewError> {
        let block = self.repeat(of, block_len, of.extent())?;
        // Blocks of nothing have no bounds, as in MPI.
        self.repeat(block, if block_len == 0 { 0 } else { count }, stride)
    }

    /// Blocks of one child, displaced by extents of it or by bytes.
    fn indexed(
        &mut self,
        blocks: impl Iterator<Item = Block>,
        in_bytes: bool,
        of: u32,
    ) -> Result<Laid, ViewError> {
        let of = self.child(of)?;
        let unit = if in_bytes { 1 } else { of.extent() };
        let placed = blocks.map(|block| {
            let offset = self.times(block.displacement, unit)?;
            Ok(Placed { offset, len: block.len, of })
        });
        let placed = placed.collect::<Result<Vec<_>, ViewError>>()?;
        self.place(&placed)
    }

    /// Blocks anywhere.
    fn place(&mut self, blocks: &[Placed]) -> Result<Laid, ViewError> {
        // A block of nothing has no bounds either, as in MPI.
        let blocks: Vec<Placed> = blocks.iter().copied().filter(|block| block.len > 0).collect();
        let mut bounds: Option<(i64, i64)> = None;
        for block in &blocks {
            let span = i128::from(block.len - 1) * i128::from(block.of.extent());
            let at = i128::from(block.offset);
            let lower = self.fit(at + i128::from(block.of.lower) + span.min(0))?;
            let upper = self.fit(at + i128::from(block.of.upper) + span.max(0))?;
            bounds = Some(bounds.map_or((lower, upper), |(low, high)| (low.min(lower), high.max(upper))));
        }
        let (lower, upper) = bounds.unwrap_or_default();
        let data: Vec<Placed> = blocks.into_iter().filter(|block| block.of.level.is_some()).collect();
        let laid = match &*data {
            [] => Laid { level: None, shift: 0, lower, upper },
            [one] => {
                let copies = self.repeat(one.of, one.len, one.of.extent())?;
                Laid { shift: self.fit(i128::from(copies.shift) + i128::from(one.offset))?, ..copies }
            }
            _ if data.iter().all(|block| self.is_run(block)) => self.runs(&data)?,
            _ => self.parts(&data)?,
        };
        Ok(Laid { lower, upper, ..laid })
    }

    /// All copies of the block are one contiguous piece.
    fn is_run(&self, block: &Placed) -> bool {
        self.run_len(&block.of)
            .is_some_and(|len| block.len == 1 || i64::try_from(len) == Ok(block.of.extent()))
    }

    /// Contiguous pieces: neighbours joined, and a repetition where they are regular.
    fn runs(&mut self, blocks: &[Placed]) -> Result<Laid, ViewError> {
        let mut pieces: Vec<(i64, u64)> = Vec::with_capacity(blocks.len());
        for block in blocks {
            let len = u128::from(self.run_len(&block.of).unwrap_or(0)) * u128::from(block.len);
            let len = self.fit_size(len)?;
            let offset = self.fit(i128::from(block.offset) + i128::from(block.of.shift))?;
            self.fit(i128::from(offset) + i128::from(len))?;
            match pieces.last_mut() {
                Some((last, last_len)) if end(*last, *last_len) == i128::from(offset) => {
                    *last_len = self.fit_size(u128::from(*last_len) + u128::from(len))?;
                }
                _ => pieces.push((offset, len)),
            }
        }
        let &(first, len) = pieces.first().ok_or(ViewError::Range { node: self.node })?;
        if pieces.len() == 1 {
            return Ok(Laid { shift: first, ..self.run(len)? });
        }
        if let Some(stride) = regular(&pieces) {
            let run = self.run(len)?;
            let repeated = self.repeat(run, pieces.len() as u64, stride)?;
            return Ok(Laid { shift: self.fit(i128::from(repeated.shift) + i128::from(first))?, ..repeated });
        }
        let mut size = 0u64;
        let mut ascends = true;
        let (mut low, mut high) = (i64::MAX, i64::MIN);
        let mut runs = Vec::with_capacity(pieces.len());
        for (offset, len) in &pieces {
            ascends &= runs.is_empty() || *offset >= high;
            (low, high) = (low.min(*offset), high.max(self.fit(end(*offset, *len))?));
            runs.push(Run { offset: *offset, place: size });
            size = self.fit_size(u128::from(size) + u128::from(*len))?;
        }
        let segments = runs.len() as u64;
        let level = Level { shape: Shape::Runs(runs.into()), size, low, high, segments, ascends, depth: 1 };
        let level = Some(self.add(level)?);
        Ok(Laid { level, shift: 0, lower: 0, upper: 0 })
    }

    /// Anything anywhere.
    fn parts(&mut self, blocks: &[Placed]) -> Result<Laid, ViewError> {
        let (mut size, mut segments, mut depth) = (0u64, 0u64, 0);
        let (mut low, mut high) = (i64::MAX, i64::MIN);
        let mut ascends = true;
        let mut parts = Vec::with_capacity(blocks.len());
        for block in blocks {
            let Some(number) = block.of.level else { continue };
            let (level, stride) = (self.level(number), block.of.extent());
            let offset = self.fit(i128::from(block.offset) + i128::from(block.of.shift))?;
            let span = i128::from(block.len - 1) * i128::from(stride);
            let from = self.fit(i128::from(offset) + i128::from(level.low) + span.min(0))?;
            let to = self.fit(i128::from(offset) + i128::from(level.high) + span.max(0))?;
            let copy = i128::from(level.high) - i128::from(level.low);
            ascends &= level.ascends && (parts.is_empty() || from >= high);
            ascends &= block.len == 1 || i128::from(stride) >= copy;
            (low, high) = (low.min(from), high.max(to));
            parts.push(Part { offset, place: size, segments, stride, of: number });
            size = self.fit_size(u128::from(size) + u128::from(level.size) * u128::from(block.len))?;
            segments = segments.saturating_add(level.segments.saturating_mul(block.len));
            depth = depth.max(level.depth + 1);
        }
        let shape = Shape::Parts(parts.into());
        let level = Some(self.add(Level { shape, size, low, high, segments, ascends, depth })?);
        Ok(Laid { level, shift: 0, lower: 0, upper: 0 })
    }

    fn subarray(
        &mut self,
        order: ArrayOrder,
        dimensions: &[SubarrayDimension],
        of: u32,
    ) -> Result<Laid, ViewError> {
        for (number, dimension) in dimensions.iter().enumerate() {
            let behind = dimension.start.checked_add(dimension.subsize);
            if behind.is_none_or(|behind| behind > dimension.size) {
                let what = "the part reaches beyond the array";
                return Err(ViewError::Dimension { node: self.node, dimension: number, what });
            }
        }
        let of = self.child(of)?;
        let sizes: Vec<u64> = dimensions.iter().map(|dimension| dimension.size).collect();
        self.array(order, &sizes, of, |compiler, dimension, of, stride| {
            let SubarrayDimension { subsize, start, .. } = dimensions[dimension];
            let rows = compiler.repeat(of, subsize, stride)?;
            let shift = i128::from(rows.shift) + i128::from(start) * i128::from(stride);
            Ok(Laid { shift: compiler.fit(shift)?, ..rows })
        })
    }

    /// An array of some of its elements: `part` takes those of one dimension, whose elements are `stride` bytes apart.
    fn array(
        &mut self,
        order: ArrayOrder,
        sizes: &[u64],
        of: Laid,
        mut part: impl FnMut(&mut Self, usize, Laid, i64) -> Result<Laid, ViewError>,
    ) -> Result<Laid, ViewError> {
        let count = sizes.len();
        if count == 0 || count > VIEW_DIMENSIONS_MAX {
            return Err(ViewError::Dimensions { node: self.node, count });
        }
        let (mut laid, mut stride) = (of, of.extent());
        for step in 0..count {
            let dimension = match order {
                ArrayOrder::C => count - 1 - step,
                ArrayOrder::Fortran => step,
            };
            laid = part(self, dimension, laid, stride)?;
            stride = self.fit(i128::from(stride) * i128::from(sizes[dimension]))?;
        }
        Ok(Laid { lower: 0, upper: stride, ..laid })
    }

    /// The elements of one dimension that a process has.
    fn dealt(&mut self, dealt: &darray::Dealt, of: Laid, stride: i64) -> Result<Laid, ViewError> {
        // Without blocks their length is no matter, nor is their distance with one.
        let block = self.repeat(of, if dealt.blocks > 0 { dealt.block_len } else { 0 }, stride)?;
        let distance = if dealt.blocks > 1 { self.scaled(dealt.distance, stride)? } else { 0 };
        let blocks = self.repeat(block, dealt.blocks, distance)?;
        let shift = i128::from(blocks.shift) + i128::from(self.scaled(dealt.start, stride)?);
        let whole = Laid { shift: self.fit(shift)?, ..blocks };
        if dealt.rest_len == 0 {
            return Ok(whole);
        }
        let rest = self.repeat(of, dealt.rest_len, stride)?;
        let shift = i128::from(rest.shift) + i128::from(self.scaled(dealt.rest_start, stride)?);
        let rest = Laid { shift: self.fit(shift)?, ..rest };
        let placed = [whole, rest].map(|of| Placed { offset: 0, len: 1, of });
        self.place(&placed)
    }

    fn scaled(&self, elements: u64, stride: i64) -> Result<i64, ViewError> {
        self.fit(i128::from(elements) * i128::from(stride))
    }
}

fn end(offset: i64, len: u64) -> i128 {
    i128::from(offset) + i128::from(len)
}

/// The distance of pieces that are of one length and at equal distances.
fn regular(pieces: &[(i64, u64)]) -> Option<i64> {
    let (&(first, len), &(second, _)) = (pieces.first()?, pieces.get(1)?);
    let stride = second - first;
    let is_regular = pieces.windows(2).all(|pair| pair[1].1 == len && pair[1].0 - pair[0].0 == stride);
    is_regular.then_some(stride)
}
