//! Random transfers through random views against a model of the file in memory. `DAFS_VIEW_FILE_CASES=n` runs that many on each provider.

use std::io::{IoSlice, IoSliceMut};

use dafs_client::{Config, Extent, File, MethodOverride, Noncontiguous, OpenOptions, Session, Sieve, View};
use dafs_proto::transport::sim::FaultPlan;
use dafs_proto::view::View as Compiled;
use dafs_tests::harness::{Harness, On};
use dafs_tests::sim::{World, WorldPlan};
use dafs_tests::suite::{Numbers, assert_same, bytes};

mod tcp {
    #[test]
    fn transfers_through_views_equal_those_of_their_lists() {
        super::on_server(dafs_tests::harness::On::Tcp, 6_000);
    }

    #[test]
    fn transfers_through_views_equal_those_of_their_lists_within_narrow_limits() {
        super::within_narrow_limits(dafs_tests::harness::On::Tcp, 3_000);
    }
}

mod shm {
    #[test]
    fn transfers_through_views_equal_those_of_their_lists() {
        super::on_server(dafs_tests::harness::On::Shm, 20_000);
    }

    #[test]
    fn transfers_through_views_equal_those_of_their_lists_within_narrow_limits() {
        super::within_narrow_limits(dafs_tests::harness::On::Shm, 5_000);
    }
}

#[cfg(feature = "verbs")]
mod verbs {
    #[test]
    #[ignore = "needs rdma-device"]
    fn transfers_through_views_equal_those_of_their_lists() {
        super::on_server(dafs_tests::harness::On::Verbs, 500);
    }
}

mod sim {
    use super::*;

    #[test]
    fn transfers_through_views_equal_those_of_their_lists() {
        // Completions in any order, posts that find no room, memory that is mapped and memory that is not.
        for (part, remote_mapped) in [(0, false), (1, true)] {
            let network =
                FaultPlan { full_ppm: 100_000, done_ppm: 300_000, remote_mapped, ..FaultPlan::calm() };
            let world = World::new(part, WorldPlan { network, crash_ppm: 0 });
            let sessions = WAYS.map(|way| {
                let node = WAYS.iter().position(|other| *other == way).unwrap_or(0) as u8 + 1;
                let config = way.config(World::client_config(node));
                world.connect(u32::from(node), &config).expect("a session")
            });
            play(&sessions, "data", part, cases(4_000));
        }
    }
}

/// A way of the client.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way(MethodOverride, Noncontiguous, Sieve);

const WAYS: [Way; 6] = [
    Way(MethodOverride::Auto, Noncontiguous::Auto, Sieve::Auto),
    Way(MethodOverride::Auto, Noncontiguous::Multiple, Sieve::Auto),
    Way(MethodOverride::Auto, Noncontiguous::Gather, Sieve::On),
    Way(MethodOverride::Inline, Noncontiguous::Auto, Sieve::Off),
    Way(MethodOverride::Direct, Noncontiguous::Auto, Sieve::On),
    Way(MethodOverride::Bounced, Noncontiguous::Pack, Sieve::Auto),
];

impl Way {
    fn config(self, config: Config) -> Config {
        let Self(method, noncontiguous, sieve) = self;
        Config { method, noncontiguous, sieve, ..config }
    }
}

