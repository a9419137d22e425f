//! Random lists against a model of the file in memory, which is compared with the file itself by plain reads.
//!
//! `DAFS_LIST_CASES=n` runs that many on each provider, `DAFS_SEED=n` another sequence.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use dafs_client::{
    Config, Extent, File, ListRead, MethodOverride, Noncontiguous, OpenOptions, RegisteredBuf, Session,
};
use dafs_proto::transport::sim::FaultPlan;
use dafs_tests::harness::{Harness, On};
use dafs_tests::sim::{World, WorldPlan};
use dafs_tests::suite::{Numbers, bytes, is_all};

/// What the gate has time for. `DAFS_LIST_CASES` sets more, for a long run.
const CASES_TCP: u64 = 60_000;
const CASES_SHM: u64 = 150_000;
const CASES_SIM: u64 = 60_000;
#[cfg(feature = "verbs")]
const CASES_VERBS: u64 = 6_000;

/// Of large lists, beyond what a message, a bounce buffer and a chunk of the server hold.
const CASES_LARGE: u64 = 1_200;

const GUARD: u8 = 0xa5;

/// How large lists are.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Bytes of the file that offsets are drawn from; its end lies somewhere in it.
    file_span: u64,
    extents_max: u64,
    /// Bytes of one extent: one of these.
    len_max: [u64; 3],
    /// Pieces of memory.
    pieces_max: u64,
}

const SMALL: Scale = Scale { file_span: 6000, extents_max: 10, len_max: [8, 64, 400], pieces_max: 8 };
const LARGE: Scale =
    Scale { file_span: 300_000, extents_max: 400, len_max: [64, 900, 3000], pieces_max: 300 };

mod tcp {
    #[test]
    fn lists_of_random_extents_and_memory_equal_plain_transfers_of_each() {
        super::on_server(dafs_tests::harness::On::Tcp, super::SMALL, super::CASES_TCP);
    }

    #[test]
    fn large_lists_of_random_extents_and_memory_equal_plain_transfers_of_each() {
        super::on_server(dafs_tests::harness::On::Tcp, super::LARGE, super::CASES_LARGE);
    }

    #[test]
    fn large_lists_equal_plain_transfers_within_the_narrowest_limits() {
        super::within_narrow_limits(dafs_tests::harness::On::Tcp, super::CASES_LARGE / 2);
    }
}

mod shm {
    #[test]
    fn lists_of_random_extents_and_memory_equal_plain_transfers_of_each() {
        super::on_server(dafs_tests::harness::On::Shm, super::SMALL, super::CASES_SHM);
    }

    #[test]
    fn large_lists_of_random_extents_and_memory_equal_plain_transfers_of_each() {
        super::on_server(dafs_tests::harness::On::Shm, super::LARGE, super::CASES_LARGE);
    }

    #[test]
    fn large_lists_equal_plain_transfers_within_the_narrowest_limits() {
        super::within_narrow_limits(dafs_tests::harness::On::Shm, super::CASES_LARGE / 2);
    }
}

#[cfg(feature = "verbs")]
mod verbs {
    #[test]
    #[ignore = "needs rdma-device"]
    fn lists_of_random_extents_and_memory_equal_plain_transfers_of_each() {
        super::on_server(dafs_tests::harness::On::Verbs, super::SMALL, super::CASES_VERBS);
    }
}

mod sim {
    use super::*;

    #[test]
    fn lists_of_random_extents_and_memory_equal_plain_transfers_of_each() {
        run(SMALL, cases(CASES_SIM));
    }

    #[test]
    fn large_lists_of_random_extents_and_memory_equal_plain_transfers_of_each() {
        run(LARGE, cases(CASES_LARGE));
    }

    fn run(scale: Scale, count: u64) {
        // [LIST-1] [LIST-4] [LIST-5] [LIST-9] [LIST-15]
        // Completions in any order, posts that find no room, memory that is mapped and memory that is not.
        for (part, remote_mapped) in [(0, false), (1, true)] {
            let network =
                FaultPlan { full_ppm: 100_000, done_ppm: 300_000, remote_mapped, ..FaultPlan::calm() };
            let world = World::new(seed() + part, WorldPlan { network, crash_ppm: 0 });
            let mut node = 0;
            let ways = WAYS.map(|(method, noncontiguous)| {
                node += 1;
                let config = Config { method, noncontiguous, ..World::client_config(node) };
                let session = world.connect(u32::from(node), &config).expect("a session");
                let file = file(&session, "data");
                (session, file)
            });
            play(&ways, scale, seed() + part, count / 2);
        }
    }
}

