//! The timing side of a calibration: operations by each method, as a client library would do them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dafs_proto::transport::{
    Access, Address, ConnectParams, Domain, Endpoint, HeapMemory, MemoryRef, Received, Region, RemoteRange,
    Span,
};
use dafs_proto::wire::{REMOTE_RANGE_SIZE, WireRange, encode_segments};

use super::{
    Apart, Calibration, List, PIECES, REGISTERING_HANDICAP, SIZE_MAX, Sample, Samples, crossover, crossovers,
    encode_request, sizes, wait,
};

/// What timing noncontiguous transfers may take beyond the rest.
const GATHER_BUDGET: Duration = Duration::from_millis(25);
/// Bytes of each of their pieces.
const GATHER_SIZES: [u32; 6] = [64, 256, 1024, 2048, 4096, 8192];
const ROUNDS_MIN: u32 = 9;
const ROUNDS_MAX: u32 = 301;

/// How a transfer is done.
#[derive(Clone, Copy)]
enum Way {
    /// Inline; where that is impossible, by way of registered memory. Pieces are copied to or from one contiguous transfer.
    Packed,
    /// RDMA of each piece, which is registered already.
    Registered,
    /// The same, registered for the operation.
    Unregistered,
}

const WAYS: [Way; 3] = [Way::Packed, Way::Registered, Way::Unregistered];

/// Times by size, direction (reads, writes) and way.
type Times = Vec<[[Vec<Duration>; WAYS.len()]; 2]>;

/// Pieces of memory of one size, with gaps as large between them.
#[derive(Clone, Copy)]
struct Pieces {
    size: u32,
    count: usize,
}

impl Pieces {
    /// Bytes of all of them.
    fn total(self) -> usize {
        self.size as usize * self.count
    }

    /// Bytes from the first to the last.
    fn reach(self) -> usize {
        self.size as usize * (2 * self.count - 1)
    }

    fn places(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| 2 * index * self.size as usize)
    }

    fn spans(self, memory: Span<'_>) -> List<Span<'_>> {
        self.places().filter_map(|place| memory.slice(place, self.size as usize)).collect()
    }

    fn ranges(self, memory: &RemoteRange) -> List<WireRange> {
        let range = |place| [memory.key.0, memory.offset + place as u64, u64::from(self.size)];
        self.places().map(range).collect()
    }

    /// Copies between pieces of memory and something contiguous.
    fn copy(self, memory: Span<'_>, contiguous: Span<'_>, pack: bool) {
        let pieces = self.spans(memory);
        if pack {
            contiguous.gather(pieces)
        } else {
            contiguous.scatter(pieces)
        };
    }
}

/// Connects and times until `until`, but at least [`ROUNDS_MIN`] rounds; an error when `deadline` passes first.
///
/// What the serving side may still reach goes to `kept`, for its owner to drop when that side has ended: after an error it may be in
/// the middle of RDMA, which would be refused, and told as a fault.
pub(super) fn run(
    domain: &dyn Domain,
    address: &Address,
    params: &ConnectParams,
    (until, deadline): (Instant, Instant),
    apart: Option<Apart>,
    kept: &mut Vec<Region>,
) -> anyhow::Result<Timed> {
    let timeout = deadline.saturating_duration_since(Instant::now());
    let endpoint = domain.connect(address, params, timeout)?;
    let mut client = Client::new(domain, endpoint, deadline)?;
    let held = apart.and_then(|apart| apart.time());
    let timed = client.time(until);
    drop(held);
    let Client { mut endpoint, registered, lent, .. } = client;
    endpoint.close();
    kept.push(registered);
    kept.extend(lent);
    timed
}

/// All times.
pub(super) struct Timed {
    sizes: Vec<u32>,
    times: Times,
    /// Of noncontiguous transfers; empty where they were not timed.
    gather: Times,
}

impl Timed {
    pub(super) fn evaluate(self, inline_max: u32, begin: Instant) -> Calibration {
        let rounds = self.times.first().map_or(0, |[[inline, ..], _]| inline.len());
        let samples = samples_of(&self.sizes, self.times);
        let gather_samples = samples_of(&GATHER_SIZES, self.gather);
        let from = |samples: &Vec<Sample>| {
            let size_max = samples.last().map_or(0, |sample| sample.size);
            let from = crossover(samples, size_max, REGISTERING_HANDICAP);
            // What loses at every size measured is not taken for larger ones unseen.
            if from <= size_max { from } else { u32::MAX }
        };
        // Of memory that is registered already, then of such that is not; reads, then writes.
        let handicaps = [0.0, REGISTERING_HANDICAP, 0.0, REGISTERING_HANDICAP];
        let thresholds = std::array::from_fn(|kind| crossover(&samples[kind], inline_max, handicaps[kind]));
        Calibration {
            crossovers: crossovers(thresholds),
            gather: (!gather_samples[0].is_empty()).then(|| crossovers(gather_samples.each_ref().map(from))),
            samples,
            gather_samples,
            rounds,
            duration: begin.elapsed(),
        }
    }
}

