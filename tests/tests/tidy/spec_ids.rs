//! Requirements of the specification and the tests that cite them.
//!
//! A requirement is defined where its id, such as `[WIRE-3]`, begins a line, list item or table row of a page in
//! `spec/`, whether bold or not. Anywhere else, and in a fence, the id is a mention. It is one rule, which ends at the next
//! blank line, list item, table row, heading, fence or requirement.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::code_only;

/// Words of a requirement at most.
pub(crate) const WORDS_MAX: usize = 60;

/// One rule of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    /// Where it begins, from 1.
    pub(crate) line: usize,
    pub(crate) id: String,
    /// All of it behind the id.
    pub(crate) text: String,
}

/// The requirements of a page; an id may come twice, which is for the caller to refuse.
pub(crate) fn requirements(page: &str) -> Vec<Requirement> {
    let mut found: Vec<Requirement> = Vec::new();
    let (mut in_fence, mut goes_on) = (false, false);
    for (index, line) in page.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        in_fence ^= is_fence;
        if in_fence || is_fence {
            goes_on = false;
        } else if let Some((id, text)) = definition(line) {
            found.push(Requirement { line: index + 1, id, text: text.to_owned() });
            goes_on = !line.trim_start().starts_with('|');
        } else if goes_on
            && !begins_a_block(line)
            && let Some(last) = found.last_mut()
        {
            last.text.extend([" ", line.trim()]);
        } else {
            goes_on = false;
        }
    }
    found
}

/// Which words in capitals a requirement has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What a stranger implements: exactly one MUST, SHOULD or MAY in each rule.
    Protocol,
    /// How this program does it, in the present tense.
    Design,
}

impl Part {
    /// The part that a page of `spec/` belongs to.
    pub(crate) fn of(path: &str) -> Self {
        if path.starts_with("spec/design/") { Self::Design } else { Self::Protocol }
    }
}

/// What is wrong with the requirements of a page: too long, or not one rule.
pub(crate) fn requirement_faults(page: &str, part: Part) -> Vec<String> {
    let faults_of = |requirement: &Requirement| {
        let Requirement { line, id, text } = requirement;
        let words =
            text.split_whitespace().filter(|word| word.contains(|c: char| c.is_alphanumeric() || c == '_'));
        let words = words.count();
        let rules = capitals(text);
        let too_long = (words > WORDS_MAX).then(|| {
            format!("{line}: [{id}] has {words} words, over {WORDS_MAX}; split it, or explain below")
        });
        let not_one = (part == Part::Protocol && rules != 1)
            .then(|| format!("{line}: [{id}] has {rules} of MUST, SHOULD and MAY; one rule has exactly one"));
        too_long.into_iter().chain(not_one)
    };
    let demands = |(index, line): (usize, &str)| {
        let is_demand = part == Part::Design && capitals(line) > 0;
        is_demand.then(|| format!("{}: MUST, SHOULD or MAY; say what the program does", index + 1))
    };
    let rules = requirements(page).iter().flat_map(faults_of).collect::<Vec<_>>();
    rules.into_iter().chain(page.lines().enumerate().filter_map(demands)).collect()
}

/// How many words of a text demand something.
fn capitals(text: &str) -> usize {
    ["MUST", "SHOULD", "MAY"].iter().map(|word| count_of_word(text, word)).sum()
}

/// The id and the text behind it, where a line begins a requirement.
fn definition(line: &str) -> Option<(String, &str)> {
    let start = line.trim_start_matches(|c: char| c.is_whitespace() || "-*|#>`".contains(c));
    let id = leading_id(start)?;
    let text = &start[id.len() + 2..];
    Some((id, text.trim_start_matches("**").trim()))
}

/// A blank line, list item, table row, heading or quotation: what a paragraph does not go on over.
fn begins_a_block(line: &str) -> bool {
    let line = line.trim_start();
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    line.is_empty()
        || ["- ", "* ", "|", "#", ">"].iter().any(|mark| line.starts_with(mark))
        || digits > 0 && line[digits..].starts_with(". ")
}

