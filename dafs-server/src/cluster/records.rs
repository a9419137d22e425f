//! What stands in the coordination store, and under which keys. Values are JSON, so that an operator can read them; bytes of names are
//! hexadecimal.

use std::fmt::Write as _;

use dafs_proto::wire::{OutcomeReply, SessionId};
use serde::{Deserialize, Serialize};

use super::coordination::Entry;
use super::host::Process;
use crate::storage::{FileName, OpenPlace, Place};

/// The form of all keys and values.
pub(super) const FORM: u32 = 1;

/// Which server of a cluster, by number: never given twice.
pub(crate) type ServerNumber = u32;

/// Bits of a session's name that are random; those above are the number of the server that opened it.
const SESSION_RANDOM_BITS: u32 = 40;

/// Numbers of servers end below this.
pub(super) const SERVER_NUMBERS: u64 = 1 << (64 - SESSION_RANDOM_BITS);

/// A session's name, of a server.
pub(crate) fn session_of(server: ServerNumber, random: u64) -> SessionId {
    SessionId(u64::from(server) << SESSION_RANDOM_BITS | random & ((1 << SESSION_RANDOM_BITS) - 1))
}

/// The server that opened a session.
pub(crate) fn server_of(session: SessionId) -> ServerNumber {
    ServerNumber::try_from(session.0 >> SESSION_RANDOM_BITS).unwrap_or(0)
}

