//! The end of a copy: directories get their attributes, and they and the names in them are made durable.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use dafs_client::{Dir, Error, FileKind};

use super::account::Account;
use super::at::At;
use super::extras::{Extras, Having};
use super::item::{BATCH_COUNT, Item};
use super::meta::{Cause, Later, Meta};
use super::names::{Above, Made};
use super::open_file::ROUNDS_MAX;
use super::tree_root::TreeRoot;
use crate::folder::Folder;
use crate::remote::sure;

/// Sets the attributes of directories in which all is made, none of them in another. Then makes them durable, with the names of what no
/// commit of a file covers: symbolic links, second names, directories.
pub(super) fn finish(account: &Account, directories: &[Item]) {
    for chunk in directories.chunks(BATCH_COUNT) {
        Folder::hold_all(chunk.iter().filter_map(|item| Some(&item.folders.as_ref()?.copy)));
        // Opened before its mode may forbid that.
        let opening: Vec<_> = chunk.iter().map(|item| begin_open(account, item)).collect();
        let opened: Vec<_> = opening.into_iter().map(|opening| opening.map(Later::wait)).collect();
        let made: Vec<_> = chunk.iter().map(|item| made_in(account, item)).collect();
        let setting: Vec<_> = chunk.iter().map(|item| begin_set_attributes(account, item)).collect();
        for (item, later) in chunk.iter().zip(setting) {
            if let Err(cause) = later.wait() {
                account.failed(&item.roots.destination, "set the attributes of", &item.path(), &cause);
            }
        }
        commit(account, chunk, opened, made);
    }
}

/// As [`finish`], of a whole tree, deepest first: a directory may lose the permission that is needed to reach those in it.
pub(super) fn finish_tree(account: &Account, mut directories: Vec<Item>) {
    let depth = |item: &Item| item.copy.depth();
    directories.sort_by_key(|item| std::cmp::Reverse(depth(item)));
    directories.chunk_by(|one, other| depth(one) == depth(other)).for_each(|level| finish(account, level));
}

/// Those of a directory that was there are its owner's matter, unless all is to be kept.
fn begin_set_attributes(account: &Account, item: &Item) -> Later<()> {
    match item.was_there && !account.options.preserve {
        true => Later::Now(Ok(())),
        false => match item_extras(account, item) {
            Ok(meta) => set(item, &meta),
            Err(cause) => Later::Now(Err(cause)),
        },
    }
}

fn set(item: &Item, meta: &Meta) -> Later<()> {
    let Some(folders) = &item.folders else { return Later::Now(Ok(())) };
    match folders.copy.held() {
        Ok(held) => held.itself().begin_set_attributes(meta, &item.roots.keep_owner),
        Err(cause) => Later::Now(Err(cause)),
    }
}

/// Gives the copy of a directory what is kept beside attributes; returns those that it then is to have.
fn item_extras(account: &Account, item: &Item) -> Result<Meta, Cause> {
    let (Some(folders), true) = (&item.folders, account.options.preserve) else {
        return Ok(item.meta.clone());
    };
    let (source, copy) = (folders.source.held()?.itself(), folders.copy.held()?.itself());
    let extras = Extras::begin_read(&Having::At(&source)).wait()?;
    Ok(extras.begin_write(&Having::At(&copy)).wait()?.attributes(&item.meta, &item.roots.keep_owner))
}

/// Makes the names durable that the tops of the trees got, in directories that were there before.
pub(super) fn commit_names(account: &Account, tops: &[Item]) {
    let mut parents = BTreeSet::new();
    for item in tops {
        let destination = &item.roots.destination;
        if let TreeRoot::Remote(target) = destination
            && let Some(parent) = target.path.parent()
            && parents.insert((target.url_of(parent).to_os_string(), parent.to_owned()))
        {
            let above = Above::Path(parent.to_owned());
            let made = account.drafts.names.as_ref().and_then(|names| names.take(&above));
            if let Err(cause) = commit_made(account, destination, &above, made)
                // A file is whole, and only its name is as durable as the server's file system makes it by itself.
                && !(item.meta.kind == FileKind::File && cause.is_denied())
            {
                account.failed(destination, "make the name durable of", Path::new(""), &cause);
            }
        }
    }
}

/// Makes the directory durable that the copy of an item is in, where too many names were made in it to remember more.
pub(super) fn commit_full(account: &Account, item: &Item) {
    let destination = &item.roots.destination;
    if let (Some(names), Some(above)) = (&account.drafts.names, Above::of(destination, &item.copy))
        && let Some(made) = names.take_full(&above)
        && let Err(cause) = commit_made(account, destination, &above, Some(made))
        && !cause.is_denied()
    {
        account.failed(&destination.export(), "make durable", &above.shown(destination, None), &cause);
    }
}

/// Makes a directory durable, with these names in it.
fn commit_made(account: &Account, place: &TreeRoot, above: &Above, made: Option<Made>) -> Result<(), Cause> {
    commit_directory(place, above)?;
    match made {
        None => Ok(()),
        Some(made) => settle(account, place, above, made, || commit_directory(place, above)),
    }
}

