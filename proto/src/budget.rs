//! What many share and none may take all of: a limit, a share of it for each owner, and a reserve for those who have little.
//!
//! A [`Budget`] only counts. It knows no clock and no socket, and what is counted is for those to say who ask it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whom something is charged to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A user of this host, by the kernel's word.
    User(u32),
    /// All holders of a key.
    Key(Arc<str>),
    /// An address whose user is not known.
    Address(IpAddr),
    /// Nothing is known.
    Unknown,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Key(name) => write!(f, "key {name:?}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Unknown => f.write_str("an unknown client"),
        }
    }
}

/// How much there is, and who may have how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Of all owners together.
    pub limit: u64,
    /// Of one owner, in percent of the limit; at least 1 unit. More than 100 is all of it.
    pub share_percent: u64,
}

/// The part of a limit that is kept for owners who have little: a sixteenth. Little is a sixteenth of that.
const RESERVE_PART: u64 = 16;

/// A limit and its shares. Not blocking.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    share: u64,
    reserve: u64,
    /// May have all of it: whoever runs this process, and the superuser.
    trusted: Vec<Owner>,
    taken: Mutex<Taken>,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Taken {
    // Invariant: the sum of `by_owner`; at most the limit, but for what is only counted.
    all: u64,
    by_owner: HashMap<Owner, u64>,
}

impl Taken {
    fn add(&mut self, owner: &Owner, amount: u64) {
        self.all += amount;
        *self.by_owner.entry(owner.clone()).or_default() += amount;
    }
}

impl Budget {
    /// With nothing taken. Shares and the reserve do not hold for those who are `trusted`.
    pub fn new(terms: Terms, trusted: Vec<Owner>) -> Arc<Self> {
        let Terms { limit, share_percent } = terms;
        let share = u128::from(limit) * u128::from(share_percent.min(100)) / 100;
        Arc::new(Self {
            limit,
            share: u64::try_from(share).unwrap_or(limit).max(1),
            reserve: if limit == u64::MAX { 0 } else { limit / RESERVE_PART },
            trusted,
            taken: Mutex::default(),
            refused: AtomicU64::new(0),
        })
    }

    /// Without a limit.
    pub fn unlimited() -> Arc<Self> {
        Self::new(Terms { limit: u64::MAX, share_percent: 100 }, Vec::new())
    }

    /// Takes some for an owner, until the charge is dropped. `None`, and counted as refused, where that is too much.
    pub fn take(self: &Arc<Self>, owner: &Owner, amount: u64) -> Option<Charge> {
        let mut charge = Charge { budget: Arc::clone(self), owner: owner.clone(), amount: 0 };
        charge.grow(amount).then_some(charge)
    }

    /// Counts some for an owner, until the charge is dropped, whatever the limit: for what is bounded where it is, and only shown here.
    pub fn count(self: &Arc<Self>, owner: &Owner, amount: u64) -> Charge {
        self.taken().add(owner, amount);
        Charge { budget: Arc::clone(self), owner: owner.clone(), amount }
    }

    /// [`Budget::take`] would take this much now.
    pub fn has_room(&self, owner: &Owner, amount: u64) -> bool {
        self.allows(&self.taken(), owner, amount)
    }

    /// Somebody was refused elsewhere for want of this.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Of all owners together.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What one owner may have who is not trusted.
    pub fn share(&self) -> u64 {
        self.share
    }

    /// An owner for whom shares and the reserve do not hold.
    pub fn trusts(&self, owner: &Owner) -> bool {
        self.trusted.contains(owner)
    }

    /// What is taken now.
    pub fn used(&self) -> u64 {
        self.taken().all
    }

    /// How often somebody was refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn allows(&self, taken: &Taken, owner: &Owner, amount: u64) -> bool {
        if amount == 0 {
            // Also where more is only counted than there is.
            return true;
        }
        let own = taken.by_owner.get(owner).copied().unwrap_or(0).saturating_add(amount);
        let all = taken.all.saturating_add(amount);
        if all > self.limit {
            return false;
        }
        let has_little = own <= self.reserve / RESERVE_PART;
        self.trusts(owner) || (own <= self.share && (has_little || all <= self.limit - self.reserve))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Whole at every step: a panic while it was held spoils nothing.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an owner has of a [`Budget`]; given back when dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    owner: Owner,
    amount: u64,
}

impl Charge {
    /// Takes more; `false`, and counted as refused, where that is too much: then nothing has changed.
    pub fn grow(&mut self, amount: u64) -> bool {
        let mut taken = self.budget.taken();
        if !self.budget.allows(&taken, &self.owner, amount) {
            self.budget.count_refused();
            return false;
        }
        self.amount += amount;
        taken.add(&self.owner, amount);
        true
    }

