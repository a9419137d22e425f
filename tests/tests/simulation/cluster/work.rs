//! What clients of a cluster do, and what must be so afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_client::{Clock, Config, Error, Export, File, LockKind, OpenOptions, Session, Status};
use dafs_proto::transport::sim::Random;
use dafs_tests::sim::cluster::ClientsPlace;
use dafs_tests::suite::bytes;

/// Bytes of a record.
const RECORD: usize = 48;
/// Steps of one client.
const STEPS: usize = 6;
/// Files in which all count, each under its lock.
const COUNTERS: usize = 2;
/// One that they count in without locks, and attempts to open it.
const ALONE: &str = "alone";
const ATTEMPTS: usize = 10;
/// Names that all want to make.
const CONTESTED: u64 = 12;

/// What clients were told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    /// Records by client: their numbers, in order, and where they were said to be.
    appended: BTreeMap<usize, Vec<(u64, Option<u64>)>>,
    /// By file, and how many more it may have been.
    counted: [(u64, u64); COUNTERS],
    /// The same in a file that nobody else may open meanwhile, and how often somebody had to wait for that or has lost it.
    alone: (u64, u64),
    pub(super) waited: u64,
    pub(super) lost: u64,
    /// How often somebody has seen that nobody counted there.
    pub(super) looked: u64,
    /// Names that must be there, or not.
    names: BTreeMap<String, bool>,
    /// Who made which contested name.
    won: BTreeMap<u64, Vec<usize>>,
    /// How often a client was fenced off.
    pub(super) fences: u64,
    /// Outcomes that clients were told are not known.
    pub(super) unknown: u64,
    /// The longest that one step took.
    longest: Duration,
}

impl Ledger {
    /// In short.
    pub(super) fn said(&self) -> String {
        let appended: usize = self.appended.values().map(Vec::len).sum();
        let (names, won, counted, alone) = (self.names.len(), self.won.len(), self.counted, self.alone);
        format!(
            "{appended} {counted:?} {names} {won}, alone: {alone:?}, looked: {}, waited: {}, lost: {}, fences: {}, \
             unknown: {}, longest {:?}",
            self.looked, self.waited, self.lost, self.fences, self.unknown, self.longest
        )
    }
}

#[derive(Debug, Default)]
struct Inside {
    ledger: Ledger,
    /// Who has the lock of which counter.
    owners: [Option<usize>; COUNTERS],
    /// Nobody is fenced off any more.
    are_fences_done: bool,
}

/// See the module. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Work(Arc<Mutex<Inside>>);

struct Client<'a> {
    work: &'a Work,
    place: &'a ClientsPlace,
    number: usize,
    random: Random,
    session: &'a Session,
    export: Export,
    log: File,
    counters: Vec<File>,
    /// Of its records and names.
    next: u64,
}

fn open(export: &Export, name: &str) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    insist(|| export.open_with(name, options))
}

