//! What a view is described by: a list of nodes, each made of earlier ones.

use std::num::NonZeroU64;

/// A description of data that is scattered over a tile. It is checked when it is compiled ([`View::new`](super::View::new)), and may
/// contradict itself until then.
///
/// ```
/// use dafs_proto::view::{Datatype, View};
/// // Every third block of 8 bytes, 100 of them, out of rows of 4,096 bytes.
/// let column = Datatype::bytes(8).vector(100, 1, 3).resized(0, 4096);
/// assert_eq!(View::new(&column)?.size(), 800);
/// # Ok::<(), dafs_proto::view::ViewError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Datatype {
    nodes: Vec<Node>,
}

/// `len` copies of a node side by side, each as far behind the one before as the node's extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Copies.
    pub len: u64,
    /// Where they begin: bytes, or extents of the node.
    pub displacement: i64,
}

/// A [`Block`] that names what it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructBlock {
    /// Copies.
    pub len: u64,
    /// Where they begin, bytes.
    pub displacement: i64,
    /// The node.
    pub of: u32,
}

/// Which dimension of an array changes with the next element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ArrayOrder {
    /// The last.
    #[default]
    C,
    /// The first.
    Fortran,
}

/// A dimension of an array, and the part of it that is wanted; elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubarrayDimension {
    /// Of the array.
    pub size: u64,
    /// Of the part.
    pub subsize: u64,
    /// Where the part begins.
    pub start: u64,
}

/// How a dimension of an array is dealt out to processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Not at all: there is one process.
    None,
    /// One block each, of so many elements, or of as many as it takes.
    Block(Option<NonZeroU64>),
    /// Blocks of so many elements in turn, or of one.
    Cyclic(Option<NonZeroU64>),
}

/// A dimension of a distributed array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DarrayDimension {
    /// Elements of the array.
    pub size: u64,
    /// How they are dealt out.
    pub distribution: Distribution,
    /// Processes along it.
    pub processes: u32,
}

/// A node of a description. `of` is the number of an earlier one. The constructors are those of MPI (MPI 4.1, §5.1.2 to §5.1.4 and §5.1.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Bytes side by side.
    Bytes {
        /// How many.
        len: u64,
    },
    /// Copies side by side.
    Contiguous {
        /// How many.
        count: u64,
        /// Of what.
        of: u32,
    },
    /// Blocks at regular distances.
    Vector {
        /// Blocks.
        count: u64,
        /// Copies in a block.
        block_len: u64,
        /// From one block to the next: extents, or bytes.
        stride: i64,
        /// The distance is in bytes.
        in_bytes: bool,
        /// Of what.
        of: u32,
    },
    /// Blocks of any length anywhere.
    Indexed {
        /// The blocks.
        blocks: Vec<Block>,
        /// Displacements are in bytes, not in extents.
        in_bytes: bool,
        /// Of what.
        of: u32,
    },
    /// Blocks of one length anywhere.
    IndexedBlock {
        /// Copies in a block.
        block_len: u64,
        /// Where the blocks begin: extents, or bytes.
        displacements: Vec<i64>,
        /// Displacements are in bytes.
        in_bytes: bool,
        /// Of what.
        of: u32,
    },
    /// Blocks of different things, displacements in bytes.
    Struct {
        /// The blocks.
        blocks: Vec<StructBlock>,
    },
    /// A part of an array. The tile is all of the array.
    Subarray {
        /// Which dimension is the fastest.
        order: ArrayOrder,
        /// The dimensions.
        dimensions: Vec<SubarrayDimension>,
        /// Of what.
        of: u32,
    },
    /// One process's part of an array that is dealt out to a grid of processes. The tile is all of the array.
    Darray {
        /// Processes.
        size: u32,
        /// Which of them.
        rank: u32,
        /// Which dimension is the fastest; the grid is always in the order of C.
        order: ArrayOrder,
        /// The dimensions.
        dimensions: Vec<DarrayDimension>,
        /// Of what.
        of: u32,
    },
    /// The same data with other bounds: what a copy beside it begins behind.
    Resized {
        /// Lower bound, bytes.
        lower: i64,
        /// Extent, bytes.
        extent: i64,
        /// Of what.
        of: u32,
    },
}

impl Datatype {
    /// A description of these nodes. The last is what it describes.
    pub fn from_nodes(nodes: Vec<Node>) -> Self {
        Self { nodes }
    }

    /// The nodes. The last is what it describes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Bytes side by side.
    pub fn bytes(len: u64) -> Self {
        Self { nodes: vec![Node::Bytes { len }] }
    }