/// Keys of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn of(cluster: &str) -> Self {
        Self { prefix: format!("/dafs/{cluster}/") }
    }

    fn key(&self, rest: std::fmt::Arguments<'_>) -> String {
        let mut key = self.prefix.clone();
        // Writing into a string does not fail.
        let _ = key.write_fmt(rest);
        key
    }

    pub(super) fn form(&self) -> String {
        self.key(format_args!("form"))
    }

    pub(super) fn last_server(&self) -> String {
        self.key(format_args!("last-server"))
    }

    pub(super) fn export(&self, name: &str) -> String {
        self.key(format_args!("exports/{name}"))
    }

    /// All that every server looks at several times a second.
    pub(super) fn live(&self) -> String {
        self.key(format_args!("live/"))
    }

    pub(super) fn live_server(&self, server: ServerNumber) -> String {
        self.key(format_args!("live/servers/{server:08}"))
    }

    pub(super) fn member(&self, server: ServerNumber) -> String {
        self.key(format_args!("live/members/{server:08}"))
    }

    pub(super) fn takeover(&self, server: ServerNumber) -> String {
        self.key(format_args!("live/takeovers/{server:08}"))
    }

    pub(super) fn cut_off(&self, server: ServerNumber) -> String {
        self.key(format_args!("live/cut-off/{server:08}"))
    }

    pub(super) fn gone(&self, server: ServerNumber) -> String {
        self.key(format_args!("live/gone/{server:08}"))
    }

    pub(super) fn fence(&self, export: &str) -> String {
        self.key(format_args!("live/fences/{export}"))
    }

    /// Which revision of an export's fence a server has put into effect.
    pub(super) fn fence_applied(&self, server: ServerNumber, export: &str) -> String {
        self.key(format_args!("live/applied/{server:08}/{export}"))
    }

    /// All that servers which start ask of the others.
    pub(super) fn checks(&self) -> String {
        self.key(format_args!("live/checks/"))
    }

    /// What a server that starts asks of the others.
    pub(super) fn check(&self, asker: ServerNumber) -> String {
        self.key(format_args!("live/checks/{asker:08}"))
    }

    /// What a server has answered to that.
    pub(super) fn checked(&self, asker: ServerNumber, server: ServerNumber) -> String {
        self.key(format_args!("checked/{asker:08}/{server:08}"))
    }

    /// All that was answered.
    pub(super) fn all_checked(&self, asker: ServerNumber) -> String {
        self.key(format_args!("checked/{asker:08}/"))
    }

    pub(super) fn sessions(&self, server: ServerNumber) -> String {
        self.key(format_args!("sessions/{server:08}/"))
    }

    pub(super) fn session(&self, session: SessionId) -> String {
        self.key(format_args!("sessions/{:08}/{:016x}", server_of(session), session.0))
    }

    /// Of all sessions of a server.
    pub(super) fn server_slots(&self, server: ServerNumber) -> String {
        self.key(format_args!("slots/{server:08}/"))
    }

    pub(super) fn slots(&self, session: SessionId) -> String {
        self.key(format_args!("slots/{:08}/{:016x}/", server_of(session), session.0))
    }

    pub(super) fn slot(&self, session: SessionId, slot: u32) -> String {
        self.key(format_args!("slots/{:08}/{:016x}/{slot:06}", server_of(session), session.0))
    }

    /// Written with all that a server tells of the ends of operations.
    pub(super) fn endings(&self, server: ServerNumber) -> String {
        self.key(format_args!("endings/{server:08}"))
    }

    pub(super) fn locks(&self) -> String {
        self.key(format_args!("locks/"))
    }

    pub(super) fn lock(&self, file: FileName) -> String {
        self.key(format_args!("locks/{:016x}-{:016x}", file.file, file.generation))
    }

    /// Marks of all servers: their clients deny opens of some files.
    pub(super) fn denies(&self) -> String {
        self.key(format_args!("live/denies/"))
    }

    /// Those of one server.
    pub(super) fn server_denies(&self, server: ServerNumber) -> String {
        self.key(format_args!("live/denies/{server:08}/"))
    }

    /// That of a server for files of a bucket.
    pub(super) fn deny(&self, server: ServerNumber, bucket: u16) -> String {
        self.key(format_args!("live/denies/{server:08}/{bucket:03}"))
    }

    /// Up to which mark servers have told of their opens.
    pub(super) fn all_told(&self) -> String {
        self.key(format_args!("told/"))
    }

    pub(super) fn told(&self, server: ServerNumber) -> String {
        self.key(format_args!("told/{server:08}"))
    }

    /// Who has files open.
    pub(super) fn opens(&self) -> String {
        self.key(format_args!("opens/"))
    }

    pub(super) fn open(&self, file: FileName) -> String {
        self.key(format_args!("opens/{:016x}-{:016x}", file.file, file.generation))
    }

    /// The servers that are members, by the keys of these entries.
    pub(super) fn members_in(&self, entries: &[Entry]) -> impl Iterator<Item = ServerNumber> {
        let prefix = self.key(format_args!("live/members/"));
        entries.iter().filter_map(move |entry| entry.key.strip_prefix(&prefix)?.parse().ok())
    }

    /// All that a server has said of fences.
    pub(super) fn fences_applied(&self, server: ServerNumber) -> String {
        self.key(format_args!("live/applied/{server:08}/"))
    }

    /// The file of such a key.
    pub(super) fn file_of_lock(&self, key: &str) -> Option<FileName> {
        let (file, generation) = key.strip_prefix(&self.locks())?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(FileName { file: number(file)?, generation: number(generation)? })
    }

    fn object(&self, what: &str, object: &Object) -> String {
        match object {
            Object::End(file) => {
                self.key(format_args!("{what}/ends/{:016x}-{:016x}", file.file, file.generation))
            }
            Object::Name(parent, name) => {
                let (file, generation, name) = (parent.file, parent.generation, hex(name));
                self.key(format_args!("{what}/names/{file:016x}-{generation:016x}/{name}"))
            }
        }
    }

    /// An operation on an object is under way; the value names its slot.
    pub(super) fn pending(&self, object: &Object) -> String {
        self.object("pending", object)
    }

    /// All of these.
    pub(super) fn all_pending(&self) -> String {
        self.key(format_args!("pending/"))
    }

    /// What tells of the end of an operation, by the key that says that it is under way.
    pub(super) fn seen_of(&self, pending: &str) -> Option<String> {
        let rest = pending.strip_prefix(&self.all_pending())?;
        Some(self.key(format_args!("seen/{rest}")))
    }

    /// An operation on an object has ended lately.
    pub(super) fn seen(&self, object: &Object) -> String {
        self.object("seen", object)
    }
}

/// What one operation at a time may change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Object {
    /// Where a file ends.
    End(FileName),
    /// What has a name in a directory.
    Name(FileName, Vec<u8>),
}

/// The form of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Form {
    pub(super) form: u32,
    /// Tells this cluster from others of its name: hexadecimal.
    pub(super) cluster: String,
}

/// A server that serves, or has served and was not taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// For people and the fence command.
    pub(crate) name: String,
    /// Where its clients find it.
    pub(crate) addresses: Vec<String>,
    /// The boot of its host, its process namespace, process and when that began: whoever shares the first two can see whether it is gone.
    pub(crate) boot: String,
    pub(crate) namespace: String,
    pub(crate) pid: u32,
    pub(crate) pid_began: u64,
    /// What the fence command is told besides.
    pub(crate) detail: String,
    /// Its clients of Ceph, if all that it exports is on CephFS.
    #[serde(default)]
    pub(super) ceph: Vec<CephClient>,
}

impl Member {
    /// For whoever is on its host.
    pub(crate) fn process(&self) -> Process {
        let (boot, namespace) = (self.boot.clone(), self.namespace.clone());
        Process { boot, namespace, pid: self.pid, began: self.pid_began }
    }
}

