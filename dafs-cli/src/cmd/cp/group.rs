//! Small files and symbolic links, many at a time: each step of all of them is in flight before the first is waited for.

use dafs_client::FileKind;
use dafs_proto::wire::SessionId;

use super::account::Account;
use super::at::{At, Base, Spot};
use super::draft::Draft;
use super::extras::{Extras, Having};
use super::item::{Item, Roots, is_large};
use super::large::{self, short};
use super::meta::{Cause, Later, Meta};
use super::open_file::{OpenFile, SMALL_SIZE_MAX};
use super::same;
use super::sink::Sink;
use super::tree_root::TreeRoot;
use crate::folder::{Folder, Held};

/// A file on its way: read, not yet written.
type Loaded = (Item, Meta, Vec<u8>, Option<Extras>);

/// Items, what is known of each so far, and the step that has begun for it.
type Begun<X, R> = Vec<(Item, X, Later<R>)>;

/// The side of a copy that a step is about.
type Side = fn(&Roots) -> &TreeRoot;

const SOURCE: Side = |roots| &roots.source;
const DESTINATION: Side = |roots| &roots.destination;

/// What comes of a step that has begun for all, one after the other: what fails is reported and left out; what a restart of the server
/// came into is copied once more, by itself.
fn settled<X, R>(
    account: &Account,
    begun: Begun<X, R>,
    side: Side,
    action: &str,
) -> impl Iterator<Item = (Item, X, R)> {
    begun.into_iter().filter_map(move |(item, known, later)| match later.wait() {
        Ok(done) => Some((item, known, done)),
        Err(cause) => {
            drop(known);
            not_done(account, &item, side, action, &cause);
            None
        }
    })
}

fn not_done(account: &Account, item: &Item, side: Side, action: &str, cause: &Cause) {
    let is_tried_again = cause.is_passing() || Base::is_full(cause) && hold_fewer(item);
    match is_tried_again && item.meta.kind == FileKind::File {
        true => large::copy_reported(account, item),
        false => account.failed(side(&item.roots), action, &item.path(), cause),
    }
}

/// Closes directories, where too much is open for a file.
fn hold_fewer(item: &Item) -> bool {
    let holds_fewer = |spot: &Spot| spot.folder.as_ref().is_some_and(Folder::hold_fewer);
    let (of_source, of_copy) = (holds_fewer(&item.source), holds_fewer(&item.copy));
    of_source || of_copy
}

/// Copies one file now, whatever its size.
pub(super) fn copy_one(account: &Account, item: &Item) {
    match is_large(&item.meta) {
        true => large::copy_reported(account, item),
        false => copy_files(account, vec![item.clone()]),
    }
}

/// Begins to read what is kept beside attributes, where it is to be kept.
pub(super) fn begin_extras(account: &Account, having: &Having<'_>) -> Later<Option<Extras>> {
    if !account.options.preserve {
        return Later::Now(Ok(None));
    }
    let reading = Extras::begin_read(having);
    Later::Wait(Box::new(move || reading.wait().map(Some)))
}

/// Copies files of at most [`SMALL_SIZE_MAX`] bytes.
pub(super) fn copy_files(account: &Account, items: Vec<Item>) {
    let loaded = load(account, items);
    store(account, loaded);
}

fn load(account: &Account, items: Vec<Item>) -> Vec<Loaded> {
    let opening = items.into_iter().map(|item| {
        let later = item.begin_open();
        (item, (), later)
    });
    let opened = settled(account, opening.collect(), SOURCE, "open");
    let reading = opened.filter_map(|(item, (), (file, meta))| {
        if meta.kind != FileKind::File {
            let cause = Cause::Text("it was replaced while the tree was copied".into());
            account.failed(&item.roots.source, "copy", &item.path(), &cause);
        } else if meta.size > SMALL_SIZE_MAX {
            large::copy_reported(account, &item);
        } else {
            let later = file.begin_read(usize::try_from(meta.size).unwrap_or(usize::MAX));
            return Some((item, (file, meta), later));
        }
        None
    });
    let read = settled(account, reading.collect(), SOURCE, "read");
    let asking = read.map(|(item, (file, meta), data)| {
        let later = begin_extras(account, &Having::File(&file));
        (item, (file, meta, data), later)
    });
    let asked = settled(account, asking.collect(), SOURCE, "read the attributes of");
    let loaded = asked.filter_map(|(item, (file, meta, data), extras)| {
        if data.len() as u64 > SMALL_SIZE_MAX {
            large::copy_reported(account, &item);
            return None;
        }
        // On a server asking again would cost as much as the copy. That the content is not of the size that was told
        // is not enough: there are file systems where it never is.
        let asks = matches!(file, OpenFile::Local(_)) || data.len() as u64 != meta.size;
        let now = asks.then(|| file.metadata());
        if let Some(cause) =
            short(&file, &meta, now.as_ref().and_then(|now| now.as_ref().ok()), data.len() as u64)
        {
            account.failed(&item.roots.source, "copy", &item.path(), &cause);
            return None;
        }
        if matches!(&now, Some(Ok(now)) if now.size != meta.size || now.mtime != meta.mtime) {
            account.changed(&item);
        }
        Some((item, meta, data, extras))
    });
    loaded.collect()
}

