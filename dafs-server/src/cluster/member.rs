//! This server among those of its cluster: how it enters, keeps its term, sees what becomes of others, and leaves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_proto::transport::util::lock;

use super::coherence;
use super::coordination::{Change, Compare, Coordination, CoordinationError, Entry, LeaseId, Transaction};
use super::core::{Core, SharedExport};
use super::cut_off::{ceph_clients, rehearse};
use super::error::ClusterError;
use super::host::{Host, Join, Process};
use super::lock_table::Whose;
use super::records::{FORM, Form, Keys, Member, SERVER_NUMBERS, ServerNumber, decode, encode, hex, unhex};
use super::settings::ClusterConfig;
use super::takeover;

/// Between two looks at what all servers watch.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Between two looks whether the last takeover of this server has ended.
const END_LOOK: Duration = Duration::from_millis(10);
/// What was done lately is remembered for this time at least, and for twice as long at most.
const RECENT: Duration = Duration::from_secs(60);
/// The attribute of an exported directory that says which cluster serves it.
pub(crate) const MARK: &str = "user.dafs.cluster";

/// Checks that this server fits the cluster, and takes a number. Nothing is written before all is checked. Blocks.
pub(super) fn enter(
    (store, host): (&dyn Coordination, &dyn Host),
    keys: &Keys,
    config: &ClusterConfig,
    exports: &[SharedExport],
) -> Result<(u64, ServerNumber), ClusterError> {
    let cluster = config.address.to_string();
    let failed =
        |error: CoordinationError| ClusterError::Store { cluster: cluster.clone(), error: error.to_string() };
    let unfit = |problem: String| ClusterError::Unfit { cluster: cluster.clone(), problem };
    let found = store.read(&keys.form()).map_err(failed)?.0.pop();
    let form = found.map(|entry| form_of(&entry)).transpose().map_err(unfit)?;
    for export in exports {
        check_export(store, keys, export, form.as_ref()).map_err(failed)?.map_err(unfit)?;
    }
    let form = match form {
        Some(form) => form,
        None => make_form(store, host, keys).map_err(failed)?.map_err(unfit)?,
    };
    for export in exports {
        let mark = mark_of(&config.address.name, &form);
        enter_export(store, keys, export, &mark).map_err(failed)?.map_err(unfit)?;
    }
    let number = take_number(store, keys).map_err(failed)?.map_err(unfit)?;
    let id =
        unhex(&form.cluster).and_then(|bytes| Some(u64::from_be_bytes(bytes.first_chunk::<8>().copied()?)));
    let id = id.ok_or_else(|| unfit("its entry is damaged; remove the cluster's keys".into()))?;
    Ok((id, number))
}

fn form_of(entry: &Entry) -> Result<Form, String> {
    let damaged = || "the cluster's entry in the store is not one of dafs; choose another name".to_owned();
    let value: serde_json::Value = decode(&entry.value).ok_or_else(damaged)?;
    match value["form"].as_u64() {
        Some(form) if form == u64::from(FORM) => decode(&entry.value).ok_or_else(damaged),
        Some(form) => Err(format!(
            "its entries in the store are of form {form}, and this server knows form {FORM}; use servers of one version"
        )),
        None => Err(damaged()),
    }
}

fn make_form(
    store: &dyn Coordination,
    host: &dyn Host,
    keys: &Keys,
) -> Result<Result<Form, String>, CoordinationError> {
    let mut id = [0; 16];
    if let Err(error) = host.fill_random(&mut id) {
        return Ok(Err(format!("the system has no random numbers: {error}")));
    }
    let form = Form { form: FORM, cluster: hex(&id) };
    let made = store.commit(&Transaction {
        compares: vec![Compare::Absent(keys.form())],
        changes: vec![Change::Put(keys.form(), encode(&form), None)],
        reads: vec![keys.form()],
    })?;
    match (made.succeeded, made.found.first()) {
        (true, _) => Ok(Ok(form)),
        (false, Some(entry)) => Ok(form_of(entry)),
        (false, None) => Err(CoordinationError::Refused("an entry comes and goes".into())),
    }
}

fn mark_of(name: &str, form: &Form) -> String {
    format!("{name} {}", form.cluster)
}

/// The mark that a directory has: of which cluster it is.
pub(crate) fn mark_on(path: &std::path::Path) -> Option<String> {
    let mut value = [0; 256];
    let len = rustix::fs::getxattr(path, MARK, &mut value).ok()?;
    String::from_utf8(value[..len].to_vec()).ok()
}

