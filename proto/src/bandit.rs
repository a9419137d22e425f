//! Which of a few ways to do the same thing is the quickest, found by trying: an explore-then-commit bandit. Pure arithmetic: it is told
//! times, and reads no clock.
//!
//! It uses the way ("arm") to which it has committed, and now and then explores another: a row of uses in turn. When each of the others has
//! had its row it compares estimates of all, commits, and pauses. One time alone tells little, so an estimate is of several: the least of
//! the last few, or a moving average (EWMA). What exploring costs is bounded by [`Rules::cost_max`].
//!
//! A caller asks [`Bandit::choose`] for each use, and tells what it took by [`Bandit::record`]. Uses may overlap, and may end without being
//! told: then the row is tried again later, ever more seldom.

/// The last times of an arm that are kept.
const TIMES: u32 = 4;

/// What an average moves towards a time by.
const MEAN_PART: f32 = 0.25;

/// Rows in vain in a row make the pause this many times twice as long, at most.
const IN_VAIN_MAX: u32 = 12;

/// An arm that was far slower once, for another reason maybe, counts as so many times slower.
const SLOWER_MAX: f32 = 64.0;

/// What an arm takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// The least of its last four times: what disturbs a use makes it slower.
    Least,
    /// An exponentially weighted moving average of its times, a quarter for the newest: what is uneven by itself.
    Mean,
}

/// How a bandit explores.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How times become an estimate.
    pub estimate: Estimate,
    /// Times without which an arm is not known, at most four.
    pub known: u32,
    /// Times that end a row.
    pub row: u32,
    /// Uses that begin at most before those times are there. More than [`Rules::row`] where some tell nothing.
    pub row_uses_max: u32,
    /// The preferred arm is left for one that takes less than this part of its time.
    pub clearly: f32,
    /// The same when nothing is committed to yet.
    pub clearly_at_first: f32,
    /// Uses between two rounds, at first and when the choice has just changed.
    pub pause_min: u32,
    /// Times longer the pause gets each time that the choice stays, and where it is the preferred arm besides.
    pub pause_growth: [u32; 2],
    /// At most so long, likewise.
    pub pause_max: [u32; 2],
    /// At most so long where arms are as good as equal; else as long as keeps exploring below `cost_max`.
    pub pause_equal: u32,
    /// The part of all time that exploring costs.
    pub cost_max: f32,
    /// Uses differ in weight: a heavy one is explored with only after so much by the best arm that `cost_max` holds.
    pub weighs: bool,
}

/// Learns which of `N` arms is the quickest, by the [`Rules`] that each call is given.
#[derive(Clone, Copy, Debug)]
pub struct Bandit<const N: usize> {
    arms: [Arm; N],
    /// What was committed to; before, what is preferred counts.
    best: Option<usize>,
    row: Row,
    /// Uses until the next round, and what that was at first.
    left: u32,
    pause: u32,
    in_vain: u32,
    /// Weight of uses by the best arm, less what was explored with.
    saved: f32,
}

#[derive(Clone, Copy, Debug)]
struct Arm {
    ns: [f32; TIMES as usize],
    count: u32,
}

/// A row of uses by one arm: those that are still to begin, and times that are still to come.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    arm: usize,
    to_begin: u32,
    to_end: u32,
}

impl<const N: usize> Default for Bandit<N> {
    fn default() -> Self {
        let arms = [Arm { ns: [0.0; TIMES as usize], count: 0 }; N];
        Self { arms, best: None, row: Row::default(), left: 0, pause: 0, in_vain: 0, saved: 0.0 }
    }
}

impl<const N: usize> Bandit<N> {
    /// What it has committed to.
    pub fn best(&self) -> Option<usize> {
        self.best
    }

    /// Estimates of all arms, once it has committed: nanoseconds.
    pub fn known(&self, rules: &Rules) -> Option<[f32; N]> {
        self.best.map(|_| self.arms.map(|arm| arm.estimate(rules.estimate)))
    }

    /// Times of an arm so far.
    pub fn count(&self, arm: usize) -> u32 {
        self.arms[arm].count
    }

