//! Locks that are given up while they are asked for: what others ask for by the same owner, and what it held before, stays.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use dafs_client::{
    Config, Error, File, LockKind, LockOptions, Opcode, OpenOptions, Pending, Session, StaleCause, Status,
};
use dafs_proto::wire::{HEADER_SIZE, Header};
use dafs_tests::sim::{Action, ScriptedWorld};
use dafs_tests::suite::assert_status;

use LockKind::{Exclusive, Shared};

/// Two sessions, and a file of each.
struct Two {
    session: Session,
    file: File,
    other_session: Session,
    other: File,
    _world: ScriptedWorld,
}

impl Two {
    fn new(seed: u64) -> Self {
        let world = ScriptedWorld::new(seed);
        let connect = |client: u8| {
            let config = Config { client_id: Some([client; 16]), ..ScriptedWorld::config() };
            let session = world.connect(&config).unwrap();
            let file = open(&session);
            (session, file)
        };
        let ((session, file), (other_session, other)) = (connect(7), connect(8));
        Self { session, file, other_session, other, _world: world }
    }

    /// All that was submitted is answered, and what follows from that.
    fn settle(&self) {
        for _ in 0..2 {
            self.session.ping().unwrap();
            self.other_session.ping().unwrap();
        }
    }

    /// Whether the other session can lock a range, which it then gives back.
    fn is_free(&self, range: Range<u64>, kind: LockKind) -> bool {
        self.settle();
        let is_free = self.other.try_lock(range.clone(), kind).unwrap();
        self.other.unlock(range).unwrap();
        is_free
    }
}

fn open(session: &Session) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    session.mount("data").unwrap().open_with("f", &options).unwrap()
}

/// The head of a reply with this status.
fn reply(header: &Header, status: Status) -> Vec<u8> {
    let mut head = [0; HEADER_SIZE];
    header.reply(status).encode(&mut head);
    head.to_vec()
}

fn end<T>(mut pending: Pending<T>, two: &Two) -> T {
    two.settle();
    assert!(pending.test(), "it waits for nobody");
    pending.wait()
}

/// Another thread drops a file with a lock while this one waits for a reply, and has the session.
#[test]
fn lock_of_dropped_file_is_released_after_its_operation() {
    let world = ScriptedWorld::new(41);
    let (session, other_session) = (world.session(), world.session());
    let (file, other) = (open(&session), open(&other_session));
    file.lock(0..10, Exclusive).unwrap();
    let dropped = Mutex::new(Some(file));
    world.once(Opcode::Null, move |_| {
        let file = dropped.lock().unwrap().take();
        std::thread::spawn(move || drop(file)).join().unwrap();
        Action::Serve
    });
    session.ping().unwrap();
    assert!(other.try_lock(0..10, Exclusive).unwrap(), "nothing more is asked for by the first");
}

// [CLI-148]
#[test]
fn abandoned_lock_in_flight_spares_the_owners_later_lock() {
    let two = Two::new(1);
    drop(two.file.submit_lock(0..4, Exclusive));
    let lock = two.file.submit_lock(2..8, Exclusive);
    assert!(two.is_free(0..2, Shared), "nobody asks for it any more");
    end(lock, &two).unwrap();
    assert!(!two.is_free(2..3, Shared) && !two.is_free(7..8, Shared));
    two.file.unlock(0..8).unwrap();
    assert!(two.is_free(0..8, Exclusive));
}

// [CLI-148]
#[test]
fn abandoned_lock_spares_an_earlier_request() {
    for is_answered in [false, true] {
        let two = Two::new(2);
        let first = two.file.submit_lock(0..4, Exclusive);
        let second = two.file.submit_lock(0..4, Exclusive);
        if is_answered {
            two.settle();
        }
        drop(second);
        two.settle();
        end(first, &two).unwrap();
        assert!(!two.is_free(0..1, Shared), "{is_answered}");
        two.file.unlock(0..4).unwrap();
        assert!(two.is_free(0..4, Exclusive), "{is_answered}");
    }
}

