//! What happens to a cluster, and when.

use std::time::Duration;

use dafs_proto::transport::sim::Random;

/// Something that happens. Servers and clients by their places, from 0 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A server's process ends at once; another starts after this time.
    Crash(usize, Duration),
    /// A server's process does not run for this time.
    Stand(usize, Duration),
    /// A server is asked to end, and another starts after it has.
    Leave(usize, Duration),
    /// Nobody reaches the store for this time.
    StoreAway(Duration),
    /// A server does not reach the store for this time.
    StoreCut(usize, Duration),
    /// A client and a server do not hear each other for this time.
    Apart(usize, usize, Duration),
    /// Connections of a client with a server break.
    Cut(usize, usize),
}

/// When what happens.
pub type Faults = Vec<(Duration, Fault)>;

/// As a seed says, within this time.
pub(super) fn drawn(seed: u64, servers: usize, clients: usize, time: Duration) -> Faults {
    let mut random = Random::new(seed ^ 0x6661_756c_7473);
    let millis =
        |random: &mut Random, min: u64, max: u64| Duration::from_millis(min + random.below(max - min));
    let count = 2 + random.index(6);
    let mut faults: Faults = Vec::new();
    for _ in 0..count {
        let at = millis(&mut random, 1, u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let (server, client) = (random.index(servers), random.index(clients));
        let fault = match random.below(12) {
            0..=2 => Fault::Crash(server, millis(&mut random, 50, 4000)),
            // Shorter and longer than a term.
            3..=5 => Fault::Stand(server, millis(&mut random, 50, 7000)),
            6..=7 => Fault::Leave(server, millis(&mut random, 50, 2000)),
            8 => Fault::StoreAway(millis(&mut random, 50, 5000)),
            9 => Fault::StoreCut(server, millis(&mut random, 50, 6000)),
            10 => Fault::Apart(client, server, millis(&mut random, 50, 6000)),
            _ => Fault::Cut(client, server),
        };
        faults.push((at, fault));
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}
