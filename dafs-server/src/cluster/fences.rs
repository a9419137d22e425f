//! Fence lists of all servers of a cluster: they stand in the store. Whoever replaces one is answered when every server has put it into
//! effect, or can write no more.

use std::sync::Arc;
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{FenceList, Status, encode_message_pack};

use super::coordination::{Change, Compare, CoordinationError, Entry, Transaction};
use super::core::{Core, SharedExport};

/// Between two looks whether all servers have a list.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// A server that neither has it nor is taken over for so many terms is waited for no longer.
const TERMS_MAX: u32 = 3;

fn list_of(entry: Option<&Entry>) -> Option<FenceList> {
    match entry {
        None => Some(FenceList::default()),
        Some(entry) => rmp_serde::from_slice(&entry.value).ok(),
    }
}

/// Up to which revision a server has put a list into effect, as it says.
fn applied_in(entry: &Entry) -> Option<u64> {
    std::str::from_utf8(&entry.value).ok()?.parse().ok()
}

impl Core {
    /// Replaces the list of an export, and waits until all servers have it. Blocks.
    pub(super) fn replace_fence(
        &self,
        export: &str,
        list: &FenceList,
        before: Option<[u8; 32]>,
    ) -> Result<Status, CoordinationError> {
        let key = self.keys.fence(export);
        loop {
            let (entries, revision) = self.store.read(&key)?;
            self.hear(revision);
            let found = entries.iter().find(|entry| entry.key == key);
            let Some(current) = list_of(found) else { return Ok(Status::IO) };
            if before.is_some_and(|before| before != current.sum()) {
                return Ok(Status::NOT_SAME);
            }
            let live = Compare::Present(self.keys.live_server(self.number));
            let at = Compare::At(key.clone(), found.map_or(0, |entry| entry.revision));
            let replaced = self.commit(&Transaction {
                compares: vec![live, at],
                changes: vec![Change::Put(key.clone(), encode_message_pack(list), None)],
                reads: Vec::new(),
            })?;
            if replaced.succeeded {
                self.wake();
                return self.await_fence(export, replaced.revision);
            }
            if !self.is_current() {
                return Err(CoordinationError::NoLease);
            }
        }
    }

    /// Waits until all servers have this list, or a later one.
    fn await_fence(&self, export: &str, revision: u64) -> Result<Status, CoordinationError> {
        let until = self.host.now() + TERMS_MAX * self.config.term();
        loop {
            let (entries, heard) = self.store.read(&self.keys.live())?;
            self.hear(heard);
            let applied = |server| {
                let key = self.keys.fence_applied(server, export);
                let entry = entries.iter().find(|entry| entry.key == key);
                entry.and_then(applied_in).is_some_and(|applied| applied >= revision)
            };
            if self.keys.members_in(&entries).all(applied) {
                return Ok(Status::OK);
            }
            if self.host.now() >= until {
                tracing::error!(
                    export,
                    "a server of the cluster has not put a fence list into effect, and was not cut off"
                );
                return Ok(Status::AGAIN);
            }
            self.rest(LOOK_INTERVAL);
        }
    }

    /// Puts lists into effect that have changed.
    pub(super) fn apply_fences(self: &Arc<Self>, entries: &[Entry]) {
        let Some(apply) = self.fences.apply.get() else { return };
        for export in &self.exports {
            let key = self.keys.fence(&export.name);
            let Some(entry) = entries.iter().find(|entry| entry.key == key) else { continue };
            let is_new = {
                let mut applied = lock(&self.fences.applied);
                applied.insert(export.name.clone(), entry.revision) != Some(entry.revision)
            };
            if !is_new {
                self.tell_fence_again(export, entry.revision, entries);
                continue;
            }
            let Some(list) = list_of(Some(entry)) else {
                tracing::error!(
                    export = export.name,
                    "the fence list in the coordination store cannot be read"
                );
                continue;
            };
            let (core, revision, name) = (Arc::clone(self), entry.revision, export.name.clone());
            let told = move |()| core.tell_fence(name, revision);
            apply(&export.name, list, Box::new(told));
        }
    }

    /// A list is in effect.
    fn tell_fence(&self, export: String, revision: u64) {
        let key = self.keys.fence_applied(self.number, &export);
        lock(&self.fences.told).insert(export, revision);
        self.later(Change::Put(key, revision.to_string().into_bytes(), None));
    }

    /// What the store was told late, of a list before, may have replaced what it was told of this one.
    fn tell_fence_again(&self, export: &SharedExport, revision: u64, entries: &[Entry]) {
        let key = self.keys.fence_applied(self.number, &export.name);
        let shown = entries.iter().find(|entry| entry.key == key).and_then(applied_in);
        let is_told = lock(&self.fences.told).get(&export.name) == Some(&revision);
        if is_told && shown.is_none_or(|shown| shown < revision) {
            self.tell_fence(export.name.clone(), revision);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::tests::{Tree, memory_store, server};
    use super::*;
    use crate::cluster::coordination::Coordination;

    // [CLUS-8] What the store does later than a server waits for it.
    #[test]
    fn list_in_effect_is_told_again_where_a_late_word_hides_that() {
        let (tree, store) = (Tree::new(), memory_store());
        let cluster = server(&store, &tree);
        cluster.on_fence(Box::new(|_, _, told| told(())));
        let core = &cluster.core;
        let key = core.keys.fence_applied(core.number, "data");
        let said = || store.read(&key).unwrap().0.first().and_then(applied_in).unwrap();
        let replace = |client| {
            let list = FenceList::of_clients(&[[client; 16]]);
            assert_eq!(core.replace_fence("data", &list, None), Ok(Status::OK));
            said()
        };
        let (early, late) = (replace(1), replace(2));
        assert!(early < late);
        let changes = vec![Change::Put(key.clone(), early.to_string().into_bytes(), None)];
        store.commit(&Transaction { changes, ..Transaction::default() }).unwrap();
        while said() < late {
            std::thread::yield_now();
        }
    }
}