    /// The arm for a use that begins now. `preferred`: until others are known, and where they are as good as equal.
    pub fn choose(&mut self, rules: &Rules, preferred: usize, weight: f32) -> usize {
        let best = self.best.unwrap_or(preferred);
        if self.row.to_begin > 0 {
            self.row.to_begin -= 1;
            self.saved -= self.price(rules, self.row.arm, best) * weight;
            if self.row.to_begin == 0 {
                self.exhaust();
            }
            return self.row.arm;
        }
        self.saved += weight;
        if !self.arms[best].is_known(rules) {
            return best;
        }
        if self.left > 0 {
            self.left -= 1;
            return best;
        }
        // Where a row came to nothing its arm is tried again.
        let arm =
            if self.row.to_end > 0 && self.row.arm != best { self.row.arm } else { self.after(None, best) };
        if arm == best || rules.weighs && self.saved < self.price(rules, arm, best) * weight {
            return best;
        }
        self.pause = self.pause.max(rules.pause_min);
        self.left = self.pause << self.in_vain;
        self.saved = 0.0;
        self.begin(rules, arm);
        self.row.to_begin -= 1;
        if self.row.to_begin == 0 {
            self.exhaust();
        }
        arm
    }

    /// A use by an arm took so long: nanoseconds, for a byte or whatever makes uses alike.
    pub fn record(&mut self, rules: &Rules, preferred: usize, arm: usize, ns: f32) {
        self.arms[arm].add(rules.estimate, ns);
        self.on_recorded(rules, preferred, arm);
    }

    /// As [`Bandit::record`], of a time that tells more than all before it.
    pub fn record_anew(&mut self, rules: &Rules, preferred: usize, arm: usize, ns: f32) {
        self.arms[arm].ns = [ns; TIMES as usize];
        self.arms[arm].count = self.arms[arm].count.saturating_add(1);
        self.on_recorded(rules, preferred, arm);
    }

    fn on_recorded(&mut self, rules: &Rules, preferred: usize, arm: usize) {
        let best = self.best.unwrap_or(preferred);
        if arm != best && arm == self.row.arm && self.row.to_end > 0 {
            self.row.to_end -= 1;
            if self.row.to_end == 0 {
                (self.row.to_begin, self.in_vain) = (0, 0);
                match self.after(Some(arm), best) {
                    next if next != best => self.begin(rules, next),
                    _ if self.arms.iter().all(|arm| arm.is_known(rules)) => self.commit(rules, preferred),
                    // The next row follows at once.
                    _ => self.left = 0,
                }
            }
            return;
        }
        // What seemed the quickest is so no longer: time to compare.
        if self.best.is_some() && self.row.to_end == 0 && self.quickest(rules, preferred) != best {
            self.left = self.left.min(rules.pause_min);
        }
    }

    /// The arm whose row follows that of `arm`, the first where there is none; `best` behind the last.
    fn after(&self, arm: Option<usize>, best: usize) -> usize {
        (arm.map_or(0, |arm| arm + 1)..N).find(|arm| *arm != best).unwrap_or(best)
    }

    fn begin(&mut self, rules: &Rules, arm: usize) {
        let uses = if self.arms[arm].is_known(rules) { rules.row_uses_max } else { rules.row };
        self.row = Row { arm, to_begin: uses, to_end: rules.row };
    }

    /// All uses of the row have begun: if nothing comes of them, it is longer until the next.
    fn exhaust(&mut self) {
        self.in_vain = (self.in_vain + 1).min(IN_VAIN_MAX);
        self.left = self.pause << self.in_vain;
    }

    fn commit(&mut self, rules: &Rules, preferred: usize) {
        let (before, best) = (self.best.unwrap_or(preferred), self.quickest(rules, preferred));
        self.best = Some(best);
        let is_preferred = usize::from(best == preferred);
        let growth = if best == before { rules.pause_growth[is_preferred] } else { 0 };
        let pause_max = if best == before { rules.pause_max[is_preferred] } else { rules.pause_max[0] };
        let cheap = self.cheap_pause(rules, best).clamp(rules.pause_equal, pause_max);
        self.pause = self.pause.saturating_mul(growth).clamp(rules.pause_min, cheap);
        self.left = self.pause;
    }

