use serde::{Deserialize, Serialize};

use super::{HEADER_SIZE, NAME_SIZE_MAX, PATH_SIZE_MAX, Reader, WireError, Writer};
use crate::wire::readwrite::WireRange;

bitflags::bitflags! {
    /// What access is asked for, as access(2) has it; nothing asks only whether something is there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AccessMode: u32 {
        /// To execute a file, or to search a directory.
        const EXECUTE = 0x1;
        /// To change it.
        const WRITE = 0x2;
        /// To read it.
        const READ = 0x4;
    }
}

bitflags::bitflags! {
    /// How a file is opened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u32 {
        /// Data may be read.
        const READ = 0x01;
        /// Data may be written.
        const WRITE = 0x02;
        /// Made when it is not there.
        const CREATE = 0x04;
        /// With `CREATE`: it must not be there.
        const EXCLUSIVE = 0x08;
        /// Cut to no bytes.
        const TRUNCATE = 0x10;
        /// A symbolic link at the end of the path is not followed, but an error.
        const NO_FOLLOW = 0x20;
        /// It must be a directory.
        const DIRECTORY = 0x40;
        /// Bypass the server's page cache, where its storage can.
        const DIRECT_IO = 0x80;
    }
}

/// Body of an open, 8 bytes; the payload is the path below the header's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// How.
    pub flags: OpenFlags,
    /// Permission bits of a file that is made.
    pub mode: u32,
}

impl OpenRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u32(self.flags.bits()).u32(self.mode);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let bits = reader.u32("open flags")?;
        let flags = OpenFlags::from_bits(bits)
            .ok_or(WireError::Invalid { what: "open flags", value: u64::from(bits) })?;
        let mode = mode(&mut reader)?;
        reader.finish("open request")?;
        Ok(Self { flags, mode })
    }
}

/// Body of a request about one name, 8 bytes: lookup, getattr, mkdir, readlink, extended attributes. The payload is
/// the path below the header's handle (for extended attributes: the path with a 16-bit length, the attribute's name
/// with a 16-bit length, the value).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRequest {
    /// A symbolic link at the end of the path is followed.
    pub follow: bool,
    /// Permission bits, where something is made; else 0.
    pub mode: u32,
}

impl NameRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u32(u32::from(self.follow)).u32(self.mode);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let follow = boolean(&mut reader, "follow")?;
        let mode = mode(&mut reader)?;
        reader.finish("name request")?;
        Ok(Self { follow, mode })
    }
}

/// Body of a remove, 8 bytes; the payload is the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveRequest {
    /// It must be an empty directory; else it must not be a directory.
    pub directory: bool,
}

impl RemoveRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u32(u32::from(self.directory)).reserved(4);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let directory = boolean(&mut reader, "directory")?;
        reader.reserved("reserved remove bytes", 4)?;
        reader.finish("remove request")?;
        Ok(Self { directory })
    }
}

/// Payload of rename and link (old path, new path) and symlink (target, new path): each with a 16-bit length. The
/// body of rename and link is the handle that the second path starts from (u64) and, for rename, whether an existing
/// name may be replaced (u32) and 4 reserved bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwoNames<'a> {
    /// The first path, or the target of a symbolic link.
    pub first: &'a [u8],
    /// The second path.
    pub second: &'a [u8],
}

impl<'a> TwoNames<'a> {
    /// Bytes of the payload.
    pub fn size(&self) -> usize {
        4 + self.first.len() + self.second.len()
    }

    /// Writes the payload; both names have been checked against [`PATH_SIZE_MAX`].
    pub fn encode(&self, payload: &mut [u8]) {
        Writer::new(payload).prefixed(self.first).prefixed(self.second);
    }

    /// Reads the payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let first = reader.prefixed("first path", PATH_SIZE_MAX)?;
        let second = reader.prefixed("second path", PATH_SIZE_MAX)?;
        reader.finish("two names")?;
        Ok(Self { first, second })
    }
}

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrSetMode {
    /// Made or replaced.
    #[default]
    Any,
    /// It must not be there.
    Create,
    /// It must be there.
    Replace,
}

/// Body of a readdir, 48 bytes: the cookie to resume after (0 from the beginning), then as in a read. Inline, `len`
/// bounds the payload of the reply; direct, the ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaddirRequest {
    /// Resume after the entry with this cookie.
    pub cookie: u64,
    /// Bytes of encoded entries wanted at most.
    pub len: u32,
    /// The range for the entries; a zero length for inline.
    pub segment: WireRange,
    /// With attributes.
    pub attributes: bool,
}

impl ReaddirRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 40;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        let mut writer = Writer::new(body);
        writer.u64(self.cookie).u32(self.len).u32(u32::from(self.attributes));
        for word in self.segment {
            writer.u64(word);
        }
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let cookie = reader.u64("readdir cookie")?;
        let len = reader.u32("readdir length")?;
        let attributes = boolean(&mut reader, "attributes wanted")?;
        let segment =
            [reader.u64("segment key")?, reader.u64("segment offset")?, reader.u64("segment length")?];
        reader.finish("readdir request")?;
        Ok(Self { cookie, len, segment, attributes })
    }
}

