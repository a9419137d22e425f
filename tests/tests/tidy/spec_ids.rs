//! Requirements of the specification and the tests that cite them.
//!
//! A requirement is defined where its id, such as `[WIRE-3]`, begins a line, list item or table row of a page in
//! `spec/`, whether bold or not. Anywhere else the id is a mention.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::code_only;

/// The ids that a page defines, each with its line number; an id may come twice, which is for the caller to refuse.
pub(crate) fn defined_ids(page: &str) -> Vec<(usize, String)> {
    page.lines()
        .enumerate()
        .filter_map(|(index, line)| {
            let start = line.trim_start_matches(|c: char| c.is_whitespace() || "-*|#>`".contains(c));
            Some((index + 1, leading_id(start)?))
        })
        .collect()
}

/// The ids in the comments of tests: anywhere in a test file, or after the first `#[cfg(test)]` of another.
pub(crate) fn cited_ids(text: &str, is_test_file: bool) -> BTreeSet<String> {
    let code = code_only(text);
    let first_line =
        if is_test_file { Some(0) } else { code.lines().position(|line| line.contains("#[cfg(test)]")) };
    let Some(first_line) = first_line else { return BTreeSet::new() };
    text.lines()
        .skip(first_line)
        .filter_map(|line| line.split_once("//"))
        .flat_map(|(_, comment)| ids_in(comment))
        .collect()
}

/// The ids that `spec/exceptions.md` lists, each with the text beside it.
pub(crate) fn excepted_ids(page: &str) -> BTreeMap<String, String> {
    page.lines()
        .filter_map(|line| {
            let start = line.trim_start_matches(|c: char| c.is_whitespace() || "-*|`".contains(c));
            let id = leading_id(start)?;
            let reason =
                start[id.len() + 2..].trim_matches(|c: char| c.is_whitespace() || "*|`:".contains(c));
            Some((id, reason.to_owned()))
        })
        .collect()
}

/// Every id in brackets in `text`.
fn ids_in(text: &str) -> Vec<String> {
    text.match_indices('[').filter_map(|(at, _)| leading_id(&text[at..])).collect()
}

/// The id in the brackets that `text` begins with: capitals, perhaps in parts joined by dashes, then a number.
fn leading_id(text: &str) -> Option<String> {
    let (id, _) = text.strip_prefix('[')?.split_once(']')?;
    let (area, number) = id.rsplit_once('-')?;
    let is_area = !area.is_empty() && area.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_area && is_number).then(|| id.to_owned())
}

mod tests {
    use super::*;

    #[test]
    fn definition_begins_a_line_and_a_mention_does_not() {
        let page = "- **[WIRE-1]** A header is 32 bytes, see [WIRE-9].\n[WIRE-2] Zero.\n| [LIST-IO-3] | Sorted. |\n\
                    Text [WIRE-4].\n[link](x)\n[wire-5] [WIRE-] [-1]";
        let expected = [(1, "WIRE-1"), (2, "WIRE-2"), (3, "LIST-IO-3")];
        let found = defined_ids(page);
        assert_eq!(found.iter().map(|(line, id)| (*line, id.as_str())).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn citation_counts_in_test_comments_only() {
        let text = "// [WIRE-1]\nfn f() {}\n#[cfg(test)]\nmod tests {\n    // [WIRE-2] and [WIRE-3]\n    let a = x[WIRE-4];\n}";
        assert_eq!(cited_ids(text, false).into_iter().collect::<Vec<_>>(), ["WIRE-2", "WIRE-3"]);
        assert_eq!(cited_ids(text, true).len(), 3);
        assert!(cited_ids("// [WIRE-1]", false).is_empty());
    }

    #[test]
    fn exception_keeps_its_reason() {
        let page = "# Exceptions\n- **[WIRE-1]**: needs a device.\n- [WIRE-2]\n";
        let found = excepted_ids(page);
        assert_eq!(found["WIRE-1"], "needs a device.");
        assert_eq!(found["WIRE-2"], "");
    }
}
