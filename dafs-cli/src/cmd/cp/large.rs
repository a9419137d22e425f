//! One large or sparse file: chunks of it are in flight together, holes are left out.

use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use dafs_client::FileKind;

use super::account::Account;
use super::extras::{Extras, Having};
use super::group;
use super::item::Item;
use super::meta::{Cause, Meta};
use super::open_file::{OpenFile, ROUNDS_MAX};
use super::pump::{CHUNK_SIZE, Counted, Lost, Pump};
use super::sink::Sink;
use crate::signals::progressed;

/// What became of a copy.
enum Outcome {
    /// All of it is there. The source did, or did not, change meanwhile.
    Done { changed: bool },
    /// The user does not want the rest.
    Interrupted { in_place: bool },
}

/// Which side failed.
pub(super) enum Fault {
    Source(&'static str, Cause),
    Sink(&'static str, Cause),
}

/// Copies a large file, and reports what came of it.
pub(super) fn copy_reported(account: &Account, item: &Item) {
    let shown = item.roots.destination.shown(&item.path());
    account.begins(&shown);
    let mut counted = Counted::default();
    let mut rounds = 0;
    let copied = loop {
        rounds += 1;
        // A pipe gives nothing twice, and takes nothing back.
        let mut can_repeat = item.meta.kind == FileKind::File;
        let copied = Copy::begin(account, item).and_then(|copy| {
            can_repeat &= !copy.sink.is_stream();
            copy.run(&mut counted)
        });
        match copied {
            // What was opened is not there any more: all of it once more.
            Err(Fault::Source(_, cause) | Fault::Sink(_, cause))
                if cause.is_passing() && can_repeat && rounds < ROUNDS_MAX =>
            {
                counted.begin_again();
            }
            copied => break copied,
        }
    };
    account.ends(&shown);
    match copied {
        Ok(Outcome::Done { changed }) => {
            account.copied(item, 0);
            if changed {
                account.changed(item);
            }
        }
        Ok(Outcome::Interrupted { in_place: true }) => {
            account.failures.say(&format!("interrupted: {shown} is incomplete"));
        }
        Ok(Outcome::Interrupted { in_place: false }) => {
            account.failures.say(&format!("interrupted: {shown} is not copied"));
        }
        Err(Fault::Source(action, cause)) => account.failed(&item.roots.source, action, &item.path(), &cause),
        // As head(1) does, whoever reads a pipe has enough.
        Err(Fault::Sink(_, cause)) if cause.is_closed_pipe() => {}
        Err(Fault::Sink(action, cause)) => {
            account.failed(&item.roots.destination, action, &item.path(), &cause)
        }
    }
}

/// Why a source that gave `delivered` bytes is not copied: it has more, or had when it was opened. `now` is what it is afterwards.
/// Files of this machine that take no space, as in /sys, may say a size that means nothing.
pub(super) fn short(source: &OpenFile, meta: &Meta, now: Option<&Meta>, delivered: u64) -> Option<Cause> {
    let shrunk = now.filter(|now| now.size < meta.size);
    let is_pseudo = matches!(source, OpenFile::Local(_)) && meta.allocated == 0 && shrunk.is_none();
    if delivered >= meta.size || is_pseudo {
        return None;
    }
    let text = match shrunk {
        Some(now) => {
            format!("it shrank from {} to {} bytes while it was copied: copy it again", meta.size, now.size)
        }
        None => format!("its size is {} bytes, but only {delivered} could be read", meta.size),
    };
    Some(Cause::Text(text))
}

/// What is to be copied in a round.
enum Todo {
    All,
    /// These bytes once more: a restart of the server lost them.
    Lost(Vec<Range<u64>>),
}

/// A copy of one file.
pub(super) struct Copy<'a> {
    pub(super) account: &'a Account,
    pub(super) item: &'a Item,
    pub(super) source: OpenFile,
    pub(super) meta: Meta,
    /// What is kept beside attributes, where it is to be kept.
    extras: Option<Extras>,
    pub(super) sink: Sink,
    /// The source can be read again, at any place.
    seeks: bool,
}

impl<'a> Copy<'a> {
    /// Opens both sides.
    fn begin(account: &'a Account, item: &'a Item) -> Result<Self, Fault> {
        let seeks = item.meta.kind == FileKind::File;
        let opened = match seeks {
            true => item.begin_open().wait(),
            false => item.open_stream(),
        };
        let (source, meta) = opened.map_err(|cause| Fault::Source("open", cause))?;
        if meta.kind != item.meta.kind {
            let cause = Cause::Text("it was replaced while the tree was copied".into());
            return Err(Fault::Source("copy", cause));
        }
        let extras = group::begin_extras(account, &Having::File(&source)).wait();
        let extras = extras.map_err(|cause| Fault::Source("read the attributes of", cause))?;
        let existing = Sink::begin_look(item).wait().map_err(|cause| Fault::Sink("create", cause))?;
        let sink =
            Sink::begin_create(item, &meta, existing).wait().map_err(|cause| Fault::Sink("create", cause))?;
        Ok(Self { account, item, source, meta, extras, sink, seeks })
    }

    /// Holes of the source are looked for, and become holes of the copy.
    pub(super) fn leaves_holes(&self) -> bool {
        self.meta.allocated < self.meta.size && !self.sink.is_stream()
    }

