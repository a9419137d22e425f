//! Reads what the standard test harness prints, in its stable human form.

use std::collections::BTreeMap;

/// What the harness said about one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It ran and passed.
    Passed,
    /// It ran and failed.
    Failed,
    /// It is marked `#[ignore]`, with the reason given there (may be empty).
    Ignored(String),
}

/// Everything learnt from one run's standard output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    /// Verdict per test.
    pub(crate) verdicts: BTreeMap<String, Verdict>,
    /// Sum of passed, failed and ignored over all `test result:` lines; 0 when the harness did not get there.
    pub(crate) counted: usize,
}

/// Reads a run's standard output.
pub(crate) fn parse_output(text: &str) -> Results {
    let mut results = Results::default();
    for line in text.lines() {
        if let Some((name, verdict)) = parse_line(line) {
            results.verdicts.insert(name, verdict);
        } else if let Some(counted) = parse_summary(line) {
            results.counted += counted;
        }
    }
    results
}

/// Reads the answer to `--list`: the names of the tests, or `None` when this is not the standard harness.
pub(crate) fn parse_list(text: &str) -> Option<Vec<String>> {
    let is_complete = text.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        words.next().is_some_and(|word| word.parse::<usize>().is_ok())
            && words.next().is_some_and(|word| word.starts_with("test"))
    });
    is_complete
        .then(|| text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Reads `test NAME ... VERDICT`. Other lines give `None`, among them "test NAME has been running for over ...".
fn parse_line(line: &str) -> Option<(String, Verdict)> {
    let (name, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let verdict = match verdict.trim_end() {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        other => {
            let reason = other.strip_prefix("ignored")?;
            Verdict::Ignored(reason.strip_prefix(", ").unwrap_or_default().to_owned())
        }
    };
    // The harness adds this to the name of a `#[should_panic]` test, here but not in its list.
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    Some((name.to_owned(), verdict))
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; ...`.
fn parse_summary(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, counts) = rest.split_once(". ")?;
    let counted = counts
        .split(';')
        .filter_map(|part| part.trim().split_once(' '))
        .filter(|(_, what)| matches!(*what, "passed" | "failed" | "ignored"))
        .filter_map(|(number, _)| number.parse::<usize>().ok())
        .sum();
    Some(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_every_kind_is_read() {
        let text = "\nrunning 5 tests\n\
            test tcp::read_past_end_is_short ... ok\n\
            test shm::slow has been running for over 60 seconds\n\
            test shm::write_refused_returns_error ... FAILED\n\
            test peer ... ignored, needs nfs-ganesha\n\
            test bare ... ignored\n\
            test tests::limit_over - should panic ... ok\n\
            \nfailures:\n\n---- shm::write ----\ntest nonsense\n\
            test result: FAILED. 2 passed; 1 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.1s\n";
        let results = parse_output(text);
        let verdict = |name: &str| results.verdicts.get(name).cloned();
        assert_eq!(verdict("tcp::read_past_end_is_short"), Some(Verdict::Passed));
        assert_eq!(verdict("shm::write_refused_returns_error"), Some(Verdict::Failed));
        assert_eq!(verdict("peer"), Some(Verdict::Ignored("needs nfs-ganesha".to_owned())));
        assert_eq!(verdict("bare"), Some(Verdict::Ignored(String::new())));
        assert_eq!(verdict("tests::limit_over"), Some(Verdict::Passed));
        assert_eq!(results.verdicts.len(), 5);
        assert_eq!(results.counted, 5);
    }

    #[test]
    fn output_cut_by_a_crash_keeps_what_was_said() {
        let results = parse_output("running 3 tests\ntest a ... ok\ntest b ... ");
        assert_eq!(results.verdicts.len(), 1);
        assert_eq!(results.counted, 0);
    }

    #[test]
    fn doctest_names_with_spaces_are_read() {
        let results = parse_output("test proto/src/lib.rs - wire::Reader (line 12) - compile fail ... ok\n");
        assert_eq!(results.verdicts.len(), 1);
    }

    #[test]
    fn list_of_standard_harness_is_read() {
        let text = "tcp::a: test\nshm::b: test\nbench_c: benchmark\n\n2 tests, 1 benchmark\n";
        assert_eq!(parse_list(text), Some(vec!["tcp::a".to_owned(), "shm::b".to_owned()]));
        assert_eq!(parse_list("\n0 tests, 0 benchmarks\n"), Some(vec![]));
        assert_eq!(parse_list("1 test, 0 benchmarks\n"), Some(vec![]));
    }

    #[test]
    fn list_of_other_harness_is_refused() {
        assert_eq!(parse_list("hello\n"), None);
        assert_eq!(parse_list(""), None);
    }
}