fn identity_of(export: &SharedExport) -> Result<String, String> {
    let root = export.root.name();
    let root =
        root.map_err(|status| format!("the directory of export {} cannot be read: {status}", export.name))?;
    Ok(format!("{:016x}", root.file))
}

fn check_export(
    store: &dyn Coordination,
    keys: &Keys,
    export: &SharedExport,
    form: Option<&Form>,
) -> Result<Result<(), String>, CoordinationError> {
    let path = export.path.display();
    if let Some(mark) = mark_on(&export.path) {
        let id = mark.rsplit(' ').next();
        if form.is_none_or(|form| id != Some(&form.cluster)) {
            return Ok(Err(format!(
                "{path} belongs to the cluster {mark}, as its attribute {MARK} says; export it there, or, if that cluster is no more, \
                 run: setfattr -x {MARK} {path}"
            )));
        }
    }
    let identity = match identity_of(export) {
        Ok(identity) => identity,
        Err(problem) => return Ok(Err(problem)),
    };
    let found = store.read(&keys.export(&export.name))?.0;
    let found = found.iter().find(|entry| entry.key == keys.export(&export.name));
    Ok(match found {
        Some(entry) if entry.value != identity.as_bytes() => Err(format!(
            "other servers export another directory as {}; mount the same file system at {path}, or choose another name",
            export.name
        )),
        _ => Ok(()),
    })
}

fn enter_export(
    store: &dyn Coordination,
    keys: &Keys,
    export: &SharedExport,
    mark: &str,
) -> Result<Result<(), String>, CoordinationError> {
    let identity = match identity_of(export) {
        Ok(identity) => identity,
        Err(problem) => return Ok(Err(problem)),
    };
    let key = keys.export(&export.name);
    let entered = store.commit(&Transaction {
        compares: vec![Compare::Absent(key.clone())],
        changes: vec![Change::Put(key.clone(), identity.clone().into_bytes(), None)],
        reads: vec![key],
    })?;
    let path = export.path.display();
    if entered.found.first().is_some_and(|entry| entry.value != identity.as_bytes()) {
        return Ok(Err(format!("other servers export another directory than {path} as {}", export.name)));
    }
    let flags = rustix::fs::XattrFlags::CREATE;
    match rustix::fs::setxattr(&export.path, MARK, mark.as_bytes(), flags) {
        Err(rustix::io::Errno::EXIST) if mark_on(&export.path).as_deref() == Some(mark) => {}
        Err(rustix::io::Errno::EXIST) => {
            return Ok(Err(format!("{path} has just become another cluster's")));
        }
        Ok(()) => {}
        Err(error) => {
            let what =
                "cannot mark the directory as the cluster's; make sure that no other cluster exports it";
            tracing::warn!(export = export.name, %error, "{what}");
        }
    }
    Ok(Ok(()))
}

fn take_number(
    store: &dyn Coordination,
    keys: &Keys,
) -> Result<Result<ServerNumber, String>, CoordinationError> {
    let key = keys.last_server();
    loop {
        let found = store.read(&key)?.0.pop();
        let (last, revision) = match &found {
            Some(entry) => (decode::<u64>(&entry.value), entry.revision),
            None => (Some(0), 0),
        };
        let number = last.map_or(SERVER_NUMBERS, |last| last + 1);
        let Some(number) = ServerNumber::try_from(number).ok().filter(|_| number < SERVER_NUMBERS) else {
            return Ok(Err("it has no numbers for servers left; begin a cluster of another name".into()));
        };
        let taken = store.commit(&Transaction {
            compares: vec![Compare::At(key.clone(), revision)],
            changes: vec![Change::Put(key.clone(), encode(&number), None)],
            reads: Vec::new(),
        })?;
        if taken.succeeded {
            return Ok(Ok(number));
        }
    }
}

/// This process, for whoever is on its host.
fn member_of(core: &Core, addresses: Vec<String>) -> Member {
    let Process { boot, namespace, pid, began } = core.host.process();
    Member {
        name: core.config.server_name.clone(),
        addresses,
        boot,
        namespace,
        pid,
        pid_began: began,
        detail: core.config.fence_detail.clone(),
        ceph: ceph_clients(&core.exports),
    }
}