fn samples_of(sizes: &[u32], times: Times) -> Samples {
    let mut samples = Samples::default();
    for (&size, directions) in sizes.iter().zip(times) {
        for (direction, ways) in directions.into_iter().enumerate() {
            let [inline, registered, unregistered] = ways.map(lower_quartile);
            samples[2 * direction].push(Sample { size, inline, direct: registered });
            samples[2 * direction + 1].push(Sample { size, inline, direct: unregistered });
        }
    }
    samples
}

/// What other programs add never makes a time shorter: of disturbed times the shorter ones tell more than the median.
fn lower_quartile(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 4).copied().unwrap_or_default()
}

struct Client<'a> {
    domain: &'a dyn Domain,
    endpoint: Box<dyn Endpoint>,
    deadline: Instant,
    inline_max: u32,
    /// Memory that the provider likes best, registered for the whole run.
    registered: Region,
    /// Memory that is registered for the operation in progress.
    lent: Option<Region>,
    /// Memory as an application has it.
    ordinary: MemoryRef,
}

impl<'a> Client<'a> {
    fn new(domain: &'a dyn Domain, endpoint: Box<dyn Endpoint>, deadline: Instant) -> anyhow::Result<Self> {
        let len = SIZE_MAX as usize;
        let registered = domain.register(MemoryRef::new(domain.allocate(len)?), Access::all())?;
        let ordinary = MemoryRef::new(Arc::new(HeapMemory::allocate(len).context("no memory")?));
        let capabilities = endpoint.capabilities();
        let inline_max = capabilities.send_payload_max.min(capabilities.recv_payload_max);
        Ok(Self { domain, endpoint, deadline, inline_max, registered, lent: None, ordinary })
    }

    fn time(&mut self, until: Instant) -> anyhow::Result<Timed> {
        let sizes = sizes(self.inline_max);
        let times = self.time_each(&sizes, 1, until)?;
        let until = until.max(Instant::now()) + GATHER_BUDGET;
        let describes_pieces = self.inline_max as usize >= PIECES * REMOTE_RANGE_SIZE;
        let gather =
            if describes_pieces { self.time_each(&GATHER_SIZES, PIECES, until)? } else { Vec::new() };
        Ok(Timed { sizes, times, gather })
    }

    /// Times transfers of so many pieces, of each size, in each direction and way.
    fn time_each(&mut self, sizes: &[u32], count: usize, until: Instant) -> anyhow::Result<Times> {
        let mut times: Times = sizes.iter().map(|_| Default::default()).collect();
        let began = Instant::now();
        // The first round touches memory and code for the first time.
        for round in 0..=ROUNDS_MAX {
            if round > ROUNDS_MIN && Instant::now() >= until {
                break;
            }
            // Where gathering would take too long, the crossovers are kept, which are timed already.
            let is_late = || Instant::now() + 2 * ROUNDS_MIN * began.elapsed() > self.deadline;
            if round == 1 && count > 1 && is_late() {
                return Ok(Vec::new());
            }
            // Methods take turns, so that a disturbance meets all of them.
            for (&size, times) in sizes.iter().zip(&mut times) {
                for (write, times) in [false, true].into_iter().zip(times) {
                    for (way, times) in WAYS.into_iter().zip(times) {
                        let begin = Instant::now();
                        self.transfer(way, write, Pieces { size, count })?;
                        if round > 0 {
                            times.push(begin.elapsed());
                        }
                    }
                }
            }
        }
        Ok(times)
    }

