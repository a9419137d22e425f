use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use dafs_client::Url;

use super::below;
use crate::error::{Class, Error, Result};

/// Local prefixes, and what on dafs they stand for.
#[derive(Clone, Debug, Default)]
pub struct Prefixes(Vec<(PathBuf, Url)>);

const HOW: &str = "write DAFS_MPI_PREFIX=/local/directory=dafs+tcp://host:12049/export/path, several separated by semicolons";

impl Prefixes {
    /// Reads `/local=dafs://host/export/path;/other=…`.
    ///
    /// # Errors
    /// [`Class::Argument`].
    pub fn parse(text: &OsStr) -> Result<Self> {
        let entries =
            text.as_bytes().split(|byte| *byte == b';').filter(|entry| !entry.trim_ascii().is_empty());
        entries.map(|entry| parse_entry(entry.trim_ascii())).collect::<Result<_>>().map(Self)
    }

    /// What a local name stands for, where the longest prefix that holds it says so. Symbolic links are not looked at.
    pub fn find(&self, name: &OsStr, directory: &Path) -> Option<Url> {
        if self.0.is_empty() || name.is_empty() || has_any_scheme(name.as_bytes()) {
            return None;
        }
        let path = plain(&directory.join(name))?;
        let held = self.0.iter().filter_map(|(prefix, url)| Some((path.strip_prefix(prefix).ok()?, url)));
        let (rest, url) = held.min_by_key(|(rest, _)| rest.as_os_str().len())?;
        match rest.as_os_str().is_empty() {
            true => Some(url.clone()),
            false => below(url, rest.as_os_str().as_bytes()).ok(),
        }
    }
}

fn parse_entry(entry: &[u8]) -> Result<(PathBuf, Url)> {
    let shown = || String::from_utf8_lossy(entry).into_owned();
    let fault = |what: String| {
        Error::new(Class::Argument, format!("cannot use DAFS_MPI_PREFIX: {}: {what}; {HOW}", shown()))
    };
    let split = entry.windows(5).position(|part| part == b"=dafs");
    let (prefix, url) = match split {
        Some(at) => (&entry[..at], &entry[at + 1..]),
        None => return Err(fault("it has no =dafs…://".to_owned())),
    };
    let prefix = Path::new(OsStr::from_bytes(prefix));
    let prefix = plain(prefix).ok_or_else(|| fault("the directory has no absolute path".to_owned()))?;
    let url = OsString::from_vec(url.to_vec());
    let url = Url::parse(&url).map_err(|error| fault(error.to_string()))?;
    match url.export {
        Some(_) => Ok((prefix, url)),
        None => Err(fault("the address names no export".to_owned())),
    }
}

/// A word and a colon stand before the first slash: MPI libraries take that for the kind of file system.
fn has_any_scheme(name: &[u8]) -> bool {
    let word = name.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    word > 1 && name.get(word) == Some(&b':')
}

/// An absolute path without `.` and `..`.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain.is_absolute().then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    // [MPI-3]
    #[test]
    fn malformed_prefix_is_an_error_that_says_how_to_write_it() {
        for text in ["/a", "/a=tcp://h:1/e", "a=dafs://h/e", "=dafs://h/e", "/a=dafs://h", "/a=dafs://h:x/e"]
        {
            let error = Prefixes::parse(OsStr::new(text)).unwrap_err();
            assert_eq!(error.class, Class::Argument, "{text}");
            assert!(error.message.contains(text) && error.message.contains(HOW), "{error}");
        }
        assert!(Prefixes::parse(OsStr::new(" ; ")).unwrap().0.is_empty());
    }

    // [MPI-8]
    #[test]
    fn longest_prefix_counts_and_only_whole_names_match() {
        let prefixes =
            Prefixes::parse(OsStr::new("/a=dafs://h/outer; /a/b/=dafs://h/inner/d;/=dafs://h/root")).unwrap();
        let find = |name: &str| prefixes.find(OsStr::new(name), Path::new("/")).map(|url| url.to_string());
        assert_eq!(find("/a/b/f").as_deref(), Some("dafs://h:12049/inner/d/f"));
        assert_eq!(find("/a/bc").as_deref(), Some("dafs://h:12049/outer/bc"));
        assert_eq!(find("/x=dafs").as_deref(), Some("dafs://h:12049/root/x=dafs"));
        assert_eq!(find(""), None);
        assert_eq!(Prefixes::default().find(OsStr::new("/a"), Path::new("/")), None);
    }
}
