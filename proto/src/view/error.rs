use thiserror::Error;

use crate::extent::OFFSET_MAX;

use super::{VIEW_DEPTH_MAX, VIEW_DIMENSIONS_MAX, VIEW_ENTRIES_MAX, VIEW_LEVELS_MAX, VIEW_NODES_MAX};

/// A description that is no view, or a range that a view does not have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ViewError {
    /// No node at all, or too many.
    #[error("a view of {count} nodes; it must have 1 to {VIEW_NODES_MAX}")]
    Nodes {
        /// How many.
        count: usize,
    },
    /// The lists of all nodes are too long.
    #[error("lists of {count} entries in a view; the limit is {VIEW_ENTRIES_MAX}")]
    Entries {
        /// How many, of all nodes.
        count: usize,
    },
    /// A node is made of one that does not stand before it.
    #[error("node {node} is made of node {of}, which does not stand before it")]
    Child {
        /// The node.
        node: usize,
        /// What it names.
        of: u32,
    },
    /// Too deep.
    #[error("node {node} nests {depth} levels deep; the limit is {VIEW_DEPTH_MAX}")]
    Depth {
        /// The node.
        node: usize,
        /// Levels.
        depth: u32,
    },
    /// All nodes together are too many levels.
    #[error("node {node} is one of too many levels; the limit is {VIEW_LEVELS_MAX} in all")]
    Levels {
        /// The node.
        node: usize,
    },
    /// Sizes or positions are beyond what a file can have.
    #[error("node {node} reaches further than any file ({OFFSET_MAX} bytes)")]
    Range {
        /// The node.
        node: usize,
    },
    /// An array whose dimensions contradict each other.
    #[error("node {node}, dimension {dimension}: {what}")]
    Dimension {
        /// The node.
        node: usize,
        /// Counted from 0.
        dimension: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// An array of no dimensions, or of too many.
    #[error("node {node} has {count} dimensions; it must have 1 to {VIEW_DIMENSIONS_MAX}")]
    Dimensions {
        /// The node.
        node: usize,
        /// How many.
        count: usize,
    },
    /// The process grid of a distributed array is not that of its processes.
    #[error("node {node}: process {rank} of {size}, in a grid of {grid}")]
    Grid {
        /// The node.
        node: usize,
        /// The process.
        rank: u32,
        /// How many there are.
        size: u32,
        /// How many the grid holds.
        grid: u64,
    },
    /// The view holds no byte, and some are asked for.
    #[error("{len} bytes of a view that holds none")]
    Empty {
        /// Bytes asked for.
        len: u64,
    },
    /// A segment lies before the beginning of the file, or beyond the end of any.
    #[error("bytes {place} to {end} of the view's data lie before the file or beyond {OFFSET_MAX}")]
    Outside {
        /// The first place.
        place: u64,
        /// The place behind the last.
        end: u64,
    },
}
