//! Several servers of one store and one directory, in this process.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;

use dafs_proto::transport::{HeapMemory, MemoryRef};
use dafs_proto::wire::LockKind;

use super::coordination::{Committed, CoordinationError, Entry, LeaseId};
use super::intents::{Named, Ticket, What, Wish};
use super::memory::MemoryStore;
use super::records::{Intent, Member, Reply, SlotRecord, decode, encode};
use super::takeover::{Verdict, judge};
use super::*;
use crate::storage::{
    At, ExportConfig, ExportId, ExportKind, Exports, FileName, Identity, MemoryRoot, RequestName, Root,
    Storage, StorageConfig,
};

/// A directory, with a storage of it.
pub(super) struct Tree {
    directory: tempfile::TempDir,
    pub(super) storage: Exports,
}

impl Tree {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kind = ExportKind::Directory(directory.path().to_owned());
        let export = ExportConfig {
            name: "data".into(),
            kind,
            read_only: false,
            direct_io: false,
            local_locks: false,
            root: MemoryRoot::default(),
        };
        let storage = Exports::new(vec![export], &StorageConfig::default()).unwrap();
        Self { directory, storage }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn export(&self) -> SharedExport {
        let path = self.path().to_owned();
        SharedExport {
            name: "data".into(),
            root: Root::open(&path).unwrap(),
            path,
            is_remote: false,
            is_read_only: false,
        }
    }

    fn named(&self, path: &str) -> Named {
        let root = self.storage.root(ExportId(0));
        Named { node: self.storage.share(root).unwrap(), path: path.as_bytes().to_vec() }
    }
}

pub(super) fn memory_store() -> MemoryStore {
    let host = OwnHost::new();
    MemoryStore::new(move || host.now())
}

pub(super) fn config() -> ClusterConfig {
    ClusterConfig {
        address: "etcd://nowhere/test".parse().unwrap(),
        access: StoreAccess::default(),
        term_ms: 2000,
        server_name: "server".into(),
        addresses: Vec::new(),
        fence_command: None,
        fence_detail: String::new(),
        lease_ms: 30_000,
        buckets: 1,
    }
}

/// One more server of this store.
pub(super) fn server(store: &MemoryStore, tree: &Tree) -> Cluster {
    let exports = vec![tree.export()];
    let entered = member::enter((store, &OwnHost::new()), &Keys::of("test"), &config(), &exports).unwrap();
    let cluster =
        Cluster::entered((Arc::new(store.clone()), Arc::new(OwnHost::new())), entered, &config(), exports);
    cluster.announce(vec!["dafs+tcp://127.0.0.1:1".into()]).unwrap();
    cluster
}

pub(super) fn ask<T: Send + 'static>(asks: impl FnOnce(Tell<T>)) -> T {
    let (tell, told) = channel();
    asks(Box::new(move |answer| tell.send(answer).unwrap()));
    told.recv().unwrap()
}

// [CLUS-31]
#[test]
fn server_that_starts_is_seen_by_those_that_serve() {
    let (tree, elsewhere, store) = (Tree::new(), Tree::new(), memory_store());
    let remote = |path: &Path| SharedExport {
        is_remote: true,
        path: path.to_owned(),
        root: Root::open(path).unwrap(),
        ..tree.export()
    };
    // It has entered with the directory, and looks elsewhere.
    let starts = |path: &Path| {
        let entered =
            member::enter((&store, &OwnHost::new()), &Keys::of("test"), &config(), &[remote(tree.path())])
                .unwrap();
        let surroundings: Surroundings = (Arc::new(store.clone()), Arc::new(OwnHost::new()));
        let cluster = Cluster::entered(surroundings, entered, &config(), vec![remote(path)]);
        cluster.announce(Vec::new()).map(|()| cluster)
    };
    let _first = starts(tree.path()).unwrap();
    let _second = starts(tree.path()).unwrap();
    let refused = starts(elsewhere.path()).err().expect("the others do not see it").to_string();
    assert!(refused.contains("does not show server at once"), "{refused}");
    for tree in [&tree, &elsewhere] {
        assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 0, "nothing of the check stays");
    }
    assert!(store.read("/dafs/test/live/checks").unwrap().0.is_empty());
    assert!(store.read("/dafs/test/checked").unwrap().0.is_empty());
}

