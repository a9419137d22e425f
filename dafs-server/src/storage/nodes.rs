//! Tables of what is open, whose names are never mistaken for those of something that had the same place.

use super::{ExportId, NodeId};

/// Values by place; a place used again has a new generation.
#[derive(Debug)]
pub(crate) struct Places<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A place whose generations are used up is never used again.
const GENERATION_MAX: u32 = i32::MAX as u32 - 1;

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Places<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What is there.
    #[inline]
    pub(crate) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let slot = self.slots.get(index as usize)?;
        if slot.generation == generation { slot.value.as_ref() } else { None }
    }

    /// Its place and generation; `None` when no place is left.
    pub(crate) fn insert(&mut self, value: T) -> Option<(u32, u32)> {
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
        Some((index, slot.generation))
    }

    /// Takes a value out.
    pub(crate) fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation)?;
        let value = slot.value.take()?;
        self.len -= 1;
        if slot.generation < GENERATION_MAX {
            slot.generation += 1;
            self.free.push(index);
        }
        Some(value)
    }

    /// All values.
    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().filter_map(|slot| slot.value)
    }
}

/// The nodes of an export, its root among them.
pub(super) struct NodeTable<T> {
    export: ExportId,
    places: Places<T>,
}

const ROOT_INDEX: u32 = 0;

impl<T> NodeTable<T> {
    /// A table with the root in it, which stays.
    pub(super) fn new(export: ExportId, root: T) -> Self {
        let mut places = Places::default();
        places.insert(root);
        Self { export, places }
    }

    pub(super) fn root(&self) -> NodeId {
        NodeId { export: self.export, index: ROOT_INDEX, generation: 0 }
    }

    /// Nodes but the root.
    pub(super) fn len(&self) -> usize {
        self.places.len() - 1
    }

    #[inline]
    pub(super) fn get(&self, id: NodeId) -> Option<&T> {
        self.places.get(id.index, id.generation)
    }

    /// `None` when no place is left.
    pub(super) fn insert(&mut self, value: T) -> Option<NodeId> {
        let (index, generation) = self.places.insert(value)?;
        Some(NodeId { export: self.export, index, generation })
    }

    /// Takes a node out; not the root.
    pub(super) fn remove(&mut self, id: NodeId) -> Option<T> {
        if id.index == ROOT_INDEX { None } else { self.places.remove(id.index, id.generation) }
    }

    /// Removes all nodes but the root.
    pub(super) fn clear(&mut self) {
        for index in 1..u32::try_from(self.places.slots.len()).unwrap_or(u32::MAX) {
            self.places.remove(index, self.places.slots[index as usize].generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [STOR-19] [STOR-85]
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

    // [STOR-19]
    #[test]
    fn place_whose_generations_are_used_up_is_not_used_again() {
        let mut table = NodeTable::new(ExportId(0), "root");
        let a = table.insert("a").unwrap();
        table.places.slots[a.index as usize].generation = GENERATION_MAX;
        let last = NodeId { generation: GENERATION_MAX, ..a };
        assert_eq!(table.remove(last), Some("a"));
        assert_ne!(table.insert("b").unwrap().index, a.index);
        assert_eq!(table.get(last), None);
    }
}
