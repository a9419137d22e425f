//! Logs: to standard error, as text or JSON, and no more lines of a kind than somebody can read.

pub mod flood;

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Directives such as `info` or `warn,dafs_server::connection=debug`.
    pub filter: String,
    /// Form of the lines.
    pub format: LogFormat,
    /// Lines of one kind in a second; half of them about one peer.
    pub lines_max: u32,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { filter: "info".to_owned(), format: LogFormat::Text, lines_max: 100 }
    }
}

/// Form of log lines: `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

impl LogConfig {
    /// Whether the filter can be understood; else what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        self.parse().map(drop)
    }

    /// From now on, what the process logs goes to standard error in this way. Standard output is left to the lines
    /// that say where the server listens.
    ///
    /// # Errors
    /// What is wrong with the filter, or that logs go somewhere already.
    pub fn install(&self) -> Result<(), String> {
        let filter = self.parse()?;
        flood::set_lines_max(self.lines_max);
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let registry = tracing_subscriber::registry().with(filter);
        let installed = match self.format {
            LogFormat::Text => {
                let lines = lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
                registry.with(lines.with_filter(flood::Bounded)).try_init()
            }
            LogFormat::Json => {
                // Else a panic would be text between lines of JSON.
                std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
                registry.with(lines.json().flatten_event(true).with_filter(flood::Bounded)).try_init()
            }
        };
        installed.map_err(|error| error.to_string())
    }

    fn parse(&self) -> Result<EnvFilter, String> {
        if self.filter.trim().is_empty() {
            return Err("the filter is empty".to_owned());
        }
        EnvFilter::builder().parse(&self.filter).map_err(|error| error.to_string())
    }
}

/// A line as the log has it in JSON, without its end: for what is said before there is a log. `level` is such as `ERROR`.
pub fn json_line(level: &str, message: &str) -> String {
    use tracing_subscriber::fmt::format::Writer;
    use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
    let mut timestamp = String::new();
    // A string takes whatever is written.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    format!(
        "{{\"timestamp\":\"{timestamp}\",\"level\":\"{level}\",\"message\":{},\"target\":\"dafs_server\"}}",
        json_string(message)
    )
}

fn json_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_line_holds_any_text() {
        let line = json_line("ERROR", "a \"b\" c\\d\n\u{1b}");
        assert!(line.contains(r#""message":"a \"b\" c\\d\u000a\u001b""#), "{line}");
        assert!(line.starts_with("{\"timestamp\":\"2") && line.contains("\"level\":\"ERROR\""), "{line}");
    }

    #[test]
    fn log_filter_is_checked() {
        let check = |filter: &str| LogConfig { filter: filter.into(), ..LogConfig::default() }.check();
        for filter in ["info", "warn,dafs_server::access=debug", "off", "dafs_server[session{id=1}]=trace"] {
            assert_eq!(check(filter), Ok(()), "{filter}");
        }
        for filter in ["", " ", "dafs_server=loud", "a=b=c"] {
            assert!(check(filter).is_err(), "{filter}");
        }
    }
}
