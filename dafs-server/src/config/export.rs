//! Exports: from `--export` or a table of the file to an [`ExportConfig`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _};

use super::{ConfigError, EXPORT_NAME_SIZE_MAX, Environment, ExportConfig, ExportKind, MemoryRoot, Size};
use crate::access::{AddressRange, IdentityMapping, Keyring, ServerIdentity, can_act_as, parse_id};

/// An export as a flag or a table of the file has it.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportTable {
    /// Its name.
    pub name: String,
    /// A directory.
    pub path: Option<PathBuf>,
    /// Memory of at most this size, instead of a directory; 0 for half of the machine's.
    pub memory: Option<Size>,
    /// Nothing may be changed.
    #[serde(default)]
    pub ro: bool,
    /// Only clients in these ranges may mount it: addresses, networks, or `local`.
    #[serde(default, deserialize_with = "not_empty")]
    pub clients: Vec<String>,
    /// Only clients that have proven one of these keys may mount it.
    #[serde(default, deserialize_with = "not_empty")]
    pub keys: Vec<String>,
    /// Identity mapping `client`.
    pub map: Option<String>,
    /// Identity mapping `UID:GID` or `server`.
    pub squash: Option<String>,
    /// Root by its own claim is root.
    #[serde(default)]
    pub no_root_squash: bool,
    /// Files are read and written with O_DIRECT where they are aligned for it.
    #[serde(default, alias = "direct")]
    pub direct_io: bool,
    /// Locks and those of the host's processes keep each other out.
    #[serde(default)]
    pub local_locks: bool,
    /// Root on this host gets descriptors of files that it opens.
    #[serde(default)]
    pub local_open: bool,
    /// `UID:GID` of the root of an export in memory.
    pub owner: Option<String>,
    /// Permission bits of the root of an export in memory, octal.
    pub mode: Option<String>,
}

/// Of those who may mount an export. Without a list everybody may, which an empty one does not say.
fn not_empty<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<String>, D::Error> {
    match Vec::deserialize(list)? {
        list if list.is_empty() => Err(D::Error::custom(
            "an empty list lets nobody in; leave it out to let everybody in, or leave the export out",
        )),
        list => Ok(list),
    }
}

/// Splits `NAME=DIR[,OPTION…]`. The name ends at the first `=`, the directory at the first comma.
pub(super) fn parse_flag(text: &OsStr) -> Result<ExportTable, ConfigError> {
    let shown = format!("--export {}", text.display());
    let wrong = |problem: &str, remedy: &str| ConfigError::new(&shown, problem, remedy);
    let bytes = text.as_bytes();
    let Some(equals) = bytes.iter().position(|&byte| byte == b'=') else {
        return Err(wrong(
            "the name is missing",
            "write --export NAME=DIRECTORY, such as --export data=/srv/data",
        ));
    };
    let name = std::str::from_utf8(&bytes[..equals])
        .map_err(|_| wrong("the name is not UTF-8", "choose a name of letters and digits"))?;
    let mut parts = bytes[equals + 1..].split(|&byte| byte == b',');
    let target = parts.next().unwrap_or_default();
    let mut table = ExportTable { name: name.to_owned(), ..ExportTable::default() };
    match target.strip_prefix(b"mem:") {
        Some(size) => {
            table.memory = Some(parse_memory(size).map_err(|problem| {
                wrong(&problem, "write mem: or mem:4G; for a directory of that name, ./mem:…")
            })?)
        }
        None => table.path = Some(PathBuf::from(OsStr::from_bytes(target))),
    }
    for option in parts {
        let option = String::from_utf8_lossy(option);
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (&*option, None),
        };
        let list = |value: &str| value.split(';').map(str::to_owned).collect::<Vec<_>>();
        match (key, value) {
            ("ro", None) => table.ro = true,
            ("direct_io" | "direct", None) => table.direct_io = true,
            ("local_locks", None) => table.local_locks = true,
            ("local_open", None) => table.local_open = true,
            ("clients", Some(value)) => table.clients.extend(list(value)),
            ("keys", Some(value)) => table.keys.extend(list(value)),
            ("map", Some(value)) => table.map = Some(value.to_owned()),
            ("squash", Some(value)) => table.squash = Some(value.to_owned()),
            ("no_root_squash", None) => table.no_root_squash = true,
            ("owner", Some(value)) => table.owner = Some(value.to_owned()),
            ("mode", Some(value)) => table.mode = Some(value.to_owned()),
            _ => {
                return Err(wrong(
                    &format!("unknown option \"{option}\""),
                    "the options are ro, clients=…, keys=…, map=client, squash=UID:GID, squash=server, no_root_squash, \
                     direct_io, local_locks and local_open, and of memory owner=UID:GID and mode=OCTAL; \
                     export a directory with a comma in its name from a file: --config FILE with [[export]] name = … and path = …",
                ));
            }
        }
    }
    Ok(table)
}

