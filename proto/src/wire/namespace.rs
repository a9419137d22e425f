use serde::{Deserialize, Serialize};

use super::body::{body, field_by_number};
use super::{NAME_SIZE_MAX, Opcode, PATH_SIZE_MAX, Reader, WireError, WireRange, Writer};

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
        /// Fails where another open reads the file, and keeps others from opening it to read.
        const DENY_READ = 0x100;
        /// Fails where another open writes the file, and keeps others from opening it to write.
        const DENY_WRITE = 0x200;
        /// Makes a file without a name in the directory that the path leads to.
        const UNNAMED = 0x400;
    }
}

field_by_number!(OpenFlags, u32, |flags| flags.bits(), OpenFlags::from_bits);

body! {
    /// Body of an open, 8 bytes; the payload is the path below the header's handle.
    pub struct OpenRequest("open request") {
        /// How.
        pub flags: OpenFlags = "open flags",
        /// Permission bits of a file that is made.
        pub mode: u32 = "mode",
    }
    check |request| check_mode(request.mode)
}

body! {
    /// Body of a request about one name, 8 bytes: lookup, getattr, mkdir, readlink, extended attributes. The payload is
    /// the path below the header's handle (for extended attributes: the path with a 16-bit length, the attribute's name
    /// with a 16-bit length, the value).
    pub struct NameRequest("name request") {
        /// A symbolic link at the end of the path is followed.
        pub follow: bool = "follow",
        /// Permission bits, where something is made; else 0.
        pub mode: u32 = "mode",
    }
    check |request| check_mode(request.mode)
}

impl NameRequest {
    /// Reads the body of a request of this opcode: what that has no use for is 0.
    pub fn decode_for(opcode: Opcode, body: &[u8]) -> Result<Self, WireError> {
        let request = Self::decode(body)?;
        let follows = matches!(
            opcode,
            Opcode::Lookup | Opcode::Getattr | Opcode::Setattr | Opcode::Statfs | Opcode::AccessCheck
        );
        if request.follow && !follows {
            return Err(WireError::Invalid { what: "follow of a request that follows no link", value: 1 });
        }
        let mode_max = match opcode {
            // A mode beyond what access(2) knows is answered.
            Opcode::Mkdir | Opcode::AccessCheck => 0o7777,
            Opcode::XattrWrite => 2,
            _ => 0,
        };
        match request.mode {
            mode if mode > mode_max => Err(WireError::Invalid { what: "mode", value: u64::from(mode) }),
            _ => Ok(request),
        }
    }
}

body! {
    /// Body of a remove, 8 bytes; the payload is the path.
    pub struct RemoveRequest("remove request") {
        /// It must be an empty directory; else it must not be a directory.
        pub directory: bool = "directory" and 4 reserved,
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

/// What a [`MknodRequest`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NodeKind {
    /// A FIFO.
    Fifo = 0,
    /// A unix socket's name.
    Socket = 1,
    /// A character device.
    CharDevice = 2,
    /// A block device.
    BlockDevice = 3,
}

impl NodeKind {
    fn from_value(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Fifo,
            1 => Self::Socket,
            2 => Self::CharDevice,
            3 => Self::BlockDevice,
            _ => return None,
        })
    }
}

field_by_number!(NodeKind, u32, |kind| kind as u32, NodeKind::from_value);

body! {
    /// Body of a mknod, 16 bytes; the payload is the path below the header's handle.
    pub struct MknodRequest("mknod request") {
        /// What is made.
        pub kind: NodeKind = "kind of node",
        /// Permission bits.
        pub mode: u32 = "mode",
        /// Number of a device, as [`super::Attributes::device`] has it; else 0.
        pub device: u64 = "device",
    }
    check |request| check_mknod(request)
}

