//! Empty request and reply over the shm provider, beside a bare ring of two words in the same run.
//!
//! Two threads on two CPUs, both polling; then both on one CPU, where the provider must sleep at once. Last, the
//! memory of idle connections.
#![allow(unsafe_code, reason = "pins threads to CPUs")]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a benchmark: it stops where it fails"
)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dafs_proto::transport::shm::ShmDomain;
use dafs_proto::transport::{Address, ConnectParams, Domain, Endpoint, WaitPolicy};

const ROUNDS: usize = 200_000;
const HEAD: [u8; 40] = [7; 40];
const PAYLOAD: [u8; 4] = [1; 4];

fn main() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        println!("one CPU only: nothing to compare");
        return;
    }
    for run in 1..=3 {
        let raw = raw_ring(0, 1);
        let provider = provider((0, 1), WaitPolicy::Busy, true);
        let ratio = provider.as_nanos() as f64 / raw.as_nanos() as f64;
        println!("run {run}: two CPUs: raw ring {raw:?}, provider {provider:?}, ratio {ratio:.2}");
        let event = self::provider((0, 0), WaitPolicy::Event, false);
        let adaptive = self::provider((0, 0), WaitPolicy::Adaptive, false);
        println!("run {run}: one CPU: event {event:?}, adaptive {adaptive:?}");
    }
    idle_connections(1000);
}

fn pin(cpu: usize) {
    // SAFETY: the set is plain data; the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// The median of `ROUNDS` round trips.
fn median(mut round: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

#[repr(align(128))]
struct Line(AtomicU32);

fn raw_ring(here: usize, there: usize) -> Duration {
    let (ping, pong) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(there);
            for number in 1..=ROUNDS as u32 {
                while ping.0.load(Ordering::Acquire) != number {
                    std::hint::spin_loop();
                }
                pong.0.store(number, Ordering::Release);
            }
        });
        pin(here);
        let mut number = 0;
        median(|| {
            number += 1;
            ping.0.store(number, Ordering::Release);
            while pong.0.load(Ordering::Acquire) != number {
                std::hint::spin_loop();
            }
        })
    })
}

fn connected(params: &ConnectParams, count: usize) -> Vec<(Box<dyn Endpoint>, Box<dyn Endpoint>)> {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Shm(directory.path().join("socket"));
    let (server, client) = (ShmDomain::new(), ShmDomain::new());
    let mut listener = server.listen(&address, params).unwrap();
    (0..count)
        .map(|_| {
            std::thread::scope(|scope| {
                let connecting =
                    scope.spawn(|| client.connect(&address, params, Duration::from_secs(10)).unwrap());
                let accepted = loop {
                    if let Some(endpoint) = listener.accept().unwrap() {
                        break endpoint;
                    }
                    std::thread::yield_now();
                };
                (connecting.join().unwrap(), accepted)
            })
        })
        .collect()
}

/// Waits for a message, by polling or as the provider waits, and takes it.
fn take(endpoint: &mut dyn Endpoint, spin: bool) {
    while endpoint.recv().unwrap().is_none() {
        if spin {
            std::hint::spin_loop();
        } else {
            endpoint.wait(None).unwrap();
        }
    }
}

fn provider((here, there): (usize, usize), wait: WaitPolicy, spin: bool) -> Duration {
    let params = ConnectParams { wait, ..ConnectParams::default() };
    let (mut client, mut server) = connected(&params, 1).remove(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(there);
            for _ in 0..ROUNDS {
                take(server.as_mut(), spin);
                server.send_copy(&HEAD, &PAYLOAD).unwrap();
                server.flush().unwrap();
            }
            // Stays until the client has its last reply.
            let _ = server.wait(Some(Duration::from_secs(1)));
        });
        pin(here);
        let result = median(|| {
            client.send_copy(&HEAD, &[]).unwrap();
            client.flush().unwrap();
            take(client.as_mut(), spin);
        });
        drop(client);
        result
    })
}

fn resident_kib() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4
}

/// Both ends live in this process and map the segment twice, so this counts more than a server would see.
fn idle_connections(count: usize) {
    let before = resident_kib();
    let mut pairs = connected(&ConnectParams::default(), count);
    for (client, server) in &mut pairs {
        for _ in 0..3 {
            client.send_copy(&HEAD, &[1; 4096]).unwrap();
            client.flush().unwrap();
            take(server.as_mut(), true);
            server.send_copy(&HEAD, &[1; 4096]).unwrap();
            server.flush().unwrap();
            take(client.as_mut(), true);
        }
    }
    let each = (resident_kib() - before) as f64 / count as f64;
    println!("{count} idle connections, both ends here: {each:.1} KiB each");
}
