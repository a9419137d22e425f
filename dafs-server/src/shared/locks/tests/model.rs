//! The table against a model that knows each offset.

use proptest::prelude::*;

use super::*;

/// Every offset by itself: who holds it, and how; and who waits, in order.
#[derive(Default)]
struct Model {
    held: Vec<BTreeSet<(Owner, Kind)>>,
    waits: Vec<(bool, u64, Range<u64>, Held)>,
}

impl Model {
    fn fits(&self, range: &Range<u64>, held: &Held) -> bool {
        range.clone().all(|at| {
            let mut others = self.held[at as usize].iter().filter(|(owner, _)| *owner != held.owner);
            others.all(|(_, kind)| *kind == Kind::Shared && held.kind == Kind::Shared)
        })
    }

    /// Another waits for an offset of a range that an owner holds.
    fn is_awaited(&self, range: &Range<u64>, owner: Owner) -> bool {
        range.clone().any(|at| {
            let own = self.held[at as usize].iter().find(|(holder, _)| *holder == owner);
            let mut others =
                self.waits.iter().filter(|(_, _, other, by)| by.owner != owner && other.contains(&at));
            own.is_some_and(|(_, kind)| others.any(|(_, _, _, by)| !is_both_shared(*kind, by.kind)))
        })
    }

    /// An owner has all of a range, and nobody else any of it.
    fn has_alone(&self, range: &Range<u64>, owner: Owner) -> bool {
        range.clone().all(|at| {
            let holders = &self.held[at as usize];
            holders.len() == 1 && holders.iter().all(|(holder, _)| *holder == owner)
        })
    }

    fn is_behind(&self, before: usize, range: &Range<u64>, held: &Held) -> bool {
        self.waits[..before].iter().any(|(_, _, other, by)| {
            let both = range.start < other.end && other.start < range.end;
            let either = by.kind == Kind::Exclusive || held.kind == Kind::Exclusive;
            both && either
        })
    }

    fn set(&mut self, range: &Range<u64>, owner: Owner, kind: Option<Kind>) {
        for at in range.clone() {
            let holders = &mut self.held[at as usize];
            holders.retain(|(holder, _)| *holder != owner);
            holders.extend(kind.map(|kind| (owner, kind)));
        }
    }

    /// Adds a request that waits, in the order in which they are served.
    fn wait(&mut self, goes_first: bool, number: u64, range: Range<u64>, held: Held) {
        self.waits.push((goes_first, number, range, held));
        self.waits.sort_by_key(|(goes_first, number, ..)| (!goes_first, *number));
    }

    /// Whom a request waits for: who holds what it wants, and whose request comes before it.
    fn blockers(&self, place: usize) -> BTreeSet<Owner> {
        let (goes_first, _, range, held) = &self.waits[place];
        let mut blockers = BTreeSet::new();
        for at in range.clone() {
            let holders = self.held[at as usize].iter().filter(|(_, kind)| !is_both_shared(*kind, held.kind));
            blockers.extend(holders.map(|(holder, _)| *holder));
        }
        let before = if *goes_first { &[] } else { &self.waits[..place] };
        let in_way = before.iter().filter(|(_, _, other, by)| {
            range.start < other.end && other.start < range.end && !is_both_shared(by.kind, held.kind)
        });
        blockers.extend(in_way.map(|(_, _, _, by)| by.owner));
        blockers.remove(&held.owner);
        blockers
    }

    fn awaited(&self, owner: Owner) -> BTreeSet<Owner> {
        let own = (0..self.waits.len()).filter(|place| self.waits[*place].3.owner == owner);
        own.flat_map(|place| self.blockers(place)).collect()
    }

    /// A request waits for its own owner, by way of others.
    fn is_in_a_circle(&self, place: usize) -> bool {
        let owner = self.waits[place].3.owner;
        let mut seen = self.blockers(place);
        let mut next: Vec<Owner> = seen.iter().copied().collect();
        while let Some(one) = next.pop() {
            next.extend(self.awaited(one).into_iter().filter(|other| seen.insert(*other)));
        }
        seen.contains(&owner)
    }

    /// One of the requests of an owner does.
    fn has_a_circle(&self, owner: Owner) -> bool {
        let mut own = (0..self.waits.len()).filter(|place| self.waits[*place].3.owner == owner);
        own.any(|place| self.is_in_a_circle(place))
    }

