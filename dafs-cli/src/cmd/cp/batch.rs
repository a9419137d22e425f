//! Small files and symbolic links, many at a time: each step of all of them is in flight before the first is waited for.

use dafs_client::FileKind;

use super::account::Account;
use super::item::{Item, SMALL_SIZE_MAX, is_large};
use super::large;
use super::open_file::{Sink, Source};
use super::place::{Cause, Later, Meta};

/// A file on its way: read, not yet written.
struct Loaded {
    item: Item,
    meta: Meta,
    data: Vec<u8>,
}

/// A file that is written, and not yet durable.
struct Stored {
    item: Item,
    meta: Meta,
    sink: Sink,
    data: Vec<u8>,
}

/// Copies one file now, whatever its size.
pub(super) fn copy_one(account: &Account, item: &Item) {
    match is_large(&item.meta) {
        true => large::copy_reported(account, item),
        false => copy_files(account, vec![item.clone()]),
    }
}

/// Copies files of at most [`SMALL_SIZE_MAX`] bytes.
pub(super) fn copy_files(account: &Account, items: Vec<Item>) {
    let loaded = load(account, items);
    store(account, loaded);
}

fn load(account: &Account, items: Vec<Item>) -> Vec<Loaded> {
    let opening: Vec<(Item, Later<(Source, Meta)>)> = items
        .into_iter()
        .map(|item| {
            let later = Source::begin_open(&item.roots.source, &item.path, item.follow);
            (item, later)
        })
        .collect();
    let mut reading = Vec::with_capacity(opening.len());
    for (item, later) in opening {
        let (file, meta) = match later.wait() {
            Ok(opened) => opened,
            Err(cause) => {
                account.failed(&item.roots.source, "open", &item.path, &cause);
                continue;
            }
        };
        if meta.kind != FileKind::File {
            let cause = Cause::Text("it was replaced while the tree was copied".into());
            account.failed(&item.roots.source, "copy", &item.path, &cause);
        } else if meta.size > SMALL_SIZE_MAX {
            large::copy_reported(account, &item);
        } else {
            let later = file.begin_read(usize::try_from(meta.size).unwrap_or(usize::MAX));
            reading.push((item, file, meta, later));
        }
    }
    let mut loaded = Vec::with_capacity(reading.len());
    for (item, file, meta, later) in reading {
        match later.wait() {
            Ok(data) => {
                if data.len() as u64 > SMALL_SIZE_MAX {
                    large::copy_reported(account, &item);
                    continue;
                }
                // On a server asking again would cost as much as the copy. That the content is not of the size that was told
                // is not enough: there are file systems where it never is.
                let asks = matches!(file, Source::Local(_)) || data.len() as u64 != meta.size;
                let now = asks.then(|| file.metadata());
                if matches!(&now, Some(Ok(now)) if now.size != meta.size || now.mtime != meta.mtime) {
                    account.changed(&item);
                }
                loaded.push(Loaded { item, meta, data });
            }
            Err(cause) => account.failed(&item.roots.source, "read", &item.path, &cause),
        }
    }
    loaded
}

