//! From which sizes direct transfers are faster than inline ones, measured on this machine and transport.
//!
//! The idea is the DAFS implementers' (a provider should export its threshold instead of a constant being compiled in).
//! [`measure`] makes one connection from
//! a thread of its own to the calling thread, through the provider contract only, and times both methods for reads and writes the
//! way a server serves a page-cached file:
//!
//! | | inline | direct |
//! |---|---|---|
//! | read | `pread` into the reply; the client copies it out | `pread` into mapped client memory, else RDMA write |
//! | write | the client copies it in; `pwrite` from the payload | `pwrite` from mapped client memory, else RDMA read, then `pwrite` |
//!
//! Noncontiguous memory is timed as well: 64 pieces that are packed into one contiguous transfer by the client,
//! against RDMA that gathers or scatters them ([`Calibration::gather`]).
//!
//! Direct is timed twice: with memory registered before, and with registration paid in every operation (where a provider cannot
//! register ordinary memory, that is a copy by
//! way of registered memory). [`crossover`], a pure function, turns the times into sizes.

mod apart;
mod client;
mod file;
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use dafs_proto::transport::{Address, ConnectParams, Domain, Endpoint, WaitPolicy};
use dafs_proto::wire::{Crossovers, HEADER_SIZE, Method, Stability, WireRange, WriteRequest};
use smallvec::SmallVec;

use self::apart::Apart;

/// Time of a calibration, by default.
pub const BUDGET: Duration = Duration::from_millis(50);
/// A calibration fails when it has not ended after this many times its budget.
const BUDGETS_MAX: u32 = 40;
/// What Direct must win by to count as faster where memory is registered for it.
const REGISTERING_HANDICAP: f64 = 0.05;
/// The smallest size measured, bytes: below, Inline is a few cache lines.
const SIZE_MIN: u32 = 512;
/// Inline limits are measured up to this, bytes.
const SIZE_MAX: u32 = 1 << 20;
/// Pieces of memory in a noncontiguous transfer that is timed.
const PIECES: usize = 64;

/// What is made of the pieces of one transfer.
type List<T> = SmallVec<[T; PIECES]>;

/// Times at one size: the lower quartile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of a piece of memory.
    pub size: u32,
    /// By Inline; of many pieces, by packing them.
    pub inline: Duration,
    /// By Direct; of many pieces, by gathering or scattering them.
    pub direct: Duration,
}

/// Samples of reads into registered memory and of such that register it, then of writes.
pub type Samples = [Vec<Sample>; 4];

/// The result of a calibration.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Sizes from which Direct is faster than Inline. One more than the inline limit says that Inline is always faster where it is
    /// possible.
    pub crossovers: Crossovers,
    /// The samples they are computed from.
    pub samples: Samples,
    /// From which pieces of memory on gathering pays; `None` where messages are too small to describe them.
    pub gather: Option<Crossovers>,
    /// The samples it is computed from.
    pub gather_samples: Samples,
    /// How often each size and method was timed.
    pub rounds: usize,
    /// How long it took.
    pub duration: Duration,
}

/// Inline up to its limits: right on every transport, if not the fastest. For when nothing could be measured.
pub fn inline_up_to(read_inline_max: u32, write_inline_max: u32) -> Crossovers {
    let (read, write) = (read_inline_max.saturating_add(1), write_inline_max.saturating_add(1));
    crossovers([read, read, write, write])
}

/// In the order of [`Samples`].
fn crossovers(sizes: [u32; 4]) -> Crossovers {
    let [read_registered, read_unregistered, write_registered, write_unregistered] = sizes;
    Crossovers { read_registered, read_unregistered, write_registered, write_unregistered }
}

/// Measures a provider: `server` listens on `address` (a fresh one: an ephemeral port, a socket path of its own) and `client`
/// connects to it from a thread.
///
/// Both sides use `params`; the inline limits are its `recv_payload_max`. Blocks for about `budget`, in any case for no longer than
/// forty times that.
pub fn measure(
    server: &dyn Domain,
    client: &Arc<dyn Domain>,
    address: &Address,
    params: &ConnectParams,
    budget: Duration,
) -> anyhow::Result<Calibration> {
    let begin = Instant::now();
    let apart = Apart::from_here();
    // Two ends that spin on one CPU wait for the scheduler, and nothing is measured in time.
    let one_cpu = apart.is_none() && std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    let wait = if one_cpu { WaitPolicy::Event } else { params.wait };
    let params = &ConnectParams { wait, ..*params };
    let listener = server.listen(address, params)?;
    let deadline = begin + BUDGETS_MAX * budget;
    // Outlives the serving side.
    let mut kept = Vec::new();
    let timed = std::thread::scope(|scope| {
        let (to, kept) = (listener.address().clone(), &mut kept);
        let ends = (begin + budget, deadline);
        let timing = scope.spawn(move || client::run(&**client, &to, params, ends, apart, kept));
        let served = server::run(server, listener, deadline, apart, || timing.is_finished());
        match timing.join() {
            // Its end closes the connection, which ends the serving.
            Ok(Ok(timed)) => Ok(timed),
            Ok(Err(error)) => Err(served.err().unwrap_or(error)),
            Err(_) => Err(anyhow!("the timing thread panicked")),
        }
    })?;
    Ok(timed.evaluate(params.recv_payload_max, begin))
}