fn count_of_word(text: &str, word: &str) -> usize {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let stands_alone =
        |at: &usize| !text[..*at].ends_with(is_name) && !text[at + word.len()..].starts_with(is_name);
    text.match_indices(word).map(|(at, _)| at).filter(stands_alone).count()
}

/// The ids in the comments of tests: directly above a function, or in one, of a test file, or behind the first `#[cfg(test)]` of another.
/// What stands above a file is about no test of it.
pub(crate) fn cited_ids(text: &str, is_test_file: bool) -> BTreeSet<String> {
    let code = code_only(text);
    let first_line =
        if is_test_file { Some(0) } else { code.lines().position(|line| line.contains("#[cfg(test)]")) };
    let Some(first_line) = first_line else { return BTreeSet::new() };
    let (code, text): (Vec<&str>, Vec<&str>) = (code.lines().collect(), text.lines().collect());
    let is_in_function = lines_of_functions(&code);
    let is_above_function = |line: usize| {
        // Comments are blank in the code.
        let mut below = code[line..].iter().map(|line| line.trim());
        let next = below.find(|line| !line.is_empty() && !line.starts_with("#["));
        next.is_some_and(has_function)
    };
    let counts = |line: &usize| is_in_function[*line] || is_above_function(*line);
    (first_line..text.len())
        .filter(|line| text[*line].contains("//"))
        .filter(counts)
        .filter_map(|line| text[line].split_once("//"))
        .flat_map(|(_, comment)| ids_in(comment))
        .collect()
}

fn has_function(code: &str) -> bool {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "fn")
}

