//! Deny modes of several servers of one store, in this process.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::mpsc::{Receiver, channel};

use dafs_proto::transport::OpToken;

use super::*;
use crate::cluster::coordination::{Committed, Coordination, Entry, LeaseId};
use crate::cluster::host::OwnHost;
use crate::cluster::memory::MemoryStore;
use crate::cluster::records::{Keys, Member, encode};
use crate::cluster::tests::{Tree, config, memory_store, open_session, server};
use crate::cluster::{Cluster, ClusterConfig, ClusterStorage, Host, member};
use crate::shared::shares::Shares;
use crate::storage::{At, ExportId, FsOp, FsReply, FsResult, Identity, RequestName, Storage, Submitted};

const READ: OpenFlags = OpenFlags::READ;
const WRITE: OpenFlags = OpenFlags::WRITE;
const DENY_WRITE: OpenFlags = OpenFlags::DENY_WRITE;

fn file(number: u64) -> FileName {
    FileName { file: number, generation: 1 }
}

type Told = Receiver<Result<OpenGuard, Status>>;

fn ask_later(cluster: &Cluster, session: SessionId, file: FileName, flags: OpenFlags) -> Told {
    let (tell, told) = channel();
    // Whoever has asked may be gone.
    cluster.core.ask_open(file, session, flags, Box::new(move |answer| drop(tell.send(answer))));
    told
}

/// As a client's open is.
fn open(
    cluster: &Cluster,
    session: SessionId,
    file: FileName,
    flags: OpenFlags,
) -> Result<OpenGuard, Status> {
    match cluster.core.try_open(file, session, flags) {
        Some(guard) => Ok(guard),
        None => ask_later(cluster, session, file, flags).recv().unwrap(),
    }
}

fn rows(store: &MemoryStore, file: FileName) -> Vec<Opened> {
    let found = store.read(&Keys::of("test").open(file)).unwrap().0;
    found.first().and_then(|entry| decode(&entry.value)).unwrap_or_default()
}

/// Closing is told later.
fn await_rows(store: &MemoryStore, file: FileName, count: usize) {
    while rows(store, file).len() != count {
        std::thread::yield_now();
    }
}

// [CLUS-35]
#[test]
fn deny_mode_holds_against_opens_at_other_servers() {
    let (tree, store) = (Tree::new(), memory_store());
    let servers = [server(&store, &tree), server(&store, &tree)];
    let sessions = servers.each_ref().map(|server| open_session(server, 1));
    let open = |at: usize, flags| open(&servers[at], sessions[at], file(1), flags);
    let denied = Err(Status::SHARE_DENIED);
    let status = |opened: Result<OpenGuard, Status>| opened.map(drop);
    // One that is there.
    let writes = open(1, WRITE).unwrap();
    assert!(rows(&store, file(1)).is_empty(), "nobody had to know of it");
    assert_eq!(status(open(0, READ | DENY_WRITE)), denied);
    let reads = open(1, READ).unwrap();
    drop(writes);
    await_rows(&store, file(1), 1);
    let held = open(0, READ | DENY_WRITE).unwrap();
    drop(reads);
    await_rows(&store, file(1), 1);
    // Those that come.
    assert_eq!(status(open(1, WRITE)), denied);
    let beside = open(1, READ | DENY_WRITE).unwrap();
    drop(held);
    assert_eq!(status(open(0, WRITE)), denied);
    drop(beside);
    await_rows(&store, file(1), 0);
    let writes = open(0, WRITE).unwrap();
    assert_eq!(status(open(1, READ | DENY_WRITE)), denied);
    drop(writes);
    await_rows(&store, file(1), 0);
}

// [CLUS-37]
#[test]
fn open_asks_the_store_only_beside_files_that_are_denied() {
    let (tree, store) = (Tree::new(), memory_store());
    let config = ClusterConfig { buckets: 256, ..config() };
    let servers = [(); 2].map(|()| server_with(Arc::new(store.clone()), &store, &config, &tree));
    let sessions = servers.each_ref().map(|server| open_session(server, 1));
    let is_free = |at: usize, number| servers[at].core.try_open(file(number), sessions[at], WRITE).is_some();
    assert!((0..1000).all(|number| is_free(0, number) && is_free(1, number)));
    let held = open(&servers[0], sessions[0], file(1), READ | DENY_WRITE).unwrap();
    let bucket = |number| servers[0].core.bucket(file(number));
    for number in 0..1000 {
        assert_eq!(is_free(1, number), bucket(number) != bucket(1), "{number}");
    }
    let buckets: std::collections::BTreeSet<u16> = (0..1000).map(bucket).collect();
    assert!(buckets.len() > 200, "{}", buckets.len());
    // The next one there waits for nobody.
    let more = open(&servers[0], sessions[0], file(1), READ | DENY_WRITE).unwrap();
    drop((held, more));
    await_rows(&store, file(1), 0);
    // A minute later the mark is gone.
    for core in servers.each_ref().map(|server| &server.core) {
        let mut state = lock(&core.opens.state);
        state.marks.own.clear();
        drop(state);
        core.wake();
    }
    while !is_free(1, 1) {
        std::thread::yield_now();
    }
}

