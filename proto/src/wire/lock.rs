//! Byte-range locks (`spec/locks.md`).

use super::WireError;
use super::body::{Field, body, field_by_number};
use super::{Reader, Writer};

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
    }
}

impl Field for LockFlags {
    const SIZE: usize = 2;

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.u16(self.bits());
    }

    #[inline]
    fn read(reader: &mut Reader<'_>, what: &'static str) -> Result<Self, WireError> {
        let bits = reader.u16(what)?;
        Self::from_bits(bits).ok_or(WireError::Invalid { what, value: u64::from(bits) })
    }
}

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
    check |request| match request.offset.checked_add(request.len) {
        Some(_) => Ok(()),
        None => Err(WireError::Invalid { what: "end of a lock", value: request.len }),
    }
}

impl LockRequest {
    /// The range; its end is `u64::MAX` where it is all that follows.
    pub fn range(&self) -> std::ops::Range<u64> {
        lock_range(self.offset, self.len)
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
    check |request| match request.offset.checked_add(request.len) {
        Some(_) => Ok(()),
        None => Err(WireError::Invalid { what: "end of a lock", value: request.len }),
    }
}

impl UnlockRequest {
    /// The range; its end is `u64::MAX` where it is all that follows.
    pub fn range(&self) -> std::ops::Range<u64> {
        lock_range(self.offset, self.len)
    }
}

fn lock_range(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset..if len == 0 { u64::MAX } else { offset + len }
}

body! {
    /// Body of the reply to a test of a lock, 48 bytes: what is in its way.
    pub struct LockTestReply("reply to a test of a lock") {
        /// Something is.
        pub conflicts: bool = "whether something conflicts",
        /// The kind of lock: 0 where nothing is in its way, else as [`LockKind`].
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
        (false, 0) | (true, 1 | 2) => Ok(()),
        (_, kind) => Err(WireError::Invalid { what: "kind of lock", value: u64::from(kind) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::HEADER_SIZE;

    const REQUEST: LockRequest =
        LockRequest { offset: 5, len: 7, owner: 9, kind: LockKind::Shared, flags: LockFlags::WAIT };

    // [LOCK-15]
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
        }
    }
}
