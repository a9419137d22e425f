//! The timing side of a calibration: operations by each method, as a client library would do them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    CalibrateError, Calibration, Crossovers, GATHER_SEGMENTS, GATHER_SEGMENTS_U32, GATHER_SIZES, Kind,
    ROUNDS_MAX, ROUNDS_MIN, Request, SIZE_MAX, Sample, crossover, encode_ranges, sizes, wait,
};
use crate::transport::{
    Access, Address, ConnectParams, Domain, Endpoint, HeapMemory, MemoryRef, Received, Region, RegionError,
    RemoteRange, Span,
};

/// What timing noncontiguous transfers may take beyond the rest.
const GATHER_BUDGET: Duration = Duration::from_millis(25);

/// What is timed at each size.
const METHODS: [Method; 6] = [
    Method { write: false, way: Way::Inline },
    Method { write: false, way: Way::Registered },
    Method { write: false, way: Way::Unregistered },
    Method { write: true, way: Way::Inline },
    Method { write: true, way: Way::Registered },
    Method { write: true, way: Way::Unregistered },
];

#[derive(Clone, Copy, PartialEq, Eq)]
struct Method {
    write: bool,
    way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Inline,
    Registered,
    Unregistered,
}

/// Connects and times until `until`, but at least [`ROUNDS_MIN`] rounds; an error when `deadline` passes first.
///
/// What the serving side may still reach goes to `kept`, for its owner to drop when that side has ended: after an error it may be in
/// the middle of RDMA, which would be refused, and told as a fault.
pub(super) fn run(
    domain: &dyn Domain,
    address: &Address,
    params: &ConnectParams,
    until: Instant,
    deadline: Instant,
    kept: &mut Vec<Region>,
) -> Result<Timed, CalibrateError> {
    let timeout = deadline.saturating_duration_since(Instant::now());
    let endpoint = domain.connect(address, params, timeout)?;
    let mut client = Client::new(domain, endpoint, deadline)?;
    let timed = time(&mut client, until);
    let Client { mut endpoint, registered, lent, .. } = client;
    endpoint.close();
    kept.push(registered);
    kept.extend(lent);
    timed
}

fn time(client: &mut Client<'_>, until: Instant) -> Result<Timed, CalibrateError> {
    let capabilities = client.endpoint.capabilities();
    let inline_max = capabilities.send_payload_max.min(capabilities.recv_payload_max);
    let sizes = sizes(inline_max);
    let mut times: Vec<[Vec<Duration>; METHODS.len()]> = sizes.iter().map(|_| Default::default()).collect();
    // The first round touches memory and code for the first time.
    client.round(&sizes, |_, _, _| {})?;
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS_MIN && Instant::now() >= until {
            break;
        }
        // Methods take turns, so that a disturbance meets all of them.
        client.round(&sizes, |size, method, time| times[size][method].push(time))?;
    }
    let gather = client.time_gathering(inline_max, until)?;
    Ok(Timed { sizes, times, gather })
}

/// All times, by size and method.
pub(super) struct Timed {
    sizes: Vec<u32>,
    times: Vec<[Vec<Duration>; METHODS.len()]>,
    /// By size, direction and way of noncontiguous transfers; empty where they were not timed.
    gather: Vec<[[Vec<Duration>; WAYS.len()]; 2]>,
}