// [CLI-142] [CLI-148]
#[test]
fn abandoned_lock_is_released_after_its_successor_is_refused() {
    let two = Two::new(3);
    two.other.lock(4..5, Exclusive).unwrap();
    drop(two.file.submit_lock(0..4, Exclusive));
    let refused = two.file.submit_try_lock_with(0..8, Exclusive, LockOptions::default());
    two.settle();
    two.settle();
    assert!(two.other.try_lock(0..4, Exclusive).unwrap(), "also before somebody collects the refusal");
    assert_status(refused.wait(), Status::LOCKED, "held by the other");
}

// [CLI-148]
#[test]
fn wait_given_up_ends_none_of_the_waits_that_are_like_it() {
    for in_flight in [false, true] {
        let two = Two::new(4);
        two.other.lock(0..4, Exclusive).unwrap();
        let given_up = two.file.submit_lock(0..4, Exclusive);
        if !in_flight {
            two.settle();
        }
        let wait = two.file.submit_lock(0..4, Exclusive);
        match in_flight {
            true => drop(given_up),
            false => {
                two.settle();
                assert!(matches!(given_up.cancel(), Err(Error::Cancelled)));
            }
        }
        two.settle();
        two.other.unlock(0..4).unwrap();
        end(wait, &two).unwrap();
        assert!(!two.is_free(0..1, Shared), "{in_flight}");
        two.file.unlock(0..4).unwrap();
        assert!(two.is_free(0..4, Exclusive), "{in_flight}");
    }
}

// [LOCK-26] [LOCK-69]
#[test]
fn last_of_equal_abandoned_waits_is_cancelled_at_the_server() {
    let two = Two::new(5);
    two.other.lock(0..4, Exclusive).unwrap();
    let waits = [0; 2].map(|_| two.file.submit_lock(0..4, Exclusive));
    two.settle();
    drop(waits);
    two.settle();
    two.other.unlock(0..4).unwrap();
    assert!(two.is_free(0..4, Exclusive));
}

// [CLI-142]
#[test]
fn abandoned_lock_of_another_kind_leaves_the_held_one() {
    let two = Two::new(6);
    two.file.lock(0..4, Shared).unwrap();
    drop(two.file.submit_lock(0..6, Exclusive));
    assert!(two.is_free(0..4, Shared) && !two.is_free(0..1, Exclusive), "it is shared again");
    assert!(two.is_free(4..6, Exclusive), "it was nobody's before");
    two.file.lock(0..4, Exclusive).unwrap();
    drop(two.file.submit_lock(0..6, Shared));
    assert!(!two.is_free(0..1, Shared), "it is exclusive again");
    assert!(two.is_free(4..6, Exclusive), "it was nobody's before");
}

// [CLI-181]
#[test]
fn file_is_stale_where_its_earlier_lock_cannot_be_restored() {
    let two = Two::new(7);
    two.file.lock(0..4, Exclusive).unwrap();
    two.file.lock(20..24, Exclusive).unwrap();
    two.file.lock_with(30..34, Exclusive, LockOptions { owner: Some(1), ..LockOptions::default() }).unwrap();
    let reads = two.other.submit_lock(0..4, Shared);
    two.settle();
    drop(two.file.submit_lock(0..6, Shared));
    two.settle();
    end(reads, &two).unwrap();
    assert!(two.is_free(4..6, Exclusive), "it was nobody's before");
    let refused = two.file.write_at(b"x", 0);
    let cause = StaleCause::Locks(Status::LOCKED);
    assert!(matches!(refused, Err(Error::Stale { cause: found, .. }) if found == cause), "{refused:?}");
    let Two { file, session, .. } = &two;
    assert!(file.lock(0..1, Exclusive).is_err());
    session.ping().unwrap();
    // What it has is given back all the same: others wait for it.
    file.unlock(20..24).unwrap();
    drop(file.submit_unlock_with(30..34, 1));
    assert!(two.is_free(20..24, Exclusive) && two.is_free(30..34, Exclusive));
    file.unlock(0..4).unwrap();
    assert!(two.is_free(0..4, Exclusive));
}