/// A store that answers the next intents with these faults. What it is not reached for it carries out.
struct Faulty {
    store: MemoryStore,
    faults: Mutex<VecDeque<CoordinationError>>,
}

impl Coordination for Faulty {
    fn commit(&self, transaction: &Transaction) -> Result<Committed, CoordinationError> {
        let keeps = |change: &Change| matches!(change, Change::Put(key, ..) if key.contains("/pending/"));
        let is_intent = transaction.changes.iter().any(keeps);
        match is_intent.then(|| lock(&self.faults).pop_front()).flatten() {
            Some(fault @ CoordinationError::Unreachable(_)) => {
                self.store.commit(transaction)?;
                Err(fault)
            }
            Some(fault) => Err(fault),
            None => self.store.commit(transaction),
        }
    }
    fn read(&self, prefix: &str) -> Result<(Vec<Entry>, u64), CoordinationError> {
        self.store.read(prefix)
    }
    fn read_changed(
        &self,
        prefix: &str,
        since: u64,
        count: usize,
    ) -> Result<(Option<Vec<Entry>>, u64), CoordinationError> {
        self.store.read_changed(prefix, since, count)
    }
    fn grant(&self, time: Duration) -> Result<LeaseId, CoordinationError> {
        self.store.grant(time)
    }
    fn renew(&self, lease: LeaseId) -> Result<(), CoordinationError> {
        self.store.renew(lease)
    }
    fn revoke(&self, lease: LeaseId) -> Result<(), CoordinationError> {
        self.store.revoke(lease)
    }
}

// [CLUS-33]
#[test]
fn refused_operation_keeps_nothing_from_others() {
    let (tree, store) = (Tree::new(), memory_store());
    fs::write(tree.path().join("log"), b"").unwrap();
    let other = server(&store, &tree);
    let faulty = Arc::new(Faulty { store: store.clone(), faults: Mutex::default() });
    let exports = vec![tree.export()];
    let entered = member::enter((&store, &OwnHost::new()), &Keys::of("test"), &config(), &exports).unwrap();
    let own: Arc<dyn Coordination> = faulty.clone();
    let cluster = Cluster::entered((own, Arc::new(OwnHost::new())), entered, &config(), exports);
    cluster.announce(Vec::new()).unwrap();
    let (session, another) = (open_session(&cluster, 1), open_session(&other, 1));
    let append = || What::Append(tree.named("log"), vec![memory(b"data")]);
    lock(&faulty.faults).extend([
        CoordinationError::Unreachable("it is done".into()),
        CoordinationError::NoSpace("now".into()),
    ]);
    assert_eq!(intend(&cluster, session, 0, append()).unwrap_err(), Status::NO_SPACE);
    assert!(store.read(&cluster.core.keys.all_pending()).unwrap().0.is_empty());
    intend(&other, another, 0, append()).unwrap();
}

/// Writes down that a request of this session is about to do this.
fn intend(cluster: &Cluster, session: SessionId, slot: u32, what: What) -> Result<Ticket, Status> {
    let request = RequestName { session, slot, sequence: 1 };
    ask(|tell| cluster.intents.begin(Wish { request, export: 0, what, tell, waited: Duration::ZERO }))
}

pub(super) fn open_session(cluster: &Cluster, random: u64) -> SessionId {
    let session = cluster.session_name(random);
    cluster.open_session(session, b"proof", None);
    session
}

fn memory(bytes: &[u8]) -> MemoryRef {
    let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(bytes.len()).unwrap()));
    memory.span().write_from(0, bytes);
    memory
}

/// What becomes of an intent whose operation was carried out as `acts` says.
fn judged(tree: &Tree, what: What, acts: impl FnOnce(&Path)) -> Verdict {
    let cluster = server(&memory_store(), tree);
    let session = open_session(&cluster, 1);
    intend(&cluster, session, 0, what).unwrap();
    let entry = cluster.core.store.read(&cluster.core.keys.slots(session)).unwrap().0.pop().unwrap();
    let record: SlotRecord = decode(&entry.value).unwrap();
    acts(tree.path());
    let verdict = judge(&record.intent, &[tree.export()]);
    unmark(tree);
    verdict
}

