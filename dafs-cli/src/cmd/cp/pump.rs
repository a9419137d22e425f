//! Moves chunks of a file from one side to the other, several in flight.

use std::collections::VecDeque;
use std::ops::Range;
use std::slice::from_ref;

use dafs_client::{Error, Extent, Pending, RegisteredBuf, Session, Status, Transferred};
use dafs_stripe::PendingTransfer;

use super::large::{Copy, Fault};
use super::meta::{Cause, Later};
use super::open_file::{OpenFile, read_full};
use super::tree_root::TreeRoot;
use crate::remote::sure;
use crate::signals::progressed;

/// Bytes of a chunk.
pub(super) const CHUNK_SIZE: usize = 1 << 20;

/// Bytes that are written to a server before they are made durable, while more is written: what a restart of it loses is no more than about
/// twice that.
const COMMIT_SIZE: u64 = 256 << 20;

/// Chunks in flight.
const DEPTH: usize = 8;

/// Bytes of a copy that the user has been told of: each once, however often it is written.
#[derive(Default)]
pub(super) struct Counted {
    now: u64,
    most: u64,
}

impl Counted {
    /// So many bytes more are written; returns how many of them are new.
    pub(super) fn add(&mut self, bytes: u64) -> u64 {
        self.now += bytes;
        let new = self.now.saturating_sub(self.most);
        self.most += new;
        new
    }

    /// All of it is written from the beginning.
    pub(super) fn begin_again(&mut self) {
        self.now = 0;
    }
}

/// What restarts of the server lost of a copy.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) attributes: bool,
}

impl Lost {
    /// Notes why a commit failed. False where it was for something else.
    pub(super) fn add(&mut self, cause: &Cause) -> bool {
        let Cause::Client(Error::WritesLost { ranges, attributes, .. }) = cause else { return false };
        self.ranges.extend(ranges.iter().cloned());
        self.attributes |= attributes;
        true
    }
}

/// A chunk that is being read.
enum Reading {
    Done(RegisteredBuf, usize),
    Running(Pending<Transferred<RegisteredBuf>>),
    /// Into memory of its own: registered buffers are of one server.
    Striped(RegisteredBuf, PendingTransfer<Vec<u8>>),
}

/// A chunk that is being written.
enum Writing {
    Plain(Pending<Transferred<RegisteredBuf>>),
    Striped(PendingTransfer<Vec<u8>>),
}

impl Writing {
    /// What became of it. Hands the data to `rest`, and returns the buffer, where it has one.
    fn wait(
        self,
        rest: impl FnOnce(&[u8], Result<usize, Cause>) -> Result<(), Fault>,
    ) -> Result<Option<RegisteredBuf>, Fault> {
        match self {
            Self::Plain(pending) => {
                let Transferred { result, buffer } = pending.wait();
                rest(&buffer, result.map_err(Cause::from))?;
                Ok(Some(buffer))
            }
            Self::Striped(pending) => {
                let (data, result) = pending.wait();
                rest(&data, result.map_err(Cause::from))?;
                Ok(None)
            }
        }
    }
}

/// Moves chunks from a source to a sink.
pub(super) struct Pump<'a> {
    copy: &'a Copy<'a>,
    pub(super) counted: &'a mut Counted,
    /// What is written was not written before.
    pub(super) counts: bool,
    /// The server may copy by itself: both files are its own, and it has not said no.
    on_server: bool,
    /// For reads, and for writes too where they go to the same session, or come from this machine.
    buffers: Vec<RegisteredBuf>,
    /// For writes to another session than is read from.
    copies: Option<Vec<RegisteredBuf>>,
    /// Offsets, lengths, and the reads or writes themselves.
    reading: VecDeque<(u64, usize, Reading)>,
    writing: VecDeque<(u64, usize, Writing)>,
    /// Written since the last commit began.
    uncommitted: u64,
    committing: Option<Later<()>>,
    lost: Lost,
}

impl<'a> Pump<'a> {
    pub(super) fn new(copy: &'a Copy<'a>, counted: &'a mut Counted) -> Result<Self, Fault> {
        let are_plain = matches!((&copy.source, &copy.sink.file), (OpenFile::Remote(_), OpenFile::Remote(_)));
        let on_server = copy.item.roots.one_session && are_plain;
        let mut pump = Self {
            copy,
            counted,
            counts: true,
            on_server,
            buffers: Vec::new(),
            copies: None,
            reading: VecDeque::new(),
            writing: VecDeque::new(),
            uncommitted: 0,
            committing: None,
            lost: Lost::default(),
        };
        if !on_server {
            pump.allocate()?;
        }
        Ok(pump)
    }

