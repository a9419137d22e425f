//! Views in the server: the file type is described once, and each transfer names it (Hong, You and Chung, "An Efficient MPI-IO for
//! Noncontiguous Data Access over InfiniBand", §4). Nobody exchanges data, and no list of segments travels.

use std::sync::{MutexGuard, PoisonError, TryLockError};

use dafs_client::{Direction, Status};

use super::access::{CALL_ENTRIES_MAX, CALL_SIZE_MAX, Moved, move_all};
use super::account::{Chosen, Why};
use super::counters::Count;
use super::{File, raw};
use crate::error::{Error, Result};
use crate::hint::{Method, Settings};
use crate::layout::{PieceGroup, Pieces, Source, Type};

/// File types that a file remembers: programs alternate between few.
const VIEWS_MAX: usize = 8;

/// The file types that were described to the server, the latest first; `None` where it would not have one.
#[derive(Default)]
pub(super) struct Views(Vec<(Type<'static>, Option<dafs_client::View>)>);

impl Views {
    /// What is known of a file type, which becomes the latest.
    fn known(&mut self, of: &Type<'_>) -> Option<Option<dafs_client::View>> {
        let index = self.0.iter().position(|(known, _)| known.is_same(of))?;
        self.0[..=index].rotate_right(1);
        self.0.first().map(|(_, described)| described.clone())
    }
}

/// A transfer through a view, cut into calls of the client library.
pub(super) struct Viewed<'a> {
    view: dafs_client::View,
    displacement: u64,
    position: u64,
    pieces: Pieces<'a>,
    /// Of all processes that make the same collective call.
    group: Option<(u64, u32)>,
    begun: bool,
}

/// A transfer that could not go on through its view, which the server does not know: it was restarted, and had no room for it.
pub(super) struct Forgotten {
    /// Bytes, from the beginning without a gap.
    pub(super) moved: u64,
}

/// The server does not know the view.
pub(super) fn is_forgotten(error: &dafs_client::Error) -> bool {
    error.status() == Some(Status::NO_VIEW)
}

impl File {
    /// The transfer as one through a view, or why it is none.
    pub(super) fn viewed<'a>(
        &self,
        source: &Source<'a>,
        group: Option<(u64, u32)>,
    ) -> std::result::Result<Viewed<'a>, Why> {
        let Source::Typed { view, .. } = source else { return Err(Why::ViewNeedsTypes) };
        let described = self.view_of(&view.of).ok().flatten().ok_or(Why::ViewRefused)?;
        Viewed::new(described, source, group)
    }

    /// The same where the server knows the file type, and nobody has to wait to find that out: another thread that has the views may
    /// describe one. Does not block.
    pub(super) fn viewed_at_once<'a>(&self, source: &Source<'a>) -> std::result::Result<Viewed<'a>, Why> {
        let Source::Typed { view, .. } = source else { return Err(Why::ViewNeedsTypes) };
        let described = self.views_now().and_then(|mut views| views.known(&view.of));
        Viewed::new(described.flatten().ok_or(Why::ViewRefused)?, source, None)
    }

    /// The views, unless another thread has them.
    fn views_now(&self) -> Option<MutexGuard<'_, Views>> {
        match self.views.try_lock() {
            Ok(views) => Some(views),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The process sees the file by instances of this type from now on: they are described to the server, where transfers will name them.
    /// A type that the server does not take is none of this one's errors: its transfers go by lists. Blocks.
    pub fn describe(&self, of: &Type<'_>) -> Result<()> {
        let moves = [(Direction::Read, self.mode.reads()), (Direction::Write, self.mode.writes())];
        match moves.into_iter().any(|(direction, moves)| moves && self.names_views(direction)) {
            true => self.view_of(of).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Transfers of this direction name file types, by the hints in force.
    pub fn names_views(&self, direction: Direction) -> bool {
        self.settings.load().method(direction) == Method::View
    }

    /// The server's view of a file type, which is described where it is new; `None` where the server does not take it. Blocks then.
    fn view_of(&self, of: &Type<'_>) -> Result<Option<dafs_client::View>> {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = views.known(of) {
            return Ok(known);
        }
        self.counters.add(Count::ViewDescriptions, 1);
        let described = match self.server.session.view(&of.datatype()) {
            Ok(view) => Some(view),
            Err(error @ (dafs_client::Error::Invalid(_) | dafs_client::Error::Status { .. })) => {
                tracing::debug!(file = %self.place.shown, "no view in the server: {error}");
                None
            }
            Err(error) => return Err(self.cannot("describe a view of", error)),
        };
        views.0.truncate(VIEWS_MAX - 1);
        views.0.insert(0, (of.clone().into_owned(), described.clone()));
        Ok(described)
    }

    /// Transfers with the file type of this one go by lists from now on. Does not block: while another thread has the views, maybe to
    /// describe one, this type stays, and the next transfer that names it finds that it is forgotten.
    pub(super) fn forget(&self, source: &Source<'_>) {
        let Source::Typed { view, .. } = source else { return };
        let Some(mut views) = self.views_now() else { return };
        if let Some((_, described)) = views.0.iter_mut().find(|(known, _)| known.is_same(&view.of)) {
            *described = None;
        }
    }

    pub(super) fn run_viewed(
        &self,
        direction: Direction,
        settings: &Settings,
        mut viewed: Viewed<'_>,
    ) -> std::result::Result<Moved, Forgotten> {
        let mut moved = 0;
        while let Some(group) = viewed.next_group() {
            let group = match group {
                Ok(group) => group,
                Err(error) => return Ok((moved, Err(error))),
            };
            let (mode, timed) = self.choose_mode(settings, direction, group.len, group.memory.len() == 1);
            let chosen = self.note_view(settings, direction, mode, &group);
            let before = self.registered_now(settings);
            let len = group.len;
            let run = |group: &PieceGroup| raw::run_view(self.plain(mode), direction, &viewed, group);
            let (count, result) = move_all(direction, group, run);
            if result.as_ref().is_err_and(is_forgotten) {
                return Err(Forgotten { moved: moved + count });
            }
            let done = self.ended(direction, len, (count, result));
            self.tell(timed, len, &done);
            self.note_registered(before, chosen);
            moved += count;
            // Also where the file ends.
            if count < len {
                return Ok((moved, done.1));
            }
        }
        Ok((moved, Ok(())))
    }

    pub(super) fn note_view(
        &self,
        settings: &Settings,
        direction: Direction,
        mode: crate::hint::MemoryMode,
        group: &PieceGroup,
    ) -> Chosen {
        self.counters.add(Count::Views, 1);
        self.counters.on_call(Method::View, mode);
        let chosen = Chosen { direction, method: Some(Method::View), mode, why: Why::Hint };
        self.note(settings, chosen, group.memory.len(), group.len);
        chosen
    }
}

impl<'a> Viewed<'a> {
    fn new(
        described: dafs_client::View,
        source: &Source<'a>,
        group: Option<(u64, u32)>,
    ) -> std::result::Result<Self, Why> {
        let Source::Typed { memory, view, position } = source else { return Err(Why::ViewNeedsTypes) };
        let pieces = Pieces::new(memory.clone()).map_err(|_| Why::ViewNeedsTypes)?;
        let (displacement, position) = (view.displacement, *position);
        Ok(Self { view: described, displacement, position, pieces, group, begun: false })
    }

    /// The memory of the next call of the client library.
    pub(super) fn next_group(&mut self) -> Option<Result<PieceGroup>> {
        if !std::mem::replace(&mut self.begun, true) && self.pieces.size() == 0 && self.group.is_some() {
            // The others of the group wait for it.
            return Some(Ok(PieceGroup::default()));
        }
        let next = self.pieces.next_group(CALL_ENTRIES_MAX, CALL_SIZE_MAX)?;
        Some(next.map_err(Error::from))
    }

    /// Where in the file a call begins.
    pub(super) fn place(&self, group: &PieceGroup) -> dafs_client::ViewPlace<'_> {
        let place = self.view.at(self.displacement, self.position.saturating_add(group.position));
        match self.group.filter(|_| group.len == self.pieces.size()) {
            Some((id, size)) => place.in_group(id, size),
            None => place,
        }
    }
}