    fn quickest(&self, rules: &Rules, preferred: usize) -> usize {
        let ns = |arm: usize| self.arms[arm].estimate(rules.estimate);
        let clearly = if self.best.is_some() { rules.clearly } else { rules.clearly_at_first };
        let others = (0..N).filter(|arm| *arm != preferred);
        let quickest = others.min_by(|a, b| ns(*a).total_cmp(&ns(*b))).unwrap_or(preferred);
        if ns(quickest) < ns(preferred) * clearly { quickest } else { preferred }
    }

    /// How much longer an arm takes than the best one, in parts of that.
    fn excess(&self, rules: &Rules, arm: usize, best: usize) -> f32 {
        let ns = |arm: usize| self.arms[arm].estimate(rules.estimate);
        ns(arm) / ns(best).max(f32::MIN_POSITIVE) - 1.0
    }

    /// Uses between two rounds that keep what they cost small.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, which saturates"
    )]
    fn cheap_pause(&self, rules: &Rules, best: usize) -> u32 {
        let excess: f32 = (0..N).map(|arm| self.excess(rules, arm, best)).sum();
        (excess * rules.row as f32 / rules.cost_max) as u32
    }

    /// How much goes by the best arm for each that goes by this one.
    fn price(&self, rules: &Rules, arm: usize, best: usize) -> f32 {
        match self.arms[arm].is_known(rules) {
            true => self.excess(rules, arm, best).clamp(0.0, SLOWER_MAX) / rules.cost_max,
            false => 0.0,
        }
    }
}

impl Arm {
    fn is_known(&self, rules: &Rules) -> bool {
        self.count >= rules.known
    }

    fn add(&mut self, estimate: Estimate, ns: f32) {
        match estimate {
            Estimate::Least => self.ns[(self.count % TIMES) as usize] = ns,
            Estimate::Mean if self.count == 0 => self.ns[0] = ns,
            Estimate::Mean => self.ns[0] += (ns - self.ns[0]) * MEAN_PART,
        }
        // Counts on where it would end, in the same places.
        self.count = self.count.checked_add(1).unwrap_or(TIMES);
    }

