//! The real server and the real client library on virtual time, with seeded faults. Every seed is a run of its own; a
//! failing one prints its seed, and `DAFS_SEED=n` repeats it alone. `DAFS_SEEDS=n` runs that many,
//! and `DAFS_SEEDS=m..n` those from m on.
#![allow(clippy::cast_possible_truncation, reason = "sizes, patterns and tables that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod cluster;

use std::time::Duration;

use dafs_client::{Config, Error, Export, File, Key, MethodOverride, Session, Stability, Status};
use dafs_proto::transport::sim::{FaultPlan, Random};
use dafs_tests::sim::{BlockOracle, Record, RecordOracle, World, WorldPlan};
use dafs_tests::suite::bytes;

const SEEDS: u64 = 1000;
const BLOCK: usize = 1500;
const BLOCKS: usize = 40;
const RECORD: usize = 64;

fn seeds() -> std::ops::Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let variable = |name| std::env::var(name).ok();
    match (variable("DAFS_SEED"), variable("DAFS_SEEDS")) {
        (Some(seed), _) => number(&seed)..number(&seed) + 1,
        (None, Some(seeds)) => match seeds.split_once("..") {
            Some((first, end)) => number(first)..number(end),
            None => 0..number(&seeds),
        },
        (None, None) => 0..SEEDS,
    }
}

/// Settings of a client whose method is drawn from the seed: each meets each kind of fault.
fn client_config(seed: u64, node: u8) -> Config {
    let mut random = Random::new(seed ^ u64::from(node) << 56);
    let (method, _) = MethodOverride::ALL[random.index(MethodOverride::ALL.len())];
    Config { method, ..World::client_config(node) }
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// The server died.
    crashes: u64,
    /// The network cut a connection.
    cuts: u64,
    /// A client took its session up again.
    reconnects: u64,
    /// Packets that left before all was calm.
    packets: u64,
}