/// The next cluster of a test may have the directory.
fn unmark(tree: &Tree) {
    let _ = rustix::fs::removexattr(tree.path(), MARK);
}

fn is_done(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Done(Reply { status: 0, .. }))
}

// [CLUS-2] [CLUS-16] [CLUS-18]
#[test]
fn append_is_judged_by_its_data() {
    let tree = Tree::new();
    let log = tree.path().join("log");
    let append = || What::Append(tree.named("log"), vec![memory(b"new "), memory(b"data")]);
    let after = |acts: &dyn Fn(&Path)| {
        fs::write(&log, b"old ").unwrap();
        judged(&tree, append(), |_| acts(&log))
    };
    let grow = |path: &Path, bytes: &[u8]| fs::write(path, [b"old ", bytes].concat()).unwrap();
    assert_eq!(after(&|_| {}), Verdict::NotDone);
    assert!(is_done(&after(&|path| grow(path, b"new data"))));
    assert!(is_done(&after(&|path| grow(path, b"new data and more"))));
    assert_eq!(after(&|path| grow(path, b"new da")), Verdict::NotDone);
    assert_eq!(fs::read(&log).unwrap(), b"old ", "nothing of it is left");
    assert_eq!(after(&|path| grow(path, b"another's data")), Verdict::NotDone);
    assert_eq!(fs::read(&log).unwrap(), b"old another's data", "it stays");
    assert_eq!(after(&|path| fs::remove_file(path).unwrap()), Verdict::Unknown);
    let elsewhere = |path: &Path| fs::rename(path, path.with_file_name("elsewhere")).unwrap();
    assert_eq!(after(&elsewhere), Verdict::Unknown);
}

// [CLUS-2] [CLUS-18]
#[test]
fn name_made_or_removed_is_judged_by_what_has_it() {
    let tree = Tree::new();
    fs::create_dir(tree.path().join("in")).unwrap();
    let name = |root: &Path| root.join("in/name");
    let make = || What::Make(tree.named("in/name"));
    let remove = || What::Remove(tree.named("in/name"), false);
    let gone = |root: &Path| fs::rename(root.join("in"), root.join("out")).unwrap();
    let back = |root: &Path| fs::rename(root.join("out"), root.join("in")).unwrap();
    assert_eq!(judged(&tree, make(), |_| {}), Verdict::NotDone);
    assert_eq!(judged(&tree, make(), gone), Verdict::Unknown);
    back(tree.path());
    let made = judged(&tree, make(), |root| fs::write(name(root), b"").unwrap());
    let Verdict::Done(reply) = &made else { panic!("{made:?}") };
    let told = reply.told().unwrap();
    let attributes: dafs_proto::wire::Attributes =
        dafs_proto::wire::decode_message_pack("attributes", &told.payload).unwrap();
    assert_eq!(attributes.file_id, fs::metadata(name(tree.path())).unwrap().ino());
    // It would have been refused.
    assert_eq!(judged(&tree, make(), |_| {}), Verdict::NotDone);
    assert_eq!(judged(&tree, remove(), |_| {}), Verdict::NotDone);
    assert_eq!(judged(&tree, remove(), gone), Verdict::Unknown);
    back(tree.path());
    let replaced = |root: &Path| {
        fs::write(root.join("other"), b"").unwrap();
        fs::rename(root.join("other"), name(root)).unwrap();
    };
    assert!(is_done(&judged(&tree, remove(), replaced)), "somebody has made another since");
    assert!(is_done(&judged(&tree, remove(), |root| fs::remove_file(name(root)).unwrap())));
    assert_eq!(judged(&tree, remove(), |_| {}), Verdict::NotDone);
}

