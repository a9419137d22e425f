//! Flags made into the settings of a session.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use dafs_client::{Config, Error, Key, MethodOverride, WaitPolicy};
use tracing_subscriber::util::SubscriberInitExt;

use crate::flags::{Command, Global, Method, Poll};
use crate::quote::harmless;
use crate::report::{Failure, Result};

/// What all commands go by.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) session: Config,
    pub(crate) verbose: bool,
}

impl Settings {
    pub(crate) fn from_flags(flags: &Global, command: &Command) -> Result<Self> {
        let mut session = Config {
            wait: match flags.poll {
                Poll::Event => WaitPolicy::Event,
                Poll::Busy => WaitPolicy::Busy,
                Poll::Adaptive => WaitPolicy::Adaptive,
            },
            method: match flags.method {
                Method::Auto => MethodOverride::Auto,
                Method::Inline => MethodOverride::Inline,
                Method::Direct => MethodOverride::Direct,
                Method::Bounced => MethodOverride::Bounced,
                Method::Eager => MethodOverride::Eager,
                Method::ClientInitiated => MethodOverride::ClientInitiated,
                Method::Hybrid => MethodOverride::Hybrid,
            },
            key: flags.key_file.as_deref().map(load_key).transpose()?,
            client_name: Some("dafs".into()),
            client_id: flags.client_id,
            ..Config::default()
        };
        // Time alone bounds them.
        session.reconnect.attempts_max = u32::MAX;
        // What a copy has done, and a lock, would be lost.
        if matches!(command, Command::Cp(_) | Command::Lock(_)) {
            session.reconnect.time_max = Duration::MAX;
        }
        if let Some(timeout) = flags.timeout {
            session.connect_timeout = timeout;
            session.operation_timeout = Some(timeout);
            session.reconnect.time_max = timeout;
        }
        Ok(Self { session, verbose: flags.verbose > 0 })
    }
}

/// The library's log on standard error, from `-vv`; warnings always.
pub(crate) fn start_logging(verbose: u8) {
    let level = match verbose {
        0 | 1 => tracing::Level::WARN,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    log(level, || Harmless(io::stderr())).init();
}

/// A log without colours: what it is written to escapes them.
fn log<W: Write + 'static>(
    level: tracing::Level,
    writer: impl Fn() -> Harmless<W> + Send + Sync + 'static,
) -> impl tracing::Subscriber + Send + Sync {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .with_ansi(false)
        .without_time()
        .finish()
}

/// Writes each event, which comes at once, as one line that is no command to a terminal: a server's words are in some.
struct Harmless<W>(W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        writeln!(self.0, "{}", harmless(text.trim_end_matches('\n'), false))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The first key of a key file.
fn load_key(path: &Path) -> Result<Key> {
    dafs_client::load_key(path).map_err(|error| match error {
        Error::Invalid(text) => Failure::text(text),
        other => Failure::text(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::Cli;

    // [CMD-10]
    #[test]
    fn event_of_the_log_is_one_harmless_line() {
        let file = std::sync::Arc::new(tempfile::tempfile().unwrap());
        let writes = std::sync::Arc::clone(&file);
        let log = log(tracing::Level::WARN, move || Harmless(std::sync::Arc::clone(&writes)));
        tracing::subscriber::with_default(log, || {
            tracing::warn!(name = "\u{202e}gpj", "it said: {}", "\u{1b}[31m\r\nforged");
            tracing::warn!("grün");
        });
        let mut written = String::new();
        io::Seek::rewind(&mut &*file).unwrap();
        io::Read::read_to_string(&mut &*file, &mut written).unwrap();
        let lines: Vec<&str> = written.split('\n').collect();
        assert!(
            matches!(lines[..], [first, second, ""] if first.contains("forged") && second.contains("grün")),
            "{lines:?}"
        );
        let harmful = |character: char| character.is_control() || character == '\u{202e}';
        assert!(!lines.iter().any(|line| line.contains(harmful)), "{lines:?}");
    }

    /// How long, and how often at most, a server that is away is tried.
    fn patience(words: &[&str]) -> (Duration, u32) {
        let cli = Cli::parse_from([&["dafs"], words].concat());
        let policy = Settings::from_flags(&cli.global, &cli.command).unwrap().session.reconnect;
        (policy.time_max, policy.attempts_max)
    }

    // [CMD-32] [CMD-33]
    #[test]
    fn copies_and_locks_wait_forever_and_others_a_minute() {
        let (cp, lock) = (["cp", "a", "dafs://h/e"], ["lock", "dafs://h/e/f", "true"]);
        assert_eq!([patience(&cp), patience(&lock)], [(Duration::MAX, u32::MAX); 2]);
        assert_eq!(patience(&["ls", "dafs://h/e"]), (Duration::from_secs(60), u32::MAX));
        for words in [&cp[..], &lock, &["ls", "dafs://h/e"]] {
            let bounded = patience(&[&["--timeout", "100"], words].concat());
            assert_eq!(bounded, (Duration::from_secs(100), u32::MAX), "{words:?}");
        }
    }
}
