//! What a job is told, and what it replies: a line each way.

use std::collections::BTreeMap;
use std::fmt::Display;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// A command and its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    name: &'static str,
    words: Vec<(String, String)>,
}

impl Command {
    /// A command without words.
    pub fn new(name: &'static str) -> Self {
        Self { name, words: Vec::new() }
    }

    /// Adds a word, or replaces the one of that key: the program takes the first.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Display) -> Self {
        match self.words.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => *known = value.to_string(),
            None => self.words.push((key.to_owned(), value.to_string())),
        }
        self
    }

    /// How long a measurement of it is to take.
    pub fn seconds(&self) -> f64 {
        let word = self.words.iter().find(|(key, _)| key == "seconds");
        word.and_then(|(_, seconds)| seconds.parse().ok()).unwrap_or(0.0)
    }

    /// Adds a hint for the file.
    #[must_use]
    pub fn hint(self, key: &str, value: impl Display) -> Self {
        self.with(&format!("hint.{key}"), value)
    }

    /// The line that says so.
    pub(super) fn line(&self) -> anyhow::Result<String> {
        let mut line = self.name.to_owned();
        for (key, value) in &self.words {
            ensure!(
                !value.contains(['\t', '\n']),
                "{value:?}: names with tabs or line ends cannot be used here"
            );
            line.push_str(&format!("\t{key}={value}"));
        }
        line.push('\n');
        Ok(line)
    }
}

/// What a command measured. Members that a command does not have are empty.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Reply {
    /// What went wrong, in place of all else.
    pub error: Option<String>,
    /// Steps that were timed.
    pub ops: u64,
    /// Steps with those before them: what the counters counted.
    pub ops_all: u64,
    /// Median time of a step, microseconds.
    pub p50_us: f64,
    /// Mean of the same.
    pub mean_us: f64,
    /// The least.
    pub min_us: f64,
    /// Bytes that a step of all ranks moves (`pattern`).
    pub bytes: u64,
    /// Pieces of a rank, and their size (`pattern`).
    pub pieces: usize,
    /// Bytes.
    pub piece_bytes: usize,
    /// The driver's counters, `dafs_stat_…`, added up over the ranks.
    pub stats: BTreeMap<String, u64>,
    /// Time of a blocking transfer, microseconds (`overlap`).
    pub io_us: f64,
    /// One for each share of computation (`overlap`).
    pub steps: Vec<Step>,
    /// Bytes that all ranks moved (`region`).
    pub moved: u64,
    /// Time until the last rank was done, microseconds (`region`).
    pub elapsed_us: f64,
    /// Time of all ranks on CPUs, nanoseconds (`region`).
    pub cpu_ns: u64,
}

/// Nonblocking transfers with some computation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct Step {
    /// T/(T + Tio).
    pub fraction: f64,
    /// Median time of a step, microseconds.
    pub p50_us: f64,
    /// Mean of the same.
    pub mean_us: f64,
    /// The least.
    pub min_us: f64,
}

impl Reply {
    /// What a line says; `None` where it is no answer: a library may print as well.
    pub(super) fn parse(line: &str) -> anyhow::Result<Option<Self>> {
        if !line.starts_with('{') {
            return Ok(None);
        }
        let reply: Self =
            serde_json::from_str(line).with_context(|| format!("cannot read the answer {line:?}"))?;
        match reply.error {
            Some(error) => bail!("{error}"),
            None => Ok(Some(reply)),
        }
    }

    /// A counter of the driver for each step.
    pub fn per_op(&self, counter: &str) -> Option<f64> {
        let count = self.stats.get(counter)?;
        (self.ops_all > 0).then(|| *count as f64 / self.ops_all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_one_line_of_words() {
        let command =
            Command::new("transfer").with("bytes", 4096).with("file", "/a b").hint("dafs_memory", "adio");
        assert_eq!(command.line().unwrap(), "transfer\tbytes=4096\tfile=/a b\thint.dafs_memory=adio\n");
        for name in ["a\tb", "a\nb"] {
            assert!(Command::new("transfer").with("file", name).line().is_err());
        }
    }

    #[test]
    fn command_has_one_word_for_a_key_the_last_that_was_given() {
        let command = Command::new("pattern").with("seconds", 0.02).with("n", 1).hint("dafs_method", "list");
        assert_eq!((command.seconds(), Command::new("overlap").seconds()), (0.02, 0.0));
        let command = command.with("seconds", 0).hint("dafs_method", "view");
        assert_eq!(command.line().unwrap(), "pattern\tseconds=0\tn=1\thint.dafs_method=view\n");
    }

    #[test]
    fn reply_has_figures_and_counters_for_each_step() {
        let line = r#"{"ops_all": 8, "ops": 4, "p50_us": 1.5, "mean_us": 2, "min_us": 1, "stats": {"registrations": 4}}"#;
        let reply = Reply::parse(line).unwrap().unwrap();
        assert_eq!((reply.ops, reply.p50_us, reply.mean_us, reply.min_us), (4, 1.5, 2.0, 1.0));
        assert_eq!(reply.per_op("registrations"), Some(0.5));
        assert_eq!(reply.per_op("lists"), None);
        let line = r#"{"io_us": 9.5, "steps": [{"fraction": 0.4, "ops": 2, "p50_us": 1, "mean_us": 2, "min_us": 1}], "stats": {}}"#;
        let reply = Reply::parse(line).unwrap().unwrap();
        assert_eq!((reply.io_us, reply.steps[0].fraction, reply.steps[0].mean_us), (9.5, 0.4, 2.0));
        assert_eq!(reply.per_op("registrations"), None);
    }

    #[test]
    fn reply_that_is_an_error_or_no_json_is_told() {
        assert_eq!(Reply::parse("adio-dafs: /x: 3 reads").unwrap(), None);
        assert_eq!(Reply::parse("").unwrap(), None);
        assert!(Reply::parse("{\"ops\": ").unwrap_err().to_string().contains("cannot read"));
        let error = Reply::parse(r#"{"error": "rank 1: read: no such file"}"#).unwrap_err();
        assert_eq!(error.to_string(), "rank 1: read: no such file");
    }
}