fn store(account: &Account, loaded: Vec<Loaded>) {
    let creating: Vec<_> = loaded
        .into_iter()
        .map(|loaded| {
            let later = Sink::begin_create(&loaded.item, &loaded.meta);
            (loaded, later)
        })
        .collect();
    let mut emptying = Vec::with_capacity(creating.len());
    for (loaded, later) in creating {
        match later.wait() {
            Ok((sink, size)) => {
                let later = sink.begin_empty(size);
                emptying.push((loaded, sink, later));
            }
            Err(cause) => {
                let item = &loaded.item;
                account.failed(&item.roots.destination, "create", &item.path, &cause);
            }
        }
    }
    let mut writing = Vec::with_capacity(emptying.len());
    for (Loaded { item, meta, data }, sink, later) in emptying {
        match later.wait() {
            Ok(()) => {
                let later = sink.begin_write(data);
                writing.push((item, meta, sink, later));
            }
            Err(cause) => account.failed(&item.roots.destination, "empty", &item.path, &cause),
        }
    }
    let mut setting = Vec::with_capacity(writing.len());
    for (item, meta, sink, later) in writing {
        match later.wait() {
            Ok(data) => {
                let later = sink.begin_set_attributes(&meta, &item.roots.keep_owner);
                setting.push((Stored { item, meta, sink, data }, later));
            }
            Err(cause) => account.failed(&item.roots.destination, "write", &item.path, &cause),
        }
    }
    let mut committing = Vec::with_capacity(setting.len());
    for (stored, later) in setting {
        match later.wait() {
            Ok(()) => {
                let later =
                    if account.options.sync { stored.sink.begin_commit() } else { Later::Now(Ok(())) };
                committing.push((stored, later));
            }
            Err(cause) => {
                let item = &stored.item;
                account.failed(&item.roots.destination, "set the attributes of", &item.path, &cause);
            }
        }
    }
    for (Stored { item, meta, sink, data }, later) in committing {
        let durable = match later.wait() {
            Err(cause) if cause.lost_writes() => sink.restore(&data, &meta, &item.roots.keep_owner),
            result => result,
        };
        match durable {
            Ok(()) => account.copied(&item, data.len() as u64),
            Err(cause) => account.failed(&item.roots.destination, "make durable", &item.path, &cause),
        }
    }
}

/// Copies symbolic links, which stay what they are. One that is in the way is replaced, and so is a file, as `cp` does.
pub(super) fn copy_symlinks(account: &Account, items: Vec<Item>) {
    let reading: Vec<_> = items
        .into_iter()
        .map(|item| {
            let later = item.roots.source.begin_read_link(&item.path);
            (item, later)
        })
        .collect();
    let mut making = Vec::with_capacity(reading.len());
    for (item, later) in reading {
        match later.wait() {
            Ok(target) => {
                let later = item.roots.destination.begin_symlink(&target, &item.path);
                making.push((item, target, later));
            }
            Err(cause) => account.failed(&item.roots.source, "read the symbolic link", &item.path, &cause),
        }
    }
    let mut setting = Vec::with_capacity(making.len());
    for (item, target, later) in making {
        let place = &item.roots.destination;
        let made = match later.wait() {
            Err(cause) if cause.already_exists() => {
                place.remove_file(&item.path).and_then(|()| place.begin_symlink(&target, &item.path).wait())
            }
            result => result,
        };
        match made {
            Ok(()) => {
                let later = place.begin_set_attributes(&item.path, &item.meta, &item.roots.keep_owner);
                setting.push((item, later));
            }
            Err(cause) => account.failed(place, "make the symbolic link", &item.path, &cause),
        }
    }
    for (item, later) in setting {
        match later.wait() {
            Ok(()) => account.tally.symlink(),
            Err(cause) => {
                account.failed(&item.roots.destination, "set the times of", &item.path, &cause);
            }
        }
    }
}

/// Makes second names of files that were copied.
pub(super) fn make_hard_links(account: &Account, links: Vec<(Item, std::path::PathBuf)>) {
    let making: Vec<_> = links
        .into_iter()
        .map(|(item, first)| {
            let later = item.roots.destination.begin_link(&first, &item.path);
            (item, first, later)
        })
        .collect();
    for (item, first, later) in making {
        let place = &item.roots.destination;
        let made = match later.wait() {
            Err(cause) if cause.already_exists() => {
                place.remove_file(&item.path).and_then(|()| place.begin_link(&first, &item.path).wait())
            }
            result => result,
        };
        match made {
            Ok(()) => account.tally.file(0),
            // The file system has no more links, or none at all: then it is a file of its own.
            Err(_) => copy_one(account, &item),
        }
    }
}
