//! The table of suites and providers, and the totals under it.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::suite::{Column, PROVIDERS};

/// What happened in one cell of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// Why nothing ran here at all.
    pub(crate) not_run: Option<String>,
    /// Where tests of this cell are counted instead.
    pub(crate) elsewhere: Option<&'static str>,
}

/// One suite's line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) suite: String,
    pub(crate) cells: BTreeMap<Column, Cell>,
    /// Failed tests by name, crashes, hangs.
    pub(crate) failures: Vec<String>,
    /// Reasons of skipped tests, each with the test's name.
    pub(crate) skips: Vec<String>,
    /// Oddities that fail nothing.
    pub(crate) warnings: Vec<String>,
    /// A test program did not build or start, so that empty cells prove nothing.
    pub(crate) has_missing_program: bool,
}

impl Row {
    /// An empty row.
    pub(crate) fn new(suite: &str) -> Self {
        Self { suite: suite.to_owned(), ..Self::default() }
    }

    /// A row for something that either passes or fails as a whole.
    pub(crate) fn of_check(suite: &str, failure: Option<String>) -> Self {
        let mut row = Self::new(suite);
        match failure {
            None => row.cell(0).passed = 1,
            Some(why) => row.fail(why),
        }
        row
    }

    /// A row for something that could not be run.
    pub(crate) fn of_not_run(suite: &str, why: &str) -> Self {
        let mut row = Self::new(suite);
        row.cell(0).not_run = Some(why.to_owned());
        row
    }

    /// The cell in `column`, made if need be.
    pub(crate) fn cell(&mut self, column: Column) -> &mut Cell {
        self.cells.entry(column).or_default()
    }

    /// Counts one failure of the suite as a whole.
    pub(crate) fn fail(&mut self, why: String) {
        self.cell(0).failed += 1;
        self.failures.push(why);
    }

    /// Whether anything failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.cells.values().any(|cell| cell.failed > 0)
    }

    /// Counts one test program that could not be run at all.
    pub(crate) fn fail_program(&mut self, why: String) {
        self.fail(why);
        self.has_missing_program = true;
    }

    /// The row's numbers in a few words, for the line that ends a suite.
    pub(crate) fn summary(&self) -> String {
        let mut sum = Cell::default();
        for cell in self.cells.values() {
            sum.passed += cell.passed;
            sum.failed += cell.failed;
            sum.skipped += cell.skipped;
        }
        let only = self.cells.values().next().filter(|_| self.cells.len() == 1);
        sum.not_run = only.and_then(|cell| cell.not_run.clone());
        sum.elsewhere = self.cells.values().find_map(|cell| cell.elsewhere);
        sum.text()
    }
}

impl Cell {
    fn text(&self) -> String {
        if let Some(why) = &self.not_run {
            return format!("not run: {why}");
        }
        let parts = [("failed", self.failed), ("passed", self.passed), ("skipped", self.skipped)];
        let texts: Vec<String> = parts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(what, count)| format!("{what} {count}"))
            .chain(self.elsewhere.map(str::to_owned))
            .collect();
        if texts.is_empty() { "no tests".to_owned() } else { texts.join(", ") }
    }
}

/// All rows of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
}

/// Sums over a report.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Ignored tests, and cells that were not run, each once where its tests are not known.
    pub(crate) skipped: usize,
}

