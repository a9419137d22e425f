//! Flow control without credit messages, DAFS 1.0's rule: each request says how many requests the client would like
//! outstanding, each reply the server's target, and both sides compute `limit = max(limit − 1, target)`, so a target
//! that falls is reached one reply at a time and the server can tell exactly whether the client keeps to it.

/// The client's side.
#[derive(Clone, Copy, Debug)]
pub struct ClientCredits {
    // Invariant: 1 <= limit <= slots
    limit: u16,
    slots: u16,
    // More than the limit where that has fallen, or where so many are sent again.
    outstanding: u16,
}

impl ClientCredits {
    /// Begins with what the welcome grants.
    pub fn new(granted: u16, slots: u16) -> Self {
        let slots = slots.max(1);
        Self { limit: granted.clamp(1, slots), slots, outstanding: 0 }
    }

    /// Begins anew with what the welcome of a resumed session grants. Requests that are sent again are outstanding, be they more than that.
    pub fn resumed(granted: u16, slots: u16, outstanding: u16) -> Self {
        Self { outstanding, ..Self::new(granted, slots) }
    }

    /// Another request may be sent.
    #[inline]
    pub fn available(&self) -> bool {
        self.outstanding < self.limit
    }

    /// A request was sent.
    #[inline]
    pub fn on_request(&mut self) {
        debug_assert!(self.available(), "the caller asked first");
        self.outstanding += 1;
    }

    /// A reply arrived with the server's target.
    #[inline]
    pub fn on_reply(&mut self, target: u16) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.limit = next_limit(self.limit, target, self.slots);
    }

    /// A `CreditTarget` callback arrived: it raises the limit, never lowers it.
    pub fn on_raise(&mut self, target: u16) {
        self.limit = self.limit.max(target).clamp(1, self.slots);
    }

    /// Requests that may be outstanding.
    #[inline]
    pub fn limit(&self) -> u16 {
        self.limit
    }

    /// Requests outstanding.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }
}

/// The server's side: computes what the client computes, and so knows when it cheats.
#[derive(Clone, Copy, Debug)]
pub struct ServerCredits {
    limit: u16,
    slots: u16,
    executing: u16,
    wanted: u16,
}

impl ServerCredits {
    /// Begins with what the welcome grants.
    pub fn new(granted: u16, slots: u16) -> Self {
        let slots = slots.max(1);
        Self { limit: granted.clamp(1, slots), slots, executing: 0, wanted: 1 }
    }

    /// A request arrived. `Err` with the limit when it is one too many: because the client subtracts one at most per
    /// reply, requests being executed never exceed the limit of the last reply sent, whatever the client has read of
    /// the replies.
    #[inline]
    pub fn on_request(&mut self, wanted: u16) -> Result<(), u16> {
        if self.executing >= self.limit {
            return Err(self.limit);
        }
        self.executing += 1;
        self.wanted = wanted;
        Ok(())
    }

    /// A reply is sent with this target; returns it, bounded.
    #[inline]
    pub fn on_reply(&mut self, target: u16) -> u16 {
        let target = target.clamp(1, self.slots);
        self.executing = self.executing.saturating_sub(1);
        self.limit = next_limit(self.limit, target, self.slots);
        target
    }

    /// A `CreditTarget` callback is sent; returns it, bounded.
    pub fn on_raise(&mut self, target: u16) -> u16 {
        self.limit = self.limit.max(target).clamp(1, self.slots);
        self.limit
    }

    /// A request ended without a reply: its connection is gone.
    pub fn on_abandoned(&mut self) {
        self.executing = self.executing.saturating_sub(1);
    }

    /// Requests being executed.
    pub fn executing(&self) -> u16 {
        self.executing
    }

    /// What the client last said it would like.
    pub fn wanted(&self) -> u16 {
        self.wanted
    }

    /// Requests the client may have outstanding.
    #[inline]
    pub fn limit(&self) -> u16 {
        self.limit
    }
}

#[inline]
fn next_limit(limit: u16, target: u16, slots: u16) -> u16 {
    limit.saturating_sub(1).max(target).clamp(1, slots)
}

/// The target for one session: what it wants, within its fair share of `budget` operations among `active` sessions; never below 1.
#[inline]
pub fn fair_target(wanted: u16, slots: u16, budget: u32, active: u32) -> u16 {
    let share = u16::try_from(budget / active.max(1)).unwrap_or(u16::MAX);
    wanted.min(share).clamp(1, slots.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    // [SESS-20] Nreq = max(previous - 1, target)
    #[test]
    fn credits_with_falling_target_shrink_by_one_a_reply() {
        let (mut client, mut server) = (ClientCredits::new(8, 16), ServerCredits::new(8, 16));
        let falling = [7, 6, 5, 4, 3, 2, 2, 2].map(|expected| (2, expected));
        // Never more than there are slots, never more than one less, and never below 1.
        let ends = [(16, 16), (17, 16), (0, 15)];
        let to_the_least = (1..15).rev().chain([1]).map(|expected| (0, expected));
        for (target, expected) in falling.into_iter().chain(ends).chain(to_the_least) {
            client.on_reply(target);
            server.on_reply(target);
            assert_eq!((client.limit(), server.limit()), (expected, expected), "{target}");
        }
    }

    // [SESS-21] an honest client never trips the check, whatever part of the replies it has read; one more request does
    #[test]
    fn credits_of_honest_client_with_replies_in_flight_are_never_exceeded() {
        for seed in 0..if cfg!(miri) { 10 } else { 200_u64 } {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = move |bound: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % bound
            };
            let (mut client, mut server) = (ClientCredits::new(4, 32), ServerCredits::new(4, 32));
            let (mut executing, mut replies) = (0u32, std::collections::VecDeque::new());
            for _ in 0..500 {
                match next(3) {
                    0 if client.available() => {
                        client.on_request();
                        server.on_request(32).expect("an honest client keeps to the limit");
                        executing += 1;
                    }
                    1 if executing > 0 => {
                        executing -= 1;
                        let target = u16::try_from(next(33)).unwrap();
                        replies.push_back(server.on_reply(target));
                    }
                    2 => {
                        if let Some(target) = replies.pop_front() {
                            client.on_reply(target);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    // [SESS-41]
    #[test]
    fn credits_raised_by_callback_agree_and_never_fall_by_it() {
        let (mut client, mut server) = (ClientCredits::new(4, 16), ServerCredits::new(4, 16));
        for (target, expected) in [(8, 8), (2, 8), (100, 16), (0, 16)] {
            client.on_raise(server.on_raise(target));
            assert_eq!((client.limit(), server.limit()), (expected, expected), "{target}");
        }
    }

    // [SESS-89]
    #[test]
    fn credits_one_request_too_many_is_refused() {
        let mut server = ServerCredits::new(2, 8);
        assert!(server.on_request(8).is_ok() && server.on_request(8).is_ok());
        assert_eq!(server.on_request(8), Err(2));
    }

    #[test]
    fn fair_target_divides_the_budget_and_never_starves() {
        assert_eq!(fair_target(64, 64, 128, 1), 64);
        assert_eq!(fair_target(64, 64, 128, 4), 32);
        assert_eq!(fair_target(64, 64, 128, 1000), 1);
        assert_eq!(fair_target(0, 64, 128, 1), 1);
    }
}
