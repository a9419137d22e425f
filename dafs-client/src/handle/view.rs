use std::sync::{Arc, Weak};

use dafs_proto::view::View;
use dafs_proto::wire::{HEADER_SIZE, ViewSetRequest};

use crate::handle::closings::{Closing, Closings};

/// A view that this session has described to the server. Outlives sessions: in a new one it is described again, under the same number.
pub(crate) struct ViewNode {
    /// Its number, which no other view of the session has had.
    pub(crate) number: u32,
    pub(crate) view: View,
    /// As the server takes it.
    pub(crate) description: Vec<u8>,
    closings: Arc<Closings>,
}

impl ViewNode {
    pub(crate) fn new(number: u32, view: View, description: Vec<u8>, closings: Arc<Closings>) -> Self {
        Self { number, view, description, closings }
    }
}

impl Drop for ViewNode {
    fn drop(&mut self) {
        self.closings.put(Closing::View(self.number));
        self.closings.hasten(false);
    }
}

/// The views of a session.
#[derive(Default)]
pub(crate) struct Views {
    nodes: Vec<Weak<ViewNode>>,
    numbers: u32,
}

impl Views {
    /// A number that no view of the session has had: 2^32 of them are more than anybody describes.
    pub(crate) fn next_number(&mut self) -> u32 {
        self.numbers = self.numbers.wrapping_add(1);
        self.numbers
    }

    pub(crate) fn insert(&mut self, node: &Arc<ViewNode>) {
        self.nodes.push(Arc::downgrade(node));
    }

    pub(crate) fn remove_dropped(&mut self) {
        self.nodes.retain(|node| node.strong_count() > 0);
    }

    /// Those that a new session has to know.
    pub(crate) fn living(&self) -> Vec<Arc<ViewNode>> {
        self.nodes.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Bytes of the body of a request that describes a view.
const SET_BODY_SIZE: usize = ViewSetRequest::HEAD_SIZE - HEADER_SIZE;

/// The requests that describe a view: body and payload of each, which is at most `part_max` bytes.
#[allow(clippy::cast_possible_truncation, reason = "descriptions are at most VIEW_DESCRIPTION_SIZE_MAX")]
pub(crate) fn set_requests(
    view: u32,
    description: &[u8],
    part_max: usize,
) -> impl Iterator<Item = ([u8; SET_BODY_SIZE], &[u8])> {
    let description_len = description.len() as u32;
    description.chunks(part_max).enumerate().map(move |(number, part)| {
        let request = ViewSetRequest { view, description_len, offset: (number * part_max) as u32 };
        (request.bytes(), part)
    })
}