/// The size from which Direct pays, out of samples in ascending order of size: a step at one of the sizes, or at `inline_max + 1`,
/// that makes the total
/// of what is lost by taking the slower method, relative to the faster, least; of equal steps the first.
///
/// Direct counts as slower than it was measured by `handicap`: where memory is registered for it, Inline is taken where the two are as good
/// as equal, for it ties up none.
///
/// Where the methods cross once this is the smallest size from which Direct wins at that and all larger ones. Where noise makes
/// them cross more than once, a clear
/// win outweighs a slight loss.
pub fn crossover(samples: &[Sample], inline_max: u32, handicap: f64) -> u32 {
    let loss = |slower: Duration, faster: Duration| {
        slower.saturating_sub(faster).as_secs_f64() / faster.as_secs_f64().max(f64::MIN_POSITIVE)
    };
    let direct = |sample: &Sample| sample.direct.mul_f64(1.0 + handicap);
    // The step before the first sample: Direct everywhere.
    let mut total: f64 = samples.iter().map(|sample| loss(direct(sample), sample.inline)).sum();
    let mut best = (total, samples.first().map_or(inline_max.saturating_add(1), |sample| sample.size));
    for (index, sample) in samples.iter().enumerate() {
        total += loss(sample.inline, direct(sample)) - loss(direct(sample), sample.inline);
        let step = samples.get(index + 1).map_or(inline_max.saturating_add(1), |next| next.size);
        // Far below what any clock can tell: only a rounding error of the sums.
        if total < best.0 - 1e-9 {
            best = (total, step);
        }
    }
    best.1
}

/// Sizes to measure up to an inline limit: powers of two, and the limit.
fn sizes(inline_max: u32) -> Vec<u32> {
    let max = inline_max.min(SIZE_MAX);
    let mut sizes: Vec<u32> = std::iter::successors(Some(SIZE_MIN), |&size| size.checked_mul(2))
        .take_while(|&size| size < max)
        .collect();
    if max > 0 {
        sizes.push(max);
    }
    sizes
}

/// A request of the calibration, the head of a message: whether it writes, and the body of a write. What is answered is one byte, and the
/// data of an inline read.
type RequestHead = [u8; 1 + WriteRequest::HEAD_SIZE - HEADER_SIZE];

/// A request to move `len` bytes, inline, or out of or into `ranges`: several are the payload.
fn encode_request(write: bool, len: u32, ranges: &[WireRange]) -> RequestHead {
    let body = WriteRequest {
        offset: 0,
        len,
        method: if ranges.is_empty() { Method::Inline } else { Method::Direct },
        stability: Stability::Unstable,
        segment_count: u16::try_from(ranges.len()).unwrap_or(u16::MAX),
        segment: if let [range] = ranges { *range } else { WireRange::default() },
    };
    let mut head = [u8::from(write); size_of::<RequestHead>()];
    body.encode(&mut head[1..]);
    head
}

/// An error for anything that [`encode_request`] does not make: somebody else has connected.
fn decode_request(head: &[u8]) -> anyhow::Result<(bool, WriteRequest)> {
    let (write, body) = head.split_first().context("an empty request")?;
    let request = WriteRequest::decode(body).context("a request of somebody else")?;
    ensure!(*write <= 1 && request.len <= SIZE_MAX, "a request of somebody else");
    Ok((*write == 1, request))
}

/// Waits for the peer, or says that time is up.
fn wait(endpoint: &mut dyn Endpoint, deadline: Instant) -> anyhow::Result<()> {
    check_time(deadline)?;
    Ok(endpoint.wait(Some(Duration::from_millis(100)))?)
}