/// A client of a Ceph: a mount of one of its file systems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CephClient {
    /// The id of the Ceph.
    pub(super) cluster: String,
    pub(super) client: u64,
}

/// The last operation of a slot whose repetition would do harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlotRecord {
    pub(super) sequence: u32,
    pub(super) intent: Intent,
    pub(super) reply: Option<Reply>,
}

/// What is about to be done, with what will tell whether it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Intent {
    /// Data goes to the end of a file.
    Append { export: String, file: OpenAt, len: u64, sum: String },
    /// A name that nothing has is given to something.
    Make { export: String, at: NameAt },
    /// A name is taken away.
    Remove { export: String, at: NameAt },
    /// Something gets another name.
    Rename { export: String, from: NameAt, to: NameAt },
    /// A file gets one more name; `replaces`: that may have been another's.
    Link { export: String, file: FileAt, to: NameAt, replaces: bool },
    /// Two things change their names.
    Exchange { export: String, from: NameAt, to: NameAt },
    /// Nothing tells whether it was done.
    Other,
}

/// What an operation was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) status: u32,
    pub(super) offset: u64,
    pub(super) payload: String,
}

impl Reply {
    pub(super) fn of(status: u32, offset: u64, payload: &[u8]) -> Self {
        Self { status, offset, payload: hex(payload) }
    }

    /// As a client is told.
    pub(super) fn told(&self) -> Option<OutcomeReply> {
        let payload = unhex(&self.payload)?;
        Some(OutcomeReply { status: self.status, offset: self.offset, payload })
    }
}

/// A [`FileName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileAt(u64, u64);

impl From<FileName> for FileAt {
    fn from(file: FileName) -> Self {
        Self(file.file, file.generation)
    }
}

impl From<FileAt> for FileName {
    fn from(FileAt(file, generation): FileAt) -> Self {
        Self { file, generation }
    }
}

/// A [`Place`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NameAt {
    directory: String,
    parent: FileAt,
    name: String,
    found: Option<FileAt>,
}

impl From<&Place> for NameAt {
    fn from(place: &Place) -> Self {
        Self {
            directory: hex(&place.parent_path),
            parent: place.parent.into(),
            name: hex(&place.name),
            found: place.found.map(FileAt::from),
        }
    }
}

impl NameAt {
    pub(super) fn place(&self) -> Option<Place> {
        Some(Place {
            parent_path: unhex(&self.directory)?,
            parent: self.parent.into(),
            name: unhex(&self.name)?,
            found: self.found.map(FileName::from),
        })
    }
}

/// An [`OpenPlace`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenAt {
    path: String,
    file: FileAt,
    size: u64,
}

impl From<&OpenPlace> for OpenAt {
    fn from(place: &OpenPlace) -> Self {
        Self { path: hex(&place.path), file: place.file.into(), size: place.size }
    }
}

impl OpenAt {
    pub(super) fn place(&self) -> Option<OpenPlace> {
        Some(OpenPlace { path: unhex(&self.path)?, file: self.file.into(), size: self.size })
    }
}

impl Intent {
    /// What it changes, so that nobody else may meanwhile.
    pub(super) fn objects(&self) -> Vec<Object> {
        let name = |at: &NameAt| at.place().map(|place| Object::Name(place.parent, place.name));
        let objects = match self {
            Self::Append { file, .. } => vec![Some(Object::End(file.file.into()))],
            Self::Make { at, .. } | Self::Remove { at, .. } => vec![name(at)],
            Self::Rename { from, to, .. } | Self::Exchange { from, to, .. } => vec![name(from), name(to)],
            Self::Link { to, .. } => vec![name(to)],
            Self::Other => Vec::new(),
        };
        let mut objects: Vec<Object> = objects.into_iter().flatten().collect();
        objects.sort();
        objects.dedup();
        objects
    }
}

pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("records have text keys only")
}

pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

/// Bytes as text.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing into a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let is_byte = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
        let pair = std::str::from_utf8(pair).ok().filter(|_| is_byte)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_tells_its_server() {
        for server in [0, 1, 0x00ff_ffff] {
            for random in [0, 1, u64::MAX] {
                assert_eq!(server_of(session_of(server, random)), server);
            }
        }
    }

    #[test]
    fn bytes_come_back_from_their_text() {
        for bytes in [&b""[..], b"\0\xff\n", b"name"] {
            assert_eq!(unhex(&hex(bytes)).as_deref(), Some(bytes));
        }
        for text in ["0", "0g", "+1", "00 "] {
            assert_eq!(unhex(text), None, "{text}");
        }
    }
}
