mod power_cuts;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;

use dafs_proto::wire::{FenceList, FenceMode, SessionId};
use redb::backends::InMemoryBackend;
use redb::{Database, TableDefinition};

use super::medium::{Medium, open_database};
use super::*;

fn record(start: u64) -> Record {
    Record { start, end: start + 5, session: 7, owner: 8, client: [9; 16], is_mandatory: true }
}

fn session(number: u64, proof: Option<u8>) -> Change {
    Change::Session(SessionId(number), proof.map(|byte| [byte; 32]))
}

/// What lasts of a range of the file of this number.
fn locks(number: u64, range: Range<u64>, records: Vec<Record>) -> Change {
    Change::Locks(LocksChange { file: (number, 5), range, records })
}

fn fence(export: &str, mode: FenceMode, keys: &[&str]) -> Change {
    let keys = keys.iter().map(|&key| key.to_owned()).collect();
    let clients = vec![[0xab; 16], [0; 16]];
    let addresses = vec!["10.0.0.0/8".into(), "local".into()];
    Change::Fence(export.to_owned(), FenceList { mode, clients, keys, addresses })
}

/// What is kept after these changes, each of which is written by itself.
pub(crate) fn kept_after(changes: impl IntoIterator<Item = Change>) -> Kept {
    let (database, _) = open_database(InMemoryBackend::new()).unwrap();
    for change in changes {
        tables::write(&database, std::iter::once(&change)).unwrap();
    }
    tables::read(&database).unwrap()
}

/// Writes, and waits for the end of it.
fn write(store: &Store, change: Change) -> Status {
    let (tell, told) = sync_channel(1);
    store.ask(change, Box::new(move |status| tell.send(status).unwrap()));
    told.recv().unwrap()
}

/// Opens it, closes it, and says what it has.
fn kept_in(path: &Path) -> Result<Kept, StoreError> {
    let (store, kept) = Store::open(path)?;
    store.close();
    Ok(kept)
}

fn fill(path: &Path) -> Kept {
    let (store, kept) = Store::open(path).unwrap();
    assert_eq!(kept, Kept::default());
    let records = |number: u64| (0..number % 5 + 1).map(|part| record(10 * part)).collect();
    let files = (0..40).map(|number| locks(number, 0..100, records(number)));
    let others = [
        session(1, Some(1)),
        session(2, Some(2)),
        session(1, None),
        locks(3, 0..u64::MAX, vec![]),
        fence("data", FenceMode::Deny, &["a key"]),
        fence("name with spaces", FenceMode::Allow, &[]),
        fence("gone", FenceMode::Deny, &[]),
        Change::Fence("gone".into(), FenceList::default()),
        Change::Fence("nobody".into(), FenceList { mode: FenceMode::Allow, ..FenceList::default() }),
    ];
    for change in files.chain(others) {
        assert_eq!(write(&store, change), Status::OK);
    }
    store.close();
    assert_eq!(write(&store, session(3, None)), Status::IO, "it is closed");
    kept_in(path).unwrap()
}

// [LOCK-31] [LOCK-43] [ACC-136]
#[test]
fn what_was_written_is_there_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let kept = fill(&path);
    assert_eq!(kept.sessions, [(SessionId(2), [2; 32])]);
    assert_eq!(kept.locks.len(), 39);
    let of_seven = kept.locks.iter().find(|(name, _)| *name == (7, 5)).unwrap();
    assert_eq!(of_seven.1, [record(0), record(10), record(20)]);
    assert!(!kept.locks.iter().any(|(name, _)| *name == (3, 5)));
    let exports: Vec<_> = kept.fences.keys().map(String::as_str).collect();
    assert_eq!(exports, ["data", "name with spaces", "nobody"]);
    let Change::Fence(_, list) = fence("data", FenceMode::Deny, &["a key"]) else { unreachable!() };
    assert_eq!(kept.fences["data"], list);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
}