    /// Grants all that can be granted, while requests end that are in circles and are told so. Returns which are told and are in none.
    fn serve_beside(&mut self, mut told: Vec<u64>) -> (BTreeSet<u64>, Vec<u64>) {
        let mut granted = self.serve();
        loop {
            let before = told.len();
            told.retain(|number| {
                let place = self.waits.iter().position(|(_, waiting, ..)| waiting == number);
                let ends = place.filter(|place| self.is_in_a_circle(*place));
                ends.map(|place| self.waits.remove(place)).is_none()
            });
            if told.len() == before {
                return (granted, told);
            }
            granted.extend(self.serve());
        }
    }

    /// Grants all that can be granted.
    fn serve(&mut self) -> BTreeSet<u64> {
        let mut granted = BTreeSet::new();
        loop {
            let more = self.grant();
            if more.is_empty() {
                return granted;
            }
            granted.extend(more);
        }
    }

    /// The earliest first.
    fn grant(&mut self) -> Vec<u64> {
        let mut granted = Vec::new();
        let mut at = 0;
        while at < self.waits.len() {
            let (goes_first, id, range, held) = self.waits[at].clone();
            if self.fits(&range, &held) && (goes_first || !self.is_behind(at, &range, &held)) {
                self.set(&range, held.owner, Some(held.kind));
                granted.push(id);
                self.waits.remove(at);
            } else {
                at += 1;
            }
        }
        granted
    }
}

fn holders_of(table: &LockTable, file: LockKey, at: u64) -> BTreeSet<(Owner, Kind)> {
    let (locks, range) = (table.files.get(&file), at..at + 1);
    let holders = locks.into_iter().flat_map(|locks| locks.segments.overlapping(&range));
    holders.map(|(_, held)| (held.owner, held.kind)).collect()
}

fn is_both_shared(a: Kind, b: Kind) -> bool {
    a == Kind::Shared && b == Kind::Shared
}

/// Offsets of two files, one behind the other.
const OFFSETS: u64 = 40;

/// Offsets of one file.
const FILE_OFFSETS: u64 = 20;

fn file_of(at: u64) -> LockKey {
    LockKey { file: at / FILE_OFFSETS, ..FILE }
}

/// A range of one file.
fn place_of(range: &Range<u64>) -> (LockKey, Range<u64>) {
    let begin = range.start - range.start % FILE_OFFSETS;
    (file_of(range.start), range.start - begin..range.end - begin)
}

#[derive(Clone, Debug)]
enum Action {
    Lock { owner: u64, range: Range<u64>, kind: Kind, waits: bool },
    Unlock { owner: u64, range: Range<u64> },
    End { session: u64 },
}

fn action() -> impl Strategy<Value = Action> {
    let range = (0u64..2, 0u64..14, 1u64..6).prop_map(|(file, start, len)| {
        let start = file * FILE_OFFSETS + start;
        start..start + len
    });
    let kind = prop_oneof![Just(Kind::Shared), Just(Kind::Exclusive)];
    prop_oneof![
        6 => (0u64..6, range.clone(), kind, any::<bool>())
            .prop_map(|(owner, range, kind, waits)| Action::Lock { owner, range, kind, waits }),
        5 => (0u64..6, range).prop_map(|(owner, range)| Action::Unlock { owner, range }),
        1 => (0u64..3).prop_map(|session| Action::End { session }),
    ]
}

/// The table beside the model.
struct Both {
    locks: Locks,
    model: Model,
}

