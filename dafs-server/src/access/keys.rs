//! Pre-shared keys and the file that holds them.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dafs_proto::session::{Key, KeyLineError, KeySource, format_key_line, is_key_name, parse_key_file};
use dafs_proto::small_file::{SmallFile, SmallFileError};
use thiserror::Error;

use super::identity::parse_id;
use crate::storage::Identity;

/// Bytes of a key file at most.
pub const KEY_FILE_SIZE_MAX: u64 = 1 << 20;

/// All keys of a server, by name.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    entries: HashMap<String, KeyEntry>,
    path: Option<PathBuf>,
}

/// One key. Its secret is never shown.
#[derive(Clone, Debug)]
pub struct KeyEntry {
    /// Name and secret.
    pub key: Key,
    /// As whom its holders act, whatever they say; `None` to go by what they say.
    pub forced: Option<ForcedIdentity>,
    /// Its holders may publish crossovers that they have measured.
    pub publishes: bool,
}

/// The identity that a key stands for; no supplementary groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedIdentity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl ForcedIdentity {
    pub(super) fn identity(self) -> Identity {
        Identity { uid: self.uid, gid: self.gid, groups: Arc::from([]) }
    }
}

/// A key file that cannot be used, by its path.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("{0}: {1}; make the file with `(umask 077; dafs-server keygen NAME > {0})`, or correct the path")]
    Read(PathBuf, std::io::Error),
    /// It is a directory, a device or a FIFO, is too large, or is not text.
    #[error("{0}: {1}; give the path of a file with lines of name:secret")]
    Other(PathBuf, SmallFileError),
    /// It was written to while it was read.
    #[error("{0}: it changed while it was read; read it again (SIGHUP) when it is written")]
    Changed(PathBuf),
    /// Others than its owner may read or change it: its permission bits.
    #[error("{0}: other users may read or change it (mode {1:03o}); run `chmod 600 {0}`")]
    Exposed(PathBuf, u32),
    /// It belongs to another user than the one that the server runs as.
    #[error("{path}: user {owner} owns it, and could read and change it; run `chown {server} {path}`")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user that the server runs as.
        server: u32,
    },
    /// A line is not a key.
    #[error("{0}, {1}")]
    Line(PathBuf, KeyLineError),
    /// The third field of a line cannot be understood.
    #[error(
        "{0}, line {1}: the third field is not uid=NUMBER,gid=NUMBER, both below 4294967295, publish, or both; write \
         name:secret:uid=1000,gid=1000 or name:secret:publish"
    )]
    Rules(PathBuf, usize),
    /// There is no key in it.
    #[error("{0}: no key in it; add one with `dafs-server keygen NAME >> {0}`")]
    Empty(PathBuf),
}

impl Keyring {
    /// Reads a key file, which only `server_uid` (or root) may be able to read. Blocking.
    pub fn load(path: &Path, server_uid: u32) -> Result<Self, KeyFileError> {
        let refused = |error| match error {
            SmallFileError::System(error) => KeyFileError::Read(path.to_owned(), error),
            SmallFileError::Changed => KeyFileError::Changed(path.to_owned()),
            error => KeyFileError::Other(path.to_owned(), error),
        };
        let file = SmallFile::open(path).map_err(refused)?;
        let metadata = file.metadata();
        if metadata.mode() & 0o077 != 0 {
            return Err(KeyFileError::Exposed(path.to_owned(), metadata.mode() & 0o777));
        }
        if metadata.uid() != server_uid && metadata.uid() != 0 {
            let (path, owner) = (path.to_owned(), metadata.uid());
            return Err(KeyFileError::Foreign { path, owner, server: server_uid });
        }
        Self::parse(&file.read(KEY_FILE_SIZE_MAX).map_err(refused)?, path)
    }

