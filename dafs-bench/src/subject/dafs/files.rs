//! Calls on the names of a directory full of files: one after the other by the blocking calls, or many in flight under corks.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::Context;
use dafs_client::{Dir, DirPage, OpenOptions, Pending, Session, wait_any};

use crate::clock::nanoseconds;
use crate::load::Work;
use crate::record::{Method, NameOp};
use crate::stats::Samples;
use crate::subject::files::{Batch, DIRECTORY};

use super::{CREDITS_MIN, Dafs, Setup, exported};

/// See [`crate::subject::Subject::files`].
pub(super) fn run(dafs: &mut Dafs, op: NameOp, batch: Batch, samples: &mut Samples) -> anyhow::Result<Work> {
    let credits = u16::try_from(batch.queue_depth).unwrap_or(u16::MAX).max(CREDITS_MIN);
    let target = dafs.target.clone();
    let link = dafs.link(Setup { method: Method::Auto, progress_thread: false, credits })?;
    let root = exported(&link.session, &target)?;
    if op == NameOp::Create {
        root.create_dir(DIRECTORY, 0o755)?;
    }
    let directory = root.open_dir(DIRECTORY)?;
    let work = match op {
        _ if batch.queue_depth > 1 => {
            Crowd { session: &link.session, directory: &directory, batch }.run(op, samples)?
        }
        NameOp::List => batch.list(|| list(&directory))?,
        _ => batch.one_by_one(samples, |index| Ok(call(&directory, op, index)?))?,
    };
    drop(directory);
    if op == NameOp::Remove {
        root.remove_dir(DIRECTORY)?;
    }
    Ok(work)
}

fn call(directory: &Dir, op: NameOp, index: usize) -> dafs_client::Result<()> {
    let name = Batch::name(index);
    match op {
        NameOp::Create => directory.open_with(name, &creating()).map(drop),
        NameOp::Open => directory.open(name).map(drop),
        NameOp::Rename => directory.rename(name, directory, Batch::other_name(index), true),
        NameOp::Remove => directory.remove_file(Batch::other_name(index)),
        NameOp::Stat | NameOp::List => directory.metadata(name).map(drop),
    }
}

/// How a file is made that is not there.
fn creating() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    options
}

/// Entries with attributes.
fn list(directory: &Dir) -> anyhow::Result<usize> {
    let mut count = 0;
    for entry in directory.entries(true) {
        count += usize::from(entry?.attributes.is_some());
    }
    Ok(count)
}

/// A listing on its way: behind which entry it goes on, and how many it has seen.
#[derive(Debug, Default)]
struct Listing {
    cookie: u64,
    seen: usize,
}

/// Many requests at once.
struct Crowd<'a> {
    session: &'a Session,
    directory: &'a Dir,
    batch: Batch,
}

impl Crowd<'_> {
    fn run(&self, op: NameOp, samples: &mut Samples) -> anyhow::Result<Work> {
        let directory = self.directory;
        let began = Instant::now();
        if op == NameOp::List {
            self.lists()?;
            return Ok(self.batch.listed(began));
        }
        let all = (0..self.batch.files).collect();
        match op {
            NameOp::Create => {
                let options = creating();
                // Files are closed as they come: the handles go to the server with the requests that follow.
                self.each(all, |&index| directory.submit_open_with(Batch::name(index), &options), samples)?;
            }
            NameOp::Open => {
                let mut options = OpenOptions::new();
                options.read(true);
                self.each(all, |&index| directory.submit_open_with(Batch::name(index), &options), samples)?;
            }
            NameOp::Rename => {
                let to = Batch::other_name;
                let submit =
                    |&index: &usize| directory.submit_rename(Batch::name(index), directory, to(index), true);
                self.each(all, submit, samples)?;
            }
            NameOp::Remove => {
                let submit = |&index: &usize| directory.submit_remove_file(Batch::other_name(index));
                self.each(all, submit, samples)?;
            }
            NameOp::Stat | NameOp::List => {
                self.each(all, |&index| directory.submit_metadata(Batch::name(index)), samples)?;
            }
        }
        Ok(Work { ops: self.batch.files as u64, elapsed: began.elapsed() })
    }

    fn each<T>(
        &self,
        all: VecDeque<usize>,
        submit: impl FnMut(&usize) -> Pending<dafs_client::Result<T>>,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        self.keep_in_flight(all, submit, |_, _| Ok(None), samples)
    }

    /// As many listings as there may be requests, each page by page.
    fn lists(&self) -> anyhow::Result<()> {
        let size = self.session.agreed().read_inline_max as usize;
        let all = (0..self.batch.listings()).map(|_| Listing::default()).collect();
        let submit = |listing: &Listing| self.directory.submit_page(true, listing.cookie, size);
        let finish = |listing: Listing, page: DirPage| {
            let with_attributes = page.entries.iter().filter(|entry| entry.attributes.is_some());
            let seen = listing.seen + with_attributes.count();
            if page.end {
                return self.batch.check(seen).map(|()| None);
            }
            let cookie = page.entries.last().context("a page without entries")?.cookie;
            Ok(Some(Listing { cookie, seen }))
        };
        self.keep_in_flight(all, submit, finish, &mut Samples::default())
    }

    /// Does all jobs, as many at once as may be. What `finish` returns of a job is what is left of it.
    fn keep_in_flight<J, T>(
        &self,
        mut jobs: VecDeque<J>,
        mut submit: impl FnMut(&J) -> Pending<dafs_client::Result<T>>,
        mut finish: impl FnMut(J, T) -> anyhow::Result<Option<J>>,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let depth = self.batch.queue_depth;
        let (mut pendings, mut started) = (Vec::with_capacity(depth), Vec::with_capacity(depth));
        let mut now = Instant::now();
        loop {
            let cork = self.session.cork();
            while pendings.len() < depth
                && let Some(job) = jobs.pop_front()
            {
                pendings.push(submit(&job));
                started.push((now, job));
            }
            drop(cork);
            if pendings.is_empty() {
                return Ok(());
            }
            wait_any(&mut pendings);
            now = Instant::now();
            // One look, for both lists: more may end meanwhile.
            let ended: Vec<bool> = pendings.iter().map(Pending::has_ended).collect();
            let (mut ours, mut theirs) = (ended.iter(), ended.iter());
            let done = pendings.extract_if(.., |_| ours.next() == Some(&true)).collect::<Vec<_>>();
            let begun = started.extract_if(.., |_| theirs.next() == Some(&true)).collect::<Vec<_>>();
            for (pending, (start, job)) in done.into_iter().zip(begun) {
                samples.record(nanoseconds(start, now));
                jobs.extend(finish(job, pending.wait()?)?);
            }
        }
    }
}