impl Report {
    /// The sums over all cells.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for cell in self.rows.iter().flat_map(|row| row.cells.values()) {
            totals.passed += cell.passed;
            totals.failed += cell.failed;
            totals.skipped += cell.skipped.max(usize::from(cell.not_run.is_some()));
        }
        totals
    }

    /// The table, the notes and the last line.
    pub(crate) fn render(&self) -> String {
        let mut text = self.render_table();
        section(&mut text, "Skipped", self.rows.iter().map(|row| (&row.suite, &row.skips)));
        section(&mut text, "Warnings", self.rows.iter().map(|row| (&row.suite, &row.warnings)));
        section(&mut text, "Failed", self.rows.iter().map(|row| (&row.suite, &row.failures)));
        let Totals { passed, failed, skipped } = self.totals();
        let _ = write!(text, "\n{passed} passed, {failed} failed, {skipped} skipped\n");
        text
    }

    fn render_table(&self) -> String {
        // Columns in which nothing is said are left out.
        let columns: Vec<Column> = (0..PROVIDERS.len())
            .filter(|column| self.rows.iter().any(|row| row.cells.contains_key(column)))
            .collect();
        let header = std::iter::once("suite").chain(columns.iter().map(|column| PROVIDERS[*column].name));
        let mut lines: Vec<Vec<String>> = vec![header.map(str::to_owned).collect()];
        for row in &self.rows {
            let cells =
                columns.iter().map(|column| row.cells.get(column).map_or_else(String::new, Cell::text));
            lines.push(std::iter::once(row.suite.clone()).chain(cells).collect());
        }
        let width = |index: usize| lines.iter().map(|line| line[index].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..=columns.len()).map(width).collect();
        lines.insert(1, widths.iter().map(|width| "-".repeat(*width)).collect());
        let mut text = String::new();
        for line in &lines {
            let padded: Vec<String> =
                line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
            text.push_str(padded.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

fn section<'a>(text: &mut String, title: &str, rows: impl Iterator<Item = (&'a String, &'a Vec<String>)>) {
    let lines: Vec<String> = rows
        .flat_map(|(suite, notes)| notes.iter().map(move |note| format!("  {suite}: {note}\n")))
        .collect();
    if !lines.is_empty() {
        let _ = write!(text, "\n{title}:\n{}", lines.concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let mut session = Row::new("session");
        session.cell(1).passed = 12;
        *session.cell(2) = Cell { passed: 3, failed: 2, skipped: 1, ..Cell::default() };
        session.cell(4).not_run = Some("no device".to_owned());
        session.failures.push("shm::a_b_c".to_owned());
        Report { rows: vec![Row::of_check("fmt", None), session, Row::of_not_run("fuzz", "no directory")] }
    }

    #[test]
    fn totals_count_tests_checks_and_cells_not_run() {
        assert_eq!(sample().totals(), Totals { passed: 16, failed: 2, skipped: 3 });
        assert_eq!(Report::default().totals(), Totals::default());
    }

    #[test]
    fn rendered_table_is_aligned_and_ends_with_the_totals() {
        let text = sample().render();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "suite    -                      tcp        shm                            verbs"
        );
        assert!(lines[1].starts_with("-------  ---"));
        assert_eq!(lines[2], "fmt      passed 1");
        assert_eq!(
            lines[3],
            "session                         passed 12  failed 2, passed 3, skipped 1  not run: no device"
        );
        assert_eq!(lines[4], "fuzz     not run: no directory");
        assert!(text.contains("\nFailed:\n  session: shm::a_b_c\n"));
        assert_eq!(lines.last(), Some(&"16 passed, 2 failed, 3 skipped"));
    }

    #[test]
    fn cell_counted_elsewhere_says_where() {
        let mut row = Row::new("session");
        row.cell(4).elsewhere = Some("in row verbs");
        assert_eq!(row.summary(), "in row verbs");
        row.cell(4).passed = 2;
        assert_eq!(row.summary(), "passed 2, in row verbs");
        assert_eq!(Report { rows: vec![row] }.totals(), Totals { passed: 2, failed: 0, skipped: 0 });
    }

    #[test]
    fn check_failure_is_counted_and_named() {
        let row = Row::of_check("clippy", Some("exited with status 101".to_owned()));
        assert!(row.has_failed());
        assert_eq!(row.summary(), "failed 1");
        assert_eq!(row.failures, ["exited with status 101"]);
    }
}
