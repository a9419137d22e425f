//! What threads of a cluster's part have to do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_proto::transport::util::lock;

use super::host::{EventCount, Host};

/// In the order in which it came.
pub(super) struct Queue<T> {
    inside: Mutex<Inside<T>>,
    changed: Arc<dyn EventCount>,
}

struct Inside<T> {
    items: VecDeque<T>,
    is_closed: bool,
}

/// What a thread finds there.
pub(super) enum Found<T> {
    Item(T),
    /// Nothing has come in time.
    Nothing,
    /// Nothing is there, and nothing will come.
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new(host: &dyn Host) -> Self {
        let inside = Inside { items: VecDeque::new(), is_closed: false };
        Self { inside: Mutex::new(inside), changed: host.event_count() }
    }

    /// Adds something, or drops it where nobody will look.
    pub(super) fn push(&self, item: T) {
        let mut inside = lock(&self.inside);
        if !inside.is_closed {
            inside.items.push_back(item);
            drop(inside);
            self.changed.advance_one();
        }
    }

    /// The first, if there is any.
    pub(super) fn try_pop(&self) -> Option<T> {
        lock(&self.inside).items.pop_front()
    }

    /// The first, for which this waits for a time at most. Blocks.
    pub(super) fn pop(&self, time_max: Duration) -> Found<T> {
        let seen = self.changed.read();
        if let Some(found) = self.look() {
            return found;
        }
        self.changed.wait(seen, time_max);
        self.look().unwrap_or(Found::Nothing)
    }

    fn look(&self) -> Option<Found<T>> {
        let mut inside = lock(&self.inside);
        let item = inside.items.pop_front().map(Found::Item);
        item.or(inside.is_closed.then_some(Found::Closed))
    }

    /// Nothing comes any more.
    pub(super) fn close(&self) {
        lock(&self.inside).is_closed = true;
        self.changed.advance();
    }
}
