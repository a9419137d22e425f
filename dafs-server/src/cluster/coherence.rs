//! Whether the servers of a cluster see at once what each of them changes in a file system that other hosts keep. A server that starts asks
//! those that serve: it changes files of its own step by step, and each of them says what it sees, and changes something in turn.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::Status;
use serde::{Deserialize, Serialize};

use super::coordination::{Change, Compare, CoordinationError, Entry, LeaseId, Transaction};
use super::core::{Core, SharedExport};
use super::records::{FileAt, Member, ServerNumber, decode, encode};
use crate::storage::{FileName, caches_pages_of_fuse};

/// Bytes that are written and looked for: a page, as caches have them.
const BLOCK_SIZE: usize = 4096;
/// A server that has not answered after this time is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks for answers.
const ANSWER_LOOK: Duration = Duration::from_millis(20);
/// The first lets the others read; with each further one something has changed. There are two of those: whoever hears of the first change
/// because it had the right to cache may not hear of the second.
const STEPS: u8 = 3;

/// What to do about it.
const ADVICE: &str =
    "; mount its file system without a cache on every server (ceph-fuse: --fuse_disable_pagecache=true)";

/// What a server that starts asks of the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Check {
    export: String,
    /// 1: read and remember; then: see what has changed since, and write.
    step: u8,
    /// What the file is for the server that asks: its number and its generation.
    file: FileAt,
    /// Where each writes, in blocks.
    places: BTreeMap<ServerNumber, u64>,
}

/// What one of them has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checked {
    export: String,
    step: u8,
    /// What it does not see; empty if all is well.
    problems: Vec<String>,
}

/// Checks of others that this server answers.
#[derive(Default)]
pub(super) struct Answering(Mutex<HashMap<ServerNumber, Last>>);

/// The step that was answered last, and the file that is open since the first.
#[derive(Default)]
struct Last {
    export: String,
    step: u8,
    file: Option<File>,
}

/// Names that a check makes in the exported directory.
struct Names {
    file: PathBuf,
    /// It comes between the steps.
    new: PathBuf,
    /// It goes between the steps.
    old: PathBuf,
}

impl Names {
    /// What the file is here.
    fn find(&self, export: &SharedExport) -> Result<Option<FileName>, Status> {
        let name = self.file.file_name().unwrap_or_default();
        export.root.find(name.as_bytes())
    }

    fn of(directory: &Path, server: ServerNumber) -> Self {
        let name = |what: &str| directory.join(format!(".dafs-check-{server}{what}"));
        Self { file: name(""), new: name("-new"), old: name("-old") }
    }
}

/// They are removed when this is dropped.
struct Made<'a>(&'a Names);

impl Drop for Made<'_> {
    fn drop(&mut self) {
        for path in [&self.0.file, &self.0.new, &self.0.old] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "cannot remove a file of the check; remove it");
                }
                _ => {}
            }
        }
    }
}

fn make(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).open(path)
}

/// Asks all that serve. `Err` says what is wrong with an export. Blocks.
pub(super) fn check(core: &Core) -> Result<Result<(), String>, CoordinationError> {
    for export in core.exports.iter().filter(|export| export.is_remote && !export.is_read_only) {
        tracing::info!(
            export = export.name,
            "other hosts keep these files: writes are durable before they are answered"
        );
        let others = others(core)?;
        let lease = core.store.grant(2 * PATIENCE)?;
        let asked = Asker { core, export, others, lease }.ask_all();
        let answers = core.keys.all_checked(core.number);
        let changes = vec![Change::Delete(core.keys.check(core.number)), Change::DeleteAll(answers)];
        core.commit(&Transaction { changes, ..Transaction::default() })?;
        // It would end by itself.
        let _ = core.store.revoke(lease);
        if let Err(problem) = asked? {
            return Ok(Err(problem));
        }
    }
    Ok(Ok(()))
}