    fn transfer(&mut self, way: Way, write: bool, pieces: Pieces) -> anyhow::Result<()> {
        match way {
            Way::Packed => self.pack(write, pieces),
            Way::Registered => self.direct(write, &pieces.ranges(&self.registered.range())),
            Way::Unregistered if self.endpoint.capabilities().registers_ordinary_memory => {
                let access = if write { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
                // One registration for all: pieces are nearly always parts of one array.
                let memory = self.ordinary.slice(0, pieces.reach()).context("pieces beyond memory")?;
                let range = self.lent.insert(self.domain.register(memory, access)?).range();
                self.direct(write, &pieces.ranges(&range))?;
                self.lent = None;
                Ok(())
            }
            // By way of registered memory, or as it is packed, where it must be copied anyway.
            Way::Unregistered if pieces.count == 1 => self.bounce(write, pieces),
            Way::Unregistered => self.pack(write, pieces),
        }
    }

    fn pack(&mut self, write: bool, pieces: Pieces) -> anyhow::Result<()> {
        let (total, memory) = (pieces.total(), self.ordinary.clone());
        if total > self.inline_max as usize {
            return self.bounce(write, pieces);
        }
        let request = encode_request(write, u32::try_from(total)?, &[]);
        if !write {
            self.endpoint.send_copy(&request, &[])?;
            ensure!(self.reply()? as usize == total, "a reply of another size");
            pieces.copy(memory.span(), self.endpoint.payload(), false);
            self.endpoint.recv_done();
            return Ok(());
        }
        if self.endpoint.prefers_gathered(total)? {
            self.endpoint.send_gathered(&request, &pieces.spans(memory.span()))?;
        } else {
            let slot = self.endpoint.reserve(total)?;
            pieces.copy(memory.span(), self.endpoint.slot_payload(&slot), true);
            self.endpoint.send(slot, &request, total)?;
        }
        self.reply().map(drop)
    }

    /// Goes by way of registered memory.
    fn bounce(&mut self, write: bool, pieces: Pieces) -> anyhow::Result<()> {
        let (memory, bounce) = (self.ordinary.clone(), self.registered.memory().clone());
        if write {
            pieces.copy(memory.span(), bounce.span(), true);
        }
        let whole = Pieces { size: u32::try_from(pieces.total())?, count: 1 };
        self.direct(write, &whole.ranges(&self.registered.range()))?;
        if !write {
            pieces.copy(memory.span(), bounce.span(), false);
        }
        Ok(())
    }

    fn direct(&mut self, write: bool, ranges: &[WireRange]) -> anyhow::Result<()> {
        let len = ranges.iter().map(|[_, _, len]| len).sum::<u64>();
        let mut payload = [0; PIECES * REMOTE_RANGE_SIZE];
        let many = if let [_] = ranges { &[] } else { ranges };
        encode_segments(many, &mut payload);
        let request = encode_request(write, u32::try_from(len)?, ranges);
        self.endpoint.send_copy(&request, &payload[..many.len() * REMOTE_RANGE_SIZE])?;
        self.reply().map(drop)
    }

    /// Sends what was posted and waits for the reply; its payload's length.
    fn reply(&mut self) -> anyhow::Result<u32> {
        self.endpoint.flush()?;
        loop {
            match self.endpoint.recv()? {
                Some(Received::Message { payload_len, .. }) => return Ok(payload_len),
                Some(Received::Immediate { .. }) => bail!("an immediate of somebody else"),
                None => wait(&mut *self.endpoint, self.deadline)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [LIST-11]
    #[test]
    fn pieces_are_gathered_only_from_the_faster_size() {
        // From these sizes on gathering takes half as long as packing, and below them twice as long.
        for [reads, writes] in [[64, 8193], [2048, 8192], [8193, 64]] {
            let of_size = |size: &u32| {
                [reads, writes].map(|quick_from| {
                    let gathered = if *size < quick_from { 20 } else { 5 };
                    [10, gathered, gathered].map(|us| vec![Duration::from_micros(us)])
                })
            };
            let gather = GATHER_SIZES.iter().map(of_size).collect();
            let timed = Timed { sizes: Vec::new(), times: Vec::new(), gather };
            let [reads, writes] = [reads, writes].map(|from| if from > 8192 { u32::MAX } else { from });
            let expected = crossovers([reads, reads, writes, writes]);
            assert_eq!(timed.evaluate(1000, Instant::now()).gather, Some(expected));
        }
        let untimed = Timed { sizes: Vec::new(), times: Vec::new(), gather: Vec::new() };
        assert_eq!(untimed.evaluate(1000, Instant::now()).gather, None);
    }

    #[test]
    fn transfers_of_registered_memory_are_direct_where_the_two_are_as_quick() {
        let us = |us| vec![Duration::from_micros(us); 3];
        let timed = |unregistered| Timed {
            sizes: vec![512, 1024],
            times: vec![[[us(100), us(100), us(unregistered)], [us(100), us(100), us(unregistered)]]; 2],
            gather: Vec::new(),
        };
        // Nothing is registered for nothing: what has to be registered must gain a twentieth.
        for (unregistered, from) in [(100, 1025), (96, 1025), (95, 512)] {
            let found = timed(unregistered).evaluate(1024, Instant::now()).crossovers;
            assert_eq!((found.read_registered, found.write_registered), (512, 512));
            assert_eq!(
                (found.read_unregistered, found.write_unregistered),
                (from, from),
                "{unregistered} us"
            );
        }
    }
}
