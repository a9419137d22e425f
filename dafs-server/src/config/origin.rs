//! The place of each setting in a settings file, for error messages.

use std::collections::BTreeMap;

use toml::de::DeTable;

use super::ConfigError;

/// Lines of the settings file, by what they set; empty without a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file, as messages name it.
    file: String,
    /// Of values that still hold: no flag has replaced them.
    lines: BTreeMap<String, usize>,
    /// Of the tables of exports.
    exports: Vec<usize>,
}

impl Origin {
    /// Of a text that was read already; `file` names it.
    pub(crate) fn of(text: &str, file: &str) -> Self {
        let Ok(table) = DeTable::parse(text) else { return Self::default() };
        let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
        let table = table.get_ref();
        // Exports have places of their own.
        let settings = table.iter().filter(|(key, _)| key.get_ref() != "export");
        let lines = settings.map(|(key, _)| (key.get_ref().to_string(), line_of(key.span().start)));
        let exports = table.get("export").and_then(|exports| exports.get_ref().as_array());
        Self {
            file: file.to_owned(),
            lines: lines.collect(),
            exports: exports
                .into_iter()
                .flat_map(|exports| exports.iter().map(|export| line_of(export.span().start)))
                .collect(),
        }
    }

    /// A flag has replaced what the file says of this setting.
    pub(crate) fn forget(&mut self, setting: &str) {
        self.lines.remove(&setting.replace('_', "-"));
    }

    /// The place of a table of an export.
    pub(super) fn export(&self, index: usize, name: &str) -> String {
        match self.exports.get(index) {
            Some(line) => format!("{}, line {line}, [[export]] \"{name}\"", self.file),
            None => format!("[[export]] \"{name}\""),
        }
    }

    /// The same error, its place in the file where that set the value: the message names the flag.
    pub(super) fn locate(&self, mut error: ConfigError) -> ConfigError {
        let flag = error.place.strip_prefix("--").unwrap_or_default();
        let setting = flag.split(' ').next().unwrap_or_default();
        if let Some(line) = self.lines.get(setting) {
            error.place = format!("{}, line {line}, {flag}", self.file);
        }
        error
    }
}
