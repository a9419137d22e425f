//! The views of a session: described by its client, in parts, and kept until they are given back or the session ends.

use std::collections::HashMap;
use std::sync::Arc;

use dafs_proto::budget::Charge;
use dafs_proto::view::{VIEW_LEVELS_MAX, View, ViewError};
use dafs_proto::wire::{VIEW_DESCRIPTION_SIZE_MAX, ViewSetRequest, WireError, decode_datatype};
use thiserror::Error;

use crate::storage::work;
use crate::worker::flight::layout::Kept;

/// The views of a session.
#[derive(Debug)]
pub struct Views {
    set: HashMap<u32, Arc<Kept>>,
    /// The one whose description is not complete.
    begun: Option<Begun>,
    /// Bytes that the description takes; those of the views are with them.
    room: Charge,
    /// Views at most.
    max: u32,
}

#[derive(Debug)]
struct Begun {
    view: u32,
    description: Vec<u8>,
    description_len: u32,
}

/// Why a view, or a part of its description, is not taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum Refused {
    #[error("a view has number {0} already")]
    Taken(u32),
    #[error("a description of {0} bytes; it must have 1 to {VIEW_DESCRIPTION_SIZE_MAX}")]
    Length(u32),
    #[error("a part of {len} bytes at {offset}, where {expected} of {description_len} are missing")]
    Part { offset: u32, len: usize, expected: usize, description_len: u32 },
    #[error(transparent)]
    Bytes(#[from] WireError),
    #[error(transparent)]
    View(#[from] ViewError),
    /// The session has all it may.
    #[error("the session has reached its limit of views")]
    TooMany,
    /// There is no room for it.
    #[error("there is no room for another view")]
    Full,
}

impl Views {
    /// None yet, `max` of them at most; `room` is where the bytes of all are charged.
    pub(crate) fn new(room: Charge, max: u32) -> Self {
        Self { set: HashMap::new(), begun: None, room, max }
    }

    /// The view of this number.
    pub(crate) fn find(&self, view: u32) -> Option<&Arc<Kept>> {
        self.set.get(&view)
    }

    /// Takes a part of a description. The first part throws away what came of another; the last makes the view.
    pub(crate) fn set(&mut self, request: &ViewSetRequest, part: &[u8]) -> Result<(), Refused> {
        let ViewSetRequest { view, description_len, offset } = *request;
        if offset == 0 {
            self.begin(view, description_len)?;
        }
        let Some(begun) = &mut self.begun else {
            return Err(Refused::Part { offset, len: part.len(), expected: 0, description_len });
        };
        let here = begun.description.len();
        let expected = begun.description_len as usize - here;
        let fits = !part.is_empty() && part.len() <= expected && offset as usize == here;
        if !fits || (view, description_len) != (begun.view, begun.description_len) {
            self.forget_begun();
            return Err(Refused::Part { offset, len: part.len(), expected, description_len });
        }
        begun.description.extend_from_slice(part);
        if part.len() < expected {
            return Ok(());
        }
        let made = compile(&begun.description);
        self.forget_begun();
        let made = made?;
        if self.set.len() >= self.max as usize {
            return Err(Refused::TooMany);
        }
        let size = made.memory_size() as u64;
        if !self.room.grow(size) {
            return Err(Refused::Full);
        }
        self.set.insert(view, Arc::new(Kept::new(made, self.room.split(size))));
        Ok(())
    }

    fn begin(&mut self, view: u32, description_len: u32) -> Result<(), Refused> {
        self.forget_begun();
        if self.set.contains_key(&view) {
            return Err(Refused::Taken(view));
        }
        if description_len == 0 || description_len > VIEW_DESCRIPTION_SIZE_MAX {
            return Err(Refused::Length(description_len));
        }
        if !self.room.grow(description_len.into()) {
            return Err(Refused::Full);
        }
        // It grows with what arrives.
        self.begun = Some(Begun { view, description: Vec::new(), description_len });
        Ok(())
    }

    fn forget_begun(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.room.shrink(begun.description_len.into());
        }
    }

    /// Gives a view back; whether it was there. Requests that use it now go on, and it takes its room until they have ended.
    pub(crate) fn drop_view(&mut self, view: u32) -> bool {
        self.set.remove(&view).is_some()
    }
}

/// Bytes of a description that are compiled in the time of one step of [`work`], and levels.
const COMPILED_IN_A_STEP: usize = 128;
const LEVELS_IN_A_STEP: usize = 4;

