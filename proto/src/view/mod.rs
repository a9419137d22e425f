//! Views: which bytes of a file a session sees, described once and expanded where they are needed. Pure arithmetic.
//!
//! A [`Datatype`] says where the data of one *tile* lies, as the datatypes of MPI do (MPI 4.1, §5.1). A [`View`] is what it is compiled
//! to. In a file the tile is repeated without end from a displacement on, one extent behind the other. Byte `n` of the data of all tiles
//! is the byte at *place* `n`. A range of places is a list of file extents, the *segments*, in the order of the data. Nothing is
//! expanded before it is asked for: a view of a thousand million segments costs what its description takes (Hong, You and Chung, "An
//! Efficient MPI-IO for Noncontiguous Data Access over InfiniBand", 2005).

mod compile;
mod darray;
mod datatype;
mod error;
mod segments;
#[cfg(test)]
mod tests;

pub use compile::View;
pub use datatype::{
    ArrayOrder, Block, DarrayDimension, Datatype, Distribution, Node, StructBlock, SubarrayDimension,
};
pub use error::ViewError;
pub use segments::Segments;

/// Nodes of a description.
pub const VIEW_NODES_MAX: usize = 4096;

/// Entries of the lists of all nodes together: blocks, displacements and dimensions.
pub const VIEW_ENTRIES_MAX: usize = 65_536;

/// Levels of a compiled view: each array dimension, vector and list of blocks is one.
pub const VIEW_DEPTH_MAX: u32 = 64;

/// Levels that all nodes of a description become together.
pub const VIEW_LEVELS_MAX: usize = 65_536;

/// Dimensions of an array.
pub const VIEW_DIMENSIONS_MAX: usize = 32;

/// Segments that one request may touch.
pub const VIEW_SEGMENTS_MAX: u64 = 262_144;
