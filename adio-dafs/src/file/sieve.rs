//! Client data sieving of reads: windows of the file with their gaps (Thakur, Gropp and Lusk, "Data sieving and collective I/O in
//! ROMIO", §4).

use dafs_client::{Direction, Extent, RegisteredBuf};

use super::access::Moved;
use super::account::{Chosen, Why};
use super::counters::Count;
use super::{File, raw};
use crate::error::Result;
use crate::hint::{MemoryMode, Method, Settings};
use crate::layout::{MemoryPart, Segment, Segments};

/// Segments in a window at most.
const WINDOW_SEGMENTS_MAX: usize = 1 << 16;

/// Segments that lie in one window of the file, in the order of the transfer.
#[derive(Default)]
struct Window {
    start: u64,
    end: u64,
    segments: Vec<Segment>,
}

impl Window {
    /// Takes a segment in, if the window then is not larger than `size`; a segment that is larger alone has one of its own.
    fn take(&mut self, segment: Segment, size: u64) -> bool {
        let (start, end) = (segment.offset, segment.offset + segment.len);
        let (first, last) = match self.segments.is_empty() {
            true => (start, end),
            false => (self.start.min(start), self.end.max(end)),
        };
        let fits = last - first <= size && self.segments.len() < WINDOW_SEGMENTS_MAX;
        if fits || self.segments.is_empty() {
            (self.start, self.end) = (first, last);
            self.segments.push(segment);
            return true;
        }
        false
    }

    fn len(&self) -> usize {
        usize::try_from(self.end - self.start).unwrap_or(usize::MAX)
    }

    /// Where a segment lies in the window.
    fn range(&self, segment: &Segment) -> std::ops::Range<usize> {
        let from = usize::try_from(segment.offset - self.start).unwrap_or(usize::MAX);
        from..from + piece(segment).len
    }
}

fn piece(segment: &Segment) -> MemoryPart {
    MemoryPart { address: segment.address, len: usize::try_from(segment.len).unwrap_or(usize::MAX) }
}

impl File {
    pub(super) fn run_sieved(&self, settings: &Settings, mut segments: Segments<'_>, why: Why) -> Moved {
        let size = settings.sieve_size() as u64;
        let (mut moved, mut window, mut buffer) = (0, Window::default(), None);
        loop {
            let next = match segments.next_segment().transpose() {
                Ok(next) => next,
                Err(error) => return (moved, Err(error.into())),
            };
            if let Some(segment) = next
                && window.take(segment, size)
            {
                continue;
            }
            if window.segments.is_empty() {
                return (moved, Ok(()));
            }
            let len: u64 = window.segments.iter().map(|segment| segment.len).sum();
            let (direction, method) = (Direction::Read, Some(Method::Sieve));
            let chosen = Chosen { direction, method, mode: MemoryMode::Dafs, why };
            self.note(settings, chosen, window.segments.len(), len);
            let done = self.run_window(&window, &mut buffer);
            moved += done.0;
            if done.1.is_err() || done.0 < len {
                return (moved, done.1);
            }
            window = Window::default();
            match next {
                Some(segment) => window.take(segment, size),
                None => return (moved, Ok(())),
            };
        }
    }

    fn run_window(&self, window: &Window, buffer: &mut Option<RegisteredBuf>) -> Moved {
        self.counters.add(Count::Segments, window.segments.len() as u64);
        if let [segment] = &window.segments[..] {
            self.counters.on_call(Method::Multiple, MemoryMode::Dafs);
            return match raw::run(self.by(MemoryMode::Dafs), Direction::Read, segment) {
                Ok(count) => (count as u64, Ok(())),
                Err(error) => (0, Err(self.failed(Direction::Read, error))),
            };
        }
        self.counters.add(Count::SieveWindows, 1);
        match self.read_window(window, buffer) {
            Ok(moved) => (moved, Ok(())),
            Err(error) => (0, Err(error)),
        }
    }

    fn read_window(&self, window: &Window, buffer: &mut Option<RegisteredBuf>) -> Result<u64> {
        let bytes = self.filled(window, buffer)?;
        let mut moved = 0;
        for segment in &window.segments {
            let range = window.range(segment);
            let there = range.end.min(bytes.len()).saturating_sub(range.start);
            if there > 0 {
                raw::copy_out(&bytes[range.start..range.start + there], piece(segment));
            }
            moved += there as u64;
            if there < range.len() {
                // The file ends: what comes in the transfer behind the first gap does not count.
                break;
            }
        }
        Ok(moved)
    }

    /// What the file has of a window.
    fn filled<'a>(&self, window: &Window, buffer: &'a mut Option<RegisteredBuf>) -> Result<&'a [u8]> {
        if buffer.as_ref().is_none_or(|buffer| buffer.len() < window.len()) {
            let made = self.server.session.buffer(window.len());
            *buffer = Some(made.map_err(|error| self.failed(Direction::Read, error))?);
        }
        let Some(buffer) = buffer else { return Ok(&[]) };
        self.counters.on_call(Method::Sieve, MemoryMode::Dafs);
        self.counters.add(Count::SieveBytes, window.len() as u64);
        let read = match &self.striped {
            Some(striped) => {
                striped.read_at(&mut buffer[..window.len()], window.start).map_err(raw::of_servers)
            }
            None => {
                let extent = Extent::new(window.start, window.len() as u64);
                let whole = 0..window.len();
                self.inner
                    .read_list_buf(&[extent], buffer, std::slice::from_ref(&whole))
                    .map(|read| read.count)
            }
        };
        let count = read.map_err(|error| self.failed(Direction::Read, error))?;
        Ok(&buffer[..count])
    }
}
