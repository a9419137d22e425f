//! One large or sparse file: chunks of it are in flight together, holes are left out.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::slice::from_ref;

use dafs_client::{Error, Extent, FileKind, Pending, RegisteredBuf, Session, Transferred};

use super::account::Account;
use super::item::Item;
use super::open_file::{OpenFile, ROUNDS_MAX, read_full};
use super::place::{Cause, Meta, Place};
use crate::signals::progressed;

/// Bytes of a chunk.
const CHUNK_SIZE: usize = 1 << 20;

/// Chunks in flight.
const DEPTH: usize = 8;

/// What became of a copy.
enum Outcome {
    /// All of it is there. The source did, or did not, change meanwhile.
    Done { changed: bool },
    /// The user does not want the rest.
    Interrupted,
}

/// Which side failed.
enum Fault {
    Source(&'static str, Cause),
    Sink(&'static str, Cause),
}

/// Copies a large file, and reports what came of it.
pub(super) fn copy_reported(account: &Account, item: &Item) {
    let shown = item.roots.destination.shown(&item.path);
    account.begins(&shown);
    let copied = copy(account, item);
    account.ends(&shown);
    match copied {
        Ok(Outcome::Done { changed }) => {
            account.copied(item, 0);
            if changed {
                account.changed(item);
            }
        }
        Ok(Outcome::Interrupted) => {
            account.failures.say(&format!("interrupted: {shown} is incomplete"));
        }
        Err(Fault::Source(action, cause)) => account.failed(&item.roots.source, action, &item.path, &cause),
        Err(Fault::Sink(action, cause)) => {
            account.failed(&item.roots.destination, action, &item.path, &cause)
        }
    }
}

/// Copies one file.
fn copy(account: &Account, item: &Item) -> Result<Outcome, Fault> {
    let roots = &item.roots;
    let seeks = item.meta.kind == FileKind::File;
    let opened = match seeks {
        true => OpenFile::begin_open(&roots.source, &item.path, item.follow).wait(),
        false => OpenFile::open_stream(&roots.source, &item.path),
    };
    let (source, meta) = opened.map_err(|cause| Fault::Source("open", cause))?;
    if meta.kind != item.meta.kind {
        return Err(Fault::Source("copy", Cause::Text("it was replaced while the tree was copied".into())));
    }
    let (sink, existing) =
        OpenFile::begin_create(item, &meta).wait().map_err(|cause| Fault::Sink("create", cause))?;
    let mut found = existing;
    for _ in 0..ROUNDS_MAX {
        sink.begin_empty(found).wait().map_err(|cause| Fault::Sink("empty", cause))?;
        let Some(end) = copy_content(account, item, &source, &meta, &sink)? else {
            return Ok(Outcome::Interrupted);
        };
        if meta.allocated < meta.size || end < meta.size {
            sink.truncate(end).map_err(|cause| Fault::Sink("set the size of", cause))?;
        }
        let now = source.metadata().map_err(|cause| Fault::Source("look at", cause))?;
        sink.begin_set_attributes(&meta, &roots.keep_owner)
            .wait()
            .map_err(|cause| Fault::Sink("set the attributes of", cause))?;
        match if account.options.sync { sink.begin_commit().wait() } else { Ok(()) } {
            Ok(()) => {
                // That the content is not of the size that was told is not enough: there are file systems where it never is.
                let changed = seeks && (now.size != meta.size || now.mtime != meta.mtime);
                return Ok(Outcome::Done { changed });
            }
            Err(cause) if cause.lost_writes() && seeks => {}
            Err(cause) => return Err(Fault::Sink("make durable", cause)),
        }
        // What was there before may be back, where the machine was restarted as well: also in holes, and behind the end.
        found = u64::MAX;
    }
    Err(Fault::Sink("make durable", Cause::Text("the server was restarted again and again".into())))
}

/// Copies all data; answers where it ends, `None` when interrupted.
fn copy_content(
    account: &Account,
    item: &Item,
    source: &OpenFile,
    meta: &Meta,
    sink: &OpenFile,
) -> Result<Option<u64>, Fault> {
    let Some(end) = Pump::new(account, item, source, sink)?.copy_data(meta)? else { return Ok(None) };
    match source {
        OpenFile::Local(file) if end == meta.size => {
            copy_rest(account, file, item.meta.kind == FileKind::File, sink, end)
        }
        _ => Ok(Some(end)),
    }
}

/// Of what is read to its end because its size says nothing: pipes and devices that the user named, and what follows the end of a file
/// whose size is not that of its content, as in /proc.
///
/// Appends to the copy, which has `end` bytes, what the source has from there on; where it cannot seek, all that it has to give.
/// Answers where the copy ends now, `None` when interrupted.
fn copy_rest(
    account: &Account,
    source: &fs::File,
    seeks: bool,
    sink: &OpenFile,
    mut end: u64,
) -> Result<Option<u64>, Fault> {
    // Nearly always nothing follows.
    let mut buffer = vec![0; 4096];
    loop {
        if account.interrupt.is_set() {
            return Ok(None);
        }
        let read = if seeks { source.read_at(&mut buffer, end) } else { (&mut &*source).read(&mut buffer) };
        let count = match read {
            Ok(0) => return Ok(Some(end)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Fault::Source("read", error.into())),
        };
        sink.write_all_at(&buffer[..count], end).map_err(|cause| Fault::Sink("write", cause))?;
        progressed();
        account.tally.bytes(count as u64);
        end += count as u64;
        if count == buffer.len() && count < CHUNK_SIZE {
            buffer.resize(CHUNK_SIZE, 0);
        }
    }
}

/// A chunk that is being read.
enum Reading {
    Done(RegisteredBuf, usize),
    Running(Pending<Transferred<RegisteredBuf>>),
}

/// Moves chunks from a source to a sink.
struct Pump<'a> {
    account: &'a Account,
    source: &'a OpenFile,
    sink: &'a OpenFile,
    /// For reads, and for writes too where they go to the same session, or come from this machine.
    buffers: Vec<RegisteredBuf>,
    /// For writes to another session than is read from.
    copies: Option<Vec<RegisteredBuf>>,
    /// Offsets, lengths, and the reads or writes themselves.
    reading: VecDeque<(u64, usize, Reading)>,
    writing: VecDeque<(u64, usize, Pending<Transferred<RegisteredBuf>>)>,
}

impl<'a> Pump<'a> {
    fn new(
        account: &'a Account,
        item: &Item,
        source: &'a OpenFile,
        sink: &'a OpenFile,
    ) -> Result<Self, Fault> {
        let (reads, writes) = match (&item.roots.source, &item.roots.destination) {
            (Place::Remote(from), Place::Remote(to)) => {
                (Some(&from.session), (!item.roots.one_session).then_some(&to.session))
            }
            (Place::Remote(one), _) | (_, Place::Remote(one)) => (Some(&one.session), None),
            _ => (None, None),
        };
        let size = usize::try_from(item.meta.size).unwrap_or(usize::MAX);
        let count = size.div_ceil(CHUNK_SIZE).clamp(1, DEPTH);
        let allocate = |session: &Session| -> Result<Vec<RegisteredBuf>, Error> {
            (0..count).map(|_| session.buffer(CHUNK_SIZE.min(size.max(4096)))).collect()
        };
        let failed = |error: Error| Fault::Sink("get memory for", error.into());
        let buffers = reads.map(allocate).transpose().map_err(failed)?.unwrap_or_default();
        let copies = writes.map(allocate).transpose().map_err(failed)?;
        Ok(Self {
            account,
            source,
            sink,
            buffers,
            copies,
            reading: VecDeque::new(),
            writing: VecDeque::new(),
        })
    }

