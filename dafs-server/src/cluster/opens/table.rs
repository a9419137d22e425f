//! Who has a file open, as it stands in the store. Arithmetic only.

use dafs_proto::wire::{OpenFlags, SessionId, Status};
use serde::{Deserialize, Serialize};

use crate::cluster::records::{ServerNumber, server_of};

/// Opens of one session that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opened {
    session: u64,
    /// `r`, `w` or `rw`.
    does: String,
    /// What others may not do, in the same letters.
    denies: String,
    count: u32,
}

/// An open that is asked for.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) opened: Opened,
    /// Its client's session before, which was of a server that is gone.
    pub(super) before: Option<SessionId>,
}

fn letters(flags: OpenFlags, reads: OpenFlags, writes: OpenFlags) -> String {
    let letter = |flag, letter: &'static str| if flags.contains(flag) { letter } else { "" };
    format!("{}{}", letter(reads, "r"), letter(writes, "w"))
}

impl Opened {
    /// One open.
    pub(super) fn one(session: SessionId, flags: OpenFlags) -> Self {
        Self {
            session: session.0,
            does: letters(flags, OpenFlags::READ, OpenFlags::WRITE),
            denies: letters(flags, OpenFlags::DENY_READ, OpenFlags::DENY_WRITE),
            count: 1,
        }
    }

    pub(super) fn session(&self) -> SessionId {
        SessionId(self.session)
    }

    pub(super) fn denies(&self) -> bool {
        !self.denies.is_empty()
    }

    fn is_of(&self, server: ServerNumber) -> bool {
        server_of(self.session()) == server
    }

    fn conflicts(&self, other: &Self) -> bool {
        let meet = |denies: &str, does: &str| denies.chars().any(|letter| does.contains(letter));
        meet(&self.denies, &other.does) || meet(&other.denies, &self.does)
    }

    fn is_alike(&self, other: &Self) -> bool {
        (self.session, &self.does, &self.denies) == (other.session, &other.does, &other.denies)
    }

    /// The same open, of another session.
    fn of(&self, session: SessionId) -> Self {
        Self { session: session.0, ..self.clone() }
    }
}

/// Opens that are alike as one, in order.
pub(super) fn gathered<'a>(opens: impl Iterator<Item = &'a Opened>) -> Vec<Opened> {
    let mut rows: Vec<Opened> = Vec::new();
    for open in opens {
        match rows.iter_mut().find(|row| row.is_alike(open)) {
            Some(row) => row.count = row.count.saturating_add(open.count),
            None => rows.push(open.clone()),
        }
    }
    rows.sort_by(|a, b| (a.session, &a.does, &a.denies).cmp(&(b.session, &b.does, &b.denies)));
    rows
}

/// The table where a server has these open, and no others. One of them may be asked for: it must not conflict with what others have, and
/// takes the place of one of its client's session before.
pub(super) fn with_own(
    rows: Vec<Opened>,
    server: ServerNumber,
    own: &[Opened],
    claim: Option<&Claim>,
) -> Result<Vec<Opened>, Status> {
    let (had, mut others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.is_of(server));
    if let Some(Claim { opened, before }) = claim {
        let of_others = others.iter().filter(|row| *before != Some(row.session()));
        // Each row has others than the one that is asked for, or is that one alone.
        let is_other = |row: &&Opened| row.count > 1 || !row.is_alike(opened);
        if of_others.chain(own.iter().filter(is_other)).any(|row| row.conflicts(opened)) {
            return Err(Status::SHARE_DENIED);
        }
        // An attempt that was not answered may have taken it already.
        if let Some(before) = before.filter(|_| gathered(had.iter()) != own) {
            let taken = opened.of(before);
            others.iter_mut().filter(|row| row.is_alike(&taken)).for_each(|row| row.count -= 1);
            others.retain(|row| row.count > 0);
        }
    }
    Ok(gathered(others.iter().chain(own)))
}