/// Body of a readdir's reply, 16 bytes. The entries are the payload (inline) or in the client's memory (direct).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaddirReply {
    /// Bytes of encoded entries.
    pub count: u32,
    /// No entries follow.
    pub end: bool,
    /// Cookie of the last entry returned.
    pub cookie: u64,
}

impl ReaddirReply {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 16;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u32(self.count).u32(u32::from(self.end)).u64(self.cookie);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let count = reader.u32("readdir count")?;
        let end = boolean(&mut reader, "end of directory")?;
        let cookie = reader.u64("readdir cookie")?;
        reader.finish("readdir reply")?;
        Ok(Self { count, end, cookie })
    }
}

/// Body of truncate (offset = new size, len = 0), allocate and punch, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocateRequest {
    /// First byte, or the new size.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl AllocateRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 16;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u64(self.offset).u64(self.len);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let request = Self { offset: reader.u64("offset")?, len: reader.u64("length")? };
        reader.finish("range request")?;
        Ok(request)
    }
}

/// What a seek looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekWhat {
    /// The next data.
    Data,
    /// The next hole; the end of the file is one.
    Hole,
}

/// Body of a seek, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekRequest {
    /// Where to begin.
    pub offset: u64,
    /// What to look for.
    pub what: SeekWhat,
}

impl SeekRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 16;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u64(self.offset).u32(u32::from(self.what == SeekWhat::Hole)).reserved(4);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let offset = reader.u64("seek offset")?;
        let what = if boolean(&mut reader, "seek what")? { SeekWhat::Hole } else { SeekWhat::Data };
        reader.reserved("reserved seek bytes", 4)?;
        reader.finish("seek request")?;
        Ok(Self { offset, what })
    }
}

/// Body of a seek's reply, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekReply {
    /// Where it is.
    pub offset: u64,
}

impl SeekReply {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 8;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u64(self.offset);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let reply = Self { offset: reader.u64("seek offset")? };
        reader.finish("seek reply")?;
        Ok(reply)
    }
}

/// Body of a hint, 24 bytes. Hints are numbers because unknown ones are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintRequest {
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for all that follow.
    pub len: u64,
    /// Access pattern: 0 normal, 1 sequential, 2 random, 3 will need, 4 will not need.
    pub pattern: u32,
}

impl HintRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 24;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u64(self.offset).u64(self.len).u32(self.pattern).reserved(4);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let request = Self {
            offset: reader.u64("hint offset")?,
            len: reader.u64("hint length")?,
            pattern: reader.u32("pattern")?,
        };
        reader.reserved("reserved hint bytes", 4)?;
        reader.finish("hint request")?;
        Ok(request)
    }
}

fn boolean(reader: &mut Reader<'_>, what: &'static str) -> Result<bool, WireError> {
    match reader.u32(what)? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(WireError::Invalid { what, value: u64::from(value) }),
    }
}

fn mode(reader: &mut Reader<'_>) -> Result<u32, WireError> {
    match reader.u32("mode")? {
        mode if mode <= 0o7777 => Ok(mode),
        mode => Err(WireError::Invalid { what: "mode", value: u64::from(mode) }),
    }
}

/// Payload of requests about an extended attribute: path and name with 16-bit lengths, then the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrNames<'a> {
    /// Path below the header's handle.
    pub path: &'a [u8],
    /// Name of the attribute; empty to list.
    pub name: &'a [u8],
    /// Its value, where it is set.
    pub value: &'a [u8],
}

impl<'a> XattrNames<'a> {
    /// Bytes of the payload.
    pub fn size(&self) -> usize {
        4 + self.path.len() + self.name.len() + self.value.len()
    }

    /// Writes the payload; the names have been checked.
    pub fn encode(&self, payload: &mut [u8]) {
        Writer::new(payload).prefixed(self.path).prefixed(self.name).bytes(self.value);
    }

    /// Reads the payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let path = reader.prefixed("path", PATH_SIZE_MAX)?;
        let name = reader.prefixed("attribute name", NAME_SIZE_MAX)?;
        Ok(Self { path, name, value: reader.rest() })
    }
}

/// Body of rename and link, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenameRequest {
    /// Where the second path starts.
    pub second_handle: u64,
    /// An existing name may be replaced (rename only).
    pub replace: bool,
}

impl RenameRequest {
    /// Bytes of the head.
    pub const HEAD_SIZE: usize = HEADER_SIZE + 16;

    /// Writes the body.
    pub fn encode(&self, body: &mut [u8]) {
        Writer::new(body).u64(self.second_handle).u32(u32::from(self.replace)).reserved(4);
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        let second_handle = reader.u64("second handle")?;
        let replace = boolean(&mut reader, "replace")?;
        reader.reserved("reserved rename bytes", 4)?;
        reader.finish("rename request")?;
        Ok(Self { second_handle, replace })
    }
}
