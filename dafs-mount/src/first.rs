//! Something that is done once at a time for each key, while others who want it done wait.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;

use futures_channel::oneshot;

/// Who waits, for each key that somebody is busy with.
pub(crate) struct OnceAtATime<K> {
    waiting: RefCell<HashMap<K, Vec<oneshot::Sender<()>>>>,
}

/// Whoever is busy with a key. When he is done, has failed, or was interrupted, those who wait go on.
pub(crate) struct First<'a, K: Eq + Hash> {
    of: &'a OnceAtATime<K>,
    key: K,
}

impl<K> Default for OnceAtATime<K> {
    fn default() -> Self {
        Self { waiting: RefCell::default() }
    }
}

impl<K: Clone + Eq + Hash> OnceAtATime<K> {
    /// Nobody else is busy with the key. Where somebody is, waits until he is not, and returns `None`: perhaps it is done by now.
    pub(crate) async fn first(&self, key: &K) -> Option<First<'_, K>> {
        let receiver = {
            let mut waiting = self.waiting.borrow_mut();
            let Some(others) = waiting.get_mut(key) else {
                waiting.insert(key.clone(), Vec::new());
                return Some(First { of: self, key: key.clone() });
            };
            let (sender, receiver) = oneshot::channel();
            others.push(sender);
            receiver
        };
        let _ = receiver.await;
        None
    }
}

impl<K: Eq + Hash> Drop for First<'_, K> {
    fn drop(&mut self) {
        // Without a sender a receiver waits no more.
        self.of.waiting.borrow_mut().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use futures_util::future::pending;

    use super::*;

    #[test]
    fn those_who_wait_go_on_when_the_first_is_interrupted() {
        let busy = OnceAtATime::default();
        let mut connects = Box::pin(async {
            let first = busy.first(&"user").await;
            assert!(first.is_some());
            pending::<()>().await;
        });
        assert!((&mut connects).now_or_never().is_none());
        let mut waits = pin!(busy.first(&"user"));
        assert!((&mut waits).now_or_never().is_none());
        assert!(busy.first(&"another").now_or_never().is_some(), "another is not waited for");
        drop(connects);
        assert!(matches!(waits.now_or_never(), Some(None)), "whoever waited looks again");
        assert!(matches!(busy.first(&"user").now_or_never(), Some(Some(_))), "and may be the first");
    }
}
