//! Index arithmetic of the message rings. Pure: no memory is touched here.
//!
//! Messages of one direction are numbered from 0, modulo 2³². Message *n* lies in entry `n & (capacity − 1)` and carries the sequence *n* +
//! 1, so the receiver polls one word. The receiver says how many messages it has taken in two places: in the messages that it sends, and in
//! a word of its own.

/// The entry has no payload buffer.
const NO_BUFFER: u16 = u16::MAX;

/// An index from the peer that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadIndex {
    /// What it said.
    pub(super) value: u32,
    /// The most it could have said.
    pub(super) limit: u32,
}

/// What the sequence word of the next entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The next message is here.
    Message,
    /// Nothing yet.
    Nothing,
    /// The ring was scribbled on.
    Invalid,
}

/// The sender's side of a ring, with its payload buffers.
#[derive(Debug)]
pub(super) struct SendRing {
    // Invariants (modulo 2³²): next − taken ≤ depth; next − taken + reserved ≤ depth; depth ≤ mask + 1
    next: u32,
    taken: u32,
    reserved: u32,
    depth: u32,
    mask: u32,
    /// Payload buffers that nothing uses; the last one was used last and is the hottest.
    free: Vec<u16>,
    /// Buffers that were ever used: 0..grown. The rest has never been touched.
    grown: u16,
    /// The buffer that each entry in flight refers to.
    holders: Box<[u16]>,
}

impl SendRing {
    /// An empty ring of `capacity` entries, a power of two, of which `depth` may be in flight; as many payload buffers.
    pub(super) fn new(depth: u16, capacity: u32) -> Self {
        Self::starting_at(depth, capacity, 0)
    }

    fn starting_at(depth: u16, capacity: u32, next: u32) -> Self {
        let holders = vec![NO_BUFFER; capacity as usize].into_boxed_slice();
        Self {
            next,
            taken: next,
            reserved: 0,
            depth: depth.into(),
            mask: capacity - 1,
            free: Vec::new(),
            grown: 0,
            holders,
        }
    }

