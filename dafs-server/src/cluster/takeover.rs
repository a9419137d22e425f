//! Taking over from a server whose term is over: it is cut off, so that it writes no more; then what it had begun is judged; then its
//! sessions may go on elsewhere.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{Status, encode_message_pack};
use sha2::{Digest, Sha256};

use super::coordination::{Change, Compare, CoordinationError, Transaction};
use super::core::{Core, SharedExport};
use super::cut_off::cut_off;
use super::records::{Intent, Member, NameAt, OpenAt, Reply, ServerNumber, SlotRecord, decode, encode, hex};

/// Between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// What became of an operation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was carried out, and would have been answered so.
    Done(Reply),
    /// It had no effect.
    NotDone,
    /// Nothing tells.
    Unknown,
}

/// Takes over on a thread of its own.
pub(super) fn begin(core: &Arc<Core>, server: ServerNumber, member: Member) {
    let own = Arc::clone(core);
    let work = move || {
        if let Err(error) = take_over(&own, server, &member) {
            tracing::warn!(server, name = member.name, %error, "cannot take over yet");
            own.rest(RETRY_INTERVAL);
        }
        lock(&own.view).end_takeover(server);
    };
    if let Err(error) = core.host.spawn("dafs-takeover", Box::new(work)) {
        tracing::warn!(%error, "cannot start a thread to take over");
        lock(&core.view).end_takeover(server);
    }
}

fn take_over(core: &Core, server: ServerNumber, member: &Member) -> Result<(), CoordinationError> {
    let keys = &core.keys;
    let Some(revision) = claim(core, server)? else {
        // Another server does it, or it is there again.
        core.rest(RETRY_INTERVAL);
        return Ok(());
    };
    let claim = keys.takeover(server);
    let is_own = Compare::At(claim.clone(), revision);
    tracing::warn!(server, name = member.name, "the term of another server is over: taking over");
    let began = core.host.now();
    if !cut_off(core, server, member) {
        return commit_owned(core, &is_own, vec![Change::Delete(claim)]);
    }
    settle(core, server, &is_own)?;
    let ended = core.commit(&Transaction {
        compares: vec![is_own],
        changes: vec![
            Change::Delete(keys.member(server)),
            Change::Delete(claim),
            Change::Delete(keys.cut_off(server)),
            Change::Put(keys.gone(server), Vec::new(), None),
        ],
        reads: Vec::new(),
    })?;
    if ended.succeeded {
        core.takeovers.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(server, name = member.name, took = ?core.host.now().saturating_sub(began), "took over");
    }
    Ok(())
}

/// Claims the place of a server: the revision of the claim. It stays until the takeover is done, or this server has been taken over: until
/// then it may cut off what others append.
fn claim(core: &Core, server: ServerNumber) -> Result<Option<u64>, CoordinationError> {
    let keys = &core.keys;
    let claim = keys.takeover(server);
    let put = Change::Put(claim.clone(), core.number.to_string().into_bytes(), None);
    let is_over = [Compare::Present(keys.member(server)), Compare::Absent(keys.live_server(server))];
    let free = [Compare::Absent(claim.clone())];
    let claimed = core.commit(&Transaction {
        compares: [&free[..], &is_over].concat(),
        changes: vec![put.clone()],
        reads: vec![claim.clone()],
    })?;
    if claimed.succeeded {
        return Ok(Some(claimed.revision));
    }
    let Some(found) = claimed.found.first() else { return Ok(None) };
    let owner = std::str::from_utf8(&found.value).ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    if owner == core.number {
        // An attempt has failed half-way, or was not answered.
        return Ok(Some(found.revision));
    }
    let left = [Compare::At(claim, found.revision), Compare::Absent(keys.member(owner))];
    let taken = core.commit(&Transaction {
        compares: [&left[..], &is_over].concat(),
        changes: vec![put],
        reads: Vec::new(),
    })?;
    Ok(taken.succeeded.then_some(taken.revision))
}

