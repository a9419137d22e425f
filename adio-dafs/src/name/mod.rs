//! From the name that an MPI program gives a file to a server, an export and a path. It connects to nothing, and imports `error` alone.
//!
//! A name is on dafs by its scheme (`dafs:/export/path`, `dafs://host/export/path`, `dafs+tcp://…`), or because it lies below a prefix that
//! a setting maps: libraries such as HDF5 and PnetCDF also touch a file by POSIX calls, which know no schemes.

mod prefix;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use dafs_client::Url;

use crate::environment::variable;
use crate::error::{Class, Error, Result};
pub use prefix::Prefixes;

/// The server of names that begin with `dafs:/`.
pub const ADDRESS_VARIABLE: &str = "DAFS_ADDRESS";
/// Local prefixes and what they stand for.
pub const PREFIX_VARIABLE: &str = "DAFS_MPI_PREFIX";

/// The longest path in an export, bytes: that of one request.
const PATH_SIZE_MAX: usize = 4096;

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAddress {
    /// The server, without export and path.
    pub server: Url,
    /// The export.
    pub export: String,
    /// Below the export.
    pub path: PathBuf,
    /// The whole of it, for people.
    pub shown: String,
}

/// What names depend on besides themselves.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// [`ADDRESS_VARIABLE`].
    pub address: Option<OsString>,
    /// [`PREFIX_VARIABLE`].
    pub prefixes: Prefixes,
    /// Where relative names begin.
    pub directory: PathBuf,
}

impl Surroundings {
    /// Those of this process.
    ///
    /// # Errors
    /// [`Class::Argument`] when [`PREFIX_VARIABLE`] cannot be read; its words say how to write it.
    pub fn of_process() -> Result<Self> {
        let prefixes = match variable(PREFIX_VARIABLE) {
            Some(text) => Prefixes::parse(&text)?,
            None => Prefixes::default(),
        };
        let directory = std::env::current_dir().unwrap_or_default();
        Ok(Self { address: variable(ADDRESS_VARIABLE), prefixes, directory })
    }

    /// Whether a name is one of a file on dafs.
    pub fn claims(&self, name: &OsStr) -> bool {
        has_scheme(name.as_bytes()) || self.prefixes.find(name, &self.directory).is_some()
    }

    /// Where the file of this name is.
    ///
    /// # Errors
    /// [`Class::BadFile`] when the name is not one of a file on dafs, or names no file.
    pub fn place(&self, name: &OsStr) -> Result<FileAddress> {
        let url = match (has_scheme(name.as_bytes()), self.prefixes.find(name, &self.directory)) {
            (true, _) => self.parse(name)?,
            (false, Some(url)) => url,
            (false, None) => {
                let what = "its name begins neither with a dafs scheme nor with a prefix of DAFS_MPI_PREFIX";
                return Err(Error::new(Class::BadFile, what));
            }
        };
        place(url)
    }

    fn parse(&self, name: &OsStr) -> Result<Url> {
        let fault = |error: dafs_client::Error| Error::from(error);
        let bytes = name.as_bytes();
        let short = bytes.strip_prefix(b"dafs:").filter(|rest| !rest.starts_with(b"//"));
        let Some(rest) = short else { return Url::parse(name).map_err(|error| fault(error.into())) };
        let Some(address) = &self.address else {
            let what = format!(
                "a name that begins with dafs:/ needs the server's address in {ADDRESS_VARIABLE}, such as dafs+tcp://host:12049"
            );
            return Err(Error::new(Class::BadFile, what));
        };
        let server = Url::parse(address).map_err(|error| fault(error.into()))?;
        below(&server, rest)
    }
}

/// The name begins with a scheme of dafs.
fn has_scheme(name: &[u8]) -> bool {
    name.starts_with(b"dafs:") || (name.starts_with(b"dafs+") && name.windows(3).any(|part| part == b"://"))
}

/// A path on the server that a URL names, below the export and path of the URL, if it has any.
fn below(server: &Url, path: &[u8]) -> Result<Url> {
    let mut text = server.to_os_string().into_vec();
    if server.export.is_none() && text.ends_with(b"/") {
        text.pop();
    }
    if server.export.is_none() && server.scheme.name() == "dafs+shm" {
        text.push(b':');
    }
    text.push(b'/');
    text.extend(path.iter().skip_while(|byte| **byte == b'/'));
    Url::parse(&OsString::from_vec(text)).map_err(|error| dafs_client::Error::from(error).into())
}

