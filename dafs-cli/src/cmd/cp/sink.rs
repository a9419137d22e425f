//! Files that are copied to.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use dafs_client::{Error, File, FileKind, OpenOptions, SetAttributes, Stability};

use super::at::At;
use super::draft::{Draft, Manner};
use super::extras::{Extras, Having};
use super::item::Item;
use super::local;
use super::meta::{Before, Cause, KeepOwner, Later, Meta, Owner};
use super::open_file::{OpenFile, ROUNDS_MAX};
use super::same;
use super::tree_root::TreeRoot;
use crate::remote::sure;

/// A copy that is being made. Dropped before it is placed, it leaves nothing behind, unless it is written in place.
pub(super) struct Sink {
    // Closed before the name is given or removed.
    pub(super) file: OpenFile,
    draft: Option<Draft>,
    /// Bytes of what was there, all still there.
    found: u64,
    before: Before,
}

/// A copy that is whole, without its name.
pub(super) struct Closed(Option<Draft>);

impl Closed {
    /// Begins to give it its name.
    pub(super) fn begin_place(self) -> Later<()> {
        self.0.map_or(Later::Now(Ok(())), Draft::begin_place)
    }
}

impl Sink {
    /// Begins to look at what has the name of an item's copy; `None` where there is nothing.
    pub(super) fn begin_look(item: &Item) -> Later<Option<Meta>> {
        let looking = item.roots.destination.begin(&item.copy, At::begin_symlink_metadata);
        Later::Wait(Box::new(move || match looking.wait() {
            Ok(found) => Ok(Some(found)),
            Err(cause) if cause.is_not_found() => Ok(None),
            Err(cause) => Err(cause),
        }))
    }

    /// Begins to make the copy of an item, for nobody else until its attributes are set. `original` is what is copied, and `existing` what
    /// has the name of the copy: when they are the same file it is refused.
    pub(super) fn begin_create(item: &Item, original: &Meta, existing: Option<Meta>) -> Later<Self> {
        if Manner::of(item, existing.as_ref()) == Manner::InPlace {
            return begin_in_place(item, original, existing.is_some());
        }
        let look = || item.roots.destination.at(&item.copy)?.metadata(false);
        if let Some(existing) = &existing
            && let Err(cause) =
                same::refuse(item, original, existing, look).and_then(|()| same::claim(item, existing))
        {
            return Later::Now(Err(cause));
        }
        let draft = match Draft::new(item) {
            Ok(draft) => draft,
            Err(cause) => return Later::Now(Err(cause)),
        };
        let opening = draft.own().begin_create_new();
        let replaced = existing.filter(|existing| existing.kind == FileKind::File);
        // With its attributes, it is not the copy's that the file keeps.
        let kept = replaced.clone().filter(|_| !item.roots.keep_owner.preserves());
        let reading = kept.as_ref().map(|_| begin_read_kept(item));
        let (item, original) = (item.clone(), original.clone());
        Later::Wait(Box::new(move || {
            let file = match opening.wait() {
                Ok(file) => file,
                Err(cause) => {
                    draft.not_made(&cause);
                    // Where no name can be made there may be a file that can be written.
                    return match cause.is_denied() && replaced.is_some() {
                        true => begin_in_place(&item, &original, true).wait(),
                        false => Err(cause),
                    };
                }
            };
            let before = match (kept, reading) {
                (Some(kept), Some(reading)) => match keep(&file, &kept, reading.wait()) {
                    Ok(true) => Before::Replaced(kept.mode),
                    Err(cause) if cause.leaves_open() => return Err(cause),
                    // As cp(1): it is the same file still, and nothing of it is lost.
                    _ => {
                        drop(file);
                        drop(draft);
                        return begin_in_place(&item, &original, true).wait();
                    }
                },
                _ => Before::Nothing,
            };
            let file = laid_out(&item, file, draft.own())?;
            let draft = draft.with_pieces(&file);
            Ok(Self { file, draft: Some(draft), found: 0, before })
        }))
    }

    /// Nothing of what was there before can come back in this file.
    pub(super) fn is_new(&self) -> bool {
        self.draft.is_some()
    }

