//! Fence lists of all servers of a cluster: they stand in the store. Whoever replaces one is answered when every server has put it into
//! effect, or can write no more.

use std::sync::Arc;
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{FenceList, Status, encode_message_pack};

use super::coordination::{Change, Compare, CoordinationError, Entry, Transaction};
use super::core::Core;

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
                let applied =
                    entry.and_then(|entry| std::str::from_utf8(&entry.value).ok()?.parse::<u64>().ok());
                applied.is_some_and(|applied| applied >= revision)
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
            let Some(list) = list_of(Some(entry)).filter(|_| is_new) else {
                if is_new {
                    tracing::error!(
                        export = export.name,
                        "the fence list in the coordination store cannot be read"
                    );
                }
                continue;
            };
            let (core, revision) = (Arc::clone(self), entry.revision);
            let key = self.keys.fence_applied(self.number, &export.name);
            let told = move |()| core.later(Change::Put(key, revision.to_string().into_bytes(), None));
            apply(&export.name, list, Box::new(told));
        }
    }
}