impl Timed {
    pub(super) fn evaluate(mut self, inline_max: u32, begin: Instant) -> Calibration {
        let rounds = self.times.first().map_or(0, |methods| methods[0].len());
        let medians: Vec<[Duration; METHODS.len()]> = self
            .times
            .iter_mut()
            .map(|methods| std::array::from_fn(|method| median(&mut methods[method])))
            .collect();
        let samples = |inline: usize, direct: usize| -> Vec<Sample> {
            let sample = |(&size, times): (&u32, &[Duration; 6])| Sample {
                size,
                inline: times[inline],
                direct: times[direct],
            };
            self.sizes.iter().zip(&medians).map(sample).collect()
        };
        let (read_registered, read_unregistered) = (samples(0, 1), samples(0, 2));
        let (write_registered, write_unregistered) = (samples(3, 4), samples(3, 5));
        let crossovers = Crossovers {
            read_registered_bytes: crossover(&read_registered, inline_max),
            read_unregistered_bytes: crossover(&read_unregistered, inline_max),
            write_registered_bytes: crossover(&write_registered, inline_max),
            write_unregistered_bytes: crossover(&write_unregistered, inline_max),
        };
        let samples = (read_registered, read_unregistered, write_registered, write_unregistered);
        let (read_registered, read_unregistered, write_registered, write_unregistered) = samples;
        let gather_samples = self.gather_samples();
        let gather = gather_samples.iter().all(|samples| !samples.is_empty()).then(|| {
            let from = |index: usize| {
                let samples: &[Sample] = &gather_samples[index];
                let size_max = samples.last().map_or(0, |sample| sample.size);
                // What loses at every size measured is not taken for larger ones unseen.
                Some(crossover(samples, size_max)).filter(|from| *from <= size_max).unwrap_or(u32::MAX)
            };
            Crossovers {
                read_registered_bytes: from(0),
                read_unregistered_bytes: from(1),
                write_registered_bytes: from(2),
                write_unregistered_bytes: from(3),
            }
        });
        let duration = begin.elapsed();
        Calibration {
            gather,
            gather_samples,
            crossovers,
            read_registered,
            read_unregistered,
            write_registered,
            write_unregistered,
            rounds,
            duration,
        }
    }
}

impl Timed {
    /// Packing against gathering: reads, registered and not, then writes.
    fn gather_samples(&mut self) -> [Vec<Sample>; 4] {
        let mut samples: [Vec<Sample>; 4] = Default::default();
        for (size, directions) in GATHER_SIZES.iter().zip(&mut self.gather) {
            for (direction, ways) in directions.iter_mut().enumerate() {
                let [pack, registered, unregistered] = ways.each_mut().map(|times| median(times));
                for (place, direct) in [registered, unregistered].into_iter().enumerate() {
                    samples[2 * direction + place].push(Sample { size: *size, inline: pack, direct });
                }
            }
        }
        samples
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// How a noncontiguous transfer is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GatherWay {
    /// Copied to or from one contiguous transfer.
    Pack,
    /// RDMA of each segment, which is registered already.
    Registered,
    /// The same, registered for the operation.
    Unregistered,
}

const WAYS: [GatherWay; 3] = [GatherWay::Pack, GatherWay::Registered, GatherWay::Unregistered];

struct Client<'a> {
    domain: &'a dyn Domain,
    endpoint: Box<dyn Endpoint>,
    deadline: Instant,
    /// Memory that the provider likes best, registered for the whole run.
    registered: Region,
    /// Memory that is registered for the operation in progress.
    lent: Option<Region>,
    /// Memory as an application has it.
    ordinary: MemoryRef,
}

