//! Whether inline or direct is the quicker of contiguous transfers near the server's crossovers. The server has measured these on its own
//! host, over its loopback; the first transfers of a session tell what the network between adds.
//!
//! Each kind of transfer has a bandit ([`Bandit`]) of the two methods. When it has committed, nothing is tried or timed any more: a session
//! that goes on pays nothing.

use std::time::Duration;

use dafs_proto::bandit::{Bandit, Estimate, Rules};

use crate::method::io_path::{Circumstances, Direction, Form, IoPath, MethodOverride, Registration, direct};

/// Which sessions refine the server's crossovers by their own first transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refinement {
    /// Those whose server is on another host: a server has measured its own.
    #[default]
    Remote,
    /// All.
    Always,
    /// None.
    Never,
}

/// Four transfers by each method, and then the quicker one. What contradicts the server must be quicker by a tenth.
const RULES: Rules = Rules {
    estimate: Estimate::Least,
    known: 4,
    row: 4,
    row_uses_max: 8,
    clearly: 0.9,
    clearly_at_first: 0.9,
    pause_min: 4,
    pause_growth: [2, 2],
    pause_max: [64, 64],
    pause_equal: 64,
    cost_max: 1.0,
    weighs: false,
};

/// Sizes up to so many doublings below and above a crossover are in question.
const DOUBLINGS: u32 = 3;
/// Sizes are classed by powers of two; what is as large as this is one class.
const CLASSES: usize = 24;

/// Times of both methods, for each kind of transfer.
#[derive(Debug)]
pub(crate) struct Refined {
    is_on: bool,
    /// Inline, direct.
    cells: Vec<Bandit<2>>,
}

/// A transfer whose time tells something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeTrial {
    cell: usize,
    is_direct: bool,
    /// What the crossover says.
    prior: bool,
}

impl Refined {
    pub(crate) fn new(refinement: Refinement, is_remote: bool) -> Self {
        let is_on = match refinement {
            Refinement::Remote => is_remote,
            Refinement::Always => true,
            Refinement::Never => false,
        };
        Self { is_on, cells: if is_on { vec![Bandit::default(); 4 * CLASSES] } else { Vec::new() } }
    }

    /// Puts what was learned into the circumstances of a transfer; a blocking one may be a trial, and then its time is to be told.
    #[inline]
    pub(crate) fn choose(&mut self, c: &mut Circumstances, blocking: bool) -> Option<SizeTrial> {
        if !self.is_on {
            return None;
        }
        self.choose_refined(c, blocking)
    }

    fn choose_refined(&mut self, c: &mut Circumstances, blocking: bool) -> Option<SizeTrial> {
        let (cell, prior) = open_choice(c)?;
        let bandit = self.cells.get_mut(cell)?;
        if let Some(best) = bandit.best() {
            c.refined = Some(best == 1).filter(|is_direct| *is_direct != prior);
            return None;
        }
        if !blocking {
            return None;
        }
        let is_direct = bandit.choose(&RULES, usize::from(prior), 1.0) == 1;
        c.refined = Some(is_direct).filter(|is_direct| *is_direct != prior);
        Some(SizeTrial { cell, is_direct, prior })
    }

    /// A trial has moved so many bytes in this time.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn record(&mut self, trial: SizeTrial, size: usize, time: Duration) {
        let Some(bandit) = self.cells.get_mut(trial.cell) else { return };
        let ns = time.as_nanos() as f32 / size.max(1) as f32;
        bandit.record(&RULES, usize::from(trial.prior), usize::from(trial.is_direct), ns);
    }

    /// What both methods took for transfers such as this, where it is known: nanoseconds for a byte, inline and direct.
    pub(crate) fn known(&self, c: &Circumstances) -> Option<[f32; 2]> {
        let (cell, _) = open_choice(c)?;
        self.cells.get(cell)?.known(&RULES)
    }
}

