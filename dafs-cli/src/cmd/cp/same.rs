//! Whether a copy would be made over what it is made from: that would empty a file, and a directory copied into itself
//! would never end.
//!
//! Within one session the numbers of file system and file decide. A local path and a server, or two sessions, may show
//! the same file too: the server runs on this machine, or both sessions are with one server. But numbers of two
//! machines may be equal by chance, so there the time of the last change of status decides as well, which no two files
//! share to the nanosecond. The copy's is asked for between two looks at the source: a file that is being written is
//! recognised all the same.

use std::path::{Path, PathBuf};

use dafs_client::FileKind;

use super::at::Spot;
use super::item::{Item, Roots};
use super::meta::{Cause, Meta};
use super::tree_root::TreeRoot;
use crate::remote::normal;
use crate::report::{Failure, Result};

/// Returns whether both are reached through one session.
///
/// # Errors
/// The source is a directory that would be copied onto or into itself, or, within one session, any file onto itself. Other files
/// are looked at when their copies are opened: see [`refuse`].
pub(super) fn refuse_copies_into_themselves(
    source: &TreeRoot,
    destination: &TreeRoot,
    meta: &Meta,
) -> Result<bool> {
    let top = Path::new("");
    let one_session = match (source, destination) {
        (TreeRoot::Remote(from), TreeRoot::Remote(to)) => {
            from.session.agreed().session == to.session.agreed().session
        }
        _ => false,
    };
    let is_directory = meta.kind == FileKind::Directory;
    if !one_session && !is_directory {
        return Ok(false);
    }
    // A link is copied as a link: what it leads to is another file.
    let follow = meta.kind != FileKind::Symlink;
    let is_source = |place: &TreeRoot| -> Result<bool> {
        match place.metadata(follow) {
            Ok(found) if found.id == meta.id => {
                let same = one_session
                    || is_one(|| source.metadata(false), || place.metadata(follow))
                        .map_err(|cause| source.failed("look at", top, &cause))?;
                Ok(same)
            }
            // What is not there, or may not be looked at, is found out when it is written to.
            _ => Ok(false),
        }
    };
    if is_source(destination)? {
        return Err(Failure::text(format!(
            "cannot copy {}: it and {} are the same {}",
            source.shown(top),
            destination.shown(top),
            match meta.kind {
                FileKind::Directory => "directory",
                _ => "file",
            }
        )));
    }
    if !is_directory {
        return Ok(one_session);
    }
    let mut inside = match (source, destination) {
        (TreeRoot::Remote(from), TreeRoot::Remote(to)) if one_session => {
            from.export.name() == to.export.name() && normal(&to.path).starts_with(normal(&from.path))
        }
        _ => false,
    };
    for place in above(destination) {
        inside = inside || is_source(&place)?;
    }
    match inside {
        true => Err(Failure::text(format!(
            "cannot copy {} into itself: {}",
            source.shown(top),
            destination.shown(top)
        ))),
        false => Ok(one_session),
    }
}

/// Refuses the copy of an item that was opened, and is still as it was, when it is what is copied.
/// `original` and `copy` are the attributes of both when they were opened, and `look` looks at the copy again.
pub(super) fn refuse(
    item: &Item,
    original: &Meta,
    copy: &Meta,
    look: impl Fn() -> std::result::Result<Meta, Cause>,
) -> std::result::Result<(), Cause> {
    let roots = &item.roots;
    let same = original.id == copy.id
        && (roots.one_session || is_one(|| roots.source.at(&item.source)?.metadata(item.follow), look)?);
    match same {
        true => Err(Cause::Text(format!("it and {} are the same file", roots.source.shown(&item.path())))),
        false => Ok(()),
    }
}

/// Refuses the copy of a symbolic link over itself, and over the very file that it leads to: that file would be gone.
pub(super) fn refuse_link(item: &Item) -> std::result::Result<(), Cause> {
    let roots = &item.roots;
    let in_the_way = || roots.destination.at(&item.copy)?.metadata(false);
    if item.meta.kind != FileKind::Symlink {
        return Ok(());
    }
    let Ok(there) = in_the_way() else { return Ok(()) };
    match there.kind {
        FileKind::Symlink => refuse(item, &item.meta, &there, in_the_way),
        FileKind::File => {
            // One that leads nowhere, as far as can be seen, leads to nothing that is lost.
            let look = || roots.source.at(&item.source)?.metadata(true);
            let Ok(led_to) = look() else { return Ok(()) };
            refuse(&Item { follow: true, ..item.clone() }, &led_to, &there, in_the_way)
        }
        _ => Ok(()),
    }
}

/// Refuses a copy when another item is copied to that file, under another of its names.
pub(super) fn claim(item: &Item, copy: &Meta) -> std::result::Result<(), Cause> {
    item.roots.claims.file(item, copy)
}

/// Whether a directory that was found in the source is the copy itself.
pub(super) fn is_copy(roots: &Roots, source: &Spot, found: &Meta) -> std::result::Result<bool, Cause> {
    match roots.copy.get() {
        Some(id) if *id == found.id => Ok(roots.one_session
            || is_one(|| roots.source.at(source)?.metadata(false), || roots.destination.metadata(false))?),
        _ => Ok(false),
    }
}

/// Whether two looks show one file.
fn is_one(
    source: impl Fn() -> std::result::Result<Meta, Cause>,
    copy: impl Fn() -> std::result::Result<Meta, Cause>,
) -> std::result::Result<bool, Cause> {
    let (before, copy, after) = (source()?, copy()?, source()?);
    Ok(before.id == copy.id && before.ctime <= copy.ctime && copy.ctime <= after.ctime)
}

/// The directories that something is in, as far as they can be seen from here, the nearest first.
fn above(place: &TreeRoot) -> Vec<TreeRoot> {
    match place {
        TreeRoot::Remote(target) => normal(&target.path)
            .ancestors()
            .skip(1)
            .map(|path| TreeRoot::Remote(target.at(path.to_owned())))
            .collect(),
        TreeRoot::Local(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            // Links on the way are followed: it is the last directory that tells what it is in.
            let existing: Option<PathBuf> =
                path.ancestors().skip(1).find_map(|path| std::fs::canonicalize(path).ok());
            let existing = existing.unwrap_or_default();
            existing.ancestors().map(|path| TreeRoot::Local(path.to_owned())).collect()
        }
    }
}
