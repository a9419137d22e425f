//! What came of a test program: verdicts to cells of the table, and failures in words.

use crate::guest::{Done, Job};
use crate::libtest::{self, Results, Verdict};
use crate::process::Outcome;
use crate::report::{Cell, Row};
use crate::suite;

/// Most unreported tests named after a crash.
const NAMED_MAX: usize = 8;

/// Counts the verdicts on the `expected` tests; returns the ignored ones with their reasons.
///
/// A test that was expected and not reported has failed: the program crashed, hung or left early. The exception is a
/// program that ended well and counted as many tests as expected, whose report a child process may have garbled.
pub(crate) fn judge(
    row: &mut Row,
    expected: &[String],
    results: &Results,
    outcome: &Outcome,
) -> Vec<(String, String)> {
    let mut ignored = Vec::new();
    let mut unreported = Vec::new();
    let all_counted = outcome.end.is_success() && results.counted == expected.len();
    let mut failed = 0;
    for test in expected {
        let column = suite::column_of(test);
        match results.verdicts.get(test) {
            Some(Verdict::Passed) => row.cell(column).passed += 1,
            None if all_counted => row.cell(column).passed += 1,
            Some(Verdict::Ignored(reason)) => ignored.push((test.clone(), reason.clone())),
            Some(Verdict::Failed) => {
                row.cell(column).failed += 1;
                row.failures.push(test.clone());
                failed += 1;
            }
            None => {
                row.cell(column).failed += 1;
                unreported.push(test.as_str());
            }
        }
    }
    if !unreported.is_empty() {
        row.failures.push(format!(
            "{}; {} of {} tests did not report: {}",
            outcome.end.describe(),
            unreported.len(),
            expected.len(),
            name_some(&unreported)
        ));
    } else if failed == 0 && !outcome.end.is_success() {
        row.fail(format!("{}, though no test failed", outcome.end.describe()));
    }
    if outcome.left_running > 0 {
        row.warnings.push(format!("left {} processes running; they were killed", outcome.left_running));
    }
    ignored
}

/// Counts what a program in the guest said; failures carry the name of its suite.
pub(crate) fn judge_job(row: &mut Row, job: &Job, done: &Done) {
    let mut own = Row::new(&job.suite);
    let ignored = judge(&mut own, &job.tests, &libtest::parse_output(&done.stdout), &done.outcome);
    for (test, reason) in ignored {
        own.cell(suite::column_of(&test)).failed += 1;
        own.failures.push(format!("{test}: ignored even in the guest: {reason}"));
    }
    for (column, cell) in own.cells {
        row.cell(column).passed += cell.passed;
        row.cell(column).failed += cell.failed;
    }
    row.failures.extend(own.failures.into_iter().map(|failure| format!("{} {failure}", job.suite)));
}

/// A suite whose programs have no test at all: a fault, but where they need headers that are not there. Then each cell is to say so.
pub(crate) fn explains_no_tests(row: &mut Row, verbs_obstacle: Option<&str>) -> bool {
    let is_explained = verbs_obstacle.is_some() && suite::is_of_verbs_alone(&row.suite);
    if !is_explained {
        row.fail("it has no tests".to_owned());
    }
    is_explained
}

/// None of the jobs can be run: their tests count as skipped.
pub(crate) fn leave_out(cell: &mut Cell, jobs: &[Job], why: String) {
    cell.skipped = jobs.iter().map(|job| job.tests.len()).sum();
    cell.not_run = Some(why);
}

fn name_some(tests: &[&str]) -> String {
    let named = tests.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    if tests.len() > NAMED_MAX { format!("{named}, ...") } else { named }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::guest::VERBS;
    use crate::process::End;
    use crate::report::Report;

    fn done(stdout: &str, end: End) -> Done {
        let outcome = Outcome { end, elapsed: Duration::ZERO, left_running: 0 };
        Done { outcome, stdout: stdout.to_owned(), stderr: String::new() }
    }

    #[test]
    fn job_in_the_guest_fails_by_what_failed_hung_or_was_ignored() {
        let job = Job {
            suite: "session".to_owned(),
            directory: PathBuf::new(),
            version: String::new(),
            program: PathBuf::new(),
            tests: ["verbs::a", "verbs::b", "verbs::c"].map(str::to_owned).to_vec(),
        };
        let column = suite::column_of("verbs::");
        let said = "test verbs::a ... ok\ntest verbs::b ... FAILED\ntest verbs::c ... ignored, needs luck\n";
        let mut row = Row::new(VERBS);
        judge_job(&mut row, &job, &done(said, End::Exit(101)));
        assert_eq!((row.cell(column).passed, row.cell(column).failed), (1, 2));
        assert!(row.failures.iter().any(|failure| failure == "session verbs::b"), "{:?}", row.failures);
        judge_job(&mut row, &job, &done("test verbs::a ... ok\n", End::TimedOut(Duration::from_secs(300))));
        assert_eq!((row.cell(column).passed, row.cell(column).failed), (2, 4));
        assert!(row.failures.iter().any(|failure| failure.contains("hung")), "{:?}", row.failures);
    }

    #[test]
    fn jobs_without_a_guest_are_skipped_each_test_of_them() {
        let job = |tests: &[&str]| Job {
            suite: "session".to_owned(),
            directory: PathBuf::new(),
            version: String::new(),
            program: PathBuf::new(),
            tests: tests.iter().map(|test| (*test).to_owned()).collect(),
        };
        let mut report = Report::default();
        let mut row = Row::new(VERBS);
        let jobs = [job(&["verbs::a", "verbs::b"]), job(&["verbs::c"])];
        leave_out(row.cell(suite::column_of("verbs::")), &jobs, "no guest: needs qemu".to_owned());
        report.rows.push(row);
        assert_eq!((report.totals().skipped, report.totals().failed), (3, 0));
        assert!(report.render().contains("not run: no guest: needs qemu"));
    }

    #[test]
    fn suite_without_tests_has_failed_but_where_its_headers_are_missing() {
        for (suite, obstacle, is_explained) in [
            ("rdma", Some("needs libibverbs-dev"), true),
            ("device_removal", Some("needs libibverbs-dev"), true),
            ("rdma", None, false),
            ("session", Some("needs libibverbs-dev"), false),
            ("client", Some("needs libibverbs-dev"), false),
        ] {
            let mut row = Row::new(suite);
            assert_eq!(explains_no_tests(&mut row, obstacle), is_explained, "{suite} {obstacle:?}");
            assert_eq!(row.has_failed(), !is_explained, "{suite} {obstacle:?}");
        }
    }
}
