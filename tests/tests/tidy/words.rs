//! Words that the project has given up, and what to write instead.

use crate::rules::has_word;

/// In lower case, with what to write. Names in code are taken apart: `FooBar` and `foo_bar` are `foo bar`.
#[rustfmt::skip]
pub(crate) const RETIRED: &[(&str, &str)] = &[
    ("futility", "give up after N"),
    ("heat", "activate"),
    ("kick", "wake"),
    ("kicked", "woken"),
    ("kicks", "wakes"),
    ("lane", "eager buffer"),
    ("lanes", "eager buffers"),
    ("lone", "alone, or single"),
    ("method fast", "the method eager"),
    ("past the page cache", "bypass the page cache (O_DIRECT)"),
    ("put down", "defer"),
    ("root=keep", "no_root_squash"),
    ("say that it is there", "keep-alive"),
    ("short way", "fast path"),
    ("sign of life", "a message"),
    ("staged", "bounced"),
    ("stirred", "runnable"),
    ("the user may not", "permission denied"),
    ("there is no such file", "no such file or directory"),
    ("unbatched", "uncoalesced"),
    ("unstaged", "not bounced"),
];

/// Places of words of a table such as [`RETIRED`], in any case.
pub(crate) fn retired_words(text: &str, retired: &[(&str, &str)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = apart(line);
        let found = retired.iter().filter(|(word, _)| has_word(&words, word));
        faults.extend(found.map(|(word, instead)| format!("{}: \"{word}\"; write \"{instead}\"", index + 1)));
    }
    faults
}

/// A line in lower case, the words of each name in it apart.
fn apart(line: &str) -> String {
    let mut words = String::with_capacity(line.len());
    let mut before_is_small = false;
    for c in line.chars() {
        if c.is_uppercase() && before_is_small {
            words.push(' ');
        }
        before_is_small = c.is_lowercase() || c.is_ascii_digit();
        match c {
            '_' => words.push(' '),
            c => words.extend(c.to_lowercase()),
        }
    }
    words
}

mod tests {
    use super::*;

    const SAMPLE: &[(&str, &str)] = &[("old", "new"), ("very old", "new")];

    #[test]
    fn retired_word_is_found_in_prose_and_in_names() {
        for text in
            ["an old one", "Old", "OLD_MAX", "get_old()", "OldThing", "oldThing", "\"old\"", "it's old."]
        {
            assert_eq!(retired_words(text, SAMPLE), ["1: \"old\"; write \"new\""], "{text}");
        }
        assert_eq!(retired_words("new\nvery old", SAMPLE).len(), 2);
        assert_eq!(retired_words("new\nvery_old", SAMPLE)[1], "2: \"very old\"; write \"new\"");
    }

    #[test]
    fn longer_word_with_a_retired_one_in_it_is_not_found() {
        for text in ["older", "bold", "Golden", "FOLD", "new"] {
            assert_eq!(retired_words(text, SAMPLE), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn table_can_be_met_and_its_advice_is_not_retired() {
        for (word, instead) in RETIRED {
            assert_eq!(apart(word), *word, "in lower case, and no name");
            assert_eq!(retired_words(word, &[(word, instead)]).len(), 1);
            assert_eq!(retired_words(instead, RETIRED), Vec::<String>::new());
        }
    }
}
