//! What a copy has come to: counted, reported, and whether it goes on.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::at::Spot;
use super::draft::Drafts;
use super::item::{Item, Linked, Options};
use super::meta::Cause;
use super::tally::Tally;
use super::tree_root::TreeRoot;
use crate::report::{Failures, lock};
use crate::signals::{Interrupt, Patience};

/// Shared by all threads of a copy.
pub(super) struct Account {
    pub(super) options: Options,
    pub(super) tally: Tally,
    pub(super) failures: Arc<Failures>,
    pub(super) interrupt: Interrupt,
    // A session has ended.
    over: AtomicBool,
    // Where the data of files with several names is, once it is all there.
    copied: Mutex<HashMap<Linked, Spot>>,
    // Copies of large files that are not complete.
    incomplete: Mutex<Vec<String>>,
    pub(super) drafts: Arc<Drafts>,
}

impl Account {
    pub(super) fn new(
        options: Options,
        tally: Tally,
        failures: Arc<Failures>,
        interrupt: Interrupt,
        drafts: Arc<Drafts>,
    ) -> Self {
        Self {
            options,
            tally,
            failures,
            interrupt,
            over: AtomicBool::new(false),
            copied: Mutex::default(),
            incomplete: Mutex::default(),
            drafts,
        }
    }

    /// A copy of a large file begins.
    pub(super) fn begins(&self, copy: &str) {
        lock(&self.incomplete).push(copy.to_owned());
    }

    /// It has ended, whatever came of it.
    pub(super) fn ends(&self, copy: &str) {
        lock(&self.incomplete).retain(|other| other != copy);
    }

    pub(super) fn first_name(&self, item: &Item) -> Option<Spot> {
        lock(&self.copied).get(&Linked::of(item)?).cloned()
    }

    /// Counts a copy that is complete.
    pub(super) fn copied(&self, item: &Item, size: u64) {
        self.tally.file(size);
        if let Some(linked) = Linked::of(item) {
            lock(&self.copied).insert(linked, item.copy.clone());
        }
    }

    /// Reports what could not be done. The end of a session is reported once, and ends everything: all that follows would fail for it.
    pub(super) fn failed(&self, place: &TreeRoot, action: &str, path: &Path, cause: &Cause) {
        if cause.ends_session() && self.over.swap(true, Ordering::Relaxed) {
            return;
        }
        self.failures.report(&place.failed(action, path, cause));
    }

    pub(super) fn changed(&self, item: &Item) {
        let cause = Cause::Text(
            "it changed during the copy, which may be partly old and partly new: copy it again".into(),
        );
        self.failed(&item.roots.source, "copy exactly", &item.path(), &cause);
    }

    /// The rest is not copied.
    pub(super) fn is_over(&self) -> bool {
        self.interrupt.is_set() || self.over.load(Ordering::Relaxed)
    }

    /// Says which copies of large files are being made, and what stays behind of them: for an end in their midst.
    pub(super) fn say_incomplete(&self, patience: Patience) {
        for copy in lock(&self.incomplete).iter() {
            self.failures.say(&format!("interrupted: {copy} is not copied, or incomplete"));
        }
        self.drafts.abandon(patience).iter().for_each(|left| self.failures.say(left));
    }
}
