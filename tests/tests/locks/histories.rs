//! Histories of concurrent clients, while connections break and the server is started anew, are those of one table of locks: each request
//! takes effect at one moment between its sending and its answer. Checked by the tester of stateright.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dafs_client::{Background, Config, Error, Export, File, OpenOptions, Session, Status};
use dafs_proto::wire::LockKind;
use dafs_server::config::ExportKind;
use dafs_tests::cut::cut_connections;
use dafs_tests::harness::{Harness, On};
use dafs_tests::program::Program;
use dafs_tests::suite::Numbers;
use dafs_tests::{on_each_provider, on_each_provider_and_three_workers};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use LockKind::{Exclusive, Shared};

on_each_provider_and_three_workers! {
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
    /// Nothing: another has a part, or waits for it.
    Locked,
    /// Nothing: those who had locks before a restart go first.
    Grace,
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
                    return Got::Locked;
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

/// What was sent and answered, and when that was noted.
#[derive(Default)]
struct History(Mutex<Vec<(Instant, Event)>>);

/// What a client notes. Whoever disturbs it hears of that.
struct Witness<'a> {
    history: &'a History,
    heard: Sender<()>,
}

#[derive(Clone, Debug)]
enum Event {
    Sent(usize, Wish),
    Answered(usize, Got),
}

impl Witness<'_> {
    fn note(&self, event: Event) {
        let mut events = self.history.lock();
        // Nobody comes between the time and its place.
        events.push((Instant::now(), event));
        drop(events);
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
    fn lock(&self) -> MutexGuard<'_, Vec<(Instant, Event)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it, in the order of time.
    fn events(&self) -> Vec<Event> {
        let mut events = self.lock().clone();
        events.sort_by_key(|(at, _)| *at);
        events.into_iter().map(|(_, event)| event).collect()
    }

    fn has(&self, client: usize, got: Got) -> bool {
        let is_it =
            |event: &Event| matches!(event, Event::Answered(of, found) if (*of, *found) == (client, got));
        self.lock().iter().any(|(_, event)| is_it(event))
    }
}

/// What was answered to the request at this place, and where; `None`: it never was.
fn answer(events: &[Event], at: usize) -> Option<(usize, Got)> {
    let Event::Sent(client, _) = &events[at] else { return None };
    let answer = |(place, event): (usize, &Event)| match event {
        Event::Answered(other, got) if other == client => Some((place, *got)),
        _ => None,
    };
    events.iter().enumerate().skip(at).find_map(answer)
}

/// The history is one of the table's, but for what was refused: another may have waited for a part of it.
fn is_linearizable(events: &[Event]) -> bool {
    let mut tester = LinearizabilityTester::new(Table::default());
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::Sent(client, wish) if matches!(answer(events, at), None | Some((_, Got::It))) => {
                assert!(tester.on_invoke(*client, wish.clone()).is_ok());
            }
            Event::Answered(client, Got::It) => assert!(tester.on_return(*client, Got::It).is_ok()),
            Event::Sent(..) | Event::Answered(..) => {}
        }
    }
    tester.is_consistent()
}

/// A lock that was refused although nobody could have been in its way: its place.
fn unfounded(events: &[Event]) -> Option<usize> {
    (0..events.len()).find(|&at| {
        let Event::Sent(client, Wish::Lock(_, range, kind)) = &events[at] else { return false };
        let Some((answered, Got::Locked)) = answer(events, at) else { return false };
        !range.clone().any(|offset| {
            (0..=CLIENTS)
                .any(|other| other != *client && is_in_the_way(events, (other, offset, *kind), at..answered))
        })
    })
}

/// Whether, at some time of an interval, this client may have had the offset, or waited for it, so that others cannot lock it.
fn is_in_the_way(
    events: &[Event],
    (client, offset, kind): (usize, u64, LockKind),
    during: Range<usize>,
) -> bool {
    let mut may_have = false;
    for (at, event) in events[..during.end].iter().enumerate() {
        let Event::Sent(of, wish) = event else { continue };
        if *of != client {
            continue;
        }
        let is_over = |got: fn(Got) -> bool| {
            answer(events, at).is_some_and(|(end, found)| end < during.start && got(found))
        };
        match wish {
            Wish::Lock(_, range, held) if range.contains(&offset) && (*held, kind) != (Shared, Shared) => {
                may_have |= !is_over(|found| found != Got::It);
            }
            Wish::Unlock(_, range) if range.contains(&offset) && is_over(|_| true) => may_have = false,
            // When it ends is not known.
            Wish::Lock(..) | Wish::Unlock(..) | Wish::End(_) => {}
        }
    }
    may_have
}

fn got(answer: &Result<bool, Error>) -> Got {
    match answer {
        Ok(true) => Got::It,
        Ok(false) => Got::Locked,
        Err(Error::Status { status: Status::GRACE, .. }) => Got::Grace,
        // Whoever waits has nothing, so that there is no circle.
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
        config.state_file = Some(data.with_file_name("locks"));
        (config.lease_ms, config.keep_alive_ms) = (lease_ms, keep_alive_ms);
    })
}