/// Where both methods are open, and the size is near the crossover: the kind of the transfer, and whether the crossover says direct.
fn open_choice(c: &Circumstances) -> Option<(usize, bool)> {
    if c.method != MethodOverride::Auto || c.form != Form::Contiguous || c.size == 0 {
        return None;
    }
    let bounced = c.bounce_overlaps && c.direction == Direction::Write;
    if c.size > u64::from(c.inline_max) || direct(c, bounced) == IoPath::Inline {
        return None;
    }
    let crossover = u64::from(c.crossover().min(c.inline_max.saturating_add(1))).max(1);
    if c.size < crossover >> DOUBLINGS || c.size > crossover << DOUBLINGS {
        return None;
    }
    let class = (c.size.ilog2() as usize).min(CLASSES - 1);
    let kind = 2 * c.direction as usize + usize::from(c.registration == Registration::Ordinary);
    Some((kind * CLASSES + class, c.size >= crossover))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::io_path::{Reason, decide};
    use dafs_proto::wire::{Crossovers, Thresholds};

    fn circumstances(size: u64, crossover: u32) -> Circumstances {
        let crossovers = Crossovers {
            read_registered: crossover,
            read_unregistered: crossover,
            write_registered: crossover,
            write_unregistered: crossover,
        };
        Circumstances {
            direction: Direction::Read,
            size,
            registration: Registration::Registered,
            thresholds: Thresholds { read_inline_max: 16_384, write_inline_max: 16_384, crossovers },
            method: MethodOverride::Auto,
            inline_max: 16_384,
            registers_ordinary_memory: true,
            can_bounce: true,
            has_eager_buffers: false,
            cuts_inline: false,
            bounce_overlaps: false,
            refined: None,
            form: Form::Contiguous,
        }
    }

    /// Blocking transfers that take what `ns` says for a byte, inline and direct; which of them were direct, and timed.
    fn run(refined: &mut Refined, count: usize, asked: &Circumstances, ns: [u64; 2]) -> Vec<(bool, bool)> {
        let one = |_| {
            let mut c = *asked;
            let trial = refined.choose(&mut c, true);
            let is_direct = decide(&c).path == IoPath::Direct;
            if let Some(trial) = trial {
                refined.record(trial, 1000, Duration::from_nanos(1000 * ns[usize::from(is_direct)]));
            }
            (is_direct, trial.is_some())
        };
        (0..count).map(one).collect()
    }

    // [CLI-202]
    #[test]
    fn quicker_method_is_used_after_four_transfers_by_each() {
        for (crossover, ns, is_direct) in [
            (16_385, [20, 10], true),
            (16_385, [10, 20], false),
            (2048, [20, 10], true),
            (2048, [10, 20], false),
        ] {
            let mut refined = Refined::new(Refinement::Always, false);
            let asked = circumstances(8192, crossover);
            let runs = run(&mut refined, 100, &asked, ns);
            assert_eq!(runs.iter().filter(|(_, timed)| *timed).count(), 8, "{crossover} {ns:?}");
            assert!(runs[8..].iter().all(|run| *run == (is_direct, false)), "{crossover} {ns:?}");
            assert!(refined.known(&asked).is_some());
            let mut c = asked;
            assert_eq!(refined.choose(&mut c, false), None, "also of those that nobody waits for");
            assert_eq!(decide(&c).path == IoPath::Direct, is_direct);
        }
    }

    // [CLI-202]
    #[test]
    fn methods_within_a_tenth_are_left_to_the_server() {
        for (crossover, ns) in [(16_385, [100, 92]), (2048, [92, 100])] {
            let mut refined = Refined::new(Refinement::Always, false);
            let runs = run(&mut refined, 100, &circumstances(8192, crossover), ns);
            assert!(runs[8..].iter().all(|(is_direct, _)| *is_direct == (crossover == 2048)), "{ns:?}");
        }
    }

    // [CLI-203]
    #[test]
    fn only_sessions_with_another_host_refine_unless_told() {
        for (refinement, is_remote, is_on) in [
            (Refinement::default(), true, true),
            (Refinement::default(), false, false),
            (Refinement::Always, false, true),
            (Refinement::Never, true, false),
        ] {
            let mut refined = Refined::new(refinement, is_remote);
            let trial = refined.choose(&mut circumstances(8192, 4096), true);
            assert_eq!(trial.is_some(), is_on, "{refinement:?}");
        }
    }

    // [CLI-202]
    #[test]
    fn sizes_far_from_the_crossover_and_without_a_choice_are_not_tried() {
        let mut refined = Refined::new(Refinement::Always, false);
        let near = circumstances(4096, 4096);
        let mut tried = |c: Circumstances| refined.choose(&mut { c }, true).is_some();
        assert!(tried(near));
        for (size, is_tried) in [(511, false), (512, true), (16_384, true), (16_385, false), (0, false)] {
            assert_eq!(tried(circumstances(size, 4096)), is_tried, "{size}");
        }
        assert!(!tried(circumstances(8193, 1024)), "more than eight times");
        for without in [
            Circumstances { method: MethodOverride::Inline, ..near },
            Circumstances { form: Form::Directory, ..near },
            Circumstances {
                registration: Registration::Ordinary,
                registers_ordinary_memory: false,
                can_bounce: false,
                ..near
            },
        ] {
            assert!(!tried(without), "{without:?}");
        }
    }

    #[test]
    fn decision_says_that_it_was_refined() {
        for (is_direct, crossover) in [(true, 16_385), (false, 1024)] {
            let c = Circumstances { refined: Some(is_direct), ..circumstances(4096, crossover) };
            let decision = decide(&c);
            assert_eq!(
                decision.reason,
                if is_direct { Reason::RefinedDirect } else { Reason::RefinedInline }
            );
            assert_eq!(decision.path == IoPath::Direct, is_direct);
            assert!(decision.explain(&c).contains("in this session"), "{}", decision.explain(&c));
        }
    }
}
