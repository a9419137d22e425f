//! Flags made into the settings of a session.

use std::path::Path;
use std::time::Duration;

use dafs_client::{Config, Error, Key, MethodOverride, ReconnectPolicy, WaitPolicy};

use crate::flags::{Global, Method, Poll};
use crate::report::{Failure, Result};

/// What all commands go by.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) session: Config,
    pub(crate) verbose: bool,
}

impl Settings {
    pub(crate) fn from_flags(flags: &Global) -> Result<Self> {
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
                Method::Staged => MethodOverride::Staged,
                Method::Fast => MethodOverride::Fast,
                Method::Client => MethodOverride::Client,
                Method::Hybrid => MethodOverride::Hybrid,
            },
            key: flags.key_file.as_deref().map(load_key).transpose()?,
            client_name: Some("dafs".into()),
            ..Config::default()
        };
        if let Some(seconds) = flags.timeout {
            let timeout =
                Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero()).ok_or_else(
                    || Failure::usage(format!("--timeout {seconds}: give seconds above 0, such as 2.5")),
                )?;
            session.connect_timeout = timeout;
            session.operation_timeout = Some(timeout);
            session.reconnect.attempts_max = attempts_within(timeout, &session.reconnect);
            session.reconnect.time_max = timeout;
        }
        Ok(Self { session, verbose: flags.verbose > 0 })
    }
}

/// How often connecting can be tried again within this time, by the pauses between.
fn attempts_within(timeout: Duration, policy: &ReconnectPolicy) -> u32 {
    let (mut attempts, mut pause, mut waited) = (1, policy.backoff_min, Duration::ZERO);
    while waited + pause <= timeout && attempts < u32::MAX && !pause.is_zero() {
        waited += pause;
        pause = (pause * 2).min(policy.backoff_max);
        attempts += 1;
        if pause == policy.backoff_max {
            let left = timeout.saturating_sub(waited).as_nanos() / pause.as_nanos().max(1);
            return attempts.saturating_add(u32::try_from(left).unwrap_or(u32::MAX));
        }
    }
    attempts
}

/// The library's log on standard error, from `-vv`; warnings always.
pub(crate) fn start_logging(verbose: u8) {
    let level = match verbose {
        0 | 1 => tracing::Level::WARN,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time()
        .init();
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
    use super::*;

    #[test]
    fn attempts_within_a_time_are_as_many_as_its_pauses_allow() {
        let policy = ReconnectPolicy {
            attempts_max: 0,
            time_max: Duration::MAX,
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_millis(40),
        };
        // Pauses: 10, 20, 40, 40, … ms after the first attempt.
        for (timeout_ms, expected) in [(9, 1), (10, 2), (29, 2), (30, 3), (69, 3), (70, 4), (110, 5)] {
            assert_eq!(attempts_within(Duration::from_millis(timeout_ms), &policy), expected, "{timeout_ms}");
        }
        assert_eq!(attempts_within(Duration::MAX, &policy), u32::MAX);
    }
}
