//! The CPUs that workers run on.

use std::fmt;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::de::{Deserialize, Deserializer};

use super::ConfigError;

/// `--worker-cpus`: the first worker's, the second worker's, and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(pub Vec<usize>);

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().parse::<usize>().ok().filter(|number| *number < CpuSet::MAX_CPU);
            number.ok_or_else(|| format!("\"{text}\" is no number of a CPU; write them as 0,2 or 0-3"))
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            match part.split_once('-') {
                Some((first, last)) => {
                    let range = number(first)?..=number(last)?;
                    if range.is_empty() {
                        return Err(format!("\"{part}\" has no CPU in it; write the smaller number first"));
                    }
                    cpus.extend(range);
                }
                None => cpus.push(number(part)?),
            }
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(at, cpu)| match at {
            0 => write!(f, "{cpu}"),
            _ => write!(f, ",{cpu}"),
        })
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Those that this process may use.
pub(super) fn usable() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// One for each of so many workers; none where nobody asked for any.
pub(super) fn worker_cpus(
    cpus: Option<&Cpus>,
    workers: usize,
    usable: &[usize],
) -> Result<Vec<usize>, ConfigError> {
    let Some(Cpus(cpus)) = cpus else { return Ok(Vec::new()) };
    let flag = "--worker-cpus";
    if let Some(cpu) = cpus.iter().find(|cpu| !usable.contains(cpu)) {
        let usable = Cpus(usable.to_vec());
        let problem = format!("CPU {cpu} is none that this process may use");
        return Err(ConfigError::new(flag, problem, format!("choose from {usable}")));
    }
    if cpus.len() < workers {
        let problem = format!("{} CPUs are too few for {workers} workers", cpus.len());
        return Err(ConfigError::new(flag, problem, "name one for each of them"));
    }
    Ok(cpus[..workers].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_cpus_has_numbers_and_ranges() {
        let parsed = |text: &str| text.parse::<Cpus>().map(|cpus| cpus.0);
        assert_eq!(parsed("3").unwrap(), [3]);
        assert_eq!(parsed("4,0-2, 7").unwrap(), [4, 0, 1, 2, 7]);
        assert_eq!(Cpus(vec![4, 0, 1]).to_string(), "4,0,1");
        for text in ["", "a", "1,", "2-1", "0,2-1", "-1", "1-", "1024", "0-99999"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn workers_get_a_usable_cpu_each_or_none() {
        let check = |text: &str, workers| {
            let cpus = (!text.is_empty()).then(|| text.parse().unwrap());
            worker_cpus(cpus.as_ref(), workers, &[0, 1, 4]).map_err(|error| error.to_string())
        };
        assert_eq!(check("", 64), Ok(vec![]));
        assert_eq!(check("4,0", 2), Ok(vec![4, 0]));
        assert_eq!(check("4,0,1", 1), Ok(vec![4]));
        assert_eq!(check("1,1", 2), Ok(vec![1, 1]));
        assert!(check("0", 2).unwrap_err().contains("too few"));
        assert!(check("0,2", 2).unwrap_err().contains("CPU 2"));
    }

    #[test]
    fn process_may_use_the_cpu_that_it_runs_on() {
        assert!(!usable().is_empty());
    }
}
