//! The timing side of a calibration: operations by each method, as a client library would do them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    CalibrateError, Calibration, Crossovers, Kind, ROUNDS_MAX, ROUNDS_MIN, Request, SIZE_MAX, Sample,
    crossover, sizes, wait,
};
use crate::transport::{
    Access, Address, ConnectParams, Domain, Endpoint, HeapMemory, MemoryRef, Received, Region, RegionError,
    RemoteRange,
};

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
pub(super) fn run(
    domain: &dyn Domain,
    address: &Address,
    params: &ConnectParams,
    until: Instant,
    deadline: Instant,
) -> Result<Timed, CalibrateError> {
    let timeout = deadline.saturating_duration_since(Instant::now());
    let endpoint = domain.connect(address, params, timeout)?;
    let capabilities = endpoint.capabilities();
    let inline_max = capabilities.send_payload_max.min(capabilities.recv_payload_max);
    let sizes = sizes(inline_max);
    let mut client = Client::new(domain, endpoint, deadline)?;
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
    client.endpoint.close();
    Ok(Timed { sizes, times })
}

/// All times, by size and method.
pub(super) struct Timed {
    sizes: Vec<u32>,
    times: Vec<[Vec<Duration>; METHODS.len()]>,
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
        let duration = begin.elapsed();
        Calibration {
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

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

struct Client<'a> {
    domain: &'a dyn Domain,
    endpoint: Box<dyn Endpoint>,
    deadline: Instant,
    /// Memory that the provider likes best, registered for the whole run.
    registered: Region,
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
        Ok(Self { domain, endpoint, deadline, registered, ordinary: MemoryRef::new(Arc::new(heap)) })
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
            let region = self.domain.register(memory, access)?;
            return self.direct(write, region.range());
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