impl<'a> Client<'a> {
    fn new(
        domain: &'a dyn Domain,
        endpoint: Box<dyn Endpoint>,
        deadline: Instant,
    ) -> Result<Self, CalibrateError> {
        let len = SIZE_MAX as usize;
        let registered = domain.register(MemoryRef::new(domain.allocate(len)?), Access::all())?;
        let heap = HeapMemory::allocate(len).ok_or(RegionError::System {
            what: "allocate memory",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        let ordinary = MemoryRef::new(Arc::new(heap));
        Ok(Self { domain, endpoint, deadline, registered, lent: None, ordinary })
    }

    fn round(
        &mut self,
        sizes: &[u32],
        mut record: impl FnMut(usize, usize, Duration),
    ) -> Result<(), CalibrateError> {
        for (size_index, &size) in sizes.iter().enumerate() {
            for (method_index, &method) in METHODS.iter().enumerate() {
                let begin = Instant::now();
                match method.way {
                    Way::Inline if method.write => self.write_inline(size)?,
                    Way::Inline => self.read_inline(size)?,
                    Way::Registered => self.direct(method.write, self.registered_range(size)?)?,
                    Way::Unregistered => self.unregistered(method.write, size)?,
                }
                record(size_index, method_index, begin.elapsed());
            }
        }
        Ok(())
    }

    fn read_inline(&mut self, size: u32) -> Result<(), CalibrateError> {
        self.endpoint.send_copy(&Request { kind: Kind::ReadInline, size, range: None }.encode(), &[])?;
        let payload_len = self.answer()?;
        let target = self.ordinary.span().slice(0, payload_len as usize);
        match target {
            Some(target) if payload_len == size => target.copy_from(self.endpoint.payload()),
            _ => return Err(CalibrateError::Unexpected("size of an answer")),
        }
        self.endpoint.recv_done();
        Ok(())
    }

    fn write_inline(&mut self, size: u32) -> Result<(), CalibrateError> {
        let request = Request { kind: Kind::WriteInline, size, range: None };
        if self.endpoint.prefers_gathered(size as usize)? {
            let source = self.ordinary.span().slice(0, size as usize);
            let source = source.ok_or(CalibrateError::Unexpected("size"))?;
            self.endpoint.send_gathered(&request.encode(), &[source])?;
            self.answer()?;
            return Ok(());
        }
        let slot = self.endpoint.reserve(size as usize)?;
        let both = (
            self.endpoint.slot_payload(&slot).slice(0, size as usize),
            self.ordinary.span().slice(0, size as usize),
        );
        let (Some(target), Some(source)) = both else { return Err(CalibrateError::Unexpected("slot size")) };
        target.copy_from(source);
        self.endpoint.send(slot, &request.encode(), size as usize)?;
        self.answer()?;
        Ok(())
    }

    fn direct(&mut self, write: bool, range: RemoteRange) -> Result<(), CalibrateError> {
        let kind = if write { Kind::WriteDirect } else { Kind::ReadDirect };
        let size = u32::try_from(range.len).map_err(|_| CalibrateError::Unexpected("size"))?;
        self.endpoint.send_copy(&Request { kind, size, range: Some(range) }.encode(), &[])?;
        self.answer()?;
        Ok(())
    }

    /// Registers the application's memory for this operation, or goes by way of registered memory where that is impossible.
    fn unregistered(&mut self, write: bool, size: u32) -> Result<(), CalibrateError> {
        let memory = self.ordinary.slice(0, size as usize).ok_or(CalibrateError::Unexpected("size"))?;
        let access = if write { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        if self.endpoint.capabilities().registers_ordinary_memory {
            let range = self.lend(memory, access)?;
            self.direct(write, range)?;
            self.lent = None;
            return Ok(());
        }
        let bounce =
            self.registered.memory().slice(0, size as usize).ok_or(CalibrateError::Unexpected("size"))?;
        if write {
            bounce.span().copy_from(memory.span());
        }
        self.direct(write, self.registered_range(size)?)?;
        if !write {
            memory.span().copy_from(bounce.span());
        }
        Ok(())
    }

    /// Times packing against gathering, for half as long again; nothing where messages are too small.
    fn time_gathering(
        &mut self,
        inline_max: u32,
        until: Instant,
    ) -> Result<Vec<[[Vec<Duration>; WAYS.len()]; 2]>, CalibrateError> {
        if (inline_max as usize) < GATHER_SEGMENTS * 16 {
            return Ok(Vec::new());
        }
        let until = until.max(Instant::now()) + GATHER_BUDGET;
        let mut times: Vec<[[Vec<Duration>; WAYS.len()]; 2]> =
            GATHER_SIZES.iter().map(|_| Default::default()).collect();
        let began = Instant::now();
        // The first round touches memory and code for the first time.
        for round in 0..=ROUNDS_MAX {
            if round > ROUNDS_MIN && Instant::now() >= until {
                break;
            }
            // Where that would take too long, the crossovers are kept, which are timed already.
            let rounds_left = u32::try_from(ROUNDS_MIN).unwrap_or(u32::MAX);
            if round == 1 && Instant::now() + 2 * rounds_left * began.elapsed() > self.deadline {
                return Ok(Vec::new());
            }
            for (size, times) in GATHER_SIZES.into_iter().zip(&mut times) {
                for (write, times) in [false, true].into_iter().zip(times.iter_mut()) {
                    for (way, times) in WAYS.into_iter().zip(times.iter_mut()) {
                        let begin = Instant::now();
                        match way {
                            GatherWay::Pack => self.pack(write, size, inline_max)?,
                            GatherWay::Registered => {
                                self.gather(write, size, &self.registered_ranges(size)?)?
                            }
                            GatherWay::Unregistered => self.gather_unregistered(write, size, inline_max)?,
                        }
                        if round > 0 {
                            times.push(begin.elapsed());
                        }
                    }
                }
            }
        }
        Ok(times)
    }

    fn pack(&mut self, write: bool, size: u32, inline_max: u32) -> Result<(), CalibrateError> {
        let total = size * GATHER_SEGMENTS_U32;
        if total <= inline_max {
            let segments = segments(&self.ordinary, size);
            if !write {
                self.endpoint
                    .send_copy(&Request { kind: Kind::ReadInline, size: total, range: None }.encode(), &[])?;
                self.answer()?;
                copy_segments(&segments, self.endpoint.payload(), false);
                self.endpoint.recv_done();
                return Ok(());
            }
            let request = Request { kind: Kind::WriteInline, size: total, range: None };
            if self.endpoint.prefers_gathered(total as usize)? {
                let spans: Vec<_> = segments.iter().map(MemoryRef::span).collect();
                self.endpoint.send_gathered(&request.encode(), &spans)?;
            } else {
                let slot = self.endpoint.reserve(total as usize)?;
                copy_segments(&segments, self.endpoint.slot_payload(&slot), true);
                self.endpoint.send(slot, &request.encode(), total as usize)?;
            }
            self.answer()?;
            return Ok(());
        }
        let (segments, bounce) = (segments(&self.ordinary, size), self.registered.memory().clone());
        if write {
            copy_segments(&segments, bounce.span(), true);
        }
        self.direct(write, self.registered_range(total)?)?;
        if !write {
            copy_segments(&segments, bounce.span(), false);
        }
        Ok(())
    }

    fn gather(&mut self, write: bool, size: u32, ranges: &[RemoteRange]) -> Result<(), CalibrateError> {
        let kind = if write { Kind::WriteGather } else { Kind::ReadGather };
        let request = Request { kind, size: size * GATHER_SEGMENTS_U32, range: None };
        self.endpoint.send_copy(&request.encode(), &encode_ranges(ranges))?;
        self.answer()?;
        Ok(())
    }

    /// Registers each segment, or packs where that is impossible.
    fn gather_unregistered(&mut self, write: bool, size: u32, inline_max: u32) -> Result<(), CalibrateError> {
        if !self.endpoint.capabilities().registers_ordinary_memory {
            return self.pack(write, size, inline_max);
        }
        let access = if write { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        // One registration for all: pieces are nearly always parts of one array.
        let span = 2 * size as usize * GATHER_SEGMENTS;
        let memory = self.ordinary.slice(0, span).ok_or(CalibrateError::Unexpected("size"))?;
        let range = self.lend(memory, access)?;
        self.gather(write, size, &pieces_of(&range, size)?)?;
        self.lent = None;
        Ok(())
    }

    /// Registers memory for one operation.
    fn lend(&mut self, memory: MemoryRef, access: Access) -> Result<RemoteRange, CalibrateError> {
        Ok(self.lent.insert(self.domain.register(memory, access)?).range())
    }

    fn registered_ranges(&self, size: u32) -> Result<Vec<RemoteRange>, CalibrateError> {
        pieces_of(&self.registered.range(), size)
    }

    fn registered_range(&self, size: u32) -> Result<RemoteRange, CalibrateError> {
        self.registered.range().slice(0, u64::from(size)).ok_or(CalibrateError::Unexpected("size"))
    }

    /// Sends what was posted and waits for the answer; its payload's length.
    fn answer(&mut self) -> Result<u32, CalibrateError> {
        self.endpoint.flush()?;
        loop {
            match self.endpoint.recv()? {
                Some(Received::Message { payload_len, .. }) => return Ok(payload_len),
                Some(Received::Immediate { .. }) => return Err(CalibrateError::Unexpected("immediate")),
                None => wait(&mut *self.endpoint, self.deadline)?,
            }
        }
    }
}

/// Pieces of `size` bytes with gaps as large between them.
fn segments(memory: &MemoryRef, size: u32) -> Vec<MemoryRef> {
    let size = size as usize;
    (0..GATHER_SEGMENTS).filter_map(|index| memory.slice(2 * index * size, size)).collect()
}

/// Copies between segments and contiguous memory.
fn copy_segments(segments: &[MemoryRef], contiguous: Span<'_>, pack: bool) {
    let mut at = 0;
    for segment in segments {
        let segment = segment.span();
        if let Some(place) = contiguous.slice(at, segment.len()) {
            if pack { place.copy_from(segment) } else { segment.copy_from(place) }
        }
        at += segment.len();
    }
}

/// Ranges of `size` bytes with gaps as large between them.
fn pieces_of(range: &RemoteRange, size: u32) -> Result<Vec<RemoteRange>, CalibrateError> {
    let size = u64::from(size);
    let piece = |index: u64| range.slice(2 * index * size, size).ok_or(CalibrateError::Unexpected("size"));
    (0..GATHER_SEGMENTS as u64).map(piece).collect()
}