fn check_time(deadline: Instant) -> anyhow::Result<()> {
    ensure!(Instant::now() < deadline, "not finished in {BUDGETS_MAX} times the time that it was given");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn samples(times: &[(u32, u64, u64)]) -> Vec<Sample> {
        let us = Duration::from_micros;
        times
            .iter()
            .map(|&(size, inline, direct)| Sample { size, inline: us(inline), direct: us(direct) })
            .collect()
    }

    // [PROV-40]
    #[test]
    fn crossover_of_single_crossing_is_first_size_direct_wins() {
        let times = [(512, 5, 9), (1024, 6, 9), (2048, 8, 9), (4096, 12, 10), (8192, 20, 11), (9000, 22, 11)];
        assert_eq!(crossover(&samples(&times), 9000, REGISTERING_HANDICAP), 4096);
        assert_eq!(crossover(&samples(&times[..4]), 4096, REGISTERING_HANDICAP), 4096);
    }

    // [PROV-71]
    #[test]
    fn crossover_of_methods_as_good_as_equal_is_left_to_inline() {
        assert_eq!(
            crossover(&samples(&[(512, 50, 50), (1024, 60, 58), (2048, 70, 50)]), 2048, REGISTERING_HANDICAP),
            2048
        );
        assert_eq!(crossover(&samples(&[(512, 100, 95), (1024, 100, 95)]), 1024, REGISTERING_HANDICAP), 512);
        assert_eq!(crossover(&samples(&[(512, 100, 96), (1024, 100, 96)]), 1024, REGISTERING_HANDICAP), 1025);
    }

    #[test]
    fn crossover_of_direct_that_never_loses_is_the_smallest_size() {
        assert_eq!(
            crossover(&samples(&[(512, 5, 4), (1024, 6, 5), (2048, 7, 5)]), 2048, REGISTERING_HANDICAP),
            512
        );
        assert_eq!(crossover(&samples(&[(512, 5, 4)]), 512, REGISTERING_HANDICAP), 512);
    }

    // [PROV-70]
    #[test]
    fn crossover_of_inline_that_always_wins_is_past_its_limit() {
        assert_eq!(
            crossover(&samples(&[(512, 5, 6), (1024, 6, 7), (2048, 7, 9)]), 2048, REGISTERING_HANDICAP),
            2049
        );
        assert_eq!(crossover(&[], 100, REGISTERING_HANDICAP), 101);
        assert_eq!(crossover(&[], u32::MAX, REGISTERING_HANDICAP), u32::MAX);
    }

    // [PROV-40]
    #[test]
    fn crossover_of_noisy_times_prefers_clear_wins() {
        // Direct wins from 1024 on, but for a loss within noise at 4096.
        let times = [(512, 50, 60), (1024, 60, 50), (2048, 80, 50), (4096, 100, 101), (8192, 200, 100)];
        assert_eq!(crossover(&samples(&times), 8192, REGISTERING_HANDICAP), 1024);
        // One lucky small size does not outweigh two clear losses.
        let times = [(512, 60, 59), (1024, 60, 80), (2048, 80, 95), (4096, 120, 110)];
        assert_eq!(crossover(&samples(&times), 4096, REGISTERING_HANDICAP), 4096);
    }

    #[test]
    fn crossover_of_zero_times_is_defined() {
        assert_eq!(crossover(&samples(&[(512, 0, 0), (1024, 0, 0)]), 1024, REGISTERING_HANDICAP), 512);
    }

    #[test]
    fn sizes_end_with_the_inline_limit() {
        assert_eq!(sizes(4096), [512, 1024, 2048, 4096]);
        assert_eq!(sizes(4097), [512, 1024, 2048, 4096, 4097]);
        assert_eq!(sizes(512), [512]);
        assert_eq!(sizes(100), [100]);
        assert_eq!(sizes(0), [0; 0]);
        assert_eq!(sizes(u32::MAX).last(), Some(&SIZE_MAX));
    }

    #[test]
    fn request_decodes_as_encoded_and_refuses_anything_else() {
        let range = [7 << 40, 9, 512];
        for (write, len, ranges) in
            [(false, 512, &[][..]), (false, 512, &[range]), (true, 0, &[]), (true, 1024, &[range, range])]
        {
            let bytes = encode_request(write, len, ranges);
            let (wrote, request) = decode_request(&bytes).unwrap();
            assert_eq!((wrote, request.len, usize::from(request.segment_count)), (write, len, ranges.len()));
            assert!(decode_request(&bytes[1..]).is_err());
        }
        assert!(decode_request(&encode_request(false, SIZE_MAX + 1, &[])).is_err());
        assert!(decode_request(&[9; size_of::<RequestHead>()]).is_err());
        assert!(decode_request(&[]).is_err());
    }
}