fn place(url: Url) -> Result<FileAddress> {
    let shown = url.to_string();
    let bad = |what: &str| Error::new(Class::BadFile, format!("{shown} {what}"));
    let export = url.export.as_ref().ok_or_else(|| bad("names no export; write SERVER/EXPORT/PATH"))?;
    let export =
        String::from_utf8(export.clone()).map_err(|_| bad("has an export name that is not UTF-8"))?;
    if url.path.is_empty() {
        return Err(bad("names an export, not a file in it"));
    }
    if url.path.len() > PATH_SIZE_MAX {
        let what = format!("a path of {} bytes: at most {PATH_SIZE_MAX} are allowed", url.path.len());
        return Err(Error::new(Class::BadFile, what));
    }
    let path = PathBuf::from(OsString::from_vec(url.path.clone()));
    Ok(FileAddress { server: Url { export: None, path: Vec::new(), ..url }, export, path, shown })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings(address: &str, prefixes: &str) -> Surroundings {
        Surroundings {
            address: (!address.is_empty()).then(|| address.into()),
            prefixes: Prefixes::parse(OsStr::new(prefixes)).unwrap(),
            directory: "/scratch/run".into(),
        }
    }

    fn shown(surroundings: &Surroundings, name: &str) -> String {
        match surroundings.place(OsStr::new(name)) {
            Ok(place) => format!("{} {} {}", place.server, place.export, place.path.display()),
            Err(error) => format!("{:?}", error.class),
        }
    }

    // [MPI-1]
    #[test]
    fn name_with_a_scheme_is_a_url_of_dafs() {
        let here = surroundings("", "");
        for (name, expected) in [
            ("dafs+tcp://127.0.0.1:7/data/a/b", "dafs+tcp://127.0.0.1:7 data a/b"),
            ("dafs://host/data/f", "dafs://host:12049 data f"),
            ("dafs+shm:///run/s.sock:/data/f", "dafs+shm:///run/s.sock data f"),
            ("dafs+tcp://h:7/data", "BadFile"),
            ("dafs+tcp://h:7", "BadFile"),
            ("dafs+tcp://h:x/data/f", "BadFile"),
            (&format!("dafs+tcp://h:7/data/{}", "x".repeat(PATH_SIZE_MAX + 1)), "BadFile"),
        ] {
            assert!(here.claims(OsStr::new(name)), "{name}");
            assert_eq!(shown(&here, name), expected, "{name}");
        }
    }

    // [MPI-1]
    #[test]
    fn name_with_the_short_scheme_needs_the_address() {
        assert_eq!(shown(&surroundings("", ""), "dafs:/data/f"), "BadFile");
        let tcp = surroundings("dafs+tcp://127.0.0.1:7", "");
        assert_eq!(shown(&tcp, "dafs:/data/a/f"), "dafs+tcp://127.0.0.1:7 data a/f");
        assert_eq!(shown(&tcp, "dafs:data/f"), "dafs+tcp://127.0.0.1:7 data f");
        assert_eq!(
            shown(&surroundings("dafs+tcp://127.0.0.1:7/", ""), "dafs:/data/f"),
            "dafs+tcp://127.0.0.1:7 data f"
        );
        let shm = surroundings("dafs+shm:///s", "");
        assert_eq!(shown(&shm, "dafs:/data/f"), "dafs+shm:///s data f");
        // An address with a path is where names begin.
        let deep = surroundings("dafs+shm:///s:/data/run", "");
        assert_eq!(shown(&deep, "dafs:/f"), "dafs+shm:///s data run/f");
    }

    // [MPI-2]
    #[test]
    fn name_below_a_prefix_is_mapped() {
        let here = surroundings("", "/scratch/x=dafs+tcp://h:7/data/x;/scratch/run=dafs+shm:///s:/out");
        for (name, expected) in [
            ("/scratch/x/f", "dafs+tcp://h:7 data x/f"),
            ("/scratch/./y/../x//a/f", "dafs+tcp://h:7 data x/a/f"),
            ("f", "dafs+shm:///s out f"),
            ("../x/f", "dafs+tcp://h:7 data x/f"),
            ("/scratch/xy/f", "BadFile"),
            ("/elsewhere", "BadFile"),
            // The directory itself is no file.
            ("/scratch/run", "BadFile"),
        ] {
            assert_eq!(shown(&here, name), expected, "{name}");
        }
        assert!(here.claims(OsStr::new("f")) && !here.claims(OsStr::new("/scratch/xy/f")));
        assert!(!here.claims(OsStr::new("ufs:/scratch/x/f")) && !here.claims(OsStr::new("")));
    }
}
