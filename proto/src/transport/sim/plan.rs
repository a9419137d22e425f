//! What goes wrong in a simulated network, and the random numbers that decide when.

/// How a simulated network behaves. Chances are per million and are drawn from the seed.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Shortest time a packet travels, nanoseconds.
    pub delay_min_ns: u64,
    /// Longest time a packet travels, nanoseconds; at least `delay_min_ns`.
    pub delay_max_ns: u64,
    /// Time that each KiB adds to a packet's travel, nanoseconds.
    pub delay_per_kib_ns: u64,
    /// Time that a receive which finds nothing takes, nanoseconds: virtual time passes for a program that only polls.
    pub poll_ns: u64,
    /// Chance that a packet, and so all that follow it, is late by `stall_ns`.
    pub stall_ppm: u32,
    /// Length of a stall, nanoseconds.
    pub stall_ns: u64,
    /// Chance, for each packet that leaves, that the connection is cut then: a random part of what is on its way still arrives.
    pub cut_ppm: u32,
    /// Cuts the connection of the n-th packet that leaves anywhere in the network, counted from 0.
    pub cut_at_packet: Option<u64>,
    /// Chance that a connect is refused.
    pub refuse_ppm: u32,
    /// Chance that a post is answered [`crate::transport::PostError::Full`] although there is room.
    pub full_ppm: u32,
    /// Chance that a message is answered [`crate::transport::PostError::Full`] after its room was reserved.
    pub full_late_ppm: u32,
    /// Chance that an RDMA write is answered [`crate::transport::Posted::Done`] (the data was copied) instead of pending.
    pub done_ppm: u32,
    /// Peers answer [`crate::transport::Endpoint::remote_memory`], as over shared memory.
    pub remote_mapped: bool,
}

impl FaultPlan {
    /// Delays only, of a few microseconds.
    pub fn calm() -> Self {
        Self {
            delay_min_ns: 1_000,
            delay_max_ns: 10_000,
            delay_per_kib_ns: 100,
            poll_ns: 50,
            stall_ppm: 0,
            stall_ns: 0,
            cut_ppm: 0,
            cut_at_packet: None,
            refuse_ppm: 0,
            full_ppm: 0,
            full_late_ppm: 0,
            done_ppm: 0,
            remote_mapped: false,
        }
    }

    /// Faults of every kind, each as often as `seed` decides, some not at all.
    pub fn rough(seed: u64) -> Self {
        // Not the network's own sequence for the same seed.
        let mut random = Random::new(seed ^ 0x0fa1_7000_0000_0000);
        let mut rate = |max: u32| match random.chance(500_000) {
            true => u32::try_from(random.below(u64::from(max) + 1)).unwrap_or(max),
            false => 0,
        };
        let (stall_ppm, cut_ppm, refuse_ppm) = (rate(20_000), rate(5_000), rate(200_000));
        let (full_ppm, done_ppm) = (rate(100_000), rate(1_000_000));
        Self {
            delay_max_ns: 1_000 + random.below(1_000_000),
            stall_ppm,
            stall_ns: 1_000_000 * (1 + random.below(500)),
            cut_ppm,
            refuse_ppm,
            full_ppm,
            done_ppm,
            remote_mapped: random.chance(300_000),
            full_late_ppm: if random.chance(500_000) { 1_000 } else { 0 },
            ..Self::calm()
        }
    }
}

/// A sequence of numbers fixed by its seed (SplitMix64, Steele, Lea and Flood 2014): small, and no need to be secret.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 when `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The slight bias of the product's high half does not matter to a test.
        ((u128::from(self.number()) * u128::from(limit)) >> 64) as u64
    }

    /// An index or count below `limit`; 0 when `limit` is 0.
    pub fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap_or(0)
    }

    /// True with a chance of `ppm` in a million. Draws nothing when the chance is 0, so that a plan without a fault runs as if the
    /// fault did not exist.
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_below_limit_reaches_both_ends_and_never_the_limit() {
        let mut random = Random::new(1);
        let mut seen = [false; 3];
        for _ in 0..1000 {
            seen[random.index(3)] = true;
        }
        assert_eq!(seen, [true; 3]);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn random_of_known_seed_gives_the_published_sequence() {
        // The reference implementation's output for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(
            [random.number(), random.number()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }

    #[test]
    fn chance_of_nothing_and_of_everything_is_certain() {
        let mut random = Random::new(2);
        assert!((0..1000).all(|_| !random.chance(0) && random.chance(1_000_000)));
    }
}