// [LOCK-43]
#[test]
fn what_reaches_beyond_a_range_that_is_written_stays_there() {
    let part = |start, end| Record { start, end, ..record(0) };
    let whole = || locks(1, 0..100, vec![part(0, 100)]);
    let before = || locks(1, 0..200, vec![part(0, 10), part(20, 30), part(40, 50), part(60, 70)]);
    for (changes, left) in [
        (vec![whole(), locks(1, 40..60, vec![])], vec![part(0, 40), part(60, 100)]),
        (vec![whole(), locks(1, 40..60, vec![part(45, 50)])], vec![part(0, 40), part(45, 50), part(60, 100)]),
        (vec![whole(), locks(1, 0..100, vec![])], vec![]),
        (vec![whole(), locks(1, 50..200, vec![part(150, 151)])], vec![part(0, 50), part(150, 151)]),
        (
            vec![before(), locks(1, 5..45, vec![part(10, 45)])],
            vec![part(0, 5), part(10, 45), part(45, 50), part(60, 70)],
        ),
        (vec![before(), locks(1, 30..60, vec![])], vec![part(0, 10), part(20, 30), part(60, 70)]),
        (
            vec![before(), locks(2, 0..u64::MAX, vec![])],
            vec![part(0, 10), part(20, 30), part(40, 50), part(60, 70)],
        ),
    ] {
        let found = kept_after(changes.clone()).locks.pop().map(|(_, records)| records).unwrap_or_default();
        assert_eq!(found, left, "{changes:?}");
    }
}

// [STATE-2]
#[test]
fn file_that_is_damaged_is_refused_or_says_what_it_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let kept = fill(&path);
    let good = fs::read(&path).unwrap();
    let mut refused = 0;
    let mut look = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        match kept_in(&path) {
            Err(StoreError::Unusable { .. }) => refused += 1,
            Err(error) => panic!("{what}: {error}"),
            Ok(found) => assert_eq!(found, kept, "{what}"),
        }
    };
    let used: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
    let header = 0..320;
    let elsewhere = used.iter().copied().step_by(used.len() / 150);
    for at in header.chain(elsewhere) {
        let mut changed = good.clone();
        changed[at] ^= 1 << (at % 8);
        look(&changed, &format!("byte {at}"));
    }
    for part in 0..16 {
        let len = good.len() * part / 16;
        look(&good[..len], &format!("{len} bytes"));
    }
    assert!(refused > 100, "{refused}");
    let refusal = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        kept_in(&path).unwrap_err().to_string()
    };
    let empty = refusal(&[]);
    assert!(empty.contains("it is empty; restore a backup, or remove it"), "{empty}");
    let other = refusal(b"something else that is longer than what is looked at first");
    assert!(other.contains("cannot use the state file") && other.contains("remove it"), "{other}");
    fs::write(&path, &good).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    assert!(matches!(kept_in(&path), Err(StoreError::Open { .. })));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(kept_in(&path).unwrap(), kept);
    let missing = kept_in(&directory.path().join("missing/state"));
    assert!(matches!(missing, Err(StoreError::Unusable { .. })));
}

const FORM: TableDefinition<'_, &str, u64> = TableDefinition::new("form");

// [STATE-5]
#[test]
fn lock_file_of_an_earlier_version_is_taken_over() {
    const SESSIONS: TableDefinition<'_, u64, [u8; 32]> = TableDefinition::new("sessions");
    const LOCKS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("locks");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks");
    let before = Database::create(&path).unwrap();
    let begun = before.begin_write().unwrap();
    {
        let records = [(0u64, 5u64, 7u64, 8u64, [9u8; 16], true), (10, 15, 7, 8, [9; 16], true)];
        let records = rmp_serde::to_vec(&records).unwrap();
        let mut form = begun.open_table(FORM).unwrap();
        form.insert("number", 1).unwrap();
        form.insert("sum", 77).unwrap();
        begun.open_table(SESSIONS).unwrap().insert(4, [4; 32]).unwrap();
        begun.open_table(LOCKS).unwrap().insert((2, 3), records.as_slice()).unwrap();
    }
    begun.commit().unwrap();
    drop(before);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let expected = Kept {
        sessions: vec![(SessionId(4), [4; 32])],
        locks: vec![((2, 3), vec![record(0), record(10)])],
        ..Kept::default()
    };
    assert_eq!(kept_in(&path).unwrap(), expected);
    assert_eq!(kept_in(&path).unwrap(), expected, "it is of the new form now");
}