    /// Has this much from now on; `false`, and counted as refused, where that is too much: then nothing has changed.
    pub fn set(&mut self, amount: u64) -> bool {
        if amount > self.amount {
            return self.grow(amount - self.amount);
        }
        self.shrink(self.amount - amount);
        true
    }

    /// Parts with some of it, at most all: the same owner has it until that is dropped.
    #[must_use]
    pub fn split(&mut self, amount: u64) -> Self {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        Self { budget: Arc::clone(&self.budget), owner: self.owner.clone(), amount }
    }

    /// Has what another charge has, as [`Charge::split`] made it: of the same budget and owner.
    pub fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget) && self.owner == other.owner);
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Gives some of it back, at most all.
    pub fn shrink(&mut self, amount: u64) {
        let amount = amount.min(self.amount);
        if amount == 0 {
            return;
        }
        let mut taken = self.budget.taken();
        taken.all -= amount;
        if let Some(own) = taken.by_owner.get_mut(&self.owner) {
            *own -= amount;
            if *own == 0 {
                taken.by_owner.remove(&self.owner);
            }
        }
        self.amount -= amount;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Owner = Owner::User(0);

    fn budget(limit: u64) -> Arc<Budget> {
        Budget::new(Terms { limit, share_percent: 50 }, vec![ROOT])
    }

    #[test]
    fn charge_that_is_split_is_given_back_in_parts() {
        let budget = budget(4096);
        let mut charge = budget.take(&ROOT, 100).unwrap();
        let part = charge.split(30);
        assert_eq!(budget.used(), 100);
        charge.shrink(u64::MAX);
        assert_eq!(budget.used(), 30);
        drop(part);
        let all = charge.split(1);
        drop((charge, all));
        assert_eq!(budget.used(), 0);
        let mut charge = budget.take(&ROOT, 100).unwrap();
        let part = charge.split(30);
        charge.join(part);
        assert_eq!(budget.used(), 100);
        charge.shrink(90);
        assert_eq!(budget.used(), 10);
    }

    // [LIMIT-1] [LIMIT-2]
    #[test]
    fn owner_gets_its_share_and_others_go_on() {
        let budget = budget(4096);
        let greedy = Owner::User(65_534);
        let held: Vec<_> = std::iter::from_fn(|| budget.take(&greedy, 1)).collect();
        assert_eq!((held.len(), budget.used(), budget.refused()), (2048, 2048, 1));
        let key = Owner::Key("team".into());
        let others: Vec<_> = std::iter::from_fn(|| budget.take(&key, 1)).collect();
        assert_eq!(others.len(), 2048 - 256, "all but the reserve");
        let newcomers: Vec<_> =
            (0..4).map(|n| budget.take(&Owner::Address([10, 0, 0, n].into()), 16).unwrap()).collect();
        assert!(budget.take(&Owner::Unknown, 17).is_none(), "no more than little of the reserve");
        let root: Vec<_> = std::iter::from_fn(|| budget.take(&ROOT, 1)).collect();
        assert_eq!(root.len(), 256 - 64);
        assert_eq!(budget.used(), 4096);
        drop((held, others, newcomers, root));
        assert_eq!(budget.used(), 0);
        assert!(budget.taken().by_owner.is_empty());
    }

    // [LIMIT-12]
    #[test]
    fn trusted_owner_may_have_all() {
        let budget = budget(3);
        let held: Vec<_> = std::iter::from_fn(|| budget.take(&ROOT, 1)).collect();
        assert_eq!(held.len(), 3);
        assert!(budget.take(&ROOT, 0).is_some());
    }

    #[test]
    fn counted_use_is_returned_and_may_exceed_the_limit() {
        let budget = budget(2);
        let counted: Vec<_> = (0..3).map(|_| budget.count(&Owner::Unknown, 1)).collect();
        assert_eq!((budget.used(), budget.refused()), (3, 0));
        assert!(budget.take(&ROOT, 1).is_none());
        assert!(budget.take(&ROOT, 0).is_some(), "nothing is never too much");
        drop(counted);
        assert_eq!(budget.used(), 0);
        assert!(budget.take(&ROOT, 1).is_some());
    }

    #[test]
    fn charge_grows_and_shrinks_within_the_limit() {
        let budget = budget(100);
        let mut charge = budget.take(&ROOT, 10).unwrap();
        assert!(charge.grow(90) && !charge.grow(1));
        charge.shrink(60);
        assert_eq!(budget.used(), 40);
        assert!(!charge.grow(u64::MAX), "no overflow");
        assert!(charge.set(70) && charge.set(20) && !charge.set(101) && charge.set(40));
        charge.shrink(u64::MAX);
        assert_eq!(budget.used(), 0);
        assert!(Budget::unlimited().take(&Owner::Unknown, u64::MAX).is_some());
    }
}