    /// A pipe or device.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.file, OpenFile::Stream(_))
    }

    /// Begins to cut the file to none, of `size` bytes at most.
    fn begin_cut(&self, size: u64) -> Later<()> {
        match &self.file {
            _ if size == 0 => Later::Now(Ok(())),
            OpenFile::Stream(_) => Later::Now(Ok(())),
            OpenFile::Local(file) => Later::Now(file.set_len(0).map_err(Cause::from)),
            OpenFile::Striped(file) => Later::Now(file.truncate(0).map_err(Cause::from)),
            OpenFile::Remote(file) => {
                let (pending, file) = (file.submit_truncate(0), Arc::clone(file));
                Later::request(pending, move || file.truncate(0))
            }
        }
    }

    /// Begins to cut the file, as it was opened, to none.
    pub(super) fn begin_empty(&self) -> Later<()> {
        self.begin_cut(self.found)
    }

    /// As [`Sink::begin_empty`], whatever is there by now.
    pub(super) fn begin_empty_again(&self) -> Later<()> {
        self.begin_cut(u64::MAX)
    }

    /// Writes all of it there; to a stream at its end. Blocks until it is done; on a server it is not durable yet.
    pub(super) fn write_all_at(&self, data: &[u8], offset: u64) -> Result<(), Cause> {
        match &self.file {
            OpenFile::Local(file) => Ok(file.write_all_at(data, offset)?),
            OpenFile::Stream(file) => Ok(io::Write::write_all(&mut &*file, data)?),
            OpenFile::Striped(file) => Ok(file.write_all_at(data, offset)?),
            OpenFile::Remote(file) => {
                Ok(sure(file.write_all_at(data, offset), || file.write_all_at(data, offset))?)
            }
        }
    }

    /// Begins to write all of a small file, whose data comes back: a restart of the server may lose it until it is committed.
    pub(super) fn begin_write(&self, data: Vec<u8>) -> Later<Vec<u8>> {
        match &self.file {
            _ if data.is_empty() => Later::Now(Ok(data)),
            OpenFile::Local(_) | OpenFile::Stream(_) | OpenFile::Striped(_) => {
                Later::Now(self.write_all_at(&data, 0).map(|()| data))
            }
            OpenFile::Remote(file) => {
                let len = data.len();
                let pending = file.submit_write_at_with(data, 0, Stability::Unstable);
                Later::Wait(Box::new(move || match pending.wait().into_result()? {
                    (count, data) if count == len => Ok(data),
                    (count, _) => Err(Cause::Text(format!(
                        "only {count} of {len} bytes could be written: is the server's storage full?"
                    ))),
                }))
            }
        }
    }

    /// Begins to give the copy what is kept beside attributes; returns those that it then is to have.
    pub(super) fn begin_give(&self, extras: Option<Extras>, meta: &Meta, keep: &KeepOwner) -> Later<Meta> {
        let (Some(extras), false) = (extras, self.is_stream()) else { return Later::Now(Ok(meta.clone())) };
        let giving = extras.begin_write(&Having::File(&self.file));
        let (meta, keep) = (meta.clone(), keep.clone());
        Later::Wait(Box::new(move || Ok(giving.wait()?.attributes(&meta, &keep))))
    }

    /// Begins to set the attributes. A file that was there, and belongs to somebody else, keeps its own, as with cp(1).
    pub(super) fn begin_set_attributes(&self, meta: &Meta, keep_owner: &KeepOwner) -> Later<()> {
        let setting = self.begin_set(meta, keep_owner);
        if self.draft.is_some() || keep_owner.preserves() {
            return keep_owner.where_possible(setting);
        }
        Later::Wait(Box::new(move || match setting.wait() {
            Err(cause) if cause.is_of_another() || cause.is_not_supported() => Ok(()),
            result => result,
        }))
    }

    fn begin_set(&self, meta: &Meta, keep_owner: &KeepOwner) -> Later<()> {
        match &self.file {
            OpenFile::Stream(_) => Later::Now(Ok(())),
            OpenFile::Local(file) => {
                let set = local::set_file_attributes(file, meta, keep_owner, &self.before);
                Later::Now(set.map_err(Cause::from))
            }
            OpenFile::Striped(file) => {
                let set = |set: &SetAttributes| Ok(file.set_attributes(set).map(drop)?);
                Later::Now(keep_owner.set_now(meta, &self.before, set))
            }
            OpenFile::Remote(file) => {
                let file = Arc::clone(file);
                keep_owner.begin_set(meta, None, &self.before, move |set| file.submit_set_attributes(set))
            }
        }
    }

    /// Begins to make data and attributes durable, on a server; files of this machine are left to its page cache.
    pub(super) fn begin_commit(&self) -> Later<()> {
        match &self.file {
            OpenFile::Local(_) | OpenFile::Stream(_) => Later::Now(Ok(())),
            OpenFile::Striped(file) => Later::Now(file.commit().map_err(Cause::from)),
            OpenFile::Remote(file) => {
                let (pending, file) = (file.submit_commit(), Arc::clone(file));
                Later::request(pending, move || file.commit())
            }
        }
    }

    /// Closes a copy that is whole. On some file systems only that tells what could not be written.
    pub(super) fn close(self) -> Result<Closed, Cause> {
        let Self { file, draft, .. } = self;
        match file {
            OpenFile::Local(file) | OpenFile::Stream(file) => {
                nix::unistd::close(file).map_err(io::Error::from)?;
            }
            OpenFile::Remote(file) => drop(file),
            OpenFile::Striped(file) => drop(file),
        }
        Ok(Closed(draft))
    }

    /// Writes a small file again, attributes included, as often as restarts of the server lose it. What was there before may be back too,
    /// where the machine was restarted as well.
    pub(super) fn restore(&self, data: &[u8], meta: &Meta, keep_owner: &KeepOwner) -> Result<(), Cause> {
        for _ in 0..ROUNDS_MAX {
            self.begin_empty_again().wait()?;
            self.write_all_at(data, 0)?;
            self.begin_set_attributes(meta, keep_owner).wait()?;
            match self.begin_commit().wait() {
                Err(Cause::Client(Error::WritesLost { .. })) => {}
                result => return result,
            }
        }
        Err(Cause::Text("the server was restarted too many times".into()))
    }

    /// Sets the size; that of a stream is what was written.
    pub(super) fn truncate(&self, size: u64) -> Result<(), Cause> {
        match &self.file {
            OpenFile::Stream(_) => Ok(()),
            OpenFile::Local(file) => Ok(file.set_len(size)?),
            OpenFile::Remote(file) => Ok(sure(file.truncate(size), || file.truncate(size))?),
            OpenFile::Striped(file) => Ok(file.truncate(size)?),
        }
    }
}

