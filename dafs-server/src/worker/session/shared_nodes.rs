//! Nodes of storage that have more than one holder: handles of several sessions, tokens, operations.
//!
//! A node that storage opened has one holder and is not listed here. It is closed when its last holder lets go of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::storage::NodeId;

/// Counts the holders of nodes that have several.
#[derive(Debug, Default)]
pub(crate) struct SharedNodes {
    /// Holders beside the first.
    others: HashMap<NodeId, u32>,
}

impl SharedNodes {
    /// Somebody else holds an open node from now on, until [`SharedNodes::release`].
    pub(crate) fn hold(&mut self, node: NodeId) {
        *self.others.entry(node).or_insert(0) += 1;
    }

    /// A holder lets go. True for the last: the node is to be closed.
    #[must_use = "a node without holders is to be closed"]
    pub(crate) fn release(&mut self, node: NodeId) -> bool {
        // Nearly always: nothing is shared.
        if self.others.is_empty() {
            return true;
        }
        match self.others.entry(node) {
            Entry::Vacant(_) => true,
            Entry::Occupied(mut others) => {
                *others.get_mut() -= 1;
                if *others.get() == 0 {
                    others.remove();
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::ExportId;

    fn node(index: u32) -> NodeId {
        NodeId { export: ExportId(0), index, generation: 0 }
    }

    // [SESS-75]
    #[test]
    fn node_of_one_holder_is_closed_by_its_release() {
        let mut nodes = SharedNodes::default();
        assert!(nodes.release(node(1)));
        nodes.hold(node(2));
        assert!(nodes.release(node(1)), "another is shared");
    }

    // [SESS-75]
    #[test]
    fn node_of_many_holders_is_closed_by_the_last_release() {
        let mut nodes = SharedNodes::default();
        for _ in 0..3 {
            nodes.hold(node(1));
            nodes.hold(NodeId { generation: 1, ..node(1) });
        }
        for _ in 0..3 {
            assert!(!nodes.release(node(1)));
        }
        assert!(nodes.release(node(1)));
        nodes.hold(node(1));
        assert!(!nodes.release(node(1)), "it may be shared again");
        assert!(nodes.release(node(1)));
        for last in [false, false, false, true] {
            assert_eq!(nodes.release(NodeId { generation: 1, ..node(1) }), last, "the place's next node");
        }
        assert!(nodes.others.is_empty());
    }
}