/// The names in a directory, before its attributes may forbid to rename any. After a restart of the server they are looked at.
fn made_in(account: &Account, item: &Item) -> Option<(Above, Made)> {
    let destination = &item.roots.destination;
    let (session, names) = (destination.session()?, account.drafts.names.as_ref()?);
    let above = Above::Folder(Arc::clone(&item.folders.as_ref()?.copy));
    let mut made = names.take(&above).unwrap_or_else(|| Made::nothing(session));
    if made.session != Some(session) {
        made.session = Some(session);
        renew(account, destination, &above, &mut made);
    }
    Some((above, made))
}

/// Does once more what the server's machine may have forgotten, where the server was restarted before the directory of these names was
/// durable. `again` makes it so.
fn settle(
    account: &Account,
    place: &TreeRoot,
    above: &Above,
    mut made: Made,
    again: impl Fn() -> Result<(), Cause>,
) -> Result<(), Cause> {
    for _ in 0..ROUNDS_MAX {
        let session = place.session();
        if session == made.session {
            return Ok(());
        }
        made.session = session;
        renew(account, place, above, &mut made);
        again()?;
    }
    Err(Cause::Text("the server was restarted too many times".into()))
}

/// Looks at names. A copy that has its temporary name again is renamed; what is not there is reported, and left out.
fn renew(account: &Account, place: &TreeRoot, above: &Above, made: &mut Made) {
    let begin = |name: &Path, step: &dyn Fn(&At) -> Later<Meta>| match above.at(place, name) {
        Ok(at) => step(&at),
        Err(cause) => Later::Now(Err(cause)),
    };
    for chunk in std::mem::take(&mut made.names).chunks(BATCH_COUNT) {
        let looking: Vec<_> = chunk
            .iter()
            .map(|name| {
                let look = |name: &Path| begin(name, &At::begin_symlink_metadata);
                (name.draft.as_deref().map(look), look(&name.own))
            })
            .collect();
        for (name, (draft, own)) in chunk.iter().zip(looking) {
            let (has_draft, own) = (draft.map(Later::wait), own.wait().map(drop));
            let found = match (has_draft, &name.draft) {
                (Some(Ok(_)), Some(draft)) => {
                    above.at(place, draft).and_then(|draft| draft.begin_rename_to(&name.own).wait())
                }
                // It may be there: then what has the name is not the copy.
                (Some(Err(cause)), _) if !cause.is_not_found() => Err(cause),
                _ => own,
            };
            match found {
                Ok(()) => made.names.push(name.clone()),
                Err(cause) => {
                    let is_lost = cause.is_not_found();
                    let lost = || Cause::Text("a restart of the server lost it: copy it again".into());
                    let cause = if is_lost { lost() } else { cause };
                    let shown = above.shown(place, Some(&name.own));
                    account.failed(&place.export(), "make the name durable of", &shown, &cause);
                }
            }
        }
    }
}

fn commit_directory(place: &TreeRoot, above: &Above) -> Result<(), Cause> {
    let commit = || {
        let Some(opening) = above.itself(place)?.begin_open_dir() else { return Ok(()) };
        let dir = opening.wait()?;
        Ok::<_, Cause>(sure(dir.commit(), || dir.commit())?)
    };
    for _ in 0..ROUNDS_MAX {
        match commit() {
            Err(Cause::Client(Error::Stale { .. } | Error::WritesLost { .. })) => {}
            result => return result,
        }
    }
    commit()
}

/// Opens the copy of a directory for its commit; `None` where nothing is committed: files of this machine are left to its page cache.
fn begin_open(account: &Account, item: &Item) -> Option<Later<Dir>> {
    if !account.options.sync {
        return None;
    }
    match item.folders.as_ref()?.copy.held() {
        Ok(held) => held.itself().begin_open_dir(),
        Err(cause) => Some(Later::Now(Err(cause))),
    }
}

fn commit(
    account: &Account,
    items: &[Item],
    opened: Vec<Option<Result<Dir, Cause>>>,
    made: Vec<Option<(Above, Made)>>,
) {
    let committing: Vec<_> = opened
        .into_iter()
        .map(|opened| opened.map(|opened| opened.map(|dir| (dir.submit_commit(), dir))))
        .collect();
    for ((item, committing), made) in items.iter().zip(committing).zip(made) {
        let (roots, path) = (&item.roots, &item.path());
        let durable = match (committing, made) {
            (None, _) | (_, None) => Ok(()),
            (Some(Ok((pending, dir))), Some((above, made))) => {
                sure(pending.wait(), || dir.commit()).map_err(Cause::from).and_then(|()| {
                    settle(account, &roots.destination, &above, made, || {
                        begin_set_attributes(account, item).wait()?;
                        Ok(sure(dir.commit(), || dir.commit())?)
                    })
                })
            }
            (Some(Err(cause)), _) => Err(cause),
        };
        if let Err(cause) = durable {
            account.failed(&roots.destination, "make durable", path, &cause);
        }
    }
}
