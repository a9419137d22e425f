//! Runs what was selected and gathers the table.

mod in_guest;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::in_guest::run_guest;
use crate::TestArgs;
use crate::checks::{self, CARGO_TIME_MAX, CHECKS, Check, Checked};
use crate::guest::{self, Job, VERBS};
use crate::judge::{explains_no_tests, judge};
use crate::libtest;
use crate::packages::{self, NEEDS, Supplier};
use crate::places::Places;
use crate::process::{self, Log};
use crate::report::{Report, Row};
use crate::suite::{self, Column, PROVIDERS, Suite, TargetId, Workspace};
use crate::user::{self, User};

/// Bound on one test program. Generous: it is there to end a hang, not to judge speed.
const SUITE_TIME_MAX: Duration = Duration::from_secs(15 * 60);

/// Bound on asking a test program for its list.
const LIST_TIME_MAX: Duration = Duration::from_secs(60);

/// Suites that come last, when the guest has ended: their programs look for work without sleeping, and take five times as long beside it.
const LAST: [&str; 2] = ["bench/cli", "bench/mpi"];

/// Rows that are neither test targets nor in [`CHECKS`].
const BUILD: &str = "build";
const DOCTESTS: &str = "doctests";

/// `cargo xtask test`: true when nothing failed.
pub(crate) fn test(args: &TestArgs) -> Result<bool> {
    // Asked at run time: two checkouts may share a target directory, and with it this program.
    let directory = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let workspace = suite::discover(&directory)?;
    check_names(args, &workspace)?;
    let args = with_row_verbs(args);
    if args.list {
        print!("{}", list(&workspace));
        return Ok(true);
    }
    process::kill_group_on_signals()?;
    let mut runner = Runner::new(&args, &workspace)?;
    runner.run_all()?;
    println!("\n{}", runner.report.render().trim_end());
    let totals = runner.report.totals();
    if totals.passed + totals.failed == 0 {
        bail!("nothing ran: no test matches what was selected");
    }
    Ok(totals.failed == 0)
}

struct Runner<'a> {
    args: &'a TestArgs,
    workspace: &'a Workspace,
    log_directory: PathBuf,
    places: Places,
    supplier: Supplier,
    report: Report,
    /// The features of every call of cargo on the whole workspace, once chosen; see [`Runner::features`].
    features: Option<String>,
    /// Why nothing can run on verbs, if so.
    verbs_obstacle: Option<String>,
    /// Tests that wait for the guest.
    guest_jobs: Vec<Job>,
    start: Instant,
}

impl<'a> Runner<'a> {
    fn new(args: &'a TestArgs, workspace: &'a Workspace) -> Result<Self> {
        let log_directory = workspace.target_directory.join("xtask");
        fs::create_dir_all(&log_directory)
            .with_context(|| format!("cannot create {}", log_directory.display()))?;
        let supplier = Supplier::new(!args.no_install, &log_directory);
        Ok(Self {
            args,
            workspace,
            log_directory,
            places: Places::new(),
            supplier,
            report: Report::default(),
            features: None,
            verbs_obstacle: None,
            guest_jobs: Vec::new(),
            start: Instant::now(),
        })
    }

    fn run_all(&mut self) -> Result<()> {
        let (first, rest) = CHECKS.split_at(1);
        // The cheapest check goes first.
        for check in self.wanted(first) {
            self.announce(check.name);
            let done = check.run(self.workspace, "", &self.log_directory)?;
            self.finish(done.row, done.log.as_ref(), done.elapsed);
        }
        let suites: Vec<&Suite> =
            self.workspace.suites.iter().filter(|suite| is_selected(self.args, &suite.name)).collect();
        let programs = if suites.is_empty() { BTreeMap::new() } else { self.build()? };
        // The others compile, while the suites mostly wait.
        let checks = self.wanted(rest);
        let depends = checks.iter().any(|check| check.depends_on_features());
        let features = if depends { self.features() } else { String::new() };
        let (workspace, directory, start) = (self.workspace, self.log_directory.clone(), self.start);
        std::thread::scope(|scope| {
            let beside = scope.spawn(move || run_beside(&checks, workspace, &features, &directory, start));
            self.run_suites(&suites, &programs)?;
            let checked = beside.join().unwrap_or_else(|_| bail!("the thread of the checks panicked"))?;
            checked.into_iter().for_each(|done| self.finish(done.row, done.log.as_ref(), done.elapsed));
            Ok(())
        })
    }