/// Judges all that a server had begun, and lets others go on.
fn settle(core: &Core, server: ServerNumber, is_own: &Compare) -> Result<(), CoordinationError> {
    let (entries, revision) = core.store.read(&core.keys.server_slots(server))?;
    core.hear(revision);
    for entry in entries {
        let Some(record) = decode::<SlotRecord>(&entry.value) else {
            tracing::error!(key = entry.key, "cannot read what a server was about to do");
            continue;
        };
        if record.reply.is_some() {
            continue;
        }
        if core.is_leaving() {
            return Err(CoordinationError::NoLease);
        }
        let verdict = judge(&record.intent, &core.exports);
        // Without the files nothing was seen.
        core.confirm_files()?;
        tracing::info!(server, key = entry.key, ?verdict, "judged what a server had begun");
        let change = match verdict {
            Verdict::Done(reply) => {
                let record = SlotRecord { reply: Some(reply), ..record };
                Change::Put(entry.key, encode(&record), None)
            }
            Verdict::NotDone => Change::Delete(entry.key),
            Verdict::Unknown => continue,
        };
        commit_owned(core, is_own, vec![change])?;
    }
    clear_pending(core, server, is_own)
}

/// Lets others change what operations of a server kept them from.
pub(super) fn clear_pending(
    core: &Core,
    server: ServerNumber,
    is_own: &Compare,
) -> Result<(), CoordinationError> {
    let (pending, revision) = core.store.read(&core.keys.all_pending())?;
    core.hear(revision);
    let slots = core.keys.server_slots(server);
    for entry in pending.into_iter().filter(|entry| entry.value.starts_with(slots.as_bytes())) {
        let seen =
            core.keys.seen_of(&entry.key).map(|seen| Change::Put(seen, Vec::new(), core.recent_lease()));
        commit_owned(core, is_own, seen.into_iter().chain([Change::Delete(entry.key)]).collect())?;
    }
    Ok(())
}

/// Changes something in the right of the takeover, if this server has it still.
fn commit_owned(core: &Core, is_own: &Compare, changes: Vec<Change>) -> Result<(), CoordinationError> {
    let transaction = Transaction { compares: vec![is_own.clone()], changes, reads: Vec::new() };
    if core.commit(&transaction)?.succeeded { Ok(()) } else { Err(CoordinationError::NoLease) }
}

/// What became of an operation whose server wrote down what it was about to do, and not what came of it.
pub(super) fn judge(intent: &Intent, exports: &[SharedExport]) -> Verdict {
    let export = |name: &String| exports.iter().find(|export| export.name == *name);
    let verdict = match intent {
        Intent::Append { export: name, file, len, sum } => {
            export(name).map(|export| judge_append(export, file, *len, sum))
        }
        Intent::Make { export: name, at } => export(name).map(|export| judge_make(export, at)),
        Intent::Remove { export: name, at } => export(name).map(|export| judge_remove(export, at)),
        Intent::Rename { export: name, from, to } => {
            export(name).map(|export| judge_rename(export, from, to))
        }
        Intent::Link { export: name, file, to, replaces } => {
            export(name).map(|export| judge_link(export, (*file).into(), to, *replaces))
        }
        Intent::Exchange { export: name, from, to } => {
            export(name).map(|export| judge_exchange(export, from, to))
        }
        Intent::Other => None,
    };
    verdict.map_or(Verdict::Unknown, |verdict| {
        verdict.unwrap_or_else(|status| {
            tracing::error!(%status, ?intent, "cannot tell whether an operation was carried out");
            Verdict::Unknown
        })
    })
}

fn done(offset: u64, payload: &[u8]) -> Verdict {
    Verdict::Done(Reply::of(Status::OK.value(), offset, payload))
}

/// The data is where it was to go, or nothing of it is left.
fn judge_append(export: &SharedExport, at: &OpenAt, len: u64, sum: &str) -> Result<Verdict, Status> {
    let Some(place) = at.place() else { return Ok(Verdict::Unknown) };
    let Some(file) = export.root.reopen(&place)? else { return Ok(Verdict::Unknown) };
    let status = |error: std::io::Error| error.raw_os_error().map_or(Status::IO, Status::from_errno);
    let (begin, size) = (place.size, file.metadata().map_err(status)?.len());
    if size >= begin + len && sum_of(&file, begin, len).map_err(status)? == sum {
        return Ok(done(begin, &[]));
    }
    if size > begin && size <= begin + len {
        file.set_len(begin).map_err(status)?;
    }
    Ok(Verdict::NotDone)
}

