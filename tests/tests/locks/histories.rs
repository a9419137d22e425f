//! Histories of concurrent clients, while connections break and the server is started anew, are those of one table of locks: each request
//! takes effect at one moment between its sending and its answer. Checked by the tester of stateright.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

use dafs_client::{Background, Config, Error, File, Session, Status};
use dafs_proto::wire::LockKind;
use dafs_server::config::ExportKind;
use dafs_tests::cut::cut_connections;
use dafs_tests::harness::{Harness, On};
use dafs_tests::program::Program;
use dafs_tests::suite::Numbers;
use dafs_tests::{on_each_provider, on_each_provider_and_two_workers};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use super::open;
use LockKind::{Exclusive, Shared};

on_each_provider_and_two_workers! {
    history_of_concurrent_clients_is_one_of_a_table,
    history_with_broken_connections_is_one_of_a_table,
    history_with_restarts_is_one_of_a_table,
}

mod ended {
    use super::*;

    // A server of its own has one worker, and which worker sees a lease end makes no difference.
    on_each_provider! {
        history_with_kills_is_one_of_a_table,
        history_with_clients_that_go_silent_is_one_of_a_table,
    }
}

const OFFSETS: u64 = 4;
/// The tester takes exponentially longer for more.
const CLIENTS: usize = 3;
const STEPS: u64 = 6;

/// Who has which offsets, and how.
#[derive(Clone, Debug, Default, PartialEq)]
struct Table(BTreeMap<(usize, u64), LockKind>);

#[derive(Clone, Debug, PartialEq)]
enum Wish {
    /// Whether it waits, it is granted when nothing is in its way.
    Lock(usize, Range<u64>, LockKind),
    Unlock(usize, Range<u64>),
    /// It ends with all that it has.
    End(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Got {
    It,
    /// Another has a part, or waits for it.
    Nothing,
}

impl Table {
    fn is_free(&self, owner: usize, range: &Range<u64>, kind: LockKind) -> bool {
        self.0.iter().all(|((other, at), held)| {
            *other == owner || !range.contains(at) || (*held == Shared && kind == Shared)
        })
    }
}

impl SequentialSpec for Table {
    type Op = Wish;
    type Ret = Got;

    fn invoke(&mut self, wish: &Wish) -> Got {
        match wish.clone() {
            Wish::Lock(owner, range, kind) => {
                if !self.is_free(owner, &range, kind) {
                    return Got::Nothing;
                }
                self.0.extend(range.map(|at| ((owner, at), kind)));
            }
            Wish::Unlock(owner, range) => {
                self.0.retain(|(other, at), _| *other != owner || !range.contains(at))
            }
            Wish::End(owner) => self.0.retain(|(other, _), _| *other != owner),
        }
        Got::It
    }
}

/// What was sent and answered, in the order in which that happened.
#[derive(Default)]
struct History(Mutex<Vec<Event>>);

/// What a client notes. Whoever disturbs it hears of that.
struct Witness<'a> {
    history: &'a History,
    heard: Sender<()>,
}

enum Event {
    Sent(usize, Wish),
    Answered(usize, Got),
}

impl Witness<'_> {
    fn note(&self, event: Event) {
        self.history.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        // Nobody hears it where the one who disturbs has failed.
        let _ = self.heard.send(());
    }

    fn of<T>(&self, client: usize, wish: Wish, ask: impl FnOnce() -> T, got: impl FnOnce(&T) -> Got) -> T {
        self.note(Event::Sent(client, wish));
        let answer = ask();
        self.note(Event::Answered(client, got(&answer)));
        answer
    }
}

impl History {
    /// It is one of the table's. What was refused says nothing: somebody may have waited for a part of it.
    fn is_linearizable(&self) -> bool {
        let events = self.0.lock().unwrap();
        let is_refused = |at: usize, client: usize| {
            let answer = events[at..].iter().find_map(|event| match event {
                Event::Answered(other, got) if *other == client => Some(*got),
                _ => None,
            });
            answer == Some(Got::Nothing)
        };
        let mut tester = LinearizabilityTester::new(Table::default());
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::Sent(client, _) if is_refused(at, *client) => {}
                Event::Sent(client, wish) => assert!(tester.on_invoke(*client, wish.clone()).is_ok()),
                Event::Answered(_, Got::Nothing) => {}
                Event::Answered(client, got) => assert!(tester.on_return(*client, *got).is_ok()),
            }
        }
        tester.is_consistent()
    }
}

fn got(answer: &Result<bool, Error>) -> Got {
    match answer {
        Ok(true) => Got::It,
        Ok(false) | Err(Error::Status { status: Status::DEADLOCK | Status::GRACE, .. }) => Got::Nothing,
        Err(error) => panic!("{error}"),
    }
}

fn act(witness: &Witness<'_>, client: usize, file: &File, numbers: &mut Numbers) {
    for _ in 0..STEPS {
        let start = numbers.below(OFFSETS);
        let range = start..start + 1 + numbers.below(OFFSETS - start);
        let kind = if numbers.below(2) == 0 { Shared } else { Exclusive };
        match numbers.below(5) {
            0 | 1 => {
                let wish = Wish::Lock(client, range.clone(), kind);
                let _ = witness.of(client, wish, || file.try_lock(range, kind), got);
            }
            2 => {
                // Whoever waits has nothing that others could wait for.
                unlock(witness, client, file, 0..OFFSETS);
                let wish = Wish::Lock(client, range.clone(), kind);
                let _ = witness.of(client, wish, || file.lock(range, kind).map(|()| true), got);
            }
            _ => unlock(witness, client, file, range),
        }
    }
    unlock(witness, client, file, 0..OFFSETS);
}