fn server_with(
    store: Arc<dyn Coordination>,
    first: &MemoryStore,
    config: &ClusterConfig,
    tree: &Tree,
) -> Cluster {
    let exports = vec![tree.export()];
    let entered = member::enter((first, &OwnHost::new()), &Keys::of("test"), config, &exports).unwrap();
    let cluster = Cluster::entered((store, Arc::new(OwnHost::new())), entered, config, exports);
    cluster.announce(Vec::new()).unwrap();
    cluster
}

// [CLUS-38]
#[test]
fn deny_mode_waits_for_a_server_that_has_not_told() {
    let (tree, store) = (Tree::new(), memory_store());
    let put = |key: String, value: Vec<u8>| {
        let changes = vec![Change::Put(key, value, None)];
        store.commit(&Transaction { changes, ..Transaction::default() }).unwrap();
    };
    let cluster =
        server_with(Arc::new(store.clone()), &store, &ClusterConfig { term_ms: 400, ..config() }, &tree);
    let session = open_session(&cluster, 1);
    // It may still serve: nobody has seen that its process has ended.
    let (keys, process) = (Keys::of("test"), cluster.core.host.process());
    let silent = Member {
        boot: process.boot,
        namespace: process.namespace,
        pid: process.pid,
        pid_began: process.began,
        ..Member::default()
    };
    put(keys.member(99), encode(&silent));
    let began = OwnHost::new();
    let told = ask_later(&cluster, session, file(1), READ | DENY_WRITE);
    assert_eq!(told.recv().unwrap().map(drop), Err(Status::AGAIN));
    assert!(began.now() >= 3 * cluster.core.config.term(), "after three terms");
    assert!(rows(&store, file(1)).is_empty());
    let told = ask_later(&cluster, session, file(1), READ | DENY_WRITE);
    assert!(told.try_recv().is_err());
    let changes = vec![Change::Delete(keys.member(99))];
    store.commit(&Transaction { changes, ..Transaction::default() }).unwrap();
    told.recv().unwrap().unwrap();
}

// [CLUS-36] [CLUS-39]
#[test]
fn deny_modes_of_a_session_that_is_gone_are_its_clients() {
    let (tree, store) = (Tree::new(), memory_store());
    let servers = [(); 3].map(|()| server(&store, &tree));
    let [before, _, other] = servers.each_ref().map(|server| open_session(server, 1));
    let first = open(&servers[0], before, file(1), READ | DENY_WRITE).unwrap();
    let untold = open(&servers[0], before, file(2), WRITE | OpenFlags::DENY_READ).unwrap();
    servers[0].leave();
    // Its handles go with it, not what they stand for.
    drop((first, untold));
    let proof = store.read(&Keys::of("test").session(before)).unwrap().0;
    assert_eq!(proof.len(), 1, "whose they are is known");
    let open = |session, number, flags| {
        let server = if session == other { &servers[2] } else { &servers[1] };
        open(server, session, file(number), flags)
    };
    assert_eq!(open(other, 1, WRITE).map(drop), Err(Status::SHARE_DENIED));
    let next = servers[1].session_name(7);
    servers[1].open_session(next, b"proof", Some(before));
    let again = open(next, 1, READ | DENY_WRITE).unwrap();
    assert_eq!(rows(&store, file(1)), [Opened::one(next, READ | DENY_WRITE)]);
    assert_eq!(open(other, 1, WRITE).map(drop), Err(Status::SHARE_DENIED));
    assert_eq!(open(other, 2, READ).map(drop), Err(Status::SHARE_DENIED));
    servers[1].core.end_opens(Whose::Session(before)).unwrap();
    drop(open(other, 2, READ).unwrap());
    assert_eq!(open(other, 1, WRITE).map(drop), Err(Status::SHARE_DENIED));
    drop(again);
    await_rows(&store, file(1), 0);
    // A client that does not come back has them until its lease is over.
    let _lost = open(next, 1, READ | DENY_WRITE).unwrap();
    servers[1].core.end_opens(Whose::Server(servers[0].core.number)).unwrap();
    assert_eq!(rows(&store, file(1)).len(), 1);
    servers[1].core.end_opens(Whose::Server(servers[1].core.number)).unwrap();
    assert!(rows(&store, file(1)).is_empty());
}

/// A store that carries out what concerns opens, and says that it was not reached, every other time for each key.
struct Unanswering {
    store: MemoryStore,
    counts: std::sync::Mutex<std::collections::HashMap<String, usize>>,
}