/// The table without sessions that are over.
pub(super) fn without(mut rows: Vec<Opened>, is_over: impl Fn(SessionId) -> bool) -> Vec<Opened> {
    rows.retain(|row| !is_over(row.session()));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::records::session_of;

    fn one(server: ServerNumber, number: u64, flags: OpenFlags) -> Opened {
        Opened::one(session_of(server, number), flags)
    }

    fn claim(opened: &Opened) -> Claim {
        Claim { opened: opened.clone(), before: None }
    }

    fn take(rows: &[Opened], server: ServerNumber, opened: &Opened) -> Result<Vec<Opened>, Status> {
        with_own(rows.to_vec(), server, std::slice::from_ref(opened), Some(&claim(opened)))
    }

    // [CLUS-35]
    #[test]
    fn opens_of_two_servers_conflict_where_one_denies_what_the_other_does() {
        let access = [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::READ | OpenFlags::WRITE];
        let denies = [
            OpenFlags::empty(),
            OpenFlags::DENY_READ,
            OpenFlags::DENY_WRITE,
            OpenFlags::DENY_READ | OpenFlags::DENY_WRITE,
        ];
        let modes =
            || access.into_iter().flat_map(move |access| denies.into_iter().map(move |it| access | it));
        let keeps_out = |one: OpenFlags, other: OpenFlags| {
            one.contains(OpenFlags::DENY_READ) && other.contains(OpenFlags::READ)
                || one.contains(OpenFlags::DENY_WRITE) && other.contains(OpenFlags::WRITE)
        };
        for first in modes() {
            for second in modes() {
                let rows = take(&[], 1, &one(1, 1, first)).unwrap();
                let both = take(&rows, 2, &one(2, 1, second));
                let is_denied = keeps_out(first, second) || keeps_out(second, first);
                assert_eq!(both.is_err(), is_denied, "{first:?} {second:?}");
                assert_eq!(both.map_or(2, |rows| rows.len()), 2);
                // As at one server.
                let own = gathered([&one(1, 1, first), &one(1, 1, second)].into_iter());
                let both = with_own(rows, 1, &own, Some(&claim(&one(1, 1, second))));
                assert_eq!(both.is_err(), is_denied, "{first:?} {second:?}");
            }
        }
    }

    // [CLUS-36]
    #[test]
    fn opens_of_a_lost_session_are_its_successors_one_by_one() {
        let lost = one(1, 1, OpenFlags::READ | OpenFlags::DENY_WRITE);
        let rows = with_own(Vec::new(), 1, &gathered([&lost, &lost].into_iter()), None).unwrap();
        let next = one(2, 5, OpenFlags::READ | OpenFlags::DENY_WRITE);
        let own = Claim { opened: next.clone(), before: Some(lost.session()) };
        let first = with_own(rows.clone(), 2, std::slice::from_ref(&next), Some(&own)).unwrap();
        assert_eq!(first, [lost.clone(), next.clone()], "one each");
        // Once more, since the answer was lost.
        assert_eq!(with_own(first.clone(), 2, std::slice::from_ref(&next), Some(&own)).unwrap(), first);
        let both = gathered([&next, &next].into_iter());
        let second = with_own(first, 2, &both, Some(&own)).unwrap();
        assert_eq!(second, both, "nothing is left of the lost session");
        // One that writes, which it had denied to others, is kept out by its own as soon as it has taken that again.
        let writes = one(2, 5, OpenFlags::WRITE);
        let own_rows = gathered([&next, &writes].into_iter());
        let late = Claim { opened: writes.clone(), before: Some(lost.session()) };
        assert_eq!(with_own(rows.clone(), 2, &own_rows, Some(&late)), Err(Status::SHARE_DENIED));
        let own = Claim { opened: writes.clone(), before: Some(lost.session()) };
        assert!(with_own(rows.clone(), 2, std::slice::from_ref(&writes), Some(&own)).is_ok());
        let stranger = one(2, 6, OpenFlags::WRITE);
        assert_eq!(take(&rows, 2, &stranger), Err(Status::SHARE_DENIED));
        assert!(take(&without(rows, |session| session == lost.session()), 2, &stranger).is_ok());
    }
}