// [STATE-7]
#[test]
fn file_of_another_version_or_kind_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let of_form = |name: &str, number: Option<u64>| {
        let path = directory.path().join(name);
        let made = Database::create(&path).unwrap();
        let begun = made.begin_write().unwrap();
        match number {
            Some(number) => drop(begun.open_table(FORM).unwrap().insert("number", number).unwrap()),
            None => drop(begun.open_table(TableDefinition::<u64, u64>::new("other")).unwrap()),
        }
        begun.commit().unwrap();
        drop(made);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        kept_in(&path).unwrap_err().to_string()
    };
    for (refusal, cause) in [
        (of_form("later", Some(3)), "its format version 3 is not supported"),
        (of_form("other", None), "it is not a state file"),
    ] {
        assert!(refusal.contains(cause), "{refusal}");
    }
    let path = directory.path().join("fences");
    fs::write(&path, "dafs-fences 1\nexport deny data\nkey lost\nend 0123456789abcdef\n").unwrap();
    let refusal = kept_in(&path).unwrap_err().to_string();
    for words in ["it is a fence file of an earlier version", "`dafs fence add`"] {
        assert!(refusal.contains(words), "{refusal}");
    }
}

// [STATE-3]
#[test]
fn file_that_another_server_uses_is_not_to_be_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let (first, _) = Store::open(&path).unwrap();
    let error = Store::open(&path).unwrap_err().to_string();
    assert!(error.contains("another server uses it; give each server its own"), "{error}");
    assert!(!error.contains("remove"), "{error}");
    first.close();
    assert_eq!(kept_in(&path).unwrap(), Kept::default());
}

/// Memory that fails on demand.
#[derive(Clone, Debug, Default)]
struct Failing {
    bytes: Arc<Mutex<Vec<u8>>>,
    fails: Arc<Mutex<bool>>,
}

impl Failing {
    fn check(&self) -> std::io::Result<()> {
        match *lock(&self.fails) {
            true => Err(rustix::io::Errno::NOSPC.into()),
            false => Ok(()),
        }
    }
}

impl Medium for Failing {
    type Backend = Self;

    fn backend(&self) -> std::io::Result<Self> {
        Ok(self.clone())
    }
}

