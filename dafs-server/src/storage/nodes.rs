//! Tables of open nodes.

use super::{ExportId, NodeId};

/// Open nodes by place; a place used again has a new generation.
pub(super) struct NodeTable<T> {
    export: ExportId,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Nodes but the root.
    len: usize,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

const ROOT_INDEX: u32 = 0;

impl<T> NodeTable<T> {
    /// A table with the root in it, which stays.
    pub(super) fn new(export: ExportId, root: T) -> Self {
        Self { export, slots: vec![Slot { generation: 0, value: Some(root) }], free: Vec::new(), len: 0 }
    }

    pub(super) fn root(&self) -> NodeId {
        NodeId { export: self.export, index: ROOT_INDEX, generation: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, id: NodeId) -> Option<&T> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation == id.generation { slot.value.as_ref() } else { None }
    }

    /// `None` when no place is left.
    pub(super) fn insert(&mut self, value: T) -> Option<NodeId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { generation: 0, value: None });
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        self.len += 1;
        Some(NodeId { export: self.export, index, generation: slot.generation })
    }

    /// Takes a node out; not the root.
    pub(super) fn remove(&mut self, id: NodeId) -> Option<T> {
        if id.index == ROOT_INDEX {
            return None;
        }
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let value = slot.value.take()?;
        self.len -= 1;
        // A place whose generations are used up is never used again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(id.index);
        }
        Some(value)
    }

    /// Removes all nodes but the root.
    pub(super) fn clear(&mut self) {
        for index in 1..self.slots.len() {
            let generation = self.slots[index].generation;
            if let Ok(index) = u32::try_from(index) {
                self.remove(NodeId { export: self.export, index, generation });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_node_used_again_is_not_found() {
        let mut table = NodeTable::new(ExportId(3), "root");
        let a = table.insert("a").unwrap();
        assert_eq!(table.remove(a), Some("a"));
        let b = table.insert("b").unwrap();
        assert_eq!(a.index, b.index, "the place is used again");
        assert_eq!(table.get(a), None);
        assert_eq!(table.remove(a), None);
        assert_eq!(table.get(b), Some(&"b"));
    }

    #[test]
    fn root_removed_stays() {
        let mut table = NodeTable::new(ExportId(3), "root");
        assert_eq!(table.remove(table.root()), None);
        assert_eq!(table.get(table.root()), Some(&"root"));
    }

    #[test]
    fn place_whose_generations_are_used_up_is_not_used_again() {
        let mut table = NodeTable::new(ExportId(0), "root");
        let a = table.insert("a").unwrap();
        table.slots[a.index as usize].generation = u32::MAX;
        let last = NodeId { generation: u32::MAX, ..a };
        assert_eq!(table.remove(last), Some("a"));
        assert_ne!(table.insert("b").unwrap().index, a.index);
        assert_eq!(table.get(last), None);
    }
}