fn compile(description: &[u8]) -> Result<View, Refused> {
    work::add(description.len() / COMPILED_IN_A_STEP);
    let made = decode_datatype(description)
        .map_err(Refused::from)
        .and_then(|datatype| View::new(&datatype).map_err(Refused::from));
    let levels = match &made {
        Ok(view) => view.level_count(),
        Err(Refused::View(ViewError::Levels { .. })) => VIEW_LEVELS_MAX,
        Err(_) => 0,
    };
    work::add(levels / LEVELS_IN_A_STEP);
    made
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
    use dafs_proto::budget::{Budget, Owner, Terms};
    use dafs_proto::view::Datatype;
    use dafs_proto::wire::encode_datatype;

    use super::*;

    const VIEWS_MAX: u32 = 1024;

    fn views(limit: u64) -> (Views, Arc<Budget>) {
        // Trusted: nothing is kept in reserve.
        let budget = Budget::new(Terms { limit, share_percent: 100 }, vec![Owner::User(1)]);
        let room = budget.take(&Owner::User(1), 0).unwrap();
        (Views::new(room, VIEWS_MAX), budget)
    }

    fn part(view: u32, description: &[u8], offset: usize) -> ViewSetRequest {
        ViewSetRequest { view, description_len: description.len() as u32, offset: offset as u32 }
    }

    // [VIEW-7] [VIEW-8] [VIEW-16]
    #[test]
    fn view_is_made_of_parts_in_order_and_of_nothing_else() {
        let description = encode_datatype(&Datatype::bytes(4).vector(9, 1, 3));
        let (mut views, budget) = views(1 << 20);
        for (index, byte) in description.iter().enumerate() {
            assert!(views.find(7).is_none());
            views.set(&part(7, &description, index), &[*byte]).unwrap();
        }
        assert_eq!(views.find(7).unwrap().size(), 36);
        assert_eq!(budget.used(), views.find(7).unwrap().memory_size() as u64);
        assert_eq!(views.set(&part(7, &description, 0), &description), Err(Refused::Taken(7)));
        // Another one, out of order: each fault throws away what came before it.
        let half = description.len() / 2;
        let begin = |views: &mut Views| views.set(&part(8, &description, 0), &description[..half]).unwrap();
        let is_part = |result| matches!(result, Err(Refused::Part { .. }));
        assert!(is_part(views.set(&part(8, &description, half), &description[half..])), "nothing was begun");
        for (view, offset, bytes) in [
            (8, half + 1, &description[half..]),
            (8, half - 1, &description[half..]),
            (8, half, &description[half - 1..]),
            (8, half, &[]),
            (9, half, &description[half..]),
        ] {
            begin(&mut views);
            assert!(is_part(views.set(&part(view, &description, offset), bytes)), "{view} {offset}");
            assert!(
                is_part(views.set(&part(8, &description, half), &description[half..])),
                "it is thrown away"
            );
        }
        begin(&mut views);
        views.set(&part(8, &description, half), &description[half..]).unwrap();
        assert!(views.drop_view(8) && !views.drop_view(8) && views.drop_view(7));
        assert_eq!(budget.used(), 0);
    }

    // [VIEW-9] [VIEW-14]
    #[test]
    fn view_that_is_given_back_takes_its_room_until_nobody_uses_it() {
        let description = encode_datatype(&Datatype::bytes(4).vector(9, 1, 3));
        let (mut views, budget) = views(1 << 20);
        views.set(&part(7, &description, 0), &description).unwrap();
        let size = budget.used();
        let used = [0, 1].map(|_| Arc::clone(views.find(7).unwrap()));
        assert!(views.drop_view(7));
        assert_eq!(budget.used(), size);
        views.set(&part(7, &description, 0), &description).unwrap();
        assert_eq!(budget.used(), 2 * size);
        drop(used);
        assert_eq!(budget.used(), size);
        drop(views);
        assert_eq!(budget.used(), 0);
    }

    // [VIEW-9] one less, exact, one more
    #[test]
    fn views_take_no_more_than_their_budget_and_their_number() {
        let description = encode_datatype(&Datatype::bytes(4));
        let size = View::new(&Datatype::bytes(4)).unwrap().memory_size() as u64;
        assert!(size > description.len() as u64);
        for (limit, is_taken) in [(size - 1, false), (size, true), (size + 1, true)] {
            let (mut views, budget) = views(limit);
            let set = views.set(&part(1, &description, 0), &description);
            assert_eq!(set.is_ok(), is_taken, "{limit}: {set:?}");
            assert_eq!(budget.used(), if is_taken { size } else { 0 });
        }
        let (mut views, _) = views(u64::MAX);
        for view in 0..VIEWS_MAX {
            views.set(&part(view, &description, 0), &description).unwrap();
        }
        assert_eq!(views.set(&part(5000, &description, 0), &description), Err(Refused::TooMany));
        assert!(views.drop_view(3));
        views.set(&part(5000, &description, 0), &description).unwrap();
        for (len, is_taken) in
            [(0, false), (VIEW_DESCRIPTION_SIZE_MAX, true), (VIEW_DESCRIPTION_SIZE_MAX + 1, false)]
        {
            views.drop_view(5000);
            let request = ViewSetRequest { view: 5000, description_len: len, offset: 0 };
            assert_eq!(views.set(&request, &[1]).is_ok(), is_taken, "{len}");
        }
    }
}