    /// Reads the text of a key file; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, KeyFileError> {
        let lines = parse_key_file(text).map_err(|error| KeyFileError::Line(path.to_owned(), error))?;
        let mut keys = Self { path: Some(path.to_owned()), ..Self::default() };
        for line in lines {
            let (forced, publishes) = match line.rules.as_deref().map(parse_rules) {
                Some(None) => return Err(KeyFileError::Rules(path.to_owned(), line.line)),
                rules => rules.flatten().unwrap_or_default(),
            };
            keys.insert(KeyEntry { key: line.key, forced, publishes });
        }
        match keys.is_empty() {
            true => Err(KeyFileError::Empty(path.to_owned())),
            false => Ok(keys),
        }
    }

    /// The file it was read from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The entry of this name.
    pub fn entry(&self, name: &str) -> Option<&KeyEntry> {
        self.entries.get(name)
    }

    /// There is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a key; one of the same name is replaced.
    pub fn insert(&mut self, entry: KeyEntry) {
        self.entries.insert(entry.key.name.clone(), entry);
    }
}

impl KeySource for Keyring {
    fn key(&self, name: &str) -> Option<Key> {
        self.entry(name).map(|entry| entry.key.clone())
    }
}

/// Returns a line for a key file with a new secret of 32 bytes from the system's random source.
///
/// # Errors
/// The name cannot be one of a key, or the random source failed.
pub fn generate_key_line(name: &str) -> Result<String, String> {
    if !is_key_name(name) {
        return Err(format!(
            "cannot name a key {name:?}: not a word; leave out spaces, colons, commas and semicolons"
        ));
    }
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| format!("cannot make a secret: {error}"))?;
    Ok(format_key_line(&Key { name: name.to_owned(), secret: Arc::from(secret) }))
}

