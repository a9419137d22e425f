//! Tables of a Markdown page, by the heading above them.

use anyhow::{Context, Result};

/// A page: its tables, in order.
pub(super) struct Page(Vec<Table>);

/// A table below a heading.
pub(super) struct Table {
    /// Heading of the section that it stands in.
    pub(super) section: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Page {
    pub(super) fn new(text: &str) -> Self {
        let mut tables: Vec<Table> = Vec::new();
        let mut section = "";
        let mut is_table = false;
        let mut is_block = false;
        for line in text.lines() {
            if line.starts_with("```") {
                is_block = !is_block;
            }
            if is_block {
                continue;
            }
            if line.starts_with('#') {
                section = line.trim_start_matches('#').trim();
            }
            let Some(cells) = cells(line) else {
                is_table = false;
                continue;
            };
            if !is_table {
                tables.push(Table { section: section.to_owned(), columns: cells, rows: Vec::new() });
            } else if !is_rule(&cells)
                && let Some(table) = tables.last_mut()
            {
                table.rows.push(cells);
            }
            is_table = true;
        }
        Self(tables)
    }

    /// The tables whose first columns are these.
    pub(super) fn with_columns<'a>(&'a self, columns: &'a [&str]) -> impl Iterator<Item = &'a Table> {
        self.0.iter().filter(|table| table.starts_with(columns))
    }

    /// The table in this section whose first columns are these.
    pub(super) fn table<'a>(&'a self, section: &str, columns: &'a [&str]) -> Result<&'a Table> {
        self.with_columns(columns)
            .find(|table| table.section == section)
            .with_context(|| format!("no table {columns:?} below the heading {section:?}"))
    }
}

impl Table {
    fn starts_with(&self, columns: &[&str]) -> bool {
        self.columns.len() >= columns.len() && self.columns.iter().zip(columns).all(|(a, b)| a == b)
    }

    /// The cell of a row in a column; nothing where the table has no such column.
    pub(super) fn cell<'a>(&self, row: &'a [String], column: &str) -> &'a str {
        let place = self.columns.iter().position(|name| name == column);
        place.and_then(|place| row.get(place)).map_or("", String::as_str)
    }
}

/// The cells of a line of a table.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.trim().to_owned()).collect())
}

/// The line below the columns' names.
fn is_rule(cells: &[String]) -> bool {
    cells.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':')))
}

/// A cell as words: links without their targets, names without backticks.
pub(super) fn plain(cell: &str) -> String {
    let mut text = String::with_capacity(cell.len());
    let mut rest = cell;
    while let Some(open) = rest.find('[') {
        let link = rest[open + 1..].split_once("](").filter(|(words, _)| !words.contains(']'));
        let end = link.and_then(|(words, target)| target.split_once(')').map(|(_, after)| (words, after)));
        text.push_str(&rest[..open]);
        match end {
            Some((words, after)) => {
                text.push_str(words);
                rest = after;
            }
            None => {
                text.push('[');
                rest = &rest[open + 1..];
            }
        }
    }
    text.push_str(rest);
    text.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Top\n\n## One\n\n| a | b |\n|---|---|\n| 1 | x |\n| 2 | |\n\n```text\n| no | table |\n```\n\n\
                        ### Two\n| c |\n|:-|\n| `y` |\n";

    #[test]
    fn tables_are_found_by_heading_and_columns() {
        let page = Page::new(PAGE);
        let table = page.table("One", &["a"]).unwrap();
        assert_eq!(table.rows, [["1", "x"], ["2", ""]]);
        assert_eq!(table.cell(&table.rows[0], "b"), "x");
        assert_eq!(table.cell(&table.rows[0], "none"), "");
        assert_eq!(page.table("Two", &["c"]).unwrap().rows, [["`y`"]]);
        assert!(page.table("Two", &["a"]).is_err());
        assert_eq!(page.with_columns(&["no"]).count(), 0);
    }

    #[test]
    fn links_lose_their_targets() {
        assert_eq!(plain("as `a` in [Path](#path), or [b](c)"), "as a in Path, or b");
        assert_eq!(plain("[Report](#report)[]"), "Report[]");
        assert_eq!(plain("array of [string, u64]"), "array of [string, u64]");
        assert_eq!(plain("[u64, u64] of [x](y)"), "[u64, u64] of x");
    }
}
