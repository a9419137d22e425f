//! URLs made into sessions and exports.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;

use dafs_client::{Config, Error, Export, Session, Url};
use dafs_proto::address::Scheme;
use dafs_stripe::Volume;

use crate::report::{Failure, Failures, Result, lock};

/// Requests that are asked for to be in flight where a server may be far away. Over shared memory and RDMA each costs a buffer.
const CREDITS_FAR: u16 = 256;

/// Sessions of this command, one for each server.
pub(crate) struct Remotes {
    config: Config,
    open: Mutex<Vec<(Url, Session)>>,
    mounted: Mutex<Vec<(Url, Export, Volume)>>,
}

/// A path in an export.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) session: Session,
    pub(crate) export: Export,
    /// The same, where its files may be striped.
    pub(crate) volume: Volume,
    /// Below the export.
    pub(crate) path: PathBuf,
    /// Of the export alone.
    base: Url,
}

impl Remotes {
    pub(crate) fn new(config: Config) -> Self {
        Self { config, open: Mutex::default(), mounted: Mutex::default() }
    }

    /// The session with the server of a URL.
    pub(crate) fn session(&self, url: &Url) -> Result<Session> {
        let server = server_of(url);
        let mut open = lock(&self.open);
        if let Some((_, session)) = open.iter().find(|(known, _)| *known == server) {
            return Ok(session.clone());
        }
        let credits = match url.scheme {
            Scheme::Shm | Scheme::Verbs => self.config.credits,
            Scheme::Any | Scheme::Tcp | Scheme::Sim => CREDITS_FAR,
        };
        let config = Config { credits, ..self.config.clone() };
        let session = Session::connect_url(&server, &config)
            .map_err(|error| Failure::at("connect to", &server, &error))?;
        open.push((server, session.clone()));
        Ok(session)
    }

    /// The export and path of a URL.
    pub(crate) fn target(&self, url: &OsStr) -> Result<Target> {
        let (url, name) = parse_path(url)?;
        let session = self.session(&url)?;
        let base = Url { path: Vec::new(), ..url.clone() };
        let mut mounted = lock(&self.mounted);
        let known = mounted.iter().find(|(known, ..)| *known == base);
        let (export, volume) = match known.map(|(_, export, volume)| (export.clone(), volume.clone())) {
            Some(known) => known,
            None => {
                let export = session.mount(&name).map_err(|error| Failure::at("mount", &base, &error))?;
                let volume = Volume::new(&export, &self.config);
                mounted.push((base.clone(), export.clone(), volume.clone()));
                (export, volume)
            }
        };
        let path = PathBuf::from(OsString::from_vec(url.path));
        Ok(Target { session, export, volume, path, base })
    }

    /// Does something with what each of the URLs names. What fails is reported, and the rest is done, except that of servers which cannot
    /// be reached any more; nothing is, where one is no URL.
    pub(crate) fn each(
        &self,
        urls: &[OsString],
        failures: &Failures,
        mut act: impl FnMut(Target) -> Result<()>,
    ) -> Result<()> {
        check_paths(urls)?;
        let mut unreached = HashSet::new();
        for url in urls {
            let server = server_of(&parse_path(url)?.0).to_os_string();
            if unreached.contains(&server) {
                failures.count_untold();
                continue;
            }
            let done = self.target(url).and_then(&mut act);
            if matches!(done, Err(Failure::Unreached(_))) {
                unreached.insert(server);
            }
            failures.keep_going(done)?;
        }
        Ok(())
    }
}

/// The server of a URL.
fn server_of(url: &Url) -> Url {
    Url { export: None, path: Vec::new(), ..url.clone() }
}

/// How often a request is tried again that restarts of the server leave in doubt.
const DOUBTS_MAX: u32 = 64;

/// The answer to a request that a restart of the server may have left in doubt: then it is asked `again`, which must do no harm.
pub(crate) fn sure<T>(
    first: dafs_client::Result<T>,
    mut again: impl FnMut() -> dafs_client::Result<T>,
) -> dafs_client::Result<T> {
    let mut result = first;
    for _ in 0..DOUBTS_MAX {
        match result {
            Err(Error::InDoubt { .. }) => result = again(),
            result => return result,
        }
    }
    result
}

/// The session has ended: nothing more can be asked of that server.
pub(crate) fn ends_session(error: &Error) -> bool {
    matches!(error, Error::Connection { .. } | Error::Closed | Error::Peer(_) | Error::Handshake(_))
}

impl Target {
    /// The same export, another path.
    pub(crate) fn at(&self, path: PathBuf) -> Self {
        Self { path, ..self.clone() }
    }

    /// The address of this path.
    pub(crate) fn url(&self) -> Url {
        self.url_of(&self.path)
    }

