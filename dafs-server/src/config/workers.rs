//! How many workers a server has.

use std::fmt;
use std::str::FromStr;

use dafs_proto::transport::Address;
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

/// RDMA devices belong to one thread.
pub(super) fn worker_count(
    workers: Option<Workers>,
    cpus: Option<&Cpus>,
    listeners: &[Address],
) -> Result<usize, ConfigError> {
    let rdma = listeners.iter().find(|address| matches!(address, Address::Verbs(_)));
    match (workers, rdma) {
        (None, _) | (Some(Workers::Auto), Some(_)) => Ok(1),
        (Some(Workers::Auto), None) => {
            Ok(cpus.map_or_else(Workers::for_this_machine, |cpus| cpus.0.len().min(WORKERS_MAX)))
        }
        (Some(Workers::Count(count)), Some(address)) if count > 1 => {
            let problem =
                format!("{count} workers cannot serve {address}: an RDMA device belongs to one thread");
            Err(ConfigError::new(
                "--workers",
                problem,
                "write --workers 1, or serve other transports by another server",
            ))
        }
        (Some(Workers::Count(count)), _) if (1..=WORKERS_MAX).contains(&count) => Ok(count),
        (Some(Workers::Count(count)), _) => {
            let remedy = format!("write a number from 1 to {WORKERS_MAX}, or auto");
            Err(ConfigError::new("--workers", format!("{count} is out of range"), remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str, listener: &Address) -> Result<usize, String> {
        worker_count(Some(text.parse()?), None, std::slice::from_ref(listener))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn count_of_workers_at_its_edges() {
        let tcp = Address::Tcp(([127, 0, 0, 1], 0).into());
        assert_eq!(worker_count(None, None, &[]).ok(), Some(1));
        let cpus = Cpus(vec![0, 1, 2]);
        assert_eq!(worker_count(Some(Workers::Auto), Some(&cpus), &[]).ok(), Some(3));
        assert_eq!(worker_count(Some(Workers::Count(2)), Some(&cpus), &[]).ok(), Some(2));
        for (text, workers) in
            [("1", Some(1)), ("64", Some(64)), ("0", None), ("65", None), ("-1", None), ("many", None)]
        {
            assert_eq!(count(text, &tcp).ok(), workers, "{text}");
        }
        assert!((1..=AUTO_MAX).contains(&count("auto", &tcp).unwrap()));
    }

    #[test]
    fn server_on_rdma_has_one_worker() {
        let rdma = Address::Verbs(([10, 0, 0, 1], 1).into());
        assert_eq!((count("1", &rdma), count("auto", &rdma)), (Ok(1), Ok(1)));
        assert!(count("2", &rdma).unwrap_err().contains("RDMA device"));
    }
}