/// As long as a client that ended beside a restart is waited for.
const LEASE: [u32; 2] = [5000, 1000];

/// How a client ends that has something.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Told,
    /// Its locks are its own until a lease of this length is over.
    Silent(Duration),
}

/// When a server is disturbed.
#[derive(Clone, Copy)]
struct Moment {
    /// How often it was, or could have been. Not more often than something is sent or answered: whoever disturbs faster than anything goes
    /// on sees nothing else.
    times: u32,
    /// The last client has its lock, and keeps it until this is over.
    is_held: bool,
}

/// What came of histories.
#[derive(Debug, Default)]
struct Tally {
    seeds: u64,
    /// Locks granted.
    grants: u64,
    /// How often the server was disturbed, and of that, while a client kept a lock.
    disturbed: u64,
    while_held: u64,
}

impl Tally {
    /// Each server was disturbed while a lock was held, and not only then. The two may be one where this thread gets no time.
    fn assert_disturbed(&self) {
        assert!(self.while_held == self.seeds && self.disturbed > self.seeds, "{self:?}");
    }
}

/// Clients of `server` act at random; the last, whose session is `last`, ends with what it has. `disturb` is called while they do, and
/// tells whether it did anything. Where nothing `restarts` the server, no lock is refused for that.
fn histories<S>(
    server: &mut S,
    session: fn(&S, &Config) -> Session,
    (end, restarts): (End, bool),
    seeds: Range<u64>,
    mut disturb: impl FnMut(&mut S, Moment) -> bool,
) -> Tally {
    let (usual, silent) = (Config::default(), Config { background: Background::None, ..Config::default() });
    let mut tally = Tally::default();
    for seed in seeds {
        let history = History::default();
        let sessions: Vec<_> = (0..=CLIENTS)
            .map(|client| {
                let is_silent = client == CLIENTS && end != End::Told;
                let session = session(server, if is_silent { &silent } else { &usual });
                // What those of other seeds had may not have ended yet.
                let export = session.mount("data").unwrap();
                let mut options = OpenOptions::new();
                let file = export.open_with(format!("f{seed}"), options.read(true).write(true).create(true));
                (session, export, file.unwrap())
            })
            .collect();
        std::thread::scope(|scope| {
            let (heard, events) = channel();
            let (goes_on, mut told) = channel();
            for (client, client_of) in sessions.into_iter().enumerate() {
                let witness = Witness { history: &history, heard: heard.clone() };
                let told = (client == CLIENTS).then(|| std::mem::replace(&mut told, channel().1));
                scope.spawn(move || match told {
                    Some(told) => hold_and_end(&witness, client_of, end, &told),
                    None => act(&witness, client, &client_of.2, &mut Numbers::new(seed << 8 | client as u64)),
                });
            }
            drop(heard);
            let (mut times, mut was_held) = (0, false);
            while events.recv().is_ok() {
                // All that was noted meanwhile.
                events.try_iter().for_each(drop);
                times += 1;
                let is_held = !was_held && history.has(CLIENTS, Got::It);
                was_held |= is_held;
                let is_disturbed = disturb(server, Moment { times, is_held });
                tally.disturbed += u64::from(is_disturbed);
                tally.while_held += u64::from(is_disturbed && is_held);
                if is_held {
                    goes_on.send(()).unwrap();
                }
            }
        });
        tally.seeds += 1;
        tally.grants += judge(&history.events(), seed, restarts);
    }
    // Each waits for a lock or two.
    assert!(tally.grants >= 3 * tally.seeds, "{tally:?}");
    tally
}

/// Returns how many locks were granted.
fn judge(events: &[Event], seed: u64, restarts: bool) -> u64 {
    assert!(is_linearizable(events), "seed {seed}");
    let refused = unfounded(events);
    assert!(refused.is_none(), "seed {seed}: nobody was in the way of {refused:?} of {events:?}");
    let has_grace = events.iter().any(|event| matches!(event, Event::Answered(_, Got::Grace)));
    assert!(restarts || !has_grace, "seed {seed}: {events:?}");
    let is_grant = |at: &usize| {
        matches!(events[*at], Event::Sent(_, Wish::Lock(..)))
            && matches!(answer(events, *at), Some((_, Got::It)))
    };
    (0..events.len()).filter(is_grant).count() as u64
}

/// The last client.
fn hold_and_end(
    witness: &Witness<'_>,
    (session, export, file): (Session, Export, File),
    end: End,
    told: &Receiver<()>,
) {
    let (client, asked) = (CLIENTS, Instant::now());
    let wish = Wish::Lock(client, 0..1, Exclusive);
    witness.of(client, wish, || file.lock(0..1, Exclusive).map(|()| true), got).unwrap();
    told.recv().expect("whoever disturbs has not failed");
    // What it ends is free at some time after this.
    let ended = Event::Sent(client, Wish::End(client));
    match end {
        End::Told => {
            // On a connection that was cut it could not tell.
            session.ping().unwrap();
            witness.note(ended);
            drop((file, export, session));
        }
        End::Silent(lease) => {
            // The server heard of it later than it began to ask, whenever that is noted.
            witness.history.lock().push((asked + lease, ended));
            std::mem::forget((file, export, session));
        }
    }
}

