//! Names that stand for several servers, in a file.
//!
//! ```text
//! # servers of the large file system
//! big    fs1.example.org fs2.example.org:12050 [2001:db8::3]
//! ```
//!
//! The first word of a line is the name, and those behind it are the hosts of servers, with a port where that is not the default one.
//! What follows `#` is a comment. A name stands for itself where no line has it.

use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

use super::{DEFAULT_PORT, Location, Problem, ResolveError, SERVERS_MAX, Scheme, Url, parse_host};

/// The file of names, where [`VARIABLE`] names no other.
pub const FILE: &str = "/etc/dafs/clusters";
/// The variable of the environment that may name another file.
pub const VARIABLE: &str = "DAFS_CLUSTERS";
/// Largest file of names, bytes.
const FILE_SIZE_MAX: u64 = 1 << 20;

impl Url {
    /// The servers that it stands for, in the order in which they are to be tried. Reads the file of names, unless it has a port other than
    /// the default one or names several servers itself.
    pub fn servers(&self) -> Result<Vec<Location>, ResolveError> {
        self.servers_of(std::env::var_os(VARIABLE))
    }

    /// As [`Url::servers`], where the variable has this value.
    fn servers_of(&self, variable: Option<OsString>) -> Result<Vec<Location>, ResolveError> {
        match (&self.location, self.scheme) {
            (Location::Host { host, port: DEFAULT_PORT }, Scheme::Any | Scheme::Tcp | Scheme::Verbs) => {
                Ok(named(host, variable)?.unwrap_or_else(|| self.location.clone()).servers())
            }
            _ => Ok(self.location.servers()),
        }
    }
}

/// What the file has under a name. No file is an empty one, unless a variable names it.
fn named(name: &str, variable: Option<OsString>) -> Result<Option<Location>, ResolveError> {
    let variable = variable.filter(|value| !value.is_empty());
    let is_told = variable.is_some();
    let path = variable.map_or_else(|| PathBuf::from(FILE), PathBuf::from);
    let fault = |problem: String| ResolveError::Clusters { path: path.display().to_string(), problem };
    let mut text = String::new();
    let read =
        std::fs::File::open(&path).and_then(|file| file.take(FILE_SIZE_MAX + 1).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound && !is_told => Ok(None),
        Err(error) => Err(fault(error.to_string())),
        Ok(_) if text.len() as u64 > FILE_SIZE_MAX => {
            Err(fault(format!("it is longer than {FILE_SIZE_MAX} bytes")))
        }
        Ok(_) => find(&text, name).map_err(fault),
    }
}

/// The first line of this name.
fn find(text: &str, name: &str) -> Result<Option<Location>, String> {
    for (line, number) in text.lines().zip(1..) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        if words.next() != Some(name) {
            continue;
        }
        let hosts =
            words.map(|word| host(word).map_err(|problem| format!("line {number}: {word:?} {problem}")));
        let hosts: Vec<_> = hosts.collect::<Result<_, _>>()?;
        return match hosts.len() {
            0 => Err(format!("line {number}: {name} has no servers")),
            count if count > SERVERS_MAX => {
                Err(format!("line {number}: {name} {}", Problem::ServersMany(count)))
            }
            _ => Ok(Some(Location::of_hosts(hosts))),
        };
    }
    Ok(None)
}

fn host(word: &str) -> Result<(String, u16), Problem> {
    match parse_host(word.as_bytes())? {
        (_, 0) => Err(Problem::PortZero),
        host => Ok(host),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    const TEXT: &str = "# names\n\n big\tfs1 fs2:12050  [::1]:7 # all\nbad fs1 fs2:x\nnone # nobody\nzero fs1:0\nbig other\n";

    fn hosts(name: &str) -> Result<Vec<(String, u16)>, String> {
        let found = find(TEXT, name)?.ok_or("not found")?;
        Ok(found.hosts().into_iter().map(|(host, port)| (host.to_owned(), port)).collect())
    }

    // [PROV-97]
    #[test]
    fn name_stands_for_the_servers_of_its_line() {
        let big = [("fs1", DEFAULT_PORT), ("fs2", 12_050), ("::1", 7)];
        assert_eq!(hosts("big").unwrap(), big.map(|(host, port)| (host.to_owned(), port)));
        for (name, problem) in [
            ("other", "not found"),
            ("fs1", "not found"),
            ("#", "not found"),
            ("bad", "line 4: \"fs2:x\" has the port"),
            ("none", "line 5: none has no servers"),
            ("zero", "line 6: \"fs1:0\" has the port 0"),
        ] {
            let error = hosts(name).unwrap_err();
            assert!(error.starts_with(problem), "{name}: {error}");
        }
        let many = format!("n{}", " h".repeat(SERVERS_MAX + 1));
        assert!(find(&many, "n").unwrap_err().contains("17 servers"));
        assert_eq!(find(&many[..many.len() - 2], "n").unwrap().unwrap().servers().len(), SERVERS_MAX);
    }

    // [PROV-97]
    #[test]
    fn file_of_names_is_asked_about_a_host_without_a_port_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clusters");
        std::fs::write(&path, TEXT).unwrap();
        let servers = |url: &str| {
            let url = Url::parse(OsStr::new(url)).unwrap();
            url.servers_of(Some(path.clone().into())).map(|servers| servers.len())
        };
        for (url, count) in [
            ("dafs://big/e", 3),
            ("dafs+verbs://big", 3),
            ("dafs://big:7/e", 1),
            ("dafs://small/e", 1),
            ("dafs://big,small", 2),
            ("dafs+shm:///big", 1),
        ] {
            assert_eq!(servers(url).unwrap(), count, "{url}");
        }
        assert!(servers("dafs://bad").unwrap_err().to_string().contains("clusters: line 4"));
        let url = Url::parse(OsStr::new("dafs://big")).unwrap();
        let missing = directory.path().join("missing");
        assert!(matches!(url.servers_of(Some(missing.into())), Err(ResolveError::Clusters { .. })));
    }
}