/// Ways of the client: methods that are demanded, and the choice of it for memory in pieces.
const WAYS: [(MethodOverride, Noncontiguous); 7] = [
    (MethodOverride::Auto, Noncontiguous::Auto),
    (MethodOverride::Auto, Noncontiguous::Multiple),
    (MethodOverride::Auto, Noncontiguous::Pack),
    (MethodOverride::Auto, Noncontiguous::Gather),
    (MethodOverride::Inline, Noncontiguous::Auto),
    (MethodOverride::Direct, Noncontiguous::Auto),
    (MethodOverride::Bounced, Noncontiguous::Auto),
];

fn seed() -> u64 {
    std::env::var("DAFS_SEED").map_or(1, |text| text.parse().expect("DAFS_SEED is a number"))
}

fn cases(default: u64) -> u64 {
    std::env::var("DAFS_LIST_CASES")
        .map_or(default, |text| text.parse().expect("DAFS_LIST_CASES is a number"))
}

fn on_server(on: On, scale: Scale, count: u64) {
    play_on(&Harness::start(on), &Config::default(), scale, count);
}

/// Lists are cut into as many requests as can be, each passes through as many buffers, and few are in flight at once.
fn within_narrow_limits(on: On, count: u64) {
    let harness = Harness::start_with(on, |config| {
        config.inline_max = 1024;
        config.transfer_size_max = 64 << 10;
        config.buffers_size_max = 1 << 20;
        config.buffer_sizes = vec![4096];
        config.slots_max = 2;
    });
    let config = Config { bounce_size: 32 << 10, credits: 2, inline_max: 0, ..Config::default() };
    play_on(&harness, &config, LARGE, count);
}

fn play_on(harness: &Harness, config: &Config, scale: Scale, count: u64) {
    for (part, export) in ["mem", "data"].into_iter().enumerate() {
        let ways = WAYS.map(|(method, noncontiguous)| {
            let session = harness.session_with(&Config { method, noncontiguous, ..config.clone() });
            let file = file(&session, export);
            (session, file)
        });
        play(&ways, scale, seed() + part as u64, cases(count) / 2);
    }
}

fn file(session: &Session, export: &str) -> File {
    let root = session.mount(export).expect("the export");
    root.open_with("lists", OpenOptions::new().read(true).write(true).create(true)).expect("the file")
}

/// Random cases, each by one of the sessions in turn, on the one file that all have open.
fn play(ways: &[(Session, File); WAYS.len()], scale: Scale, seed: u64, count: u64) {
    let mut numbers = Numbers::new(seed);
    let mut model: Vec<u8> = Vec::new();
    let mut memories: Vec<Memory> = ways.iter().map(|(session, _)| Memory::new(session, scale)).collect();
    for case in 0..count {
        let turn = numbers.below(ways.len() as u64) as usize;
        let file = &ways[turn].1;
        if case % 500 == 0 {
            // Another end of the file, with new data before it.
            let size = numbers.below(scale.file_span) as usize;
            model = bytes(numbers.next(), size);
            file.truncate(0).unwrap();
            file.write_all_at(&model, 0).unwrap();
        }
        let list = Case::draw(&mut numbers, scale);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            list.run(file, &mut memories[turn], &mut model, &mut numbers.clone());
            if case % 16 == 15 {
                let mut found = vec![0; model.len() + 1];
                let count = file.read_at(&mut found, 0).unwrap();
                assert!(found[..count] == model[..], "the file differs from its model");
            }
        }));
        if let Err(panic) = outcome {
            eprintln!("seed {seed}, case {case}, way {:?}: {list:?}", WAYS[turn]);
            std::panic::resume_unwind(panic);
        }
        numbers.next();
    }
}

/// Memory with guards around everything that a list uses.
struct Memory {
    bytes: Vec<u8>,
    registered: Option<RegisteredBuf>,
}