impl redb::StorageBackend for Failing {
    fn len(&self) -> std::io::Result<u64> {
        Ok(lock(&self.bytes).len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        out.copy_from_slice(&lock(&self.bytes)[offset..offset + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        lock(&self.bytes).resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.check()?;
        let offset = usize::try_from(offset).unwrap();
        lock(&self.bytes)[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }
}

// [LOCK-60]
#[test]
fn change_that_has_happened_is_written_once_that_is_possible() {
    let medium = Failing::default();
    let unsettled = Arc::new(Mutex::new(Unsettled::default()));
    let mut keeper = Keeper::new(medium.clone(), None, Path::new("state"), Arc::clone(&unsettled));
    let mut write = |changes: Vec<(Change, bool)>| {
        let (tell, told) = channel();
        let sent = |(change, has_happened): (Change, bool)| {
            let number = match &change {
                Change::Locks(change) if has_happened => {
                    Some(lock(&unsettled).begin(change.file, &change.range, (7, 8)))
                }
                _ => None,
            };
            let tell = tell.clone();
            let tell: Tell = Box::new(move |status| tell.send(status).unwrap());
            Sent { change, number, has_happened, tell: Some(tell) }
        };
        keeper.write_together(changes.into_iter().map(sent).collect::<Vec<_>>().into_iter());
        (told.try_iter().collect::<Vec<_>>(), keeper.owed.len())
    };
    let is_unsettled = |range| lock(&unsettled).has((7, 5), &range, (7, 8));
    let before = vec![
        (session(2, Some(2)), false),
        (locks(7, 0..100, vec![record(0), record(10)]), false),
        (fence("data", FenceMode::Deny, &[]), true),
    ];
    assert_eq!(write(before), (vec![Status::OK; 3], 0));
    *lock(&medium.fails) = true;
    let ended = vec![
        (session(2, None), true),
        (locks(7, 0..20, vec![]), true),
        (session(8, Some(8)), false),
        (locks(7, 50..55, vec![record(50)]), false),
    ];
    assert_eq!(write(ended), (vec![Status::NO_SPACE; 4], 2));
    assert!(is_unsettled(19..30) && !is_unsettled(20..100), "what did not happen is over");
    assert!(!lock(&unsettled).has((7, 5), &(0..20), (7, 9)), "others have given nothing back");
    // Of each the newest is owed, and of ranges what no later one says.
    let more = vec![
        (session(2, None), true),
        (locks(7, 0..10, vec![]), true),
        (locks(7, 8..20, vec![record(12)]), true),
        (fence("data", FenceMode::Deny, &["one"]), true),
        (fence("data", FenceMode::Deny, &["two"]), true),
    ];
    assert_eq!(write(more), (vec![Status::NO_SPACE; 5], 4));
    assert!(is_unsettled(0..1) && is_unsettled(12..13));
    *lock(&medium.fails) = false;
    assert_eq!(write(vec![(session(9, Some(9)), false)]), (vec![Status::OK], 0));
    assert!(!is_unsettled(0..100) && lock(&unsettled).is_empty());
    drop(keeper);
    let (_, kept) = open_database(medium).unwrap();
    assert_eq!(kept.sessions, [(SessionId(9), [9; 32])]);
    assert_eq!(kept.locks, [((7, 5), vec![record(12)])]);
    assert_eq!(kept.fences["data"].keys, ["two"]);
}

// [STATE-2]
#[test]
#[ignore = "needs root"]
fn file_of_another_user_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    fill(&path);
    std::os::unix::fs::chown(&path, Some(4444), None).unwrap();
    assert!(matches!(kept_in(&path), Err(StoreError::Open { .. })));
    std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    assert!(kept_in(&path).is_ok());
}

/// A small file system; taken away with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn at(path: &Path) -> Self {
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
            .arg(path)
            .status();
        assert!(mounted.unwrap().success());
        Self(path.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

// [LOCK-35] [STATE-6]
#[test]
#[ignore = "needs mount"]
fn full_disk_is_told_of_and_what_was_written_before_stays() {
    let directory = tempfile::tempdir().unwrap();
    let mounted = Mounted::at(directory.path());
    let path = directory.path().join("state");
    let (store, _) = Store::open(&path).unwrap();
    let many = |number| locks(number, 0..u64::MAX, (0..1000).map(|part| record(10 * part)).collect());
    assert_eq!(write(&store, many(0)), Status::OK);
    let filler = directory.path().join("filler");
    assert!(fs::write(&filler, vec![1; 4 << 20]).is_err());
    let mut written = 1;
    let status = loop {
        match write(&store, many(written)) {
            Status::OK => written += 1,
            status => break status,
        }
    };
    assert_eq!(status, Status::NO_SPACE);
    assert_eq!(write(&store, many(written)), Status::NO_SPACE);
    // Cut, since a child of another test may have it open until its exec.
    fs::write(&filler, b"").unwrap();
    assert_eq!(write(&store, session(4, Some(4))), Status::OK, "there is room again");
    store.close();
    let kept = kept_in(&path).unwrap();
    assert_eq!(kept.locks.len() as u64, written);
    assert!(kept.locks.iter().all(|(_, records)| records.len() == 1000));
    assert_eq!(kept.sessions, [(SessionId(4), [4; 32])]);
    drop(mounted);
}