    /// Copies all data; answers where it ends, `None` when interrupted. A source that is shorter than it was ends where it ended.
    fn copy_data(&mut self, meta: &Meta) -> Result<Option<u64>, Fault> {
        let sparse = meta.allocated < meta.size;
        let mut offset = 0;
        while offset < meta.size {
            let range = match sparse {
                false => Some((offset, meta.size)),
                true => self
                    .source
                    .data_range(offset, meta.size)
                    .map_err(|cause| Fault::Source("look for holes of", cause))?,
            };
            let Some((start, end)) = range else { break };
            let end = end.min(meta.size);
            if start >= end {
                break;
            }
            if let Some(short) = self.copy_range(start..end)? {
                return Ok(match self.account.interrupt.is_set() {
                    true => None,
                    false => Some(short),
                });
            }
            offset = end;
        }
        self.drain()?;
        Ok(Some(meta.size))
    }

    /// Copies a range of data. Answers where the source ended, if before the end; or anything, when interrupted.
    fn copy_range(&mut self, range: Range<u64>) -> Result<Option<u64>, Fault> {
        let mut offset = range.start;
        loop {
            while offset < range.end && self.reading.len() < DEPTH {
                if self.account.interrupt.is_set() {
                    self.drain()?;
                    return Ok(Some(offset));
                }
                if self.buffers.is_empty() && !self.reading.is_empty() {
                    break;
                }
                let buffer = self.free_buffer(false)?;
                let len = usize::try_from(range.end - offset).unwrap_or(usize::MAX).min(buffer.len());
                self.begin_read(buffer, offset, len)?;
                offset += len as u64;
                // Reads of this machine are done at once: write each before the next.
                if matches!(self.source, OpenFile::Local(_)) {
                    break;
                }
            }
            let Some((at, len, reading)) = self.reading.pop_front() else { return Ok(None) };
            let (count, buffer) = match reading {
                Reading::Done(buffer, count) => (count, buffer),
                Reading::Running(pending) => {
                    pending.wait().into_result().map_err(|error| Fault::Source("read", error.into()))?
                }
            };
            progressed();
            self.write(buffer, at, count)?;
            if count < len {
                self.drain()?;
                return Ok(Some(at + count as u64));
            }
        }
    }