impl Both {
    fn lock(
        &mut self,
        number: u64,
        range: Range<u64>,
        wanted: Held,
        waits: bool,
    ) -> Result<Vec<Waiting>, TestCaseError> {
        let (locks, model) = (&self.locks, &mut self.model);
        let goes_first = model.is_awaited(&range, wanted.owner) || model.has_alone(&range, wanted.owner);
        let is_behind = !goes_first && model.is_behind(model.waits.len(), &range, &wanted);
        let now = model.fits(&range, &wanted) && !is_behind;
        let (file, part) = place_of(&range);
        let outcome = match locks.lock_alone(file, &part, &wanted) {
            true => Ok(NOW),
            false => {
                locks.with(|table| table.lock(file, part, wanted, Claim::New, waits.then(|| waiting(number))))
            }
        };
        match outcome {
            Ok(Outcome::Granted(others)) => {
                prop_assert!(now);
                model.set(&range, wanted.owner, Some(wanted.kind));
                return Ok(others);
            }
            Ok(Outcome::Waits(_)) => {
                prop_assert!(!now && waits);
                model.wait(goes_first, number, range, wanted);
            }
            Err(Status::LOCKED) => prop_assert!(!now && !waits),
            Err(Status::DEADLOCK) => {
                prop_assert!(!now && waits);
                model.wait(goes_first, number, range, wanted);
                prop_assert!(model.has_a_circle(wanted.owner), "it would be served");
                model.waits.retain(|(_, waiting, ..)| *waiting != number);
            }
            Err(other) => prop_assert!(false, "{other:?}"),
        }
        Ok(Vec::new())
    }

    fn unlock(&mut self, range: &Range<u64>, owner: Owner) -> Vec<Waiting> {
        let (file, part) = place_of(range);
        self.model.set(range, owner, None);
        match self.locks.unlock_alone(file, &part, owner) {
            true => Vec::new(),
            false => self.locks.with(|table| table.unlock(file, &part, owner)),
        }
    }

    fn end(&mut self, session: SessionId) -> Vec<Waiting> {
        let mut granted = Vec::new();
        while let Some(some) = self.locks.with(|table| table.end_some_of(session)) {
            granted.extend(some.granted);
        }
        self.model.waits.retain(|(_, _, _, held)| held.owner.session != session);
        for id in (0..6).filter(|id| owner_of(*id).session == session) {
            self.model.set(&(0..OFFSETS), owner_of(id), None);
        }
        granted
    }

    /// Others were granted what they waited for.
    fn check(&mut self, granted: &[Waiting]) -> Result<(), TestCaseError> {
        let ended = self.locks.take_untold();
        prop_assert!(ended.iter().all(|(_, why)| *why == Status::DEADLOCK), "{ended:?}");
        let told = ended.into_iter().map(|(waiting, _)| operation_of(waiting)).collect();
        let (expected, wrong) = self.model.serve_beside(told);
        prop_assert_eq!(wrong, [0; 0], "these would be served");
        prop_assert_eq!(numbers(granted), expected);
        for owner in (0..6).map(owner_of) {
            prop_assert!(!self.model.has_a_circle(owner), "{:?} would wait for ever", owner);
        }
        Ok(())
    }

    /// Whoever looks has the table told of all.
    fn look(&self) -> Result<(), TestCaseError> {
        for at in 0..OFFSETS {
            let (file, part) = place_of(&(at..at + 1));
            let holders = self.locks.with(|table| holders_of(table, file, part.start));
            prop_assert_eq!(&holders, &self.model.held[at as usize], "at {}", at);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    // [LOCK-1] [LOCK-2] [LOCK-4] [LOCK-5] [LOCK-6] [LOCK-7] [LOCK-18] [LOCK-62] [LOCK-66]
    #[test]
    fn locks_are_those_of_a_model_that_knows_each_offset(
        actions in prop::collection::vec((action(), any::<bool>()), 1..60)
    ) {
        let model = Model { held: vec![BTreeSet::new(); OFFSETS as usize], waits: Vec::new() };
        let mut both = Both { locks: Locks::default(), model };
        for (number, (action, looks)) in actions.into_iter().enumerate() {
            let granted = match action {
                Action::Lock { owner, range, kind, waits } => {
                    both.lock(number as u64, range, held(owner, kind), waits)?
                }
                Action::Unlock { owner, range } => both.unlock(&range, owner_of(owner)),
                Action::End { session } => both.end(SessionId(session)),
            };
            both.check(&granted)?;
            if looks {
                both.look()?;
            }
        }
        for session in 0..3 {
            both.end(SessionId(session));
        }
        both.locks.with(|table| {
            prop_assert!(knows_no_file(table) && table.waits.is_empty() && table.by_session.is_empty());
            prop_assert!(table.counts.all == 0 && table.counts.by_session.known() <= 1);
            prop_assert_eq!(table.counts.mandatory, 0);
            Ok(())
        })?;
    }
}