/// Runs one seed and says which it was when it fails.
fn run(seed: u64, plan: WorldPlan, actions: usize) -> Faults {
    let world = World::new(seed, plan);
    let _report = world.net().report_on_panic();
    let play = || Scenario::new(&world, seed).play(actions);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(play)) {
        Ok(faults) => faults,
        Err(panic) => {
            eprintln!("seed {seed} failed: repeat it with DAFS_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

struct Scenario<'w> {
    world: &'w World,
    random: Random,
    sessions: Vec<Session>,
    files: Vec<File>,
    logs: Vec<File>,
    blocks: BlockOracle,
    records: RecordOracle,
    next: u64,
    crashes: u64,
    // Directories that exist for certain.
    directories: u64,
}

impl<'w> Scenario<'w> {
    fn new(world: &'w World, seed: u64) -> Self {
        let mut scenario = Self {
            world,
            random: Random::new(seed ^ 0x00ac_7105),
            sessions: Vec::new(),
            files: Vec::new(),
            logs: Vec::new(),
            blocks: BlockOracle::default(),
            records: RecordOracle::default(),
            next: 0,
            crashes: 0,
            directories: 0,
        };
        for node in 1..=2 {
            let session = insist(world, || world.connect(u32::from(node), &client_config(seed, node)));
            let export = insist(world, || session.mount("data"));
            let first = scenario.files.first();
            let file = insist(world, || open_blocks(&export, first));
            scenario.files.push(file);
            scenario.logs.push(insist(world, || {
                export.open_with("log", dafs_client::OpenOptions::new().read(true).write(true).create(true))
            }));
            scenario.sessions.push(session);
        }
        scenario
    }

    fn play(&mut self, actions: usize) -> Faults {
        for _ in 0..actions {
            let client = self.random.index(2);
            match self.random.below(10) {
                0..=3 => self.write(client),
                4..=5 => self.read(client),
                6 => self.commit(client),
                7..=8 => self.append(client),
                _ => self.make_directory(client),
            }
            self.notice_crashes();
        }
        let packets = self.world.net().counters().packets_sent;
        self.world.calm();
        for client in 0..2 {
            self.commit(client);
        }
        self.notice_crashes();
        for client in 0..2 {
            (0..BLOCKS).for_each(|block| self.check(client, block));
        }
        let content = self.whole_log();
        self.records.check(&content, RECORD, record);
        let cuts = self.world.net().counters().cuts;
        let reconnects = self.sessions.iter().map(Session::reconnects).sum();
        Faults { crashes: self.world.crashes(), cuts, reconnects, packets }
    }

    /// Writes one to four blocks, each of its own number, at once when there are several.
    fn write(&mut self, client: usize) {
        let first = self.random.index(BLOCKS);
        let count = 1 + self.random.index(4.min(BLOCKS - first));
        let stability = [Stability::Unstable, Stability::Unstable, Stability::FileSync][self.random.index(3)];
        let values: Vec<u64> = (0..count).map(|_| self.number()).collect();
        let before = self.world.crashes();
        if count > 1 && self.random.below(2) == 0 {
            return self.write_batch(client, first, &values);
        }
        let pending: Vec<_> = values
            .iter()
            .zip(first..)
            .map(|(value, block)| {
                let data = fill(*value);
                self.files[client].submit_write_at_with(data, (block * BLOCK) as u64, stability)
            })
            .collect();
        for ((pending, value), block) in pending.into_iter().zip(values).zip(first..) {
            match pending.wait().into_result() {
                Ok((count, _)) => {
                    assert_eq!(count, BLOCK);
                    self.acknowledged(client, block, value, stability != Stability::Unstable, before);
                }
                Err(error) => panic!("a write at an offset is sent again until it is answered: {error}"),
            }
        }
    }

    /// The same by one request, and reads a block of another file's handle beside it.
    fn write_batch(&mut self, client: usize, first: usize, values: &[u64]) {
        let before = self.world.crashes();
        let data: Vec<Vec<u8>> = values.iter().map(|value| fill(*value)).collect();
        let mut log = vec![0; RECORD];
        let mut batch = self.sessions[client].batch_io();
        for (data, block) in data.iter().zip(first..) {
            batch.write_at(&self.files[client], data, (block * BLOCK) as u64);
        }
        batch.read_at(&self.logs[client], &mut log, 0);
        let outcomes = batch.run().unwrap();
        drop(batch);
        for (outcome, (value, block)) in outcomes.iter().zip(values.iter().zip(first..)) {
            assert_eq!(outcome.as_ref().unwrap().count, BLOCK);
            self.acknowledged(client, block, *value, false, before);
        }
        let read = outcomes.last().unwrap().as_ref().unwrap().count;
        let number = u64::from_le_bytes(log[..8].try_into().unwrap());
        assert!(read == 0 || log == record(number), "the first record, or none: {read} bytes");
    }

    fn acknowledged(&mut self, client: usize, block: usize, value: u64, durable: bool, crashes_before: u64) {
        self.notice_crashes();
        self.blocks.on_write(client, block, value, durable, self.world.crashes() > crashes_before);
    }

    fn read(&mut self, client: usize) {
        let block = self.random.index(BLOCKS);
        self.check(client, block);
    }

    fn check(&mut self, client: usize, block: usize) {
        let mut data = vec![0; BLOCK];
        let count = self.files[client].read_at(&mut data, (block * BLOCK) as u64).unwrap();
        // Beyond the end of the file is as good as zero.
        data[count..].fill(0);
        let value = u64::from_le_bytes(data[..8].try_into().unwrap());
        assert!(value == 0 || data == fill(value), "block {block} is torn");
        self.notice_crashes();
        self.blocks.check(block, value);
    }

    /// Commits; what was lost is written again, until nothing is.
    fn commit(&mut self, client: usize) {
        loop {
            let outcome = self.files[client].commit();
            self.notice_crashes();
            match outcome {
                Ok(()) => return self.blocks.on_commit(client),
                Err(Error::WritesLost { ranges, .. }) => {
                    for range in ranges {
                        let blocks = range.start as usize / BLOCK..(range.end as usize).div_ceil(BLOCK);
                        for block in blocks {
                            let (value, before) = (self.blocks.last(block), self.world.crashes());
                            self.files[client].write_all_at(&fill(value), (block * BLOCK) as u64).unwrap();
                            self.acknowledged(client, block, value, false, before);
                        }
                    }
                }
                Err(error) => panic!("a commit is sent again until it is answered: {error}"),
            }
        }
    }

    fn append(&mut self, client: usize) {
        let number = self.number();
        let outcome = self.logs[client].submit_append(record(number)).wait();
        let log = &self.logs[client];
        match outcome {
            Ok(offset) => {
                // The log is to be whole at the end: each record is durable before the next.
                match log.commit() {
                    Ok(()) => self.records.on_append(Record { number, offset: Some(offset) }),
                    // Lost: its place may hold another record now.
                    Err(Error::WritesLost { .. }) => self.records.on_append(Record { number, offset: None }),
                    Err(error) => panic!("{error}"),
                }
            }
            Err(Error::InDoubt { .. }) if self.world.crashes() > 0 => {
                self.records.on_append(Record { number, offset: None });
            }
            Err(error) => panic!("an append ends well, or in doubt after a crash: {error}"),
        }
        self.notice_crashes();
    }

    /// A new name: made exactly once, whatever happens to the connection.
    fn make_directory(&mut self, client: usize) {
        self.directories += 1;
        let name = format!("directory-{}", self.directories);
        let before = self.world.crashes();
        let export = insist(self.world, || self.sessions[client].mount("data"));
        match export.create_dir(&name, 0o755) {
            Ok(_) => {}
            Err(Error::InDoubt { .. }) if self.world.crashes() > before => {}
            Err(error) => panic!("mkdir of a new name: {error}"),
        }
        assert!(export.metadata(&name).is_ok() || self.world.crashes() > before, "{name} was acknowledged");
    }

    fn whole_log(&mut self) -> Vec<u8> {
        let size = usize::try_from(self.logs[0].metadata().unwrap().size).unwrap();
        let mut content = vec![0; size];
        self.logs[0].read_exact_at(&mut content, 0).unwrap();
        content
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn notice_crashes(&mut self) {
        if self.world.crashes() > self.crashes {
            self.crashes = self.world.crashes();
            self.blocks.on_crash();
        }
    }
}

/// Opens what another client has open, as long as the server knows that, else by its path.
fn open_blocks(export: &Export, first: Option<&File>) -> dafs_client::Result<File> {
    let mut options = dafs_client::OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    if let Some(first) = first {
        let token = first.share(true, true, Duration::ZERO)?;
        match export.open_token(&token, "blocks", options) {
            Err(error) if error.status() == Some(Status::NO_TOKEN) => {}
            opened => return opened,
        }
    }
    export.open_with("blocks", options)
}

/// Tries what is not sent again by itself until it succeeds.
fn insist<T>(world: &World, mut attempt: impl FnMut() -> dafs_client::Result<T>) -> T {
    for _ in 0..1000 {
        match attempt() {
            Ok(value) => return value,
            Err(Error::InDoubt { .. } | Error::Connect(_) | Error::Connection { .. }) => {
                world.let_time_pass(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("a thousand attempts failed");
}

/// A record: its number, and bytes that no other has.
fn record(number: u64) -> Vec<u8> {
    let mut record = bytes(number, RECORD);
    record[..8].copy_from_slice(&number.to_le_bytes());
    record
}

fn fill(value: u64) -> Vec<u8> {
    let mut data = vec![value.wrapping_mul(31) as u8; BLOCK];
    data[..8].copy_from_slice(&value.to_le_bytes());
    if value == 0 {
        data.fill(0);
    }
    data
}

mod sim {
    mod concurrent;
    mod sieved;

    use super::*;

    /// No faults at all: the oracle's own test.
    #[test]
    fn world_without_faults_keeps_every_byte() {
        for seed in 0..20 {
            run(seed, WorldPlan { network: FaultPlan::calm(), crash_ppm: 0 }, 60);
        }
    }

    // [ACC-103]
    #[test]
    fn login_that_is_refused_is_counted() {
        let world = World::new(1, WorldPlan { network: FaultPlan::calm(), crash_ppm: 0 });
        let session = world.connect(1, &World::client_config(1)).unwrap();
        assert_eq!(world.logins_refused(), 0);
        let key = Some(Key { name: "unknown".into(), secret: [1; 16].into() });
        let refused = world.connect(2, &Config { key, ..World::client_config(2) }).unwrap_err();
        assert_eq!(refused.status(), Some(Status::AUTH_FAILED), "{refused:?}");
        assert_eq!(world.logins_refused(), 1);
        session.ping().unwrap();
    }

    // [SESS-10] [SESS-11] [SESS-14] [SESS-50] [SESS-51] Connections break, stall, refuse; the server lives.
    #[test]
    fn world_with_broken_connections_keeps_every_byte_and_does_everything_once() {
        let plan = |seed| WorldPlan { network: FaultPlan::rough(seed), crash_ppm: 0 };
        let reconnects: u64 = seeds().map(|seed| run(seed, plan(seed), 40).reconnects).sum();
        assert!(reconnects > 0 || seeds().count() < 100, "a test of broken connections without one");
    }

    /// Large transfers of two clients, through more buffers than there are; whatever breaks, each is whole, and all buffers come back.
    // [BUF-2] [BUF-12] [BUF-29]
    #[test]
    fn world_with_broken_connections_moves_large_transfers_whole_and_returns_their_buffers() {
        // Of each worker.
        const BUDGET: usize = 1 << 20;
        let (mut fullest, mut waits, mut reconnects) = (0, 0, 0);
        for seed in seeds().take(60) {
            let plan = WorldPlan { network: FaultPlan::rough(seed), crash_ppm: 0 };
            let world = World::with(seed, plan, |settings| settings.buffers_size_max = BUDGET as u64);
            let _report = world.net().report_on_panic();
            let files: Vec<_> = (1..=2).map(|node| open_large(&world, seed, node)).collect();
            for round in 0..3 {
                move_large(&world, seed, round, &files);
            }
            world.calm();
            for (session, _) in &files {
                session.probe().expect("a calm world answers");
            }
            world.let_time_pass(Duration::from_secs(1));
            assert_eq!(world.buffers_lent(), 0, "seed {seed}: bytes of buffers that are left");
            let budget = BUDGET * (1 + seed as usize % 2);
            assert!(world.buffers_peak() <= budget, "seed {seed}: {} bytes", world.buffers_peak());
            fullest += u64::from(world.buffers_peak() > budget / 2);
            waits += world.buffer_waits();
            reconnects += files.iter().map(|(session, _)| session.reconnects()).sum::<u64>();
        }
        let is_whole = seeds().count() >= 60;
        assert!(!is_whole || (fullest > 20 && waits > 0 && reconnects > 0), "{fullest} {waits} {reconnects}");
    }

    /// A client whose large transfers pass through transfer buffers, and its file.
    fn open_large(world: &World, seed: u64, node: u8) -> (Session, File) {
        let method =
            [MethodOverride::Direct, MethodOverride::Bounced][(seed as usize / 2 + usize::from(node)) % 2];
        let config = Config { method, ..World::client_config(node) };
        let session = insist(world, || world.connect(u32::from(node), &config));
        let export = insist(world, || session.mount("data"));
        let mut options = dafs_client::OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        let file = insist(world, || export.open_with(format!("large{node}"), options));
        (session, file)
    }

    /// Each client writes the same four times at once, then reads it twice.
    fn move_large(world: &World, seed: u64, round: usize, files: &[(Session, File)]) {
        let data = |file: usize| bytes(seed + 7 * round as u64 + file as u64, 900_000 + 31 * round);
        let write = |(number, (_, file)): (usize, &(Session, File))| {
            (0..4).map(|_| file.submit_write_at(data(number), 0)).collect::<Vec<_>>()
        };
        let writes: Vec<_> = files.iter().enumerate().flat_map(write).collect();
        for write in writes {
            let written = write.wait();
            assert_eq!(written.result.expect("a write is sent again"), written.buffer.len());
        }
        // What is not at hand is read into buffers, not sent from where it lies.
        if round > 0 {
            world.hold_reads(Duration::from_millis(2));
        }
        let read = |(number, (_, file)): (usize, &(Session, File))| {
            (0..2).map(|_| (number, file.submit_read_at(vec![0; data(number).len()], 0))).collect::<Vec<_>>()
        };
        let reads: Vec<_> = files.iter().enumerate().flat_map(read).collect();
        for (number, read) in reads {
            let (expected, read) = (data(number), read.wait());
            assert_eq!(read.result.expect("a read is sent again"), expected.len());
            assert!(read.buffer == expected, "seed {seed}, round {round}: data of file {number}");
        }
    }

    // [SESS-74]
    #[test]
    fn token_in_virtual_time_lives_as_long_as_it_was_granted() {
        let world = World::new(1, WorldPlan { network: FaultPlan::calm(), crash_ppm: 0 });
        let sessions = [1, 2].map(|node| world.connect(node.into(), &World::client_config(node)).unwrap());
        let [root, other] = [0, 1].map(|number| sessions[number].mount("data").unwrap());
        let file = root.create("f").unwrap();
        let minute = Duration::from_secs(60);
        for (asked, lives) in
            [(Duration::from_secs(5), Duration::from_secs(5)), (Duration::ZERO, minute), (2 * minute, minute)]
        {
            let token = file.share(true, false, asked).unwrap();
            let begin = world.net().now();
            let pass_until = |time| {
                while let Some(left) = (begin + time).checked_sub(world.net().now()).filter(|d| !d.is_zero())
                {
                    world.let_time_pass(left.min(Duration::from_secs(5)));
                    // Who is silent loses its session.
                    sessions.iter().for_each(|session| session.probe().unwrap());
                }
            };
            let open = || other.open_token(&token, "f", dafs_client::OpenOptions::new().read(true));
            open().unwrap();
            pass_until(lives - Duration::from_millis(100));
            open().unwrap();
            pass_until(lives);
            assert_eq!(open().unwrap_err().status(), Some(Status::NO_TOKEN), "{asked:?}");
        }
    }

    // [SESS-52] The server dies as well: what was lost is told, and written again.
    #[test]
    fn world_with_crashes_keeps_every_committed_byte_and_tells_what_it_lost() {
        let plan = |seed| WorldPlan { network: FaultPlan::rough(seed), crash_ppm: 3000 };
        let crashes: u64 = seeds().map(|seed| run(seed, plan(seed), 40).crashes).sum();
        assert!(crashes > 0 || seeds().count() < 100, "a test of crashes without one");
    }

    /// The connection cut at every packet of a short run, one after the other.
    #[test]
    fn world_with_the_connection_cut_at_any_packet_goes_on() {
        for seed in 0..2 {
            let cut_at = |packet| {
                let network = FaultPlan { cut_at_packet: Some(packet), ..FaultPlan::calm() };
                run(seed, WorldPlan { network, crash_ppm: 0 }, 12)
            };
            let runs = (0..).map(|packet| (packet, cut_at(packet)));
            // The first that ends before its cut is the last.
            let runs: Vec<Faults> =
                runs.take_while(|(packet, run)| *packet < run.packets).map(|(_, run)| run).collect();
            let reconnects = runs.iter().filter(|run| run.reconnects > 0).count();
            assert!(runs.iter().all(|run| run.cuts == 1), "{runs:?}");
            // Before it has mounted, a client begins anew.
            assert!(reconnects > runs.len() / 2, "{reconnects} of {} runs", runs.len());
        }
    }
}
