use dafs_client::Direction;

use crate::error::Result;
use crate::layout::{Segment, Segments, Source};

/// What is to be moved, and which way. Who makes it promises that the memory is there.
#[derive(Clone, Debug)]
pub struct Transfer<'a> {
    direction: Direction,
    collective: bool,
    source: Source<'a>,
}

impl<'a> Transfer<'a> {
    /// A transfer. `collective` counts it apart.
    ///
    /// # Safety
    /// All memory that `source` names must be valid, for writes where data is read into it, and be used by nobody else, until the transfer
    /// has ended: until [`super::File::run`] has returned, or the [`super::Request`] that [`super::File::submit`] made has ended or been
    /// dropped.
    #[allow(unsafe_code, reason = "where the promise about memory is made, once for all that follows")]
    pub unsafe fn new(direction: Direction, collective: bool, source: Source<'a>) -> Self {
        Self { direction, collective, source }
    }

    pub(super) fn direction(&self) -> Direction {
        self.direction
    }

    pub(super) fn source(&self) -> &Source<'a> {
        &self.source
    }

    pub(super) fn is_collective(&self) -> bool {
        self.collective
    }

    /// Its only segment, where it has one.
    pub(super) fn single(&self) -> Result<Option<Segment>> {
        if let Source::Segments(segments) = &self.source {
            return match segments[..] {
                [] => Ok(Some(Segment::default())),
                [segment] => Ok(Some(segment.check(0, segment.offset).map(|()| segment)?)),
                _ => Ok(None),
            };
        }
        let mut segments = Segments::new(self.source.borrowed())?;
        let first = segments.next_segment().transpose()?;
        Ok(match (first, segments.left()) {
            (Some(segment), 0) => Some(segment),
            (None, _) => Some(Segment::default()),
            _ => None,
        })
    }

    pub(super) fn into_source(self) -> Source<'a> {
        self.source
    }

    /// The same with lists of its own.
    pub(super) fn into_owned(self) -> Transfer<'static> {
        Transfer { direction: self.direction, collective: self.collective, source: self.source.into_owned() }
    }
}