    /// The suites that have tests for the guest come first, so that it can run beside the others: it is slow, and has a machine of its own.
    fn run_suites(&mut self, suites: &[&Suite], programs: &BTreeMap<TargetId, PathBuf>) -> Result<()> {
        let mut first = Vec::new();
        let mut rest = Vec::new();
        for suite in suites {
            if self.has_tests_for_guest(suite, programs)? { first.push(*suite) } else { rest.push(*suite) }
        }
        rest.sort_by_key(|suite| LAST.contains(&suite.name.as_str()));
        self.run_in_order(&first, programs)?;
        let jobs = std::mem::take(&mut self.guest_jobs);
        if self.prepare_guest(&jobs)? {
            let (root, directory, start) = (&self.workspace.root, self.log_directory.clone(), self.start);
            std::thread::scope(|scope| {
                let guest = scope.spawn(|| run_guest(root, &jobs, &directory, start));
                self.run_in_order(&rest, programs)?;
                let ran = guest.join().unwrap_or_else(|_| bail!("the thread of the guest panicked"))?;
                self.finish_guest(&jobs, &ran)
            })?;
        } else {
            self.run_in_order(&rest, programs)?;
        }
        // Tests that name no provider may need the device too.
        let late = std::mem::take(&mut self.guest_jobs);
        if self.prepare_guest(&late)? {
            let ran = run_guest(&self.workspace.root, &late, &self.log_directory, self.start)?;
            self.finish_guest(&late, &ran)?;
        }
        if jobs.is_empty() && late.is_empty() {
            self.explain_no_guest();
        }
        if is_selected(self.args, DOCTESTS) && self.wants_column(0) {
            self.run_doctests()?;
        }
        Ok(())
    }

    fn run_in_order(&mut self, suites: &[&Suite], programs: &BTreeMap<TargetId, PathBuf>) -> Result<()> {
        for suite in suites {
            self.run_suite(suite, programs)?;
            if crate::probe::is_root()
                && let Some(row) = user::row(&suite.name)
            {
                self.run_suite_as_user(suite, programs, &row)?;
            }
        }
        Ok(())
    }