/// Servers that serve, with their names.
fn others(core: &Core) -> Result<BTreeMap<ServerNumber, String>, CoordinationError> {
    let (entries, _) = core.store.read(&core.keys.live())?;
    let find = |key: String| entries.iter().find(|entry| entry.key == key);
    let named = |number: ServerNumber| {
        find(core.keys.live_server(number))?;
        let member: Member = decode(&find(core.keys.member(number))?.value)?;
        Some((number, member.name))
    };
    Ok(core.keys.members_in(&entries).filter_map(named).collect())
}

/// A server that starts, and an export that it asks others about.
struct Asker<'a> {
    core: &'a Core,
    export: &'a SharedExport,
    others: BTreeMap<ServerNumber, String>,
    lease: LeaseId,
}

impl Asker<'_> {
    fn ask_all(&self) -> Result<Result<(), String>, CoordinationError> {
        let Self { core, export, others, .. } = self;
        let names = Names::of(&export.path, core.number);
        let _made = Made(&names);
        let failed = |error: io::Error| Ok(Err(self.problem(&format!("cannot be checked: {error}"))));
        let begun = || -> io::Result<File> {
            make(&names.old)?;
            let file = make(&names.file)?;
            for place in 0..=self.others.len() as u64 {
                write_block(&file, place, asked(1))?;
                sees(&file, place, asked(1))?;
            }
            Ok(file)
        };
        let file = match begun() {
            Ok(file) => file,
            Err(error)
                if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
            {
                let what = "this server may not make files there, so nobody knows whether others see what it changes";
                tracing::warn!(export = export.name, %error, "{what}");
                return Ok(Ok(()));
            }
            Err(error) => return failed(error),
        };
        if caches_pages_of_fuse(&file) {
            return Ok(Err(self.problem(&format!("is on FUSE, and the kernel caches its data{ADVICE}"))));
        }
        let at = match names.find(export) {
            Ok(Some(at)) if at.generation != 0 => at.into(),
            Ok(_) => {
                return Ok(Err(self.problem("does not tell a file from an earlier one of the same number")));
            }
            Err(status) => return Ok(Err(self.problem(&format!("cannot be checked: {status}")))),
        };
        if others.is_empty() {
            return Ok(Ok(()));
        }
        for step in 1..=STEPS {
            let changed = || -> io::Result<()> {
                write_block(&file, 0, asked(step))?;
                if step == 2 {
                    make(&names.new)?;
                    std::fs::remove_file(&names.old)?;
                }
                Ok(())
            };
            if let Err(error) = changed() {
                return failed(error);
            }
            let answered = match self.ask(step, at)? {
                Ok(answered) => answered,
                Err(problem) => return Ok(Err(problem)),
            };
            if let Some(server) = answered.iter().find(|server| !self.is_seen(&file, **server, step)) {
                let problem =
                    format!("does not show this server at once what {} writes{ADVICE}", others[server]);
                return Ok(Err(self.problem(&problem)));
            }
            if answered.len() < others.len() {
                break;
            }
        }
        Ok(Ok(()))
    }

    /// What another has written in a step is there.
    fn is_seen(&self, file: &File, server: ServerNumber, step: u8) -> bool {
        let places = self.places();
        let Some(place) = places.get(&server).filter(|_| step > 1) else { return true };
        places_of(*place, places.len())
            .all(|place| sees(file, place, answered(server, step)).unwrap_or(false))
    }

    fn problem(&self, problem: &str) -> String {
        format!("the directory {} of export {} {problem}", self.export.path.display(), self.export.name)
    }

    fn places(&self) -> BTreeMap<ServerNumber, u64> {
        self.others.keys().copied().zip(1..).collect()
    }

    /// Asks for a step; who has answered. `Err` says what one of them does not see.
    fn ask(&self, step: u8, file: FileAt) -> Result<Result<Vec<ServerNumber>, String>, CoordinationError> {
        let Self { core, export, others, lease } = self;
        let check = Check { export: export.name.clone(), step, file, places: self.places() };
        let put = Change::Put(core.keys.check(core.number), encode(&check), Some(*lease));
        core.commit(&Transaction { changes: vec![put], ..Transaction::default() })?;
        let until = core.host.now() + PATIENCE;
        loop {
            let answers = self.answers(step)?;
            if let Some((server, problem)) =
                answers.iter().find_map(|(server, told)| Some((server, told.problems.first()?)))
            {
                let problem = format!("does not show {} at once {problem}{ADVICE}", others[server]);
                return Ok(Err(self.problem(&problem)));
            }
            let silent = others.iter().filter(|(server, _)| !answers.contains_key(server));
            let silent: Vec<_> = silent.map(|(_, name)| name).collect();
            if silent.is_empty() || core.host.now() >= until {
                if !silent.is_empty() {
                    let what = "servers do not say whether they see what this one writes";
                    tracing::warn!(export = export.name, ?silent, "{what}");
                }
                return Ok(Ok(answers.into_keys().collect()));
            }
            core.rest(ANSWER_LOOK);
        }
    }

    /// What the others have seen in a step, as far as they have said so.
    fn answers(&self, step: u8) -> Result<BTreeMap<ServerNumber, Checked>, CoordinationError> {
        let keys = &self.core.keys;
        let (entries, _) = self.core.store.read(&keys.all_checked(self.core.number))?;
        let told = |server: &ServerNumber| {
            let key = keys.checked(self.core.number, *server);
            let told: Checked = decode(&entries.iter().find(|entry| entry.key == key)?.value)?;
            (told.export == self.export.name && told.step == step).then_some((*server, told))
        };
        Ok(self.others.keys().filter_map(told).collect())
    }
}