/// Tries again what does no harm when it is done twice.
pub(super) fn insist<T>(mut attempt: impl FnMut() -> dafs_client::Result<T>) -> T {
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(Error::InDoubt { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn record(client: usize, number: u64) -> Vec<u8> {
    let mut record = bytes((client as u64) << 32 | number, RECORD);
    record[..8].copy_from_slice(&(client as u64).to_le_bytes());
    record[8..16].copy_from_slice(&number.to_le_bytes());
    record
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn are_fences_done(&self) -> bool {
        self.lock().are_fences_done
    }

    /// A client was fenced off.
    pub(super) fn count_fence(&self) {
        self.lock().ledger.fences += 1;
    }

    pub(super) fn end_fences(&self) {
        self.lock().are_fences_done = true;
    }

    /// A client works.
    pub(super) fn play(&self, place: &ClientsPlace, number: usize, seed: u64) {
        let mut random = Random::new(seed ^ (number as u64) << 40 ^ 0x0000_776f_726b);
        place.sleep(Duration::from_millis(random.below(1000)));
        let session = connect(place, number, &ClientsPlace::config(number));
        let export = insist(|| session.mount("data"));
        let log = open(&export, "log");
        let counters = (0..COUNTERS).map(|counter| open(&export, &format!("counter-{counter}"))).collect();
        let mut client =
            Client { work: self, place, number, random, session: &session, export, log, counters, next: 0 };
        for _ in 0..STEPS {
            place.sleep(Duration::from_millis(client.random.below(3000)));
            let began = place.time();
            client.step();
            let took = place.time() - began;
            let mut inside = self.lock();
            inside.ledger.longest = inside.ledger.longest.max(took);
        }
        // Its locks and its session end.
        drop(client);
        session.close();
    }

    /// What was told is so.
    pub(super) fn check(&self, path: &Path) -> Ledger {
        let ledger = self.lock().ledger.clone();
        check_log(&std::fs::read(path.join("log")).expect("the log"), &ledger);
        for (counter, counted) in ledger.counted.iter().enumerate() {
            check_counter(&path.join(format!("counter-{counter}")), *counted);
        }
        check_counter(&path.join(ALONE), ledger.alone);
        for (name, is_there) in &ledger.names {
            assert_eq!(path.join(name).exists(), *is_there, "{name}");
        }
        for (number, winners) in &ledger.won {
            assert!(winners.len() == 1, "clients {winners:?} have all made contested-{number}");
            assert!(path.join(format!("contested-{number}")).exists(), "contested-{number} was made");
        }
        ledger
    }
}

pub(super) fn connect(place: &ClientsPlace, number: usize, config: &Config) -> Session {
    loop {
        match place.connect(number, config) {
            Ok(session) => return session,
            Err(Error::Connect(_) | Error::Handshake(_) | Error::Connection { .. }) => {
                place.sleep(Duration::from_millis(50));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn check_counter(path: &Path, (counted, perhaps): (u64, u64)) {
    // Where nobody has come to count it is not there.
    let content = std::fs::read(path).unwrap_or_default();
    let value = content.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let range = counted..=counted + perhaps;
    assert!(range.contains(&value), "{} is {value}, and {range:?} were counted", path.display());
}

fn check_log(log: &[u8], ledger: &Ledger) {
    let mut found: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
    for (place, bytes) in log.chunks(RECORD).enumerate() {
        let number = |at: usize| bytes.get(at..at + 8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let (client, number) = number(0).zip(number(8)).expect("whole records");
        assert!(bytes == record(client as usize, number), "record {place} is torn: {bytes:?}");
        found.entry(client as usize).or_default().push((number, (place * RECORD) as u64));
    }
    for (client, told) in &ledger.appended {
        let mut found = found.remove(client).unwrap_or_default().into_iter().peekable();
        for (number, offset) in told {
            match (found.next_if(|(other, _)| other == number), offset) {
                (Some((_, at)), Some(offset)) => {
                    assert_eq!(at, *offset, "record {number} of client {client}")
                }
                (None, Some(offset)) => panic!("record {number} of client {client} is lost, was at {offset}"),
                (_, None) => {}
            }
        }
        let more: Vec<_> = found.collect();
        assert!(more.is_empty(), "client {client} has appended these twice, or never: {more:?}");
    }
    assert!(found.is_empty(), "records of nobody: {found:?}");
}

impl Client<'_> {
    fn step(&mut self) {
        match self.random.below(12) {
            0..=3 => self.append(),
            4..=5 => self.count(),
            6 => self.contest(),
            7 => self.count_alone(),
            8 => self.look_alone(),
            _ => self.change_names(),
        }
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.place.note(&format!("client {}: {what}", self.number));
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn append(&mut self) {
        let number = self.next();
        let outcome = self.log.append(&record(self.number, number));
        self.note(format_args!("appended {number}: {outcome:?}"));
        let offset = self.known(outcome);
        self.work.lock().ledger.appended.entry(self.number).or_default().push((number, offset));
    }

    /// `None` where its outcome is not known.
    fn known<T>(&self, outcome: dafs_client::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(Error::InDoubt { .. }) => {
                self.work.lock().ledger.unknown += 1;
                None
            }
            Err(error) => panic!("client {}: {error:?}", self.number),
        }
    }

    /// Adds one, under a lock.
    fn count(&mut self) {
        let counter = self.random.index(COUNTERS);
        let file = &self.counters[counter];
        self.note(format_args!("locks {counter}"));
        insist(|| file.lock(0..8, LockKind::Exclusive));
        self.note(format_args!("has locked {counter}"));
        {
            let mut inside = self.work.lock();
            let before = inside.owners[counter].replace(self.number);
            assert!(before.is_none(), "client {} has the lock of {before:?}", self.number);
        }
        let mut bytes = [0; 8];
        let len = file.read_at(&mut bytes, 0).unwrap_or_else(|error| panic!("{error:?}"));
        let before = if len == 8 { u64::from_le_bytes(bytes) } else { 0 };
        self.place.sleep(Duration::from_millis(self.random.below(100)));
        file.write_all_at(&(before + 1).to_le_bytes(), 0).unwrap_or_else(|error| panic!("{error:?}"));
        self.note(format_args!("has counted {counter} to {}", before + 1));
        {
            let mut inside = self.work.lock();
            inside.ledger.counted[counter].0 += 1;
            inside.owners[counter] = None;
        }
        insist(|| file.unlock(0..8));
        self.note(format_args!("has unlocked {counter}"));
    }

    /// Opens the file that nobody else may open while somebody counts there.
    fn open_alone(&mut self, options: &OpenOptions) -> Option<File> {
        for _ in 0..ATTEMPTS {
            match self.export.open_with(ALONE, options) {
                Ok(file) => return Some(file),
                Err(error) if matches!(error.status(), Some(Status::SHARE_DENIED | Status::AGAIN)) => {
                    self.note(format_args!("does not open {ALONE}: {error:?}"));
                    self.work.lock().ledger.waited += 1;
                }
                Err(error) => panic!("client {}: {error:?}", self.number),
            }
            self.place.sleep(Duration::from_millis(self.random.below(500)));
        }
        None
    }

    /// Adds one, while nobody else may open the file.
    fn count_alone(&mut self) {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).deny_read(true).deny_write(true);
        let Some(file) = self.open_alone(&options) else { return };
        self.note(format_args!("has opened {ALONE}"));
        let Some(before) = self.read_counter(&file) else { return };
        self.place.sleep(Duration::from_millis(self.random.below(200)));
        // What was not answered may have been written.
        self.work.lock().ledger.alone.1 += 1;
        let written = file.write_all_at(&(before + 1).to_le_bytes(), 0);
        if written.map_or_else(|error| self.lost(error), Some).is_some() {
            let mut inside = self.work.lock();
            let (counted, perhaps) = inside.ledger.alone;
            inside.ledger.alone = (counted + 1, perhaps - 1);
            drop(inside);
            self.note(format_args!("has counted {ALONE} to {}", before + 1));
        }
    }

    /// Reads twice, and denies nothing. Who counts denies that, so nobody does meanwhile. The store may not know of the open, which is then
    /// lost with its server.
    fn look_alone(&mut self) {
        let reconnects = self.session.reconnects();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let Some(file) = self.open_alone(&options) else { return };
        let Some(first) = self.read_counter(&file) else { return };
        self.place.sleep(Duration::from_millis(self.random.below(200)));
        let Some(second) = self.read_counter(&file) else { return };
        self.note(format_args!("has seen {ALONE} at {first} and {second}"));
        if self.session.reconnects() == reconnects {
            assert_eq!(first, second, "client {}: somebody has counted beside it", self.number);
            self.work.lock().ledger.looked += 1;
        }
    }

    fn read_counter(&self, file: &File) -> Option<u64> {
        let mut bytes = [0; 8];
        match file.read_at(&mut bytes, 0) {
            Ok(8) => Some(u64::from_le_bytes(bytes)),
            Ok(_) => Some(0),
            Err(error) => self.lost(error),
        }
    }

    /// A file could not be opened again at another server.
    fn lost<T>(&self, error: Error) -> Option<T> {
        let Error::Stale { .. } = error else { panic!("client {}: {error:?}", self.number) };
        self.note(format_args!("has lost {ALONE}: {error:?}"));
        self.work.lock().ledger.lost += 1;
        None
    }

    /// Wants a name that others want too.
    fn contest(&mut self) {
        let number = self.random.below(CONTESTED);
        let name = format!("contested-{number}");
        let made = self.export.open_with(&name, OpenOptions::new().write(true).create_new(true));
        self.note(format_args!(
            "made {name}: {}",
            made.as_ref().map_or_else(|error| format!("{error:?}"), |_| "yes".into())
        ));
        let mut inside = self.work.lock();
        match made {
            Ok(_) => inside.ledger.won.entry(number).or_default().push(self.number),
            Err(Error::InDoubt { .. }) => {
                inside.ledger.unknown += 1;
            }
            // Whoever has made it may not have heard of it yet.
            Err(error) if error.status() == Some(Status::EXISTS) => {}
            Err(error) => panic!("client {}: {error:?}", self.number),
        }
    }

    /// Each of these fails if it is done twice.
    fn change_names(&mut self) {
        let number = self.next();
        let name = |what: &str| format!("{what}-{}-{number}", self.number);
        let [made, moved, linked, directory] = ["made", "moved", "linked", "directory"].map(name);
        let export = &self.export;
        let outcome = export.open_with(&made, OpenOptions::new().write(true).create_new(true));
        if !self.settle(&made, outcome.map(drop), true) {
            return;
        }
        let outcome = export.create_dir(&directory, 0o755).map(drop);
        if !self.settle(&directory, outcome, true) {
            return;
        }
        let outcome = export.rename(&made, export.root(), &moved, false);
        if !self.settle(&moved, outcome, true) {
            return;
        }
        self.work.lock().ledger.names.insert(made, false);
        let outcome = export.link(&moved, export.root(), &linked).map(drop);
        if !self.settle(&linked, outcome, true) {
            return;
        }
        let outcome = export.remove_dir(&directory);
        self.settle(&directory, outcome, false);
        let outcome = export.remove_file(&moved);
        self.settle(&moved, outcome, false);
    }

    /// A change was answered; whether it is known what came of it.
    fn settle(&self, name: &str, outcome: dafs_client::Result<()>, is_there: bool) -> bool {
        self.note(format_args!("{name} is there ({is_there}): {outcome:?}"));
        let is_known = self.known(outcome).is_some();
        let mut inside = self.work.lock();
        match is_known {
            true => drop(inside.ledger.names.insert(name.to_owned(), is_there)),
            false => drop(inside.ledger.names.remove(name)),
        }
        is_known
    }
}
