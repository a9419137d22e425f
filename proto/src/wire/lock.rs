//! Byte-range locks (`spec/protocol/locks.md`).

use super::WireError;
use super::body::{body, field_by_number};

/// Whether others may hold a lock of the same range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// Others may hold it shared too.
    Shared = 1,
    /// Nobody else may hold it.
    Exclusive = 2,
}

field_by_number!(LockKind, u16, |kind| kind as u16, |number| match number {
    1 => Some(LockKind::Shared),
    2 => Some(LockKind::Exclusive),
    _ => None,
});

bitflags::bitflags! {
    /// What else is asked of a lock.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LockFlags: u16 {
        /// The reply waits until the lock is granted.
        const WAIT = 0x01;
        /// Reads and writes of other sessions that conflict with it fail.
        const MANDATORY = 0x02;
        /// It was held before the server was restarted.
        const RECLAIM = 0x04;
        /// With WAIT: where it must wait it is answered so at once, and [`LockTurn`] says when to ask again.
        const NOTIFY = 0x08;
        /// Ends the wait of the same request with [`LockFlags::NOTIFY`]; nothing is locked.
        const CANCEL = 0x10;
        /// Of an exclusive lock: unless it is given back it does not end with its owner, but becomes broken.
        const PERSISTENT = 0x20;
        /// With PERSISTENT: takes broken locks over, of what its owner is going to repair.
        const REPAIR = 0x40;
        /// With RECLAIM: its client takes no other lock again.
        const LAST = 0x80;
    }
}

field_by_number!(LockFlags, u16, |flags| flags.bits(), LockFlags::from_bits);

body! {
    /// Body of a lock and of a test of one, 32 bytes; the header's handle is the open file.
    pub struct LockRequest("lock request") {
        /// Where the range begins.
        pub offset: u64 = "offset",
        /// Its bytes; 0: all that follow, whatever the size of the file becomes.
        pub len: u64 = "length",
        /// The client's name for whoever locks.
        pub owner: u64 = "owner",
        /// Shared or exclusive.
        pub kind: LockKind = "kind of lock",
        /// What else is asked.
        pub flags: LockFlags = "flags of a lock" and 4 reserved,
    }
    check |request| match check_end(request.offset, request.len) {
        Ok(()) if !request.flags.agree_with(request.kind) => {
            Err(WireError::Invalid { what: "flags of a lock", value: request.flags.bits().into() })
        }
        checked => checked,
    }
}

impl LockFlags {
    /// Each of them has a meaning beside the others, and for a lock of this kind.
    fn agree_with(self, kind: LockKind) -> bool {
        let needs = |flag, other| !self.contains(flag) || self.contains(other);
        needs(Self::NOTIFY, Self::WAIT)
            && needs(Self::REPAIR, Self::PERSISTENT)
            && needs(Self::LAST, Self::RECLAIM)
            && (!self.contains(Self::PERSISTENT) || kind == LockKind::Exclusive)
    }
}

body! {
    /// Body of an unlock, 24 bytes; the header's handle is the open file.
    pub struct UnlockRequest("unlock request") {
        /// Where the range begins.
        pub offset: u64 = "offset",
        /// Its bytes; 0: all that follow.
        pub len: u64 = "length",
        /// The client's name for whoever holds it.
        pub owner: u64 = "owner",
    }
    check |request| check_end(request.offset, request.len)
}

body! {
    /// Body of the reply to a test of a lock, 48 bytes: what is in its way.
    pub struct LockTestReply("reply to a test of a lock") {
        /// Something is.
        pub conflicts: bool = "whether something conflicts",
        /// The kind of lock: 0 where nothing is in its way, [`LOCK_BROKEN_KIND`], else as [`LockKind`].
        pub kind: u32 = "kind of lock",
        /// Where the lock begins.
        pub offset: u64 = "offset",
        /// Its bytes; 0: all that follow.
        pub len: u64 = "length",
        /// Its owner, as its client names it.
        pub owner: u64 = "owner",
        /// The client that holds it, as it named itself.
        pub client_id: [u8; 16] = "client id",
    }
    check |reply| match (reply.conflicts, reply.kind) {
        (false, 0) | (true, 1..=LOCK_BROKEN_KIND) => Ok(()),
        (_, kind) => Err(WireError::Invalid { what: "kind of lock", value: u64::from(kind) }),
    }
}