    fn run(self, counted: &mut Counted) -> Result<Outcome, Fault> {
        let in_place = !self.sink.is_new();
        self.sink.begin_empty().wait().map_err(|cause| Fault::Sink("empty", cause))?;
        let (mut todo, mut end) = (Todo::All, self.meta.size);
        for _ in 0..ROUNDS_MAX {
            let lost = match self.content(&todo, &mut end, counted)? {
                None => return Ok(Outcome::Interrupted { in_place }),
                Some(lost) => lost,
            };
            let now = self.source.metadata().map_err(|cause| Fault::Source("look at", cause))?;
            // What was cut off meanwhile looks like a hole.
            let delivered = if self.leaves_holes() { end.min(now.size) } else { end };
            if let Some(cause) = short(&self.source, &self.meta, Some(&now), delivered) {
                return Err(Fault::Source("copy", cause));
            }
            match self.finish(end, lost)? {
                None => {
                    // That the content is not of the size that was told is not enough: there are file systems where it never is.
                    let changed = self.seeks && (now.size != self.meta.size || now.mtime != self.meta.mtime);
                    // The signal may have ended who writes to the pipe as well, in the midst of it.
                    if !self.seeks && self.account.interrupt.is_set() {
                        return Ok(Outcome::Interrupted { in_place });
                    }
                    let closed = self.sink.close().map_err(|cause| Fault::Sink("write", cause))?;
                    closed.begin_place().wait().map_err(|cause| Fault::Sink("rename a copy to", cause))?;
                    return Ok(Outcome::Done { changed });
                }
                Some(next) => todo = next,
            }
            if matches!(todo, Todo::All) {
                // What was there before may be back, where the machine was restarted as well: also in holes, and behind the end.
                self.sink.begin_empty_again().wait().map_err(|cause| Fault::Sink("empty", cause))?;
                end = self.meta.size;
                counted.begin_again();
            }
        }
        Err(Fault::Sink("make durable", Cause::Text("the server was restarted too many times".into())))
    }

    /// Copies data, and sets `end` where that of all of it is known; returns what was lost meanwhile, `None` when interrupted.
    fn content(&self, todo: &Todo, end: &mut u64, counted: &mut Counted) -> Result<Option<Lost>, Fault> {
        let mut pump = Pump::new(self, counted)?;
        match todo {
            Todo::All => {
                let Some(ended) = pump.copy_data()? else { return Ok(None) };
                *end = ended;
                if let OpenFile::Local(file) = &self.source
                    && ended == self.meta.size
                {
                    let Some(ended) = copy_rest(self, file, pump.counted, ended)? else { return Ok(None) };
                    *end = ended;
                }
            }
            Todo::Lost(ranges) => {
                pump.counts = false;
                if !pump.copy_again(ranges)? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(pump.finish()?))
    }

    /// Sets size and attributes and makes all of it durable. Returns what is to be done again first.
    fn finish(&self, end: u64, lost: Lost) -> Result<Option<Todo>, Fault> {
        if !lost.ranges.is_empty() || lost.attributes {
            return self.next(lost).map(Some);
        }
        if self.meta.allocated < self.meta.size || end < self.meta.size {
            self.sink.truncate(end).map_err(|cause| Fault::Sink("set the size of", cause))?;
        }
        let keep = &self.item.roots.keep_owner;
        self.sink
            .begin_give(self.extras.clone(), &self.meta, keep)
            .wait()
            .and_then(|meta| self.sink.begin_set_attributes(&meta, keep).wait())
            .map_err(|cause| Fault::Sink("set the attributes of", cause))?;
        let durable = if self.account.options.sync { self.sink.begin_commit().wait() } else { Ok(()) };
        let mut lost = Lost::default();
        match durable {
            Ok(()) => Ok(None),
            Err(cause) if lost.add(&cause) => self.next(lost).map(Some),
            Err(cause) => Err(Fault::Sink("make durable", cause)),
        }
    }

    /// What a loss makes necessary.
    fn next(&self, lost: Lost) -> Result<Todo, Fault> {
        let is_known = lost.ranges.iter().all(|range| range.start < self.meta.size);
        if !self.seeks {
            let cause =
                "a restart of the server lost part of it, and its source cannot be read twice: copy it again";
            return Err(Fault::Sink("make durable", Cause::Text(cause.into())));
        }
        // A file that is new holds nothing but what is written to it: where it was cut does not matter.
        match is_known && (!lost.attributes || self.sink.is_new()) {
            true => Ok(Todo::Lost(lost.ranges)),
            false => Ok(Todo::All),
        }
    }
}

/// Of what is read to its end because its size says nothing: pipes and devices that the user named, and what follows the end of a file
/// whose size is not that of its content, as in /proc.
///
/// Appends to the copy, which has `end` bytes, what the source has from there on; where it cannot seek, all that it has to give.
/// Returns where the copy ends now, `None` when interrupted.
fn copy_rest(
    copy: &Copy<'_>,
    source: &fs::File,
    counted: &mut Counted,
    mut end: u64,
) -> Result<Option<u64>, Fault> {
    // Nearly always nothing follows.
    let mut buffer = vec![0; 4096];
    loop {
        if copy.account.interrupt.is_set() {
            return Ok(None);
        }
        let read =
            if copy.seeks { source.read_at(&mut buffer, end) } else { (&mut &*source).read(&mut buffer) };
        let count = match read {
            Ok(0) => return Ok(Some(end)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Fault::Source("read", error.into())),
        };
        copy.sink.write_all_at(&buffer[..count], end).map_err(|cause| Fault::Sink("write", cause))?;
        progressed();
        copy.account.tally.bytes(counted.add(count as u64));
        end += count as u64;
        if count == buffer.len() && count < CHUNK_SIZE {
            buffer.resize(CHUNK_SIZE, 0);
        }
    }
}