/// Begins the first term, and the thread that keeps it. Blocks.
pub(super) fn begin(core: &Arc<Core>, addresses: Vec<String>) -> Result<Join, ClusterError> {
    let cluster = core.config.address.to_string();
    let failed = |error: &dyn std::fmt::Display| ClusterError::Store {
        cluster: cluster.clone(),
        error: error.to_string(),
    };
    let checked = coherence::check(core).map_err(|error| failed(&error))?;
    checked.map_err(|problem| ClusterError::Unfit { cluster: cluster.clone(), problem })?;
    let member = member_of(core, addresses);
    rehearse(core, &member);
    let put = Change::Put(core.keys.member(core.number), encode(&member), None);
    begin_term(core, vec![put], Vec::new()).map_err(|error| failed(&error))?;
    renew_recent(core).map_err(|error| failed(&error))?;
    // Nobody is served before fences are known that stood when others saw this server.
    look(core).map_err(|error| failed(&error))?;
    let own = Arc::clone(core);
    let thread = core.host.spawn("dafs-cluster", Box::new(move || keep(&own)));
    thread.map_err(|error| failed(&error))
}

/// Begins a term, with these changes, where these comparisons hold; whether they did.
fn begin_term(
    core: &Core,
    mut changes: Vec<Change>,
    mut compares: Vec<Compare>,
) -> Result<bool, CoordinationError> {
    let began = core.now();
    let (member, live) = (core.keys.member(core.number), core.keys.live_server(core.number));
    let found =
        core.store.read(&live)?.0.iter().find(|entry| entry.key == live).map_or(0, |entry| entry.revision);
    let lease = core.store.grant(core.config.term())?;
    // What the store does later than it is waited for must not replace this lease by one that nobody renews.
    compares.push(Compare::At(live.clone(), found));
    changes.push(Change::Put(live, Vec::new(), Some(lease)));
    let takeover = core.keys.takeover(core.number);
    let begun = core.commit(&Transaction { compares, changes, reads: vec![member.clone(), takeover] })?;
    if !begun.succeeded {
        let is_there = begun.found.iter().any(|entry| entry.key == member) && begun.found.len() == 1;
        let again = CoordinationError::Unreachable("an attempt before this one has come in between".into());
        return if is_there { Err(again) } else { Ok(false) };
    }
    core.lease.store(lease.0, Ordering::Release);
    core.current_since.store(core.now(), Ordering::Release);
    extend(core, began);
    Ok(true)
}

/// The term counts from before the store was asked. A tenth is left for clocks that run at different rates.
fn extend(core: &Core, began: u64) {
    let term = u64::from(core.config.term_ms) * 900_000;
    core.until.store(began + term, Ordering::Release);
    core.wake();
}

fn renew_recent(core: &Core) -> Result<(), CoordinationError> {
    let lease = core.store.grant(2 * RECENT)?;
    core.recent_lease.store(lease.0, Ordering::Release);
    Ok(())
}

/// The thread: keeps the term and looks at the others until the server stops.
fn keep(core: &Arc<Core>) {
    let renew_interval = core.config.term() / 3;
    let (mut renew_at, mut recent_at) = (core.host.now() + renew_interval, core.host.now() + RECENT);
    let mut was_current = true;
    while !core.is_stopping() && !core.is_lost.load(Ordering::Acquire) {
        let now = core.host.now();
        if now >= renew_at || !core.is_current() {
            match renew(core) {
                Ok(()) => renew_at = now + renew_interval,
                Err(error) => tracing::warn!(%error, "cannot renew this server's term"),
            }
        }
        if now >= recent_at && renew_recent(core).is_ok() {
            recent_at = now + RECENT;
        }
        let is_current = core.is_current();
        if was_current && !is_current {
            tracing::error!("this server's term is over: it answers nobody until the store says that it may");
        } else if !was_current && is_current {
            tracing::info!("a new term has begun: this server answers again");
        }
        was_current = is_current;
        if let Err(error) = look(core) {
            tracing::debug!(%error, "cannot look at the cluster");
        }
        if let Err(error) = write_due(core) {
            tracing::warn!(%error, "cannot tell the cluster what this server has done");
        }
        core.rest(core.look_interval(LOOK_INTERVAL));
    }
    if core.has_no_files() {
        // It answers nobody any more: others need not wait until its term is over.
        let _ = core.store.revoke(LeaseId(core.lease.load(Ordering::Acquire)));
    }
}

/// Writes what others wait to hear.
fn write_due(core: &Core) -> Result<(), CoordinationError> {
    let mut changes = std::mem::take(&mut *lock(&core.due)).into_iter();
    while let Some(change) = changes.next() {
        let compares = vec![Compare::Present(core.keys.member(core.number))];
        let transaction = Transaction { compares, changes: vec![change.clone()], reads: Vec::new() };
        if let Err(error) = core.commit(&transaction) {
            // In their order, before what has come meanwhile.
            lock(&core.due).splice(0..0, std::iter::once(change).chain(changes));
            return Err(error);
        }
    }
    Ok(())
}

