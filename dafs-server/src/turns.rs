//! How much one connection may have moved before the others get their turn.
//!
//! Copying a megabyte takes the loop as long as answering dozens of small requests. A client that is alone gets all of it. Where several
//! clients send requests at the same time, a turn ends after a few tens of kilobytes, in the middle of a large transfer if need be, and
//! a session has no more with storage than keeps a disk busy, so that another's small request finds neither a long queue here nor there.

use std::time::Duration;

use dafs_proto::session::Moment;

use crate::connection::ConnectionKey;

/// Bytes that a connection has moved in a turn when nobody else is there.
const ALONE_SIZE: usize = 1 << 20;
/// The same beside others: about as long as two or three small requests take.
pub(crate) const CONTENDED_SIZE: usize = 32 << 10;
/// Bytes of a chunk that storage or the network move by themselves, beside others.
pub(crate) const CONTENDED_CHUNK_SIZE: u64 = 64 << 10;
/// Bytes that a session has with storage beside others, before its next chunk waits.
pub(crate) const CONTENDED_STORAGE_SIZE: usize = 128 << 10;
/// After requests of two connections so long there may be more of both.
const CONTENDED_FOR: Duration = Duration::from_millis(10);

/// The turn of a connection, and whether there are others.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    last: Option<ConnectionKey>,
    contended_until: Moment,
    moved: usize,
    size_max: usize,
}

impl Turns {
    /// A turn begins.
    #[inline]
    pub(crate) fn begin(&mut self, now: Moment) {
        self.moved = 0;
        self.size_max = if self.is_contended(now) { CONTENDED_SIZE } else { ALONE_SIZE };
    }

    /// A connection has sent a message.
    #[inline]
    pub(crate) fn on_message(&mut self, key: ConnectionKey, now: Moment) {
        if self.last != Some(key) {
            if self.last.is_some() {
                self.contended_until = now.after(CONTENDED_FOR);
            }
            self.last = Some(key);
        }
    }

    /// Several connections send requests at about this time.
    #[inline]
    pub(crate) fn is_contended(&self, now: Moment) -> bool {
        now < self.contended_until
    }

    /// So many bytes were copied.
    #[inline]
    pub(crate) fn on_moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// Enough for this turn.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.moved >= self.size_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: usize) -> ConnectionKey {
        ConnectionKey { index, generation: 1 }
    }

    // [BUF-20]
    #[test]
    fn turn_is_short_while_several_connections_send_and_long_for_one() {
        let mut turns = Turns::default();
        let start = Moment::default().after(Duration::from_secs(1));
        let size = |turns: &mut Turns, now| {
            turns.begin(now);
            (1..).find(|_| {
                turns.on_moved(1024);
                turns.is_over()
            })
        };
        for _ in 0..10 {
            turns.on_message(key(1), start);
            assert_eq!(size(&mut turns, start), Some(1024));
        }
        turns.on_message(key(2), start);
        assert_eq!(size(&mut turns, start), Some(32));
        let last = start.after(CONTENDED_FOR - Duration::from_nanos(1));
        assert_eq!(size(&mut turns, last), Some(32));
        turns.on_message(key(2), last);
        assert_eq!(size(&mut turns, start.after(CONTENDED_FOR)), Some(1024), "the other has fallen silent");
    }
}