/// A new file, over servers where the user or the directory wants that.
fn laid_out(item: &Item, file: OpenFile, at: &At) -> Result<OpenFile, Cause> {
    let (TreeRoot::Remote(target), OpenFile::Remote(plain), Some((dir, name))) =
        (&item.roots.destination, &file, at.remote())
    else {
        return Ok(file);
    };
    let striping = match &item.roots.striping {
        Some(striping) => Some(striping.clone()),
        None => target.volume.striping_in(dir, name.parent().unwrap_or(Path::new("")))?,
    };
    let Some(striping) = striping else { return Ok(file) };
    let plain = Arc::clone(plain);
    drop(file);
    let plain = Arc::try_unwrap(plain).map_err(|_| Cause::Text("it is in use".into()))?;
    Ok(OpenFile::Striped(target.volume.stripe(plain, item.path(), &striping)?))
}

/// Begins to read what else is kept of the file that is replaced: who may use it.
fn begin_read_kept(item: &Item) -> Later<Extras> {
    item.roots.destination.begin(&item.copy, |at| Extras::begin_read(&Having::At(at)))
}

/// Gives a new file the owner of the one that it replaces, and who else may use it; false where that cannot be.
fn keep(file: &OpenFile, kept: &Meta, extras: Result<Extras, Cause>) -> Result<bool, Cause> {
    let owner = (kept.uid, kept.gid);
    let has_owner = match file {
        OpenFile::Local(local) | OpenFile::Stream(local) => {
            local::give_all(local, &local::meta_of(local)?, owner)?
        }
        OpenFile::Remote(file) => give_all(file, owner)?,
        // Owners are given before a file is laid over servers.
        OpenFile::Striped(file) => give_all(file.metadata_file(), owner)?,
    };
    Ok(has_owner && extras?.begin_write(&Having::File(file)).wait()?.is_whole)
}

