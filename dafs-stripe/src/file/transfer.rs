//! Transfers of a striped file: dealt out to its pieces, and put together again.

use dafs_client::{Extent, ListRead};
use dafs_proto::extent::{OFFSET_MAX, total};

use crate::error::{Error, Result};
use crate::file::flight::{Flight, Memory, Moved, Work, deal_out};
use crate::file::striped::{Sizes, Striped};

/// How often what a piece has got meanwhile is read again, before what was read first counts.
const AGAIN_MAX: u32 = 16;

/// A transfer in flight.
pub(crate) struct Transfer<'a> {
    memory: Memory<'a>,
    works: Vec<Work>,
    flight: Flight<'a>,
    /// Of each work: whether it is in flight, or why not.
    started: Vec<Result<()>>,
}

/// How far a transfer came.
struct Reached {
    /// Bytes without a gap from the beginning.
    count: usize,
    /// Why not further, where that is an error.
    error: Option<Error>,
}

impl Reached {
    fn stop_at(&mut self, place: usize, error: Option<Error>) {
        if place < self.count || (place == self.count && self.error.is_none()) {
            *self = Self { count: place, error };
        }
    }

    fn outcome(self) -> Result<usize> {
        match self.error {
            Some(error) if self.count == 0 => Err(error),
            _ => Ok(self.count),
        }
    }
}

impl Striped {
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let Some(len) = room(offset, buffer.len()) else { return Err(beyond(offset, buffer.len())) };
        // What one piece has is read from there as any file.
        if let Some(stripe) = self.geometry.stripes(offset, len).next()
            && stripe.len == len
        {
            let piece = &self.pieces[stripe.piece];
            let count =
                piece.file()?.read_at(buffer, stripe.local).map_err(|error| piece.failed_with(error))?;
            if count as u64 == len {
                return Ok(count);
            }
        }
        Ok(self.begin(&[Extent::new(offset, len)], Memory::to_fill(buffer)).finish(self)?.count)
    }

    pub(crate) fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let Some(len) = room(offset, data.len()) else { return Err(beyond(offset, data.len())) };
        if let Some(stripe) = self.geometry.stripes(offset, len).next()
            && stripe.len == len
        {
            let piece = &self.pieces[stripe.piece];
            return piece.file()?.write_at(data, stripe.local).map_err(|error| piece.failed_with(error));
        }
        Ok(self.begin(&[Extent::new(offset, len)], Memory::to_send(data)).finish(self)?.count)
    }

    pub(crate) fn read_list(&self, extents: &[Extent], memory: Memory<'_>) -> Result<ListRead> {
        check(extents, memory.len())?;
        self.begin(extents, memory).finish(self)
    }

    pub(crate) fn write_list(&self, extents: &[Extent], memory: Memory<'_>) -> Result<usize> {
        check(extents, memory.len())?;
        Ok(self.begin(extents, memory).finish(self)?.count)
    }

    /// Starts a transfer; the extents were checked. Blocks only where a piece is not open yet.
    pub(crate) fn begin<'a>(&self, extents: &[Extent], memory: Memory<'a>) -> Transfer<'a> {
        let works = deal_out(self.geometry, extents);
        let mut flight = Flight::new();
        let started = works.iter().map(|work| self.submit(&mut flight, work, &memory)).collect();
        Transfer { memory, works, flight, started }
    }

    fn submit<'a>(&self, flight: &mut Flight<'a>, work: &Work, memory: &Memory<'a>) -> Result<()> {
        let file = self.pieces[work.piece].file()?;
        flight.submit(&file, work, memory);
        Ok(())
    }
}

impl<'a> Transfer<'a> {
    /// Moves it along; whether it can be finished without waiting, but for what the end of the file takes.
    pub(crate) fn test(&mut self) -> bool {
        self.flight.test()
    }

    /// Waits for its end. Blocks.
    pub(crate) fn finish(self, striped: &Striped) -> Result<ListRead> {
        let Self { memory, works, flight, started } = self;
        let mut moved = collect(striped, &works, flight, started);
        let (len, is_sent) = (memory.len(), memory.is_sent());
        let mut reached = Reached { count: len, error: None };
        let end = match is_sent {
            true => None,
            false => fill_up(striped, &works, &mut moved, memory, &mut reached),
        };
        for (work, moved) in works.iter().zip(moved) {
            match moved {
                // Where a piece ends, the file may go on: that was looked at.
                Ok(Moved { end: Some(_), .. }) => {}
                Ok(moved) => {
                    work.place_of(moved.count).into_iter().for_each(|place| reached.stop_at(place, None))
                }
                Err(error) => reached.stop_at(work.place_of(0).unwrap_or(0), Some(error)),
            }
        }
        Ok(ListRead { count: reached.outcome()?, end })
    }
}

