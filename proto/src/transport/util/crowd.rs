//! Which handshake is dropped when too many wait at once.

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
    let counts = counts(waiting.clone());
    let most = counts.values().copied().max()?;
    let has_fewer = newcomer.is_some_and(|whose| counts.get(&whose).copied().unwrap_or(0) + 1 < most);
    let age_min = if has_fewer { Duration::ZERO } else { age_min };
    oldest_of_most(waiting, &counts).filter(|one| one.age >= age_min).map(|one| one.place)
}

/// How long it is until one of them [`gives_way`], where nobody's newcomer waits and nothing changes. `None` where none is there.
pub fn time_until_one_gives_way<P: Copy, W: Eq + Hash + Copy>(
    waiting: impl Iterator<Item = Waiting<P, W>> + Clone,
    age_min: Duration,
) -> Option<Duration> {
    let counts = counts(waiting.clone());
    oldest_of_most(waiting, &counts).map(|one| age_min.saturating_sub(one.age))
}

fn counts<P, W: Eq + Hash>(waiting: impl Iterator<Item = Waiting<P, W>>) -> HashMap<W, usize> {
    let mut counts = HashMap::new();
    for one in waiting {
        *counts.entry(one.whose).or_default() += 1;
    }
    counts
}

fn oldest_of_most<P, W: Eq + Hash>(
    waiting: impl Iterator<Item = Waiting<P, W>>,
    counts: &HashMap<W, usize>,
) -> Option<Waiting<P, W>> {
    let most = counts.values().max();
    waiting.filter(|one| counts.get(&one.whose) == most).max_by_key(|one| one.age)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE_MIN: Duration = Duration::from_millis(100);

    fn all(waiting: &[(char, u64)]) -> impl Iterator<Item = Waiting<usize, char>> + Clone {
        let numbered = waiting.iter().enumerate();
        numbered.map(|(place, (whose, age))| Waiting {
            place,
            whose: *whose,
            age: Duration::from_millis(*age),
        })
    }

    fn place(waiting: &[(char, u64)], newcomer: char) -> Option<usize> {
        gives_way(all(waiting), Some(newcomer), AGE_MIN)
    }

    // [LIMIT-6] [LIMIT-7]
    #[test]
    fn oldest_handshake_of_the_largest_owner_gives_way_after_its_time() {
        assert_eq!(place(&[('a', 500), ('b', 110), ('b', 120), ('b', 20)], 'b'), Some(2));
        assert_eq!(place(&[('a', 500), ('b', 90), ('b', 80), ('b', 20)], 'b'), None, "all are young");
        assert_eq!(place(&[('a', 500), ('b', 90), ('b', 80), ('b', 20)], 'a'), Some(1), "has fewer");
        assert_eq!(place(&[('a', 99)], 'c'), None);
        assert_eq!(place(&[], 'c'), None);
    }

    // Those who have few do not give way, however old they are.
    #[test]
    fn time_until_one_gives_way_is_that_of_those_who_have_most() {
        let time =
            |waiting: &[_]| time_until_one_gives_way(all(waiting), AGE_MIN).map(|time| time.as_millis());
        assert_eq!(time(&[('a', 500), ('b', 30), ('b', 20)]), Some(70));
        assert_eq!(time(&[('a', 90), ('b', 30)]), Some(10), "both have most");
        assert_eq!(time(&[('a', 500)]), Some(0));
        assert_eq!(time(&[]), None);
    }
}
