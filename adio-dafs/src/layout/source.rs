use smallvec::SmallVec;

use super::types::{Cursor, Instances, LayoutError, Type, View, address_of};

/// A piece of memory and the extent of the file that it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins in memory.
    pub address: usize,
    /// Where it begins in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Segment {
    /// It lies where memory and files can be; `done` bytes of memory and `position` bytes of the view come before it.
    pub fn check(&self, done: u64, position: u64) -> Result<(), LayoutError> {
        let in_file = self.offset.checked_add(self.len).is_some_and(|end| end <= i64::MAX as u64);
        let len = usize::try_from(self.len).ok();
        let in_memory = len.is_some_and(|len| self.address.checked_add(len).is_some());
        match (in_file, in_memory) {
            (false, _) => Err(LayoutError::Offset { position }),
            (_, false) => Err(LayoutError::Address { position: done }),
            _ => Ok(()),
        }
    }
}

/// Where the bytes of a transfer lie.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// Segments, as given: one of them as a rule, which needs no memory of its own.
    Segments(SmallVec<[Segment; 1]>),
    /// Memory by a view, from so many bytes of its data on.
    Typed {
        /// The memory.
        memory: Instances<'a>,
        /// The view.
        view: View<'a>,
        /// Bytes of the view's data before the first.
        position: u64,
    },
}

impl Source<'_> {
    /// Bytes of all of it.
    pub fn size(&self) -> Result<u64, LayoutError> {
        match self {
            Self::Segments(segments) => segments
                .iter()
                .try_fold(0u64, |sum, segment| sum.checked_add(segment.len))
                .filter(|size| *size <= i64::MAX as u64)
                .ok_or(LayoutError::Size),
            Self::Typed { memory, .. } => memory.size(),
        }
    }

    /// The same, without copying the lists of types.
    pub fn borrowed(&self) -> Source<'_> {
        match self {
            Self::Segments(segments) => Source::Segments(segments.clone()),
            Self::Typed { memory, view, position } => Source::Typed {
                memory: Instances { base: memory.base, count: memory.count, of: memory.of.borrowed() },
                view: View { displacement: view.displacement, of: view.of.borrowed() },
                position: *position,
            },
        }
    }

    /// The same with lists of its own.
    pub fn into_owned(self) -> Source<'static> {
        match self {
            Self::Segments(segments) => Source::Segments(segments),
            Self::Typed { memory, view, position } => Source::Typed {
                memory: Instances { base: memory.base, count: memory.count, of: memory.of.into_owned() },
                view: View { displacement: view.displacement, of: view.of.into_owned() },
                position,
            },
        }
    }
}

/// The segments of a source, one after the other.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    source: Source<'a>,
    /// Of a list of segments: the next.
    next: usize,
    memory: Cursor,
    file: Cursor,
    /// Bytes given out, and to be given out.
    done: u64,
    size: u64,
}

impl<'a> Segments<'a> {
    /// From the beginning.
    pub fn new(source: Source<'a>) -> Result<Self, LayoutError> {
        Self::resumed(source, 0)
    }

    /// Behind the first `done` bytes, of memory by a view.
    pub fn resumed(source: Source<'a>, done: u64) -> Result<Self, LayoutError> {
        debug_assert!(done == 0 || matches!(source, Source::Typed { .. }));
        let size = source.size()?;
        let (mut memory, mut file) = (Cursor::default(), Cursor::default());
        if let Source::Typed { memory: instances, view, position } = &source {
            if size > 0 && view.of.size() == 0 {
                return Err(LayoutError::EmptyView);
            }
            memory = Cursor::at(&instances.of, done);
            file = Cursor::at(&view.of, position.saturating_add(done));
        }
        Ok(Self { source, next: 0, memory, file, done, size })
    }

    /// Bytes that are still to be given out.
    pub fn left(&self) -> u64 {
        self.size - self.done
    }

    /// Nothing was given out yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.done == 0
    }

    /// The next segment; `None` at the end. Segments that touch in both memory and file are not joined here.
    pub fn next_segment(&mut self) -> Option<Result<Segment, LayoutError>> {
        if self.left() == 0 {
            return None;
        }
        match &self.source {
            Source::Segments(segments) => loop {
                let segment = *segments.get(self.next)?;
                self.next += 1;
                if segment.len > 0 {
                    let done = self.done;
                    self.done += segment.len;
                    return Some(segment.check(done, segment.offset).map(|()| segment));
                }
            },
            Source::Typed { memory, view, position } => {
                let begin = (self.done, position.saturating_add(self.done));
                let found =
                    typed(&mut self.memory, &mut self.file, (memory, view), self.size - self.done, begin);
                if let Ok(segment) = &found {
                    self.done += segment.len;
                }
                Some(found)
            }
        }
    }
}

/// What comes next both in memory and in the view.
fn typed(
    memory: &mut Cursor,
    file: &mut Cursor,
    (instances, view): (&Instances<'_>, &View<'_>),
    max: u64,
    (done, position): (u64, u64),
) -> Result<Segment, LayoutError> {
    let run = |cursor: &mut Cursor, of: &Type<'_>, max| cursor.run(of, max);
    let no_address = LayoutError::Address { position: done };
    let (at, in_memory) = run(memory, &instances.of, max).ok_or(no_address.clone())?;
    let (offset, len) = run(file, &view.of, in_memory).ok_or(LayoutError::Offset { position })?;
    memory.back(in_memory - len);
    let address = address_of(instances.base, at).ok_or(no_address)?;
    let segment = Segment { address, offset: view.absolute(offset, position)?, len };
    segment.check(done, position)?;
    Ok(segment)
}