fn give_all(file: &File, owner: Owner) -> Result<bool, Cause> {
    let made = file.attributes_at_open();
    let set = SetAttributes {
        uid: (made.uid != owner.0).then_some(owner.0),
        gid: (made.gid != owner.1).then_some(owner.1),
        ..SetAttributes::default()
    };
    if set.uid.is_none() && set.gid.is_none() {
        return Ok(true);
    }
    let give = || file.set_attributes(&set);
    match sure(give(), give) {
        Err(error) if error.status().is_some() => Ok(false),
        given => Ok(given.map(|_| true)?),
    }
}

/// Begins to open the copy of an item where it shall be, made where there is none; `was_there`: there is one.
fn begin_in_place(item: &Item, original: &Meta, was_there: bool) -> Later<Sink> {
    let (place, follow) = (&item.roots.destination, item.follow);
    let at = match place.at(&item.copy) {
        Ok(at) => at,
        Err(cause) => return Later::Now(Err(cause)),
    };
    let before = if was_there { Before::Written } else { Before::Nothing };
    let Some((dir, name)) = at.remote() else {
        return Later::Now(in_place_here(item, original, &at, before));
    };
    let (dir, name) = (dir.clone(), name.to_owned());
    let mut options = OpenOptions::new();
    options.write(true).create(true).no_follow(!follow).mode(0o600);
    let pending = dir.submit_open_with(&name, &options);
    let (item, original) = (item.clone(), original.clone());
    Later::Wait(Box::new(move || {
        let open = || dir.open_with(&name, &options);
        let (file, before) = match sure(pending.wait(), open).map_err(Cause::from) {
            Err(cause) if cause.is_link() && !follow => {
                at.remove_file()?;
                (sure(open(), open)?, Before::Nothing)
            }
            result => (result?, before),
        };
        let found = Meta::from(file.attributes_at_open());
        let look = || Ok(Meta::from(&File::metadata(&file)?));
        same::refuse(&item, &original, &found, look)?;
        same::claim(&item, &found)?;
        let file = OpenFile::Remote(Arc::new(file));
        let file = match (&item.roots.destination, &before) {
            (_, Before::Nothing) => laid_out(&item, file, &at)?,
            (TreeRoot::Remote(target), _) => file.adopted(&target.volume, &item.path(), &options)?,
            _ => file,
        };
        let size = if matches!(file, OpenFile::Striped(_)) { file.metadata()?.size } else { found.size };
        Ok(Sink { file, draft: None, found: size, before })
    }))
}

fn in_place_here(item: &Item, original: &Meta, at: &At, before: Before) -> Result<Sink, Cause> {
    let follow = item.follow;
    let (base, own) = at.local().ok_or_else(|| Cause::Text("it is on a server".into()))?;
    let (file, before) = match local::create(base, own, follow).map_err(Cause::from) {
        Err(cause) if cause.is_link() && !follow => {
            at.remove_file()?;
            (local::create(base, own, false)?, Before::Nothing)
        }
        result => (result?, before),
    };
    let found = local::meta_of(&file)?;
    if found.kind != FileKind::File {
        // Named by the user: what is copied goes into it, as with cp.
        return match follow {
            true => Ok(Sink { file: stream(file)?, draft: None, found: 0, before }),
            false => Err(Cause::Text("something that is not a regular file is in the way".into())),
        };
    }
    same::refuse(item, original, &found, || local::meta_of(&file))?;
    same::claim(item, &found)?;
    Ok(Sink { file: OpenFile::Local(file), draft: None, found: found.size, before })
}

/// A pipe or device, whose writes wait until there is room.
fn stream(file: fs::File) -> io::Result<OpenFile> {
    local::set_blocking(&file)?;
    Ok(OpenFile::Stream(file))
}