    fn begin_read(&mut self, mut buffer: RegisteredBuf, offset: u64, len: usize) -> Result<(), Fault> {
        let reading = match self.source {
            OpenFile::Local(file) => {
                let count = read_full(file, &mut buffer[..len], offset)
                    .map_err(|error| Fault::Source("read", error.into()))?;
                Reading::Done(buffer, count)
            }
            OpenFile::Remote(file) => {
                let extent = Extent::new(offset, len as u64);
                Reading::Running(file.submit_read_list_buf(&[extent], buffer, from_ref(&(0..len))))
            }
        };
        self.reading.push_back((offset, len, reading));
        Ok(())
    }

    /// Writes the first `count` bytes of a buffer, which comes back by itself.
    fn write(&mut self, mut buffer: RegisteredBuf, offset: u64, count: usize) -> Result<(), Fault> {
        let file = match self.sink {
            OpenFile::Local(file) => {
                file.write_all_at(&buffer[..count], offset)
                    .map_err(|error| Fault::Sink("write", error.into()))?;
                self.account.tally.bytes(count as u64);
                self.buffers.push(buffer);
                return Ok(());
            }
            OpenFile::Remote(file) => file,
        };
        if count == 0 {
            self.buffers.push(buffer);
            return Ok(());
        }
        if self.copies.is_some() {
            let mut copy = self.free_buffer(true)?;
            copy[..count].copy_from_slice(&buffer[..count]);
            self.buffers.push(std::mem::replace(&mut buffer, copy));
        }
        let extent = Extent::new(offset, count as u64);
        let pending = file.submit_write_list_buf(&[extent], buffer, from_ref(&(0..count)));
        self.writing.push_back((offset, count, pending));
        Ok(())
    }

    fn free_buffer(&mut self, is_copy: bool) -> Result<RegisteredBuf, Fault> {
        loop {
            let free = if is_copy { self.copies.as_mut() } else { Some(&mut self.buffers) };
            match free.and_then(Vec::pop) {
                Some(buffer) => return Ok(buffer),
                None => self.finish_write()?,
            }
        }
    }

    /// Waits for the oldest write.
    fn finish_write(&mut self) -> Result<(), Fault> {
        let Some((offset, len, pending)) = self.writing.pop_front() else {
            return Err(Fault::Sink("write", Cause::Text("no buffer is left".into())));
        };
        let (count, buffer) =
            pending.wait().into_result().map_err(|error| Fault::Sink("write", error.into()))?;
        progressed();
        if let OpenFile::Remote(file) = self.sink
            && count < len
        {
            // The rest tells the reason.
            file.write_all_at(&buffer[count..len], offset + count as u64)
                .map_err(|error| Fault::Sink("write", error.into()))?;
        }
        self.account.tally.bytes(len as u64);
        match &mut self.copies {
            Some(copies) => copies.push(buffer),
            None => self.buffers.push(buffer),
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Fault> {
        while let Some((_, _, reading)) = self.reading.pop_front() {
            self.buffers.push(match reading {
                Reading::Done(buffer, _) => buffer,
                Reading::Running(pending) => pending.wait().buffer,
            });
        }
        while !self.writing.is_empty() {
            self.finish_write()?;
        }
        Ok(())
    }
}