impl Memory {
    fn new(session: &Session, scale: Scale) -> Self {
        // Segments are at most 7 bytes apart.
        let size = (scale.extents_max * scale.len_max[2] + 7 * scale.pieces_max) as usize + 16;
        let registered = session.buffer(size).expect("registered memory");
        Self { bytes: vec![GUARD; size], registered: Some(registered) }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Slices,
    Registered,
    OwnedVectors,
    OwnedBuffer,
}

#[derive(Clone, Debug)]
struct Case {
    write: bool,
    kind: Kind,
    extents: Vec<Extent>,
    /// In the memory: ascending, with bytes between them.
    segments: Vec<Range<usize>>,
}

impl Case {
    fn draw(numbers: &mut Numbers, scale: Scale) -> Self {
        let count = 1 + numbers.below(scale.extents_max);
        let pattern = numbers.below(4);
        let mut offset = numbers.below(scale.file_span);
        let len_max = scale.len_max[numbers.below(3) as usize];
        let extents: Vec<Extent> = (0..count)
            .map(|_| {
                let len = numbers.below(len_max + 1);
                let begin = match pattern {
                    // Side by side, with small gaps, anywhere, and close enough to overlap.
                    0 => offset,
                    1 => offset + numbers.below(100),
                    2 => numbers.below(scale.file_span),
                    _ => offset.saturating_sub(numbers.below(60)),
                };
                offset = begin + len;
                Extent::new(begin, len)
            })
            .collect();
        let mut left: usize = extents.iter().map(|extent| extent.len as usize).sum();
        let pieces = 1 + numbers.below(scale.pieces_max) as usize;
        let even = numbers.below(2) == 0;
        let mut at = 1 + numbers.below(9) as usize;
        let segments = (0..pieces)
            .map(|piece| {
                let len = match piece + 1 == pieces {
                    true => left,
                    false if even => (left / (pieces - piece)).min(left),
                    false => numbers.below(left as u64 + 1) as usize,
                };
                left -= len;
                let segment = at..at + len;
                // Some touch, for joining.
                at = segment.end + [0, 1, 7][numbers.below(3) as usize];
                segment
            })
            .collect();
        let kinds = [Kind::Slices, Kind::Registered, Kind::OwnedVectors, Kind::OwnedBuffer];
        Self { write: numbers.below(2) == 0, kind: kinds[numbers.below(4) as usize], extents, segments }
    }

    fn len(&self) -> usize {
        self.extents.iter().map(|extent| extent.len as usize).sum()
    }