    /// `count` copies side by side.
    pub fn contiguous(self, count: u64) -> Self {
        self.then(|of| Node::Contiguous { count, of })
    }

    /// `count` blocks of `block_len` copies, `stride` extents apart.
    pub fn vector(self, count: u64, block_len: u64, stride: i64) -> Self {
        self.then(|of| Node::Vector { count, block_len, stride, in_bytes: false, of })
    }

    /// `count` blocks of `block_len` copies, `stride` bytes apart.
    pub fn hvector(self, count: u64, block_len: u64, stride: i64) -> Self {
        self.then(|of| Node::Vector { count, block_len, stride, in_bytes: true, of })
    }

    /// Blocks at displacements in extents.
    pub fn indexed(self, blocks: &[Block]) -> Self {
        self.then(|of| Node::Indexed { blocks: blocks.to_vec(), in_bytes: false, of })
    }

    /// Blocks at displacements in bytes.
    pub fn hindexed(self, blocks: &[Block]) -> Self {
        self.then(|of| Node::Indexed { blocks: blocks.to_vec(), in_bytes: true, of })
    }

    /// Blocks of `block_len` copies at displacements in extents.
    pub fn indexed_block(self, block_len: u64, displacements: &[i64]) -> Self {
        let displacements = displacements.to_vec();
        self.then(|of| Node::IndexedBlock { block_len, displacements, in_bytes: false, of })
    }

    /// Blocks of `block_len` copies at displacements in bytes.
    pub fn hindexed_block(self, block_len: u64, displacements: &[i64]) -> Self {
        let displacements = displacements.to_vec();
        self.then(|of| Node::IndexedBlock { block_len, displacements, in_bytes: true, of })
    }

    /// Blocks of different datatypes: copies, displacement in bytes, datatype.
    pub fn structure(blocks: &[(u64, i64, &Self)]) -> Self {
        let mut nodes = Vec::new();
        let mut parts = Vec::with_capacity(blocks.len());
        for &(len, displacement, datatype) in blocks {
            let before = number(nodes.len());
            nodes.extend(datatype.nodes.iter().map(|node| node.moved(before)));
            parts.push(StructBlock { len, displacement, of: number(nodes.len()).wrapping_sub(1) });
        }
        nodes.push(Node::Struct { blocks: parts });
        Self { nodes }
    }

    /// A part of an array.
    pub fn subarray(self, order: ArrayOrder, dimensions: &[SubarrayDimension]) -> Self {
        self.then(|of| Node::Subarray { order, dimensions: dimensions.to_vec(), of })
    }

    /// What process `rank` of `size` has of an array that is dealt out to a grid.
    pub fn darray(self, size: u32, rank: u32, order: ArrayOrder, dimensions: &[DarrayDimension]) -> Self {
        self.then(|of| Node::Darray { size, rank, order, dimensions: dimensions.to_vec(), of })
    }

    /// The same data with other bounds, bytes.
    pub fn resized(self, lower: i64, extent: i64) -> Self {
        self.then(|of| Node::Resized { lower, extent, of })
    }

    fn then(mut self, node: impl FnOnce(u32) -> Node) -> Self {
        let of = number(self.nodes.len()).wrapping_sub(1);
        self.nodes.push(node(of));
        self
    }
}

/// A count of nodes. One that does not fit is refused when it is compiled, for there are too many nodes then.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Node {
    /// The same, behind `before` other nodes.
    fn moved(&self, before: u32) -> Self {
        let mut node = self.clone();
        for of in node.children_mut() {
            *of = of.saturating_add(before);
        }
        node
    }

    /// Entries of its list.
    pub(super) fn entry_count(&self) -> usize {
        match self {
            Self::Bytes { .. } | Self::Contiguous { .. } | Self::Vector { .. } | Self::Resized { .. } => 0,
            Self::Indexed { blocks, .. } => blocks.len(),
            Self::IndexedBlock { displacements, .. } => displacements.len(),
            Self::Struct { blocks } => blocks.len(),
            Self::Subarray { dimensions, .. } => dimensions.len(),
            Self::Darray { dimensions, .. } => dimensions.len(),
        }
    }

    fn children_mut(&mut self) -> Vec<&mut u32> {
        match self {
            Self::Bytes { .. } => Vec::new(),
            Self::Struct { blocks } => blocks.iter_mut().map(|block| &mut block.of).collect(),
            Self::Contiguous { of, .. }
            | Self::Vector { of, .. }
            | Self::Indexed { of, .. }
            | Self::IndexedBlock { of, .. }
            | Self::Subarray { of, .. }
            | Self::Darray { of, .. }
            | Self::Resized { of, .. } => vec![of],
        }
    }
}
