//! Where the bytes of a transfer lie, in memory and in the file: flattened datatypes and views, and the lists that come of them. Pure
//! arithmetic: it reads no memory, asks no server, and imports nothing of this crate.

mod group;
mod pieces;
mod source;
#[cfg(test)]
mod tests;
mod types;

pub use group::{Group, GroupLimits, MemoryPart, Stretch, next_group};
pub use pieces::{PieceGroup, Pieces};
pub use source::{Segment, Segments, Source};
pub use types::{Instances, LayoutError, Type, View};
