//! Which methods a file adds to which types, and which it calls: as much as text alone shows.

use std::collections::BTreeSet;

/// What one file declares, adds and calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Structs, enums and traits that are declared here.
    pub(crate) types: BTreeSet<String>,
    /// Methods, each with the type whose inherent `impl`, or the trait, it stands in.
    pub(crate) methods: Vec<(String, String)>,
    /// Names that are called by `value.name(` or `Self::name(`.
    pub(crate) called: BTreeSet<String>,
}

impl Calls {
    /// Of code without comments, strings and tests, as rustfmt writes it.
    pub(crate) fn of(code: &str) -> Self {
        let mut found = Self::default();
        let mut inside: Option<&str> = None;
        for line in code.lines() {
            let item = without_visibility(line);
            let declared = ["struct ", "enum ", "trait "].iter().find_map(|kind| item.strip_prefix(kind));
            let declared = declared.and_then(name_at);
            found.types.extend(declared.map(str::to_owned));
            if line.starts_with("impl") {
                inside = inherent_type(line);
            } else if item.starts_with("trait ") {
                inside = declared;
            } else if line == "}" {
                inside = None;
            }
            let method = line
                .strip_prefix("    ")
                .map(without_visibility)
                .and_then(|item| name_at(item.strip_prefix("const ").unwrap_or(item).strip_prefix("fn ")?));
            if let (Some(of), Some(name)) = (inside, method) {
                found.methods.push((of.to_owned(), name.to_owned()));
            }
            let after = line.split('.').skip(1).chain(line.split("Self::").skip(1));
            found.called.extend(after.filter_map(called_at).map(str::to_owned));
        }
        found
    }
}

fn without_visibility(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("pub") else { return line };
    let rest = match rest.strip_prefix('(') {
        Some(limited) => limited.split_once(')').map_or("", |(_, rest)| rest),
        None => rest,
    };
    rest.trim_start()
}

/// The type of an inherent `impl`; none of a trait's.
fn inherent_type(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    if rest.contains(" for ") {
        return None;
    }
    let mut depth = 0;
    let generics = rest.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0
    })?;
    // Behind the generics' last `>`, or at the blank where there are none.
    name_at(rest[generics + 1..].trim_start())
}

fn name_at(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

fn called_at(text: &str) -> Option<&str> {
    let name = name_at(text)?;
    let rest = &text[name.len()..];
    (rest.starts_with('(') || rest.starts_with("::<")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_those_of_inherent_impls_and_calls_those_of_values() {
        let calls = Calls::of(
            "pub(crate) struct Wheel<'a> {\n}\nenum Turn {\n}\nimpl<'a> Wheel<'a> {\n    pub(crate) fn turn(&self) {\n        \
             self.hub.spin::<u8>(1).stop();\n        Self::oil(free(2));\n    }\n}\nimpl Work for Turn {\n    fn go(&self) {}\n}\n",
        );
        assert_eq!(calls.types, ["Turn", "Wheel"].map(str::to_owned).into());
        assert_eq!(calls.methods, [("Wheel".to_owned(), "turn".to_owned())]);
        assert_eq!(calls.called, ["oil", "spin", "stop"].map(str::to_owned).into());
    }
}
