//! What clients do while servers come and go, and what must be so afterwards.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_client::{Export, File, LockKind, OpenOptions, Session};

/// Bytes of a record.
const RECORD_SIZE: usize = 32;
/// A file that all append to, and one in which all count under a lock.
const LOG: &str = "log";
const COUNTER: &str = "counter";

/// What a client has done, each step of it acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) client: usize,
    pub(crate) appended: usize,
    pub(crate) counted: u64,
    pub(crate) names: usize,
    /// The longest that one step took.
    pub(crate) longest: Duration,
}

impl Done {
    fn time(&mut self, step: impl FnOnce()) {
        let began = Instant::now();
        step();
        self.longest = self.longest.max(began.elapsed());
    }
}

fn open(export: &Export, name: &str) -> File {
    export.open_with(name, OpenOptions::new().read(true).write(true).create(true)).unwrap()
}

fn record(client: usize, number: usize) -> Vec<u8> {
    let mut record = format!("{client:08} {number:08} ").into_bytes();
    record.resize(RECORD_SIZE - 1, b'.');
    record.push(b'\n');
    record
}

/// Works until it is told to end.
pub(crate) fn work(session: &Session, client: usize, is_over: &Arc<AtomicBool>) -> Done {
    let export = session.mount("data").unwrap();
    let (log, counter) = (open(&export, LOG), open(&export, COUNTER));
    let mut done = Done { client, ..Done::default() };
    while !is_over.load(Ordering::Acquire) {
        let (appended, names) = (done.appended, done.names);
        done.time(|| {
            log.append(&record(client, appended)).unwrap();
        });
        done.appended += 1;
        if done.appended.is_multiple_of(3) {
            done.time(|| count(&counter));
            done.counted += 1;
        }
        if done.appended.is_multiple_of(2) {
            done.time(|| change_names(&export, client, names));
            done.names += 1;
        }
    }
    done
}

/// Adds one, under a lock.
fn count(counter: &File) {
    counter.lock(0..8, LockKind::Exclusive).unwrap();
    let mut bytes = [0; 8];
    let len = counter.read_at(&mut bytes, 0).unwrap();
    let before = if len == 8 { u64::from_le_bytes(bytes) } else { 0 };
    counter.write_all_at(&(before + 1).to_le_bytes(), 0).unwrap();
    counter.commit().unwrap();
    counter.unlock(0..8).unwrap();
}

/// Each of these fails if it is done twice.
fn change_names(export: &Export, client: usize, number: usize) {
    let name = |what: &str| format!("{what}-{client}-{number}");
    let made = export.open_with(name("made"), OpenOptions::new().write(true).create_new(true));
    drop(made.unwrap_or_else(|error| panic!("{}: {error}", name("made"))));
    export
        .create_dir(name("directory"), 0o755)
        .unwrap_or_else(|error| panic!("{}: {error}", name("directory")));
    export
        .rename(name("made"), export.root(), name("moved"), false)
        .unwrap_or_else(|error| panic!("{}: {error}", name("moved")));
    export.remove_dir(name("directory")).unwrap_or_else(|error| panic!("{}: {error}", name("directory")));
    if number.is_multiple_of(2) {
        export.remove_file(name("moved")).unwrap_or_else(|error| panic!("{}: {error}", name("moved")));
    }
}

/// Everything that was acknowledged is there, once.
pub(crate) fn check(data: &std::path::Path, all: &[Done]) {
    let log = std::fs::read(data.join(LOG)).unwrap();
    let mut seen: HashMap<usize, Vec<usize>> = HashMap::new();
    for (place, record) in log.chunks(RECORD_SIZE).enumerate() {
        let text =
            std::str::from_utf8(record).unwrap_or_else(|_| panic!("record {place} is torn: {record:?}"));
        let mut fields = text.split(' ');
        let mut number = || fields.next().and_then(|field| field.parse::<usize>().ok());
        let (client, number) =
            (number().unwrap_or_else(|| panic!("record {place} is torn: {text:?}")), number().unwrap());
        seen.entry(client).or_default().push(number);
    }
    for done in all {
        let expected: Vec<usize> = (0..done.appended).collect();
        let found = seen.remove(&done.client).unwrap_or_default();
        assert_eq!(found, expected, "records of client {}, in their order", done.client);
        for number in 0..done.names {
            let moved = data.join(format!("moved-{}-{number}", done.client));
            assert_eq!(moved.exists(), number % 2 == 1, "{}", moved.display());
        }
    }
    assert!(seen.is_empty(), "records of nobody");
    let counted: u64 = all.iter().map(|done| done.counted).sum();
    if counted > 0 {
        let counter = std::fs::read(data.join(COUNTER)).unwrap();
        assert_eq!(u64::from_le_bytes(counter.try_into().unwrap()), counted, "what was counted under a lock");
    }
}