/// Checks an export. `place` names it in messages: the flag, or the file and table. A directory that is served is not looked at.
pub(super) fn check(
    table: ExportTable,
    place: &str,
    keys: &Keyring,
    (environment, served): (&Environment, &[ExportConfig]),
) -> Result<ExportConfig, ConfigError> {
    let wrong = |problem: &str, remedy: &str| ConfigError::new(place, problem, remedy);
    check_name(&table.name).map_err(|problem| wrong(&problem, "choose a name such as data"))?;
    let kind = match (&table.path, table.memory) {
        (Some(path), None) => ExportKind::Directory(check_directory(path, served, place)?),
        (None, Some(Size(0))) => ExportKind::Memory { size_max: environment.memory_size / 2 },
        (None, Some(size)) => {
            let most = environment.memory_size.saturating_add(environment.swap_size);
            if size.0 > most {
                let problem = format!("{size} is more memory than this machine has ({})", shown(most));
                let remedy = "write a smaller size, or none (mem:, memory = 0) for half of the memory";
                return Err(wrong(&problem, remedy));
            }
            ExportKind::Memory { size_max: size.0 }
        }
        (None, None) => {
            return Err(wrong("nothing is exported", "give path = \"/a/directory\" or memory = \"4G\""));
        }
        (Some(_), Some(_)) => {
            return Err(wrong(
                "both path and memory are given",
                "give one of them; two exports need two names",
            ));
        }
    };
    let can = kind.capabilities();
    if table.direct_io && !can.has_page_cache {
        return Err(wrong(&format!("direct_io: {kind} has no page cache to bypass"), "leave the option out"));
    }
    if table.local_locks && !can.is_seen_by_host {
        return Err(wrong(
            &format!("local_locks: processes of this host do not see {kind}"),
            "leave the option out",
        ));
    }
    if table.local_open && !can.is_seen_by_host {
        return Err(wrong(&format!("local_open: {kind} has no descriptors"), "leave the option out"));
    }
    if table.local_open && table.direct_io {
        return Err(wrong("both direct_io and local_open are given", "give one of them"));
    }
    if table.keys.iter().any(String::is_empty) {
        return Err(wrong("keys: a name is empty", "write keys=NAME[;NAME...], or leave it out"));
    }
    let root = check_root(&table, &kind, &environment.server, place)?;
    let squash = check_mapping(&table, &kind, &environment.server, place)?;
    let clients = table.clients.iter().map(|range| range.parse::<AddressRange>());
    let clients = clients.collect::<Result<_, _>>().map_err(|error| {
        let remedy = "several are separated by semicolons in --export, and a list in the file";
        wrong(&format!("clients: {error}"), remedy)
    })?;
    if let Some(unknown) = table.keys.iter().find(|name| keys.entry(name).is_none()) {
        let problem = format!("keys: unknown key \"{unknown}\"");
        let remedy = format!(
            "make it with `(umask 077; dafs-server keygen {unknown} >> FILE)`, and give --key-file FILE"
        );
        return Err(wrong(&problem, &remedy));
    }
    Ok(ExportConfig {
        name: table.name,
        kind,
        read_only: table.ro,
        clients,
        keys: table.keys,
        squash,
        no_root_squash: table.no_root_squash,
        direct_io: table.direct_io,
        local_locks: table.local_locks,
        local_open: table.local_open,
        root,
    })
}

/// The root of an export in memory: that of an unprivileged server is its user's, as all of its files are; a privileged one serves anybody.
fn check_root(
    table: &ExportTable,
    kind: &ExportKind,
    server: &ServerIdentity,
    place: &str,
) -> Result<MemoryRoot, ConfigError> {
    let wrong = |problem: &str, remedy: &str| Err(ConfigError::new(place, problem, remedy));
    if !kind.capabilities().makes_root {
        return match table.owner.is_some() || table.mode.is_some() {
            true => wrong(
                "owner and mode are for memory: a directory has its own",
                "set them with chown and chmod",
            ),
            false => Ok(MemoryRoot::default()),
        };
    }
    let mut root = match server.privileged {
        true => MemoryRoot::default(),
        false => MemoryRoot { uid: server.identity.uid, gid: server.identity.gid, mode: 0o755 },
    };
    if let Some(text) = &table.owner {
        let Some((uid, gid)) = parse_ids(text) else {
            return wrong(
                &format!("owner={text} is not a user and a group"),
                "write numbers such as owner=1000:1000",
            );
        };
        (root.uid, root.gid) = (uid, gid);
    }
    if let Some(text) = &table.mode {
        let digits = text.bytes().all(|digit| digit.is_ascii_digit());
        match u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o7777) {
            Some(mode) => root.mode = mode,
            None => {
                return wrong(
                    &format!("mode={text} is not a mode"),
                    "write permission bits in octal, such as mode=755",
                );
            }
        }
    }
    Ok(root)
}

