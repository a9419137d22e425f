//! Rings of the shared-memory transport scribbled over while both sides run: the connection ends, or goes on; nobody panics, hangs or reads
//! beyond the segment, and others do not notice. `DAFS_SEED=n` repeats one seed.
#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]
#![allow(clippy::cast_possible_truncation, reason = "offsets in a segment")]

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dafs_client::{Config, Error, ReconnectPolicy};
use dafs_proto::transport::{Access, Received};
use dafs_proto::wire::{Header, Opcode, Slot};
use dafs_tests::harness::On;
use dafs_tests::program::Program;
use dafs_tests::raw::{Raw, read_body, write_body};
use dafs_tests::suite::{Numbers, assert_same, bytes};

/// Segments are found among the mappings of this process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A segment in this process.
struct Segment {
    mapping: Range<u64>,
    memory: File,
}

/// Mappings of memory files, by where they begin.
fn mappings() -> Vec<Range<u64>> {
    let maps = std::fs::read("/proc/self/maps").unwrap();
    let maps = String::from_utf8_lossy(&maps);
    let shared = maps.lines().filter(|line| line.contains("/memfd:"));
    shared
        .filter_map(|line| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
        })
        .collect()
}

impl Segment {
    /// The segments that were mapped since `before`.
    fn new_since(before: &[Range<u64>]) -> Vec<Self> {
        let memory = || OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
        let new = mappings().into_iter().filter(|mapping| !before.contains(mapping));
        new.map(|mapping| Self { mapping, memory: memory() }).collect()
    }

    /// Writes a ring entry of the client that looks new to the server: it is taken behind the message before it.
    fn forge_entry(&self, numbers: &mut Numbers, message: u32) {
        let mut pick = |values: [u64; 4]| values[numbers.below(4) as usize];
        let payload_len = pick([0, 500, 16 << 10, u64::from(u32::MAX)]) as u32;
        let (buffer, head_len) = (pick([0, 79, 80, 65_535]) as u16, pick([0, 40, 112, 200]) as u8);
        let kind = pick([1, 0x81, 2, 77]) as u8;
        let mut entry = bytes(u64::from(message), 128);
        entry[..4].copy_from_slice(&(message + 1).to_ne_bytes());
        entry[4..8].copy_from_slice(&0u32.to_ne_bytes());
        entry[8..12].copy_from_slice(&payload_len.to_ne_bytes());
        entry[12..14].copy_from_slice(&buffer.to_ne_bytes());
        (entry[14], entry[15]) = (head_len, kind);
        self.memory.write_all_at(&entry, self.mapping.start + 512 + u64::from(message) * 128).unwrap();
    }

    /// Writes a few bytes where control words, ring entries or region records lie.
    fn scribble(&self, numbers: &mut Numbers, sleeping_too: bool) {
        const RINGS: u64 = 512;
        const RECORDS: u64 = 36 << 10;
        let at = match numbers.below(10) {
            0..3 => numbers.below(RINGS),
            3..9 => RINGS + numbers.below(RECORDS - RINGS),
            _ => RECORDS + numbers.below(4096),
        };
        if !sleeping_too && matches!(at, 0..4 | 128..132) {
            return;
        }
        let len = 1 + numbers.below(8);
        // Small values get further.
        let shift = numbers.below(8);
        let garbage: Vec<u8> = (0..len).map(|_| (numbers.below(256) >> shift) as u8).collect();
        if at + len <= self.mapping.end - self.mapping.start {
            // Nothing else of this process lies there: the mapping is of a connection that this thread uses.
            if mappings().contains(&self.mapping) {
                self.memory.write_all_at(&garbage, self.mapping.start + at).unwrap();
            }
        }
    }
}

fn seeds(count: u64) -> Range<u64> {
    match std::env::var("DAFS_SEED") {
        Ok(seed) => seed.parse().map(|seed: u64| seed..seed + 1).unwrap(),
        Err(_) => 0..count,
    }
}

mod shm {
    use super::*;

    // [SHM-10] [SHM-11] [SHM-24]
    #[test]
    fn server_whose_client_scribbles_ends_that_connection_and_serves_the_others() {
        let _alone = ALONE.lock();
        let program = Program::start(On::Shm, &[]);
        let bystander = program.session();
        let root = bystander.mount("mem").unwrap();
        let file = root.create("f").unwrap();
        let data = bytes(1, 200_000);
        file.write_all_at(&data, 0).unwrap();
        let mut ended = 0;
        for seed in seeds(80) {
            ended += u32::from(scribbling_client(&program, seed));
            let mut found = vec![0; data.len()];
            file.read_exact_at(&mut found, 0).unwrap_or_else(|error| panic!("DAFS_SEED={seed}: {error}"));
            assert_same(&found, &data, &format!("a bystander's file, DAFS_SEED={seed}"));
        }
        assert_eq!(bystander.reconnects(), 0);
        assert!(ended >= 20 || std::env::var("DAFS_SEED").is_ok(), "only {ended} connections were ended");
        let begin = Instant::now();
        while bystander.statistics().unwrap().connections > 1 {
            assert!(begin.elapsed() < Duration::from_secs(60), "connections of dead clients stay");
            std::thread::yield_now();
        }
    }

