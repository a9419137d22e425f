//! Tests that wait for the guest: which they are, and the row of what became of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Runner, announce};
use crate::guest::{self, Done, Job, VERBS};
use crate::judge::{judge_job, leave_out};
use crate::packages;
use crate::process::Log;
use crate::report::Row;
use crate::suite::{self, Suite, TargetId};

/// Directory of what passes between a guest and us.
const GUEST: &str = "guest";

/// What a guest did.
pub(super) struct GuestRun {
    /// One for each job.
    done: Vec<Done>,
    log: Log,
    elapsed: Duration,
}

pub(super) fn run_guest(root: &Path, jobs: &[Job], log_directory: &Path, start: Instant) -> Result<GuestRun> {
    announce(VERBS, start);
    let log = Log::new(log_directory, VERBS);
    let began = Instant::now();
    let done = guest::run(root, jobs, &log_directory.join(GUEST), &log)?;
    Ok(GuestRun { done, log, elapsed: began.elapsed() })
}

impl Runner<'_> {
    /// Some of its tests are named as those on verbs are.
    pub(super) fn has_tests_for_guest(
        &mut self,
        suite: &Suite,
        programs: &BTreeMap<TargetId, PathBuf>,
    ) -> Result<bool> {
        let column = suite::column_of("verbs::");
        let log = Log::new(&self.log_directory, &suite.name);
        for program in suite.targets.iter().filter_map(|target| programs.get(target)) {
            let tests = self.list_tests(suite, program, &log)?.unwrap_or_default();
            if tests.iter().any(|test| suite::column_of(test) == column && self.wants_test(test)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Keeps back the ignored tests that need an RDMA device, where the machine offers none; returns the others.
    pub(super) fn leave_to_guest(
        &mut self,
        suite: &Suite,
        program: &Path,
        row: &mut Row,
        ignored: Vec<(String, String)>,
    ) -> Vec<(String, String)> {
        if self.supplier.supply(guest::DEVICE).is_ok() {
            return ignored;
        }
        let needs_device = |reason: &str| {
            packages::need_named_in(reason).is_some_and(|need| guest::SUPPLIED.contains(&need))
        };
        let (ours, others): (Vec<_>, Vec<_>) =
            ignored.into_iter().partition(|(_, reason)| needs_device(reason));
        if !ours.is_empty() {
            let tests: Vec<String> = ours.into_iter().map(|(test, _)| test).collect();
            for test in &tests {
                row.cell(suite::column_of(test)).elsewhere = Some(guest::IN_GUEST);
            }
            self.guest_jobs.push(Job {
                suite: suite.name.clone(),
                directory: suite.directory.clone(),
                version: suite.version.clone(),
                program: program.to_owned(),
                tests,
            });
        }
        others
    }

    /// Whether jobs can run in a guest. Where there can be none, the row `verbs` says so.
    pub(super) fn prepare_guest(&mut self, jobs: &[Job]) -> Result<bool> {
        if jobs.is_empty() {
            return Ok(false);
        }
        let log = Log::new(&self.log_directory, VERBS);
        let Some(why) = guest::prepare(&self.workspace.root, !self.args.no_install, &log)? else {
            return Ok(true);
        };
        let mut row = Row::new(VERBS);
        leave_out(row.cell(suite::column_of("verbs::")), jobs, why);
        self.finish(row, Some(&log), Duration::ZERO);
        Ok(false)
    }

    /// The row `verbs`: what the suites left to the guest.
    pub(super) fn finish_guest(&mut self, jobs: &[Job], ran: &GuestRun) -> Result<()> {
        let mut row = Row::new(VERBS);
        let mut whole = (ran.log.stdout_text(), ran.log.stderr_text());
        for (job, done) in jobs.iter().zip(&ran.done) {
            judge_job(&mut row, job, done);
            whole.0.push_str(&done.stdout);
            whole.1.push_str(&done.stderr);
        }
        whole.1.push_str(&guest::kernel_text(&self.log_directory.join(GUEST)));
        fs::write(&ran.log.stdout, whole.0)?;
        fs::write(&ran.log.stderr, whole.1)?;
        self.finish(row, Some(&ran.log), ran.elapsed);
        Ok(())
    }

    /// The row `verbs` appears in every full run.
    pub(super) fn explain_no_guest(&mut self) {
        let column = suite::column_of("verbs::");
        if self.args.suite.is_empty() && self.args.filter.is_none() && self.wants_column(column) {
            let has_device = self.supplier.supply(guest::DEVICE).is_ok();
            let why =
                if has_device { "its tests ran on the machine's device" } else { "no test waits for it" };
            let mut row = Row::new(VERBS);
            row.cell(column).not_run = Some(self.verbs_obstacle.clone().unwrap_or_else(|| why.to_owned()));
            self.finish(row, None, Duration::ZERO);
        }
    }
}
