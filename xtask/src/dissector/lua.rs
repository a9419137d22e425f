//! Tables as Lua source, in lines of bounded length.

const LINE_LENGTH_MAX: usize = 110;
const INDENT: usize = 4;

/// A value of the made section.
#[derive(Clone, Debug)]
pub(super) enum Lua {
    Number(u64),
    Hex(u64),
    Text(String),
    True,
    Table(Vec<(Key, Lua)>),
}

/// How an entry of a table is named.
#[derive(Clone, Debug)]
pub(super) enum Key {
    /// By its place.
    None,
    Name(String),
    Number(u64),
    Hex(u64),
}

impl Lua {
    pub(super) fn text_of(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// An empty table, to be filled by [`Lua::push`], [`Lua::set`] and [`Lua::put`].
    pub(super) fn table() -> Self {
        Self::Table(Vec::new())
    }

    /// Adds an entry that is found by its place.
    pub(super) fn push(self, value: Self) -> Self {
        self.put(Key::None, value)
    }

    /// Adds an entry that is found by its name.
    pub(super) fn set(self, name: &str, value: Self) -> Self {
        self.put(Key::Name(name.to_owned()), value)
    }

    /// As [`Lua::set`], where there is a value.
    pub(super) fn set_some(self, name: &str, value: Option<Self>) -> Self {
        match value {
            Some(value) => self.set(name, value),
            None => self,
        }
    }

    pub(super) fn put(self, key: Key, value: Self) -> Self {
        let mut entries = match self {
            Self::Table(entries) => entries,
            single => vec![(Key::None, single)],
        };
        entries.push((key, value));
        Self::Table(entries)
    }

    /// The value as source.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, 0, "local SPEC = ".len());
        text
    }

    /// Writes the value where a line has `used` columns already, below an indent.
    fn write(&self, text: &mut String, indent: usize, used: usize) {
        let line = self.line();
        // A comma follows.
        if used + line.chars().count() < LINE_LENGTH_MAX {
            text.push_str(&line);
            return;
        }
        match self {
            Self::Table(entries) => {
                let inner = indent + INDENT;
                text.push_str("{\n");
                for (key, value) in entries {
                    let key = key.line();
                    text.push_str(&" ".repeat(inner));
                    text.push_str(&key);
                    value.write(text, inner, inner + key.chars().count());
                    text.push_str(",\n");
                }
                text.push_str(&" ".repeat(indent));
                text.push('}');
            }
            Self::Text(words) => {
                let inner = indent + INDENT;
                let pieces = pieces(words, LINE_LENGTH_MAX - inner - "\"\" ..".len());
                let pieces: Vec<String> = pieces.iter().map(|piece| quoted(piece)).collect();
                // Behind a name the words begin on a line of their own.
                if text.ends_with("= ") {
                    text.pop();
                    text.push_str(&format!("\n{}", " ".repeat(inner)));
                }
                text.push_str(&pieces.join(&format!(" ..\n{}", " ".repeat(inner))));
            }
            _ => text.push_str(&line),
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Number(value) => value.to_string(),
            Self::Hex(value) => format!("{value:#04x}"),
            Self::Text(text) => quoted(text),
            Self::True => "true".to_owned(),
            Self::Table(entries) if entries.is_empty() => "{}".to_owned(),
            Self::Table(entries) => {
                let entries = entries.iter().map(|(key, value)| format!("{}{}", key.line(), value.line()));
                format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

impl Key {
    fn line(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Name(name) if is_identifier(name) => format!("{name} = "),
            Self::Name(name) => format!("[{}] = ", quoted(name)),
            Self::Number(value) => format!("[{value}] = "),
            Self::Hex(value) => format!("[{value:#06x}] = "),
        }
    }
}

fn is_identifier(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().next().is_some_and(|c| !c.is_ascii_digit())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Cuts text behind spaces, so that no piece is longer than `length_max` where its words are not.
fn pieces(text: &str, length_max: usize) -> Vec<String> {
    let mut pieces: Vec<String> = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let last = pieces.len() - 1;
        if !pieces[last].is_empty() && pieces[last].chars().count() + word.chars().count() > length_max {
            pieces.push(word.to_owned());
        } else {
            pieces[last].push_str(word);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_table_is_one_line() {
        let table = Lua::table()
            .push(Lua::Number(8))
            .set("name", Lua::text_of("a \"b\" \\"))
            .set("two words", Lua::True)
            .put(Key::Hex(0x20), Lua::Hex(1))
            .put(Key::Number(7), Lua::table());
        let line = r#"{ 8, name = "a \"b\" \\", ["two words"] = true, [0x0020] = 0x01, [7] = {} }"#;
        assert_eq!(table.text(), line);
    }

    #[test]
    fn long_table_is_a_line_for_each_entry_none_too_long() {
        let words = "word ".repeat(60).trim_end().to_owned();
        let table = Lua::table().push(Lua::text_of(&words)).set("x", Lua::Number(1));
        let text = Lua::table().set("inner", table).text();
        assert!(text.lines().all(|line| line.chars().count() <= LINE_LENGTH_MAX), "{text}");
        assert!(text.starts_with("{\n    inner = {\n"), "{text}");
        assert!(text.ends_with("\n        x = 1,\n    },\n}"), "{text}");
        assert_eq!(text.matches("word").count(), 60);
    }
}