/// In a [`LockTestReply`]: a persistent lock whose owner went without giving it back.
pub const LOCK_BROKEN_KIND: u32 = 3;

body! {
    /// Body of a callback, 32 bytes: a lock that waits with [`LockFlags::NOTIFY`] is to be asked for again.
    #[derive(Hash)]
    pub struct LockTurn("turn of a lock") {
        /// The open file.
        pub handle: u64 = "handle",
        /// Where the range begins.
        pub offset: u64 = "offset",
        /// Its bytes; 0: all that follow.
        pub len: u64 = "length",
        /// The client's name for whoever waits.
        pub owner: u64 = "owner",
    }
    check |turn| check_end(turn.offset, turn.len)
}

macro_rules! ranges {
    ($($body:ty)*) => {$(
        impl $body {
            /// The range; its end is `u64::MAX` where it is all that follows.
            pub fn range(&self) -> std::ops::Range<u64> {
                self.offset..if self.len == 0 { u64::MAX } else { self.offset + self.len }
            }
        }
    )*};
}

ranges! { LockRequest UnlockRequest LockTurn }

#[inline]
fn check_end(offset: u64, len: u64) -> Result<(), WireError> {
    match offset.checked_add(len) {
        Some(_) => Ok(()),
        None => Err(WireError::Invalid { what: "end of a lock", value: len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::HEADER_SIZE;

    const REQUEST: LockRequest =
        LockRequest { offset: 5, len: 7, owner: 9, kind: LockKind::Shared, flags: LockFlags::WAIT };

    // [WIRE-138]
    #[test]
    fn range_of_a_lock_ends_within_the_offsets() {
        for (offset, len, range) in [
            (5, 7, Some(5..12)),
            (5, 0, Some(5..u64::MAX)),
            (u64::MAX - 1, 1, Some(u64::MAX - 1..u64::MAX)),
            (u64::MAX, 1, None),
            (1, u64::MAX, None),
        ] {
            let mut body = [0; LockRequest::HEAD_SIZE - HEADER_SIZE];
            LockRequest { offset, len, ..REQUEST }.encode(&mut body);
            assert_eq!(LockRequest::decode(&body).ok().map(|request| request.range()), range);
            let mut body = [0; UnlockRequest::HEAD_SIZE - HEADER_SIZE];
            UnlockRequest { offset, len, owner: 9 }.encode(&mut body);
            assert_eq!(UnlockRequest::decode(&body).ok().map(|request| request.range()), range);
            let mut body = [0; LockTurn::HEAD_SIZE - HEADER_SIZE];
            LockTurn { handle: 1, offset, len, owner: 9 }.encode(&mut body);
            assert_eq!(LockTurn::decode(&body).ok().map(|turn| turn.range()), range);
        }
    }

    // [WIRE-138]
    #[test]
    fn flag_without_the_one_that_it_needs_is_refused() {
        use LockFlags as F;
        for (kind, flags, is_good) in [
            (LockKind::Shared, F::WAIT | F::NOTIFY, true),
            (LockKind::Shared, F::NOTIFY, false),
            (LockKind::Exclusive, F::PERSISTENT, true),
            (LockKind::Shared, F::PERSISTENT, false),
            (LockKind::Exclusive, F::PERSISTENT | F::REPAIR, true),
            (LockKind::Exclusive, F::REPAIR, false),
            (LockKind::Shared, F::RECLAIM | F::LAST, true),
            (LockKind::Shared, F::LAST, false),
        ] {
            let mut body = [0; LockRequest::HEAD_SIZE - HEADER_SIZE];
            LockRequest { kind, flags, ..REQUEST }.encode(&mut body);
            assert_eq!(LockRequest::decode(&body).is_ok(), is_good, "{kind:?} {flags:?}");
        }
    }
}
