//! Rules over one file's text. Each returns the faults it found as `line: what`, and is pure.

use std::collections::BTreeSet;

use crate::source::{code_only, is_under, paths, without_tests};

/// Longest line in a file of code, in characters. rustfmt keeps code shorter; this is for comments and scripts.
pub(crate) const LINE_LENGTH_MAX: usize = 140;

/// Longest source file, in lines, without a reason in the list.
pub(crate) const FILE_LINES_MAX: usize = 700;

/// Longest name of a function, in words. A test's name says what holds in one clause; how it is shown stands in the test.
pub(crate) const NAME_WORDS_MAX: usize = 12;

/// A file and why a rule does not hold for it.
pub(crate) type Exception = (&'static str, &'static str);

/// A part of the tree and the paths that its code must not name.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Files whose path starts with this.
    pub(crate) under: &'static str,
    /// Rust paths that are out of bounds.
    pub(crate) forbidden: &'static [&'static str],
    /// What the rule protects.
    pub(crate) because: &'static str,
}

pub(crate) fn forbidden_imports(text: &str, layer: &Layer) -> Vec<String> {
    let code = without_tests(&code_only(text));
    paths(&code)
        .into_iter()
        .filter(|(_, path)| {
            layer.forbidden.iter().any(|prefix| is_under(path, prefix) || is_method_of(path, prefix))
        })
        .map(|(line, path)| format!("{line}: names {path}, but {}", layer.because))
        .collect()
}

/// Names of functions, tests among them, of too many words.
pub(crate) fn long_names(text: &str) -> Vec<String> {
    let names = |line: &str| -> Vec<String> {
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        words.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1].to_owned()).collect()
    };
    let lines = code_only(text).lines().map(names).collect::<Vec<_>>();
    let named = lines.into_iter().enumerate().flat_map(|(index, names)| {
        names.into_iter().map(move |name| (index + 1, name.split('_').count(), name))
    });
    let long = named.filter(|(_, words, _)| *words > NAME_WORDS_MAX);
    long.map(|(line, words, name)| format!("{line}: {name} has {words} words, over {NAME_WORDS_MAX}"))
        .collect()
}

/// `Instant::now` after `use std::time::Instant` is `std::time::Instant::now` too.
fn is_method_of(path: &str, forbidden: &str) -> bool {
    forbidden.ends_with("::now") && forbidden.ends_with(path)
}

/// Dependencies, other than for development, on `crate_name` in a manifest.
pub(crate) fn forbidden_dependency(manifest: &str, crate_name: &str) -> Vec<String> {
    let mut section = "";
    let mut faults = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        }
        let is_for_use = section.split('.').any(|part| matches!(part, "dependencies" | "build-dependencies"));
        let words = line.split(|c: char| !c.is_alphanumeric() && !"-_".contains(c));
        if is_for_use && words.into_iter().any(|word| word == crate_name) {
            faults.push(format!("{}: depends on {crate_name}", index + 1));
        }
    }
    faults
}

pub(crate) fn too_many_lines(text: &str) -> Vec<String> {
    let lines = text.lines().count();
    if lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![format!("{lines}: more than {FILE_LINES_MAX} lines; split it, or list it with the reason")]
}

pub(crate) fn long_lines(text: &str) -> Vec<String> {
    numbered(text)
        .filter(|(_, line)| line.chars().count() > LINE_LENGTH_MAX)
        .map(|(number, line)| {
            format!("{number}: {} characters, over {LINE_LENGTH_MAX}", line.chars().count())
        })
        .collect()
}

/// Marks of unfinished work, in code or comments.
pub(crate) fn leftover_markers(text: &str) -> Vec<String> {
    const MACROS: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];
    // In two parts, so that this file does not find itself.
    const WORDS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
    let code = code_only(text);
    let macros = numbered(&code).flat_map(|(number, line)| {
        MACROS.iter().filter(move |name| has_word(line, name)).map(move |name| format!("{number}: {name}"))
    });
    let words = numbered(text).flat_map(|(number, line)| {
        WORDS.iter().filter(move |word| has_word(line, word)).map(move |word| format!("{number}: {word}"))
    });
    macros.chain(words).collect()
}