    /// Those of the checks that were asked for.
    fn wanted(&self, checks: &'static [Check]) -> Vec<&'static Check> {
        let of_all = self.args.suite.is_empty() && !self.args.no_lint && self.is_unfiltered();
        let is_wanted = |check: &&Check| of_all || self.args.suite.iter().any(|name| name == check.name);
        checks.iter().filter(is_wanted).collect()
    }

    /// Builds all programs with one feature set and returns the test programs. A row appears for it too, so that a
    /// build failure is counted even where no suite is left to show it.
    fn build(&mut self) -> Result<BTreeMap<TargetId, PathBuf>> {
        self.announce(BUILD);
        let log = Log::new(&self.log_directory, BUILD);
        let command = checks::build_command(self.workspace, &self.features());
        let outcome = process::run(command, BUILD, &log, CARGO_TIME_MAX)?;
        let failure = (!outcome.end.is_success()).then(|| outcome.end.describe());
        let programs = suite::executables_from(&log.stdout_text());
        // Cargo's standard output is for machines; a reader wants the diagnostics only.
        fs::write(&log.stdout, "").with_context(|| format!("cannot write {}", log.stdout.display()))?;
        self.finish(Row::of_check(BUILD, failure), Some(&log), outcome.elapsed);
        Ok(programs)
    }

    fn run_suite(&mut self, suite: &Suite, programs: &BTreeMap<TargetId, PathBuf>) -> Result<()> {
        self.announce(&suite.name);
        let start = Instant::now();
        let log = Log::new(&self.log_directory, &suite.name);
        let is_user_s = !crate::probe::is_root();
        let name = user::row(&suite.name).filter(|_| is_user_s).unwrap_or_else(|| suite.name.clone());
        let mut row = Row::new(&name);
        let mut whole = (String::new(), String::new());
        let (mut is_split, mut has_tests) = (false, false);
        for target in &suite.targets {
            let Some(program) = programs.get(target) else {
                row.fail_program(format!("{} {} did not build", target.kind, target.name));
                continue;
            };
            let Some(tests) = self.list_tests(suite, program, &log)? else {
                row.fail_program(format!(
                    "{} {} does not answer --list as the test harness does",
                    target.kind, target.name
                ));
                continue;
            };
            is_split |= tests.iter().any(|test| suite::column_of(test) != 0);
            has_tests |= !tests.is_empty();
            let chosen: Vec<String> = tests.into_iter().filter(|test| self.wants_test(test)).collect();
            let places = self.places.divide(suite, chosen);
            let places = places.map(|(directory, tests)| (directory.map(Path::to_owned), tests));
            for (directory, chosen) in places.iter().filter(|(_, tests)| !tests.is_empty()) {
                let start = || test_command(suite, program, directory.as_deref());
                self.run_program(suite, program, start, chosen, &log, &mut row)?;
                whole.0.push_str(&log.stdout_text());
                whole.1.push_str(&log.stderr_text());
            }
        }
        // With several programs in a suite, its log holds what all of them said.
        fs::write(&log.stdout, whole.0)?;
        fs::write(&log.stderr, whole.1)?;
        if !suite.is_unit() && !has_tests && !row.has_missing_program {
            is_split = explains_no_tests(&mut row, self.verbs_obstacle.as_deref());
        }
        if is_split && !suite.is_unit() {
            self.explain_empty_cells(suite, &mut row);
        }
        self.finish(row, Some(&log), start.elapsed());
        Ok(())
    }

    /// Runs those tests of a suite once more in which the user matters, as one without privileges.
    fn run_suite_as_user(
        &mut self,
        suite: &Suite,
        programs: &BTreeMap<TargetId, PathBuf>,
        name: &str,
    ) -> Result<()> {
        self.announce(name);
        let start = Instant::now();
        let log = Log::new(&self.log_directory, &format!("{}-user", suite.name));
        let mut row = Row::new(name);
        let user = User::new()?;
        // One that does not build has failed in the suite's own row.
        for program in suite.targets.iter().filter_map(|target| programs.get(target)) {
            let tests = self.list_tests(suite, program, &log)?.unwrap_or_default();
            let is_wanted = |test: &String| self.wants_test(test) && user::wants(&suite.name, test);
            let chosen: Vec<String> = tests.into_iter().filter(is_wanted).collect();
            if chosen.is_empty() {
                continue;
            }
            if !user.reaches(program) {
                let why = format!("a user without privileges cannot run {}", program.display());
                row.cell(0).not_run = Some(why);
                continue;
            }
            let command = || user.command(test_command(suite, program, Some(user.directory())));
            let mut first = command();
            first.arg("--exact").args(&chosen);
            let outcome = process::run(first, name, &log, SUITE_TIME_MAX)?;
            let ignored = judge(&mut row, &chosen, &libtest::parse_output(&log.stdout_text()), &outcome);
            let (own, others): (Vec<_>, Vec<_>) = ignored.into_iter().partition(|(_, reason)| {
                packages::need_named_in(reason)
                    .is_some_and(|need| self.supplier.supply(need).is_ok() && user.has(need))
            });
            for (test, _) in others {
                row.cell(suite::column_of(&test)).elsewhere = Some(user::AS_ROOT);
            }
            let own: Vec<String> = own.into_iter().map(|(test, _)| test).collect();
            if !own.is_empty() {
                let said = (log.stdout_text(), log.stderr_text());
                let mut again = command();
                again.args(["--ignored", "--exact"]).args(&own);
                let outcome = process::run(again, name, &log, SUITE_TIME_MAX)?;
                judge(&mut row, &own, &libtest::parse_output(&log.stdout_text()), &outcome);
                fs::write(&log.stdout, said.0 + &log.stdout_text())?;
                fs::write(&log.stderr, said.1 + &log.stderr_text())?;
            }
        }
        self.finish(row, Some(&log), start.elapsed());
        Ok(())
    }

    fn list_tests(&self, suite: &Suite, program: &Path, log: &Log) -> Result<Option<Vec<String>>> {
        let mut command = test_command(suite, program, None);
        command.arg("--list");
        let outcome = process::run(command, &suite.name, log, LIST_TIME_MAX)?;
        Ok(outcome.end.is_success().then(|| log.stdout_text()).and_then(|text| libtest::parse_list(&text)))
    }

    /// Runs the `chosen` tests of a program, then those among them that were ignored for want of something we have.
    fn run_program(
        &mut self,
        suite: &Suite,
        program: &Path,
        start: impl Fn() -> Command,
        chosen: &[String],
        log: &Log,
        row: &mut Row,
    ) -> Result<()> {
        let mut command = start();
        command.arg("--exact").args(chosen);
        let outcome = process::run(command, &suite.name, log, SUITE_TIME_MAX)?;
        let results = libtest::parse_output(&log.stdout_text());
        let ignored = judge(row, chosen, &results, &outcome);
        let ignored = self.leave_to_guest(suite, program, row, ignored);
        let supplied = self.sort_ignored(row, ignored);
        if supplied.is_empty() {
            return Ok(());
        }
        let said = (log.stdout_text(), log.stderr_text());
        let mut command = start();
        command.args(["--ignored", "--exact"]).args(&supplied);
        let outcome = process::run(command, &suite.name, log, SUITE_TIME_MAX)?;
        let results = libtest::parse_output(&log.stdout_text());
        judge(row, &supplied, &results, &outcome);
        fs::write(&log.stdout, said.0 + &log.stdout_text())?;
        fs::write(&log.stderr, said.1 + &log.stderr_text())?;
        Ok(())
    }

    /// Counts ignored tests as skipped, except those whose need can be met: these are returned, to be run.
    fn sort_ignored(&mut self, row: &mut Row, ignored: Vec<(String, String)>) -> Vec<String> {
        let mut supplied = Vec::new();
        for (test, reason) in ignored {
            let missing = match packages::need_named_in(&reason) {
                Some(need) => match self.supplier.supply(need) {
                    Ok(()) => {
                        supplied.push(test);
                        continue;
                    }
                    Err(why) => why,
                },
                None if reason.is_empty() => "ignored without a reason".to_owned(),
                None => reason,
            };
            row.cell(suite::column_of(&test)).skipped += 1;
            row.skips.push(format!("{test}: {missing}"));
        }
        supplied
    }

    fn explain_empty_cells(&self, suite: &Suite, row: &mut Row) {
        for column in (1..PROVIDERS.len()).filter(|column| self.wants_column(*column)) {
            let is_empty = !row.cells.contains_key(&column);
            if is_empty && self.args.filter.is_none() && !row.has_missing_program {
                let left_out = suite::reason_not_run(&suite.name, column);
                let obstacle = self.verbs_obstacle.clone().filter(|_| PROVIDERS[column].name == VERBS);
                row.cell(column).not_run = Some(obstacle.unwrap_or(left_out));
            }
        }
    }

    /// The features of every call of cargo on the whole workspace. Decided once, before the first: everything is built with
    /// verbs, or nothing, so that one build serves all rows.
    fn features(&mut self) -> String {
        if let Some(features) = &self.features {
            return features.clone();
        }
        let all = &self.workspace.verbs_features;
        let headers = if all.is_empty() {
            Err("no package has the feature verbs".to_owned())
        } else if self.wants_column(suite::column_of("verbs::")) {
            self.supplier.supply(guest::HEADERS)
        } else {
            self.supplier.find(guest::HEADERS)
        };
        let chosen = if headers.is_ok() { all.clone() } else { String::new() };
        self.verbs_obstacle = headers.err();
        self.features = Some(chosen.clone());
        chosen
    }

    fn run_doctests(&mut self) -> Result<()> {
        if self.args.filter.is_some() {
            return Ok(());
        }
        self.announce(DOCTESTS);
        let log = Log::new(&self.log_directory, DOCTESTS);
        let command = checks::doctest_command(self.workspace, &self.features());
        let outcome = process::run(command, DOCTESTS, &log, CARGO_TIME_MAX)?;
        let results = libtest::parse_output(&log.stdout_text());
        let names: Vec<String> = results.verdicts.keys().cloned().collect();
        let mut row = Row::new(DOCTESTS);
        row.cell(0);
        let ignored = judge(&mut row, &names, &results, &outcome);
        self.sort_ignored(&mut row, ignored);
        self.finish(row, Some(&log), outcome.elapsed);
        Ok(())
    }

    fn announce(&self, name: &str) {
        announce(name, self.start);
    }

    /// Adds the row to the table, says how it went, and shows the output of a failure.
    fn finish(&mut self, row: Row, log: Option<&Log>, elapsed: Duration) {
        if row.cells.is_empty() {
            return;
        }
        println!("    {}: {} in {:.1} s", row.suite, row.summary(), elapsed.as_secs_f64());
        if let Some(log) = log
            && (row.has_failed() || self.args.verbose)
        {
            for (title, path, text) in
                [("output", &log.stdout, log.stdout_text()), ("error output", &log.stderr, log.stderr_text())]
            {
                if !text.trim().is_empty() {
                    println!("---- {}: {title} ({})\n{}\n----", row.suite, path.display(), text.trim_end());
                }
            }
        }
        self.report.rows.push(row);
    }

    fn wants_test(&self, test: &str) -> bool {
        self.wants_column(suite::column_of(test))
            && self.args.filter.as_ref().is_none_or(|filter| test.contains(filter.as_str()))
    }

    fn wants_column(&self, column: Column) -> bool {
        self.args.provider.is_empty() || self.args.provider.iter().any(|name| name == PROVIDERS[column].name)
    }

    fn is_unfiltered(&self) -> bool {
        self.args.filter.is_none() && self.args.provider.is_empty()
    }
}

fn announce(name: &str, start: Instant) {
    println!("[{:>4} s] {name}", start.elapsed().as_secs());
}

/// Runs checks one after another, on processors that nobody else wants.
fn run_beside(
    checks: &[&Check],
    workspace: &Workspace,
    features: &str,
    log_directory: &Path,
    start: Instant,
) -> Result<Vec<Checked>> {
    process::yield_to_others()?;
    let run = |check: &&Check| {
        announce(check.name, start);
        check.run(workspace, features, log_directory)
    };
    checks.iter().map(run).collect()
}

/// A test program as cargo would start it, with a directory for its files.
fn test_command(suite: &Suite, program: &Path, directory: Option<&Path>) -> Command {
    let mut command = Command::new(program);
    command.envs(directory.map(|directory| ("TMPDIR", directory)));
    command.envs(suite.threads().map(|threads| ("RUST_TEST_THREADS", threads.to_string())));
    command
        .current_dir(&suite.directory)
        .env("CARGO_MANIFEST_DIR", &suite.directory)
        .env("CARGO_PKG_VERSION", &suite.version)
        // Programs that tests run were built with them: building them alone takes other features of their dependencies.
        .env("DAFS_PROGRAMS_BUILT", "1")
        .env("RUST_BACKTRACE", "1");
    command
}

/// The row verbs has the tests of every suite: to ask for it is to ask for its provider.
fn with_row_verbs(args: &TestArgs) -> TestArgs {
    let mut args = args.clone();
    let named = args.suite.len();
    args.suite.retain(|name| name != VERBS);
    if args.suite.len() < named {
        args.provider.push(VERBS.to_owned());
    }
    args
}

/// Whether a suite or row was asked for by name; with no names, all are.
fn is_selected(args: &TestArgs, name: &str) -> bool {
    args.suite.is_empty()
        || args.suite.iter().any(|wanted| wanted == name || (wanted == "unit" && name.ends_with("/unit")))
}

/// Refuses names that select nothing, rather than passing for want of tests.
fn check_names(args: &TestArgs, workspace: &Workspace) -> Result<()> {
    let suites: BTreeSet<&str> = all_names(workspace).chain(["unit"]).collect();
    if let Some(unknown) = args.suite.iter().find(|name| !suites.contains(name.as_str())) {
        bail!("no suite {unknown}; there are: {}", suites.into_iter().collect::<Vec<_>>().join(", "));
    }
    let providers: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
    if let Some(unknown) = args.provider.iter().find(|name| !providers.contains(&name.as_str())) {
        bail!("no provider {unknown}; there are: {}", providers.join(", "));
    }
    Ok(())
}

fn all_names(workspace: &Workspace) -> impl Iterator<Item = &str> {
    let suites = workspace.suites.iter().map(|suite| suite.name.as_str());
    suites.chain([VERBS, DOCTESTS]).chain(CHECKS.iter().map(|check| check.name))
}

fn list(workspace: &Workspace) -> String {
    let mut text = String::from("suites and checks:\n");
    for name in all_names(workspace) {
        text.push_str(&format!("  {name}\n"));
    }
    text.push_str("providers:\n");
    for provider in PROVIDERS {
        let note = if provider.name == "-" { "tests that need no provider" } else { "" };
        text.push_str(format!("  {:7}{note}", provider.name).trim_end());
        text.push('\n');
    }
    text.push_str("optional needs:\n");
    for need in NEEDS {
        let source =
            if need.packages.is_empty() { String::new() } else { format!(" [{}]", need.packages.join(" ")) };
        text.push_str(&format!("  {:14} {}{source}\n", need.name, need.purpose));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suite_verbs_is_every_suite_on_verbs() {
        let args = TestArgs { suite: vec!["session".to_owned(), VERBS.to_owned()], ..TestArgs::default() };
        let args = with_row_verbs(&args);
        assert_eq!((args.suite, args.provider), (vec!["session".to_owned()], vec![VERBS.to_owned()]));
        assert!(with_row_verbs(&TestArgs::default()).provider.is_empty());
    }
}