// [CLUS-2] [CLUS-18]
#[test]
fn name_that_was_to_be_moved_is_judged_by_both_places() {
    let tree = Tree::new();
    let (from, to) = (tree.path().join("from"), tree.path().join("to"));
    let begin = || {
        fs::write(&from, b"from").unwrap();
        fs::write(&to, b"to").unwrap();
    };
    let rename = || What::Rename(tree.named("from"), tree.named("to"));
    let link = |replaces| What::Link(tree.named("from"), tree.named("to"), replaces);
    let exchange = || What::Exchange(tree.named("from"), tree.named("to"));
    let swap = |_: &Path| {
        let (directory, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
        rustix::fs::renameat_with(directory, &from, directory, &to, flags).unwrap();
    };
    begin();
    assert_eq!(judged(&tree, rename(), |_| {}), Verdict::NotDone);
    assert_eq!(judged(&tree, exchange(), |_| {}), Verdict::NotDone);
    assert_eq!(judged(&tree, link(true), |_| {}), Verdict::NotDone);
    assert!(is_done(&judged(&tree, exchange(), swap)));
    assert!(is_done(&judged(&tree, rename(), |_| fs::rename(&from, &to).unwrap())));
    begin();
    assert_eq!(judged(&tree, rename(), |_| fs::remove_file(&from).unwrap()), Verdict::Unknown);
    begin();
    fs::remove_file(&to).unwrap();
    let half = judged(&tree, rename(), |_| fs::hard_link(&from, &to).unwrap());
    assert!(is_done(&half) && to.exists() && !from.exists(), "the rest of it is done");
    begin();
    assert_eq!(judged(&tree, exchange(), |_| fs::rename(&from, &to).unwrap()), Verdict::Unknown);
    begin();
    fs::remove_file(&to).unwrap();
    assert!(is_done(&judged(&tree, link(false), |_| fs::hard_link(&from, &to).unwrap())));
    assert_eq!(judged(&tree, link(false), |_| {}), Verdict::NotDone, "it is so already");
}

// [CLUS-18]
#[test]
fn intent_of_an_export_that_nobody_has_is_not_judged() {
    let tree = Tree::new();
    let nowhere = Intent::Other;
    assert_eq!(judge(&nowhere, &[tree.export()]), Verdict::Unknown);
}

// [CLUS-2]
#[test]
fn operations_on_one_thing_follow_each_other_at_all_servers() {
    let (tree, store) = (Tree::new(), memory_store());
    fs::write(tree.path().join("log"), b"").unwrap();
    let servers = [server(&store, &tree), server(&store, &tree)];
    let append = || What::Append(tree.named("log"), vec![memory(b"x")]);
    let sessions = servers.each_ref().map(|server| open_session(server, 1));
    let first = intend(&servers[0], sessions[0], 0, append()).unwrap();
    assert_eq!(first.offset, 0);
    let (tell, told) = channel();
    for slot in 1..3 {
        for (server, session) in servers.iter().zip(sessions) {
            let (tell, what) = (tell.clone(), append());
            let request = RequestName { session, slot, sequence: 1 };
            let tell: Tell<Result<Ticket, Status>> =
                Box::new(move |ticket| tell.send(ticket.unwrap()).unwrap());
            server.intents.begin(Wish { request, export: 0, what, tell, waited: Duration::ZERO });
        }
    }
    // A name is another thing.
    let made = intend(&servers[1], sessions[1], 9, What::Make(tree.named("new"))).unwrap();
    servers[1].intents.end(made, None);
    assert!(told.try_recv().is_err(), "the first has not ended");
    fs::write(tree.path().join("log"), b"1").unwrap();
    servers[0].intents.end(first, Some(Reply::of(0, 0, &[])));
    for count in 1..5 {
        let next = told.recv().unwrap();
        assert_eq!(next.offset, count, "each sees what the one before it has done");
        assert!(told.try_recv().is_err());
        fs::write(tree.path().join("log"), vec![b'x'; usize::try_from(count).unwrap() + 1]).unwrap();
        let of = servers.iter().find(|server| next.is_of(&server.core)).unwrap();
        of.intents.end(next, Some(Reply::of(0, count, &[])));
    }
}

// [CLUS-2]
#[test]
fn next_operation_of_a_slot_waits_for_the_record_of_the_last() {
    let (tree, store) = (Tree::new(), memory_store());
    let cluster = server(&store, &tree);
    let session = open_session(&cluster, 1);
    let first = intend(&cluster, session, 0, What::Make(tree.named("a"))).unwrap();
    let (tell, told) = channel();
    let tell: Tell<Result<Ticket, Status>> = Box::new(move |ticket| tell.send(ticket.unwrap()).unwrap());
    let request = RequestName { session, slot: 0, sequence: 2 };
    let what = What::Make(tree.named("b"));
    cluster.intents.begin(Wish { request, export: 0, what, tell, waited: Duration::ZERO });
    let other = intend(&cluster, session, 1, What::Make(tree.named("c"))).unwrap();
    assert!(told.try_recv().is_err());
    cluster.intents.end(first, Some(Reply::of(0, 0, &[])));
    let second = told.recv().unwrap();
    let pending = |name: &[u8]| {
        let parent = tree.export().root.name().unwrap();
        let key = cluster.core.keys.pending(&records::Object::Name(parent, name.to_vec()));
        !store.read(&key).unwrap().0.is_empty()
    };
    assert_eq!([pending(b"a"), pending(b"b"), pending(b"c")], [false, true, true]);
    cluster.intents.end(second, None);
    cluster.intents.end(other, None);
    cluster.intents.finish();
    assert_eq!([pending(b"b"), pending(b"c")], [false, false]);
}

fn wish(session: SessionId, range: Range<u64>) -> LockWish {
    LockWish {
        file: FileName { file: 1, generation: 2 },
        range,
        kind: LockKind::Exclusive,
        session,
        owner: 5,
        handle: 0,
        client: [0; 16],
        before: None,
        reclaims: false,
    }
}

// [CLUS-3] [CLUS-19] [CLUS-20]
#[test]
fn locks_of_a_session_that_is_gone_are_its_clients() {
    let (tree, store) = (Tree::new(), memory_store());
    let servers = [server(&store, &tree), server(&store, &tree)];
    let [before, other] = servers.each_ref().map(|server| open_session(server, 1));
    let take = |server: usize, wish: LockWish| ask(|tell| servers[server].lock_range(wish, tell));
    assert_eq!(take(0, wish(before, 0..10)), Status::OK);
    assert_eq!(take(0, wish(before, 20..30)), Status::OK);
    assert_eq!(take(1, wish(other, 5..6)), Status::LOCKED);
    let next = open_session(&servers[1], 2);
    let successor = LockWish { before: Some(before), ..wish(next, 0..10) };
    assert_eq!(take(1, LockWish { reclaims: true, range: 0..11, ..successor.clone() }), Status::NO_RECLAIM);
    assert_eq!(take(1, LockWish { reclaims: true, ..successor }), Status::OK);
    assert_eq!(take(1, wish(other, 25..26)), Status::LOCKED);
    servers[1].core.end_locks(Whose::Session(before)).unwrap();
    assert_eq!(take(1, wish(other, 25..26)), Status::OK, "its client goes on without it");
    assert_eq!(take(1, wish(other, 5..6)), Status::LOCKED);
    servers[1].end_session(next);
    servers[1].end_locks_of(next);
    // That goes on beside.
    while take(1, wish(other, 5..6)) == Status::LOCKED {}
    let part = |number: u64| wish(other, 100 + 2 * number..101 + 2 * number);
    let taken = (0..).find(|number| take(1, part(*number)) != Status::OK).unwrap();
    assert!(taken < 1024 && take(1, part(taken)) == Status::TOO_MANY_LOCKS, "{taken}");
    let found = ask(|tell| servers[0].test_lock(wish(before, 5..7), tell)).unwrap().unwrap();
    assert_eq!((found.range, found.owner), (5..6, 5));
}

// [CLUS-11] [SESS-143] [SESS-148]
#[test]
fn session_of_another_server_is_elsewhere_until_that_is_gone() {
    let (tree, store) = (Tree::new(), memory_store());
    let [first, second] = [server(&store, &tree), server(&store, &tree)];
    let (worked, idle) = (open_session(&first, 1), open_session(&first, 2));
    let ticket = intend(&first, worked, 3, What::Make(tree.named("new"))).unwrap();
    let asked = |session| ask(|tell| second.ask_before(session, tell));
    assert_eq!(asked(worked), Before::Elsewhere);
    first.intents.end(ticket, Some(Reply::of(0, 0, b"attributes")));
    first.leave();
    let Before::Ended(Some(proof), outcomes) = asked(worked) else { panic!("it is gone") };
    assert_eq!(proof, hex(b"proof"));
    let [outcome] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!((outcome.slot, outcome.sequence), (3, 1));
    assert_eq!(outcome.reply.as_ref().map(|reply| &reply.payload[..]), Some(&b"attributes"[..]));
    assert_eq!(asked(idle), Before::Ended(None, Vec::new()));
    assert_eq!(asked(SessionId(7)), Before::Unknown);
    assert_eq!(asked(session_of(1000, 7)), Before::Unknown);
}

// [CLUS-6]
#[test]
fn server_leaves_once_nothing_of_it_is_under_way() {
    let (tree, store) = (Tree::new(), memory_store());
    let [busy, idle, other] = [(); 3].map(|()| server(&store, &tree));
    let sessions = [&busy, &idle].map(|server| open_session(server, 1));
    intend(&busy, sessions[0], 0, What::Make(tree.named("new"))).unwrap();
    // Of an attempt that was not answered.
    let parent = tree.export().root.name().unwrap();
    let stale = idle.core.keys.pending(&records::Object::Name(parent, b"stale".to_vec()));
    let owner = idle.core.keys.slot(sessions[1], 0).into_bytes();
    let changes = vec![Change::Put(stale.clone(), owner, None)];
    store.commit(&Transaction { changes, ..Transaction::default() }).unwrap();
    [&busy, &idle].into_iter().for_each(Cluster::leave);
    let before = sessions.map(|session| ask(|tell| other.ask_before(session, tell)));
    assert_eq!(before, [Before::Elsewhere, Before::Ended(None, Vec::new())]);
    assert!(store.read(&stale).unwrap().0.is_empty());
}

#[test]
fn store_tells_whether_anything_has_changed() {
    let store = memory_store();
    let change = |changes| store.commit(&Transaction { changes, ..Transaction::default() }).unwrap().revision;
    let put = |key: &str| Change::Put(key.to_owned(), Vec::new(), None);
    let since = change(vec![put("a/1"), put("a/2"), put("b/1")]);
    let is_changed = || store.read_changed("a/", since, 2).unwrap().0.is_some();
    assert!(!is_changed());
    change(vec![put("b/1"), Change::Delete("b/2".into())]);
    assert!(!is_changed());
    let before = change(vec![Change::Delete("a/1".into())]);
    assert!(is_changed());
    // As many as before.
    change(vec![put("a/3")]);
    assert!(is_changed() && store.read_changed("a/", before, 2).unwrap().0.is_some());
}

// [CLUS-22]
#[test]
fn takeover_is_gone_on_with_once_whoever_began_it_is_gone() {
    let (tree, store) = (Tree::new(), memory_store());
    let (own, keys) = (server(&store, &tree), Keys::of("test"));
    let alive = own.core.host.process();
    let put = |key: String, value: Vec<u8>| {
        let changes = vec![Change::Put(key, value, None)];
        store.commit(&Transaction { changes, ..Transaction::default() }).unwrap();
    };
    let member = |process: Process| {
        let Process { boot, namespace, pid, began } = process;
        encode(&Member { boot, namespace, pid, pid_began: began, ..Member::default() })
    };
    // Server 98 has begun to take over from 99, and is not known to have ended.
    put(keys.takeover(99), b"98".to_vec());
    put(keys.member(98), member(alive.clone()));
    put(keys.member(99), member(Process { pid: 0, ..alive.clone() }));
    // An attempt of this server has failed half-way.
    put(keys.takeover(97), own.core.number.to_string().into_bytes());
    put(keys.member(97), member(Process { pid: 0, ..alive }));
    let is_gone = |server: ServerNumber| !store.read(&keys.gone(server)).unwrap().0.is_empty();
    while !is_gone(97) {
        std::thread::yield_now();
    }
    assert!(!is_gone(99));
    let changes = vec![Change::Delete(keys.member(98))];
    store.commit(&Transaction { changes, ..Transaction::default() }).unwrap();
    while !is_gone(99) {
        std::thread::yield_now();
    }
}

// [CLUS-10]
#[test]
fn store_of_a_later_form_is_refused_and_nothing_is_written() {
    let (tree, store) = (Tree::new(), memory_store());
    let keys = Keys::of("test");
    for (form, said) in [
        (&br#"{"form":2,"cluster":"00"}"#[..], "are of form 2"),
        (b"something else", "is not one of dafs"),
        (br#"{"cluster":"00"}"#, "is not one of dafs"),
    ] {
        let put = vec![Change::Put(keys.form(), form.to_vec(), None)];
        store.commit(&Transaction { changes: put, ..Transaction::default() }).unwrap();
        let before = store.read("").unwrap();
        let refused = member::enter((&store, &OwnHost::new()), &keys, &config(), &[tree.export()])
            .unwrap_err()
            .to_string();
        assert!(refused.contains(said), "{refused}");
        assert_eq!(store.read("").unwrap(), before);
        assert_eq!(mark_on(tree.path()), None);
    }
}

// [CLUS-12] [CLUS-13] [CLUS-14]
#[test]
fn storage_of_a_cluster_leaves_out_what_needs_to_be_alone() {
    use dafs_proto::transport::{OpToken, Span};
    use dafs_proto::wire::{OpenFlags, Stability};

    use crate::storage::{FsOp, FsReply, NowError, Submitted};

    let (tree, store) = (Tree::new(), memory_store());
    fs::write(tree.path().join("file"), b"data").unwrap();
    for is_remote in [false, true] {
        unmark(&tree);
        let exports = vec![SharedExport { is_remote, ..tree.export() }];
        let entered =
            member::enter((&store, &OwnHost::new()), &Keys::of("test"), &config(), &exports).unwrap();
        let cluster = Cluster::entered(
            (Arc::new(store.clone()), Arc::new(OwnHost::new())),
            entered,
            &config(),
            exports,
        );
        let inner = tree.storage.another().unwrap();
        let mut storage = ClusterStorage::new(Box::new(inner), Arc::new(cluster)).unwrap();
        let own = Identity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Vec::new().into(),
        };
        let mut done = Vec::new();
        let mut submit = |storage: &mut ClusterStorage, op| match storage.submit(OpToken(1), &own, op) {
            Submitted::Done(result) => result,
            Submitted::Pending => loop {
                storage.flush();
                storage.poll(&mut done);
                if let Some((_, result)) = done.pop() {
                    break result;
                }
            },
        };
        let at = At { node: storage.root(ExportId(0)), path: b"file".to_vec() };
        let open = |flags| FsOp::Open { at: at.clone(), flags, mode: 0, admission: None };
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let Ok(FsReply::Node(node, _)) = submit(&mut storage, open(flags)) else { panic!("it opens") };
        assert_eq!(storage.hand_over(node).err(), Some(Status::NOT_SUPPORTED));
        let sieved = storage.sieve_now(node, 0, Span::EMPTY, &mut || {});
        assert!(matches!(sieved, Ok(None)), "each part by itself");
        let data = memory(b"DATA");
        let now = storage.write_now(node, 0, &[data.span()]);
        assert_eq!(matches!(now, Err(NowError::WouldBlock)), is_remote);
        let write = FsOp::Write { node, offset: 0, from: vec![data], stability: Stability::Unstable };
        assert!(matches!(submit(&mut storage, write), Ok(FsReply::Count(4))));
        let least = if is_remote { Stability::DataSync } else { Stability::Unstable };
        let made = [Stability::Unstable, Stability::DataSync, Stability::FileSync]
            .map(|stability| storage.stability(node, stability));
        assert_eq!(made, [least, Stability::DataSync, Stability::FileSync]);
    }
}
