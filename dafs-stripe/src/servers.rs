//! The servers that a volume lies over: the file in its root that names them.

use dafs_client::Url;

use crate::names::{NAME_SIZE_MAX, StripeId, is_name};

/// The file in the root of an export that names its data servers.
pub const SERVERS_FILE: &str = ".dafs-servers";

/// The directory of a data server that has the pieces.
pub(crate) const PIECES_DIRECTORY: &str = ".dafs-pieces";

/// The file there that has the identity of the server.
pub(crate) const IDENTITY_FILE: &str = "identity";

/// Bytes of the servers file at most.
pub(crate) const SERVERS_FILE_SIZE_MAX: u64 = 64 * 1024;

/// Servers of a volume at most.
const SERVERS_MAX: usize = 256;

/// What begins the file, for people.
const HEAD: &str = "# Data servers of this export: name, identity, address. `dafs stripe add` adds one.\n";

/// Where pieces may be, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerTable {
    pub(crate) rows: Vec<ServerRow>,
}

/// A data server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRow {
    /// As layouts name it: 1 to 32 of `a-z`, `0-9`, `-`.
    pub name: String,
    pub(crate) identity: StripeId,
    /// Where it is: an export, and perhaps a directory in it.
    pub url: Url,
}

impl ServerTable {
    /// Reads the file; the error is a cause.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
        let mut rows: Vec<ServerRow> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let row = parse_row(line).map_err(|cause| format!("line {number}: {cause}"))?;
            if rows.iter().any(|other| other.name == row.name || other.identity == row.identity) {
                return Err(format!("line {number}: {} or its identity is there twice", row.name));
            }
            rows.push(row);
        }
        match rows.len() > SERVERS_MAX {
            true => Err(format!("it names more than {SERVERS_MAX} servers")),
            false => Ok(Self { rows }),
        }
    }

    pub(crate) fn encode(&self) -> String {
        let line = |row: &ServerRow| format!("{} {} {}\n", row.name, row.identity, row.url);
        self.rows.iter().map(line).fold(HEAD.to_owned(), |text, line| text + &line)
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.rows.iter().position(|row| row.name == name)
    }
}

fn parse_row(line: &str) -> Result<ServerRow, String> {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    let [name, identity, url] = words[..] else {
        return Err("it has a name, an identity and an address".to_owned());
    };
    if !is_name(name) {
        return Err(format!("{name:?} is no name: 1 to {NAME_SIZE_MAX} of a-z, 0-9 and -"));
    }
    let identity = StripeId::parse(identity).ok_or_else(|| format!("{identity:?} is no identity"))?;
    let url = Url::parse(url.as_ref()).map_err(|error| error.to_string())?;
    match url.export {
        Some(_) => Ok(ServerRow { name: name.to_owned(), identity, url }),
        None => Err(format!("{url} names no export")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const A: &str = "0000000000000000000000000000000a";
    const B: &str = "0000000000000000000000000000000b";

    // [STRIPE-1]
    #[test]
    fn servers_file_is_read_as_it_was_written() {
        let text = format!(
            "# servers\n\nio1 {A} dafs://one/data\nio2 {B} dafs+tcp://two:1234/data/some directory\n"
        );
        let table = ServerTable::parse(text.as_bytes()).unwrap();
        assert_eq!(table.rows.len(), 2);
        assert_eq!(table.rows[1].url.path, b"some directory");
        assert_eq!(ServerTable::parse(table.encode().as_bytes()), Ok(table.clone()));
        assert_eq!(table.position("io2"), Some(1));
    }

    // [STRIPE-1]
    #[test]
    fn servers_file_with_one_wrong_line_is_refused_whole() {
        for (wrong, word) in [
            ("io1", "line 2"),
            (&format!("io1 {A}"), "line 2"),
            (&format!("io1 {} dafs://one/data", &A[1..]), "identity"),
            (&format!("IO {A} dafs://one/data"), "no name"),
            (&format!("io1 {A} one/data"), "line 2"),
            (&format!("io1 {A} dafs://one"), "no export"),
            (&format!("good {A} dafs://one/data"), "twice"),
            (&format!("other {B} dafs://one/data"), "twice"),
        ] {
            let text = format!("good {B} dafs://host/data\n{wrong}\n");
            let cause = ServerTable::parse(text.as_bytes()).unwrap_err();
            assert!(cause.contains(word), "{wrong}: {cause}");
        }
        assert!(ServerTable::parse(&[0xff]).is_err());
        let many: String = (0..257).map(|n| format!("s{n} {n:032x} dafs://h/d\n")).collect();
        assert!(ServerTable::parse(many.as_bytes()).unwrap_err().contains("256"));
    }
}
