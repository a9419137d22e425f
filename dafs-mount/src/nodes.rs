//! The nodes that the kernel knows: which file of the server each is, and under which name it was seen last.
//!
//! A number is never used twice, so a node of the kernel is never another file.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dafs_client::{Attributes, FileKind};

use crate::kernel::errno::{Answer, Errno};
use crate::kernel::request::Name;

/// The root of the mount.
pub(crate) const ROOT: u64 = 1;

/// What tells a file of the server from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    fs_id: u64,
    file_id: u64,
    generation: u64,
    kind: FileKind,
}

impl Identity {
    pub(crate) fn of(attributes: &Attributes) -> Self {
        let Attributes { fs_id, file_id, generation, kind, .. } = *attributes;
        Self { fs_id, file_id, generation, kind }
    }
}

/// Where a node was seen last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) parent: u64,
    pub(crate) name: Rc<[u8]>,
}

#[derive(Debug)]
struct Node {
    identity: Identity,
    place: Place,
    /// How often the kernel was told of it, less how often it forgot.
    lookups: u64,
    /// The change attribute when the kernel was last let keep what it has cached of the data.
    cached: Option<u64>,
    /// The kernel was told that its name is another file's by now, and is to look it up again.
    was_called_stale: bool,
    /// Whether it has a default access control list, and how long that is believed.
    default_list: Option<(bool, Instant)>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: HashMap<u64, Node>,
    by_identity: HashMap<Identity, u64>,
    by_place: HashMap<Place, u64>,
    next: u64,
}

impl Nodes {
    pub(crate) fn new(root: &Attributes) -> Self {
        let identity = Identity::of(root);
        let place = Place { parent: ROOT, name: Rc::from(*b"") };
        let node =
            Node { identity, place, lookups: 1, cached: None, was_called_stale: false, default_list: None };
        Self {
            nodes: HashMap::from([(ROOT, node)]),
            by_identity: HashMap::from([(identity, ROOT)]),
            by_place: HashMap::new(),
            next: ROOT + 1,
        }
    }

    /// The kernel is about to be told of a file that has this name now; returns its number.
    pub(crate) fn look_up(&mut self, parent: u64, name: &[u8], attributes: &Attributes) -> u64 {
        let identity = Identity::of(attributes);
        let number = *self.by_identity.entry(identity).or_insert_with(|| {
            let number = self.next;
            self.next += 1;
            number
        });
        if number == ROOT {
            return ROOT;
        }
        match self.nodes.get_mut(&number) {
            Some(node) => {
                node.lookups += 1;
                if node.place.parent != parent || *node.place.name != *name {
                    self.put(number, Place { parent, name: name.into() });
                }
            }
            None => {
                let place = Place { parent, name: name.into() };
                self.by_place.insert(place.clone(), number);
                self.nodes.insert(
                    number,
                    Node {
                        identity,
                        place,
                        lookups: 1,
                        cached: None,
                        was_called_stale: false,
                        default_list: None,
                    },
                );
            }
        }
        number
    }