    fn run(&self, file: &File, memory: &mut Memory, model: &mut Vec<u8>, numbers: &mut Numbers) {
        if self.write {
            let data = bytes(numbers.next(), self.len());
            let count = self.write(file, memory, &data);
            assert_eq!(count, data.len(), "bytes written");
            // Each by itself, in the order of the list.
            let mut rest = &data[..];
            for extent in self.extents.iter().filter(|extent| extent.len > 0) {
                let (begin, len) = (extent.offset as usize, extent.len as usize);
                model.resize(model.len().max(begin + len), 0);
                model[begin..begin + len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
            }
        } else {
            let (read, found) = self.read(file, memory);
            self.check_read(&read, &found, model);
        }
    }

    /// Every extent has what a plain read of it would have brought.
    fn check_read(&self, read: &ListRead, found: &[u8], model: &[u8]) {
        let (mut place, mut without_gap, mut gap) = (0, 0, false);
        for extent in &self.extents {
            let (begin, len) = (extent.offset as usize, extent.len as usize);
            let expected = model.get(begin.min(model.len())..(begin + len).min(model.len())).unwrap();
            assert_eq!(read.of(extent), expected.len() as u64, "bytes of {extent:?}");
            assert!(found[place..place + expected.len()] == *expected, "data of {extent:?}");
            without_gap += if gap { 0 } else { expected.len() };
            gap |= expected.len() < len;
            place += len;
        }
        assert_eq!(read.count, without_gap, "bytes without a gap");
        assert_eq!(read.end.is_some(), gap, "the end of the file was met");
    }

    fn read(&self, file: &File, memory: &mut Memory) -> (ListRead, Vec<u8>) {
        match self.kind {
            Kind::Slices => {
                memory.bytes.fill(GUARD);
                let mut slices = self.slices(&mut memory.bytes);
                let read = file.read_list(&self.extents, &mut slices).unwrap();
                (read, self.gather(&memory.bytes))
            }
            Kind::Registered => {
                let buffer = memory.registered.as_mut().unwrap();
                buffer.fill(GUARD);
                let read = file.read_list_buf(&self.extents, buffer, &self.segments).unwrap();
                (read, self.gather(buffer))
            }
            Kind::OwnedVectors => {
                let buffers = self.segments.iter().map(|segment| vec![GUARD; segment.len()]).collect();
                let done = file.submit_read_list::<Vec<u8>>(&self.extents, buffers).wait();
                let lens: Vec<usize> = done.buffers.iter().map(Vec::len).collect();
                assert_eq!(lens, self.segments.iter().map(Range::len).collect::<Vec<_>>());
                (done.result.unwrap(), done.buffers.concat())
            }
            Kind::OwnedBuffer => {
                let mut buffer = memory.registered.take().unwrap();
                buffer.fill(GUARD);
                let done = file.submit_read_list_buf(&self.extents, buffer, &self.segments).wait();
                let found = self.gather(&done.buffer);
                memory.registered = Some(done.buffer);
                // The count is checked by the other kinds; this form does not tell the end.
                let count = done.result.unwrap();
                let mut plain = vec![0; self.len()];
                let read = file.read_list(&self.extents, &mut [IoSliceMut::new(&mut plain)]).unwrap();
                assert_eq!(read.count, count);
                (read, found)
            }
        }
    }

    fn write(&self, file: &File, memory: &mut Memory, data: &[u8]) -> usize {
        match self.kind {
            Kind::Slices => {
                let mut rest = data;
                let slices: Vec<IoSlice<'_>> = self
                    .segments
                    .iter()
                    .map(|segment| {
                        let (slice, after) = rest.split_at(segment.len());
                        rest = after;
                        IoSlice::new(slice)
                    })
                    .collect();
                file.write_list(&self.extents, &slices).unwrap()
            }
            Kind::Registered => {
                let buffer = memory.registered.as_mut().unwrap();
                self.scatter(buffer, data);
                file.write_list_buf(&self.extents, buffer, &self.segments).unwrap()
            }
            Kind::OwnedVectors => {
                let mut rest = data;
                let buffers: Vec<Vec<u8>> = self
                    .segments
                    .iter()
                    .map(|segment| {
                        let (slice, after) = rest.split_at(segment.len());
                        rest = after;
                        slice.to_vec()
                    })
                    .collect();
                let done = file.submit_write_list(&self.extents, buffers).wait();
                assert!(done.buffers.concat() == data, "the memory is as it was");
                done.result.unwrap()
            }
            Kind::OwnedBuffer => {
                let mut buffer = memory.registered.take().unwrap();
                self.scatter(&mut buffer, data);
                let done = file.submit_write_list_buf(&self.extents, buffer, &self.segments).wait();
                self.gather(&done.buffer);
                memory.registered = Some(done.buffer);
                done.result.unwrap()
            }
        }
    }

    fn slices<'a>(&self, mut bytes: &'a mut [u8]) -> Vec<IoSliceMut<'a>> {
        let mut at = 0;
        let cut = self.segments.iter().map(|segment| {
            let rest = std::mem::take(&mut bytes);
            let (slice, rest) = rest[segment.start - at..].split_at_mut(segment.len());
            (at, bytes) = (segment.end, rest);
            IoSliceMut::new(slice)
        });
        cut.collect()
    }

    /// The bytes of the segments; those around them must be as they were.
    fn gather(&self, bytes: &[u8]) -> Vec<u8> {
        let mut at = 0;
        let mut found = Vec::with_capacity(self.len());
        for segment in &self.segments {
            assert!(is_all(&bytes[at..segment.start], GUARD), "guards before {segment:?}");
            found.extend_from_slice(&bytes[segment.clone()]);
            at = segment.end;
        }
        assert!(is_all(&bytes[at..], GUARD), "guards behind the last segment");
        found
    }

    fn scatter(&self, bytes: &mut [u8], data: &[u8]) {
        bytes.fill(GUARD);
        let mut rest = data;
        for segment in &self.segments {
            let (slice, after) = rest.split_at(segment.len());
            bytes[segment.clone()].copy_from_slice(slice);
            rest = after;
        }
    }
}