    /// Gets memory for the chunks.
    fn allocate(&mut self) -> Result<(), Fault> {
        let copy = self.copy;
        let roots = &copy.item.roots;
        let (reads, writes) = match (&roots.source, &roots.destination) {
            (TreeRoot::Remote(from), TreeRoot::Remote(to)) => {
                (Some(&from.session), (!roots.one_session).then_some(&to.session))
            }
            (TreeRoot::Remote(one), _) | (_, TreeRoot::Remote(one)) => (Some(&one.session), None),
            _ => (None, None),
        };
        let size = usize::try_from(copy.meta.size).unwrap_or(usize::MAX);
        let count = size.div_ceil(CHUNK_SIZE).clamp(1, DEPTH);
        let allocate = |session: &Session| -> Result<Vec<RegisteredBuf>, Error> {
            (0..count).map(|_| session.buffer(CHUNK_SIZE.min(size.max(4096)))).collect()
        };
        let failed = |error: Error| Fault::Sink("get memory for", error.into());
        self.buffers = reads.map(allocate).transpose().map_err(failed)?.unwrap_or_default();
        self.copies = writes.map(allocate).transpose().map_err(failed)?;
        Ok(())
    }

    /// Copies all data; returns where it ends, `None` when interrupted. A source that is shorter than it was ends where it ended.
    pub(super) fn copy_data(&mut self) -> Result<Option<u64>, Fault> {
        let size = self.copy.meta.size;
        let short = self.copy_spans(0..size)?;
        self.drain()?;
        Ok(match short {
            Some(_) if self.copy.account.interrupt.is_set() => None,
            short => Some(short.unwrap_or(size)),
        })
    }

    /// Copies what is in these ranges once more; returns false when interrupted.
    pub(super) fn copy_again(&mut self, ranges: &[Range<u64>]) -> Result<bool, Fault> {
        for range in ranges {
            // Where the source ends by now its size has changed, which is found out.
            let short = self.copy_spans(range.start..range.end.min(self.copy.meta.size))?;
            if short.is_some() && self.copy.account.interrupt.is_set() {
                return Ok(false);
            }
        }
        self.drain()?;
        Ok(true)
    }

    /// What restarts of the server lost of what was written before it was committed.
    pub(super) fn finish(mut self) -> Result<Lost, Fault> {
        self.end_commit()?;
        Ok(self.lost)
    }

    /// Copies the data in a range, which may have holes. Returns as [`Pump::copy_range`].
    fn copy_spans(&mut self, range: Range<u64>) -> Result<Option<u64>, Fault> {
        let copy = self.copy;
        let mut offset = range.start;
        while offset < range.end {
            let data = match copy.leaves_holes() {
                false => Some((offset, range.end)),
                true => copy
                    .source
                    .data_range(offset, copy.meta.size)
                    .map_err(|cause| Fault::Source("look for holes of", cause))?,
            };
            let Some((start, end)) = data else { break };
            let end = end.min(range.end);
            if start >= end {
                break;
            }
            if let Some(short) = self.copy_range(start..end)? {
                return Ok(Some(short));
            }
            offset = end;
        }
        Ok(None)
    }