/// `UID:GID`.
fn parse_ids(text: &str) -> Option<(u32, u32)> {
    text.split_once(':').and_then(|(uid, gid)| Some((parse_id(uid)?, parse_id(gid)?)))
}

/// A size that nobody chose: in whole MiB, where it has some.
fn shown(size: u64) -> Size {
    Size(if size >= 1 << 20 { size >> 20 << 20 } else { size })
}

fn parse_memory(size: &[u8]) -> Result<Size, String> {
    match std::str::from_utf8(size) {
        Ok("") => Ok(Size(0)),
        Ok(text) => match text.parse()? {
            Size(0) => Err("an export in memory needs a size above 0".to_owned()),
            size => Ok(size),
        },
        Err(_) => Err("the size is not a number".to_owned()),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        Err("the name is empty".to_owned())
    } else if name.len() > EXPORT_NAME_SIZE_MAX {
        Err(format!("the name has {} bytes, {EXPORT_NAME_SIZE_MAX} are allowed", name.len()))
    } else if name.contains('/') || name.chars().any(char::is_control) || name == "." || name == ".." {
        Err(format!("the name {name:?} cannot be part of an address"))
    } else {
        Ok(())
    }
}

/// The directory, absolute: it stays right when the process changes its own.
fn check_directory(path: &Path, served: &[ExportConfig], place: &str) -> Result<PathBuf, ConfigError> {
    let wrong = |problem: &str, remedy: &str| Err(ConfigError::new(place, problem, remedy));
    if let Ok(path) = std::path::absolute(path).map(ExportKind::Directory)
        && let Some(export) = served.iter().find(|export| export.kind == path)
        && let ExportKind::Directory(path) = &export.kind
    {
        return Ok(path.clone());
    }
    if path.as_os_str().is_empty() {
        return wrong("the directory is empty", "write NAME=DIRECTORY, NAME=mem: or NAME=mem:4G");
    }
    let shown = path.display();
    let missing = format!("{shown}: No such file or directory");
    // A path in a table is nothing but a path.
    if !path.exists() && path.as_os_str().as_bytes().starts_with(b"mem:") {
        return wrong(&missing, "for memory write memory = \"4G\" instead of path");
    }
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => std::path::absolute(path)
            .or_else(|error| wrong(&format!("{shown}: {error}"), "give an absolute path")),
        Ok(_) => wrong(&format!("{shown}: Not a directory"), "export the directory it is in"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            wrong(&missing, &format!("make it with `mkdir -p {shown}`, or correct the path"))
        }
        Err(error) => wrong(&format!("{shown}: {error}"), "let the server's user reach the directory"),
    }
}

fn check_mapping(
    table: &ExportTable,
    kind: &ExportKind,
    server: &ServerIdentity,
    place: &str,
) -> Result<IdentityMapping, ConfigError> {
    let wrong = |problem: &str, remedy: &str| Err(ConfigError::new(place, problem, remedy));
    let mapping = match (table.map.as_deref(), table.squash.as_deref()) {
        (None, None) => IdentityMapping::Auto,
        (Some("client"), None) => IdentityMapping::Client,
        (None, Some("server")) => IdentityMapping::Server,
        (None, Some(text)) => {
            let Some((uid, gid)) = parse_ids(text) else {
                let remedy = "write numbers such as squash=1000:1000, or squash=server";
                return wrong(&format!("squash={text} is not a user and a group"), remedy);
            };
            IdentityMapping::Fixed { uid, gid }
        }
        (Some(other), None) => {
            return wrong(&format!("unknown mapping map={other}"), "write map=client, or leave it out");
        }
        (Some(_), Some(_)) => return wrong("both map and squash are given", "choose one of them"),
    };
    match can_act_as(mapping, kind, server) {
        true => Ok(mapping),
        false => wrong(
            "this server is not privileged: it cannot act as other users",
            "run it as root (or with CAP_SETUID and CAP_SETGID) if the kernel lets it call setgroups, or write squash=server",
        ),
    }
}