/// Which lines are part of a function. Those of a macro's call around it are not, which has functions as any other code.
fn lines_of_functions(code: &[&str]) -> Vec<bool> {
    let (mut depth, mut begun) = (0i32, None);
    let mut inside = Vec::new();
    for line in code {
        if begun.is_none() && has_function(line) {
            begun = Some(depth);
        }
        inside.push(begun.is_some());
        let count = |bracket: char| i32::try_from(line.matches(bracket).count()).unwrap_or(0);
        depth += count('{') - count('}');
        let is_over = line.contains('}') || line.trim_end().ends_with(';');
        begun = begun.filter(|begun| depth > *begun || !is_over);
    }
    inside
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

/// Every id of these areas in `text`, in brackets or not.
pub(crate) fn named_ids(text: &str, areas: &BTreeSet<&str>) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let is_id = |word: &&str| {
        word.rsplit_once('-').is_some_and(|(area, _)| areas.contains(area))
            && leading_id(&format!("[{word}]")).is_some()
    };
    words.filter(is_id).map(str::to_owned).collect()
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
                    Text [WIRE-4].\n[link](x)\n[wire-5] [WIRE-] [-1]\n```\n[WIRE-6]\n```\n";
        let expected = [(1, "WIRE-1"), (2, "WIRE-2"), (3, "LIST-IO-3")];
        let found = requirements(page);
        let found = found.iter().map(|found| (found.line, found.id.as_str()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn requirement_ends_where_its_paragraph_does() {
        for end in
            ["", "- item", "* item", "1. item", "| row |", "# Heading", "```\ncode\n```", "> said", "[A-2] x"]
        {
            let page = format!("- **[A-1]** One\n  two\n  three.\n{end}\nnot of it");
            assert_eq!(requirements(&page)[0].text, "One two three.", "{end}");
        }
        assert_eq!(requirements("| **[A-1]** | One. |\ntwo")[0].text, "| One. |");
        assert_eq!(requirements("[A-1] 1.5 is\n1.6")[0].text, "1.5 is 1.6");
    }

    #[test]
    fn requirement_of_too_many_words_is_found_at_the_edge() {
        let page = |words: usize| format!("- **[A-1]** MUST — {}\n", "word ".repeat(words - 1));
        assert_eq!(requirement_faults(&page(WORDS_MAX), Part::Protocol), Vec::<String>::new());
        let faults = requirement_faults(&page(WORDS_MAX + 1), Part::Protocol);
        assert!(faults.len() == 1 && faults[0].starts_with("1: [A-1] has 61 words"), "{faults:?}");
    }

    #[test]
    fn requirement_of_no_rule_or_several_is_found() {
        for (text, fits) in [
            ("A server MUST end.", true),
            ("A server MUST NOT end.", true),
            ("A server SHOULD end. It may wait.", true),
            ("A client MAY ask,\nor not.", true),
            ("A server ends.", false),
            ("A server must end.", false),
            ("MUSTARD, MAY_BE", false),
            ("A server MUST end, and MAY wait.", false),
            ("A server MUST end.\nIt SHOULD wait.", false),
        ] {
            let faults = requirement_faults(&format!("- **[A-1]** {text}\n\nMUST\n"), Part::Protocol);
            assert_eq!(faults.is_empty(), fits, "{text}: {faults:?}");
        }
    }

    #[test]
    fn design_demands_nothing_and_its_rules_are_short() {
        let faults = |page: &str| requirement_faults(page, Part::of("spec/design/locks.md"));
        assert_eq!(faults("- **[A-1]** The server waits.\n\nIt must.\n"), Vec::<String>::new());
        for word in ["MUST", "SHOULD", "MAY"] {
            let rule = faults(&format!("- **[A-1]** The server {word} wait.\n"));
            assert!(rule.len() == 1 && rule[0].starts_with("1: MUST, SHOULD or MAY"), "{rule:?}");
            assert_eq!(faults(&format!("# Page\n\nThe server {word} wait.\n")).len(), 1);
        }
        assert_eq!(faults(&format!("- **[A-1]** {}\n", "word ".repeat(WORDS_MAX + 1))).len(), 1);
        assert_eq!(Part::of("spec/protocol/locks.md"), Part::Protocol);
    }

    #[test]
    fn ids_that_a_program_names_are_found() {
        let program = "@tests(\"SESS-12\", \"ACC-3\")\nX = \"WIRE-1 WIRE-2\"  # UTF-8, SHA-256\n";
        let areas = BTreeSet::from(["SESS", "ACC", "WIRE"]);
        let found: Vec<String> = named_ids(program, &areas).into_iter().collect();
        assert_eq!(found, ["ACC-3", "SESS-12", "WIRE-1", "WIRE-2"]);
    }

    #[test]
    fn citation_counts_in_test_comments_only() {
        let text = "// [WIRE-1]\nfn f() {}\n#[cfg(test)]\nmod tests {\n    // [WIRE-2] and [WIRE-3]\n    let a = x[WIRE-4];\n}";
        assert!(cited_ids(text, false).is_empty(), "it is in no function");
        let text = text.replace("let a", "fn a() {}\n    let a");
        assert_eq!(cited_ids(&text, false).into_iter().collect::<Vec<_>>(), ["WIRE-2", "WIRE-3"]);
        assert_eq!(cited_ids(&text, true).len(), 3);
        assert!(cited_ids("// [WIRE-1]\nfn f() {}", false).is_empty());
    }

    #[test]
    fn citation_counts_above_a_function_and_in_it_and_nowhere_else() {
        let text = "//! [A-1]\n#![allow(x)]\n// [A-2]\nuse a;\n// [A-3]\nmod b { }\n\
            // [A-4]\n// More of it.\n#[test]\n#[ignore = \"fn\"]\nfn f() {\n    let x = [\n        1, // [A-5]\n    ];\n}\n\
            // [A-6]\nconst C: u8 = 1;\nmacro! {\n    // [A-7]\n    pub(crate) fn g(\n        x: u8,\n    ) {\n\
            // [A-8]\n    }\n    // [A-9]\n}\n\
            trait T {\n    fn h();\n    // [A-10]\n    type X;\n}\n";
        assert_eq!(cited_ids(text, true).into_iter().collect::<Vec<_>>(), ["A-4", "A-5", "A-7", "A-8"]);
    }

    #[test]
    fn exception_keeps_its_reason() {
        let page = "# Exceptions\n- **[WIRE-1]**: needs a device.\n- [WIRE-2]\n";
        let found = excepted_ids(page);
        assert_eq!(found["WIRE-1"], "needs a device.");
        assert_eq!(found["WIRE-2"], "");
    }
}