    /// Copies a range of data. Returns where the source ended, if before the end; or anything, when interrupted.
    fn copy_range(&mut self, range: Range<u64>) -> Result<Option<u64>, Fault> {
        let (mut offset, has_ended) = self.copy_on_server(&range)?;
        if has_ended {
            return Ok(Some(offset));
        }
        loop {
            while offset < range.end && self.reading.len() < DEPTH {
                if self.copy.account.interrupt.is_set() {
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
                if matches!(self.copy.source, OpenFile::Local(_)) {
                    break;
                }
            }
            let Some((at, len, reading)) = self.reading.pop_front() else { return Ok(None) };
            let (count, buffer) = match reading {
                Reading::Done(buffer, count) => (count, buffer),
                Reading::Running(pending) => {
                    pending.wait().into_result().map_err(|error| Fault::Source("read", error.into()))?
                }
                Reading::Striped(mut buffer, pending) => {
                    let (data, count) = pending.wait();
                    let count = count.map_err(|error| Fault::Source("read", error.into()))?;
                    buffer[..count].copy_from_slice(&data[..count]);
                    (count, buffer)
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

    /// Has the server copy a range of data. Returns how far that went, and whether the source ended there, or the user does not want the
    /// rest. What the server cannot copy is left.
    fn copy_on_server(&mut self, range: &Range<u64>) -> Result<(u64, bool), Fault> {
        let (mut offset, copy) = (range.start, self.copy);
        let (OpenFile::Remote(source), OpenFile::Remote(sink)) = (&copy.source, &copy.sink.file) else {
            return Ok((offset, false));
        };
        while self.on_server && offset < range.end {
            if copy.account.interrupt.is_set() {
                return Ok((offset, true));
            }
            let ask = || source.copy_some(offset, range.end - offset, sink, offset);
            match sure(ask(), ask) {
                Ok(copied) => {
                    progressed();
                    offset += copied.count;
                    self.written(copied.count);
                    self.commit_some()?;
                    if copied.end || copied.count == 0 {
                        return Ok((offset, true));
                    }
                }
                Err(error)
                    if matches!(error.status(), Some(Status::CROSS_DEVICE | Status::NOT_SUPPORTED)) =>
                {
                    self.on_server = false;
                    self.allocate()?;
                }
                Err(error) => return Err(Fault::Sink("write", error.into())),
            }
        }
        Ok((offset, false))
    }

    fn begin_read(&mut self, mut buffer: RegisteredBuf, offset: u64, len: usize) -> Result<(), Fault> {
        let reading = match &self.copy.source {
            OpenFile::Local(file) | OpenFile::Stream(file) => {
                let count = read_full(file, &mut buffer[..len], offset)
                    .map_err(|error| Fault::Source("read", error.into()))?;
                Reading::Done(buffer, count)
            }
            OpenFile::Remote(file) => {
                let extent = Extent::new(offset, len as u64);
                Reading::Running(file.submit_read_list_buf(&[extent], buffer, from_ref(&(0..len))))
            }
            OpenFile::Striped(file) => Reading::Striped(buffer, file.submit_read_at(vec![0; len], offset)),
        };
        self.reading.push_back((offset, len, reading));
        Ok(())
    }

    /// Writes the first `count` bytes of a buffer, which comes back by itself.
    fn write(&mut self, mut buffer: RegisteredBuf, offset: u64, count: usize) -> Result<(), Fault> {
        if let OpenFile::Striped(file) = &self.copy.sink.file {
            while self.writing.len() >= DEPTH {
                self.finish_write()?;
            }
            let pending = Writing::Striped(file.submit_write_at(buffer[..count].to_vec(), offset));
            self.writing.push_back((offset, count, pending));
            self.buffers.push(buffer);
            return Ok(());
        }
        let OpenFile::Remote(file) = &self.copy.sink.file else {
            self.copy
                .sink
                .write_all_at(&buffer[..count], offset)
                .map_err(|cause| Fault::Sink("write", cause))?;
            self.buffers.push(buffer);
            self.written(count as u64);
            return Ok(());
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
        self.writing.push_back((offset, count, Writing::Plain(pending)));
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
        let sink = &self.copy.sink;
        let buffer = pending.wait(|data, result| {
            let count = match result {
                // A restart of the server came between: the bytes are written once more.
                Err(Cause::Client(Error::InDoubt { .. })) => 0,
                result => result.map_err(|cause| Fault::Sink("write", cause))?,
            };
            progressed();
            // The rest tells the reason.
            let rest = sink.write_all_at(&data[count..len], offset + count as u64);
            rest.map_err(|cause| Fault::Sink("write", cause))
        })?;
        self.written(len as u64);
        match &mut self.copies {
            Some(copies) => copies.extend(buffer),
            None => self.buffers.extend(buffer),
        }
        self.commit_some()
    }

    fn written(&mut self, bytes: u64) {
        self.uncommitted += bytes;
        if self.counts {
            self.copy.account.tally.bytes(self.counted.add(bytes));
        }
    }

    /// Begins to make durable what was written, when that is much.
    fn commit_some(&mut self) -> Result<(), Fault> {
        if self.uncommitted < COMMIT_SIZE || !self.copy.account.options.sync {
            return Ok(());
        }
        self.end_commit()?;
        self.committing = match &self.copy.sink.file {
            OpenFile::Remote(file) => {
                let pending = file.submit_commit();
                Some(Later::Wait(Box::new(move || Ok(pending.wait()?))))
            }
            OpenFile::Striped(file) => Some(Later::Now(file.commit().map_err(Cause::from))),
            OpenFile::Local(_) | OpenFile::Stream(_) => None,
        };
        self.uncommitted = 0;
        Ok(())
    }

    fn end_commit(&mut self) -> Result<(), Fault> {
        let Some(committing) = self.committing.take() else { return Ok(()) };
        let committed = committing.wait();
        match committed {
            Err(cause) if !self.lost.add(&cause) && !cause.is_passing() => {
                Err(Fault::Sink("make durable", cause))
            }
            // What was in doubt the next commit tells.
            _ => Ok(()),
        }
    }

    fn drain(&mut self) -> Result<(), Fault> {
        while let Some((_, _, reading)) = self.reading.pop_front() {
            self.buffers.push(match reading {
                Reading::Done(buffer, _) => buffer,
                Reading::Running(pending) => pending.wait().buffer,
                Reading::Striped(buffer, pending) => {
                    drop(pending);
                    buffer
                }
            });
        }
        while !self.writing.is_empty() {
            self.finish_write()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CMD-8]
    #[test]
    fn bytes_that_are_written_again_are_counted_once() {
        let mut counted = Counted::default();
        assert_eq!((counted.add(10), counted.add(10)), (10, 10));
        counted.begin_again();
        assert_eq!((counted.add(15), counted.add(10)), (0, 5));
    }
}