fn sum_of(file: &File, begin: u64, len: u64) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut part = vec![0; 1 << 16];
    let mut at = begin;
    while at < begin + len {
        let wanted = usize::try_from(begin + len - at).unwrap_or(usize::MAX).min(part.len());
        let count = file.read_at(&mut part[..wanted], at)?;
        if count == 0 {
            break;
        }
        hasher.update(&part[..count]);
        at += count as u64;
    }
    Ok(hex(&hasher.finalize()))
}

fn judge_make(export: &SharedExport, at: &NameAt) -> Result<Verdict, Status> {
    let Some(place) = at.place() else { return Ok(Verdict::Unknown) };
    if place.found.is_some() {
        return Ok(Verdict::NotDone);
    }
    Ok(match export.root.look_again(&place)? {
        None => Verdict::Unknown,
        Some(None) => Verdict::NotDone,
        Some(Some(_)) => done(0, &encode_message_pack(&export.root.attributes(&place)?)),
    })
}

fn judge_remove(export: &SharedExport, at: &NameAt) -> Result<Verdict, Status> {
    let Some(place) = at.place() else { return Ok(Verdict::Unknown) };
    if place.found.is_none() {
        return Ok(Verdict::NotDone);
    }
    Ok(match export.root.look_again(&place)? {
        None => Verdict::Unknown,
        Some(found) if found == place.found => Verdict::NotDone,
        Some(_) => done(0, &[]),
    })
}

fn judge_rename(export: &SharedExport, from: &NameAt, to: &NameAt) -> Result<Verdict, Status> {
    let (Some(from), Some(to)) = (from.place(), to.place()) else { return Ok(Verdict::Unknown) };
    if from.found.is_none() || from.found == to.found {
        // It fails, or does nothing.
        return Ok(Verdict::NotDone);
    }
    Ok(match (export.root.look_again(&from)?, export.root.look_again(&to)?) {
        (Some(first), Some(second)) if first == from.found && second == to.found => Verdict::NotDone,
        (Some(first), Some(second)) if first != from.found && second == from.found => done(0, &[]),
        // Where the file system cannot rename so, the new name is given first: the old one was still to go.
        (Some(first), Some(second)) if first == from.found && second == from.found && to.found.is_none() => {
            export.root.remove_name(&from)?;
            done(0, &[])
        }
        _ => Verdict::Unknown,
    })
}

fn judge_link(
    export: &SharedExport,
    file: crate::storage::FileName,
    to: &NameAt,
    replaces: bool,
) -> Result<Verdict, Status> {
    let Some(place) = to.place() else { return Ok(Verdict::Unknown) };
    if place.found == Some(file) || (place.found.is_some() && !replaces) {
        return Ok(Verdict::NotDone);
    }
    Ok(match export.root.look_again(&place)? {
        Some(found) if found == place.found => Verdict::NotDone,
        Some(Some(found)) if found == file => done(0, &encode_message_pack(&export.root.attributes(&place)?)),
        _ => Verdict::Unknown,
    })
}

fn judge_exchange(export: &SharedExport, from: &NameAt, to: &NameAt) -> Result<Verdict, Status> {
    let (Some(from), Some(to)) = (from.place(), to.place()) else { return Ok(Verdict::Unknown) };
    if from.found.is_none() || to.found.is_none() || from.found == to.found {
        return Ok(Verdict::NotDone);
    }
    Ok(match (export.root.look_again(&from)?, export.root.look_again(&to)?) {
        (Some(first), Some(second)) if first == from.found && second == to.found => Verdict::NotDone,
        (Some(first), Some(second)) if first == to.found && second == from.found => done(0, &[]),
        _ => Verdict::Unknown,
    })
}