/// Where a server writes: into what was there, and beyond its end.
fn places_of(place: u64, servers: usize) -> impl Iterator<Item = u64> {
    [place, place + servers as u64].into_iter()
}

/// What the server that starts writes in a step, and what another does: each time something else.
fn asked(step: u8) -> u8 {
    b'0' + step
}

fn answered(server: ServerNumber, step: u8) -> u8 {
    b'A' + u8::try_from(server % 20).unwrap_or(0) + step
}

fn write_block(file: &File, place: u64, mark: u8) -> io::Result<()> {
    file.write_all_at(&[mark; BLOCK_SIZE], place * BLOCK_SIZE as u64)?;
    file.sync_all()
}

fn sees(file: &File, place: u64, mark: u8) -> io::Result<bool> {
    let mut block = [0; BLOCK_SIZE];
    let end = (place + 1) * BLOCK_SIZE as u64;
    match file.read_exact_at(&mut block, end - BLOCK_SIZE as u64) {
        Ok(()) => Ok(block == [mark; BLOCK_SIZE] && file.metadata()?.len() >= end),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Answers checks of servers that start, each on a thread of its own: files of other hosts may let wait.
pub(super) fn answer(core: &Arc<Core>, entries: &[Entry]) {
    let all = core.keys.checks();
    let asked = |entry: &Entry| {
        let server: ServerNumber = entry.key.strip_prefix(&all)?.parse().ok()?;
        Some((server, decode::<Check>(&entry.value)?))
    };
    let asked: Vec<_> =
        entries.iter().filter_map(asked).filter(|(server, _)| *server != core.number).collect();
    let mut answering = lock(&core.answering.0);
    answering.retain(|server, _| asked.iter().any(|(asker, _)| asker == server));
    for (server, check) in asked {
        let last = answering.entry(server).or_default();
        if (&last.export, last.step) == (&check.export, check.step)
            || !check.places.contains_key(&core.number)
        {
            continue;
        }
        let file = last.file.take().filter(|_| last.export == check.export);
        *last = Last { export: check.export.clone(), step: check.step, file: None };
        let own = Arc::clone(core);
        let work = move || answer_one(&own, server, &check, file);
        let spawned = core.host.spawn("dafs-check", Box::new(work));
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start a thread to check what this server sees");
        }
    }
}

fn answer_one(core: &Core, asker: ServerNumber, check: &Check, file: Option<File>) {
    let Some(export) = core.exports.iter().find(|export| export.name == check.export) else { return };
    let names = Names::of(&export.path, asker);
    let looked = match file {
        None => remember(&names, export, check),
        Some(file) => compare(&names, &file, check, core.number).map(|problems| (file, problems)),
    };
    let (file, problems) = match looked {
        Ok((file, problems)) => (Some(file), problems),
        Err(error) => (None, vec![error.to_string()]),
    };
    // One that took long is not asked for any more: the file of another check would be taken for that of the next.
    let is_asked = |last: &&mut Last| (&last.export, last.step) == (&check.export, check.step);
    if let Some(last) = lock(&core.answering.0).get_mut(&asker).filter(is_asked) {
        last.file = file;
    }
    let told = Checked { export: check.export.clone(), step: check.step, problems };
    // Whoever asks may die before it removes that.
    let lease = core.recent_lease();
    let changes = vec![Change::Put(core.keys.checked(asker, core.number), encode(&told), lease)];
    let compares = vec![Compare::Present(core.keys.check(asker))];
    if let Err(error) = core.commit(&Transaction { compares, changes, reads: Vec::new() }) {
        tracing::warn!(%error, "cannot say what this server sees");
    }
}

/// Looks at all that will change, so that what is cached of it is cached now.
fn remember(names: &Names, export: &SharedExport, check: &Check) -> io::Result<(File, Vec<String>)> {
    let file = File::options().read(true).write(true).open(&names.file)?;
    let mut problems = Vec::new();
    if names.find(export).ok().flatten() != Some(check.file.into()) {
        problems.push("the number that a file has here".to_owned());
    }
    if !sees(&file, 0, asked(check.step))? {
        problems.push("new data".to_owned());
    }
    if !names.old.try_exists()? || names.new.try_exists()? {
        problems.push("a new name".to_owned());
    }
    Ok((file, problems))
}

fn compare(names: &Names, kept: &File, check: &Check, own: ServerNumber) -> io::Result<Vec<String>> {
    let mut problems = Vec::new();
    let again = File::options().read(true).write(true).open(&names.file)?;
    let mark = asked(check.step);
    if !sees(kept, 0, mark)? {
        problems.push("data that has changed in an open file".to_owned());
    }
    if !sees(&again, 0, mark)? {
        problems.push("data that has changed before a file is opened".to_owned());
    }
    if !names.new.try_exists()? {
        problems.push("a new name".to_owned());
    }
    if names.old.try_exists()? {
        problems.push("that a name is gone".to_owned());
    }
    for place in check.places.get(&own).into_iter().flat_map(|place| places_of(*place, check.places.len())) {
        write_block(kept, place, answered(own, check.step))?;
    }
    Ok(problems)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::host::OwnHost;
    use super::super::tests::{config, memory_store};
    use super::*;

    // [CLUS-31]
    #[test]
    fn file_of_a_late_check_is_not_that_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let export = SharedExport::open("data", directory.path(), false).unwrap();
        let store = memory_store();
        let core =
            Core::new((Arc::new(store), Arc::new(OwnHost::new())), (1, 3), &config(), vec![export.clone()]);
        let names = Names::of(directory.path(), 7);
        make(&names.old).unwrap();
        write_block(&make(&names.file).unwrap(), 0, asked(1)).unwrap();
        let file = names.find(&export).unwrap().unwrap().into();
        let check = Check { export: "data".to_owned(), step: 1, file, places: BTreeMap::new() };
        for (asked, is_kept) in [(("data", 1), true), (("data", 2), false), (("other", 1), false)] {
            let last = Last { export: asked.0.to_owned(), step: asked.1, file: None };
            lock(&core.answering.0).insert(7, last);
            answer_one(&core, 7, &check, None);
            assert_eq!(lock(&core.answering.0)[&7].file.is_some(), is_kept, "{asked:?}");
        }
    }
}