    /// Another message fits, by what is known of the receiver.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.next.wrapping_sub(self.taken) + self.reserved < self.depth
    }

    /// A buffer is free without growing.
    #[inline]
    pub(super) fn has_free_buffer(&self) -> bool {
        !self.free.is_empty()
    }

    /// Sent, and not known to be taken.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.next.wrapping_sub(self.taken)
    }

    /// Reserves an entry without payload buffer. The caller has seen [`SendRing::has_room`].
    #[inline]
    pub(super) fn reserve(&mut self) {
        debug_assert!(self.has_room());
        self.reserved += 1;
    }

    /// Takes the hottest free buffer, or one never used before. `None` cannot happen for a reserved entry:
    /// there are as many buffers as entries.
    #[inline]
    pub(super) fn take_buffer(&mut self) -> Option<u16> {
        self.free.pop().or_else(|| {
            (u32::from(self.grown) < self.depth).then(|| {
                self.grown += 1;
                self.grown - 1
            })
        })
    }

    /// Gives a buffer back.
    #[inline]
    pub(super) fn free_buffer(&mut self, buffer: u16) {
        debug_assert!(buffer < self.grown && !self.free.contains(&buffer));
        self.free.push(buffer);
    }

    /// Gives a reserved entry back.
    #[inline]
    pub(super) fn cancel(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// The entry that the next message goes to, and its sequence.
    #[inline]
    pub(super) fn next_entry(&self) -> (u32, u32) {
        (self.next & self.mask, self.next.wrapping_add(1))
    }

    /// The next message was written to its entry, which had been reserved; it refers to `buffer`.
    #[inline]
    pub(super) fn sent(&mut self, buffer: Option<u16>) {
        self.holders[(self.next & self.mask) as usize] = buffer.unwrap_or(NO_BUFFER);
        self.next = self.next.wrapping_add(1);
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Messages known to be taken.
    #[inline]
    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    /// As [`SendRing::taken_until`], for a word that may be older than what is known already.
    #[inline]
    pub(super) fn taken_until_at_least(&mut self, taken: u32) -> Result<(), BadIndex> {
        let is_old = self.taken.wrapping_sub(taken) <= u32::MAX / 2;
        if is_old { Ok(()) } else { self.taken_until(taken) }
    }

    /// The receiver says that it has taken all messages before number `taken`; their buffers are free.
    #[inline]
    pub(super) fn taken_until(&mut self, taken: u32) -> Result<(), BadIndex> {
        let newly = taken.wrapping_sub(self.taken);
        if newly > self.in_flight() {
            return Err(BadIndex { value: taken, limit: self.next });
        }
        for _ in 0..newly {
            let holder = &mut self.holders[(self.taken & self.mask) as usize];
            let buffer = std::mem::replace(holder, NO_BUFFER);
            self.taken = self.taken.wrapping_add(1);
            if buffer != NO_BUFFER {
                self.free_buffer(buffer);
            }
        }
        Ok(())
    }
}

/// The receiver's side of a ring.
#[derive(Debug)]
pub(super) struct RecvRing {
    next: u32,
    mask: u32,
}

impl RecvRing {
    /// An empty ring of `capacity` entries, a power of two.
    pub(super) fn new(capacity: u32) -> Self {
        Self { next: 0, mask: capacity - 1 }
    }

    /// The entry that the next message comes in.
    #[inline]
    pub(super) fn next_entry(&self) -> u32 {
        self.next & self.mask
    }

    /// What a sequence word in [`RecvRing::next_entry`] means.
    #[inline]
    pub(super) fn classify(&self, sequence: u32) -> Arrival {
        let expected = self.next.wrapping_add(1);
        if sequence == expected {
            Arrival::Message
        } else if sequence == expected.wrapping_sub(self.mask + 1) || sequence == 0 {
            // The message one lap ago, or an entry that was never written.
            Arrival::Nothing
        } else {
            Arrival::Invalid
        }
    }

    /// The sequence that [`Arrival::Message`] would have, for reports.
    #[inline]
    pub(super) fn expected(&self) -> u32 {
        self.next.wrapping_add(1)
    }

    /// The message was taken. Returns how many were taken so far.
    #[inline]
    pub(super) fn taken(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings_at(start: u32, depth: u16, capacity: u32) -> (SendRing, RecvRing) {
        (SendRing::starting_at(depth, capacity, start), RecvRing { next: start, mask: capacity - 1 })
    }

    // [SHM-10] numbers wrap at 2³².
    #[test]
    fn ring_across_the_wrap_keeps_order_and_depth() {
        for start in [0u32, 1, u32::MAX - 9, u32::MAX - 4, u32::MAX - 1, u32::MAX] {
            let (mut send, mut recv) = rings_at(start, 3, 4);
            // What a fresh ring holds one lap before `start`.
            let mut words: Vec<u32> = vec![0; 4];
            for back in 1..=4u32 {
                let number = start.wrapping_sub(back);
                words[(number & 3) as usize] = number.wrapping_add(1);
            }
            for _ in 0..20 {
                while send.has_room() {
                    send.reserve();
                    let (entry, sequence) = send.next_entry();
                    words[entry as usize] = sequence;
                    send.sent(None);
                }
                assert_eq!(send.in_flight(), 3);
                for _ in 0..3 {
                    assert_eq!(recv.classify(words[recv.next_entry() as usize]), Arrival::Message);
                    recv.taken();
                }
                assert_eq!(recv.classify(words[recv.next_entry() as usize]), Arrival::Nothing);
                send.taken_until(recv.next).unwrap();
                assert_eq!(send.in_flight(), 0);
            }
        }
    }

    // [SHM-50]
    #[test]
    fn classify_a_scribbled_sequence_is_invalid() {
        let (_, recv) = rings_at(100, 8, 8);
        assert_eq!(recv.classify(101), Arrival::Message);
        assert_eq!(recv.classify(93), Arrival::Nothing);
        assert_eq!(recv.classify(0), Arrival::Nothing);
        for sequence in [1, 92, 94, 100, 102, 109, u32::MAX] {
            assert_eq!(recv.classify(sequence), Arrival::Invalid, "{sequence}");
        }
    }

    // [SHM-51] [SHM-69] [SHM-70]
    #[test]
    fn taken_until_outside_the_window_is_refused() {
        for start in [0, u32::MAX - 2] {
            let (mut send, _) = rings_at(start, 8, 8);
            for _ in 0..5 {
                send.reserve();
                send.sent(None);
            }
            send.taken_until(start.wrapping_add(2)).unwrap();
            for back in [0, 1] {
                assert!(send.taken_until(start.wrapping_add(back)).is_err());
            }
            for beyond in [6, 7, 1000, u32::MAX / 2] {
                assert!(send.taken_until(start.wrapping_add(beyond)).is_err());
            }
            assert_eq!(send.in_flight(), 3);
            for old in [0, 1, 2] {
                send.taken_until_at_least(start.wrapping_add(old)).unwrap();
            }
            assert_eq!(send.in_flight(), 3);
            assert!(send.taken_until_at_least(start.wrapping_add(6)).is_err());
            send.taken_until_at_least(start.wrapping_add(5)).unwrap();
            assert_eq!(send.in_flight(), 0);
        }
    }

    // [SHM-14] one message at a time uses one buffer, whatever the depth.
    #[test]
    fn buffers_at_queue_depth_one_stay_at_one() {
        let mut send = SendRing::new(128, 128);
        for number in 0..1000 {
            send.reserve();
            let buffer = send.take_buffer();
            assert_eq!(buffer, Some(0));
            send.sent(buffer);
            send.taken_until(number + 1).unwrap();
        }
        assert_eq!(send.grown, 1);
    }

    // [SHM-52]
    #[test]
    fn buffers_under_load_are_never_shared() {
        let mut send = SendRing::new(5, 8);
        let mut taken = 0u32;
        let mut live = std::collections::VecDeque::new();
        for step in 0..10_000u32 {
            if step % 7 < 4 && send.has_room() {
                send.reserve();
                let buffer = send.take_buffer().unwrap();
                assert!(!live.contains(&buffer));
                live.push_back(buffer);
                send.sent(Some(buffer));
            } else if !live.is_empty() {
                live.pop_front();
                taken = taken.wrapping_add(1);
                send.taken_until(taken).unwrap();
            }
        }
        assert!(send.grown <= 5);
    }
}