    fn estimate(&self, estimate: Estimate) -> f32 {
        match estimate {
            Estimate::Least => {
                self.ns.iter().take(self.count as usize).copied().fold(f32::INFINITY, f32::min)
            }
            Estimate::Mean if self.count == 0 => f32::INFINITY,
            Estimate::Mean => self.ns[0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        estimate: Estimate::Least,
        known: 4,
        row: 4,
        row_uses_max: 4,
        clearly: 0.95,
        clearly_at_first: 1.0,
        pause_min: 8,
        pause_growth: [2, 2],
        pause_max: [2048, 2048],
        pause_equal: 128,
        cost_max: 0.02,
        weighs: false,
    };

    /// Runs so many uses of a time by their number and arm; how many each arm had.
    fn run<const N: usize>(
        bandit: &mut Bandit<N>,
        rules: &Rules,
        uses: usize,
        ns: impl Fn(usize, usize) -> f32,
    ) -> [usize; N] {
        let mut taken = [0; N];
        for number in 0..uses {
            let arm = bandit.choose(rules, 0, 1.0);
            taken[arm] += 1;
            bandit.record(rules, 0, arm, ns(number, arm));
        }
        taken
    }

    #[test]
    fn quickest_arm_is_committed_to_after_a_row_of_each() {
        for best in 0..3 {
            let mut bandit = Bandit::<3>::default();
            let taken = run(&mut bandit, &RULES, 12, |_, arm| if arm == best { 1.0 } else { 2.0 });
            assert_eq!((taken, bandit.best()), ([4; 3], Some(best)));
            assert_eq!(bandit.known(&RULES).unwrap()[best], 1.0);
            let taken = run(&mut bandit, &RULES, 10_000, |_, arm| if arm == best { 1.0 } else { 2.0 });
            assert!(taken[best] > 9_700 && taken.iter().all(|taken| *taken > 0), "{taken:?}");
        }
    }

    #[test]
    fn arm_is_left_only_for_one_that_is_clearly_quicker() {
        let mut bandit = Bandit::<2>::default();
        run(&mut bandit, &RULES, 1000, |_, arm| [1.0, 2.0][arm]);
        run(&mut bandit, &RULES, 10_000, |_, arm| [1.0, 0.96][arm]);
        assert_eq!(bandit.best(), Some(0));
        run(&mut bandit, &RULES, 10_000, |_, arm| [1.0, 0.94][arm]);
        assert_eq!(bandit.best(), Some(1));
    }

    #[test]
    fn exploring_costs_no_more_than_the_rules_allow() {
        for slower in [1.1, 2.0, 10.0] {
            let mut bandit = Bandit::<2>::default();
            run(&mut bandit, &RULES, 20_000, |_, arm| [1.0, slower][arm]);
            let taken = run(&mut bandit, &RULES, 20_000, |_, arm| [1.0, slower][arm]);
            let cost = taken[1] as f32 * (slower - 1.0) / 20_000.0;
            assert!(taken[1] > 0 && cost <= 0.025, "{slower}: {taken:?}");
        }
    }

    #[test]
    fn rows_that_come_to_nothing_become_rare() {
        let mut bandit = Bandit::<2>::default();
        run(&mut bandit, &RULES, 4, |_, _| 1.0);
        let tried = (0..100_000).filter(|_| bandit.choose(&RULES, 0, 1.0) == 1).count();
        assert!((8..=60).contains(&tried), "{tried}");
        assert_eq!(bandit.best(), None);
        // Nor do they end anything.
        bandit.record(&RULES, 0, 1, 0.5);
        assert_eq!(bandit.best(), None);
    }

    #[test]
    fn single_times_do_not_decide() {
        for estimate in [Estimate::Least, Estimate::Mean] {
            let rules = Rules { estimate, ..RULES };
            let mut bandit = Bandit::<2>::default();
            let slow = |number: usize| if number.is_multiple_of(7) { 1.3 } else { 1.0 };
            run(&mut bandit, &rules, 5000, |number, arm| slow(number) * [1.0, 1.5][arm]);
            assert_eq!(bandit.best(), Some(0), "{estimate:?}");
        }
    }

    #[test]
    fn heavy_use_is_explored_with_after_as_much_by_the_best_arm() {
        let rules = Rules {
            estimate: Estimate::Mean,
            row: 1,
            row_uses_max: 1,
            pause_min: 10,
            pause_max: [10, 10],
            pause_equal: 10,
            cost_max: 0.1,
            weighs: true,
            ..RULES
        };
        let mut bandit = Bandit::<2>::default();
        run(&mut bandit, &rules, 1000, |_, arm| [1.0, 3.0][arm]);
        let mut until = |weight: f32| {
            (1..).find(|_| {
                let arm = bandit.choose(&rules, 0, weight);
                bandit.record(&rules, 0, arm, [1.0, 3.0][arm]);
                arm == 1
            })
        };
        until(1.0);
        assert_eq!(until(1.0), Some(20), "twice as much more, of which a tenth");
        assert_eq!(until(4.0), Some(20), "of one weight");
        assert!(until(1.0) < Some(21));
        assert!(until(16.0) >= Some(20));
    }

    #[test]
    fn row_goes_on_until_its_times_are_told() {
        let rules = Rules { row: 1, row_uses_max: 64, ..RULES };
        let mut bandit = Bandit::<2>::default();
        run(&mut bandit, &rules, 2000, |_, arm| [1.0, 2.0][arm]);
        let first = (0..).find(|_| bandit.choose(&rules, 0, 1.0) == 1);
        assert!(first.is_some());
        assert!((0..10).all(|_| bandit.choose(&rules, 0, 1.0) == 1));
        bandit.record(&rules, 0, 1, 2.0);
        assert_eq!(bandit.choose(&rules, 0, 1.0), 0);
    }
}
