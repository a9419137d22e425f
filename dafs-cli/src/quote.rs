//! Names for people: a name may hold any byte, and some do things to terminals.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A name as a shell would read it back: as it is where that is harmless, else in quotes, with escapes where it is not printable.
pub(crate) fn shown(name: &[u8]) -> String {
    let text = std::str::from_utf8(name).ok().filter(|text| !text.chars().any(is_unprintable));
    match text {
        Some(text) if !text.is_empty() && !text.starts_with('~') && !text.bytes().any(is_special) => {
            text.to_owned()
        }
        Some(text) => format!("'{}'", text.replace('\'', r"'\''")),
        None => escaped(name),
    }
}

/// As [`shown`], always in quotes: for messages.
pub(crate) fn quoted(name: &[u8]) -> String {
    match shown(name) {
        text if text.ends_with('\'') => text,
        text => format!("'{text}'"),
    }
}

/// As [`quoted`], for a path.
pub(crate) fn shown_path(path: &Path) -> String {
    quoted(path.as_os_str().as_bytes())
}

/// Text with the words of others in it, for a terminal: what would do something to it is written as in JSON, `\u001b`. Ends of lines
/// stay when `lines`.
pub(crate) fn harmless(text: &str, lines: bool) -> Cow<'_, str> {
    let is_harmful = |character: char| is_unprintable(character) && !(lines && character == '\n');
    if !text.chars().any(is_harmful) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match is_harmful(character) {
            true => safe.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => safe.push(character),
        }
    }
    safe.into()
}

fn escaped(name: &[u8]) -> String {
    let mut text = String::from("$'");
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\'' => text.push_str("\\'"),
                '\\' => text.push_str("\\\\"),
                c if is_unprintable(c) => {
                    let mut bytes = [0; 4];
                    c.encode_utf8(&mut bytes)
                        .bytes()
                        .for_each(|byte| text.push_str(&format!("\\{byte:03o}")));
                }
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\{byte:03o}")));
    }
    text.push('\'');
    text
}

/// Control characters, and those that turn the direction of writing.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn is_special(byte: u8) -> bool {
    b" !\"$&'()*;<=>?[\\]^`{|}#".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CMD-10]
    #[test]
    fn name_with_any_bytes_is_quoted_for_the_shell() {
        for (name, expected) in [
            (&b"plain.txt"[..], "plain.txt"),
            (b"dir/with-dash_1", "dir/with-dash_1"),
            ("grün".as_bytes(), "grün"),
            (b"a b", "'a b'"),
            (b"it's", r"'it'\''s'"),
            (b"", "''"),
            (b"a\nb", r"$'a\nb'"),
            (b"\x1b[31m", r"$'\033[31m'"),
            (b"\xff\xfe", r"$'\377\376'"),
            ("\u{202e}gpj".as_bytes(), r"$'\342\200\256gpj'"),
        ] {
            assert_eq!(shown(name), expected);
        }
        assert_eq!(harmless("\u{1b}[31m\n\u{9b}1m \u{202e}x", true), "\\u001b[31m\n\\u009b1m \\u202ex");
        assert_eq!(harmless("a\nb", false), "a\\u000ab");
        assert_eq!(quoted(b"a"), "'a'");
        assert_eq!(quoted(b"a b"), "'a b'");
    }
}