/// Tests that are switched off without a name of what they lack, or with one that the test command does not know: these would never run.
pub(crate) fn unknown_needs(text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let is_attribute = |code: &str| {
        let behind = code.split_once("[ignore").map(|(_, behind)| behind);
        behind.is_some_and(|behind| !behind.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
    };
    let code = code_only(text);
    let ignored = numbered(&code).zip(text.lines()).filter(|((_, code), _)| is_attribute(code));
    let faults = ignored.filter_map(|((number, _), line)| {
        let need = line.split_once("[ignore = \"needs ").map_or("", |(_, rest)| rest);
        let need = need.split(['"', ' ', ',', ':', ';']).next().unwrap_or_default();
        let fault = || match need {
            "" => format!("{number}: ignored without #[ignore = \"needs NAME\"]"),
            _ => format!("{number}: needs {need}, which xtask/src/packages.rs does not know"),
        };
        (!known.contains(need)).then(fault)
    });
    faults.collect()
}

/// The names of needs that a source knows, in `name: "..."`.
pub(crate) fn known_needs(text: &str) -> BTreeSet<String> {
    let named =
        text.split("Need {").skip(1).filter_map(|need| need.split_once("name: \"")?.1.split_once('"'));
    named.map(|(name, _)| name.to_owned()).collect()
}

/// Paths of somebody's own machine.
pub(crate) fn workplace_paths(text: &str) -> Vec<String> {
    const PLACES: [&str; 4] =
        [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/w", "t/"), concat!("/ho", "me/")];
    let starts_path =
        |line: &str, at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.})".contains(c));
    numbered(text)
        .flat_map(|(number, line)| {
            PLACES
                .iter()
                .filter(move |place| line.match_indices(**place).any(|(at, _)| starts_path(line, at)))
                .map(move |place| format!("{number}: names {place}"))
        })
        .collect()
}

/// Whether the code has an `unsafe` of any kind.
pub(crate) fn has_unsafe(text: &str) -> bool {
    code_only(text).lines().any(|line| has_word(line, "unsafe"))
}

/// Unsafe blocks and implementations without a `SAFETY:` comment on the lines above.
pub(crate) fn unexplained_unsafe(text: &str) -> Vec<String> {
    /// A comment further up than this explains something else.
    const LINES_ABOVE_MAX: usize = 12;
    let code = code_only(text);
    let code: Vec<&str> = code.lines().collect();
    let raw: Vec<&str> = text.lines().collect();
    let needs_reason = |line: &str| {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        line.contains("unsafe {") || has_word(&line, "unsafe impl")
    };
    let is_explained = |at: usize| {
        let first = at.saturating_sub(LINES_ABOVE_MAX);
        raw[at].contains("SAFETY:")
            || (first..at)
                .rev()
                .take_while(|&above| !needs_reason(code[above]) && !code[above].starts_with('}'))
                .any(|above| raw[above].contains("SAFETY:"))
    };
    (0..code.len().min(raw.len()))
        .filter(|&at| needs_reason(code[at]) && !is_explained(at))
        .map(|at| format!("{}: unsafe without a SAFETY: comment", at + 1))
        .collect()
}

/// A crate root that does not deny unsafe code.
pub(crate) fn unguarded_root(text: &str) -> Vec<String> {
    let is_guarded =
        ["deny", "forbid"].iter().any(|level| text.contains(&format!("#![{level}(unsafe_code)]")));
    if is_guarded { Vec::new() } else { vec!["1: a crate root without #![deny(unsafe_code)]".to_owned()] }
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Whether `word` stands in `line` and is not a part of a longer name.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_name) && !line[at + word.len()..].starts_with(is_name))
}

mod tests {
    use super::*;

    const LAYER: Layer = Layer {
        under: "core",
        forbidden: &["crate::io", "std::net", "std::time::Instant::now", "mio"],
        because: "the core does no I/O",
    };