fn unlock(witness: &Witness<'_>, client: usize, file: &File, range: Range<u64>) {
    witness.of(client, Wish::Unlock(client, range.clone()), || file.unlock(range).unwrap(), |()| Got::It);
}

fn start(on: On, [lease_ms, keep_alive_ms]: [u32; 2]) -> Harness {
    Harness::start_with(on, |config| {
        let ExportKind::Directory(data) = &config.exports[0].kind else { unreachable!("the first is one") };
        config.lock_file = Some(data.with_file_name("locks"));
        (config.lease_ms, config.keep_alive_ms) = (lease_ms, keep_alive_ms);
    })
}

/// As long as a client that ended beside a restart is waited for.
const LEASE: [u32; 2] = [5000, 1000];

/// How a client ends that has something.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Told,
    Silent,
}

/// Clients of `server` act at random; the last, whose session is `last`, ends with what it has. `disturb` is called while they do, not more
/// often than something is sent or answered: whoever disturbs faster than anything goes on sees nothing else.
fn histories<S>(
    server: &mut S,
    session: fn(&S, &Config) -> Session,
    end: End,
    seeds: Range<u64>,
    mut disturb: impl FnMut(&mut S, u32),
) {
    let (usual, silent) = (Config::default(), Config { background: Background::None, ..Config::default() });
    for seed in seeds {
        let history = History::default();
        let sessions: Vec<_> = (0..=CLIENTS)
            .map(|client| {
                let is_silent = client == CLIENTS && end == End::Silent;
                let session = session(server, if is_silent { &silent } else { &usual });
                let (export, file) = open(&session);
                (session, export, file)
            })
            .collect();
        std::thread::scope(|scope| {
            let (heard, events) = channel();
            for (client, (session, export, file)) in sessions.into_iter().enumerate() {
                let witness = Witness { history: &history, heard: heard.clone() };
                scope.spawn(move || {
                    let mut numbers = Numbers::new(seed << 8 | client as u64);
                    if client < CLIENTS {
                        return act(&witness, client, &file, &mut numbers);
                    }
                    let wish = Wish::Lock(client, 0..1, Exclusive);
                    witness.of(client, wish, || file.lock(0..1, Exclusive).map(|()| true), got).unwrap();
                    // What it ends is free at some time after this.
                    witness.note(Event::Sent(client, Wish::End(client)));
                    match end {
                        End::Told => drop((file, export, session)),
                        End::Silent => std::mem::forget((file, export, session)),
                    }
                });
            }
            drop(heard);
            let mut times = 0;
            while events.recv().is_ok() {
                // All that was noted meanwhile.
                events.try_iter().for_each(drop);
                times += 1;
                disturb(server, times);
            }
        });
        assert!(history.is_linearizable(), "seed {seed}");
    }
}

#[test]
fn history_that_is_none_of_a_table_is_found() {
    let lock = |client| Event::Sent(client, Wish::Lock(client, 0..2, Exclusive));
    let unlock = |client| Event::Sent(client, Wish::Unlock(client, 1..2));
    let done = |client| Event::Answered(client, Got::It);
    let judged = |events: Vec<Event>| History(Mutex::new(events)).is_linearizable();
    assert!(!judged(vec![lock(0), done(0), lock(1), done(1)]));
    assert!(!judged(vec![lock(0), done(0), unlock(0), done(0), lock(1), done(1)]));
    assert!(judged(vec![lock(0), done(0), Event::Sent(0, Wish::End(0)), lock(1), done(1)]));
    assert!(judged(vec![lock(0), lock(1), Event::Answered(1, Got::Nothing), done(0)]));
}

// [LOCK-1] [LOCK-2] [LOCK-4] [LOCK-9]
fn history_of_concurrent_clients_is_one_of_a_table(on: On) {
    histories(&mut start(on, LEASE), Harness::session_with, End::Told, 0..on.rounds(5), |_, _| {});
}

// [LOCK-1] [LOCK-28] [CLI-147]
fn history_with_broken_connections_is_one_of_a_table(on: On) {
    let seeds = 100..100 + on.rounds(3);
    histories(&mut start(on, LEASE), Harness::session_with, End::Told, seeds, |harness, _| {
        cut_connections(harness.address());
    });
}

// [LOCK-32] [CLI-140] [CLI-147]
fn history_with_restarts_is_one_of_a_table(on: On) {
    let seeds = 200..200 + on.rounds(3);
    histories(&mut start(on, LEASE), Harness::session_with, End::Told, seeds, |harness, times| {
        if [1, 4, 8].contains(&times) {
            harness.restart();
        }
    });
}

// [LOCK-31] [LOCK-32] [CLI-140] [CLI-147] Nothing of what the server had in memory is left.
fn history_with_kills_is_one_of_a_table(on: On) {
    let places = tempfile::tempdir().unwrap();
    let lock_file = places.path().join("locks");
    let lease = LEASE.map(|ms| ms.to_string());
    let flags =
        ["--lock-file", lock_file.to_str().unwrap(), "--lease-ms", &lease[0], "--keep-alive-ms", &lease[1]];
    let mut program = Program::start(on, &flags);
    histories(&mut program, Program::session_with, End::Told, 300..300 + on.rounds(3), |program, times| {
        if [1, 4, 8].contains(&times) {
            program.kill_and_start();
        }
    });
}

// [LOCK-9] What a silent client has is free when its lease is over.
fn history_with_clients_that_go_silent_is_one_of_a_table(on: On) {
    let mut harness = start(on, [1500, 100]);
    histories(&mut harness, Harness::session_with, End::Silent, 400..400 + on.rounds(2), |_, _| {});
}
