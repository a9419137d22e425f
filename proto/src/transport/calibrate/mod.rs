//! Where Direct begins to beat Inline, measured on the machine and transport at hand.
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
//! Noncontiguous memory is timed as well: 64 segments that are packed into one contiguous transfer by the client,
//! against RDMA that gathers or scatters them ([`Calibration::gather`]).
//!
//! Direct is timed twice: with memory registered before, and with registration paid in every operation (where a provider cannot
//! register ordinary memory, that is a copy by
//! way of registered memory). [`crossover`], a pure function, turns the times into sizes.

mod client;
mod file;
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::{
    Address, ConnectError, ConnectParams, Domain, Endpoint, PostError, Provider, RegionError, RemoteRange,
    TransportError, WaitPolicy,
};

/// What a calibration may take, by default.
pub const BUDGET: Duration = Duration::from_millis(50);
/// A calibration that has not ended after so many times its budget has failed.
const BUDGETS_MAX: u32 = 40;
/// What Direct must win by to count as faster.
const DIRECT_HANDICAP: f64 = 0.05;
/// The smallest size measured, bytes: below, Inline is a few cache lines.
const SIZE_MIN: u32 = 512;
/// Inline limits are measured up to this, bytes.
const SIZE_MAX: u32 = 1 << 20;
/// Segments of a noncontiguous transfer that is timed.
const GATHER_SEGMENTS: usize = 64;
/// The same, for sizes of 32 bits.
const GATHER_SEGMENTS_U32: u32 = 64;
/// Bytes of each of them.
const GATHER_SIZES: [u32; 6] = [64, 256, 1024, 2048, 4096, 8192];
const ROUNDS_MIN: usize = 5;
const ROUNDS_MAX: usize = 301;

/// Sizes in bytes from which Direct is faster than Inline. One more than the inline limit says that Inline is always faster where
/// it is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossovers {
    /// Reads into memory registered already.
    pub read_registered_bytes: u32,
    /// Reads into memory that is registered for the operation.
    pub read_unregistered_bytes: u32,
    /// Writes from memory registered already.
    pub write_registered_bytes: u32,
    /// Writes from memory that is registered for the operation.
    pub write_unregistered_bytes: u32,
}

impl Crossovers {
    /// Inline up to its limits: right on every transport, if not the fastest. For when nothing could be measured.
    pub fn inline_up_to(read_inline_max: u32, write_inline_max: u32) -> Self {
        let (read, write) = (read_inline_max.saturating_add(1), write_inline_max.saturating_add(1));
        Self {
            read_registered_bytes: read,
            read_unregistered_bytes: read,
            write_registered_bytes: write,
            write_unregistered_bytes: write,
        }
    }

    /// The simulated network has no speed to measure. These make a program use both methods: Direct from a quarter of the inline
    /// limit, or half of it without registration.
    fn simulated(read_inline_max: u32, write_inline_max: u32) -> Self {
        let part = |max: u32, divisor: u32| (max / divisor).max(1);
        Self {
            read_registered_bytes: part(read_inline_max, 4),
            read_unregistered_bytes: part(read_inline_max, 2),
            write_registered_bytes: part(write_inline_max, 4),
            write_unregistered_bytes: part(write_inline_max, 2),
        }
    }
}

/// Median times at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes moved.
    pub size: u32,
    /// By Inline.
    pub inline: Duration,
    /// By Direct.
    pub direct: Duration,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The result.
    pub crossovers: Crossovers,
    /// Reads into registered memory, by size. Like the other samples, empty for the simulated network.
    pub read_registered: Vec<Sample>,
    /// Reads into memory registered for the operation.
    pub read_unregistered: Vec<Sample>,
    /// Writes from registered memory.
    pub write_registered: Vec<Sample>,
    /// Writes from memory registered for the operation.
    pub write_unregistered: Vec<Sample>,
    /// From which segments of memory on gathering pays; `None` where messages are too small to describe them.
    pub gather: Option<Crossovers>,
    /// What that was made of, in the order of the four sizes: `inline` is packing, `direct` gathering.
    pub gather_samples: [Vec<Sample>; 4],
    /// How often each size and method was timed.
    pub rounds: usize,
    /// How long it took.
    pub duration: Duration,
}

