//! The text of a key file, the same for servers and clients: `name:secret` per line.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use thiserror::Error;

use super::Key;

/// Shortest secret, bytes.
pub const SECRET_SIZE_MIN: usize = 16;
/// Longest secret, bytes.
pub const SECRET_SIZE_MAX: usize = 1024;
/// Longest name of a key, bytes; what a `Hello` may carry.
pub const KEY_NAME_SIZE_MAX: usize = 256;

/// One line of a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLine {
    /// The key.
    pub key: Key,
    /// What stands after the secret and a second colon: the server's own rules for the key. Clients ignore it.
    pub rules: Option<String>,
    /// Number of the line, from 1.
    pub line: usize,
}

/// A line that is no key. The text of the line is not repeated: it may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {problem}")]
pub struct KeyLineError {
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong, and what to write instead.
    pub problem: KeyLineProblem,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum KeyLineProblem {
    #[error("no colon: write name:secret, as `dafs-server keygen NAME` prints it")]
    NoSecret,
    #[error(
        "the name is empty, longer than {KEY_NAME_SIZE_MAX} bytes, or has a space, comma or semicolon in it: choose a word"
    )]
    Name,
    #[error("the secret is neither hexadecimal nor base64: make one with `dafs-server keygen NAME`")]
    Encoding,
    #[error(
        "the secret has {0} bytes, it needs {SECRET_SIZE_MIN} to {SECRET_SIZE_MAX}: make one with `dafs-server keygen NAME`"
    )]
    Size(usize),
    #[error("the name {0:?} stands in the file twice: remove one of the lines")]
    Twice(String),
}

/// Reads the text of a key file: lines of `name:secret` or `name:secret:rules`, with empty lines and lines that begin
/// with `#` left out. The secret is hexadecimal or base64; one that can be read as both is hexadecimal.
pub fn parse_key_file(text: &str) -> Result<Vec<KeyLine>, KeyLineError> {
    let mut keys: Vec<KeyLine> = Vec::new();
    let mut names = std::collections::HashSet::new();
    for (index, text) in text.lines().enumerate() {
        let (text, line) = (text.trim(), index + 1);
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let key = parse_line(text, line).map_err(|problem| KeyLineError { line, problem })?;
        if !names.insert(key.key.name.clone()) {
            return Err(KeyLineError { line, problem: KeyLineProblem::Twice(key.key.name) });
        }
        keys.push(key);
    }
    Ok(keys)
}

/// A line for a key file, with the secret in hexadecimal.
pub fn format_key_line(key: &Key) -> String {
    use std::fmt::Write;
    let mut line = format!("{}:", key.name);
    for byte in key.secret.iter() {
        let _ = write!(line, "{byte:02x}");
    }
    line
}

/// Whether a key may have this name.
pub fn is_key_name(name: &str) -> bool {
    let fits = (1..=KEY_NAME_SIZE_MAX).contains(&name.len()) && !name.starts_with('#');
    fits && !name.chars().any(|c| c.is_whitespace() || c.is_control() || ":,;".contains(c))
}

fn parse_line(text: &str, line: usize) -> Result<KeyLine, KeyLineProblem> {
    let mut fields = text.splitn(3, ':');
    let (name, secret) = (fields.next().unwrap_or_default(), fields.next().ok_or(KeyLineProblem::NoSecret)?);
    if !is_key_name(name) {
        return Err(KeyLineProblem::Name);
    }
    let secret = decode_secret(secret).ok_or(KeyLineProblem::Encoding)?;
    if !(SECRET_SIZE_MIN..=SECRET_SIZE_MAX).contains(&secret.len()) {
        return Err(KeyLineProblem::Size(secret.len()));
    }
    let key = Key { name: name.to_owned(), secret: secret.into() };
    Ok(KeyLine { key, rules: fields.next().map(str::to_owned), line })
}

fn decode_secret(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    if let Some(digits) = digits.filter(|digits| digits.len() % 2 == 0) {
        return Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect());
    }
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&base64::alphabet::STANDARD, lenient).decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f";

    fn problem(text: &str) -> KeyLineProblem {
        parse_key_file(text).unwrap_err().problem
    }

    // [ACC-20] [ACC-82] [ACC-84]
    #[test]
    fn key_file_reads_hex_base64_rules_and_comments() {
        let text = format!(
            "# keys\n\n  alpha:{HEX}  \r\nbeta:AAECAwQFBgcICQoLDA0ODw==\ngamma:AAECAwQFBgcICQoLDA0ODw:uid=1,gid=2\n"
        );
        let keys = parse_key_file(&text).unwrap();
        let secret: Vec<u8> = (0..16).collect();
        let seen: Vec<_> = keys
            .iter()
            .map(|line| (line.key.name.as_str(), &line.key.secret[..], line.rules.as_deref(), line.line))
            .collect();
        let secret = &secret[..];
        assert_eq!(
            seen,
            [
                ("alpha", secret, None, 3),
                ("beta", secret, None, 4),
                ("gamma", secret, Some("uid=1,gid=2"), 5)
            ]
        );
    }

    #[test]
    fn key_line_written_is_read_back() {
        let key = Key { name: "k".into(), secret: [0, 255, 16].repeat(8).into() };
        assert_eq!(parse_key_file(&format_key_line(&key)).unwrap()[0].key, key);
    }

    // [ACC-83]
    #[test]
    fn key_file_secret_at_the_limits_is_measured() {
        let of_size = |size: usize| format!("k:{}", "ab".repeat(size));
        assert_eq!(problem(&of_size(SECRET_SIZE_MIN - 1)), KeyLineProblem::Size(SECRET_SIZE_MIN - 1));
        assert!(parse_key_file(&of_size(SECRET_SIZE_MIN)).is_ok());
        assert!(parse_key_file(&of_size(SECRET_SIZE_MAX)).is_ok());
        assert_eq!(problem(&of_size(SECRET_SIZE_MAX + 1)), KeyLineProblem::Size(SECRET_SIZE_MAX + 1));
        assert_eq!(problem("k:"), KeyLineProblem::Size(0));
    }

    // [ACC-20] [ACC-23] [ACC-85] [ACC-86]
    #[test]
    fn key_file_fault_is_named_without_the_secret() {
        let long = "n".repeat(KEY_NAME_SIZE_MAX + 1);
        assert!(parse_key_file(&format!("{}:{HEX}", &long[1..])).is_ok());
        assert_eq!(problem("alpha"), KeyLineProblem::NoSecret);
        for name in ["", "a b", "a,b", "a;b", long.as_str()] {
            assert_eq!(problem(&format!("{name}:{HEX}")), KeyLineProblem::Name, "{name}");
        }
        assert_eq!(problem("k:S3cret!S3cret!S3cret!"), KeyLineProblem::Encoding);
        assert_eq!(problem(&format!("k:{HEX}\nk:{HEX}")), KeyLineProblem::Twice("k".into()));
        let shown = parse_key_file("#\nk:S3cret!S3cret!").unwrap_err().to_string();
        assert!(
            shown.starts_with("line 2: ") && shown.contains("keygen") && !shown.contains("S3cret"),
            "{shown}"
        );
    }
}
