//! Who makes room where too many wait at once.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// One that waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<P, W> {
    /// Its place.
    pub place: P,
    /// Whose it is: a user, an address.
    pub whose: W,
    /// How long it has waited, or said nothing.
    pub age: Duration,
}

/// The place of the one that goes for a newcomer: the oldest of those who have most. It goes only when it is of `age_min`, unless the
/// newcomer's own have fewer. `None`: the newcomer has to wait or go.
pub fn gives_way<P: Copy, W: Eq + Hash + Copy>(
    waiting: impl Iterator<Item = Waiting<P, W>> + Clone,
    newcomer: Option<W>,
    age_min: Duration,
) -> Option<P> {
    let mut counts = HashMap::<W, usize>::new();
    for one in waiting.clone() {
        *counts.entry(one.whose).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    let has_fewer = newcomer.is_some_and(|whose| counts.get(&whose).copied().unwrap_or(0) + 1 < most);
    let age_min = if has_fewer { Duration::ZERO } else { age_min };
    let old = waiting.filter(|one| counts.get(&one.whose) == Some(&most) && one.age >= age_min);
    old.max_by_key(|one| one.age).map(|one| one.place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(waiting: &[(char, u64)], newcomer: char) -> Option<usize> {
        let all = waiting.iter().enumerate().map(|(place, (whose, age))| Waiting {
            place,
            whose: *whose,
            age: Duration::from_millis(*age),
        });
        gives_way(all, Some(newcomer), Duration::from_millis(100))
    }

    // [LIMIT-6] [LIMIT-7]
    #[test]
    fn oldest_of_those_who_have_most_gives_way_when_it_had_its_time() {
        assert_eq!(place(&[('a', 500), ('b', 110), ('b', 120), ('b', 20)], 'b'), Some(2));
        assert_eq!(place(&[('a', 500), ('b', 90), ('b', 80), ('b', 20)], 'b'), None, "all are young");
        assert_eq!(place(&[('a', 500), ('b', 90), ('b', 80), ('b', 20)], 'a'), Some(1), "has fewer");
        assert_eq!(place(&[('a', 99)], 'c'), None);
        assert_eq!(place(&[], 'c'), None);
    }
}
