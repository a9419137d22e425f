//! The table of limits in `spec/design/limits.md`: the tests, settings and metrics that it names are there.

use std::collections::BTreeSet;

use crate::source::code_only;

/// Its columns, in order.
const COLUMNS: [&str; 7] = ["what", "whose", "default", "setting", "metric", "when it is reached", "test"];

/// What there is for the table to name.
#[derive(Debug, Default)]
pub(crate) struct There {
    /// Functions, tests among them.
    pub(crate) functions: BTreeSet<String>,
    /// Settings of the server, as flags.
    pub(crate) flags: BTreeSet<String>,
    /// Names of metrics, and of what has a metric.
    pub(crate) metrics: BTreeSet<String>,
}

/// What is wrong with the table of a page.
pub(crate) fn faults(page: &str, there: &There) -> Vec<String> {
    let rows: Vec<(usize, Vec<&str>)> = page
        .lines()
        .enumerate()
        .skip_while(|(_, line)| cells(line) != COLUMNS)
        .take_while(|(_, line)| line.starts_with('|'))
        .map(|(index, line)| (index + 1, cells(line)))
        .collect();
    if rows.len() < 3 {
        return vec!["no table of limits".to_owned()];
    }
    rows[2..].iter().flat_map(|(line, row)| row_faults(row, there, *line)).collect()
}

fn row_faults(row: &[&str], there: &There, line: usize) -> Vec<String> {
    let [what, _, _, setting, metric, _, test] = row[..] else {
        return vec![format!("{line}: {} cells, not {}", row.len(), COLUMNS.len())];
    };
    let unknown = |cell: &str, kind: &str, known: &BTreeSet<String>| -> Vec<String> {
        let names = quoted(cell).into_iter().filter(|name| !known.contains(*name));
        names.map(|name| format!("{line}: {what}: there is no {kind} `{name}`")).collect()
    };
    let untested = quoted(test).is_empty().then(|| format!("{line}: {what}: no test"));
    let flags = unknown(setting, "setting", &there.flags);
    let metrics = unknown(metric, "metric", &there.metrics);
    let tests = unknown(test, "test", &there.functions);
    untested.into_iter().chain(flags).chain(metrics).chain(tests).collect()
}

fn cells(line: &str) -> Vec<&str> {
    let inside = line.trim().strip_prefix('|').and_then(|line| line.strip_suffix('|'));
    inside.map(|line| line.split('|').map(str::trim).collect()).unwrap_or_default()
}

/// What stands in backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The functions of a source.
pub(crate) fn functions(text: &str) -> BTreeSet<String> {
    let code = code_only(text);
    let words: Vec<&str> = code.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "fn").map(|pair| leading_name(pair[1])).collect()
}

/// The public fields of a source, as flags.
pub(crate) fn flags(text: &str) -> BTreeSet<String> {
    let fields = text.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "));
    fields.map(|(name, _)| format!("--{}", name.replace('_', "-"))).collect()
}

/// The strings of a source that are names.
pub(crate) fn names(text: &str) -> BTreeSet<String> {
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    text.split('"').filter(|text| !text.is_empty() && is_name(text)).map(str::to_owned).collect()
}

fn leading_name(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

mod tests {
    use super::*;

    fn page(row: &str) -> String {
        let line = "|---".repeat(COLUMNS.len());
        format!("# Limits\n\n| {} |\n{line}|\n{row}\n\n| other |\n", COLUMNS.join(" | "))
    }

    fn there() -> There {
        There {
            functions: functions("#[test]\nfn it_ends() {}\n// fn told() {}"),
            flags: flags("    pub views_max: Option<u64>,\n"),
            metrics: names("(\"views\", \"Help of it.\")"),
        }
    }

    #[test]
    fn row_that_names_what_is_there_has_no_fault() {
        let row = "| views | a session | 5 | `--views-max` | `views` | `FULL` | `it_ends` |";
        assert_eq!(faults(&page(row), &there()), Vec::<String>::new());
        assert_eq!(
            faults(&page("| x | y | 5 | – | – | closed | `it_ends` |"), &there()),
            Vec::<String>::new()
        );
    }

    #[test]
    fn row_that_names_what_is_not_there_is_found() {
        for (row, expected) in [
            ("| x | y | 5 | `--views` | – | z | `it_ends` |", "there is no setting `--views`"),
            ("| x | y | 5 | – | `help` | z | `it_ends` |", "there is no metric `help`"),
            ("| x | y | 5 | – | – | z | `told` |", "there is no test `told`"),
            ("| x | y | 5 | – | – | z | – |", "no test"),
            ("| x | y | 5 | – | – | z |", "6 cells"),
        ] {
            let found = faults(&page(row), &there());
            assert!(found.len() == 1 && found[0].contains(expected), "{row}: {found:?}");
        }
        assert_eq!(faults("# Limits\n", &there()), ["no table of limits"]);
    }
}