#[test]
fn history_that_is_none_of_a_table_is_found() {
    let lock = |client| Event::Sent(client, Wish::Lock(client, 0..2, Exclusive));
    let share = |client| Event::Sent(client, Wish::Lock(client, 0..2, Shared));
    let unlock = |client| Event::Sent(client, Wish::Unlock(client, 1..2));
    let unlock_all = |client| Event::Sent(client, Wish::Unlock(client, 0..9));
    let done = |client| Event::Answered(client, Got::It);
    let refused = |client| Event::Answered(client, Got::Locked);
    assert!(!is_linearizable(&[lock(0), done(0), lock(1), done(1)]));
    assert!(!is_linearizable(&[lock(0), done(0), unlock(0), done(0), lock(1), done(1)]));
    assert!(is_linearizable(&[lock(0), done(0), Event::Sent(0, Wish::End(0)), lock(1), done(1)]));
    assert!(is_linearizable(&[lock(0), lock(1), refused(1), done(0)]));
    let founded = |events: &[Event]| unfounded(events).is_none();
    assert!(!founded(&[lock(0), refused(0)]));
    assert!(!founded(&[lock(0), done(0), unlock_all(0), done(0), lock(1), refused(1)]));
    assert!(!founded(&[share(0), done(0), share(1), refused(1)]));
    assert!(!founded(&[lock(0), done(0), lock(1), refused(1), unlock_all(0), done(0), lock(2), refused(2)]));
    assert!(founded(&[lock(0), lock(1), refused(1), done(0)]));
    assert!(founded(&[lock(0), done(0), unlock(0), done(0), lock(1), refused(1)]));
    assert!(founded(&[lock(0), done(0), unlock_all(0), lock(1), done(0), refused(1)]));
}

// [LOCK-1] [LOCK-2] [LOCK-4] [LOCK-9] [LOCK-17]
fn history_of_concurrent_clients_is_one_of_a_table(on: On) {
    let kind = (End::Told, false);
    histories(&mut start(on, LEASE), Harness::session_with, kind, 0..on.rounds(5), |_, _| false);
}

// [LOCK-1] [LOCK-28] [LOCK-70]
fn history_with_broken_connections_is_one_of_a_table(on: On) {
    let (kind, seeds) = ((End::Told, false), 100..100 + on.rounds(3));
    let tally = histories(&mut start(on, LEASE), Harness::session_with, kind, seeds, |harness, _| {
        cut_connections(harness.address());
        true
    });
    tally.assert_disturbed();
}

/// When a server is started anew: before anybody has a lock, and while one is surely held. Whoever had locks and gave all of them back has
/// none to reclaim, so that the others wait for a lease behind a restart.
fn is_restarted(moment: Moment) -> bool {
    moment.is_held || moment.times == 1
}

// [LOCK-32] [LOCK-67] [LOCK-70]
fn history_with_restarts_is_one_of_a_table(on: On) {
    let (kind, seeds) = ((End::Told, true), 200..200 + on.rounds(3));
    let tally = histories(&mut start(on, LEASE), Harness::session_with, kind, seeds, |harness, moment| {
        let restarts = is_restarted(moment);
        if restarts {
            harness.restart();
        }
        restarts
    });
    tally.assert_disturbed();
}

// [LOCK-31] [LOCK-32] [LOCK-67] [LOCK-70] Nothing of what the server had in memory is left.
fn history_with_kills_is_one_of_a_table(on: On) {
    let places = tempfile::tempdir().unwrap();
    let state_file = places.path().join("state");
    let lease = LEASE.map(|ms| ms.to_string());
    let flags =
        ["--state-file", state_file.to_str().unwrap(), "--lease-ms", &lease[0], "--keep-alive-ms", &lease[1]];
    let mut program = Program::start(on, &flags);
    let (kind, seeds) = ((End::Told, true), 300..300 + on.rounds(3));
    let tally = histories(&mut program, Program::session_with, kind, seeds, |program, moment| {
        let restarts = is_restarted(moment);
        if restarts {
            program.kill_and_start();
        }
        restarts
    });
    tally.assert_disturbed();
}

// [LOCK-9] What a silent client has is free when its lease is over, and not before.
fn history_with_clients_that_go_silent_is_one_of_a_table(on: On) {
    let lease = [3000, 100];
    let kind = (End::Silent(Duration::from_millis(lease[0].into())), false);
    let seeds = 400..400 + on.rounds(2);
    histories(&mut start(on, lease), Harness::session_with, kind, seeds, |_, _| false);
}