fn collect(
    striped: &Striped,
    works: &[Work],
    flight: Flight<'_>,
    started: Vec<Result<()>>,
) -> Vec<Result<Moved>> {
    let mut ended = flight.wait().into_iter();
    let outcome = |(work, started): (&Work, Result<()>)| {
        started.and_then(|()| match ended.next() {
            Some(moved) => moved.map_err(|error| striped.pieces[work.piece].failed_with(error)),
            None => Ok(Moved { count: 0, end: None }),
        })
    };
    works.iter().zip(started).map(outcome).collect()
}

/// Where pieces ended: what lies before the end of the file is a hole, and reads as zeros. Returns the end of the file, if that was met.
fn fill_up<'a>(
    striped: &Striped,
    works: &[Work],
    moved: &mut [Result<Moved>],
    mut memory: Memory<'a>,
    reached: &mut Reached,
) -> Option<u64> {
    let is_short = |moved: &Result<Moved>| matches!(moved, Ok(Moved { end: Some(_), .. }));
    if !moved.iter().any(is_short) {
        return None;
    }
    let sizes = settled_sizes(striped, works, moved, &memory);
    let mut end = None;
    for (work, moved) in works.iter().zip(&*moved) {
        let Ok(Moved { end: Some(piece_end), .. }) = moved else { continue };
        for atom in &work.atoms {
            // What of it the piece has, and what lies before the end of the file.
            let has = usize::try_from(piece_end.saturating_sub(atom.local))
                .map_or(atom.len, |has| has.min(atom.len));
            let before = sizes.at_least.saturating_sub(atom.offset);
            let inside = usize::try_from(before).map_or(atom.len, |before| before.min(atom.len));
            if has < inside {
                memory.fill_with_zeros(atom.place + has, inside - has);
            }
            if has.max(inside) < atom.len {
                reached.stop_at(atom.place + has.max(inside), sizes.unknown.clone());
                end = Some(sizes.at_least);
            }
        }
    }
    end.filter(|_| sizes.unknown.is_none())
}

/// The sizes of the pieces, at a time at which none that ended too early has more than was read of it: zeros where another client has put
/// data before the end of the file would be a state that the file never had.
fn settled_sizes<'a>(
    striped: &Striped,
    works: &[Work],
    moved: &mut [Result<Moved>],
    memory: &Memory<'a>,
) -> Sizes {
    let mut again = 0;
    loop {
        let sizes = striped.sizes();
        let has_more = |work: &Work, moved: &Result<Moved>| {
            let Ok(Moved { end: Some(end), .. }) = moved else { return false };
            let size = sizes.pieces[work.piece].unwrap_or(0);
            let is_missed = |local: u64, len: usize| local.max(*end) < size.min(local + len as u64);
            size > *end && work.atoms.iter().any(|atom| is_missed(atom.local, atom.len))
        };
        let places: Vec<usize> =
            (0..works.len()).filter(|&place| has_more(&works[place], &moved[place])).collect();
        if places.is_empty() || again == AGAIN_MAX {
            return sizes;
        }
        again += 1;
        for place in places {
            let work = &works[place];
            let mut flight = Flight::new();
            let started = vec![striped.submit(&mut flight, work, memory)];
            let again = collect(striped, std::slice::from_ref(work), flight, started);
            moved[place] = again.into_iter().next().unwrap_or(Ok(Moved { count: 0, end: None }));
        }
    }
}

/// The bytes of a transfer, which ends within the largest file.
fn room(offset: u64, len: usize) -> Option<u64> {
    let len = len as u64;
    offset.checked_add(len).filter(|end| *end <= OFFSET_MAX).map(|_| len)
}

fn beyond(offset: u64, len: usize) -> Error {
    Error::Invalid(format!("{len} bytes at {offset}: beyond the largest file"))
}

pub(super) fn check(extents: &[Extent], len: usize) -> Result<()> {
    match total(extents) {
        Some(total) if total == len as u64 => Ok(()),
        Some(total) => Err(Error::Invalid(format!("extents of {total} bytes and memory of {len}"))),
        None => Err(Error::Invalid("extents beyond the largest file".to_owned())),
    }
}
