//! Who may have how much of the buffers, and whose turn it is.
//!
//! A session *claims* a share while it has buffers or waits for some; shares are equal parts of the budget. While nobody waits, a session
//! may have all but a reserve, which is for those that have nothing. While another waits, nobody goes above its share. Sessions that
//! wait are served in turn, and each one's operations in their order. What wants many buffers at once and was passed over often has
//! what comes back earmarked for it, and gets that however much its share is.

use std::collections::{HashMap, VecDeque};

use dafs_proto::transport::OpToken;

use super::Owner;
use crate::worker::ids::SessionKey;

/// The reserve is this part of the budget.
pub(super) const RESERVE_PART: usize = 8;

/// Buffers lent to others while an operation that wants many at once waits, before they are earmarked.
const PASSES_MAX: u64 = 64;

/// What an operation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// One of this size, or smaller.
    One(usize),
    /// All of these.
    All(Vec<usize>),
}

/// The accounts of sessions.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Of those that claim a share.
    accounts: HashMap<SessionKey, Account>,
    /// Sessions that wait, whose turn is next in front.
    turns: VecDeque<SessionKey>,
    /// Bytes that are earmarked, and for whom.
    earmark: Option<(Owner, usize)>,
    /// Buffers lent so far.
    lent_count: u64,
    lent_size: usize,
}

#[derive(Debug, Default)]
struct Account {
    size: usize,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    operation: OpToken,
    want: Want,
    // `lent_count` when it began to wait.
    since: u64,
}

impl Account {
    fn is_idle(&self) -> bool {
        self.size == 0 && self.waiting.is_empty()
    }
}

impl Shares {
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        !self.turns.is_empty()
    }

    pub(super) fn waiting_sessions(&self) -> usize {
        self.turns.len()
    }

    #[inline]
    pub(super) fn has_waiting(&self, session: SessionKey) -> bool {
        self.has_waiters() && self.accounts.get(&session).is_some_and(|account| !account.waiting.is_empty())
    }

    /// The operations that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = OpToken> {
        let accounts = self.turns.iter().filter_map(|session| self.accounts.get(session));
        accounts.flat_map(|account| account.waiting.iter().map(|waiter| waiter.operation))
    }

    /// A session other than this one waits.
    pub(super) fn others_wait(&self, session: SessionKey) -> bool {
        self.turns.iter().any(|waiting| *waiting != session)
    }

    pub(super) fn held_by(&self, session: SessionKey) -> usize {
        self.accounts.get(&session).map_or(0, |account| account.size)
    }

    /// Bytes that `session` may take now, of `unlent` that nobody has, of a budget; `smallest` is a buffer that who has none gets
    /// while there is one.
    pub(super) fn room(
        &self,
        session: SessionKey,
        unlent: usize,
        budget: usize,
        reserve: usize,
        smallest: usize,
    ) -> usize {
        let held = self.held_by(session);
        let mut room = match held {
            // The first of all leaves the reserve to the second.
            0 if self.lent_size > 0 => unlent,
            _ => unlent.saturating_sub(reserve),
        };
        // [BUF-37] What is earmarked for an operation may be more than its session's share; it is the first that waits there.
        let is_earmarked = self.earmark.is_some_and(|(owner, _)| owner.session == session);
        if self.others_wait(session) && !is_earmarked {
            let claims = self.accounts.len() + usize::from(!self.accounts.contains_key(&session));
            room = room.min((budget / claims).saturating_sub(held));
        }
        if let Some((owner, size)) = self.earmark.filter(|(owner, _)| owner.session != session) {
            let others = self.lent_size - self.held_by(owner.session).min(self.lent_size);
            room = room.min(budget.saturating_sub(size + others));
        }
        if held == 0 { room.max(smallest.min(unlent)) } else { room }
    }

    #[inline]
    pub(super) fn on_lent(&mut self, owner: Owner, size: usize) {
        self.lent_count += 1;
        self.lent_size += size;
        self.accounts.entry(owner.session).or_default().size += size;
    }

    #[inline]
    pub(super) fn on_returned(&mut self, session: SessionKey, size: usize) {
        self.lent_size = self.lent_size.saturating_sub(size);
        if let Some(account) = self.accounts.get_mut(&session) {
            account.size = account.size.saturating_sub(size);
            if account.is_idle() {
                self.accounts.remove(&session);
            }
        }
    }

    pub(super) fn wait(&mut self, owner: Owner, want: Want) {
        let account = self.accounts.entry(owner.session).or_default();
        if account.waiting.is_empty() {
            self.turns.push_back(owner.session);
        }
        account.waiting.push_back(Waiter { operation: owner.operation, want, since: self.lent_count });
    }

    /// The first operation of the session whose turn it is, which goes behind the others.
    pub(super) fn turn(&mut self) -> Option<(Owner, Want)> {
        self.turns.rotate_left(usize::from(self.turns.len() > 1));
        let session = *self.turns.back()?;
        let waiter = self.accounts.get(&session)?.waiting.front()?;
        Some((Owner { session, operation: waiter.operation }, waiter.want.clone()))
    }

    /// An operation that wants `size` bytes at once did not get them.
    pub(super) fn pass_over(&mut self, owner: Owner, size: usize) {
        let since = self.accounts.get(&owner.session).and_then(|account| account.waiting.front());
        let passes = since.map_or(0, |waiter| self.lent_count - waiter.since);
        if self.earmark.is_none() && passes >= PASSES_MAX {
            self.earmark = Some((owner, size));
        }
    }

    pub(super) fn stop_waiting(&mut self, owner: Owner) {
        if self.earmark.is_some_and(|(earmarked, _)| earmarked == owner) {
            self.earmark = None;
        }
        let Some(account) = self.accounts.get_mut(&owner.session) else { return };
        account.waiting.retain(|waiter| waiter.operation != owner.operation);
        if account.waiting.is_empty() {
            self.turns.retain(|session| *session != owner.session);
        }
        if account.is_idle() {
            self.accounts.remove(&owner.session);
        }
    }

    /// The session waits no more, and `heir` has what it had.
    pub(super) fn end_session(&mut self, session: SessionKey, heir: SessionKey) {
        if self.earmark.is_some_and(|(owner, _)| owner.session == session) {
            self.earmark = None;
        }
        self.turns.retain(|waiting| *waiting != session);
        if let Some(account) = self.accounts.remove(&session).filter(|account| account.size > 0) {
            self.accounts.entry(heir).or_default().size += account.size;
        }
    }
}
