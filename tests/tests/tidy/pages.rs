//! Pages that can be used: their length, their table of contents, and where their links lead.

use std::collections::BTreeSet;

/// The longest that each page may be, in words: the front page, and a page of the guide or the specification.
const WORDS_MAX: &[(&str, usize)] = &[("README.md", 1_200), ("docs/src/", 4_000), ("spec/", 4_000)];

/// A page that is too long for its place.
pub(crate) fn too_many_words(path: &str, text: &str) -> Vec<String> {
    let Some((_, most)) = WORDS_MAX.iter().find(|(place, _)| path == *place || in_folder(path, place)) else {
        return Vec::new();
    };
    let words = text.split_whitespace().count();
    let fault = || format!("1: {words} words, over {most}; move a part to another page, or say it shorter");
    (words > *most).then(fault).into_iter().collect()
}

fn in_folder(path: &str, place: &str) -> bool {
    place.ends_with('/') && path.starts_with(place)
}

/// Links to files of a page, with their line from 1: path, and the part behind `#`.
pub(crate) fn links(text: &str) -> Vec<(usize, &str, &str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("](") {
            let Some((target, _)) = line[at + 2..].split_once(')') else { continue };
            if !target.contains("://") && !target.starts_with("mailto:") {
                let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
                found.push((index + 1, path, anchor));
            }
        }
    }
    found
}

/// What links to the headings of a page say behind `#`.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_fence = false;
    for line in text.lines() {
        in_fence ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if !in_fence && heading.len() < line.len() && heading.starts_with(' ') {
            let kept = heading.trim().to_lowercase().replace(' ', "-");
            found.insert(kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect());
        }
    }
    found
}

mod tests {
    use super::*;

    #[test]
    fn page_over_its_words_is_found() {
        let long = "word ".repeat(1_201);
        assert_eq!(too_many_words("README.md", &long).len(), 1);
        assert_eq!(too_many_words("README.md", &long[5..]), Vec::<String>::new());
        assert_eq!(too_many_words("docs/src/start.md", &"word ".repeat(4_001)).len(), 1);
        assert_eq!(too_many_words("spec/protocol/wire.md", &"word ".repeat(4_001)).len(), 1);
        assert_eq!(too_many_words("proto/README.md", &"word ".repeat(4_001)), Vec::<String>::new());
    }

    #[test]
    fn links_are_found_with_their_anchors() {
        let text = "see [a](here.md) and [b](gone.md#x)\n[c](https://example.org) [d](#there)";
        assert_eq!(links(text), [(1, "here.md", ""), (1, "gone.md", "x"), (2, "", "there")]);
    }

    #[test]
    fn headings_are_anchors_and_what_looks_like_one_is_not() {
        let text = "# One\n## Two words, and `code_x`\n#none\n```sh\n# comment\n```\n### Last\n";
        let expected = ["one", "two-words-and-code_x", "last"].map(String::from);
        assert_eq!(anchors(text), BTreeSet::from(expected));
    }
}
