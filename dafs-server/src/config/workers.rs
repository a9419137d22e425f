//! How many workers a server has.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use super::{ConfigError, Cpus};

/// Workers at most: each has a thread, storage and buffers of its own.
const WORKERS_MAX: usize = 64;

/// Workers at most that nobody asked for by number.
const AUTO_MAX: usize = 8;

/// `--workers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// As many as this machine has use for.
    Auto,
    /// So many.
    Count(usize),
}

impl Workers {
    /// One for each two CPUs that the process may use: clients and storage have use for the others.
    fn for_this_machine() -> usize {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        (cpus / 2).clamp(1, AUTO_MAX)
    }
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => {
                text.parse().map(Self::Count).map_err(|_| format!("\"{text}\" is neither a number nor auto"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WorkersVisitor;
        impl Visitor<'_> for WorkersVisitor {
            type Value = Workers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or \"auto\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Workers, E> {
                usize::try_from(number)
                    .map(Workers::Count)
                    .map_err(|_| E::custom("a number cannot be negative"))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Workers, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(WorkersVisitor)
    }
}

pub(super) fn worker_count(workers: Option<Workers>, cpus: Option<&Cpus>) -> Result<usize, ConfigError> {
    match workers {
        None | Some(Workers::Auto) => {
            Ok(cpus.map_or_else(Workers::for_this_machine, |cpus| cpus.0.len().min(WORKERS_MAX)))
        }
        Some(Workers::Count(count)) if (1..=WORKERS_MAX).contains(&count) => Ok(count),
        Some(Workers::Count(count)) => {
            let remedy = format!("write a number from 1 to {WORKERS_MAX}, or auto");
            Err(ConfigError::new("--workers", format!("{count} is out of range"), remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> Result<usize, String> {
        worker_count(Some(text.parse()?), None).map_err(|error| error.to_string())
    }

    #[test]
    fn count_of_workers_at_its_edges() {
        assert_eq!(worker_count(None, None).ok(), count("auto").ok());
        let cpus = Cpus(vec![0, 1, 2]);
        assert_eq!(worker_count(Some(Workers::Auto), Some(&cpus)).ok(), Some(3));
        assert_eq!(worker_count(None, Some(&cpus)).ok(), Some(3));
        assert_eq!(worker_count(Some(Workers::Count(2)), Some(&cpus)).ok(), Some(2));
        for (text, workers) in
            [("1", Some(1)), ("64", Some(64)), ("0", None), ("65", None), ("-1", None), ("many", None)]
        {
            assert_eq!(count(text).ok(), workers, "{text}");
        }
        assert!((1..=AUTO_MAX).contains(&count("auto").unwrap()));
    }
}