/// Why nothing could be measured. The server goes on with [`Crossovers::inline_up_to`].
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// The connection to itself could not be made.
    #[error("calibration: {0}")]
    Connect(#[from] ConnectError),
    /// It broke.
    #[error("calibration: {0}")]
    Transport(#[from] TransportError),
    /// Memory could not be registered.
    #[error("calibration: {0}")]
    Region(#[from] RegionError),
    /// A post was refused.
    #[error("calibration: {0}")]
    Post(#[from] PostError),
    /// The file to read and write could not be made or used.
    #[error("calibration: {what}: {source}")]
    File {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Something else connected, or the two threads disagree.
    #[error("calibration: unexpected {0}")]
    Unexpected(&'static str),
    /// It did not end in time.
    #[error("calibration not finished in {BUDGETS_MAX} times the time that it was given")]
    Timeout,
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
) -> Result<Calibration, CalibrateError> {
    let begin = Instant::now();
    if server.provider() == Provider::Sim {
        let crossovers = Crossovers::simulated(params.recv_payload_max, params.recv_payload_max);
        let gather = Crossovers::simulated(4096, 4096);
        return Ok(Calibration { gather: Some(gather), ..Calibration::of(crossovers, begin) });
    }
    // Two ends that spin on one CPU wait for the scheduler, and nothing is measured in time.
    let one_cpu = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    let wait = if one_cpu { WaitPolicy::Event } else { params.wait };
    let params = &ConnectParams { wait, ..*params };
    let listener = server.listen(address, params)?;
    let deadline = begin + BUDGETS_MAX * budget;
    // Outlives the serving side.
    let mut kept = Vec::new();
    let timed = std::thread::scope(|scope| {
        let (to, kept) = (listener.address().clone(), &mut kept);
        let timing = scope.spawn(move || client::run(&**client, &to, params, begin + budget, deadline, kept));
        let served = server::run(server, listener, deadline, || timing.is_finished());
        match timing.join() {
            // Its end closes the connection, which ends the serving.
            Ok(Ok(timed)) => Ok(timed),
            Ok(Err(error)) => Err(served.err().unwrap_or(error)),
            Err(_) => Err(CalibrateError::Unexpected("panic")),
        }
    })?;
    Ok(timed.evaluate(params.recv_payload_max, begin))
}

/// The size from which Direct pays, out of samples in ascending order of size: a step at one of the sizes, or at `inline_max + 1`,
/// that makes the total
/// of what is lost by taking the slower method, relative to the faster, least; of equal steps the first.
///
/// Direct counts as a twentieth slower than it was measured: where the two are as good as equal, Inline is taken, which ties up no
/// registered memory, and noise decides nothing.
///
/// Where the methods cross once this is the smallest size from which Direct wins at that and all larger ones. Where noise makes
/// them cross more than once, a clear
/// win outweighs a slight loss.
pub fn crossover(samples: &[Sample], inline_max: u32) -> u32 {
    let loss = |slower: Duration, faster: Duration| {
        slower.saturating_sub(faster).as_secs_f64() / faster.as_secs_f64().max(f64::MIN_POSITIVE)
    };
    let direct = |sample: &Sample| sample.direct.mul_f64(1.0 + DIRECT_HANDICAP);
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

impl Calibration {
    fn of(crossovers: Crossovers, begin: Instant) -> Self {
        Self {
            crossovers,
            read_registered: Vec::new(),
            read_unregistered: Vec::new(),
            write_registered: Vec::new(),
            write_unregistered: Vec::new(),
            gather: None,
            gather_samples: Default::default(),
            rounds: 0,
            duration: begin.elapsed(),
        }
    }
}

/// One kind of operation, as it is asked for in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ReadInline,
    ReadDirect,
    WriteInline,
    WriteDirect,
    /// Direct, of as many ranges as the payload holds.
    ReadGather,
    WriteGather,
}

/// A request of the calibration: the head of a message. Both ends are this process, so that its layout concerns nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    kind: Kind,
    size: u32,
    /// For Direct.
    range: Option<RemoteRange>,
}

impl Request {
    const LEN: usize = 21;

    fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.kind as u8;
        bytes[1..5].copy_from_slice(&self.size.to_le_bytes());
        if let Some(range) = self.range {
            bytes[5..13].copy_from_slice(&range.key.0.to_le_bytes());
            bytes[13..21].copy_from_slice(&range.offset.to_le_bytes());
        }
        bytes
    }

    /// `None` for anything that [`Request::encode`] does not make: somebody else has connected.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let kind = match bytes[0] {
            0 => Kind::ReadInline,
            1 => Kind::ReadDirect,
            2 => Kind::WriteInline,
            3 => Kind::WriteDirect,
            4 => Kind::ReadGather,
            5 => Kind::WriteGather,
            _ => return None,
        };
        let size = u32::from_le_bytes(bytes.get(1..5)?.try_into().ok()?);
        let range = match kind {
            Kind::ReadInline | Kind::WriteInline | Kind::ReadGather | Kind::WriteGather => None,
            Kind::ReadDirect | Kind::WriteDirect => Some(RemoteRange {
                key: super::RegionKey(number(5)?),
                offset: number(13)?,
                len: u64::from(size),
            }),
        };
        (size <= SIZE_MAX).then_some(Self { kind, size, range })
    }
}

/// Ranges of equal length, as the payload of a request.
fn encode_ranges(ranges: &[RemoteRange]) -> Vec<u8> {
    ranges.iter().flat_map(|range| [range.key.0, range.offset]).flat_map(u64::to_le_bytes).collect()
}

/// The ranges of a payload, which share `size` bytes equally.
fn decode_ranges(payload: &[u8], size: u32) -> Option<Vec<RemoteRange>> {
    let (numbers, rest) = payload.as_chunks::<8>();
    let (pairs, odd) = numbers.as_chunks::<2>();
    let len = u64::from(size) / (pairs.len().max(1) as u64);
    let range = |[key, offset]: &[[u8; 8]; 2]| RemoteRange {
        key: super::RegionKey(u64::from_le_bytes(*key)),
        offset: u64::from_le_bytes(*offset),
        len,
    };
    let is_good = rest.is_empty() && odd.is_empty() && pairs.len() <= GATHER_SEGMENTS;
    is_good.then(|| pairs.iter().map(range).collect())
}

/// Waits for the peer, or says that time is up.
fn wait(endpoint: &mut dyn Endpoint, deadline: Instant) -> Result<(), CalibrateError> {
    if Instant::now() >= deadline {
        return Err(CalibrateError::Timeout);
    }
    Ok(endpoint.wait(Some(Duration::from_millis(100)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(times: &[(u32, u64, u64)]) -> Vec<Sample> {
        let us = Duration::from_micros;
        times
            .iter()
            .map(|&(size, inline, direct)| Sample { size, inline: us(inline), direct: us(direct) })
            .collect()
    }

    #[test]
    fn crossover_of_methods_that_cross_once_is_the_first_size_that_direct_wins() {
        let times = [(512, 5, 9), (1024, 6, 9), (2048, 8, 9), (4096, 12, 10), (8192, 20, 11), (9000, 22, 11)];
        assert_eq!(crossover(&samples(&times), 9000), 4096);
        assert_eq!(crossover(&samples(&times[..4]), 4096), 4096);
    }

    #[test]
    fn crossover_of_methods_as_good_as_equal_is_left_to_inline() {
        assert_eq!(crossover(&samples(&[(512, 50, 50), (1024, 60, 58), (2048, 70, 50)]), 2048), 2048);
        assert_eq!(crossover(&samples(&[(512, 100, 95), (1024, 100, 95)]), 1024), 512);
        assert_eq!(crossover(&samples(&[(512, 100, 96), (1024, 100, 96)]), 1024), 1025);
    }

    #[test]
    fn crossover_of_direct_that_never_loses_is_the_smallest_size() {
        assert_eq!(crossover(&samples(&[(512, 5, 4), (1024, 6, 5), (2048, 7, 5)]), 2048), 512);
        assert_eq!(crossover(&samples(&[(512, 5, 4)]), 512), 512);
    }

    #[test]
    fn crossover_of_inline_that_always_wins_is_past_its_limit() {
        assert_eq!(crossover(&samples(&[(512, 5, 6), (1024, 6, 7), (2048, 7, 9)]), 2048), 2049);
        assert_eq!(crossover(&[], 100), 101);
        assert_eq!(crossover(&[], u32::MAX), u32::MAX);
    }

    #[test]
    fn crossover_of_noisy_times_prefers_clear_wins() {
        // Direct wins from 1024 on, but for a loss within noise at 4096.
        let times = [(512, 50, 60), (1024, 60, 50), (2048, 80, 50), (4096, 100, 101), (8192, 200, 100)];
        assert_eq!(crossover(&samples(&times), 8192), 1024);
        // One lucky small size does not outweigh two clear losses.
        let times = [(512, 60, 59), (1024, 60, 80), (2048, 80, 95), (4096, 120, 110)];
        assert_eq!(crossover(&samples(&times), 4096), 4096);
    }

    #[test]
    fn crossover_of_zero_times_is_defined() {
        assert_eq!(crossover(&samples(&[(512, 0, 0), (1024, 0, 0)]), 1024), 512);
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
        let range = RemoteRange { key: super::super::RegionKey(7 << 40), offset: 9, len: 512 };
        for request in [
            Request { kind: Kind::ReadInline, size: 512, range: None },
            Request { kind: Kind::ReadDirect, size: 512, range: Some(range) },
            Request { kind: Kind::WriteInline, size: 0, range: None },
            Request { kind: Kind::WriteDirect, size: 512, range: Some(range) },
        ] {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request));
            assert_eq!(Request::decode(&bytes[1..]), None);
        }
        assert_eq!(
            Request::decode(&Request { kind: Kind::ReadInline, size: SIZE_MAX + 1, range: None }.encode()),
            None
        );
        assert_eq!(Request::decode(&[9; Request::LEN]), None);
    }
}
