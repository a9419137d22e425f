//! The tables of the Wireshark dissector, made of the tables in `spec/`.
//!
//! `spec/wireshark/dafs.lua` has one section that is made here; the rest of the file is written by hand. [`page`] reads
//! Markdown, [`values`] what a cell allows, [`tables`] picks the tables, [`lua`] writes them.

mod lua;
mod page;
mod tables;
mod values;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use page::Page;

const DISSECTOR: &str = "spec/wireshark/dafs.lua";
const BEGIN: &str =
    "-- Begin of the tables, which `cargo xtask dissector` makes of the pages in spec/. Do not edit them.\n";
const END: &str = "-- End of the tables.\n";

/// Writes the made section of the dissector anew; where the file is.
pub(crate) fn write(root: &Path) -> Result<PathBuf> {
    let path = root.join(DISSECTOR);
    let text = generate(root)?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The file as it should be: what is written by hand stays.
fn generate(root: &Path) -> Result<String> {
    let read = |name: &str| {
        let path = root.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let page = |name: &str| read(&format!("spec/protocol/{name}.md"));
    let pages = ["wire", "wire-session", "wire-data", "wire-lists", "wire-files"].map(page);
    let wire = pages.into_iter().collect::<Result<Vec<String>>>()?.concat();
    let spec = tables::spec(&Page::new(&wire), &Page::new(&page("errors")?), &Page::new(&page("tcp")?))?;
    let section = format!("local SPEC = {}\n", spec.text());
    replaced(&read(DISSECTOR)?, &section).with_context(|| format!("{DISSECTOR} has no place for the tables"))
}

/// `text` with `section` between its two marks.
fn replaced(text: &str, section: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{section}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_dissector_are_those_of_the_pages() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let committed = std::fs::read_to_string(root.join(DISSECTOR)).unwrap();
        let made = generate(root).unwrap();
        let differ = committed.lines().zip(made.lines()).position(|(old, new)| old != new);
        assert!(committed == made, "{DISSECTOR}, line {differ:?} is old: run `cargo xtask dissector`");
    }

    #[test]
    fn section_is_replaced_and_the_rest_stays() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(replaced(&text, "new\n").unwrap(), format!("a\n{BEGIN}new\n{END}b\n"));
        assert_eq!(replaced("a\nb\n", "new\n"), None);
        assert_eq!(replaced(&format!("a\n{BEGIN}old\n"), "new\n"), None);
    }
}