// [CLI-150] [LOCK-66]
#[test]
fn lock_is_put_back_beside_one_that_waits_for_another() {
    let two = Two::new(11);
    two.file.lock(0..10, Exclusive).unwrap();
    two.other.lock_with(15..16, Exclusive, LockOptions { owner: Some(1), ..LockOptions::default() }).unwrap();
    let waits = two.other.submit_lock(5..20, Shared);
    two.settle();
    drop(two.file.submit_lock(0..10, Shared));
    two.settle();
    two.file.write_all_at(b"x", 0).unwrap();
    two.other.unlock_with(15..16, 1).unwrap();
    two.file.unlock(0..10).unwrap();
    end(waits, &two).unwrap();
}

// [LOCK-72]
#[test]
fn reclaimed_lock_is_not_undone_for_one_abandoned_before() {
    let world = ScriptedWorld::new(9);
    let session = world.session();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session.mount("data").unwrap().open_with("f", &options).unwrap();
    let mut locks = 0;
    world.hook(move |header| {
        locks += usize::from(header.opcode == Opcode::Lock);
        match (header.opcode, locks) {
            // The lock, the one that is given up, and what puts it back.
            (Opcode::Lock, 3) => Action::CrashBefore,
            (Opcode::Lock, 5..) => Action::Say(reply(header, Status::TOO_MANY_LOCKS), Vec::new()),
            _ => Action::Serve,
        }
    });
    file.lock(0..4, Exclusive).unwrap();
    drop(file.submit_lock(0..4, Shared));
    for _ in 0..3 {
        session.ping().unwrap();
    }
    assert_eq!(world.count(Opcode::Lock), 4, "the last takes it again");
    file.write_all_at(b"x", 0).unwrap();
}

// [LOCK-73]
#[test]
fn unanswered_unlock_takes_no_later_lock_after_a_restart() {
    for is_executed in [true, false] {
        let world = ScriptedWorld::new(10);
        let (session, other_session) = (world.session(), world.session());
        let (file, other) = (open(&session), open(&other_session));
        file.lock(0..4, Exclusive).unwrap();
        file.lock(10..14, Exclusive).unwrap();
        let action = if is_executed { Action::Mute } else { Action::Ignore };
        world.once(Opcode::Unlock, move |_| action.clone());
        let unlock = file.submit_unlock(0..14);
        file.lock(0..4, Exclusive).unwrap();
        world.restart();
        session.ping().unwrap();
        unlock.wait().unwrap();
        assert!(!other.try_lock(0..4, Shared).unwrap(), "it is held");
        assert!(other.try_lock(10..14, Shared).unwrap(), "it was given back");
    }
}

// [LOCK-71]
#[test]
fn abandoned_repair_is_released_only_after_it_is_broken_again() {
    for is_broken_again in [true, false] {
        let world = ScriptedWorld::new(8);
        let session = world.session();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = session.mount("data").unwrap().open_with("f", &options).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        world.hook(move |header| {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(header.opcode, Opcode::Lock | Opcode::Unlock) {
                log.push(header.opcode);
            }
            let status = if log.len() == 1 || is_broken_again { Status::OK } else { Status::TOO_MANY_LOCKS };
            match header.opcode {
                Opcode::Lock => Action::Say(reply(header, status), Vec::new()),
                _ => Action::Serve,
            }
        });
        drop(file.submit_lock_with(0..4, Exclusive, LockOptions { repair: true, ..LockOptions::default() }));
        for _ in 0..4 {
            session.ping().unwrap();
        }
        let mut expected = vec![Opcode::Lock, Opcode::Lock];
        expected.extend(is_broken_again.then_some(Opcode::Unlock));
        let found = asked.lock().unwrap().clone();
        assert_eq!(found, expected);
    }
}