fn renew(core: &Core) -> Result<(), CoordinationError> {
    let began = core.now();
    match core.store.renew(LeaseId(core.lease.load(Ordering::Acquire))) {
        Ok(()) if began < core.until.load(Ordering::Acquire) => {
            extend(core, began);
            return Ok(());
        }
        // It came too late for this side, though not for the store.
        Ok(()) | Err(CoordinationError::NoLease) => {}
        Err(error) => return Err(error),
    }
    let (member, takeover) = (core.keys.member(core.number), core.keys.takeover(core.number));
    if !begin_term(core, Vec::new(), vec![Compare::Present(member), Compare::Absent(takeover)])? {
        core.is_lost.store(true, Ordering::Release);
        core.until.store(0, Ordering::Release);
        core.wake();
        tracing::error!("another server has taken over what this one had, since its term was over");
    }
    Ok(())
}

/// After the store was away all terms are over: the others are given time to begin new ones.
fn may_take_over(core: &Core) -> bool {
    let since = Duration::from_nanos(core.now().saturating_sub(core.current_since.load(Ordering::Acquire)));
    core.is_current() && !core.is_leaving() && since >= core.config.term() / 2
}

/// What all servers look at, which seldom changes.
fn read_live(core: &Core) -> Result<Vec<Entry>, CoordinationError> {
    let prefix = core.keys.live();
    // After a failure it is read again.
    let (known, since) = std::mem::take(&mut *lock(&core.live));
    let (changed, revision) = match since {
        0 => core.store.read(&prefix).map(|(entries, revision)| (Some(entries), revision))?,
        since => core.store.read_changed(&prefix, since, known.len())?,
    };
    core.hear(revision);
    let entries = changed.unwrap_or(known);
    *lock(&core.live) = (entries.clone(), revision);
    Ok(entries)
}

fn look(core: &Arc<Core>) -> Result<(), CoordinationError> {
    let entries = read_live(core)?;
    core.apply_fences(&entries);
    if let Err(error) = core.look_at_marks(&entries) {
        tracing::debug!(%error, "cannot tell the cluster yet who has files open");
    }
    coherence::answer(core, &entries);
    let (due, forgotten) = {
        let mut view = lock(&core.view);
        let now = core.host.now();
        view.update(&core.keys, &entries, now);
        let patience = Duration::from_millis(core.config.lease_ms.into());
        let due = if may_take_over(core) { view.begin_takeovers(core.number) } else { Vec::new() };
        (due, view.gone_for(patience, now))
    };
    for server in forgotten {
        let keys = &core.keys;
        core.end_locks(Whose::Server(server))?;
        core.end_opens(Whose::Server(server))?;
        let changes = vec![
            Change::DeleteAll(keys.server_slots(server)),
            Change::DeleteAll(keys.sessions(server)),
            Change::DeleteAll(keys.fences_applied(server)),
            Change::DeleteAll(keys.server_denies(server)),
            Change::Delete(keys.told(server)),
            Change::Delete(keys.endings(server)),
            Change::Delete(keys.gone(server)),
        ];
        core.commit(&Transaction { changes, ..Transaction::default() })?;
    }
    for (server, member) in due {
        takeover::begin(core, server, member);
    }
    Ok(())
}

/// This server is of the cluster no more, and has nothing under way: others know what its sessions did.
pub(super) fn leave(core: &Core) {
    // Once this server has left, others take over where it has begun to.
    while lock(&core.view).takes_over() {
        core.rest(END_LOOK);
    }
    let keys = &core.keys;
    let number = core.number;
    // Of an attempt that the store has not answered something may stand there.
    if let Err(error) = takeover::clear_pending(core, number, &Compare::Present(keys.member(number))) {
        tracing::warn!(%error, "cannot look for what this server kept others from");
        return;
    }
    let left = core.commit(&Transaction {
        compares: vec![Compare::Present(keys.member(number)), Compare::Absent(keys.takeover(number))],
        changes: vec![
            Change::Delete(keys.member(number)),
            Change::Delete(keys.live_server(number)),
            Change::Put(keys.gone(number), Vec::new(), None),
        ],
        reads: Vec::new(),
    });
    if let Err(error) = left {
        tracing::warn!(%error, "cannot tell the cluster that this server leaves; another takes over when its term is over");
    }
    core.until.store(0, Ordering::Release);
    // It would end by itself.
    let _ = core.store.revoke(LeaseId(core.lease.load(Ordering::Acquire)));
}