impl Coordination for Unanswering {
    fn commit(&self, transaction: &Transaction) -> Result<Committed, CoordinationError> {
        let committed = self.store.commit(transaction)?;
        let is_of_opens = |key: &str| ["/opens/", "/told/", "/denies/"].iter().any(|part| key.contains(part));
        let of_opens = |change: &Change| match change {
            Change::Put(key, ..) | Change::Delete(key) if is_of_opens(key) => Some(key.clone()),
            _ => None,
        };
        match transaction.changes.iter().find_map(of_opens).filter(|_| committed.succeeded) {
            Some(key) => {
                let mut counts = lock(&self.counts);
                let count = counts.entry(key).or_default();
                *count += 1;
                match count.is_multiple_of(2) {
                    true => Ok(committed),
                    false => Err(CoordinationError::Unreachable("it is done".into())),
                }
            }
            None => Ok(committed),
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

// [CLUS-35]
#[test]
fn open_counts_once_also_where_the_store_does_not_answer() {
    let (tree, store) = (Tree::new(), memory_store());
    let unanswering = Unanswering { store: store.clone(), counts: Default::default() };
    let cluster = server_with(Arc::new(unanswering), &store, &config(), &tree);
    let session = open_session(&cluster, 1);
    let first = open(&cluster, session, file(1), READ | DENY_WRITE).unwrap();
    let second = open(&cluster, session, file(1), READ | DENY_WRITE).unwrap();
    let once = Opened::one(session, READ | DENY_WRITE);
    let twice = table::gathered([&once, &once].into_iter());
    assert_eq!(rows(&store, file(1)), twice);
    drop(first);
    while rows(&store, file(1)) != [once.clone()] {
        std::thread::yield_now();
    }
    drop(second);
    await_rows(&store, file(1), 0);
}

/// What a request of a session is answered.
fn request(storage: &mut ClusterStorage, session: SessionId, op: FsOp) -> FsResult {
    let own = Identity {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: Vec::new().into(),
    };
    storage.for_request(RequestName { session, slot: 0, sequence: 1 });
    match storage.submit(OpToken(1), &own, op) {
        Submitted::Done(result) => result,
        Submitted::Pending => {
            let mut done = Vec::new();
            loop {
                storage.flush();
                storage.poll(&mut done);
                if let Some((_, result)) = done.pop() {
                    return result;
                }
            }
        }
    }
}

// [CLUS-35] [STOR-151]
#[test]
fn refused_open_neither_cuts_a_file_nor_stays_open() {
    let (tree, store) = (Tree::new(), memory_store());
    let path = tree.export().path.join("file");
    std::fs::write(&path, b"data").unwrap();
    let servers = [server(&store, &tree), server(&store, &tree)].map(Arc::new);
    let sessions = servers.each_ref().map(|server| open_session(server, 1));
    let shares = [Arc::new(Shares::default()), Arc::new(Shares::default())];
    let mut storages = servers.each_ref().map(|server| {
        ClusterStorage::new(Box::new(tree.storage.another().unwrap()), Arc::clone(server)).unwrap()
    });
    let mut open = |at: usize, name: &str, flags| {
        let (root, share) = (storages[at].root(ExportId(0)), shares[at].share(flags, None));
        let admission: Arc<dyn crate::storage::Admission> = share.clone();
        let at_name = At { node: root, path: name.as_bytes().to_vec() };
        let op = FsOp::Open { at: at_name, flags, mode: 0o444, admission: Some(admission) };
        let opened = request(&mut storages[at], sessions[at], op);
        opened.map(|reply| (share, matches!(reply, FsReply::Node(..))))
    };
    let cuts = WRITE | OpenFlags::TRUNCATE | OpenFlags::CREATE;
    let (held, _) = open(0, "file", READ | DENY_WRITE).unwrap();
    assert_eq!(open(1, "file", cuts).err(), Some(Status::SHARE_DENIED));
    assert_eq!(open(0, "file", cuts).err(), Some(Status::SHARE_DENIED));
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
    drop(held);
    let name = tree.export().root.find(b"file").unwrap().unwrap();
    await_rows(&store, name, 0);
    // New ones, which their mode lets nobody write again.
    for (number, flags) in [cuts, cuts | OpenFlags::EXCLUSIVE].into_iter().enumerate() {
        let new = format!("new-{number}");
        let (_made, is_open) = open(1, &new, flags | OpenFlags::DENY_READ).unwrap();
        assert!(is_open);
        assert_eq!(open(0, &new, READ).err(), Some(Status::SHARE_DENIED));
    }
    let (held, _) = open(1, "file", cuts | DENY_WRITE).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    assert_eq!(open(0, "file", WRITE).err(), Some(Status::SHARE_DENIED));
    drop(held);
    await_rows(&store, name, 0);
    assert!(open(0, "file", WRITE).is_ok());
}