/// `uid=1000,gid=1000`, `publish` or both, in any order: whom the key stands for, and whether it may publish.
fn parse_rules(text: &str) -> Option<(Option<ForcedIdentity>, bool)> {
    let (mut uid, mut gid, mut publishes) = (None, None, false);
    for rule in text.split(',').map(str::trim) {
        if rule == "publish" && !publishes {
            publishes = true;
            continue;
        }
        let (name, value) = rule.split_once('=')?;
        let place = match name {
            "uid" => &mut uid,
            "gid" => &mut gid,
            _ => return None,
        };
        if place.replace(parse_id(value)?).is_some() {
            return None;
        }
    }
    match (uid, gid) {
        (Some(uid), Some(gid)) => Some((Some(ForcedIdentity { uid, gid }), publishes)),
        (None, None) if publishes => Some((None, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const SECRET: &str = "000102030405060708090a0b0c0d0e0f";

    fn parse(text: &str) -> Result<Keyring, String> {
        Keyring::parse(text, Path::new("/k")).map_err(|error| error.to_string())
    }

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    // [ACC-20]
    #[test]
    fn keyring_finds_keys_and_forced_identities() {
        let keys =
            parse(&format!("a:{SECRET}\nb:{SECRET}:uid=1000,gid=7\nc:{SECRET}:gid=0, uid=0\n")).unwrap();
        assert_eq!(keys.len(), 3);
        assert_eq!(keys.key("a").unwrap().secret[..], (0..16).collect::<Vec<u8>>()[..]);
        assert_eq!(keys.entry("a").unwrap().forced, None);
        assert_eq!(keys.entry("b").unwrap().forced, Some(ForcedIdentity { uid: 1000, gid: 7 }));
        assert_eq!(keys.entry("c").unwrap().forced, Some(ForcedIdentity { uid: 0, gid: 0 }));
        assert_eq!(keys.key("d"), None);
    }

    // [ACC-175]
    #[test]
    fn keyring_tells_which_keys_may_publish() {
        let text = format!(
            "a:{SECRET}\nb:{SECRET}:publish\nc:{SECRET}:uid=1,gid=2, publish\nd:{SECRET}:publish,gid=2,uid=1\ne:{SECRET}:uid=1,gid=2\n"
        );
        let keys = parse(&text).unwrap();
        let forced = Some(ForcedIdentity { uid: 1, gid: 2 });
        let all = [
            ("a", None, false),
            ("b", None, true),
            ("c", forced, true),
            ("d", forced, true),
            ("e", forced, false),
        ];
        for (name, forced, publishes) in all {
            let entry = keys.entry(name).unwrap();
            assert_eq!((entry.forced, entry.publishes), (forced, publishes), "{name}");
        }
    }

    // [ACC-20]
    #[test]
    fn keyring_with_wrong_rules_names_line_and_form() {
        for rules in [
            "",
            "uid=1",
            "gid=1",
            "uid=1,gid=x",
            "uid=1,gid=1,gid=1",
            "uid=1,gid=4294967295",
            "user=a,gid=1",
            "uid=+1,gid=1",
            "publish,publish",
            "publish=yes",
            "publish,uid=1",
        ] {
            let error = parse(&format!("# keys\na:{SECRET}:{rules}")).unwrap_err();
            assert!(
                error.starts_with("/k, line 2: ") && error.contains("name:secret:uid=1000,gid=1000"),
                "{rules}: {error}"
            );
        }
    }

    // [ACC-87]
    #[test]
    fn keyring_without_keys_is_refused() {
        assert!(parse("# nothing\n").unwrap_err().contains("dafs-server keygen NAME >> /k"));
    }

    // [ACC-21]
    #[test]
    fn key_file_readable_by_others_is_refused_with_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        std::fs::write(&path, format!("a:{SECRET}")).unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Keyring::load(&path, own_uid()).map(|keys| keys.len()).map_err(|error| error.to_string())
        };
        for mode in [0o644, 0o640, 0o620, 0o601, 0o604] {
            let error = with_mode(mode).unwrap_err();
            assert!(error.contains(&format!("chmod 600 {}", path.display())), "{mode:o}: {error}");
        }
        assert_eq!(with_mode(0o600), Ok(1));
        assert_eq!(with_mode(0o400), Ok(1));
    }

    // [ACC-89]
    #[test]
    fn key_file_of_another_user_is_refused_with_the_command_that_helps() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        std::fs::write(&path, format!("a:{SECRET}")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        if own_uid() == 0 {
            std::os::unix::fs::chown(&path, Some(4444), None).unwrap();
        }
        let owner = std::fs::metadata(&path).unwrap().uid();
        let error = Keyring::load(&path, owner + 1).unwrap_err().to_string();
        assert!(error.contains(&format!("chown {} {}", owner + 1, path.display())), "{error}");
        assert_eq!(Keyring::load(&path, owner).unwrap().len(), 1);
    }

    #[test]
    fn key_file_that_is_missing_or_no_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let missing = Keyring::load(&directory.path().join("keys"), own_uid()).unwrap_err().to_string();
        assert!(missing.contains("No such file") && missing.contains("keygen"), "{missing}");
        let no_file = Keyring::load(directory.path(), own_uid()).unwrap_err().to_string();
        assert!(no_file.contains("not a regular file"), "{no_file}");
    }

    // [ACC-88]
    #[test]
    fn key_file_larger_than_the_limit_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        let of_size = |size: u64| {
            let mut text = format!("a:{SECRET}\n#");
            text.extend(std::iter::repeat_n('x', usize::try_from(size).unwrap() - text.len()));
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            Keyring::load(&path, own_uid())
        };
        assert!(of_size(KEY_FILE_SIZE_MAX).is_ok());
        assert!(matches!(
            of_size(KEY_FILE_SIZE_MAX + 1),
            Err(KeyFileError::Other(_, SmallFileError::TooLarge(_)))
        ));
    }

    // [ACC-22]
    #[test]
    fn generated_keys_are_usable_and_different() {
        let lines = [generate_key_line("alpha").unwrap(), generate_key_line("alpha").unwrap()];
        assert_ne!(lines[0], lines[1]);
        assert_eq!(parse(&lines[0]).unwrap().key("alpha").unwrap().secret.len(), 32);
        assert!(generate_key_line("a:b").unwrap_err().contains("\"a:b\""));
    }

    // [ACC-23]
    #[test]
    fn keys_shown_for_debugging_hide_the_secret() {
        let shown = format!("{:?}", parse(&format!("a:{SECRET}")).unwrap());
        assert!(shown.contains("\"a\"") && !shown.contains("15") && !shown.contains("0f"), "{shown}");
    }
}
