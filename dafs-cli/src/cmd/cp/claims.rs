//! The destinations of this command. Two sources with the same destination would be mixed in it, since many files are written at a time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::Mutex;

use dafs_client::FileKind;

use super::item::Item;
use super::meta::{Cause, Meta};
use crate::remote::normal;
use crate::report::lock;

/// Destinations that have a source already.
#[derive(Default)]
pub(super) struct Claims {
    // What each name is copied from. Only where trees overlap: else no name comes twice.
    names: Mutex<HashMap<PathBuf, String>>,
    // The name under which a file, by file system and number, is written: of those that have several.
    files: Mutex<HashMap<(u64, u64), String>>,
}

/// What became of a claim.
pub(super) enum Claim {
    New,
    /// The same source was given twice.
    Again,
    /// Another source has the name.
    Taken(String),
}

impl Claims {
    /// Claims the name of an item's copy.
    pub(super) fn name(&self, item: &Item) -> Claim {
        let source = item.roots.source.shown(&item.path());
        let path = normal(&item.roots.destination.path(&item.path()));
        match lock(&self.names).entry(path) {
            Entry::Vacant(entry) => {
                entry.insert(source);
                Claim::New
            }
            Entry::Occupied(entry) if *entry.get() == source => Claim::Again,
            Entry::Occupied(entry) => Claim::Taken(entry.get().clone()),
        }
    }

    /// Claims the file that was found at the name of an item's copy.
    pub(super) fn file(&self, item: &Item, found: &Meta) -> Result<(), Cause> {
        if found.links < 2 && !item.follow {
            return Ok(());
        }
        let copy = item.roots.destination.shown(&item.path());
        let mut files = lock(&self.files);
        let first = files.entry(found.id).or_insert_with(|| copy.clone());
        match *first == copy {
            true => Ok(()),
            false => Err(Cause::Text(format!(
                "it is the same file as {first}, which another source is copied to; remove one of the two, and copy again"
            ))),
        }
    }
}

/// Whether a name may come out of two of these items.
pub(super) fn overlap(items: &[Item]) -> bool {
    let mut tops: Vec<PathBuf> =
        items.iter().map(|item| normal(&item.roots.destination.path(&item.path()))).collect();
    tops.sort();
    // By components: what begins with a path comes right after it.
    tops.windows(2).any(|pair| pair[1].starts_with(&pair[0]))
}

/// Items that are copied at the same time where names may come twice: so that the first that was given gets the name.
pub(super) fn in_turn(items: &[Item]) -> impl Iterator<Item = &[Item]> {
    let is_tree = |item: &Item| item.meta.kind == FileKind::Directory;
    items.chunk_by(move |one, next| !is_tree(one) && !is_tree(next))
}
