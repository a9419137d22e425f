//! Just enough understanding of Rust's text to apply rules to it: what is code, what is a test, which paths are named.

/// `text` with comments and the contents of strings and characters replaced by spaces. Lines keep their numbers.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' if !follows_identifier(bytes, at) => raw_string_end(bytes, at + 1).unwrap_or(at + 1),
            b'\'' => character_end(bytes, at).unwrap_or(at + 1),
            _ => at + 1,
        };
        if end > at + 1 {
            for byte in &mut code[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// `code` (as [`code_only`] gives it) with `#[cfg(test)]` modules and functions blanked too.
pub(crate) fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = code.to_owned();
    while let Some(start) = kept.find(MARK) {
        let end = item_end(kept.as_bytes(), start + MARK.len());
        let blank: String = kept[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        kept.replace_range(start..end, &blank);
    }
    kept
}

/// Every path of two or more segments in `code`, use-trees expanded, with its line number from 1.
pub(crate) fn paths(code: &str) -> Vec<(usize, String)> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at = if tokens[at].is_name() { walk_path(&tokens, at, "", &mut found) } else { at + 1 };
    }
    found
}

/// Whether `path` is `prefix` or lies under it.
pub(crate) fn is_under(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

struct Token<'a> {
    text: &'a str,
    line: usize,
}

impl Token<'_> {
    fn is_name(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Names, `::` and single punctuation marks.
fn tokens(code: &str) -> Vec<Token<'_>> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                _ if is_name(first) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            tokens.push(Token { text: &rest[..length], line: index + 1 });
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

/// Reads one path or use-tree that starts at `at`, adds what it names, and returns where it ends.
fn walk_path(tokens: &[Token<'_>], mut at: usize, prefix: &str, found: &mut Vec<(usize, String)>) -> usize {
    let mut path = prefix.to_owned();
    let line = tokens[at].line;
    loop {
        if !path.is_empty() {
            path.push_str("::");
        }
        path.push_str(tokens[at].text);
        at += 1;
        if tokens.get(at).is_none_or(|token| token.text != "::") {
            break;
        }
        at += 1;
        match tokens.get(at) {
            Some(token) if token.text == "{" => return walk_group(tokens, at + 1, &path, found),
            Some(token) if token.is_name() => {}
            _ => break,
        }
    }
    if path.contains("::") {
        found.push((line, path));
    }
    at
}

fn walk_group(tokens: &[Token<'_>], mut at: usize, prefix: &str, found: &mut Vec<(usize, String)>) -> usize {
    while let Some(token) = tokens.get(at) {
        at = match token.text {
            "}" => return at + 1,
            _ if token.is_name() => walk_path(tokens, at, prefix, found),
            _ => at + 1,
        };
    }
    at
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// The end of a string whose contents begin at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of a raw string whose `r` stands before `at`; `None` when it is not one.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') {
        return None;
    }
    let close = [&b"\""[..], &b"#".repeat(hashes)].concat();
    let body = at + hashes + 1;
    let length = bytes[body..].windows(close.len()).position(|window| window == close);
    Some(length.map_or(bytes.len(), |length| body + length + close.len()))
}

/// The end of a character literal at `at`; `None` when the quote belongs to a lifetime.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        let close = bytes.get(at + 3..)?.iter().position(|&byte| byte == b'\'')?;
        return Some(at + 3 + close + 1);
    }
    // One character of up to four bytes.
    (2..=5).find(|&length| bytes.get(at + length) == Some(&b'\'')).and_then(|length| {
        let inner = std::str::from_utf8(&bytes[at + 1..at + length]).ok()?;
        (inner.chars().count() == 1).then_some(at + length + 1)
    })
}

fn follows_identifier(bytes: &[u8], at: usize) -> bool {
    // The prefixes of byte and C strings are no identifiers here.
    at > 0
        && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
        && !matches!(bytes[at - 1], b'b' | b'c')
}

/// The end of the item after `at`: its closing brace, or the semicolon of one without a body.
fn item_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at + 1,
            b'}' => depth -= 1,
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

mod tests {
    use super::*;

    #[test]
    fn code_only_blanks_comments_strings_and_characters() {
        let text =
            "a /* b /* c */ d */ e // f\ng \"h // \\\" i\" j r#\"k \" l\"# m '\"' n '\\'' o b\"p\" 'é' q";
        let code = code_only(text);
        assert_eq!(
            code.split_whitespace().collect::<Vec<_>>(),
            ["a", "e", "g", "j", "m", "n", "o", "b", "q"]
        );
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn code_only_keeps_lifetimes_and_names_that_start_like_raw_strings() {
        assert_eq!(code_only("fn f<'a>(r: &'a str) {}"), "fn f<'a>(r: &'a str) {}");
        assert_eq!(code_only("for r in 0..1 {}"), "for r in 0..1 {}");
    }

    #[test]
    fn code_only_survives_unterminated_text() {
        for text in ["\"a", "/* a", "r#\"a", "'", "'\\", "r", "/", "\"\\"] {
            assert_eq!(code_only(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn without_tests_blanks_the_module_only() {
        let code = "use a::b;\n#[cfg(test)]\nmod tests { fn f() { g() } }\nfn h() {}\n#[cfg(test)]\nmod more;\nfn i() {}";
        let kept = without_tests(code);
        assert_eq!(kept.split_whitespace().collect::<Vec<_>>().join(" "), "use a::b; fn h() {} fn i() {}");
        assert_eq!(kept.lines().count(), code.lines().count());
    }

    #[test]
    fn paths_expand_use_trees_over_lines() {
        let code = "use crate::{\n    wire::{Header, Opcode},\n    transport,\n};\nlet t = std::time::Instant::now();";
        let expected = [
            (2, "crate::wire::Header"),
            (2, "crate::wire::Opcode"),
            (3, "crate::transport"),
            (5, "std::time::Instant::now"),
        ];
        let found = paths(code);
        let found: Vec<(usize, &str)> = found.iter().map(|(line, path)| (*line, path.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn under_compares_whole_segments() {
        assert!(is_under("crate::wire::Header", "crate::wire"));
        assert!(is_under("crate::wire", "crate::wire"));
        assert!(!is_under("crate::wires", "crate::wire"));
    }
}