fn store(account: &Account, loaded: Vec<Loaded>) {
    let looking = loaded.into_iter().map(|(item, meta, data, extras)| {
        let later = Sink::begin_look(&item);
        (item, (meta, data, extras), later)
    });
    let looked = settled(account, looking.collect(), DESTINATION, "create");
    let creating = looked.map(|(item, (meta, data, extras), existing)| {
        let later = Sink::begin_create(&item, &meta, existing);
        (item, (meta, data, extras), later)
    });
    let created = settled(account, creating.collect(), DESTINATION, "create");
    let emptying = created.map(|(item, (meta, data, extras), sink)| {
        let later = sink.begin_empty();
        (item, (meta, data, extras, sink), later)
    });
    let emptied = settled(account, emptying.collect(), DESTINATION, "empty");
    let writing = emptied.map(|(item, (meta, data, extras, sink), ())| {
        let later = sink.begin_write(data);
        (item, (meta, extras, sink), later)
    });
    let written = settled(account, writing.collect(), DESTINATION, "write");
    let giving = written.map(|(item, (meta, extras, sink), data)| {
        let later = sink.begin_give(extras, &meta, &item.roots.keep_owner);
        (item, (sink, data), later)
    });
    let given = settled(account, giving.collect(), DESTINATION, "set the attributes of");
    let setting = given.map(|(item, (sink, data), meta)| {
        let later = sink.begin_set_attributes(&meta, &item.roots.keep_owner);
        (item, (meta, sink, data), later)
    });
    let set = settled(account, setting.collect(), DESTINATION, "set the attributes of");
    let committing = set.map(|(item, known, ())| {
        let later = if account.options.sync { known.1.begin_commit() } else { Later::Now(Ok(())) };
        (item, known, later)
    });
    let committing: Begun<_, _> = committing.collect();
    let mut placing = Vec::with_capacity(committing.len());
    for (item, (meta, sink, data), later) in committing {
        let durable = match later.wait() {
            Err(cause) if cause.lost_writes() => sink.restore(&data, &meta, &item.roots.keep_owner),
            result => result,
        };
        match durable {
            Ok(()) => match sink.close() {
                Ok(closed) => placing.push((item, data.len() as u64, closed.begin_place())),
                Err(cause) => not_done(account, &item, DESTINATION, "write", &cause),
            },
            Err(cause) => {
                drop(sink);
                not_done(account, &item, DESTINATION, "make durable", &cause);
            }
        }
    }
    let placed = settled(account, placing, DESTINATION, "rename a copy to");
    placed.for_each(|(item, size, ())| account.copied(&item, size));
}

/// A name that was made, or again where another was in the way, which is replaced when the new one is there. It began in this session.
fn made(
    item: &Item,
    session: Option<SessionId>,
    first: Later<()>,
    again: impl FnOnce(&At) -> Later<()>,
) -> Result<(), Cause> {
    match first.wait() {
        Err(cause) if cause.already_exists() => {
            same::refuse_link(item)?;
            let draft = Draft::new(item)?;
            match again(draft.own()).wait() {
                // By the request that was in doubt: nobody else knows the name.
                Err(cause) if !cause.already_exists() => {
                    draft.not_made(&cause);
                    Err(cause)
                }
                _ => draft.place_name(),
            }
        }
        Ok(()) => {
            item.roots.drafts.made(session, item);
            Ok(())
        }
        Err(cause) => Err(cause),
    }
}

/// Copies symbolic links, which stay what they are. One that is in the way is replaced, and so is a file.
pub(super) fn copy_symlinks(account: &Account, items: Vec<Item>) {
    let reading = items.into_iter().map(|item| {
        let later = item.roots.source.begin(&item.source, At::begin_read_link);
        (item, (), later)
    });
    let read = settled(account, reading.collect(), SOURCE, "read the symbolic link");
    let making: Begun<_, _> = read
        .map(|(item, (), target)| {
            let place = &item.roots.destination;
            let session = place.session();
            let later = place.begin(&item.copy, |at| at.begin_symlink(&target));
            (item, (target, session), later)
        })
        .collect();
    let mut setting = Vec::with_capacity(making.len());
    for (item, (target, session), later) in making {
        let place = &item.roots.destination;
        match made(&item, session, later, |at| at.begin_symlink(&target)) {
            Ok(()) => {
                let keep_owner = &item.roots.keep_owner;
                let later = place.begin(&item.copy, |at| at.begin_set_attributes(&item.meta, keep_owner));
                setting.push((item, (), later));
            }
            Err(cause) => account.failed(place, "make the symbolic link", &item.path(), &cause),
        }
    }
    settled(account, setting, DESTINATION, "set the times of").for_each(|_| account.tally.symlink());
}

/// Makes second names of files that were copied.
pub(super) fn make_hard_links(account: &Account, links: Vec<(Item, Spot)>) {
    let making: Vec<_> = links
        .into_iter()
        .map(|(item, first)| {
            let place = &item.roots.destination;
            let session = place.session();
            let first = place.at(&first);
            let later = match &first {
                Ok(first) => place.begin(&item.copy, |at| at.begin_link_of(first)),
                Err(_) => Later::Now(Err(Cause::Text("its first name no longer exists".into()))),
            };
            (item, (first, session), later)
        })
        .collect();
    for (item, (first, session), later) in making {
        let again = |at: &At| match &first {
            Ok(first) => at.begin_link_of(first),
            Err(_) => Later::Now(Err(Cause::Text("its first name no longer exists".into()))),
        };
        match made(&item, session, later, again) {
            Ok(()) => account.tally.file(0),
            // The file system has no more links, or none at all: then it is a file of its own.
            Err(_) => copy_one(account, &item),
        }
    }
}
