//! Servers that are lost, one after the other, as a seed says; and a cluster that loses them while a suite runs.
//!
//! `DAFS_SUITE_LOSSES=SEED cargo test -p dafs-tests --test files tcp::` gives each test of a suite a cluster of three servers in place of
//! its own server, wherever the test changes no settings: soon after it has begun, and then again and again, one of them is killed, stopped
//! or ended. With `DAFS_SUITE_CEPH=1` besides, each serves a mount of its own of a Ceph. Not for the gate: a test that counts requests, or
//! that asks what one server has in memory, fails.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Cluster, FENCE_COMMAND};

/// How a server is lost.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    /// It is killed.
    Killed,
    /// It stands still, and is killed by the fence command.
    Stopped,
    /// It is asked to end.
    Ended,
    /// The link of its host is cut.
    Cut,
}

impl Loss {
    /// Every kind that a server without a host of its own can meet.
    pub const ALL: [Self; 3] = [Self::Killed, Self::Stopped, Self::Ended];
    /// Every kind.
    pub const BEHIND_LINKS: [Self; 4] = [Self::Killed, Self::Stopped, Self::Ended, Self::Cut];

    /// The server of this number is lost so, and another is started in its place when it has been taken over from. A mount of its own is
    /// lost with it.
    pub fn befall(self, cluster: &mut Cluster, number: usize) {
        let takeovers = cluster.takeovers();
        match self {
            Self::Killed => {
                // With what it had not written yet.
                cluster.ceph.iter_mut().for_each(|ceph| ceph.kill_mount(number));
                cluster.servers[number].kill();
            }
            Self::Stopped => cluster.servers[number].stop(),
            Self::Ended => {
                cluster.servers[number].end();
                cluster.ceph.iter_mut().for_each(|ceph| ceph.unmount(number));
            }
            Self::Cut => cluster.hosts[number].set_link(false),
        }
        if !matches!(self, Self::Ended) {
            cluster.await_takeovers(takeovers + 1);
        }
        match self {
            // It finds out, and can write no more. Without a Ceph it was killed by the command.
            Self::Stopped if cluster.ceph.is_some() => cluster.servers[number].go_on(),
            Self::Cut => {
                cluster.hosts[number].set_link(true);
                cluster.hosts[number].await_reach();
            }
            _ => {}
        }
        cluster.servers[number].wait();
        cluster.ceph.iter_mut().for_each(|ceph| ceph.mount_again(number));
        cluster.servers[number].start_again();
    }
}

/// Numbers as a seed says.
#[derive(Debug)]
pub struct Draws(pub u64);

impl Draws {
    /// One below this.
    pub fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % bound).unwrap()
    }
}

/// The seed that `DAFS_SUITE_LOSSES` gives, if suites are to run on clusters that lose servers.
pub fn seed_of_suites() -> Option<u64> {
    std::env::var("DAFS_SUITE_LOSSES").ok().map(|seed| seed.parse().expect("DAFS_SUITE_LOSSES: a number"))
}

/// A cluster that loses servers until it is dropped.
pub struct Losing {
    cluster: Arc<Mutex<Cluster>>,
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<usize>>,
}

/// Servers of a cluster that loses them.
const SERVERS: usize = 3;
/// The first loss, and each later one, comes within this after the one before.
const FIRST_WITHIN_MS: u64 = 60;
const NEXT_WITHIN_MS: u64 = 1500;

impl Losing {
    /// Starts one, whose losses are those of this seed.
    pub fn start(seed: u64) -> Self {
        let cluster = match std::env::var_os("DAFS_SUITE_CEPH") {
            None => Cluster::of_suites(SERVERS, &["--fence-command", FENCE_COMMAND]),
            Some(_) => Cluster::of_suites_on_ceph(SERVERS),
        };
        let cluster = Arc::new(Mutex::new(cluster));
        let (ends, ended) = channel();
        let thread = {
            let cluster = Arc::clone(&cluster);
            std::thread::spawn(move || lose(&cluster, Draws(seed), &ended))
        };
        Self { cluster, ends: Some(ends), thread: Some(thread) }
    }

    /// What it is made of. While this is held nothing is lost.
    pub fn with<T>(&self, look: impl FnOnce(&mut Cluster) -> T) -> T {
        look(&mut self.cluster.lock().unwrap())
    }

    /// Kills a server and starts it again.
    pub fn restart(&self) {
        self.with(|cluster| Loss::Killed.befall(cluster, 0));
    }
}

/// Loses servers until it is told to end. Returns how many.
fn lose(cluster: &Mutex<Cluster>, mut draws: Draws, ended: &Receiver<()>) -> usize {
    let mut lost = 0;
    let mut within = FIRST_WITHIN_MS;
    loop {
        let wait = Duration::from_millis(draws.below(within) as u64);
        if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return lost;
        }
        within = NEXT_WITHIN_MS;
        let (number, loss) = (draws.below(SERVERS as u64), Loss::ALL[draws.below(3)]);
        loss.befall(&mut cluster.lock().unwrap(), number);
        lost += 1;
    }
}

impl Drop for Losing {
    fn drop(&mut self) {
        drop(self.ends.take());
        let lost = self.thread.take().map(JoinHandle::join);
        if let Some(Ok(lost)) = lost {
            println!("{lost} servers were lost");
        }
    }
}