    /// The address of another path of the export.
    pub(crate) fn url_of(&self, path: &Path) -> Url {
        Url { path: path.as_os_str().as_bytes().to_vec(), ..self.base.clone() }
    }

    /// `cannot <action> '<URL>': …`.
    pub(crate) fn failed(&self, action: &str, error: &Error) -> Failure {
        Failure::at(action, &self.url(), error)
    }

    /// As [`Target::failed`], of a file that may be striped.
    pub(crate) fn failed_striped(&self, action: &str, error: &dafs_stripe::Error) -> Failure {
        match error {
            dafs_stripe::Error::Client(error) => self.failed(action, error),
            error => Failure::text(format!("cannot {action} '{}': {error}", self.url())),
        }
    }

    /// As [`Target::failed`], for another path of the export.
    pub(crate) fn failed_at(&self, action: &str, path: &Path, error: &Error) -> Failure {
        Failure::at(action, &self.url_of(path), error)
    }
}

/// Reads a URL, with advice where it is none.
pub(crate) fn parse(url: &OsStr) -> Result<Url> {
    Url::parse(url).map_err(|error| Failure::usage(format!("cannot read the URL: {error}")))
}

/// As [`parse`], where an export is to be named; returns its name too.
pub(crate) fn parse_path(url: &OsStr) -> Result<(Url, String)> {
    let url = parse(url)?;
    let Some(export) = &url.export else {
        // What follows a socket's path is told from it by a colon.
        let colon = if url.scheme == Scheme::Shm { ":" } else { "" };
        return Err(Failure::usage(format!(
            "cannot use {url}: it names no export; write {url}{colon}/EXPORT/PATH, with an export that `dafs exports {url}` lists"
        )));
    };
    let name = String::from_utf8(export.clone()).map_err(|_| {
        Failure::usage(format!(
            "cannot use {url}: the name of its export is not UTF-8; `dafs exports` lists the exports"
        ))
    })?;
    Ok((url, name))
}

/// Whether all of these name something in an export. Nothing shall be done with some of them where others are wrong.
pub(crate) fn check_paths(urls: &[OsString]) -> Result<()> {
    urls.iter().try_for_each(|url| parse_path(url).map(drop))
}

/// What is meant is on a server: it begins like a URL of dafs.
pub(crate) fn is_remote(operand: &OsStr) -> bool {
    let bytes = operand.as_bytes();
    let begins = |with: &[u8]| bytes.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with));
    begins(b"dafs://") || (begins(b"dafs+") && bytes.windows(3).any(|part| part == b"://"))
}

/// `base/name`; `base` where the name is empty.
pub(crate) fn join(base: &Path, name: &Path) -> PathBuf {
    match (base.as_os_str().is_empty(), name.as_os_str().is_empty()) {
        (_, true) => base.to_owned(),
        (true, _) => name.to_owned(),
        _ => base.join(name),
    }
}

/// Whether two paths to one file end in one name, by links to its directory: then removing one removes both.
pub(crate) fn is_one_name(one: &Target, other: &Target) -> bool {
    one.path.file_name() == other.path.file_name() && are_in_one_directory(one, other)
}

/// As far as can be seen; else they could be.
pub(crate) fn are_in_one_directory(one: &Target, other: &Target) -> bool {
    let directory = |target: &Target| {
        let found = target.export.metadata(target.path.parent().unwrap_or(Path::new("")));
        found.map(|found| (found.fs_id, found.file_id))
    };
    match (directory(one), directory(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => true,
    }
}

pub(crate) fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// A path without the slashes at its end, which would follow a symbolic link there.
pub(crate) fn without_slashes(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    PathBuf::from(OsStr::from_bytes(&bytes[..end]))
}

/// A name of a directory entry as a path of one part. A server, or a broken one, could send others, which would lead elsewhere.
pub(crate) fn entry_name(name: &[u8]) -> Option<&Path> {
    let usable =
        !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0);
    usable.then(|| Path::new(OsStr::from_bytes(name)))
}

/// A path without `.` parts and doubled slashes; `..` is taken by its name.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(name) => parts.push(name),
            _ => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_name_that_leads_elsewhere_is_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert!(entry_name(name).is_none(), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b"\xff", b" "] {
            assert!(entry_name(name).is_some(), "{name:?}");
        }
    }

    #[test]
    fn operand_is_remote_only_with_a_scheme_of_dafs() {
        for remote in ["dafs://h/e", "dafs+tcp://h/e", "dafs+shm:///s:/e", "DAFS://h/e", "Dafs+TCP://h/e"] {
            assert!(is_remote(OsStr::new(remote)));
        }
        for local in ["./dafs://h", "a", "dafs", "dafs+x", "http://h"] {
            assert!(!is_remote(OsStr::new(local)));
        }
    }
}