    #[test]
    fn forbidden_import_is_found_in_code_only() {
        let bad = "use crate::{wire, io::Socket};\nuse std::time::Instant;\nfn f() { Instant::now(); mio::Poll::new(); }";
        let faults = forbidden_imports(bad, &LAYER);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[0].starts_with("1: names crate::io::Socket, but the core"), "{faults:?}");
        let good = "// crate::io\nuse std::time::Instant;\nlet s = \"std::net::x\";\n\
                    #[cfg(test)]\nmod tests { use std::net::TcpStream; }\nuse crate::ioctl::f;";
        assert_eq!(forbidden_imports(good, &LAYER), Vec::<String>::new());
    }

    #[test]
    fn dependency_is_found_unless_for_development() {
        let bad = "[package]\nname = \"x\"\n[dependencies]\ndafs-client.workspace = true\n";
        assert_eq!(forbidden_dependency(bad, "dafs-client"), ["4: depends on dafs-client"]);
        let renamed = "[target.'cfg(unix)'.dependencies]\nc = { package = \"dafs-client\" }\n";
        assert_eq!(forbidden_dependency(renamed, "dafs-client").len(), 1);
        let table = "[dependencies.dafs-client]\npath = \"../dafs-client\"\n";
        assert!(!forbidden_dependency(table, "dafs-client").is_empty());
        let good = "[dependencies]\n# dafs-client\ndafs-client-sys = \"1\"\n[dev-dependencies]\ndafs-client = \"1\"\n";
        assert_eq!(forbidden_dependency(good, "dafs-client"), Vec::<String>::new());
    }

    #[test]
    fn file_length_counts_at_the_edge() {
        assert!(too_many_lines(&"a\n".repeat(FILE_LINES_MAX)).is_empty());
        assert_eq!(too_many_lines(&"a\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
    }

    #[test]
    fn name_length_counts_words_at_the_edge() {
        let named = |words: usize| format!("// fn of_{0}\nfn {0}() {{}}", vec!["a"; words].join("_"));
        assert_eq!(long_names(&named(NAME_WORDS_MAX)), Vec::<String>::new());
        assert_eq!(
            long_names(&named(NAME_WORDS_MAX + 1)),
            ["2: a_a_a_a_a_a_a_a_a_a_a_a_a has 13 words, over 12"]
        );
    }

    #[test]
    fn line_length_counts_characters_at_the_edge() {
        assert!(long_lines(&"é".repeat(LINE_LENGTH_MAX)).is_empty());
        assert_eq!(
            long_lines(&format!("a\n{}", "é".repeat(LINE_LENGTH_MAX + 1))),
            ["2: 141 characters, over 140"]
        );
    }

    #[test]
    fn markers_are_found_in_code_and_comments() {
        let bad = format!("{}!()\n// {}: later\n", "todo", concat!("FIX", "ME"));
        let faults = leftover_markers(&bad);
        assert_eq!(faults.len(), 2, "{faults:?}");
        let good = "// a todo!() in a comment\nlet s = \"dbg!\";\nmytodo!();\n";
        assert_eq!(leftover_markers(good), Vec::<String>::new());
    }

    #[test]
    fn need_that_nothing_supplies_is_found() {
        let table = "const NEEDS: &[Need] = &[\n    Need { name: \"root\", packages: &[] },\n    Need {\n        name: \"a-device\",\n";
        let known = known_needs(table);
        assert_eq!(known.iter().collect::<Vec<_>>(), ["a-device", "root"]);
        let good = "#[ignore = \"needs root\"]\nsuite!(attribute: [ignore = \"needs a-device: it counts\"], X);\n\
            // #[ignore = \"no code\"]\nlet all = [ignored, other];\n";
        assert_eq!(unknown_needs(good, &known), Vec::<String>::new());
        let bad = "#[ignore]\n#[ignore = \"slow\"]\n#[ignore = \"needs rooot\"]\nsuite!(attribute: [ignore = \"needs device\"]);\n";
        let faults = unknown_needs(bad, &known);
        assert_eq!(faults.len(), 4, "{faults:?}");
        assert_eq!(faults[2], "3: needs rooot, which xtask/src/packages.rs does not know");
    }

    #[test]
    fn workplace_path_is_found_and_like_words_are_not() {
        let place = concat!("/wo", "rk/");
        assert_eq!(workplace_paths(&format!("see {place}x\n")).len(), 1);
        assert_eq!(workplace_paths(&format!("\"{place}\"")).len(), 1);
        assert!(workplace_paths(&format!("net{place}x and ~/a{place}y")).is_empty());
    }

    #[test]
    fn unsafe_is_found_in_code_only() {
        assert!(has_unsafe("fn f() { unsafe { g() } }"));
        assert!(!has_unsafe("// unsafe\n#![deny(unsafe_code)]\nlet s = \"unsafe\";"));
    }

    #[test]
    fn unsafe_without_reason_is_found() {
        assert_eq!(
            unexplained_unsafe("let x =\n    unsafe { f() };"),
            ["2: unsafe without a SAFETY: comment"]
        );
        assert_eq!(unexplained_unsafe("unsafe impl Send for X {}").len(), 1);
        assert!(unexplained_unsafe("// SAFETY: checked\nlet x =\n    unsafe { f() };").is_empty());
        assert!(unexplained_unsafe("unsafe fn f();\nextern \"C\" fn g();").is_empty());
        // A reason serves one block.
        assert_eq!(unexplained_unsafe("// SAFETY: one\nunsafe { f() };\nunsafe { g() };").len(), 1);
    }

    #[test]
    fn crate_root_must_deny_unsafe() {
        assert_eq!(unguarded_root("//! A crate.\nmod a;").len(), 1);
        assert!(unguarded_root("//! A crate.\n#![deny(unsafe_code)]").is_empty());
    }
}
