//! The end of a copy: directories get their attributes, and they and the names in them are made durable.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dafs_client::{Dir, Error, FileKind};

use super::account::Account;
use super::item::{BATCH_COUNT, Item};
use super::open_file::ROUNDS_MAX;
use super::place::{Cause, Later, Place};
use crate::remote::{Target, sure};

/// Sets the attributes of the directories that were made, deepest first: a directory may lose the permission that is
/// needed to reach those in it. Then makes them durable, with the names of what no commit of a file covers:
/// symbolic links, second names, directories.
pub(super) fn finish(account: &Account, mut directories: Vec<Item>) {
    let depth = |item: &Item| item.path.components().count();
    directories.sort_by_key(|item| std::cmp::Reverse(depth(item)));
    for level in directories.chunk_by(|one, other| depth(one) == depth(other)) {
        for chunk in level.chunks(BATCH_COUNT) {
            // Opened before its mode may forbid that.
            let opening: Vec<_> = chunk.iter().map(|item| begin_open(account, item)).collect();
            let opened: Vec<_> = opening.into_iter().map(|opening| opening.map(Later::wait)).collect();
            let setting: Vec<_> = chunk
                .iter()
                .map(|item| {
                    let roots = &item.roots;
                    roots.destination.begin_set_attributes(&item.path, &item.meta, &roots.keep_owner)
                })
                .collect();
            for (item, later) in chunk.iter().zip(setting) {
                if let Err(cause) = later.wait() {
                    account.failed(&item.roots.destination, "set the attributes of", &item.path, &cause);
                }
            }
            commit(account, chunk, opened);
        }
    }
}

/// Makes the names durable that the tops of the trees got, in directories that were there before.
pub(super) fn commit_names(account: &Account, tops: &[Item]) {
    let mut parents = BTreeSet::new();
    for item in tops {
        if let Place::Remote(target) = &item.roots.destination
            && let Some(parent) = target.path.parent()
            && parents.insert((target.url_of(parent).to_os_string(), parent.to_owned()))
            && let Err(cause) = commit_directory(target, parent)
            // A file is whole, and only its name is as durable as the server's file system makes it by itself.
            && !(item.meta.kind == FileKind::File && cause.is_denied())
        {
            account.failed(&item.roots.destination, "make the name durable of", Path::new(""), &cause);
        }
    }
}

fn commit_directory(target: &Target, path: &Path) -> Result<(), Cause> {
    let commit = || {
        let dir = target.export.open_dir(path)?;
        sure(dir.commit(), || dir.commit())
    };
    for _ in 0..ROUNDS_MAX {
        match commit() {
            Err(Error::Stale { .. } | Error::WritesLost { .. }) => {}
            result => return Ok(result?),
        }
    }
    Ok(commit()?)
}

/// Opens the copy of a directory for its commit; `None` where nothing is committed: files of this machine are left to its page cache.
fn begin_open(account: &Account, item: &Item) -> Option<Later<Dir>> {
    let Place::Remote(target) = &item.roots.destination else { return None };
    if !account.options.sync {
        return None;
    }
    let path: PathBuf = item.roots.destination.path(&item.path);
    let (pending, export) = (target.export.submit_open_dir(&path), target.export.clone());
    Some(Later::Wait(Box::new(move || Ok(sure(pending.wait(), || export.open_dir(&path))?))))
}

fn commit(account: &Account, items: &[Item], opened: Vec<Option<Result<Dir, Cause>>>) {
    let committing: Vec<_> = opened
        .into_iter()
        .map(|opened| opened.map(|opened| opened.map(|dir| (dir.submit_commit(), dir))))
        .collect();
    for (item, committing) in items.iter().zip(committing) {
        let durable = match committing {
            None => Ok(()),
            Some(Ok((pending, dir))) => sure(pending.wait(), || dir.commit()).map_err(Cause::from),
            Some(Err(cause)) => Err(cause),
        };
        if let Err(cause) = durable {
            account.failed(&item.roots.destination, "make durable", &item.path, &cause);
        }
    }
}
