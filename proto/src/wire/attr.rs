use serde::{Deserialize, Serialize};

use super::{NAME_SIZE_MAX, Reader, WireError, Writer};

/// The largest value of an extended attribute, bytes (Linux's own limit).
pub const XATTR_VALUE_SIZE_MAX: usize = 64 * 1024;

/// What a directory entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A FIFO.
    Fifo,
    /// A unix socket.
    Socket,
}

/// A time since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after them, below 10⁹.
    pub nanoseconds: u32,
}

/// Attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, 0o7777 at most.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of data.
    pub size: u64,
    /// Bytes of storage in use: less than `size` for sparse files.
    pub allocated: u64,
    /// Identity of the file in its file system (inode number).
    pub file_id: u64,
    /// Identity of its file system.
    pub fs_id: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the attributes.
    pub ctime: Timestamp,
    /// Device number, for devices.
    pub device: u64,
    /// Tells apart files that have had the same `file_id`, one after the other; 0 where the file system does not.
    pub generation: u64,
    /// Differs after each change of the data or of the attributes, and of a directory of its names; later ones are greater, unless the
    /// server's clock is set back.
    pub change: u64,
}

impl Attributes {
    /// What names the file for as long as it exists, whatever happens to servers and names.
    pub fn identity(&self) -> FileIdentity {
        FileIdentity { file_id: self.file_id, generation: self.generation }
    }
}

/// Names a file among all that its export has ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// [`Attributes::file_id`].
    pub file_id: u64,
    /// [`Attributes::generation`].
    pub generation: u64,
}

impl FileIdentity {
    /// Both certainly name the same file. Nothing is certain without a generation: a number alone is given to other files.
    pub fn is_same(&self, other: &Self) -> bool {
        self == other && self.generation != 0
    }
}

/// How a time is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// To the server's clock.
    Now,
    /// To this.
    At(Timestamp),
}

/// Attributes to change; `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
}

/// Space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsStatistics {
    /// Size of a block, bytes.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Blocks free for unprivileged users.
    pub blocks_available: u64,
    /// Files in all.
    pub files: u64,
    /// Files free.
    pub files_free: u64,
    /// Longest name, bytes.
    pub name_size_max: u32,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Where to resume after this entry.
    pub cookie: u64,
    /// The name: bytes, not text.
    pub name: Vec<u8>,
    /// Its attributes; `None` when it vanished meanwhile, or they were not asked for.
    pub attributes: Option<Attributes>,
}

/// Appends an entry to a buffer: cookie u64, name (u16 length, bytes), attributes (u16 length, MessagePack; length 0 for none).
pub fn encode_dir_entry(entry: &DirEntry, out: &mut Vec<u8>) {
    let attributes = entry.attributes.as_ref().map(super::encode_message_pack).unwrap_or_default();
    let start = out.len();
    out.resize(start + 8 + 2 + entry.name.len() + 2 + attributes.len(), 0);
    Writer::new(&mut out[start..]).u64(entry.cookie).prefixed(&entry.name).prefixed(&attributes);
}

/// Reads the entries of a readdir's data.
pub fn decode_dir_entries(bytes: &[u8]) -> Result<Vec<DirEntry>, WireError> {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    while reader.remaining() > 0 {
        let cookie = reader.u64("cookie")?;
        let name = reader.prefixed("name", NAME_SIZE_MAX)?.to_vec();
        let attributes = match reader.prefixed("attributes", 512)? {
            [] => None,
            bytes => Some(super::decode_message_pack("attributes", bytes)?),
        };
        entries.push(DirEntry { cookie, name, attributes });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_a_generation_is_certainly_no_other() {
        let file = FileIdentity { file_id: 3, generation: 7 };
        assert!(file.is_same(&file));
        assert!(!file.is_same(&FileIdentity { generation: 8, ..file }));
        let nameless = FileIdentity { generation: 0, ..file };
        assert!(!nameless.is_same(&nameless));
    }
}