fn cases(default: u64) -> u64 {
    std::env::var("DAFS_VIEW_FILE_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

fn on_server(on: On, count: u64) {
    let harness = Harness::start(on);
    for (seed, export) in ["mem", "data"].into_iter().enumerate() {
        let sessions = WAYS.map(|way| harness.session_with(&way.config(Config::default())));
        play(&sessions, export, seed as u64, cases(count) / 2);
    }
}

/// Views are cut into as many requests as can be, and each passes through as many buffers.
fn within_narrow_limits(on: On, count: u64) {
    let harness = Harness::start_with(on, |config| {
        config.inline_max = 1024;
        config.transfer_size_max = 64 << 10;
        config.buffers_size_max = 1 << 20;
        config.buffer_sizes = vec![4096];
        config.slots_max = 2;
    });
    let narrow = Config { bounce_size: 32 << 10, credits: 2, inline_max: 0, ..Config::default() };
    let sessions = WAYS.map(|way| harness.session_with(&way.config(narrow.clone())));
    play(&sessions, "data", 5, cases(count));
}

/// Random cases, each by one of the sessions in turn, on the one file that all have open.
fn play(sessions: &[Session; WAYS.len()], export: &str, seed: u64, count: u64) {
    let mut numbers = Numbers::new(seed);
    let open = |session: &Session| {
        let root = session.mount(export).expect("the export");
        root.open_with("views", OpenOptions::new().read(true).write(true).create(true)).expect("the file")
    };
    let files: Vec<File> = sessions.iter().map(open).collect();
    let mut model: Vec<u8> = Vec::new();
    for case in 0..count {
        let turn = numbers.below(WAYS.len() as u64) as usize;
        if case % 200 == 0 {
            let len = numbers.below(9000) as usize;
            model = bytes(numbers.next(), len);
            files[0].truncate(0).unwrap();
            files[0].write_all_at(&model, 0).unwrap();
        }
        let depth = numbers.below(4);
        let mut datatype = numbers.datatype(depth);
        if numbers.below(3) == 0 {
            // Larger than what a message, a bounce buffer or a chunk of the server holds.
            datatype = datatype.contiguous(1 + numbers.below(900));
        }
        let compiled = Compiled::new(&datatype).unwrap();
        if compiled.size() == 0 {
            continue;
        }
        let displacement = numbers.below(400);
        let place = numbers.below(2 * compiled.size());
        let len = 1 + numbers.below((3 * compiled.size()).min(if case % 16 == 0 { 90_000 } else { 2_000 }));
        let view = sessions[turn].view(&datatype).unwrap();
        let what = format!(
            "case {case} of seed {seed}, {:?}: {len} bytes from {place} of {datatype:?} at {displacement}",
            WAYS[turn]
        );
        let case = Case {
            file: &files[turn],
            session: &sessions[turn],
            view,
            displacement,
            place,
            len: len as usize,
        };
        if compiled.check(displacement, place, len).is_err() {
            let error = case.file.read_view(&case.view.at(displacement, place), &mut vec![0; len as usize]);
            assert!(matches!(error, Err(dafs_client::Error::Invalid(_))), "{what}: {error:?}");
            continue;
        }
        let extents: Vec<Extent> = compiled.segments(displacement, place, len).collect();
        if extents.iter().any(|extent| extent.offset > 400_000) {
            continue;
        }
        match numbers.below(2) {
            0 => case.read(&extents, &model, &mut numbers, &what),
            _ => case.write(&extents, &mut model, &mut numbers, &what),
        }
    }
    let mut found = vec![0; model.len() + 1];
    let count = files[0].read_at(&mut found, 0).unwrap();
    assert_same(&found[..count], &model, "the file");
}

struct Case<'a> {
    file: &'a File,
    session: &'a Session,
    view: View,
    displacement: u64,
    place: u64,
    len: usize,
}

impl Case<'_> {
    // [VIEW-12]
    fn read(&self, extents: &[Extent], model: &[u8], numbers: &mut Numbers, what: &str) {
        let from = self.view.at(self.displacement, self.place);
        let mut found = vec![0xa5; self.len];
        let cut = numbers.below(self.len as u64 + 1) as usize;
        let (count, end) = match numbers.below(4) {
            0 => {
                let read = self.file.read_view(&from, &mut found).expect(what);
                (read.count, Some(read.end))
            }
            1 => {
                let (one, other) = found.split_at_mut(cut);
                let slices = &mut [IoSliceMut::new(one), IoSliceMut::new(other)];
                let read = self.file.read_view_vectored(&from, slices).expect(what);
                (read.count, Some(read.end))
            }
            2 => {
                let mut buffer = self.session.buffer(self.len).expect(what);
                buffer.fill(0xa5);
                let read = self.file.read_view_buf(&from, &mut buffer).expect(what);
                found.copy_from_slice(&buffer);
                (read.count, Some(read.end))
            }
            _ => {
                let done = self.file.submit_read_view(&from, found).wait();
                found = done.buffer;
                (done.result.expect(what), None)
            }
        };
        let (mut at, mut without_gap, mut gap) = (0, 0, false);
        for extent in extents {
            let (begin, len) = (extent.offset as usize, extent.len as usize);
            let expected = &model[begin.min(model.len())..(begin + len).min(model.len())];
            assert_same(&found[at..at + expected.len()], expected, what);
            without_gap += if gap { 0 } else { expected.len() };
            gap |= expected.len() < len;
            at += len;
        }
        assert_eq!(count, without_gap, "{what}");
        if let Some(end) = end {
            assert_eq!(end.is_some(), gap, "{what}: {end:?} of {}", model.len());
        }
    }

    // [VIEW-12] [LIST-4]
    fn write(&self, extents: &[Extent], model: &mut Vec<u8>, numbers: &mut Numbers, what: &str) {
        let to = self.view.at(self.displacement, self.place);
        let data = bytes(numbers.next(), self.len);
        let cut = numbers.below(self.len as u64 + 1) as usize;
        let count = match numbers.below(4) {
            0 => self.file.write_view(&to, &data).expect(what),
            1 => {
                let slices = [IoSlice::new(&data[..cut]), IoSlice::new(&data[cut..])];
                self.file.write_view_vectored(&to, &slices).expect(what)
            }
            2 => {
                let mut buffer = self.session.buffer(self.len).expect(what);
                buffer.copy_from_slice(&data);
                self.file.write_view_buf(&to, &buffer).expect(what)
            }
            _ => self.file.submit_write_view(&to, data.clone()).wait().result.expect(what),
        };
        assert_eq!(count, self.len, "{what}");
        let mut rest = &data[..];
        for extent in extents {
            let (begin, len) = (extent.offset as usize, extent.len as usize);
            model.resize(model.len().max(begin + len), 0);
            model[begin..begin + len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
        }
        let size = self.file.metadata().expect(what).size;
        assert_eq!(size, model.len() as u64, "{what}");
    }
}