fn check_mknod(request: &MknodRequest) -> Result<(), WireError> {
    if request.device != 0 && matches!(request.kind, NodeKind::Fifo | NodeKind::Socket) {
        return Err(WireError::Invalid { what: "device of what is none", value: request.device });
    }
    check_mode(request.mode)
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

body! {
    /// Body of a readdir, 40 bytes: the cookie to resume after (0 from the beginning), then as in a read. Inline, `len`
    /// bounds the payload of the reply; direct, the ranges.
    pub struct ReaddirRequest("readdir request") {
        /// Resume after the entry with this cookie.
        pub cookie: u64 = "readdir cookie",
        /// Bytes of encoded entries wanted at most.
        pub len: u32 = "readdir length",
        /// With attributes.
        pub attributes: bool = "attributes wanted",
        /// The range for the entries; a zero length for inline.
        pub segment: WireRange = "segment",
    }
}

body! {
    /// Body of a readdir's reply, 16 bytes. The entries are the payload (inline) or in the client's memory (direct).
    pub struct ReaddirReply("readdir reply") {
        /// Bytes of encoded entries.
        pub count: u32 = "readdir count",
        /// No entries follow.
        pub end: bool = "end of directory",
        /// Cookie of the last entry returned.
        pub cookie: u64 = "readdir cookie",
    }
}

body! {
    /// Body of truncate (offset = new size, len = 0), allocate and punch, 16 bytes.
    pub struct AllocateRequest("range request") {
        /// First byte, or the new size.
        pub offset: u64 = "offset",
        /// Bytes.
        pub len: u64 = "length",
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

field_by_number!(SeekWhat, u32, |what| what as u32, |number| {
    [SeekWhat::Data, SeekWhat::Hole].get(number as usize).copied()
});

body! {
    /// Body of a seek, 16 bytes.
    pub struct SeekRequest("seek request") {
        /// Where to begin.
        pub offset: u64 = "seek offset",
        /// What to look for.
        pub what: SeekWhat = "seek what" and 4 reserved,
    }
}

body! {
    /// Body of a seek's reply, 8 bytes.
    pub struct SeekReply("seek reply") {
        /// Where it is.
        pub offset: u64 = "seek offset",
    }
}

body! {
    /// Body of a hint, 24 bytes. Hints are numbers because unknown ones are ignored.
    pub struct HintRequest("hint request") {
        /// First byte.
        pub offset: u64 = "hint offset",
        /// Bytes; 0 for all that follow.
        pub len: u64 = "hint length",
        /// Number of an [`AccessPattern`].
        pub pattern: u32 = "pattern",
        /// How likely it is used so, percent; 0 where that is not said.
        pub likelihood: u32 = "likelihood",
    }
    check |request| match request.likelihood {
        0..=100 => Ok(()),
        value => Err(WireError::Invalid { what: "likelihood", value: value.into() }),
    }
}

/// How a range of a file will be used. The server may ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessPattern {
    /// Nothing is known.
    Normal = 0,
    /// From beginning to end. Of the whole file, whatever the range.
    Sequential = 1,
    /// Anywhere. Of the whole file, whatever the range.
    Random = 2,
    /// Soon: the server reads it ahead, 64 MiB at most.
    WillNeed = 3,
    /// Not again soon: the server writes it out, and drops it from its page cache.
    WillNotNeed = 4,
    /// From beginning to end, and not again. Of the whole file, whatever the range.
    Once = 5,
}

impl AccessPattern {
    /// In the order of their numbers.
    const ALL: [Self; 6] =
        [Self::Normal, Self::Sequential, Self::Random, Self::WillNeed, Self::WillNotNeed, Self::Once];

    /// That of this number; others are those of later versions.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

impl HintRequest {
    /// Likelihood from which the server goes by what is said, percent.
    pub const LIKELY: u32 = 50;

    /// The pattern, where it is a known one and not said to be unlikely.
    pub fn likely_pattern(&self) -> Option<AccessPattern> {
        let is_likely = self.likelihood == 0 || self.likelihood >= Self::LIKELY;
        AccessPattern::from_number(self.pattern).filter(|_| is_likely)
    }
}

#[inline]
fn check_mode(mode: u32) -> Result<(), WireError> {
    match mode {
        0..=0o7777 => Ok(()),
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

/// What becomes of what has the second name of a rename or link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and is an error.
    Kept = 0,
    /// It is replaced.
    Replaced = 1,
    /// It gets the first name. Of renames alone.
    Exchanged = 2,
}

field_by_number!(Existing, u32, |existing| existing as u32, |number| {
    [Existing::Kept, Existing::Replaced, Existing::Exchanged].get(number as usize).copied()
});

impl Existing {
    /// Replaced, or kept.
    pub fn of(replace: bool) -> Self {
        if replace { Self::Replaced } else { Self::Kept }
    }
}

impl RenameRequest {
    /// Reads the body of a request of this opcode: a link exchanges nothing.
    pub fn decode_for(opcode: Opcode, body: &[u8]) -> Result<Self, WireError> {
        let request = Self::decode(body)?;
        match request.replace {
            Existing::Exchanged if opcode != Opcode::Rename => {
                Err(WireError::Invalid { what: "replace of a link", value: request.replace as u64 })
            }
            _ => Ok(request),
        }
    }
}

body! {
    /// Body of rename and link, 16 bytes.
    pub struct RenameRequest("rename request") {
        /// Where the second path starts.
        pub second_handle: u64 = "second handle",
        /// What becomes of an existing name.
        pub replace: Existing = "replace" and 4 reserved,
    }
}

impl AllocateRequest {
    /// Reads the body of a request of this opcode: the new size of a file has no length.
    pub fn decode_for(opcode: Opcode, body: &[u8]) -> Result<Self, WireError> {
        let request = Self::decode(body)?;
        match request.len {
            value @ 1.. if opcode == Opcode::Truncate => {
                Err(WireError::Invalid { what: "length of a truncation", value })
            }
            _ => Ok(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [STOR-163] [WIRE-29]
    #[test]
    fn hint_that_is_unlikely_or_unknown_says_nothing() {
        let pattern = |pattern, likelihood| {
            HintRequest { offset: 0, len: 0, pattern, likelihood }.likely_pattern().map(|known| known as u32)
        };
        for number in 0..=5 {
            assert_eq!(pattern(number, 0), Some(number), "nothing is said of its likelihood");
            for likelihood in 1..=100 {
                assert_eq!(pattern(number, likelihood).is_some(), likelihood >= 50, "{likelihood}");
            }
        }
        assert_eq!((pattern(6, 0), pattern(u32::MAX, 100)), (None, None));
    }

    // [WIRE-138]
    #[test]
    fn likelihood_beyond_certainty_is_refused() {
        for (likelihood, is_good) in [(99, true), (100, true), (101, false), (u32::MAX, false)] {
            let mut body = [0; 24];
            HintRequest { offset: 1, len: 2, pattern: 3, likelihood }.encode(&mut body);
            assert_eq!(HintRequest::decode(&body).is_ok(), is_good, "{likelihood}");
        }
    }
}