    /// Requests and garbage by turns; whether the server ended the connection.
    fn scribbling_client(program: &Program, seed: u64) -> bool {
        let mut numbers = Numbers::new(seed);
        let before = mappings();
        let (mut raw, _) = Raw::session(program.address(), 16);
        let root = raw.mount("mem");
        let handle = raw.create(root, format!("of {seed}").as_bytes());
        let segments = Segment::new_since(&before);
        assert!(!segments.is_empty(), "the connection's segment is mapped");
        let region = raw.region(100_000, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let range = region.range();
        // The handshake used the first slot twice.
        let (mut sequences, mut busy) = ([0; 16], [false; 16]);
        sequences[0] = 2;
        // Half of the clients forge whole entries, the others scribble.
        let forges = seed.is_multiple_of(2);
        for round in 0..100 {
            let forging = forges && round == 3 + seed as u32 % 20;
            if forging {
                // Four messages came before the first of these.
                segments.iter().for_each(|segment| segment.forge_entry(&mut numbers, 4 + round + 1));
            }
            for _ in 0..if forges { 0 } else { numbers.below(4) } {
                let segment = numbers.below(segments.len() as u64) as usize;
                segments[segment].scribble(&mut numbers, true);
            }
            let direct = (numbers.below(3) == 0).then_some([range.key.0, range.offset, 100_000]);
            let (len, payload) = direct.map_or((500, vec![7; 500]), |_| (100_000, Vec::new()));
            let (opcode, body, payload) = match numbers.below(2) {
                0 => (Opcode::Write, write_body(0, len, direct), payload),
                _ => (Opcode::Read, read_body(0, len, direct), Vec::new()),
            };
            let Some(slot) = busy.iter().position(|busy| !busy) else { break };
            sequences[slot] += 1;
            busy[slot] = true;
            let mut header = Header::request(opcode, handle);
            header.slot = Slot(slot as u32);
            header.sequence = sequences[slot];
            header.credits = 16;
            raw.send(header, &body, &payload);
            // Its own wakeups may be lost with what it wrote: it does not wait for an answer.
            for _ in 0..if forging { 5000 } else { 50 } {
                match raw.endpoint.recv() {
                    Ok(Some(Received::Message { head, payload_len })) => {
                        let reply = Header::decode(head.as_bytes(), payload_len);
                        let slot = reply.ok().and_then(|(reply, _)| busy.get_mut(reply.slot.0 as usize));
                        slot.into_iter().for_each(|busy| *busy = false);
                        if !forging {
                            break;
                        }
                    }
                    Ok(_) => std::thread::yield_now(),
                    Err(_) => return true,
                }
            }
        }
        false
    }

    // [WIRE-139] [SHM-11] Both sides meet the garbage.
    #[test]
    fn client_whose_rings_are_scribbled_gets_an_error_or_goes_on() {
        let _alone = ALONE.lock();
        let program = Program::start(On::Shm, &["--lease-ms", "1000", "--keep-alive-ms", "300"]);
        let reconnect = ReconnectPolicy { attempts_max: 3, ..ReconnectPolicy::default() };
        let config = Config { reconnect, background: dafs_client::Background::None, ..Config::default() };
        let (mut failed, mut fine) = (0, 0);
        for seed in seeds(40) {
            let mut numbers = Numbers::new(seed ^ 0x5eed);
            let before = mappings();
            let session = program.session_with(&config);
            let file = session.mount("mem").unwrap().create("f").unwrap();
            let segments = Segment::new_since(&before);
            for round in 0..40u64 {
                for _ in 0..numbers.below(3) {
                    let segment = numbers.below(segments.len() as u64) as usize;
                    segments[segment].scribble(&mut numbers, false);
                }
                let len = [100, 5000, 60_000][numbers.below(3) as usize];
                match file.write_at(&bytes(round, len), 0).and_then(|_| file.read_at(&mut vec![0; len], 0)) {
                    Ok(_) => fine += 1,
                    Err(
                        Error::Peer(_)
                        | Error::Connection { .. }
                        | Error::Status { .. }
                        | Error::Stale { .. }
                        | Error::InDoubt { .. }
                        | Error::Handshake(_),
                    ) => {
                        failed += 1;
                        break;
                    }
                    Err(error) => panic!("DAFS_SEED={seed}: {error:?}"),
                }
                if session.reconnects() > 0 {
                    // Its segment is another now.
                    failed += 1;
                    break;
                }
            }
            drop((file, session));
            let fresh = program.session_with(&config);
            fresh.ping().unwrap_or_else(|error| panic!("DAFS_SEED={seed}: {error}"));
        }
        assert!(
            fine > 0 && (failed > 0 || std::env::var("DAFS_SEED").is_ok()),
            "{fine} fine, {failed} failed"
        );
    }
}