    /// A node is at another place now.
    fn put(&mut self, number: u64, place: Place) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let before = std::mem::replace(&mut node.place, place.clone());
        self.leave(number, &before);
        self.by_place.insert(place, number);
    }

    fn leave(&mut self, number: u64, place: &Place) {
        if self.by_place.get(place) == Some(&number) {
            self.by_place.remove(place);
        }
    }

    /// The number of a file that the kernel knows.
    pub(crate) fn number_of(&self, attributes: &Attributes) -> Answer<u64> {
        self.by_identity.get(&Identity::of(attributes)).copied().ok_or(Errno::STALE)
    }

    /// The kernel was told of it once: of what it is about to be told now, it has nothing cached.
    pub(crate) fn is_new(&self, number: u64) -> bool {
        self.nodes.get(&number).is_some_and(|node| node.lookups == 1)
    }

    /// The kernel forgets a node so many times; whether it knows it no more.
    pub(crate) fn forget(&mut self, number: u64, times: u64) -> bool {
        let Some(node) = self.nodes.get_mut(&number) else { return false };
        node.lookups = node.lookups.saturating_sub(times);
        if node.lookups > 0 || number == ROOT {
            return false;
        }
        let Some(node) = self.nodes.remove(&number) else { return false };
        self.by_identity.remove(&node.identity);
        self.leave(number, &node.place);
        true
    }

    pub(crate) fn place(&self, number: u64) -> Answer<Place> {
        self.nodes.get(&number).map(|node| node.place.clone()).ok_or(Errno::STALE)
    }

    pub(crate) fn is(&self, number: u64, attributes: &Attributes) -> bool {
        self.nodes.get(&number).is_some_and(|node| node.identity == Identity::of(attributes))
    }

    /// What was at one place is at another now.
    pub(crate) fn renamed(&mut self, from: (u64, &[u8]), to: (u64, &Name)) {
        let from = Place { parent: from.0, name: from.1.into() };
        if let Some(number) = self.by_place.get(&from).copied() {
            self.put(number, Place { parent: to.0, name: Rc::from(&**to.1) });
        }
    }

    /// Each of two places has what the other had.
    pub(crate) fn exchanged(&mut self, from: (u64, &Name), to: (u64, &Name)) {
        let place = |(parent, name): (u64, &Name)| Place { parent, name: Rc::from(&**name) };
        let (from, to) = (place(from), place(to));
        let [one, other] = [&from, &to].map(|place| self.by_place.get(place).copied());
        one.inspect(|number| self.put(*number, to.clone()));
        other.inspect(|number| self.put(*number, from));
    }

    /// Its name is another file's, or gone. The kernel is to look the name up again; where it asks for the same node once more, it means
    /// the node and not the name: true.
    pub(crate) fn is_meant(&mut self, number: u64) -> bool {
        let Some(node) = self.nodes.get_mut(&number) else { return false };
        node.was_called_stale = !node.was_called_stale;
        !node.was_called_stale
    }

    /// Whether a directory has a default access control list; `None` where that must be asked.
    pub(crate) fn has_default_list(&self, number: u64) -> Option<bool> {
        let (has, until) = self.nodes.get(&number)?.default_list?;
        (Instant::now() < until).then_some(has)
    }

    /// The server has said so; it is believed for so long.
    pub(crate) fn note_default_list(&mut self, number: u64, has: bool, valid: Duration) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.default_list = Some((has, Instant::now() + valid));
        }
    }

    /// It was perhaps changed from here.
    pub(crate) fn forget_default_list(&mut self, number: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.default_list = None;
        }
    }

    /// The file is opened and has this change attribute: whether what the kernel has cached of its data is still true.
    pub(crate) fn opened(&mut self, number: u64, change: u64) -> bool {
        let Some(node) = self.nodes.get_mut(&number) else { return false };
        node.cached.replace(change) == Some(change)
    }

    /// The data is changed from here. Others may change it between that and the next look at the change attribute, so what the kernel has
    /// cached counts as old from now on.
    pub(crate) fn changed_here(&mut self, number: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.cached = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use dafs_client::Timestamp;

    use super::*;

    fn attributes(file_id: u64, generation: u64) -> Attributes {
        let time = Timestamp::default();
        Attributes {
            kind: FileKind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            file_id,
            fs_id: 1,
            atime: time,
            mtime: time,
            ctime: time,
            device: 0,
            generation,
            change: 0,
        }
    }

    #[test]
    fn number_of_a_forgotten_node_is_not_given_again() {
        let mut nodes = Nodes::new(&attributes(1, 1));
        let first = nodes.look_up(ROOT, b"a", &attributes(2, 1));
        assert_eq!(nodes.look_up(ROOT, b"b", &attributes(2, 1)), first, "another name of the file");
        assert!(!nodes.forget(first, 1));
        assert!(nodes.forget(first, 1));
        assert!(nodes.place(first).is_err());
        let second = nodes.look_up(ROOT, b"a", &attributes(2, 2));
        assert_ne!(first, second);
        assert!(!nodes.forget(ROOT, u64::MAX), "the root stays");
    }

    #[test]
    fn renamed_node_is_found_at_its_new_place() {
        let mut nodes = Nodes::new(&attributes(1, 1));
        let node = nodes.look_up(ROOT, b"a", &attributes(2, 1));
        nodes.renamed((ROOT, b"a"), (7, &Name::from(*b"b")));
        let place = nodes.place(node).unwrap();
        assert_eq!((place.parent, &*place.name), (7, &b"b"[..]));
    }
}
